//! Drain and repair as the API shows them.

use decide::drain::{AtDeadline, BlockedBy, Blocker, PodRef};
use health_event::NodeName;
use health_event::incident::{
    Attempt, Drain, DrainFailed, DrainStatus, DrainWait, Effect, Incident, OperatorReason, Repair,
    RepairFailure, RepairStatus,
};
use jiff::Timestamp;

use super::boots;
use crate::api::types;
use crate::context::Context;
use crate::janitor;
use crate::nodes::NodeFacts;

/// What keeps the controller's own node: it goes last.
const OWN_NODE: &str = "own_node";
/// What keeps a repair where another's object is past its time.
const LEFT_REPAIR: &str = "left_repair";
/// What keeps an order that nobody has begun.
const QUEUED: &str = "queued";

/// Whether the node of an open incident is to be empty and is not.
pub(super) fn drains(incident: &Incident) -> bool {
    match incident.drain.as_ref().map(|drain| &drain.status) {
        Some(DrainStatus::Waiting(_) | DrainStatus::Draining(_)) => true,
        Some(DrainStatus::Drained | DrainStatus::Failed(_) | DrainStatus::Cancelled) | None => {
            false
        }
    }
}

/// Whether a repair is planned or under way.
pub(super) fn repairs(incident: &Incident) -> bool {
    match incident.repair.as_ref().map(|repair| &repair.status) {
        Some(RepairStatus::Planned { .. }) => true,
        Some(status) => status.is_under_way(),
        None => false,
    }
}

/// Whether nothing goes on by itself.
pub(super) fn needs_person(context: &Context, incident: &Incident) -> bool {
    let drain = incident.drain.as_ref().map(|drain| &drain.status);
    let repair = incident.repair.as_ref().map(|repair| &repair.status);
    incident.needs_operator.is_some()
        || matches!(drain, Some(DrainStatus::Failed(_)))
        || matches!(repair, Some(RepairStatus::NeedsOperator(_)))
        || waits_for_the_controller(context, incident)
        || waits_for_a_left_object(context, incident)
        || waits_for_a_boot(context, incident)
}

/// Whether it goes on with the agent's word of the boot that the node shows, which does not come.
fn waits_for_a_boot(context: &Context, incident: &Incident) -> bool {
    let node = context.nodes.get(&incident.node);
    let agent = context.reports.agent(&incident.node).ok();
    let differ = node
        .zip(agent)
        .and_then(|(node, agent)| boots::differ(context, &node, &agent, Timestamp::now()));
    incident.quarantine.is_out() && differ.is_some_and(|differ| differ.late)
}

/// Whether a repair waits for the end of another's object that nobody ends.
fn waits_for_a_left_object(context: &Context, incident: &Incident) -> bool {
    repairs(incident) && context.stages.repair_blocked(&incident.node) == Some(LEFT_REPAIR)
}

/// Whether a repair waits for nothing but that a person moves the controller off the node.
fn waits_for_the_controller(context: &Context, incident: &Incident) -> bool {
    let repair = incident.repair.as_ref().map(|repair| &repair.status);
    let blocked = context.stages.repair_blocked(&incident.node);
    let own = context.config.kubernetes.node_name.as_ref() == Some(&incident.node);
    match repair {
        Some(RepairStatus::Planned { .. }) => blocked == Some(OWN_NODE),
        // Ordered before the controller came there.
        Some(RepairStatus::Running) => own && blocked == Some(QUEUED),
        Some(_) | None => false,
    }
}

pub(super) fn drain(context: &Context, node: &NodeName, drain: &Drain) -> types::Drain {
    let waits = matches!(
        drain.status,
        DrainStatus::Waiting(_) | DrainStatus::Draining(_) | DrainStatus::Failed(_)
    );
    let look = context
        .stages
        .pods(node)
        .filter(|_| waits)
        .unwrap_or_default();
    let (detail, not_before) = match &drain.status {
        DrainStatus::Waiting(wait) => waiting(wait),
        DrainStatus::Failed(failed) => (failed.why.as_str(), None),
        DrainStatus::Draining(_) | DrainStatus::Drained | DrainStatus::Cancelled => ("", None),
    };
    let deadlines = match &drain.status {
        DrainStatus::Draining(deadlines) | DrainStatus::Failed(DrainFailed { deadlines, .. }) => {
            Some(deadlines)
        }
        DrainStatus::Waiting(_) | DrainStatus::Drained | DrainStatus::Cancelled => None,
    };
    types::Drain {
        state: drain.status.as_str().to_owned(),
        detail: detail.to_owned(),
        since: drain.since,
        not_before,
        immediate_deadline: deadlines.map(|d| d.immediate),
        delete_at: deadlines.map(|d| d.delete),
        completion_deadline: deadlines.and_then(|d| d.completion),
        at_deadline: match context.config.drain.at_deadline {
            AtDeadline::Fail => "fail",
            AtDeadline::Delete => "delete",
        }
        .to_owned(),
        blockers: look.blockers.iter().map(blocker).collect(),
        passed_over: look.passed_over.iter().map(pod).collect(),
    }
}

fn waiting(wait: &DrainWait) -> (&'static str, Option<Timestamp>) {
    match wait {
        DrainWait::Paused => ("paused", None),
        DrainWait::FirstAction { until } if *until <= Timestamp::now() => ("turn", None),
        DrainWait::FirstAction { until } => ("first_action", Some(*until)),
        DrainWait::DryRun => ("dry_run", None),
        DrainWait::OtherDrainer => ("other_drainer", None),
        DrainWait::OwnNode => ("own_node", None),
    }
}

fn blocker(blocker: &Blocker) -> types::Blocker {
    let detail = match &blocker.why {
        BlockedBy::Budget(words) | BlockedBy::Failed(words) => words.clone(),
        BlockedBy::Asked
        | BlockedBy::Terminating
        | BlockedBy::Completion
        | BlockedBy::Timeout
        | BlockedBy::Came => String::new(),
    };
    types::Blocker {
        pod: pod(&blocker.pod),
        why: blocker.why.as_str().to_owned(),
        detail,
        until: blocker.until,
    }
}

fn pod(pod: &PodRef) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

pub(super) fn repair(context: &Context, node: &NodeName, repair: &Repair) -> types::Repair {
    let (detail, words) = match &repair.status {
        RepairStatus::Planned { rung } => (rung.as_str(), String::new()),
        RepairStatus::Failed(why) => failure(why),
        RepairStatus::NeedsOperator(why) => needs(why),
        RepairStatus::Requested
        | RepairStatus::Running
        | RepairStatus::Unknown
        | RepairStatus::Succeeded
        | RepairStatus::Cancelled => ("", String::new()),
    };
    let waits = matches!(
        repair.status,
        RepairStatus::Planned { .. } | RepairStatus::Requested | RepairStatus::Running
    );
    let blocked = context.stages.repair_blocked(node).filter(|_| waits);
    let own = context.config.kubernetes.node_name.as_ref() == Some(node);
    let blocked = match blocked {
        Some(QUEUED) if own => Some(OWN_NODE),
        other => other,
    };
    types::Repair {
        state: repair.status.as_str().to_owned(),
        detail: detail.to_owned(),
        words,
        since: repair.since,
        again_at: again_at(repair),
        blocked_by: blocked.map(str::to_owned),
        attempt: repair.attempt.as_ref().map(attempt),
    }
}

/// When something is ordered by itself although a person is needed, or the provider refused.
fn again_at(repair: &Repair) -> Option<Timestamp> {
    match &repair.status {
        RepairStatus::NeedsOperator(OperatorReason::Exhausted { again_at, .. }) => *again_at,
        RepairStatus::NeedsOperator(OperatorReason::ProviderRefuses { again_at, .. }) => {
            Some(*again_at)
        }
        RepairStatus::Failed(RepairFailure::ProviderRefused(_)) => {
            match repair.attempt.as_ref()?.effect {
                Effect::ProviderRefused { again_at } => Some(again_at),
                Effect::Pending
                | Effect::Seen { .. }
                | Effect::NotSeen
                | Effect::NotBegun
                | Effect::Failed => None,
            }
        }
        RepairStatus::NeedsOperator(_)
        | RepairStatus::Planned { .. }
        | RepairStatus::Requested
        | RepairStatus::Running
        | RepairStatus::Unknown
        | RepairStatus::Succeeded
        | RepairStatus::Failed(_)
        | RepairStatus::Cancelled => None,
    }
}

fn failure(why: &RepairFailure) -> (&'static str, String) {
    match why {
        RepairFailure::NoRebootObserved => ("no_reboot_observed", String::new()),
        RepairFailure::Refused(words) => ("refused", words.clone()),
        RepairFailure::Object(words) => ("object", words.clone()),
        RepairFailure::Deadline => ("deadline", String::new()),
        RepairFailure::NotBegun(words) => ("not_begun", words.clone()),
        RepairFailure::ProviderRefused(words) => ("provider_refused", words.clone()),
    }
}

fn needs(why: &OperatorReason) -> (&'static str, String) {
    match why {
        OperatorReason::Unsupported { action } => ("unsupported", action.clone()),
        OperatorReason::Exhausted { rung, .. } => ("exhausted", rung.as_str().to_owned()),
        OperatorReason::StillOpen => ("still_open", String::new()),
        OperatorReason::NotBegun => ("not_begun", String::new()),
        OperatorReason::ProviderRefuses { words, .. } => ("provider_refused", words.clone()),
        OperatorReason::CalledOff => ("called_off", String::new()),
    }
}

fn attempt(attempt: &Attempt) -> types::RepairAttempt {
    types::RepairAttempt {
        number: attempt.number,
        rung: attempt.rung.as_str().to_owned(),
        action: attempt.action.clone(),
        object: attempt.object.clone(),
        force: attempt.force,
        boot_before: attempt.boot_before.as_str().to_owned(),
        requested_at: attempt.requested_at,
        deadline: attempt.deadline,
        effect: match attempt.effect {
            Effect::Pending => "pending",
            Effect::Seen { .. } => "seen",
            Effect::NotSeen => "not_seen",
            Effect::NotBegun => "not_begun",
            Effect::ProviderRefused { .. } => "provider_refused",
            Effect::Failed => "failed",
        }
        .to_owned(),
    }
}

/// Reboots that may still come: objects that are not over, and signals whose object is gone or says more
/// than is known.
pub(super) fn reboots(
    context: &Context,
    node: &NodeName,
    machine: &str,
    facts: Option<&NodeFacts>,
) -> Vec<types::PendingReboot> {
    let machine = facts.map_or(machine, |facts| facts.machine());
    let intents = janitor::intents(&context.store).unwrap_or_default();
    let intents = intents
        .into_iter()
        .filter(|i| i.is_of(node.as_str(), machine));
    let mut pending: Vec<_> = intents
        .map(|intent| types::PendingReboot {
            object: intent.object,
            since: Some(intent.at),
            until: Some(intent.deadline),
            waits_for: None,
        })
        .collect();
    let mut waits = context.stages.reboot_waits(node);
    for object in context.reboots.of_node(node.as_str()) {
        let name = &object.metadata.name;
        if !object.is_over() && pending.iter().all(|known| known.object != *name) {
            pending.push(types::PendingReboot {
                object: name.clone(),
                since: object.status.start_time,
                until: None,
                waits_for: waits.remove(name),
            });
        }
    }
    pending.sort_by(|a, b| a.object.cmp(&b.object));
    pending
}
