//! Rows of the reference's acceptance list that go through several modules.

use std::time::Duration;

use health_event::incident::DrainStatus;
use health_event::{NodeName, RecommendedAction};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;
use testbed::wait_for;
use tokio::time::Instant;

use super::kit::{Case, config, fault, install, name_of, objects};
use crate::harness::{Cluster, Controller, SOON, annotation, healthy, is_cordoned, label};

const STATE: &str = "dgxc.nvidia.com/nvsentinel-state";
const REPAIRS: &str = "latestFaultRemediationState";
/// Longer than pods of `DeleteAfterTimeout` have in these tests.
const PAST_THE_DEADLINE: Duration = Duration::from_secs(20);

/// Drains at once, and repairs what is drained; modules can be switched off.
fn with_drain(drain: bool, remediation: bool) -> String {
    let drain = format!(
        "[drain]\nenabled = {drain}\nfirst_action_delay = \"0s\"\ndeleteAfterTimeoutMinutes = 0.3\n\
         [[drain.userNamespaces]]\nname = \"*-now\"\nmode = \"Immediate\"\n\
         [[drain.userNamespaces]]\nname = \"*-later\"\nmode = \"DeleteAfterTimeout\"\n\
         [[drain.userNamespaces]]\nname = \"*-else\"\nmode = \"AllowCompletion\""
    );
    config(&format!("enabled = {remediation}"))
        .replace("[drain]\nenabled = false", &drain)
        .replace("without_drain = true", "without_drain = false")
}

fn is_state(state: &'static str) -> impl Fn(&Node) -> bool {
    move |node| label(node, STATE) == Some(state)
}

/// Waits until the node carries this value of the label.
async fn until_state(cluster: &Cluster, node: &str, state: &'static str) -> Node {
    cluster.until(node, state, is_state(state)).await
}

/// Pods of the namespace.
async fn pods(cluster: &Cluster, namespace: &str) -> Vec<Pod> {
    let pods: Api<Pod> = Api::namespaced(cluster.testbed.admin(), namespace);
    pods.list(&ListParams::default()).await.unwrap().items
}

/// What the kubelet says at the end of a pod, of each of the namespace.
async fn finish(cluster: &Cluster, namespace: &str) {
    let api: Api<Pod> = Api::namespaced(cluster.testbed.admin(), namespace);
    for pod in pods(cluster, namespace).await {
        let over = Patch::Merge(json!({ "status": { "phase": "Succeeded" } }));
        let name = pod.metadata.name.unwrap();
        api.patch_status(&name, &PatchParams::default(), &over)
            .await
            .unwrap();
    }
}

/// The values of the label that were written to a node, one after the other; `-`: taken off.
fn states_written(cluster: &Cluster, node: &str) -> Vec<String> {
    let path = format!("/metadata/labels/{}", STATE.replace('/', "~1"));
    let audit = cluster.testbed.audit_events().unwrap();
    let written = audit.iter().filter(|event| {
        event.stage == "ResponseComplete"
            && (event.resource.as_str(), event.name.as_str(), event.code) == ("nodes", node, 200)
    });
    let operations = written.filter_map(|event| event.object.as_ref()?.as_array());
    let of_label = operations
        .flatten()
        .filter(|operation| operation["path"] == path.as_str() && operation["op"] != "test");
    let value = |operation: &serde_json::Value| {
        let value = operation["value"]
            .as_str()
            .filter(|_| operation["op"] != "remove");
        value.unwrap_or("-").to_owned()
    };
    of_label.map(value).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_row_108_142_186_row_026_a_fault_is_drained_repaired_and_over_and_the_next_one_is_new()
 {
    let cluster = Cluster::with_nodes(&["f-states"]).await;
    let node = "f-states";
    install(&cluster).await;
    for namespace in ["fs-now", "fs-else"] {
        let made = cluster.testbed.create_pods_on(node, namespace, 1).await;
        made.unwrap();
    }
    let text = with_drain(true, true).replacen(
        "[quarantine]",
        "[quarantine]\nsettle_timeout = \"10s\"",
        1,
    );
    let case = Case::start_as(&cluster, node, &text).await;
    let event = fault(node, "0", RecommendedAction::RestartBm);
    case.controller.append(event.clone()).await;
    until_state(&cluster, node, "draining").await;
    wait_for("the pod to be evicted", SOON, || async {
        Ok(pods(&cluster, "fs-now").await.is_empty().then_some(()))
    })
    .await
    .unwrap();
    // A state that lasts for milliseconds may be left out: this one is held up.
    let pause = |value| json!({ "metadata": { "annotations": { "warden.dev/pause": value } } });
    cluster.merge(node, pause(Some("ann"))).await;
    let name = NodeName::new(node).unwrap();
    wait_for("the pause to be seen", SOON, || async {
        let seen = case.controller.context.nodes.get(&name);
        let paused = seen.is_some_and(|node| node.annotation("warden.dev/pause").is_some());
        Ok(paused.then_some(()))
    })
    .await
    .unwrap();
    finish(&cluster, "fs-else").await;
    until_state(&cluster, node, "drain-succeeded").await;
    assert_eq!(case.objects().await.len(), 0);
    cluster.merge(node, pause(None)).await;
    case.until("Running").await;
    let first = case.only().await;
    let said = until_state(&cluster, node, "remediating").await;
    let repairs = annotation(&said, REPAIRS).unwrap();
    assert!(
        repairs.contains(r#""restart""#) && repairs.contains(name_of(&first)),
        "{repairs}"
    );
    case.sent(name_of(&first)).await;
    case.rebooted(&first, "b2").await;
    until_state(&cluster, node, "remediation-succeeded").await;
    case.controller.append(healthy(&event)).await;
    assert_eq!(
        case.controller.until_closed(node).await,
        "Closed(Recovered)"
    );
    let over = |node: &Node| !is_cordoned(node) && label(node, STATE).is_none();
    let given_back = cluster.until(node, "given back", over).await;
    assert_eq!(annotation(&given_back, REPAIRS), None);
    // The drain follows the cordon, which says so itself.
    let want = [
        "draining",
        "drain-succeeded",
        "remediating",
        "remediation-succeeded",
        "-",
    ];
    wait_for("the label's way", SOON, || async {
        let written = states_written(&cluster, node);
        anyhow::ensure!(written == want, "{written:?}");
        Ok(Some(()))
    })
    .await
    .unwrap();
    let again = fault(node, "0", RecommendedAction::RestartBm);
    case.controller.append(again).await;
    case.another(&first).await;
    assert_eq!(case.objects().await.len(), 2);
    // This one finds no pod and nothing that holds it up: what is over at once is not written.
    wait_for("the label's way again", SOON, || async {
        let mut written = states_written(&cluster, node).split_off(want.len());
        // Unless the machine is so slow that it lasts.
        written.retain(|state| state != "drain-succeeded");
        anyhow::ensure!(written == ["draining", "remediating"], "{written:?}");
        Ok(Some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_033_034_036_repair_row_172_modules_switched_on_later_find_what_is_open() {
    let cluster = Cluster::with_nodes(&["f-later"]).await;
    let node = "f-later";
    install(&cluster).await;
    let mut case = Case::start_as(&cluster, node, &with_drain(false, false)).await;
    let event = fault(node, "0", RecommendedAction::RestartVm);
    case.controller.append(event.clone()).await;
    cluster.until(node, "cordoned", is_cordoned).await;
    for (drain, remediation) in [(true, false), (true, true)] {
        let (folder, name) = (case.folder, case.node);
        case.controller.kill().await;
        let text = with_drain(drain, remediation);
        let controller = Controller::start_with(&cluster, folder.path(), &text).await;
        case = Case {
            cluster: &cluster,
            controller,
            node: name,
            folder,
        };
        if remediation {
            break;
        }
        let drained = until_state(&cluster, node, "drain-succeeded").await;
        let events = annotation(&drained, "quarantineHealthEvent").unwrap();
        assert!(events.contains(&event.message), "{events}");
        assert_eq!(case.objects().await.len(), 0);
    }
    case.until("Running").await;
    let object = case.only().await;
    assert_eq!(object["spec"]["nodeName"], node);
    let names_it = |node: &Node| {
        annotation(node, REPAIRS).is_some_and(|repairs| repairs.contains(name_of(&object)))
    };
    cluster.until(node, "its repair named", names_it).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_018_drain_row_44_a_quarantine_in_dry_run_orders_no_repair() {
    let cluster = Cluster::with_nodes(&["f-observed"]).await;
    install(&cluster).await;
    let text = config("").replacen("[quarantine]", "[quarantine]\ndry_run = true", 1);
    let case = Case::start_as(&cluster, "f-observed", &text).await;
    let event = fault("f-observed", "0", RecommendedAction::RestartBm);
    case.controller.append(event).await;
    case.controller.until_state("f-observed", "Observed").await;
    // Whatever would be ordered is ordered within some milliseconds.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(case.objects().await.len(), 0);
    assert_eq!(case.incident().repair, None);
    assert!(!is_cordoned(&cluster.get("f-observed").await));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_020_024_025_drain_row_45_81_what_ends_while_it_drains_is_never_repaired() {
    let nodes = ["f-deleted-early", "f-uncordoned"];
    let cluster = Cluster::with_nodes(&nodes).await;
    install(&cluster).await;
    for node in nodes {
        let namespace = format!("{node}-later");
        let made = cluster.testbed.create_pods_on(node, &namespace, 1).await;
        made.unwrap();
    }
    let case = Case::start_as(&cluster, nodes[0], &with_drain(true, true)).await;
    for node in nodes {
        let event = fault(node, "0", RecommendedAction::RestartBm);
        case.controller.append(event).await;
    }
    for node in nodes {
        let name = NodeName::new(node).unwrap();
        wait_for(format!("{node} to be drained"), SOON, || async {
            let open = case.controller.context.store.open_incidents_of(&name)?;
            let drain = open.first().and_then(|incident| incident.drain.clone());
            let drains = drain.is_some_and(|d| matches!(d.status, DrainStatus::Draining(_)));
            Ok(drains.then_some(()))
        })
        .await
        .unwrap();
    }
    let began = Instant::now();
    cluster.delete(nodes[0]).await;
    let uncordon = json!({ "spec": { "unschedulable": null } });
    cluster.merge(nodes[1], uncordon).await;
    for (node, want) in nodes.into_iter().zip(["NodeDeleted", "ManualUncordon"]) {
        let closed = case.controller.until_closed(node).await;
        assert_eq!(closed, format!("Closed({want})"));
    }
    assert!(began.elapsed() < PAST_THE_DEADLINE, "before the pods' time");
    // A new start takes none of it up again.
    let folder = case.folder;
    case.controller.kill().await;
    let text = with_drain(true, true);
    let controller = Controller::start_with(&cluster, folder.path(), &text).await;
    tokio::time::sleep_until(began + PAST_THE_DEADLINE).await;
    let made = objects(&cluster)
        .list(&ListParams::default())
        .await
        .unwrap();
    assert!(made.items.is_empty(), "{:?}", made.items);
    let left = pods(&cluster, "f-uncordoned-later").await;
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].metadata.deletion_timestamp, None);
    controller.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_029_030_a_fault_that_no_repair_helps_shows_beside_one_that_was_repaired() {
    let cluster = Cluster::with_nodes(&["f-beside"]).await;
    let node = "f-beside";
    let case = Case::start(&cluster, node, "").await;
    let first = fault(node, "0", RecommendedAction::RestartBm);
    case.controller.append(first).await;
    case.until("Running").await;
    let object = case.only().await;
    case.rebooted(&object, "b2").await;
    until_state(&cluster, node, "remediation-succeeded").await;
    let second = fault(node, "1", RecommendedAction::ContactSupport);
    case.controller.append(second).await;
    case.until("NeedsOperator").await;
    let node_now = until_state(&cluster, node, "remediation-failed").await;
    assert!(is_cordoned(&node_now));
    assert_eq!(case.objects().await.len(), 1);
}
