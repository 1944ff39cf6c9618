//! What is read of a pod object; the rest is skipped while parsing.

use std::fmt;

use decide::drain::{Phase, PodFacts, PodRef};
use jiff::Timestamp;
use k8s_api::names;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// A pod as it stands on the line.
#[derive(Debug, Deserialize)]
pub(super) struct Pod {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    namespace: String,
    uid: String,
    creation_timestamp: Option<String>,
    deletion_timestamp: Option<String>,
    owner_references: Option<Vec<Owner>>,
    annotations: Option<Keys>,
}

#[derive(Debug, Deserialize)]
struct Owner {
    #[serde(default)]
    kind: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    node_name: String,
    containers: Option<Vec<Container>>,
    init_containers: Option<Vec<Container>>,
    resource_claims: Option<Vec<IgnoredAny>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Container {
    resources: Resources,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Resources {
    limits: Option<Keys>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    phase: String,
    conditions: Option<Vec<Condition>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    last_transition_time: Option<String>,
}

impl Pod {
    /// The node that it is bound to; empty: to none.
    pub(super) fn node(&self) -> &str {
        &self.spec.node_name
    }

    pub(super) fn uid(&self) -> &str {
        &self.metadata.uid
    }

    /// What a drain looks at; none of one that has finished, which is as good as gone and stays so.
    pub(super) fn facts(&self) -> Option<PodFacts> {
        let phase = match self.status.phase.as_str() {
            "Succeeded" | "Failed" => return None,
            "Pending" => Phase::Pending,
            _ => Phase::Running,
        };
        let meta = &self.metadata;
        let annotations = meta.annotations.as_ref();
        let annotated = |key: &str| annotations.is_some_and(|keys| keys.0.iter().any(|k| k == key));
        let mut owners = meta.owner_references.iter().flatten();
        let ready = self.status.conditions.iter().flatten();
        let not_ready = ready
            .filter(|c| c.kind == "Ready" && c.status == "False")
            .find_map(|c| c.last_transition_time.as_deref()?.parse().ok());
        Some(PodFacts {
            pod: PodRef {
                namespace: meta.namespace.clone(),
                name: meta.name.clone(),
                uid: meta.uid.clone(),
            },
            phase,
            of_daemon_set: owners.any(|owner| owner.kind == "DaemonSet"),
            is_mirror: annotated(names::MIRROR_POD.text),
            has_devices: annotated(names::POD_DEVICES.text) || self.asks_for_devices(),
            created_at: meta
                .creation_timestamp
                .as_deref()
                .and_then(|at| at.parse().ok()),
            // One that does not read is a deletion all the same.
            deleted_by: meta
                .deletion_timestamp
                .as_deref()
                .map(|at| at.parse().unwrap_or(Timestamp::UNIX_EPOCH)),
            not_ready_since: not_ready,
        })
    }

    /// A claim's class is not looked up: whatever it is for counts as a device.
    fn asks_for_devices(&self) -> bool {
        let spec = &self.spec;
        let claims = spec.resource_claims.iter().flatten().next().is_some();
        let containers = spec.containers.iter().chain(&spec.init_containers);
        let limits = containers.flatten().flat_map(|c| &c.resources.limits);
        let is_device = |name: &String| {
            let gpu = name.strip_prefix("nvidia.com/");
            gpu.is_some_and(|kind| matches!(kind, "gpu" | "pgpu") || kind.starts_with("mig-"))
        };
        claims || limits.flat_map(|keys| &keys.0).any(is_device)
    }
}

/// The keys of a map; its values are skipped.
#[derive(Debug, Default)]
struct Keys(Vec<String>);

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(KeysVisitor)
    }
}

struct KeysVisitor;

impl<'de> Visitor<'de> for KeysVisitor {
    type Value = Keys;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
        let mut keys = Vec::new();
        while let Some((key, IgnoredAny)) = map.next_entry()? {
            keys.push(key);
        }
        Ok(Keys(keys))
    }
}
