//! The world: what there is at one moment.
//!
//! # Caveats
//! - The clock stands still between two [`step::What::Tick`]s, so that histories that differ only
//!   in their times are one state. What the decisions compare within one moment (an agent's start
//!   and an incident's opening) is set apart by a second.
//! - A cache skips versions of a node but never goes back, as a watch that is behind.

mod broken_rule;
mod cluster;
mod controller;
mod enabled;
mod kept;
mod object;
mod promises;
mod rest;
mod said;
pub(crate) mod setup;
mod step;

pub use broken_rule::BrokenRule;
pub use cluster::{Cordon, Node, Others};
pub use kept::{Aside, Kept};
pub use promises::Broken;
pub use rest::at_rest;
pub use said::Said;
pub use setup::Setup;
pub use step::{Step, What};

use std::sync::Arc;

use decide::breaker::BreakerState;
use decide::quarantine::{AgentFacts, FaultFacts, Mode, NodeWrite, Policy, Request};
use health_event::Boots;
use health_event::incident::{Hold, Incident, IncidentId};
use jiff::Timestamp;

/// Machines that may stand under one node name, one after the other.
pub const MACHINES: usize = 2;

/// Everything at one moment.
#[derive(Debug, Clone, PartialEq, Hash)]
pub struct World {
    /// What belongs to one node name.
    pub sites: Vec<Site>,
    /// The breaker, as the controller has it.
    pub breaker: Kept<BreakerState>,
    /// Moves of the clock so far.
    pub clock: u8,
    /// Which of the modes is on.
    pub mode: usize,
    /// How often each thing may still happen.
    pub left: [u8; What::COUNT],
    /// Incidents opened so far, for their ids.
    pub ids: u32,
    /// The first promise that a step broke.
    pub broken: Option<Broken>,
    /// What the controller did in the step before.
    pub did: Aside<Option<&'static str>>,
}

/// How far the agent's present process has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Voice {
    /// It began and has not reported.
    New,
    /// It has reported, and is not settled.
    Starting,
    /// It has reported that it is settled.
    Settled,
}

/// One node name: the machine under it, its object, and what the controller has of both.
#[derive(Debug, Clone, PartialEq, Hash)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts about one node"
)]
pub struct Site {
    /// The machine.
    pub machine: usize,
    /// Its boot.
    pub boot: u8,
    /// Which faults it has.
    pub truth: [bool; 2],
    /// Its agent.
    pub agent: Voice,
    /// The object at the API server.
    pub node: Option<Kept<Node>>,
    /// The object as the controller's watch has shown it.
    pub cache: Option<Kept<Node>>,
    /// Objects registered so far, for their UIDs.
    pub uids: u8,
    /// What the object would be without us.
    pub others: Kept<Others>,
    /// The object when it was deleted, for who brings it back from a copy.
    pub copy: Option<(Kept<Node>, Kept<Others>)>,
    /// The write that the controller waits for.
    pub in_flight: Option<Kept<NodeWrite>>,
    /// Writes that the controller no longer waits for, and that may still arrive, in any order.
    pub late: Vec<Kept<NodeWrite>>,
    /// The API server took the last write, and the watch has not shown it.
    pub accepted: bool,
    /// Store: the open incident.
    pub incident: Option<Kept<Incident>>,
    /// Store: closed incidents.
    pub closed: Kept<Vec<IncidentId>>,
    /// Store: holds of each machine.
    pub holds: [Kept<Vec<Hold>>; MACHINES],
    /// Store: boots of each machine.
    pub boots: [Kept<Boots>; MACHINES],
    /// Store: the agent's last report.
    pub known: Kept<AgentFacts>,
    /// Store: the faults.
    pub said: [Kept<Said>; 2],
    /// The open ones as a decision sees them; follows from `said`.
    pub open: Aside<Arc<Vec<FaultFacts>>>,
    /// The store was lost, and this object, given back by a person, waits for its agent's word:
    /// its UID, and since which clock.
    pub given_back: Option<(String, u8)>,
    /// A person holds the node, and it is not known to nobody but a store that was lost.
    pub held: bool,
    /// The store was lost, and nothing on the node names what it is out for; the agent has not
    /// spoken since.
    pub unnamed: bool,
    /// A person's request that waits.
    pub request: Option<Kept<Request>>,
    /// Faults that a person uncordoned the node for, until which clock they must not take it out.
    pub refused: [Option<u8>; 2],
    /// A new process of the agent has reported since the incident opened.
    pub restarted: bool,
    /// A person took the node out, so that no permit was asked for.
    pub by_person: bool,
    /// Somebody took our annotations off since the incident's marks were last written.
    pub stripped: bool,
    /// The incident whose mark a late write brought last, onto an object that had none.
    pub came_late: Option<IncidentId>,
}

impl World {
    /// The beginning: every node registered, every agent settled, nothing wrong.
    pub fn new(setup: &Setup) -> Self {
        let mut left = [0; What::COUNT];
        for (what, limit) in &setup.limits {
            left[what.index()] = *limit;
        }
        Self {
            sites: (0..setup.nodes)
                .map(|node| Site::new(setup, node))
                .collect(),
            breaker: Kept::default(),
            clock: 0,
            mode: 0,
            left,
            ids: 0,
            broken: None,
            did: Aside(None),
        }
    }

    /// The time.
    pub fn now(&self, setup: &Setup) -> Timestamp {
        setup.now(self.clock)
    }

    /// How far the module may act.
    pub fn acting(&self, setup: &Setup) -> Mode {
        setup.modes[self.mode % setup.modes.len()]
    }

    /// The settings at this moment.
    pub fn policy(&self, setup: &Setup) -> Policy {
        Policy {
            mode: self.acting(setup),
            ..setup.policy.clone()
        }
    }

    fn fail(&mut self, broken: Option<Broken>) {
        self.broken = self.broken.or(broken);
    }
}

impl Site {
    fn new(setup: &Setup, node: usize) -> Self {
        let object = Kept::new(Node {
            facts: setup::registered(setup, node, 0, 0, 0),
            events: Vec::new(),
            tells_owner: setup.tells_owner,
        });
        let boot = setup::boot_id(0, 0);
        let agent = AgentFacts {
            expected: true,
            settled_for: Some(boot.clone()),
            started_at: Some(Timestamp::UNIX_EPOCH),
            last_report_at: Some(Timestamp::UNIX_EPOCH),
        };
        Self {
            machine: 0,
            boot: 0,
            truth: [false; 2],
            agent: Voice::Settled,
            node: Some(object.clone()),
            cache: Some(object),
            uids: 0,
            others: Kept::default(),
            copy: None,
            in_flight: None,
            late: Vec::new(),
            accepted: false,
            incident: None,
            closed: Kept::default(),
            holds: [Kept::default(), Kept::default()],
            boots: [Kept::new(Boots::new(vec![boot])), Kept::default()],
            known: Kept::new(agent),
            said: [Kept::default(), Kept::default()],
            open: Aside::default(),
            given_back: None,
            held: false,
            unnamed: false,
            request: None,
            refused: [None; 2],
            restarted: false,
            by_person: false,
            stripped: false,
            came_late: None,
        }
    }

    /// Whether a fault of this node is open in the store.
    pub fn is_open(&self, fault: usize) -> bool {
        self.said[fault].is_open()
    }

    fn look_again(&mut self, setup: &Setup, node: usize) {
        let facts = |fault: usize| self.said[fault].facts(setup.template(node, fault));
        self.open = Aside(Arc::new((0..2).filter_map(facts).collect()));
        for fault in 0..2 {
            // What a person refused before the store was lost is open again once the agent says so.
            let unheard = self.given_back.is_some() && self.known.settled_for.is_none();
            if !self.is_open(fault) && !unheard {
                self.refused[fault] = None;
            }
        }
    }
}
