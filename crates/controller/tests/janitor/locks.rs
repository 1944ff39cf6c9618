//! The node lock: a Lease named as the node, owned by one object.

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, DynamicObject, PostParams};
use serde_json::{Value, json};
use testbed::{Behaviour, Outcome, Rpc, wait_for};

use super::{Rig, end, failed, install, leases, order, say, status, succeeded};
use crate::harness::{Cluster, SOON};

/// A Lease of this name that another object owns: this node.
async fn others_lease(cluster: &Cluster, name: &str, node: &str) {
    let owner = cluster.get(node).await.metadata;
    let owner = json!({ "apiVersion": "v1", "kind": "Node", "name": node, "uid": owner.uid });
    owned_lease(cluster, name, owner).await;
}

async fn owned_lease(cluster: &Cluster, name: &str, owner: Value) {
    let lease: Lease = serde_json::from_value(json!({
        "metadata": { "name": name, "ownerReferences": [owner] },
        "spec": {},
    }))
    .unwrap();
    leases(cluster)
        .create(&PostParams::default(), &lease)
        .await
        .unwrap();
}

/// The node's lock, as an object holds it.
pub(super) async fn own_lease(cluster: &Cluster, node: &str, object: &DynamicObject) {
    let owner = json!({
        "apiVersion": "janitor.dgxc.nvidia.com/v1alpha1", "kind": "RebootNode",
        "name": object.metadata.name, "uid": object.metadata.uid, "blockOwnerDeletion": true,
    });
    owned_lease(cluster, node, owner).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l01_l05_l08_l23_the_lock_is_made_held_and_given_back() {
    let cluster = Cluster::with_nodes(&["j-lock"]).await;
    let rig = Rig::start(&cluster, "").await;
    rig.provider.behave(Behaviour {
        delay: std::time::Duration::from_secs(1),
        ..Behaviour::default()
    });
    let object = order(&cluster, "l", "j-lock").await;
    let lease = wait_for("the lock", SOON, || async {
        Ok(leases(&cluster).get_opt("j-lock").await?)
    })
    .await
    .unwrap();
    let owners = lease.metadata.owner_references.unwrap();
    assert_eq!(owners.len(), 1);
    let owner = &owners[0];
    assert_eq!(
        (&*owner.api_version, &*owner.kind, &*owner.name),
        ("janitor.dgxc.nvidia.com/v1alpha1", "RebootNode", "l")
    );
    assert_eq!(Some(&owner.uid), object.metadata.uid.as_ref());
    assert_eq!(owner.block_owner_deletion, Some(true));
    assert_eq!(
        lease.spec.unwrap(),
        k8s_openapi::api::coordination::v1::LeaseSpec::default()
    );
    // L1: another process finds the lock to be its object's.
    let rig = rig.restart().await;
    end(&cluster, "l").await;
    rig.until_free("j-lock").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l02_l07_l13_l19_anothers_lock_is_waited_for_and_left_alone() {
    let cluster = Cluster::with_nodes(&["j-held"]).await;
    others_lease(&cluster, "j-held", "j-held").await;
    let rig = Rig::start(&cluster, "queue_timeout = \"2s\"").await;
    order(&cluster, "h", "j-held").await;
    assert_eq!(end(&cluster, "h").await, failed("Timeout"));
    assert!(leases(&cluster).get_opt("j-held").await.unwrap().is_some());
    assert!(rig.provider.calls().is_empty() && rig.intents().is_empty());
    let page = rig.controller.metrics();
    assert!(
        !page.contains("action_type=\"lock\""),
        "waiting is no failure: {page}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l02_a_lock_that_another_gives_back_is_taken() {
    let cluster = Cluster::with_nodes(&["j-freed"]).await;
    others_lease(&cluster, "j-freed", "j-freed").await;
    let rig = Rig::start(&cluster, "queue_timeout = \"1m\"").await;
    order(&cluster, "f", "j-freed").await;
    leases(&cluster)
        .delete("j-freed", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    assert_eq!(end(&cluster, "f").await, succeeded());
    rig.until_free("j-freed").await;
}

/// A crash between the last status and the unlock; and what is over and holds nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l11_l15_l22_l23_what_is_over_and_holds_a_lock_gives_it_back() {
    let cluster = Cluster::with_nodes(&["j-over", "j-free"]).await;
    install(&cluster).await;
    let over =
        json!({ "startTime": "2026-01-02T03:04:05Z", "completionTime": "2026-01-02T03:04:05Z" });
    for (name, node) in [("over", "j-over"), ("free", "j-free")] {
        let object = order(&cluster, name, node).await;
        say(&cluster, name, over.clone()).await;
        if name == "over" {
            own_lease(&cluster, node, &object).await;
        }
    }
    others_lease(&cluster, "j-free", "j-free").await;
    let provider =
        testbed::SimProvider::start(testbed::ProviderOptions::new(cluster.testbed.admin()));
    let provider = provider.await.unwrap();
    let config = super::config(&provider.address().to_string(), "");
    let rig = Rig::start_on(&cluster, provider, config, tempfile::tempdir().unwrap()).await;
    rig.until_free("j-over").await;
    assert!(
        leases(&cluster).get_opt("j-free").await.unwrap().is_some(),
        "another's stays"
    );
    let mut want = over;
    want["conditions"] = status(&cluster, "over").await["conditions"].clone();
    assert_eq!(
        status(&cluster, "over").await["completionTime"],
        want["completionTime"]
    );
    assert!(rig.provider.calls().is_empty());
    rig.behave(Outcome::Obeys);
}

/// Has the API server refuse what is done to the Lease of this name.
async fn refuse(cluster: &Cluster, node: &str, operation: &str) {
    let name = format!("refuse-{node}");
    let client = cluster.testbed.admin();
    let post = |kind: &str, spec: serde_json::Value| {
        let path = format!(
            "/apis/admissionregistration.k8s.io/v1/{}",
            kind.to_ascii_lowercase()
        );
        let body = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind.strip_suffix("ies").map_or_else(
                || kind.trim_end_matches('s').to_owned(),
                |kind| format!("{kind}y"),
            ),
            "metadata": { "name": name },
            "spec": spec,
        });
        let request = http::Request::post(path).body(serde_json::to_vec(&body).unwrap());
        client.request::<serde_json::Value>(request.unwrap())
    };
    let rules = json!([{
        "apiGroups": ["coordination.k8s.io"], "apiVersions": ["v1"],
        "operations": [operation], "resources": ["leases"],
    }]);
    let policy = json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": rules },
        "validations": [{
            "expression": format!("!(request.name in ['{node}', '{node}-probe'])"),
            "reason": "Forbidden",
        }],
    });
    post("ValidatingAdmissionPolicies", policy).await.unwrap();
    let binding = json!({ "policyName": name, "validationActions": ["Deny"] });
    post("ValidatingAdmissionPolicyBindings", binding)
        .await
        .unwrap();
    // The API server takes its time to obey.
    let probe = format!("{node}-probe");
    if operation == "DELETE" {
        others_lease(cluster, &probe, node).await;
    }
    wait_for("the policy to hold", SOON, || async {
        let leases = leases(cluster);
        let done = if operation == "DELETE" {
            let dry = DeleteParams::default().dry_run();
            leases.delete(&probe, &dry).await.map(drop)
        } else {
            let lease = serde_json::from_value(json!({ "metadata": { "name": probe } }))?;
            let dry = PostParams {
                dry_run: true,
                ..PostParams::default()
            };
            leases.create(&dry, &lease).await.map(drop)
        };
        Ok(done.is_err().then_some(()))
    })
    .await
    .unwrap();
}

/// Takes that back.
async fn allow(cluster: &Cluster, node: &str) {
    for kind in [
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
    ] {
        let path = format!("/apis/admissionregistration.k8s.io/v1/{kind}/refuse-{node}");
        let request = http::Request::delete(path).body(Vec::new()).unwrap();
        let client = cluster.testbed.admin();
        client.request::<serde_json::Value>(request).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l03_l06_a_lock_that_the_api_server_refuses_is_counted_and_tried_again() {
    let cluster = Cluster::with_nodes(&["j-nolock"]).await;
    refuse(&cluster, "j-nolock", "CREATE").await;
    let rig = Rig::start(&cluster, "queue_timeout = \"1m\"").await;
    order(&cluster, "n", "j-nolock").await;
    let failed =
        r#"warden_janitor_actions_total{action_type="lock",status="failed",node="j-nolock"} "#;
    rig.controller.until_counted(failed, 2).await;
    assert!(rig.provider.calls().is_empty());
    allow(&cluster, "j-nolock").await;
    assert_eq!(end(&cluster, "n").await, succeeded());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l14_an_unlock_that_the_api_server_refuses_is_counted_and_tried_again() {
    let cluster = Cluster::with_nodes(&["j-nounlock"]).await;
    let rig = Rig::start(&cluster, "").await;
    refuse(&cluster, "j-nounlock", "DELETE").await;
    order(&cluster, "n", "j-nounlock").await;
    let failed =
        r#"warden_janitor_actions_total{action_type="unlock",status="failed",node="j-nounlock"} "#;
    rig.controller.until_counted(failed, 2).await;
    allow(&cluster, "j-nounlock").await;
    rig.until_free("j-nounlock").await;
    assert_eq!(end(&cluster, "n").await, succeeded());
}

/// Neither a Lease that is gone nor an end that somebody wrote proves that a signal has no effect any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_signal_may_be_out_no_other_object_of_its_node_is_begun() {
    let nodes = ["j-unlocked", "j-ended"];
    let cluster = Cluster::with_nodes(&nodes).await;
    let rig = Rig::start(&cluster, "timeout = \"10s\"\nqueue_timeout = \"2m\"").await;
    rig.behave(Outcome::Fails);
    let leases = leases(&cluster);
    // What is done by hand is done before the deadline of its object, each by itself.
    for node in nodes {
        order(&cluster, node, node).await;
        rig.until_signals(node, 1).await;
        if node == "j-unlocked" {
            leases.delete(node, &DeleteParams::default()).await.unwrap();
        } else {
            let end_by_hand = json!({ "completionTime": "2026-01-02T03:04:05Z" });
            say(&cluster, node, end_by_hand).await;
        }
        order(&cluster, &format!("a-{node}"), node).await;
    }
    for node in nodes {
        rig.until_signals(node, 2).await;
        let calls = rig.provider.calls().into_iter();
        let signals = calls.filter(|call| call.rpc == Rpc::Reboot && call.node == node);
        let at: Vec<_> = signals.map(|call| call.at).collect();
        let between = at[1].duration_since(at[0]);
        assert!(
            between >= jiff::SignedDuration::from_secs(9),
            "{node}: {between}"
        );
    }
}
