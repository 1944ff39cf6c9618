//! Points that a usual run does not pass: with a lost store, and with a full spool.

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};
use testbed::wait_for;

use super::sent::Sent;
use super::{Lane, REPEATED};
use crate::machine::{SOON, events};
use crate::monitor::warning;
use crate::{KernelLog, Machine, nodes};

impl Lane<'_> {
    /// The controller loses its store with a fault that left no mark on the node, and dies at the
    /// point: while it makes the next one, or when the agent's list brings the fault back. After
    /// that it is known, once.
    ///
    /// # Errors
    /// As [`Lane::run`].
    pub async fn run_store_lost(&mut self, point: &str) -> anyhow::Result<()> {
        const LINE: &str = "NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.";
        let mut machine = self.machine(KernelLog::Pipe).await?;
        // Opted out, it keeps its fault and is not taken out: nothing on it remembers.
        nodes::set_label(
            &self.testbed.admin(),
            &machine.name,
            k8s_api::names::MANAGED_BY.text,
            "false",
        )
        .await?;
        let opted_out = |node: &Value| node["object"]["blocked_by"] == json!(["opted_out"]);
        machine
            .until(&self.controller, "opted out", opted_out)
            .await?;
        machine.agent.kernel_line(LINE)?;
        let one = |node: &Value| node["faults"].as_array().is_some_and(|all| all.len() == 1);
        let before = machine
            .until(&self.controller, "with its fault", one)
            .await?;
        self.controller.stop()?;
        std::fs::remove_dir_all(self.controller.store()).context("losing the store")?;
        self.controller
            .set_flags(vec!["--crash-at".to_owned(), point.to_owned()]);
        self.controller.spawn_again()?;
        if !self.controller.ended_within(SOON) {
            bail!("it never came to {point}; {}", self.controller.log_tail());
        }
        self.controller.restart().await?;
        machine.settled(&self.controller).await?;
        let after = machine
            .until(&self.controller, "with its fault", one)
            .await?;
        let (before, after) = (&before["faults"][0], &after["faults"][0]);
        ensure!(
            before["id"] == after["id"],
            "another fault: {before:#} {after:#}"
        );
        ensure!(
            after["count"] == 1,
            "it is counted more than once: {after:#}"
        );
        machine.reboot(self.testbed, &self.controller).await?;
        let none = |node: &Value| node["faults"].as_array().is_some_and(Vec::is_empty);
        machine.until(&self.controller, "well", none).await?;
        Ok(())
    }

    /// The agent's spool overflows with repeats while the controller is away, and the agent dies
    /// at the point while it makes room. What is counted and what is told as lost is what was sent.
    ///
    /// # Errors
    /// As [`Lane::run`].
    pub async fn run_spool_full(&mut self, point: &str) -> anyhow::Result<()> {
        const REPEATS: usize = 120;
        let mut machine = self.machine(KernelLog::Off).await?;
        self.controller.stop()?;
        machine.agent.stop()?;
        let small = ["--spool-max-bytes", "1048576"].map(str::to_owned);
        let mut flags = small.to_vec();
        flags.extend(["--crash-at".to_owned(), point.to_owned()]);
        machine.agent.set_flags(flags);
        machine.agent.spawn()?;
        let mut sent = Sent::new(machine.monitor.clone());
        let writer = tokio::spawn(async move {
            for number in 0..REPEATS {
                // Below 16 KiB a message is kept whole: 120 of them are more than the spool holds.
                let mut event = warning(REPEATED, "1", "0");
                event.message = format!("repeat {number} {}", "x".repeat(15_000));
                sent.send(event).await?;
            }
            anyhow::Ok(sent)
        });
        died(&mut machine, point).await?;
        machine.agent.set_flags(small.to_vec());
        machine.agent.spawn()?;
        let sent = writer.await.context("the client panicked")??;
        self.controller.restart().await?;
        let node = machine.name.clone();
        machine.settled(&self.controller).await?;
        let what = "counted and lost to be what was sent";
        wait_for(what, SOON, || async {
            let counted = self.count_of(&node, REPEATED).await?;
            let lost = self.lost(&node).await?;
            // A send whose answer died with the agent is in the spool twice, and one of the two may
            // be among what is told as lost. Never is less told than was lost.
            let (all, twice) = (sent.of(REPEATED), sent.again);
            ensure!(
                (all..=all + twice).contains(&(counted + lost)),
                "{all} were acknowledged, {twice} of them after another try; {counted} are counted \
                 and {lost} told as lost"
            );
            Ok(Some(()))
        })
        .await
        .with_context(|| machine.agent.log_tail())
    }

    /// What the node's gap records add up to.
    pub(super) async fn lost(&self, node: &str) -> anyhow::Result<u64> {
        let gaps = self.gaps(node).await?;
        let counts = gaps.iter().map(|gap| {
            let message = gap["message"].as_str().unwrap_or_default();
            let count = message.split(' ').next().unwrap_or_default();
            count
                .parse::<u64>()
                .with_context(|| format!("no count in {message:?}"))
        });
        counts.sum()
    }

    /// The node's gap records.
    pub(super) async fn gaps(&self, node: &str) -> anyhow::Result<Vec<Value>> {
        let mut events = events(&self.controller, node).await?;
        events.retain(|event| event["check"] == "EventsLost");
        Ok(events)
    }
}

/// Waits until the agent died at the point.
pub(super) async fn died(machine: &mut Machine, point: &str) -> anyhow::Result<()> {
    let died = wait_for("the agent to die", SOON, || {
        let running = machine.agent.is_running();
        async move { Ok((!running).then_some(())) }
    });
    died.await
        .with_context(|| format!("it never came to {point}"))
}
