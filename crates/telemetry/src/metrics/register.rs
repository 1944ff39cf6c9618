//! The registry, and what is known of each metric beside its series.

use prometheus_client::registry::{Metric, Registry};

use super::by_node::{ByNode, Forgets};
use super::labels::LabelNames;

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
pub(super) struct Register {
    pub(super) registry: Registry,
    pub(super) described: Vec<Described>,
    /// All metrics with series of nodes.
    pub(super) by_node: Vec<Box<dyn Forgets>>,
}

/// Registers a metric, which it answers with.
pub(super) fn add<M>(r: &mut Register, name: &'static str, help: &'static str, metric: M) -> M
where
    M: Metric + LabelNames + Clone,
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

/// Registers a metric with series of nodes, which it answers with.
pub(super) fn add_by_node<L, M>(
    r: &mut Register,
    name: &'static str,
    help: &'static str,
) -> ByNode<L, M>
where
    ByNode<L, M>: Metric + LabelNames + Forgets,
{
    let metric = add(r, name, help, ByNode::default());
    r.by_node.push(Box::new(metric.clone()));
    metric
}
