//! Other controllers that cordon, uncordon and repair nodes.

use serde_json::json;

use super::quarantined;
use crate::harness::{
    Cluster, Controller, RULES, healthy, is_cordoned, is_marked, label, taint_keys,
};

const UPGRADE: &str = "nvidia.com/gpu-driver-upgrade-state";
const ASIDE: &str = "warden.dev/quarantined";
const EXTERNAL: &str = "nvsentinel.dgxc.nvidia.com/external-remediation";

fn with(keys: &str) -> String {
    RULES.replacen("[quarantine]", &format!("[quarantine]\n{keys}"), 1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cordon_that_a_driver_upgrade_takes_off_comes_back_where_that_is_asked_for() {
    let cluster = Cluster::with_nodes(&["o-upgrade"]).await;
    let folder = tempfile::tempdir().unwrap();
    let config = with("cooperator_policy = 'reassert'");
    let controller = Controller::start_with(&cluster, folder.path(), &config).await;
    let fault = quarantined(&cluster, &controller, "o-upgrade", "Test").await;
    let upgrades = json!({ "metadata": { "labels": { UPGRADE: "uncordon-required" } } });
    cluster.merge("o-upgrade", upgrades).await;
    let uncordon = json!({ "spec": { "unschedulable": null } });
    for _ in 0..3 {
        let before = cluster.get("o-upgrade").await.metadata.resource_version;
        cluster.merge("o-upgrade", uncordon.clone()).await;
        let node = cluster
            .until("o-upgrade", "cordoned again", |node| {
                is_cordoned(node) && node.metadata.resource_version != before
            })
            .await;
        assert!(!taint_keys(&node).contains(&ASIDE));
        controller.until_state("o-upgrade", "Quarantined").await;
    }
    cluster.merge("o-upgrade", uncordon).await;
    let node = cluster
        .until("o-upgrade", "kept out by a taint", |node| {
            taint_keys(node).contains(&ASIDE)
        })
        .await;
    assert!(!is_cordoned(&node));
    let done = json!({ "metadata": { "labels": { UPGRADE: "upgrade-done" } } });
    cluster.merge("o-upgrade", done).await;
    cluster
        .until("o-upgrade", "cordoned once it is done", |node| {
            is_cordoned(node) && !taint_keys(node).contains(&ASIDE)
        })
        .await;
    controller.append(healthy(&fault)).await;
    let released = |node: &_| !is_cordoned(node) && !is_marked(node);
    cluster.until("o-upgrade", "released", released).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_a_mark_of_another_owner_is_not_given_back() {
    let names = ["o-label", "o-annotation", "o-taint", "o-external"];
    let cluster = Cluster::with_nodes(&names).await;
    let folder = tempfile::tempdir().unwrap();
    let config = with("external_owners = ['example.com/repair']");
    let controller = Controller::start_with(&cluster, folder.path(), &config).await;
    let key = "example.com/repair";
    let marks = [
        json!({ "metadata": { "labels": { key: "x" } } }),
        json!({ "metadata": { "annotations": { key: "" } } }),
        json!({ "spec": { "taints": [{ "key": key, "effect": "PreferNoSchedule" }] } }),
        // The reference's own, which needs no configuration.
        json!({ "spec": { "taints": [{ "key": EXTERNAL, "effect": "NoSchedule" }] } }),
    ];
    let without = [
        json!({ "metadata": { "labels": { key: null } } }),
        json!({ "metadata": { "annotations": { key: null } } }),
        json!({ "spec": { "taints": null } }),
        json!({ "spec": { "taints": null } }),
    ];
    for ((name, mark), gone) in names.iter().zip(marks).zip(without) {
        cluster.merge(name, mark).await;
        let fault = quarantined(&cluster, &controller, name, "Test").await;
        controller.decided(healthy(&fault)).await;
        let node = cluster.get(name).await;
        assert!(is_cordoned(&node), "{name}");
        let state = label(&node, "dgxc.nvidia.com/nvsentinel-state");
        assert_eq!(state, Some("quarantined"), "{name}");
        cluster.merge(name, gone).await;
        let released = |node: &_| !is_cordoned(node) && !is_marked(node);
        cluster.until(name, "released", released).await;
    }
}
