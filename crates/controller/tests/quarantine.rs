//! Nodes taken out and given back.

use controller::requests::Request;
use health_event::{HealthEvent, NodeName};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use testbed::{Component, NodeSpec, wait_for};

use crate::harness::{
    Cluster, Controller, RULES, SOON, annotation, condition, fatal, healthy, is_cordoned,
    is_marked, label, metadata, taint_keys,
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
async fn cluster_sees(controller: &Controller, node: &str, key: &str) {
    let name = NodeName::new(node).unwrap();
    wait_for(format!("{key} in the cache"), SOON, || async {
        let node = controller.context.nodes.get(&name);
        Ok(node.and_then(|node| node.annotation(key).map(|_| ())))
    })
    .await
    .unwrap();
}

const BREAKER: &str = "percentage = 100\nlevel_percentage = 50\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_040_the_breaker_withholds_lets_recoveries_pass_and_is_reset() {
    let names = ["q-b0", "q-b1", "q-b2", "q-b3", "q-b4"];
    let cluster = Cluster::with_nodes(&names).await;
    let folder = tempfile::tempdir().unwrap();
    let rules = RULES.replace("enabled = false\n", BREAKER);
    let controller = Controller::start_with(&cluster, folder.path(), &rules).await;
    // Five nodes, 50 %: three may be out.
    let mut faults = Vec::new();
    for name in &names[..3] {
        faults.push(quarantined(&cluster, &controller, name, "Test").await);
    }
    for name in &names[3..] {
        faults.push(fatal(name, "Test", "0"));
        controller.append(faults.last().unwrap().clone()).await;
        controller.until_state(name, "Withheld").await;
    }
    assert!(!is_cordoned(&cluster.get(names[3]).await));
    // Tripped, and after a restart too; recoveries pass; one that heals while withheld just ends.
    controller.kill().await;
    let controller = Controller::start_with(&cluster, folder.path(), &rules).await;
    let tripped = r#"fault_quarantine_breaker_state{state="TRIPPED"} 1"#;
    controller.until_metric(tripped).await;
    let withheld = |count| format!(r#"warden_nodes_withheld{{pool="gpu"}} {count}"#);
    controller.until_metric(&withheld(2)).await;
    controller.append(healthy(&faults[4])).await;
    assert_eq!(controller.until_closed(names[4]).await, "Closed(Recovered)");
    controller.until_metric(&withheld(1)).await;
    for index in 0..2 {
        controller.append(healthy(&faults[index])).await;
        cluster
            .until(names[index], "released", |node| !is_cordoned(node))
            .await;
    }
    assert!(
        !is_cordoned(&cluster.get(names[3]).await),
        "a trip does not end by itself"
    );
    let reset = Request::BreakerReset {
        pool: None,
        drop_withheld: false,
    };
    controller
        .requests
        .ask(reset, "tester".into())
        .await
        .unwrap()
        .unwrap();
    cluster
        .until(names[3], "taken out after the reset", is_cordoned)
        .await;
    assert!(!is_marked(&cluster.get(names[4]).await));
    controller.until_metric(&withheld(0)).await;
    let closed = r#"fault_quarantine_breaker_state{state="CLOSED"} 1"#;
    controller.until_metric(closed).await;
    assert!(!controller.metrics().contains(tripped));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_says_that_the_level_bound_is_still_reached() {
    let names = ["q-l0", "q-l1"];
    let cluster = Cluster::with_nodes(&names).await;
    let folder = tempfile::tempdir().unwrap();
    let rules = RULES.replace("enabled = false\n", BREAKER);
    let controller = Controller::start_with(&cluster, folder.path(), &rules).await;
    quarantined(&cluster, &controller, names[0], "Test").await;
    controller.append(fatal(names[1], "Test", "0")).await;
    controller.until_state(names[1], "Withheld").await;
    let reset = Request::BreakerReset {
        pool: None,
        drop_withheld: false,
    };
    let done = controller.requests.ask(reset, "tester".into()).await;
    let done = done.unwrap().unwrap();
    let want = "the level bound of pool gpu is still reached: 1 of 1 out; give back nodes";
    assert!(done.contains(want), "{done}");
    assert!(!is_cordoned(&cluster.get(names[1]).await));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rate_bound_survives_a_restart() {
    let names = ["q-r0", "q-r1", "q-r2", "q-r3", "q-r4"];
    let cluster = Cluster::with_nodes(&names).await;
    let folder = tempfile::tempdir().unwrap();
    // Five nodes, 40 % in five minutes: two, whether they are still out or not.
    let rate = "percentage = 40\nlevel_percentage = 100\n";
    let rules = RULES.replace("enabled = false\n", rate);
    let controller = Controller::start_with(&cluster, folder.path(), &rules).await;
    for name in &names[..2] {
        let fault = quarantined(&cluster, &controller, name, "Test").await;
        controller.append(healthy(&fault)).await;
        controller.until_closed(name).await;
    }
    controller.kill().await;
    let controller = Controller::start_with(&cluster, folder.path(), &rules).await;
    controller.append(fatal(names[2], "Test", "0")).await;
    controller.until_state(names[2], "Withheld").await;
    let node = NodeName::new(names[2]).unwrap();
    let open = controller.context.store.open_incidents_of(&node).unwrap();
    let why = health_event::incident::Bound::Rate;
    let why = health_event::incident::Withheld::Breaker(why);
    assert_eq!(
        open[0].quarantine,
        health_event::incident::QuarantineStatus::Withheld(why)
    );
    assert!(!is_marked(&cluster.get(names[2]).await));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_node_does_not_hold_up_those_that_wait_behind_it() {
    let names = ["q-w0", "q-w1", "q-w2"];
    let cluster = Cluster::with_nodes(&names).await;
    let folder = tempfile::tempdir().unwrap();
    // One node a second: the rate's window is as short as it can be.
    let breaker = "percentage = 100\nlevel_percentage = 100\nmax_nodes = 1\nduration = \"1s\"\n";
    let rules = RULES.replace("enabled = false\n", breaker);
    let controller = Controller::start_with(&cluster, folder.path(), &rules).await;
    let out = quarantined(&cluster, &controller, names[0], "Test").await;
    for name in &names[1..] {
        controller.append(fatal(name, "Test", "0")).await;
        controller.until_state(name, "Withheld").await;
    }
    let pause = |value| json!({ "metadata": { "annotations": { "warden.dev/pause": value } } });
    cluster.merge(names[1], pause(json!(""))).await;
    cluster_sees(&controller, names[1], "warden.dev/pause").await;
    let reset = Request::BreakerReset {
        pool: None,
        drop_withheld: false,
    };
    let done = controller.requests.ask(reset, "tester".into()).await;
    done.unwrap().unwrap();
    controller.append(healthy(&out)).await;
    cluster.until(names[2], "taken out", is_cordoned).await;
    assert!(!is_cordoned(&cluster.get(names[1]).await));
    // It has its place again when the pause ends and there is room.
    cluster.merge(names[1], pause(json!(null))).await;
    controller
        .append(healthy(&fatal(names[2], "Test", "0")))
        .await;
    cluster.until(names[1], "taken out", is_cordoned).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_action_waits_and_the_list_is_kept() {
    let cluster = Cluster::with_nodes(&["q-first"]).await;
    let folder = tempfile::tempdir().unwrap();
    let rules = RULES.replace("first_action_delay = \"0s\"", "first_action_delay = \"3s\"");
    let started = tokio::time::Instant::now();
    let controller = Controller::start_with(&cluster, folder.path(), &rules).await;
    controller.append(fatal("q-first", "Test", "0")).await;
    controller.until_state("q-first", "Withheld").await;
    // A restart does not begin the delay anew.
    controller.kill().await;
    let controller = Controller::start_with(&cluster, folder.path(), &rules).await;
    assert!(!is_marked(&cluster.get("q-first").await));
    cluster.until("q-first", "taken out", is_cordoned).await;
    assert!(started.elapsed() >= std::time::Duration::from_secs(3));
    controller.until_state("q-first", "Quarantined").await;
    controller.kill().await;
    // Nor is it the first action with a store that was lost: our mark is on the node.
    cluster.add(&["q-first-b"]).await;
    let empty = tempfile::tempdir().unwrap();
    let long = RULES.replace("first_action_delay = \"0s\"", "first_action_delay = \"1h\"");
    let controller = Controller::start_with(&cluster, empty.path(), &long).await;
    controller.append(fatal("q-first-b", "Test", "0")).await;
    cluster.until("q-first-b", "taken out", is_cordoned).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_another_fault_quarantine_runs_nothing_is_written_and_people_are_told() {
    let cluster = Cluster::with_nodes(&["q-other", "q-out"]).await;
    let folder = tempfile::tempdir().unwrap();
    let api: kube::Api<Deployment> = kube::Api::namespaced(cluster.testbed.admin(), "default");
    let controller = Controller::start(&cluster, folder.path()).await;
    let earlier = fatal("q-out", "Test", "0");
    controller.append(earlier.clone()).await;
    cluster.until("q-out", "cordoned", is_cordoned).await;
    controller.until_state("q-out", "Quarantined").await;
    controller.kill().await;
    // Renamed, as by its chart's `fullnameOverride`; the labels are the chart's.
    let labels = json!({
        "app.kubernetes.io/name": "fault-quarantine", "app.kubernetes.io/instance": "nvsentinel",
    });
    let deployment = serde_json::from_value(json!({
        "metadata": { "name": "site-quarantine", "labels": labels },
        "spec": { "replicas": 1, "selector": { "matchLabels": labels }, "template": {
            "metadata": { "labels": labels },
            "spec": { "containers": [{ "name": "c", "image": "i" }] } } },
    }))
    .unwrap();
    api.create(&kube::api::PostParams::default(), &deployment)
        .await
        .unwrap();
    let controller = Controller::start(&cluster, folder.path()).await;
    controller.until_metric("warden_other_quarantine 1").await;
    controller.append(fatal("q-other", "Test", "0")).await;
    controller.until_state("q-other", "Withheld").await;
    controller
        .until_metric(r#"warden_nodes_withheld{pool="gpu"} 1"#)
        .await;
    // Nor is a node given back: the other one may want it out under the same marks.
    controller.append(healthy(&earlier)).await;
    let node = cluster
        .until("q-other", "with a condition", |node| {
            condition(node, "OtherQuarantineActive").is_some()
        })
        .await;
    assert!(!is_marked(&node) && !is_cordoned(&node));
    assert!(is_marked(&cluster.get("q-out").await));
    // Once it is gone both are done, without a restart.
    let to_nothing = json!({ "spec": { "replicas": 0 } });
    api.patch(
        "site-quarantine",
        &kube::api::PatchParams::default(),
        &kube::api::Patch::Merge(&to_nothing),
    )
    .await
    .unwrap();
    cluster.until("q-other", "cordoned", is_cordoned).await;
    cluster
        .until("q-out", "given back", |node| !is_marked(node))
        .await;
    controller.until_metric("warden_other_quarantine 0").await;
    cluster
        .until("q-other", "without the condition", |node| {
            condition(node, "OtherQuarantineActive").is_none()
        })
        .await;
}
