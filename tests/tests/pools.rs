//! Which pool of the breaker a node counts in.

use e2e::machine::{until, until_state};
use e2e::monitor::{fatal, healthy};
use e2e::{Controller, ControllerOptions, Monitor, nodes};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use wire::datamodels::HealthEvent;

use crate::kit::Turn;

const GPU: &str = "nvidia.com/gpu.present";

/// Sets labels, and waits until the controller has seen them: the opt-out that goes with them
/// shows.
async fn relabel(turn: &Turn, controller: &Controller, node: &str, gpu: &str, opted_out: bool) {
    let managed = (!opted_out).to_string();
    let labels = json!({ GPU: gpu, k8s_api::names::MANAGED_BY.text: managed });
    let patch = json!({ "metadata": { "labels": labels } });
    Api::<Node>::all(turn.testbed.admin())
        .patch(node, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
    let shown = if opted_out {
        json!(["opted_out"])
    } else {
        json!([])
    };
    until(controller, node, "seen", |node| {
        node["object"]["blocked_by"] == shown
    })
    .await
    .unwrap();
}

/// How many nodes count as out, by pool.
async fn out(controller: &Controller) -> Value {
    by_pool(controller, "out").await
}

/// A number of each pool.
async fn by_pool(controller: &Controller, number: &str) -> Value {
    let pools = controller.json("/api/v1/breaker").await.unwrap();
    let of = |name: &str| {
        let mut all = pools.as_array().unwrap().iter();
        let found = all.find(|pool| pool["pool"] == name);
        found.map_or_else(|| json!(0), |pool| pool[number].clone())
    };
    json!({ "gpu": of("gpu"), "other": of("other") })
}

fn fault(node: &str) -> HealthEvent {
    HealthEvent {
        node_name: node.to_owned(),
        ..fatal("GpuMemWatch", "48", "0")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relabelled_node_counts_in_its_old_pool_until_its_incident_is_over() {
    let turn = Turn::take().await;
    turn.nodes(&["p0", "p1", "p2", "p3"]).await;
    let options = ControllerOptions {
        // The level's default of 50 % is two of four, and of three.
        extra: "[lease]\nduration = \"10s\"\n[quarantine]\nfirst_action_delay = \"0s\"\n\
                [quarantine.circuitBreaker]\npercentage = 100\n"
            .to_owned(),
        ..ControllerOptions::default()
    };
    let mut controller = turn.controller(&options).await;
    let direct = Monitor::on_port(controller.ingest).unwrap();
    direct.say(fault("p0")).await.unwrap();
    until_state(&controller, "p0", "Quarantined").await.unwrap();
    relabel(&turn, &controller, "p0", "false", true).await;
    assert_eq!(out(&controller).await, json!({ "gpu": 1, "other": 0 }));
    // What may be out is a part of all that it is counted among.
    let nodes = by_pool(&controller, "nodes").await;
    assert_eq!(nodes, json!({ "gpu": 4, "other": 0 }));
    // It takes one of the two places of its old pool, also after a restart.
    controller.kill();
    controller.restart().await.unwrap();
    direct.say(fault("p1")).await.unwrap();
    until_state(&controller, "p1", "Quarantined").await.unwrap();
    direct.say(fault("p2")).await.unwrap();
    until_state(&controller, "p2", "Withheld").await.unwrap();
    assert_eq!(out(&controller).await, json!({ "gpu": 2, "other": 0 }));
    let nodes = by_pool(&controller, "nodes").await;
    assert_eq!(
        nodes,
        json!({ "gpu": 4, "other": 0 }),
        "after a restart too"
    );

    // Given back, it is a node of the other pool, which has a place of its own.
    direct.say(healthy(&fault("p0"))).await.unwrap();
    turn.node("p0", "released", |node| !nodes::is_cordoned(node))
        .await;
    until_state(&controller, "p0", "Closed").await.unwrap();
    relabel(&turn, &controller, "p0", "false", false).await;
    direct.say(fault("p0")).await.unwrap();
    until_state(&controller, "p0", "Quarantined").await.unwrap();
    assert_eq!(out(&controller).await, json!({ "gpu": 1, "other": 1 }));
    let nodes = by_pool(&controller, "nodes").await;
    assert_eq!(nodes, json!({ "gpu": 3, "other": 1 }));
    until_state(&controller, "p2", "Withheld").await.unwrap();
    controller.stop().unwrap();
}
