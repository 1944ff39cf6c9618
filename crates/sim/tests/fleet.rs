//! Two nodes whose loops meet, checked in every history of small configurations; and rules that are broken
//! on purpose, each of which is caught.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use decide::drain;
use sim::whole::fleet::{Broken, Ended, Fleet, FleetSetup, Move, end};
use sim::whole::{Leaves, What, Wrong};
use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::checked::{MOST_STATES, judge, tell};
use crate::looped::Taken;
use What::*;

struct Fleets {
    setup: FleetSetup,
    /// What was done in some history.
    seen: Mutex<BTreeSet<Taken>>,
    ended: Mutex<Ended>,
    ends: bool,
}

impl Fleets {
    fn new(setup: FleetSetup, ends: bool) -> Self {
        Self {
            setup,
            seen: Mutex::default(),
            ended: Mutex::default(),
            ends,
        }
    }

    fn ends(&self, fleet: &Fleet) -> bool {
        if !self.ends || fleet.broken.is_some() {
            return true;
        }
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        end(&self.setup, fleet, &mut ended)
            .inspect_err(|stuck| println!("{stuck}"))
            .is_ok()
    }
}

impl Model for Fleets {
    type State = Fleet;
    type Action = Move;

    fn init_states(&self) -> Vec<Fleet> {
        vec![Fleet::new(&self.setup)]
    }

    fn actions(&self, fleet: &Fleet, moves: &mut Vec<Move>) {
        if fleet.broken.is_none() {
            fleet.moves(moves);
        }
    }

    fn next_state(&self, fleet: &Fleet, step: Move) -> Option<Fleet> {
        let next = fleet.after(&self.setup, step)?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.extend(next.did.0.iter().copied());
        drop(seen);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(OF_NODE, |_, fleet: &Fleet| {
                !matches!(fleet.broken, Some(Broken::Node(_)))
            }),
            Property::always(PLACES, |_, fleet: &Fleet| {
                fleet.broken != Some(Broken::TooManyReboots)
            }),
            Property::always(STANDS, |_, fleet: &Fleet| {
                fleet.broken != Some(Broken::OwnNodeRebooted)
            }),
            Property::always(DRAINED_LAST, |_, fleet: &Fleet| {
                fleet.broken != Some(Broken::OwnNodeDrainedBeside)
            }),
            Property::always(ORDERED_LAST, |_, fleet: &Fleet| {
                fleet.broken != Some(Broken::OwnNodeOrdered)
            }),
            Property::always(LEVEL, |_, fleet: &Fleet| {
                fleet.broken != Some(Broken::LevelExceeded)
            }),
            Property::always(UNTOUCHED, |_, fleet: &Fleet| {
                fleet.broken != Some(Broken::WithheldTouched)
            }),
            Property::always(KEPT, |_, fleet: &Fleet| {
                fleet.broken != Some(Broken::OrderLost)
            }),
            Property::always(ENDS, Self::ends),
        ]
    }
}

const OF_NODE: &str = "what holds of each node alone, no second reboot for one fault among it";
const PLACES: &str = "at most so many reboots are under way as may be";
const STANDS: &str = "the controller's own node is not rebooted under it";
const DRAINED_LAST: &str = "the controller's own node waits while another is drained or repaired";
const ORDERED_LAST: &str = "no repair is ordered of the node on which the controller runs";
const LEVEL: &str = "P7: at most so many nodes are out as the breaker lets";
const UNTOUCHED: &str = "nothing is done to a node that the breaker withholds";
const KEPT: &str = "an order that waits is not lost";
const ENDS: &str = "from every state each incident comes to an end";

/// Looks at every history of a configuration, in some of which each transition in `taken` happens, and which
/// has exactly so many states.
#[track_caller]
fn check(name: &str, setup: FleetSetup, taken: &[Taken], states: usize) {
    let started = std::time::Instant::now();
    let checker = Fleets::new(setup, true)
        .checker()
        .threads(1)
        .finish_when(HasDiscoveries::AnyFailures)
        .target_state_count(MOST_STATES)
        .spawn_bfs()
        .join();
    let ended = checker.model().ended.lock().map_or(0, |e| e.count());
    tell(&format!(
        "{name}: {} states of at most {MOST_STATES}, depth {}, {} more on the way to an end, {} ms",
        checker.unique_state_count(),
        checker.max_depth(),
        ended.saturating_sub(checker.unique_state_count()),
        started.elapsed().as_millis()
    ));
    judge(name, &checker, states);
    let seen = checker.model().seen.lock();
    let seen = seen.unwrap_or_else(PoisonError::into_inner);
    let never: Vec<&Taken> = taken.iter().filter(|t| !seen.contains(*t)).collect();
    assert!(never.is_empty(), "{name}: {never:?} never happen");
}

/// Looks whether a rule that is broken on purpose is caught, by this promise.
#[track_caller]
fn caught(setup: FleetSetup, wrong: Wrong, promise: &'static str) {
    let setup = setup.breaking(wrong);
    let checker = Fleets::new(setup, promise == ENDS)
        .checker()
        .finish_when(HasDiscoveries::AnyOf([promise].into()))
        .target_state_count(MOST_STATES)
        .spawn_bfs()
        .join();
    let found: Vec<&str> = checker.discoveries().into_keys().collect();
    assert!(
        found.contains(&promise),
        "{wrong:?} is not caught by {promise:?}, but {found:?}"
    );
}

/// What the repair of each node goes through.
const REPAIRED: &[Taken] = &[
    ("remediation", "order"),
    ("janitor", "send"),
    ("janitor", "Succeeded"),
    ("quarantine", "recovered"),
];

/// A fault on each node with pods, and a breaker that lets one of them be out; `resumes`: by itself, once
/// another may.
fn room_for_one(resumes: bool) -> FleetSetup {
    let mut setup = FleetSetup::new([&[(Break, 1)], &[(Break, 1)]], 2).with_level(1, resumes);
    for node in &mut setup.nodes {
        node.pods = vec![Leaves::Evicted];
    }
    // Without a reset the breaker waits for one.
    setup.by_person = !resumes;
    setup
}

/// A fault on each node, and one reboot at a time.
fn two_faults() -> FleetSetup {
    FleetSetup::new([&[(Break, 1)], &[(Break, 1)]], 1)
}

/// A person's reboot of each node, on one of which the controller runs, and room for both.
fn own_node() -> FleetSetup {
    let mut setup = FleetSetup::new([&[(AskReboot, 1)], &[(AskReboot, 1)]], 2);
    setup.own = Some(1);
    setup
}

/// A fault on each node, on one of which the controller runs, with pods on both.
fn own_node_with_pods() -> FleetSetup {
    let mut setup = two_faults();
    for node in &mut setup.nodes {
        node.pods = vec![Leaves::Evicted];
    }
    setup.own = Some(1);
    setup
}

/// The watch over repair objects is one change behind.
fn lagging() -> FleetSetup {
    let mut setup = FleetSetup::new([&[(Break, 1), (AskReboot, 1)], &[(AskReboot, 1)]], 1);
    for node in &mut setup.nodes {
        node.lags = true;
    }
    setup
}

#[test]
fn two_nodes_share_one_place() {
    let mut setup = two_faults();
    setup.limits.insert(Crash, 1);
    check("two faults, one place, a crash", setup, REPAIRED, 2_161);
}

#[test]
fn two_nodes_share_one_place_and_faults_come_again() {
    let setup = FleetSetup::new([&[(Break, 2)], &[(Break, 1)]], 1);
    check("faults come again, one place", setup, REPAIRED, 4_755);
}

#[test]
fn a_person_gives_a_node_back_whose_order_waits_for_a_place() {
    let limits: [&[_]; 2] = [&[(Break, 1), (Uncordon, 1), (Pause, 1)], &[(Break, 1)]];
    let mut setup = FleetSetup::new(limits, 1);
    setup.by_person = true;
    let taken = &[("quarantine", "manual_uncordon"), ("janitor", "Recalled")];
    check("uncordoned or paused, one place", setup, taken, 2_223);
}

#[test]
fn a_signal_that_may_be_lost_keeps_its_place() {
    let mut setup = FleetSetup::new([&[(Break, 1), (Misbehave, 1)], &[(AskReboot, 1)]], 1);
    setup.by_person = true;
    setup.limits.insert(Tick, 1);
    let taken = &[("janitor", "lost"), ("janitor", "Succeeded")];
    check("a lost signal, one place", setup, taken, 3_851);
}

#[test]
fn an_object_that_is_deleted_keeps_its_place() {
    let mut setup = FleetSetup::new([&[(Break, 1), (DeleteReboot, 1)], &[(AskReboot, 1)]], 1);
    setup.by_person = true;
    setup.limits.extend([(Tick, 1), (Crash, 1)]);
    let taken = &[("remediation", "object_gone"), ("janitor", "Succeeded")];
    check("a deleted object, one place", setup, taken, 5_673);
}

#[test]
fn the_controllers_own_node_is_not_rebooted_under_it() {
    let mut setup = own_node();
    setup.nodes[0].limits.insert(AskReboot, 2);
    setup.limits.insert(Crash, 1);
    check(
        "a person reboots both",
        setup,
        &[("janitor", "Succeeded")],
        537,
    );
}

#[test]
fn the_controllers_own_node_is_drained_last() {
    let taken = &[("drain", "kept_waiting"), ("drain", "empty")];
    check("the controller moves", own_node_with_pods(), taken, 2_294);
}

#[test]
fn a_watch_that_lags_loses_no_order() {
    let mut setup = lagging();
    setup.limits.insert(Crash, 1);
    check("a watch that lags", setup, REPAIRED, 11_185);
    let mut setup = lagging();
    setup.nodes[0].limits.insert(Uncordon, 1);
    let taken = &[("quarantine", "manual_uncordon")];
    check("a watch that lags, uncordoned", setup, taken, 5_142);
}

#[test]
fn the_breaker_lets_one_of_two_nodes_out_until_it_is_reset() {
    let mut setup = room_for_one(false);
    setup.resets = 1;
    setup.limits.insert(Crash, 1);
    setup.nodes[0].limits.insert(Heal, 1);
    let taken = &[
        ("quarantine", "breaker_withholds"),
        ("quarantine", "paced"),
        ("quarantine", "permitted"),
        ("drain", "evict"),
        ("remediation", "order"),
        ("quarantine", "recovered"),
    ];
    check("room for one, reset", setup, taken, 4_552);
}

#[test]
fn a_breaker_that_resumes_lets_the_second_node_out_after_the_first() {
    let mut setup = room_for_one(true);
    setup.limits.insert(Crash, 1);
    setup.nodes[1].limits.insert(Heal, 1);
    let taken = &[
        ("quarantine", "breaker_withholds"),
        ("quarantine", "permitted"),
        ("drain", "evict"),
        ("remediation", "order"),
        ("quarantine", "recovered"),
    ];
    check("room for one, and it resumes", setup, taken, 3_092);
}

#[test]
fn rules_between_nodes_that_are_broken_are_caught() {
    caught(two_faults(), Wrong::IgnoresPlaces, PLACES);
    caught(own_node(), Wrong::OwnNodeIsAny, STANDS);
    caught(
        own_node_with_pods(),
        Wrong::DrainsOwnNodeAtOnce,
        DRAINED_LAST,
    );
    let mut setup = own_node_with_pods();
    for node in &mut setup.nodes {
        node.drain.mode = drain::Mode::Off;
    }
    caught(setup, Wrong::OrdersOnOwnNode, ORDERED_LAST);
    caught(room_for_one(false), Wrong::IgnoresBreaker, LEVEL);
    caught(room_for_one(false), Wrong::DrainsWithheld, UNTOUCHED);
    caught(room_for_one(true), Wrong::KeepsLevel, ENDS);
    caught(lagging(), Wrong::UnshownIsGone, KEPT);
    caught(two_faults(), Wrong::KeepsIntent, ENDS);
    caught(two_faults(), Wrong::SendsFirst, OF_NODE);
}
