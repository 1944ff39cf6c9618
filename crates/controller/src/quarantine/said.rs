//! What the module says about its work: log lines and numbers, from the decisions.

use std::collections::{BTreeMap, BTreeSet};

use decide::breaker::{BreakerState, Config, PoolState};
use decide::quarantine::{Decision, Note, Reason, Transition};
use decide::rules::{EvaluationError, RuleSets};
use health_event::incident::{Bound, CloseReason, Incident, Marks, QuarantineStatus, Taint};
use health_event::{NodeName, RecommendedAction};
use jiff::Timestamp;
use telemetry::ControllerMetrics;
use telemetry::events::{
    BreakerReset, BreakerTripped, MarksFollowed, NodeQuarantined, NodeReleased, NodeWithheld,
    NodeWriteFailed, TaintRef, set_breaker, set_breaker_state, set_quarantined,
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

pub(super) fn adopted(metrics: &ControllerMetrics, node: &NodeName) {
    set_quarantined(metrics, node.as_str(), true);
    info!(
        node = node.as_str(),
        "an incident that the store does not know was rebuilt from its node"
    );
}

/// The level at start: nodes that are out already.
pub(super) fn out_at_start(metrics: &ControllerMetrics, incidents: &[Incident]) {
    for incident in incidents {
        set_quarantined(metrics, incident.node.as_str(), is_counted_out(incident));
    }
}

/// Whether the node was told of as taken out: it carried our marks. While the first write is under
/// way nobody knows; while marks follow their faults the node stays out.
fn is_counted_out(incident: &Incident) -> bool {
    incident.quarantine.is_out() && incident.marks_observed
}

/// Every rule set that was evaluated, and which of them matched.
pub(super) fn evaluated(metrics: &ControllerMetrics, rules: &RuleSets, matched: &BTreeSet<String>) {
    for set in rules.sets().iter().filter(|set| set.config.enabled) {
        let passed = matched.contains(&set.config.name);
        let label = RuleLabel {
            ruleset: set.config.name.clone(),
            status: if passed { "passed" } else { "failed" }.into(),
        };
        metrics.ruleset_evaluations.get_or_create(&label).inc();
    }
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

/// The breaker's levels of all pools (name, nodes now): at start, and whenever one may have
/// changed, by an end of the window too. An automatic resume is told of here.
pub(super) fn breaker_levels(
    metrics: &ControllerMetrics,
    state: &BreakerState,
    config: &Config,
    pools: &[(&str, usize)],
) {
    let mut largest: f64 = 0.0;
    for (pool, size) in pools {
        let label = PoolLabel {
            pool: (*pool).into(),
        };
        let was_tripped = metrics.breaker_pool_tripped.get_or_create(&label).get() == 1;
        let of_pool = state.pools.get(*pool);
        if was_tripped && config.auto_resume && of_pool.is_none_or(|p| p.tripped.is_none()) {
            BreakerReset {
                pool,
                actor: "auto_resume",
                dropped_withheld: false,
            }
            .emit(metrics);
        }
        let nothing = PoolState::default();
        let of_pool = of_pool.unwrap_or(&nothing);
        pool_levels(metrics, config, pool, *size, of_pool);
        set_breaker(metrics, pool, of_pool.tripped.is_some());
        largest = largest.max(share(of_pool.newly.len(), *size));
    }
    metrics.breaker_utilization.set(largest);
    set_breaker_state(metrics, state.pools.values().any(|p| p.tripped.is_some()));
}

/// Sets what one pool counts against its bounds, and how many nodes of it wait.
fn pool_levels(
    metrics: &ControllerMetrics,
    config: &Config,
    pool: &str,
    size: usize,
    of_pool: &PoolState,
) {
    for (bound, count, limit) in bounds(of_pool, config, size) {
        let label = BoundLabel {
            pool: pool.into(),
            bound: bound.as_str().into(),
        };
        metrics
            .breaker_pool_utilization
            .get_or_create(&label)
            .set(share(count, limit));
    }
    let withheld = i64::try_from(of_pool.waiting.len()).unwrap_or(i64::MAX);
    metrics
        .nodes_withheld
        .get_or_create(&PoolLabel { pool: pool.into() })
        .set(withheld);
}

/// Each bound with what counts against it, and the bound, in nodes.
fn bounds(of_pool: &PoolState, config: &Config, size: usize) -> [(Bound, usize, usize); 2] {
    [
        (Bound::Level, of_pool.out.len(), config.level_bound(size)),
        (Bound::Rate, of_pool.newly.len(), config.rate_bound(size)),
    ]
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
    pool_levels(metrics, config, pool, size, of_pool);
    let bounds = bounds(of_pool, config, size);
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

/// What a stored decision means for people. `generated_at` answers when the event of a position
/// was made, as long as it is stored.
pub(super) fn decision(
    metrics: &ControllerMetrics,
    node: &NodeName,
    before: Option<&Incident>,
    decision: &Decision,
    generated_at: &dyn Fn(u64) -> Option<Timestamp>,
    now: Timestamp,
) {
    for note in &decision.notes {
        noted(node, note);
    }
    let (Some(incident), Some(transition)) = (&decision.incident, &decision.transition) else {
        return;
    };
    if is_of_events(transition) {
        metrics.quarantine_events_processed.inc();
    }
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
    let was = before.map(|before| &before.quarantine);
    // The incident as it was, if its node was told of as taken out.
    let out = before.filter(|before| is_counted_out(before));
    match &incident.quarantine {
        QuarantineStatus::Quarantined if out.is_none() && incident.marks_observed => {
            quarantined(metrics, incident, generated_at, now);
        }
        QuarantineStatus::Applying => {
            if let Some(out) = out {
                followed(metrics, out, incident, &transition.reason);
            }
        }
        // What was planned is given up.
        QuarantineStatus::Quarantined => {
            if let Some(out) = out.filter(|out| out.marks != incident.marks) {
                followed(metrics, out, incident, &transition.reason);
            }
        }
        QuarantineStatus::Closed(reason) => {
            if let Some(out) = out {
                released(metrics, out, *reason, generated_at, now);
            }
        }
        // Somebody took our marks off while they were to change, and they are not put on again.
        QuarantineStatus::Observed if out.is_some() => {
            set_quarantined(metrics, node.as_str(), false);
        }
        QuarantineStatus::Withheld(why) if was != Some(&transition.to) => {
            NodeWithheld {
                node: node.as_str(),
                incident: incident.id.as_str(),
                pool: &incident.pool,
                reason: why.as_str(),
            }
            .emit();
        }
        QuarantineStatus::Withheld(_)
        | QuarantineStatus::Observed
        | QuarantineStatus::Releasing(_) => {}
    }
}

/// Whether events decided, and neither a person, nor the node, nor a turn that came.
fn is_of_events(transition: &Transition) -> bool {
    match transition.reason {
        Reason::FaultMatched { .. }
        | Reason::MarksChange
        | Reason::FaultsChange
        | Reason::Recovered => true,
        Reason::DryRun
        | Reason::Protected
        | Reason::Off
        | Reason::OtherQuarantine
        | Reason::BreakerWithholds(_)
        | Reason::FirstActionDelay
        | Reason::Paced => transition.from.is_none(),
        Reason::PersonHold(_)
        | Reason::PersonCancel(_)
        | Reason::HoldReleased(_)
        | Reason::RulesGone
        | Reason::PersonDrop(_)
        | Reason::Permitted
        | Reason::ReplannedWrite
        | Reason::MarksRestored
        | Reason::WriteSeen
        | Reason::ManualUncordon
        | Reason::ManualUntaint
        | Reason::NodeGone
        | Reason::NodeReplaced
        | Reason::CooperatorUncordon(_)
        | Reason::NeedsOperator => false,
    }
}

fn quarantined(
    metrics: &ControllerMetrics,
    incident: &Incident,
    generated_at: &dyn Fn(u64) -> Option<Timestamp>,
    now: Timestamp,
) {
    let marks = &incident.marks;
    let rules: Vec<&str> = marks.reasons.iter().map(String::as_str).collect();
    let since = generated_at(incident.opened_seq).unwrap_or(incident.opened_at);
    NodeQuarantined {
        node: incident.node.as_str(),
        incident: incident.id.as_str(),
        rules: &rules.join(","),
        cordoned: marks.cordon && !marks.cordon_pre_existing,
        taints: &refs(&marks.taints, &marks.taints_pre_existing),
        after_seconds: Some(seconds(since, now)),
    }
    .emit(metrics);
}

/// The marks of a node that is out follow its faults: only what comes and goes counts. It counts
/// with the plan, so that a plan made anew before it is written evens out.
fn followed(metrics: &ControllerMetrics, before: &Incident, after: &Incident, reason: &Reason) {
    let (old, new) = (&before.marks, &after.marks);
    let cordons = |marks: &Marks| marks.cordon && !marks.cordon_pre_existing;
    let by_others = matches!(reason, Reason::CooperatorUncordon(_));
    let put = refs(&new.taints, &(&old.taints | &new.taints_pre_existing));
    let taken = refs(&old.taints, &(&new.taints | &old.taints_pre_existing));
    MarksFollowed {
        node: after.node.as_str(),
        incident: after.id.as_str(),
        reason: reason.code(),
        cordoned: cordons(new) && !old.cordon,
        uncordoned: cordons(old) && !new.cordon && !by_others,
        taints_put: &put,
        taints_taken: &taken,
    }
    .emit(metrics);
}

/// `before` has the marks that were on the node until now.
fn released(
    metrics: &ControllerMetrics,
    before: &Incident,
    reason: CloseReason,
    generated_at: &dyn Fn(u64) -> Option<Timestamp>,
    now: Timestamp,
) {
    let marks = &before.marks;
    let ours = marks.cordon && !marks.cordon_pre_existing;
    let (uncordoned, taints) = match reason {
        CloseReason::Recovered | CloseReason::ManualUntaint | CloseReason::CancelledByPerson => {
            (ours, refs(&marks.taints, &marks.taints_pre_existing))
        }
        // The person's write, not ours.
        CloseReason::ManualUncordon => (false, refs(&marks.taints, &marks.taints_pre_existing)),
        // Nothing was written: the node is gone.
        CloseReason::NodeDeleted => (false, Vec::new()),
    };
    let gone = reason == CloseReason::NodeDeleted;
    let events = if gone {
        BTreeMap::new()
    } else {
        events_of(before)
    };
    let remediated = events.iter().filter_map(|(seq, action)| {
        let since = seconds(generated_at(*seq)?, now);
        Some((action.name(), since))
    });
    NodeReleased {
        node: before.node.as_str(),
        incident: before.id.as_str(),
        reason: reason.as_str(),
        uncordoned,
        taints: &taints,
        remediated: &remediated.collect::<Vec<_>>(),
    }
    .emit(metrics);
}

/// The events that held a node, each once; of adopted faults none is known.
fn events_of(incident: &Incident) -> BTreeMap<u64, RecommendedAction> {
    let known = incident.faults.iter().filter(|fault| fault.seq != 0);
    known.map(|fault| (fault.seq, fault.action)).collect()
}

fn seconds(since: Timestamp, now: Timestamp) -> f64 {
    now.duration_since(since).as_secs_f64().max(0.0)
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

#[cfg(test)]
#[path = "said_tests.rs"]
mod tests;
