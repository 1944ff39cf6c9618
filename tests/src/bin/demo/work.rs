//! The work on the nodes: a service behind a disruption budget, and a training run that may finish.

use std::time::Instant;

use anyhow::{Context as _, ensure};
use e2e::Controller;
use e2e::view::{Tone, View};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testbed::{Testbed, wait_for};

use crate::look;
use crate::measured::Times;
use crate::story::{DEADLINE, VICTIM};

/// Its pods are evicted at once, as its budget allows.
pub(crate) const SERVING: &str = "serving";
const SERVICE: &str = "inference";
/// Two on each node.
const REPLICAS: usize = 16;
/// Its pods may finish.
const TRAINING: &str = "training";

/// How the demo's controller drains.
pub(crate) const POLICY: &str = r#"
[drain]
first_action_delay = "0s"
[[drain.userNamespaces]]
name = "serving"
mode = "Immediate"
[[drain.userNamespaces]]
name = "training"
mode = "AllowCompletion"
"#;

/// Puts it there.
pub(crate) async fn begin(view: &View, testbed: &Testbed) -> anyhow::Result<()> {
    let step = view.step("a service with a disruption budget, and a training run");
    testbed.deploy(SERVING, SERVICE, REPLICAS, DEADLINE).await?;
    let budget: PodDisruptionBudget = serde_json::from_value(json!({
        "metadata": { "name": SERVICE },
        "spec": {
            "minAvailable": REPLICAS,
            "selector": { "matchLabels": { "app": SERVICE } },
        },
    }))?;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(testbed.admin(), SERVING);
    budgets.create(&PostParams::default(), &budget).await?;
    testbed.create_pods_on(VICTIM, TRAINING, 1).await?;
    step.done(&format!("{REPLICAS} pods serve, one on {VICTIM} trains"));
    Ok(())
}

/// A further job of the same kind; none of its pods may come onto the node.
pub(crate) async fn avoids(view: &View, testbed: &Testbed) -> anyhow::Result<()> {
    view.title("New pods avoid it");
    let step = view.step("a second service of 14 pods");
    testbed
        .deploy(SERVING, "late-inference", 14, DEADLINE)
        .await?;
    let late = on_victim(testbed, SERVING, "late-").await?;
    ensure!(late.is_empty(), "a new pod was scheduled onto {VICTIM}");
    step.done(&format!("14 running, none on {VICTIM}"));
    Ok(())
}

/// The work leaves the node: what the budget keeps goes once it is opened, what trains once it is
/// through.
pub(crate) async fn leaves(
    view: &View,
    testbed: &Testbed,
    controller: &Controller,
    times: &mut Times,
) -> anyhow::Result<()> {
    view.title(&format!("The work moves off {VICTIM}"));
    waits_for(controller, "budget").await?;
    view.note("The budget of the service allows no disruption. Nobody is killed for it; who is on");
    view.note("call reads what it waits for:");
    look::warden(view, controller, &["explain", VICTIM]).await?;
    let step = view.step("the service's team opens its budget by two pods");
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(testbed.admin(), SERVING);
    let opened = json!({ "spec": { "minAvailable": REPLICAS - 2 } });
    let begin = Instant::now();
    budgets
        .patch(SERVICE, &PatchParams::default(), &Patch::Merge(opened))
        .await?;
    step.done("");
    let mut left = on_victim(testbed, SERVING, SERVICE).await?.len();
    while left > 0 {
        let fewer = wait_for("the next pod of the service to go", DEADLINE, || async {
            let now = on_victim(testbed, SERVING, SERVICE).await?.len();
            Ok((now < left).then_some(now))
        });
        left = fewer.await?;
        let text = match left {
            1 => "a pod of the service is evicted; one is left",
            _ => "the last pod of the service is gone",
        };
        view.happened(Tone::Good, begin.elapsed(), text);
    }
    let took = begin.elapsed();
    times.add("budget opened → service off the node", took, "list");
    waits_for(controller, "completion").await?;
    let training = on_victim(testbed, TRAINING, "").await?;
    ensure!(
        matches!(training.as_slice(), [pod] if testbed::is_running(pod) && pod.metadata.deletion_timestamp.is_none()),
        "the training run was not left alone: {training:?}"
    );
    view.note("The training run may finish (AllowCompletion): nobody has touched it. Now it does.");
    let begin = Instant::now();
    finish(testbed, &training[0]).await?;
    drains(controller, "end", |drain| drain["state"] == "Drained").await?;
    let took = begin.elapsed();
    view.happened(Tone::Good, took, "the node is empty: Drained");
    times.add("last pod finished → Drained", took, "API");
    Ok(())
}

async fn waits_for(controller: &Controller, why: &str) -> anyhow::Result<()> {
    drains(controller, &format!("wait for {why}"), |drain| {
        let mut blockers = drain["blockers"].as_array().into_iter().flatten();
        blockers.any(|blocker| blocker["why"] == why)
    })
    .await
}

async fn drains(
    controller: &Controller,
    what: &str,
    is: impl Fn(&Value) -> bool,
) -> anyhow::Result<()> {
    let path = format!("/api/v1/nodes/{VICTIM}");
    let waited = wait_for(format!("the drain to {what}"), DEADLINE, || async {
        let shown = controller.json(&path).await?;
        let drain = &shown["incidents"][0]["drain"];
        ensure!(is(drain), "{drain:#}");
        Ok(Some(()))
    });
    waited.await.with_context(|| controller.log_tail())
}

/// Pods on the node that are not at their end, by the beginning of their names.
async fn on_victim(testbed: &Testbed, namespace: &str, prefix: &str) -> anyhow::Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(testbed.admin(), namespace);
    let on_node = ListParams::default().fields(&format!("spec.nodeName={VICTIM}"));
    let pods = pods.list(&on_node).await?.items.into_iter();
    let is_meant = |pod: &Pod| {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        name.starts_with(prefix)
    };
    Ok(pods.filter(is_meant).collect())
}

/// What a training run does that is through.
async fn finish(testbed: &Testbed, pod: &Pod) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::namespaced(testbed.admin(), TRAINING);
    let name = pod.metadata.name.as_deref().context("a pod has no name")?;
    let over = json!({ "status": { "phase": "Succeeded" } });
    pods.patch_status(name, &PatchParams::default(), &Patch::Merge(over))
        .await?;
    Ok(())
}
