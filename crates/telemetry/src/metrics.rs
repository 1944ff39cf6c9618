//! The controller's numbers: one struct, one field a metric.
//!
//! `fault_quarantine_*`, `k8s_platform_connector_*` and `platform_connector_*` are the
//! reference's names with the reference's labels, so that its dashboards and alerts go on working;
//! `warden_*` are ours. prometheus-client adds `_total` to counters.

mod by_node;
mod groups;
mod janitor;
mod labels;
mod register;
mod remediation;
mod transformers;

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode;
pub use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

pub use by_node::ByNode;
use groups::{
    AgentMetrics, BreakerMetrics, ConnectorMetrics, DrainMetrics, IngestMetrics, QuarantineMetrics,
    QuarantineTimes,
};
pub use janitor::JanitorMetrics;
pub use labels::{
    ActionLabel, ActionTypeLabel, BoundLabel, DrainLabel, ErrorLabel, JanitorActionLabel,
    KindLabel, LabelNames, NodeActionLabel, NodeCheckLabel, NodeErrorLabel, NodeEventLabel,
    NodeLabel, OfNode, OutcomeLabel, PodCallLabel, PoolLabel, RefusalLabel, RepairErrorLabel,
    RepairLabel, RuleLabel, StateLabel, StatusLabel, TaintLabel,
};
pub use labels::{OverrideLabel, OverrideNameLabel};
pub use register::Described;
use register::{Register, add};
pub use remediation::RemediationMetrics;
pub use transformers::TransformerMetrics;

/// Default buckets of the Prometheus clients, in seconds; the reference's.
const DEFAULT_SECONDS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

/// Durations by recommended action.
pub type ActionSeconds = Family<ActionLabel, Histogram, fn() -> Histogram>;

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
    pub agents_conflicting: Gauge,
    pub agents_other_machine: Gauge,
    pub nodes_with_too_many_faults: Gauge,
    pub pool_silent: Family<PoolLabel, Gauge>,

    pub node_condition_updates: Family<StatusLabel, Counter>,
    pub node_condition_update_ms: Histogram,
    pub node_event_operations: ByNode<NodeEventLabel, Counter>,
    pub node_event_ms: Histogram,
    pub connector_missed: Counter,

    pub quarantine_events_received: Counter,
    pub quarantine_events_processed: Counter,
    pub quarantine_errors: Family<ErrorLabel, Counter>,
    pub nodes_quarantined: ByNode<NodeLabel, Counter>,
    pub nodes_unquarantined: ByNode<NodeLabel, Counter>,
    pub nodes_manually_uncordoned: ByNode<NodeLabel, Counter>,
    pub nodes_manually_untainted: ByNode<NodeLabel, Counter>,
    pub current_quarantined_nodes: ByNode<NodeLabel, Gauge>,
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
    pub other_quarantine_looked_at: Gauge,
    pub rule_errors: Family<RuleLabel, Counter>,

    pub drains_processed: ByNode<DrainLabel, Counter>,
    pub drain_errors: ByNode<NodeErrorLabel, Counter>,
    pub drains_cancelled: ByNode<NodeCheckLabel, Counter>,
    pub drain_waiting_for_timeout: ByNode<NodeLabel, Gauge>,
    pub drain_queue: Gauge,
    pub drain_handling_seconds: Histogram,
    pub drain_seconds: Histogram,
    pub drain_pod_calls: Family<PodCallLabel, Counter>,
    pub other_drainer: Gauge,

    pub remediation: RemediationMetrics,
    pub transformers: TransformerMetrics,
    pub janitor: JanitorMetrics,

    pub watch_restarts: Counter,
    pub leader: Gauge,
    pub store_refuses: Gauge,
    pub config_refused: Gauge,
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
        let ingest = IngestMetrics::register(&mut r, seconds());
        let quarantine = QuarantineMetrics::register(&mut r);
        let times = QuarantineTimes::register(&mut r, long_seconds(), long_seconds());
        let breaker = BreakerMetrics::register(&mut r);
        let agents = AgentMetrics::register(&mut r);
        let connector = ConnectorMetrics::register(&mut r);
        let drain = DrainMetrics::register(&mut r, seconds());
        let remediation = RemediationMetrics::register(&mut r, seconds(), seconds());
        let transformers = TransformerMetrics::register(&mut r);
        let janitor = JanitorMetrics::register(&mut r);
        Self {
            node_condition_updates: connector.updates,
            node_condition_update_ms: connector.update_ms,
            node_event_operations: connector.operations,
            connector_missed: connector.missed,
            node_event_ms: connector.event_ms,
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
            store_refuses: ingest.store_refuses,
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
            agents_conflicting: agents.conflicting,
            agents_other_machine: agents.other_machine,
            nodes_with_too_many_faults: agents.too_many_faults,
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
            config_refused: breaker.config_refused,
            other_quarantine: breaker.other_quarantine,
            other_quarantine_looked_at: breaker.other_quarantine_looked_at,
            rule_errors: breaker.rule_errors,
            drains_processed: drain.processed,
            drain_errors: drain.errors,
            drains_cancelled: drain.cancelled,
            drain_waiting_for_timeout: drain.waiting_for_timeout,
            drain_queue: drain.queue,
            drain_handling_seconds: drain.handling,
            drain_seconds: drain.duration,
            drain_pod_calls: drain.pod_calls,
            other_drainer: drain.other_drainer,
            remediation,
            transformers,
            janitor,
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

    /// The names of all nodes that have series, in any metric.
    pub fn nodes(&self) -> BTreeSet<String> {
        let mut nodes = BTreeSet::new();
        for metric in &self.register.by_node {
            metric.add_nodes(&mut nodes);
        }
        nodes
    }

    /// Takes all series of a node away. What is counted of it later begins at nothing.
    pub fn forget(&self, node: &str) {
        for metric in &self.register.by_node {
            metric.forget(node);
        }
    }

    /// All metrics, in the order of their registration; families too that have no series yet.
    pub fn described(&self) -> &[Described] {
        &self.register.described
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
    #[test]
    fn all_series_of_a_node_can_be_taken_away() {
        let metrics = ControllerMetrics::new();
        let is_of_node = |labels: &[&str]| labels.iter().any(|l| *l == "node" || *l == "node_name");
        let described = metrics.described().iter();
        let of_nodes = described.filter(|metric| is_of_node(metric.labels)).count();
        assert_eq!(
            of_nodes,
            metrics.register.by_node.len(),
            "a metric with a node among its labels is registered as one"
        );
        for node in ["gpu-1", "gpu-2"] {
            let label = NodeLabel { node: node.into() };
            metrics.nodes_quarantined.get_or_create(&label).inc();
            let label = DrainLabel {
                drain_status: "drained".into(),
                node: node.into(),
            };
            metrics.drains_processed.get_or_create(&label).inc();
            let label = NodeEventLabel {
                node_name: node.into(),
                operation: "create".into(),
                status: "success".into(),
            };
            metrics.node_event_operations.get_or_create(&label).inc();
        }
        metrics.forget("gpu-1");
        let page = metrics.encode();
        let of_other: Vec<&str> = page.lines().filter(|l| l.contains("gpu-2")).collect();
        assert!(!page.contains("gpu-1") && of_other.len() == 3, "{page}");
        assert_eq!(metrics.nodes(), BTreeSet::from(["gpu-2".to_owned()]));
    }
}
