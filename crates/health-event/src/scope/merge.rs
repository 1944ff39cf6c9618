//! Two scopes that are one: a check that has another name since.

use jiff::Timestamp;

use super::{FLAP_LIMIT, FaultState, ScopeState};
use crate::order::Boots;

impl ScopeState {
    /// Takes in what was kept of the same check under an older name: the same faults are open
    /// afterwards as if all of it had been said under one name (property test). `now` serves
    /// flapping, as in [`ScopeState::apply`].
    ///
    /// Of two that are one fault, the one here keeps its row. Where the newest statement alone
    /// decides ([`super::Statement::newest_counts`]), the graver one stands until the next.
    pub fn merge(&mut self, older: Self, boots: &Boots, now: Timestamp) {
        for clear in older.clears {
            self.keep(clear, boots);
        }
        for fault in older.faults {
            match self.position(fault.space, &fault.device, &fault.code) {
                Some(index) => {
                    self.faults[index].join(fault, boots);
                    self.unify(index, boots, &mut Vec::new());
                }
                None => self.faults.push(fault),
            }
        }
        for index in 0..self.faults.len() {
            self.judge(index, boots, now, false);
        }
    }
}

impl FaultState {
    fn join(&mut self, other: Self, boots: &Boots) {
        self.take_words(&other, boots);
        self.described = self.described.max(other.described);
        self.open |= other.open;
        self.fatal |= other.fatal;
        self.held_until = self.held_until.max(other.held_until);
        self.closings.extend(other.closings);
        self.closings.sort_unstable();
        let older = self.closings.len().saturating_sub(FLAP_LIMIT + 1);
        self.closings.drain(..older);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::{Summary, history, open, say, summary, summary_of, taken_in};
    use super::*;

    /// What is open if some of a history was said under an older name.
    fn merged(history: &[(bool, super::super::Statement)]) -> Summary {
        let part = |older: bool| {
            let said = history.iter().zip(1_i64..);
            taken_in(
                said.filter(|((under_older, _), _)| *under_older == older)
                    .map(|((_, statement), index)| (statement, index)),
            )
        };
        let (mut present, boots) = part(false);
        present.merge(part(true).0, &boots, Timestamp::MAX);
        summary_of(&present)
    }

    #[test]
    fn a_fault_that_both_names_know_is_one() {
        let one = [
            (true, say(1, "U", "GPU 0", "79")),
            (false, say(2, "U", "GPU 0, PCI 0000:17:00", "79")),
        ];
        let part = |older| {
            let said = one.iter().filter(move |(under, _)| *under == older);
            taken_in(said.map(|(_, statement)| (statement, 1)))
        };
        let (mut present, boots) = part(false);
        present.merge(part(true).0, &boots, Timestamp::MAX);
        assert_eq!(open(&present), ["PCI=0000:17:00 79"]);
        assert_eq!(present.faults.len(), 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn two_names_of_a_check_are_one_check(
            history in history().prop_flat_map(|h| {
                let under_older = prop::collection::vec(any::<bool>(), h.len());
                (under_older, Just(h)).prop_map(|(older, h)| older.into_iter().zip(h).collect::<Vec<_>>())
            })
        ) {
            let under_one: Vec<_> = history.iter().map(|(_, statement)| statement.clone()).collect();
            prop_assert_eq!(merged(&history), summary(&under_one));
        }
    }
}
