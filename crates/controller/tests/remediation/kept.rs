//! What keeps a planned repair from being ordered.

use std::collections::BTreeSet;

use controller::context::Context;
use controller::kubernetes::{self, Kube};
use controller::reboots::{self, Reboots};
use health_event::event::BehaviourOverrides;
use health_event::incident::{OperatorReason, RepairStatus};
use health_event::{HealthEvent, RecommendedAction};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testbed::wait_for;
use tokio::task::JoinSet;

use super::kit::{Case, config, fault, install, name_of, objects, operator, uninstall};
use crate::harness::{Cluster, SOON, healthy};
use crate::process::{Program, Sender, numbered};

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
    let cluster = Cluster::with_nodes(&["f-paused", "f-owned", "f-outside"]).await;
    let case = Case::start(&cluster, "f-paused", "").await;
    let pause = |value| json!({ "metadata": { "annotations": { "warden.dev/pause": value } } });
    case.controller.append(reboot("f-paused")).await;
    case.until("Running").await;
    let first = case.only().await;
    cluster.merge("f-paused", pause(Some("ann"))).await;
    // What runs is followed to its end, and nothing new is begun.
    case.failed(name_of(&first)).await;
    case.until_blocked("paused").await;
    assert!(matches!(case.status(), RepairStatus::Planned { .. }));
    cluster.merge("f-paused", pause(None)).await;
    case.another(&first).await;

    let managed = |value: Option<&str>| json!({ "metadata": { "labels": { "nvsentinel.dgxc.nvidia.com/managed": value } } });
    let taint = "nvsentinel.dgxc.nvidia.com/external-remediation";
    let tainted = |key: Option<&str>| {
        let taints: Vec<_> = key
            .map(|key| json!({ "key": key, "effect": "NoSchedule" }))
            .into_iter()
            .collect();
        json!({ "spec": { "taints": taints } })
    };
    let owners = [
        ("f-owned", managed(Some("false")), managed(None)),
        ("f-outside", tainted(Some(taint)), tainted(None)),
    ];
    for (name, theirs, back) in owners {
        let owned = case.of(name);
        cluster.merge(name, theirs).await;
        wait_for("it to be another's", SOON, || async {
            let node = case.controller.context.nodes.get(&owned.node);
            let theirs = node.and_then(|node| node.external_owner(&BTreeSet::new()));
            Ok(theirs.map(drop))
        })
        .await
        .unwrap();
        case.controller.append(reboot(name)).await;
        owned.until("Planned").await;
        wait_for("it to be kept", SOON, || async {
            let by = case.controller.context.stages.repair_blocked(&owned.node);
            Ok((by == Some("external_owner")).then_some(()))
        })
        .await
        .unwrap();
        // The plan is made anew once the owner gives it back.
        cluster.merge(name, back).await;
        owned.until("Running").await;
    }
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

/// A token of a new service account, which may do nothing.
async fn token(cluster: &Cluster, name: &str) -> String {
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.testbed.admin(), "default");
    let account = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
    let post = PostParams::default();
    accounts.create(&post, &account).await.unwrap();
    let asked = serde_json::from_value(json!({ "spec": { "audiences": [] } })).unwrap();
    let given = accounts.create_token_request(name, &post, &asked).await;
    given.unwrap().status.unwrap().token
}

/// Waits until the page of health says this of the orders.
async fn until_health(context: &Context, says: &str) {
    wait_for(format!("the page of health with {says}"), SOON, || async {
        let (is_ready, page) = context.readiness.report();
        anyhow::ensure!(is_ready && page.contains(says), "{page}");
        Ok(Some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_definition_plans_wait_the_healed_go_back_and_health_says_what_to_apply() {
    let cluster = Cluster::with_nodes(&["f-crd", "f-healed"]).await;
    install(&cluster).await;
    uninstall(&cluster).await;
    let case = Case::start_as(&cluster, "f-crd", &config("")).await;
    case.controller.append(reboot("f-crd")).await;
    case.until_blocked("no_definition").await;
    let apply = "reboots: the definition of RebootNode is not installed, so that no repair is ordered; \
                 install it: kubectl apply -f deploy/crds/";
    until_health(&case.controller.context, apply).await;
    // There can be no order: whoever is well goes back.
    let warning = HealthEvent {
        recommended_action: RecommendedAction::None,
        ..reboot("f-healed")
    };
    case.controller.append(warning.clone()).await;
    case.controller.until_state("f-healed", "Quarantined").await;
    case.controller.append(healthy(&warning)).await;
    case.controller.until_closed("f-healed").await;
    install(&cluster).await;
    let repair = case.until("Running").await;
    assert_eq!(repair.attempt.unwrap().number, 1, "no attempt was used up");
    until_health(&case.controller.context, "reboots: ready").await;
    // Taken away again it takes the objects with it, and is told again.
    uninstall(&cluster).await;
    until_health(&case.controller.context, apply).await;
    install(&cluster).await;
    until_health(&case.controller.context, "reboots: ready").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_right_to_read_orders_none_are_known_and_health_names_the_right() {
    let cluster = Cluster::with_nodes(&["f-rights"]).await;
    let case = Case::start(&cluster, "f-rights", "").await;
    let mut settings = kubernetes::config(Some(&cluster.testbed.kubeconfig()))
        .await
        .unwrap();
    settings.auth_info = kube::config::AuthInfo::default();
    settings.auth_info.token = Some(token(&cluster, "f-nobody").await.into());
    let context = Context {
        kube: Kube::new(kubernetes::client(&settings).unwrap()),
        reboots: Reboots::default(),
        ..case.controller.context.clone()
    };
    let of_watch = context.clone();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { match reboots::run(&of_watch).await {} });
    until_health(
        &context,
        "reboots: the API server does not let us list and watch rebootnodes.janitor.dgxc.nvidia.com (403 \
         Forbidden): no repair is ordered, and no node is given back for which it is not known",
    )
    .await;
    assert!(!context.reboots.is_known(), "no answer is no empty list");
    let roles: Api<ClusterRole> = Api::all(cluster.testbed.admin());
    let bindings: Api<ClusterRoleBinding> = Api::all(cluster.testbed.admin());
    let role = json!({
        "metadata": { "name": "f-rights" },
        "rules": [{
            "apiGroups": ["janitor.dgxc.nvidia.com"], "resources": ["rebootnodes"],
            "verbs": ["list", "watch"],
        }],
    });
    let binding = json!({
        "metadata": { "name": "f-rights" },
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "f-rights",
        },
        "subjects": [{ "kind": "ServiceAccount", "namespace": "default", "name": "f-nobody" }],
    });
    let (post, role) = (PostParams::default(), serde_json::from_value(role).unwrap());
    roles.create(&post, &role).await.unwrap();
    let binding = serde_json::from_value(binding).unwrap();
    bindings.create(&post, &binding).await.unwrap();
    until_health(&context, "reboots: ready").await;
    assert!(context.reboots.is_known());
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
async fn an_object_that_nobody_ends_keeps_no_healed_node_out_and_is_told_of_to_a_person() {
    let cluster = Cluster::with_nodes(&["f-left", "f-well"]).await;
    let case = Case::start(&cluster, "f-left", "").await;
    let api = objects(&cluster);
    for node in ["f-left", "f-well"] {
        let object = json!({
            "apiVersion": "janitor.dgxc.nvidia.com/v1alpha1", "kind": "RebootNode",
            "metadata": { "name": format!("by-hand-{node}") }, "spec": { "nodeName": node, "force": false },
        });
        let object = serde_json::from_value(object).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap();
        // Its janitor is gone since.
        let begun = Patch::Merge(json!({ "status": { "startTime": "2020-01-02T03:04:05Z" } }));
        let name = format!("by-hand-{node}");
        api.patch_status(&name, &PatchParams::default(), &begun)
            .await
            .unwrap();
    }
    case.controller.append(reboot("f-left")).await;
    case.until_blocked("left_repair").await;
    let warning = HealthEvent {
        recommended_action: RecommendedAction::None,
        ..reboot("f-well")
    };
    case.controller.append(warning.clone()).await;
    case.controller.until_state("f-well", "Quarantined").await;
    case.controller.append(healthy(&warning)).await;
    case.controller.until_closed("f-well").await;
    api.delete("by-hand-f-left", &DeleteParams::default())
        .await
        .unwrap();
    case.until("Running").await;
}

/// With a janitor of ours by the configuration, which alone tells that nothing was sent.
fn with_janitor() -> String {
    let on = "[janitor]\ncspProviderHost = \"127.0.0.1:1\"\ncspProviderInsecure = true\n\
              cspProviderTokenPath = \"\"";
    config("").replace("[janitor]\nenabled = false", on)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_that_went_with_their_definition_are_made_again_and_one_that_a_person_deleted_is_not()
 {
    let cluster = Cluster::with_nodes(&["f-gone"]).await;
    install(&cluster).await;
    let case = Case::start_as(&cluster, "f-gone", &with_janitor()).await;
    case.controller.append(reboot("f-gone")).await;
    case.until("Running").await;
    let first = case.only().await;
    uninstall(&cluster).await;
    case.until("Requested").await;
    install(&cluster).await;
    let running = case.until("Running").await;
    let again = case.only().await;
    assert_eq!(name_of(&again), name_of(&first));
    assert_ne!(again["metadata"]["uid"], first["metadata"]["uid"]);
    assert_eq!(running.attempt.map(|attempt| attempt.number), Some(1));
    case.controller
        .until_metric(r#"warden_repairs_total{outcome="ordered"} 1"#)
        .await;
    let api = objects(&cluster);
    api.delete(name_of(&again), &DeleteParams::default())
        .await
        .unwrap();
    case.until("NeedsOperator").await;
    assert_eq!(operator(&case.incident()), OperatorReason::CalledOff);
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

/// Nothing moves the controller by itself, so that a person is asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repair_that_waits_for_the_controller_to_move_is_shown_as_in_need_of_a_person() {
    let cluster = Cluster::with_nodes(&["f-move"]).await;
    install(&cluster).await;
    cluster.testbed.ensure_namespace("warden").await.unwrap();
    let rules = config("").replace("profile = \"remediate\"", "");
    let flags = ["--insecure-local", "--node-name", "f-move"];
    let (folder, kubeconfig) = (tempfile::tempdir().unwrap(), cluster.testbed.kubeconfig());
    let program = Program::start_as("remediate", folder, &kubeconfig, &rules, &flags);
    program.up().await;
    let sender = Sender::new(program.plain().await, None);
    let mut event = numbered("f-move", 1);
    event.check_name = "Test".into();
    sender.send(vec![event]).await.unwrap();
    let token = std::fs::read_to_string(program.store().join("api-token")).unwrap();
    let get = async |path: &str| -> Value {
        let (_, said) = program.get(path, Some(token.trim())).await;
        serde_json::from_str(&said).unwrap()
    };
    wait_for("a person to be asked for", SOON, || async {
        let node = get("/api/v1/nodes/f-move").await;
        let repair = &node["incidents"][0]["repair"];
        let kept = (&repair["state"], &repair["blocked_by"]);
        anyhow::ensure!(kept == (&json!("Planned"), &json!("own_node")), "{node:#}");
        Ok(Some(()))
    })
    .await
    .unwrap();
    let status = get("/api/v1/status").await;
    assert_eq!(
        (&status["need_person"], &status["janitor"]),
        (&json!(1), &json!("off"))
    );
    assert_eq!(get("/api/v1/nodes").await[0]["needs_person"], true);
}
