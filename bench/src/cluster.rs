//! A control plane with a controller as it is shipped: TLS, tokens, profile cordon.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use e2e::{Agent, Controller, ControllerOptions, KernelLog, Trust};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::PostParams;
use kube::{Api, Client};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use testbed::{NodeSpec, Options, Testbed, wait_for};

use wire::api::Event;

use crate::seen::Seen;

/// The user of the controller at the API server, by which the audit log tells its calls.
pub(crate) const CONTROLLER_USER: &str = "bench-controller";
/// Namespace of the controller and the agents.
pub(crate) const NAMESPACE: &str = "warden";
/// Service account of the agents.
const AGENT: &str = "warden-agent";
/// Service account of the bench at the controller's API.
const READER: &str = "bench-reader";
/// Audience of the agents' tokens.
const AUDIENCE: &str = "warden";
/// Far longer than anything of it takes.
pub(crate) const DEADLINE: Duration = Duration::from_mins(1);

/// A lease that outlives the stops for the raw limit.
const LEASE: &str = r#"
[lease]
duration = "5m"
"#;
/// What is not as it is by default, and why: no delay of the first action, a breaker that is asked
/// each time and whose least bound no fleet here reaches, and heartbeats at the interval of a large
/// fleet.
const SETTINGS: &str = r#"
[ingest.tls]
extra_names = ["127.0.0.1"]
[reports]
interval = "5m"
[quarantine]
first_action_delay = "0s"
[quarantine.circuitBreaker]
min_nodes = 1000000
"#;

/// A control plane, the controller, and a watch of one's own.
pub(crate) struct Cluster {
    /// Changes of the nodes.
    pub seen: Seen,
    /// The administrator's client: the one of all raw limits.
    pub client: Client,
    /// The controller.
    pub controller: Controller,
    /// The control plane.
    pub testbed: Testbed,
    ca_file: PathBuf,
    ca: String,
    reader: String,
}

/// Node, whether healthy, and message of a stored event.
pub(crate) type Stored = (String, bool, String);

impl Cluster {
    /// Starts all of it with that many nodes; `settings` is more TOML for the controller.
    ///
    /// # Errors
    /// Something does not start; the text has the end of its log.
    pub(crate) async fn start(
        nodes: usize,
        audit_log: bool,
        settings: &str,
    ) -> anyhow::Result<Self> {
        let testbed = Self::testbed(nodes, audit_log).await?;
        Self::on(testbed, "cordon", &format!("{LEASE}{settings}")).await
    }

    /// A control plane with that many nodes.
    ///
    /// # Errors
    /// It does not start.
    pub(crate) async fn testbed(nodes: usize, audit_log: bool) -> anyhow::Result<Testbed> {
        Testbed::start(Options {
            nodes,
            audit_log,
            ..Options::default()
        })
        .await
    }

    /// Starts the controller on a control plane, by a profile and with more TOML, of which `[lease]`
    /// is a part.
    ///
    /// # Errors
    /// As [`Cluster::start`].
    pub(crate) async fn on(
        testbed: Testbed,
        profile: &str,
        settings: &str,
    ) -> anyhow::Result<Self> {
        testbed.service_account(NAMESPACE, AGENT).await?;
        testbed.service_account(NAMESPACE, READER).await?;
        let rule = PolicyRule {
            non_resource_urls: Some(vec!["/warden/api/v1/*".to_owned()]),
            verbs: vec!["get".to_owned(), "post".to_owned()],
            ..PolicyRule::default()
        };
        testbed
            .bind_cluster_role(NAMESPACE, READER, vec![rule])
            .await?;
        let hour = Duration::from_hours(1);
        let reader = testbed.token(NAMESPACE, READER, &[], hour).await?;
        let kubeconfig = testbed.kubeconfig_for_user(CONTROLLER_USER, &["system:masters"])?;
        let folder = testbed.folder().join("warden");
        let options = ControllerOptions {
            profile: profile.to_owned(),
            extra: format!("{SETTINGS}{settings}\n"),
            insecure: false,
            kubeconfig: Some(kubeconfig),
            ..ControllerOptions::default()
        };
        let controller = Controller::start(&testbed, &folder.join("controller"), &options).await?;
        let client = testbed.admin();
        let bundles: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
        let bundle = bundles
            .get("warden-ca-bundle")
            .await
            .context("reading the bundle of the controller's authority")?;
        let ca = bundle
            .data
            .and_then(|mut data| data.remove("ca.crt"))
            .context("the ConfigMap warden-ca-bundle has no ca.crt")?;
        let ca_file = folder.join("ca.crt");
        fs::write(&ca_file, &ca)?;
        Ok(Self {
            seen: Seen::start(&client).await?,
            client,
            controller,
            testbed,
            ca_file,
            ca,
            reader,
        })
    }

    /// The authority of the controller's certificate, PEM.
    pub(crate) fn ca(&self) -> &str {
        &self.ca
    }

    /// A token as the agent's pod on `node` has it.
    ///
    /// # Errors
    /// The API server refuses pod or token.
    pub(crate) async fn agent_token(&self, node: &str) -> anyhow::Result<String> {
        let pod = format!("agent-{node}");
        self.testbed
            .pod_on_node(NAMESPACE, &pod, AGENT, node)
            .await?;
        self.testbed
            .node_bound_token(NAMESPACE, AGENT, &pod, AUDIENCE)
            .await
    }

    /// The same, of a pod that nobody plays.
    ///
    /// # Errors
    /// As [`Cluster::agent_token`].
    pub(crate) async fn idle_agent_token(&self, node: &str) -> anyhow::Result<String> {
        let name = format!("agent-{node}");
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let pod = serde_json::from_value(json!({
            "metadata": { "name": name },
            "spec": {
                "serviceAccountName": AGENT,
                "nodeName": node,
                "containers": [{ "name": "main", "image": "pause" }],
            },
        }))?;
        pods.create(&PostParams::default(), &pod).await?;
        let token = self
            .testbed
            .node_bound_token(NAMESPACE, AGENT, &name, AUDIENCE);
        token.await
    }

    /// TokenReviews that the controller's process has asked for.
    ///
    /// # Errors
    /// Its page of metrics does not tell.
    pub(crate) async fn token_reviews(&self) -> anyhow::Result<f64> {
        self.metric("warden_token_reviews_total{").await
    }

    /// Sum of the metrics whose lines begin so.
    ///
    /// # Errors
    /// The controller's page of metrics does not come.
    pub(crate) async fn metric(&self, begin: &str) -> anyhow::Result<f64> {
        let (status, page) = e2e::http::get(self.controller.api, "/metrics", None).await?;
        ensure!(status == 200, "the controller's /metrics answered {status}");
        let lines = page.lines().filter(|line| line.starts_with(begin));
        let counts = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        Ok(counts.sum())
    }

    /// The agent of a node, not started yet.
    ///
    /// # Errors
    /// There is no token for it, or its folder can't be written.
    pub(crate) async fn agent(&self, node: &str, log: KernelLog) -> anyhow::Result<Agent> {
        let folder = self.testbed.folder().join("warden").join(node);
        let spec = NodeSpec::new(node);
        let mut agent = Agent::prepare(
            &folder,
            node,
            &spec.system_uuid,
            &spec.boot_id,
            log,
            self.controller.ingest,
        )?;
        let token_file = folder.join("token");
        fs::write(&token_file, self.agent_token(node).await?)?;
        fs::set_permissions(&token_file, fs::Permissions::from_mode(0o600))?;
        agent.set_trust(Trust {
            ca_file: self.ca_file.clone(),
            token_file,
        });
        Ok(agent)
    }

    /// Waits until the controller has a report of the agent in which all its detectors settled.
    ///
    /// # Errors
    /// It has none in time.
    pub(crate) async fn wait_settled(&self, agent: &Agent) -> anyhow::Result<()> {
        let node = &agent.node;
        let boot = NodeSpec::new(node).boot_id;
        let settled = wait_for(
            format!("the agent of {node} to settle"),
            DEADLINE,
            || async {
                let shown = self.api(&format!("/api/v1/nodes/{node}")).await?;
                let agent = &shown["agent"];
                let all = agent["unsettled"].as_array().is_some_and(Vec::is_empty);
                Ok((agent["boot_id"].as_str() == Some(boot.as_str()) && all).then_some(()))
            },
        )
        .await;
        settled.map_err(|error| error.context(agent.log_tail()))
    }

    /// A document of the controller's API.
    ///
    /// # Errors
    /// It does not answer with one.
    pub(crate) async fn api(&self, path: &str) -> anyhow::Result<Value> {
        e2e::http::get_json(self.controller.api, path, &self.reader).await
    }

    /// What the controller says about a node, for the text of an error.
    pub(crate) async fn explain(&self, error: anyhow::Error, node: &str) -> anyhow::Error {
        let shown = match self.api(&format!("/api/v1/nodes/{node}")).await {
            Ok(shown) => shown.to_string(),
            Err(failed) => format!("{failed:#}"),
        };
        let shown: String = shown.chars().take(1_500).collect();
        error.context(format!("the controller says of {node}: {shown}"))
    }

    /// Position of the last event in the store.
    ///
    /// # Errors
    /// The API does not answer.
    pub(crate) async fn last_seq(&self) -> anyhow::Result<u64> {
        let status = self.api("/api/v1/status").await?;
        let last = status["store"]["last_seq"].as_u64();
        last.context("the status has no store.last_seq")
    }

    /// Node, whether healthy, and message of every event stored after this position.
    ///
    /// # Errors
    /// The API does not answer.
    pub(crate) async fn stored_since(&self, seq: u64) -> anyhow::Result<Vec<Stored>> {
        let (mut after, mut stored) = (seq, Vec::new());
        loop {
            let page = self.api(&format!("/api/v1/events?after={after}")).await?;
            let page: Vec<Event> = serde_json::from_value(page).context("a page of events")?;
            let Some(last) = page.last() else {
                return Ok(stored);
            };
            after = last.seq;
            stored.extend(page.into_iter().map(|e| (e.node, e.healthy, e.message)));
        }
    }

    /// Holds the controller still while `work` runs, so that nothing of Warden takes part.
    ///
    /// # Errors
    /// Those of `work`, or the controller can't be signalled.
    pub(crate) async fn without_warden<T>(
        &self,
        work: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        let pid = Pid::from_raw(self.controller.id().cast_signed());
        let pid = pid.context("the controller has no process id")?;
        kill_process(pid, Signal::STOP).context("holding the controller")?;
        let done = work.await;
        kill_process(pid, Signal::CONT).context("letting the controller go on")?;
        done
    }

    /// UID of a node object.
    ///
    /// # Errors
    /// It is not there.
    pub(crate) async fn uid(&self, node: &str) -> anyhow::Result<String> {
        let node = e2e::nodes::read(&self.client, node).await?;
        let uid = node.metadata.uid.unwrap_or_default();
        ensure!(!uid.is_empty(), "a node object has no UID");
        Ok(uid)
    }
}

/// Names of the testbed's nodes with these numbers.
pub(crate) fn names(range: std::ops::Range<usize>) -> Vec<String> {
    NodeSpec::numbered(range)
        .into_iter()
        .map(|spec| spec.name)
        .collect()
}
