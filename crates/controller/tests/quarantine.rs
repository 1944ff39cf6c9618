//! Nodes taken out and given back.

use crate::harness::{
    Cluster, Controller, annotation, condition, fatal, healthy, is_cordoned, is_marked, label,
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
    assert_eq!(label(&node, "k8s.nvidia.com/cordon-reason"), Some("cordon-test"));
    assert_eq!(label(&node, "dgxc.nvidia.com/nvsentinel-state"), Some("quarantined"));
    assert_eq!(annotation(&node, "quarantineHealthEventIsCordoned"), Some("True"));
    assert!(annotation(&node, "quarantineHealthEvent").unwrap().contains("Test failed on GPU 0"));
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
