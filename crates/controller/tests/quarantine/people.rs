//! What persons do to nodes.

use controller::requests::Request;
use health_event::{HealthEvent, NodeName};
use serde_json::json;
use testbed::wait_for;

use super::quarantined;
use crate::harness::{
    Cluster, Controller, SOON, annotation, fatal, healthy, is_cordoned, is_marked, taint_keys,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_persons_uncordon_ends_the_incident_and_holds_what_was_open() {
    let cluster = Cluster::with_nodes(&["q-person"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(&cluster, folder.path()).await;
    let fault = quarantined(&cluster, &controller, "q-person", "Both").await;
    cluster
        .merge("q-person", json!({ "spec": { "unschedulable": null } }))
        .await;
    let node = cluster
        .until("q-person", "unmarked, with the record", |node| {
            !is_marked(node) && annotation(node, "quarantinedNodeUncordonedManually").is_some()
        })
        .await;
    assert!(!is_cordoned(&node) && taint_keys(&node).is_empty());
    assert_eq!(
        controller.until_closed("q-person").await,
        "Closed(ManualUncordon)"
    );
    // The same fault again is held; another one is new, and removes the record.
    let again = HealthEvent {
        message: "again".into(),
        ..fault.clone()
    };
    controller.append(again).await;
    controller.append(fatal("q-person", "Both", "1")).await;
    let node = cluster.until("q-person", "marked again", is_marked).await;
    let events = annotation(&node, "quarantineHealthEvent").unwrap();
    assert!(
        events.contains("GPU 1") && !events.contains("again"),
        "{events}"
    );
    assert_eq!(annotation(&node, "quarantinedNodeUncordonedManually"), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_person_held_is_new_once_it_has_closed() {
    let cluster = Cluster::with_nodes(&["q-held-once"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(&cluster, folder.path()).await;
    let fault = quarantined(&cluster, &controller, "q-held-once", "Test").await;
    let uncordon = json!({ "spec": { "unschedulable": null } });
    cluster.merge("q-held-once", uncordon).await;
    let closed = controller.until_closed("q-held-once").await;
    assert_eq!(closed, "Closed(ManualUncordon)");
    cluster
        .until("q-held-once", "unmarked", |node| !is_marked(node))
        .await;
    let machine = |controller: &Controller| {
        let name = NodeName::new("q-held-once").unwrap();
        let node = controller.context.nodes.get(&name).unwrap();
        let machine = controller.context.store.machine(node.machine()).unwrap();
        machine.unwrap().holds.len()
    };
    assert_eq!(machine(&controller), 1);
    controller.append(healthy(&fault)).await;
    wait_for("the end of the hold", SOON, || async {
        Ok((machine(&controller) == 0).then_some(()))
    })
    .await
    .unwrap();
    let again = HealthEvent {
        generated_at: Some(jiff::Timestamp::now()),
        ..fault
    };
    controller.append(again).await;
    cluster.until("q-held-once", "out again", is_cordoned).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_persons_untaint_lifts_our_cordon_too() {
    let cluster = Cluster::with_nodes(&["q-untaint"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(&cluster, folder.path()).await;
    quarantined(&cluster, &controller, "q-untaint", "Both").await;
    cluster
        .merge("q-untaint", json!({ "spec": { "taints": null } }))
        .await;
    let node = cluster
        .until("q-untaint", "unmarked, with the record", |node| {
            !is_marked(node) && annotation(node, "quarantinedNodeUntaintedManually").is_some()
        })
        .await;
    assert!(!is_cordoned(&node));
    assert_eq!(
        controller.until_closed("q-untaint").await,
        "Closed(ManualUntaint)"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_node_is_not_taken_out_but_is_released() {
    let cluster = Cluster::with_nodes(&["q-pause-a", "q-pause-b"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(&cluster, folder.path()).await;
    let fault = quarantined(&cluster, &controller, "q-pause-a", "Test").await;
    for name in ["q-pause-a", "q-pause-b"] {
        cluster
            .merge(
                name,
                json!({ "metadata": { "annotations": { "warden.dev/pause": "" } } }),
            )
            .await;
    }
    cluster_sees(&controller, "q-pause-b", "warden.dev/pause").await;
    controller.append(fatal("q-pause-b", "Test", "0")).await;
    controller.append(healthy(&fault)).await;
    cluster
        .until("q-pause-a", "released", |node| {
            !is_cordoned(node) && !is_marked(node)
        })
        .await;
    assert!(!is_cordoned(&cluster.get("q-pause-b").await));
    let unpause = json!({ "metadata": { "annotations": { "warden.dev/pause": null } } });
    cluster.merge("q-pause-b", unpause).await;
    cluster.until("q-pause-b", "taken out", is_cordoned).await;
}

/// Waits until the controller's cache shows an annotation.
pub(super) async fn cluster_sees(controller: &Controller, node: &str, key: &str) {
    let name = NodeName::new(node).unwrap();
    wait_for(format!("{key} in the cache"), SOON, || async {
        let node = controller.context.nodes.get(&name);
        Ok(node.and_then(|node| node.annotation(key).map(|_| ())))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_holds_a_node_and_gives_it_back() {
    let cluster = Cluster::with_nodes(&["q-hold"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(&cluster, folder.path()).await;
    let node = NodeName::new("q-hold").unwrap();
    let hold = Request::Hold {
        node: node.clone(),
        reason: "maintenance".into(),
    };
    controller
        .requests
        .ask(hold, "ann".into())
        .await
        .unwrap()
        .unwrap();
    cluster.until("q-hold", "cordoned", is_cordoned).await;
    controller.until_state("q-hold", "Quarantined").await;
    controller
        .requests
        .ask(Request::Release { node }, "ann".into())
        .await
        .unwrap()
        .unwrap();
    cluster
        .until("q-hold", "released", |node| {
            !is_cordoned(node) && !is_marked(node)
        })
        .await;
    let unknown = NodeName::new("nobody").unwrap();
    let hold = Request::Hold {
        node: unknown,
        reason: String::new(),
    };
    assert!(
        controller
            .requests
            .ask(hold, "ann".into())
            .await
            .unwrap()
            .is_err()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_opted_out_node_is_left_alone() {
    let cluster = Cluster::with_nodes(&["q-out", "q-in"]).await;
    let folder = tempfile::tempdir().unwrap();
    let optout =
        json!({ "metadata": { "labels": { "k8saas.nvidia.com/ManagedByNVSentinel": "false" } } });
    cluster.merge("q-out", optout).await;
    let controller = Controller::start(&cluster, folder.path()).await;
    controller.append(fatal("q-out", "Test", "0")).await;
    quarantined(&cluster, &controller, "q-in", "Test").await;
    assert!(!is_marked(&cluster.get("q-out").await));
}
