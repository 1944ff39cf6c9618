//! A monitor that makes up codes, on one node, against the real program.

use std::time::{Duration, Instant};

use serde_json::Value;
use wire::datamodels::HealthEvent;

use crate::harness::{Cluster, is_cordoned};
use crate::process::numbered;
use crate::voice::Voice;

const NODE: &str = "crowd-1";
/// Far above what it takes where it grows with the number of faults (some 0.1 s, unoptimised), far
/// below what it took where it grew with its square.
const BRISK: Duration = Duration::from_secs(10);

/// An event of a monitor on the node's socket.
fn made_up(agent: &str, number: u64, check: &str, fatal: bool) -> HealthEvent {
    let mut event = numbered(NODE, number);
    event.metadata.remove("warden.dev/detector");
    event.agent = agent.into();
    event.check_name = check.into();
    event.error_code = vec![number.to_string()];
    event.is_fatal = fatal;
    event
}

async fn flood(voice: &Voice, agent: &str, from: u64, check: &str, fatal: bool) {
    for start in [from, from + 350] {
        let batch = (start..start + 350).map(|n| made_up(agent, n, check, fatal));
        voice.sender.send(batch.collect()).await.unwrap();
    }
}

fn open_of(node: &Value, agent: &str) -> usize {
    let faults = node["faults"].as_array().unwrap();
    faults.iter().filter(|f| f["agent"] == agent).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn made_up_codes_fill_their_share_and_neither_slow_the_node_nor_keep_a_fault_out() {
    let cluster = Cluster::with_nodes(&[NODE]).await;
    let voice = Voice::cordoning(&cluster, NODE, "[reports]\ninterval = \"2s\"").await;
    // No rule matches these, so that the node stays in service.
    flood(&voice, "bad", 1_000, "Flood", true).await;
    flood(&voice, "worse", 3_000, "Flood", true).await;
    let node = voice.shown().await;
    assert_eq!((open_of(&node, "bad"), open_of(&node, "worse")), (512, 512));
    assert!(!is_cordoned(&cluster.get(NODE).await));
    voice
        .until("who says too much to be told", |node| {
            let faults = node["faults"].as_array();
            let told = faults.into_iter().flatten();
            let mut told = told.filter(|fault| fault["check"] == "TooManyFaults");
            told.any(|fault| {
                let text = fault["message"].as_str().unwrap_or_default();
                text.contains("are stored and opened no fault") && text.contains(", check Flood")
            })
        })
        .await;
    // In the full node another monitor's fatal fault is one that a rule matches.
    let sent = Instant::now();
    let event = made_up("third", 5_000, "Test", true);
    voice.sender.send(vec![event]).await.unwrap();
    cluster.until(NODE, "the node to be out", is_cordoned).await;
    assert!(sent.elapsed() < BRISK, "out after {:?}", sent.elapsed());
    let asked = Instant::now();
    let node = voice.shown().await;
    assert!(asked.elapsed() < BRISK, "shown after {:?}", asked.elapsed());
    assert_eq!(open_of(&node, "third"), 1);
    // All of the incident.
    flood(&voice, "third", 6_000, "Test", true).await;
    let full = |node: &Value| {
        node["incidents"][0]["faults"]
            .as_array()
            .map_or(0, Vec::len)
            == 16
    };
    voice.until("the incident to have the share", full).await;
    // A healthy word about all closes all, and there is room again.
    for (agent, number) in [("bad", 8_000), ("worse", 8_001)] {
        let mut well = made_up(agent, number, "Flood", false);
        well.is_healthy = true;
        well.error_code.clear();
        well.entities_impacted.clear();
        voice.sender.send(vec![well]).await.unwrap();
    }
    flood(&voice, "bad", 9_000, "Test", true).await;
    let full = |node: &Value| {
        node["incidents"][0]["faults"]
            .as_array()
            .map_or(0, Vec::len)
            == 528
    };
    voice.until("the incident to have both shares", full).await;
    let asked = Instant::now();
    voice.shown().await;
    assert!(asked.elapsed() < BRISK, "shown after {:?}", asked.elapsed());
}
