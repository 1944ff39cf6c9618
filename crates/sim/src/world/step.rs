//! What may happen, one thing at a time.

use std::fmt;

use decide::quarantine::{AgentFacts, RequestKind};
use jiff::SignedDuration;

use super::setup::{boot_id, machine_id, request};
use super::{Kept, Setup, Site, Voice, World, controller};

/// Kinds of steps. The first seven are not bounded: each is possible only while something is to be
/// brought over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the arms of `Step::take` say what each is")]
pub enum What {
    Watch,
    Decide,
    Arrive,
    ArriveLate,
    Report,
    Settle,
    ShowBoot,
    Break,
    Heal,
    Repeat,
    Reboot,
    AgentRestart,
    Uncordon,
    Untaint,
    Cordon,
    ForeignTaint,
    ForeignUntaint,
    SameTaint,
    Strip,
    StripOne,
    OptOut,
    Pause,
    Cooperate,
    CooperatorUncordon,
    Hold,
    Release,
    Cancel,
    Drop,
    Delete,
    Register,
    RegisterOther,
    RegisterCopy,
    Tick,
    Reset,
    TimeOut,
    Crash,
    LoseStore,
    SwitchMode,
}

impl What {
    /// How many kinds there are.
    pub const COUNT: usize = Self::ALL.len();

    /// All kinds.
    pub const ALL: [Self; 38] = [
        Self::Watch,
        Self::Decide,
        Self::Arrive,
        Self::ArriveLate,
        Self::Report,
        Self::Settle,
        Self::ShowBoot,
        Self::Break,
        Self::Heal,
        Self::Repeat,
        Self::Reboot,
        Self::AgentRestart,
        Self::Uncordon,
        Self::Untaint,
        Self::Cordon,
        Self::ForeignTaint,
        Self::ForeignUntaint,
        Self::SameTaint,
        Self::Strip,
        Self::StripOne,
        Self::OptOut,
        Self::Pause,
        Self::Cooperate,
        Self::CooperatorUncordon,
        Self::Hold,
        Self::Release,
        Self::Cancel,
        Self::Drop,
        Self::Delete,
        Self::Register,
        Self::RegisterOther,
        Self::RegisterCopy,
        Self::Tick,
        Self::Reset,
        Self::TimeOut,
        Self::Crash,
        Self::LoseStore,
        Self::SwitchMode,
    ];

    pub(super) fn index(self) -> usize {
        self as usize
    }

    /// Whether a budget bounds it.
    pub fn is_bounded(self) -> bool {
        self >= Self::Break
    }

    /// Whether it is about the whole world, not about one node.
    pub(super) fn is_global(self) -> bool {
        matches!(
            self,
            Self::Tick | Self::Reset | Self::Crash | Self::LoseStore | Self::SwitchMode
        )
    }

    /// In how many ways it may happen to one node: of which fault, which annotation, which write.
    pub(super) fn ways(self, setup: &Setup) -> usize {
        if matches!(self, Self::Break | Self::Heal | Self::Repeat) {
            setup.faults
        } else if self == Self::StripOne {
            setup.strips
        } else if self == Self::ArriveLate {
            MOST_LATE
        } else {
            1
        }
    }

    pub(super) fn request(self) -> Option<RequestKind> {
        [
            (Self::Hold, RequestKind::Hold),
            (Self::Release, RequestKind::Release),
            (Self::Cancel, RequestKind::Cancel),
            (Self::Drop, RequestKind::DropWithheld),
        ]
        .into_iter()
        .find_map(|(what, kind)| (what == self).then_some(kind))
    }
}

/// One thing that happens.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Step {
    /// What.
    pub what: What,
    /// To which node.
    pub node: usize,
    /// Of which fault; or which of the late writes, which of our annotations.
    pub fault: usize,
}

/// Writes of one node that are late at one time.
pub(super) const MOST_LATE: usize = 2;

impl fmt::Debug for Step {
    /// `Break 0 1`: what, to which node, of which fault.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} {}", self.what, self.node, self.fault)
    }
}

impl Step {
    /// The world after this step; `None` if nothing changes.
    pub fn take(self, setup: &Setup, world: &World) -> Option<World> {
        let mut next = world.clone();
        next.did = super::Aside(None);
        if self.what.is_bounded() {
            next.left[self.what.index()] -= 1;
        }
        let changed = match self.what {
            What::Decide => controller::decide(setup, &mut next, self.node),
            What::Watch => {
                next.sites[self.node].see();
                true
            }
            What::Arrive => controller::arrive(setup, &mut next, self.node),
            What::ArriveLate => controller::arrive_late(setup, &mut next, self.node, self.fault),
            What::TimeOut => next.sites[self.node].give_up_waiting(),
            What::Crash => controller::restart(setup, &mut next),
            What::LoseStore => controller::lose_store(setup, &mut next),
            What::SwitchMode => {
                next.mode += 1;
                controller::restart(setup, &mut next)
            }
            What::Tick => {
                next.clock += 1;
                next.forget_refusals();
                true
            }
            What::Reset => {
                next.breaker.change(|breaker| drop(breaker.reset("gpu")));
                true
            }
            What::Break
            | What::Heal
            | What::Repeat
            | What::Reboot
            | What::AgentRestart
            | What::Report
            | What::Settle => {
                self.agent(setup, &mut next);
                true
            }
            What::Hold | What::Release | What::Cancel | What::Drop => {
                next.sites[self.node].request =
                    self.what.request().map(|kind| Kept::new(request(kind)));
                true
            }
            What::ShowBoot
            | What::Uncordon
            | What::Untaint
            | What::Cordon
            | What::ForeignTaint
            | What::ForeignUntaint
            | What::SameTaint
            | What::Strip
            | What::StripOne
            | What::OptOut
            | What::Pause
            | What::Cooperate
            | What::CooperatorUncordon
            | What::Delete
            | What::Register
            | What::RegisterOther
            | What::RegisterCopy => {
                self.object(setup, &mut next);
                true
            }
        };
        changed.then_some(next)
    }

    /// The machine and its agent.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the caller hands on only the kinds named here"
    )]
    fn agent(self, setup: &Setup, world: &mut World) {
        let now = world.now(setup);
        let site = &mut world.sites[self.node];
        let template = &setup.template(self.node, self.fault).event;
        let boot = boot_id(site.machine, site.boot);
        match self.what {
            What::Break => {
                site.truth[self.fault] = true;
                let machine = machine_id(site.machine);
                site.said[self.fault].change(|said| said.raise(template, &boot, &machine, now));
            }
            What::Heal => {
                site.truth[self.fault] = false;
                site.said[self.fault].change(|said| said.heal(template, &boot, now));
            }
            // The newest unhealthy event is delivered once more.
            What::Repeat => site.said[self.fault].change(|said| {
                if let Some((event, machine)) = said.raised.clone() {
                    said.take_in(&event, &machine, now);
                }
            }),
            What::Reboot => {
                site.boot += 1;
                site.agent = Voice::New;
                if setup.reboot_heals {
                    site.truth = [false; 2];
                }
            }
            What::AgentRestart => site.agent = Voice::New,
            What::Report => site.report(setup, self.node, now),
            What::Settle => {
                site.agent = Voice::Settled;
                site.settle(setup, self.node, now);
            }
            _ => unreachable!("no step of an agent: {self:?}"),
        }
        site.look_again(setup, self.node);
    }
}

impl World {
    fn forget_refusals(&mut self) {
        for site in &mut self.sites {
            for refused in &mut site.refused {
                *refused = refused.filter(|until| self.clock < *until);
            }
        }
    }
}

impl Site {
    /// The controller no longer waits for its write.
    pub(super) fn give_up_waiting(&mut self) -> bool {
        let write = self.in_flight.take();
        if self.late.len() < MOST_LATE {
            self.late.extend(write);
        }
        true
    }

    fn report(&mut self, setup: &Setup, node: usize, now: jiff::Timestamp) {
        let boot = boot_id(self.machine, self.boot);
        match self.agent {
            Voice::Settled => self.settle(setup, node, now),
            Voice::New | Voice::Starting => {
                let is_new = self.agent == Voice::New || self.known.started_at.is_none();
                self.agent = Voice::Starting;
                self.restarted |= is_new && self.incident.is_some();
                let opened = self.incident.is_some();
                let start = now + SignedDuration::from_secs(i64::from(opened));
                self.known.change(|known| {
                    if is_new {
                        known.started_at = Some(start);
                        known.settled_for = None;
                    }
                    known.last_report_at = Some(now);
                });
            }
        }
        self.boots[self.machine].change(|boots| {
            boots.report(&boot);
        });
    }

    /// The settled report: what the agent asserts is open, what it denies is closed.
    fn settle(&mut self, setup: &Setup, node: usize, now: jiff::Timestamp) {
        let boot = boot_id(self.machine, self.boot);
        let machine = machine_id(self.machine);
        for fault in 0..setup.faults {
            let template = &setup.template(node, fault).event;
            let here = self.said[fault]
                .order()
                .is_some_and(|order| order.boot == boot);
            match (self.truth[fault], self.is_open(fault)) {
                (true, open) if !open || !here => {
                    self.said[fault].change(|said| said.raise(template, &boot, &machine, now));
                }
                (false, true) => self.said[fault].change(|said| said.heal(template, &boot, now)),
                (true | false, _) => {}
            }
        }
        self.look_again(setup, node);
        let known: &AgentFacts = &self.known;
        let started_at = known.started_at.or(Some(now));
        self.known = Kept::new(AgentFacts {
            expected: true,
            settled_for: Some(boot.clone()),
            started_at,
            last_report_at: Some(now),
        });
        self.boots[self.machine].change(|boots| {
            boots.report(&boot);
        });
        self.unnamed = false;
    }
}
