//! Labels of the controller's metrics, each a type, so that no series has others.

use std::hash::Hash;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

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
    /// An override, and the field of the event that it changed.
    OverrideLabel { rule_name, field }
    /// An override.
    OverrideNameLabel { rule_name }
    /// How a drain of a node ended: `drained`, `failed`, `cancelled` or `skipped`.
    DrainLabel { drain_status, node }
    /// A static error code, of a node.
    NodeErrorLabel { error_type, node }
    /// A check of a node.
    NodeCheckLabel { node, check_name }
    /// `evict` or `delete`, and what came of it.
    PodCallLabel { call, outcome }
    /// `created` or `skipped`, of a node.
    RepairLabel { cr_status, node_name }
    /// A static error code, of a node.
    RepairErrorLabel { error_type, node_name }
    /// An action without a repair, of a node.
    NodeActionLabel { action, node_name }
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
    /// An action of the janitor: `reboot`, `lock` or `unlock`; `started`, `succeeded` or `failed`.
    JanitorActionLabel { action_type, status, node }
    /// An action of the janitor.
    ActionTypeLabel { action_type }
    /// A kind of repair objects.
    KindLabel { kind }
    /// An action that an event recommends, by its name on the wire.
    ActionLabel { recommended_action }
}

/// Labels of which one names a node.
pub trait OfNode: Clone + Eq + Hash {
    /// The node's name; empty in a series of no node.
    fn node(&self) -> &str;
}

macro_rules! of_node {
    ($($name:ident . $field:ident),+ $(,)?) => {$(
        impl OfNode for $name {
            fn node(&self) -> &str {
                &self.$field
            }
        }
    )+};
}

of_node! {
    NodeLabel.node,
    DrainLabel.node,
    NodeErrorLabel.node,
    NodeCheckLabel.node,
    RepairLabel.node_name,
    RepairErrorLabel.node_name,
    NodeActionLabel.node_name,
    NodeEventLabel.node_name,
    JanitorActionLabel.node,
}
