//! What a person would look for on a Node object, read with a client of its own.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use testbed::wait_for;

/// Labels and annotations that Warden puts on nodes while an incident is open, and those that stay
/// as records after it.
const RECORDS: [&str; 6] = [
    "uncordon-by",
    "uncordon-reason",
    "uncordon-timestamp",
    "quarantinedNodeUncordonedManually",
    "quarantinedNodeUntaintedManually",
    "warden.dev/conditions",
];

/// The node as it is now.
///
/// # Errors
/// The API server does not answer, or there is no such node.
pub async fn read(client: &Client, name: &str) -> anyhow::Result<Node> {
    Ok(Api::<Node>::all(client.clone()).get(name).await?)
}

/// Whether the node is cordoned.
pub fn is_cordoned(node: &Node) -> bool {
    node.spec
        .as_ref()
        .and_then(|spec| spec.unschedulable)
        .unwrap_or(false)
}

/// Status of a condition.
pub fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a str> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|c| c.type_ == kind)
        .map(|c| c.status.as_str())
}

/// Value of an annotation.
pub fn annotation<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata
        .annotations
        .as_ref()?
        .get(key)
        .map(String::as_str)
}

/// Keys of labels and annotations that only an open incident puts there.
pub fn marks(node: &Node) -> Vec<String> {
    let empty = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&empty);
    let annotations = node.metadata.annotations.as_ref().unwrap_or(&empty);
    labels
        .keys()
        .chain(annotations.keys())
        .filter(|key| !key.starts_with("testbed."))
        .filter(|key| {
            let ours = ["cordon", "quarantine", "nvsentinel-state", "warden.dev/"];
            ours.iter().any(|part| key.contains(part))
                && !RECORDS.iter().any(|record| key.ends_with(record))
        })
        .cloned()
        .collect()
}

/// Waits until the node is as wanted.
///
/// # Errors
/// It was not, in time.
pub async fn wait(
    client: &Client,
    name: &str,
    what: &str,
    deadline: Duration,
    wanted: impl Fn(&Node) -> bool,
) -> anyhow::Result<Node> {
    wait_for(format!("node {name} to be {what}"), deadline, || async {
        let node = read(client, name).await?;
        Ok(wanted(&node).then_some(node))
    })
    .await
}

/// What `kubectl cordon` and `kubectl uncordon` do.
///
/// # Errors
/// The API server refuses.
pub async fn set_cordon(client: &Client, name: &str, cordoned: bool) -> anyhow::Result<()> {
    let patch = json!({"spec": {"unschedulable": cordoned}});
    let nodes: Api<Node> = Api::all(client.clone());
    nodes
        .patch(name, &PatchParams::default(), &Patch::Strategic(patch))
        .await?;
    Ok(())
}

/// What `kubectl label` does.
///
/// # Errors
/// The API server refuses.
pub async fn set_label(client: &Client, name: &str, key: &str, value: &str) -> anyhow::Result<()> {
    let patch = json!({"metadata": {"labels": {key: value}}});
    let nodes: Api<Node> = Api::all(client.clone());
    nodes
        .patch(name, &PatchParams::default(), &Patch::Strategic(patch))
        .await?;
    Ok(())
}
