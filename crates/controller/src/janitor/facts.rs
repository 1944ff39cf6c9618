//! From objects to what decisions look at.

use std::time::Duration;

use decide::drain::keeps_repair;
use decide::janitor::{End, Node, Policy, RebootNode, Signal, Unwanted};
use decide::remediation::{has_happened, object_name_of, wants};
use event_store::{EventStore, ReadError};
use health_event::BootId;
use health_event::incident::{Incident, IncidentId};
use jiff::{SignedDuration, Timestamp};
use k8s_api::reboot_node::{
    self, CONTROLLER_HERE, MANUAL_MODE, NO_REBOOT_OBSERVED, NODE_READY, RECALLED, SIGNAL_SENT,
    TIMEOUT,
};
use k8s_api::{IncidentMark, names};

use crate::config::JanitorConfig;
use crate::nodes::{ConditionStatus, NodeFacts};
use crate::reports::Reports;

/// Settings of the decisions.
pub(super) fn policy(config: &JanitorConfig) -> Policy {
    Policy {
        timeout: signed(config.timeout),
        queue_timeout: signed(config.queue_timeout),
        no_reboot_after: signed(config.no_reboot_after),
        ask_interval: signed(config.ask_interval),
        manual: config.manual,
    }
}

/// The longest that there is where it does not fit.
pub(super) fn signed(span: Duration) -> SignedDuration {
    SignedDuration::try_from(span).unwrap_or(SignedDuration::MAX)
}

/// The object, reduced to what decides.
pub(super) fn object(object: &reboot_node::RebootNode, now: Timestamp) -> RebootNode {
    RebootNode {
        created_at: created_at(object, now),
        force: object.spec.force,
        deleting: object.metadata.deletion_timestamp.is_some(),
        started_at: object.status.start_time,
        completed_at: object.status.completion_time,
        signal: signal(object),
        end: end(object),
        says_manual: object
            .condition(MANUAL_MODE)
            .is_some_and(|condition| condition.status == "True"),
        says_controller_here: object
            .condition(NODE_READY)
            .is_some_and(|condition| condition.reason == CONTROLLER_HERE),
    }
}

fn end(object: &reboot_node::RebootNode) -> Option<End> {
    let ready = object.condition(NODE_READY);
    let ready = ready.filter(|ready| ready.status != "Unknown")?;
    match &*ready.reason {
        "Failed" => Some(End::Refused),
        NO_REBOOT_OBSERVED => Some(End::NoReboot),
        "Succeeded" | TIMEOUT | RECALLED => Some(End::Other),
        _ => None,
    }
}

/// When it was made; the API server says so of every object.
pub(super) fn created_at(object: &reboot_node::RebootNode, now: Timestamp) -> Timestamp {
    object.metadata.creation_timestamp.unwrap_or(now)
}

fn signal(object: &reboot_node::RebootNode) -> Signal {
    match object.condition(SIGNAL_SENT) {
        Some(condition) if condition.status == "True" => Signal::Sent {
            request: condition.message.clone(),
        },
        Some(condition) if condition.status == "False" => Signal::Failed,
        Some(_) | None => Signal::Unknown,
    }
}

/// Whether its signal came to the end of its time, and no effect was seen.
pub(super) fn ended_late(object: &reboot_node::RebootNode) -> bool {
    let ready = object.condition(NODE_READY);
    let late = ready.is_some_and(|ready| ready.status == "False" && ready.reason == TIMEOUT);
    late && object.is_over() && has_begun(object)
}

/// Whether the object tells of a signal that may have been sent, by whatever process.
pub(super) fn has_begun(object: &reboot_node::RebootNode) -> bool {
    object.status.start_time.is_some() || matches!(signal(object), Signal::Sent { .. })
}

/// The node as it is seen.
pub(super) fn node(
    node: &NodeFacts,
    store: &EventStore,
    reports: &Reports,
) -> Result<Node, ReadError> {
    Ok(Node::Seen {
        boot: boot(node, store, reports)?,
        ready: node.ready == Some(ConditionStatus::True),
    })
}

/// The boot that the node's status shows or its agent reported, whichever is newer: each may lag
/// behind the other.
pub(super) fn boot(
    node: &NodeFacts,
    store: &EventStore,
    reports: &Reports,
) -> Result<BootId, ReadError> {
    let of_status = BootId::new(&node.boot_id);
    let agent = reports.agent(&node.name)?;
    let is_same = agent.machine.is_empty() || agent.machine == node.machine();
    if !is_same || agent.boot.is_unknown() || agent.boot == of_status {
        return Ok(of_status);
    }
    let known = store.machine(node.machine())?;
    let rank = |boot: &BootId| {
        let boots = known.as_ref()?.boots.as_slice();
        boots.iter().position(|b| b == boot)
    };
    // One that nobody noted yet is newer than all that are.
    let agents_is_newer = of_status.is_unknown()
        || matches!((rank(&of_status), rank(&agent.boot)), (Some(s), Some(a)) if a > s);
    Ok(if agents_is_newer {
        agent.boot
    } else {
        of_status
    })
}

/// What the incident asks for that an object was made for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Asked {
    /// It does not want the reboot any more, or the machine has booted since it was ordered: it is not
    /// rebooted for that again.
    pub(super) recalled: Option<Unwanted>,
    /// It is not known, and the node's marks name it: it is about to be rebuilt from them.
    pub(super) not_adopted: bool,
    /// Work is moved off the node again: pods came since it was empty.
    pub(super) draining: bool,
}

/// What the object's incident asks for. A copy under another name is a person's own. An incident that the
/// store does not know was lost with a store: its orders wait until it is adopted from its node's marks, and
/// without these nobody wants them. One whose attempt is not known was adopted, and takes its order over.
pub(super) fn asked(
    object: &reboot_node::RebootNode,
    store: &EventStore,
    node: &Node,
    facts: Option<&NodeFacts>,
) -> Result<Asked, ReadError> {
    let annotation = |key: &str| object.metadata.annotations.get(key);
    let id = annotation(names::INCIDENT.text).and_then(|id| IncidentId::new(id));
    let Some(id) = id else {
        return Ok(Asked::default());
    };
    let number = annotation(names::ATTEMPT.text).and_then(|number| number.parse().ok());
    let (name, of_node) = (
        object.metadata.name.as_str(),
        object.spec.node_name.as_str(),
    );
    let has_its_name = number.is_some_and(|number| name == object_name_of(&id, of_node, number));
    let Some(incident) = store.incident(&id)? else {
        let lost = facts.filter(|_| has_its_name);
        return Ok(lost.map_or_else(Asked::default, |facts| of_unknown(&id, facts)));
    };
    let is_its = has_its_name && of_node == incident.node.as_str();
    Ok(Asked {
        recalled: (is_its && is_recalled(&incident, name, node)).then_some(Unwanted::Over),
        not_adopted: false,
        draining: keeps_repair(&incident) && !incident.quarantine.is_closed(),
    })
}

fn of_unknown(incident: &IncidentId, node: &NodeFacts) -> Asked {
    let mark = node.annotation(names::INCIDENT.text);
    let mark = mark.and_then(|text| IncidentMark::parse(text).ok());
    let is_marked =
        mark.is_some_and(|mark| mark.incident == *incident && mark.node_uid == *node.uid);
    Asked {
        recalled: (!is_marked).then_some(Unwanted::IncidentUnknown),
        not_adopted: is_marked,
        draining: false,
    }
}

fn is_recalled(incident: &Incident, name: &str, node: &Node) -> bool {
    let repair = incident.repair.as_ref();
    let has_attempt = repair.is_some_and(|repair| repair.attempt.is_some());
    let happened = match node {
        Node::Seen { boot, .. } => has_happened(incident, name, boot),
        Node::NotKnown | Node::Missing => false,
    };
    incident.quarantine.is_closed() || happened || (has_attempt && !wants(incident, name))
}
