//! Incidents as the API shows them.

use std::collections::HashMap;
use std::sync::Arc;

use event_store::StoredFault;
use health_event::incident::{self, QuarantineStatus, ValidationStatus, Withheld};
use health_event::{FaultId, RecommendedAction};
use jiff::{SignedDuration, Timestamp};

use super::faults::custom_action;
use super::{SHOWN_CLOSED, stages};
use crate::api::types;
use crate::context::Context;

/// What an incident waits for that was rebuilt from a node which does not name all it is out for.
const FAULTS_UNKNOWN: &str = "the store was lost and the node does not name all that it is out for; \
                              its agent's settled report will";

pub(in crate::api) fn incident(
    context: &Context,
    incident: &incident::Incident,
) -> types::Incident {
    let taint = |t: &incident::Taint| format!("{}={}:{}", t.key, t.value, t.effect);
    types::Incident {
        id: incident.id.to_string(),
        node: incident.node.to_string(),
        node_uid: incident.node_uid.clone(),
        version: incident.version,
        state: incident.quarantine.as_str().to_owned(),
        detail: if incident.faults_unknown && incident.quarantine.is_out() {
            FAULTS_UNKNOWN.to_owned()
        } else {
            detail(&incident.quarantine)
        },
        withheld_by: withheld_by(&incident.quarantine).map(str::to_owned),
        not_before: not_before(&incident.quarantine),
        since: incident.since,
        opened_at: incident.opened_at,
        closed_at: incident.closed_at,
        pool: incident.pool.clone(),
        cordon: incident.marks.cordon,
        cordon_pre_existing: incident.marks.cordon_pre_existing,
        taints: incident.marks.taints.iter().map(taint).collect(),
        faults: incident_faults(context, incident),
        needs_operator: incident.needs_operator.clone(),
        held_by: incident.held_by.clone(),
        faults_unknown: incident.faults_unknown,
        marks_removed: marks_removed(incident, Timestamp::now()),
        release_kept_by: context
            .stages
            .release_kept(&incident.node)
            .filter(|_| incident.quarantine.is_out())
            .map(str::to_owned),
        validation: incident.validation.as_ref().map(validation),
        drain: incident
            .drain
            .as_ref()
            .map(|d| stages::drain(context, &incident.node, d)),
        repair: incident
            .repair
            .as_ref()
            .map(|r| stages::repair(context, &incident.node, r)),
    }
}

/// How often marks were put back in the last hour that something had taken off; 0 where that may happen.
pub(super) fn marks_removed(incident: &incident::Incident, now: Timestamp) -> usize {
    const AN_HOUR: SignedDuration = SignedDuration::from_hours(1);
    let lately = |at: &&Timestamp| now.duration_since(**at) < AN_HOUR;
    let count = incident.put_back.iter().filter(lately).count();
    if incident.quarantine.is_out() && count > incident::PUT_BACKS {
        count
    } else {
        0
    }
}

fn validation(validation: &incident::Validation) -> String {
    match &validation.status {
        ValidationStatus::Running => "Running".to_owned(),
        ValidationStatus::Passed => "Passed".to_owned(),
        ValidationStatus::Failed(found) => format!("Failed: {found}"),
    }
}

fn incident_faults(context: &Context, incident: &incident::Incident) -> Vec<types::IncidentFault> {
    let mut faults: Vec<_> = incident.faults.iter().map(incident_fault).collect();
    let custom = RecommendedAction::Custom;
    if !incident.faults.iter().any(|fault| fault.action == custom) {
        return faults;
    }
    // The name stands in the event, which the store keeps with the fault.
    let open = context.store.open_faults(&incident.node);
    let open = open.unwrap_or_else(|_| Arc::from([]));
    let closed = context.store.closed_faults(&incident.node, SHOWN_CLOSED);
    // The open one counts, where it closed before as well.
    let known: HashMap<&FaultId, &StoredFault> = closed
        .iter()
        .flatten()
        .rev()
        .chain(open.iter().rev())
        .map(|of| (&of.id, of))
        .collect();
    for (shown, fault) in faults.iter_mut().zip(&incident.faults) {
        let of = known.get(&fault.id).filter(|_| fault.action == custom);
        shown.custom_action = of.map(|of| custom_action(of)).unwrap_or_default();
    }
    faults
}

fn incident_fault(fault: &incident::IncidentFault) -> types::IncidentFault {
    types::IncidentFault {
        fault: fault.id.to_string(),
        rules: fault.rules.iter().cloned().collect(),
        action: fault.action.name().to_owned(),
        custom_action: String::new(),
        joined_at: fault.joined_at,
        closed_at: fault.closed_at,
        seq: fault.seq,
    }
}

fn detail(status: &QuarantineStatus) -> String {
    match status {
        QuarantineStatus::Withheld(Withheld::Breaker(bound)) => {
            format!(
                "the pool's breaker is tripped by its {} bound",
                bound.as_str()
            )
        }
        QuarantineStatus::Withheld(Withheld::FirstAction { until }) => {
            format!("quarantine was switched on; nothing is done before {until}")
        }
        QuarantineStatus::Withheld(Withheld::Pace) => "nodes go one after the other".to_owned(),
        QuarantineStatus::Withheld(Withheld::OtherQuarantine) => {
            "another fault-quarantine runs in the cluster".to_owned()
        }
        QuarantineStatus::Releasing(reason) | QuarantineStatus::Closed(reason) => {
            reason.as_str().to_owned()
        }
        QuarantineStatus::Observed | QuarantineStatus::Applying | QuarantineStatus::Quarantined => {
            String::new()
        }
    }
}

fn withheld_by(status: &QuarantineStatus) -> Option<&'static str> {
    match status {
        QuarantineStatus::Withheld(why) => Some(why.as_str()),
        QuarantineStatus::Observed
        | QuarantineStatus::Applying
        | QuarantineStatus::Quarantined
        | QuarantineStatus::Releasing(_)
        | QuarantineStatus::Closed(_) => None,
    }
}

fn not_before(status: &QuarantineStatus) -> Option<Timestamp> {
    match status {
        QuarantineStatus::Withheld(Withheld::FirstAction { until }) => Some(*until),
        QuarantineStatus::Withheld(
            Withheld::Breaker(_) | Withheld::Pace | Withheld::OtherQuarantine,
        )
        | QuarantineStatus::Observed
        | QuarantineStatus::Applying
        | QuarantineStatus::Quarantined
        | QuarantineStatus::Releasing(_)
        | QuarantineStatus::Closed(_) => None,
    }
}

/// Whether an incident's node is out by us, or may be: not one whose marks somebody took off while we
/// do not write. (While we write, the incident ends at once.)
pub(super) fn is_out(context: &Context, incident: &incident::Incident) -> bool {
    incident.quarantine.is_out() && !is_given_back(context, incident)
}

pub(super) fn is_given_back(context: &Context, incident: &incident::Incident) -> bool {
    let Some(node) = context.nodes.get(&incident.node) else {
        return false;
    };
    let marks = &incident.marks;
    let on_node = |taint: &incident::Taint| {
        let mut taints = node.taints.iter().flatten();
        taints
            .any(|t| *t.key == *taint.key && *t.value == *taint.value && *t.effect == *taint.effect)
    };
    incident.quarantine == QuarantineStatus::Quarantined
        && *node.uid == *incident.node_uid
        && !(marks.cordon && node.is_cordoned())
        && !marks.taints.iter().any(on_node)
}

pub(super) fn is_withheld(status: &QuarantineStatus) -> bool {
    matches!(status, QuarantineStatus::Withheld(_))
}
