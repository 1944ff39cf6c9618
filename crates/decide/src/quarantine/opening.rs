//! A node without an incident: stray marks, a person's hold, or the first fault that matches.

use health_event::BootId;
use health_event::incident::{Incident, Marks, QuarantineStatus, Withheld};
use jiff::Timestamp;

use super::decision::{Decision, Note, PermitRequest, Reason, StrayMarks, Transition, WriteKind};
use super::facts::{
    FaultFacts, MarkOrigin, Mode, NodeFacts, Request, RequestKind, View, WriteFeedback,
};
use super::joining::{self, blocked, candidates};
use super::on_node::{self, MarkRead, OnNode};
use super::{marks, observed_only, oldest_fault, waits_instead, wake};
use crate::breaker::Permit;

pub(super) fn decide(view: &View<'_>, node: &NodeFacts, now: Timestamp) -> Decision {
    let on = OnNode::read(node);
    if let Some(decision) = stray(view, node, &on, now) {
        return decision;
    }
    if let Some(request) = view.request {
        return person(view, node, &on, request, now);
    }
    let found = candidates(view, node, now);
    let mut decision = match found.faults.first() {
        None => bare_cordon(view, node, &on, now),
        Some(_) if node.paused => {
            let mut decision = bare_cordon(view, node, &on, now);
            decision.notes.push(blocked("open", "paused"));
            decision
        }
        Some(first) => open(view, node, &on, first, &found.faults, now),
    };
    decision.notes.splice(0..0, found.notes);
    decision
}

/// A cordon of ours whose annotations somebody took off when its incident was over: the API
/// server knows who made it. After a loss of the store nobody knows what it was for, and it stays
/// until a fault or a person takes it over.
fn bare_cordon(view: &View<'_>, node: &NodeFacts, on: &OnNode, now: Timestamp) -> Decision {
    if on.mark != MarkRead::Absent || !on_node::has_own_cordon(node) {
        return Decision::default();
    }
    match view.mark_origin {
        MarkOrigin::Closed => clean_up(view, node, on, StrayMarks::CordonAlone, now),
        MarkOrigin::Unknown => Decision {
            notes: vec![blocked("clean_up", "incident_unknown")],
            ..Decision::default()
        },
    }
}

/// Marks beside an incident that has put none on, or not yet: of one that is over (a write that
/// arrived late), or of none. Nothing if there are none.
pub(super) fn beside_waiting(
    view: &View<'_>,
    node: &NodeFacts,
    on: &OnNode,
    now: Timestamp,
) -> Decision {
    let why = match (&on.mark, view.mark_origin) {
        (MarkRead::Absent, _) if on_node::has_own_cordon(node) => StrayMarks::CordonAlone,
        // It is not known whose they are; they are looked at when this incident is over.
        (MarkRead::Absent, _) | (MarkRead::Ours(_), MarkOrigin::Unknown) => {
            return Decision::default();
        }
        (MarkRead::Unreadable, _) => StrayMarks::Unreadable,
        (MarkRead::OtherUid, _) => StrayMarks::OtherUid,
        (MarkRead::Ours(_), MarkOrigin::Closed) => StrayMarks::IncidentClosed,
    };
    clean_up(view, node, on, why, now)
}

/// Marks of ours that belong to no open incident.
fn stray(view: &View<'_>, node: &NodeFacts, on: &OnNode, now: Timestamp) -> Option<Decision> {
    let why = match (&on.mark, view.mark_origin) {
        (MarkRead::Absent, _) => return None,
        (MarkRead::Unreadable, _) => StrayMarks::Unreadable,
        (MarkRead::OtherUid, _) => StrayMarks::OtherUid,
        (MarkRead::Ours(_), MarkOrigin::Closed) => StrayMarks::IncidentClosed,
        (MarkRead::Ours(_), MarkOrigin::Unknown) if on.marks_nothing() => StrayMarks::NothingMarked,
        (MarkRead::Ours(_), MarkOrigin::Unknown) => {
            return Some(Decision {
                adopt: true,
                ..Decision::default()
            });
        }
    };
    Some(clean_up(view, node, on, why, now))
}

fn clean_up(
    view: &View<'_>,
    node: &NodeFacts,
    on: &OnNode,
    why: StrayMarks,
    now: Timestamp,
) -> Decision {
    let mut notes = vec![Note::StrayMarks(why)];
    let mut write = None;
    match (view.policy.mode.blocks(), view.feedback) {
        (Some(by), _) => notes.push(blocked("write", by)),
        (None, WriteFeedback::InFlight | WriteFeedback::Accepted) => {}
        (None, WriteFeedback::Idle) => {
            write = Some(marks::take_off(
                view,
                node,
                on,
                WriteKind::CleanUp,
                &[],
                now,
            ));
        }
    }
    Decision {
        write,
        notes,
        ..Decision::default()
    }
}

/// What a person is told who asks for a hold while the module is off.
pub(super) const OFF: &str = "quarantine is off; switch it on, or cordon the node with kubectl";

/// What a person is told who asks for a write that is not begun.
pub(super) const OTHER_QUARANTINE: &str = "another fault-quarantine runs in the cluster, and both would write the same marks; remove it, or \
     use kubectl";

fn person(
    view: &View<'_>,
    node: &NodeFacts,
    on: &OnNode,
    request: &Request,
    now: Timestamp,
) -> Decision {
    let refused = |why| Decision {
        request_done: true,
        notes: vec![Note::RequestRefused(why)],
        ..Decision::default()
    };
    match request.kind {
        RequestKind::Hold => {}
        RequestKind::Release | RequestKind::Cancel | RequestKind::DropWithheld => {
            return refused("the node has no open incident; there is nothing to end");
        }
    }
    match view.policy.mode {
        Mode::Enforce | Mode::DryRun => {}
        Mode::Off => {
            return refused(OFF);
        }
        Mode::Refused => return refused(OTHER_QUARANTINE),
    }
    let mut incident = blank(view, node, now);
    incident.held_by = Some(request.actor.clone());
    let found = candidates(view, node, now);
    joining::refresh(view, &mut incident, &found.faults, now);
    let reason = Reason::PersonHold(request.actor.clone());
    let mut decision = match observed_only(view, node) {
        Some(_) => placed(incident, QuarantineStatus::Observed, reason),
        None => applying(view, node, on, incident, None, reason, now),
    };
    decision.count_out = decision.write.is_some();
    decision.request_done = true;
    decision
}

fn open(
    view: &View<'_>,
    node: &NodeFacts,
    on: &OnNode,
    first: &FaultFacts,
    faults: &[&FaultFacts],
    now: Timestamp,
) -> Decision {
    let mut incident = blank(view, node, now);
    incident.opened_seq = first.seq;
    joining::refresh(view, &mut incident, faults, now);
    if let Some((to, reason)) = waits_instead(view, node) {
        return placed(incident, to, reason);
    }
    if let Some(until) = view.policy.first_action_until.filter(|until| now < *until) {
        let to = QuarantineStatus::Withheld(Withheld::FirstAction { until });
        let mut decision = placed(incident, to, Reason::FirstActionDelay);
        wake(&mut decision, Some(until));
        return decision;
    }
    let reason = Reason::FaultMatched {
        rules: first.matched.iter().cloned().collect(),
        seq: first.seq,
    };
    match view.permit {
        None => Decision {
            ask: Some(ask(view, node, &incident, false)),
            ..Decision::default()
        },
        Some(Permit::Taken) => applying(view, node, on, incident, None, reason, now),
        Some(Permit::Withheld(bound)) => {
            let to = QuarantineStatus::Withheld(Withheld::Breaker(bound));
            placed(incident, to, Reason::BreakerWithholds(bound))
        }
        Some(Permit::Pace) => {
            let to = QuarantineStatus::Withheld(Withheld::Pace);
            placed(incident, to, Reason::Paced)
        }
    }
}

/// The permit that an incident needs.
pub(super) fn ask(
    view: &View<'_>,
    node: &NodeFacts,
    incident: &Incident,
    paced: bool,
) -> PermitRequest {
    let oldest = incident.open_faults().min_by_key(|f| (f.joined_at, f.seq));
    let rule = oldest
        .and_then(|f| f.rules.first())
        .map_or("forced", String::as_str);
    let check = oldest.map_or("", |f| f.id.scope.check_name.as_str());
    PermitRequest {
        pool: incident.pool.clone(),
        node: node.name.clone(),
        rule: rule.to_owned(),
        check: check.to_owned(),
        paced,
        opened_at: oldest_fault(incident, view.faults),
    }
}

/// An incident in a first state that writes nothing.
fn placed(mut incident: Incident, to: QuarantineStatus, reason: Reason) -> Decision {
    incident.quarantine = to.clone();
    Decision {
        incident: Some(incident),
        transition: Some(Transition {
            from: None,
            to,
            reason,
        }),
        ..Decision::default()
    }
}

/// The incident with its marks planned, and the write that puts them on. `next` has its new
/// version already.
pub(super) fn applying(
    view: &View<'_>,
    node: &NodeFacts,
    on: &OnNode,
    next: Incident,
    from: Option<QuarantineStatus>,
    reason: Reason,
    now: Timestamp,
) -> Decision {
    let wanted = marks::plan(view, node, on, &next);
    applying_marks(view, node, on, next, wanted, from, reason, now)
}

/// As [`applying`], with marks that are given.
#[expect(clippy::too_many_arguments, reason = "the facts, and what was decided")]
pub(super) fn applying_marks(
    view: &View<'_>,
    node: &NodeFacts,
    on: &OnNode,
    mut next: Incident,
    wanted: Marks,
    from: Option<QuarantineStatus>,
    reason: Reason,
    now: Timestamp,
) -> Decision {
    if next.marks_observed {
        next.marks_before.get_or_insert_with(|| next.marks.clone());
    }
    next.marks = wanted;
    next.quarantine = QuarantineStatus::Applying;
    next.since = now;
    let write = marks::apply(view, node, on, &next, now);
    Decision {
        incident: Some(next),
        transition: Some(Transition {
            from,
            to: QuarantineStatus::Applying,
            reason,
        }),
        write: Some(write),
        ..Decision::default()
    }
}

fn blank(view: &View<'_>, node: &NodeFacts, now: Timestamp) -> Incident {
    blank_for(view.new_id.clone(), node, node.boot.clone(), now)
}

/// An incident of this node without faults.
pub(super) fn blank_for(
    id: health_event::incident::IncidentId,
    node: &NodeFacts,
    boot: BootId,
    now: Timestamp,
) -> Incident {
    Incident {
        id,
        node: node.name.clone(),
        node_uid: node.uid.clone(),
        machine: node.machine.clone(),
        version: 1,
        opened_seq: 0,
        opened_at: now,
        opened_boot: boot,
        closed_at: None,
        quarantine: QuarantineStatus::Observed,
        since: now,
        faults: Vec::new(),
        marks: Marks::default(),
        pool: node.pool.clone(),
        marks_observed: false,
        marks_before: None,
        needs_operator: None,
        held_by: None,
        faults_unknown: false,
        reasserted: Vec::new(),
        put_back: Vec::new(),
        drain: None,
        repair: None,
        validation: None,
    }
}
