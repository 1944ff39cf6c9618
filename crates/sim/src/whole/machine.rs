//! The machine, its agent and its pods.

use decide::quarantine::AgentFacts;
use jiff::SignedDuration;

use super::{Fault, Leaves, Pod, Power, Setup, Voice, World};
use crate::world::setup::boot_id;

impl World {
    /// The machine goes down; the node is seen not to be Ready at once.
    pub(super) fn go_down(&mut self) -> bool {
        self.power = Power::Down;
        self.voice = Voice::New;
        self.set_ready(false);
        true
    }

    /// The provider carries out a signal that it took.
    pub(super) fn carry(&mut self) -> bool {
        self.taken -= 1;
        self.go_down()
    }

    /// The machine runs in its next boot, and the node shows it.
    pub(super) fn boot_up(&mut self) -> bool {
        self.boot += 1;
        self.power = Power::Booted;
        let boot = boot_id(0, self.boot);
        if let Some(node) = &mut self.node {
            node.change(|node| node.facts.boot = boot);
            self.signals.clear();
        }
        // What was going is gone.
        self.pods.retain(|pod| !pod.going);
        true
    }

    /// The node is Ready.
    pub(super) fn come_up(&mut self) -> bool {
        self.power = Power::Up;
        self.set_ready(true);
        true
    }

    fn set_ready(&mut self, ready: bool) {
        if let Some(node) = &mut self.node {
            node.change(|node| node.facts.ready = ready);
        }
    }

    /// The agent's new process reports.
    pub(super) fn report(&mut self) -> bool {
        self.voice = Voice::Starting;
        let boot = boot_id(0, self.boot);
        self.boots.change(|boots| {
            boots.report(&boot);
        });
        let now = self.now();
        // What the decisions compare within one moment is set apart by a second.
        let started = now.checked_add(SignedDuration::from_secs(1));
        self.known.change(|known| {
            *known = AgentFacts {
                settled_for: None,
                started_at: Some(started.unwrap_or(now)),
                last_report_at: Some(now),
                ..known.clone()
            };
        });
        true
    }

    /// The agent has looked: what it did not find in this boot is healthy, and it says that it is
    /// settled.
    pub(super) fn settle(&mut self) -> bool {
        self.voice = Voice::Settled;
        let boot = self.boot;
        for fault in 0..2 {
            if self.faults[fault].is_some_and(|fault| fault.boot < boot) {
                self.heal(fault);
            }
        }
        let now = self.now();
        self.known.change(|known| {
            known.settled_for = Some(boot_id(0, boot));
            known.last_report_at = Some(now);
        });
        true
    }

    /// A fault is said, or said again in another boot. While the machine is down what comes in was
    /// said before.
    pub(super) fn say(&mut self, fault: usize) -> bool {
        let (boot, clock) = (self.boot, self.clock);
        match &mut self.faults[fault] {
            Some(open) if open.boot == boot => return false,
            Some(open) => (open.boot, open.said) = (boot, clock),
            none => {
                self.openings += 1;
                *none = Some(Fault {
                    boot,
                    opening: self.openings,
                    since: clock,
                    said: clock,
                });
            }
        }
        true
    }

    /// A fault is said to be over.
    pub(super) fn heal(&mut self, fault: usize) -> bool {
        self.refused[fault] = None;
        self.faults[fault].take().is_some()
    }

    /// A pod that was bound before the cordon shows itself.
    pub(super) fn pod_comes(&mut self) -> bool {
        self.pods.push(Pod {
            uid: self.pod_uids,
            leaves: Leaves::Evicted,
            going: false,
            seen: false,
        });
        self.pod_uids += 1;
        true
    }

    /// A pod is gone.
    pub(super) fn pod_goes(&mut self, index: usize) -> bool {
        let gone = self.pods.remove(index);
        let uid = gone.uid.to_string();
        if self.memory.asked.contains_key(&uid) {
            self.memory.asked.change(|asked| drop(asked.remove(&uid)));
        }
        true
    }

    /// Time passes.
    pub(super) fn tick(&mut self) -> bool {
        self.clock += 1;
        true
    }

    /// Whether an agent may still say something new.
    pub(super) fn may_report(&self, setup: &Setup) -> bool {
        setup.agent && self.voice == Voice::New && self.power != Power::Down
    }
}
