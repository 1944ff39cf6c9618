//! Crash runs: a client that keeps its own list of acknowledged sends, a program that dies, a
//! restart, and a checker that compares.
//!
//! # What a run proves
//! - Everything acknowledged is in the store: by content, or, for repeats of one identity, in its
//!   count; and the counts are those of the sends, no less and no more.
//! - Events come in the order in which they were sent.
//! - Each stored warning is counted once in Kubernetes' Events: a count neither lost nor doubled.
//! - The node was taken out once and given back once, whatever died in between.
//!
//! The client sends the same bytes again until it has an answer, as the reference's monitors do.
//!
//! There are four stories ([`Story`]): a monitor's fault that it takes back; the same after an event
//! that the controller refuses for good; a fault of the kernel log that ends with a reboot; and a
//! breaker that trips, with a person who resets it, holds a node and releases it.

mod act;
mod breaker;
mod check;
mod lost;
mod plan;
mod rare;
mod reboot;
mod sent;
mod whole;

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::DeleteParams;
use kube::{Api, Client};
use testbed::{Testbed, wait_for};
use tokio::task::JoinHandle;

use self::sent::Sent;
use crate::machine::SOON;
use crate::monitor::{fatal, healthy};
use crate::programs::{LEASE, NAMESPACE};
use crate::{Agent, Controller, ControllerOptions, KernelLog, Machine, nodes};

pub use self::plan::{Moment, Plan, Story};
pub use self::whole::Whole;

/// The check that takes the node out.
const FATAL: &str = "GpuMemWatch";
/// The check whose events all have an identity of their own.
const DISTINCT: &str = "GpuDistinctWatch";
/// The check whose events repeat one identity.
const REPEATED: &str = "GpuRepeatWatch";
/// The check whose fault comes and goes, with the same words each time.
const FLICKERING: &str = "GpuFlickerWatch";

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
    /// When the breaker's window has forgotten the last story of it.
    window_over: tokio::time::Instant,
}

impl<'a> Lane<'a> {
    /// Starts the controller with a new store and without a Lease: that of a killed controller has
    /// to run out, which adds seconds to each run; the store's lock guards here.
    ///
    /// # Errors
    /// It does not start.
    pub async fn start(testbed: &'a Testbed, name: &str) -> anyhow::Result<Self> {
        Self::start_with(testbed, name, "enabled = false").await
    }

    /// The same with a Lease.
    ///
    /// # Errors
    /// It does not start.
    pub async fn start_leased(testbed: &'a Testbed, name: &str) -> anyhow::Result<Self> {
        Self::start_with(testbed, name, "duration = \"10s\"").await
    }

    async fn start_with(testbed: &'a Testbed, name: &str, lease: &str) -> anyhow::Result<Self> {
        Self::start_as(testbed, name, "cordon", lease, "").await
    }

    async fn start_as(
        testbed: &'a Testbed,
        name: &str,
        profile: &str,
        lease: &str,
        more: &str,
    ) -> anyhow::Result<Self> {
        // Agents report often, so that each run has a report that is compared. One node after the
        // other goes out and comes back: only in the pool of the breaker's story, of two nodes, a
        // bound is reached, that of the level.
        let extra = format!(
            "[reports]\ninterval = \"2s\"\nagent_silent = false\n[quarantine]\n\
             first_action_delay = \"0s\"\n[quarantine.circuitBreaker]\npercentage = 100\n\
             duration = \"{}s\"\n{}{more}",
            breaker::WINDOW.as_secs(),
            breaker::POOLS
        );
        let options = ControllerOptions {
            profile: profile.to_owned(),
            extra: format!("[lease]\n{lease}\n{extra}"),
            ..ControllerOptions::default()
        };
        let folder = testbed.folder().join(name);
        let controller = Controller::start(testbed, &folder, &options).await?;
        Ok(Self {
            testbed,
            controller,
            folder,
            next: 0,
            window_over: tokio::time::Instant::now(),
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
            self.arm(crash.victim, &mut machine, point).await?;
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
        let outcome = run.await;
        self.over(crash, &mut machine, outcome).await
    }

    /// The end of a run with one machine; of one that went wrong its agent's last words are told.
    async fn over(
        &mut self,
        crash: Crash,
        machine: &mut Machine,
        outcome: anyhow::Result<Outcome>,
    ) -> anyhow::Result<Outcome> {
        let outcome = outcome
            .with_context(|| format!("crash of the {crash}"))
            .with_context(|| format!("{}: {}", machine.name, machine.agent.log_tail()));
        machine.agent.kill();
        if outcome.is_err() {
            // Whatever it was: the next run begins with a controller that runs and is not armed.
            self.controller.restart().await?;
        }
        outcome
    }

    /// Starts the victim anew, to die where it passes the point.
    async fn arm(
        &mut self,
        victim: Victim,
        machine: &mut Machine,
        point: &str,
    ) -> anyhow::Result<()> {
        let flags = vec!["--crash-at".to_owned(), point.to_owned()];
        match victim {
            Victim::Agent => {
                machine.agent.stop()?;
                machine.agent.set_flags(flags);
                machine.agent.spawn()
            }
            Victim::Controller => {
                self.controller.stop()?;
                if point.starts_with("write.lease.") {
                    // Only a controller that finds none makes one.
                    let leases: Api<Lease> = Api::namespaced(self.testbed.admin(), NAMESPACE);
                    let delete = DeleteParams::default();
                    leases.delete(LEASE, &delete).await?;
                }
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
            out_and_back(&client, &name, &mut sent).await?;
            Ok(sent)
        })
    }
}

/// A fault, warnings while the node is out, the fault's end, and warnings after it.
async fn out_and_back(client: &Client, name: &str, sent: &mut Sent) -> anyhow::Result<()> {
    let fault = fatal(FATAL, "48", "0");
    sent.send(fault.clone()).await?;
    sent.some().await?;
    nodes::wait(client, name, "out", SOON, nodes::is_cordoned).await?;
    // The last flicker then raises the count of an Event that is there.
    let told = || async { Ok(check::counts(client, name, FLICKERING).await?.pop()) };
    wait_for("the first flicker to be told", SOON, told).await?;
    sent.send(healthy(&fault)).await?;
    sent.some().await
}
