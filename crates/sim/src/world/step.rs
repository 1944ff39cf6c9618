//! What may happen, one thing at a time.

use std::fmt;

use decide::quarantine::{AgentFacts, RequestKind};
use jiff::SignedDuration;

use super::cluster::{Cordon, LABELS, Node, OURS, Others};
use super::setup::{COOPERATOR, boot_id, machine_id, registered, request};
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
    pub const ALL: [Self; 36] = [
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

    /// Whether it is about one fault.
    pub(super) fn is_of_fault(self) -> bool {
        matches!(self, Self::Break | Self::Heal | Self::Repeat)
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
    /// Of which fault.
    pub fault: usize,
}

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
                let site = &mut next.sites[self.node];
                site.cache.clone_from(&site.node);
                site.accepted = false;
                true
            }
            What::Arrive => controller::arrive(&mut next, self.node),
            What::ArriveLate => controller::arrive_late(&mut next, self.node),
            What::TimeOut => next.sites[self.node].give_up_waiting(),
            What::Crash => controller::restart(&mut next),
            What::LoseStore => controller::lose_store(&mut next),
            What::SwitchMode => {
                next.mode += 1;
                controller::restart(&mut next)
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
            | What::OptOut
            | What::Pause
            | What::Cooperate
            | What::CooperatorUncordon
            | What::Delete
            | What::Register
            | What::RegisterOther => {
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

    /// The node object, by anyone but us.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the caller hands on only the kinds named here"
    )]
    fn object(self, setup: &Setup, world: &mut World) {
        let clock = world.clock;
        let site = &mut world.sites[self.node];
        match self.what {
            What::Delete => {
                site.node = None;
                site.others = Kept::default();
                site.refused = [None; 2];
                site.stripped = false;
            }
            What::Register | What::RegisterOther => {
                if self.what == What::RegisterOther {
                    site.machine = 1;
                    site.boot = 0;
                    site.truth = [false; 2];
                    site.agent = Voice::New;
                }
                site.uids += 1;
                site.refused = [None; 2];
                let facts = registered(setup, self.node, site.uids, site.machine, site.boot);
                site.node = Some(Kept::new(Node {
                    facts,
                    events: Vec::new(),
                }));
            }
            What::Uncordon => {
                site.note_refusal(setup, clock);
                site.change_others(|others, _| others.cordon = Cordon::No);
                site.change_node(|node| node.facts.unschedulable = None);
            }
            What::CooperatorUncordon => {
                site.change_others(|others, _| others.cordon = Cordon::No);
                site.change_node(|node| node.facts.unschedulable = None);
            }
            What::Cordon => {
                // It hides that a person has just uncordoned the node.
                site.refused = [None; 2];
                site.change_others(|others, node| {
                    let ours = node.says_cordon_is_ours();
                    others.cordon = if ours { Cordon::Unclear } else { Cordon::Yes };
                });
                site.change_node(|node| node.facts.unschedulable = Some(true));
            }
            What::ForeignTaint | What::SameTaint => {
                let foreign = self.what == What::ForeignTaint;
                let taint = if foreign {
                    setup.foreign_taint()
                } else {
                    setup.taint()
                };
                site.change_others(|others, _| {
                    others.taints.insert(taint.clone());
                });
                site.change_node(|node| node.taint(&taint));
            }
            What::ForeignUntaint | What::Untaint => {
                let foreign = self.what == What::ForeignUntaint;
                let taint = if foreign {
                    setup.foreign_taint()
                } else {
                    setup.taint()
                };
                site.change_others(|others, _| {
                    others.taints.remove(&taint);
                });
                site.change_node(|node| node.untaint(&taint));
            }
            What::Strip => {
                site.stripped = true;
                // With our mark gone its tests would pass again, long after we left.
                site.late = None;
                site.change_node(|node| {
                    for key in OURS {
                        node.facts.annotations.remove(&key);
                    }
                    for key in LABELS {
                        node.facts.labels.remove(&key);
                    }
                    node.events.clear();
                });
            }
            What::OptOut => site.change_node(|node| node.facts.opted_out = !node.facts.opted_out),
            What::Pause => site.change_node(|node| node.facts.paused = !node.facts.paused),
            What::Cooperate => site.change_node(|node| {
                let values = &mut node.facts.cooperator_values;
                if values.remove(COOPERATOR).is_none() {
                    values.insert(COOPERATOR.to_owned(), "working".to_owned());
                }
            }),
            What::ShowBoot => {
                let boot = boot_id(site.machine, site.boot);
                site.change_node(|node| node.facts.boot = boot);
            }
            _ => unreachable!("no step of a node object: {self:?}"),
        }
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
    fn change_node(&mut self, change: impl FnOnce(&mut Node)) {
        if let Some(node) = &mut self.node {
            node.change(change);
        }
    }

    fn change_others(&mut self, change: impl FnOnce(&mut Others, &Node)) {
        if let Some(node) = &self.node {
            let node = node.clone();
            self.others.change(|others| change(others, &node));
        }
    }

    /// A person uncordons the node while the incident is on it: what is open now must not take it
    /// out again. A node that is on its way back is only brought back sooner.
    fn note_refusal(&mut self, setup: &Setup, clock: u8) {
        let marked = self.node.as_ref().and_then(|node| node.mark());
        let ours = self
            .node
            .as_ref()
            .is_some_and(|node| node.says_cordon_is_ours());
        let stays = self.incident.as_ref().is_some_and(|incident| {
            use health_event::incident::QuarantineStatus as Status;
            let here = marked.is_some_and(|mark| mark.incident == incident.id);
            here && match incident.quarantine {
                Status::Applying | Status::Quarantined => true,
                Status::Withheld(_)
                | Status::Observed
                | Status::Releasing(_)
                | Status::Closed(_) => false,
            }
        });
        let cooperating = self
            .node
            .as_ref()
            .is_some_and(|n| !n.facts.cooperator_values.is_empty());
        if !stays || !ours || cooperating || setup.policy.manual_uncordon_hold.is_zero() {
            return;
        }
        for fault in 0..2 {
            if self.is_open(fault) {
                self.refused[fault] = Some(clock + 1);
            }
        }
    }

    /// The controller no longer waits for its write.
    pub(super) fn give_up_waiting(&mut self) -> bool {
        let write = self.in_flight.take();
        self.late = self.late.take().or(write);
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
            boots.observe(&boot);
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
            boots.observe(&boot);
        });
        if std::mem::take(&mut self.to_reconcile) {
            self.hold_after_store_loss(setup, now);
        }
    }

    fn hold_after_store_loss(&mut self, setup: &Setup, now: jiff::Timestamp) {
        let Some(node) = self.node.as_ref().filter(|_| self.incident.is_none()) else {
            return;
        };
        let hold = decide::quarantine::hold_after_store_loss(
            &node.facts,
            &self.open.0,
            &setup.policy,
            now,
        );
        if let Some(hold) = hold {
            self.holds[self.machine].change(|holds| holds.push(hold));
        }
    }
}
