//! The client of a crash run, and its own list of what was acknowledged.

use std::time::Duration;

use wire::datamodels::HealthEvent;

use super::{DISTINCT, FLICKERING, REPEATED};
use crate::monitor::{Monitor, healthy, warning};

/// How long one send may take in all: a restart and a back-off lie in between.
pub(super) const SEND: Duration = Duration::from_secs(60);
/// Sends of each kind before, while and after the node is out.
const SENDS: usize = 12;

/// The client's own list.
pub(super) struct Sent {
    monitor: Monitor,
    /// Check and message of each acknowledged send, in order.
    pub(super) list: Vec<(String, String)>,
    /// Tellings of the flickering fault; each is stored.
    pub(super) flickers: u64,
    /// Sends that took more than one try.
    pub(super) again: u64,
    /// Tries beyond the first.
    pub(super) retries: u32,
    round: usize,
}

impl Sent {
    pub(super) fn new(monitor: Monitor) -> Self {
        Self {
            monitor,
            list: Vec::new(),
            flickers: 0,
            again: 0,
            retries: 0,
            round: 0,
        }
    }

    /// Distinct events and repeats, in turn, and a fault that flickers.
    pub(super) async fn some(&mut self) -> anyhow::Result<()> {
        for number in 0..SENDS {
            let code = format!("{}", self.round * SENDS + number);
            self.send(warning(DISTINCT, &code, "0")).await?;
            let mut repeat = warning(REPEATED, "1", "0");
            repeat.message = format!("repeat {code}");
            self.send(repeat).await?;
        }
        self.round += 1;
        self.flicker().await
    }

    /// A fault that comes and goes, each time with the same words.
    async fn flicker(&mut self) -> anyhow::Result<()> {
        let fault = warning(FLICKERING, "7", "0");
        self.deliver(fault.clone()).await?;
        self.flickers += 1;
        self.deliver(healthy(&fault)).await
    }

    pub(super) async fn send(&mut self, event: HealthEvent) -> anyhow::Result<()> {
        let entry = (event.check_name.clone(), event.message.clone());
        self.deliver(event).await?;
        self.list.push(entry);
        Ok(())
    }

    async fn deliver(&mut self, event: HealthEvent) -> anyhow::Result<()> {
        let more = self.monitor.send(vec![event], SEND).await? - 1;
        self.again += u64::from(more > 0);
        self.retries += more;
        Ok(())
    }

    /// Acknowledged sends of one check.
    pub(super) fn of(&self, check: &str) -> u64 {
        self.list.iter().filter(|(of, _)| of == check).count() as u64
    }

    /// Messages that have to be stored by content: all but the repeats.
    pub(super) fn contents(&self) -> impl Iterator<Item = &str> {
        let distinct = self.list.iter().filter(|(check, _)| check != REPEATED);
        distinct.map(|(_, message)| message.as_str())
    }
}
