//! What becomes of the faults of a node that is gone, or that is another machine now.
//!
//! # Guarantees (`tests`)
//! - While a node is gone its faults wait: they are evaluated if it comes back within the memory of
//!   faults. It is counted from the newest of what was said of the fault, the deletion, and, where
//!   the node's agent asserts the fault, that agent's last report.
//! - A silent agent of a node that is gone is no fault: none is expected there.
//! - On a node that exists only faults of another machine close, as far as both ids are known, and
//!   none that an open incident of this node object holds.
//! - All is forgotten once nothing is open and the memory is over.
//!
//! # Assumptions
//! The caller proved by a direct read that the node is gone, or which machine it is.

use health_event::{CloseCause, FaultId, checks};
use jiff::{SignedDuration, Timestamp};

use crate::later;

/// The checks of the controller's own that need a node to be about.
const ABOUT_AGENTS: [&str; 4] = [
    checks::TOO_MANY_FAULTS,
    checks::AGENT_SILENT,
    checks::AGENT_CONFLICT,
    checks::AGENT_MACHINE,
];

/// What was said of another machine later than the node object was made waits for this long: a
/// machine that was exchanged under its node object speaks before the kubelet writes the new id
/// (it does so at its start, and every 10 s).
pub const SETTLING: SignedDuration = SignedDuration::from_mins(2);

/// A fault that stays until somebody ends it: open, or asserted by the node's agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastingFault {
    /// Which.
    pub id: FaultId,
    /// Machine that it was said of; empty if unknown.
    pub machine: String,
    /// Receipt of the last event about it.
    pub last_at: Timestamp,
    /// Whether the node's agent asserts it.
    pub asserted: bool,
    /// Whether an open incident of the present node object holds it.
    pub held: bool,
}

/// What a direct read said of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// There is none of this name.
    Gone {
        /// Since when, as far as is known.
        since: Timestamp,
    },
    /// There is one.
    Present {
        /// Its machine id; empty if unknown.
        machine: String,
        /// When the object was made, at the latest: the API server tells whole seconds, cut.
        made_by: Timestamp,
        /// The machine that the agent there reports from; empty if none reports.
        reported: String,
    },
}

/// All that the decision looks at.
#[derive(Debug, Clone)]
pub struct View<'a> {
    /// The node.
    pub place: &'a Place,
    /// Its lasting faults.
    pub faults: &'a [LastingFault],
    /// The last report of the name's agent to this controller process.
    pub heard_at: Option<Timestamp>,
    /// Until then an agent that runs may not have reported yet, because the controller was away.
    pub agents_by: Timestamp,
    /// How long faults of a node that is gone wait for it.
    pub memory: SignedDuration,
    /// [`SETTLING`], or less where the memory is shorter.
    pub settling: SignedDuration,
}

/// What follows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Decision {
    /// Faults that close, by their place in [`View::faults`], and why.
    pub close: Vec<(usize, CloseCause)>,
    /// Nothing is left to wait for: what is kept by the node's name goes too.
    pub forget: bool,
    /// When to look again; none if nothing is left or only a change of the node matters.
    pub wake_at: Option<Timestamp>,
}

/// Decides about one node.
pub fn decide(view: &View<'_>, now: Timestamp) -> Decision {
    let mut decision = Decision::default();
    let mut at = |wake_at: Timestamp| {
        decision.wake_at = decision.wake_at.into_iter().chain([wake_at]).min();
    };
    match view.place {
        Place::Gone { since } => {
            let heard = view.heard_at.unwrap_or(Timestamp::MIN);
            for (index, fault) in view.faults.iter().enumerate() {
                let last = fault.last_at.max(*since);
                let due = if fault.asserted {
                    later(last.max(heard), view.memory).max(view.agents_by)
                } else {
                    later(last, view.memory)
                };
                if is_about_agent(&fault.id) || due <= now {
                    decision.close.push((index, CloseCause::NodeDeleted));
                } else {
                    at(due);
                }
            }
            let due = later((*since).max(heard), view.memory).max(view.agents_by);
            if due > now {
                at(due);
            }
            decision.forget = decision.wake_at.is_none();
        }
        Place::Present {
            machine,
            made_by,
            reported,
        } => {
            for (index, fault) in view.faults.iter().enumerate() {
                if !is_of_another(&fault.machine, machine) || fault.held {
                    continue;
                }
                let settled = later(fault.last_at, view.settling);
                if !reported.is_empty() && fault.machine == *reported {
                    // The agent is closer to the machine than the object is.
                    at(later(now, view.settling));
                } else if fault.last_at < *made_by || settled <= now {
                    decision.close.push((index, CloseCause::NodeReplaced));
                } else {
                    at(settled);
                }
            }
        }
    }
    decision
}

/// Whether both machines are known, and are two.
pub fn is_of_another(said_of: &str, machine: &str) -> bool {
    !said_of.is_empty() && !machine.is_empty() && said_of != machine
}

fn is_about_agent(id: &FaultId) -> bool {
    let scope = &id.scope;
    scope.agent == checks::WARDEN_AGENT && ABOUT_AGENTS.contains(&&*scope.check_name)
}

#[cfg(test)]
mod tests {
    use health_event::{Device, FaultKey, NodeName, Scope, Space, Subject};

    use super::*;

    const MEMORY: SignedDuration = SignedDuration::from_hours(24);

    fn at(minute: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minute)
    }

    fn fault(check: &str, machine: &str, last_at: Timestamp) -> LastingFault {
        let scope = Scope {
            subject: Subject::Node(NodeName::new("gpu-1").unwrap()),
            agent: checks::WARDEN_AGENT.to_owned(),
            component_class: "GPU".to_owned(),
            check_name: check.to_owned(),
        };
        let key = FaultKey {
            space: Space::ExecuteRemediation,
            device: Device::default().key(),
            code: "79".to_owned(),
        };
        LastingFault {
            id: FaultId { scope, key },
            machine: machine.to_owned(),
            last_at,
            asserted: false,
            held: false,
        }
    }

    fn asked(place: &Place, faults: &[LastingFault], heard: i64, now: Timestamp) -> Decision {
        let view = View {
            place,
            faults,
            heard_at: (heard >= 0).then(|| at(heard)),
            agents_by: at(1),
            memory: MEMORY,
            settling: SETTLING,
        };
        decide(&view, now)
    }

    #[test]
    fn a_gone_nodes_fault_waits_for_the_memory_of_the_newest_word() {
        let day = 24 * 60;
        // (last event, since, asserted, last report of the agent or -1, minute at which it closes)
        let table = [
            (0, 10, false, -1, day + 10),
            (20, 10, false, -1, day + 20),
            (20, 10, false, 30, day + 20),
            (20, 10, true, 30, day + 30),
            (20, 10, true, -1, day + 20),
        ];
        for (last, since, asserted, heard, closes) in table {
            let place = Place::Gone { since: at(since) };
            let mut fault = fault("Test", "m", at(last));
            fault.asserted = asserted;
            let faults = [fault];
            let before = asked(&place, &faults, heard, at(closes - 1));
            assert!(before.close.is_empty() && !before.forget, "{closes}");
            assert!(before.wake_at.is_some_and(|wake| wake <= at(closes)));
            let then = asked(&place, &faults, heard, at(closes));
            assert_eq!(then.close, [(0, CloseCause::NodeDeleted)], "{closes}");
        }
    }

    #[test]
    fn what_is_asserted_waits_until_agents_could_report_after_a_start() {
        let place = Place::Gone { since: at(-3_000) };
        let mut asserted = fault("Test", "m", at(-3_000));
        asserted.asserted = true;
        let faults = [asserted, fault("Test", "m", at(-3_000))];
        let early = asked(&place, &faults, -1, at(0));
        assert_eq!(early.close, [(1, CloseCause::NodeDeleted)]);
        assert_eq!((early.forget, early.wake_at), (false, Some(at(1))));
        let then = asked(&place, &faults, -1, at(1));
        assert_eq!((then.close.len(), then.forget), (2, true));
    }

    #[test]
    fn what_is_said_of_the_agent_ends_with_the_node_and_the_name_is_forgotten_last() {
        let place = Place::Gone { since: at(10) };
        let faults = ABOUT_AGENTS.map(|check| fault(check, "", at(9)));
        let first = asked(&place, &faults, -1, at(10));
        assert_eq!(
            first.close,
            [0, 1, 2, 3].map(|index| (index, CloseCause::NodeDeleted))
        );
        let end = at(10) + MEMORY;
        assert_eq!((first.forget, first.wake_at), (false, Some(end)));
        let last = asked(&place, &[], -1, end);
        assert_eq!((last.forget, last.wake_at), (true, None));
    }

    #[test]
    fn only_another_machines_faults_close_on_a_node_that_exists() {
        // (machine of the fault, of the node, reported since, last event, held,
        //  minute at which it closes or -1); the object was made in minute 100.
        let table = [
            ("a", "b", "", 50, false, 100),
            ("a", "b", "b", 50, false, 100),
            ("a", "b", "", 150, false, 152),
            ("a", "b", "a", 50, false, -1),
            ("a", "b", "", 50, true, -1),
            ("a", "a", "", 50, false, -1),
            ("", "b", "", 50, false, -1),
            ("a", "", "", 50, false, -1),
        ];
        for (of, machine, reported, last, held, closes) in table {
            let place = Place::Present {
                machine: machine.to_owned(),
                made_by: at(100),
                reported: reported.to_owned(),
            };
            let mut fault = fault("Test", of, at(last));
            fault.held = held;
            let faults = [fault];
            let row = format!("{of} {machine} {reported} {last} {held}");
            if closes < 0 {
                let never = asked(&place, &faults, -1, at(100_000));
                assert!(never.close.is_empty(), "{row}");
                continue;
            }
            if closes > 100 {
                let early = asked(&place, &faults, -1, at(closes - 1));
                assert_eq!((early.close.len(), early.wake_at), (0, Some(at(closes))));
            }
            let then = asked(&place, &faults, -1, at(closes));
            assert_eq!(then.close, [(0, CloseCause::NodeReplaced)], "{row}");
            assert!(!then.forget, "{row}");
        }
    }
}
