//! Two nodes whose loops meet, checked in every history of small configurations; and rules that are broken
//! on purpose, each of which is caught.

use std::sync::{Mutex, PoisonError};

use decide::drain;
use sim::whole::fleet::{Broken, Ended, Fleet, FleetSetup, Move, end};
use sim::whole::{Leaves, What, Wrong};
use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::checked::{MOST_STATES, judge};
use What::*;

struct Fleets {
    setup: FleetSetup,
    ended: Mutex<Ended>,
    ends: bool,
}

impl Fleets {
    fn new(setup: FleetSetup, ends: bool) -> Self {
        Self {
            setup,
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
        fleet.after(&self.setup, step)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(OF_NODE, |_, fleet: &Fleet| {
                !matches!(fleet.broken, Some(Broken::Node(_)))
            }),
            Property::always(PLACES, |_, fleet: &Fleet| {
                fleet.broken != Some(Broken::TooManyReboots)
            }),
            Property::always(LAST, |_, fleet: &Fleet| {
                fleet.broken != Some(Broken::OwnNodeNotLast)
            }),
            Property::always(ALONE, |_, fleet: &Fleet| {
                fleet.broken != Some(Broken::OwnNodeNotAlone)
            }),
            Property::always(DRAINED_LAST, |_, fleet: &Fleet| {
                fleet.broken != Some(Broken::OwnNodeDrainedBeside)
            }),
            Property::always(ORDERED_LAST, |_, fleet: &Fleet| {
                fleet.broken != Some(Broken::OwnNodeOrdered)
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
const LAST: &str = "the controller's own node is rebooted last";
const ALONE: &str = "nothing is rebooted beside the controller's own node";
const DRAINED_LAST: &str = "the controller's own node waits while another is drained or repaired";
const ORDERED_LAST: &str = "no repair is ordered of the node on which the controller runs";
const KEPT: &str = "an order that waits is not lost";
const ENDS: &str = "from every state each incident comes to an end";

/// Looks at every history of a configuration, which has exactly so many states.
#[track_caller]
fn check(name: &str, setup: FleetSetup, states: usize) {
    let started = std::time::Instant::now();
    let checker = Fleets::new(setup, true)
        .checker()
        .threads(1)
        .finish_when(HasDiscoveries::AnyFailures)
        .target_state_count(MOST_STATES)
        .spawn_bfs()
        .join();
    let ended = checker.model().ended.lock().map_or(0, |e| e.count());
    println!(
        "{name}: {} states, depth {}, {} more on the way to an end, {} ms",
        checker.unique_state_count(),
        checker.max_depth(),
        ended.saturating_sub(checker.unique_state_count()),
        started.elapsed().as_millis()
    );
    judge(name, &checker, states);
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
    check("two faults, one place, a crash", setup, 2_161);
}

#[test]
fn two_nodes_share_one_place_and_faults_come_again() {
    let setup = FleetSetup::new([&[(Break, 2)], &[(Break, 1)]], 1);
    check("faults come again, one place", setup, 4_185);
}

#[test]
fn a_person_gives_a_node_back_whose_order_waits_for_a_place() {
    let limits: [&[_]; 2] = [&[(Break, 1), (Uncordon, 1), (Pause, 1)], &[(Break, 1)]];
    let mut setup = FleetSetup::new(limits, 1);
    setup.by_person = true;
    check("uncordoned or paused, one place", setup, 2_223);
}

#[test]
fn a_signal_that_may_be_lost_keeps_its_place() {
    let mut setup = FleetSetup::new([&[(Break, 1), (Misbehave, 1)], &[(AskReboot, 1)]], 1);
    setup.by_person = true;
    setup.limits.insert(Tick, 1);
    check("a lost signal, one place", setup, 3_675);
}

#[test]
fn an_object_that_is_deleted_keeps_its_place() {
    let mut setup = FleetSetup::new([&[(Break, 1), (DeleteReboot, 1)], &[(AskReboot, 1)]], 1);
    setup.by_person = true;
    setup.limits.extend([(Tick, 1), (Crash, 1)]);
    check("a deleted object, one place", setup, 5_673);
}

#[test]
fn the_controllers_own_node_is_rebooted_last() {
    let mut setup = own_node();
    setup.nodes[0].limits.insert(AskReboot, 2);
    setup.limits.insert(Crash, 1);
    check("a person reboots both", setup, 1_587);
}

#[test]
fn the_controllers_own_node_is_drained_last() {
    check("the controller moves", own_node_with_pods(), 2_329);
}

#[test]
fn a_watch_that_lags_loses_no_order() {
    let mut setup = lagging();
    setup.limits.insert(Crash, 1);
    check("a watch that lags", setup, 11_185);
    let mut setup = lagging();
    setup.nodes[0].limits.insert(Uncordon, 1);
    check("a watch that lags, uncordoned", setup, 5_142);
}

#[test]
fn rules_between_nodes_that_are_broken_are_caught() {
    caught(two_faults(), Wrong::IgnoresPlaces, PLACES);
    caught(own_node(), Wrong::OwnNodeIsAny, LAST);
    caught(own_node(), Wrong::BesideOwnNode, ALONE);
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
    caught(lagging(), Wrong::UnshownIsGone, KEPT);
    caught(two_faults(), Wrong::KeepsIntent, ENDS);
    caught(two_faults(), Wrong::SendsFirst, OF_NODE);
}
