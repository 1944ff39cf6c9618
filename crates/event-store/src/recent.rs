//! Answers that were read lately, kept until a commit touches them.
//!
//! A decision about one node is made several times within milliseconds: for the event, for the
//! stored intent, for each change of the node. Each commit makes SQLite drop all pages of its
//! readers, so that without this each of them read the same rows from the file again.
//!
//! # Invariants
//! - After the writer's [`Recent::forget`], which comes before listeners and replies, no answer
//!   from before that commit is given.
//! - At most [`MOST`] answers are kept.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Answers kept of each kind: those of nodes at work. 2,048 nodes with one fault and one incident
/// each take about 4 MiB.
const MOST: usize = 2_048;

/// Answers by what was asked for.
pub(crate) struct Recent<K, V> {
    slots: Mutex<Slots<K, V>>,
}

struct Slots<K, V> {
    by_key: HashMap<K, Slot<V>>,
    reads: u64,
}

enum Slot<V> {
    /// The read of this number runs; its answer counts unless a commit comes between.
    Reading(u64),
    Known(V),
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self {
            slots: Mutex::new(Slots {
                by_key: HashMap::new(),
                reads: 0,
            }),
        }
    }
}

impl<K: Hash + Eq + Clone, V: Clone> Recent<K, V> {
    /// The kept answer, or else what `read` finds, which is kept if it is `worth` it.
    pub(crate) fn get<E>(
        &self,
        key: &K,
        worth: impl FnOnce(&V) -> bool,
        read: impl FnOnce() -> Result<V, E>,
    ) -> Result<V, E> {
        let number = {
            let mut slots = self.lock();
            if let Some(Slot::Known(known)) = slots.by_key.get(key) {
                return Ok(known.clone());
            }
            slots.begin(key)
        };
        let answer = read();
        let mut slots = self.lock();
        if let Some(slot @ Slot::Reading(_)) = slots.by_key.get_mut(key)
            && matches!(slot, Slot::Reading(reading) if *reading == number)
        {
            match &answer {
                Ok(answer) if worth(answer) => *slot = Slot::Known(answer.clone()),
                Ok(_) | Err(_) => drop(slots.by_key.remove(key)),
            }
        }
        answer
    }

    /// A commit touched these.
    pub(crate) fn forget<'a>(&self, keys: impl IntoIterator<Item = &'a K>)
    where
        K: 'a,
    {
        let mut slots = self.lock();
        for key in keys {
            slots.by_key.remove(key);
        }
    }

    /// No kept answer is given from now on.
    pub(crate) fn clear(&self) {
        self.lock().by_key = HashMap::new();
    }

    fn lock(&self) -> MutexGuard<'_, Slots<K, V>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Hash + Eq + Clone, V> Slots<K, V> {
    /// Notes that a read begins, for which any other answer makes room.
    fn begin(&mut self, key: &K) -> u64 {
        if self.by_key.len() >= MOST
            && !self.by_key.contains_key(key)
            && let Some(other) = self.by_key.keys().next().cloned()
        {
            self.by_key.remove(&other);
        }
        self.reads += 1;
        self.by_key.insert(key.clone(), Slot::Reading(self.reads));
        self.reads
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn get(recent: &Recent<u32, u32>, key: u32, read: impl FnOnce() -> u32) -> u32 {
        let read = || Ok::<_, Infallible>(read());
        recent.get(&key, |_| true, read).unwrap()
    }

    #[test]
    fn an_answer_is_kept_until_a_commit_touches_it() {
        let recent = Recent::default();
        assert_eq!(get(&recent, 1, || 10), 10);
        assert_eq!(get(&recent, 1, || unreachable!("it is known")), 10);
        recent.forget([&2]);
        assert_eq!(get(&recent, 1, || unreachable!("it is known")), 10);
        recent.forget([&1]);
        assert_eq!(get(&recent, 1, || 11), 11);
    }

    #[test]
    fn what_was_read_before_a_commit_is_not_kept_after_it() {
        let recent = Recent::default();
        let old = get(&recent, 1, || {
            recent.forget([&1]);
            10
        });
        assert_eq!(old, 10, "the reader began before the commit");
        assert_eq!(get(&recent, 1, || 11), 11);
        // The same with a second reader that began after it.
        recent.forget([&1]);
        get(&recent, 1, || {
            recent.forget([&1]);
            assert_eq!(get(&recent, 1, || 13), 13);
            12
        });
        assert_eq!(get(&recent, 1, || unreachable!("it is known")), 13);
    }

    #[test]
    fn failures_and_what_is_not_worth_it_are_not_kept_and_memory_is_bounded() {
        let recent: Recent<u32, u32> = Recent::default();
        assert_eq!(recent.get(&1, |_| true, || Err("no")), Err("no"));
        assert_eq!(recent.get(&1, |_| false, || Ok::<_, ()>(1)), Ok(1));
        assert!(recent.lock().by_key.is_empty());
        for key in 0..10_000 {
            get(&recent, key, || key);
        }
        assert_eq!(recent.lock().by_key.len(), MOST);
    }
}
