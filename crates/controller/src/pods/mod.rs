//! The pods of nodes that are to be empty.
//!
//! A drain says which nodes it wants to see; their pods are then followed until it lets go. Up to
//! [`MOST_OWN_WATCHES`] nodes have a watch of their own; with more, one watch over all pods feeds those
//! that were wanted when it began, and keeps nothing of others; those that come while it is young wait for
//! a watch of their own, or the next one over all.
//!
//! # Guarantees
//! - A node is fed by one watch. What it answers was whole at one moment, and a later moment follows
//!   within a watch's delay.
//! - While a watch brings nothing, what is known may be old: [`Known::old_since`] says so until all
//!   pods were listed anew (P6).
//! - Each change wakes the drain's work of its node after it can be read.
//!
//! # Bounds
//! Of a pod a dozen fields are kept, and nothing of one that has finished: of a node at most as many
//! as its kubelet runs.

mod decode;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use decide::drain::{PodFacts, PodRef};
use health_event::NodeName;
use jiff::Timestamp;
use tokio::sync::Notify;

use crate::kubernetes::Change;
use decode::Pod;

/// Nodes with a watch of their own at most: each is a connection (31 KB).
pub const MOST_OWN_WATCHES: usize = 64;

/// The pods. Cheap to clone; all clones are one.
#[derive(Debug, Clone, Default)]
pub struct Pods(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    nodes: Mutex<BTreeMap<NodeName, Entry>>,
    /// What is wanted changed.
    changed: Notify,
}

/// What is known of a node's pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// Those that have not finished, in no order that means anything.
    pub pods: Arc<[PodFacts]>,
    /// Since when more may have happened than is known; none: the watch stands.
    pub old_since: Option<Timestamp>,
}

/// Number of a watch: each that is begun has another.
type FeedId = u64;

/// A wanted node.
#[derive(Debug, Default)]
struct Entry {
    /// The watch that feeds it; none yet.
    feed: Option<FeedId>,
    /// By UID.
    pods: BTreeMap<String, PodFacts>,
    /// UIDs of the list that runs; none while none runs.
    listing: Option<BTreeSet<String>>,
    listed: bool,
    old_since: Option<Timestamp>,
    /// What was answered last, until it changes.
    answered: Option<Arc<[PodFacts]>>,
}

impl Pods {
    /// From now on the pods of this node are followed.
    pub fn want(&self, node: &NodeName) {
        let mut nodes = self.lock();
        if !nodes.contains_key(node) {
            nodes.insert(node.clone(), Entry::default());
            self.0.changed.notify_one();
        }
    }

    /// They are followed no more, and forgotten.
    pub fn release(&self, node: &NodeName) {
        if self.lock().remove(node).is_some() {
            self.0.changed.notify_one();
        }
    }

    /// The pods of a wanted node; none until they were listed.
    pub fn of_node(&self, node: &NodeName) -> Option<Known> {
        let mut nodes = self.lock();
        let entry = nodes.get_mut(node).filter(|entry| entry.listed)?;
        let pods = &entry.pods;
        let answer = || Arc::from(pods.values().cloned().collect::<Vec<_>>());
        let pods = Arc::clone(entry.answered.get_or_insert_with(answer));
        let old_since = entry.old_since;
        Some(Known { pods, old_since })
    }

    /// Nodes that are wanted.
    pub fn wanted(&self) -> usize {
        self.lock().len()
    }

    /// Takes a change of a watch in; answers the nodes that it concerns, and nothing that this watch
    /// does not feed.
    fn take(&self, feed: FeedId, change: Change<Pod>, now: Timestamp) -> Vec<NodeName> {
        let mut nodes = self.lock();
        match change {
            Change::Put(pod) => {
                let Some(node) = NodeName::new(pod.node()).ok() else {
                    return Vec::new();
                };
                let entry = nodes.get_mut(&node).filter(|e| e.feed == Some(feed));
                let Some(entry) = entry else {
                    return Vec::new();
                };
                entry.put(&pod);
                concerned(entry, node)
            }
            Change::Gone(pod) => {
                let Some(node) = NodeName::new(pod.node()).ok() else {
                    return Vec::new();
                };
                let entry = nodes.get_mut(&node).filter(|e| e.feed == Some(feed));
                let Some(entry) = entry else {
                    return Vec::new();
                };
                entry.remove(pod.uid());
                concerned(entry, node)
            }
            Change::Listing => {
                for entry in fed(&mut nodes, feed).map(|(_, entry)| entry) {
                    entry.listing = Some(BTreeSet::new());
                    entry.old_since.get_or_insert(now);
                }
                Vec::new()
            }
            Change::Listed => fed(&mut nodes, feed)
                .map(|(node, entry)| {
                    entry.whole();
                    node.clone()
                })
                .collect(),
            Change::Failed(_) => {
                for entry in fed(&mut nodes, feed).map(|(_, entry)| entry) {
                    entry.old_since.get_or_insert(now);
                }
                Vec::new()
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeName, Entry>> {
        self.0.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn fed(
    nodes: &mut BTreeMap<NodeName, Entry>,
    feed: FeedId,
) -> impl Iterator<Item = (&NodeName, &mut Entry)> {
    nodes.iter_mut().filter(move |(_, e)| e.feed == Some(feed))
}

/// While a list runs nothing can be said yet.
fn concerned(entry: &Entry, node: NodeName) -> Vec<NodeName> {
    if entry.listing.is_some() {
        Vec::new()
    } else {
        vec![node]
    }
}

impl Entry {
    fn put(&mut self, pod: &Pod) {
        if let Some(listing) = &mut self.listing {
            listing.insert(pod.uid().to_owned());
        }
        match pod.facts() {
            Some(facts) => {
                self.answered = None;
                self.pods.insert(facts.pod.uid.clone(), facts);
            }
            None => self.remove(pod.uid()),
        }
    }

    fn remove(&mut self, uid: &str) {
        if self.pods.remove(uid).is_some() {
            self.answered = None;
        }
    }

    /// All pods were said.
    fn whole(&mut self) {
        let listed = self.listing.take().unwrap_or_default();
        self.pods.retain(|uid, _| listed.contains(uid));
        self.answered = None;
        self.listed = true;
        self.old_since = None;
    }
}

/// A pod in a message.
pub(crate) fn named(pod: &PodRef) -> String {
    format!("pod {}/{}", pod.namespace, pod.name)
}

#[cfg(test)]
mod tests;
