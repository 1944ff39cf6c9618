//! Faults as the API shows them.

use std::fmt::Write as _;

use event_store::{Machine, StoredFault};
use health_event::checks::WARDEN_AGENT;
use health_event::{FaultId, HealthEvent, RecommendedAction, keys};
use sha2::{Digest, Sha256};

use crate::api::types;
use crate::nodes::NodeFacts;
use crate::quarantine;

/// Whether a fault says that a node's agent can't be taken at its word, and why.
pub(super) fn is_doubt(id: &FaultId, check: &str) -> bool {
    id.scope.agent == WARDEN_AGENT && id.scope.check_name == check
}

/// Whether a fault was read back from its node, and its sender has not spoken since.
pub(super) fn is_restored(fault: &StoredFault) -> bool {
    fault.count == 1 && fault.event.metadata.contains_key(keys::RESTORED)
}

/// Twelve characters over a fault's whole identity.
pub(in crate::api) fn fault_id(id: &FaultId) -> String {
    let text = format!(
        "{}\n{}\n{}\n{}\n{}\n{}\n{}",
        id.scope.subject,
        id.scope.agent,
        id.scope.component_class,
        id.scope.check_name,
        id.key.space.name(),
        id.key.device,
        id.key.code,
    );
    let digest = Sha256::digest(text.as_bytes());
    let mut hex = String::with_capacity(12);
    for byte in &digest[..6] {
        // Writing to a string can't fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

/// What tells whether a fault is one of the node as it is now.
pub(super) struct Place<'a> {
    pub(super) node: Option<&'a NodeFacts>,
    pub(super) machine: Option<&'a Machine>,
}

pub(super) fn fault(fault: StoredFault, place: &Place<'_>) -> types::Fault {
    let elsewhere = |(node, machine)| quarantine::is_elsewhere(&fault, node, machine);
    types::Fault {
        elsewhere: place.node.zip(place.machine).is_some_and(elsewhere),
        restored: is_restored(&fault),
        custom_action: custom_action(&fault),
        injected: fault.event.metadata.contains_key(keys::INJECTED),
        origin: origin(&fault.event),
        overridden: overridden(&fault.event),
        id: fault_id(&fault.id),
        agent: fault.id.scope.agent,
        component_class: fault.id.scope.component_class,
        check: fault.id.scope.check_name,
        device: fault.id.key.device.to_string(),
        code: fault.id.key.code,
        fatal: fault.fatal,
        action: fault.action.name().to_owned(),
        message: fault.event.message,
        since: fault.opened_at,
        last_at: fault.last_at,
        count: fault.count,
        sender: fault.sender.to_string(),
        incident: fault.incident.map(|id| id.to_string()),
        boot_id: fault.boot.to_string(),
    }
}

/// Name of the action where that is a site's own.
pub(super) fn custom_action(fault: &StoredFault) -> String {
    if fault.action == RecommendedAction::Custom {
        fault.event.custom_recommended_action.clone()
    } else {
        String::new()
    }
}

/// Whose record it was, where not the kernel's own.
pub(super) fn origin(event: &HealthEvent) -> String {
    let origin = event.metadata.get(keys::ORIGIN);
    origin.cloned().unwrap_or_default()
}

fn overridden(event: &HealthEvent) -> String {
    let changed = event.metadata.get(keys::OVERRIDDEN);
    changed.cloned().unwrap_or_default()
}

pub(super) fn closed_fault(closed: StoredFault, place: &Place<'_>) -> Option<types::ClosedFault> {
    let (closed_at, cause) = (closed.closed_at?, closed.cause?);
    Some(types::ClosedFault {
        fault: fault(closed, place),
        closed_at,
        cause: cause.as_str().to_owned(),
    })
}
