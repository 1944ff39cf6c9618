//! Reports: what is missing here comes, what is missing there goes.

use serde_json::Value;
use testbed::wait_for;
use wire::datamodels::HealthEvent;
use wire::warden::v1::{DetectorState, Spool};

use crate::harness::{Cluster, SOON, is_cordoned};
use crate::process::{Program, numbered};
use crate::voice::{Voice, machine, set_of, with_list};

const NODE: &str = "reporter";

async fn agent(extra: &str) -> (Cluster, Voice) {
    let cluster = Cluster::with_nodes(&[NODE]).await;
    let agent = Voice::observing(&cluster, NODE, extra).await;
    (cluster, agent)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_settled_list_closes_what_is_gone_and_brings_what_was_lost() {
    let (_cluster, agent) = agent("").await;
    let events: Vec<HealthEvent> = (1..=4).map(|n| numbered(NODE, n)).collect();
    agent.sender.send(events[..3].to_vec()).await.unwrap();
    assert_eq!(agent.open().await.len(), 3);

    let same = agent.report(DetectorState::DetectorSettled, 3, &events[..3]);
    let reply = agent.sender.report(same).await.unwrap();
    assert!(!reply.want_list);
    assert!((1..=300).contains(&reply.next_interval_seconds));

    // One is gone, and the fourth was never sent although the report's number is reached.
    let theirs = [events[0].clone(), events[1].clone(), events[3].clone()];
    let ahead = agent.report(DetectorState::DetectorSettled, 4, &theirs);
    let reply = agent.sender.report(ahead).await.unwrap();
    assert!(
        !reply.want_list,
        "number 4 is not stored yet: nothing is compared"
    );
    assert_eq!(agent.open().await.len(), 3);

    let now = agent.report(DetectorState::DetectorSettled, 3, &theirs);
    assert!(agent.sender.report(now.clone()).await.unwrap().want_list);
    assert!(
        !agent.sender.report(now.clone()).await.unwrap().want_list,
        "asked for once"
    );
    agent
        .sender
        .report(with_list(now.clone(), &theirs))
        .await
        .unwrap();
    let open = agent.open().await;
    assert_eq!(open, ["PCI=0000:01:00", "PCI=0000:02:00", "PCI=0000:04:00"]);
    assert!(
        !agent.sender.report(now).await.unwrap().want_list,
        "the sets agree"
    );

    // The copy from the spool is no second event.
    agent.sender.send(vec![events[3].clone()]).await.unwrap();
    assert_eq!(agent.open().await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_starting_or_blind_detector_closes_nothing_and_is_not_settled() {
    let (_cluster, agent) = agent("").await;
    let events = [numbered(NODE, 1)];
    agent.sender.send(events.to_vec()).await.unwrap();
    for (state, word) in [
        (DetectorState::DetectorStarting, "kernel-log: starting"),
        (DetectorState::DetectorBlind, "kernel-log: blind"),
    ] {
        let mine = with_list(agent.report(state, 1, &[]), &[]);
        agent.sender.report(mine).await.unwrap();
        assert_eq!(agent.open().await.len(), 1, "{word}");
        let node = agent.shown().await;
        assert_eq!(node["agent"]["state"], "starting");
        assert_eq!(node["agent"]["unsettled"][0], word);
    }
    let settled = with_list(agent.report(DetectorState::DetectorSettled, 1, &[]), &[]);
    agent.sender.report(settled).await.unwrap();
    assert_eq!(agent.open().await, Vec::<String>::new());
    assert_eq!(agent.shown().await["agent"]["state"], "settled");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_began_from_nothing_is_given_what_is_open_and_settles_after() {
    let (_cluster, agent) = agent("").await;
    let events = [numbered(NODE, 1), numbered(NODE, 2)];
    agent.sender.send(events.to_vec()).await.unwrap();
    // A socket sender's fault, which is no business of the agent's detectors.
    let mut foreign = numbered(NODE, 3);
    foreign.metadata.remove("warden.dev/detector");
    agent.sender.send(vec![foreign]).await.unwrap();

    let mut lost = agent.report(DetectorState::DetectorSettled, 0, &[]);
    lost.spool_id = "01ZPOOL".into();
    lost.process_id = "02PROCESS".into();
    lost.started_from_nothing = true;
    let reply = agent.sender.report(lost.clone()).await.unwrap();
    let mut adopted: Vec<&str> = reply.adopt.iter().map(|event| event.id.as_str()).collect();
    adopted.sort_unstable();
    assert_eq!(adopted, ["reporter-1", "reporter-2"]);
    assert_eq!(agent.open().await.len(), 3, "nothing closed");
    assert_eq!(
        agent.shown().await["agent"]["state"],
        "starting",
        "not settled before it took over"
    );

    lost.started_from_nothing = false;
    lost.asserted = Some(set_of(&events));
    assert!(!agent.sender.report(lost).await.unwrap().want_list);
    assert_eq!(agent.shown().await["agent"]["state"], "settled");
    assert_eq!(agent.open().await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_that_a_person_closed_stays_known_until_the_agents_list_denies_it() {
    let (_cluster, agent) = agent("").await;
    let events = [numbered(NODE, 1)];
    agent.sender.send(events.to_vec()).await.unwrap();
    let fault = agent.shown().await["faults"][0]["id"].clone();
    let body = serde_json::json!({ "fault": fault }).to_string();
    let (status, answer) = agent.post("/api/v1/nodes/reporter/close", &body).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(agent.open().await, Vec::<String>::new());
    // The agent still asserts it: that is no mismatch, and does not open it again.
    let same = agent.report(DetectorState::DetectorSettled, 1, &events);
    assert!(!agent.sender.report(same).await.unwrap().want_list);
    assert_eq!(agent.open().await, Vec::<String>::new());
    // It asserts nothing: asked for the list once, and then both know the same.
    let nothing = agent.report(DetectorState::DetectorSettled, 1, &[]);
    assert!(
        agent
            .sender
            .report(nothing.clone())
            .await
            .unwrap()
            .want_list
    );
    agent
        .sender
        .report(with_list(nothing.clone(), &[]))
        .await
        .unwrap();
    assert!(!agent.sender.report(nothing).await.unwrap().want_list);
    let (_, metrics) = agent.program.get("/metrics", None).await;
    let lists = |outcome: &str, count: u32| {
        let line = format!("warden_report_lists_total{{outcome=\"{outcome}\"}} {count}");
        assert!(metrics.contains(&line), "{line}\n{metrics}");
    };
    lists("asked", 1);
    lists("reconciled", 1);
    assert!(!metrics.contains("not_asked") && !metrics.contains("unchanged"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_was_lost_is_rebuilt_from_an_agent_that_has_nothing_to_send() {
    let (_cluster, agent) = agent("").await;
    let events = [numbered(NODE, 41), numbered(NODE, 42)];
    let mut waiting = agent.report(DetectorState::DetectorSettled, 42, &events);
    waiting.spool = Some(Spool {
        oldest: Some(wire::timestamp_to_wire(jiff::Timestamp::now())),
        ..Spool::default()
    });
    let reply = agent.sender.report(waiting).await.unwrap();
    assert!(!reply.want_list, "they are still to come");
    let mut empty = agent.report(DetectorState::DetectorSettled, 42, &events);
    empty.spool = Some(Spool::default());
    assert!(agent.sender.report(empty.clone()).await.unwrap().want_list);
    agent
        .sender
        .report(with_list(empty.clone(), &events))
        .await
        .unwrap();
    assert_eq!(agent.open().await.len(), 2);
    assert!(!agent.sender.report(empty).await.unwrap().want_list);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_changes_nothing_is_counted_and_logged_once() {
    let (_cluster, agent) = agent("").await;
    let events = [numbered(NODE, 1)];
    agent.sender.send(events.to_vec()).await.unwrap();
    for _ in 0..2 {
        let blind = with_list(agent.report(DetectorState::DetectorBlind, 1, &[]), &[]);
        agent.sender.report(blind).await.unwrap();
    }
    assert_eq!(agent.open().await.len(), 1);
    let (_, metrics) = agent.program.get("/metrics", None).await;
    let unchanged = "warden_report_lists_total{outcome=\"unchanged\"} 2";
    assert!(metrics.contains(unchanged), "{metrics}");
    let log = agent.program.log();
    assert_eq!(log.matches("changed nothing").count(), 1, "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_settled_report_of_a_new_boot_ends_a_socket_monitors_kernel_log_fault() {
    let (_cluster, agent) = agent("").await;
    let mut fault = numbered(NODE, 1);
    fault.metadata.remove("warden.dev/detector");
    let mut other = numbered(NODE, 2);
    other.metadata.remove("warden.dev/detector");
    other.check_name = "SomeOtherCheck".into();
    agent.sender.send(vec![fault, other]).await.unwrap();
    let settled = agent.report(DetectorState::DetectorSettled, 2, &[]);
    agent.sender.report(settled).await.unwrap();
    assert_eq!(agent.open().await.len(), 2, "the same boot ends nothing");
    let mut starting = agent.report(DetectorState::DetectorStarting, 2, &[]);
    starting.boot_id = "boot-2".into();
    agent.sender.report(starting.clone()).await.unwrap();
    assert_eq!(
        agent.open().await.len(),
        2,
        "the boot id alone ends nothing"
    );
    let mut settled = agent.report(DetectorState::DetectorSettled, 2, &[]);
    settled.boot_id = "boot-2".into();
    agent.sender.report(settled).await.unwrap();
    assert_eq!(agent.open().await, ["PCI=0000:02:00"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_agent_said_survives_a_restart_and_silence_is_a_fault_that_closes() {
    let (cluster, agent) = agent("[reports]\ninterval = \"1s\"").await;
    agent
        .sender
        .report(agent.report(DetectorState::DetectorSettled, 0, &[]))
        .await
        .unwrap();
    let silent = |node: &Value| {
        let faults = node["faults"].as_array().unwrap();
        faults.iter().any(|fault| fault["check"] == "AgentSilent")
    };
    assert!(!silent(&agent.shown().await));
    agent.until("the silence to be noticed", silent).await;
    agent
        .sender
        .report(agent.report(DetectorState::DetectorSettled, 0, &[]))
        .await
        .unwrap();
    let heard = |node: &Value| !silent(node);
    agent.until("the report to be noticed", heard).await;
    let agent = agent.restart(&cluster).await;
    let node = agent.shown().await;
    assert_eq!(node["agent"]["state"], "settled", "{node}");
    assert_eq!(node["agent"]["last_report_at"], Value::Null, "{node}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_without_an_agent_and_pools_that_fall_silent_are_alarms() {
    let cluster = Cluster::with_nodes(&["s1", "s2", "s3", "never"]).await;
    let agent = Voice::observing(&cluster, "never", "[reports]\ninterval = \"1s\"").await;
    for node in ["s1", "s2", "s3"] {
        let mut report = agent.report(DetectorState::DetectorSettled, 0, &[]);
        (report.node_name, report.machine_id) = (node.into(), machine(node));
        agent.sender.report(report).await.unwrap();
    }
    agent
        .until_counted(&[
            "warden_agents_silent 3",
            "warden_agents_missing 1",
            "warden_pool_silent{pool=\"gpu\"} 1",
            "warden_pool_silent{pool=\"other\"} 0",
        ])
        .await;
    let log = agent.program.log();
    assert_eq!(log.matches("fell silent together").count(), 1, "{log}");
    assert_eq!(log.matches("no agent ever reported").count(), 1, "{log}");
    let node = agent.shown().await.to_string();
    assert!(node.contains("no warden-agent ever reported"), "{node}");
}

/// Faults of pools that the status shows: subject and message.
async fn pool_faults(program: &Program) -> Vec<(String, String)> {
    let token = std::fs::read_to_string(program.store().join("api-token")).unwrap();
    let (_, status) = program.get("/api/v1/status", Some(token.trim())).await;
    let status: wire::api::Status = serde_json::from_str(&status).unwrap();
    let faults = status.pool_faults.into_iter();
    faults.map(|fault| (fault.subject, fault.message)).collect()
}

async fn until_pool_faults(program: &Program, count: usize) -> Vec<(String, String)> {
    wait_for(format!("{count} faults of pools"), SOON, || async {
        let faults = pool_faults(program).await;
        anyhow::ensure!(faults.len() == count, "{faults:?}");
        Ok(Some(faults))
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_turns_not_ready_together_has_one_fault_until_its_nodes_are_back() {
    let nodes = ["p0", "p1", "p2", "p3", "p4", "p5"];
    let cluster = Cluster::with_nodes(&nodes).await;
    cluster.testbed.ensure_namespace("warden").await.unwrap();
    let kubeconfig = cluster.testbed.kubeconfig();
    let fast = "[reports]\ninterval = \"1s\"\nexpect_everywhere = false";
    let local = &["--insecure-local"];
    let program = Program::start_cordoning(&kubeconfig, fast, local);
    program.up().await;
    for node in &nodes[..2] {
        cluster.testbed.set_not_ready(node, "Test").await.unwrap();
    }
    // Two are too few: the third makes it the pool's fault.
    cluster
        .testbed
        .set_not_ready(nodes[2], "Test")
        .await
        .unwrap();
    let faults = until_pool_faults(&program, 1).await;
    assert_eq!(faults[0].0, "pool/gpu");
    assert!(faults[0].1.starts_with("3 of 6 nodes"), "{faults:?}");
    assert!(faults[0].1.contains("p0, p1, p2"), "{faults:?}");
    let token = std::fs::read_to_string(program.store().join("api-token")).unwrap();
    let (_, events) = program.get("/api/v1/events", Some(token.trim())).await;
    let events: Vec<wire::api::Event> = serde_json::from_str(&events).unwrap();
    let of_pools: Vec<_> = events.iter().filter(|e| e.node == "pool/gpu").collect();
    assert_eq!(of_pools.len(), 1, "{events:?}");
    assert!(!of_pools[0].fatal);
    let (_, incidents) = program.get("/api/v1/incidents", Some(token.trim())).await;
    assert_eq!(incidents, "[]", "no node is acted on");

    let folder = program.kill();
    let program = Program::start_again(folder, &kubeconfig, local);
    program.up().await;
    assert_eq!(pool_faults(&program).await.len(), 1, "open over a restart");
    // One comes back; the others are fewer than a fault of the pool takes.
    cluster.testbed.set_ready(nodes[0]).await.unwrap();
    until_pool_faults(&program, 0).await;
    let (_, page) = program.get("/metrics", None).await;
    let healed = r#"warden_pool_silent{pool="gpu"} 0"#;
    assert!(page.lines().any(|line| line == healed), "{page}");
    for node in &nodes[1..3] {
        cluster.testbed.set_ready(node).await.unwrap();
    }
    for node in nodes {
        assert!(!is_cordoned(&cluster.get(node).await), "{node}");
    }
}
