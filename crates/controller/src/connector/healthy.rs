//! What each check of each node last said to be well.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use event_store::{EventStore, ReadError};
use health_event::{NodeName, checks};
use jiff::Timestamp;

use crate::config::CheckRef;

/// Checks remembered a node at most; the reference has 40 and a site adds a few.
pub const CHECKS: usize = 256;
/// Names of checks remembered at most in all.
const NAMES: usize = 4_096;

/// From the events since this process began, and the checks that the store remembers from before.
/// Cheap to clone; all clones are one.
#[derive(Debug, Clone, Default)]
pub(super) struct Healthy(Arc<Mutex<Said>>);

#[derive(Debug, Default)]
struct Said {
    by_node: HashMap<NodeName, BTreeMap<Arc<str>, Timestamp>>,
    /// Checks that spoke, whatever they said.
    spoke: BTreeSet<Arc<str>>,
    /// Checks that no longer exist, also if an old word of theirs is read again.
    retired: BTreeSet<String>,
}

impl Healthy {
    /// With the checks that the store remembers, so that a restart takes no condition off a node.
    pub(super) fn of(store: &EventStore, retired: &[CheckRef]) -> Result<Self, ReadError> {
        let known = store.known_checks()?.into_iter();
        let spoke = known.map(Arc::from).take(NAMES).collect();
        Ok(Self(Arc::new(Mutex::new(Said {
            spoke,
            retired: retired.iter().map(|r| r.check.clone()).collect(),
            ..Said::default()
        }))))
    }

    /// A check spoke about a node. Answers whether it is the first healthy word there.
    pub(super) fn note(&self, node: &NodeName, check: &str, healthy: Option<Timestamp>) -> bool {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let name = match said.spoke.get(check) {
            Some(known) => known.clone(),
            None if said.spoke.len() < NAMES => {
                let new: Arc<str> = Arc::from(check);
                said.spoke.insert(new.clone());
                new
            }
            None => return false,
        };
        let Some(at) = healthy else { return false };
        let of_node = said.by_node.entry(node.clone()).or_default();
        if of_node.len() >= CHECKS && !of_node.contains_key(&name) {
            return false;
        }
        of_node.insert(name, at).is_none()
    }

    /// What was said healthy about a node, and when.
    pub(super) fn about(&self, node: &NodeName) -> BTreeMap<String, Timestamp> {
        let said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_node = said.by_node.get(node);
        of_node
            .into_iter()
            .flatten()
            .map(|(check, at)| (check.to_string(), *at))
            .collect()
    }

    /// The node is gone.
    pub(super) fn forget(&self, node: &NodeName) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .by_node
            .remove(node);
    }

    /// Checks that no longer exist.
    pub(super) fn retired(&self) -> BTreeSet<String> {
        let said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        said.retired.clone()
    }

    /// Checks that exist: those that we know, and those that spoke.
    pub(super) fn configured(&self) -> BTreeSet<String> {
        let said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = checks::CHECKS.iter().map(|check| check.name.to_owned());
        known
            .chain(said.spoke.iter().map(ToString::to_string))
            .filter(|check| !said.retired.contains(check))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_healthy_word_is_told_and_all_are_bounded() {
        let healthy = Healthy::default();
        let node = NodeName::new("n").unwrap();
        let now = Timestamp::UNIX_EPOCH;
        assert!(!healthy.note(&node, "A", None));
        assert!(healthy.note(&node, "A", Some(now)));
        assert!(!healthy.note(&node, "A", Some(now)));
        for i in 0..2 * NAMES {
            healthy.note(&node, &format!("c{i}"), Some(now));
        }
        assert_eq!(healthy.about(&node).len(), CHECKS);
        assert!(healthy.configured().len() <= NAMES + checks::CHECKS.len());
        healthy.forget(&node);
        assert!(healthy.about(&node).is_empty());
    }
}
