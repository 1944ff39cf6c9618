//! A large fleet: every node has an agent of its own (played, with TLS and the token of its pod).
//! A tenth falls ill and recovers, then so many that the breaker must stop; who is withheld and who
//! is out, how long it takes, and how large the controller gets.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use e2e::fleet::{self, Reporter};
use e2e::{Controller, ControllerOptions, nodes};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::Api;
use kube::api::ListParams;
use testbed::{NodeSpec, Options, Testbed, wait_for};

use crate::say;

const NAMESPACE: &str = "warden";
/// Service account of the agents, and of this program at the controller's API.
const AGENT: &str = "warden-agent";
const READER: &str = "soak-reader";
/// Connections, pods and tokens made at a time.
const AT_ONCE: usize = 16;
/// What a node may take at most, on two cores and with unoptimised programs.
const PER_NODE: Duration = Duration::from_millis(300);

/// The rate is not bounded, so that the level alone decides and exactly half of the pool is out.
const SETTINGS: &str = r#"
[ingest.tls]
extra_names = ["127.0.0.1"]
[lease]
duration = "60s"
[reports]
interval = "5m"
[quarantine]
first_action_delay = "0s"
[quarantine.circuitBreaker]
percentage = 100
"#;

struct Fleet {
    testbed: Testbed,
    controller: Controller,
    agents: Vec<Reporter>,
    deadline: Duration,
    /// Measured steps, as rows of a table.
    rows: String,
}

/// A fleet of so many nodes, at least 10; answers a summary.
///
/// # Errors
/// A node is not as it should be.
pub(crate) async fn run(count: usize) -> anyhow::Result<String> {
    ensure!(count >= 10, "a fleet has at least 10 nodes");
    say(&format!("a fleet of {count} nodes"));
    let mut fleet = Fleet::start(count).await?;
    let tenth = count / 10;
    fleet.turn(0..tenth, true, tenth, "fall ill").await?;
    fleet.turn(0..tenth, false, 0, "recover").await?;

    let (ill, bound) = (count * 6 / 10, count / 2);
    fleet
        .turn(0..ill, true, bound, "fall ill, of which")
        .await?;
    fleet.tripped(ill - bound).await?;
    fleet.turn(0..ill, false, 0, "recover").await?;
    fleet.nothing_left().await?;
    let mut text = format!(
        "## A fleet of {count} nodes\n\nEach node with a TLS connection and a token of its own; \
         programs not optimised, 2 cores.\n\n| step | s | controller's RSS, MiB |\n|---|---|---|\n"
    );
    text.push_str(&fleet.rows);
    writeln!(
        text,
        "\nThe breaker let {bound} of {ill} ill nodes go out and withheld {}; all that recovered \
         were released while it was tripped; at the end no node had a mark.",
        ill - bound
    )?;
    Ok(text)
}

impl Fleet {
    async fn start(count: usize) -> anyhow::Result<Self> {
        let started = Instant::now();
        let testbed = Testbed::start(Options {
            nodes: count,
            ..Options::default()
        })
        .await?;
        let nodes_took = started.elapsed();
        let reader = accounts(&testbed).await?;
        let options = ControllerOptions {
            extra: SETTINGS.to_owned(),
            insecure: false,
            ..ControllerOptions::default()
        };
        let folder = testbed.folder().join("controller");
        let mut controller = Controller::start(&testbed, &folder, &options).await?;
        controller.set_api_token(reader);
        let mut fleet = Self {
            testbed,
            controller,
            agents: Vec::new(),
            deadline: Duration::from_mins(1)
                + PER_NODE.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX)),
            rows: String::new(),
        };
        fleet.row("nodes ready", nodes_took)?;
        let started = Instant::now();
        fleet.agents = fleet.connect(count).await?;
        fleet.row("agents connected and settled", started.elapsed())?;
        Ok(fleet)
    }

    async fn connect(&self, count: usize) -> anyhow::Result<Vec<Reporter>> {
        let bundles: Api<ConfigMap> = Api::namespaced(self.testbed.admin(), NAMESPACE);
        let bundle = bundles.get("warden-ca-bundle").await?.data;
        let ca = bundle.and_then(|mut data| data.remove("ca.crt"));
        let ca = ca.context("the ConfigMap warden-ca-bundle has no ca.crt")?;
        let (ca, testbed, ingest) = (&ca, &self.testbed, self.controller.ingest);
        futures::stream::iter(NodeSpec::numbered(0..count))
            .map(|spec| async move {
                let (node, pod) = (&spec.name, format!("agent-{}", spec.name));
                testbed.pod_on_node(NAMESPACE, &pod, AGENT, node).await?;
                let token = testbed
                    .node_bound_token(NAMESPACE, AGENT, &pod, "warden")
                    .await?;
                let reporter = Reporter::connect(ingest, ca, &token, node).await;
                reporter.with_context(|| format!("playing the agent of {node}"))
            })
            .buffered(AT_ONCE)
            .try_collect()
            .await
    }

    /// These fall ill or recover, all at once; then exactly `out` nodes are cordoned and marked.
    async fn turn(
        &mut self,
        which: std::ops::Range<usize>,
        ill: bool,
        out: usize,
        what: &str,
    ) -> anyhow::Result<()> {
        let step = format!("{} {what}, {out} out", which.len());
        let started = Instant::now();
        let agents = &self.agents[which];
        fleet::all(agents, |agent| async move {
            agent.send(vec![fleet::fault(!ill, 0)]).await
        })
        .await?;
        wait_for(&step, self.deadline, || async {
            let (cordoned, marked) = self.cordoned_and_marked().await?;
            ensure!(
                cordoned == out && marked == out,
                "{cordoned} nodes are cordoned and {marked} have marks"
            );
            Ok(Some(()))
        })
        .await
        .with_context(|| self.controller.log_tail())?;
        self.row(&step, started.elapsed())
    }

    async fn cordoned_and_marked(&self) -> anyhow::Result<(usize, usize)> {
        let all: Api<Node> = Api::all(self.testbed.admin());
        let all = all.list(&ListParams::default()).await?.items;
        let cordoned = all.iter().filter(|node| nodes::is_cordoned(node)).count();
        let marked = all.iter().filter(|node| !nodes::marks(node).is_empty());
        Ok((cordoned, marked.count()))
    }

    /// The breaker is tripped and holds back exactly so many.
    async fn tripped(&self, withheld: usize) -> anyhow::Result<()> {
        wait_for(
            "the breaker to withhold the rest",
            self.deadline,
            || async {
                let pools = self.controller.json("/api/v1/breaker").await?;
                let gpu = pools.as_array().and_then(|all| {
                    let gpu = all.iter().find(|pool| pool["pool"] == "gpu");
                    gpu.cloned()
                });
                let gpu = gpu.context("there is no pool gpu")?;
                let held = gpu["withheld"].as_array().map_or(0, Vec::len);
                ensure!(
                    gpu["tripped"] == true && held == withheld,
                    "it withholds {held}, and tripped is {}",
                    gpu["tripped"]
                );
                Ok(Some(()))
            },
        )
        .await
    }

    /// No incident is open any more.
    async fn nothing_left(&self) -> anyhow::Result<()> {
        wait_for("all incidents to close", self.deadline, || async {
            let open = self.controller.json("/api/v1/incidents?open=true").await?;
            let open = open.as_array().map_or(0, Vec::len);
            ensure!(open == 0, "{open} are open");
            Ok(Some(()))
        })
        .await
    }

    fn row(&mut self, what: &str, took: Duration) -> anyhow::Result<()> {
        let seconds = took.as_secs_f64();
        let rss = memory(self.controller.id())?;
        say(&format!("  {what}: {seconds:.1} s, controller {rss} MiB"));
        writeln!(self.rows, "| {what} | {seconds:.1} | {rss} |")?;
        Ok(())
    }
}

/// Makes the agents' account and a reader's; answers the reader's token.
async fn accounts(testbed: &Testbed) -> anyhow::Result<String> {
    testbed.service_account(NAMESPACE, AGENT).await?;
    testbed.service_account(NAMESPACE, READER).await?;
    let rule = PolicyRule {
        non_resource_urls: Some(vec!["/warden/api/v1/*".to_owned()]),
        verbs: vec!["get".to_owned()],
        ..PolicyRule::default()
    };
    testbed
        .bind_cluster_role(NAMESPACE, READER, vec![rule])
        .await?;
    let hours = Duration::from_hours(4);
    testbed.token(NAMESPACE, READER, &[], hours).await
}

/// Memory of a process, MiB.
fn memory(id: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{id}/status");
    let status = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB"));
    let kib: u64 = kib.context("no VmRSS")?.trim().parse()?;
    Ok(kib.div_ceil(1024))
}
