//! What the controller writes in the profiles that do not act, by the API server's own log: it has
//! an account of its own, with no more permissions than the profile needs.

use std::collections::BTreeSet;
use std::time::Duration;

use e2e::machine::{SOON, until, until_state};
use e2e::monitor::{fatal, warning};
use e2e::{Controller, ControllerOptions, nodes};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};
use testbed::{AuditEvent, wait_for};

use crate::kit::Turn;
use crate::trust::{Fleet, api_token};

/// The rules of a role: group, resources, verbs.
fn rules(list: &[(&str, &[&str], &[&str])]) -> Vec<PolicyRule> {
    let texts = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
    list.iter()
        .map(|(group, resources, verbs)| PolicyRule {
            api_groups: Some(vec![(*group).to_owned()]),
            resources: Some(texts(resources)),
            verbs: texts(verbs),
            ..PolicyRule::default()
        })
        .collect()
}

/// A service account with what every profile needs and `more`; answers its kubeconfig and user.
async fn account(
    turn: &Turn,
    name: &str,
    more: &[(&str, &[&str], &[&str])],
) -> (std::path::PathBuf, String) {
    let testbed = turn.testbed;
    testbed.service_account("warden", name).await.unwrap();
    let own = rules(&[
        (
            "coordination.k8s.io",
            &["leases"],
            &["get", "create", "update"],
        ),
        ("", &["secrets", "configmaps"], &["get", "create", "update"]),
    ]);
    let role: Role = serde_json::from_value(json!({
        "metadata": { "name": name }, "rules": own
    }))
    .unwrap();
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name },
        "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": "warden" }],
    }))
    .unwrap();
    let post = PostParams::default();
    Api::<Role>::namespaced(testbed.admin(), "warden")
        .create(&post, &role)
        .await
        .unwrap();
    Api::<RoleBinding>::namespaced(testbed.admin(), "warden")
        .create(&post, &binding)
        .await
        .unwrap();
    let mut cluster: Vec<(&str, &[&str], &[&str])> = vec![
        ("", &["nodes"], &["get", "list", "watch"]),
        ("authentication.k8s.io", &["tokenreviews"], &["create"]),
        (
            "authorization.k8s.io",
            &["subjectaccessreviews"],
            &["create"],
        ),
    ];
    cluster.extend(more);
    testbed
        .bind_cluster_role("warden", name, rules(&cluster))
        .await
        .unwrap();
    let token = testbed
        .token("warden", name, &[], Duration::from_secs(3_600))
        .await
        .unwrap();
    let kubeconfig = testbed.kubeconfig_for_token(name, &token).unwrap();
    (kubeconfig, format!("system:serviceaccount:warden:{name}"))
}

/// Everything that the user asked for so far.
fn asked(turn: &Turn, user: &str) -> Vec<AuditEvent> {
    let all = turn.testbed.audit_events().unwrap();
    all.into_iter().filter(|event| event.user == user).collect()
}

/// Verb, resource and place of each write; names where they say whose object it is.
fn writes(events: &[AuditEvent]) -> BTreeSet<String> {
    let writes = events.iter().filter(|event| event.is_write());
    writes
        .map(|event| {
            let AuditEvent {
                verb,
                resource,
                subresource,
                namespace,
                object,
                ..
            } = event;
            let named = object.as_ref().and_then(|o| o["metadata"]["name"].as_str());
            let name = if event.name.is_empty() {
                named.unwrap_or_default()
            } else {
                &event.name
            };
            match resource.as_str() {
                // Their names are not ours to choose, or not in the log.
                "events" | "tokenreviews" | "subjectaccessreviews" | "secrets" => {
                    format!("{verb} {resource} {namespace}")
                }
                _ => format!("{verb} {resource}/{subresource} {namespace}/{name}"),
            }
        })
        .collect()
}

/// What every profile writes: its Lease, its authority, and questions.
fn in_every_profile() -> BTreeSet<String> {
    let list = [
        "create configmaps/ warden/warden-ca-bundle",
        "create leases/ warden/warden-controller",
        "create secrets warden",
        "create subjectaccessreviews ",
        "create tokenreviews ",
        "update leases/ warden/warden-controller",
    ];
    list.map(str::to_owned).into()
}

/// Starts a controller under an account of its own, has an agent report a fatal fault and a
/// warning, and waits until `decided`.
async fn run(
    profile: &str,
    more: &[(&str, &[&str], &[&str])],
    decided: impl AsyncFn(&Turn, &Controller),
) -> Vec<AuditEvent> {
    let turn = Turn::take().await;
    turn.testbed.ensure_namespace("warden").await.unwrap();
    crate::trust::forget_authority(&turn).await;
    // Made by the controller of an earlier turn.
    let leases: Api<Lease> = Api::namespaced(turn.testbed.admin(), "warden");
    let _ = leases
        .delete("warden-controller", &DeleteParams::default())
        .await;
    let (kubeconfig, user) = account(&turn, &format!("controller-{profile}"), more).await;
    let options = ControllerOptions {
        profile: profile.to_owned(),
        extra: "[lease]\nduration = \"3s\"\n".to_owned(),
        insecure: false,
        kubeconfig: Some(kubeconfig),
        ..ControllerOptions::default()
    };
    let mut controller = turn.controller(&options).await;
    controller.set_api_token(api_token(&turn).await);
    let fleet = Fleet::new(&turn).await;
    let name = format!("only-{profile}");
    let machine = fleet.machine(&controller, &name).await;
    machine
        .monitor
        .say(fatal("GpuMemWatch", "48", "0"))
        .await
        .unwrap();
    machine
        .monitor
        .say(warning("GpuPowerWatch", "5", "0"))
        .await
        .unwrap();
    until(&controller, &name, "with both faults", |node| {
        node["faults"].as_array().is_some_and(|all| all.len() == 2)
    })
    .await
    .unwrap();
    decided(&turn, &controller).await;
    let node = nodes::read(&turn.testbed.admin(), &name).await.unwrap();
    assert!(!nodes::is_cordoned(&node) && nodes::marks(&node).is_empty());
    // Stopped, it writes nothing more; its last word is that it gives the Lease back.
    controller.stop().unwrap();
    wait_for("the last write in the log", SOON, || async {
        // A write of ours comes into the log after all of its.
        let seen = json!({ "metadata": { "annotations": { "test/seen": profile } } });
        Api::<k8s_openapi::api::core::v1::Node>::all(turn.testbed.admin())
            .patch(
                &name,
                &kube::api::PatchParams::default(),
                &kube::api::Patch::Merge(&seen),
            )
            .await?;
        let all = turn.testbed.audit_events()?;
        Ok(all
            .iter()
            .any(|e| e.object.as_ref() == Some(&seen))
            .then_some(()))
    })
    .await
    .unwrap();
    let asked = asked(&turn, &user);
    let refused: Vec<_> = asked.iter().filter(|event| event.code == 403).collect();
    assert!(
        refused.is_empty(),
        "it asks for more than it may: {refused:#?}"
    );
    asked
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_writes_only_in_its_own_namespace() {
    let asked = run("silent", &[], async |_, _| {}).await;
    assert_eq!(writes(&asked), in_every_profile());
}

#[tokio::test(flavor = "multi_thread")]
async fn observe_writes_conditions_with_one_annotation_and_events_too() {
    let more: [(&str, &[&str], &[&str]); 3] = [
        ("", &["nodes/status"], &["patch"]),
        ("", &["events"], &["get", "create", "patch"]),
        ("apps", &["daemonsets"], &["list"]),
    ];
    let asked = run("observe", &more, async |turn, controller| {
        let name = "only-observe";
        until_state(controller, name, "Observed").await.unwrap();
        // A person's cordon and uncordon of an observed node mean nothing to us.
        let client = turn.testbed.admin();
        for cordoned in [true, false] {
            nodes::set_cordon(&client, name, cordoned).await.unwrap();
            until(controller, name, "seen", |node| {
                node["object"]["cordoned"] == cordoned
            })
            .await
            .unwrap();
        }
        until_state(controller, name, "Observed").await.unwrap();
        turn.node(name, "with a condition", |node| {
            nodes::condition(node, "GpuMemWatch") == Some("True")
        })
        .await;
        let events: Api<k8s_openapi::api::core::v1::Event> = Api::namespaced(client, "default");
        wait_for("the Event of the warning", SOON, || async {
            let list = events.list(&kube::api::ListParams::default()).await?;
            let found = list.iter().any(|e| {
                e.involved_object.name.as_deref() == Some(name)
                    && e.message
                        .as_deref()
                        .is_some_and(|m| m.contains("GpuPowerWatch"))
            });
            Ok(found.then_some(()))
        })
        .await
        .unwrap();
    })
    .await;
    let mut expected = in_every_profile();
    expected.insert("create events default".to_owned());
    expected.insert("patch nodes/status /only-observe".to_owned());
    assert_eq!(writes(&asked), expected);
    let patches = asked
        .iter()
        .filter(|e| e.verb == "patch" && e.resource == "nodes");
    for patch in patches.filter_map(|event| event.object.as_ref()) {
        let keys = |value: &Value| -> Vec<String> {
            value
                .as_object()
                .map(|o| o.keys().cloned().collect())
                .unwrap_or_default()
        };
        let annotations = keys(&patch["metadata"]["annotations"]);
        assert!(
            annotations.iter().all(|key| key == "warden.dev/conditions"),
            "{patch:#}"
        );
        // The UID is a precondition: it changes nothing.
        assert!(
            keys(&patch["metadata"])
                .iter()
                .all(|key| key == "annotations" || key == "uid"),
            "{patch:#}"
        );
        assert_eq!(keys(&patch["status"]), ["conditions"], "{patch:#}");
        assert!(
            keys(patch)
                .iter()
                .all(|key| key == "metadata" || key == "status"),
            "{patch:#}"
        );
    }
}
