//! How fast a drain goes, and what moves it on.

use jiff::SignedDuration;
use serde_json::json;

use super::{
    delete, draining, finishes, pod, pod_calls, takes_out, until_blocked, until_drain,
    with_finalizer, without_finalizer,
};
use crate::harness::Cluster;

/// Everything that a drain may wait for lies far behind the end of a failed test.
const FAR: &str = "immediate_deadline = '10h'\ncompletion_deadline = '10h'\nstuck_timeout = '10h'\n\
                   deleteAfterTimeoutMinutes = 600";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_each_pod_moves_the_drain_on_while_all_its_timers_are_far_away() {
    let cluster = Cluster::with_nodes(&["dt-events"]).await;
    let node = "dt-events";
    pod(&cluster, node, "dt-else", "finishes", json!({})).await;
    pod(&cluster, node, "dt-else", "goes", json!({})).await;
    pod(&cluster, node, "dt-later", "goes", json!({})).await;
    pod(&cluster, node, "dt-now", "stays", with_finalizer()).await;
    let voice = draining(&cluster, node, FAR).await;
    takes_out(&voice, node).await;
    let (finishing, going) = ("dt-else/finishes completion", "dt-else/goes completion");
    let (timed, leaving) = ("dt-later/goes timeout", "dt-now/stays terminating");
    until_blocked(&voice, &[finishing, going, timed, leaving]).await;
    finishes(&cluster, "dt-else", "finishes").await;
    until_blocked(&voice, &[going, timed, leaving]).await;
    delete(&cluster, "dt-else", "goes").await;
    until_blocked(&voice, &[timed, leaving]).await;
    delete(&cluster, "dt-later", "goes").await;
    until_blocked(&voice, &[leaving]).await;
    without_finalizer(&cluster, "dt-now", "stays").await;
    until_drain(&voice, "Drained", "").await;
    delete(&cluster, "dt-else", "finishes").await;
}

/// Pods of a node: with five calls a second, as the clients of Kubernetes are limited by default, and ten
/// at once before, they would take 22 s.
const PODS: usize = 120;
/// Half of that.
const SOONER: SignedDuration = SignedDuration::from_secs(11);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_limit_of_calls_a_second_slows_evictions() {
    let cluster = Cluster::with_nodes(&["dt-many"]).await;
    let node = "dt-many";
    cluster.testbed.ensure_namespace("dt-now").await.unwrap();
    let made = cluster.testbed.create_pods_on(node, "dt-now", PODS);
    let made = made.await.unwrap();
    let voice = draining(&cluster, node, "").await;
    takes_out(&voice, node).await;
    until_drain(&voice, "Drained", "").await;
    let calls = pod_calls(&cluster, "dt-now");
    let mut times: Vec<_> = calls
        .iter()
        .filter(|call| call.subresource == "eviction" && made.contains(&call.name))
        .map(|call| call.at)
        .collect();
    times.sort();
    assert_eq!(times.len(), PODS, "each once");
    let took = times[PODS - 1].duration_since(times[0]);
    eprintln!("{PODS} evictions in {took}");
    assert!(took < SOONER, "{took}");
}
