//! What a restart, a switch and an outage leave of a drain.

use decide::drain::BlockedBy;
use health_event::NodeName;
use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use testbed::{Component, wait_for};

use super::{
    FLAGS, assert_untouched, config, drain_of, draining, finishes, pod, pod_calls, takes_out,
    until_blocked, until_drain, until_event, without_finalizer,
};
use crate::harness::{Cluster, Controller, SOON, fatal, label};
use crate::process::Program;
use crate::voice::Voice;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_row_9_10_80_killed_in_the_middle_it_goes_on_with_the_same_deadlines_and_asks_once() {
    let cluster = Cluster::with_nodes(&["dr-kill"]).await;
    let node = "dr-kill";
    pod(&cluster, node, "dk-now", "p", super::with_finalizer()).await;
    pod(&cluster, node, "dk-else", "p", json!({})).await;
    let voice = draining(&cluster, node, "").await;
    takes_out(&voice, node).await;
    let blocked = ["dk-else/p completion", "dk-now/p terminating"];
    until_blocked(&voice, &blocked).await;
    let draining =
        |node: &Node| label(node, "dgxc.nvidia.com/nvsentinel-state") == Some("draining");
    cluster.until(node, "draining", draining).await;
    let has = ": [dk-else/p]";
    let before = until_event(&cluster, node, "Normal", "AwaitingPodCompletion", has).await;
    let drain = drain_of(&voice.shown().await).clone();
    let voice = voice.restart(&cluster).await;
    until_blocked(&voice, &blocked).await;
    let again = drain_of(&voice.shown().await).clone();
    for key in ["since", "immediate_deadline", "delete_at"] {
        assert_eq!(again[key], drain[key], "{key}");
    }
    wait_for("the Event said again", SOON, || async {
        let after = until_event(&cluster, node, "Normal", "AwaitingPodCompletion", has).await;
        Ok(
            (after.count > before.count && after.last_timestamp >= before.last_timestamp)
                .then_some(()),
        )
    })
    .await
    .unwrap();
    without_finalizer(&cluster, "dk-now", "p").await;
    finishes(&cluster, "dk-else", "p").await;
    until_drain(&voice, "Drained", "").await;
    let calls = pod_calls(&cluster, "dk-now");
    assert_eq!(
        calls.len(),
        1,
        "a pod that goes is not asked again: {calls:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn switched_back_to_cordon_a_running_drain_is_cancelled_and_none_begins() {
    let cluster = Cluster::with_nodes(&["dr-off", "dr-new"]).await;
    pod(&cluster, "dr-off", "df-later", "p", json!({})).await;
    pod(&cluster, "dr-new", "df-now", "p", json!({})).await;
    let voice = draining(&cluster, "dr-off", "").await;
    takes_out(&voice, "dr-off").await;
    until_blocked(&voice, &["df-later/p timeout"]).await;
    voice.program.rewrite("cordon", &config(""));
    let kubeconfig = cluster.testbed.kubeconfig();
    let program = Program::start_again(voice.program.kill(), &kubeconfig, &FLAGS);
    let mut voice = Voice::of(program, "dr-off").await;
    until_drain(&voice, "Cancelled", "").await;
    takes_out(&voice, "dr-new").await;
    voice.node = "dr-new";
    voice
        .until("quarantined", |node| {
            node["incidents"][0]["state"] == "Quarantined"
        })
        .await;
    tokio::time::sleep(std::time::Duration::from_secs(4)).await;
    assert_untouched(&cluster, "df-later", "p").await;
    assert_untouched(&cluster, "df-now", "p").await;
    assert!(drain_of(&voice.shown().await).is_null());
    assert!(pod_calls(&cluster, "df-now").is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_that_is_away_in_the_middle_makes_nothing_drained_and_the_drain_goes_on() {
    let cluster = Cluster::with_nodes(&["dr-away"]).await;
    let node = "dr-away";
    pod(&cluster, node, "dy-else", "p", json!({})).await;
    let folder = tempfile::tempdir().unwrap();
    let text = format!("profile = 'drain'\n{}", config(""));
    let controller = Controller::start_with(&cluster, folder.path(), &text).await;
    controller.append(fatal(node, "Test", "0")).await;
    let name = NodeName::new(node).unwrap();
    let state = || {
        let open = controller.context.store.open_incidents_of(&name).unwrap();
        let drain = open.first().and_then(|incident| incident.drain.clone());
        drain.map(|drain| drain.status.as_str())
    };
    let waits = || {
        let look = controller.context.stages.pods(&name).unwrap_or_default();
        look.blockers.iter().any(|b| b.why == BlockedBy::Completion)
    };
    let until = async |what: &str, is: &dyn Fn() -> bool| {
        let seen = || async { Ok(is().then_some(())) };
        wait_for(what.to_owned(), SOON, seen).await.unwrap();
    };
    until("the pod to be waited for", &waits).await;
    cluster.testbed.stop(Component::ApiServer).await;
    let is_old = || {
        let known = controller.context.pods.of_node(&name);
        known.is_some_and(|known| known.old_since.is_some())
    };
    until("the watch to fail", &is_old).await;
    assert_eq!(state(), Some("Draining"));
    assert!(waits(), "what was seen last stays");
    cluster.start_api_server().await;
    until("the pods to be listed anew", &|| !is_old()).await;
    assert_eq!(state(), Some("Draining"));
    finishes(&cluster, "dy-else", "p").await;
    until("drained", &|| state() == Some("Drained")).await;
    controller.kill().await;
}
