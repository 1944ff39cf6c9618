//! How one configuration of the whole loop is checked.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use sim::whole::{Broken, Ended, Setup, Step, World, end};
use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::checked::{MOST_STATES, judge, tell};

/// A transition: module and name.
pub(crate) type Taken = (&'static str, &'static str);

struct Looped {
    setup: Setup,
    /// What was done in some history.
    seen: Mutex<BTreeSet<Taken>>,
    /// States of which the end is known.
    ended: Mutex<Ended>,
    /// Whether the end of each state is looked at.
    ends: bool,
}

impl Looped {
    fn ends(&self, world: &World) -> bool {
        if !self.ends || world.broken.is_some() {
            return true;
        }
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        end(&self.setup, world, &mut ended)
            .inspect_err(|stuck| println!("{stuck}"))
            .is_ok()
    }
}

impl Model for Looped {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.setup)]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.broken.is_none() {
            world.steps(steps);
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let next = step.take(&self.setup, world)?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.extend(next.did.0.iter().copied());
        drop(seen);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = promises();
        properties.push(Property::always(ENDS, Self::ends));
        properties
    }
}

/// The property that each incident ends.
pub(crate) const ENDS: &str = "from every state an incident comes to an end";

macro_rules! promises {
    ($($broken:ident: $says:literal),* $(,)?) => {
        fn promises() -> Vec<Property<Looped>> {
            vec![$(Property::always($says, |_, world: &World| {
                world.broken != Some(Broken::$broken)
            })),*]
        }

        /// What a promise says.
        pub(crate) fn says(broken: Broken) -> &'static str {
            match broken {
                $(Broken::$broken => $says),*
            }
        }
    };
}

promises! {
    WriteRefused: "a write on the present node is not refused",
    EvictionWithoutIncident: "P2: no eviction without an open incident and fault",
    EvictionUnstored: "P3: no eviction before the drain is stored",
    OrderWithoutIncident: "P2: no order without an open incident",
    OrderUnstored: "P3: no order before it is stored",
    SignalWithoutIncident: "P2: no signal for an incident that is over",
    SignalUnstored: "P3: no signal before its intent is stored",
    SignalWithoutLock: "no signal without the node's lock",
    SignalTwice: "a signal is never sent again",
    TwoRepairs: "at most one repair of a node runs",
    TwoReboots: "no second reboot unless the first is proven not to have happened",
    RebootedAlready: "no reboot that has happened since it was ordered",
    RunsUnlocked: "what may be sent and is not over holds the node's lock",
    ReleasedDuringRepair: "rule 2: no recovery during a repair",
    ReleasedWithFault: "rule 2: no recovery while a fault is open",
    ReleasedUnsettled: "rule 2: no recovery before the agent has settled",
    DrainedWithPods: "drained means that no pod is left",
    DrainedUnknown: "P6: nothing is drained before its pods are known",
    BegunWhilePaused: "rule 8: nothing begins while the node is paused",
    ActedInDryRun: "rule 7: dry run acts on nothing",
    PersonOverruled: "rule 3: a person's word stands",
    SucceededInSameBoot: "a reboot is proven by another boot",
    TooManyAttempts: "the ladder has an end, in an incident and for a machine",
    RepairOverPods: "a node is empty before each repair",
    RepairOfCovered: "no repair of what a boot covers",
    SignalOverPods: "no reboot while pods are moved off the node",
}

/// Looks at every history of a configuration: each promise holds in all, each transition in `taken`
/// happens in some, from every state the incident comes to an end, and there are exactly so many
/// states.
#[track_caller]
pub(crate) fn check(name: &str, setup: Setup, taken: &'static [Taken], states: usize) {
    let model = Looped {
        setup,
        seen: Mutex::default(),
        ended: Mutex::default(),
        ends: true,
    };
    let started = std::time::Instant::now();
    let checker = model
        .checker()
        .threads(1)
        .finish_when(HasDiscoveries::AnyFailures)
        .target_state_count(MOST_STATES)
        .spawn_bfs()
        .join();
    let ended = &checker.model().ended;
    tell(&format!(
        "{name}: {} states of at most {MOST_STATES}, depth {}, {} more on the way to an end, {} ms",
        checker.unique_state_count(),
        checker.max_depth(),
        ended
            .lock()
            .map_or(0, |e| e.count())
            .saturating_sub(checker.unique_state_count()),
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
pub(crate) fn caught(setup: Setup, promise: &'static str) {
    let rule = setup.wrong;
    let model = Looped {
        setup,
        seen: Mutex::default(),
        ended: Mutex::default(),
        ends: promise == ENDS,
    };
    let checker = model
        .checker()
        .finish_when(HasDiscoveries::AnyOf([promise].into()))
        .target_state_count(MOST_STATES)
        .spawn_bfs()
        .join();
    let found: Vec<&str> = checker.discoveries().into_keys().collect();
    assert!(
        found.contains(&promise),
        "{rule:?} is not caught by {promise:?}, but {found:?}"
    );
}
