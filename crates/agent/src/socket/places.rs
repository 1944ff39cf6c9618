//! Who may be connected, and which connection goes when there is no place: pure, with the time as
//! argument.
//!
//! # Invariants (tests below)
//! - Neither root nor another user can use up what the other one needs: each has a pool of its own.
//! - No user can use up the others' pool.
//! - A connection on which no call runs gives way to a new one; one with a call never does.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// Connections of root at most, and of all other users together. A node has some ten monitors,
/// most of them root's, with one connection each.
pub(super) const POOL: usize = 32;
/// Connections of one user other than root at most: four such users fit.
pub(super) const A_USER: usize = 8;
/// How long a connection may take to say that it speaks HTTP/2; clients say it at once.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(5);
/// How long a connection stays without a call. Clients connect again by themselves.
pub(super) const IDLE: Duration = Duration::from_mins(5);

/// All connections.
#[derive(Debug, Default)]
pub(super) struct Places {
    taken: BTreeMap<u64, Place>,
    next: u64,
}

#[derive(Debug)]
struct Place {
    uid: u32,
    /// It speaks HTTP/2.
    greeted: bool,
    /// A call of it was answered.
    worked: bool,
    calls: usize,
    /// Since when no call runs.
    idle_since: Instant,
}

/// A connection that got a place.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entered {
    pub(super) id: u64,
    /// The connection that has to end for it.
    pub(super) instead_of: Option<u64>,
}

impl Places {
    /// Gives a new connection its place; None if all are in use.
    pub(super) fn enter(&mut self, uid: u32, now: Instant) -> Option<Entered> {
        let instead_of = match self.crowded(uid) {
            None => None,
            Some(user) => Some(self.idlest(user)?),
        };
        if let Some(id) = instead_of {
            self.taken.remove(&id);
        }
        let id = self.next;
        self.next += 1;
        let place = Place {
            uid,
            greeted: false,
            worked: false,
            calls: 0,
            idle_since: now,
        };
        self.taken.insert(id, place);
        Some(Entered { id, instead_of })
    }

    /// It ended.
    pub(super) fn leave(&mut self, id: u64) {
        self.taken.remove(&id);
    }

    /// It said that it speaks HTTP/2.
    pub(super) fn greeted(&mut self, id: u64) {
        if let Some(place) = self.taken.get_mut(&id) {
            place.greeted = true;
        }
    }

    /// A call of it begins.
    pub(super) fn begin(&mut self, id: u64) {
        if let Some(place) = self.taken.get_mut(&id) {
            place.calls += 1;
        }
    }

    /// A call of it ended; `answered`, or given up.
    pub(super) fn end(&mut self, id: u64, answered: bool, now: Instant) {
        if let Some(place) = self.taken.get_mut(&id) {
            place.calls = place.calls.saturating_sub(1);
            place.worked |= answered;
            place.idle_since = now;
        }
    }

    /// Takes out what has been silent for too long. Answers each with whether it spoke HTTP/2.
    pub(super) fn take_silent(&mut self, now: Instant) -> Vec<(u64, bool)> {
        let silent: Vec<(u64, bool)> = self
            .taken
            .iter()
            .filter(|(_, place)| place.calls == 0 && place.ends_at() <= now)
            .map(|(id, place)| (*id, place.greeted))
            .collect();
        for (id, _) in &silent {
            self.taken.remove(id);
        }
        silent
    }

    /// When to look for silent ones next; None without connections.
    pub(super) fn look_at(&self, now: Instant) -> Option<Instant> {
        let idle = self.taken.values().filter(|place| place.calls == 0);
        let first = idle.map(Place::ends_at).min();
        // A call that runs now may end, and be the last, at any time.
        (!self.taken.is_empty()).then(|| first.map_or(now + IDLE, |at| at.min(now + IDLE)))
    }

    /// The user of whom a connection has to go before one of `uid` comes, if there is no place.
    fn crowded(&self, uid: u32) -> Option<u32> {
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        for place in self
            .taken
            .values()
            .filter(|p| is_root(p.uid) == is_root(uid))
        {
            *counts.entry(place.uid).or_default() += 1;
        }
        let most = if is_root(uid) { POOL } else { A_USER };
        if counts.get(&uid).is_some_and(|count| *count >= most) {
            return Some(uid);
        }
        let full = counts.values().sum::<usize>() >= POOL;
        let largest = counts.into_iter().max_by_key(|(_, count)| *count);
        largest.filter(|_| full).map(|(user, _)| user)
    }

    /// The connection of a user that is missed least: one that never worked before one that did,
    /// then the one without a call for the longest time.
    fn idlest(&self, uid: u32) -> Option<u64> {
        let idle = self
            .taken
            .iter()
            .filter(|(_, p)| p.uid == uid && p.calls == 0);
        let idlest = idle.min_by_key(|(_, place)| (place.worked, place.idle_since));
        idlest.map(|(id, _)| *id)
    }
}

impl Place {
    fn ends_at(&self) -> Instant {
        self.idle_since + if self.greeted { IDLE } else { HANDSHAKE }
    }
}

pub(super) fn is_root(uid: u32) -> bool {
    uid == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(places: &mut Places, uid: u32, at: Instant) -> Entered {
        places.enter(uid, at).unwrap()
    }

    #[test]
    fn nobody_takes_the_places_of_others() {
        let now = Instant::now();
        let mut places = Places::default();
        for uid in [7, 0, 8, 9, 10, 11] {
            for n in 0..100 {
                let entered = places.enter(uid, now);
                let busy = entered.map(|entered| {
                    places.begin(entered.id);
                    entered.instead_of
                });
                let share = if uid == 0 { POOL } else { A_USER };
                // Four users fill the pool of those that are not root.
                let expected = (n < share && uid != 11).then_some(None);
                assert_eq!(busy, expected, "user {uid}, connection {n}");
            }
        }
    }

    #[test]
    fn a_silent_connection_gives_way_and_one_that_worked_does_so_last() {
        let now = Instant::now();
        let second = Duration::from_secs(1);
        let mut places = Places::default();
        let worked = enter(&mut places, 7, now).id;
        places.begin(worked);
        places.end(worked, true, now);
        let busy = enter(&mut places, 7, now).id;
        places.begin(busy);
        let silent: Vec<u64> = (1..7)
            .map(|n| enter(&mut places, 7, now + n * second).id)
            .collect();
        for (n, silent) in (7..).zip(&silent) {
            let entered = enter(&mut places, 7, now + n * second);
            assert_eq!(entered.instead_of, Some(*silent));
            places.begin(entered.id);
        }
        assert_eq!(enter(&mut places, 7, now).instead_of, Some(worked));
    }

    #[test]
    fn in_a_full_pool_the_user_with_most_gives_way() {
        let now = Instant::now();
        let mut places = Places::default();
        let greedy: Vec<u64> = (0..8).map(|_| enter(&mut places, 7, now).id).collect();
        for uid in 100..124 {
            enter(&mut places, uid, now);
        }
        assert_eq!(enter(&mut places, 200, now).instead_of, Some(greedy[0]));
        assert_eq!(enter(&mut places, 0, now).instead_of, None);
    }

    #[test]
    fn what_says_nothing_ends() {
        let now = Instant::now();
        let just_before = |time: Duration| now + time - Duration::from_millis(1);
        let mut places = Places::default();
        assert_eq!(places.look_at(now), None);
        let mute = enter(&mut places, 7, now).id;
        let idle = enter(&mut places, 7, now).id;
        places.greeted(idle);
        let busy = enter(&mut places, 7, now).id;
        places.greeted(busy);
        places.begin(busy);
        assert_eq!(places.look_at(now), Some(now + HANDSHAKE));
        assert!(places.take_silent(just_before(HANDSHAKE)).is_empty());
        assert_eq!(places.take_silent(now + HANDSHAKE), [(mute, false)]);
        assert_eq!(places.look_at(now + HANDSHAKE), Some(now + IDLE));
        assert!(places.take_silent(just_before(IDLE)).is_empty());
        assert_eq!(places.take_silent(now + IDLE), [(idle, true)]);
        assert_eq!(places.look_at(now + IDLE), Some(now + 2 * IDLE));
        places.end(busy, true, now + IDLE);
        assert!(places.take_silent(just_before(2 * IDLE)).is_empty());
        assert_eq!(places.take_silent(now + 2 * IDLE), [(busy, true)]);
    }
}
