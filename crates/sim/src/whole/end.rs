//! Whether an incident comes to an end: from any state, once nothing more goes wrong.

use std::collections::HashSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use decide::quarantine::{Label, state_label};
use health_event::incident::{DrainStatus, Incident, QuarantineStatus, RepairStatus, Withheld};
use jiff::{SignedDuration, Timestamp};

use super::setup::TICK;
use super::{Broken, Setup, Step, World, drain, janitor, quarantine, remediation};

/// How long the loop has to end an incident, or to say that it needs a person: beyond each of its
/// spans, and short of those that count attempts and hold faults.
pub(super) const TICKS: u16 = 30;
/// Steps within one moment that no history needs.
const ENDLESS: usize = 120;

/// Why an incident does not end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stuck {
    /// Within one moment there is always something left to do.
    Restless,
    /// It stays open, and nothing in it says that a person is needed.
    Silent,
    /// A person ended it, and it stays open, or a repair does, or the node stays locked.
    EvenByPerson,
    /// It takes a person, where nothing went wrong that would need one.
    NeedsPerson,
    /// The node's label says another state than the incident has.
    Mislabelled,
    /// Time alone would change what this module does about it, and nobody looks again then.
    Unwoken(&'static str),
    /// On the way a promise is broken.
    Breaks(Broken),
    /// On the way one of all nodes together is.
    Together,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// States of which the end is known, by their fingerprints.
#[derive(Debug, Default)]
pub struct Ended(HashSet<u64>);

impl Ended {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

/// Lets all that is left happen in turn: what the loop does, what a machine and an honest provider do
/// in time, and if that is not enough and the incident says that it needs one, a person. `ended` keeps
/// states of which the end is known.
///
/// # Errors
/// `Stuck`.
pub fn end(setup: &Setup, world: &World, ended: &mut Ended) -> Result<(), Stuck> {
    let mut way = Way {
        ended,
        prints: Vec::new(),
    };
    way.finish(setup, world)?;
    let prints = way.prints;
    ended.0.extend(prints);
    Ok(())
}

/// The same, with the state at the end, and whether it took a person.
///
/// # Errors
/// `Stuck`.
pub fn finish(setup: &Setup, world: &World) -> Result<(World, bool), Stuck> {
    let ended = Ended::default();
    let mut way = Way {
        ended: &ended,
        prints: Vec::new(),
    };
    way.finish(setup, world)
}

/// How far a run came.
enum Run {
    /// To a state that is over, or of which the end is known.
    Over(World),
    /// The time is up.
    Late(World),
}

/// The states on the way to an end.
struct Way<'a> {
    ended: &'a Ended,
    prints: Vec<u64>,
}

impl Way<'_> {
    /// Whether the end of a state is known already.
    fn knows(&mut self, world: &World) -> bool {
        let print = print(world);
        self.prints.push(print);
        self.ended.0.contains(&print)
    }

    fn finish(&mut self, setup: &Setup, world: &World) -> Result<(World, bool), Stuck> {
        let open = match self.run(setup, world)? {
            Run::Over(world) => return Ok((world, false)),
            Run::Late(world) => world,
        };
        if !says_so(setup, &open) {
            return Err(Stuck::Silent);
        }
        match self.run(setup, &by_person(&open))? {
            Run::Over(world) => Ok((world, true)),
            Run::Late(_) => Err(Stuck::EvenByPerson),
        }
    }

    /// Until it is over, its end is known, or the time is up.
    fn run(&mut self, setup: &Setup, world: &World) -> Result<Run, Stuck> {
        let mut world = world.clone();
        for _ in 0..TICKS {
            let (rested, is_known) = self.rest(setup, world)?;
            if is_mislabelled(setup, &rested) {
                return Err(Stuck::Mislabelled);
            }
            if let Some(module) = unwoken(setup, &rested).filter(|_| !is_known) {
                return Err(Stuck::Unwoken(module));
            }
            if is_known || is_over(&rested) {
                return Ok(Run::Over(rested));
            }
            // A move of the clock is always possible.
            world = Step::Tick.unbounded(setup, &rested).unwrap_or(rested);
        }
        Ok(Run::Late(world))
    }

    /// All that happens within one moment; and whether the end is known.
    fn rest(&mut self, setup: &Setup, mut world: World) -> Result<(World, bool), Stuck> {
        let mut steps = Vec::new();
        for _ in 0..ENDLESS {
            if let Some(broken) = world.broken {
                return Err(Stuck::Breaks(broken));
            }
            if self.knows(&world) {
                return Ok((world, true));
            }
            steps.clear();
            world.own_steps(&mut steps);
            let mut next = steps.iter().filter_map(|s| s.unbounded(setup, &world));
            match next.next() {
                Some(next) => world = next,
                None => return Ok((world, false)),
            }
        }
        Err(Stuck::Restless)
    }
}

/// Whether a node that is out says another state than the incident has, which did not just come to it.
fn is_mislabelled(setup: &Setup, world: &World) -> bool {
    let (Some(node), Some(incident)) = (&world.node, world.incident.as_deref()) else {
        return false;
    };
    let since = [
        Some(incident.since),
        incident.drain.as_ref().map(|drain| drain.since),
        incident.repair.as_ref().map(|repair| repair.since),
    ];
    let lasts = since.iter().flatten().all(|since| *since < world.now());
    let here = incident.node_uid == node.facts.uid && node.mark().is_some();
    let says = node.facts.labels.get(&Label::State).map(String::as_str);
    setup.labels
        && here
        && lasts
        && incident.quarantine == QuarantineStatus::Quarantined
        && says != Some(state_label(incident))
}

/// Beyond a move of the clock, and beyond each span, those that count attempts and hold faults included.
const LATER: [SignedDuration; 2] = [TICK, SignedDuration::from_hours(100)];

/// A module that rests, and that time alone would set to work, without its having said when.
fn unwoken(setup: &Setup, world: &World) -> Option<&'static str> {
    type Acts<'a> = Box<dyn Fn(Timestamp) -> (bool, Option<Timestamp>) + 'a>;
    let mut modules: Vec<(&str, Acts<'_>)> = vec![
        (
            "quarantine",
            Box::new(move |at| quarantine::acts(setup, world, at)),
        ),
        ("drain", Box::new(move |at| drain::acts(setup, world, at))),
        (
            "remediation",
            Box::new(move |at| remediation::acts(setup, world, at)),
        ),
    ];
    for reboot in world.shown() {
        let acts = move |at| janitor::acts(setup, world, reboot, at);
        modules.push(("janitor", Box::new(acts)));
    }
    let sleeps = |acts: &Acts<'_>| {
        let (acts_now, again) = acts(world.now());
        let late = |span: &SignedDuration| {
            let then = world.now() + *span;
            acts(then).0 && again.is_none_or(|again| again > then)
        };
        !acts_now && LATER.iter().any(late)
    };
    let mut modules = modules.into_iter();
    modules.find_map(|(name, acts)| sleeps(&acts).then_some(name))
}

fn print(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

pub(super) fn is_over(world: &World) -> bool {
    let reboots = world.reboots.iter().all(|reboot| reboot.is_over());
    world.incident.is_none() && reboots && world.lock.is_none()
}

/// Whether the incident says what it waits for.
pub(super) fn says_so(setup: &Setup, world: &World) -> bool {
    let Some(incident) = world.incident.as_deref() else {
        return false;
    };
    let paused = world.node.as_ref().is_some_and(|node| node.facts.paused);
    let acts = setup.drain.mode == decide::drain::Mode::Enforce
        && setup.remediation.mode == decide::remediation::Mode::Enforce;
    paused || !acts || needs_person(incident)
}

fn needs_person(incident: &Incident) -> bool {
    let drain = incident.drain.as_ref().map(|drain| &drain.status);
    let repair = incident.repair.as_ref().map(|repair| &repair.status);
    let waits = matches!(
        incident.quarantine,
        QuarantineStatus::Observed | QuarantineStatus::Withheld(Withheld::Breaker(_))
    );
    waits
        || incident.needs_operator.is_some()
        || matches!(drain, Some(DrainStatus::Failed(_)))
        || matches!(repair, Some(RepairStatus::NeedsOperator(_)))
}

/// A person ends the incident, whatever it waits for.
fn by_person(world: &World) -> World {
    let mut next = world.clone();
    next.did.0.clear();
    next.cancel();
    next
}
