//! What the controller writes in the profiles that do not act, by the API server's own log: it has
//! an account of its own, with no more permissions than the profile needs.

use e2e::machine::{SOON, until, until_state};
use e2e::monitor::{fatal, warning};
use e2e::{Controller, ControllerOptions, Machine, nodes};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::ListParams;
use serde_json::Value;
use testbed::{AuditEvent, wait_for};

use crate::account::{
    ACCESS, AUTHORITY, CONDITIONS, CONNECTORS, EVENTS, LEASE, Limited, NODES, Rule, TOKENS,
    in_every_profile, writes,
};
use crate::kit::Turn;
use crate::trust::Fleet;

/// Starts a controller that may do what every profile needs and `more`, has an agent report a fatal
/// fault and a warning, and waits until `decided`.
async fn run(
    profile: &str,
    more: &[Rule<'_>],
    decided: impl AsyncFn(&Turn, &Controller, &Machine),
) -> Vec<AuditEvent> {
    let options = ControllerOptions {
        profile: profile.to_owned(),
        extra: "[lease]\nduration = \"10s\"\n".to_owned(),
        ..ControllerOptions::default()
    };
    let cluster = [&[NODES, TOKENS, ACCESS], more].concat();
    let limited = Limited::start(profile, &[LEASE, AUTHORITY], &cluster, options).await;
    let (turn, controller) = (&limited.turn, &limited.controller);
    let fleet = Fleet::new(turn).await;
    let name = format!("only-{profile}");
    let machine = fleet.machine(controller, &name).await;
    for event in [
        fatal("GpuMemWatch", "48", "0"),
        warning("GpuPowerWatch", "5", "0"),
    ] {
        machine.monitor.say(event).await.unwrap();
    }
    until(controller, &name, "with both faults", |node| {
        node["faults"].as_array().is_some_and(|all| all.len() == 2)
    })
    .await
    .unwrap();
    decided(turn, controller, &machine).await;
    let node = nodes::read(&turn.testbed.admin(), &name).await.unwrap();
    assert!(!nodes::is_cordoned(&node) && nodes::marks(&node).is_empty());
    limited.ended(&name).await
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_writes_only_in_its_own_namespace() {
    let asked = run("silent", &[], async |turn, controller, machine| {
        // A second fault is stored and shown: whatever the first one set off came before.
        let second = fatal("GpuNvlinkWatch", "74", "1");
        machine.monitor.say(second).await.unwrap();
        let three = |node: &Value| node["faults"].as_array().is_some_and(|all| all.len() == 3);
        machine
            .until(controller, "with three faults", three)
            .await
            .unwrap();
        // In observe conditions and Events follow within milliseconds; here the controller lives
        // on for seconds.
        renewed(turn, 2).await;
        let (_, metrics) = e2e::http::get(controller.api, "/metrics", None)
            .await
            .unwrap();
        let none = "fault_quarantine_event_handling_duration_seconds_count 0";
        assert!(metrics.lines().any(|line| line == none), "{metrics}");
        let shown = machine.until(controller, "shown", |_| true).await.unwrap();
        assert_eq!(shown["incidents"], serde_json::json!([]));
    })
    .await;
    assert_eq!(writes(&asked), in_every_profile());
}

/// Waits until the controller has renewed its Lease so many times more: each 3 s.
async fn renewed(turn: &Turn, times: u32) {
    let leases: Api<Lease> = Api::namespaced(turn.testbed.admin(), "warden");
    let renewal = async || {
        let lease = leases.get(e2e::programs::LEASE).await?;
        anyhow::Ok(lease.spec.and_then(|spec| spec.renew_time))
    };
    for _ in 0..times {
        let last = &renewal().await.unwrap();
        let renewal = &renewal;
        wait_for("another renewal of the Lease", SOON, || async move {
            Ok((renewal().await? != *last).then_some(()))
        })
        .await
        .unwrap();
    }
}

/// Waits for a core/v1 Event of this check about the node.
pub(crate) async fn told(turn: &Turn, node: &str, check: &str) {
    let events: Api<Event> = Api::namespaced(turn.testbed.admin(), "default");
    let of_check = format!("involvedObject.name={node},type={check}");
    let params = ListParams::default().fields(&of_check);
    wait_for("the Event of the warning", SOON, || async {
        let list = events.list(&params).await?;
        Ok((!list.items.is_empty()).then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn observe_writes_conditions_with_one_annotation_and_events_too() {
    let more = [CONDITIONS, EVENTS, CONNECTORS];
    let asked = run("observe", &more, async |turn, controller, _| {
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
        told(turn, name, "GpuPowerWatch").await;
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
