//! Fewer places than objects.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::json;
use testbed::{Behaviour, Outcome, wait_for};

use super::{Rig, condition, order, status};
use crate::harness::Cluster;

/// `janitor.max_parallel` here.
const PLACES: usize = 2;
/// As many of those that wait longest are woken for a free place as there are places, and eight more
/// (`janitor::places`).
const WOKEN: usize = PLACES + 8;
/// Objects that wait for a place and can begin, younger than all that can't.
const NEXT: usize = 4;
/// Found by the looks at the places alone, which are 15 s apart, the last of them would begin after this.
const BY_LOOKS: Duration = Duration::from_secs(15 * (NEXT as u64 - 1));
/// This only ends a failed test.
const PATIENCE: Duration = Duration::from_mins(2);

impl Rig<'_> {
    fn signals(&self, nodes: &[&str]) -> usize {
        let signals = nodes.iter().map(|node| self.provider.signals(node));
        signals.sum()
    }

    async fn until_sent(&self, nodes: &[&str], count: usize) {
        wait_for(format!("{count} signals"), PATIENCE, || async {
            let calls = self.provider.calls();
            anyhow::ensure!(self.signals(nodes) == count, "{calls:?}");
            Ok(Some(()))
        })
        .await
        .unwrap();
    }

    async fn until_ended(&self, node: &str) {
        wait_for(format!("the end of {node}"), PATIENCE, || async {
            let status = status(self.cluster, node).await;
            let ready = condition(&status, "NodeReady");
            let done = ready.is_some_and(|(is, reason, _)| is == "True" && reason == "Succeeded");
            anyhow::ensure!(done && status["completionTime"].is_string(), "{status:#}");
            Ok(Some(()))
        })
        .await
        .unwrap();
    }
}

async fn pause(cluster: &Cluster, nodes: &[&str], value: serde_json::Value) {
    for node in nodes {
        let pause = json!({ "metadata": { "annotations": { "warden.dev/pause": value } } });
        cluster.merge(node, pause).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_more_than_a_free_place_wakes_two_run_at_a_time_and_all_come_to_their_end() {
    let all = WOKEN + 1 + PLACES + NEXT;
    let names: Vec<String> = (0..all).map(|n| format!("j-place-{n:02}")).collect();
    let nodes: Vec<&str> = names.iter().map(String::as_str).collect();
    let cluster = Cluster::with_nodes(&nodes).await;
    let (kept, free) = nodes.split_at(WOKEN + 1);
    pause(&cluster, kept, json!("by a person")).await;
    let keys = format!("max_parallel = {PLACES}\ntimeout = \"1h\"\nqueue_timeout = \"1h\"");
    let rig = Rig::start(&cluster, &keys).await;
    // Whether anything is done nobody knows: a place is taken until the node shows another boot.
    rig.behave(Outcome::Fails);
    let mut last = None;
    for node in kept {
        let made = order(&cluster, node, node).await.metadata;
        last = made.creation_timestamp.map(|time| time.0);
    }
    // The API server counts their age in whole seconds: all others are younger.
    let next = last.unwrap() + jiff::SignedDuration::from_secs(1);
    let is_next = || async { Ok((Timestamp::now() >= next).then_some(())) };
    wait_for("the next second", PATIENCE, is_next)
        .await
        .unwrap();
    for node in free {
        order(&cluster, node, node).await;
    }
    rig.until_sent(&nodes, PLACES).await;
    let has_place = |node: &&str| rig.provider.signals(node) == 1;
    let (runs, waits): (Vec<&str>, Vec<&str>) = free.iter().partition(|node| has_place(node));
    assert_eq!(
        (runs.len(), waits.len()),
        (PLACES, NEXT),
        "{runs:?} {waits:?}"
    );

    // Of those that wait longest none can begin: each place that is free goes to one of the youngest at
    // once.
    rig.provider.behave(Behaviour::default());
    cluster.testbed.reboot(runs[0], "late").await.unwrap();
    rig.until_ended(runs[0]).await;
    let is_free = Instant::now();
    rig.until_sent(&waits, NEXT).await;
    let took = is_free.elapsed();
    assert!(took < BY_LOOKS, "{took:?}");
    for node in &waits {
        rig.until_ended(node).await;
    }
    assert_eq!(rig.signals(&nodes), PLACES + NEXT, "{runs:?} {waits:?}");
    cluster.testbed.reboot(runs[1], "late").await.unwrap();
    rig.until_ended(runs[1]).await;

    pause(&cluster, kept, json!(null)).await;
    for node in kept {
        rig.until_ended(node).await;
    }
    for node in &nodes {
        assert_eq!(rig.provider.signals(node), 1, "{node}");
        rig.until_free(node).await;
    }
    let most = rig.provider.most_at_once();
    assert!(
        (1..=PLACES).contains(&most),
        "{most} nodes were down at once"
    );
}
