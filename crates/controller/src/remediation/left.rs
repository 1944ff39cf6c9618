//! Objects that nobody waits for and that can't be taken back.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use health_event::NodeName;

/// Of which objects of a node it was said that they are left, until they go.
#[derive(Debug, Default)]
pub(super) struct Left(Mutex<HashMap<NodeName, BTreeSet<String>>>);

impl Left {
    /// Whether it was not yet said of this object; from now on it was.
    pub(super) fn is_news(&self, node: &NodeName, object: &str) -> bool {
        let mut left = self.lock();
        left.entry(node.clone())
            .or_default()
            .insert(object.to_owned())
    }

    /// Of objects that are not there any more nothing is to be said.
    pub(super) fn keep(&self, node: &NodeName, is_there: impl Fn(&str) -> bool) {
        let mut left = self.lock();
        if let Some(of_node) = left.get_mut(node) {
            of_node.retain(|object| is_there(object));
            if of_node.is_empty() {
                left.remove(node);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeName, BTreeSet<String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_that_is_left_is_told_of_once_and_forgotten_when_it_goes() {
        let (left, node) = (Left::default(), NodeName::new("n").unwrap());
        assert!(left.is_news(&node, "first") && left.is_news(&node, "second"));
        left.keep(&node, |_| true);
        for object in ["first", "second"] {
            assert!(!left.is_news(&node, object), "it is there: {object}");
        }
        left.keep(&node, |object| object == "second");
        assert_eq!(left.lock()[&node].len(), 1, "nothing is kept of what went");
        left.keep(&node, |_| false);
        assert!(left.lock().is_empty(), "nor of a node without any");
    }
}
