//! Moving the work off a node that is out: which pods are asked to go, and when it is done.
//!
//! # States
//! ```text
//!                 ┌─► Waiting ─┐              ┌─ a pod came late ─┐
//!  a fault wants ─┤            ├──► Draining ─┴──► Drained ◄──────┘──┐ the pods went after all
//!  the node empty └────────────┘      │  ▲                           │
//!                                     │  └─ deadline of some pods ► Failed
//!   nothing wants it any more, or the incident is over
//!                                     ▼
//!                                 Cancelled ──► (a fault that joins begins anew)
//! ```
//! - It runs only while the quarantine is at rest (Quarantined): a release ends it at once, and a
//!   change of the marks, which takes milliseconds, has the incident to itself.
//! - Deadlines count from the beginning of the drain. At the end of one it fails, or pods are
//!   deleted, as the policy says; pods of `DeleteAfterTimeout` are always deleted.
//! - It fails in the pods that are over their time alone: the others are asked and waited for until
//!   their own, and once only such are left it is Draining again.
//!
//! # Invariants (`tests`)
//! - No call without an open incident whose open faults want the drain (P2), none for a pod that
//!   counts for nothing, and none whose UID was not seen.
//! - Drained means that no pod is left that counts. A pod is passed over only where the repair ends
//!   all processes; before any other repair it blocks.
//! - Pods that are not known block: nothing is Drained before they were listed (P6).
//! - A pod that was bound while the cordon was written may show itself after the drain was done, and
//!   others come in spite of the cordon: until a repair is begun they are drained too, and looked for
//!   as long as one is planned or waits to be begun. Before a later repair the drain begins anew.
//! - Every state that waits for pods has a deadline, except `AllowCompletion` without one.
//!
//! # What it does not do
//! It sends nothing and keeps nothing: what became of a call comes back in [`View::asked`].

mod facts;
mod namespaces;
mod pods;

#[cfg(test)]
mod tests;

use health_event::incident::{
    Drain, DrainDeadlines, DrainFailed, DrainFailure, DrainStatus, DrainWait, Incident,
    QuarantineStatus, RepairStatus,
};
use jiff::{SignedDuration, Timestamp};

pub use facts::{
    Ask, Asked, AtDeadline, BlockedBy, Blocker, How, Mode, Overrides, Phase, PodFacts, PodRef,
    Policy, View,
};
pub use namespaces::{EvictMode, Namespaces, PolicyError};

use crate::later;
use pods::{Standing, standing, turn};

/// How long after a drain pods that come late are looked for: a pod is bound some seconds after it
/// was placed at most.
pub const LATE: SignedDuration = SignedDuration::from_mins(2);

/// One decision. The shell stores `incident` first; only then does it make the calls.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Decision {
    /// The incident as it shall be stored, one version later; `None`: unchanged.
    pub incident: Option<Incident>,
    /// The change of state that this is.
    pub transition: Option<Transition>,
    /// Calls to make, unless the incident has changed in between.
    pub asks: Vec<Ask>,
    /// The pods that it waits for, in order of namespace and name.
    pub blockers: Vec<Blocker>,
    /// Those among them that are over their time.
    pub overdue: Vec<PodRef>,
    /// Pods on the node that it does not wait for because the repair makes them harmless.
    pub passed_over: Vec<PodRef>,
    /// When to decide again, whatever happens or not.
    pub wake_at: Option<Timestamp>,
}

/// A change of state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transition {
    /// State before; `None` where there was none.
    pub from: Option<DrainStatus>,
    /// State after.
    pub to: DrainStatus,
    /// Why.
    pub reason: Reason,
}

/// Why a transition happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// An open fault wants the node empty.
    Wanted,
    /// Something keeps the drain from beginning.
    KeptWaiting,
    /// What keeps it is another program that drains nodes.
    OtherDrainer,
    /// No pod that counts is left.
    Empty,
    /// No pod that counts was there.
    NothingToDo,
    /// A pod came while the node was being taken out.
    CameLate,
    /// A deadline is over.
    Deadline,
    /// Of what was over its time nothing is left; others have time still.
    GoesOn,
    /// No open fault wants it any more.
    NotWanted,
    /// The module is switched off.
    Off,
}

impl Reason {
    /// Static name for the audit trail and metrics.
    pub fn code(self) -> &'static str {
        match self {
            Self::Wanted => "wanted",
            Self::KeptWaiting => "kept_waiting",
            Self::OtherDrainer => "other_drainer",
            Self::Empty => "empty",
            Self::NothingToDo => "nothing_to_do",
            Self::CameLate => "came_late",
            Self::Deadline => "deadline",
            Self::GoesOn => "goes_on",
            Self::NotWanted => "not_wanted",
            Self::Off => "off",
        }
    }
}

/// Decides about one node.
pub fn decide(view: &View<'_>, now: Timestamp) -> Decision {
    match view.incident.quarantine {
        QuarantineStatus::Quarantined => Look { view, now }.quarantined(),
        QuarantineStatus::Withheld(_)
        | QuarantineStatus::Observed
        | QuarantineStatus::Applying
        | QuarantineStatus::Releasing(_)
        | QuarantineStatus::Closed(_) => Decision::default(),
    }
}

/// Whether pods of the incident's node may be asked to go, or are waited for.
pub fn is_draining(incident: &Incident) -> bool {
    let drain = incident.drain.as_ref().map(|drain| &drain.status);
    match drain {
        Some(DrainStatus::Draining(_) | DrainStatus::Failed(_)) => true,
        Some(DrainStatus::Waiting(_) | DrainStatus::Drained | DrainStatus::Cancelled) | None => {
            false
        }
    }
}

/// Until when an incident keeps the controller's own node waiting, unless it changes before: its node is
/// drained or repaired, or is empty and its repair about to be ordered; `None`: it does not. A drain that
/// failed counts as long as pods with time of their own may be asked: once a person alone is waited for,
/// the own node is not. `repairs`: planned repairs are ordered, and not only shown.
pub fn at_work_until(incident: &Incident, policy: &Policy, repairs: bool) -> Option<Timestamp> {
    let repair = incident.repair.as_ref().map(|repair| &repair.status);
    if repair.is_some_and(RepairStatus::is_under_way) {
        return Some(Timestamp::MAX);
    }
    match incident.drain.as_ref().map(|drain| &drain.status)? {
        DrainStatus::Draining(_) => Some(Timestamp::MAX),
        DrainStatus::Failed(DrainFailed { deadlines, .. }) => {
            let last = deadlines.completion.unwrap_or(Timestamp::MIN);
            let last = last.max(deadlines.immediate).max(deadlines.delete);
            // What is deleted at its deadline is asked again until it is over its time, too.
            Some(later(last, policy.stuck_timeout))
        }
        DrainStatus::Drained => {
            let planned = matches!(repair, Some(RepairStatus::Planned { .. }));
            (planned && repairs).then_some(Timestamp::MAX)
        }
        DrainStatus::Waiting(_) | DrainStatus::Cancelled => None,
    }
}

/// Whether a repair that is ordered is not begun: pods of its node may be asked to go, or are waited for,
/// or will be once a pause is over.
pub fn keeps_repair(incident: &Incident) -> bool {
    let drain = incident.drain.as_ref().map(|drain| &drain.status);
    is_draining(incident) || matches!(drain, Some(DrainStatus::Waiting(DrainWait::Paused)))
}

/// Whether the decision looks at the node's pods, so that they are to be followed. Of a node that is
/// drained they are for [`LATE`], and while its repair waits to be ordered or begun; of one that is
/// repaired they are not.
pub fn needs_pods(view: &View<'_>, now: Timestamp) -> bool {
    let look = Look { view, now };
    let begins = || {
        let waits = look.keeps_waiting();
        look.is_wanted() && waits.is_none_or(|wait| wait == DrainWait::DryRun)
    };
    match (&view.incident.quarantine, &view.incident.drain) {
        _ if view.policy.mode == Mode::Off => false,
        // A change of the marks is over in milliseconds.
        (QuarantineStatus::Applying | QuarantineStatus::Quarantined, Some(drain)) => {
            match &drain.status {
                DrainStatus::Draining(_) | DrainStatus::Failed(_) => true,
                DrainStatus::Waiting(_) | DrainStatus::Cancelled => begins(),
                DrainStatus::Drained => {
                    let late = now < later(drain.since, LATE) || is_to_be_repaired(view.incident);
                    late && !view.repair_under_way && !is_repaired(view.incident)
                }
            }
        }
        (QuarantineStatus::Quarantined, None) => begins(),
        (
            QuarantineStatus::Applying
            | QuarantineStatus::Withheld(_)
            | QuarantineStatus::Observed
            | QuarantineStatus::Releasing(_)
            | QuarantineStatus::Closed(_),
            _,
        ) => false,
    }
}

/// Whether a drain would begin now, or pods be looked at for it.
pub fn may_begin(view: &View<'_>, now: Timestamp) -> bool {
    let look = Look { view, now };
    view.incident.quarantine == QuarantineStatus::Quarantined
        && look.is_wanted()
        && look.keeps_waiting().is_none()
}

/// Whether a repair is planned, or ordered and not at its end: until it is begun the node is kept empty.
fn is_to_be_repaired(incident: &Incident) -> bool {
    let repair = incident.repair.as_ref().map(|repair| &repair.status);
    repair.is_some_and(|status| {
        matches!(status, RepairStatus::Planned { .. }) || status.is_under_way()
    })
}

/// Whether the repair for which the node was emptied has had its effect: pods may come again.
fn is_repaired(incident: &Incident) -> bool {
    let repair = incident.repair.as_ref();
    repair.is_some_and(|repair| repair.status == RepairStatus::Succeeded)
}

/// What is left of a drain when its incident goes to its end: the release takes it along.
pub fn ended(drain: Option<&Drain>, now: Timestamp) -> Option<Drain> {
    let drain = drain?;
    Some(match drain.status {
        DrainStatus::Waiting(_) | DrainStatus::Draining(_) => Drain {
            status: DrainStatus::Cancelled,
            since: now,
        },
        DrainStatus::Drained | DrainStatus::Failed(_) | DrainStatus::Cancelled => drain.clone(),
    })
}

struct Look<'a> {
    view: &'a View<'a>,
    now: Timestamp,
}

impl Look<'_> {
    fn quarantined(&self) -> Decision {
        let status = self.view.incident.drain.as_ref().map(|d| &d.status);
        let wanted = self.is_wanted();
        match status {
            None | Some(DrainStatus::Cancelled) if wanted => self.begin(),
            None | Some(DrainStatus::Cancelled) => Decision::default(),
            Some(DrainStatus::Waiting(_) | DrainStatus::Draining(_) | DrainStatus::Failed(_))
                if self.view.policy.mode == Mode::Off =>
            {
                self.move_to(DrainStatus::Cancelled, Reason::Off)
            }
            Some(DrainStatus::Waiting(_) | DrainStatus::Draining(_) | DrainStatus::Failed(_))
                if !wanted =>
            {
                self.move_to(DrainStatus::Cancelled, Reason::NotWanted)
            }
            Some(DrainStatus::Waiting(_)) => self.begin(),
            Some(DrainStatus::Draining(deadlines)) => self.under_way(*deadlines, None),
            Some(DrainStatus::Failed(failed)) => self.failed(*failed),
            Some(DrainStatus::Drained) => self.drained(wanted),
        }
    }

    fn drained(&self, wanted: bool) -> Decision {
        let looks = wanted && !is_repaired(self.view.incident) && !self.view.repair_under_way;
        let seen = self.look_over();
        if !looks || self.view.policy.mode == Mode::Off || seen.counted == 0 {
            let drain = self.view.incident.drain.as_ref();
            let late = drain.map(|drain| later(drain.since, LATE));
            return Decision {
                wake_at: late.filter(|late| self.now < *late),
                ..Decision::default()
            };
        }
        // It is not empty any more, and no repair is ordered before it is.
        if self.keeps_waiting().is_some() {
            return self.begin();
        }
        self.drain_now(seen, Reason::CameLate)
    }

    /// Whether an open fault wants the node empty. A person's hold alone moves nothing.
    fn is_wanted(&self) -> bool {
        let skips = |id| self.view.overrides.get(id).is_some_and(|o| o.skip);
        self.view.incident.open_faults().any(|f| !skips(&f.id))
    }

    fn is_forced(&self) -> bool {
        let forces = |id| self.view.overrides.get(id).is_some_and(|o| o.force);
        self.view.incident.open_faults().any(|f| forces(&f.id))
    }

    /// Whether a fault that forces the drain has joined since the drain came to where it stands.
    fn is_forced_anew(&self) -> bool {
        let since = self.view.incident.drain.as_ref().map(|drain| drain.since);
        let forces = |id| self.view.overrides.get(id).is_some_and(|o| o.force);
        let mut open = self.view.incident.open_faults();
        open.any(|fault| Some(fault.joined_at) > since && forces(&fault.id))
    }

    fn begin(&self) -> Decision {
        let view = self.view;
        if view.policy.mode == Mode::Off {
            return Decision::default();
        }
        if let Some(wait) = self.keeps_waiting() {
            let mut decision = match &wait {
                DrainWait::DryRun => self.look_over().decision,
                // Whoever gives it its turn wakes it.
                DrainWait::FirstAction { until } => Decision {
                    wake_at: Some(*until).filter(|until| self.now < *until),
                    ..Decision::default()
                },
                DrainWait::Paused | DrainWait::OtherDrainer | DrainWait::OwnNode => {
                    Decision::default()
                }
            };
            decision.asks.clear();
            let reason = match wait {
                DrainWait::OtherDrainer => Reason::OtherDrainer,
                DrainWait::DryRun
                | DrainWait::FirstAction { .. }
                | DrainWait::Paused
                | DrainWait::OwnNode => Reason::KeptWaiting,
            };
            let to = DrainStatus::Waiting(wait);
            let same = view.incident.drain.as_ref().map(|d| &d.status) == Some(&to);
            return if same {
                decision
            } else {
                self.with_move(decision, to, reason)
            };
        }
        let Some(_) = view.pods else {
            return Decision::default();
        };
        let seen = self.look_over();
        if seen.counted == 0 {
            return self.with_move(seen.decision, DrainStatus::Drained, Reason::NothingToDo);
        }
        self.drain_now(seen, Reason::Wanted)
    }

    /// The first calls go with the next decision, once this one is stored.
    fn drain_now(&self, seen: Seen, reason: Reason) -> Decision {
        let mut decision = self.with_move(seen.decision, self.drains_from_now(), reason);
        decision.asks.clear();
        decision.wake_at = Some(self.now);
        decision
    }

    fn keeps_waiting(&self) -> Option<DrainWait> {
        let view = self.view;
        match view.policy.mode {
            Mode::Refused => return Some(DrainWait::OtherDrainer),
            Mode::DryRun => return Some(DrainWait::DryRun),
            Mode::Enforce | Mode::Off => {}
        }
        if view.paused {
            return Some(DrainWait::Paused);
        }
        let until = view.policy.first_action_until;
        let until = until.filter(|at| self.now < *at || view.waits_for_turn);
        if let Some(until) = until {
            return Some(DrainWait::FirstAction { until });
        }
        view.waits_as_own_node.then_some(DrainWait::OwnNode)
    }

    fn drains_from_now(&self) -> DrainStatus {
        let policy = self.view.policy;
        let after = |span| later(self.now, span);
        DrainStatus::Draining(DrainDeadlines {
            immediate: after(policy.immediate_deadline),
            delete: after(policy.delete_after),
            completion: policy.completion_deadline.map(after),
        })
    }

    /// What is over its time fails, alone: all else is asked and waited for until its own.
    fn under_way(&self, deadlines: DrainDeadlines, failed: Option<DrainFailure>) -> Decision {
        let seen = self.look_over_by(deadlines);
        if self.view.pods.is_none() {
            return seen.decision;
        }
        if seen.counted == 0 {
            return self.with_move(seen.decision, DrainStatus::Drained, Reason::Empty);
        }
        let mut decision = seen.decision;
        match self.view.policy.mode {
            Mode::Enforce if seen.failed == failed => return decision,
            Mode::Enforce => {}
            // It was switched in the middle: nothing more is asked, and nothing is given up.
            Mode::DryRun | Mode::Refused | Mode::Off => {
                decision.asks.clear();
                return decision;
            }
        }
        // The calls go with the next decision, once this one is stored.
        decision.asks.clear();
        match seen.failed {
            Some(why) => {
                let failed = DrainStatus::Failed(DrainFailed { why, deadlines });
                self.with_move(decision, failed, Reason::Deadline)
            }
            None => self.with_move(decision, DrainStatus::Draining(deadlines), Reason::GoesOn),
        }
    }

    /// A person is needed; what they do about the pods is seen, and a fault that joins and may hurry
    /// them off begins anew.
    fn failed(&self, failed: DrainFailed) -> Decision {
        let may_act = self.view.policy.mode == Mode::Enforce && !self.view.paused;
        if self.view.pods.is_some() && may_act && self.is_forced_anew() {
            let seen = self.look_over();
            if seen.counted > 0 {
                return self.drain_now(seen, Reason::Wanted);
            }
        }
        self.under_way(failed.deadlines, Some(failed.why))
    }

    /// As if the drain began now.
    fn look_over(&self) -> Seen {
        let DrainStatus::Draining(deadlines) = self.drains_from_now() else {
            return Seen::default();
        };
        self.look_over_by(deadlines)
    }

    fn look_over_by(&self, deadlines: DrainDeadlines) -> Seen {
        let (view, force) = (self.view, self.is_forced());
        let mut seen = Seen::default();
        for pod in view.pods.unwrap_or_default() {
            match standing(view, pod, force, self.now) {
                Standing::Left | Standing::Over => {}
                Standing::PassedOver => seen.decision.passed_over.push(pod.pod.clone()),
                Standing::Counts { mode, until } => {
                    seen.add(turn(view, pod, mode, until, deadlines, self.now));
                }
            }
        }
        let by_name = |a: &Blocker, b: &Blocker| a.pod.cmp(&b.pod);
        seen.decision.blockers.sort_by(by_name);
        seen.decision.asks.sort();
        seen.decision.passed_over.sort();
        seen
    }

    fn move_to(&self, to: DrainStatus, reason: Reason) -> Decision {
        self.with_move(Decision::default(), to, reason)
    }

    fn with_move(&self, decision: Decision, to: DrainStatus, reason: Reason) -> Decision {
        let mut next = self.view.incident.clone();
        next.version += 1;
        let from = next.drain.take().map(|drain| drain.status);
        next.drain = Some(Drain {
            status: to.clone(),
            since: self.now,
        });
        Decision {
            incident: Some(next),
            transition: Some(Transition { from, to, reason }),
            ..decision
        }
    }
}

/// What a look over the pods found.
#[derive(Default)]
struct Seen {
    decision: Decision,
    counted: usize,
    failed: Option<DrainFailure>,
}

impl Seen {
    fn add(&mut self, turn: pods::Turn) {
        self.counted += 1;
        self.failed = self.failed.into_iter().chain(turn.failed).min();
        if turn.failed.is_some() {
            self.decision.overdue.push(turn.blocker.pod.clone());
        }
        self.decision.wake_at = self.decision.wake_at.into_iter().chain(turn.look_at).min();
        self.decision.blockers.push(turn.blocker);
        self.decision.asks.extend(turn.ask);
    }
}
