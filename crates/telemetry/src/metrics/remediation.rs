//! The numbers of remediation.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::by_node::ByNode;
use super::labels::{NodeActionLabel, OutcomeLabel, RepairErrorLabel, RepairLabel};
use super::register::{Register, add, add_by_node};

/// All numbers of remediation. Fields are named as their metrics.
#[derive(Debug)]
#[expect(
    missing_docs,
    reason = "the help text at registration is the documentation"
)]
pub struct RemediationMetrics {
    pub processed: ByNode<RepairLabel, Counter>,
    pub errors: ByNode<RepairErrorLabel, Counter>,
    pub unsupported: ByNode<NodeActionLabel, Counter>,
    pub handling: Histogram,
    pub generate: Histogram,
    pub repairs: Family<OutcomeLabel, Counter>,
    pub other: Gauge,
}

impl RemediationMetrics {
    pub(super) fn register(r: &mut Register, handling: Histogram, generate: Histogram) -> Self {
        Self {
            processed: add_by_node(
                r,
                "fault_remediation_events_processed",
                "Repair objects made (created), and those that were there already (skipped)",
            ),
            errors: add_by_node(
                r,
                "fault_remediation_processing_errors",
                "Failures of repairs: refused objects, an unreadable store, an API server without an \
                 answer",
            ),
            unsupported: add_by_node(
                r,
                "fault_remediation_unsupported_actions",
                "Nodes that need a person because no repair is configured for the action",
            ),
            handling: add(
                r,
                "fault_remediation_event_handling_duration_seconds",
                "Time of a repair's look at one node",
                handling,
            ),
            generate: add(
                r,
                "fault_remediation_cr_generate_duration_seconds",
                "Time from a drained node to its repair object",
                generate,
            ),
            repairs: add(
                r,
                "warden_repairs",
                "Repairs by what became of them: ordered, succeeded, failed, needs_operator, recalled",
                Family::default(),
            ),
            other: add(
                r,
                "warden_other_remediation",
                "1 while no repair is ordered because another fault-remediation runs in the cluster",
                Gauge::default(),
            ),
        }
    }
}
