//! Nodes with marks as older versions wrote them.

use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::harness::{
    Cluster, Controller, annotation, fatal, healthy, is_cordoned, is_marked, taint_keys,
};
use crate::rows::with_an_older_annotation;

const APPLIED_TAINTS: &str = "quarantineHealthEventAppliedTaints";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_140_taints_listed_under_capitalised_keys_go_with_the_recovery() {
    let cluster = Cluster::with_nodes(&["r-capital"]).await;
    with_an_older_annotation(&cluster, "r-capital").await;
    let taint = |key: &str| json!({ "key": key, "value": "bad", "effect": "NoSchedule" });
    let list = r#"[{"Key":"warden.test/taint","Value":"bad","Effect":"NoSchedule"}]"#;
    let patch = json!({
        "metadata": { "annotations": { APPLIED_TAINTS: list } },
        "spec": { "taints": [taint("warden.test/taint"), taint("others/taint")] } });
    let ours = PatchParams {
        field_manager: Some("warden-controller".to_owned()),
        ..PatchParams::default()
    };
    let patch = Patch::Merge(patch);
    let patched = cluster.nodes.patch("r-capital", &ours, &patch).await;
    patched.unwrap();

    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(&cluster, folder.path()).await;
    // No rule of today asks for the taint: it may go before the recovery.
    controller.until_state("r-capital", "Quarantined").await;
    controller
        .append(healthy(&fatal("r-capital", "Test", "0")))
        .await;
    let node = cluster
        .until("r-capital", "released", |node| !is_marked(node))
        .await;
    assert!(!is_cordoned(&node), "schedulable");
    assert_eq!(taint_keys(&node), ["others/taint"]);
    assert_eq!(annotation(&node, APPLIED_TAINTS), None);
}
