//! Whether several agents report as one node: pure.
//!
//! A process id is made anew at each start, so that a process which speaks again after another one
//! spoke lives beside it. Of a restarted agent the former process never comes back.

use std::time::Duration;

use jiff::Timestamp;

use super::state::AgentState;

/// Processes that are remembered beside the one that spoke last: agents that crash in a loop end
/// somewhere.
const MOST_OTHERS: usize = 8;

/// A process that reported as the same node as another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Other {
    /// ULID.
    pub(super) process_id: String,
    pub(super) machine: String,
    pub(super) version: String,
    pub(super) last_report_at: Timestamp,
}

/// The other processes, and when several spoke last, once `process` has spoken at `now`. What is
/// older than `patience` is over.
pub(super) fn heard(
    before: &AgentState,
    process: &str,
    patience: Duration,
    now: Timestamp,
) -> (Vec<Other>, Option<Timestamp>) {
    let changed = before.process_id != process && !before.process_id.is_empty();
    let former = before.last_report_at.filter(|_| changed).map(|at| Other {
        process_id: before.process_id.clone(),
        machine: before.machine.clone(),
        version: before.version.clone(),
        last_report_at: at,
    });
    let mut others: Vec<Other> = former.into_iter().chain(before.others.clone()).collect();
    others.retain(|other| is_recent(other.last_report_at, patience, now));
    let spoke_again = others.iter().any(|other| other.process_id == process);
    others.retain(|other| other.process_id != process);
    others.truncate(MOST_OTHERS);
    let contested_at = before.contested_at;
    let contested_at = contested_at.filter(|at| is_recent(*at, patience, now));
    (others, if spoke_again { Some(now) } else { contested_at })
}

/// Whether several agents report as the node, as far as is known at `now`.
pub(super) fn is_contested(state: &AgentState, patience: Duration, now: Timestamp) -> bool {
    let at = state.contested_at;
    at.is_some_and(|at| is_recent(at, patience, now))
}

fn is_recent(at: Timestamp, patience: Duration, now: Timestamp) -> bool {
    Duration::try_from(now.duration_since(at)).is_ok_and(|age| age <= patience)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    const PATIENCE: Duration = Duration::from_mins(3);

    /// (second, process, whether several are known to speak then)
    fn check(name: &str, reports: &[(i64, &str, bool)]) {
        let start = Timestamp::now();
        let mut state = AgentState::default();
        for (second, process, contested) in reports {
            let now = start + SignedDuration::from_secs(*second);
            let (others, contested_at) = heard(&state, process, PATIENCE, now);
            assert!(others.len() <= MOST_OTHERS);
            state = AgentState {
                process_id: (*process).to_owned(),
                last_report_at: Some(now),
                others,
                contested_at,
                ..state
            };
            let is = is_contested(&state, PATIENCE, now);
            assert_eq!(is, *contested, "{name}: {second} {process}");
        }
    }

    #[test]
    fn two_that_speak_in_turns_are_told_from_restarts() {
        check(
            "one",
            &[(0, "a", false), (60, "a", false), (600, "a", false)],
        );
        check(
            "restart",
            &[(0, "a", false), (5, "b", false), (65, "b", false)],
        );
        let loops = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
        let crashing: Vec<_> = (0..).zip(loops).map(|(n, p)| (n, p, false)).collect();
        check("crash loop", &crashing);
        check(
            "two",
            &[
                (0, "a", false),
                (10, "b", false),
                (60, "a", true),
                (70, "b", true),
                (120, "a", true),
            ],
        );
        check(
            "three",
            &[
                (0, "a", false),
                (1, "b", false),
                (2, "c", false),
                (60, "a", true),
            ],
        );
        // The second went: three intervals later it is over.
        check(
            "it went",
            &[
                (0, "a", false),
                (10, "b", false),
                (60, "a", true),
                (120, "a", true),
                (241, "a", false),
            ],
        );
        check(
            "long after",
            &[(0, "a", false), (10, "b", false), (400, "a", false)],
        );
    }

    #[test]
    fn a_clock_that_was_set_back_claims_nothing() {
        check(
            "back",
            &[(1_000, "a", false), (0, "b", false), (1, "a", false)],
        );
    }
}
