//! What became of what was asked, by node and pod. It is memory only: after a restart a pod that is
//! going says so itself, and one that a budget kept is asked again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use decide::drain::{Asked, PodFacts};
use health_event::NodeName;
use jiff::Timestamp;

use crate::kubernetes::jittered;

/// First pause before a pod is asked again; it doubles.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
/// Longest pause, before its random part.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// What became of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The API server took it, or the pod is gone already.
    Accepted,
    /// A disruption budget does not allow it now.
    Budget { why: String, after: Duration },
    /// It failed, or is refused.
    Failed(String),
    /// It was not made: what it was decided for has changed.
    NotMade,
}

#[derive(Debug, Default)]
pub(super) struct Memory(Mutex<HashMap<NodeName, OfNode>>);

/// At most an entry for each pod of the node, and one for each check of its incident.
#[derive(Debug, Default)]
struct OfNode {
    asked: BTreeMap<String, Asked>,
    /// Refusals in a row, by UID.
    refusals: HashMap<String, u32>,
    /// Checks of the incident's open faults while it drains.
    draining: Option<BTreeSet<String>>,
}

impl Memory {
    pub(super) fn of(&self, node: &NodeName) -> BTreeMap<String, Asked> {
        let nodes = self.lock();
        nodes.get(node).map(|n| n.asked.clone()).unwrap_or_default()
    }

    /// A call goes into the queue.
    pub(super) fn ask(&self, node: &NodeName, uid: &str) {
        let mut nodes = self.lock();
        let of_node = nodes.entry(node.clone()).or_default();
        of_node.asked.insert(uid.to_owned(), Asked::InFlight);
    }

    /// What became of it. Nobody wants to know of a node whose drain is over.
    pub(super) fn tell(&self, node: &NodeName, uid: &str, outcome: Outcome, now: Timestamp) {
        let mut nodes = self.lock();
        let Some(of_node) = nodes.get_mut(node) else {
            return;
        };
        let mut again_at = |after: Duration| {
            let refusals = of_node.refusals.entry(uid.to_owned()).or_default();
            let pause = FIRST_PAUSE * 2_u32.pow((*refusals).min(10));
            *refusals += 1;
            let pause = jittered(pause.min(LONGEST_PAUSE)).max(after);
            now.checked_add(pause).unwrap_or(Timestamp::MAX)
        };
        let asked = match outcome {
            Outcome::Accepted => Asked::Accepted,
            Outcome::Budget { why, after } => Asked::Budget {
                why,
                again_at: again_at(after),
            },
            Outcome::Failed(why) => Asked::Failed {
                why,
                again_at: again_at(Duration::ZERO),
            },
            Outcome::NotMade => {
                of_node.asked.remove(uid);
                return;
            }
        };
        of_node.asked.insert(uid.to_owned(), asked);
    }

    /// Forgets pods that are not there any more.
    pub(super) fn keep(&self, node: &NodeName, pods: &[PodFacts]) {
        let mut nodes = self.lock();
        if let Some(of_node) = nodes.get_mut(node) {
            let there: BTreeSet<&str> = pods.iter().map(|p| p.pod.uid.as_str()).collect();
            of_node.asked.retain(|uid, _| there.contains(uid.as_str()));
            of_node
                .refusals
                .retain(|uid, _| there.contains(uid.as_str()));
        }
    }

    /// Notes that the node is draining, for these checks.
    pub(super) fn draining(&self, node: &NodeName, checks: BTreeSet<String>) {
        let mut nodes = self.lock();
        nodes.entry(node.clone()).or_default().draining = Some(checks);
    }

    /// Some of it has failed, which is no end that is to be told: what is asked goes on.
    pub(super) fn failed(&self, node: &NodeName) {
        if let Some(of_node) = self.lock().get_mut(node) {
            of_node.draining = None;
        }
    }

    /// The drain is over. Answers the checks that it ran for if nobody said that yet.
    pub(super) fn forget(&self, node: &NodeName) -> Option<BTreeSet<String>> {
        self.lock().remove(node)?.draining
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeName, OfNode>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_asked_again_after_what_the_server_says_or_a_pause_that_doubles_to_a_minute() {
        let (memory, node) = (Memory::default(), NodeName::new("n").unwrap());
        let now = Timestamp::UNIX_EPOCH;
        memory.ask(&node, "u");
        assert_eq!(memory.of(&node)["u"], Asked::InFlight);
        let budget = |after: u64| {
            let after = Duration::from_secs(after);
            let why = "needs 2".to_owned();
            memory.tell(&node, "u", Outcome::Budget { why, after }, now);
            match memory.of(&node).remove("u") {
                Some(Asked::Budget { again_at, .. }) => again_at.duration_since(now).as_secs(),
                other => panic!("{other:?}"),
            }
        };
        for least in [5, 10, 20, 40, 60, 60] {
            let pause = budget(0);
            assert!((least..=2 * least).contains(&pause), "{pause} for {least}");
        }
        assert_eq!(budget(300), 300, "what the server asks for");
        memory.tell(&node, "u", Outcome::NotMade, now);
        assert_eq!(memory.of(&node), BTreeMap::new());
        memory.ask(&node, "v");
        memory.keep(&node, &[]);
        assert_eq!(memory.of(&node), BTreeMap::new(), "the pod went");
        memory.draining(&node, ["Check".to_owned()].into());
        memory.failed(&node);
        assert_eq!(memory.forget(&node), None, "that it failed was said");
        memory.draining(&node, ["Check".to_owned()].into());
        assert_eq!(memory.forget(&node), Some(["Check".to_owned()].into()));
        memory.tell(&node, "u", Outcome::Accepted, now);
        assert_eq!(memory.forget(&node), None, "nobody waits for it");
    }
}
