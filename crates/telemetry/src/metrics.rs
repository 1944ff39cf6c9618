//! The controller's numbers: one struct, one field a metric.
//!
//! `fault_quarantine_*`, `k8s_platform_connector_*` and `platform_connector_*` are the
//! reference's names with the reference's labels, so that its dashboards and alerts go on working;
//! `warden_*` are ours. prometheus-client adds `_total` to counters.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
pub use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// Default buckets of the Prometheus clients, in seconds; the reference's.
const DEFAULT_SECONDS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

macro_rules! labels {
    ($(#[$doc:meta] $name:ident { $($field:ident),+ })+) => {$(
        #[$doc]
        #[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
        #[expect(missing_docs, reason = "a label's name is its meaning")]
        pub struct $name { $(pub $field: String),+ }

        impl LabelNames for $name {
            const NAMES: &'static [&'static str] = &[$(stringify!($field)),+];
        }
    )+};
}

/// Names of a set of labels, in the order in which they are written.
pub trait LabelNames {
    /// The names.
    const NAMES: &'static [&'static str];
}

impl LabelNames for Counter {
    const NAMES: &'static [&'static str] = &[];
}

impl<N, A> LabelNames for Gauge<N, A> {
    const NAMES: &'static [&'static str] = &[];
}

impl LabelNames for Histogram {
    const NAMES: &'static [&'static str] = &[];
}

impl<L: LabelNames, M, C> LabelNames for Family<L, M, C> {
    const NAMES: &'static [&'static str] = L::NAMES;
}

labels! {
    /// A node of the cluster.
    NodeLabel { node }
    /// A static error code.
    ErrorLabel { error_type }
    /// A taint of ours.
    TaintLabel { taint_key, taint_effect }
    /// A rule set and `passed` or `failed`.
    RuleLabel { ruleset, status }
    /// A named state.
    StateLabel { state }
    /// A pool of the breaker and one of its bounds.
    BoundLabel { pool, bound }
    /// A pool of the breaker.
    PoolLabel { pool }
    /// `success` or `failed`.
    StatusLabel { status }
    /// An Event write: node, `create` or `update`, `success` or `failed`.
    NodeEventLabel { node_name, operation, status }
    /// A refusal: static code, and whether it was `refused` or only counted in `audit`.
    RefusalLabel { code, mode }
    /// A static outcome.
    OutcomeLabel { outcome }
    /// An action that an event recommends, by its name on the wire.
    ActionLabel { recommended_action }
}

/// Durations by recommended action.
pub type ActionSeconds = Family<ActionLabel, Histogram, fn() -> Histogram>;

/// The reference's buckets: 10 s to four days.
fn remediation_seconds() -> Histogram {
    Histogram::new(exponential_buckets(10.0, 1.5, 27))
}

/// A floating-point gauge.
pub type GaugeF64 = Gauge<f64, AtomicU64>;

/// All numbers of the controller. Fields are named as their metrics.
#[derive(Debug)]
#[expect(
    missing_docs,
    reason = "the help text at registration is the documentation"
)]
pub struct ControllerMetrics {
    register: Register,

    pub platform_connector_health_events_received: Counter,
    pub ingest_refused: Family<RefusalLabel, Counter>,
    pub ingest_stored: Counter,
    pub ingest_acknowledge_seconds: Histogram,
    pub token_reviews: Family<OutcomeLabel, Counter>,
    pub ingest_connections: Gauge,
    pub certificate_not_after: Gauge,

    pub reports: Counter,
    pub report_lists: Family<OutcomeLabel, Counter>,
    pub agents_silent: Gauge,
    pub agents_missing: Gauge,
    pub pool_silent: Family<PoolLabel, Gauge>,

    pub node_condition_updates: Family<StatusLabel, Counter>,
    pub node_condition_update_ms: Histogram,
    pub node_event_operations: Family<NodeEventLabel, Counter>,
    pub node_event_ms: Histogram,

    pub quarantine_events_received: Counter,
    pub quarantine_events_processed: Counter,
    pub quarantine_errors: Family<ErrorLabel, Counter>,
    pub nodes_quarantined: Family<NodeLabel, Counter>,
    pub nodes_unquarantined: Family<NodeLabel, Counter>,
    pub nodes_manually_uncordoned: Family<NodeLabel, Counter>,
    pub nodes_manually_untainted: Family<NodeLabel, Counter>,
    pub current_quarantined_nodes: Family<NodeLabel, Gauge>,
    pub taints_applied: Family<TaintLabel, Counter>,
    pub taints_removed: Family<TaintLabel, Counter>,
    pub cordons_applied: Counter,
    pub cordons_removed: Counter,
    pub ruleset_evaluations: Family<RuleLabel, Counter>,
    pub event_backlog: Gauge,
    pub breaker_state: Family<StateLabel, Gauge>,
    pub breaker_utilization: GaugeF64,
    pub event_handling_seconds: Histogram,
    pub node_quarantine_seconds: Histogram,
    pub node_remediation_seconds: ActionSeconds,

    pub breaker_trips: Family<BoundLabel, Counter>,
    pub breaker_pool_tripped: Family<PoolLabel, Gauge>,
    pub breaker_pool_utilization: Family<BoundLabel, GaugeF64>,
    pub nodes_withheld: Family<PoolLabel, Gauge>,
    pub other_quarantine: Gauge,
    pub rule_errors: Family<RuleLabel, Counter>,
    pub watch_restarts: Counter,
    pub leader: Gauge,
}

impl Default for ControllerMetrics {
    fn default() -> Self {
        Self::new()
    }
}

impl ControllerMetrics {
    /// All numbers at nothing, registered.
    pub fn new() -> Self {
        let mut r = Register::default();
        let seconds = || Histogram::new(DEFAULT_SECONDS);
        // The reference's quarantine histograms end at 10 s although its own scale test shows 300.
        let long_seconds = || Histogram::new(exponential_buckets(0.005, 2.0, 18));
        let milliseconds = || Histogram::new(exponential_buckets(10.0, 2.0, 12));
        let ingest = IngestMetrics::register(&mut r, seconds());
        let quarantine = QuarantineMetrics::register(&mut r);
        let times = QuarantineTimes::register(&mut r, long_seconds(), long_seconds());
        let breaker = BreakerMetrics::register(&mut r);
        let agents = AgentMetrics::register(&mut r);
        Self {
            node_condition_updates: add(
                &mut r,
                "k8s_platform_connector_node_condition_update",
                "Node condition writes",
                Family::default(),
            ),
            node_condition_update_ms: add(
                &mut r,
                "k8s_platform_connector_node_condition_update_duration_milliseconds",
                "Time of a node condition write",
                milliseconds(),
            ),
            node_event_operations: add(
                &mut r,
                "k8s_platform_connector_node_event_operations",
                "Writes of Kubernetes Events about nodes",
                Family::default(),
            ),
            node_event_ms: add(
                &mut r,
                "k8s_platform_connector_node_event_update_create_duration_milliseconds",
                "Time of an Event write",
                milliseconds(),
            ),
            watch_restarts: add(
                &mut r,
                "warden_watch_restarts",
                "Node watches that the API server ended and we resumed",
                Counter::default(),
            ),
            leader: add(
                &mut r,
                "warden_leader",
                "Whether this instance holds the lease",
                Gauge::default(),
            ),
            platform_connector_health_events_received: ingest.received,
            ingest_refused: ingest.refused,
            ingest_stored: ingest.stored,
            ingest_acknowledge_seconds: ingest.acknowledge,
            token_reviews: ingest.token_reviews,
            ingest_connections: ingest.connections,
            certificate_not_after: ingest.not_after,
            reports: agents.reports,
            report_lists: agents.lists,
            agents_silent: agents.silent,
            agents_missing: agents.missing,
            pool_silent: agents.pool_silent,
            quarantine_events_received: quarantine.received,
            quarantine_events_processed: quarantine.processed,
            quarantine_errors: quarantine.errors,
            nodes_quarantined: quarantine.quarantined,
            nodes_unquarantined: quarantine.unquarantined,
            nodes_manually_uncordoned: quarantine.uncordoned,
            nodes_manually_untainted: quarantine.untainted,
            current_quarantined_nodes: quarantine.current,
            taints_applied: quarantine.taints_applied,
            taints_removed: quarantine.taints_removed,
            cordons_applied: quarantine.cordons_applied,
            cordons_removed: quarantine.cordons_removed,
            ruleset_evaluations: quarantine.evaluations,
            event_backlog: quarantine.backlog,
            event_handling_seconds: times.handling,
            node_quarantine_seconds: times.duration,
            node_remediation_seconds: times.remediation,
            breaker_state: breaker.state,
            breaker_utilization: breaker.utilization,
            breaker_trips: breaker.trips,
            breaker_pool_tripped: breaker.tripped,
            breaker_pool_utilization: breaker.pool_utilization,
            nodes_withheld: breaker.withheld,
            other_quarantine: breaker.other_quarantine,
            rule_errors: breaker.rule_errors,
            register: r,
        }
    }

    /// The page of `/metrics`, in the OpenMetrics text format.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        // Writing to a string can't fail.
        let _ = encode(&mut text, &self.register.registry);
        text
    }

    /// All metrics, in the order of their registration; families too that have no series yet.
    pub fn described(&self) -> &[Described] {
        &self.register.described
    }
}

/// What `/metrics` says of a metric, also while it has no series.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// Name of its series, without the suffixes of a histogram.
    pub name: String,
    /// `counter`, `gauge` or `histogram`.
    pub kind: String,
    /// Names of its labels; none if it has one series.
    pub labels: &'static [&'static str],
    /// What it counts, without a full stop.
    pub help: &'static str,
}

/// The registry, and a list of what is in it.
#[derive(Debug, Default)]
struct Register {
    registry: Registry,
    described: Vec<Described>,
}

fn add<M>(r: &mut Register, name: &'static str, help: &'static str, metric: M) -> M
where
    M: prometheus_client::registry::Metric + LabelNames + Clone,
{
    let kind = metric.metric_type().as_str().to_owned();
    let suffix = if kind == "counter" { "_total" } else { "" };
    r.described.push(Described {
        name: format!("{name}{suffix}"),
        kind,
        labels: M::NAMES,
        help,
    });
    r.registry.register(name, help, metric.clone());
    metric
}

struct IngestMetrics {
    received: Counter,
    refused: Family<RefusalLabel, Counter>,
    stored: Counter,
    acknowledge: Histogram,
    token_reviews: Family<OutcomeLabel, Counter>,
    connections: Gauge,
    not_after: Gauge,
}

impl IngestMetrics {
    fn register(r: &mut Register, acknowledge: Histogram) -> Self {
        Self {
            received: add(
                r,
                "platform_connector_health_events_received",
                "Health events received",
                Counter::default(),
            ),
            refused: add(
                r,
                "warden_ingest_refused",
                "Calls refused, or in audit mode let pass that would have been, by code",
                Family::default(),
            ),
            stored: add(
                r,
                "warden_ingest_stored",
                "Health events acknowledged after they were on disk",
                Counter::default(),
            ),
            acknowledge: add(
                r,
                "warden_ingest_acknowledge_seconds",
                "Time from a batch's arrival to its acknowledgement",
                acknowledge,
            ),
            token_reviews: add(
                r,
                "warden_token_reviews",
                "TokenReviews asked of the API server, by outcome",
                Family::default(),
            ),
            connections: add(
                r,
                "warden_ingest_connections",
                "Open connections of senders",
                Gauge::default(),
            ),
            not_after: add(
                r,
                "warden_serving_certificate_not_after_seconds",
                "End of the serving certificate, seconds since 1970",
                Gauge::default(),
            ),
        }
    }
}

struct AgentMetrics {
    reports: Counter,
    lists: Family<OutcomeLabel, Counter>,
    silent: Gauge,
    missing: Gauge,
    pool_silent: Family<PoolLabel, Gauge>,
}

impl AgentMetrics {
    fn register(r: &mut Register) -> Self {
        Self {
            reports: add(
                r,
                "warden_reports",
                "Agents' reports taken in",
                Counter::default(),
            ),
            lists: add(
                r,
                "warden_report_lists",
                "Lists of asserted faults asked for or compared, by outcome",
                Family::default(),
            ),
            missing: add(
                r,
                "warden_agents_missing",
                "Nodes on which no agent ever reported",
                Gauge::default(),
            ),
            pool_silent: add(
                r,
                "warden_pool_silent",
                "1 while so many nodes of the pool fell silent together that it is the pool's fault",
                Family::default(),
            ),
            silent: add(
                r,
                "warden_agents_silent",
                "Nodes whose agent has not reported for three intervals",
                Gauge::default(),
            ),
        }
    }
}

struct QuarantineMetrics {
    received: Counter,
    processed: Counter,
    errors: Family<ErrorLabel, Counter>,
    quarantined: Family<NodeLabel, Counter>,
    unquarantined: Family<NodeLabel, Counter>,
    uncordoned: Family<NodeLabel, Counter>,
    untainted: Family<NodeLabel, Counter>,
    current: Family<NodeLabel, Gauge>,
    taints_applied: Family<TaintLabel, Counter>,
    taints_removed: Family<TaintLabel, Counter>,
    cordons_applied: Counter,
    cordons_removed: Counter,
    evaluations: Family<RuleLabel, Counter>,
    backlog: Gauge,
}

impl QuarantineMetrics {
    fn register(r: &mut Register) -> Self {
        Self {
            received: add(
                r,
                "fault_quarantine_events_received",
                "Events stored since the quarantine module started",
                Counter::default(),
            ),
            processed: add(
                r,
                "fault_quarantine_events_successfully_processed",
                "Decisions to take a node out, to give it back, or that change what holds it",
                Counter::default(),
            ),
            errors: add(
                r,
                "fault_quarantine_processing_errors",
                "Failures, by static code",
                Family::default(),
            ),
            quarantined: add(
                r,
                "fault_quarantine_nodes_quarantined",
                "Nodes taken out of service",
                Family::default(),
            ),
            unquarantined: add(
                r,
                "fault_quarantine_nodes_unquarantined",
                "Nodes given back",
                Family::default(),
            ),
            uncordoned: add(
                r,
                "fault_quarantine_nodes_manually_uncordoned",
                "Nodes that a person uncordoned",
                Family::default(),
            ),
            untainted: add(
                r,
                "fault_quarantine_nodes_manually_untainted",
                "Nodes from which a person removed a taint of ours",
                Family::default(),
            ),
            current: add(
                r,
                "fault_quarantine_current_quarantined_nodes",
                "1 for a node that is out by us, else 0",
                Family::default(),
            ),
            taints_applied: add(
                r,
                "fault_quarantine_taints_applied",
                "Taints put on nodes",
                Family::default(),
            ),
            taints_removed: add(
                r,
                "fault_quarantine_taints_removed",
                "Taints taken off nodes",
                Family::default(),
            ),
            cordons_applied: add(
                r,
                "fault_quarantine_cordons_applied",
                "Cordons",
                Counter::default(),
            ),
            cordons_removed: add(
                r,
                "fault_quarantine_cordons_removed",
                "Uncordons",
                Counter::default(),
            ),
            evaluations: add(
                r,
                "fault_quarantine_ruleset_evaluations",
                "Evaluations of rule sets against open faults",
                Family::default(),
            ),
            backlog: add(
                r,
                "fault_quarantine_event_backlog_count",
                "Nodes waiting for a decision",
                Gauge::default(),
            ),
        }
    }
}

struct QuarantineTimes {
    handling: Histogram,
    duration: Histogram,
    remediation: ActionSeconds,
}

impl QuarantineTimes {
    fn register(r: &mut Register, handling: Histogram, duration: Histogram) -> Self {
        Self {
            handling: add(
                r,
                "fault_quarantine_event_handling_duration_seconds",
                "Time of one decision with its writes",
                handling,
            ),
            duration: add(
                r,
                "fault_quarantine_node_quarantine_duration_seconds",
                "Time from an event's generation to the node out of service",
                duration,
            ),
            remediation: add(
                r,
                "fault_quarantine_node_remediation_duration_seconds",
                "Time from an event's generation to the node given back",
                Family::new_with_constructor(remediation_seconds as fn() -> Histogram),
            ),
        }
    }
}

struct BreakerMetrics {
    state: Family<StateLabel, Gauge>,
    utilization: GaugeF64,
    trips: Family<BoundLabel, Counter>,
    tripped: Family<PoolLabel, Gauge>,
    pool_utilization: Family<BoundLabel, GaugeF64>,
    withheld: Family<PoolLabel, Gauge>,
    other_quarantine: Gauge,
    rule_errors: Family<RuleLabel, Counter>,
}

impl BreakerMetrics {
    fn register(r: &mut Register) -> Self {
        Self {
            state: add(
                r,
                "fault_quarantine_breaker_state",
                "1 for the present state: TRIPPED if any pool's breaker is, else CLOSED",
                Family::default(),
            ),
            utilization: add(
                r,
                "fault_quarantine_breaker_utilization",
                "Largest share of any pool newly taken out in the window",
                GaugeF64::default(),
            ),
            trips: add(
                r,
                "warden_breaker_trips",
                "Trips of the breaker by pool and bound",
                Family::default(),
            ),
            tripped: add(
                r,
                "warden_breaker_tripped",
                "1 while the pool's breaker is tripped",
                Family::default(),
            ),
            pool_utilization: add(
                r,
                "warden_breaker_utilization",
                "Nodes of the pool that count against the bound, as a share of the bound",
                Family::default(),
            ),
            withheld: add(
                r,
                "warden_nodes_withheld",
                "Nodes that should be out and are withheld",
                Family::default(),
            ),
            other_quarantine: add(
                r,
                "warden_other_quarantine",
                "1 while quarantine writes nothing because another fault-quarantine runs in the cluster",
                Gauge::default(),
            ),
            rule_errors: add(
                r,
                "warden_rule_errors",
                "Evaluations of a rule that ended in an error, which is no match",
                Family::default(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_references_where_the_meaning_is() {
        let metrics = ControllerMetrics::new();
        let node = NodeLabel {
            node: "gpu-1".into(),
        };
        metrics.nodes_quarantined.get_or_create(&node).inc();
        metrics.cordons_applied.inc();
        metrics.platform_connector_health_events_received.inc_by(3);
        let text = metrics.encode();
        for line in [
            r#"fault_quarantine_nodes_quarantined_total{node="gpu-1"} 1"#,
            "fault_quarantine_cordons_applied_total 1",
            "platform_connector_health_events_received_total 3",
            "# TYPE k8s_platform_connector_node_condition_update_duration_milliseconds histogram",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
