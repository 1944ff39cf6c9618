//! What keeps a planned repair from being ordered.

use health_event::event::BehaviourOverrides;
use health_event::incident::RepairStatus;
use health_event::{HealthEvent, RecommendedAction};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use testbed::wait_for;

use super::kit::{Case, config, fault, install, name_of, objects, uninstall};
use crate::harness::{Cluster, SOON};

fn reboot(node: &str) -> HealthEvent {
    fault(node, "0", RecommendedAction::RestartBm)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repair_row_136_a_dry_run_shows_what_it_would_order_and_makes_nothing() {
    let cluster = Cluster::with_nodes(&["f-dry"]).await;
    let case = Case::start(&cluster, "f-dry", "dry_run = true").await;
    case.controller.append(reboot("f-dry")).await;
    case.until("Planned").await;
    case.until_blocked("dry_run").await;
    assert_eq!(case.objects().await.len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_not_drained_is_not_repaired_unless_its_faults_say_so() {
    let cluster = Cluster::with_nodes(&["f-pods", "f-skip"]).await;
    install(&cluster).await;
    for drain in ["enabled = true", "enabled = false", "dry_run = true"] {
        let text = config("")
            .replace("[drain]\nenabled = false", &format!("[drain]\n{drain}"))
            .replace("without_drain = true", "without_drain = false");
        let case = Case::start_as(&cluster, "f-pods", &text).await;
        case.controller.append(reboot("f-pods")).await;
        case.until_blocked("not_drained").await;
        assert_eq!(case.status().as_str(), "Planned", "{drain}");
        case.controller.kill().await;
        cluster.delete("f-pods").await;
        cluster.add(&["f-pods"]).await;
    }
    let text = config("").replace("without_drain = true", "without_drain = false");
    let case = Case::start_as(&cluster, "f-skip", &text).await;
    let mut event = reboot("f-skip");
    event.drain_overrides = Some(BehaviourOverrides {
        force: false,
        skip: true,
    });
    case.controller.append(event).await;
    case.until("Running").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_node_and_one_that_somebody_else_repairs_wait() {
    let cluster = Cluster::with_nodes(&["f-paused", "f-owned"]).await;
    let case = Case::start(&cluster, "f-paused", "").await;
    let label = "nvsentinel.dgxc.nvidia.com/managed";
    let pause = |value| json!({ "metadata": { "annotations": { "warden.dev/pause": value } } });
    case.controller.append(reboot("f-paused")).await;
    case.until("Running").await;
    let first = case.only().await;
    cluster.merge("f-paused", pause(Some("ann"))).await;
    // What runs is followed to its end, and nothing new is begun.
    case.done(name_of(&first)).await;
    case.until_blocked("paused").await;
    assert!(matches!(case.status(), RepairStatus::Planned { .. }));
    cluster.merge("f-paused", pause(None)).await;
    case.another(&first).await;

    let managed = |value: Option<&str>| json!({ "metadata": { "labels": { label: value } } });
    let owned = case.of("f-owned");
    cluster.merge("f-owned", managed(Some("false"))).await;
    cluster
        .until("f-owned", "it is another's", |node| {
            crate::harness::label(node, label).is_some()
        })
        .await;
    case.controller.append(reboot("f-owned")).await;
    owned.until("Planned").await;
    wait_for("it to be kept", SOON, || async {
        let by = case.controller.context.stages.repair_blocked(&owned.node);
        Ok((by == Some("external_owner")).then_some(()))
    })
    .await
    .unwrap();
    cluster.merge("f-owned", managed(None)).await;
    owned.until("Running").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_repair_waits_after_the_module_was_switched_on() {
    let cluster = Cluster::with_nodes(&["f-first"]).await;
    install(&cluster).await;
    let text = config("").replace(
        "without_drain = true\nfirst_action_delay = \"0s\"",
        "without_drain = true\nfirst_action_delay = \"3s\"",
    );
    let case = Case::start_as(&cluster, "f-first", &text).await;
    case.controller.append(reboot("f-first")).await;
    case.until_blocked("first_action").await;
    assert_eq!(case.objects().await.len(), 0);
    case.until("Running").await;
    // The same delay, and a second start: it is over.
    let (folder, node) = (case.folder, case.node);
    case.controller.kill().await;
    cluster.delete(node.as_str()).await;
    cluster.add(&["f-first"]).await;
    let controller = crate::harness::Controller::start_with(&cluster, folder.path(), &text).await;
    controller.append(reboot("f-first")).await;
    let case = Case {
        cluster: &cluster,
        controller,
        node,
        folder,
    };
    case.until("Running").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_the_api_server_knows_no_such_object_the_plan_waits_and_no_attempt_is_used_up() {
    let cluster = Cluster::with_nodes(&["f-crd"]).await;
    install(&cluster).await;
    uninstall(&cluster).await;
    let case = Case::start_as(&cluster, "f-crd", &config("")).await;
    case.controller.append(reboot("f-crd")).await;
    case.until_blocked("objects_unknown").await;
    let why = case.controller.context.reboots.failed().unwrap();
    assert!(why.contains("rebootnodes"), "{why}");
    install(&cluster).await;
    let repair = case.until("Running").await;
    assert_eq!(repair.attempt.unwrap().number, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_references_own_remediation_runs_nothing_is_ordered() {
    let cluster = Cluster::with_nodes(&["f-other"]).await;
    install(&cluster).await;
    let deployments: Api<Deployment> = Api::namespaced(cluster.testbed.admin(), "default");
    let labels = json!({ "app.kubernetes.io/name": "fault-remediation" });
    let deployment = json!({
        "metadata": { "name": "fault-remediation", "labels": labels },
        "spec": {
            "replicas": 1,
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": { "containers": [{ "name": "c", "image": "none" }] },
            },
        },
    });
    let deployment = serde_json::from_value(deployment).unwrap();
    deployments
        .create(&PostParams::default(), &deployment)
        .await
        .unwrap();
    let case = Case::start_as(&cluster, "f-other", &config("")).await;
    case.controller.append(reboot("f-other")).await;
    case.until_blocked("other_remediation").await;
    case.controller
        .until_metric("warden_other_remediation 1")
        .await;
    assert_eq!(case.objects().await.len(), 0);
    deployments
        .delete("fault-remediation", &DeleteParams::default())
        .await
        .unwrap();
    case.until("Running").await;
    case.controller
        .until_metric("warden_other_remediation 0")
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repair_row_149_a_persons_repair_of_the_node_is_waited_for() {
    let cluster = Cluster::with_nodes(&["f-person"]).await;
    let case = Case::start(&cluster, "f-person", "").await;
    let api = objects(&cluster);
    let theirs = json!({
        "apiVersion": "janitor.dgxc.nvidia.com/v1alpha1", "kind": "RebootNode",
        "metadata": { "name": "by-hand" }, "spec": { "nodeName": "f-person", "force": false },
    });
    let theirs = serde_json::from_value(theirs).unwrap();
    api.create(&PostParams::default(), &theirs).await.unwrap();
    case.controller.append(reboot("f-person")).await;
    case.until_blocked("other_repair").await;
    assert_eq!(case.objects().await.len(), 1);
    assert!(
        api.get_opt("by-hand").await.unwrap().is_some(),
        "it is theirs"
    );
    case.done("by-hand").await;
    case.until("Running").await;
    assert_eq!(case.objects().await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_another_ones_object_holds_is_waited_for() {
    let cluster = Cluster::with_nodes(&["f-locked"]).await;
    install(&cluster).await;
    let leases: Api<Lease> = Api::namespaced(cluster.testbed.admin(), "default");
    let node = cluster.get("f-locked").await;
    // Whatever owns it; a node does, so that it is not collected.
    let lease = json!({ "metadata": { "name": "f-locked", "ownerReferences": [{
        "apiVersion": "v1", "kind": "Node", "name": "f-locked", "uid": node.metadata.uid.unwrap(),
    }] } });
    let lease = serde_json::from_value(lease).unwrap();
    leases.create(&PostParams::default(), &lease).await.unwrap();
    let text = config("").replace("[janitor]\nenabled = false", "[janitor]\nenabled = true");
    let case = Case::start_as(&cluster, "f-locked", &text).await;
    case.controller.append(reboot("f-locked")).await;
    case.until_blocked("other_repair").await;
    leases
        .delete("f-locked", &DeleteParams::default())
        .await
        .unwrap();
    case.until("Running").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_that_the_controller_runs_on_waits_until_it_runs_elsewhere() {
    let cluster = Cluster::with_nodes(&["f-own"]).await;
    let own = "[kubernetes]\nnode_name = 'f-own'";
    let case = Case::start(&cluster, "f-own", own).await;
    case.controller.append(reboot("f-own")).await;
    case.until_blocked("own_node").await;
    assert_eq!(case.objects().await.len(), 0);
}
