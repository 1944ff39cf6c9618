//! A store that was lost, and what persons and agents had said before.

use controller::requests::Request;
use health_event::NodeName;
use serde_json::{Value, json};
use testbed::wait_for;
use wire::datamodels::HealthEvent;
use wire::warden::v1::{DetectorState, ReportRequest};

use crate::harness::{Cluster, Controller, RULES, SOON, is_cordoned, is_marked};
use crate::process::{Program, numbered};
use crate::quarantine::quarantined;
use crate::voice::{Voice, nothing_to_send, with_list};

async fn ask(controller: &Controller, request: Request) {
    let asked = controller.requests.ask(request, "ann".into()).await;
    asked.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_a_person_holds_stays_held() {
    let cluster = Cluster::with_nodes(&["l-hold", "l-both"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(&cluster, folder.path()).await;
    let fault = quarantined(&cluster, &controller, "l-both", "Test").await;
    let names = ["l-hold", "l-both"].map(|name| NodeName::new(name).unwrap());
    for node in &names {
        let (node, reason) = (node.clone(), "maintenance".to_owned());
        ask(&controller, Request::Hold { node, reason }).await;
    }
    let says = |node: &k8s_openapi::api::core::v1::Node| {
        let mark = crate::harness::annotation(node, "warden.dev/incident");
        mark.is_some_and(|mark| mark.contains("ann: maintenance"))
    };
    for node in &names {
        cluster
            .until(node.as_str(), "its mark says who holds it", says)
            .await;
        controller.until_state(node.as_str(), "Quarantined").await;
    }
    controller.kill().await;
    let empty = tempfile::tempdir().unwrap();
    let controller = Controller::start(&cluster, empty.path()).await;
    for node in &names {
        controller.until_state(node.as_str(), "Quarantined").await;
    }
    controller.decided(crate::harness::healthy(&fault)).await;
    for node in &names {
        let open = controller.context.store.open_incidents_of(node).unwrap();
        assert_eq!(open[0].held_by.as_deref(), Some("ann: maintenance"));
        assert!(is_cordoned(&cluster.get(node.as_str()).await));
        ask(
            &controller,
            Request::Release {
                node: node.clone(),
                reason: String::new(),
            },
        )
        .await;
        cluster
            .until(node.as_str(), "released", |node| !is_marked(node))
            .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_does_not_name_its_faults_stays_out_until_a_person_releases_it() {
    let events = |text: Option<&str>| json!({ "metadata": { "annotations": { "quarantineHealthEvent": text } } });
    let cases = [
        ("l-bad", Some("[{")),
        ("l-empty", Some("[]")),
        ("l-none", None),
    ];
    let names = cases.map(|(name, _)| name);
    let cluster = Cluster::with_nodes(&names).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(&cluster, folder.path()).await;
    for name in names {
        quarantined(&cluster, &controller, name, "Test").await;
    }
    controller.kill().await;
    for (name, text) in cases {
        cluster.merge(name, events(text)).await;
    }
    let empty = tempfile::tempdir().unwrap();
    let rules = RULES.replace("[quarantine]\n", "[quarantine]\nsettle_timeout = \"10s\"\n");
    let controller = Controller::start_with(&cluster, empty.path(), &rules).await;
    for name in names {
        let node = NodeName::new(name).unwrap();
        wait_for(format!("{name}: a person is called"), SOON, || async {
            let open = controller.context.store.open_incidents_of(&node)?;
            let why = open.first().and_then(|i| i.needs_operator.as_deref());
            Ok((why == Some("faults unknown")).then_some(()))
        })
        .await
        .unwrap();
        assert!(is_cordoned(&cluster.get(name).await), "{name}");
        ask(
            &controller,
            Request::Release {
                node,
                reason: String::new(),
            },
        )
        .await;
        cluster
            .until(name, "released", |node| {
                !is_cordoned(node) && !is_marked(node)
            })
            .await;
    }
}

const NODE: &str = "l-agent";
/// The boot that the node object shows.
const BOOT: &str = "boot-l-agent-0";

/// A fault that the node's agent asserts, and that a rule set matches.
fn fault(number: u64) -> HealthEvent {
    let mut event = numbered(NODE, number);
    event.check_name = "Test".into();
    let order = format!("{BOOT}/01SPOOL/{number}");
    event.metadata.insert("warden.dev/order".into(), order);
    event
}

fn report(voice: &Voice, state: DetectorState, asserted: &[HealthEvent]) -> ReportRequest {
    ReportRequest {
        boot_id: BOOT.into(),
        ..nothing_to_send(voice.report(state, 9, asserted))
    }
}

async fn say(voice: &Voice, state: DetectorState, asserted: &[HealthEvent]) {
    voice.say(report(voice, state, asserted), asserted).await;
}

async fn given_back() -> Cluster {
    let cluster = Cluster::with_nodes(&[NODE]).await;
    record_uncordon(&cluster).await;
    cluster
}

/// What stays on a node that a person uncordoned.
async fn record_uncordon(cluster: &Cluster) {
    let record = json!({ "quarantinedNodeUncordonedManually": "True" });
    let patch = json!({ "metadata": { "annotations": record } });
    cluster.merge(NODE, patch).await;
}

fn is_held(node: &Value) -> bool {
    let holds = node["holds"].as_array();
    holds.is_some_and(|holds| holds.len() == 1) && !waits(node)
}

fn waits(node: &Value) -> bool {
    let blocks = node["object"]["blocked_by"].as_array();
    blocks.is_some_and(|blocks| blocks.contains(&json!("given_back")))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_record_of_an_uncordon_suppresses_nothing_that_comes_after_the_agents_word() {
    let cluster = given_back().await;
    let voice = Voice::cordoning(&cluster, NODE, "").await;
    voice.until("it waits for the agent", waits).await;
    say(&voice, DetectorState::DetectorStarting, &[]).await;
    assert!(waits(&voice.shown().await));
    say(&voice, DetectorState::DetectorSettled, &[]).await;
    voice
        .until("the agent has spoken", |node| !waits(node))
        .await;
    voice.sender.send(vec![fault(1)]).await.unwrap();
    cluster.until(NODE, "taken out", is_cordoned).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_persons_uncordon_stands_when_the_controller_starts_again_before_the_agent_speaks() {
    let cluster = given_back().await;
    let voice = Voice::cordoning(&cluster, NODE, "").await;
    voice.until("it waits for the agent", waits).await;
    let voice = voice.restart(&cluster).await;
    say(&voice, DetectorState::DetectorSettled, &[fault(1)]).await;
    voice.until("what it asserted is held", is_held).await;
    assert!(!is_marked(&cluster.get(NODE).await));
    // And once more: it is stored, and what is new is new.
    let voice = voice.restart(&cluster).await;
    voice.sender.send(vec![fault(2)]).await.unwrap();
    let node = cluster.until(NODE, "taken out", is_cordoned).await;
    let why = crate::harness::annotation(&node, "quarantineHealthEvent").unwrap();
    assert!(
        why.contains("0000:02:00") && !why.contains("0000:01:00"),
        "{why}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_others_led_without_since_knows_no_hold_of_that_time() {
    let cluster = Cluster::with_nodes(&[NODE]).await;
    let voice = Voice::cordoning(&cluster, NODE, "").await;
    say(&voice, DetectorState::DetectorSettled, &[]).await;
    let older = voice.program.kill();
    // A leader with another volume, and a person who gives the node back under it.
    let voice = Voice::cordoning(&cluster, NODE, "").await;
    record_uncordon(&cluster).await;
    drop(voice.program.kill());
    let program = Program::start_again(older, &cluster.testbed.kubeconfig(), &["--insecure-local"]);
    let voice = Voice::of(program, NODE).await;
    voice.program.said_code("store_is_older").await;
    voice.until("it waits for the agent", waits).await;
    say(&voice, DetectorState::DetectorSettled, &[fault(1)]).await;
    voice.until("what it asserted is held", is_held).await;
    assert!(!is_marked(&cluster.get(NODE).await));
    // Over the same store it is no news any more.
    let voice = voice.restart(&cluster).await;
    assert!(!waits(&voice.shown().await));
    assert!(!voice.program.log().contains("store_is_older"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_names_what_an_unreadable_annotation_does_not() {
    let cluster = Cluster::with_nodes(&[NODE]).await;
    let voice = Voice::cordoning(&cluster, NODE, "").await;
    say(&voice, DetectorState::DetectorSettled, &[]).await;
    voice.sender.send(vec![fault(1)]).await.unwrap();
    cluster.until(NODE, "taken out", is_cordoned).await;
    drop(voice.program.kill());
    let bad = json!({ "quarantineHealthEvent": "[{" });
    cluster
        .merge(NODE, json!({ "metadata": { "annotations": bad } }))
        .await;
    let voice = Voice::cordoning(&cluster, NODE, "").await;
    let waits = |node: &Value| {
        let detail = node["incidents"][0]["detail"].as_str();
        detail.is_some_and(|detail| detail.contains("the store was lost"))
    };
    voice.until("it waits for the agent", waits).await;
    // Settled, but its list is still to come: the summary alone is not its word.
    let summary = report(&voice, DetectorState::DetectorSettled, &[fault(1)]);
    assert!(
        voice
            .sender
            .report(summary.clone())
            .await
            .unwrap()
            .want_list
    );
    assert!(waits(&voice.shown().await));
    voice
        .sender
        .report(with_list(summary, &[fault(1)]))
        .await
        .unwrap();
    let back = |node: &Value| {
        let incident = &node["incidents"][0];
        let faults = incident["faults"].as_array().map(Vec::len);
        !waits(node) && incident["state"] == "Quarantined" && faults == Some(1)
    };
    voice.until("the fault is back", back).await;
    assert!(is_cordoned(&cluster.get(NODE).await));
    say(&voice, DetectorState::DetectorSettled, &[]).await;
    cluster
        .until(NODE, "released", |node| {
            !is_cordoned(node) && !is_marked(node)
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_monitors_fault_is_read_back_as_such_and_stays_until_its_monitor_speaks() {
    let cluster = Cluster::with_nodes(&[NODE]).await;
    let voice = Voice::cordoning(&cluster, NODE, "").await;
    voice
        .say(report(&voice, DetectorState::DetectorSettled, &[]), &[])
        .await;
    let monitors = |number| {
        let mut event = fault(number);
        event.metadata.remove("warden.dev/detector");
        event.entities_impacted = fault(1).entities_impacted;
        event
    };
    voice.sender.send(vec![monitors(1)]).await.unwrap();
    cluster.until(NODE, "taken out", is_cordoned).await;
    let is_restored = |node: &Value, restored: bool| {
        let faults = node["faults"].as_array().unwrap();
        faults.len() == 1 && faults[0]["restored"] == restored
    };
    voice
        .until("it is the monitor's", |node| is_restored(node, false))
        .await;
    drop(voice.program.kill());

    let voice = Voice::cordoning(&cluster, NODE, "").await;
    voice
        .until("it is read back", |node| is_restored(node, true))
        .await;
    let count = async || voice.get("/api/v1/status").await["restored_faults"].clone();
    assert_eq!(count().await, 1);
    // The agent's word is none about a monitor's fault.
    say(&voice, DetectorState::DetectorSettled, &[]).await;
    assert!(is_restored(&voice.shown().await, true));
    assert!(is_cordoned(&cluster.get(NODE).await));
    voice.sender.send(vec![monitors(2)]).await.unwrap();
    voice
        .until("its monitor spoke", |node| is_restored(node, false))
        .await;
    assert_eq!(count().await, 0);
    let mut over = monitors(3);
    over.is_healthy = true;
    voice.sender.send(vec![over]).await.unwrap();
    cluster
        .until(NODE, "released", |node| !is_marked(node))
        .await;
}
