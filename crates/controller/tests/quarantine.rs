//! Nodes taken out and given back.

mod others;
mod people;
mod reload;
mod restarts;
mod withheld;

use health_event::HealthEvent;
use k8s_openapi::api::core::v1::Node;
use serde_json::json;

use crate::harness::{
    Cluster, Controller, annotation, condition, fatal, healthy, is_cordoned, is_marked, label,
    taint_keys,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fatal_fault_cordons_with_a_condition_and_its_end_releases() {
    let cluster = Cluster::with_nodes(&["q-loop"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(&cluster, folder.path()).await;
    let fault = fatal("q-loop", "Test", "0");
    controller.append(fault.clone()).await;
    let node = cluster
        .until("q-loop", "cordoned, with a condition", |node| {
            is_cordoned(node) && condition(node, "Test").is_some()
        })
        .await;
    assert_eq!(label(&node, "k8s.nvidia.com/cordon-by"), Some("Warden"));
    assert_eq!(
        label(&node, "k8s.nvidia.com/cordon-reason"),
        Some("cordon-test")
    );
    assert_eq!(
        label(&node, "dgxc.nvidia.com/nvsentinel-state"),
        Some("quarantined")
    );
    assert_eq!(
        annotation(&node, "quarantineHealthEventIsCordoned"),
        Some("True")
    );
    assert!(
        annotation(&node, "quarantineHealthEvent")
            .unwrap()
            .contains("Test failed on GPU 0")
    );
    assert_eq!(condition(&node, "Test").unwrap().0, "True");
    controller.until_state("q-loop", "Quarantined").await;

    controller.append(healthy(&fault)).await;
    let node = cluster
        .until("q-loop", "released", |node| {
            !is_cordoned(node) && condition(node, "Test").is_some_and(|c| c.0 == "False")
        })
        .await;
    assert!(!is_marked(&node));
    assert_eq!(label(&node, "k8s.nvidia.com/uncordon-by"), Some("Warden"));
    assert_eq!(controller.until_closed("q-loop").await, "Closed(Recovered)");
}

/// Quarantines a node by one fault and waits until it is known to be.
pub(crate) async fn quarantined(
    cluster: &Cluster,
    controller: &Controller,
    node: &str,
    check: &str,
) -> HealthEvent {
    let fault = fatal(node, check, "0");
    controller.append(fault.clone()).await;
    cluster.until(node, "marked", is_marked).await;
    controller.until_state(node, "Quarantined").await;
    fault
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_faults_hold_a_node_until_both_have_healed() {
    let cluster = Cluster::with_nodes(&["q-two"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(&cluster, folder.path()).await;
    let first = quarantined(&cluster, &controller, "q-two", "Test").await;
    let second = fatal("q-two", "Test", "1");
    controller.append(second.clone()).await;
    let both = |node: &Node| {
        annotation(node, "quarantineHealthEvent")
            .is_some_and(|text| text.contains("GPU 0") && text.contains("GPU 1"))
    };
    cluster
        .until("q-two", "both faults in the annotation", both)
        .await;
    controller.append(healthy(&first)).await;
    let node = cluster
        .until("q-two", "one fault in the annotation", |node| {
            annotation(node, "quarantineHealthEvent").is_some_and(|text| !text.contains("GPU 0"))
        })
        .await;
    assert!(is_cordoned(&node));
    controller.append(healthy(&second)).await;
    cluster
        .until("q-two", "released", |node| {
            !is_cordoned(node) && !is_marked(node)
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cordon_that_was_there_before_stays() {
    let cluster = Cluster::with_nodes(&["q-before"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(&cluster, folder.path()).await;
    cluster
        .merge("q-before", json!({ "spec": { "unschedulable": true } }))
        .await;
    let fault = quarantined(&cluster, &controller, "q-before", "Test").await;
    let node = cluster.get("q-before").await;
    assert_eq!(
        annotation(&node, "quarantineHealthEventCordonPreExisting"),
        Some("True")
    );
    assert_eq!(label(&node, "k8s.nvidia.com/cordon-by"), None);
    controller.append(healthy(&fault)).await;
    let node = cluster
        .until("q-before", "unmarked", |node| !is_marked(node))
        .await;
    assert!(is_cordoned(&node), "the cordon is someone else's");
    assert_eq!(label(&node, "k8s.nvidia.com/uncordon-by"), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cordon_between_reading_and_writing_is_found_and_stays() {
    let cluster = Cluster::with_nodes(&["q-between"]).await;
    let folder = tempfile::tempdir().unwrap();
    let mut controller = Controller::start(&cluster, folder.path()).await;
    controller.freeze().await;
    cluster
        .merge("q-between", json!({ "spec": { "unschedulable": true } }))
        .await;
    let fault = fatal("q-between", "Test", "0");
    controller.append(fault.clone()).await;
    let node = cluster.until("q-between", "marked", is_marked).await;
    assert_eq!(
        annotation(&node, "quarantineHealthEventCordonPreExisting"),
        Some("True")
    );
    controller.thaw();
    controller.until_state("q-between", "Quarantined").await;
    controller.append(healthy(&fault)).await;
    let node = cluster
        .until("q-between", "unmarked", |node| !is_marked(node))
        .await;
    assert!(is_cordoned(&node));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_taints_stay_as_they_are() {
    let cluster = Cluster::with_nodes(&["q-taint"]).await;
    let folder = tempfile::tempdir().unwrap();
    let mut controller = Controller::start(&cluster, folder.path()).await;
    let foreign =
        json!({ "key": "foreign", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z" });
    controller.freeze().await;
    cluster
        .merge("q-taint", json!({ "spec": { "taints": [foreign] } }))
        .await;
    let fault = fatal("q-taint", "Taint", "0");
    controller.append(fault.clone()).await;
    let node = cluster.until("q-taint", "marked", is_marked).await;
    assert_eq!(taint_keys(&node), ["foreign", "warden.test/taint"]);
    assert!(!is_cordoned(&node));
    assert_eq!(annotation(&node, "quarantineHealthEventIsCordoned"), None);
    controller.thaw();
    controller.until_state("q-taint", "Quarantined").await;
    controller.append(healthy(&fault)).await;
    let node = cluster
        .until("q-taint", "unmarked", |node| !is_marked(node))
        .await;
    assert_eq!(taint_keys(&node), ["foreign"]);
    let taint = &node.spec.unwrap().taints.unwrap()[0];
    assert_eq!(serde_json::to_value(taint).unwrap(), foreign);
}
