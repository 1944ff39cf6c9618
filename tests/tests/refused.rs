//! A node whose write the API server refuses again and again although the node does not change.

use e2e::machine::SOON;
use e2e::monitor::fatal;
use e2e::{ControllerOptions, http, nodes};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use testbed::wait_for;

use crate::kit::{AT_ONCE, Turn, explained};

const NODE: &str = "obstinate";
const POLICY: &str = "nobody-cordons-obstinate";
/// Refusals of an unchanged node until it is an error (faults-incidents 5).
const REFUSALS: usize = 5;

/// Has the API server answer 422 to whoever cordons the node, as an admission policy of a cluster
/// may; answers once it does.
async fn forbid(client: &Client) {
    let policy: ValidatingAdmissionPolicy = serde_json::from_value(json!({
        "metadata": { "name": POLICY },
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"],
                "resources": ["nodes"],
            }] },
            "validations": [{
                "expression": format!(
                    "object.metadata.name != '{NODE}' || !has(object.spec.unschedulable) || \
                     !object.spec.unschedulable"
                ),
                "message": "this node stays",
            }],
        },
    }))
    .unwrap();
    let binding: ValidatingAdmissionPolicyBinding = serde_json::from_value(json!({
        "metadata": { "name": POLICY },
        "spec": { "policyName": POLICY, "validationActions": ["Deny"] },
    }))
    .unwrap();
    let post = PostParams::default();
    Api::all(client.clone())
        .create(&post, &policy)
        .await
        .unwrap();
    Api::all(client.clone())
        .create(&post, &binding)
        .await
        .unwrap();
    let try_it = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let cordon = Patch::Merge(json!({ "spec": { "unschedulable": true } }));
    wait_for("the policy to hold", SOON, || async {
        match Api::<Node>::all(client.clone())
            .patch(NODE, &try_it, &cordon)
            .await
        {
            Err(kube::Error::Api(status)) if status.code == 422 => Ok(Some(())),
            Ok(_) => Ok(None),
            Err(error) => Err(error.into()),
        }
    })
    .await
    .unwrap();
}

async fn permit(client: &Client) {
    let delete = DeleteParams::default();
    Api::<ValidatingAdmissionPolicyBinding>::all(client.clone())
        .delete(POLICY, &delete)
        .await
        .unwrap();
    Api::<ValidatingAdmissionPolicy>::all(client.clone())
        .delete(POLICY, &delete)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_refused_five_times_on_an_unchanged_node_is_an_error_with_its_name() {
    let turn = Turn::take().await;
    let options = ControllerOptions {
        // Its conditions would change the node in between.
        extra: format!("{AT_ONCE}[connector]\nenabled = false\n"),
        ..ControllerOptions::default()
    };
    let mut controller = turn.controller(&options).await;
    let machine = turn.machine(&controller, NODE).await;
    let client = turn.testbed.admin();
    forbid(&client).await;
    let fault = fatal("GpuMemWatch", "48", "0");
    machine.monitor.say(fault).await.unwrap();

    // Three errors: what comes after the first waits in between.
    let errors = wait_for("three errors", SOON, || async {
        let (_, metrics) = http::get(controller.api, "/metrics", None).await?;
        let line = metrics.lines().find(|l| l.contains("\"write_refused\""));
        let count = line.and_then(|l| l.rsplit(' ').next()?.parse::<usize>().ok());
        Ok(count.filter(|count| *count >= 3))
    })
    .await
    .unwrap();
    let audit = turn.testbed.audit_events().unwrap();
    // Ours are JSON patches.
    let tries = audit.iter().filter(|event| {
        event.name == NODE
            && event.subresource.is_empty()
            && event.code == 422
            && event.object.as_ref().is_some_and(Value::is_array)
    });
    let tries = tries.count();
    assert!(
        (REFUSALS..=REFUSALS * (errors + 1)).contains(&tries),
        "{tries} tries for {errors} errors"
    );
    let log = controller.log().unwrap();
    let line = log.lines().find(|line| line.contains("write_refused"));
    let line = line.unwrap_or_else(|| panic!("no error in {log}"));
    for want in [
        "node obstinate refuses the write 5 times although it does not change",
        "this node stays",
        "admission webhooks",
    ] {
        assert!(line.contains(want), "{want:?} is not in {line}");
    }
    machine.until_state(&controller, "Applying").await.unwrap();
    explained(
        &controller,
        NODE,
        &[
            "The write that takes the node out is refused",
            "this node stays",
            "[changed]",
            "times in a row since",
            "the next try is",
            "warden release obstinate",
        ],
    );
    let read = nodes::read(&client, NODE).await.unwrap();
    assert!(!nodes::is_cordoned(&read) && nodes::marks(&read).is_empty());

    // Once nothing stands against it, it is done.
    permit(&client).await;
    turn.node(NODE, "out", nodes::is_cordoned).await;
    machine
        .until_state(&controller, "Quarantined")
        .await
        .unwrap();
    controller.stop().unwrap();
}
