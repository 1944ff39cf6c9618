//! The repair of a node that is out: what is ordered, when, and whether it helped.
//!
//! # States
//! ```text
//!  faults ask ──► Planned ──► Requested ──► Running ──► Succeeded ──► (settled: release)
//!                  │  ▲        (unknown)      │  │          │
//!                  │  │           │           │  └─ gone ─► Unknown
//!                  │  └───────────┴─ Failed ◄─┴──────────────┘│
//!                  │    the next attempt                      │ still wrong
//!                  ▼                                          ▼
//!             NeedsOperator ◄─────────────────────────────────┘
//! ```
//! - *Requested*: the order is stored, then the object is made; its name follows from incident and
//!   attempt, so that making it twice makes it once.
//! - *Succeeded* is what was seen on the node, never what the object says alone: another boot, and
//!   Ready. Ready in the old boot when the attempt's time is over is `NoRebootObserved`: the attempt
//!   is used up, and the next one asks for force.
//! - A fault that was last said in an earlier boot is covered: it closes by the settled report, or
//!   is said again and starts the next attempt in the same incident; of one that does neither a person
//!   is told.
//! - What the provider refuses before it takes it on is no attempt; the next order comes after a pause that
//!   grows, and after a few a person is told.
//! - The node is looked over before each attempt: a drain that was done is begun anew where pods may
//!   have come unseen.
//! - Attempts of a rung count in their incident as long as it is open, and for the machine in a window.
//!   An incident that has used its own up orders nothing more; one whose machine has goes on by itself
//!   once it may.
//!
//! # Invariants (`tests`)
//! - No order without an open incident at rest, an open fault that no repair covers, and an empty
//!   node (P2). At most one attempt is under way.
//! - The order is stored before the object is made (P3). What is under way is followed to its end,
//!   also when its faults are gone: a repair is not recalled by a recovery.
//! - Every attempt has a deadline, also where its object or the node is gone.
//! - With an open fault there is a next step with a time, something named that it waits for, or a person
//!   who is needed.

mod ended;
mod objects;
mod plan;

#[cfg(test)]
mod tests;

use health_event::incident::{
    Attempt, Drain, DrainStatus, Effect, Incident, OperatorReason, QuarantineStatus, Repair,
    RepairFailure, RepairStatus, Rung,
};
use health_event::{BootId, Boots};
use jiff::{SignedDuration, Timestamp};

use objects::DEADLINE;
use plan::{Booted, Plan, again_at, plan};

use crate::{drain, later};
pub use ended::ended;
pub use objects::{
    Found, adopted, boots_seen, has_happened, is_named_for, is_recalled, object_name,
    object_name_of, wants,
};
pub use plan::{Executor, FaultFacts, Mode, PastAttempt, Policy};

/// After the first refusal of a provider: a token that is just being rotated is there by then.
const REFUSAL_PAUSE: SignedDuration = SignedDuration::from_secs(15);
/// Each further pause is so many times the last: a machine waits at most that many times as long as what it is
/// refused for took to be mended.
const REFUSAL_GROWTH: i32 = 4;
/// Longest pause: by then a person was told, and an order each half hour harms nobody.
const REFUSAL_LONGEST: SignedDuration = SignedDuration::from_mins(30);

/// What is known of the object of the present attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    /// Not looked at yet, or the look failed.
    NotKnown,
    /// A direct read said that it is not there.
    Absent,
    /// The same, and nothing was sent for it: a person took it back.
    CalledOff,
    /// The same, and the definition of its kind was away meanwhile: it went with that, and nobody called it
    /// off.
    Vanished,
    /// The API server does not take it: its words.
    Refused(String),
    /// It is there, and whoever carries repairs out has not begun it: nothing was sent.
    Queued,
    /// It was begun and is not at its end; since when, where that is known.
    Running {
        /// When it was begun.
        since: Option<Timestamp>,
    },
    /// It is at its end without having been begun: its words.
    NotBegun(String),
    /// It is at its end, and the provider refused it before it took anything on: its words.
    ProviderRefused(String),
    /// It says that it is done; since when it was begun, where that is known.
    Done {
        /// When it was begun.
        since: Option<Timestamp>,
    },
    /// It says that the node was not seen to have rebooted, although it should have.
    NoReboot,
    /// It says that it failed: its words.
    Failed(String),
}

/// The node as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeLook {
    /// Boot of its status, or of its agent's report, whichever is newer.
    pub boot: BootId,
    /// Whether the condition Ready is True.
    pub ready: bool,
    /// Annotation `warden.dev/pause` stands.
    pub paused: bool,
    /// Who else repairs it at the moment.
    pub external_owner: Option<String>,
}

/// Everything that one decision about one node looks at.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The open incident.
    pub incident: &'a Incident,
    /// The node; `None` only if a direct read said that it does not exist.
    pub node: Option<&'a NodeLook>,
    /// The open faults of the incident.
    pub faults: &'a [FaultFacts],
    /// Whether an open fault wants the node empty first.
    pub wants_drain: bool,
    /// Boots of the machine.
    pub boots: &'a Boots,
    /// Attempts on the machine, in whatever incident.
    pub past: &'a [PastAttempt],
    /// The object of the present attempt.
    pub object: &'a Object,
    /// Another repair object of the node is not at its end: a person's, or of an incident that is
    /// over.
    pub other_repair: bool,
    /// The controller runs on this node and it is not its turn yet.
    pub waits_as_own_node: bool,
    /// Settings.
    pub policy: &'a Policy,
}

/// One decision. The shell stores `incident` first; only then does it make the object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Decision {
    /// The incident as it shall be stored, one version later; `None`: unchanged.
    pub incident: Option<Incident>,
    /// The change of state that this is.
    pub transition: Option<Transition>,
    /// Make the object of the stored attempt, if it is not there.
    pub order: Option<Attempt>,
    /// When to decide again, whatever happens or not.
    pub wake_at: Option<Timestamp>,
    /// What keeps a planned repair from being ordered.
    pub blocked: Option<&'static str>,
}

/// A change of state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transition {
    /// State before; `None` where there was none.
    pub from: Option<RepairStatus>,
    /// State after.
    pub to: RepairStatus,
    /// Why.
    pub reason: Reason,
}

/// Why a transition happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Open faults ask for it.
    FaultsAsk,
    /// The node is empty.
    NodeEmpty,
    /// The object was seen.
    ObjectSeen,
    /// It was begun late: its time counts from then.
    Begun,
    /// Nobody began it, and nothing was sent.
    NotBegun,
    /// Repairs were switched off before it was begun.
    Off,
    /// The object is gone.
    ObjectGone,
    /// Another boot, and Ready.
    OtherBoot,
    /// The object says so, and nothing on the node says otherwise.
    ObjectDone,
    /// The object says so.
    ObjectFailed,
    /// The API server does not take the object.
    ObjectRefused,
    /// Its time is over.
    Deadline,
    /// What it was for is over.
    FaultsGone,
    /// The machine has booted since its faults were last said: that covers them.
    Booted,
    /// No repair can be ordered.
    NothingLeft,
    /// Its faults are open still.
    StillOpen,
    /// The store that knew of it was lost, and its object tells.
    Found,
}

impl Reason {
    /// Static name for the audit trail and metrics.
    pub fn code(self) -> &'static str {
        match self {
            Self::FaultsAsk => "faults_ask",
            Self::NodeEmpty => "node_empty",
            Self::ObjectSeen => "object_seen",
            Self::Begun => "begun",
            Self::NotBegun => "not_begun",
            Self::Off => "off",
            Self::ObjectGone => "object_gone",
            Self::OtherBoot => "other_boot",
            Self::ObjectDone => "object_done",
            Self::ObjectFailed => "object_failed",
            Self::ObjectRefused => "object_refused",
            Self::Deadline => "deadline",
            Self::FaultsGone => "faults_gone",
            Self::Booted => "booted",
            Self::NothingLeft => "nothing_left",
            Self::StillOpen => "still_open",
            Self::Found => "found",
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

struct Look<'a> {
    view: &'a View<'a>,
    now: Timestamp,
}

impl Look<'_> {
    fn quarantined(&self) -> Decision {
        let Some(repair) = &self.view.incident.repair else {
            return self.plan_anew(None);
        };
        match (&repair.status, &repair.attempt) {
            (RepairStatus::Requested, Some(attempt)) => self.requested(attempt),
            (RepairStatus::Running, Some(attempt)) => self.running(attempt),
            (RepairStatus::Unknown, Some(attempt)) => self.unknown(attempt),
            (RepairStatus::Succeeded, _) => self.succeeded(repair),
            (
                RepairStatus::Planned { .. }
                | RepairStatus::Failed(_)
                | RepairStatus::NeedsOperator(_)
                | RepairStatus::Cancelled
                | RepairStatus::Requested
                | RepairStatus::Running
                | RepairStatus::Unknown,
                _,
            ) => self.plan_anew(Some(repair)),
        }
    }

    fn booted(&self, repair: Option<&Repair>) -> Option<Booted<'_>> {
        let node = self.view.node?;
        let attempt = repair.and_then(|repair| repair.attempt.as_ref());
        let repaired_at = attempt.and_then(last_seen);
        Some(Booted {
            boots: self.view.boots,
            present: &node.boot,
            repaired_at,
        })
    }

    fn plan(&self, repair: Option<&Repair>) -> Option<Plan> {
        let (view, booted) = (self.view, self.booted(repair)?);
        Some(plan(view.policy, view.faults, booted, view.past, self.now))
    }

    /// No attempt is under way: what do the faults ask for now?
    fn plan_anew(&self, repair: Option<&Repair>) -> Decision {
        let status = repair.map(|r| &r.status);
        if self.view.policy.mode == Mode::Off {
            return Decision::default();
        }
        // Without a node there is nothing to repair: the quarantine ends the incident.
        let Some(plan) = self.plan(repair) else {
            return Decision::default();
        };
        match plan {
            // A person's word holds for the incident.
            Plan::Order { .. } | Plan::Operator(_)
                if status == Some(&RepairStatus::NeedsOperator(OperatorReason::CalledOff)) =>
            {
                Decision::default()
            }
            Plan::Order { rung, action } => {
                let planned = RepairStatus::Planned { rung };
                if let Some(again_at) = self.refused_until(repair) {
                    self.provider_refuses(repair, again_at)
                } else if let Some(again) = self.never_begun(repair) {
                    let to = RepairStatus::NeedsOperator(OperatorReason::NotBegun);
                    let known = status == Some(&to);
                    let decision = if known {
                        Decision::default()
                    } else {
                        self.move_to(to, Reason::NothingLeft)
                    };
                    Decision {
                        wake_at: Some(again),
                        ..decision
                    }
                } else if status == Some(&planned) {
                    self.order(repair, rung, &action)
                } else {
                    self.looked_over(self.move_to(planned, Reason::FaultsAsk))
                }
            }
            Plan::Operator(reason) => {
                let again_at = again_at(&reason);
                let to = RepairStatus::NeedsOperator(reason);
                let decision = if status == Some(&to) {
                    Decision::default()
                } else {
                    self.move_to(to, Reason::NothingLeft)
                };
                Decision {
                    wake_at: again_at,
                    ..decision
                }
            }
            Plan::Covered => self.covered(repair),
        }
    }

    /// No open fault asks for anything any more.
    fn covered(&self, repair: Option<&Repair>) -> Decision {
        let gone = self.view.faults.is_empty();
        let Some(repair) = repair else {
            // They were covered before anything was planned: their end is waited for all the same.
            return if gone {
                Decision::default()
            } else {
                self.move_to(RepairStatus::Cancelled, Reason::Booted)
            };
        };
        match &repair.status {
            // What is covered and not closed still needs the person.
            RepairStatus::NeedsOperator(OperatorReason::StillOpen) => Decision::default(),
            RepairStatus::NeedsOperator(_) | RepairStatus::Planned { .. } => {
                let reason = if gone {
                    Reason::FaultsGone
                } else {
                    Reason::Booted
                };
                self.move_to(RepairStatus::Cancelled, reason)
            }
            // The machine has booted all the same, and its faults may never be said to be over.
            RepairStatus::Failed(_)
            | RepairStatus::Cancelled
            | RepairStatus::Requested
            | RepairStatus::Running
            | RepairStatus::Unknown
            | RepairStatus::Succeeded => self.may_close(repair),
        }
    }

    /// A plan, for which a node that was empty once is looked over again, unless its pods were followed
    /// since: until an attempt was begun, and no longer than a pod may come late.
    fn looked_over(&self, mut plan: Decision) -> Decision {
        let repair = self.view.incident.repair.as_ref();
        let had_one = repair.is_some_and(|repair| repair.attempt.is_some());
        let planned =
            repair.is_some_and(|repair| matches!(repair.status, RepairStatus::Planned { .. }));
        let stale = |drain: &Drain| {
            let unseen = had_one || later(drain.since, drain::LATE) <= self.now;
            drain.status == DrainStatus::Drained && unseen && !planned
        };
        if let Some(next) = &mut plan.incident
            && next.drain.as_ref().is_some_and(stale)
        {
            next.drain = Some(Drain {
                status: DrainStatus::Cancelled,
                since: self.now,
            });
        }
        plan
    }

    /// Until when nothing is ordered because the provider refused the last order.
    fn refused_until(&self, repair: Option<&Repair>) -> Option<Timestamp> {
        match repair?.attempt.as_ref()?.effect {
            Effect::ProviderRefused { again_at } => Some(again_at).filter(|at| self.now < *at),
            Effect::Pending
            | Effect::Seen { .. }
            | Effect::NotSeen
            | Effect::NotBegun
            | Effect::Failed => None,
        }
    }

    /// It is asked again then; once it has refused as many in a row as a rung has attempts, a person is told
    /// meanwhile.
    fn provider_refuses(&self, repair: Option<&Repair>, again_at: Timestamp) -> Decision {
        let mut decision = Decision::default();
        if let Some(Repair {
            status: RepairStatus::Failed(RepairFailure::ProviderRefused(words)),
            attempt: Some(last),
            ..
        }) = repair
            && unsent_in_a_row(last) >= self.view.policy.max_attempts
        {
            let words = words.clone();
            let reason = OperatorReason::ProviderRefuses { words, again_at };
            decision = self.move_to(RepairStatus::NeedsOperator(reason), Reason::NothingLeft);
        }
        decision.wake_at = Some(again_at);
        decision
    }

    /// Until when nothing is ordered because the last orders were begun by nobody: as many in a row as a
    /// rung has attempts, and as long as attempts count.
    fn never_begun(&self, repair: Option<&Repair>) -> Option<Timestamp> {
        let policy = self.view.policy;
        let last = repair.and_then(|repair| repair.attempt.as_ref())?;
        let until = later(last.requested_at, policy.window);
        let none = last.effect == Effect::NotBegun && unsent_in_a_row(last) >= policy.max_attempts;
        (none && self.now < until).then_some(until)
    }

    /// The plan stands. It is ordered as soon as nothing keeps it.
    fn order(&self, repair: Option<&Repair>, rung: Rung, action: &str) -> Decision {
        let blocked = self.keeps_planned();
        let (Some(node), None) = (self.view.node, blocked) else {
            return Decision {
                blocked,
                wake_at: self.first_action(),
                ..Decision::default()
            };
        };
        let Some(executor) = self.view.policy.executors.get(action) else {
            return Decision::default();
        };
        let last = repair.and_then(|r| r.attempt.as_ref());
        let number = last.map_or(1, |last| last.number.saturating_add(1));
        let unseen = |last: &Attempt| last.force || last.effect == Effect::NotSeen;
        let attempt = Attempt {
            number,
            rung,
            action: action.to_owned(),
            object: object_name(self.view.incident, number),
            force: last.is_some_and(|last| last.rung == rung && unseen(last)),
            boot_before: node.boot.clone(),
            requested_at: self.now,
            deadline: later(self.now, executor.deadline),
            not_begun_before: last
                .filter(|last| last.effect.is_unsent())
                .map_or(0, |last| last.not_begun_before.saturating_add(1)),
            seen_before: last.and_then(last_seen),
            effect: Effect::Pending,
        };
        let mut decision = self.move_to(RepairStatus::Requested, Reason::NodeEmpty);
        if let Some(next) = decision.incident.as_mut().and_then(|i| i.repair.as_mut()) {
            next.attempt = Some(attempt);
        }
        decision.wake_at = Some(self.now);
        decision
    }

    /// What keeps a planned repair from being ordered.
    fn keeps_planned(&self) -> Option<&'static str> {
        let view = self.view;
        let drain = view.incident.drain.as_ref().map(|d| &d.status);
        let is_empty = drain == Some(&DrainStatus::Drained) || !view.wants_drain;
        let node = view.node?;
        if view.policy.mode == Mode::DryRun {
            Some("dry_run")
        } else if view.policy.mode == Mode::Refused {
            Some("other_remediation")
        } else if node.paused {
            Some("paused")
        } else if node.external_owner.is_some() {
            Some("external_owner")
        } else if self.first_action().is_some() {
            Some("first_action")
        } else if !is_empty {
            Some("not_drained")
        } else if view.other_repair {
            Some("other_repair")
        } else if view.waits_as_own_node {
            Some("own_node")
        } else {
            None
        }
    }

    fn first_action(&self) -> Option<Timestamp> {
        let until = self.view.policy.first_action_until;
        until.filter(|until| self.now < *until)
    }

    fn requested(&self, attempt: &Attempt) -> Decision {
        if let Some(decision) = self.seen_on_the_node(attempt) {
            return decision;
        }
        match self.view.object {
            Object::Queued
            | Object::Running { .. }
            | Object::NotBegun(_)
            | Object::ProviderRefused(_)
            | Object::Done { .. }
            | Object::NoReboot
            | Object::Failed(_) => {
                let mut decision = self.move_to(RepairStatus::Running, Reason::ObjectSeen);
                decision.wake_at = Some(self.now);
                decision
            }
            Object::Refused(why) => {
                let why = RepairFailure::Refused(why.clone());
                self.move_to(RepairStatus::Failed(why), Reason::ObjectRefused)
            }
            Object::NotKnown | Object::Absent | Object::CalledOff | Object::Vanished
                if attempt.deadline <= self.now =>
            {
                self.too_late()
            }
            // It was carried out already, and its object deleted: it is not done twice.
            Object::NotKnown | Object::Absent | Object::CalledOff | Object::Vanished
                if self.booted_since(attempt) =>
            {
                self.until(attempt)
            }
            Object::NotKnown | Object::Absent | Object::CalledOff | Object::Vanished => Decision {
                order: Some(attempt.clone()),
                wake_at: Some(attempt.deadline),
                ..Decision::default()
            },
        }
    }

    fn running(&self, attempt: &Attempt) -> Decision {
        if let Some(decision) = self.seen_on_the_node(attempt) {
            return decision;
        }
        match self.view.object {
            Object::Done { since } => self.done(attempt, *since),
            Object::NoReboot => {
                let unseen = RepairStatus::Failed(RepairFailure::NoRebootObserved);
                self.move_to(unseen, Reason::ObjectFailed)
            }
            Object::Failed(why) => {
                let why = RepairFailure::Object(why.clone());
                self.move_to(RepairStatus::Failed(why), Reason::ObjectFailed)
            }
            Object::NotBegun(why) => self.not_begun(why),
            Object::ProviderRefused(why) => {
                let why = RepairFailure::ProviderRefused(why.clone());
                self.move_to(RepairStatus::Failed(why), Reason::NotBegun)
            }
            Object::Vanished => self.order_again(attempt),
            Object::CalledOff => {
                let to = RepairStatus::NeedsOperator(OperatorReason::CalledOff);
                self.move_to(to, Reason::ObjectGone)
            }
            Object::Absent | Object::Refused(_) => {
                let mut decision = self.move_to(RepairStatus::Unknown, Reason::ObjectGone);
                decision.wake_at = Some(self.now);
                decision
            }
            Object::Queued if self.view.policy.mode == Mode::Off => {
                self.move_to(RepairStatus::Cancelled, Reason::Off)
            }
            Object::Queued => self.queued(attempt),
            // It may wait in a queue.
            Object::NotKnown if attempt.deadline <= self.now => self.queued(attempt),
            Object::Running { since: Some(since) } if attempt.deadline <= self.now => {
                self.begun(attempt, *since)
            }
            Object::NotKnown | Object::Running { .. } => self.until(attempt),
        }
    }

    /// Its object went without anybody's wish, and nothing was sent: the same attempt is ordered once more, and
    /// has its whole time again.
    fn order_again(&self, attempt: &Attempt) -> Decision {
        let mut decision = self.move_to(RepairStatus::Requested, Reason::ObjectGone);
        if let Some(next) = decision.incident.as_mut().and_then(|i| i.repair.as_mut()) {
            next.attempt = Some(Attempt {
                requested_at: self.now,
                deadline: later(self.now, self.span_of(attempt)),
                ..attempt.clone()
            });
        }
        decision.wake_at = Some(self.now);
        decision
    }

    /// Its time counts from when it is begun. Whoever carries repairs out gives up first.
    fn queued(&self, attempt: &Attempt) -> Decision {
        let until = self.queued_until(attempt);
        if until <= self.now {
            return self.not_begun("nobody began it");
        }
        Decision {
            wake_at: Some(until),
            blocked: (*self.view.object == Object::Queued).then_some("queued"),
            ..Decision::default()
        }
    }

    fn not_begun(&self, why: &str) -> Decision {
        let failed = RepairStatus::Failed(RepairFailure::NotBegun(why.to_owned()));
        self.move_to(failed, Reason::NotBegun)
    }

    /// At its deadline: one that waited in a queue has its whole time from when it was begun.
    fn begun(&self, attempt: &Attempt, since: Timestamp) -> Decision {
        let deadline = later(since, self.span_of(attempt));
        if deadline <= self.now {
            return self.too_late();
        }
        let mut decision = self.move_to(RepairStatus::Running, Reason::Begun);
        if let Some(Repair {
            attempt: Some(attempt),
            ..
        }) = decision.incident.as_mut().and_then(|i| i.repair.as_mut())
        {
            attempt.deadline = deadline;
        }
        decision.wake_at = Some(deadline);
        decision
    }

    /// How long an attempt has from when it is begun.
    fn span_of(&self, attempt: &Attempt) -> SignedDuration {
        let executor = self.view.policy.executors.get(&attempt.action);
        executor.map_or(DEADLINE, |executor| executor.deadline)
    }

    fn queued_until(&self, attempt: &Attempt) -> Timestamp {
        let given_up = later(attempt.requested_at, self.view.policy.queue_timeout);
        later(given_up, self.span_of(attempt))
    }

    /// Whether nothing more is waited for.
    fn is_late(&self, attempt: &Attempt) -> bool {
        let until = match self.view.object {
            Object::Running { since: Some(since) } => self.until_from(attempt, Some(*since)),
            Object::Queued | Object::NotKnown => self.queued_until(attempt),
            Object::Running { since: None }
            | Object::Absent
            | Object::CalledOff
            | Object::Vanished
            | Object::Refused(_)
            | Object::NotBegun(_)
            | Object::ProviderRefused(_)
            | Object::Done { .. }
            | Object::NoReboot
            | Object::Failed(_) => attempt.deadline,
        };
        until <= self.now
    }

    fn unknown(&self, attempt: &Attempt) -> Decision {
        self.seen_on_the_node(attempt)
            .unwrap_or_else(|| self.until(attempt))
    }

    fn until(&self, attempt: &Attempt) -> Decision {
        if attempt.deadline <= self.now {
            return self.too_late();
        }
        Decision {
            wake_at: Some(attempt.deadline),
            ..Decision::default()
        }
    }

    fn too_late(&self) -> Decision {
        let failed = RepairStatus::Failed(RepairFailure::Deadline);
        self.move_to(failed, Reason::Deadline)
    }

    fn booted_since(&self, attempt: &Attempt) -> bool {
        let node = self.view.node;
        attempt.rung == Rung::Reboot && node.is_some_and(|node| is_other_boot(node, attempt))
    }

    /// A reboot is proven by the node alone.
    fn seen_on_the_node(&self, attempt: &Attempt) -> Option<Decision> {
        let node = self.view.node?;
        let proves = match attempt.rung {
            Rung::Reboot => node.ready && is_other_boot(node, attempt),
            Rung::Reset | Rung::HandOver | Rung::Terminate => false,
        };
        // What the object still does is waited for, or the next one would meet it.
        let over = match self.view.object {
            Object::Done { .. }
            | Object::NoReboot
            | Object::Absent
            | Object::CalledOff
            | Object::Vanished
            | Object::NotBegun(_)
            | Object::ProviderRefused(_)
            | Object::Failed(_) => true,
            Object::NotKnown | Object::Refused(_) | Object::Queued | Object::Running { .. } => {
                false
            }
        };
        (proves && (over || self.is_late(attempt)))
            .then(|| self.move_to(RepairStatus::Succeeded, Reason::OtherBoot))
    }

    /// Until when what was begun then is waited for.
    fn until_from(&self, attempt: &Attempt, since: Option<Timestamp>) -> Timestamp {
        let whole = since.map(|since| later(since, self.span_of(attempt)));
        whole.map_or(attempt.deadline, |whole| whole.max(attempt.deadline))
    }

    fn done(&self, attempt: &Attempt, since: Option<Timestamp>) -> Decision {
        match (attempt.rung, self.view.node) {
            // Ready alone proves nothing; a node that is not Ready is waited for.
            (Rung::Reboot, Some(node)) if attempt.boot_before.is_unknown() && node.ready => {
                self.move_to(RepairStatus::Succeeded, Reason::ObjectDone)
            }
            // The node may be seen later than its object, and its boot may come late: only time says
            // that it did not happen.
            (Rung::Reboot, node) => {
                let until = self.until_from(attempt, since);
                if self.now < until {
                    return Decision {
                        wake_at: Some(until),
                        ..Decision::default()
                    };
                }
                let stayed = node.is_some_and(|node| node.ready && !is_other_boot(node, attempt));
                if stayed {
                    let unseen = RepairStatus::Failed(RepairFailure::NoRebootObserved);
                    return self.move_to(unseen, Reason::ObjectDone);
                }
                self.too_late()
            }
            (Rung::Reset | Rung::HandOver | Rung::Terminate, _) => {
                self.move_to(RepairStatus::Succeeded, Reason::ObjectDone)
            }
        }
    }

    /// Repaired: what is said again starts the next attempt; what is merely not closed is waited
    /// for, and then a person is called.
    fn succeeded(&self, repair: &Repair) -> Decision {
        match self.plan(Some(repair)) {
            None => Decision::default(),
            Some(Plan::Order { .. } | Plan::Operator(_)) => self.plan_anew(Some(repair)),
            Some(Plan::Covered) => self.may_close(repair),
        }
    }

    /// Faults that are covered and open are waited for, and then a person is called.
    fn may_close(&self, repair: &Repair) -> Decision {
        if self.view.faults.is_empty() {
            return Decision::default();
        }
        let until = later(repair.since, self.view.policy.settle_timeout);
        if until <= self.now {
            let still = RepairStatus::NeedsOperator(OperatorReason::StillOpen);
            return self.move_to(still, Reason::StillOpen);
        }
        Decision {
            wake_at: Some(until),
            ..Decision::default()
        }
    }

    fn move_to(&self, to: RepairStatus, reason: Reason) -> Decision {
        let mut next = self.view.incident.clone();
        next.version += 1;
        let before = next.repair.take();
        let (from, attempt) = match before {
            Some(repair) => (Some(repair.status), repair.attempt),
            None => (None, None),
        };
        let effect = match &to {
            RepairStatus::Succeeded => Some(Effect::Seen { at: self.now }),
            RepairStatus::Failed(RepairFailure::NoRebootObserved) => Some(Effect::NotSeen),
            RepairStatus::Failed(RepairFailure::NotBegun(_))
            | RepairStatus::NeedsOperator(OperatorReason::CalledOff) => Some(Effect::NotBegun),
            RepairStatus::Failed(RepairFailure::ProviderRefused(_)) => {
                let before = attempt.as_ref().map_or(0, |last| last.not_begun_before);
                let again_at = later(self.now, refusal_pause(before));
                Some(Effect::ProviderRefused { again_at })
            }
            // Its object was never there.
            RepairStatus::Failed(_) if from == Some(RepairStatus::Requested) => {
                Some(Effect::NotBegun)
            }
            RepairStatus::Failed(_) => Some(Effect::Failed),
            RepairStatus::Planned { .. }
            | RepairStatus::Requested
            | RepairStatus::Running
            | RepairStatus::Unknown
            | RepairStatus::NeedsOperator(_)
            | RepairStatus::Cancelled => None,
        };
        let attempt = attempt.map(|attempt| Attempt {
            effect: effect.unwrap_or(attempt.effect),
            ..attempt
        });
        next.repair = Some(Repair {
            status: to.clone(),
            since: self.now,
            attempt,
        });
        Decision {
            incident: Some(next),
            transition: Some(Transition { from, to, reason }),
            ..Decision::default()
        }
    }
}

/// How long nothing is ordered after a refusal of the provider, where that many orders before were not begun
/// either.
fn refusal_pause(before: u32) -> SignedDuration {
    let times = REFUSAL_GROWTH.saturating_pow(before);
    let pause = REFUSAL_PAUSE.checked_mul(times);
    pause.map_or(REFUSAL_LONGEST, |pause| pause.min(REFUSAL_LONGEST))
}

/// Orders in a row, this one among them, for which nothing was sent.
fn unsent_in_a_row(last: &Attempt) -> usize {
    let before = usize::try_from(last.not_begun_before).unwrap_or(usize::MAX);
    before.saturating_add(1)
}

/// When the last effect of an attempt or those before it in the incident was seen.
fn last_seen(attempt: &Attempt) -> Option<Timestamp> {
    match attempt.effect {
        Effect::Seen { at } => Some(at),
        Effect::Pending
        | Effect::NotSeen
        | Effect::NotBegun
        | Effect::ProviderRefused { .. }
        | Effect::Failed => attempt.seen_before,
    }
}

/// Whether the node shows a boot that is known not to be the one before. Where that one is not
/// known, nothing proves it.
fn is_other_boot(node: &NodeLook, attempt: &Attempt) -> bool {
    let known = !node.boot.is_unknown() && !attempt.boot_before.is_unknown();
    known && node.boot != attempt.boot_before
}
