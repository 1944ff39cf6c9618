//! What withholds a node: breaker, first action, another fault-quarantine.

use controller::requests::Request;
use health_event::NodeName;
use k8s_openapi::api::apps::v1::Deployment;
use serde_json::json;

use super::people::cluster_sees;
use super::quarantined;
use crate::harness::{
    Cluster, Controller, RULES, condition, fatal, healthy, is_cordoned, is_marked,
};

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
    assert!(done.text.contains(want), "{done:?}");
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

/// Starts another fault-quarantine in the cluster.
async fn other_quarantine(cluster: &Cluster) -> kube::Api<Deployment> {
    let api = kube::Api::namespaced(cluster.testbed.admin(), "default");
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
    api
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_another_fault_quarantine_runs_nothing_is_written_and_people_are_told() {
    let cluster = Cluster::with_nodes(&["q-other", "q-out"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(&cluster, folder.path()).await;
    let earlier = fatal("q-out", "Test", "0");
    controller.append(earlier.clone()).await;
    cluster.until("q-out", "cordoned", is_cordoned).await;
    controller.until_state("q-out", "Quarantined").await;
    controller.kill().await;
    let api = other_quarantine(&cluster).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_fault_quarantine_that_begins_is_noticed_by_its_first_mark() {
    let cluster = Cluster::with_nodes(&["q-theirs", "q-ours"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(&cluster, folder.path()).await;
    let earlier = fatal("q-ours", "Test", "0");
    controller.append(earlier.clone()).await;
    cluster.until("q-ours", "cordoned", is_cordoned).await;
    // Marks alone are none that runs.
    let mark = |value| {
        let annotations = json!({ "quarantineHealthEvent": value });
        json!({ "metadata": { "annotations": annotations } })
    };
    cluster.merge("q-theirs", mark(json!("[]"))).await;
    controller.append(healthy(&earlier)).await;
    cluster
        .until("q-ours", "given back", |node| !is_marked(node))
        .await;
    cluster.merge("q-theirs", mark(json!(null))).await;
    // Its start alone is noticed within a minute only, which is longer than is waited for here.
    other_quarantine(&cluster).await;
    cluster.merge("q-theirs", mark(json!("[]"))).await;
    controller.until_metric("warden_other_quarantine 1").await;
    controller.append(fatal("q-ours", "Test", "1")).await;
    controller.until_state("q-ours", "Withheld").await;
    assert!(!is_marked(&cluster.get("q-ours").await));
}
