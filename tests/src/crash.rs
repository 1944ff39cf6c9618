//! Crash runs: a client that keeps its own list of acknowledged sends, a program that dies, a
//! restart, and a checker that compares.
//!
//! # What a run proves
//! - Everything acknowledged is in the store: by content, or, for repeats of one identity, in its
//!   count; and the counts are those of the sends, no less and no more.
//! - Events come in the order in which they were sent.
//! - The node was taken out once and given back once, whatever died in between.
//!
//! The client sends the same bytes again until it has an answer, as the reference's monitors do.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};
use testbed::{Testbed, wait_for};
use tokio::task::JoinHandle;

use crate::machine::{SOON, events};
use crate::monitor::{Monitor, fatal, healthy, warning};
use crate::random::Random;
use crate::{Agent, Controller, ControllerOptions, KernelLog, Machine, nodes};

/// How long one send may take in all: a restart and a back-off lie in between.
const SEND: Duration = Duration::from_secs(60);
/// Sends of each kind before, while and after the node is out.
const SENDS: usize = 12;
/// The check that takes the node out.
const FATAL: &str = "GpuMemWatch";
/// The check whose events all have an identity of their own.
const DISTINCT: &str = "GpuDistinctWatch";
/// The check whose events repeat one identity.
const REPEATED: &str = "GpuRepeatWatch";

/// Which program dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// `warden-agent`.
    Agent,
    /// `warden-controller`.
    Controller,
}

/// When it dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Where it passes this point after its start: the first time, or with `:N` the N-th.
    At(&'static str),
    /// So long after the first send, by SIGKILL.
    After(Duration),
}

/// One crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crash {
    /// Who.
    pub victim: Victim,
    /// When.
    pub when: When,
}

impl fmt::Display for Crash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = match self.victim {
            Victim::Agent => "agent",
            Victim::Controller => "controller",
        };
        match self.when {
            When::At(point) => write!(f, "{who} at {point}"),
            When::After(time) => write!(f, "{who} after {} ms", time.as_millis()),
        }
    }
}

impl Crash {
    /// A crash drawn from a seed: the same seed gives the same crash.
    pub fn random(seed: u64) -> Self {
        let bits = Random::new(seed).draw();
        let victim = if bits & 1 == 0 {
            Victim::Agent
        } else {
            Victim::Controller
        };
        // Without a crash the client is done in about 550 ms; a kill later than that meets only
        // what the programs still have to do.
        let when = When::After(Duration::from_millis((bits >> 1) % 600));
        Self { victim, when }
    }
}

/// What one run saw, for a summary.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    /// Sends that were acknowledged.
    pub acknowledged: usize,
    /// Tries beyond the first.
    pub retries: u32,
    /// Whether the client was still sending when the program died.
    pub amid: bool,
    /// First send to release.
    pub took: Duration,
}

/// A controller that runs of either kind share, one after the other; its store lives through all.
#[derive(Debug)]
pub struct Lane<'a> {
    testbed: &'a Testbed,
    /// The controller.
    pub controller: Controller,
    folder: PathBuf,
    next: usize,
}

impl<'a> Lane<'a> {
    /// Starts the controller with a new store.
    ///
    /// # Errors
    /// It does not start.
    pub async fn start(testbed: &'a Testbed, name: &str) -> anyhow::Result<Self> {
        // The Lease of a killed controller has to run out, which adds seconds to each run; the
        // store's lock guards here. Bounds and delays are not what these runs are about. Agents
        // report often, so that each run has a report that is compared.
        let extra = "[lease]\nenabled = false\n[reports]\ninterval = \"2s\"\n\
                     agent_silent = false\n[quarantine]\nfirst_action_delay = \"0s\"\n\
                     [quarantine.circuitBreaker]\nenabled = false\n";
        let options = ControllerOptions {
            extra: extra.to_owned(),
            ..ControllerOptions::default()
        };
        let folder = testbed.folder().join(name);
        let controller = Controller::start(testbed, &folder, &options).await?;
        Ok(Self {
            testbed,
            controller,
            folder,
            next: 0,
        })
    }

    /// A node with a settled agent.
    async fn machine(&mut self, log: KernelLog) -> anyhow::Result<Machine> {
        let lane = self
            .folder
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        let name = format!("{lane}-{}", self.next);
        self.next += 1;
        Machine::join(self.testbed, &self.controller, &name, log).await
    }

    /// One run on a node of its own.
    ///
    /// # Errors
    /// What was lost, repeated or left undone; the text has the crash.
    pub async fn run(&mut self, crash: Crash) -> anyhow::Result<Outcome> {
        let mut machine = self.machine(KernelLog::Off).await?;
        if let When::At(point) = crash.when {
            self.arm(crash.victim, &mut machine, point)?;
        }
        let started = Instant::now();
        let writer = self.write(&machine);
        let run = async {
            self.die(crash, &mut machine).await?;
            let amid = !writer.is_finished();
            self.start_again(crash.victim, &mut machine).await?;
            let sent = writer.await.context("the client panicked")??;
            self.check(&machine, &sent).await?;
            anyhow::Ok(Outcome {
                acknowledged: sent.list.len(),
                retries: sent.retries,
                amid,
                took: started.elapsed(),
            })
        };
        let outcome = run.await.with_context(|| format!("crash of the {crash}"));
        machine.agent.kill();
        if outcome.is_err() {
            // Whatever it was: the next run begins with a controller that runs and is not armed.
            self.controller.restart().await?;
        }
        outcome.with_context(|| format!("logs of {}", machine.name))
    }

    /// Starts the victim anew, to die where it passes the point.
    fn arm(&mut self, victim: Victim, machine: &mut Machine, point: &str) -> anyhow::Result<()> {
        let flags = vec!["--crash-at".to_owned(), point.to_owned()];
        match victim {
            Victim::Agent => {
                machine.agent.stop()?;
                machine.agent.set_flags(flags);
                machine.agent.spawn()
            }
            Victim::Controller => {
                self.controller.stop()?;
                self.controller.set_flags(flags);
                self.controller.spawn_again()
            }
        }
    }

    async fn die(&mut self, crash: Crash, machine: &mut Machine) -> anyhow::Result<()> {
        match crash.when {
            When::At(_) => {
                let end = tokio::time::Instant::now() + SOON;
                while self.is_running(crash.victim, &mut machine.agent) {
                    ensure!(
                        tokio::time::Instant::now() < end,
                        "it never came to this point"
                    );
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
            When::After(time) => {
                tokio::time::sleep(time).await;
                match crash.victim {
                    Victim::Agent => machine.agent.kill(),
                    Victim::Controller => self.controller.kill(),
                }
            }
        }
        Ok(())
    }

    fn is_running(&mut self, victim: Victim, agent: &mut Agent) -> bool {
        match victim {
            Victim::Agent => agent.is_running(),
            Victim::Controller => self.controller.is_running(),
        }
    }

    async fn start_again(&mut self, victim: Victim, machine: &mut Machine) -> anyhow::Result<()> {
        match victim {
            Victim::Agent => {
                machine.agent.set_flags(Vec::new());
                machine.agent.spawn()
            }
            Victim::Controller => self.controller.restart().await,
        }
    }

    /// The client: warnings before the fault, while the node is out, and after.
    fn write(&self, machine: &Machine) -> JoinHandle<anyhow::Result<Sent>> {
        let (client, name) = (self.testbed.admin(), machine.name.clone());
        let mut sent = Sent::new(machine.monitor.clone());
        tokio::spawn(async move {
            sent.some().await?;
            let fault = fatal(FATAL, "48", "0");
            sent.send(fault.clone()).await?;
            sent.some().await?;
            nodes::wait(&client, &name, "out", SOON, nodes::is_cordoned).await?;
            sent.send(healthy(&fault)).await?;
            sent.some().await?;
            Ok(sent)
        })
    }

    /// Compares what was acknowledged with what is stored, and looks at the node.
    async fn check(&self, machine: &Machine, sent: &Sent) -> anyhow::Result<()> {
        let node = &machine.name;
        let client = self.testbed.admin();
        let released = |node: &_| !nodes::is_cordoned(node) && nodes::marks(node).is_empty();
        nodes::wait(&client, node, "released", SOON, released)
            .await
            .with_context(|| self.controller.log_tail())?;
        let repeats = sent.of(REPEATED);
        let what = format_args!("all that {node} acknowledged to be stored").to_string();
        let looked = wait_for(what, SOON, || async {
            let count = self.count_of(node, REPEATED).await?;
            let stored = self.messages(node).await?;
            let missing: Vec<&str> = sent
                .contents()
                .filter(|m| !stored.contains_key(*m))
                .collect();
            ensure!(
                missing.is_empty() && count >= repeats,
                "{} of {} acknowledged contents are missing, as {:?}; of {repeats} repeats {count} \
                 are counted",
                missing.len(),
                sent.contents().count(),
                missing.first()
            );
            Ok(Some((count, stored)))
        })
        .await;
        let (count, stored) = looked.with_context(|| machine.agent.log_tail())?;
        ensure!(
            count == repeats,
            "{repeats} repeats were acknowledged, and {count} are counted"
        );
        let (distinct, count) = (sent.of(DISTINCT), self.count_of(node, DISTINCT).await?);
        ensure!(
            count == distinct,
            "{distinct} distinct events were acknowledged, and {count} are counted"
        );
        for (message, seqs) in &stored {
            ensure!(
                seqs.len() == 1,
                "{message:?} is stored {} times",
                seqs.len()
            );
        }
        let order: Vec<u64> = sent.contents().map(|message| stored[message][0]).collect();
        ensure!(
            order.is_sorted(),
            "stored in another order than sent: {order:?}"
        );
        self.once(node).await
    }

    /// The stored events of our checks: message and positions.
    async fn messages(&self, node: &str) -> anyhow::Result<BTreeMap<String, Vec<u64>>> {
        let mut messages: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for event in events(&self.controller, node).await? {
            if event["agent"] == crate::monitor::GPU_MONITOR {
                let message = event["message"].as_str().unwrap_or_default().to_owned();
                messages.entry(message).or_default().push(seq(&event));
            }
        }
        Ok(messages)
    }

    async fn count_of(&self, node: &str, check: &str) -> anyhow::Result<u64> {
        let shown = self
            .controller
            .json(&format!("/api/v1/nodes/{node}"))
            .await?;
        let faults = shown["faults"].as_array().context("faults are a list")?;
        let counts = faults.iter().filter(|fault| fault["check"] == check);
        Ok(counts.filter_map(|fault| fault["count"].as_u64()).sum())
    }

    /// Taken out once, given back once, and over.
    async fn once(&self, node: &str) -> anyhow::Result<()> {
        let path = format!("/api/v1/incidents?node={node}");
        let closed = wait_for("the incident to close", SOON, || async {
            let incidents = self.controller.json(&path).await?;
            let all = incidents.as_array().context("incidents are a list")?;
            Ok(all
                .iter()
                .all(|i| i["state"] == "Closed")
                .then(|| all.clone()))
        })
        .await?;
        ensure!(
            closed.len() == 1,
            "{} incidents instead of one: {closed:#?}",
            closed.len()
        );
        ensure!(closed[0]["detail"] == "Recovered", "{:#}", closed[0]);
        let steps = self
            .controller
            .json(&format!("/api/v1/nodes/{node}/timeline"))
            .await?;
        let mut states: Vec<&str> = steps
            .as_array()
            .context("a timeline is a list")?
            .iter()
            .filter_map(|step| step["to"].as_str())
            .collect();
        states.dedup();
        let wanted = ["Applying", "Quarantined", "Releasing", "Closed"];
        ensure!(states == wanted, "the incident went {states:?}");
        Ok(())
    }

    /// The controller loses its store with a fault that left no mark on the node, and dies at the
    /// point when the agent's list brings it back. After that it is known, once.
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
        let died = wait_for("the agent to die", SOON, || {
            let running = machine.agent.is_running();
            async move { Ok((!running).then_some(())) }
        });
        died.await
            .with_context(|| format!("it never came to {point}"))?;
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
    async fn lost(&self, node: &str) -> anyhow::Result<u64> {
        let events = events(&self.controller, node).await?;
        let gaps = events.iter().filter(|event| event["check"] == "EventsLost");
        gaps.map(|gap| {
            let message = gap["message"].as_str().unwrap_or_default();
            let count = message.split(' ').next().unwrap_or_default();
            count
                .parse::<u64>()
                .with_context(|| format!("no count in {message:?}"))
        })
        .sum()
    }
}

fn seq(event: &Value) -> u64 {
    event["seq"].as_u64().unwrap_or_default()
}

/// The client's own list.
struct Sent {
    monitor: Monitor,
    /// Check and message of each acknowledged send, in order.
    list: Vec<(String, String)>,
    /// Sends that took more than one try.
    again: u64,
    /// Tries beyond the first.
    retries: u32,
    round: usize,
}

impl Sent {
    fn new(monitor: Monitor) -> Self {
        Self {
            monitor,
            list: Vec::new(),
            again: 0,
            retries: 0,
            round: 0,
        }
    }

    /// Distinct events and repeats, in turn.
    async fn some(&mut self) -> anyhow::Result<()> {
        for number in 0..SENDS {
            let code = format!("{}", self.round * SENDS + number);
            self.send(warning(DISTINCT, &code, "0")).await?;
            let mut repeat = warning(REPEATED, "1", "0");
            repeat.message = format!("repeat {code}");
            self.send(repeat).await?;
        }
        self.round += 1;
        Ok(())
    }

    async fn send(&mut self, event: wire::datamodels::HealthEvent) -> anyhow::Result<()> {
        let entry = (event.check_name.clone(), event.message.clone());
        let more = self.monitor.send(vec![event], SEND).await? - 1;
        self.again += u64::from(more > 0);
        self.retries += more;
        self.list.push(entry);
        Ok(())
    }

    /// Acknowledged sends of one check.
    fn of(&self, check: &str) -> u64 {
        self.list.iter().filter(|(of, _)| of == check).count() as u64
    }

    /// Messages that have to be stored by content: all but the repeats.
    fn contents(&self) -> impl Iterator<Item = &str> {
        let distinct = self.list.iter().filter(|(check, _)| check != REPEATED);
        distinct.map(|(_, message)| message.as_str())
    }
}
