//! The property of flapping, beside a second telling of the rule.

use proptest::prelude::*;

use super::tests::say;
use super::*;

/// One thing that happens to a fault, and how many seconds after the one before.
#[derive(Debug, Clone, Copy)]
enum Step {
    Unhealthy { fatal: bool },
    Healthy,
    Timer,
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// Mostly quick turns, so that most histories flap; now and then a pause around the window.
fn steps() -> impl Strategy<Value = Vec<(i64, Step)>> {
    let pause = prop_oneof![40 => 1..40_i64, 1 => 280..330_i64, 2 => 590..620_i64];
    let step = prop_oneof![
        30 => Just(Step::Unhealthy { fatal: false }),
        1 => Just(Step::Unhealthy { fatal: true }),
        30 => Just(Step::Healthy),
        8 => Just(Step::Timer),
    ];
    prop::collection::vec((pause, step), 20..120)
}

/// The rule in the words of faults-incidents 2, with the whole past at hand.
#[derive(Debug, Default)]
struct Rule {
    open: bool,
    fatal: bool,
    /// Held, since this fault that opened and closed so often was not healthy for long enough.
    held: bool,
    healthy_since: Option<i64>,
    closings: Vec<i64>,
}

impl Rule {
    fn take(&mut self, now: i64, step: Step) {
        match step {
            Step::Unhealthy { fatal } => {
                self.fatal = fatal || (self.open && self.fatal);
                self.held &= !self.fatal;
                (self.open, self.healthy_since) = (true, None);
            }
            Step::Healthy if !self.open => {}
            Step::Healthy => {
                let window = FLAP_WINDOW.as_secs();
                let since = *self.healthy_since.get_or_insert(now);
                // This would be one closing more.
                let closings = self.closings.iter().filter(|at| **at > now - window);
                self.held |= !self.fatal && closings.count() + 1 > FLAP_LIMIT;
                if !self.held || now - since >= window {
                    self.close(now);
                }
            }
            Step::Timer => {
                let since = self.healthy_since.filter(|_| self.open);
                if since.is_some_and(|since| now - since >= FLAP_WINDOW.as_secs()) {
                    self.close(now);
                }
            }
        }
    }

    fn close(&mut self, now: i64) {
        (self.open, self.held, self.healthy_since) = (false, false, None);
        self.closings.push(now);
    }
}

/// Whether a history held a fault, broke a hold, and let a held one go.
fn run(steps: &[(i64, Step)]) -> Result<[bool; 3], TestCaseError> {
    let (mut state, mut rule) = (ScopeState::default(), Rule::default());
    let boots = Boots::default();
    let (mut now, mut seen) = (0, [false; 3]);
    for ((pause, step), number) in steps.iter().zip(1..) {
        now += pause;
        let was_held = rule.held;
        rule.take(now, *step);
        seen[0] |= rule.held;
        seen[1] |= was_held && matches!(step, Step::Unhealthy { fatal: false });
        seen[2] |= was_held && !rule.open;
        let word = |word: &str, fatal: bool| {
            let mut statement = say(number, word, "GPU 0", "");
            statement.stamp.at = at(now);
            statement.fatal = fatal;
            statement
        };
        match step {
            Step::Unhealthy { fatal } => {
                state.apply(&word("U", *fatal), &boots, at(now));
            }
            Step::Healthy => {
                state.apply(&word("H", false), &boots, at(now));
            }
            Step::Timer => {
                state.release_flapping(at(now));
            }
        }
        let open = state.faults.first().is_some_and(|fault| fault.open);
        prop_assert_eq!(open, rule.open, "{} s, {:?}: {:?}", now, step, rule);
        let closes_at = state.faults.first().and_then(FaultState::closes_at);
        let expected = rule.healthy_since.filter(|_| rule.held);
        let expected = expected.map(|since| at(since) + FLAP_WINDOW);
        prop_assert_eq!(closes_at, expected, "{} s, {:?}: {:?}", now, step, rule);
    }
    Ok(seen)
}

/// A non-fatal fault that opened and closed more than 5 times in 10 min is held open until it was
/// healthy for 10 min without a break, and no other fault is. Every kind of turn was taken.
#[test]
fn a_fault_is_held_exactly_while_it_flaps() {
    let mut seen = [0_u32; 3];
    let config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(500)
    };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let counts = std::cell::RefCell::new(&mut seen);
    let tested = runner.run(&steps(), |steps| {
        let taken = run(&steps)?;
        for (count, taken) in counts.borrow_mut().iter_mut().zip(taken) {
            *count += u32::from(taken);
        }
        Ok(())
    });
    if let Err(error) = tested {
        panic!("{error}");
    }
    assert!(
        seen.iter().all(|count| *count > 50),
        "held, broken, let go: {seen:?}"
    );
}
