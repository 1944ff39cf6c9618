//! Several nodes whose loops meet: they share the breaker, the janitor's places, the clock, and a controller that runs on
//! one of them and moves when that one is emptied or goes down.
//!
//! # Caveats
//! - What the other nodes can't see happens at once after what they can: how it may lie between a node's
//!   own steps is looked at in [`crate::whole`].
//! - The controller that leaves its node runs on none of these afterwards.

mod end;
mod promises;

pub use end::{Ended, end};
pub use promises::Broken;

use std::collections::BTreeMap;

use decide::breaker::{self, BreakerState};
use decide::drain::at_work_until;
use decide::remediation::Mode;

use super::{Around, Breaker, Power, Setup, Step, What, World, Wrong};
use crate::world::setup::node_name;
use crate::world::{Aside, Kept};

/// One configuration.
#[derive(Debug)]
pub struct FleetSetup {
    /// Each node; what bounds the whole is not bounded there.
    pub nodes: Vec<Setup>,
    /// On which node the controller runs at first.
    pub own: Option<usize>,
    /// How often [`What::Tick`] and [`What::Crash`] may happen.
    pub limits: BTreeMap<What, u8>,
    /// Whether an incident may end by a person's help alone.
    pub by_person: bool,
    /// Settings of the breaker that the nodes share; none: everything is permitted.
    pub breaker: Option<breaker::Config>,
    /// How often a person may reset it.
    pub resets: u8,
}

impl FleetSetup {
    /// Two nodes to each of which so much may happen, and so many reboots at a time.
    pub fn new(limits: [&[(What, u8)]; 2], max_parallel: usize) -> Self {
        let node = |limits: &[(What, u8)]| {
            let mut node = Setup::new(limits);
            node.max_parallel = max_parallel;
            node
        };
        Self {
            nodes: limits.map(node).into(),
            own: None,
            limits: BTreeMap::new(),
            by_person: false,
            breaker: None,
            resets: 0,
        }
    }

    /// With a breaker that lets this many nodes be out at one time; `resumes`: by itself, once it may.
    #[must_use]
    pub fn with_level(mut self, level: u32, resumes: bool) -> Self {
        self.breaker = Some(super::breaker::config(level, resumes));
        self
    }

    /// With a rule that is broken on purpose.
    #[must_use]
    pub fn breaking(mut self, wrong: Wrong) -> Self {
        for node in &mut self.nodes {
            node.wrong = Some(wrong);
        }
        self
    }
}

/// Everything at one moment.
#[derive(Debug, Clone, PartialEq, Hash)]
pub struct Fleet {
    /// The nodes.
    pub nodes: Vec<World>,
    /// On which of them the controller runs.
    pub own: Option<usize>,
    /// The breaker that they share, as the controller has it.
    pub breaker: Option<Kept<BreakerState>>,
    /// How often the clock may still move, the controller may die, and a person may reset the breaker.
    pub left: [u8; 3],
    /// The first promise that was broken.
    pub broken: Option<Broken>,
    /// What the last step did: module and transition.
    pub did: Aside<Vec<(&'static str, &'static str)>>,
}

/// One thing that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Move {
    /// To one node.
    Node(usize, Step),
    /// Ten minutes pass.
    Tick,
    /// The controller dies and comes back.
    Crash,
    /// A person resets the breaker.
    Reset,
}

/// What no other node sees.
const UNSEEN: [Step; 9] = [
    Step::Answer,
    Step::List,
    Step::Quarantine { dies: false },
    Step::Evict { refused: false },
    Step::Boot,
    Step::Ready,
    Step::Report,
    Step::Settle,
    Step::PodGoes(0),
];
/// More of these in a row than any history needs.
const ENDLESS: usize = 60;

impl Fleet {
    /// The beginning.
    pub fn new(setup: &FleetSetup) -> Self {
        let limit = |what: What| setup.limits.get(&what).copied().unwrap_or_default();
        Self {
            nodes: setup.nodes.iter().map(World::new).collect(),
            own: setup.own,
            breaker: setup.breaker.as_ref().map(|_| Kept::default()),
            left: [limit(What::Tick), limit(What::Crash), setup.resets],
            broken: None,
            did: Aside::default(),
        }
    }

    /// Every move that might be possible now.
    pub fn moves(&self, moves: &mut Vec<Move>) {
        let mut steps = Vec::new();
        for (index, world) in self.nodes.iter().enumerate() {
            steps.clear();
            world.steps(&mut steps);
            steps.retain(|step| !matches!(step, Step::Tick | Step::Crash));
            moves.extend(steps.iter().map(|step| Move::Node(index, *step)));
        }
        let [ticks, crashes, resets] = self.left;
        moves.extend((ticks > 0).then_some(Move::Tick));
        moves.extend((crashes > 0).then_some(Move::Crash));
        moves.extend((resets > 0).then_some(Move::Reset));
    }

    /// The fleet after a move; `None` if it changes nothing.
    pub fn after(&self, setup: &FleetSetup, step: Move) -> Option<Self> {
        let mut next = self.clone();
        next.did.0.clear();
        match step {
            Move::Node(index, step) => next.step(setup, index, step)?,
            Move::Tick if self.rests(setup) => {
                next.left[0] = self.left[0].saturating_sub(1);
                for world in &mut next.nodes {
                    world.tick();
                }
            }
            Move::Tick => return None,
            Move::Crash => {
                next.left[1] = self.left[1].checked_sub(1)?;
                next.crash();
            }
            Move::Reset => {
                next.left[2] = self.left[2].checked_sub(1)?;
                next.is_tripped().then(|| next.reset())?;
            }
        }
        for index in 0..next.nodes.len() {
            // What happens to one node changes no other's own, unless the controller moves.
            let other = matches!(step, Move::Node(of, _) if of != index);
            if !other || next.own != self.own {
                next.settle(setup, index);
            }
        }
        let broken = promises::of_fleet(setup, &next);
        next.broken = next.broken.or(broken);
        Some(next)
    }

    fn crash(&mut self) {
        for world in &mut self.nodes {
            world.crash();
        }
        let open = self.nodes.iter().enumerate();
        let open = open.filter_map(|(index, world)| {
            let incident = world.incident.as_deref()?;
            Some((node_name(index), incident))
        });
        let known = self.breaker.as_ref();
        let known = known.map(|state| Kept::new(super::breaker::restored(state, open)));
        self.breaker = known;
    }

    fn is_tripped(&self) -> bool {
        let mut pools = self.breaker.iter().flat_map(|state| state.pools.values());
        pools.any(|pool| pool.tripped.is_some())
    }

    fn reset(&mut self) {
        if let Some(state) = &mut self.breaker {
            state.change(|state| drop(state.reset("gpu")));
        }
    }

    /// A node with what the controller sees of the others.
    fn seen(&self, setup: &FleetSetup, index: usize) -> World {
        let breaker = setup.breaker.clone().zip(self.breaker.clone());
        let nodes = self.nodes.iter().filter(|world| world.node.is_some());
        let pool_size = nodes.count();
        World {
            around: Aside(self.around(setup, index)),
            breaker: Aside(breaker.map(|(config, state)| Breaker {
                node: node_name(index),
                pool_size,
                config,
                state,
            })),
            ..self.nodes[index].clone()
        }
    }

    /// What no other node sees.
    fn settle(&mut self, setup: &FleetSetup, index: usize) {
        for _ in 0..ENDLESS {
            // The pods of the controller's own node go one by one: with the last it moves.
            let own = self.own == Some(index);
            let mut unseen = UNSEEN.into_iter();
            let pods = |step: &Step| !own || !matches!(step, Step::PodGoes(_));
            let moved = unseen.find(|step| pods(step) && self.step(setup, index, *step).is_some());
            if moved.is_none() {
                return;
            }
        }
    }

    /// One step of one node.
    fn step(&mut self, setup: &FleetSetup, index: usize, step: Step) -> Option<()> {
        let of_node = &setup.nodes[index];
        let world = self.seen(setup, index);
        let mut next = step.take(of_node, &world)?;
        let broken = promises::of_step(setup, self, index, &next);
        let emptied = next.pods.is_empty() && !world.pods.is_empty();
        let down = next.power == Power::Down && world.power != Power::Down;
        self.did.0.extend(next.did.0.iter().copied());
        self.broken = self.broken.or(broken);
        if let Some(breaker) = next.breaker.0.take() {
            self.breaker = Some(breaker.state);
        }
        self.nodes[index] = next;
        if self.own == Some(index) && (emptied || down) {
            self.own = None;
            self.crash();
        }
        Some(())
    }

    /// What the controller sees of the other nodes.
    fn around(&self, setup: &FleetSetup, index: usize) -> Around {
        let mut around = Around {
            is_own: self.own == Some(index),
            ..Around::default()
        };
        for (other, world) in self.nodes.iter().enumerate() {
            if other == index {
                continue;
            }
            let taken = world.intents.len() + usize::from(world.memory.reserved.is_some());
            if self.own == Some(other) {
                around.own_runs = taken > 0;
            } else {
                around.under_way += u8::try_from(taken).unwrap_or(u8::MAX);
            }
            let incident = world.incident.as_deref();
            let policy = &setup.nodes[other].drain;
            let repairs = setup.nodes[other].remediation.mode == Mode::Enforce;
            let until = incident.and_then(|one| at_work_until(one, policy, repairs));
            around.others_at_work |= until.is_some_and(|until| world.now() < until);
        }
        around
    }

    /// Whether the controller has done what it will do at this moment.
    fn rests(&self, setup: &FleetSetup) -> bool {
        let rests = |index: usize| self.seen(setup, index).rests(&setup.nodes[index]);
        (0..self.nodes.len()).all(rests)
    }

    /// The steps of the loops, and those that are only a matter of time.
    fn own_moves(&self) -> Vec<Move> {
        let mut moves = Vec::new();
        let mut steps = Vec::new();
        for (index, world) in self.nodes.iter().enumerate() {
            steps.clear();
            world.own_steps(&mut steps);
            moves.extend(steps.iter().map(|step| Move::Node(index, *step)));
        }
        moves
    }
}
