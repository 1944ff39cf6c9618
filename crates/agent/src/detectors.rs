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

/// How far the first full pass is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pass {
    /// The source is being read for the first time.
    Running,
    /// It was read to its end; what a reboot ended is to be closed.
    Read,
    /// All that belongs to it has a number; this is the last.
    Numbered(u64),
    /// The controller has it.
    Settled,
}

/// The detectors of this agent: the kernel log, and the agent's own health.
#[derive(Debug)]
pub struct Detectors {
    kernel_log: Health,
    pass: Pass,
}

/// (agent, class, check) of a detector.
pub type Triple = (&'static str, &'static str, &'static str);

/// What the kernel-log detectors speak for: nobody else may on this node.
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
            pass: Pass::Running,
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

    /// The source was read to its end.
    pub fn pass_done(&mut self) {
        if self.pass == Pass::Running {
            self.pass = Pass::Read;
        }
    }

    /// Whether what a reboot ended is still to be closed.
    pub fn is_pass_open(&self) -> bool {
        self.pass == Pass::Read
    }

    /// All that belongs to the first pass has a number; this is the last.
    pub fn end_pass(&mut self, number: u64) {
        self.pass = Pass::Numbered(number);
    }

    /// Looks whether everything up to the end of the pass is delivered. Answers whether that is
    /// new.
    pub fn settle(&mut self, is_delivered: impl Fn(u64) -> bool) -> bool {
        let Pass::Numbered(number) = self.pass else {
            return false;
        };
        let settled = is_delivered(number);
        if settled {
            self.pass = Pass::Settled;
        }
        settled
    }

    /// Each detector. With more faults than are kept the set denies nothing.
    pub fn list(&self, overflowing: bool) -> Vec<(&'static str, Health)> {
        let kernel_log = match self.kernel_log {
            Health::Starting if self.pass == Pass::Settled => Health::Settled,
            Health::Starting | Health::Settled | Health::Blind(_) | Health::Off(_) => {
                self.kernel_log.clone()
            }
        };
        let mut list = vec![(own::KERNEL_LOG, kernel_log), (own::SELF, Health::Settled)];
        if overflowing {
            for (_, health) in &mut list {
                *health = Health::Blind("more open faults than are kept".into());
            }
        }
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel_log(detectors: &Detectors) -> &'static str {
        detectors.list(false)[0].1.as_str()
    }

    #[test]
    fn settled_is_said_once_everything_of_the_first_pass_is_delivered() {
        let mut detectors = Detectors::new(true);
        assert!(!detectors.settle(|_| true), "not before the pass is done");
        detectors.pass_done();
        assert!(detectors.is_pass_open());
        detectors.end_pass(7);
        assert!(!detectors.settle(|number| number < 7));
        assert_eq!(kernel_log(&detectors), "starting");
        assert!(detectors.settle(|number| number == 7));
        assert!(!detectors.settle(|_| true), "told once");
        assert_eq!(kernel_log(&detectors), "settled");
        detectors.pass_done();
        assert!(!detectors.is_pass_open(), "later ends are no first passes");
    }

    #[test]
    fn a_blind_detector_comes_back_to_what_it_was_and_too_many_faults_blind_all() {
        let mut detectors = Detectors::new(true);
        detectors.pass_done();
        detectors.end_pass(1);
        detectors.settle(|_| true);
        assert!(detectors.set(own::KERNEL_LOG, Health::Blind("gone".into())));
        assert_eq!(kernel_log(&detectors), "blind");
        assert!(detectors.set(own::KERNEL_LOG, Health::Starting));
        assert_eq!(kernel_log(&detectors), "settled");
        let blind = |(_, health): &(_, Health)| health.as_str() == "blind";
        assert!(detectors.list(true).iter().all(blind));
    }
}
