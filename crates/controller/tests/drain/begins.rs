//! What a drain waits for before it begins.

use std::time::Duration;

use health_event::event::BehaviourOverrides;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use super::{
    assert_untouched, config, draining, finishes, pod, pod_calls, send, started, takes_out,
    until_blocked, until_drain, until_event, until_gone, with_finalizer, without_finalizer,
};
use crate::harness::{Cluster, fatal, label};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_row_21_dry_run_shows_what_it_would_do_and_asks_nobody() {
    let cluster = Cluster::with_nodes(&["dw-dry"]).await;
    let node = "dw-dry";
    pod(&cluster, node, "dw-now", "p", json!({})).await;
    let voice = draining(&cluster, node, "dry_run = true").await;
    takes_out(&voice, node).await;
    until_drain(&voice, "Waiting", "dry_run").await;
    until_blocked(&voice, &["dw-now/p asked"]).await;
    // Whatever would be sent is in the log before the end of this.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_untouched(&cluster, "dw-now", "p").await;
    assert!(pod_calls(&cluster, "dw-now").is_empty());
    let state =
        label(&cluster.get(node).await, "dgxc.nvidia.com/nvsentinel-state").map(str::to_owned);
    assert_eq!(state.as_deref(), Some("quarantined"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_another_node_drainer_runs_no_pod_is_asked_and_people_are_told() {
    let cluster = Cluster::with_nodes(&["dw-other"]).await;
    let node = "dw-other";
    pod(&cluster, node, "dw2-now", "p", json!({})).await;
    let api: Api<Deployment> = Api::namespaced(cluster.testbed.admin(), "default");
    let labels = json!({ "app.kubernetes.io/name": "node-drainer" });
    let deployment = serde_json::from_value(json!({
        "metadata": { "name": "node-drainer", "labels": labels },
        "spec": { "replicas": 1, "selector": { "matchLabels": labels }, "template": {
            "metadata": { "labels": labels },
            "spec": { "containers": [{ "name": "c", "image": "i" }] } } },
    }))
    .unwrap();
    api.create(&PostParams::default(), &deployment)
        .await
        .unwrap();
    let voice = draining(&cluster, node, "").await;
    takes_out(&voice, node).await;
    until_drain(&voice, "Waiting", "other_drainer").await;
    let what = "Deployment default/node-drainer";
    until_event(&cluster, node, "Warning", "DrainWithheld", what).await;
    voice.program.said_code("other_drainer").await;
    voice.until_counted(&["warden_other_drainer 1"]).await;
    assert_untouched(&cluster, "dw2-now", "p").await;
    api.delete("node-drainer", &DeleteParams::default())
        .await
        .unwrap();
    // While it runs it is looked for every ten seconds.
    until_gone(&cluster, "dw2-now", "p").await;
    until_drain(&voice, "Drained", "").await;
    voice.until_counted(&["warden_other_drainer 0"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn switched_on_the_first_drain_waits_and_a_restart_makes_it_wait_no_longer() {
    let cluster = Cluster::with_nodes(&["dw-first"]).await;
    let node = "dw-first";
    pod(&cluster, node, "dw3-now", "p", json!({})).await;
    let voice = draining(&cluster, node, "first_action_delay = '6s'").await;
    takes_out(&voice, node).await;
    let drain = until_drain(&voice, "Waiting", "first_action").await;
    let voice = voice.restart(&cluster).await;
    let again = until_drain(&voice, "Waiting", "first_action").await;
    assert_eq!(again["not_before"], drain["not_before"]);
    assert_untouched(&cluster, "dw3-now", "p").await;
    until_gone(&cluster, "dw3-now", "p").await;
    let drained = until_drain(&voice, "Drained", "").await;
    let time =
        |value: &serde_json::Value| -> jiff::Timestamp { value.as_str().unwrap().parse().unwrap() };
    assert!(time(&drained["since"]) >= time(&drain["not_before"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_controllers_own_node_is_drained_after_all_others() {
    let cluster = Cluster::with_nodes(&["dw-own", "dw-peer"]).await;
    pod(&cluster, "dw-own", "dw4-now", "p", json!({})).await;
    pod(&cluster, "dw-peer", "dw4-else", "p", json!({})).await;
    let own = "[kubernetes]\nnode_name = \"dw-own\"\n";
    let text = config("").replacen("[quarantine]", &format!("{own}[quarantine]"), 1);
    let mut voice = started(&cluster, "dw-peer", &text).await;
    takes_out(&voice, "dw-peer").await;
    until_blocked(&voice, &["dw4-else/p completion"]).await;
    voice.node = "dw-own";
    takes_out(&voice, "dw-own").await;
    until_drain(&voice, "Waiting", "own_node").await;
    assert_untouched(&cluster, "dw4-now", "p").await;
    finishes(&cluster, "dw4-else", "p").await;
    until_gone(&cluster, "dw4-now", "p").await;
    until_drain(&voice, "Drained", "").await;
}

/// What is over its time fails alone. For the others ours waits, and not for the person whom the rest needs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_controllers_own_node_waits_for_a_failed_drain_as_long_as_pods_of_it_may_be_asked() {
    let cluster = Cluster::with_nodes(&["dw-last", "dw-fails"]).await;
    pod(&cluster, "dw-last", "dw6-now", "p", json!({})).await;
    pod(&cluster, "dw-fails", "dw6-now", "stays", with_finalizer()).await;
    pod(&cluster, "dw-fails", "dw6-later", "q", json!({})).await;
    let own = "[kubernetes]\nnode_name = \"dw-last\"\n";
    let keys = "immediate_deadline = '1s'\nstuck_timeout = '2s'\ndeleteAfterTimeoutMinutes = 0.3";
    let text = config(keys).replacen("[quarantine]", &format!("{own}[quarantine]"), 1);
    let mut voice = started(&cluster, "dw-fails", &text).await;
    takes_out(&voice, "dw-fails").await;
    until_drain(&voice, "Failed", "immediate").await;
    voice.node = "dw-last";
    takes_out(&voice, "dw-last").await;
    until_drain(&voice, "Waiting", "own_node").await;
    assert_untouched(&cluster, "dw6-now", "p").await;
    // From here on nothing changes but the time.
    until_gone(&cluster, "dw6-later", "q").await;
    until_gone(&cluster, "dw6-now", "p").await;
    until_drain(&voice, "Drained", "").await;
    without_finalizer(&cluster, "dw6-now", "stays").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_node_is_not_drained_and_a_fault_that_needs_no_drain_asks_for_none() {
    let cluster = Cluster::with_nodes(&["dw-pause", "dw-skip"]).await;
    pod(&cluster, "dw-pause", "dw5-now", "p", json!({})).await;
    pod(&cluster, "dw-skip", "dw5-now", "q", json!({})).await;
    let mut voice = draining(&cluster, "dw-skip", "").await;
    let skips = health_event::HealthEvent {
        drain_overrides: Some(BehaviourOverrides {
            skip: true,
            force: false,
        }),
        ..fatal("dw-skip", "Test", "0")
    };
    send(&voice, skips).await;
    takes_out(&voice, "dw-pause").await;
    voice
        .until("quarantined", |node| {
            node["incidents"][0]["state"] == "Quarantined"
        })
        .await;
    voice.node = "dw-pause";
    until_gone(&cluster, "dw5-now", "p").await;
    until_drain(&voice, "Drained", "").await;
    // A second fault joins that wants the node empty, while a person keeps it from beginning.
    voice.node = "dw-skip";
    assert!(super::drain_of(&voice.shown().await).is_null());
    assert_untouched(&cluster, "dw5-now", "q").await;
    let pause = json!({ "metadata": { "annotations": { "warden.dev/pause": "" } } });
    cluster.merge("dw-skip", pause).await;
    voice
        .until("paused", |node| node["object"]["blocked_by"][0] == "paused")
        .await;
    send(&voice, fatal("dw-skip", "Test", "1")).await;
    until_drain(&voice, "Waiting", "paused").await;
    assert_untouched(&cluster, "dw5-now", "q").await;
    let go_on = json!({ "metadata": { "annotations": { "warden.dev/pause": null } } });
    cluster.merge("dw-skip", go_on).await;
    until_gone(&cluster, "dw5-now", "q").await;
    until_drain(&voice, "Drained", "").await;
}
