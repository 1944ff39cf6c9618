//! What quarantine, drain and remediation saw last of a node, for who asks: it is not stored, for a look makes it
//! anew.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use decide::drain::{Blocker, PodRef};
use health_event::NodeName;
use tokio::sync::Notify;

/// The last look over the pods of a node that is to be empty.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodLook {
    /// What the drain waits for.
    pub blockers: Vec<Blocker>,
    /// What it does not wait for because the repair makes it harmless.
    pub passed_over: Vec<PodRef>,
}

/// By node: at most one look of each kind. Cheap to clone; all clones are one.
#[derive(Debug, Clone, Default)]
pub struct Stages(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    looks: Mutex<Looks>,
    /// A look over pods changed, or a reboot waits for the controller to move.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Looks {
    pods: HashMap<NodeName, PodLook>,
    /// Nodes of which there is something else to say since somebody asked.
    changed: BTreeSet<NodeName>,
    repairs: HashMap<NodeName, &'static str>,
    releases: HashMap<NodeName, &'static str>,
    /// The reboot of the controller's own node that waits until it runs elsewhere, until that was said.
    controller_here: HashMap<NodeName, String>,
    /// What reboots wait for of which nothing was sent, by their objects' names.
    reboots: HashMap<NodeName, BTreeMap<String, String>>,
}

impl Stages {
    /// What the drain saw; none: there is nothing to wait for.
    pub fn set_pods(&self, node: &NodeName, look: Option<PodLook>) {
        let mut looks = self.lock();
        if looks.pods.get(node) == look.as_ref() {
            return;
        }
        set(&mut looks.pods, node, look);
        looks.changed.insert(node.clone());
        self.0.changed.notify_one();
    }

    /// The nodes whose look over pods changed since this was asked last, once there are any. One
    /// asks.
    pub async fn pods_changed(&self) -> BTreeSet<NodeName> {
        loop {
            let changed = std::mem::take(&mut self.lock().changed);
            if !changed.is_empty() {
                return changed;
            }
            self.0.changed.notified().await;
        }
    }

    /// A reboot of the controller's own node waits until the controller runs elsewhere: to be said once.
    pub fn set_controller_here(&self, node: &NodeName, object: &str) {
        let mut looks = self.lock();
        looks
            .controller_here
            .insert(node.clone(), object.to_owned());
        looks.changed.insert(node.clone());
        self.0.changed.notify_one();
    }

    /// The reboot of which it is to be said that it waits for the controller to move.
    pub fn controller_here(&self, node: &NodeName) -> Option<String> {
        self.lock().controller_here.get(node).cloned()
    }

    /// That was said.
    pub fn told_controller_here(&self, node: &NodeName) {
        self.lock().controller_here.remove(node);
    }

    /// What a reboot of the node waits for, for people; none: it does not wait, or something was sent.
    pub fn set_reboot_wait(&self, node: &NodeName, object: &str, why: Option<String>) {
        let Some(why) = why else {
            self.keep_reboot_waits(node, |waits| waits != object);
            return;
        };
        let mut looks = self.lock();
        let of_node = looks.reboots.entry(node.clone()).or_default();
        of_node.insert(object.to_owned(), why);
    }

    /// Forgets the waits of objects that are gone.
    pub fn keep_reboot_waits(&self, node: &NodeName, is_there: impl Fn(&str) -> bool) {
        let mut looks = self.lock();
        if let Some(of_node) = looks.reboots.get_mut(node) {
            of_node.retain(|object, _| is_there(object));
            if of_node.is_empty() {
                looks.reboots.remove(node);
            }
        }
    }

    /// What the reboots of the node wait for, by their objects.
    pub fn reboot_waits(&self, node: &NodeName) -> BTreeMap<String, String> {
        self.lock().reboots.get(node).cloned().unwrap_or_default()
    }

    /// What the drain of a node waits for.
    pub fn pods(&self, node: &NodeName) -> Option<PodLook> {
        self.lock().pods.get(node).cloned()
    }

    /// What keeps a planned repair from being ordered.
    pub fn set_repair_blocked(&self, node: &NodeName, by: Option<&'static str>) {
        set(&mut self.lock().repairs, node, by);
    }

    /// What keeps the planned repair of a node from being ordered.
    pub fn repair_blocked(&self, node: &NodeName) -> Option<&'static str> {
        self.lock().repairs.get(node).copied()
    }

    /// What keeps a node from being given back of which no fault is open.
    pub fn set_release_kept(&self, node: &NodeName, by: Option<&'static str>) {
        set(&mut self.lock().releases, node, by);
    }

    /// What keeps a node from being given back of which no fault is open.
    pub fn release_kept(&self, node: &NodeName) -> Option<&'static str> {
        self.lock().releases.get(node).copied()
    }

    fn lock(&self) -> MutexGuard<'_, Looks> {
        self.0.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn set<T>(of: &mut HashMap<NodeName, T>, node: &NodeName, look: Option<T>) {
    match look {
        Some(look) => drop(of.insert(node.clone(), look)),
        None => drop(of.remove(node)),
    }
}
