//! The numbers of the janitor.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use super::by_node::ByNode;
use super::labels::{ActionTypeLabel, JanitorActionLabel, KindLabel, OutcomeLabel};
use super::register::{Register, add, add_by_node};

/// All numbers of the janitor. Fields are named as their metrics.
#[derive(Debug)]
#[expect(
    missing_docs,
    reason = "the help text at registration is the documentation"
)]
pub struct JanitorMetrics {
    pub actions: ByNode<JanitorActionLabel, Counter>,
    pub mttr: Family<ActionTypeLabel, Histogram, fn() -> Histogram>,
    pub ttl_deletions: Family<KindLabel, Counter>,
    pub signals: Family<OutcomeLabel, Counter>,
    pub under_way: Gauge,
    pub other: Gauge,
}

/// The reference's buckets: 10 s to 85 min.
fn mttr_seconds() -> Histogram {
    Histogram::new(exponential_buckets(10.0, 2.0, 10))
}

impl JanitorMetrics {
    pub(super) fn register(r: &mut Register) -> Self {
        Self {
            actions: add_by_node(
                r,
                "warden_janitor_actions",
                "Reboots started, succeeded and failed, and failed locks and unlocks of nodes",
            ),
            mttr: add(
                r,
                "janitor_action_mttr_seconds",
                "Time from a repair object to its success",
                Family::new_with_constructor(mttr_seconds as fn() -> Histogram),
            ),
            ttl_deletions: add(
                r,
                "janitor_ttl_deletions",
                "Repair objects deleted because their time to live was over",
                Family::default(),
            ),
            signals: add(
                r,
                "warden_janitor_signals",
                "Calls of the provider for a reboot: sent, refused, lost (nobody knows), unreachable \
                 (nothing was sent)",
                Family::default(),
            ),
            under_way: add(
                r,
                "warden_janitor_reboots",
                "Reboots under way, of at most janitor.max_parallel",
                Gauge::default(),
            ),
            other: add(
                r,
                "warden_other_janitor",
                "1 while no repair is carried out because another janitor runs in the cluster",
                Gauge::default(),
            ),
        }
    }
}
