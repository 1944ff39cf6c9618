//! A store that was lost, and what persons and agents had said before.

use controller::requests::Request;
use health_event::{NodeName, SentIdentity};
use serde_json::{Value, json};
use testbed::wait_for;
use wire::datamodels::HealthEvent;
use wire::warden::v1::{Asserted, Detector, DetectorState, ReportRequest};

use crate::harness::{Cluster, Controller, RULES, SOON, is_cordoned, is_marked};
use crate::process::{Program, Sender, numbered};
use crate::quarantine::quarantined;

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
        ask(&controller, Request::Release { node: node.clone() }).await;
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
        ask(&controller, Request::Release { node }).await;
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
const FLAGS: [&str; 1] = ["--insecure-local"];

/// The controller's program and an agent's voice.
struct Voice {
    program: Program,
    sender: Sender,
    machine: String,
}

impl Voice {
    async fn of(program: Program, cluster: &Cluster) -> Self {
        program.up().await;
        let sender = Sender::new(program.plain().await, None);
        let node = cluster.get(NODE).await;
        let machine = node.status.unwrap().node_info.unwrap().system_uuid;
        Self {
            program,
            sender,
            machine,
        }
    }

    async fn start(cluster: &Cluster) -> Self {
        cluster.testbed.ensure_namespace("warden").await.unwrap();
        let kubeconfig = cluster.testbed.kubeconfig();
        Self::of(Program::start_cordoning(&kubeconfig, "", &FLAGS), cluster).await
    }

    async fn restart(self, cluster: &Cluster) -> Self {
        let (folder, kubeconfig) = (self.program.kill(), cluster.testbed.kubeconfig());
        Self::of(Program::start_again(folder, &kubeconfig, &FLAGS), cluster).await
    }

    /// A fault that the node's agent asserts, and that a rule set matches.
    fn fault(&self, number: u64) -> HealthEvent {
        let mut event = numbered(NODE, number);
        event.check_name = "Test".into();
        let more = [
            ("warden.dev/order", format!("{BOOT}/01SPOOL/{number}")),
            ("warden.dev/machine-id", self.machine.clone()),
        ];
        let more = more.map(|(key, value)| (key.to_owned(), value));
        event.metadata.extend(more);
        event
    }

    fn report(&self, state: DetectorState, asserted: &[HealthEvent]) -> ReportRequest {
        let identity = |event: &HealthEvent| {
            let event = health_event::HealthEvent::try_from(event.clone()).unwrap();
            let device = health_event::devices_of(&event.entities).remove(0);
            SentIdentity::of(&event, &device, "79")
        };
        ReportRequest {
            node_name: NODE.into(),
            boot_id: BOOT.into(),
            machine_id: self.machine.clone(),
            agent_version: "0.1.0".into(),
            spool_id: "01SPOOL".into(),
            process_id: "01PROCESS".into(),
            detectors: vec![Detector {
                name: "kernel-log".into(),
                state: state as i32,
                why: String::new(),
            }],
            last_number: 9,
            spool: Some(wire::warden::v1::Spool::default()),
            asserted: Some(Asserted {
                hash_version: SentIdentity::VERSION,
                count: u32::try_from(asserted.len()).unwrap(),
                hash: SentIdentity::hash_of_set(asserted.iter().map(identity)).to_vec(),
            }),
            ..ReportRequest::default()
        }
    }

    /// A report; the list follows where it is asked for, as an agent's does.
    async fn say(&self, state: DetectorState, asserted: &[HealthEvent]) {
        let mut report = self.report(state, asserted);
        if self.sender.report(report.clone()).await.unwrap().want_list {
            report.has_list = true;
            report.asserted_events = asserted.to_vec();
            self.sender.report(report).await.unwrap();
        }
    }

    async fn node(&self) -> Value {
        let token = std::fs::read_to_string(self.program.store().join("api-token")).unwrap();
        let path = format!("/api/v1/nodes/{NODE}");
        let (status, body) = self.program.get(&path, Some(token.trim())).await;
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    async fn until(&self, what: &str, is: impl Fn(&Value) -> bool) {
        wait_for(what.to_owned(), SOON, || async {
            let node = self.node().await;
            anyhow::ensure!(is(&node), "{node:#}");
            Ok(Some(()))
        })
        .await
        .unwrap();
    }
}

async fn given_back() -> Cluster {
    let cluster = Cluster::with_nodes(&[NODE]).await;
    let record = json!({ "quarantinedNodeUncordonedManually": "True" });
    let patch = json!({ "metadata": { "annotations": record } });
    cluster.merge(NODE, patch).await;
    cluster
}

fn waits(node: &Value) -> bool {
    let blocks = node["object"]["blocked_by"].as_array();
    blocks.is_some_and(|blocks| blocks.contains(&json!("given_back")))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_record_of_an_uncordon_suppresses_nothing_that_comes_after_the_agents_word() {
    let cluster = given_back().await;
    let voice = Voice::start(&cluster).await;
    voice.until("it waits for the agent", waits).await;
    voice.say(DetectorState::DetectorStarting, &[]).await;
    assert!(waits(&voice.node().await));
    voice.say(DetectorState::DetectorSettled, &[]).await;
    voice
        .until("the agent has spoken", |node| !waits(node))
        .await;
    voice.sender.send(vec![voice.fault(1)]).await.unwrap();
    cluster.until(NODE, "taken out", is_cordoned).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_persons_uncordon_stands_when_the_controller_starts_again_before_the_agent_speaks() {
    let cluster = given_back().await;
    let voice = Voice::start(&cluster).await;
    voice.until("it waits for the agent", waits).await;
    let voice = voice.restart(&cluster).await;
    voice
        .say(DetectorState::DetectorSettled, &[voice.fault(1)])
        .await;
    let held = |node: &Value| {
        let holds = node["holds"].as_array();
        holds.is_some_and(|holds| holds.len() == 1) && !waits(node)
    };
    voice.until("what it asserted is held", held).await;
    assert!(!is_marked(&cluster.get(NODE).await));
    // And once more: it is stored, and what is new is new.
    let voice = voice.restart(&cluster).await;
    voice.sender.send(vec![voice.fault(2)]).await.unwrap();
    let node = cluster.until(NODE, "taken out", is_cordoned).await;
    let why = crate::harness::annotation(&node, "quarantineHealthEvent").unwrap();
    assert!(
        why.contains("0000:02:00") && !why.contains("0000:01:00"),
        "{why}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_names_what_an_unreadable_annotation_does_not() {
    let cluster = Cluster::with_nodes(&[NODE]).await;
    let voice = Voice::start(&cluster).await;
    voice.say(DetectorState::DetectorSettled, &[]).await;
    voice.sender.send(vec![voice.fault(1)]).await.unwrap();
    cluster.until(NODE, "taken out", is_cordoned).await;
    drop(voice.program.kill());
    let bad = json!({ "quarantineHealthEvent": "[{" });
    cluster
        .merge(NODE, json!({ "metadata": { "annotations": bad } }))
        .await;
    let voice = Voice::start(&cluster).await;
    let waits = |node: &Value| {
        let detail = node["incidents"][0]["detail"].as_str();
        detail.is_some_and(|detail| detail.contains("the store was lost"))
    };
    voice.until("it waits for the agent", waits).await;
    // Settled, but its list is still to come: the summary alone is not its word.
    let summary = voice.report(DetectorState::DetectorSettled, &[voice.fault(1)]);
    assert!(
        voice
            .sender
            .report(summary.clone())
            .await
            .unwrap()
            .want_list
    );
    assert!(waits(&voice.node().await));
    let list = ReportRequest {
        has_list: true,
        asserted_events: vec![voice.fault(1)],
        ..summary
    };
    voice.sender.report(list).await.unwrap();
    let back = |node: &Value| {
        let incident = &node["incidents"][0];
        let faults = incident["faults"].as_array().map(Vec::len);
        !waits(node) && incident["state"] == "Quarantined" && faults == Some(1)
    };
    voice.until("the fault is back", back).await;
    assert!(is_cordoned(&cluster.get(NODE).await));
    voice.say(DetectorState::DetectorSettled, &[]).await;
    cluster
        .until(NODE, "released", |node| {
            !is_cordoned(node) && !is_marked(node)
        })
        .await;
}
