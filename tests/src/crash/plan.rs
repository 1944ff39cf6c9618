//! What a run is made of: a story, and a crash in it.

use std::fmt;
use std::time::Duration;

use super::{Crash, Lane, Outcome, Victim, When};
use crate::random::Random;

/// What happens in a run, but for the crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Story {
    /// A monitor reports a fault, and later that it is over.
    Sends,
    /// The same after an event that the controller refuses for good.
    Refused,
    /// A line of the kernel log opens a fault; the machine reboots, and the agent settles without
    /// it.
    Reboot,
    /// A second node trips the breaker of its pool; a person resets it, holds a node and releases
    /// it.
    Breaker,
}

impl Story {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Sends, Self::Refused, Self::Reboot, Self::Breaker];

    /// For a summary.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sends => "sends",
            Self::Refused => "refused",
            Self::Reboot => "reboot",
            Self::Breaker => "breaker",
        }
    }

    /// Until when something is under way if nothing dies, ms; a kill later than that meets only
    /// what the programs still have to do.
    fn length(self) -> u64 {
        match self {
            Self::Sends | Self::Refused => 600,
            Self::Reboot => 1_500,
            Self::Breaker => 2_500,
        }
    }
}

/// From when on a crash point counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// From the beginning of the story.
    Beginning,
    /// From the story's turn: the reboot, or the end of the first node's fault while the second is
    /// withheld.
    Turn,
}

/// One run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// What happens.
    pub story: Story,
    /// Who dies in it.
    pub crash: Crash,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.story.name(), self.crash)
    }
}

impl Plan {
    /// A run drawn from a seed: the same seed gives the same run. Seeds that follow each other
    /// take turns through the stories.
    pub fn random(seed: u64) -> Self {
        let story = match seed % 4 {
            0 => Story::Sends,
            1 => Story::Refused,
            2 => Story::Reboot,
            _ => Story::Breaker,
        };
        let bits = Random::new(seed).draw();
        let victim = if bits & 1 == 0 {
            Victim::Agent
        } else {
            Victim::Controller
        };
        let when = When::After(Duration::from_millis((bits >> 1) % story.length()));
        Self {
            story,
            crash: Crash { victim, when },
        }
    }
}

impl Lane<'_> {
    /// One run as planned, on nodes of its own.
    ///
    /// # Errors
    /// What was lost, repeated or left undone; the text has the plan.
    pub async fn follow(&mut self, plan: Plan) -> anyhow::Result<Outcome> {
        match plan.story {
            Story::Sends => self.run(plan.crash).await,
            Story::Refused => self.run_refused(plan.crash).await,
            Story::Reboot => self.run_reboot(plan.crash, Moment::Beginning).await,
            Story::Breaker => self.run_breaker(plan.crash, Moment::Beginning).await,
        }
    }
}
