//! What the module says about its work: causes for the audit trail, log lines and numbers.

use std::collections::BTreeSet;

use decide::drain::{BlockedBy, Blocker, Decision, How, Reason, Transition};
use health_event::NodeName;
use health_event::incident::{DrainFailure, DrainStatus, DrainWait, Incident};
use health_event::text::counted;
use jiff::Timestamp;
use k8s_api::names;
use serde_json::json;
use telemetry::ControllerMetrics;
use telemetry::metrics::{DrainLabel, NodeCheckLabel, NodeErrorLabel, NodeLabel, PodCallLabel};
use tracing::{error, info, warn};

use super::apply::{Blocked, Order};
use super::asked::Outcome;

/// Pods that a text names; of more the number is told.
const NAMED: usize = 5;
/// Pods that a cause lists.
const LISTED: usize = 50;

/// The facts that decided, for the audit trail.
pub(super) fn cause(decision: &Decision, transition: &Transition, other: Option<&str>) -> String {
    let listed = decision.blockers.iter().take(LISTED).map(|blocker| {
        let pod = &blocker.pod;
        json!({ "pod": format!("{}/{}", pod.namespace, pod.name), "why": blocker.why.as_str() })
    });
    let cause = json!({
        "reason": transition.reason.code(),
        "text": text(decision, transition, other),
        "pods": listed.collect::<Vec<_>>(),
        "pods_left": decision.blockers.len(),
        "passed_over": decision.passed_over.len(),
    });
    cause.to_string()
}

/// A transition for people.
fn text(decision: &Decision, transition: &Transition, other: Option<&str>) -> String {
    // A failure is that of the pods that are over their time, and of no other.
    let has_failed = matches!(transition.to, DrainStatus::Failed(_));
    let is_told = |blocker: &&Blocker| !has_failed || decision.overdue.contains(&blocker.pod);
    let pods = pods(&decision.blockers.iter().filter(is_told).collect::<Vec<_>>());
    match (&transition.reason, &transition.to) {
        (Reason::KeptWaiting | Reason::OtherDrainer, DrainStatus::Waiting(wait)) => match wait {
            DrainWait::Paused => format!("the node is paused (annotation {})", names::PAUSE.text),
            DrainWait::FirstAction { until } => {
                format!("drains were just switched on: none begins before {until}")
            }
            DrainWait::DryRun => format!("dry run; to go: {pods}"),
            DrainWait::OtherDrainer => {
                let other = other.unwrap_or("its name is not known");
                format!("another node-drainer runs in the cluster: {other}")
            }
            DrainWait::OwnNode => {
                "the controller runs on this node: it is drained last, and alone".to_owned()
            }
        },
        (Reason::Wanted | Reason::KeptWaiting | Reason::OtherDrainer, _) => {
            format!("to go: {pods}")
        }
        (Reason::CameLate, _) => format!("came while the node was taken out: {pods}"),
        (Reason::NothingToDo, _) => "no pod that counts is on the node".to_owned(),
        (Reason::Empty, _) if !decision.passed_over.is_empty() => {
            let passed = counted(decision.passed_over.len() as u64, "pod");
            format!("the repair ends {passed} that did not go; no other is left")
        }
        (Reason::Empty, _) => "no pod that counts is left".to_owned(),
        (Reason::Deadline, DrainStatus::Failed(failed)) => match failed.why {
            DrainFailure::Immediate => format!("left at the deadline of evictions: {pods}"),
            DrainFailure::Deleted => format!("deleted, and still there: {pods}"),
            DrainFailure::Completion => format!("still running at the deadline: {pods}"),
        },
        (Reason::Deadline, _) => format!("left at the deadline: {pods}"),
        (Reason::GoesOn, _) => format!("nothing is left that is over its time; to go: {pods}"),
        (Reason::NotWanted, _) => "no open fault wants the node empty".to_owned(),
        (Reason::Off, _) => "drains are switched off".to_owned(),
    }
}

/// How many pods, and some of their names; a budget's words with them.
fn pods(blockers: &[&Blocker]) -> String {
    let count = counted(blockers.len() as u64, "pod");
    if blockers.is_empty() {
        return count;
    }
    let named = blockers.iter().take(NAMED).map(|blocker| {
        let pod = format!("{}/{}", blocker.pod.namespace, blocker.pod.name);
        match &blocker.why {
            BlockedBy::Budget(why) | BlockedBy::Failed(why) => format!("{pod} ({why})"),
            BlockedBy::Asked
            | BlockedBy::Terminating
            | BlockedBy::Completion
            | BlockedBy::Timeout
            | BlockedBy::Came => pod,
        }
    });
    let mut named = named.collect::<Vec<_>>().join(", ");
    if blockers.len() > NAMED {
        named.push_str(", …");
    }
    format!("{count} ({named})")
}

/// What a stored transition means.
pub(super) fn moved(
    metrics: &ControllerMetrics,
    incident: &Incident,
    decision: &Decision,
    transition: &Transition,
    now: Timestamp,
) {
    let node = incident.node.as_str();
    let (id, to) = (incident.id.as_str(), transition.to.as_str());
    let from = transition.from.as_ref().map_or("", DrainStatus::as_str);
    let (reason, why) = (transition.reason.code(), text(decision, transition, None));
    let ended = |status: &str| {
        let label = DrainLabel {
            drain_status: status.to_owned(),
            node: node.to_owned(),
        };
        metrics.drains_processed.get_or_create(&label).inc();
    };
    match &transition.to {
        DrainStatus::Failed(failure) => {
            ended("failed");
            error!(
                code = "drain_failed",
                node,
                incident = id,
                failure = failure.why.as_str(),
                "the drain of {node} failed: {why}. Let them go, by their budgets, finalizers or \
                 kubelet, or delete them: the drain goes on by itself when they are gone; or cancel \
                 the incident by uncordoning the node"
            );
            return;
        }
        DrainStatus::Drained if transition.reason == Reason::NothingToDo => ended("skipped"),
        DrainStatus::Drained => {
            ended("drained");
            let spent = now.duration_since(incident.since).as_secs_f64();
            metrics.drain_seconds.observe(spent.max(0.0));
        }
        DrainStatus::Waiting(_) | DrainStatus::Draining(_) | DrainStatus::Cancelled => {}
    }
    info!(node, incident = id, from, to, reason, why, "drain changed");
}

/// A drain ended before it was done.
pub(super) fn cancelled(metrics: &ControllerMetrics, node: &NodeName, checks: &BTreeSet<String>) {
    let label = DrainLabel {
        drain_status: "cancelled".to_owned(),
        node: node.to_string(),
    };
    metrics.drains_processed.get_or_create(&label).inc();
    for check in checks {
        let label = NodeCheckLabel {
            node: node.to_string(),
            check_name: check.clone(),
        };
        metrics.drains_cancelled.get_or_create(&label).inc();
    }
    info!(node = node.as_str(), "a drain ended before it was done");
}

/// Whether pods wait for the time at which they are deleted; none: the drain is over.
pub(super) fn waits_for_timeout(metrics: &ControllerMetrics, node: &NodeName, is: Option<bool>) {
    let label = NodeLabel {
        node: node.to_string(),
    };
    match is {
        Some(is) => drop(
            metrics
                .drain_waiting_for_timeout
                .get_or_create(&label)
                .set(i64::from(is)),
        ),
        None => drop(metrics.drain_waiting_for_timeout.remove(&label)),
    }
}

/// What became of a call.
pub(super) fn called(
    metrics: &ControllerMetrics,
    order: &Order,
    outcome: &Outcome,
    code: &'static str,
) {
    let (call, what) = match order.ask.how {
        How::Evict(_) => ("evict", "eviction"),
        How::Delete => ("delete", "deletion"),
    };
    let label = PodCallLabel {
        call: call.to_owned(),
        outcome: code.to_owned(),
    };
    metrics.drain_pod_calls.get_or_create(&label).inc();
    let (node, pod) = (order.node.as_str(), &order.ask.pod);
    let pod = format!("{}/{}", pod.namespace, pod.name);
    let count = |code: &str| errors(metrics, &order.node, code);
    match outcome {
        Outcome::Accepted => info!(node, pod, code, "{what} of a pod"),
        // The reference's name.
        Outcome::Budget { why, .. } => {
            count("PDB_blocking_eviction_error");
            info!(
                node,
                pod, why, "a disruption budget does not allow the eviction now"
            );
        }
        Outcome::Failed(why) => {
            let of_reference = match order.ask.how {
                How::Evict(_) => "immediate_eviction_error",
                How::Delete => "timeout_eviction_error",
            };
            count(of_reference);
            warn!(
                code,
                node, pod, why, "a pod could not be asked to go; it is tried again"
            );
        }
        Outcome::NotMade => {}
    }
}

pub(super) fn blocked(node: &NodeName, by: Blocked) {
    info!(
        node = node.as_str(),
        by = by.code(),
        "a pod is not asked to go"
    );
}

pub(super) fn failed(metrics: &ControllerMetrics, node: &NodeName, code: &'static str, why: &str) {
    errors(metrics, node, code);
    warn!(
        code,
        node = node.as_str(),
        why,
        "a drain is not decided about; it is tried again"
    );
}

fn errors(metrics: &ControllerMetrics, node: &NodeName, code: &str) {
    let label = NodeErrorLabel {
        error_type: code.to_owned(),
        node: node.to_string(),
    };
    metrics.drain_errors.get_or_create(&label).inc();
}

#[cfg(test)]
mod tests {
    use decide::drain::PodRef;
    use health_event::incident::{DrainDeadlines, DrainFailed};

    use super::*;

    fn blocker(name: &str, why: BlockedBy) -> Blocker {
        Blocker {
            pod: PodRef {
                namespace: "train".to_owned(),
                name: name.to_owned(),
                uid: name.to_owned(),
            },
            why,
            until: None,
        }
    }

    #[test]
    fn a_failure_names_some_pods_and_what_a_budget_said() {
        let mut decision = Decision {
            blockers: vec![blocker("a", BlockedBy::Budget("needs 2".to_owned()))],
            ..Decision::default()
        };
        let other = blocker("later", BlockedBy::Completion);
        decision.overdue = vec![decision.blockers[0].pod.clone()];
        decision.blockers.push(other);
        let deadlines = DrainDeadlines {
            immediate: Timestamp::UNIX_EPOCH,
            delete: Timestamp::MAX,
            completion: None,
        };
        let why = DrainFailure::Immediate;
        let failed = Transition {
            from: None,
            to: DrainStatus::Failed(DrainFailed { why, deadlines }),
            reason: Reason::Deadline,
        };
        assert_eq!(
            text(&decision, &failed, None),
            "left at the deadline of evictions: 1 pod (train/a (needs 2))"
        );
        let many = (0..500).map(|n| blocker(&format!("p{n}"), BlockedBy::Completion));
        decision.blockers = many.collect();
        let all = decision.blockers.iter();
        decision.overdue = all.map(|blocker| blocker.pod.clone()).collect();
        let said = text(&decision, &failed, None);
        assert!(
            said.contains(": 500 pods (train/p0, ") && said.ends_with("train/p4, …)"),
            "{said}"
        );
        let cause = cause(&decision, &failed, None);
        assert!(
            cause.contains("\"pods_left\":500") && cause.len() < 8_000,
            "{cause}"
        );
    }
}
