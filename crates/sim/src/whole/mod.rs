//! The whole loop around one node: quarantine, drain, remediation, janitor, a provider that loses
//! answers and lies, a person who steps in, and a controller that may die between any two steps.
//!
//! # Caveats
//! - Every call lands at once or never: what is late about writes to nodes is looked at in
//!   [`crate::world`]. A provider carries out what it took at any later time, or twice.
//! - One step of the quarantine goes on until it rests; drain and remediation decide and store in one
//!   step and act in another; so does the janitor, whose memory is lost in between.
//! - Objects are known at once after a start, as the shells decide nothing before; pods are not. Where
//!   the watch over objects lags, it is one change behind.
//! - The clock moves in steps of ten minutes, to which all spans are set.
//! - Two nodes together: [`fleet`].

mod breaker;
mod drain;
mod end;
pub mod fleet;
mod janitor;
mod machine;
mod memory;
mod person;
mod promises;
mod quarantine;
mod remediation;
mod setup;
mod step;
mod wrong;

pub use breaker::Breaker;
pub use end::{Ended, Stuck, end, finish};
pub use memory::Memory;
pub use promises::Broken;
pub use setup::{Leaves, PERSON, REBOOT, Setup, never};
pub use step::{Provider, Step, What};
pub use wrong::Wrong;

use decide::quarantine::{AgentFacts, FaultFacts};
use decide::remediation::PastAttempt;
use health_event::Boots;
use health_event::incident::{Hold, Incident, IncidentId};
use jiff::Timestamp;

use crate::world::setup::{boot_id, machine_id, registered};
use crate::world::{Aside, Kept, Node};

/// How far the machine has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Power {
    /// It runs, and the node is Ready.
    Up,
    /// It is booting.
    Down,
    /// It runs in a new boot, and the node is not Ready.
    Booted,
}

/// How far the agent's present process has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Voice {
    /// It has not reported in this boot.
    New,
    /// It has reported.
    Starting,
    /// It is settled.
    Settled,
}

/// An open fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fault {
    /// Boot in which it was last said.
    pub boot: u8,
    /// Which opening it is.
    pub opening: u8,
    /// When it opened, by the clock.
    pub since: u16,
    /// When it was last said.
    pub said: u16,
}

/// A pod on the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pod {
    /// Its UID.
    pub uid: u8,
    /// How it leaves.
    pub leaves: Leaves,
    /// It was evicted and is not gone.
    pub going: bool,
    /// Witness: it was there when the drain had its turn.
    pub seen: bool,
}

/// A `RebootNode` object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reboot {
    /// Stands for its UID.
    pub uid: u8,
    /// Name.
    pub name: String,
    /// The incident that ordered it; none: a person.
    pub incident: Option<IncidentId>,
    /// UID of the node object that owns it; a person's has no owner.
    pub owner: Option<String>,
    /// Spec and status.
    pub body: decide::janitor::RebootNode,
    /// Status and reason of condition `NodeReady`.
    pub ready: (Option<bool>, &'static str),
}

impl Reboot {
    /// Whether it is at its end.
    pub fn is_over(&self) -> bool {
        self.body.completed_at.is_some()
    }
}

/// The stored intent of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Intent {
    /// Of which object, by UID: it may be gone.
    pub object: u8,
    /// Boot before.
    pub boot: u8,
    /// When.
    pub at: u16,
    /// Witness: the node was paused then.
    pub paused: bool,
}

/// A signal that went out, as a witness saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Signal {
    /// Of which object.
    pub object: u8,
    /// The machine's boot then.
    pub boot: u8,
    /// When its intent was stored, from which its time counts.
    pub at: u16,
    /// It is proven to have done nothing: the provider refused it, its time was over, or it was said to
    /// be done and the boot was the same.
    pub undone: bool,
}

/// What the controller sees of the other nodes when it decides about this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Around {
    /// It runs on this node.
    pub is_own: bool,
    /// It runs on another one, whose reboot is under way or about to be begun.
    pub own_runs: bool,
    /// Reboots of other nodes that are under way or about to be begun, that one's left out.
    pub under_way: u8,
    /// Whether another node is drained or repaired.
    pub others_at_work: bool,
}

/// Everything at one moment.
#[derive(Debug, Clone, PartialEq, Hash)]
pub struct World {
    /// The node object.
    pub node: Option<Kept<Node>>,
    /// Node objects so far, for their UIDs.
    pub uids: u8,
    /// The machine's boot.
    pub boot: u8,
    /// The machine.
    pub power: Power,
    /// Signals that the provider took and has not carried out.
    pub taken: u8,
    /// The agent.
    pub voice: Voice,
    /// Store: the agent's last report.
    pub known: Kept<AgentFacts>,
    /// Store: open faults.
    pub faults: [Option<Fault>; 2],
    /// Openings so far.
    pub openings: u8,
    /// Pods on the node.
    pub pods: Vec<Pod>,
    /// Pods so far, for their UIDs.
    pub pod_uids: u8,
    /// Store: the open incident.
    pub incident: Option<Kept<Incident>>,
    /// Store: incidents that are over.
    pub over: Kept<Vec<IncidentId>>,
    /// Store: holds of the machine.
    pub holds: Kept<Vec<Hold>>,
    /// Store: boots of the machine.
    pub boots: Kept<Boots>,
    /// Store: attempts on the machine, by their objects.
    pub past: Kept<Vec<(String, PastAttempt)>>,
    /// Store: intents of signals.
    pub intents: Vec<Intent>,
    /// API server: repair objects.
    pub reboots: Vec<Kept<Reboot>>,
    /// Repair objects as the controller's watch shows them, where it lags behind by one change.
    pub lag: Option<Vec<Kept<Reboot>>>,
    /// Repair objects so far, for their UIDs.
    pub reboot_uids: u8,
    /// API server: the object that owns the node's lock.
    pub lock: Option<u8>,
    /// What the controller has in memory alone.
    pub memory: Memory,
    /// The clock.
    pub clock: u16,
    /// Incidents so far, for their ids.
    pub ids: u32,
    /// How often each thing may still happen.
    pub left: [u8; What::COUNT],
    /// Witness: signals that went out in the machine's present boot.
    pub signals: Vec<Signal>,
    /// Witness: openings of faults that a person gave the node back in spite of.
    pub refused: [Option<u8>; 2],
    /// What the controller sees of other nodes; follows from those.
    pub around: Aside<Around>,
    /// The breaker that it shares with other nodes, while a step is taken; none permits everything.
    pub breaker: Aside<Option<Breaker>>,
    /// The first promise that was broken.
    pub broken: Option<Broken>,
    /// What the last step did: module and transition.
    pub did: Aside<Vec<(&'static str, &'static str)>>,
}

impl World {
    /// The beginning: the node is Ready, its agent settled, nothing wrong.
    pub fn new(setup: &Setup) -> Self {
        let mut left = [0; What::COUNT];
        for (what, limit) in &setup.limits {
            left[what.index()] = *limit;
        }
        let known = AgentFacts {
            expected: setup.agent,
            settled_for: setup.agent.then(|| boot_id(0, 0)),
            started_at: setup.agent.then_some(Timestamp::UNIX_EPOCH),
            last_report_at: setup.agent.then_some(Timestamp::UNIX_EPOCH),
        };
        let pods = (0_u8..).zip(&setup.pods).map(|(uid, leaves)| Pod {
            uid,
            leaves: *leaves,
            going: false,
            seen: true,
        });
        let pods: Vec<Pod> = pods.collect();
        let pod_uids = pods.last().map_or(0, |pod| pod.uid + 1);
        Self {
            node: Some(Kept::new(fresh_node(setup, 0, 0))),
            uids: 1,
            boot: 0,
            power: Power::Up,
            taken: 0,
            voice: if setup.agent {
                Voice::Settled
            } else {
                Voice::New
            },
            known: Kept::new(known),
            faults: [None; 2],
            openings: 0,
            pod_uids,
            pods,
            incident: None,
            over: Kept::default(),
            holds: Kept::default(),
            boots: Kept::new(Boots::new(vec![boot_id(0, 0)])),
            past: Kept::default(),
            intents: Vec::new(),
            reboots: Vec::new(),
            lag: None,
            reboot_uids: 0,
            lock: None,
            memory: Memory {
                pods_known: true,
                ..Memory::default()
            },
            clock: 0,
            ids: 0,
            left,
            signals: Vec::new(),
            refused: [None; 2],
            around: Aside::default(),
            breaker: Aside::default(),
            broken: None,
            did: Aside::default(),
        }
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        Setup::now(self.clock)
    }

    pub(super) fn fail(&mut self, broken: Option<Broken>) {
        self.broken = self.broken.or(broken);
    }

    pub(super) fn did(&mut self, module: &'static str, what: &'static str) {
        self.did.0.push((module, what));
    }

    /// The open faults as the quarantine sees them.
    pub(super) fn open_faults(&self, setup: &Setup) -> Vec<FaultFacts> {
        let facts = |index: usize| {
            let fault = self.faults[index]?;
            Some(FaultFacts {
                seq: u64::from(fault.opening),
                machine_id: machine_id(0),
                boot: boot_id(0, fault.boot),
                first_at: Setup::now(fault.since),
                last_at: Setup::now(fault.said),
                through_agent: setup.agent,
                ..setup.template(index).clone()
            })
        };
        (0..2).filter_map(facts).collect()
    }

    /// An object by its UID.
    pub(super) fn reboot(&self, uid: u8) -> Option<&Kept<Reboot>> {
        self.reboots.iter().find(|reboot| reboot.uid == uid)
    }

    /// The objects as the controller's watch shows them.
    pub fn shown(&self) -> &[Kept<Reboot>] {
        self.lag.as_deref().unwrap_or(&self.reboots)
    }
}

pub(super) fn fresh_node(setup: &Setup, uid: u8, boot: u8) -> Node {
    Node {
        facts: registered(&setup.base, 0, uid, 0, boot),
        events: Vec::new(),
        tells_owner: true,
    }
}
