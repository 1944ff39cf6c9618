//! The facts that decided a transition, as the audit trail keeps them.

use decide::quarantine::{Annotation, Decision, Reason};
use health_event::incident::{PUT_BACKS, QuarantineStatus};
use health_event::keys;
use serde_json::json;

use crate::kubernetes::patch::annotation_name;

use super::breaker::TakenRecord;
use super::observe::Observed;

/// Object of a repair that may still have its effect after the incident goes to its end.
fn repair_left<'a>(decision: &Decision, observed: &'a Observed) -> Option<&'a str> {
    let goes = decision.transition.as_ref().is_some_and(|t| match t.to {
        QuarantineStatus::Releasing(_) | QuarantineStatus::Closed(_) => true,
        QuarantineStatus::Withheld(_)
        | QuarantineStatus::Observed
        | QuarantineStatus::Applying
        | QuarantineStatus::Quarantined => false,
    });
    let repair = observed.incident.as_ref()?.repair.as_ref()?;
    let attempt = repair.attempt.as_ref()?;
    (goes && repair.status.is_under_way()).then_some(&attempt.object)
}

/// The annotations of ours that somebody takes off again and again, so that they are put back more rarely.
fn removed(decision: &Decision, observed: &Observed) -> Option<String> {
    let reason = decision
        .transition
        .as_ref()
        .map(|transition| &transition.reason);
    let incident = decision.incident.as_ref()?;
    if reason != Some(&Reason::MarksRestored) || incident.put_back.len() <= PUT_BACKS {
        return None;
    }
    let there = &observed.facts.as_ref()?.annotations;
    let marks = &incident.marks;
    let ours = [
        (Annotation::Incident, true),
        (Annotation::HealthEvents, true),
        (Annotation::IsCordoned, marks.cordon),
        (Annotation::AppliedTaints, !marks.taints.is_empty()),
    ];
    let gone = ours
        .iter()
        .filter(|(key, wanted)| *wanted && !there.contains_key(key));
    let names: Vec<_> = gone.map(|(key, _)| annotation_name(*key).text).collect();
    Some(names.join(", "))
}

/// The facts that decided, for the audit trail.
pub(super) fn cause(decision: &Decision, observed: &Observed, taken: &TakenRecord) -> String {
    let reason = decision.transition.as_ref().map(|t| &t.reason);
    let mut cause = json!({
        "reason": reason.map_or("adopted", |r| r.code()),
        "text": reason.map_or_else(|| "found on the node".to_owned(), ToString::to_string),
        "node_version": observed.node.as_ref().map(|n| n.resource_version),
        "unschedulable": observed.node.as_ref().and_then(|n| n.unschedulable),
        "open_faults": observed.faults.len(),
        "notes": decision.notes.iter().map(|note| format!("{note:?}")).collect::<Vec<_>>(),
    });
    let with = |key| {
        let faults = observed.faults.iter();
        faults
            .filter(|f| f.event.metadata.contains_key(key))
            .count()
    };
    for (name, key) in [("injected", keys::INJECTED), ("stand_ins", keys::ORIGIN)] {
        if let count @ 1.. = with(key) {
            cause[name] = json!(count);
        }
    }
    let held = observed.incident.as_ref().and_then(|i| i.held_by.as_ref());
    if let (Some(Reason::PersonHold(who)), Some(before)) = (reason, held)
        && who != before
    {
        cause["held_before"] = json!(before);
    }
    if let Some(object) = repair_left(decision, observed) {
        cause["repair_left"] = json!(object);
    }
    if let Some(which) = removed(decision, observed) {
        cause["marks_removed"] = json!(which);
    }
    if !taken.pool.is_empty() {
        cause["pool"] = json!(taken.pool);
        cause["rule"] = json!(taken.rule);
        cause["check"] = json!(taken.check);
        cause["taken"] = json!(taken.taken);
        cause["trip"] = json!(taken.trip);
    }
    cause.to_string()
}
