//! The `RebootNode` objects of the cluster, fed by one watch: what remediation and janitor look at.
//!
//! # Guarantees
//! - What is answered was on the API server at one moment. Before [`Reboots::is_known`] nothing can
//!   be said not to be there.
//! - Each change wakes the node that the object names.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use health_event::NodeName;
use k8s_api::reboot_node::{PATH, RebootNode};

use crate::kubernetes::{Change, Collection, Kube, follow};
use crate::workers::WakeAll;

/// The objects. Cheap to clone; all clones are one.
#[derive(Debug, Clone, Default)]
pub struct Reboots(Arc<Mutex<Objects>>);

#[derive(Debug, Default)]
struct Objects {
    by_name: BTreeMap<String, Arc<RebootNode>>,
    /// Names said by the list that runs; none while none runs.
    listing: Option<Vec<String>>,
    is_known: bool,
    failed: Option<String>,
}

impl Reboots {
    /// Whether all objects were read once.
    pub fn is_known(&self) -> bool {
        self.lock().is_known
    }

    /// Why they can't be read at the moment.
    pub fn failed(&self) -> Option<String> {
        self.lock().failed.clone()
    }

    /// One by its name.
    pub fn get(&self, name: &str) -> Option<Arc<RebootNode>> {
        self.lock().by_name.get(name).cloned()
    }

    /// Those that name the node, by name.
    pub fn of_node(&self, node: &str) -> Vec<Arc<RebootNode>> {
        let objects = self.lock();
        let of_node = objects.by_name.values();
        of_node
            .filter(|o| o.spec.node_name == node)
            .cloned()
            .collect()
    }

    /// All.
    pub fn all(&self) -> Vec<Arc<RebootNode>> {
        self.lock().by_name.values().cloned().collect()
    }

    /// Takes a change in; answers the nodes that it concerns.
    fn take(&self, change: Change<RebootNode>) -> Vec<String> {
        let mut objects = self.lock();
        match change {
            Change::Listing => {
                objects.listing = Some(Vec::new());
                Vec::new()
            }
            Change::Put(object) => {
                objects.failed = None;
                let name = object.metadata.name.clone();
                if let Some(listing) = &mut objects.listing {
                    listing.push(name.clone());
                }
                let node = object.spec.node_name.clone();
                let before = objects.by_name.insert(name, Arc::new(object));
                let other = before.map(|b| b.spec.node_name.clone());
                let other = other.filter(|other| *other != node);
                [Some(node), other].into_iter().flatten().collect()
            }
            Change::Gone(object) => {
                objects.by_name.remove(&object.metadata.name);
                vec![object.spec.node_name]
            }
            Change::Listed => {
                objects.failed = None;
                objects.is_known = true;
                let mut listed = objects.listing.take().unwrap_or_default();
                listed.sort();
                let gone = |name: &String| listed.binary_search(name).is_err();
                let gone = objects.by_name.extract_if(.., |name, _| gone(name));
                let mut nodes: Vec<String> = gone.map(|(_, o)| o.spec.node_name.clone()).collect();
                // What waited for the first look goes on.
                nodes.extend(objects.by_name.values().map(|o| o.spec.node_name.clone()));
                nodes
            }
            Change::Failed(why) => {
                objects.failed = Some(why);
                Vec::new()
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Objects> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Feeds them until the future is dropped; `changed` is called with each node's name after a change.
pub async fn run(kube: &Kube, reboots: &Reboots, wakes: &WakeAll) -> Infallible {
    let of = Collection {
        what: "RebootNode objects".to_owned(),
        path: PATH,
        selectors: String::new(),
    };
    let take = |change| {
        for node in reboots.take(change) {
            // A person's object may name anything.
            if let Ok(node) = NodeName::new(&node) {
                wakes.wake(&node);
            }
        }
    };
    follow(kube, &of, take).await
}
