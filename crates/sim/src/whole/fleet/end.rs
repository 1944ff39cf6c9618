//! Whether each incident comes to an end.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use health_event::incident::{Incident, QuarantineStatus};

use super::super::end::{Stuck, TICKS, is_over, says_so};
use super::{Broken, Fleet, FleetSetup, Move};

/// Steps within one moment that no history needs.
const ENDLESS: usize = 240;

/// States of which the end is known, by their fingerprints.
#[derive(Debug, Default)]
pub struct Ended(HashSet<u64>);

impl Ended {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

/// Lets all that is left happen in turn, and if that is not enough and the incidents say so, a person, who
/// resets the breaker and ends what is out.
///
/// # Errors
/// `Stuck`.
pub fn end(setup: &FleetSetup, fleet: &Fleet, ended: &mut Ended) -> Result<(), Stuck> {
    let mut prints = Vec::new();
    let late = run(setup, fleet, ended, &mut prints)?;
    if let Some(late) = late {
        let silent = |(index, world)| !is_over(world) && !says_so(&setup.nodes[index], world);
        if late.nodes.iter().enumerate().any(silent) {
            return Err(Stuck::Silent);
        }
        if !setup.by_person {
            return Err(Stuck::NeedsPerson);
        }
        let mut helped = late;
        helped.reset();
        for world in &mut helped.nodes {
            let incident = world.incident.as_deref();
            let waits =
                |incident: &Incident| matches!(incident.quarantine, QuarantineStatus::Withheld(_));
            if incident.is_some_and(|incident| !waits(incident)) {
                world.cancel();
            }
        }
        if run(setup, &helped, ended, &mut prints)?.is_some() {
            return Err(Stuck::EvenByPerson);
        }
    }
    ended.0.extend(prints);
    Ok(())
}

/// Until all is over or its end is known; what there is when the time is up.
fn run(
    setup: &FleetSetup,
    fleet: &Fleet,
    ended: &Ended,
    prints: &mut Vec<u64>,
) -> Result<Option<Fleet>, Stuck> {
    let mut fleet = fleet.clone();
    for _ in 0..TICKS {
        for step in 0.. {
            if step > ENDLESS {
                return Err(Stuck::Restless);
            }
            match fleet.broken {
                Some(Broken::Node(broken)) => return Err(Stuck::Breaks(broken)),
                Some(_) => return Err(Stuck::Together),
                None => {}
            }
            let print = print(&fleet);
            prints.push(print);
            if ended.0.contains(&print) {
                return Ok(None);
            }
            let moves = fleet.own_moves();
            match moves.into_iter().find_map(|m| fleet.after(setup, m)) {
                Some(next) => fleet = next,
                None => break,
            }
        }
        if fleet.nodes.iter().all(is_over) {
            return Ok(None);
        }
        fleet = fleet.after(setup, Move::Tick).unwrap_or(fleet);
    }
    Ok(Some(fleet))
}

fn print(fleet: &Fleet) -> u64 {
    let mut hasher = DefaultHasher::new();
    fleet.hash(&mut hasher);
    hasher.finish()
}
