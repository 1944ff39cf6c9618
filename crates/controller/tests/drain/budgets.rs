//! What disruption budgets keep.

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};
use testbed::wait_for;
use tokio::time::Instant;

use super::{
    assert_untouched, draining, pod, pod_calls, pods, takes_out, until_blocked, until_drain,
    until_event, until_gone, with_finalizer, without_finalizer,
};
use crate::harness::{Cluster, SOON};

/// A budget that lets no pod of the namespace go, once the API server knows that.
async fn budget(cluster: &Cluster, namespace: &str) -> Api<PodDisruptionBudget> {
    budget_for(cluster, namespace, json!({})).await
}

/// The same for the one pod that is selected.
async fn budget_for(
    cluster: &Cluster,
    namespace: &str,
    selector: Value,
) -> Api<PodDisruptionBudget> {
    let api: Api<PodDisruptionBudget> = Api::namespaced(cluster.testbed.admin(), namespace);
    let budget = serde_json::from_value(json!({
        "metadata": { "name": "keep" },
        "spec": { "minAvailable": 1, "selector": selector },
    }))
    .unwrap();
    api.create(&PostParams::default(), &budget).await.unwrap();
    wait_for("the budget to be counted", SOON, || async {
        let status = api.get("keep").await?.status;
        let counted =
            status.is_some_and(|s| s.expected_pods == 1 && s.observed_generation == Some(1));
        Ok(counted.then_some(()))
    })
    .await
    .unwrap();
    api
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_budget_is_asked_again_and_its_words_are_shown_until_it_opens() {
    let cluster = Cluster::with_nodes(&["db-opens"]).await;
    let node = "db-opens";
    pod(&cluster, node, "do-now", "p", json!({})).await;
    let budget = budget(&cluster, "do-now").await;
    let voice = draining(&cluster, node, "").await;
    let began = Instant::now();
    takes_out(&voice, node).await;
    until_blocked(&voice, &["do-now/p budget"]).await;
    let said = super::drain_of(&voice.shown().await)["blockers"][0]["detail"].clone();
    assert!(said.as_str().unwrap().contains("keep"), "{said}");
    until_event(&cluster, node, "Warning", "EvictionBlocked", "[do-now/p]: ").await;
    let refused = format!(
        "node_drainer_processing_errors_total{{error_type=\"PDB_blocking_eviction_error\",node=\"{node}\"}} "
    );
    wait_for("refused evictions to be counted", SOON, || async {
        let (_, page) = voice.program.get("/metrics", None).await;
        Ok(page.contains(&refused).then_some(()))
    })
    .await
    .unwrap();
    assert_untouched(&cluster, "do-now", "p").await;
    budget
        .delete("keep", &DeleteParams::default())
        .await
        .unwrap();
    until_gone(&cluster, "do-now", "p").await;
    until_drain(&voice, "Drained", "").await;
    let calls = pod_calls(&cluster, "do-now").len();
    let most = 2 + began.elapsed().as_secs() / 5;
    assert!(
        calls >= 2 && calls as u64 <= most,
        "every five seconds: {calls}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_budget_that_never_opens_fails_the_drain_at_its_deadline() {
    let cluster = Cluster::with_nodes(&["db-never"]).await;
    let node = "db-never";
    pod(&cluster, node, "dv-now", "p", json!({})).await;
    budget(&cluster, "dv-now").await;
    let voice = draining(&cluster, node, "immediate_deadline = '2s'").await;
    takes_out(&voice, node).await;
    until_drain(&voice, "Failed", "immediate").await;
    until_event(&cluster, node, "Warning", "DrainFailed", "dv-now/p (").await;
    let failed =
        format!("node_drainer_events_processed_total{{drain_status=\"failed\",node=\"{node}\"}} 1");
    voice.until_counted(&[&failed]).await;
    voice.program.said_code("drain_failed").await;
    let label = |node: &k8s_openapi::api::core::v1::Node| {
        crate::harness::label(node, "dgxc.nvidia.com/nvsentinel-state") == Some("drain-failed")
    };
    cluster.until(node, "drain-failed", label).await;
    assert_untouched(&cluster, "dv-now", "p").await;
    let shown = super::drain_of(&voice.shown().await)["blockers"][0].clone();
    assert_eq!(
        shown["why"], "budget",
        "explain goes on to say why: {shown}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_it_is_configured_pods_are_deleted_past_their_budgets_at_the_deadline() {
    let cluster = Cluster::with_nodes(&["db-delete"]).await;
    let node = "db-delete";
    pod(&cluster, node, "dd-now", "p", json!({})).await;
    budget(&cluster, "dd-now").await;
    let keys = "immediate_deadline = '2s'\nat_deadline = 'delete'";
    let voice = draining(&cluster, node, keys).await;
    takes_out(&voice, node).await;
    until_blocked(&voice, &["dd-now/p budget"]).await;
    until_gone(&cluster, "dd-now", "p").await;
    until_drain(&voice, "Drained", "").await;
    let calls = pod_calls(&cluster, "dd-now");
    let verbs: Vec<&str> = calls.iter().map(|call| call.verb.as_str()).collect();
    assert_eq!(verbs, ["create", "delete"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_budget_spares_one_pod_by_its_labels_and_those_that_go_are_told_why() {
    let cluster = Cluster::with_nodes(&["db-one"]).await;
    let node = "db-one";
    pod(&cluster, node, "dbo-now", "goes", with_finalizer()).await;
    pod(&cluster, node, "dbo-now", "stays", json!({})).await;
    let selector = json!({ "matchLabels": { "app": "stays" } });
    budget_for(&cluster, "dbo-now", selector).await;
    let voice = draining(&cluster, node, "").await;
    takes_out(&voice, node).await;
    until_blocked(
        &voice,
        &["dbo-now/goes terminating", "dbo-now/stays budget"],
    )
    .await;
    assert_untouched(&cluster, "dbo-now", "stays").await;
    let going = pods(&cluster, "dbo-now").get("goes").await.unwrap();
    let said = going.status.unwrap().conditions.unwrap_or_default();
    let why = said.iter().find(|c| c.type_ == "DisruptionTarget");
    let why = why.and_then(|condition| condition.reason.as_deref());
    assert_eq!(why, Some("EvictionByEvictionAPI"), "{said:?}");
    without_finalizer(&cluster, "dbo-now", "goes").await;
    until_gone(&cluster, "dbo-now", "goes").await;
}
