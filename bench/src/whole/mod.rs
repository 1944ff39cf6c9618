//! The whole loop, from the fault to the node that is given back: what it costs, how fast each stage
//! is alone, and a fleet through all of them. The cloud's provider is the testbed's simulated one.

mod burst;
mod calls;
mod evictions;
mod limits;
mod one;
mod orders;
mod stages;

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::json;
use testbed::{ProviderOptions, SimProvider, Testbed, is_running, wait_for};

use crate::cluster::{Cluster, DEADLINE};
use crate::fleet::Reporter;
use crate::raw::AT_ONCE;
use crate::seen::{ORDERS, RAW_ORDERS};

pub(crate) use burst::run as burst;
pub(crate) use calls::{Counted, count as calls};
pub(crate) use evictions::run as evictions;
pub(crate) use one::run as one;
pub(crate) use orders::run as orders;

/// The definition that is shipped.
const REBOOT_NODE: &str =
    include_str!("../../../deploy/crds/janitor.dgxc.nvidia.com_rebootnodes.yaml");
/// Namespace of the pods that are moved at once.
const LOAD: &str = "bench-load";
/// Namespace of pods that no drain moves: those of the raw limit.
const RAW_LOAD: &str = "bench-raw";
/// As nodes show their state.
const DRAINING: &str = k8s_api::names::STATE_DRAINING;

/// What the loop is measured on.
pub(crate) struct Ground {
    /// The cluster.
    pub(crate) cluster: Cluster,
    /// Who reboots its nodes.
    pub(crate) provider: SimProvider,
}

/// What carries an order out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Janitor {
    /// The provider, so many at a time.
    Acts(usize),
    /// Nobody: it takes the node's lock, and waits for a person to reboot.
    Manual,
}

impl Ground {
    /// Starts all of it; `profile` is `drain` or `remediate`.
    ///
    /// # Errors
    /// Something does not start.
    async fn start(
        nodes: usize,
        audit_log: bool,
        profile: (&str, Janitor),
        settings: &str,
    ) -> anyhow::Result<Self> {
        let testbed = Cluster::testbed(nodes, audit_log).await?;
        Box::pin(Self::on(testbed, profile, settings)).await
    }

    /// The same on a control plane.
    async fn on(
        testbed: Testbed,
        (profile, janitor): (&str, Janitor),
        settings: &str,
    ) -> anyhow::Result<Self> {
        testbed.install_crd(REBOOT_NODE).await?;
        // The same object under a name that nothing of Warden looks at.
        let raw = REBOOT_NODE.replace(ORDERS, RAW_ORDERS);
        testbed.install_crd(&raw).await?;
        for namespace in [LOAD, RAW_LOAD] {
            testbed.ensure_namespace(namespace).await?;
        }
        let provider = SimProvider::start(ProviderOptions::new(testbed.admin())).await?;
        let text = config(&provider, janitor);
        let mut cluster = Cluster::on(testbed, profile, &format!("{text}{settings}")).await?;
        let namespaces = [LOAD, RAW_LOAD];
        cluster.seen.watch_work(&cluster.client, namespaces).await?;
        Ok(Self { cluster, provider })
    }
}

/// No delays, no Lease (a new leader waits one length of it before its first order), and pods of one
/// namespace moved at once.
fn config(provider: &SimProvider, janitor: Janitor) -> String {
    let (at_once, manual) = match janitor {
        Janitor::Acts(at_once) => (at_once, false),
        Janitor::Manual => (AT_ONCE, true),
    };
    format!(
        r#"
[lease]
enabled = false
[drain]
first_action_delay = "0s"
[[drain.userNamespaces]]
name = "{LOAD}"
mode = "Immediate"
[remediation]
first_action_delay = "0s"
[janitor]
cspProviderHost = "{}"
cspProviderInsecure = true
cspProviderTokenPath = ""
max_parallel = {at_once}
manualMode = {manual}
"#,
        provider.address(),
    )
}

/// Plays the agents of these nodes. Their pods are objects that nobody waits for.
///
/// # Errors
/// One can't connect.
async fn connect(cluster: &Cluster, nodes: &[String]) -> anyhow::Result<Vec<Reporter>> {
    let connect = async |node: &String| {
        let token = cluster.idle_agent_token(node).await?;
        let ingest = cluster.controller.ingest;
        let connected = Reporter::connect(ingest, cluster.ca(), &token, node).await;
        connected.with_context(|| format!("playing the agent of {node}"))
    };
    futures::stream::iter(nodes)
        .map(connect)
        .buffered(AT_ONCE)
        .try_collect()
        .await
}

/// A pod that is to go.
#[derive(Debug, Clone)]
struct Load {
    name: String,
    uid: String,
}

/// Creates so many pods on each of the nodes and waits until all run.
///
/// # Errors
/// They don't.
async fn load(
    cluster: &Cluster,
    namespace: &str,
    nodes: &[String],
    each: usize,
) -> anyhow::Result<Vec<Load>> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
    let create = async |node: &String| {
        let pod = serde_json::from_value(json!({
            "metadata": { "generateName": "load-" },
            "spec": {
                "nodeName": node,
                "containers": [{ "name": "main", "image": "pause" }],
            },
        }))?;
        let made = pods.create(&PostParams::default(), &pod).await?.metadata;
        anyhow::Ok(Load {
            name: made.name.unwrap_or_default(),
            uid: made.uid.unwrap_or_default(),
        })
    };
    let each_node = nodes
        .iter()
        .flat_map(|node| std::iter::repeat_n(node, each));
    let made: Vec<Load> = futures::stream::iter(each_node)
        .map(create)
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
        .with_context(|| format!("creating pods in {namespace}"))?;
    let what = format!("{} pods of {namespace} to run", made.len());
    wait_for(what, DEADLINE * 2, || async {
        // As the API server has them at hand: this is no part of what is measured.
        let all = pods.list(&ListParams::default().match_any()).await?.items;
        let running = all.iter().filter(|pod| is_running(pod)).count();
        Ok((running >= made.len()).then_some(()))
    })
    .await?;
    Ok(made)
}

/// Waits until the controller has read what it missed while it was held: it then knows what happens to
/// this node, on which nothing is measured.
///
/// # Errors
/// It does not, in time.
async fn catch_up(cluster: &Cluster, node: &str) -> anyhow::Result<()> {
    for cordoned in [true, false] {
        e2e::nodes::set_cordon(&cluster.client, node, cordoned).await?;
        let what = format!("the controller to see that {node} is cordoned: {cordoned}");
        wait_for(what, DEADLINE, || async {
            let shown = cluster.api(&format!("/api/v1/nodes/{node}")).await?;
            Ok((shown["object"]["cordoned"] == cordoned).then_some(()))
        })
        .await?;
    }
    Ok(())
}

/// When a module stored its first step into a state, of a node's timeline.
///
/// # Errors
/// The API does not tell.
async fn stored_at(
    cluster: &Cluster,
    node: &str,
    (module, state): (&str, &str),
) -> anyhow::Result<jiff::Timestamp> {
    let steps = cluster
        .api(&format!("/api/v1/nodes/{node}/timeline"))
        .await?;
    let steps: Vec<wire::api::Step> = serde_json::from_value(steps).context("a timeline")?;
    let step = steps.iter().find(|s| s.module == module && s.to == state);
    let step = step.with_context(|| format!("the timeline of {node} has no step to {state}"))?;
    Ok(step.at)
}

/// One moment by both clocks.
#[derive(Debug, Clone, Copy)]
struct Clock {
    instant: std::time::Instant,
    time: jiff::Timestamp,
}

impl Clock {
    fn now() -> Self {
        Self {
            instant: std::time::Instant::now(),
            time: jiff::Timestamp::now(),
        }
    }

    /// The moment of a time of day, as far as the wall clock was not set since.
    fn instant_of(&self, time: jiff::Timestamp) -> std::time::Instant {
        let since = time.duration_since(self.time);
        let span = since.unsigned_abs();
        let moment = if since.is_negative() {
            self.instant.checked_sub(span)
        } else {
            self.instant.checked_add(span)
        };
        moment.unwrap_or(self.instant)
    }
}
