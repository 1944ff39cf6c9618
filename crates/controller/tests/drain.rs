//! The work moved off nodes that are out.

mod begins;
mod budgets;
mod ends;
mod fleet;
mod modes;
mod pace;
mod restarts;

use health_event::HealthEvent;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testbed::{AuditEvent, wait_for};

use crate::harness::{Cluster, RULES, SOON, fatal, healthy};
use crate::process::Program;
use crate::voice::Voice;

const FLAGS: [&str; 1] = ["--insecure-local"];

/// Namespaces that end so are drained so; all others are let alone.
const DRAIN: &str = r#"
    [drain]
    first_action_delay = "0s"
    systemNamespaces = "^kube-"
    deleteAfterTimeoutMinutes = 0.2
    [[drain.userNamespaces]]
    name = "*-now"
    mode = "Immediate"
    [[drain.userNamespaces]]
    name = "*-later"
    mode = "DeleteAfterTimeout"
    [[drain.userNamespaces]]
    name = "*-else"
    mode = "AllowCompletion"
"#;

/// The harness' rules and [`DRAIN`], with these keys of `[drain]`, each in place of its own there.
fn config(keys: &str) -> String {
    let rules = RULES.replace("profile = \"cordon\"", "");
    let named = |line: &str| line.split('=').next().unwrap_or_default().trim().to_owned();
    let given: Vec<String> = keys.lines().map(named).collect();
    let kept = |line: &&str| !line.contains('=') || !given.contains(&named(line));
    let drain: Vec<&str> = DRAIN.lines().filter(kept).collect();
    let drain = drain
        .join("\n")
        .replacen("[drain]", &format!("[drain]\n{keys}"), 1);
    format!("{rules}\n{drain}")
}

/// The program in profile drain, at a node.
async fn draining(cluster: &Cluster, node: &'static str, keys: &str) -> Voice {
    started(cluster, node, &config(keys)).await
}

async fn started(cluster: &Cluster, node: &'static str, config: &str) -> Voice {
    cluster.testbed.ensure_namespace("warden").await.unwrap();
    let (folder, kubeconfig) = (tempfile::tempdir().unwrap(), cluster.testbed.kubeconfig());
    let program = Program::start_as("drain", folder, &kubeconfig, config, &FLAGS);
    Voice::of(program, node).await
}

/// A fault that takes the node out; answers the word that it is well again.
async fn takes_out(voice: &Voice, node: &str) -> HealthEvent {
    let fault = fatal(node, "Test", "0");
    send(voice, fault.clone()).await;
    healthy(&fault)
}

async fn send(voice: &Voice, event: HealthEvent) {
    voice.sender.send(vec![event.into()]).await.unwrap();
}

fn pods(cluster: &Cluster, namespace: &str) -> Api<Pod> {
    Api::namespaced(cluster.testbed.admin(), namespace)
}

/// A pod bound to a node, that runs; the object is merged with `extra`.
async fn pod(cluster: &Cluster, node: &str, namespace: &str, name: &str, extra: Value) -> Pod {
    cluster.testbed.ensure_namespace(namespace).await.unwrap();
    let mut object = json!({
        "metadata": { "name": name, "labels": { "app": name } },
        "spec": { "nodeName": node, "containers": [{ "name": "main", "image": "pause" }] },
    });
    merge(&mut object, extra);
    let api = pods(cluster, namespace);
    let object = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap();
    wait_for(format!("{namespace}/{name} to run"), SOON, || async {
        Ok(Some(api.get(name).await?).filter(testbed::is_running))
    })
    .await
    .unwrap()
}

fn merge(into: &mut Value, patch: Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, patch) => *into = patch,
    }
}

/// A pod that stays until its finalizer goes.
fn with_finalizer() -> Value {
    json!({ "metadata": { "finalizers": ["warden.test/stays"] } })
}

async fn without_finalizer(cluster: &Cluster, namespace: &str, name: &str) {
    let patch = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    let api = pods(cluster, namespace);
    api.patch(name, &PatchParams::default(), &patch)
        .await
        .unwrap();
}

/// What the kubelet says at the end of a pod.
async fn finishes(cluster: &Cluster, namespace: &str, name: &str) {
    let patch = Patch::Merge(json!({ "status": { "phase": "Succeeded" } }));
    let api = pods(cluster, namespace);
    api.patch_status(name, &PatchParams::default(), &patch)
        .await
        .unwrap();
}

async fn delete(cluster: &Cluster, namespace: &str, name: &str) {
    let now = DeleteParams::default().grace_period(0);
    pods(cluster, namespace).delete(name, &now).await.unwrap();
}

async fn until_gone(cluster: &Cluster, namespace: &str, name: &str) {
    let api = pods(cluster, namespace);
    wait_for(format!("{namespace}/{name} to go"), SOON, || async {
        Ok(api.get_opt(name).await?.is_none().then_some(()))
    })
    .await
    .unwrap();
}

/// It is there, and nobody asked it to go.
async fn assert_untouched(cluster: &Cluster, namespace: &str, name: &str) {
    let pod = pods(cluster, namespace).get(name).await.unwrap();
    assert_eq!(pod.metadata.deletion_timestamp, None, "{namespace}/{name}");
}

/// The drain of the node's open incident.
fn drain_of(node: &Value) -> &Value {
    &node["incidents"][0]["drain"]
}

async fn until_drain(voice: &Voice, state: &str, detail: &str) -> Value {
    voice
        .until(&format!("drain {state} {detail}"), |node| {
            let drain = drain_of(node);
            drain["state"] == state && drain["detail"] == detail
        })
        .await;
    drain_of(&voice.shown().await).clone()
}

/// Waits until the drain waits for exactly these pods, each for this: `a-now/pod asked`.
async fn until_blocked(voice: &Voice, want: &[&str]) {
    voice
        .until(&format!("{want:?}"), |node| {
            blockers(drain_of(node)) == want
        })
        .await;
}

fn blockers(drain: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = drain["blockers"].as_array().into_iter().flatten();
    all.map(|b| format!("{} {}", text(&b["pod"]), text(&b["why"])))
        .collect()
}

/// What the API server's log says of evictions and deletions of a namespace's pods.
fn pod_calls(cluster: &Cluster, namespace: &str) -> Vec<AuditEvent> {
    let events = cluster.testbed.audit_events().unwrap().into_iter();
    let ours = events.filter(|event| {
        let asks = event.verb == "delete" || event.subresource == "eviction";
        event.resource == "pods" && event.namespace == namespace && asks && event.user == "admin"
    });
    ours.collect()
}

/// Waits for an Event on the node whose message has this.
async fn until_event(cluster: &Cluster, node: &str, kind: &str, reason: &str, has: &str) -> Event {
    let api: Api<Event> = Api::namespaced(cluster.testbed.admin(), "default");
    let params = ListParams::default().fields(&format!("involvedObject.name={node}"));
    wait_for(format!("an Event {reason} with {has}"), SOON, || async {
        let events = api.list(&params).await?;
        let is = |event: &&Event| {
            let says = event.message.as_ref().is_some_and(|m| m.contains(has));
            says && event.reason.as_deref() == Some(reason) && event.type_.as_deref() == Some(kind)
        };
        let found = events.items.iter().find(is).cloned();
        let all = events
            .items
            .iter()
            .map(|e| (&e.type_, &e.reason, &e.message));
        anyhow::ensure!(found.is_some(), "{:?}", all.collect::<Vec<_>>());
        Ok(found)
    })
    .await
    .unwrap()
}

/// Waits until the incident of the node is over, and its drain with it.
async fn until_over(voice: &Voice) {
    voice
        .until("no open incident", |node| {
            let last = &node["incidents"][0];
            last["closed_at"].is_string() && last["drain"]["state"] == "Cancelled"
        })
        .await;
}
