//! Which records of the kernel log are news, by their sequence numbers: pure.
//!
//! # Invariants (tests below)
//! - What was read plus what the gaps count is every record between the first and the last.
//! - A record is news once, across restarts of the agent in one boot.

use jiff::SignedDuration;

use crate::config::Start;
use crate::core::Saved;

/// What to do with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    /// It was seen before, or lies before the chosen start: only what it teaches counts.
    Old,
    /// It is from before the agent's first start and too old to act on.
    Historical,
    /// It is news.
    New,
}

/// Records that were overwritten before they were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lost {
    /// How many.
    pub(super) count: u64,
    /// First sequence number.
    pub(super) from: u64,
    /// Last sequence number.
    pub(super) to: u64,
}

/// Where the reader stands.
#[derive(Debug)]
pub(super) struct Place {
    start: Start,
    saved: Saved,
    lookback: SignedDuration,
    /// Until the ring was read to its end for the first time.
    first_pass: bool,
    /// Next sequence number if nothing is lost.
    expected: Option<u64>,
    lost: Option<Lost>,
}

impl Place {
    /// Before the first record.
    pub(super) fn new(start: Start, saved: Saved, lookback: SignedDuration) -> Self {
        let expected = match (saved, start) {
            (Saved::Here(sequence), _) => Some(sequence.saturating_add(1)),
            (Saved::OtherBoot, Start::Auto) => Some(0),
            (Saved::OtherBoot | Saved::None, Start::Sequence(first)) => Some(first),
            (Saved::OtherBoot, Start::End) | (Saved::None, Start::Auto | Start::End) => None,
        };
        Self {
            start,
            saved,
            lookback,
            first_pass: true,
            expected,
            lost: None,
        }
    }

    /// Judges the next record; `age` is how long ago it was written.
    pub(super) fn observe(&mut self, sequence: u64, age: SignedDuration) -> News {
        match self.expected {
            Some(expected) if sequence < expected => return News::Old,
            Some(expected) => self.count_lost(expected, sequence),
            None => {}
        }
        // A pipe may carry any number.
        self.expected = Some(sequence.saturating_add(1));
        let unsaved = !matches!(self.saved, Saved::Here(_));
        if self.first_pass && unsaved && self.start == Start::End {
            return News::Old;
        }
        let first_start = self.saved == Saved::None && self.start == Start::Auto;
        if self.first_pass && first_start && age > self.lookback {
            return News::Historical;
        }
        News::New
    }

    /// The ring was read to its end.
    pub(super) fn at_end(&mut self) {
        self.first_pass = false;
    }

    /// The last record read, which needs no second look.
    pub(super) fn last(&self) -> Option<u64> {
        self.expected.and_then(|n| n.checked_sub(1))
    }

    /// Whether anything was lost since then.
    pub(super) fn has_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// What was lost since the last call.
    pub(super) fn take_lost(&mut self) -> Option<Lost> {
        self.lost.take()
    }

    fn count_lost(&mut self, expected: u64, sequence: u64) {
        let count = sequence - expected;
        if count == 0 {
            return;
        }
        let lost = self.lost.get_or_insert(Lost {
            count: 0,
            from: expected,
            to: 0,
        });
        lost.count = lost.count.saturating_add(count);
        lost.to = sequence - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YOUNG: SignedDuration = SignedDuration::from_secs(1);
    const OLD: SignedDuration = SignedDuration::from_hours(1);
    const LOOKBACK: SignedDuration = SignedDuration::from_mins(10);

    fn place(start: Start, saved: Saved) -> Place {
        Place::new(start, saved, LOOKBACK)
    }

    #[test]
    fn every_start_has_its_first_record() {
        use News::{Historical, New, Old};
        // (start, saved) -> news of an old and a young record 50 in the first pass, record 51
        // after it, and what is counted as lost before 50.
        let table = [
            (Start::Auto, Saved::None, Historical, New, New, 0),
            (Start::Auto, Saved::OtherBoot, New, New, New, 50),
            (Start::Auto, Saved::Here(49), New, New, New, 0),
            (Start::Auto, Saved::Here(40), New, New, New, 9),
            (Start::Auto, Saved::Here(50), Old, Old, New, 0),
            (Start::End, Saved::None, Old, Old, New, 0),
            (Start::End, Saved::OtherBoot, Old, Old, New, 0),
            (Start::End, Saved::Here(49), New, New, New, 0),
            (Start::Sequence(51), Saved::None, Old, Old, New, 0),
            (Start::Sequence(50), Saved::OtherBoot, New, New, New, 0),
            (Start::Sequence(48), Saved::None, New, New, New, 2),
        ];
        for (start, saved, old, young, later, lost) in table {
            let case = format!("{start:?} {saved:?}");
            assert_eq!(place(start, saved).observe(50, OLD), old, "{case}");
            let mut place = place(start, saved);
            assert_eq!(place.observe(50, YOUNG), young, "{case}");
            let counted = place.take_lost().map_or(0, |lost| lost.count);
            assert_eq!(counted, lost, "{case}");
            place.at_end();
            assert_eq!(place.observe(51, OLD), later, "{case}");
            assert_eq!(place.last(), Some(51), "{case}");
        }
    }

    #[test]
    fn read_and_lost_together_are_every_record() {
        let mut place = place(Start::Auto, Saved::Here(9));
        let mut read = 0;
        for sequence in [10, 11, 15, 16, 30] {
            assert_eq!(place.observe(sequence, YOUNG), News::New);
            read += 1;
        }
        let lost = place.take_lost().unwrap();
        assert_eq!((lost.count, lost.from, lost.to), (16, 12, 29));
        assert_eq!(read + lost.count, 21);
        assert_eq!(place.take_lost(), None);
        assert_eq!(place.observe(30, YOUNG), News::Old, "never twice");
    }

    #[test]
    fn no_number_makes_it_panic() {
        let mut place = place(Start::Auto, Saved::Here(u64::MAX));
        for sequence in [u64::MAX, 0, u64::MAX] {
            place.observe(sequence, YOUNG);
        }
        assert_eq!(place.last(), Some(u64::MAX - 1));
    }
}
