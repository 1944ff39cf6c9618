//! The numbers of what changes events before they are stored.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use super::labels::{OverrideLabel, OverrideNameLabel};
use super::register::{Register, add};

/// All numbers of the transformers. Fields are named as their metrics.
#[derive(Debug)]
#[expect(
    missing_docs,
    reason = "the help text at registration is the documentation"
)]
pub struct TransformerMetrics {
    pub overrides_applied: Family<OverrideLabel, Counter>,
    pub override_errors: Family<OverrideNameLabel, Counter>,
    pub nodes_unknown: Counter,
}

impl TransformerMetrics {
    pub(super) fn register(r: &mut Register) -> Self {
        Self {
            overrides_applied: add(
                r,
                "nvsentinel_overrides_applied",
                "Fields of events that an override changed",
                Family::default(),
            ),
            override_errors: add(
                r,
                "warden_override_evaluation_errors",
                "Evaluations of an override that ended in an error, which is no match",
                Family::default(),
            ),
            nodes_unknown: add(
                r,
                "warden_ingest_metadata_unknown_node",
                "Events that got no labels of their node because the node was not known",
                Counter::default(),
            ),
        }
    }
}
