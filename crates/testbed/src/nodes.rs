//! Simulated GPU nodes and the levers that make them fail.
//!
//! A node is `Ready` here when its condition says so *and* the not-ready taint, which admission
//! puts on every new node, is gone: before that the scheduler places nothing on it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use futures::{StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, sleep, timeout_at};

use crate::binaries::hexadecimal;
use crate::component::PLAYED_BY;
use crate::{PARALLEL_WRITES, Testbed};

pub(crate) const NOT_READY: &str = "testbed.warden.dev/not-ready";
pub(crate) const BOOT_ID: &str = "testbed.warden.dev/boot-id";

/// How long kwok may take to show a pulled lever on the node.
const LEVER_DEADLINE: Duration = Duration::from_secs(30);
/// The pause after a broken watch.
const WATCH_RETRY: Duration = Duration::from_millis(200);

/// What a new node looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    /// Its name.
    pub name: String,
    /// `status.nodeInfo.systemUUID` and `machineID`; different for each node.
    pub system_uuid: String,
    /// `status.nodeInfo.bootID` until [`Testbed::reboot`].
    pub boot_id: String,
    /// Number of `nvidia.com/gpu`; 8 by default.
    pub gpus: u32,
    /// Labels on top of the usual ones (host name, architecture, GPU, zone).
    pub labels: BTreeMap<String, String>,
}

impl NodeSpec {
    /// A node with 8 GPUs and identifiers derived from its name.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            system_uuid: uuid_of(&name),
            boot_id: format!("boot-{name}-0"),
            gpus: 8,
            labels: BTreeMap::new(),
            name,
        }
    }

    /// The nodes `gpu-00000`, `gpu-00001`, … with the numbers of `range`.
    pub fn numbered(range: Range<usize>) -> Vec<Self> {
        range.map(|i| Self::new(format!("gpu-{i:05}"))).collect()
    }

    /// The node as posted: `Ready` already, which spares one status write for each node.
    fn object(&self) -> anyhow::Result<Node> {
        let name = &self.name;
        let now = Timestamp::now();
        // Three zones, by the last letter of the name, so that numbered nodes go round.
        let zone = name.bytes().last().unwrap_or_default() % 3;
        let gpus = self.gpus.to_string();
        let resources =
            json!({ "cpu": "64", "memory": "512Gi", "pods": "250", "nvidia.com/gpu": gpus });
        let mut labels = BTreeMap::from(
            [
                (PLAYED_BY, "kwok"),
                ("kubernetes.io/hostname", name),
                ("kubernetes.io/os", "linux"),
                ("kubernetes.io/arch", "amd64"),
                ("nvidia.com/gpu.present", "true"),
                ("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"),
                ("nvidia.com/gpu.count", &gpus),
                ("topology.kubernetes.io/zone", &format!("zone-{zone}")),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned())),
        );
        labels.extend(self.labels.clone());
        let node = json!({
            "metadata": {
                "name": name,
                "labels": labels,
                "annotations": { "node.alpha.kubernetes.io/ttl": "0" },
            },
            "spec": { "providerID": format!("kwok://{name}") },
            "status": {
                "phase": "Running",
                "allocatable": resources,
                "capacity": resources,
                "addresses": [
                    { "type": "InternalIP", "address": "127.0.0.1" },
                    { "type": "Hostname", "address": name },
                ],
                "conditions": [{
                    "type": "Ready",
                    "status": "True",
                    "reason": "KubeletReady",
                    "message": "simulated",
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": now,
                }],
                "nodeInfo": {
                    "architecture": "amd64",
                    "operatingSystem": "linux",
                    "kernelVersion": "6.8.0-kwok",
                    "kubeletVersion": "v1.36.3",
                    "kubeProxyVersion": "v1.36.3",
                    "containerRuntimeVersion": "containerd://2.0.0",
                    "osImage": "Ubuntu 24.04 LTS",
                    "bootID": self.boot_id,
                    "machineID": self.system_uuid,
                    "systemUUID": self.system_uuid,
                },
            },
        });
        serde_json::from_value(node).with_context(|| format!("building the node {name}"))
    }
}

/// The same name has the same UUID on every run; its form is that of a random one.
pub(crate) fn uuid_of(name: &str) -> String {
    let hash = hexadecimal(&Sha256::digest(name));
    format!(
        "{}-{}-4{}-8{}-{}",
        &hash[..8],
        &hash[8..12],
        &hash[12..15],
        &hash[15..18],
        &hash[18..30]
    )
}

/// Whether pods can be placed on `node`, as far as its readiness goes.
pub fn is_ready(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let has_taint = taints
        .into_iter()
        .flatten()
        .any(|taint| taint.key == "node.kubernetes.io/not-ready");
    ready_condition(node).is_some_and(|(status, _)| status == "True") && !has_taint
}

/// Status and reason of the condition `Ready`.
pub fn ready_condition(node: &Node) -> Option<(&str, &str)> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions
        .iter()
        .find(|condition| condition.type_ == "Ready")?;
    Some((&ready.status, ready.reason.as_deref().unwrap_or_default()))
}

/// `status.nodeInfo.bootID`.
pub fn boot_id(node: &Node) -> Option<&str> {
    Some(&node.status.as_ref()?.node_info.as_ref()?.boot_id)
}

impl Testbed {
    /// Posts `nodes`, 16 at a time, without waiting until they are ready.
    ///
    /// # Errors
    /// The API server refused a node; the others may be there.
    pub async fn add_nodes(&self, nodes: &[NodeSpec]) -> anyhow::Result<()> {
        let api: Api<Node> = Api::all(self.admin());
        futures::stream::iter(nodes)
            .map(|spec| {
                let api = &api;
                async move {
                    api.create(&PostParams::default(), &spec.object()?)
                        .await
                        .with_context(|| format!("creating the node {}", spec.name))?;
                    anyhow::Ok(())
                }
            })
            .buffer_unordered(PARALLEL_WRITES)
            .try_collect()
            .await
    }

    /// Waits until all of `names` are ready (see the module's first lines).
    ///
    /// # Errors
    /// The deadline passed; the text says how many nodes are missing and names one.
    pub async fn wait_nodes_ready<S: AsRef<str>>(
        &self,
        names: &[S],
        deadline: Duration,
    ) -> anyhow::Result<()> {
        self.wait_nodes(names, "be ready", deadline, is_ready).await
    }

    /// Waits, by a watch, until `condition` holds for all of `names` at the same time. `what`
    /// completes the sentence "waiting for the nodes to …".
    ///
    /// # Errors
    /// The deadline passed; the text says how many nodes are missing and names one.
    pub async fn wait_nodes<S: AsRef<str>>(
        &self,
        names: &[S],
        what: &str,
        deadline: Duration,
        condition: impl Fn(&Node) -> bool,
    ) -> anyhow::Result<()> {
        let end = Instant::now() + deadline;
        let wanted: BTreeSet<&str> = names.iter().map(AsRef::as_ref).collect();
        let mut missing = wanted.clone();
        let config = match names {
            [name] => {
                watcher::Config::default().fields(&format!("metadata.name={}", name.as_ref()))
            }
            _ => watcher::Config::default(),
        };
        let mut nodes = watcher(Api::<Node>::all(self.admin()), config).boxed();
        let mut last_error = None;
        while let Some(&first) = missing.first() {
            let Ok(event) = timeout_at(end, nodes.next()).await else {
                let text = format!(
                    "gave up after {deadline:.1?} waiting for {} of {} nodes to {what}, one of \
                     them {first}",
                    missing.len(),
                    wanted.len()
                );
                return Err(last_error.map_or_else(
                    || anyhow!("{text}"),
                    |error: watcher::Error| anyhow::Error::new(error).context(text.clone()),
                ));
            };
            match event {
                Some(Ok(watcher::Event::Apply(node) | watcher::Event::InitApply(node))) => {
                    let name = node.metadata.name.as_deref().unwrap_or_default();
                    let holds = condition(&node);
                    match wanted.get(name) {
                        Some(name) if holds => missing.remove(name),
                        Some(name) => missing.insert(name),
                        None => false,
                    };
                }
                Some(Ok(watcher::Event::Delete(node))) => {
                    let name = node.metadata.name.as_deref().unwrap_or_default();
                    missing.extend(wanted.get(name));
                }
                Some(Ok(watcher::Event::Init | watcher::Event::InitDone)) => {}
                Some(Err(error)) => {
                    last_error = Some(error);
                    sleep(WATCH_RETRY).await;
                }
                None => bail!("the watch of the nodes ended, which a watcher never does"),
            }
        }
        Ok(())
    }

    /// Makes `node` report `Ready=False` with `reason` and waits until it does.
    ///
    /// # Errors
    /// There is no such node, or kwok did not play along in 30 s.
    pub async fn set_not_ready(&self, node: &str, reason: &str) -> anyhow::Result<()> {
        self.mark_node(node, "annotations", NOT_READY, json!(reason))
            .await?;
        self.wait_nodes(&[node], "report NotReady", LEVER_DEADLINE, |node| {
            ready_condition(node) == Some(("False", reason))
        })
        .await
    }

    /// Takes [`Testbed::set_not_ready`] back and waits until the node is ready.
    ///
    /// # Errors
    /// There is no such node, or kwok did not play along in 30 s.
    pub async fn set_ready(&self, node: &str) -> anyhow::Result<()> {
        self.mark_node(node, "annotations", NOT_READY, Value::Null)
            .await?;
        self.wait_nodes_ready(&[node], LEVER_DEADLINE).await
    }

    /// Makes `node` report another boot id, which is how a reboot looks, and waits until it does.
    ///
    /// # Errors
    /// There is no such node, or kwok did not play along in 30 s.
    pub async fn reboot(&self, node: &str, new_boot_id: &str) -> anyhow::Result<()> {
        self.mark_node(node, "annotations", BOOT_ID, json!(new_boot_id))
            .await?;
        self.wait_nodes(&[node], "report the new boot id", LEVER_DEADLINE, |node| {
            boot_id(node) == Some(new_boot_id)
        })
        .await
    }

    /// Has nobody play `node` any more: its lease runs out, and after
    /// [`crate::Options::node_grace`] the node's `Ready` becomes `Unknown`.
    ///
    /// # Errors
    /// There is no such node.
    pub async fn stop_heartbeats(&self, node: &str) -> anyhow::Result<()> {
        self.mark_node(node, "labels", PLAYED_BY, Value::Null).await
    }

    /// Takes [`Testbed::stop_heartbeats`] back.
    ///
    /// # Errors
    /// There is no such node.
    pub async fn resume_heartbeats(&self, node: &str) -> anyhow::Result<()> {
        self.mark_node(node, "labels", PLAYED_BY, json!("kwok"))
            .await
    }

    async fn mark_node(
        &self,
        node: &str,
        field: &str,
        key: &str,
        value: Value,
    ) -> anyhow::Result<()> {
        let patch = json!({ "metadata": { field: { key: value } } });
        Api::<Node>::all(self.admin())
            .patch_metadata(node, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .with_context(|| format!("setting {key} among the {field} of the node {node}"))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbered_nodes_differ_in_name_uuid_and_boot_id() {
        let nodes = NodeSpec::numbered(7..9);
        assert_eq!(nodes[0].name, "gpu-00007");
        assert_ne!(nodes[0].system_uuid, nodes[1].system_uuid);
        assert_eq!(nodes[0].system_uuid.len(), 36);
        assert_ne!(nodes[0].boot_id, nodes[1].boot_id);
    }

    #[test]
    fn ready_node_with_the_not_ready_taint_is_not_ready() {
        let mut node = NodeSpec::new("a").object().unwrap();
        assert!(is_ready(&node));
        let taint = json!([{ "key": "node.kubernetes.io/not-ready", "effect": "NoSchedule" }]);
        node.spec.as_mut().unwrap().taints = Some(serde_json::from_value(taint).unwrap());
        assert!(!is_ready(&node));
    }
}
