//! What may happen, one thing at a time.

use super::{Leaves, Power, Setup, Voice, World, Wrong, drain, janitor, quarantine, remediation};

/// What a provider makes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Provider {
    /// Takes the signal, or tells the truth about it.
    Honest,
    /// Takes the signal, and carries it out twice.
    Twice,
    /// Takes the signal, and its answer is lost (`INTERNAL`, a time-out).
    TakesAndLoses,
    /// Does not take it, and nobody hears of it.
    Loses,
    /// Refuses it.
    Refuses,
    /// Says that it took the signal, or that the request is done, and did nothing.
    Lies,
}

/// Things that a budget bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum What {
    /// A fault is said.
    Break,
    /// A fault is said to be over.
    Heal,
    /// Ten minutes pass.
    Tick,
    /// The controller dies and comes back.
    Crash,
    /// A person uncordons the node.
    Uncordon,
    /// A person ends the incident.
    Cancel,
    /// A person pauses the node, or ends that.
    Pause,
    /// The node object is deleted.
    Delete,
    /// The machine registers anew.
    Register,
    /// A person makes a `RebootNode`.
    AskReboot,
    /// A person deletes a `RebootNode`.
    DeleteReboot,
    /// A pod that was bound before shows itself.
    PodComes,
    /// A disruption budget refuses an eviction.
    Budget,
    /// The API server refuses the object of a repair.
    RefuseOrder,
    /// The provider does something else than what was asked.
    Misbehave,
    /// The machine reboots by itself.
    SelfReboot,
    /// An answer of the provider comes again.
    AnswerAgain,
}

impl What {
    /// How many there are.
    pub const COUNT: usize = Self::AnswerAgain as usize + 1;

    pub(super) fn index(self) -> usize {
        self as usize
    }
}

/// One thing that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "`Step::act` says what each is")]
pub enum Step {
    Quarantine { dies: bool },
    Drain,
    Evict { refused: bool },
    Remediate,
    Recall,
    Order { refused: bool },
    Janitor { object: usize, provider: Provider },
    Answer,
    List,
    Carry,
    Boot,
    Ready,
    Report,
    Settle,
    PodGoes(usize),
    Break(usize),
    Heal(usize),
    Tick,
    Crash,
    Uncordon,
    Cancel,
    Pause,
    Delete,
    Register,
    AskReboot,
    DeleteReboot(usize),
    PodComes,
    SelfReboot,
    AnswerAgain,
    Watch,
    Doubt,
}

const MISBEHAVES: [Provider; 5] = [
    Provider::Twice,
    Provider::TakesAndLoses,
    Provider::Loses,
    Provider::Refuses,
    Provider::Lies,
];

impl Step {
    /// What bounds it; none: it is the loop's own, or only a matter of time.
    pub fn bound(self) -> Option<What> {
        match self {
            Self::Quarantine { dies: true } | Self::Crash => Some(What::Crash),
            Self::Evict { refused: true } => Some(What::Budget),
            Self::Order { refused: true } => Some(What::RefuseOrder),
            Self::Janitor { provider, .. } if provider != Provider::Honest => Some(What::Misbehave),
            Self::Quarantine { .. }
            | Self::Drain
            | Self::Evict { .. }
            | Self::Remediate
            | Self::Recall
            | Self::Order { .. }
            | Self::Janitor { .. }
            | Self::Answer
            | Self::List
            | Self::Watch
            | Self::Doubt
            | Self::Carry
            | Self::Boot
            | Self::Ready
            | Self::Report
            | Self::Settle
            | Self::PodGoes(_) => None,
            Self::Break(_) => Some(What::Break),
            Self::Heal(_) => Some(What::Heal),
            Self::Tick => Some(What::Tick),
            Self::Uncordon => Some(What::Uncordon),
            Self::Cancel => Some(What::Cancel),
            Self::Pause => Some(What::Pause),
            Self::Delete => Some(What::Delete),
            Self::Register => Some(What::Register),
            Self::AskReboot => Some(What::AskReboot),
            Self::DeleteReboot(_) => Some(What::DeleteReboot),
            Self::PodComes => Some(What::PodComes),
            Self::SelfReboot => Some(What::SelfReboot),
            Self::AnswerAgain => Some(What::AnswerAgain),
        }
    }

    /// The world after this step; `None` if it changes nothing or its budget is used up.
    pub fn take(self, setup: &Setup, world: &World) -> Option<World> {
        let bound = self.bound();
        if bound.is_some_and(|what| world.left[what.index()] == 0) {
            return None;
        }
        let mut next = self.unbounded(setup, world)?;
        if let Some(what) = bound {
            next.left[what.index()] -= 1;
        }
        Some(next)
    }

    /// The same, whatever its budget is.
    pub(super) fn unbounded(self, setup: &Setup, world: &World) -> Option<World> {
        if !self.is_possible(setup, world) {
            return None;
        }
        let mut next = world.clone();
        next.did.0.clear();
        if !self.act(setup, &mut next) {
            return None;
        }
        let broken = super::promises::of_state(setup, &next);
        next.fail(broken);
        Some(next)
    }

    fn is_possible(self, setup: &Setup, world: &World) -> bool {
        match self {
            Self::Quarantine { .. }
            | Self::Drain
            | Self::Evict { .. }
            | Self::Remediate
            | Self::Recall
            | Self::Order { .. }
            | Self::Janitor { .. }
            | Self::Answer
            | Self::Uncordon
            | Self::AskReboot
            | Self::Heal(_) => true,
            Self::Watch => setup.lags,
            Self::Doubt => world.memory.made.is_some(),
            Self::Tick => setup.restless_clock || world.rests(setup),
            Self::List => !world.memory.pods_known,
            Self::Carry => world.taken > 0 && world.power == Power::Up,
            Self::SelfReboot => world.power == Power::Up,
            Self::Boot => world.power == Power::Down,
            Self::Ready => world.power == Power::Booted,
            Self::Report => world.may_report(setup),
            Self::Settle => world.voice == Voice::Starting && world.power != Power::Down,
            Self::PodGoes(index) => world.pods.get(index).is_some_and(|pod| {
                world.power == Power::Up && (pod.going || pod.leaves == Leaves::Completes)
            }),
            Self::Break(fault) => world.node.is_some() && fault < setup.faults,
            Self::Pause | Self::Delete => world.node.is_some(),
            Self::Register => world.node.is_none(),
            Self::Crash => world.memory != super::Memory::default(),
            Self::Cancel => world.incident.is_some() && world.memory.request.is_none(),
            Self::DeleteReboot(index) => index < world.reboots.len(),
            Self::PodComes => world.node.is_some() && world.power == Power::Up,
            Self::AnswerAgain => world.memory.call.is_none(),
        }
    }

    fn act(self, setup: &Setup, world: &mut World) -> bool {
        match self {
            Self::Quarantine { dies } => quarantine::turn(setup, world, dies),
            Self::Drain => drain::turn(setup, world),
            Self::Evict { refused } => drain::evict(setup, world, refused),
            Self::Remediate => remediation::turn(setup, world),
            Self::Recall => remediation::recall(setup, world),
            Self::Order { refused } => remediation::order(setup, world, refused),
            Self::Janitor { object, provider } => janitor::turn(setup, world, object, provider),
            Self::Answer => janitor::answer(setup, world),
            Self::AnswerAgain => janitor::answer_again(world),
            Self::Watch => world.watch(),
            // The answer to the order is believed for some seconds only.
            Self::Doubt => world.memory.made.take().is_some(),
            Self::List => {
                world.memory.pods_known = true;
                true
            }
            Self::Carry => world.carry(),
            Self::SelfReboot => world.go_down(),
            Self::Boot => world.boot_up(),
            Self::Ready => world.come_up(),
            Self::Report => world.report(),
            Self::Settle => world.settle(),
            Self::PodGoes(index) => world.pod_goes(index),
            Self::PodComes => world.pod_comes(),
            Self::Break(fault) => world.say(fault),
            Self::Heal(fault) => world.heal(fault),
            Self::Tick => world.tick(),
            Self::Crash => {
                world.lock.take_if(|_| setup.is_wrong(Wrong::CrashUnlocks));
                world.crash();
                true
            }
            Self::Uncordon => world.uncordon(),
            Self::Cancel => world.cancel(),
            Self::Pause => world.pause(),
            Self::Delete => world.delete_node(setup),
            Self::Register => world.register(setup),
            Self::AskReboot => world.ask_reboot(setup),
            Self::DeleteReboot(index) => {
                world.delete_reboot(setup, index);
                true
            }
        }
    }
}

impl World {
    /// Every step that might be possible now, in a fixed order; the loop's own come first.
    pub fn steps(&self, steps: &mut Vec<Step>) {
        self.own_steps(steps);
        steps.extend([
            Step::Quarantine { dies: true },
            Step::Evict { refused: true },
            Step::Order { refused: true },
        ]);
        for object in 0..self.reboots.len() {
            let misbehaves = |provider| Step::Janitor { object, provider };
            steps.extend(MISBEHAVES.map(misbehaves));
            steps.push(Step::DeleteReboot(object));
        }
        steps.extend([
            Step::Break(0),
            Step::Break(1),
            Step::Heal(0),
            Step::Heal(1),
            Step::Tick,
            Step::Crash,
            Step::Uncordon,
            Step::Cancel,
            Step::Pause,
            Step::Delete,
            Step::Register,
            Step::AskReboot,
            Step::PodComes,
            Step::SelfReboot,
            Step::AnswerAgain,
        ]);
        let left = |step: &Step| step.bound().is_none_or(|what| self.left[what.index()] > 0);
        steps.retain(left);
    }

    /// Whether the controller has done what it will do at this moment.
    pub(super) fn rests(&self, setup: &Setup) -> bool {
        let mut steps = Vec::new();
        self.own_work(&mut steps);
        steps
            .iter()
            .all(|step| step.unbounded(setup, self).is_none())
    }

    /// The steps of the loop, and those that are only a matter of time.
    pub(super) fn own_steps(&self, steps: &mut Vec<Step>) {
        self.own_work(steps);
        steps.extend([
            Step::Carry,
            Step::Boot,
            Step::Report,
            Step::Settle,
            Step::Ready,
        ]);
        steps.extend((0..self.pods.len()).map(Step::PodGoes));
    }

    /// The steps of the loop.
    pub(super) fn own_work(&self, steps: &mut Vec<Step>) {
        steps.extend([
            Step::Answer,
            Step::List,
            Step::Quarantine { dies: false },
            Step::Evict { refused: false },
            Step::Drain,
            Step::Order { refused: false },
            Step::Recall,
            Step::Remediate,
        ]);
        steps.extend(self.lag.is_some().then_some(Step::Watch));
        steps.extend(self.memory.made.is_some().then_some(Step::Doubt));
        for object in 0..self.reboots.len() {
            steps.push(Step::Janitor {
                object,
                provider: Provider::Honest,
            });
        }
    }
}
