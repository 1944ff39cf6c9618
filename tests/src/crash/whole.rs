//! The stages behind the cordon: pods moved, a reboot ordered and carried out, and a person's own
//! order with its end.

use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use serde_json::{Value, json};
use testbed::{ProviderOptions, SimProvider, Testbed, is_ready, wait_for};

use super::{Lane, Victim};
use crate::machine::SOON;
use crate::random::Random;
use crate::{KernelLog, Machine, nodes};

const REBOOT_NODE: &str =
    include_str!("../../../deploy/crds/janitor.dgxc.nvidia.com_rebootnodes.yaml");
const PATH: &str = "/apis/janitor.dgxc.nvidia.com/v1alpha1/rebootnodes";
const LINE: &str = "NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.";
/// Pods that are evicted at once, and pods that are deleted after a moment.
const MOVED: [&str; 2] = ["crash-evicted", "crash-deleted"];

/// How far the loop was when the controller died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Far {
    /// Stored steps of the node's incident.
    steps: usize,
    /// The last of them.
    last: String,
    /// Whether the node was back already.
    is_over: bool,
}

impl Far {
    /// Whether it died between the first stored step of the incident and its last.
    pub fn is_within(&self) -> bool {
        self.steps > 0 && !self.is_over
    }
}

impl fmt::Display for Far {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.steps {
            0 => f.write_str("before the incident"),
            steps => write!(f, "after step {steps}, {}", self.last),
        }
    }
}

/// A controller that does everything, and the provider that it asks.
pub struct Whole<'a> {
    lane: Lane<'a>,
    provider: SimProvider,
}

impl<'a> Whole<'a> {
    /// From the line to the release it takes 0.9 to 1.3 s without a kill: a later one meets nothing.
    pub const MILLIS: u64 = 1_300;

    /// Starts both with a new store and without a Lease, see [`Lane::start`].
    ///
    /// # Errors
    /// One does not start.
    pub async fn start(testbed: &'a Testbed, name: &str) -> anyhow::Result<Self> {
        testbed.install_crd(REBOOT_NODE).await?;
        let provider = SimProvider::start(ProviderOptions::new(testbed.admin())).await?;
        let [evicted, deleted] = MOVED;
        // A signal that was not sent is given up after its timeout, and the next attempt is made; one that
        // was sent has its effect in a second or two, on a slow machine in ten.
        let extra = format!(
            "[drain]\nfirst_action_delay = \"0s\"\ndeleteAfterTimeoutMinutes = 0.01\n\
             [[drain.userNamespaces]]\nname = \"{evicted}\"\nmode = \"Immediate\"\n\
             [[drain.userNamespaces]]\nname = \"{deleted}\"\nmode = \"DeleteAfterTimeout\"\n\
             [remediation]\nfirst_action_delay = \"0s\"\n\
             [janitor]\ncspProviderHost = \"{}\"\ncspProviderInsecure = true\n\
             cspProviderTokenPath = \"\"\nask_interval = \"200ms\"\ntimeout = \"20s\"\n",
            provider.address()
        );
        let lane = Lane::start_as(testbed, name, "remediate", "enabled = false", &extra).await?;
        Ok(Self { lane, provider })
    }

    /// A fault of the kernel log, and a controller that dies at the point on the way to its end.
    /// Whatever was under way is done once: each pod is gone, the machine got one signal, and the
    /// node is back. Answers how far it was.
    ///
    /// # Errors
    /// What was lost, repeated or left undone; or it died outside of the loop.
    pub async fn run_loop(&mut self, point: &'static str) -> anyhow::Result<Far> {
        let mut machine = self.lane.machine(KernelLog::Pipe).await?;
        for namespace in MOVED {
            let made = self
                .lane
                .testbed
                .create_pods_on(&machine.name, namespace, 1);
            made.await?;
        }
        self.lane
            .arm(Victim::Controller, &mut machine, point)
            .await?;
        machine.agent.kernel_line(LINE)?;
        self.dies(point)?;
        let killed_at = Timestamp::now();
        self.lane.controller.restart().await?;
        machine.rebooted(self.lane.testbed).await?;
        self.back(&mut machine).await?;
        let signals = self.provider.signals(&machine.name);
        ensure!(signals == 1, "the machine got {signals} signals");
        let far = self.far(&machine, killed_at).await?;
        ensure!(far.is_within(), "it died outside of the loop: {far}");
        Ok(far)
    }

    /// How far the loop of this machine, which is over, was then.
    async fn far(&self, machine: &Machine, then: Timestamp) -> anyhow::Result<Far> {
        let path = format!("/api/v1/nodes/{}/timeline", machine.name);
        let timeline = self.lane.controller.json(&path).await?;
        let all = timeline.as_array().context("no timeline")?;
        let mut steps = Vec::new();
        for step in all {
            let text = |key: &str| step[key].as_str().unwrap_or_default();
            // Nothing is decided while no controller runs: a step is of before or after it.
            if text("at").parse::<Timestamp>()? <= then {
                let [module, from, to] = ["module", "from", "to"].map(text);
                steps.push((format!("{module}: {from} → {to}"), to == "Closed"));
            }
        }
        let last = steps.last().cloned().unwrap_or_default();
        Ok(Far {
            steps: steps.len(),
            last: last.0,
            is_over: last.1,
        })
    }

    /// The same, and a controller that is killed so long after the line.
    ///
    /// # Errors
    /// As [`Whole::run_loop`].
    pub async fn run_at(&mut self, after: Duration) -> anyhow::Result<Far> {
        let mut machine = self.lane.machine(KernelLog::Pipe).await?;
        for namespace in MOVED {
            let made = self
                .lane
                .testbed
                .create_pods_on(&machine.name, namespace, 1);
            made.await?;
        }
        machine.agent.kernel_line(LINE)?;
        let (controller, testbed) = (&mut self.lane.controller, self.lane.testbed);
        let dies = async {
            tokio::time::sleep(after).await;
            controller.kill();
            let at = Timestamp::now();
            controller.restart().await?;
            Ok(at)
        };
        let both = futures::future::try_join(dies, machine.rebooted(testbed));
        let (killed_at, ()) = both
            .await
            .with_context(|| format!("killed after {} ms", after.as_millis()))?;
        self.back(&mut machine).await?;
        self.far(&machine, killed_at).await
    }

    /// The node is back, its pods are gone, and it was rebooted once.
    async fn back(&self, machine: &mut Machine) -> anyhow::Result<()> {
        let client = self.lane.testbed.admin();
        nodes::wait(&client, &machine.name, "released", SOON, |node| {
            !nodes::is_cordoned(node) && nodes::marks(node).is_empty()
        })
        .await
        .with_context(|| self.lane.controller.log_tail())?;
        self.ends(machine).await?;
        let pods: Api<Pod> = Api::all(client);
        let on_node = ListParams::default().fields(&format!("spec.nodeName={}", machine.name));
        let left = pods.list(&on_node).await?.items;
        ensure!(left.is_empty(), "pods are left: {left:#?}");
        machine.agent.kill();
        Ok(())
    }

    /// A person's order of a reboot that is kept for a second, and a controller that dies at the
    /// point. The machine gets one signal, and the object goes.
    ///
    /// # Errors
    /// As [`Whole::run_loop`].
    pub async fn run_order(&mut self, point: &'static str) -> anyhow::Result<()> {
        let mut machine = self.lane.machine(KernelLog::Off).await?;
        let client = self.lane.testbed.admin();
        // Those of before have an end of their own, over which it would die instead.
        let request = http::Request::delete(PATH).body(Vec::new())?;
        client.request::<Value>(request).await?;
        self.lane
            .arm(Victim::Controller, &mut machine, point)
            .await?;
        let name = format!("by-hand-{}", machine.name);
        let order = json!({
            "apiVersion": "janitor.dgxc.nvidia.com/v1alpha1",
            "kind": "RebootNode",
            "metadata": { "name": name, "annotations": { "nvsentinel.nvidia.com/ttl": "1s" } },
            "spec": { "nodeName": machine.name, "force": false },
        });
        let request = http::Request::post(PATH).body(serde_json::to_vec(&order)?)?;
        client.request::<Value>(request).await?;
        self.dies(point)?;
        self.lane.controller.restart().await?;
        wait_for("the order to be over and gone", SOON, || async {
            let left = orders(&client, &machine.name).await?;
            ensure!(left.is_empty(), "{left:#?}");
            Ok(Some(()))
        })
        .await
        .with_context(|| self.lane.controller.log_tail())?;
        nodes::wait(&client, &machine.name, "Ready", SOON, is_ready).await?;
        let signals = self.provider.signals(&machine.name);
        ensure!(signals == 1, "the machine got {signals} signals");
        machine.agent.kill();
        Ok(())
    }

    /// A moment in the loop, drawn from a seed.
    pub fn moment(seed: u64) -> Duration {
        Duration::from_millis(Random::new(seed).draw() % Self::MILLIS)
    }

    fn dies(&mut self, point: &str) -> anyhow::Result<()> {
        let died = self.lane.controller.ended_within(SOON);
        ensure!(
            died,
            "it never came to {point}; {}",
            self.lane.controller.log_tail()
        );
        Ok(())
    }

    /// The machine was rebooted once, and every order of it is at its end. A signal may have come to
    /// a provider that did nothing, because its caller was gone: then there is a second one.
    async fn ends(&self, machine: &Machine) -> anyhow::Result<()> {
        let client = self.lane.testbed.admin();
        let reboots = self.provider.reboots(&machine.name);
        ensure!(reboots == 1, "the machine was rebooted {reboots} times");
        wait_for("the orders to be over", SOON, || async {
            let all = orders(&client, &machine.name).await?;
            let over = all
                .iter()
                .all(|o| o["status"]["completionTime"].is_string());
            ensure!(over && (1..=2).contains(&all.len()), "{all:#?}");
            Ok(Some(()))
        })
        .await
    }
}

/// RebootNodes that name the node.
async fn orders(client: &Client, node: &str) -> anyhow::Result<Vec<Value>> {
    let request = http::Request::get(PATH).body(Vec::new())?;
    let list: Value = client.request(request).await?;
    let items = list["items"].as_array().into_iter().flatten();
    Ok(items
        .filter(|o| o["spec"]["nodeName"] == node)
        .cloned()
        .collect())
}
