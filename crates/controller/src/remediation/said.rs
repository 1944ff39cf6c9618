//! What the module tells: log lines, numbers, and words for the audit trail.

use decide::remediation::{Reason, Transition};
use health_event::NodeName;
use health_event::incident::{Attempt, Incident, OperatorReason, RepairFailure, RepairStatus};
use jiff::Timestamp;
use k8s_api::reboot_node::KIND;
use telemetry::ControllerMetrics;
use telemetry::metrics::{NodeActionLabel, OutcomeLabel, RepairErrorLabel, RepairLabel};
use tracing::{info, warn};

/// A turn or a call failed; it is tried again.
pub(super) fn failed(metrics: &ControllerMetrics, node: &NodeName, code: &'static str, why: &str) {
    let label = RepairErrorLabel {
        error_type: code.to_owned(),
        node_name: node.to_string(),
    };
    metrics.remediation.errors.get_or_create(&label).inc();
    warn!(code, node = %node, why, "a repair does not go on; it is tried again");
}

/// An object of ours is there: made now, or before.
pub(super) fn object(metrics: &ControllerMetrics, node: &NodeName, attempt: &Attempt, made: bool) {
    let label = RepairLabel {
        cr_status: if made { "created" } else { "skipped" }.to_owned(),
        node_name: node.to_string(),
    };
    metrics.remediation.processed.get_or_create(&label).inc();
    let (object, action, force) = (&attempt.object, &attempt.action, attempt.force);
    let number = attempt.number;
    info!(node = %node, object, action, number, force, made, "the repair object is there");
}

/// How long a node that is empty waited for its object.
pub(super) fn generated(metrics: &ControllerMetrics, since: Timestamp, now: Timestamp) {
    let seconds = now.duration_since(since).as_secs_f64().max(0.0);
    metrics.remediation.generate.observe(seconds);
}

/// An object was taken back.
pub(super) fn recalled(metrics: &ControllerMetrics, node: &NodeName, object: &str) {
    count(metrics, "recalled");
    info!(node = %node, object, "a repair that nobody waits for is recalled: nothing was sent for it");
}

/// An object that nobody waits for can't be taken back.
pub(super) fn left(node: &NodeName, object: &str) {
    warn!(
        code = "repair_not_recalled",
        node = %node,
        object,
        "a repair that nobody waits for may have been sent and can't be recalled: it keeps the node's \
         lock and its deadline, and the next repair of the node waits for it"
    );
}

/// A transition is stored.
pub(super) fn moved(metrics: &ControllerMetrics, incident: &Incident, transition: &Transition) {
    let node = &incident.node;
    let outcome = match &transition.to {
        RepairStatus::Requested if transition.reason != Reason::ObjectGone => "ordered",
        RepairStatus::Succeeded => "succeeded",
        RepairStatus::Failed(_) => "failed",
        RepairStatus::NeedsOperator(_) => "needs_operator",
        RepairStatus::Planned { .. }
        | RepairStatus::Requested
        | RepairStatus::Running
        | RepairStatus::Unknown
        | RepairStatus::Cancelled => "",
    };
    if !outcome.is_empty() {
        count(metrics, outcome);
    }
    if let RepairStatus::NeedsOperator(OperatorReason::Unsupported { action }) = &transition.to {
        let label = NodeActionLabel {
            action: super::facts::words(action),
            node_name: node.to_string(),
        };
        metrics.remediation.unsupported.get_or_create(&label).inc();
    }
    let text = text(transition, attempt_of(incident));
    let (state, reason) = (transition.to.as_str(), transition.reason.code());
    info!(node = %node, incident = %incident.id, state, reason, text, "repair");
}

fn count(metrics: &ControllerMetrics, outcome: &str) {
    let label = OutcomeLabel {
        outcome: outcome.to_owned(),
    };
    metrics.remediation.repairs.get_or_create(&label).inc();
}

pub(super) fn attempt_of(incident: &Incident) -> Option<&Attempt> {
    incident.repair.as_ref()?.attempt.as_ref()
}

/// A transition in words, for the audit trail and the Event on the node.
pub(super) fn text(transition: &Transition, attempt: Option<&Attempt>) -> String {
    let number = attempt.map(|attempt| attempt.number).unwrap_or_default();
    let object = attempt
        .map(|attempt| attempt.object.as_str())
        .unwrap_or_default();
    let action = attempt
        .map(|attempt| attempt.action.as_str())
        .unwrap_or_default();
    match &transition.to {
        RepairStatus::Planned { rung } => format!("planned is a {}", rung.as_str()),
        RepairStatus::Requested if transition.reason == Reason::ObjectGone => {
            format!(
                "attempt {number} is ordered again: {KIND} {object} went with the definition of its kind before \
                 anything was sent"
            )
        }
        RepairStatus::Requested => {
            let force = attempt.is_some_and(|attempt| attempt.force);
            let force = if force { ", with force" } else { "" };
            let rung = attempt.map_or("repair", |attempt| attempt.rung.as_str());
            format!("{rung} for {action} ordered as attempt {number}{force}: {KIND} {object}")
        }
        RepairStatus::Running if transition.reason == Reason::Found => {
            format!("attempt {number} was found by its object {KIND} {object}")
        }
        RepairStatus::Running if transition.reason == Reason::Begun => {
            format!(
                "attempt {number} was begun late, and has its whole time from then: {KIND} {object}"
            )
        }
        RepairStatus::Running => format!("attempt {number} is under way: {KIND} {object}"),
        RepairStatus::Unknown => {
            format!(
                "{KIND} {object} is gone before its end was seen; the node tells what came of it"
            )
        }
        RepairStatus::Succeeded if transition.reason == Reason::OtherBoot => {
            format!("attempt {number}: the node is Ready in another boot")
        }
        RepairStatus::Succeeded => format!("attempt {number}: its object says that it is done"),
        RepairStatus::Failed(why) => format!("attempt {number} failed: {}", failure(why)),
        RepairStatus::NeedsOperator(why) => operator(why),
        RepairStatus::Cancelled if transition.reason == Reason::Booted => {
            "nothing is ordered: the machine has booted since its faults were last said".to_owned()
        }
        RepairStatus::Cancelled => "what it was for is over".to_owned(),
    }
}

fn failure(why: &RepairFailure) -> String {
    match why {
        RepairFailure::NoRebootObserved => {
            "it is said to be done, and the node is Ready in the boot that it had before".to_owned()
        }
        RepairFailure::Refused(words) => format!("its object is not taken: {words}"),
        RepairFailure::Object(words) => format!("its object says: {words}"),
        RepairFailure::Deadline => "its effect was not seen in time".to_owned(),
        RepairFailure::NotBegun(words) => format!("nothing was sent for it: {words}"),
        RepairFailure::ProviderRefused(words) => {
            format!("the provider refused it, and it is asked again after a pause: {words}")
        }
    }
}

fn operator(why: &OperatorReason) -> String {
    match why {
        OperatorReason::Unsupported { action } => {
            format!("a person is needed: no repair is configured for {action}")
        }
        OperatorReason::Exhausted {
            rung,
            again_at: None,
        } => {
            format!(
                "a person is needed: all attempts up to a {} are used up, and nothing more is ordered in \
                 this incident",
                rung.as_str()
            )
        }
        OperatorReason::Exhausted {
            rung,
            again_at: Some(at),
        } => {
            format!(
                "a person is needed: all attempts up to a {} on this machine are used up; the next is \
                 ordered by itself at {at:.0}",
                rung.as_str()
            )
        }
        OperatorReason::CalledOff => {
            "a person is needed: the order was deleted before anything was sent".to_owned()
        }
        OperatorReason::ProviderRefuses { words, again_at } => {
            format!(
                "a person is needed: the provider refuses the orders, and is asked again at {again_at:.0}: \
                 {words}"
            )
        }
        OperatorReason::NotBegun => {
            "a person is needed: nobody began the orders, and nothing was sent".to_owned()
        }
        OperatorReason::StillOpen => {
            "a person is needed: the node has booted or was repaired, and its faults are still open"
                .to_owned()
        }
    }
}
