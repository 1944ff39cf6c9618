//! From cache and store to what a decision about conditions looks at.

use std::collections::{BTreeMap, BTreeSet};

use decide::connector::{ConditionRead, FaultEntry};
use event_store::{EventStore, ReadError, StoredFault};
use health_event::{Device, RecommendedAction, checks};
use jiff::Timestamp;
use k8s_api::{ConditionList, names};

use crate::nodes::{ConditionStatus, NodeFacts};
use crate::reports::AgentState;

/// Closed faults of a node that are looked at: those that closed last.
pub(super) const CLOSED: usize = 1_024;

/// The node's conditions. Of foreign ones only that they are there: nobody writes them.
pub(super) fn conditions(node: &NodeFacts) -> BTreeMap<String, ConditionRead> {
    let ours = node.conditions.iter().map(|condition| {
        let read = ConditionRead {
            is_true: condition.status == ConditionStatus::True,
            reason: condition.reason.to_string(),
            message: condition.message.to_string(),
        };
        (condition.kind.to_string(), read)
    });
    let foreign = node.foreign_conditions.iter().map(|kind| {
        let read = ConditionRead {
            is_true: false,
            reason: String::new(),
            message: String::new(),
        };
        (kind.to_string(), read)
    });
    ours.chain(foreign).collect()
}

/// Types that we wrote here; a list that can't be read is as good as none.
pub(super) fn listed(node: &NodeFacts) -> BTreeSet<String> {
    let text = node.annotation(names::CONDITIONS.text);
    text.and_then(|text| ConditionList::parse(text).ok())
        .unwrap_or_default()
        .0
}

/// Conditions of ours that say that something is wrong on a node, and of whose check the store knows no
/// fault, open or closed: an earlier one was lost (`docs/decisions/`, 16).
///
/// # Errors
/// The store can't be read.
pub fn unconfirmed(store: &EventStore, node: &NodeFacts) -> Result<Vec<String>, ReadError> {
    let own = [names::MORE_FAULTS, names::OTHER_QUARANTINE];
    let conditions = conditions(node);
    let stands = |kind: &String| conditions.get(kind).is_some_and(|read| read.is_true);
    let mut kinds = listed(node);
    kinds.retain(|kind| stands(kind) && !own.contains(&kind.as_str()));
    if !kinds.is_empty() {
        for fault in store.open_faults(&node.name)?.iter() {
            kinds.remove(&fault.id.scope.check_name);
        }
        for fault in store.closed_faults(&node.name, CLOSED)? {
            kinds.remove(&fault.id.scope.check_name);
        }
    }
    Ok(kinds.into_iter().collect())
}

/// Whether a fault under this name was said of this machine, as far as both are known: another
/// machine's is shown nowhere on it. One of an earlier boot stays until it is closed.
pub(super) fn is_of(fault: &StoredFault, node: &NodeFacts) -> bool {
    let known = !fault.machine.is_empty() && !node.system_uuid.is_empty();
    !known || fault.machine == *node.system_uuid
}

pub(super) fn fault_entry(fault: StoredFault) -> FaultEntry {
    FaultEntry {
        check: fault.id.scope.check_name,
        seq: fault.opened_seq,
        device: fault.device,
        code: fault.id.key.code,
        fatal: fault.fatal,
        message: fault.event.message,
        action: fault.action,
        last_at: fault.last_at,
    }
}

/// Stands for a fault of the node, so that it is told by a condition of its own: another
/// fault-quarantine keeps ours from acting.
pub(super) fn refusal(since: Timestamp) -> FaultEntry {
    FaultEntry {
        check: names::OTHER_QUARANTINE.to_owned(),
        seq: u64::MAX,
        device: Device::new(Vec::new()),
        code: String::new(),
        fatal: true,
        message:
            "another fault-quarantine runs in the cluster: Warden neither takes this node out \
                  nor gives it back while it does, see `warden status`"
                .to_owned(),
        action: RecommendedAction::None,
        last_at: since,
    }
}

/// Checks whose own detector has settled on the node's present boot.
pub(super) fn settled(node: &NodeFacts, agent: &AgentState) -> BTreeSet<String> {
    let boot = agent
        .settled_boot
        .as_ref()
        .map(health_event::BootId::as_str);
    if boot != Some(&*node.boot_id) {
        return BTreeSet::new();
    }
    let ours = [checks::SYSLOG_AGENT, checks::WARDEN_AGENT];
    let of_agent = checks::CHECKS
        .iter()
        .filter(|check| ours.contains(&check.agent));
    of_agent.map(|check| check.name.to_owned()).collect()
}

/// Types that the reference writes too.
pub(super) fn reference_types() -> BTreeSet<String> {
    let types = checks::CHECKS.iter().filter(|check| check.reference);
    types.map(|check| check.name.to_owned()).collect()
}
