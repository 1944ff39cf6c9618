//! From store and cache to what a decision looks at.

use std::collections::{BTreeMap, BTreeSet};

use decide::drain::Overrides;
use event_store::StoredFault;
use health_event::incident::{Incident, RepairStatus, Rung};
use health_event::{FaultId, Sender};
use jiff::Timestamp;

use crate::nodes::{ConditionStatus, NodeFacts};

/// What the newest events of the open faults say about drains. Anyone may say that a fault of theirs
/// needs none; only some may hurry work off.
pub(super) fn overrides(
    faults: &[StoredFault],
    forcing: &BTreeSet<Sender>,
) -> BTreeMap<FaultId, Overrides> {
    let said = faults.iter().filter_map(|fault| {
        let said = fault.event.drain_overrides.as_ref()?;
        let overrides = Overrides {
            force: said.force && forcing.contains(&fault.sender),
            skip: said.skip,
        };
        Some((fault.id.clone(), overrides))
    });
    said.collect()
}

/// Whether the repair of the incident ends every process on the node: a reboot, or the end of the
/// machine, planned or ordered. As long as none is planned nothing is passed over; of one that is handed
/// over nobody knows what it will be.
pub(super) fn ends_processes(incident: &Incident) -> bool {
    let Some(repair) = &incident.repair else {
        return false;
    };
    let rung = match &repair.status {
        RepairStatus::Planned { rung } => Some(*rung),
        RepairStatus::Requested | RepairStatus::Running | RepairStatus::Unknown => {
            repair.attempt.as_ref().map(|attempt| attempt.rung)
        }
        RepairStatus::Succeeded
        | RepairStatus::Failed(_)
        | RepairStatus::NeedsOperator(_)
        | RepairStatus::Cancelled => None,
    };
    matches!(rung, Some(Rung::Reboot | Rung::Terminate))
}

pub(super) fn repair_under_way(incident: &Incident) -> bool {
    let repair = incident.repair.as_ref();
    repair.is_some_and(|repair| repair.status.is_under_way())
}

/// The node controller says Unknown of a node whose kubelet it has not heard.
pub(super) fn kubelet_silent_since(node: &NodeFacts) -> Option<Timestamp> {
    let silent = node.ready == Some(ConditionStatus::Unknown);
    node.ready_since.filter(|_| silent)
}
