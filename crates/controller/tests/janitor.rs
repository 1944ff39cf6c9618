//! Repairs carried out, against a simulated provider and simulated nodes.

mod course;
mod crash;
mod kept;
mod locks;
mod parallel;
mod provider;
mod rows;
mod ttl;

use std::path::Path;

use controller::janitor::{self, StoredIntent};
use controller::lease::Leadership;
use controller::nodes::{Keys, Wanted};
use controller::reboots;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
};
use serde_json::{Value, json};
use testbed::{Behaviour, Outcome, ProviderOptions, SimProvider, wait_for};
use tokio::task::JoinSet;

use crate::harness::{Cluster, Controller, RULES, SOON};

/// The definition that ships.
const CRD: &str = include_str!("../../../deploy/crds/janitor.dgxc.nvidia.com_rebootnodes.yaml");

/// Carries out what others order; times that a test can wait for.
const JANITOR: &str = r#"
    [drain]
    enabled = false
    [remediation]
    enabled = false
    [janitor]
    cspProviderInsecure = true
    cspProviderTokenPath = ""
    timeout = "8s"
    queue_timeout = "8s"
    no_reboot_after = "1s"
    ask_interval = "100ms"
"#;

/// The configuration with a provider and these keys of `[janitor]`, each in place of its own.
fn config(host: &str, keys: &str) -> String {
    let rules = RULES.replace("profile = \"cordon\"", "profile = \"remediate\"");
    format!("{rules}\n{}", section(host, keys))
}

fn section(host: &str, keys: &str) -> String {
    let named = |line: &str| line.split('=').next().unwrap_or_default().trim().to_owned();
    let given: Vec<String> = keys.lines().map(named).collect();
    let kept = |line: &&str| !line.contains('=') || !given.contains(&named(line));
    let janitor: Vec<&str> = JANITOR.lines().filter(kept).collect();
    format!(
        "{}\ncspProviderHost = \"{host}\"\n{keys}\n",
        janitor.join("\n")
    )
}

/// The API of the objects.
fn objects(cluster: &Cluster) -> Api<DynamicObject> {
    let resource = ApiResource {
        group: "janitor.dgxc.nvidia.com".to_owned(),
        version: "v1alpha1".to_owned(),
        api_version: "janitor.dgxc.nvidia.com/v1alpha1".to_owned(),
        kind: "RebootNode".to_owned(),
        plural: "rebootnodes".to_owned(),
    };
    Api::all_with(cluster.testbed.admin(), &resource)
}

fn leases(cluster: &Cluster) -> Api<Lease> {
    Api::namespaced(cluster.testbed.admin(), "default")
}

/// Has the API server know the objects, and none be there.
async fn install(cluster: &Cluster) {
    cluster.testbed.install_crd(CRD).await.unwrap();
    let api = objects(cluster);
    wait_for("no object to be there", SOON, || async {
        let there = api.list(&ListParams::default()).await?.items;
        for object in &there {
            let patch = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
            let name = object.metadata.name.as_deref().unwrap();
            api.patch(name, &PatchParams::default(), &patch).await.ok();
            api.delete(name, &DeleteParams::default()).await.ok();
        }
        Ok(there.is_empty().then_some(()))
    })
    .await
    .unwrap();
}

/// A person's order.
async fn order(cluster: &Cluster, name: &str, node: &str) -> DynamicObject {
    order_with(cluster, name, json!({ "nodeName": node }), json!({})).await
}

async fn order_with(
    cluster: &Cluster,
    name: &str,
    spec: Value,
    annotations: Value,
) -> DynamicObject {
    let object = json!({
        "apiVersion": "janitor.dgxc.nvidia.com/v1alpha1",
        "kind": "RebootNode",
        "metadata": { "name": name, "annotations": annotations },
        "spec": spec,
    });
    let object = serde_json::from_value(object).unwrap();
    objects(cluster)
        .create(&PostParams::default(), &object)
        .await
        .unwrap()
}

/// A person's change of an object's status.
async fn say(cluster: &Cluster, name: &str, status: Value) {
    let patch = Patch::Merge(json!({ "status": status }));
    objects(cluster)
        .patch_status(name, &PatchParams::default(), &patch)
        .await
        .unwrap();
}

async fn status(cluster: &Cluster, name: &str) -> Value {
    objects(cluster).get(name).await.unwrap().data["status"].clone()
}

/// Status, reason and message of a condition.
fn condition(status: &Value, kind: &str) -> Option<(String, String, String)> {
    let conditions = status["conditions"].as_array()?;
    let found = conditions.iter().find(|c| c["type"] == kind)?;
    let text = |key: &str| found[key].as_str().unwrap().to_owned();
    Some((text("status"), text("reason"), text("message")))
}

/// Waits until an object's status is so.
async fn until(cluster: &Cluster, name: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    let api = objects(cluster);
    wait_for(format!("{name}: {what}"), SOON, || async {
        let status = api.get(name).await?.data["status"].clone();
        anyhow::ensure!(is(&status), "{status:#}");
        Ok(Some(status))
    })
    .await
    .unwrap()
}

/// Waits for its end; answers status and reason of `NodeReady`.
async fn end(cluster: &Cluster, name: &str) -> (String, String) {
    let over = |status: &Value| status["completionTime"].is_string();
    let status = until(cluster, name, "its end", over).await;
    let (is, reason, _) = condition(&status, "NodeReady").unwrap();
    (is, reason)
}

fn succeeded() -> (String, String) {
    failed_as("True", "Succeeded")
}

fn failed(reason: &str) -> (String, String) {
    failed_as("False", reason)
}

fn failed_as(status: &str, reason: &str) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}

/// A provider and the module in this process, over one store.
struct Rig<'a> {
    cluster: &'a Cluster,
    provider: SimProvider,
    controller: Controller,
    tasks: JoinSet<()>,
    config: String,
    store: tempfile::TempDir,
}

impl<'a> Rig<'a> {
    /// With these keys of `[janitor]`.
    async fn start(cluster: &'a Cluster, keys: &str) -> Self {
        install(cluster).await;
        let provider = SimProvider::start(ProviderOptions::new(cluster.testbed.admin()));
        let provider = provider.await.unwrap();
        let config = config(&provider.address().to_string(), keys);
        Self::start_on(cluster, provider, config, tempfile::tempdir().unwrap()).await
    }

    /// By a whole configuration, on what is there.
    async fn start_on(
        cluster: &'a Cluster,
        provider: SimProvider,
        config: String,
        store: tempfile::TempDir,
    ) -> Self {
        let (controller, tasks) = run(cluster, store.path(), &config).await;
        Self {
            cluster,
            provider,
            controller,
            tasks,
            config,
            store,
        }
    }

    /// Ends the module as a kill would, and starts it on what is left.
    async fn restart(mut self) -> Self {
        self.tasks.shutdown().await;
        self.controller.kill().await;
        Self::start_on(self.cluster, self.provider, self.config, self.store).await
    }

    fn behave(&self, outcome: Outcome) {
        self.provider.behave(Behaviour {
            outcome,
            ..Behaviour::default()
        });
    }

    fn intents(&self) -> Vec<StoredIntent> {
        janitor::intents(&self.controller.context.store).unwrap()
    }

    /// Waits until nothing is held any more: neither lock nor intent.
    async fn until_free(&self, node: &str) {
        wait_for(format!("{node}: neither lock nor intent"), SOON, || async {
            let lease = leases(self.cluster).get_opt(node).await?;
            let intents = self.intents();
            anyhow::ensure!(
                lease.is_none() && intents.is_empty(),
                "{lease:?} {intents:?}"
            );
            Ok(Some(()))
        })
        .await
        .unwrap();
    }

    async fn until_signals(&self, node: &str, count: usize) {
        wait_for(format!("{node}: {count} signals"), SOON, || async {
            let calls = self.provider.calls();
            anyhow::ensure!(self.provider.signals(node) == count, "{calls:?}");
            Ok(Some(()))
        })
        .await
        .unwrap();
    }
}

async fn run(cluster: &Cluster, store: &Path, config: &str) -> (Controller, JoinSet<()>) {
    let controller = Controller::start_with(cluster, store, config).await;
    let context = controller.context.clone();
    let labels = context.config.janitor.label_keys().collect();
    let mut wanted = Wanted::ours("");
    wanted.labels = Keys::Only(labels);
    context.nodes.want(&wanted).await;
    let mut tasks = JoinSet::new();
    let of_watch = context.clone();
    tasks.spawn(async move { match reboots::run(&of_watch).await {} });
    let leads = Leadership::unguarded(context.fencing);
    tasks.spawn(async move { janitor::run(context, leads).await.unwrap() });
    (controller, tasks)
}
