//! Chaos: 20 nodes whose monitors report faults and recoveries while programs are killed, people
//! and other controllers write to the nodes, nodes come and go, and the control plane fails. After
//! each round of a minute everything must come to rest as promised; at the end all faults heal and
//! nothing of Warden may be left.
//!
//! # What it proves
//! - What the monitors assert is what is open; what was acknowledged is stored once, in order.
//! - A node is out exactly while a fault wants it out, or the breaker withholds it.
//! - No mark without an incident; cordons and taints of others are as their owners left them.
//! - Each incident is released once, in the record and by the API server's audit log.
//!
//! The seed decides which acts come on which nodes; at which moment they meet the programs, the
//! machine decides.

mod acts;
mod judge;
mod node_acts;
mod spot;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use e2e::machine::SOON;
use e2e::random::Random;
use e2e::{Controller, ControllerOptions};
use testbed::{Options, Testbed, wait_for};
use tokio::sync::watch;

use crate::say;
use acts::Act;
use spot::Spot;

const NODES: usize = 20;
/// Time between two looks at whether everything is as promised.
const ROUND: Duration = Duration::from_mins(1);
/// After how long without a heartbeat a node is Unknown.
const NODE_GRACE: Duration = Duration::from_secs(15);
/// Longest pause between two acts.
const BETWEEN: Duration = Duration::from_millis(400);
/// Acts that are shown when something is wrong.
const HISTORY: usize = 60;
/// By this name the audit log tells the controller's writes.
const CONTROLLER_USER: &str = "soak-controller";
/// The taint of the rule set below.
const OUR_TAINT: &str = "soak.test/bad";

/// Short spans, so that leases, holds and silences come and go within a round; bounds that are
/// reached now and then.
const SETTINGS: &str = r#"
[lease]
duration = "6s"
[reports]
interval = "2s"
[quarantine]
first_action_delay = "0s"
manual_uncordon_hold = "20s"
settle_timeout = "60s"
[quarantine.circuitBreaker]
percentage = 80
level_percentage = 60
[[quarantine.rule-sets]]
name = "soak-taint"
[[quarantine.rule-sets.match.any]]
kind = "HealthEvent"
expression = "event.checkName == 'GpuTaintWatch' && event.isFatal == true"
[quarantine.rule-sets.taint]
key = "soak.test/bad"
value = "yes"
effect = "NoSchedule"
"#;

/// What is needed to do something to it.
pub(crate) struct Chaos {
    testbed: Testbed,
    controller: Controller,
    spots: Vec<Arc<Spot>>,
    random: Random,
    started: Instant,
    history: VecDeque<String>,
    counts: BTreeMap<String, usize>,
    /// Times that the controller ended by itself, as it must when it can't renew its Lease.
    ended: usize,
}

/// Chaos for `time`, then rest; answers a summary.
///
/// # Errors
/// What was not as promised, with the last acts. The folder with all logs is kept then.
pub(crate) async fn run(seed: u64, time: Duration) -> anyhow::Result<String> {
    say(&format!("chaos for {} s, seed {seed}", time.as_secs()));
    let mut chaos = Chaos::start(seed).await?;
    let outcome = chaos.rounds(seed, time).await;
    match outcome {
        Ok(incidents) => chaos.summary(seed, incidents),
        Err(error) => {
            chaos.testbed.keep()?;
            let folder = chaos.testbed.folder().display().to_string();
            Err(error.context(format!("chaos with seed {seed}; all logs are in {folder}")))
        }
    }
}

impl Chaos {
    async fn start(seed: u64) -> anyhow::Result<Self> {
        let testbed = Testbed::start(Options {
            audit_log: true,
            // Of a restarted kwok the levers work once the leases of the old one ran out.
            node_grace: Some(NODE_GRACE),
            ..Options::default()
        })
        .await?;
        let kubeconfig = testbed.kubeconfig_for_user(CONTROLLER_USER, &["system:masters"])?;
        let options = ControllerOptions {
            extra: SETTINGS.to_owned(),
            kubeconfig: Some(kubeconfig),
            ..ControllerOptions::default()
        };
        let folder = testbed.folder().join("controller");
        let controller = Controller::start(&testbed, &folder, &options).await?;
        let mut spots = Vec::new();
        for number in 0..NODES {
            spots.push(Arc::new(
                Spot::join(&testbed, &controller, number, seed).await?,
            ));
        }
        Ok(Self {
            testbed,
            controller,
            spots,
            random: Random::new(seed),
            started: Instant::now(),
            history: VecDeque::new(),
            counts: BTreeMap::new(),
            ended: 0,
        })
    }

    /// Rounds until the time is over; then everything heals. Answers the number of incidents.
    async fn rounds(&mut self, seed: u64, time: Duration) -> anyhow::Result<usize> {
        let end = Instant::now() + time;
        let mut round = 0;
        while Instant::now() < end {
            let until = (Instant::now() + ROUND).min(end);
            self.round(round, until).await?;
            say(&format!(
                "  round {round} of seed {seed}: {} acts so far, all as promised",
                self.counts.values().sum::<usize>()
            ));
            round += 1;
        }
        self.note("everything heals");
        for spot in &self.spots {
            spot.heal_all().await?;
        }
        for spot in &self.spots {
            spot.machine.lock().await.restart(&self.testbed).await?;
        }
        self.released().await?;
        self.rest().await?;
        self.one_release_each().await
    }

    /// Acts while the monitors speak; then quiet, and a look.
    async fn round(&mut self, number: usize, until: Instant) -> anyhow::Result<()> {
        let (stop, stopped) = watch::channel(false);
        let monitors: Vec<_> = self
            .spots
            .iter()
            .map(|spot| spot.speak(number, stopped.clone()))
            .collect();
        while Instant::now() < until {
            let act = Act::draw(&mut self.random);
            self.note(&format!("{act} begins"));
            let what = self.act(act).await.with_context(|| {
                format!("{act} could not be done; last acts:\n{}", self.history())
            })?;
            self.note(&format!("{act} {what}"));
            self.count(&act.to_string());
            self.keep_running().await?;
            tokio::time::sleep(self.random.pause(BETWEEN)).await;
        }
        stop.send_replace(true);
        for monitor in monitors {
            monitor.await.context("a monitor panicked")??;
        }
        self.calm().await?;
        self.rest().await
    }

    /// What Kubernetes does with a container that ended.
    async fn keep_running(&mut self) -> anyhow::Result<()> {
        if !self.controller.is_running() {
            self.ended += 1;
            self.note("the controller had ended by itself and is started again");
            self.controller.restart().await?;
        }
        for spot in &self.spots {
            let mut machine = spot.machine.lock().await;
            ensure!(
                machine.agent.is_running(),
                "the agent of {} ended by itself; {}",
                spot.name,
                machine.agent.log_tail()
            );
        }
        Ok(())
    }

    /// Takes back what only delays: pauses and failed nodes. Nodes that a breaker withholds are
    /// taken out.
    async fn calm(&mut self) -> anyhow::Result<()> {
        self.note("calm");
        for spot in self.spots.clone() {
            if spot.truth().paused {
                self.pause(&spot).await?;
            }
            if spot.truth().not_ready {
                self.not_ready(&spot).await?;
            }
            if spot.truth().rebooted {
                spot.say_again().await?;
            }
        }
        self.keep_running().await?;
        self.reset_breaker().await;
        Ok(())
    }

    /// Waits until nothing is open: a breaker may have to be reset for what it withheld.
    async fn released(&self) -> anyhow::Result<()> {
        wait_for("all incidents to close", 2 * SOON, || async {
            let open = self.controller.json("/api/v1/incidents?open=true").await?;
            let open = open.as_array().context("incidents are a list")?.clone();
            ensure!(open.is_empty(), "{open:#?}");
            Ok(Some(()))
        })
        .await
    }

    fn draw(&mut self) -> Arc<Spot> {
        let number = self.random.below(self.spots.len());
        Arc::clone(&self.spots[number])
    }

    fn count(&mut self, act: &str) {
        *self.counts.entry(act.to_owned()).or_default() += 1;
    }

    fn note(&mut self, what: &str) {
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        let line = format!(
            "{} {:>7.2} s  {what}",
            jiff::Timestamp::now(),
            self.started.elapsed().as_secs_f64()
        );
        self.history.push_back(line);
    }

    fn history(&self) -> String {
        self.history.iter().cloned().collect::<Vec<_>>().join("\n")
    }

    fn summary(&self, seed: u64, incidents: usize) -> anyhow::Result<String> {
        let mut text = String::from("## Chaos\n\n");
        let events: usize = self.spots.iter().map(|spot| spot.truth().sent.len()).sum();
        writeln!(
            text,
            "Seed {seed}, {NODES} nodes, {:.0} s with rests: {incidents} incidents, each released \
             once; {events} acknowledged events, each stored once and in order; the controller \
             ended {} times by itself without its Lease. Nothing of Warden was left on a node, and \
             nothing of others was changed.\n",
            self.started.elapsed().as_secs_f64(),
            self.ended
        )?;
        writeln!(text, "| act | times |\n|---|---|")?;
        for (act, times) in &self.counts {
            writeln!(text, "| {act} | {times} |")?;
        }
        Ok(text)
    }
}
