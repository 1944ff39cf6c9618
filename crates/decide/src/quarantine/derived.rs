//! What a node's labels and annotations say of its drain and repair: derived from the incident, and
//! written whenever the node says something else.

use std::collections::BTreeMap;

use health_event::incident::{
    Attempt, DrainStatus, Incident, QuarantineStatus, RepairStatus, Rung,
};
use k8s_api::names;
use k8s_api::remediation_state::render;

use super::decision::{NodeWrite, Preconditions, WriteKind};
use super::facts::{Annotation, Label, NodeFacts};

/// Value of label `dgxc.nvidia.com/nvsentinel-state`: the least advanced of drain and repair, and
/// `remediation-failed` where nothing more is done by itself (drain-and-remediation 1.2).
pub fn state_label(incident: &Incident) -> &'static str {
    let drain = incident.drain.as_ref().map(|drain| &drain.status);
    let repair = incident.repair.as_ref().map(|repair| &repair.status);
    match (drain, repair) {
        (Some(DrainStatus::Draining(_)), _) => names::STATE_DRAINING,
        (Some(DrainStatus::Failed(_)), _) => names::STATE_DRAIN_FAILED,
        (_, Some(RepairStatus::Requested | RepairStatus::Running | RepairStatus::Unknown)) => {
            names::STATE_REMEDIATING
        }
        (_, Some(RepairStatus::Succeeded)) => names::STATE_REMEDIATION_SUCCEEDED,
        (_, Some(RepairStatus::Failed(_) | RepairStatus::NeedsOperator(_))) => {
            names::STATE_REMEDIATION_FAILED
        }
        (
            Some(DrainStatus::Drained),
            Some(RepairStatus::Planned { .. } | RepairStatus::Cancelled) | None,
        ) => names::STATE_DRAIN_SUCCEEDED,
        (
            Some(DrainStatus::Waiting(_) | DrainStatus::Cancelled) | None,
            Some(RepairStatus::Planned { .. } | RepairStatus::Cancelled) | None,
        ) => names::STATE_QUARANTINED,
    }
}

/// Value of annotation `latestFaultRemediationState`: the object of the last attempt, under the
/// reference's group of its kind of repair; none before the first.
pub(super) fn remediation_state(incident: &Incident) -> Option<String> {
    let attempt = incident.repair.as_ref()?.attempt.as_ref()?;
    let group = match attempt.rung {
        Rung::Reset => "reset",
        Rung::Reboot => "restart",
        Rung::HandOver => "hand-over",
        Rung::Terminate => "terminate",
    };
    let Attempt {
        object,
        requested_at,
        action,
        ..
    } = attempt;
    Some(render(group, object, *requested_at, action))
}

/// The write that makes a node which is out say what is so now; none if it does.
pub(super) fn write(node: &NodeFacts, incident: &Incident) -> Option<NodeWrite> {
    if incident.quarantine != QuarantineStatus::Quarantined {
        return None;
    }
    let mut labels = BTreeMap::new();
    let state = state_label(incident);
    if node.labels.get(&Label::State).is_none_or(|is| is != state) {
        labels.insert(Label::State, Some(state.to_owned()));
    }
    let mut annotations = BTreeMap::new();
    let key = Annotation::RemediationState;
    let repair = remediation_state(incident);
    if repair.is_some() && node.annotations.get(&key) != repair.as_ref() {
        annotations.insert(key, repair);
    }
    if labels.is_empty() && annotations.is_empty() {
        return None;
    }
    Some(NodeWrite {
        node: node.name.clone(),
        kind: WriteKind::State,
        test: Preconditions {
            uid: node.uid.clone(),
            incident: node.annotations.get(&Annotation::Incident).cloned(),
            unschedulable: None,
            taints: None,
            annotations_absent: node.annotations_absent,
            labels_absent: node.labels_absent,
        },
        unschedulable: None,
        taints: None,
        annotations,
        labels,
        health_events: None,
    })
}
