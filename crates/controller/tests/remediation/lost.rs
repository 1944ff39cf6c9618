//! Controllers that are killed around an order, and a store that is lost.

use health_event::RecommendedAction;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use testbed::wait_for;

use super::kit::{Case, config, fault, install, name_of, objects};
use crate::harness::{Cluster, Controller, SOON};
use crate::process::{Program, Sender};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_before_or_after_the_order_the_object_is_made_once() {
    let cluster = Cluster::with_nodes(&["f-before", "f-after"]).await;
    install(&cluster).await;
    cluster.testbed.ensure_namespace("warden").await.unwrap();
    let kubeconfig = cluster.testbed.kubeconfig();
    for (node, point) in [
        ("f-before", "write.repair.before"),
        ("f-after", "write.repair.after"),
    ] {
        let text = config("").replace("profile = \"remediate\"", "");
        let flags = ["--insecure-local", "--crash-at", point];
        let folder = tempfile::tempdir().unwrap();
        let mut program = Program::start_as("remediate", folder, &kubeconfig, &text, &flags);
        program.up().await;
        let sender = Sender::new(program.plain().await, None);
        let event = fault(node, "0", RecommendedAction::RestartBm);
        sender.send(vec![event.into()]).await.unwrap();
        program.ended().await;
        let flags = ["--insecure-local"];
        let program = Program::start_again(program.kill(), &kubeconfig, &flags);
        let api = objects(&cluster);
        let mine = || async {
            let all = api.list(&ListParams::default()).await?.items;
            let all = all.into_iter().map(|o| serde_json::to_value(o).unwrap());
            let mine: Vec<Value> = all.filter(|o| o["spec"]["nodeName"] == node).collect();
            anyhow::Ok(mine)
        };
        wait_for(
            format!("{point}: the repair to be followed"),
            SOON,
            || async {
                let running = program.log().contains("attempt 1 is under way");
                anyhow::ensure!(running, "{}", program.log());
                Ok(Some(()))
            },
        )
        .await
        .unwrap();
        let mine = mine().await.unwrap();
        assert_eq!(mine.len(), 1, "{point}: {mine:#?}");
        assert!(name_of(&mine[0]).ends_with("-1"));
        drop(program);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_lost_store_the_object_tells_of_the_repair_and_is_not_made_again() {
    let cluster = Cluster::with_nodes(&["f-lost"]).await;
    let case = Case::start(&cluster, "f-lost", "").await;
    let event = fault("f-lost", "0", RecommendedAction::RestartBm);
    case.controller.append(event).await;
    case.until("Running").await;
    let first = case.only().await;
    let incident = case.incident();
    case.controller.kill().await;
    // The machine goes through its reboot while nobody looks.
    cluster.testbed.reboot("f-lost", "b2").await.unwrap();
    let empty = tempfile::tempdir().unwrap();
    let controller = Controller::start_with(&cluster, empty.path(), &config("")).await;
    let case = Case {
        cluster: &cluster,
        controller,
        node: case.node,
        folder: empty,
    };
    let repair = case.until("Running").await;
    assert_eq!(case.incident().id, incident.id);
    let attempt = repair.attempt.unwrap();
    assert_eq!(attempt.object, name_of(&first));
    assert_eq!(
        attempt.boot_before,
        incident.repair.unwrap().attempt.unwrap().boot_before
    );
    case.done(name_of(&first)).await;
    case.until("Succeeded").await;
    assert_eq!(case.objects().await.len(), 1);
    // What is said of the new boot has its second attempt, and no third.
    let again = fault("f-lost", "1", RecommendedAction::RestartBm);
    case.controller.append(again).await;
    let second = case.another(&first).await;
    case.failed(name_of(&second)).await;
    case.until("NeedsOperator").await;
    assert_eq!(case.objects().await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_was_lost_is_no_first_start_with_repairs_on() {
    let cluster = Cluster::with_nodes(&["f-again"]).await;
    let case = Case::start(&cluster, "f-again", "dry_run = true").await;
    let event = fault("f-again", "0", RecommendedAction::RestartBm);
    case.controller.append(event).await;
    case.until("Planned").await;
    case.controller.kill().await;
    let empty = tempfile::tempdir().unwrap();
    let slow = config("").replace("first_action_delay = \"0s\"", "first_action_delay = \"1h\"");
    let controller = Controller::start_with(&cluster, empty.path(), &slow).await;
    let case = Case {
        cluster: &cluster,
        controller,
        node: case.node,
        folder: empty,
    };
    case.until("Running").await;
    assert_eq!(case.objects().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_may_not_be_made_is_tried_again_and_uses_no_attempt_up() {
    let cluster = Cluster::with_nodes(&["f-denied"]).await;
    install(&cluster).await;
    cluster.testbed.ensure_namespace("warden").await.unwrap();
    let binding = allow_all_but_orders(&cluster).await;
    let kubeconfig = cluster
        .testbed
        .kubeconfig_for_user("f-warden", &["f-wardens"])
        .unwrap();
    let text = config("").replace("profile = \"remediate\"", "");
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--insecure-local"];
    let program = Program::start_as("remediate", folder, &kubeconfig, &text, &flags);
    program.up().await;
    let sender = Sender::new(program.plain().await, None);
    let event = fault("f-denied", "0", RecommendedAction::RestartBm);
    sender.send(vec![event.into()]).await.unwrap();
    let said = program.said_code("cr_creation_failed").await;
    let why = said["why"].as_str().unwrap();
    assert!(
        why.contains("order of RebootNode maintenance-f-denied-"),
        "{why}"
    );
    assert!(why.contains("forbidden"), "{why}");
    allow_orders(&cluster, &binding).await;
    wait_for("the repair to be followed", SOON, || async {
        let running = program.log().contains("attempt 1 is under way");
        anyhow::ensure!(running, "{}", program.log());
        Ok(Some(()))
    })
    .await
    .unwrap();
    let all = objects(&cluster)
        .list(&ListParams::default())
        .await
        .unwrap();
    assert_eq!(all.items.len(), 1);
}

/// A user that may do everything but make repair objects.
async fn allow_all_but_orders(cluster: &Cluster) -> String {
    let name = "f-warden".to_owned();
    let rules = json!([
        { "apiGroups": ["", "apps", "coordination.k8s.io", "events.k8s.io", "authentication.k8s.io",
                        "authorization.k8s.io", "policy"],
          "resources": ["*"], "verbs": ["*"] },
        { "apiGroups": ["janitor.dgxc.nvidia.com"], "resources": ["*"],
          "verbs": ["get", "list", "watch"] },
        { "nonResourceURLs": ["*"], "verbs": ["*"] },
    ]);
    role(cluster, &name, rules).await;
    name
}

async fn allow_orders(cluster: &Cluster, name: &str) {
    let rules = json!([
        { "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] },
        { "nonResourceURLs": ["*"], "verbs": ["*"] },
    ]);
    role(cluster, name, rules).await;
}

async fn role(cluster: &Cluster, name: &str, rules: Value) {
    let params = PatchParams::apply("test").force();
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": name }, "rules": rules,
    });
    Api::<ClusterRole>::all(cluster.testbed.admin())
        .patch(name, &params, &Patch::Apply(role))
        .await
        .unwrap();
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "f-wardens" }],
    });
    Api::<ClusterRoleBinding>::all(cluster.testbed.admin())
        .patch(name, &params, &Patch::Apply(binding))
        .await
        .unwrap();
}
