//! How one configuration is checked.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::hash::Hash;
use std::io::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sim::world::{Broken, Setup, Step, World, at_rest};
use stateright::{Checker, HasDiscoveries, Model, Property};

struct Checked {
    setup: Setup,
    /// What the controller did in some history.
    seen: Mutex<BTreeSet<&'static str>>,
}

impl Checked {
    fn new(setup: Setup) -> Self {
        Self {
            setup,
            seen: Mutex::default(),
        }
    }

    fn seen(&self) -> MutexGuard<'_, BTreeSet<&'static str>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Model for Checked {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.setup)]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.broken.is_none() {
            world.steps(&self.setup, steps);
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let next = step.take(&self.setup, world)?;
        if let Some(did) = next.did.0 {
            self.seen().insert(did);
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = promises();
        properties.push(Property::always(
            "at rest all is as it should be",
            |model, world| at_rest(&model.setup, world),
        ));
        properties
    }
}

macro_rules! promise {
    ($broken:ident, $says:literal) => {
        Property::<Checked>::always($says, |_, world| world.broken != Some(Broken::$broken))
    };
}

fn promises() -> Vec<Property<Checked>> {
    vec![
        promise!(AsksTwice, "a permit is asked for once a decision"),
        promise!(NotAdopted, "a mark of an unknown incident is adopted"),
        promise!(
            WriteWithoutIncident,
            "P2: no write without an open incident and fault"
        ),
        promise!(ClosedChanges, "P2: a closed incident never changes"),
        promise!(SecondIncident, "never two open incidents of one node"),
        promise!(VersionJumps, "a version rises by one with each change"),
        promise!(ReleasedWithOpenFault, "no recovery while a fault is open"),
        promise!(
            ReleasedUnsettled,
            "no recovery before the agent has settled"
        ),
        promise!(ForeignCordonRemoved, "P5: another's cordon stays"),
        promise!(ForeignTaintRemoved, "P5: another's taint stays"),
        promise!(NotAsBefore, "P5: what is left is what was there before"),
        promise!(PersonOverruled, "a person's uncordon stands"),
        promise!(WroteInDryRun, "dry run writes nothing"),
        promise!(OpenedWhileOff, "what is off opens nothing"),
        promise!(
            ActedForAnother,
            "what another machine or boot has takes nothing out"
        ),
        promise!(
            ActedOnOptedOut,
            "a node that is paused or has opted out is left alone"
        ),
        promise!(ActedTooSoon, "the first action waits"),
        promise!(LevelExceeded, "P7: the level is bounded"),
        promise!(WritesNothing, "every write changes something"),
        promise!(
            RefusedWithoutCause,
            "a write on the present node is not refused"
        ),
        promise!(NeverRests, "an incident comes to rest"),
    ]
}

/// A configuration that grows beyond this is a mistake: it would run for minutes.
pub(crate) const MOST_STATES: usize = 300_000;

/// Says what was looked at, past `cargo test`, which keeps back what a test that passes prints.
pub(crate) fn tell(line: &str) {
    // Nobody may be listening.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Looks at every history of a configuration: each promise holds in all, each transition in `taken`
/// happens in some, and there are exactly so many states.
#[track_caller]
pub(crate) fn check(name: &str, setup: Setup, taken: &'static [&'static str], states: usize) {
    let started = std::time::Instant::now();
    let checker = Checked::new(setup)
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyFailures)
        .target_state_count(MOST_STATES)
        .spawn_bfs()
        .join();
    tell(&format!(
        "{name}: {} states of at most {MOST_STATES}, depth {}, {} ms",
        checker.unique_state_count(),
        checker.max_depth(),
        started.elapsed().as_millis()
    ));
    judge(name, &checker, states);
    let seen = checker.model().seen();
    let never: Vec<&&str> = taken.iter().filter(|code| !seen.contains(*code)).collect();
    assert!(never.is_empty(), "{name}: {never:?} never happen");
}

/// What is done in some history of a configuration.
pub(crate) fn seen(setup: Setup) -> BTreeSet<&'static str> {
    let checker = Checked::new(setup).checker();
    let checker = checker.target_state_count(MOST_STATES).spawn_bfs().join();
    checker.model().seen().clone()
}

/// Fails unless no promise is broken, in exactly so many states.
#[track_caller]
pub(crate) fn judge<M>(name: &str, checker: &impl Checker<M>, states: usize)
where
    M: Model,
    M::State: Clone + PartialEq + Debug + Hash,
    M::Action: Clone + PartialEq + Debug,
{
    if let Some((property, path)) = checker.discoveries().into_iter().next() {
        let steps: Vec<String> = path
            .into_actions()
            .iter()
            .map(|s| format!("{s:?}"))
            .collect();
        panic!(
            "{name}: {property:?} does not hold after\n{}",
            steps.join("\n")
        );
    }
    assert!(
        checker.state_count() < MOST_STATES,
        "{name}: not all states"
    );
    assert_eq!(checker.unique_state_count(), states, "{name}: states");
}

/// Looks whether decisions that break a rule on purpose are caught, by this promise.
#[track_caller]
pub(crate) fn caught(setup: Setup, promise: &'static str) {
    let checker = Checked::new(setup)
        .checker()
        .target_state_count(MOST_STATES)
        .spawn_bfs()
        .join();
    assert!(
        checker.discovery(promise).is_some(),
        "not caught: {promise}"
    );
}
