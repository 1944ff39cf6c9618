//! One node of the testbed with its agent, and what the controller says about it.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Node;
use serde_json::Value;
use testbed::{NodeSpec, Testbed, wait_for};

use crate::monitor::Monitor;
use crate::{Agent, Controller, KernelLog, nodes};

/// Everything awaited here comes in milliseconds, and after a back-off in seconds: this only ends
/// a failed test on a busy machine.
pub const SOON: Duration = Duration::from_secs(60);

/// A node, the agent on it, and a monitor beside the agent.
#[derive(Debug)]
pub struct Machine {
    /// Name of the node.
    pub name: String,
    /// Its agent.
    pub agent: Agent,
    /// A monitor on the agent's socket.
    pub monitor: Monitor,
    boots: u32,
    /// The present boot, where the machine did not choose its name.
    boot: Option<String>,
}

impl Machine {
    /// Adds the node, starts the agent and waits until it is settled.
    ///
    /// # Errors
    /// The node can't be made, or the agent does not settle.
    pub async fn join(
        testbed: &Testbed,
        controller: &Controller,
        name: &str,
        log: KernelLog,
    ) -> anyhow::Result<Self> {
        let spec = NodeSpec::new(name);
        testbed.add_nodes(std::slice::from_ref(&spec)).await?;
        testbed.wait_nodes_ready(&[name], SOON).await?;
        let machine = Self::prepare(&testbed.folder().join("m"), controller, &spec, log)?;
        machine.started(controller).await
    }

    /// As [`Machine::join`], for a node that is there, and without a process yet.
    ///
    /// # Errors
    /// The folder can't be written.
    pub fn prepare(
        folder: &Path,
        controller: &Controller,
        spec: &NodeSpec,
        log: KernelLog,
    ) -> anyhow::Result<Self> {
        let agent = Agent::prepare(
            // Short: a socket's path has 107 bytes.
            &folder.join(&spec.name),
            &spec.name,
            &spec.system_uuid,
            &spec.boot_id,
            log,
            controller.ingest,
        )?;
        Ok(Self {
            name: spec.name.clone(),
            monitor: Monitor::on_socket(agent.socket()),
            agent,
            boots: 0,
            boot: None,
        })
    }

    /// Starts the agent and waits until it is settled.
    ///
    /// # Errors
    /// It does not settle; the text has the end of both logs.
    pub async fn started(mut self, controller: &Controller) -> anyhow::Result<Self> {
        self.agent.spawn()?;
        self.settled(controller).await?;
        Ok(self)
    }

    /// The boot id of the present boot.
    pub fn boot_id(&self) -> String {
        if let Some(boot) = &self.boot {
            return boot.clone();
        }
        let first = NodeSpec::new(&self.name).boot_id;
        match self.boots {
            0 => first,
            boots => format!("{first}-{boots}"),
        }
    }

    /// Waits until the controller knows that the agent is settled in its present boot.
    ///
    /// # Errors
    /// It is not, in time; the text has the end of both logs.
    pub async fn settled(&self, controller: &Controller) -> anyhow::Result<()> {
        let boot = self.boot_id();
        self.until(controller, "with a settled agent", |node| {
            node["agent"]["state"] == "settled" && node["agent"]["boot_id"] == boot.as_str()
        })
        .await
        .with_context(|| self.agent.log_tail())?;
        Ok(())
    }

    /// Restarts the machine: the agent dies with it, the node comes back with another boot id, and
    /// the agent settles.
    ///
    /// # Errors
    /// As [`Machine::settled`].
    pub async fn reboot(
        &mut self,
        testbed: &Testbed,
        controller: &Controller,
    ) -> anyhow::Result<()> {
        self.restart(testbed).await?;
        self.settled(controller).await
    }

    /// As [`Machine::reboot`], without waiting for the agent to settle.
    ///
    /// # Errors
    /// The node does not show the new boot id in time, or the agent can't be started.
    pub async fn restart(&mut self, testbed: &Testbed) -> anyhow::Result<()> {
        self.agent.kill();
        self.boots += 1;
        self.boot = None;
        let boot = self.boot_id();
        self.agent.set_boot_id(&boot)?;
        testbed.reboot(&self.name, &boot).await?;
        self.agent.spawn()
    }

    /// Plays along while somebody else has the machine rebooted: the agent dies with it and starts in
    /// the boot that the node then shows, in which nothing stands in the kernel's ring.
    ///
    /// # Errors
    /// The node does not go down and come back in time, or the agent can't be started.
    pub async fn rebooted(&mut self, testbed: &Testbed) -> anyhow::Result<()> {
        self.boots(testbed).await?;
        self.agent.spawn()
    }

    /// The same, without starting the agent in the new boot.
    ///
    /// # Errors
    /// The node does not go down and come back in time.
    pub async fn boots(&mut self, testbed: &Testbed) -> anyhow::Result<()> {
        let (client, before) = (testbed.admin(), self.boot_id());
        let other = |node: &Node| testbed::boot_id(node) != Some(before.as_str());
        let down = |node: &Node| !testbed::is_ready(node) || other(node);
        nodes::wait(&client, &self.name, "down", SOON, down).await?;
        self.agent.kill();
        let up = |node: &Node| testbed::is_ready(node) && other(node);
        nodes::wait(&client, &self.name, "up in another boot", SOON, up).await?;
        let node = nodes::read(&client, &self.name).await?;
        let boot = testbed::boot_id(&node).unwrap_or_default().to_owned();
        self.agent.set_boot_id(&boot)?;
        self.boot = Some(boot);
        self.agent.empty_ring()
    }

    /// Waits until what the controller shows of the node (`/api/v1/nodes/NAME`) is as wanted.
    ///
    /// # Errors
    /// It is not, in time; the text has what it shows and the end of its log.
    pub async fn until(
        &self,
        controller: &Controller,
        what: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> anyhow::Result<Value> {
        until(controller, &self.name, what, wanted).await
    }

    /// Waits until the newest incident of the node is in one of these states.
    ///
    /// # Errors
    /// As [`Machine::until`].
    pub async fn until_state(&self, controller: &Controller, state: &str) -> anyhow::Result<Value> {
        until_state(controller, &self.name, state).await
    }
}

/// Waits until what the controller shows of a node is as wanted.
///
/// # Errors
/// It is not, in time; the text has what it shows and the end of its log.
pub async fn until(
    controller: &Controller,
    node: &str,
    what: &str,
    wanted: impl Fn(&Value) -> bool,
) -> anyhow::Result<Value> {
    let path = format!("/api/v1/nodes/{node}");
    wait_for(format!("node {node} to be {what}"), SOON, || async {
        let shown = controller.json(&path).await?;
        if wanted(&shown) {
            return Ok(Some(shown));
        }
        anyhow::bail!("{shown:#}")
    })
    .await
    .with_context(|| controller.log_tail())
}

/// Waits until the newest incident of a node is in this state; answers the incident.
///
/// # Errors
/// As [`until`].
pub async fn until_state(
    controller: &Controller,
    node: &str,
    state: &str,
) -> anyhow::Result<Value> {
    let shown = until(controller, node, &format!("in state {state}"), |node| {
        node["incidents"][0]["state"] == state
    })
    .await?;
    Ok(shown["incidents"][0].clone())
}

/// All stored events of a node, oldest first.
///
/// # Errors
/// The controller does not answer.
pub async fn events(controller: &Controller, node: &str) -> anyhow::Result<Vec<Value>> {
    let mut all: Vec<Value> = Vec::new();
    loop {
        let after = all
            .last()
            .map_or(0, |event| event["seq"].as_u64().unwrap_or_default());
        let page = controller
            .json(&format!("/api/v1/events?node={node}&after={after}"))
            .await?;
        let page = page.as_array().context("events are a list")?;
        if page.is_empty() {
            return Ok(all);
        }
        all.extend(page.iter().cloned());
    }
}
