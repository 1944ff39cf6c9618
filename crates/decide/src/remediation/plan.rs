//! What repair the open faults of a node ask for.

use std::collections::BTreeMap;

use health_event::incident::{OperatorReason, Rung};
use health_event::{BootId, Boots, FaultId};
use jiff::{SignedDuration, Timestamp};

use crate::later;

/// What is ordered for an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Executor {
    /// How strong it is.
    pub rung: Rung,
    /// An attempt has this long from its order to its effect.
    pub deadline: SignedDuration,
}

/// Settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// What is ordered, by the action's name (`RESTART_BM`, or a custom one). An action that is
    /// not listed has no executor.
    pub executors: BTreeMap<String, Executor>,
    /// Actions that stand for the rungs when a weaker repair did not help, from weak to strong;
    /// default: `COMPONENT_RESET`, then `RESTART_BM`. What is not listed is never climbed to.
    pub ladder: Vec<String>,
    /// Attempts of one rung in an incident, and for a machine in [`Policy::window`]. Default 2.
    pub max_attempts: usize,
    /// How long attempts count for a machine. Default 24 h.
    pub window: SignedDuration,
    /// How long a repaired node may take until its faults are closed before a person is called.
    /// Default 10 min.
    pub settle_timeout: SignedDuration,
    /// How long whoever carries repairs out lets an order wait before it gives it up (janitor's
    /// `queue_timeout`); zero where it is not known to queue. Default 6 h.
    pub queue_timeout: SignedDuration,
    /// How far the module may act.
    pub mode: Mode,
    /// Nothing is ordered before then: the module was just switched on.
    pub first_action_until: Option<Timestamp>,
}

/// How far the module may act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Acts.
    Enforce,
    /// Shows what it would order.
    DryRun,
    /// Another program that repairs nodes runs in the cluster.
    Refused,
    /// Switched off: what is ordered is followed to its end, and nothing more is ordered.
    Off,
}

/// An attempt that was made on the machine, in whatever incident.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastAttempt {
    /// How strong it was.
    pub rung: Rung,
    /// When it was ordered.
    pub at: Timestamp,
    /// Whether it was made in the incident that is decided about, for which it counts without a window.
    pub of_incident: bool,
}

/// One open fault of the incident.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultFacts {
    /// Which.
    pub id: FaultId,
    /// The action that it asks for, by its name in the configuration: the custom one's own.
    pub action: String,
    /// Boot of its newest event; unknown if its sender has none.
    pub boot: BootId,
    /// When its newest event was received.
    pub last_at: Timestamp,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Plan {
    /// Nothing: every open fault is covered by a repair that had its effect, or none is open.
    Covered,
    /// An order.
    Order { rung: Rung, action: String },
    /// A person; where something goes on by itself later the reason says when.
    Operator(OperatorReason),
}

/// When and into which boot the machine was last seen to have booted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Booted<'a> {
    pub boots: &'a Boots,
    pub present: &'a BootId,
    /// When the last of the incident's repairs that had an effect had it.
    pub repaired_at: Option<Timestamp>,
}

impl Booted<'_> {
    /// Whether a fault was last said before the machine booted anew: whatever it was, what follows
    /// from it has to be said again.
    pub(super) fn covers(&self, fault: &FaultFacts) -> bool {
        if fault.boot.is_unknown() {
            return self.repaired_at.is_some_and(|at| fault.last_at <= at);
        }
        let known = !self.present.is_unknown();
        known && fault.boot != *self.present && self.boots.is_past(&fault.boot)
    }
}

/// The plan for the faults that no repair covers yet: the strongest that any of them asks for, which
/// contains the weaker ones. What asks for a person does so once nothing can be done by itself.
pub(super) fn plan(
    policy: &Policy,
    faults: &[FaultFacts],
    booted: Booted<'_>,
    past: &[PastAttempt],
    now: Timestamp,
) -> Plan {
    let mut order: Option<(Rung, String)> = None;
    let mut operators: Vec<OperatorReason> = Vec::new();
    for fault in faults.iter().filter(|fault| !booted.covers(fault)) {
        match step(policy, &fault.action, past, now) {
            Ok((rung, action)) => {
                if order.as_ref().is_none_or(|(best, _)| rung > *best) {
                    order = Some((rung, action));
                }
            }
            Err(reason) => operators.push(reason),
        }
    }
    if let Some((rung, action)) = order {
        return Plan::Order { rung, action };
    }
    // What goes on by itself first is told: a person may be at the machine by then.
    let first = operators.iter().enumerate().min_by_key(|(index, reason)| {
        let again_at = again_at(reason);
        (again_at.is_none(), again_at, *index)
    });
    first.map_or(Plan::Covered, |(_, reason)| Plan::Operator(reason.clone()))
}

/// When something is done by itself although a person is needed.
pub(super) fn again_at(reason: &OperatorReason) -> Option<Timestamp> {
    match reason {
        OperatorReason::Exhausted { again_at, .. } => *again_at,
        OperatorReason::ProviderRefuses { again_at, .. } => Some(*again_at),
        OperatorReason::Unsupported { .. }
        | OperatorReason::StillOpen
        | OperatorReason::NotBegun
        | OperatorReason::CalledOff => None,
    }
}

/// The weakest rung for an action whose attempts are not used up.
fn step(
    policy: &Policy,
    action: &str,
    past: &[PastAttempt],
    now: Timestamp,
) -> Result<(Rung, String), OperatorReason> {
    let start = policy.ladder.iter().position(|rung| rung == action);
    let climbs = start.map_or(&[][..], |at| &policy.ladder[at + 1..]);
    let first = std::iter::once(action);
    let mut last = None;
    let mut again_at: Option<Timestamp> = None;
    for action in first.chain(climbs.iter().map(String::as_str)) {
        let Some(executor) = policy.executors.get(action) else {
            continue;
        };
        // A machine that was rebooted for a fault is not rebooted for the next rung of the same kind.
        if last.is_some_and(|last| executor.rung <= last) {
            continue;
        }
        last = Some(executor.rung);
        match free_at(policy, executor.rung, past, now) {
            Some(at) if at <= now => return Ok((executor.rung, action.to_owned())),
            at => again_at = again_at.into_iter().chain(at).min(),
        }
    }
    Err(match last {
        Some(rung) => OperatorReason::Exhausted { rung, again_at },
        None => OperatorReason::Unsupported {
            action: action.to_owned(),
        },
    })
}

/// From when on a rung has an attempt that is not used up; none if it never has one in this incident,
/// whose own attempts count as long as it is open.
fn free_at(policy: &Policy, rung: Rung, past: &[PastAttempt], now: Timestamp) -> Option<Timestamp> {
    let since = now.checked_sub(policy.window).unwrap_or(Timestamp::MIN);
    let of_rung = past.iter().filter(|attempt| attempt.rung == rung);
    let of_incident = of_rung.clone().filter(|attempt| attempt.of_incident);
    if of_incident.count() >= policy.max_attempts {
        return None;
    }
    let mut counted: Vec<Timestamp> = of_rung.map(|attempt| attempt.at).collect();
    counted.retain(|at| *at > since);
    if counted.len() < policy.max_attempts {
        return Some(now);
    }
    counted.sort();
    // With it and the older ones gone, one fewer counts than may be made.
    let last = counted.get(counted.len() - policy.max_attempts)?;
    Some(later(*last, policy.window))
}
