//! Agents whose word can't be taken for their node's: people see it, and nothing closes by it.

use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::ListParams;
use serde_json::Value;
use testbed::wait_for;
use wire::warden::v1::{DetectorState, ReportRequest};

use crate::harness::{Cluster, SOON, is_cordoned};
use crate::process::numbered;
use crate::voice::{Voice, with_list};

const NODE: &str = "doubtful";
const FAST: &str = "[reports]\ninterval = \"1s\"";

/// What is said of the node's agents: check and message.
fn doubts(node: &Value) -> Vec<(String, String)> {
    let text = |fault: &Value, key: &str| fault[key].as_str().unwrap().to_owned();
    let faults = node["faults"].as_array().unwrap().iter();
    faults
        .filter(|fault| fault["agent"] == "warden-agent" && fault["check"] != "AgentSilent")
        .map(|fault| (text(fault, "check"), text(fault, "message")))
        .collect()
}

fn says(node: &Value, check: &str, part: &str) -> bool {
    let doubts = doubts(node);
    doubts.len() == 1 && doubts[0].0 == check && doubts[0].1.contains(part)
}

/// Another agent of the same node and machine, with a spool of its own that it did not just begin.
fn another(mut report: ReportRequest) -> ReportRequest {
    (report.process_id, report.spool_id) = ("02PROCESS".into(), "02SPOOL".into());
    report
}

#[tokio::test(flavor = "multi_thread")]
async fn two_agents_of_one_node_are_a_fault_and_neither_denies_what_the_other_says() {
    let cluster = Cluster::with_nodes(&[NODE]).await;
    let agent = Voice::cordoning(&cluster, NODE, FAST).await;
    let events = [numbered(NODE, 1)];
    agent.sender.send(events.to_vec()).await.unwrap();
    let first = agent.report(DetectorState::DetectorSettled, 1, &events);
    let second = another(agent.report(DetectorState::DetectorSettled, 0, &[]));
    // A restart is no second agent.
    let mut before = first.clone();
    before.process_id = "00PROCESS".into();
    agent.sender.report(before).await.unwrap();
    agent.sender.report(first.clone()).await.unwrap();
    agent
        .until("it is heard", |node| node["agent"]["state"] == "settled")
        .await;
    assert_eq!(doubts(&agent.shown().await), []);

    let turns = async {
        loop {
            agent.sender.report(second.clone()).await.unwrap();
            agent.sender.report(first.clone()).await.unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
    };
    let told = async {
        let both =
            "process 01PROCESS (version 0.1.0, machine machine-of-doubtful), process 02PROCESS";
        agent
            .until("both are named", |node| says(node, "AgentConflict", both))
            .await;
        agent.until_counted(&["warden_agents_conflicting 1"]).await;
    };
    tokio::select! {
        () = turns => {}
        () = told => {}
    }
    let status = agent.get("/api/v1/status").await;
    assert_eq!(status["agents_conflicting"], 1, "{status}");
    let lines = agent.get("/api/v1/nodes").await;
    assert_eq!(lines[0]["agent"], "conflict", "{lines}");
    until_event(&cluster, NODE, "AgentConflict").await;
    // The second one's list lacks the fault, which is no reason to close it.
    agent
        .sender
        .report(with_list(second.clone(), &[]))
        .await
        .unwrap();
    assert_eq!(agent.open().await.len(), 1);
    // The first one went: three intervals later the second is the node's, and denies.
    let alone = async {
        loop {
            agent.sender.report(second.clone()).await.unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
    };
    let over = async {
        agent
            .until("one is left", |node| doubts(node).is_empty())
            .await;
        agent.until_counted(&["warden_agents_conflicting 0"]).await;
    };
    tokio::select! {
        () = alone => {}
        () = over => {}
    }
    agent.sender.report(with_list(second, &[])).await.unwrap();
    assert_eq!(agent.open().await, Vec::<String>::new());
    let log = agent.program.log();
    assert_eq!(
        log.matches("can't be taken at its word").count(),
        1,
        "{log}"
    );
    assert_eq!(
        log.matches("can be taken at its word again").count(),
        1,
        "{log}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_on_another_machine_is_a_fault_and_what_it_does_not_assert_stays() {
    let cluster = Cluster::with_nodes(&[NODE]).await;
    let agent = Voice::cordoning(&cluster, NODE, FAST).await;
    let mut fault = numbered(NODE, 1);
    fault.check_name = "Test".into();
    fault.metadata.insert(
        "warden.dev/order".into(),
        format!("boot-{NODE}-0/01SPOOL/1"),
    );
    agent.sender.send(vec![fault.clone()]).await.unwrap();
    cluster.until(NODE, "taken out", is_cordoned).await;

    let mut foreign = another(agent.report(DetectorState::DetectorSettled, 0, &[]));
    foreign.machine_id = "machine-of-somebody".into();
    foreign.boot_id = format!("boot-{NODE}-0");
    // It began from nothing: what is open here is not its to take over.
    let mut empty = foreign.clone();
    empty.started_from_nothing = true;
    let refused = agent.sender.report(empty).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    assert!(refused.message().contains("other_machine"), "{refused}");
    // It has a list: what is not in it is not denied.
    let reply = agent
        .sender
        .report(with_list(foreign.clone(), &[]))
        .await
        .unwrap();
    assert!(!reply.want_list && reply.adopt.is_empty());
    assert_eq!(agent.open().await.len(), 1);
    assert_eq!(
        agent.shown().await["agent"]["state"],
        "starting",
        "nor is it settled"
    );
    let both = "runs on machine machine-of-somebody, the node object says machine-of-doubtful";
    agent
        .until("it is told", |node| {
            says(node, "AgentMachineMismatch", both)
        })
        .await;
    agent
        .until_counted(&["warden_agents_other_machine 1"])
        .await;
    let status = agent.get("/api/v1/status").await;
    assert_eq!(status["agents_other_machine"], 1, "{status}");
    let lines = agent.get("/api/v1/nodes").await;
    assert_eq!(lines[0]["agent"], "other machine", "{lines}");
    until_event(&cluster, NODE, "AgentMachineMismatch").await;
    let log = agent.program.log();
    assert_eq!(
        log.matches("can't be taken at its word").count(),
        1,
        "{log}"
    );
    assert!(is_cordoned(&cluster.get(NODE).await));
    // What a monitor over there says has no effect, whatever comes first, and silences nothing that is
    // said here later.
    let said = |id: &str, well: bool, here: bool, number: u32| {
        let mut event = fault.clone();
        if well {
            (event.is_healthy, event.is_fatal, event.recommended_action) = (true, false, 0);
        }
        event.id = id.into();
        let (machine, spool) = if here {
            ("machine-of-doubtful", "01SPOOL")
        } else {
            ("machine-of-somebody", "02SPOOL")
        };
        let order = format!("boot-{NODE}-0/{spool}/{number}");
        let pairs = [("machine-id", machine.to_owned()), ("order", order)];
        event.metadata = pairs
            .map(|(key, value)| (format!("warden.dev/{key}"), value))
            .into();
        event
    };
    let send = async |event| agent.sender.send(vec![event]).await.unwrap();
    send(said("elsewhere-1", false, false, 1)).await;
    send(said("elsewhere-2", true, false, 2)).await;
    assert_eq!(agent.open().await.len(), 1);
    send(said("here-1", true, true, 2)).await;
    assert_eq!(agent.open().await, Vec::<String>::new());
    send(said("here-2", false, true, 3)).await;
    assert_eq!(agent.open().await.len(), 1);
    send(said("elsewhere-3", true, false, 3)).await;
    assert_eq!(agent.open().await.len(), 1);
    send(said("here-3", true, true, 4)).await;
    assert_eq!(agent.open().await, Vec::<String>::new());

    // The node's own agent speaks again.
    let own = agent.report(DetectorState::DetectorSettled, 1, &[]);
    agent.sender.report(own).await.unwrap();
    agent
        .until("it is over", |node| doubts(node).is_empty())
        .await;
}

/// Waits until the node has an Event of this reason.
async fn until_event(cluster: &Cluster, node: &str, reason: &str) {
    let api: Api<Event> = Api::namespaced(cluster.testbed.admin(), "default");
    let params = ListParams::default().fields(&format!("involvedObject.uid={node}"));
    wait_for(format!("an Event {reason}"), SOON, || async {
        let events = api.list(&params).await?;
        let mut types = events.iter().filter_map(|event| event.type_.as_deref());
        Ok(types.any(|kind| kind == reason).then_some(()))
    })
    .await
    .unwrap();
}
