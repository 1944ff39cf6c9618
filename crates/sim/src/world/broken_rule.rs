//! Decisions that are wrong on purpose: each breaks one rule of an incident, and must be caught.

use decide::quarantine::{FaultFacts, NodeFacts, Policy};

use super::Site;

/// What a wrong decision does not look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokenRule {
    /// Of which machine and boot a fault is (faults-incidents 3, rule 6).
    AnotherMachine,
    /// That the node has opted out (rule 8).
    OptOut,
    /// That the node is paused (rule 8).
    Pause,
    /// That the first action waits (rule 10).
    FirstAction,
}

/// What it sees instead.
pub(super) struct Seen {
    pub(super) node: Option<NodeFacts>,
    pub(super) faults: Vec<FaultFacts>,
    pub(super) policy: Policy,
}

impl BrokenRule {
    pub(super) fn see(self, site: &Site, policy: &Policy) -> Seen {
        let mut seen = Seen {
            node: site.cache.as_ref().map(|cache| cache.facts.clone()),
            faults: site.open.0.to_vec(),
            policy: policy.clone(),
        };
        match (self, &mut seen.node) {
            (Self::AnotherMachine, Some(node)) => {
                for fault in &mut seen.faults {
                    fault.machine_id.clone_from(&node.machine_id);
                    fault.boot.clone_from(&node.boot);
                }
            }
            (Self::OptOut, Some(node)) => node.opted_out = false,
            (Self::Pause, Some(node)) => node.paused = false,
            (Self::FirstAction, _) => seen.policy.first_action_until = None,
            (Self::AnotherMachine | Self::OptOut | Self::Pause, None) => {}
        }
        seen
    }
}
