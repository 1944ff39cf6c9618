//! How each detector of this agent is, as the report tells it.
//!
//! # Invariants
//! - `settled` is said only after the controller has acknowledged everything up to the end of the
//!   first full pass, the recoveries after a reboot included.
//! - A blind detector comes back to what it was.

use health_event::checks;

use crate::own;

/// How a detector is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Its first full pass of this boot is not done.
    Starting,
    /// It has seen everything.
    Settled,
    /// It can't see, and why.
    Blind(String),
    /// Not running, and why.
    Off(String),
}

impl Health {
    /// The word for people and metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Settled => "settled",
            Self::Blind(_) => "blind",
            Self::Off(_) => "off",
        }
    }
}

/// The detectors of this agent: the kernel log, and the agent's own health.
#[derive(Debug)]
pub struct Detectors {
    kernel_log: Health,
    settle_at: Option<u64>,
    settled: bool,
}

/// (agent, class, check) of a detector.
pub type Triple = (&'static str, &'static str, &'static str);

/// What the kernel-log detectors and the agent itself speak for: nobody else may on this node.
pub const KERNEL_LOG_TRIPLES: [Triple; 1] = [(checks::SYSLOG_AGENT, "GPU", checks::XID)];

impl Detectors {
    /// At start.
    pub fn new(kernel_log: bool) -> Self {
        let kernel_log = if kernel_log {
            Health::Starting
        } else {
            Health::Off("kernel_log.source is off".into())
        };
        Self {
            kernel_log,
            settle_at: None,
            settled: false,
        }
    }

    /// What a detector says of itself. Answers whether the report changes.
    pub fn set(&mut self, name: &'static str, health: Health) -> bool {
        let changed = name == own::KERNEL_LOG && self.kernel_log != health;
        if changed {
            self.kernel_log = health;
        }
        changed
    }

    /// Whether the first full pass has been closed.
    pub fn has_settle_number(&self) -> bool {
        self.settle_at.is_some()
    }

    /// The first full pass ended with this number.
    pub fn settle_at(&mut self, number: u64) {
        self.settle_at = Some(number);
    }

    /// Looks whether everything up to the end of the pass is acknowledged. Answers whether that
    /// is new.
    pub fn settle(&mut self, acknowledged: u64, nothing_waits: bool) -> bool {
        let now = self
            .settle_at
            .is_some_and(|number| acknowledged >= number || nothing_waits);
        let new = now && !self.settled;
        self.settled |= now;
        new
    }

    /// Each detector. With more faults than are kept the set denies nothing.
    pub fn list(&self, _acknowledged: u64, overflowing: bool) -> Vec<(&'static str, Health)> {
        let kernel_log = match &self.kernel_log {
            Health::Starting if self.settled => Health::Settled,
            other => other.clone(),
        };
        let too_many = || Health::Blind("more open faults than are kept".into());
        let mut list = vec![(own::KERNEL_LOG, kernel_log), (own::SELF, Health::Settled)];
        if overflowing {
            for (_, health) in &mut list {
                *health = too_many();
            }
        }
        list
    }
}
