//! How one configuration of the whole loop is checked.

use std::sync::{Mutex, PoisonError};

use sim::whole::{Broken, Ended, Setup, Step, World, end};
use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::checked::{MOST_STATES, judge};

/// A transition: module and name.
pub(crate) type Taken = (&'static str, &'static str);

struct Looped {
    setup: Setup,
    taken: &'static [Taken],
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
        match end(&self.setup, world, &mut ended) {
            Ok(()) => true,
            Err(stuck) => {
                println!("{stuck}");
                false
            }
        }
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
        step.take(&self.setup, world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = promises();
        properties.push(Property::always(ENDS, Self::ends));
        let taken = |property: &Property<Self>| {
            let mut taken = self.taken.iter();
            taken.any(|taken| name_of(*taken) == property.name)
        };
        properties.extend(transitions().into_iter().map(|(_, p)| p).filter(taken));
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
    TooManyAttempts: "the ladder has an end",
    SignalOverPods: "no reboot while pods are moved off the node",
}

macro_rules! taken {
    ($($module:literal $code:literal),* $(,)?) => {
        vec![$((
            ($module, $code),
            Property::<Looped>::sometimes(concat!($module, ": ", $code), |_, world: &World| {
                world.did.0.contains(&($module, $code))
            }),
        )),*]
    };
}

fn transitions() -> Vec<(Taken, Property<Looped>)> {
    taken![
        "quarantine" "fault_matched",
        "quarantine" "write_seen",
        "quarantine" "recovered",
        "quarantine" "manual_uncordon",
        "quarantine" "person_cancel",
        "quarantine" "node_gone",
        "quarantine" "node_replaced",
        "quarantine" "faults_change",
        "quarantine" "marks_change",
        "quarantine" "needs_operator",
        "drain" "wanted",
        "drain" "kept_waiting",
        "drain" "empty",
        "drain" "nothing_to_do",
        "drain" "came_late",
        "drain" "deadline",
        "drain" "not_wanted",
        "drain" "evict",
        "drain" "delete",
        "remediation" "faults_ask",
        "remediation" "node_empty",
        "remediation" "order",
        "remediation" "recall",
        "remediation" "object_seen",
        "remediation" "begun",
        "remediation" "not_begun",
        "remediation" "object_gone",
        "remediation" "other_boot",
        "remediation" "object_failed",
        "remediation" "object_refused",
        "remediation" "deadline",
        "remediation" "faults_gone",
        "remediation" "nothing_left",
        "remediation" "still_open",
        "janitor" "lock",
        "janitor" "intend",
        "janitor" "send",
        "janitor" "sent",
        "janitor" "refused",
        "janitor" "lost",
        "janitor" "ask",
        "janitor" "status",
        "janitor" "Succeeded",
        "janitor" "Failed",
        "janitor" "NoRebootObserved",
        "janitor" "Timeout",
        "janitor" "NodeNotFound",
        "janitor" "Recalled",
        "janitor" "unlock",
    ]
}

fn name_of(taken: Taken) -> &'static str {
    let all = transitions();
    let found = all.into_iter().find(|(known, _)| *known == taken);
    found.map_or_else(|| panic!("{taken:?} is not listed"), |(_, p)| p.name)
}

/// All transitions that are listed: all but those of a switch of modes (`off`), of another program
/// (`other_drainer`), of a lost store (`found`), of executors whose object alone tells (`object_done`), of
/// taints and marks that are changed by hand (`manual_untaint`, `marks_restored`, `replanned_write`) and of
/// rules that change (`rules_gone`), which are not in this world.
pub(crate) fn listed() -> Vec<Taken> {
    transitions().into_iter().map(|(taken, _)| taken).collect()
}

/// Looks at every history of a configuration: each promise holds in all, each transition in `taken`
/// happens in some, from every state the incident comes to an end, and there are exactly so many
/// states.
#[track_caller]
pub(crate) fn check(name: &str, setup: Setup, taken: &'static [Taken], states: usize) {
    let model = Looped {
        setup,
        taken,
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
    let names: Vec<&str> = taken.iter().map(|taken| name_of(*taken)).collect();
    let ended = &checker.model().ended;
    println!(
        "{name}: {} states, depth {}, {} more on the way to an end, {} ms",
        checker.unique_state_count(),
        checker.max_depth(),
        ended
            .lock()
            .map_or(0, |e| e.count())
            .saturating_sub(checker.unique_state_count()),
        started.elapsed().as_millis()
    );
    judge(name, &checker, &names, states);
}

/// Looks whether a rule that is broken on purpose is caught, by this promise.
#[track_caller]
pub(crate) fn caught(setup: Setup, promise: &'static str) {
    let rule = setup.wrong;
    let model = Looped {
        setup,
        taken: &[],
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
