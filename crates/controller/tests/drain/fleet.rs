//! Many nodes, and what a drain costs.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use testbed::wait_for;

use super::{delete, draining, pod, send, takes_out, until_drain};
use crate::harness::{Cluster, fatal};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_more_than_64_nodes_one_watch_shows_the_pods_of_all() {
    let names: Vec<String> = (0..65).map(|n| format!("df-{n}")).collect();
    let nodes: Vec<&str> = names.iter().map(String::as_str).collect();
    let cluster = Cluster::with_nodes(&nodes).await;
    cluster.testbed.ensure_namespace("dfl-else").await.unwrap();
    // Every node waits for a pod, so that all are followed at once.
    for chunk in nodes.chunks(16) {
        let made = chunk
            .iter()
            .map(|node| pod(&cluster, node, "dfl-else", node, json!({})));
        futures::future::join_all(made).await;
    }
    let mut voice = draining(&cluster, "df-64", "").await;
    for node in &nodes {
        send(&voice, fatal(node, "Test", "0")).await;
    }
    voice
        .program
        .said("one watch over all pods from now on")
        .await;
    super::until_blocked(&voice, &["dfl-else/df-64 completion"]).await;
    voice.node = "df-0";
    super::until_blocked(&voice, &["dfl-else/df-0 completion"]).await;
    for node in &nodes {
        delete(&cluster, "dfl-else", node).await;
    }
    wait_for("all drained", Duration::from_secs(30), || async {
        let mut done = 0;
        for node in &nodes {
            let shown = voice.get(&format!("/api/v1/nodes/{node}")).await;
            done += usize::from(super::drain_of(&shown)["state"] == "Drained");
        }
        anyhow::ensure!(done == nodes.len(), "{done} of {}", nodes.len());
        Ok(Some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_of_ten_pods_costs_ten_evictions_and_few_other_calls() {
    let cluster = Cluster::with_nodes(&["df-cost"]).await;
    let node = "df-cost";
    for n in 0..10 {
        pod(&cluster, node, "dc-now", &format!("p{n}"), json!({})).await;
    }
    let voice = draining(&cluster, node, "").await;
    // The start's own calls are over once the node controller's look at the fault can begin.
    let since = jiff::Timestamp::now();
    takes_out(&voice, node).await;
    until_drain(&voice, "Drained", "").await;
    let mut calls: BTreeMap<String, usize> = BTreeMap::new();
    let ours = cluster
        .testbed
        .audit_events()
        .unwrap()
        .into_iter()
        .filter(|event| {
            let of_test = event.resource == "leases" || event.stage != "ResponseComplete";
            event.user == "admin" && event.at >= since && !of_test
        });
    for event in ours {
        let call = format!("{} {}/{}", event.verb, event.resource, event.subresource);
        *calls.entry(call).or_default() += 1;
    }
    eprintln!("calls of a drain of 10 pods: {calls:?}");
    assert_eq!(calls.get("create pods/eviction"), Some(&10), "{calls:?}");
    assert!(calls.values().sum::<usize>() <= 20, "{calls:?}");
}
