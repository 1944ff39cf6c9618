//! The controller's program, and an agent of one node as a voice that the test leads.

use health_event::SentIdentity;
use serde_json::Value;
use testbed::wait_for;
use wire::datamodels::HealthEvent;
use wire::warden::v1::{Asserted, Detector, DetectorState, ReportRequest, Spool};

use crate::harness::{Cluster, SOON};
use crate::process::{Program, Sender};

const FLAGS: [&str; 1] = ["--insecure-local"];

pub(crate) struct Voice {
    pub(crate) program: Program,
    pub(crate) sender: Sender,
    pub(crate) node: &'static str,
    token: String,
}

impl Voice {
    /// Over a program that runs.
    pub(crate) async fn of(program: Program, node: &'static str) -> Self {
        program.up().await;
        let sender = Sender::new(program.plain().await, None);
        let token = std::fs::read_to_string(program.store().join("api-token")).unwrap();
        let token = token.trim().to_owned();
        wait_for("the nodes to be read", SOON, || async {
            let (status, body) = program.get("/api/v1/nodes", Some(&token)).await;
            anyhow::ensure!(status == 200, "{status} {body}");
            Ok(Some(()))
        })
        .await
        .unwrap();
        Self {
            program,
            sender,
            node,
            token,
        }
    }

    /// Over one that observes; `extra` is added to its configuration.
    pub(crate) async fn observing(cluster: &Cluster, node: &'static str, extra: &str) -> Self {
        cluster.testbed.ensure_namespace("warden").await.unwrap();
        let kubeconfig = cluster.testbed.kubeconfig();
        Self::of(Program::start(&kubeconfig, extra, &FLAGS), node).await
    }

    /// Over one that cordons by the harness' rules.
    pub(crate) async fn cordoning(cluster: &Cluster, node: &'static str, extra: &str) -> Self {
        cluster.testbed.ensure_namespace("warden").await.unwrap();
        let kubeconfig = cluster.testbed.kubeconfig();
        let program = Program::start_cordoning(&kubeconfig, extra, &FLAGS);
        Self::of(program, node).await
    }

    /// Kills the program and starts it again over what it left.
    pub(crate) async fn restart(self, cluster: &Cluster) -> Self {
        let (folder, kubeconfig) = (self.program.kill(), cluster.testbed.kubeconfig());
        let program = Program::start_again(folder, &kubeconfig, &FLAGS);
        Self::of(program, self.node).await
    }

    /// A report of the node's one agent that asserts these, up to this number.
    pub(crate) fn report(
        &self,
        state: DetectorState,
        last_number: u64,
        asserted: &[HealthEvent],
    ) -> ReportRequest {
        ReportRequest {
            node_name: self.node.into(),
            boot_id: "boot".into(),
            machine_id: machine(self.node),
            agent_version: "0.1.0".into(),
            spool_id: "01SPOOL".into(),
            process_id: "01PROCESS".into(),
            detectors: vec![Detector {
                name: "kernel-log".into(),
                state: state as i32,
                why: String::new(),
            }],
            last_number,
            asserted: Some(set_of(asserted)),
            ..ReportRequest::default()
        }
    }

    /// Sends it; the list follows where it is asked for, as an agent's does.
    pub(crate) async fn say(&self, report: ReportRequest, asserted: &[HealthEvent]) {
        if self.sender.report(report.clone()).await.unwrap().want_list {
            let list = with_list(report, asserted);
            self.sender.report(list).await.unwrap();
        }
    }

    /// What the API says.
    pub(crate) async fn get(&self, path: &str) -> Value {
        let (status, body) = self.program.get(path, Some(&self.token)).await;
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> (u16, String) {
        let token = Some(self.token.as_str());
        self.program.send("POST", path, token, body).await
    }

    /// What the API says of the node.
    pub(crate) async fn shown(&self) -> Value {
        self.get(&format!("/api/v1/nodes/{}", self.node)).await
    }

    pub(crate) async fn until(&self, what: &str, is: impl Fn(&Value) -> bool) {
        wait_for(what.to_owned(), SOON, || async {
            let node = self.shown().await;
            anyhow::ensure!(is(&node), "{node:#}");
            Ok(Some(()))
        })
        .await
        .unwrap();
    }

    /// Waits until the page of metrics has these lines.
    pub(crate) async fn until_counted(&self, lines: &[&str]) {
        wait_for(format!("{lines:?}"), SOON, || async {
            let (_, page) = self.program.get("/metrics", None).await;
            let all = lines
                .iter()
                .all(|line| page.lines().any(|has| has == *line));
            anyhow::ensure!(all, "{page}");
            Ok(Some(()))
        })
        .await
        .unwrap();
    }

    /// Devices of the open faults of code 79.
    pub(crate) async fn open(&self) -> Vec<String> {
        let node = self.shown().await;
        let faults = node["faults"].as_array().unwrap().iter();
        let mut open: Vec<String> = faults
            .filter(|fault| fault["code"] == "79")
            .map(|fault| fault["device"].as_str().unwrap().to_owned())
            .collect();
        open.sort();
        open
    }
}

/// The machine of each node of the harness.
pub(crate) fn machine(node: &str) -> String {
    format!("machine-of-{node}")
}

/// What a report says of the faults that these events assert.
pub(crate) fn set_of(asserted: &[HealthEvent]) -> Asserted {
    let identity = |event: &HealthEvent| {
        let event = health_event::HealthEvent::try_from(event.clone()).unwrap();
        let device = health_event::devices_of(&event.entities).remove(0);
        SentIdentity::of(&event, &device, "79")
    };
    Asserted {
        hash_version: SentIdentity::VERSION,
        count: u32::try_from(asserted.len()).unwrap(),
        hash: SentIdentity::hash_of_set(asserted.iter().map(identity)).to_vec(),
    }
}

pub(crate) fn with_list(mut report: ReportRequest, asserted: &[HealthEvent]) -> ReportRequest {
    report.has_list = true;
    report.asserted_events = asserted.to_vec();
    report
}

/// Of an agent that has sent all that it had.
pub(crate) fn nothing_to_send(mut report: ReportRequest) -> ReportRequest {
    report.spool = Some(Spool::default());
    report
}
