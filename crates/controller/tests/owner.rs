//! Whose a cordon is, by the API server's own record (`metadata.managedFields`).

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::harness::{Cluster, Controller, annotation, healthy, is_cordoned, is_marked};
use crate::quarantine::quarantined;

fn cordon(cordoned: bool) -> Value {
    json!({ "spec": { "unschedulable": if cordoned { json!(true) } else { Value::Null } } })
}

/// All that says that a node is ours, taken off.
fn strip() -> Value {
    let keys = [
        "warden.dev/incident",
        "quarantineHealthEvent",
        "quarantineHealthEventIsCordoned",
    ];
    let labels = [
        "dgxc.nvidia.com/nvsentinel-state",
        "k8s.nvidia.com/cordon-by",
        "k8s.nvidia.com/cordon-reason",
        "k8s.nvidia.com/cordon-timestamp",
    ];
    let none = |keys: &[&str]| -> Value {
        keys.iter()
            .map(|key| ((*key).to_owned(), Value::Null))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    json!({ "metadata": { "annotations": none(&keys), "labels": none(&labels) } })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cordon_of_ours_that_lost_its_annotations_is_lifted_and_anothers_stays() {
    let cluster = Cluster::with_nodes(&["o-bare"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(&cluster, folder.path()).await;
    let fault = quarantined(&cluster, &controller, "o-bare", "Test").await;
    // While the incident is open they are put back, and the cordon is ours all along.
    cluster.merge("o-bare", strip()).await;
    cluster.until("o-bare", "marked again", is_marked).await;
    controller.until_state("o-bare", "Quarantined").await;
    controller.append(healthy(&fault)).await;
    cluster
        .until("o-bare", "released", |node| {
            !is_cordoned(node) && !is_marked(node)
        })
        .await;
    controller.until_closed("o-bare").await;
    // As a write of ours that arrived late and was stripped would leave it.
    let ours = PatchParams {
        field_manager: Some("warden-controller".to_owned()),
        ..PatchParams::default()
    };
    cluster
        .nodes
        .patch("o-bare", &ours, &Patch::Merge(cordon(true)))
        .await
        .unwrap();
    cluster
        .until("o-bare", "uncordoned", |node| !is_cordoned(node))
        .await;
    // The same by another is theirs: an incident comes and goes over it.
    cluster.merge("o-bare", cordon(true)).await;
    let fault = quarantined(&cluster, &controller, "o-bare", "Test").await;
    controller.append(healthy(&fault)).await;
    let node = cluster
        .until("o-bare", "unmarked", |node| !is_marked(node))
        .await;
    assert!(is_cordoned(&node));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cordon_that_another_put_in_the_place_of_ours_unseen_stays() {
    let cluster = Cluster::with_nodes(&["o-other"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(&cluster, folder.path()).await;
    let fault = quarantined(&cluster, &controller, "o-other", "Test").await;
    drop(controller);
    cluster.merge("o-other", cordon(false)).await;
    cluster.merge("o-other", cordon(true)).await;
    let controller = Controller::start(&cluster, folder.path()).await;
    cluster
        .until("o-other", "said to be another's", |node| {
            annotation(node, "quarantineHealthEventCordonPreExisting") == Some("True")
        })
        .await;
    controller.append(healthy(&fault)).await;
    let node = cluster
        .until("o-other", "unmarked", |node| !is_marked(node))
        .await;
    assert!(is_cordoned(&node));
}
