//! One pod: whether the drain waits for it, for how long, and whether it is asked to go.

use health_event::incident::{Drain, DrainDeadlines, DrainFailure, DrainStatus};
use jiff::{SignedDuration, Timestamp};

use super::facts::{Ask, Asked, AtDeadline, BlockedBy, Blocker, How, Phase, PodFacts, View};
use super::namespaces::EvictMode;
use crate::later;

/// The longest that a pod which came during the drain is let be before it is asked to go.
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_mins(5);

/// What a pod is to a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// None of its business: a system pod, one that its owner would put back, one without a GPU.
    Left,
    /// As good as gone: it is over.
    Over,
    /// On the node, and made harmless by the repair.
    PassedOver,
    /// The drain waits for it.
    Counts {
        mode: EvictMode,
        /// From then on it is passed over.
        until: Option<Timestamp>,
    },
}

/// What comes of a pod that the drain waits for.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) blocker: Blocker,
    pub(super) ask: Option<Ask>,
    pub(super) failed: Option<DrainFailure>,
    /// When to look again.
    pub(super) look_at: Option<Timestamp>,
}

pub(super) fn standing(view: &View<'_>, pod: &PodFacts, force: bool, now: Timestamp) -> Standing {
    let policy = view.policy;
    let mode = policy.namespaces.mode(&pod.pod.namespace);
    let Some(mode) = mode.filter(|_| !pod.of_daemon_set && !pod.is_mirror) else {
        return Standing::Left;
    };
    if policy.gpu_pods_only && !pod.has_devices {
        return Standing::Left;
    }
    if pod.phase == Phase::Finished {
        return Standing::Over;
    }
    let mode = if force { EvictMode::Immediate } else { mode };
    let until = harmless_from(view, pod);
    if until.is_some_and(|until| until <= now) {
        return Standing::PassedOver;
    }
    Standing::Counts { mode, until }
}

/// From when on the repair makes a pod harmless that is still there.
fn harmless_from(view: &View<'_>, pod: &PodFacts) -> Option<Timestamp> {
    if !view.ends_processes {
        return None;
    }
    let policy = view.policy;
    let stuck = pod.deleted_by.map(|at| later(at, policy.stuck_timeout));
    let not_ready = pod.not_ready_since.map(|at| {
        let tolerated = later(at, policy.not_ready_timeout);
        later(tolerated, policy.stuck_timeout)
    });
    let silent = view
        .kubelet_silent_since
        .map(|at| later(at, policy.dead_kubelet_timeout));
    [stuck, not_ready, silent].into_iter().flatten().min()
}

pub(super) fn turn(
    view: &View<'_>,
    pod: &PodFacts,
    mode: EvictMode,
    until: Option<Timestamp>,
    deadlines: DrainDeadlines,
    now: Timestamp,
) -> Turn {
    let limit = Limit::of(view, mode, deadlines);
    let deletes = limit.deletes_at.is_some_and(|at| at <= now);
    let how = if deletes {
        Some(How::Delete)
    } else if mode == EvictMode::Immediate {
        let grace = view.policy.grace.map(|grace| grace.as_secs());
        Some(How::Evict(grace))
    } else {
        None
    };
    let failed = limit.fails(now);
    let asked = view.asked.get(&pod.pod.uid);
    let again_at = match asked {
        Some(Asked::Budget { again_at, .. } | Asked::Failed { again_at, .. }) => Some(*again_at),
        Some(Asked::InFlight | Asked::Accepted) | None => None,
    };
    let came_until =
        asked_from(view, pod).filter(|at| *at > now && asked.is_none() && how.is_some());
    // A budget that refuses an eviction says nothing about a deletion.
    let waits = match asked {
        Some(Asked::InFlight) => true,
        Some(Asked::Accepted) => !(deletes && pod.deleted_by.is_some_and(|at| at > now)),
        Some(Asked::Budget { again_at, .. }) => !deletes && now < *again_at,
        Some(Asked::Failed { again_at, .. }) => now < *again_at,
        None => came_until.is_some(),
    };
    // An eviction of a pod that is going changes nothing; a deletion may cut its grace short.
    let going = pod.deleted_by.is_some_and(|at| !deletes || at <= now);
    let ask = how
        .filter(|_| failed.is_none() && !waits && !going)
        .map(|how| Ask {
            pod: pod.pod.clone(),
            how,
        });
    let why = match (pod.deleted_by, asked, mode) {
        (Some(_), _, _) => BlockedBy::Terminating,
        (None, Some(Asked::Budget { why, .. }), _) => BlockedBy::Budget(why.clone()),
        (None, Some(Asked::Failed { why, .. }), _) => BlockedBy::Failed(why.clone()),
        (None, None, _) if came_until.is_some() => BlockedBy::Came,
        (None, Some(Asked::InFlight | Asked::Accepted) | None, EvictMode::Immediate) => {
            BlockedBy::Asked
        }
        (None, Some(Asked::InFlight | Asked::Accepted) | None, _) if deletes => BlockedBy::Asked,
        (None, Some(Asked::InFlight | Asked::Accepted) | None, EvictMode::AllowCompletion) => {
            BlockedBy::Completion
        }
        (None, Some(Asked::InFlight | Asked::Accepted) | None, EvictMode::DeleteAfterTimeout) => {
            BlockedBy::Timeout
        }
    };
    let next = [
        limit.next(now),
        until,
        again_at.filter(|at| *at > now && how.is_some()),
        came_until,
    ];
    Turn {
        blocker: Blocker {
            pod: pod.pod.clone(),
            why,
            until: came_until.or_else(|| limit.next(now).into_iter().chain(until).min()),
        },
        ask,
        failed,
        look_at: next.into_iter().flatten().min(),
    }
}

/// From when on a pod is asked to go that was made while the node was drained: after as long again as the
/// drain had lasted by then. Whatever puts a new pod there for each that goes is so asked ever less often,
/// a dozen times in an hour, and never thousands of times.
fn asked_from(view: &View<'_>, pod: &PodFacts) -> Option<Timestamp> {
    let drain = view.incident.drain.as_ref();
    let asks = |d: &&Drain| matches!(d.status, DrainStatus::Draining(_) | DrainStatus::Failed(_));
    let since = drain.filter(asks)?.since;
    let created = pod.created_at.filter(|at| *at > since)?;
    Some(later(
        created,
        created.duration_since(since).min(LONGEST_PAUSE),
    ))
}

/// What ends the wait for pods of a mode.
struct Limit {
    deletes_at: Option<Timestamp>,
    fails_at: Option<(Timestamp, DrainFailure)>,
}

impl Limit {
    fn of(view: &View<'_>, mode: EvictMode, deadlines: DrainDeadlines) -> Self {
        let policy = view.policy;
        let deleted = |at: Timestamp| Self {
            deletes_at: Some(at),
            fails_at: Some((later(at, policy.stuck_timeout), DrainFailure::Deleted)),
        };
        let ends = |at: Timestamp, why: DrainFailure| match policy.at_deadline {
            AtDeadline::Delete => deleted(at),
            AtDeadline::Fail => Self {
                deletes_at: None,
                fails_at: Some((at, why)),
            },
        };
        match mode {
            EvictMode::Immediate => ends(deadlines.immediate, DrainFailure::Immediate),
            EvictMode::DeleteAfterTimeout => deleted(deadlines.delete),
            EvictMode::AllowCompletion => match deadlines.completion {
                Some(at) => ends(at, DrainFailure::Completion),
                None => Self {
                    deletes_at: None,
                    fails_at: None,
                },
            },
        }
    }

    fn fails(&self, now: Timestamp) -> Option<DrainFailure> {
        let (at, why) = self.fails_at?;
        (at <= now).then_some(why)
    }

    fn next(&self, now: Timestamp) -> Option<Timestamp> {
        let fails = self.fails_at.map(|(at, _)| at);
        let ends = self.deletes_at.into_iter().chain(fails);
        ends.filter(|at| *at > now).min()
    }
}
