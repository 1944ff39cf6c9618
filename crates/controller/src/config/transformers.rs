//! `[ingest.metadata]` and `[ingest.overrides]`: what is changed about an event before it is stored.

use decide::rules::OverrideConfig;
use health_event::{RecommendedAction, keys};
use toml::Value;

use super::labels;
use super::reader::Section;

/// Labels that the reference's chart adds.
const LABELS: [&str; 25] = [
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "nvidia.com/cuda.driver-version.major",
    "nvidia.com/cuda.driver-version.minor",
    "nvidia.com/cuda.driver-version.revision",
    "nvidia.com/cuda.driver-version.full",
    "nvidia.com/cuda.runtime-version.major",
    "nvidia.com/cuda.runtime-version.minor",
    "nvidia.com/cuda.runtime-version.full",
    "topology.k8s.aws/capacity-block-id",
    "topology.k8s.aws/network-node-layer-1",
    "topology.k8s.aws/network-node-layer-2",
    "topology.k8s.aws/network-node-layer-3",
    "oci.oraclecloud.com/host.id",
    "oci.oraclecloud.com/host.network_block_id",
    "oci.oraclecloud.com/host.rack_id",
    "oci.oraclecloud.com/host.serial_number",
    "cloud.google.com/gce-topology-block",
    "cloud.google.com/gce-topology-host",
    "cloud.google.com/gce-topology-subblock",
    "network.topology.nvidia.com/accelerator",
    "network.topology.nvidia.com/leaf",
    "network.topology.nvidia.com/spine",
    "network.topology.nvidia.com/core",
];
/// Labels, and annotations, that one event may get at most.
const MOST_KEYS: usize = 64;
/// Overrides at most: each is evaluated for each event until one matches.
const MOST_RULES: usize = 64;

/// `[ingest.metadata]`
#[derive(Debug, Clone)]
pub struct MetadataConfig {
    /// Whether events get labels and annotations of their node.
    pub enabled: bool,
    /// Which labels.
    pub labels: Vec<String>,
    /// Which annotations.
    pub annotations: Vec<String>,
}

impl MetadataConfig {
    pub(super) fn read(mut s: Section<'_>) -> Self {
        let config = Self {
            enabled: s.flag(
                "enabled",
                false,
                "Whether each event gets labels and annotations of its node, and its providerID, into its \
                 metadata",
            ),
            labels: keys(&mut s, "allowedLabels", &LABELS, "Labels of the node that events get"),
            annotations: keys(
                &mut s,
                "allowed_annotations",
                &[],
                "Annotations of the node that events get; of a value at most 1 KiB",
            ),
        };
        for (key, list) in [
            ("allowedLabels", &config.labels),
            ("allowed_annotations", &config.annotations),
        ] {
            if list.len() > MOST_KEYS {
                let value = Value::from(format!("{} keys", list.len()));
                s.problem(key, &value, "at most 64 keys");
            }
        }
        config
    }

    /// What the node cache has to keep for it.
    pub fn wanted(&self) -> (&[String], &[String]) {
        if self.enabled {
            (&self.labels, &self.annotations)
        } else {
            (&[], &[])
        }
    }
}

fn keys(
    s: &mut Section<'_>,
    key: &'static str,
    default: &[&str],
    help: &'static str,
) -> Vec<String> {
    s.list(
        (key, default, help),
        "a list of keys as Kubernetes allows them, none of Warden's own",
        |text| {
            let free = !text.starts_with(keys::PREFIX);
            (free && labels::is_key(text)).then(|| text.to_owned())
        },
    )
}

/// `[ingest.overrides]`, in the keys of the reference's `overrides.toml`
#[derive(Debug, Clone)]
pub struct OverridesConfig {
    /// Whether they are applied.
    pub enabled: bool,
    /// In the order in which they are asked.
    pub rules: Vec<OverrideConfig>,
}

impl OverridesConfig {
    pub(super) fn read(mut s: Section<'_>) -> Self {
        let enabled = s.flag(
            "enabled",
            false,
            "Whether severity, health and action of events are changed by these rules",
        );
        let rules = s.sections(
            (
                "rules",
                "none",
                "What is changed; the first rule that matches decides",
            ),
            rule,
        );
        if enabled && rules.is_empty() {
            let value = Value::Array(Vec::new());
            s.problem(
                "rules",
                &value,
                "at least one rule while overrides are enabled",
            );
        }
        if rules.len() > MOST_RULES {
            let value = Value::from(format!("{} rules", rules.len()));
            s.problem("rules", &value, "at most 64 rules");
        }
        Self { enabled, rules }
    }
}

fn rule(mut s: Section<'_>) -> OverrideConfig {
    let name = s.text(
        "name",
        "",
        "Name, in metrics and in the stored event; must be given",
    );
    let when = s.text(
        "when",
        "",
        "CEL over the event as it comes in (docs/cel.md); must be given",
    );
    let mut change = s.section("override");
    OverrideConfig {
        name,
        when,
        is_fatal: flag(
            &mut change,
            "isFatal",
            "The severity that it gets; \"\" = as it is",
        ),
        is_healthy: flag(
            &mut change,
            "isHealthy",
            "Whether it says that all is well; \"\" = as it is",
        ),
        recommended_action: change.name(
            (
                "recommendedAction",
                "",
                "The action that it asks for; \"\" = as it is",
            ),
            "a name of an action but CUSTOM, as NONE or RESTART_BM, or \"\"",
            |text| {
                let action = RecommendedAction::from_name(text);
                let custom = action == Some(RecommendedAction::Custom);
                (text.is_empty() || (action.is_some() && !custom)).then_some(action)
            },
        ),
    }
}

fn flag(s: &mut Section<'_>, key: &'static str, help: &'static str) -> Option<bool> {
    s.value((key, "".into(), help), "true, false or \"\"", |value| {
        if value.as_str() == Some("") {
            return Some(None);
        }
        value.as_bool().map(Some)
    })
}
