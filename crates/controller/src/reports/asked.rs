//! Which lists agents were asked for: bounded in a second, and not the same twice.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use health_event::NodeName;
use tokio::time::Instant;

/// Lists asked for a second, over all nodes.
const LISTS_A_SECOND: u32 = 50;
/// The same pair of sets is not asked for again within this.
const SAME_PAIR: Duration = Duration::from_hours(1);

/// Which lists were asked for.
#[derive(Debug, Default)]
pub(super) struct Asked {
    second: Option<Instant>,
    in_second: u32,
    pairs: HashMap<NodeName, (Pair, Instant)>,
    /// Nodes whose mismatch a list did not change: logged once.
    logged: HashSet<NodeName>,
    /// Sets that differ by what overrides made healthy, and by nothing else: ours and theirs.
    agreed: HashMap<NodeName, ([u8; 32], Vec<u8>)>,
}

/// The two sets, and what the detectors said of themselves.
pub(super) type Pair = ([u8; 32], Vec<u8>, Vec<(String, i32)>);

impl Asked {
    /// Whether a list may be asked for now; noted if so.
    pub(super) fn may_ask(&mut self, node: &NodeName, pair: Pair, now: Instant) -> bool {
        if let Some((last, at)) = self.pairs.get(node)
            && *last == pair
            && now.duration_since(*at) < SAME_PAIR
        {
            return false;
        }
        let fresh = |at: Instant| now.duration_since(at) < Duration::from_secs(1);
        if !self.second.is_some_and(fresh) {
            self.second = Some(now);
            self.in_second = 0;
        }
        if self.in_second >= LISTS_A_SECOND {
            return false;
        }
        self.in_second += 1;
        self.pairs.insert(node.clone(), (pair, now));
        true
    }

    /// Whether the node's mismatch was not logged yet; noted.
    pub(super) fn may_log(&mut self, node: &NodeName) -> bool {
        self.logged.insert(node.clone())
    }

    /// These two differ by what overrides made healthy, and by nothing else.
    pub(super) fn agree(&mut self, node: &NodeName, ours: [u8; 32], theirs: Vec<u8>) {
        self.agreed.insert(node.clone(), (ours, theirs));
    }

    /// Whether these two were found to.
    pub(super) fn agrees(&self, node: &NodeName, ours: &[u8; 32], theirs: &[u8]) -> bool {
        let agreed = self.agreed.get(node);
        agreed.is_some_and(|(a, b)| a == ours && b == theirs)
    }

    /// The sets agree, or the node is gone.
    pub(super) fn forget(&mut self, node: &NodeName) {
        self.pairs.remove(node);
        self.agreed.remove(node);
        self.logged.remove(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fifty_lists_a_second_and_the_same_pair_once_an_hour() {
        let mut asked = Asked::default();
        let now = Instant::now();
        let node = |n: usize| NodeName::new(&format!("n{n}")).unwrap();
        let pair = |theirs: u8| ([0; 32], vec![theirs], Vec::new());
        let granted = (0..60)
            .filter(|n| asked.may_ask(&node(*n), pair(1), now))
            .count();
        assert_eq!(granted, 50);
        let second = now + Duration::from_secs(1);
        assert!(
            asked.may_ask(&node(55), pair(1), second),
            "the others in the next second"
        );
        assert!(!asked.may_ask(&node(0), pair(1), second), "the same pair");
        assert!(asked.may_ask(&node(0), pair(2), second), "another pair");
        assert!(
            asked.may_ask(&node(1), pair(1), now + SAME_PAIR),
            "after an hour"
        );
        let starting = ([0; 32], vec![2], vec![("kernel-log".to_owned(), 1)]);
        assert!(
            asked.may_ask(&node(0), starting, second),
            "a detector settled in between"
        );
    }
}
