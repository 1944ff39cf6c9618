//! What the API server last said against the quarantine's write of a node, for who asks meanwhile.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use health_event::NodeName;
use jiff::Timestamp;

use crate::kubernetes::CallError;

/// Longest text kept of a refusal, in bytes.
const TEXT: usize = 600;

/// A write that was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Static code of the last time.
    pub code: &'static str,
    /// What was tried on which object, and the server's words, the last time.
    pub text: String,
    /// The first time in a row.
    pub since: Timestamp,
    /// The last time.
    pub last_at: Timestamp,
    /// How often in a row.
    pub times: u32,
    /// When it is tried again; none = at once.
    pub next_at: Option<Timestamp>,
}

/// By node, from a failed write until one is taken: at most one text a node. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Refusals(Arc<Mutex<HashMap<NodeName, Refusal>>>);

impl Refusals {
    /// A write failed.
    pub(crate) fn said(&self, node: &NodeName, error: &CallError, now: Timestamp) {
        let mut text = error.to_string().replace(char::is_control, " ");
        text.truncate(text.floor_char_boundary(TEXT));
        let mut all = self.lock();
        let before = all.get(node);
        let refusal = Refusal {
            code: error.code(),
            text,
            since: before.map_or(now, |before| before.since),
            last_at: now,
            times: before.map_or(0, |before| before.times).saturating_add(1),
            next_at: None,
        };
        all.insert(node.clone(), refusal);
    }

    /// It is tried again then.
    pub(crate) fn again_at(&self, node: &NodeName, at: Timestamp) {
        if let Some(refusal) = self.lock().get_mut(node) {
            refusal.next_at = Some(at);
        }
    }

    /// A write was taken, or the node is gone.
    pub(crate) fn over(&self, node: &NodeName) {
        self.lock().remove(node);
    }

    /// What was said last of the write that is under way.
    pub(crate) fn of(&self, node: &NodeName) -> Option<Refusal> {
        self.lock().get(node).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeName, Refusal>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    #[test]
    fn the_first_time_stays_and_the_last_words_count_until_it_is_over() {
        let (refusals, node) = (Refusals::default(), NodeName::new("n").unwrap());
        let at = |second| Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second);
        let error = |message: &str| CallError::Changed {
            act: "taking out of node n".into(),
            message: message.into(),
        };
        refusals.said(&node, &error("one"), at(1));
        refusals.again_at(&node, at(5));
        assert_eq!(refusals.of(&node).unwrap().next_at, Some(at(5)));
        refusals.said(&node, &error(&"two\n".repeat(TEXT)), at(5));
        let last = refusals.of(&node).unwrap();
        assert_eq!((last.code, last.times), ("changed", 2));
        assert_eq!(
            (last.since, last.last_at, last.next_at),
            (at(1), at(5), None)
        );
        assert!(last.text.len() <= TEXT && last.text.contains("two two"));
        refusals.over(&node);
        refusals.again_at(&node, at(9));
        assert_eq!(refusals.of(&node), None);
    }
}
