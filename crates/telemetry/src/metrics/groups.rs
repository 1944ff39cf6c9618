//! The metrics of each part of the controller, with their names and what they tell.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use super::by_node::ByNode;
use super::labels::{
    BoundLabel, DrainLabel, ErrorLabel, NodeCheckLabel, NodeErrorLabel, NodeEventLabel, NodeLabel,
    OutcomeLabel, PodCallLabel, PoolLabel, RefusalLabel, RuleLabel, StateLabel, StatusLabel,
    TaintLabel,
};
use super::register::{Register, add, add_by_node};
use super::{ActionSeconds, GaugeF64};

/// The reference's buckets: 10 s to four days.
fn remediation_seconds() -> Histogram {
    Histogram::new(exponential_buckets(10.0, 1.5, 27))
}

pub(super) struct IngestMetrics {
    pub(super) received: Counter,
    pub(super) refused: Family<RefusalLabel, Counter>,
    pub(super) stored: Counter,
    pub(super) store_refuses: Gauge,
    pub(super) acknowledge: Histogram,
    pub(super) token_reviews: Family<OutcomeLabel, Counter>,
    pub(super) connections: Gauge,
    pub(super) not_after: Gauge,
}

impl IngestMetrics {
    pub(super) fn register(r: &mut Register, acknowledge: Histogram) -> Self {
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
            store_refuses: add(
                r,
                "warden_store_refuses_events",
                "1 while the store takes no events in: less than store.reserve is free, or its last write failed",
                Gauge::default(),
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

pub(super) struct AgentMetrics {
    pub(super) reports: Counter,
    pub(super) lists: Family<OutcomeLabel, Counter>,
    pub(super) silent: Gauge,
    pub(super) missing: Gauge,
    pub(super) conflicting: Gauge,
    pub(super) too_many_faults: Gauge,
    pub(super) other_machine: Gauge,
    pub(super) pool_silent: Family<PoolLabel, Gauge>,
}

impl AgentMetrics {
    pub(super) fn register(r: &mut Register) -> Self {
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
            too_many_faults: add(
                r,
                "warden_nodes_with_too_many_faults",
                "Nodes of which events opened no fault within 10 min, because as many are open as may be",
                Gauge::default(),
            ),
            conflicting: add(
                r,
                "warden_agents_conflicting",
                "Nodes as which several agents report at once",
                Gauge::default(),
            ),
            other_machine: add(
                r,
                "warden_agents_other_machine",
                "Nodes whose agent runs on another machine than the node object names",
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

pub(super) struct QuarantineMetrics {
    pub(super) received: Counter,
    pub(super) processed: Counter,
    pub(super) errors: Family<ErrorLabel, Counter>,
    pub(super) quarantined: ByNode<NodeLabel, Counter>,
    pub(super) unquarantined: ByNode<NodeLabel, Counter>,
    pub(super) uncordoned: ByNode<NodeLabel, Counter>,
    pub(super) untainted: ByNode<NodeLabel, Counter>,
    pub(super) current: ByNode<NodeLabel, Gauge>,
    pub(super) taints_applied: Family<TaintLabel, Counter>,
    pub(super) taints_removed: Family<TaintLabel, Counter>,
    pub(super) cordons_applied: Counter,
    pub(super) cordons_removed: Counter,
    pub(super) evaluations: Family<RuleLabel, Counter>,
    pub(super) backlog: Gauge,
}

impl QuarantineMetrics {
    pub(super) fn register(r: &mut Register) -> Self {
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
            quarantined: add_by_node(
                r,
                "fault_quarantine_nodes_quarantined",
                "Nodes taken out of service",
            ),
            unquarantined: add_by_node(
                r,
                "fault_quarantine_nodes_unquarantined",
                "Nodes given back",
            ),
            uncordoned: add_by_node(
                r,
                "fault_quarantine_nodes_manually_uncordoned",
                "Nodes that a person uncordoned",
            ),
            untainted: add_by_node(
                r,
                "fault_quarantine_nodes_manually_untainted",
                "Nodes from which a person removed a taint of ours",
            ),
            current: add_by_node(
                r,
                "fault_quarantine_current_quarantined_nodes",
                "1 for a node that is out by us, else 0",
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

pub(super) struct QuarantineTimes {
    pub(super) handling: Histogram,
    pub(super) duration: Histogram,
    pub(super) remediation: ActionSeconds,
}

impl QuarantineTimes {
    pub(super) fn register(r: &mut Register, handling: Histogram, duration: Histogram) -> Self {
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

pub(super) struct BreakerMetrics {
    pub(super) state: Family<StateLabel, Gauge>,
    pub(super) utilization: GaugeF64,
    pub(super) trips: Family<BoundLabel, Counter>,
    pub(super) tripped: Family<PoolLabel, Gauge>,
    pub(super) pool_utilization: Family<BoundLabel, GaugeF64>,
    pub(super) withheld: Family<PoolLabel, Gauge>,
    pub(super) config_refused: Gauge,
    pub(super) other_quarantine: Gauge,
    pub(super) other_quarantine_looked_at: Gauge,
    pub(super) rule_errors: Family<RuleLabel, Counter>,
}

impl BreakerMetrics {
    pub(super) fn register(r: &mut Register) -> Self {
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
            config_refused: add(
                r,
                "warden_config_refused",
                "1 while the rule sets of the configuration file are not those that run: it is wrong, or they match too many nodes",
                Gauge::default(),
            ),
            other_quarantine: add(
                r,
                "warden_other_quarantine",
                "1 while quarantine writes nothing because another fault-quarantine runs in the cluster",
                Gauge::default(),
            ),
            other_quarantine_looked_at: add(
                r,
                "warden_other_quarantine_looked_at_seconds",
                "When the cluster was last asked for another fault-quarantine, seconds since 1970; 0 = never",
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

pub(super) struct DrainMetrics {
    pub(super) processed: ByNode<DrainLabel, Counter>,
    pub(super) errors: ByNode<NodeErrorLabel, Counter>,
    pub(super) cancelled: ByNode<NodeCheckLabel, Counter>,
    pub(super) waiting_for_timeout: ByNode<NodeLabel, Gauge>,
    pub(super) queue: Gauge,
    pub(super) handling: Histogram,
    pub(super) duration: Histogram,
    pub(super) pod_calls: Family<PodCallLabel, Counter>,
    pub(super) other_drainer: Gauge,
}

impl DrainMetrics {
    pub(super) fn register(r: &mut Register, handling: Histogram) -> Self {
        // The reference's: 0.1 s to five days.
        let duration = Histogram::new(exponential_buckets(0.1, 2.0, 23));
        Self {
            processed: add_by_node(
                r,
                "node_drainer_events_processed",
                "Drains that ended, by how: drained, failed, cancelled, skipped (nothing to do)",
            ),
            errors: add_by_node(
                r,
                "node_drainer_processing_errors",
                "Failures of drains: refused or failed evictions and deletions, an unreadable store",
            ),
            cancelled: add_by_node(
                r,
                "node_drainer_cancelled_event",
                "Faults whose drain ended before it was done",
            ),
            waiting_for_timeout: add_by_node(
                r,
                "node_drainer_waiting_for_timeout",
                "1 while a drain waits for pods that it will delete at their time",
            ),
            queue: add(
                r,
                "node_drainer_queue_depth",
                "Nodes that wait for a decision of the drain",
                Gauge::default(),
            ),
            handling: add(
                r,
                "node_drainer_event_handling_duration_seconds",
                "Time of a drain's look at one node",
                handling,
            ),
            duration: add(
                r,
                "node_drainer_pod_eviction_duration_seconds",
                "Time from a node's quarantine to the node drained",
                duration,
            ),
            pod_calls: add(
                r,
                "warden_drain_pod_calls",
                "Evictions and deletions of pods, by what came of them",
                Family::default(),
            ),
            other_drainer: add(
                r,
                "warden_other_drainer",
                "1 while drains move no pod because another node-drainer runs in the cluster",
                Gauge::default(),
            ),
        }
    }
}

pub(super) struct ConnectorMetrics {
    pub(super) updates: Family<StatusLabel, Counter>,
    pub(super) update_ms: Histogram,
    pub(super) operations: ByNode<NodeEventLabel, Counter>,
    pub(super) event_ms: Histogram,
    pub(super) missed: Counter,
}

impl ConnectorMetrics {
    pub(super) fn register(r: &mut Register) -> Self {
        let milliseconds = || Histogram::new(exponential_buckets(10.0, 2.0, 12));
        Self {
            updates: add(
                r,
                "k8s_platform_connector_node_condition_update",
                "Node condition writes",
                Family::default(),
            ),
            update_ms: add(
                r,
                "k8s_platform_connector_node_condition_update_duration_milliseconds",
                "Time of a node condition write",
                milliseconds(),
            ),
            operations: add_by_node(
                r,
                "k8s_platform_connector_node_event_operations",
                "Writes of Kubernetes Events about nodes",
            ),
            missed: add(
                r,
                "warden_connector_missed_events",
                "Stored events that went for the store's size before the connector saw them",
                Counter::default(),
            ),
            event_ms: add(
                r,
                "k8s_platform_connector_node_event_update_create_duration_milliseconds",
                "Time of an Event write",
                milliseconds(),
            ),
        }
    }
}
