//! What this process knows of objects beyond what is stored. It is memory only: another process asks anew,
//! and takes every stored intent for sent.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use decide::janitor::Answer;
use health_event::NodeName;
use jiff::Timestamp;

use super::provider::Connection;

/// What this process knows of an object.
#[derive(Default, Clone)]
pub(super) struct Known {
    /// The last answer of the provider.
    pub(super) answer: Option<Answer>,
    /// When it was last asked.
    pub(super) asked_at: Option<Timestamp>,
    /// The intent is stored, and the call, which goes over this, was not made yet.
    pub(super) unsent: Option<Connection>,
    /// Something else than a place keeps it from being begun; its end wakes it.
    pub(super) kept: bool,
}

/// By the node whose work an object is, and by the object's UID: as many as there are objects that are not
/// over, and stored intents.
#[derive(Default)]
pub(super) struct Memory(Mutex<HashMap<NodeName, HashMap<String, Known>>>);

impl Memory {
    pub(super) fn of(&self, node: &NodeName, uid: &str) -> Known {
        let nodes = self.lock();
        let known = nodes.get(node).and_then(|of_node| of_node.get(uid));
        known.cloned().unwrap_or_default()
    }

    pub(super) fn change<T>(
        &self,
        node: &NodeName,
        uid: &str,
        change: impl FnOnce(&mut Known) -> T,
    ) -> T {
        let mut nodes = self.lock();
        let of_node = nodes.entry(node.clone()).or_default();
        change(of_node.entry(uid.to_owned()).or_default())
    }

    /// Forgets objects of the node that are not there any more.
    pub(super) fn keep(&self, node: &NodeName, is_there: impl Fn(&str) -> bool) {
        let mut nodes = self.lock();
        if let Some(of_node) = nodes.get_mut(node) {
            of_node.retain(|uid, _| is_there(uid));
            if of_node.is_empty() {
                nodes.remove(node);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeName, HashMap<String, Known>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_objects_that_are_gone_nothing_is_kept() {
        let memory = Memory::default();
        let [here, there] = ["here", "there"].map(|name| NodeName::new(name).unwrap());
        for (node, uid) in [(&here, "a"), (&here, "b"), (&there, "c")] {
            memory.change(node, uid, |known| known.kept = true);
        }
        memory.keep(&here, |uid| uid == "b");
        let kept = |node, uid| memory.of(node, uid).kept;
        assert!(!kept(&here, "a") && kept(&here, "b") && kept(&there, "c"));
        memory.keep(&here, |_| false);
        assert_eq!(memory.lock().len(), 1, "nor anything of a node without one");
    }
}
