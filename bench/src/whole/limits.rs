//! What the API server and the provider do by themselves: the same calls by a plain client.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_api::reboot_node::{NewRebootNode, PATH};
use kube::Client;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use testbed::SimProvider;
use tonic::transport::Endpoint;
use wire::provider::SendRebootSignalRequest;
use wire::provider::csp_provider_service_client::CspProviderServiceClient;

use super::{Load, RAW_LOAD};
use crate::cluster::{Cluster, DEADLINE, NAMESPACE};
use crate::raw::{AT_ONCE, Half, Recorded, Target};
use crate::seen::{ORDERS, RAW_ORDERS, RAW_STATE, What};
use crate::stats::{float, rate};

/// Evictions at a time: what the drain does (`controller::drain::apply::AT_ONCE`).
pub(super) const EVICTIONS_AT_ONCE: usize = 16;
/// Name of a lock of the raw limit: nothing of Warden looks at a Lease that is named as no node.
const LOCK: &str = "rawlim-";

/// A second, each alone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Nodes cordoned, conditioned and told.
    pub(super) cordon: f64,
    /// Pods evicted and gone.
    pub(super) eviction: f64,
    /// Labels of a node.
    pub(super) label: f64,
    /// Orders to reboot, seen.
    pub(super) order: f64,
    /// Nodes rebooted by the provider, Ready in another boot.
    pub(super) reboot: f64,
    /// Writes of an order's status.
    pub(super) status: f64,
    /// Locks taken and given back.
    pub(super) lock: f64,
    /// Nodes released.
    pub(super) release: f64,
}

/// Measures all, one after the other, on these nodes with a pod each, while nothing of Warden runs.
/// `orders` are made, also more than there are nodes.
///
/// # Errors
/// The API server or the provider refuses something.
pub(super) async fn measure(
    cluster: &Cluster,
    provider: &SimProvider,
    recorded: &Recorded,
    (nodes, pods, orders): (&[Target], &[Load], usize),
) -> anyhow::Result<Limits> {
    let client = &cluster.client;
    let cordoned = recorded.many(cluster, nodes, Half::Apply).await?;
    let evicted = evict_all(cluster, pods).await?;
    let labelled = each(nodes, |node| label(client, node, "draining")).await?;
    let (made, order) = orders_of(cluster, nodes, orders).await?;
    let named: Vec<String> = made.into_iter().take(nodes.len()).collect();
    let locked = each(nodes, |node| lock(client, node)).await?;
    let rebooted = each(nodes, |node| reboot(cluster, provider, node)).await?;
    let told = each(&named, |order| tell(client, order)).await?;
    let released = recorded.many(cluster, nodes, Half::Release).await?;
    let count = nodes.len();
    Ok(Limits {
        cordon: rate(count, cordoned),
        eviction: pace(&evicted),
        label: rate(count, labelled),
        order,
        reboot: rate(count, rebooted),
        status: rate(count, told),
        lock: rate(count, locked),
        release: rate(count, released),
    })
}

/// Does something with each of them, 64 at a time; answers how long all took.
async fn each<'a, T, F>(all: &'a [T], act: impl Fn(&'a T) -> F) -> anyhow::Result<Duration>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let begin = Instant::now();
    futures::stream::iter(all)
        .map(act)
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await?;
    Ok(begin.elapsed())
}

/// Makes so many orders for these nodes; answers their names, and how many a second were seen.
///
/// # Errors
/// The API server refuses one, or it is not seen.
pub(super) async fn orders_of(
    cluster: &Cluster,
    nodes: &[Target],
    count: usize,
) -> anyhow::Result<(Vec<String>, f64)> {
    let mut changes = cluster.seen.changes();
    let names: Vec<(String, &Target)> = nodes
        .iter()
        .cycle()
        .take(count)
        .enumerate()
        .map(|(number, node)| (format!("raw-{number}"), node))
        .collect();
    let mut seen = Vec::with_capacity(count);
    let watched = async {
        let deadline = Instant::now() + DEADLINE * 2;
        while seen.len() < count {
            let change = changes
                .next(deadline, "the orders of the raw limit")
                .await?;
            if matches!(change.what, What::Order { told: false, .. }) {
                seen.push(change.at);
            }
        }
        Ok(())
    };
    let making = each(&names, |(name, node)| order(&cluster.client, name, node));
    futures::try_join!(watched, making)?;
    let names = names.into_iter().map(|(name, _)| name).collect();
    Ok((names, pace(&seen)))
}

/// How many a second, from the first to the last: what led to the first is no part of it.
pub(super) fn pace(times: &[Instant]) -> f64 {
    let (Some(first), Some(last)) = (times.iter().min(), times.iter().max()) else {
        return 0.0;
    };
    float(times.len().saturating_sub(1)) / (*last - *first).as_secs_f64().max(1e-9)
}

/// Evicts all of them as the drain does; answers when each was seen to be gone.
///
/// # Errors
/// One eviction is refused, or a pod stays.
pub(super) async fn evict_all(cluster: &Cluster, pods: &[Load]) -> anyhow::Result<Vec<Instant>> {
    let mut changes = cluster.seen.changes();
    let mut gone = Vec::with_capacity(pods.len());
    let watched = async {
        let deadline = Instant::now() + DEADLINE;
        while gone.len() < pods.len() {
            let change = changes.next(deadline, "the pods of the raw limit").await?;
            if change.what == (What::PodGone { raw: true }) {
                gone.push(change.at);
            }
        }
        Ok(())
    };
    let evicted = futures::stream::iter(pods)
        .map(|pod| evict(&cluster.client, pod))
        .buffer_unordered(EVICTIONS_AT_ONCE)
        .try_collect::<()>();
    futures::try_join!(watched, evicted)?;
    Ok(gone)
}

async fn evict(client: &Client, pod: &Load) -> anyhow::Result<()> {
    let name = &pod.name;
    let body = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": { "namespace": RAW_LOAD, "name": name },
        "deleteOptions": { "preconditions": { "uid": pod.uid }, "gracePeriodSeconds": 60 },
    });
    let path = format!("/api/v1/namespaces/{RAW_LOAD}/pods/{name}/eviction");
    send(client, ("POST", &path, JSON), &body).await
}

const JSON: &str = "application/json";

async fn send(
    client: &Client,
    (method, path, kind): (&str, &str, &str),
    body: &Value,
) -> anyhow::Result<()> {
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", kind)
        .body(body.to_string().into_bytes())?;
    let sent = client.request::<IgnoredAny>(request).await;
    sent.with_context(|| format!("{method} {path}"))?;
    Ok(())
}

/// One label of a node, with a test of its UID: the form of the write that shows a state.
///
/// # Errors
/// The API server refuses it.
pub(super) async fn label(client: &Client, node: &Target, value: &str) -> anyhow::Result<()> {
    let change = json!([
        { "op": "test", "path": "/metadata/uid", "value": node.uid },
        {
            "op": "add",
            "path": format!("/metadata/labels/{}", RAW_STATE.replace('/', "~1")),
            "value": value,
        },
    ]);
    let path = format!("/api/v1/nodes/{}", node.name);
    send(
        client,
        ("PATCH", &path, "application/json-patch+json"),
        &change,
    )
    .await
}

/// The object that orders a reboot, in the group of the raw limit.
///
/// # Errors
/// The API server refuses it.
pub(super) async fn order(client: &Client, name: &str, node: &Target) -> anyhow::Result<()> {
    let id = ulid::Ulid::new().to_string();
    let expiry = jiff::Timestamp::now().to_string();
    let mut body = NewRebootNode {
        name,
        node: &node.name,
        node_uid: &node.uid,
        force: false,
        labels: [("app.kubernetes.io/managed-by", "rawlim")].into(),
        annotations: [
            ("rawlim.dev/incident", id.as_str()),
            ("rawlim.dev/attempt", "1"),
            ("rawlim.dev/action", "RESTART_BM"),
            ("rawlim.dev/boot-before", node.uid.as_str()),
            ("rawlim.nvidia.com/ttl", k8s_api::names::REPAIR_TTL),
            ("rawlim.nvidia.com/expiry", expiry.as_str()),
        ]
        .into(),
    }
    .render();
    body["apiVersion"] = format!("{RAW_ORDERS}/v1alpha1").into();
    send(client, ("POST", &raw_path(), JSON), &body).await
}

fn raw_path() -> String {
    PATH.replace(ORDERS, RAW_ORDERS)
}

/// One write of an order's status.
async fn tell(client: &Client, name: &str) -> anyhow::Result<()> {
    let now = jiff::Timestamp::now();
    let now = jiff::Timestamp::from_second(now.as_second()).unwrap_or(now);
    let condition = |kind: &str, status: &str| {
        json!({
            "type": kind, "status": status, "reason": "Succeeded",
            "message": "the node is Ready in another boot", "lastTransitionTime": now,
        })
    };
    let change = json!({ "status": {
        "startTime": now,
        "conditions": [condition("SignalSent", "True"), condition("NodeReady", "Unknown")],
    }});
    let path = format!("{}/{name}/status", raw_path());
    send(
        client,
        ("PATCH", &path, "application/merge-patch+json"),
        &change,
    )
    .await
}

/// The Lease that locks a node, taken and given back.
async fn lock(client: &Client, node: &Target) -> anyhow::Result<()> {
    let name = format!("{LOCK}{}", node.name);
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases");
    let body = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": name,
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid,
            }],
        },
        "spec": {},
    });
    send(client, ("POST", &path, JSON), &body).await?;
    send(
        client,
        ("DELETE", &format!("{path}/{name}"), JSON),
        &json!({}),
    )
    .await
}

/// A signal to the provider, and the wait until the node is Ready in another boot.
async fn reboot(cluster: &Cluster, provider: &SimProvider, node: &Target) -> anyhow::Result<()> {
    let mut changes = cluster.seen.changes();
    let before = e2e::nodes::read(&cluster.client, &node.name).await?;
    let before = testbed::boot_id(&before).unwrap_or_default().to_owned();
    let address = format!("http://{}", provider.address());
    let channel = Endpoint::from_shared(address)?.connect().await?;
    let mut provider = CspProviderServiceClient::new(channel);
    let request = SendRebootSignalRequest {
        node_name: node.name.clone(),
    };
    provider.send_reboot_signal(request).await?;
    let deadline = Instant::now() + DEADLINE * 2;
    loop {
        let what = format!("the reboot of {}", node.name);
        let change = changes.next(deadline, &what).await?;
        let back = change
            .node_look()
            .is_some_and(|look| look.boot != before && look.holds.contains("Ready"));
        if back && change.node == node.name {
            return Ok(());
        }
    }
}
