//! Conditions and Events on node objects.

use health_event::{HealthEvent, ProcessingStrategy};
use k8s_openapi::api::core::v1::{Event, Node};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use testbed::wait_for;

use crate::harness::{Cluster, Controller, SOON, annotation, condition, fatal, healthy};

const OBSERVE: &str = "profile = \"observe\"\n[quarantine]\nenabled = false\n";

async fn start(cluster: &Cluster, folder: &tempfile::TempDir) -> Controller {
    Controller::start_with(cluster, folder.path(), OBSERVE).await
}

fn warning(node: &str, message: &str) -> HealthEvent {
    HealthEvent {
        is_fatal: false,
        message: message.into(),
        ..fatal(node, "Power", "0")
    }
}

/// Events about a node as (type, count).
async fn events(cluster: &Cluster, node: &str) -> Vec<(String, i32)> {
    let api: Api<Event> = Api::namespaced(cluster.testbed.admin(), "default");
    let params = kube::api::ListParams::default().fields(&format!("involvedObject.uid={node}"));
    let list = api.list(&params).await.unwrap();
    let of = |event: Event| Some((event.type_?, event.count?));
    list.into_iter().filter_map(of).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_condition_follows_its_faults_and_is_listed() {
    let cluster = Cluster::with_nodes(&["c-one"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = start(&cluster, &folder).await;
    let (a, b) = (
        fatal("c-one", "Thermal", "0"),
        fatal("c-one", "Thermal", "1"),
    );
    controller.append(a.clone()).await;
    controller.append(b.clone()).await;
    let both = |node: &Node| {
        condition(node, "Thermal")
            .is_some_and(|(_, m)| m.contains("GPU:0 ") && m.contains("GPU:1 "))
    };
    let node = cluster.until("c-one", "both faults", both).await;
    assert_eq!(condition(&node, "Thermal").unwrap().0, "True");
    assert_eq!(
        annotation(&node, "warden.dev/conditions"),
        Some(r#"["Thermal"]"#)
    );
    let message = condition(&node, "Thermal").unwrap().1;
    assert!(
        message.starts_with("ErrorCode:79 GPU:0 Thermal failed on GPU 0 Recommended Action=NONE;"),
        "{message}"
    );
    controller.append(healthy(&a)).await;
    let one = |node: &Node| condition(node, "Thermal").is_some_and(|(_, m)| !m.contains("GPU:0 "));
    cluster.until("c-one", "one fault", one).await;
    controller.append(healthy(&b)).await;
    let well = |node: &Node| condition(node, "Thermal") == Some(("False", "No Health Failures"));
    cluster.until("c-one", "well", well).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_conditions_stay_and_what_no_check_speaks_for_goes() {
    let cluster = Cluster::with_nodes(&["c-foreign"]).await;
    let folder = tempfile::tempdir().unwrap();
    let one = |kind: &str, status: &str, message: &str| json!({ "type": kind, "status": status, "reason": "r", "message": message });
    let foreign = json!({
        "metadata": { "annotations": {
            "warden.dev/conditions": r#"["Forgotten","Retired","Silent"]"#
        } },
        "status": { "conditions": [
            one("KernelDeadlock", "False", "npd"),
            one("Retired", "True", "m;"),
            one("Silent", "False", "No Health Failures"),
            one("Forgotten", "True", "m;"),
        ] },
    });
    let params = PatchParams::default();
    cluster
        .nodes
        .patch_status("c-foreign", &params, &Patch::Strategic(foreign))
        .await
        .unwrap();
    let retired = r#"
[ingest]
retired_checks = ["gone/Retired"]
"#;
    let config = format!("{OBSERVE}{retired}");
    let controller = Controller::start_with(&cluster, folder.path(), &config).await;
    let gone = |node: &Node| {
        ["Retired", "Silent"]
            .iter()
            .all(|kind| condition(node, kind).is_none())
    };
    let node = cluster
        .until("c-foreign", "what nobody speaks for to go", gone)
        .await;
    // The store is new: that nobody has said what is wrong does not make it well.
    assert_eq!(condition(&node, "Forgotten"), Some(("True", "m;")));
    let listed = annotation(&node, "warden.dev/conditions");
    assert_eq!(listed, Some(r#"["Forgotten"]"#));
    controller
        .append(fatal("c-foreign", "KernelDeadlock", "0"))
        .await;
    controller.append(fatal("c-foreign", "Ready", "0")).await;
    controller.append(fatal("c-foreign", "Ours", "0")).await;
    let ours = |node: &Node| condition(node, "Ours").is_some();
    let node = cluster.until("c-foreign", "our own condition", ours).await;
    assert_eq!(condition(&node, "KernelDeadlock"), Some(("False", "npd")));
    assert_eq!(condition(&node, "Ready").unwrap().0, "True");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_lost_store_a_condition_stays_until_its_check_speaks() {
    let cluster = Cluster::with_nodes(&["c-lost"]).await;
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let controller = start(&cluster, &first).await;
    let (bad, other) = (
        fatal("c-lost", "Thermal", "0"),
        fatal("c-lost", "Other", "0"),
    );
    controller.append(bad.clone()).await;
    let ill = |node: &Node| condition(node, "Thermal").is_some_and(|(status, _)| status == "True");
    cluster.until("c-lost", "ill", ill).await;
    controller.kill().await;

    let controller = start(&cluster, &second).await;
    controller.append(other.clone()).await;
    let told = |node: &Node| condition(node, "Other").is_some();
    let node = cluster.until("c-lost", "another fault", told).await;
    assert!(ill(&node), "nobody said that it is over");
    // Another node's check of that name says nothing of this one.
    controller
        .append(healthy(&fatal("elsewhere", "Thermal", "0")))
        .await;
    controller.append(healthy(&other)).await;
    let well = |node: &Node, kind: &str| {
        condition(node, kind).is_some_and(|(status, _)| status == "False")
    };
    let node = cluster
        .until("c-lost", "the other well", |node| well(node, "Other"))
        .await;
    assert!(ill(&node), "nobody said that it is over");
    let unconfirmed = || async {
        let name = health_event::NodeName::new("c-lost").unwrap();
        let context = &controller.context;
        let node = context.nodes.get(&name).unwrap();
        controller::connector::unconfirmed(&context.store, &node).unwrap()
    };
    wait_for("it to be told as unconfirmed", SOON, || async {
        let found = unconfirmed().await;
        anyhow::ensure!(found == ["Thermal"], "{found:?}");
        Ok(Some(()))
    })
    .await
    .unwrap();
    controller.append(healthy(&bad)).await;
    cluster
        .until("c-lost", "well", |node| well(node, "Thermal"))
        .await;
    wait_for("nothing unconfirmed", SOON, || async {
        let found = unconfirmed().await;
        anyhow::ensure!(found.is_empty(), "{found:?}");
        Ok(Some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn warnings_become_events_that_count_also_over_a_restart() {
    let cluster = Cluster::with_nodes(&["c-event"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = start(&cluster, &folder).await;
    controller.append(warning("c-event", "low power")).await;
    let counts = |want: Vec<(String, i32)>| {
        let cluster = &cluster;
        wait_for(format!("{want:?}"), SOON, move || {
            let want = want.clone();
            async move {
                let found = events(cluster, "c-event").await;
                anyhow::ensure!(found == want, "{found:?}");
                Ok(Some(()))
            }
        })
    };
    counts(vec![("Power".into(), 1)]).await.unwrap();
    // The healthy word in between makes the next one news, and not a repeat.
    controller.append(healthy(&warning("c-event", ""))).await;
    controller.append(warning("c-event", "low power")).await;
    counts(vec![("Power".into(), 2)]).await.unwrap();
    controller.kill().await;
    let controller = start(&cluster, &folder).await;
    controller.append(healthy(&warning("c-event", ""))).await;
    controller.append(warning("c-event", "low power")).await;
    counts(vec![("Power".into(), 3)]).await.unwrap();
    // What is only stored or analysed is nobody's Event.
    let mut silent = warning("c-event", "silent");
    silent.strategy = ProcessingStrategy::StoreOnly;
    controller.append(silent).await;
    controller.append(healthy(&warning("c-event", ""))).await;
    controller.append(warning("c-event", "other words")).await;
    wait_for("two Events", SOON, || async {
        let found = events(&cluster, "c-event").await;
        anyhow::ensure!(found.len() == 2, "{found:?}");
        Ok(Some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_condition_that_someone_changed_is_set_right() {
    let cluster = Cluster::with_nodes(&["c-changed"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = start(&cluster, &folder).await;
    controller.append(fatal("c-changed", "Thermal", "0")).await;
    let bad = |node: &Node| condition(node, "Thermal").is_some_and(|(status, _)| status == "True");
    cluster.until("c-changed", "bad", bad).await;
    let wrong = json!({ "status": { "conditions": [
        { "type": "Thermal", "status": "False", "reason": "x", "message": "x" }] } });
    let params = PatchParams::default();
    cluster
        .nodes
        .patch_status("c-changed", &params, &Patch::Strategic(wrong))
        .await
        .unwrap();
    cluster.until("c-changed", "bad again", bad).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_monitors_healthy_condition_stays_over_a_restart() {
    let cluster = Cluster::with_nodes(&["c-stays"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = start(&cluster, &folder).await;
    let fault = fatal("c-stays", "SiteCheck", "0");
    controller.append(fault.clone()).await;
    let is = |status: &'static str| {
        move |node: &Node| condition(node, "SiteCheck").is_some_and(|c| c.0 == status)
    };
    cluster.until("c-stays", "the fault", is("True")).await;
    controller.append(healthy(&fault)).await;
    cluster.until("c-stays", "its end", is("False")).await;
    controller.kill().await;
    let controller = start(&cluster, &folder).await;
    // A later fault of another check shows that the node had its turn.
    controller.append(fatal("c-stays", "Other", "0")).await;
    let other = |node: &Node| condition(node, "Other").is_some();
    let node = cluster.until("c-stays", "the other fault", other).await;
    assert!(is("False")(&node), "{:?}", condition(&node, "SiteCheck"));
    assert_eq!(
        annotation(&node, "warden.dev/conditions"),
        Some(r#"["Other","SiteCheck"]"#)
    );
    controller.kill().await;
    // A retired check is none: its condition goes.
    let retired = OBSERVE.replace(
        "profile = \"observe\"",
        "profile = \"observe\"\n[ingest]\nretired_checks = [\"test-monitor/SiteCheck\"]",
    );
    let _controller = Controller::start_with(&cluster, folder.path(), &retired).await;
    let gone = |node: &Node| condition(node, "SiteCheck").is_none();
    cluster
        .until("c-stays", "without the retired one", gone)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sender_with_hundreds_of_checks_does_not_crowd_out_what_is_known() {
    let cluster = Cluster::with_nodes(&["c-crowded"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = start(&cluster, &folder).await;
    for n in 0..300 {
        let check = format!("monitor-check-{n:03}");
        controller.append(fatal("c-crowded", &check, "0")).await;
    }
    let xid = health_event::checks::XID;
    controller.append(fatal("c-crowded", xid, "0")).await;
    let more = k8s_api::names::MORE_FAULTS;
    let whole = |node: &Node| {
        [xid, more, "monitor-check-000"]
            .into_iter()
            .all(|kind| condition(node, kind).is_some_and(|(status, _)| status == "True"))
    };
    let node = cluster.until("c-crowded", "the known check", whole).await;
    let listed = annotation(&node, "warden.dev/conditions").unwrap();
    let listed: Vec<String> = serde_json::from_str(listed).unwrap();
    assert_eq!(
        listed.len(),
        decide::connector::OWN_CONDITIONS + 2,
        "{listed:?}"
    );
    assert!(condition(&node, "monitor-check-299").is_none());
}
