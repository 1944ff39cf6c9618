//! What a node's labels and annotations say of its drain and repair: derived from the incident, and
//! written whenever the node says something else; a state that is over at once is left out.

use std::collections::BTreeMap;

use health_event::FaultId;
use health_event::incident::{
    Attempt, DrainStatus, Effect, Incident, QuarantineStatus, RepairStatus,
};
use jiff::{SignedDuration, Timestamp};
use k8s_api::names;
use k8s_api::remediation_state::render;

use super::decision::{NodeWrite, Preconditions, WriteKind};
use super::facts::{Annotation, Label, NodeFacts, Policy, View};
use crate::later;

/// Value of label `dgxc.nvidia.com/nvsentinel-state`: the least advanced of drain and repair, and
/// `remediation-failed` where nothing more is done by itself (drain-and-remediation 1.2).
pub fn state_label(incident: &Incident) -> &'static str {
    let drain = incident.drain.as_ref().map(|drain| &drain.status);
    let attempt = incident.repair.as_ref().and_then(|r| r.attempt.as_ref());
    let was_seen = attempt.is_some_and(|last| matches!(last.effect, Effect::Seen { .. }));
    let repair = incident.repair.as_ref().map(|repair| &repair.status);
    match (drain, repair) {
        (Some(DrainStatus::Draining(_)), _) => names::STATE_DRAINING,
        (Some(DrainStatus::Failed(_)), _) => names::STATE_DRAIN_FAILED,
        (_, Some(RepairStatus::Requested | RepairStatus::Running | RepairStatus::Unknown)) => {
            names::STATE_REMEDIATING
        }
        (_, Some(RepairStatus::Succeeded)) => names::STATE_REMEDIATION_SUCCEEDED,
        // What a person was called for is over, and what was repaired before is repaired still.
        (_, Some(RepairStatus::Cancelled)) if was_seen => names::STATE_REMEDIATION_SUCCEEDED,
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

/// How long a state stands that another one usually follows within milliseconds before the node says it:
/// long enough for a store commit and an agent's report after its boot, too short for a person to miss it.
const PASSING: SignedDuration = SignedDuration::from_secs(1);
/// How long a node says that it drains before its drain is known not to follow its cordon: many times what a
/// drain waits for its pods to be listed where a thousand nodes go out at once.
const FOLLOWS: SignedDuration = SignedDuration::from_secs(30);

/// Until when the node need not say the state of the incident, which is then usually over: the drain follows
/// the cordon, the order the drain, the release the repair. None of a state that lasts.
pub(super) fn passes_until(incident: &Incident) -> Option<Timestamp> {
    let drain = incident.drain.as_ref();
    let repair = incident.repair.as_ref();
    let planned = repair.is_some_and(|r| matches!(r.status, RepairStatus::Planned { .. }));
    let repair_since = repair.map(|repair| repair.since);
    match state_label(incident) {
        names::STATE_QUARANTINED if drain.is_none() => Some(later(incident.since, FOLLOWS)),
        // Before the next attempt the node is looked over again.
        names::STATE_QUARANTINED if planned => {
            let looks = drain.filter(|drain| drain.status == DrainStatus::Cancelled);
            looks.map(|drain| later(drain.since, PASSING))
        }
        names::STATE_DRAIN_SUCCEEDED if planned => {
            let since = drain.map(|drain| drain.since).max(repair_since);
            since.map(|since| later(since, PASSING))
        }
        names::STATE_REMEDIATION_SUCCEEDED => repair_since.map(|since| later(since, PASSING)),
        _ => None,
    }
}

/// What the label says as the marks are written: where a drain follows at once, its state, so that it needs
/// no write of its own.
pub(super) fn state_with_marks(
    view: &View<'_>,
    node: &NodeFacts,
    incident: &Incident,
) -> &'static str {
    let skips = |id: &FaultId| {
        let mut of_fault = view.faults.iter().filter(|fault| fault.id == *id);
        of_fault.any(|fault| fault.event.drain_overrides.is_some_and(|o| o.skip))
    };
    let is_wanted = incident.open_faults().any(|fault| !skips(&fault.id));
    if view.policy.drains && incident.drain.is_none() && is_wanted && !node.paused {
        names::STATE_DRAINING
    } else {
        state_label(incident)
    }
}

/// Value of annotation `latestFaultRemediationState`: the object of the last attempt, under the group of
/// its action; none before the first.
pub(super) fn remediation_state(incident: &Incident, policy: &Policy) -> Option<String> {
    let Attempt {
        object,
        requested_at,
        action,
        ..
    } = incident.repair.as_ref()?.attempt.as_ref()?;
    let group = policy.repair_groups.get(action).unwrap_or(action);
    Some(render(group, object, *requested_at, action))
}

/// The write that makes a node which is out say what is so now; none if it does.
pub(super) fn write(node: &NodeFacts, incident: &Incident, policy: &Policy) -> Option<NodeWrite> {
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
    let repair = remediation_state(incident, policy);
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
