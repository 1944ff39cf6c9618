//! Long random histories of the whole loop, with a clock that runs out at any moment, against the same
//! promises and a simple model of what their end must be.
//!
//! A run is repeatable: its seed is fixed. `PROPTEST_RNG_SEED` and `PROPTEST_CASES` look at others.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use sim::whole::{Leaves, Setup, Step, What, World, finish};
use sim::world::Others;

use What::*;

/// Steps of a history; each is chosen among those that are possible then.
const LONGEST: usize = 90;

/// All that may happen to one node.
const ALL: [(What, u8); 17] = [
    (Break, 6),
    (Heal, 3),
    (Tick, 8),
    (Crash, 12),
    (Uncordon, 2),
    (Cancel, 2),
    (Pause, 2),
    (Delete, 1),
    (Register, 1),
    (AskReboot, 2),
    (DeleteReboot, 2),
    (PodComes, 2),
    (Budget, 2),
    (RefuseOrder, 2),
    (Misbehave, 4),
    (SelfReboot, 2),
    (AnswerAgain, 2),
];

/// What a history was made of.
#[derive(Debug, Default)]
struct Told {
    steps: Vec<Step>,
    /// Signals that went out.
    sent: usize,
    /// How the last incident was closed, or began to be.
    ended_by: Option<&'static str>,
}

impl Told {
    fn count(&self, what: What) -> usize {
        let of_it = self.steps.iter().filter(|s| s.bound() == Some(what));
        of_it.count()
    }

    fn take(&mut self, step: Step, world: &World) {
        self.steps.push(step);
        for (module, what) in &world.did.0 {
            match (*module, *what) {
                ("janitor", "send") => self.sent += 1,
                (
                    "quarantine",
                    by @ ("recovered" | "manual_uncordon" | "person_cancel" | "node_gone"
                    | "node_replaced"),
                ) => self.ended_by = Some(by),
                _ => {}
            }
        }
    }
}

fn run(setup: &Setup, choices: &[u16]) -> Result<(Told, World), TestCaseError> {
    let mut world = World::new(setup);
    let mut told = Told::default();
    let mut steps = Vec::new();
    for choice in choices {
        steps.clear();
        world.steps(&mut steps);
        // The loop is as busy as all that happens to it.
        if choice % 2 == 0 {
            steps.retain(|step| step.bound().is_none());
        }
        let first = usize::from(choice / 2) % steps.len().max(1);
        let turned = steps.iter().cycle().skip(first).take(steps.len());
        let next = turned
            .clone()
            .find_map(|step| Some((*step, step.take(setup, &world)?)));
        let Some((step, next)) = next else { continue };
        told.take(step, &next);
        world = next;
        prop_assert!(
            world.broken.is_none(),
            "{:?} after {:?}",
            world.broken,
            told.steps
        );
    }
    Ok((told, world))
}

/// What must be true of every end, given what happened.
fn judge(setup: &Setup, told: &Told, world: &World) -> Result<(), TestCaseError> {
    let steps = &told.steps;
    if let Some(node) = &world.node {
        let clean = node.is_as_before(&Others::default());
        prop_assert!(clean, "marks are left after {steps:?}");
        for (fault, refused) in world.faults.iter().zip(world.refused) {
            let held = fault.is_none_or(|fault| refused == Some(fault.opening));
            prop_assert!(
                held || node.facts.paused,
                "a fault is open and the node in service after {steps:?}"
            );
        }
    }
    // An attempt of the ladder is one signal; a person's object is one, and one that he deletes may be
    // made again.
    let more = told.count(AskReboot) + told.count(DeleteReboot) + told.count(Delete);
    let most = setup.remediation.max_attempts + more;
    prop_assert!(told.sent <= most, "{} signals after {steps:?}", told.sent);
    Ok(())
}

fn config(cases: u32) -> ProptestConfig {
    let given = ProptestConfig::default();
    let cases = match std::env::var_os("PROPTEST_CASES") {
        Some(_) => given.cases,
        None => cases,
    };
    let rng_seed = match given.rng_seed {
        RngSeed::Random => RngSeed::Fixed(1),
        RngSeed::Fixed(seed) => RngSeed::Fixed(seed),
    };
    ProptestConfig {
        cases,
        rng_seed,
        ..given
    }
}

fn setup(limits: &[(What, u8)]) -> Setup {
    let mut setup = Setup::new(limits).with_pods(&[Leaves::Evicted, Leaves::Completes]);
    setup.faults = 2;
    setup.restless_clock = true;
    setup.labels = true;
    setup
}

proptest! {
    #![proptest_config(config(250))]

    #[test]
    fn whatever_happens_the_promises_hold_and_the_incident_ends(
        choices in prop::collection::vec(any::<u16>(), 1..LONGEST)
    ) {
        let setup = setup(&ALL);
        let (told, world) = run(&setup, &choices)?;
        let end = finish(&setup, &world);
        prop_assert!(end.is_ok(), "{:?} after {:?}", end.err(), told.steps);
        let (end, _) = end.map_err(|stuck| TestCaseError::fail(stuck.to_string()))?;
        judge(&setup, &told, &end)?;
    }

    /// Where nothing goes wrong but that the controller dies, a fault costs one reboot at most, a person
    /// is needed only where deaths used the ladder up, and the incident ends as the person said, or by
    /// recovery.
    #[test]
    fn restarts_alone_change_no_end(
        choices in prop::collection::vec(any::<u16>(), 1..LONGEST),
        uncordons in 0..2_u8,
    ) {
        let limits = [(Break, 2), (Heal, 1), (Crash, 30), (PodComes, 2), (Uncordon, uncordons)];
        let setup = setup(&limits);
        let (mut told, world) = run(&setup, &choices)?;
        let end = finish(&setup, &world);
        prop_assert!(end.is_ok(), "{:?} after {:?}", end.err(), told.steps);
        let (end, by_person) = end.map_err(|stuck| TestCaseError::fail(stuck.to_string()))?;
        judge(&setup, &told, &end)?;
        let used_up = end.past.len() >= setup.remediation.max_attempts;
        prop_assert!(!by_person || used_up, "a person is needed after {:?}", told.steps);
        let boots = usize::from(end.boot);
        prop_assert!(boots <= told.count(Break), "{} reboots after {:?}", boots, told.steps);
        if told.count(Uncordon) == 0 && !by_person {
            let by = told.ended_by.take().unwrap_or("recovered");
            prop_assert_eq!(by, "recovered", "after {:?}", told.steps);
            prop_assert!(end.faults.iter().all(Option::is_none), "open after {:?}", told.steps);
        }
    }
}
