//! Restarts, lost stores and nodes that register again.

use health_event::NodeName;
use serde_json::json;
use testbed::{Component, NodeSpec};

use super::quarantined;
use crate::harness::{
    Cluster, Controller, RULES, SOON, annotation, fatal, healthy, is_cordoned, is_marked, metadata,
    taint_keys,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_who_uncordons_while_we_were_killed_in_applying_is_heard() {
    let cluster = Cluster::with_nodes(&["q-killed"]).await;
    let folder = tempfile::tempdir().unwrap();
    let mut controller = Controller::start(&cluster, folder.path()).await;
    // Frozen, the controller writes and never sees it: its incident stays Applying.
    controller.freeze().await;
    controller.append(fatal("q-killed", "Test", "0")).await;
    cluster.until("q-killed", "marked", is_marked).await;
    controller.until_state("q-killed", "Applying").await;
    controller.kill().await;
    cluster
        .merge("q-killed", json!({ "spec": { "unschedulable": null } }))
        .await;
    let controller = Controller::start(&cluster, folder.path()).await;
    let node = cluster
        .until("q-killed", "unmarked", |node| !is_marked(node))
        .await;
    assert!(!is_cordoned(&node));
    assert_eq!(
        controller.until_closed("q-killed").await,
        "Closed(ManualUncordon)"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_intent_that_was_never_written_is_written_after_a_restart() {
    let cluster = Cluster::with_nodes(&["q-intent"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(&cluster, folder.path()).await;
    cluster.testbed.stop(Component::ApiServer).await;
    controller.append(fatal("q-intent", "Test", "0")).await;
    controller.until_state("q-intent", "Applying").await;
    controller.kill().await;
    cluster.start_api_server().await;
    assert!(!is_marked(&cluster.get("q-intent").await));
    let controller = Controller::start(&cluster, folder.path()).await;
    cluster.until("q-intent", "cordoned", is_cordoned).await;
    controller.until_state("q-intent", "Quarantined").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_that_restarts_is_found_again() {
    let cluster = Cluster::with_nodes(&["q-restart"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(&cluster, folder.path()).await;
    cluster.testbed.stop(Component::ApiServer).await;
    let fault = fatal("q-restart", "Test", "0");
    controller.append(fault.clone()).await;
    controller.until_state("q-restart", "Applying").await;
    cluster.start_api_server().await;
    cluster.until("q-restart", "cordoned", is_cordoned).await;
    controller.append(healthy(&fault)).await;
    cluster
        .until("q-restart", "released", |node| !is_cordoned(node))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_registers_again_is_the_same_only_on_the_same_machine() {
    let cluster = Cluster::with_nodes(&["q-again"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(&cluster, folder.path()).await;
    quarantined(&cluster, &controller, "q-again", "Test").await;
    let first = cluster.get("q-again").await.metadata.uid;
    cluster.delete("q-again").await;
    assert_eq!(
        controller.until_closed("q-again").await,
        "Closed(NodeDeleted)"
    );
    cluster.add(&["q-again"]).await;
    let node = cluster.until("q-again", "marked again", is_marked).await;
    assert_ne!(node.metadata.uid, first);
    controller.until_state("q-again", "Quarantined").await;
    cluster.delete("q-again").await;
    let mut other = NodeSpec::new("q-again");
    other.system_uuid = "00000000-0000-4000-8000-000000000001".to_owned();
    cluster.testbed.add_nodes(&[other]).await.unwrap();
    cluster
        .testbed
        .wait_nodes_ready(&["q-again"], SOON)
        .await
        .unwrap();
    // A fault of this machine is what shows that the other's had no effect.
    assert_eq!(
        controller.until_closed("q-again").await,
        "Closed(NodeDeleted)"
    );
    controller.append(fatal("q-again", "Test", "1")).await;
    let node = cluster.until("q-again", "marked", is_marked).await;
    let events = annotation(&node, "quarantineHealthEvent").unwrap();
    assert!(
        events.contains("GPU 1") && !events.contains("GPU 0"),
        "{events}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_store_is_rebuilt_from_the_nodes() {
    let cluster = Cluster::with_nodes(&["q-lost"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(&cluster, folder.path()).await;
    let fault = quarantined(&cluster, &controller, "q-lost", "Both").await;
    let before = metadata(&cluster.get("q-lost").await);
    controller.kill().await;
    let empty = tempfile::tempdir().unwrap();
    let controller = Controller::start(&cluster, empty.path()).await;
    controller.until_state("q-lost", "Quarantined").await;
    let node = cluster.get("q-lost").await;
    assert!(is_cordoned(&node) && is_marked(&node));
    assert_eq!(metadata(&node).0, before.0, "labels stay");
    let name = NodeName::new("q-lost").unwrap();
    assert_eq!(
        controller.context.store.open_faults(&name).unwrap().len(),
        1
    );
    controller.append(healthy(&fault)).await;
    let node = cluster
        .until("q-lost", "released", |node| !is_marked(node))
        .await;
    assert!(!is_cordoned(&node) && taint_keys(&node).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stray_marks_are_removed_at_start() {
    let cluster = Cluster::with_nodes(&["q-stray"]).await;
    let folder = tempfile::tempdir().unwrap();
    let mark = r#"{"id":"01ARZ3NDEKTSV4RRFFQ69G5FAV","version":1,"nodeUID":"another"}"#;
    let marks = json!({ "warden.dev/incident": mark, "quarantineHealthEvent": "[]",
                        "quarantineHealthEventIsCordoned": "True" });
    cluster
        .merge("q-stray", json!({ "metadata": { "annotations": marks } }))
        .await;
    let _controller = Controller::start(&cluster, folder.path()).await;
    let node = cluster
        .until("q-stray", "unmarked", |node| !is_marked(node))
        .await;
    assert!(!is_cordoned(&node));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_a_person_gave_back_before_the_store_was_lost_is_held() {
    let cluster = Cluster::with_nodes(&["q-held"]).await;
    let folder = tempfile::tempdir().unwrap();
    let record = json!({ "quarantinedNodeUncordonedManually": "True" });
    cluster
        .merge("q-held", json!({ "metadata": { "annotations": record } }))
        .await;
    // No agent reports here: the wait for its word ends with the time to settle.
    let rules = RULES.replace("[quarantine]\n", "[quarantine]\nsettle_timeout = \"10s\"\n");
    let controller = Controller::start_with(&cluster, folder.path(), &rules).await;
    controller.append(fatal("q-held", "Test", "0")).await;
    assert_eq!(
        controller.until_closed("q-held").await,
        "Closed(ManualUncordon)"
    );
    assert!(!is_marked(&cluster.get("q-held").await));
    // What comes later is new.
    controller.append(fatal("q-held", "Test", "1")).await;
    let node = cluster.until("q-held", "marked", is_marked).await;
    assert!(
        !annotation(&node, "quarantineHealthEvent")
            .unwrap()
            .contains("GPU 0")
    );
}
