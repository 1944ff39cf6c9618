//! One node under chaos: its machine, the monitor on it that keeps its own list, and what the
//! owners of foreign marks know of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use e2e::monitor::{Monitor, fatal, healthy, warning};
use e2e::random::Random;
use e2e::{Controller, KernelLog, Machine};
use testbed::{NodeSpec, Testbed};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use wire::datamodels::{HealthEvent, ProcessingStrategy};

/// Check, code and GPU of the faults that take the node out; the last by a taint.
const FAULTS: [(&str, &str, &str); 3] = [
    ("GpuMemWatch", "48", "0"),
    ("GpuNvlinkWatch", "74", "1"),
    ("GpuTaintWatch", "63", "2"),
];
/// The check whose events all have an identity of their own and no effect on the node: they show
/// that what was acknowledged is stored.
pub(crate) const DISTINCT: &str = "GpuDistinctWatch";
/// How long one send may take in all: outages of agent and controller lie in between.
const SEND: Duration = Duration::from_mins(3);
/// Longest pause between two sends of one monitor.
const BETWEEN: Duration = Duration::from_millis(1_200);

/// What is so, whatever Warden believes.
#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts about a node, not states of one thing"
)]
pub(crate) struct Truth {
    /// The faults that the monitor asserts, by check: the event that said so.
    pub(crate) open: BTreeMap<&'static str, HealthEvent>,
    /// Messages of the acknowledged events of [`DISTINCT`], in order.
    pub(crate) sent: Vec<String>,
    /// Somebody else cordoned the node and has not taken that back.
    pub(crate) cordoned: bool,
    /// Taints of others.
    pub(crate) taints: BTreeSet<String>,
    /// A person paused it.
    pub(crate) paused: bool,
    /// Its Ready was made False.
    pub(crate) not_ready: bool,
    /// It was rebooted, and its monitor has not spoken anew since.
    pub(crate) rebooted: bool,
}

/// A node and everything about it.
pub(crate) struct Spot {
    /// Its name.
    pub(crate) name: String,
    /// Agent and boot.
    pub(crate) machine: tokio::sync::Mutex<Machine>,
    monitor: Monitor,
    truth: Mutex<Truth>,
    seed: u64,
}

impl Spot {
    /// A node with a settled agent; every second one reads a kernel log.
    pub(crate) async fn join(
        testbed: &Testbed,
        controller: &Controller,
        number: usize,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let name = format!("c-{number:02}");
        let log = if number.is_multiple_of(2) {
            KernelLog::Pipe
        } else {
            KernelLog::Off
        };
        let machine = Machine::join(testbed, controller, &name, log).await?;
        Ok(Self {
            monitor: machine.monitor.clone(),
            name,
            machine: tokio::sync::Mutex::new(machine),
            truth: Mutex::default(),
            seed: seed ^ (number as u64) << 32,
        })
    }

    /// What is so.
    pub(crate) fn truth(&self) -> MutexGuard<'_, Truth> {
        self.truth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node object as its machine would register it now.
    pub(crate) async fn spec(&self) -> NodeSpec {
        NodeSpec {
            boot_id: self.machine.lock().await.boot_id(),
            ..NodeSpec::new(&self.name)
        }
    }

    /// Has the monitor speak until it is told to stop; then everything it began is acknowledged.
    pub(crate) fn speak(
        self: &Arc<Self>,
        round: usize,
        mut stop: watch::Receiver<bool>,
    ) -> JoinHandle<anyhow::Result<()>> {
        let spot = Arc::clone(self);
        tokio::spawn(async move {
            let mut random = Random::new(spot.seed.wrapping_add(round as u64));
            loop {
                let pause = random.pause(BETWEEN);
                tokio::select! {
                    _ = stop.wait_for(|stopped| *stopped) => return Ok(()),
                    () = tokio::time::sleep(pause) => {}
                }
                let spoken = if random.chance(65) {
                    spot.distinct().await
                } else {
                    spot.turn(FAULTS[random.below(FAULTS.len())]).await
                };
                spoken.with_context(|| format!("the monitor of {}", spot.name))?;
            }
        })
    }

    /// An event that nobody sent before, and its end.
    async fn distinct(&self) -> anyhow::Result<()> {
        let number = self.truth().sent.len();
        let code = number.to_string();
        let mut event = warning(DISTINCT, &code, "0");
        event.processing_strategy = ProcessingStrategy::StoreOnly.into();
        event.message = format!("distinct {code}");
        self.acknowledged(event.clone()).await?;
        let mut end = healthy(&event);
        end.message = format!("distinct {code} ended");
        self.acknowledged(end).await
    }

    async fn acknowledged(&self, event: HealthEvent) -> anyhow::Result<()> {
        let message = event.message.clone();
        self.monitor.send(vec![event], SEND).await?;
        self.truth().sent.push(message);
        Ok(())
    }

    /// A fault that takes the node out comes or goes.
    async fn turn(&self, (check, code, gpu): (&'static str, &str, &str)) -> anyhow::Result<()> {
        if self.truth().open.contains_key(check) {
            return self.heal(check).await;
        }
        let event = fatal(check, code, gpu);
        self.monitor.send(vec![event.clone()], SEND).await?;
        self.truth().open.insert(check, event);
        Ok(())
    }

    async fn heal(&self, check: &'static str) -> anyhow::Result<()> {
        let Some(event) = self.truth().open.get(check).cloned() else {
            return Ok(());
        };
        self.monitor.send(vec![healthy(&event)], SEND).await?;
        self.truth().open.remove(check);
        Ok(())
    }

    /// After a reboot a monitor starts anew and says again what holds. What it said before and what
    /// reached the controller only after the reboot has no effect (faults-incidents 3, rule 6).
    pub(crate) async fn say_again(&self) -> anyhow::Result<()> {
        let open: Vec<HealthEvent> = self.truth().open.values().cloned().collect();
        for mut event in open {
            event.generated_timestamp = Some(wire::timestamp_to_wire(jiff::Timestamp::now()));
            self.monitor.send(vec![event], SEND).await?;
        }
        self.truth().rebooted = false;
        Ok(())
    }

    /// Everything that the monitor asserts ends.
    pub(crate) async fn heal_all(&self) -> anyhow::Result<()> {
        for (check, ..) in FAULTS {
            self.heal(check).await?;
        }
        Ok(())
    }
}
