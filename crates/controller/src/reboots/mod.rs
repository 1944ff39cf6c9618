//! The `RebootNode` objects of the cluster, fed by one watch: what remediation and janitor look at.
//!
//! # Guarantees
//! - What is answered was on the API server at one moment. Before [`Reboots::is_known`] nothing can
//!   be said not to be there.
//! - Each change wakes the node that the object names; where that is no name of a node, the work of
//!   the object's own name, so that somebody ends it.
//! - An older version never takes a newer one's place, but by a list.
//! - Where the API server knows no such objects none can be there: that is known, and looked at again.
//! - What keeps them from being read, or from being there, is said on the page of health.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::mem::{Discriminant, discriminant};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use health_event::NodeName;
use jiff::Timestamp;
use k8s_api::reboot_node::{PATH, RebootNode};
use telemetry::Subsystem;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::context::Context;
use crate::kubernetes::{Change, Collection, Trouble, follow};

/// Name of the part on the page of health.
const PART: &str = "reboots";

/// The objects. Cheap to clone; all clones are one.
#[derive(Debug, Clone, Default)]
pub struct Reboots(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    objects: Mutex<Objects>,
    /// Whether all objects were read once.
    known: watch::Sender<bool>,
    /// Whether a watch feeds them, or is about to.
    followed: AtomicBool,
}

#[derive(Debug, Default)]
struct Objects {
    by_name: BTreeMap<String, Arc<RebootNode>>,
    /// Names of the objects by [`key`].
    by_key: BTreeMap<String, BTreeSet<String>>,
    /// Names said by the list that runs; none while none runs.
    listing: Option<Vec<String>>,
    trouble: Option<Trouble>,
    /// When the API server last said that it knows no such objects.
    undefined_at: Option<Timestamp>,
}

impl Reboots {
    /// Whether all objects were read once.
    pub fn is_known(&self) -> bool {
        *self.0.known.borrow()
    }

    /// A watch is about to feed them: until all were read, nobody knows which there are.
    pub fn will_be_followed(&self) {
        self.0.followed.store(true, Ordering::Release);
    }

    /// Whether a watch feeds them, or is about to.
    pub fn is_followed(&self) -> bool {
        self.0.followed.load(Ordering::Acquire)
    }

    /// Waits until all objects were read once.
    pub async fn known(&self) {
        // The sender lives in self, so that waiting can't fail.
        drop(self.0.known.subscribe().wait_for(|known| *known).await);
    }

    /// Whether the API server knows such objects, as far as is known.
    pub fn are_defined(&self) -> bool {
        self.lock().trouble != Some(Trouble::Absent)
    }

    /// Whether the API server was seen to know no such objects since then: all that were there went.
    pub fn were_undefined_since(&self, at: Timestamp) -> bool {
        self.lock().undefined_at.is_some_and(|seen| seen >= at)
    }

    /// One by its name.
    pub fn get(&self, name: &str) -> Option<Arc<RebootNode>> {
        self.lock().by_name.get(name).cloned()
    }

    /// Those that name the node, by name.
    pub fn of_node(&self, node: &str) -> Vec<Arc<RebootNode>> {
        let of_key = self.of_key(node).into_iter();
        of_key.filter(|o| o.spec.node_name == node).collect()
    }

    /// Those whose change wakes the work of this name, by name.
    pub fn of_key(&self, key: &str) -> Vec<Arc<RebootNode>> {
        let objects = self.lock();
        let names = objects.by_key.get(key).into_iter().flatten();
        names
            .filter_map(|name| objects.by_name.get(name).cloned())
            .collect()
    }

    /// Takes the answer to a write in, unless the watch is ahead.
    pub fn put_if_newer(&self, object: RebootNode) {
        let mut objects = self.lock();
        // One that is not there is gone already: the watch says.
        if objects.by_name.contains_key(&object.metadata.name) && !objects.is_old(&object) {
            objects.insert(object);
        }
    }

    /// All.
    pub fn all(&self) -> Vec<Arc<RebootNode>> {
        self.lock().by_name.values().cloned().collect()
    }

    /// Takes a change in; answers the keys that it concerns.
    fn take(&self, change: Change<RebootNode>) -> Vec<String> {
        let mut objects = self.lock();
        match change {
            Change::Listing => {
                objects.listing = Some(Vec::new());
                Vec::new()
            }
            Change::Put(object) => {
                if let Some(listing) = &mut objects.listing {
                    listing.push(object.metadata.name.clone());
                } else if objects.is_old(&object) {
                    return Vec::new();
                }
                let new = key(&object);
                let before = objects.insert(object);
                let other = before.map(|b| key(&b)).filter(|other| *other != new);
                [Some(new), other].into_iter().flatten().collect()
            }
            Change::Gone(object) => objects.remove(&object.metadata.name),
            Change::Listed => {
                objects.trouble = None;
                self.0.known.send_replace(true);
                let mut keys = objects.keep_listed();
                // What waited for the first look goes on.
                keys.extend(objects.by_key.keys().cloned());
                keys
            }
            Change::Failed(trouble) => {
                let absent = trouble == Trouble::Absent;
                objects.trouble = Some(trouble);
                if !absent {
                    return Vec::new();
                }
                objects.undefined_at = Some(Timestamp::now());
                self.0.known.send_replace(true);
                objects.listing = Some(Vec::new());
                objects.keep_listed()
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Objects> {
        self.0
            .objects
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Objects {
    /// Whether a newer version of the same object is known.
    fn is_old(&self, object: &RebootNode) -> bool {
        let known = self.by_name.get(&object.metadata.name);
        known.is_some_and(|known| {
            known.metadata.uid == object.metadata.uid && version(known) > version(object)
        })
    }

    /// Ends a list: what it did not name is gone. Answers the keys of that.
    fn keep_listed(&mut self) -> Vec<String> {
        let mut listed = self.listing.take().unwrap_or_default();
        listed.sort();
        let gone = |name: &&String| listed.binary_search(name).is_err();
        let gone: Vec<String> = self.by_name.keys().filter(gone).cloned().collect();
        gone.iter().flat_map(|name| self.remove(name)).collect()
    }

    fn insert(&mut self, object: RebootNode) -> Option<Arc<RebootNode>> {
        let name = object.metadata.name.clone();
        let before = self.by_name.get(&name).cloned();
        self.remove(&name);
        let names = self.by_key.entry(key(&object)).or_default();
        names.insert(name.clone());
        self.by_name.insert(name, Arc::new(object));
        before
    }

    /// Answers its key.
    fn remove(&mut self, name: &str) -> Vec<String> {
        let Some(object) = self.by_name.remove(name) else {
            return Vec::new();
        };
        let key = key(&object);
        if let Some(names) = self.by_key.get_mut(&key) {
            names.remove(name);
            if names.is_empty() {
                self.by_key.remove(&key);
            }
        }
        vec![key]
    }
}

/// Whose work an object is: its node's, or where it names none, that of its own name.
fn key(object: &RebootNode) -> String {
    match NodeName::new(&object.spec.node_name) {
        Ok(_) => object.spec.node_name.clone(),
        Err(_) => object.metadata.name.clone(),
    }
}

/// The API server promises that they can be compared (1.35).
fn version(object: &RebootNode) -> u64 {
    object.metadata.resource_version.parse().unwrap_or_default()
}

/// Feeds them until the future is dropped; wakes the work of each node after a change of one of its.
pub async fn run(context: &Context) -> Infallible {
    let of = Collection {
        what: "RebootNode objects".to_owned(),
        path: PATH,
        selectors: String::new(),
    };
    let reboots = &context.reboots;
    let mut shown = Shown::new(context);
    let take = |change| {
        let keys = reboots.take(change);
        for key in keys {
            // The name of an object is a node's in form.
            if let Ok(node) = NodeName::new(&key) {
                context.wakes.wake(&node);
            }
        }
        if shown.show(reboots) {
            wake_incidents(context);
        }
    };
    follow(&context.kube, &of, take).await
}

/// Nodes that wait until the objects can be read, or made.
fn wake_incidents(context: &Context) {
    // Where they can't be read, each looks again by itself.
    for incident in context.store.open_incidents().unwrap_or_default() {
        context.wakes.wake(&incident.node);
    }
}

/// The part of the page of health.
struct Shown {
    part: Subsystem,
    /// What a person misses without the objects.
    missed: &'static str,
    /// What is said there: whether all were read once, and what kind of trouble keeps them from being read.
    said: (bool, Option<Discriminant<Trouble>>),
}

impl Shown {
    fn new(context: &Context) -> Self {
        let config = &context.config;
        let missed = match (config.remediation.enabled, config.janitor.enabled) {
            (true, true) => "no repair is ordered or carried out",
            (true, false) => "no repair is ordered",
            (false, true) => "no repair is carried out",
            (false, false) => "no repair that was ordered before is followed",
        };
        let part = context.readiness.subsystem(PART);
        part.limited("RebootNode objects are about to be read");
        Self {
            part,
            missed,
            said: (false, None),
        }
    }

    /// Says how it stands; answers whether that is another kind of trouble than before, or none any more.
    fn show(&mut self, reboots: &Reboots) -> bool {
        let trouble = reboots.lock().trouble.clone();
        // Words of an error may differ each time, by a port or a time: no news for the log or a node.
        let standing = (reboots.is_known(), trouble.as_ref().map(discriminant));
        let is_news = self.said != standing;
        self.said = standing;
        match words(trouble.as_ref(), self.missed) {
            Some(words) => {
                if is_news {
                    warn!(
                        code = "reboots_unread",
                        why = words,
                        "RebootNode objects can't be used"
                    );
                }
                self.part.limited(words);
            }
            None if is_news => {
                info!("RebootNode objects were read");
                self.part.ready();
            }
            None => {}
        }
        is_news
    }
}

/// What is wrong, and what to do.
fn words(trouble: Option<&Trouble>, missed: &str) -> Option<String> {
    let kept =
        "and no node is given back for which it is not known whether a reboot may still come";
    Some(match trouble? {
        Trouble::Absent => format!(
            "the definition of RebootNode is not installed, so that {missed}; install it: kubectl apply -f \
             deploy/crds/janitor.dgxc.nvidia.com_rebootnodes.yaml"
        ),
        Trouble::Refused(why) => format!(
            "the API server does not let us list and watch rebootnodes.janitor.dgxc.nvidia.com ({why}): \
             {missed}, {kept}; give the controller's service account get, list and watch of them"
        ),
        Trouble::Other(why) => {
            format!("RebootNode objects can't be read ({why}): until they can, {missed}, {kept}")
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(name: &str, node: &str, version: u32) -> RebootNode {
        serde_json::from_value(json!({
            "metadata": { "name": name, "uid": name, "resourceVersion": version.to_string() },
            "spec": { "nodeName": node },
        }))
        .unwrap()
    }

    fn names(objects: &[Arc<RebootNode>]) -> Vec<&str> {
        objects.iter().map(|o| o.metadata.name.as_str()).collect()
    }

    #[test]
    fn a_change_concerns_the_node_or_where_there_is_none_the_object() {
        let reboots = Reboots::default();
        let put = |o| reboots.take(Change::Put(o));
        assert_eq!(put(object("a", "n1", 1)), ["n1"]);
        assert_eq!(put(object("b", "Not A Node", 2)), ["b"]);
        assert_eq!(put(object("c", "b", 3)), ["b"]);
        assert_eq!(put(object("a", "n2", 4)), ["n2", "n1"]);
        assert_eq!(names(&reboots.of_key("b")), ["b", "c"]);
        assert_eq!(names(&reboots.of_node("b")), ["c"]);
        assert_eq!(reboots.take(Change::Gone(object("c", "b", 5))), ["b"]);
        assert_eq!(names(&reboots.of_key("b")), ["b"]);
    }

    #[test]
    fn the_answer_to_a_write_is_not_undone_by_a_watch_that_lags() {
        let reboots = Reboots::default();
        reboots.take(Change::Put(object("a", "n", 1)));
        reboots.put_if_newer(object("a", "n", 5));
        reboots.put_if_newer(object("gone", "n", 5));
        assert!(reboots.take(Change::Put(object("a", "n", 3))).is_empty());
        assert_eq!(reboots.get("a").unwrap().metadata.resource_version, "5");
        assert!(reboots.get("gone").is_none());
    }

    #[test]
    fn what_a_list_does_not_name_is_gone() {
        let reboots = Reboots::default();
        reboots.take(Change::Put(object("a", "n1", 9)));
        reboots.take(Change::Put(object("b", "n2", 1)));
        reboots.take(Change::Listing);
        reboots.take(Change::Put(object("a", "n1", 2)));
        assert!(!reboots.is_known());
        assert_eq!(reboots.take(Change::Listed), ["n2", "n1"]);
        assert!(reboots.is_known());
        assert_eq!(names(&reboots.all()), ["a"]);
        let version = &reboots.get("a").unwrap().metadata.resource_version;
        assert_eq!(version, "2", "a restored API server is behind");
    }

    #[test]
    fn an_error_whose_words_change_each_time_is_news_once_and_shown_as_it_is_now() {
        let (reboots, readiness) = (Reboots::default(), telemetry::Readiness::default());
        let mut shown = Shown {
            part: readiness.subsystem(PART),
            missed: "no repair is ordered",
            said: (false, None),
        };
        let mut is_news = |change, says: &str| {
            reboots.take(change);
            let news = shown.show(&reboots);
            let (_, page) = readiness.report();
            assert!(page.contains(says), "{page}");
            news
        };
        let lost = |port: u32| Change::Failed(Trouble::Other(format!("lost at port {port}")));
        let refused = |why: &str| Change::Failed(Trouble::Refused(why.to_owned()));
        assert!(is_news(lost(1), "port 1"));
        assert!(!is_news(lost(2), "port 2"));
        assert!(is_news(refused("403 at 12:00"), "12:00"));
        assert!(!is_news(refused("403 at 12:01"), "12:01"));
        assert!(is_news(lost(3), "port 3"));
        reboots.take(Change::Listing);
        assert!(is_news(Change::Listed, "reboots: ready"));
        assert!(is_news(lost(4), "port 4"), "after it went well it is");
    }

    #[test]
    fn where_there_is_no_such_collection_none_can_be_there_and_that_is_known() {
        let reboots = Reboots::default();
        reboots.take(Change::Listing);
        let refused = Trouble::Refused("403 Forbidden".to_owned());
        reboots.take(Change::Failed(refused.clone()));
        assert!(!reboots.is_known() && reboots.are_defined());
        let said = words(Some(&refused), "no repair is ordered").unwrap();
        assert!(said.contains("403 Forbidden") && said.contains("get, list and watch"));
        reboots.take(Change::Listing);
        reboots.take(Change::Put(object("a", "n1", 1)));
        let gone = reboots.take(Change::Failed(Trouble::Absent));
        assert_eq!(gone, ["n1"]);
        assert!(reboots.is_known() && !reboots.are_defined());
        assert!(reboots.were_undefined_since(Timestamp::UNIX_EPOCH));
        assert!(!reboots.were_undefined_since(Timestamp::MAX));
        assert!(reboots.all().is_empty());
        reboots.take(Change::Listing);
        assert!(
            !reboots.are_defined(),
            "a try is no answer: nothing is ordered yet"
        );
        reboots.take(Change::Listed);
        assert!(reboots.are_defined());
    }
}
