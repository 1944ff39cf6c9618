//! Long random histories in the same world, against the same promises.
//!
//! A run is repeatable: its seed is fixed. `PROPTEST_RNG_SEED` and `PROPTEST_CASES` look at others, and
//! what fails is shortened to the steps that it takes. Of 660,000 histories of other seeds (9101 to 9133; the
//! world of one node without switches was not among them) one breaks a promise (rule 3) and is not mended, with
//! seed 9132 of the world whose mode is switched: a person takes a cordon off, sets it and takes it off again
//! around a release that is not seen yet, and the fault that comes back meanwhile takes the node out. Where
//! nobody can know whose a mark is, or what a person undid, the promises say nothing: decision 8 names these
//! moments, and the witnesses of a site (`others`, `refused`) are changed in these.

use decide::quarantine::{CooperatorPolicy, Mode};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use sim::world::{Broken, Setup, Step, What, World, at_rest};

use What::*;

/// Steps of a history; each is chosen among those that are possible then.
const LONGEST: usize = 120;

const LIMITS: [(What, u8); 29] = [
    (Break, 12),
    (Heal, 12),
    (Repeat, 4),
    (Reboot, 3),
    (AgentRestart, 3),
    (Uncordon, 4),
    (Untaint, 2),
    (Cordon, 3),
    (ForeignTaint, 2),
    (ForeignUntaint, 2),
    (SameTaint, 1),
    (Strip, 2),
    (OptOut, 2),
    (Pause, 2),
    (Cooperate, 0),
    (CooperatorUncordon, 0),
    (Hold, 2),
    (Release, 2),
    (Cancel, 2),
    (Drop, 2),
    (Delete, 2),
    (Register, 2),
    (RegisterOther, 1),
    (Tick, 3),
    (Reset, 3),
    (TimeOut, 4),
    (Crash, 12),
    (LoseStore, 0),
    (SwitchMode, 0),
];

/// The same, with these.
fn with(more: &[(What, u8)]) -> Vec<(What, u8)> {
    LIMITS.iter().chain(more).copied().collect()
}

/// How a history fails.
#[derive(Debug, PartialEq, Eq)]
enum Failed {
    Breaks(Broken),
    /// Nothing is left to do, and something is not as it should be.
    RestsBadly,
    /// There is always something left to do.
    Restless,
}

struct History<'a> {
    setup: &'a Setup,
    world: World,
    taken: Vec<Step>,
}

impl History<'_> {
    fn new(setup: &Setup) -> History<'_> {
        History {
            setup,
            world: World::new(setup),
            taken: Vec::new(),
        }
    }

    fn possible(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        self.world.steps(self.setup, &mut steps);
        steps
    }

    fn take(&mut self, step: Step) -> Result<bool, Failed> {
        let Some(next) = step.take(self.setup, &self.world) else {
            return Ok(false);
        };
        self.taken.push(step);
        self.world = next;
        match self.world.broken {
            Some(broken) => Err(Failed::Breaks(broken)),
            None if at_rest(self.setup, &self.world) => Ok(true),
            None => Err(Failed::RestsBadly),
        }
    }

    /// Lets the controller do what is left to it; it must come to rest, and rest well.
    fn settle(&mut self) -> Result<(), Failed> {
        for _ in 0..60 {
            let mut own = self.possible();
            own.retain(|step| matches!(step.what, Watch | Decide | Arrive));
            let mut rests = true;
            for step in own {
                if self.take(step)? {
                    rests = false;
                    break;
                }
            }
            if rests {
                return Ok(());
            }
        }
        Err(Failed::Restless)
    }

    fn walk(&mut self, choices: &[u16]) -> Result<(), Failed> {
        for choice in choices {
            let steps = self.possible();
            // The controller is as busy as all others together.
            let own: Vec<Step> = steps
                .iter()
                .copied()
                .filter(|s| !s.what.is_bounded())
                .collect();
            let among = if choice % 2 == 0 && !own.is_empty() {
                &own
            } else {
                &steps
            };
            self.take(among[usize::from(choice / 2) % among.len()])?;
        }
        self.settle()
    }

    /// The same steps again, as far as they are possible.
    fn again(&mut self, steps: &[Step]) -> Result<(), Failed> {
        for step in steps {
            if self.possible().contains(step) {
                self.take(*step)?;
            }
        }
        self.settle()
    }
}

/// The steps without those that it does not take for this failure, one by one or in pairs.
fn shortest(setup: &Setup, mut steps: Vec<Step>, failed: &Failed) -> Vec<Step> {
    let fails = |steps: &[Step]| History::new(setup).again(steps).as_ref() == Err(failed);
    let mut part = steps.len();
    while part > 0 {
        let before = steps.len();
        let mut from = 0;
        while from < steps.len() {
            let mut fewer = steps.clone();
            fewer.drain(from..steps.len().min(from + part));
            if fails(&fewer) {
                steps = fewer;
            } else {
                from += part;
            }
        }
        // Single steps are tried until none can be left out.
        if part > 1 || steps.len() == before {
            part /= 2;
        }
    }
    let mut pairs = (0..steps.len()).flat_map(|one| (0..one).map(move |other| (one, other)));
    let without = |(one, other): (usize, usize)| {
        let mut fewer = steps.clone();
        fewer.remove(one);
        fewer.remove(other);
        fewer
    };
    match pairs.find_map(|pair| Some(without(pair)).filter(|fewer| fails(fewer))) {
        Some(fewer) => shortest(setup, fewer, failed),
        None => steps,
    }
}

fn run(setup: &Setup, choices: &[u16]) -> Result<(), TestCaseError> {
    let mut history = History::new(setup);
    history.walk(choices).map_err(|failed| {
        let steps = shortest(setup, history.taken, &failed);
        TestCaseError::fail(format!("{failed:?} after {steps:?}"))
    })
}

/// What the environment says, else 500 cases of one seed.
fn config() -> ProptestConfig {
    let given = ProptestConfig::default();
    let cases = match std::env::var_os("PROPTEST_CASES") {
        Some(_) => given.cases,
        None => 500,
    };
    let rng_seed = match given.rng_seed {
        RngSeed::Random => RngSeed::Fixed(1),
        RngSeed::Fixed(seed) => RngSeed::Fixed(seed),
    };
    ProptestConfig {
        cases,
        rng_seed,
        // What fails is shortened by its steps.
        max_shrink_iters: 0,
        ..given
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn one_node_keeps_all_promises(choices in prop::collection::vec(any::<u16>(), 1..LONGEST)) {
        run(&Setup::new(1, 2, &LIMITS), &choices)?;
    }

    #[test]
    fn a_cooperating_controller_keeps_all_promises(
        choices in prop::collection::vec(any::<u16>(), 1..LONGEST),
        yields: bool,
    ) {
        // Nothing on the node tells what a person undid just before a cooperating controller
        // started from what that controller did.
        let more = [(Cooperate, 4), (CooperatorUncordon, 2), (Uncordon, 0), (Untaint, 0)];
        let mut setup = Setup::new(1, 2, &with(&more));
        if yields {
            setup.policy.cooperator_policy = CooperatorPolicy::Yield;
        }
        run(&setup, &choices)?;
    }

    #[test]
    fn a_lost_store_keeps_all_promises(
        choices in prop::collection::vec(any::<u16>(), 1..LONGEST)
    ) {
        run(&Setup::new(1, 2, &with(&[(LoseStore, 2)])), &choices)?;
    }

    #[test]
    fn switching_modes_keeps_all_promises(
        choices in prop::collection::vec(any::<u16>(), 1..LONGEST),
        between in prop::sample::select(vec![Mode::DryRun, Mode::Off, Mode::Refused]),
    ) {
        let mut more = vec![(SwitchMode, 4)];
        if between == Mode::Off {
            // Nobody takes a request in while the module is off.
            more.extend([(Hold, 0), (Release, 0), (Cancel, 0), (Drop, 0)]);
        }
        let setup = Setup::new(1, 2, &with(&more));
        run(&setup.with_modes(vec![Mode::Enforce, between]), &choices)?;
    }

    #[test]
    fn two_nodes_and_a_breaker_keep_all_promises(
        choices in prop::collection::vec(any::<u16>(), 1..LONGEST),
        losses in 0..3_u8,
    ) {
        run(&Setup::new(2, 2, &with(&[(LoseStore, losses)])).with_level(1), &choices)?;
    }
}
