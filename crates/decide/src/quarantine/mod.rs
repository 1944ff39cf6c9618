//! The quarantine of one node: when it is taken out, what it carries, when it comes back.
//!
//! # States of an incident's quarantine
//! ```text
//!            ┌─► Withheld ──┐ permit            ┌── faults join or close ─┐
//!  a fault ──┼─► Observed ──┼──► Applying ──► Quarantined ──► Applying ───┘
//!  matches   └──────────────┘   (unknown)        │    │
//!                  │                │            │    └ a person acted, or a person's cancel
//!                  │ all closed     │ never      │ all closed, settled        │
//!                  ▼                ▼ written    ▼                            ▼
//!               Closed            Closed      Releasing (unknown) ──────► Closed
//! ```
//! - *Withheld*: the breaker, the first-action delay, another node's turn, or another program that
//!   takes nodes out. *Observed*: dry run, a protected node, or dropped by a person. Both write
//!   nothing.
//! - *Applying*, *Releasing*: the write is stored as planned, its outcome unknown. The node alone
//!   says whether it happened: its mark carries incident and version. After a failure or a restart
//!   the node is looked at, and only else is the write repeated, with its tests.
//! - A module that may not write any more (see [`Mode`]) looks at the node: a write that happened is
//!   recorded; one that did not is not begun again. Of Applying becomes Withheld or Observed where
//!   nothing is on the node, and Quarantined where marks of ours are. Releasing stays, until the
//!   node shows a release that was late, or the module may write again.
//! - Another UID under the name, or no node, closes the incident from every state.
//!
//! # Invariants (`tests`)
//! - No write without an open incident that holds an open fault or a person's request, except the
//!   removal of stray marks (P2). Dry run writes nothing.
//! - Release and stepping back take off exactly what we put on: a cordon or taint that was there
//!   before stays (P5).
//! - At most one write is under way; while it is, nothing else is decided about the node.
//! - A hold suppresses exactly the faults that were open at that moment, each until it closed.
//! - A recovery is never withheld: neither breaker nor pause nor opt-out stops a release.
//!
//! # What it does not do
//! It does not count for the breaker (the shell asks it, see [`Decision::ask`]), render JSON, or
//! know of drain and repair. While a node is paused, faults that join or leave are recorded, and
//! its annotation follows with the next change.

mod adoption;
mod annotated;
mod decision;
mod derived;
mod facts;
mod joining;
mod marks;
mod on_node;
mod opening;
mod standing;

#[cfg(test)]
mod tests;

pub use adoption::{ADOPTED, GivenBack, adopt, given_back, was_given_back, will_be_adopted};
pub use annotated::open_events;
pub use decision::{
    Decision, NodeWrite, Note, PermitRequest, Preconditions, Reason, StrayMarks, Transition,
    WriteKind,
};
pub use derived::state_label;
pub use facts::{
    AgentFacts, Annotation, Cooperator, CooperatorPolicy, CordonOwner, FaultFacts, Label,
    MarkOrigin, Mode, NodeFacts, Policy, Request, RequestKind, TaintRead, View, WriteFeedback,
};
pub use joining::{Origin, is_elsewhere};

use health_event::incident::{
    CloseReason, Hold, Incident, IncidentFault, QuarantineStatus, Withheld,
};
use jiff::{SignedDuration, Timestamp};

use crate::{drain, later, remediation};

/// How long a hold that is over waits for its agent's report between two looks: short beside a
/// report's interval (60 s to 5 min), and only nodes whose hold is over are looked at.
const REPORT_LOOK: SignedDuration = SignedDuration::from_secs(5);

/// Decides about one node.
pub fn decide(view: &View<'_>, now: Timestamp) -> Decision {
    let mut decision = match (view.node, view.incident) {
        (None, None) => Decision::default(),
        (None, Some(incident)) => gone(incident, Reason::NodeGone, now),
        (Some(node), Some(incident)) if incident.node_uid != node.uid => Decision {
            wake_at: Some(now),
            ..gone(incident, Reason::NodeReplaced, now)
        },
        (Some(node), Some(incident)) => standing::decide(view, node, incident, now),
        (Some(node), None) => opening::decide(view, node, now),
    };
    if decision.ask.is_none() && view.node.is_some() {
        keep_holds(view, &mut decision, now);
    }
    decision
}

fn gone(incident: &Incident, reason: Reason, now: Timestamp) -> Decision {
    let to = QuarantineStatus::Closed(CloseReason::NodeDeleted);
    Decision {
        give_back: true,
        ..moved(incident, to, reason, now)
    }
}

/// Prunes holds, adds a new one that the decision brought, and wakes at their ends.
fn keep_holds(view: &View<'_>, decision: &mut Decision, now: Timestamp) {
    let added = decision.holds.take().unwrap_or_default();
    let pruned = joining::prune_holds(view, now);
    if pruned.is_some() || !added.is_empty() {
        let mut holds = pruned.unwrap_or_else(|| view.holds.to_vec());
        holds.extend(added);
        decision.holds = Some(holds);
    }
    let holds: &[Hold] = decision.holds.as_deref().unwrap_or(view.holds);
    // One that is past its end waits for a fresh report, and a report that brings nothing new wakes
    // nobody.
    let next = |hold: &Hold| {
        if now < hold.until {
            hold.until
        } else {
            later(now, REPORT_LOOK)
        }
    };
    wake(decision, holds.iter().map(next).min());
}

/// Moves the wake-up forward.
fn wake(decision: &mut Decision, at: Option<Timestamp>) {
    decision.wake_at = decision.wake_at.into_iter().chain(at).min();
}

/// The incident one version later, in another state.
fn moved(incident: &Incident, to: QuarantineStatus, reason: Reason, now: Timestamp) -> Decision {
    let mut next = incident.clone();
    next.version += 1;
    next.since = now;
    next.quarantine = to.clone();
    if to.is_closed() {
        next.closed_at = Some(now);
    }
    match to {
        QuarantineStatus::Releasing(_) | QuarantineStatus::Closed(_) => {
            next.drain = drain::ended(next.drain.as_ref(), now);
            next.repair = remediation::ended(next.repair.as_ref(), now);
        }
        QuarantineStatus::Withheld(_)
        | QuarantineStatus::Observed
        | QuarantineStatus::Applying
        | QuarantineStatus::Quarantined => {}
    }
    if !to.is_out() {
        next.marks_observed = false;
    }
    Decision {
        incident: Some(next),
        transition: Some(Transition {
            from: Some(incident.quarantine.clone()),
            to,
            reason,
        }),
        ..Decision::default()
    }
}

/// Why this node may only be observed, if so.
fn observed_only(view: &View<'_>, node: &NodeFacts) -> Option<Reason> {
    let policy = view.policy;
    let protected = node.control_plane || policy.protected_nodes.contains(&node.name);
    if policy.mode == Mode::DryRun {
        Some(Reason::DryRun)
    } else if protected && !policy.allow_protected {
        Some(Reason::Protected)
    } else {
        None
    }
}

/// Where an incident waits of which nothing is on the node, if none of its writes may be begun.
fn waits_instead(view: &View<'_>, node: &NodeFacts) -> Option<(QuarantineStatus, Reason)> {
    if let Some(reason) = observed_only(view, node) {
        return Some((QuarantineStatus::Observed, reason));
    }
    match view.policy.mode {
        Mode::Refused => Some((
            QuarantineStatus::Withheld(Withheld::OtherQuarantine),
            Reason::OtherQuarantine,
        )),
        Mode::Off => Some((QuarantineStatus::Observed, Reason::Off)),
        Mode::Enforce | Mode::DryRun => None,
    }
}

/// When the oldest open fault of an incident opened; where there is none, the incident itself.
pub fn oldest_fault(incident: &Incident, faults: &[FaultFacts]) -> Timestamp {
    let known = joining::by_id(faults);
    let opened = |fault: &IncidentFault| {
        let fact = known.get(&fault.id);
        fact.map_or(fault.joined_at, |fact| fact.first_at)
    };
    let oldest = incident.open_faults().map(opened).min();
    oldest.unwrap_or(incident.opened_at)
}
