//! What is changed about an event before it is stored: it gets labels of its node, then operators'
//! overrides. Warden's own faults come from inside and are not changed.

use std::sync::Arc;

use decide::rules::{OverrideError, Overrides};
use health_event::{HealthEvent, NodeName, keys};
use telemetry::ControllerMetrics;
use telemetry::metrics::{OverrideLabel, OverrideNameLabel};
use tracing::debug;

use crate::config::{IngestConfig, MetadataConfig};
use crate::nodes::{NodeCache, NodeFacts};

/// Bytes of an annotation's value that an event gets; the API server allows 256 KiB.
const LONGEST_VALUE: usize = 1_024;
/// Bytes that one event gets at most: it is stored with each fault.
const MOST_BYTES: usize = 8 * 1_024;
/// Name of the provider's id in the metadata, the reference's.
const PROVIDER_ID: &str = "providerID";

/// The transformers, in their fixed order. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Transformers {
    metadata: Option<Arc<MetadataConfig>>,
    overrides: Arc<Overrides>,
    nodes: NodeCache,
    metrics: Arc<ControllerMetrics>,
}

/// Compiles the overrides of a configuration, switched on or not.
///
/// # Errors
/// All that is wrong with them.
pub(crate) fn overrides(config: &IngestConfig) -> Result<Overrides, Vec<OverrideError>> {
    Overrides::compile(&config.overrides.rules)
}

impl Transformers {
    /// Those that are on.
    ///
    /// # Errors
    /// All that is wrong with the overrides.
    pub fn new(
        config: &IngestConfig,
        nodes: NodeCache,
        metrics: Arc<ControllerMetrics>,
    ) -> Result<Self, Vec<OverrideError>> {
        let enabled = config.overrides.enabled;
        let overrides = if enabled {
            overrides(config)?
        } else {
            Overrides::default()
        };
        let metadata = config.metadata.enabled.then(|| config.metadata.clone());
        Ok(Self {
            metadata: metadata.map(Arc::new),
            overrides: Arc::new(overrides),
            nodes,
            metrics,
        })
    }

    /// Changes an event that a sender said.
    pub(crate) fn apply(&self, node: &NodeName, event: &mut HealthEvent) {
        event.metadata.remove(keys::OVERRIDDEN);
        if let Some(config) = &self.metadata {
            match self.nodes.get(node) {
                Some(object) => augment(config, &object, event),
                None => {
                    self.metrics.transformers.nodes_unknown.inc();
                }
            }
        }
        if !self.overrides.is_empty() {
            self.override_it(node, event);
        }
    }

    fn override_it(&self, node: &NodeName, event: &mut HealthEvent) {
        let metrics = &self.metrics.transformers;
        let changed = self.overrides.apply(event);
        for error in &changed.errors {
            let rule_name = error.rule_set.clone();
            let label = OverrideNameLabel { rule_name };
            metrics.override_errors.get_or_create(&label).inc();
            let (rule, why) = (&error.rule_set, &error.message);
            debug!(rule, why, "an override can't be evaluated");
        }
        let Some(text) = changed.text() else {
            return;
        };
        debug!(%node, check = event.check_name, changed = text, "an event was overridden");
        for (field, _) in &changed.fields {
            let label = OverrideLabel {
                rule_name: changed.rule.clone().unwrap_or_default(),
                field: (*field).to_owned(),
            };
            metrics.overrides_applied.get_or_create(&label).inc();
        }
        if changed.has("isHealthy") {
            // It is no longer what that detector asserts.
            event.metadata.remove(keys::DETECTOR);
        }
        event.metadata.insert(keys::OVERRIDDEN.to_owned(), text);
    }
}

/// Adds what the node says, over what the sender said under the same keys: labels in the order of the
/// configuration, then annotations, until it is enough.
fn augment(config: &MetadataConfig, node: &NodeFacts, event: &mut HealthEvent) {
    let provider = Some(&*node.provider_id).filter(|id| !id.is_empty());
    let provider = provider.map(|id| (PROVIDER_ID, id));
    let labels = config.labels.iter();
    let labels = labels.filter_map(|key| Some((key.as_str(), node.label(key)?)));
    let annotations = config.annotations.iter();
    let annotations = annotations.filter_map(|key| Some((key.as_str(), node.annotation(key)?)));
    let mut room = MOST_BYTES;
    for (key, value) in provider.into_iter().chain(labels).chain(annotations) {
        let value = cut(value);
        let Some(left) = room.checked_sub(key.len() + value.len()) else {
            return;
        };
        room = left;
        event.metadata.insert(key.to_owned(), value.to_owned());
    }
}

fn cut(value: &str) -> &str {
    let end = (0..=value.len().min(LONGEST_VALUE))
        .rev()
        .find(|end| value.is_char_boundary(*end));
    &value[..end.unwrap_or_default()]
}

#[cfg(test)]
#[path = "transform_tests.rs"]
mod tests;
