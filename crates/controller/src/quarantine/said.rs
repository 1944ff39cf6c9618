//! What the module says about its work: log lines and numbers, from the decisions.

use std::collections::BTreeSet;

use decide::breaker::{BreakerState, Config};
use decide::quarantine::{Decision, Note, Transition};
use decide::rules::EvaluationError;
use health_event::NodeName;
use health_event::incident::{Bound, Incident, QuarantineStatus, Taint, Withheld};
use jiff::Timestamp;
use telemetry::ControllerMetrics;
use telemetry::events::{
    BreakerTripped, NodeQuarantined, NodeReleased, NodeWithheld, NodeWriteFailed, TaintRef,
    set_breaker, set_breaker_state,
};
use telemetry::metrics::{BoundLabel, ErrorLabel, PoolLabel, RuleLabel};
use tracing::{debug, info};

use super::apply::Blocked;

pub(super) fn failed(metrics: &ControllerMetrics, node: &NodeName, code: &'static str, why: &str) {
    NodeWriteFailed {
        node: node.as_str(),
        code,
        why,
    }
    .emit(metrics);
}

pub(super) fn blocked(metrics: &ControllerMetrics, node: &NodeName, by: Blocked) {
    let label = ErrorLabel {
        error_type: by.code().into(),
    };
    metrics.quarantine_errors.get_or_create(&label).inc();
    info!(
        node = node.as_str(),
        by = by.code(),
        "a node write is not started"
    );
}

pub(super) fn adopted(node: &NodeName) {
    info!(
        node = node.as_str(),
        "an incident that the store does not know was rebuilt from its node"
    );
}

pub(super) fn rule_errors(metrics: &ControllerMetrics, errors: &[EvaluationError]) {
    for error in errors {
        let label = RuleLabel {
            ruleset: error.rule_set.clone(),
            status: "failed".into(),
        };
        metrics.rule_errors.get_or_create(&label).inc();
        debug!(
            rule_set = error.rule_set,
            why = error.message,
            "a rule can't be evaluated"
        );
    }
}

pub(super) fn held(node: &NodeName) {
    info!(
        node = node.as_str(),
        "a person had given the node back before the store was lost: what is open there is held"
    );
}

/// The breaker's numbers for one pool; tells of a trip once, when it is new.
pub(super) fn breaker(
    metrics: &ControllerMetrics,
    state: &BreakerState,
    config: &Config,
    pool: &str,
    size: usize,
    was_tripped: bool,
) {
    set_breaker_state(metrics, state.pools.values().any(|p| p.tripped.is_some()));
    let Some(of_pool) = state.pools.get(pool) else {
        return;
    };
    let bounds = [
        (Bound::Level, of_pool.out.len(), config.level_bound(size)),
        (Bound::Rate, of_pool.newly.len(), config.rate_bound(size)),
    ];
    for (bound, count, limit) in bounds {
        let label = BoundLabel {
            pool: pool.into(),
            bound: bound.as_str().into(),
        };
        metrics
            .breaker_pool_utilization
            .get_or_create(&label)
            .set(share(count, limit));
        if bound == Bound::Rate {
            metrics.breaker_utilization.set(share(count, size));
        }
    }
    let withheld = i64::try_from(of_pool.waiting.len()).unwrap_or(i64::MAX);
    metrics
        .nodes_withheld
        .get_or_create(&PoolLabel { pool: pool.into() })
        .set(withheld);
    match &of_pool.tripped {
        Some(trip) if !was_tripped => {
            let of_bound = bounds.iter().find(|(bound, _, _)| *bound == trip.bound);
            BreakerTripped {
                pool,
                bound: trip.bound.as_str(),
                count: of_bound.map_or(trip.counted, |(_, count, _)| *count),
                limit: of_bound.map_or(trip.counted, |(_, _, limit)| *limit),
                rule: &trip.largest.rule,
                check: &trip.largest.check,
            }
            .emit(metrics);
        }
        tripped => set_breaker(metrics, pool, tripped.is_some()),
    }
}

fn share(count: usize, of: usize) -> f64 {
    let number = |n: usize| u32::try_from(n).map_or_else(|_| f64::from(u32::MAX), f64::from);
    if of == 0 {
        0.0
    } else {
        number(count) / number(of)
    }
}

/// What a stored decision means for people.
pub(super) fn decision(
    metrics: &ControllerMetrics,
    node: &NodeName,
    before: Option<&Incident>,
    decision: &Decision,
    now: Timestamp,
) {
    for note in &decision.notes {
        noted(node, note);
    }
    let (Some(incident), Some(transition)) = (&decision.incident, &decision.transition) else {
        return;
    };
    metrics.quarantine_events_processed.inc();
    debug!(
        node = node.as_str(),
        incident = incident.id.as_str(),
        from = transition
            .from
            .as_ref()
            .map_or("", QuarantineStatus::as_str),
        to = transition.to.as_str(),
        reason = transition.reason.code(),
        "incident changed"
    );
    changed(metrics, node, before, incident, transition, now);
}

fn changed(
    metrics: &ControllerMetrics,
    node: &NodeName,
    before: Option<&Incident>,
    incident: &Incident,
    transition: &Transition,
    now: Timestamp,
) {
    let (node, id) = (node.as_str(), incident.id.as_str());
    let was = before.map(|before| &before.quarantine);
    match &incident.quarantine {
        QuarantineStatus::Quarantined if was.is_some_and(|was| *was != incident.quarantine) => {
            let rules: Vec<&str> = incident.marks.reasons.iter().map(String::as_str).collect();
            let since = now.duration_since(incident.opened_at).as_secs_f64();
            NodeQuarantined {
                node,
                incident: id,
                rules: &rules.join(","),
                cordoned: incident.marks.cordon && !incident.marks.cordon_pre_existing,
                taints: &refs(&incident.marks.taints, &incident.marks.taints_pre_existing),
                after_seconds: Some(since),
            }
            .emit(metrics);
        }
        QuarantineStatus::Closed(reason) if was.is_some_and(QuarantineStatus::is_out) => {
            let marks = before.map_or(&incident.marks, |before| &before.marks);
            NodeReleased {
                node,
                incident: id,
                reason: reason.as_str(),
                uncordoned: marks.cordon && !marks.cordon_pre_existing,
                taints: &refs(&marks.taints, &marks.taints_pre_existing),
            }
            .emit(metrics);
        }
        QuarantineStatus::Withheld(why) if was != Some(&transition.to) => {
            let reason = match why {
                Withheld::Breaker(_) => "breaker",
                Withheld::FirstAction { .. } => "first_action",
                Withheld::Pace => "pace",
            };
            NodeWithheld {
                node,
                incident: id,
                pool: &incident.pool,
                reason,
            }
            .emit();
        }
        QuarantineStatus::Quarantined
        | QuarantineStatus::Closed(_)
        | QuarantineStatus::Withheld(_)
        | QuarantineStatus::Observed
        | QuarantineStatus::Applying
        | QuarantineStatus::Releasing(_) => {}
    }
}

fn refs<'a>(taints: &'a BTreeSet<Taint>, without: &BTreeSet<Taint>) -> Vec<TaintRef<'a>> {
    let ours = taints.iter().filter(|taint| !without.contains(*taint));
    ours.map(|taint| (taint.key.as_str(), taint.effect.as_str()))
        .collect()
}

fn noted(on: &NodeName, what: &Note) {
    let node = on.as_str();
    match what {
        Note::Blocked { step, by } => debug!(node, step, by, "a step is not taken"),
        Note::Suppressed(count) => debug!(node, count, "a person's hold suppresses faults"),
        Note::OtherMachineOrBoot(count) => {
            debug!(
                node,
                count, "faults of another machine or an earlier boot have no effect"
            );
        }
        Note::StrayMarks(why) => {
            info!(node, why = ?why, "marks of ours that belong to no incident are taken off");
        }
        Note::CooperatorUncordon(key) => {
            info!(
                node,
                key, "a co-operating controller uncordoned a node that is out"
            );
        }
        Note::RequestRefused(why) => info!(node, why, "a person's request is refused"),
    }
}
