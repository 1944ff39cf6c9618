//! Which events of the socket are taken in: pure, with the time as argument.
//!
//! # Invariants (tests below)
//! - Everything kept is bounded; what is forgotten early costs a repeat, never an event.
//! - An event of an identity that is not open needs no token, so that a fault is never held up by
//!   its sender's noise; not beyond as many as the controller opens, so that noise can't take its form.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use health_event::{HealthEvent, keys};
use jiff::{SignedDuration, Timestamp};
use wire::datamodels as proto;

use crate::detectors::Triple;
use crate::spool::identity_of;

/// How long an event is known as taken.
pub(super) const DUPLICATES_FOR: SignedDuration = SignedDuration::from_mins(10);
/// Events known at most: the burst of eight senders.
const MAX_DUPLICATES: usize = 16_384;
/// Tokens of one sender: refill a second, and at most.
const RATE: f64 = 20.0;
const BURST: f64 = 2_000.0;
/// Senders known at most; of more, the one heard of longest ago starts anew.
const MAX_SENDERS: usize = 256;
/// Open identities known at most, and of one sender: as many faults as the controller opens of a node
/// and of an agent name. Beyond that new ones need tokens too.
const MAX_OPEN: usize = 1_024;
const MAX_OPEN_OF_ONE: usize = 512;
/// Agents whose clock is known to be wrong at most.
const MAX_SKEWED: usize = 64;
/// How often a wrong clock is told again.
const SKEW_AGAIN: SignedDuration = SignedDuration::from_mins(10);

/// Who calls: user id and agent name.
type Caller = (u32, String);

/// An event with what is known of its sending.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) event: HealthEvent,
    /// Hash of what was sent, if a time was given: without one two events may be equal and mean
    /// two things.
    pub(super) hash: Option<[u8; 32]>,
    pub(super) clock_skew: bool,
}

/// What to do with a batch.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// Take in these candidates (by index); the other events are those of these numbers.
    Take { new: Vec<usize>, known: Vec<u64> },
    /// Too many for now: there will be enough tokens after this.
    Wait(SignedDuration),
}

/// What is remembered between calls.
#[derive(Debug, Default)]
pub(super) struct Admission {
    numbers: HashMap<[u8; 32], u64>,
    taken: VecDeque<(Timestamp, [u8; 32])>,
    buckets: BTreeMap<Caller, Bucket>,
    open: HashMap<Caller, HashSet<[u8; 16]>>,
    open_in_all: usize,
    skewed: BTreeMap<String, Timestamp>,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    tokens: f64,
    at: Timestamp,
}

impl Admission {
    /// Which events of a batch are new, and whether there are tokens for them. Takes the tokens.
    pub(super) fn plan(&mut self, uid: u32, batch: &[Candidate], now: Timestamp) -> Plan {
        self.forget(now);
        let (mut new, mut known, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
        let mut needed: BTreeMap<&str, f64> = BTreeMap::new();
        let mut opening: HashMap<&str, HashSet<[u8; 16]>> = HashMap::new();
        let mut opening_in_all = 0;
        for (index, candidate) in batch.iter().enumerate() {
            if let Some(hash) = &candidate.hash {
                if let Some(number) = self.numbers.get(hash) {
                    known.push(*number);
                    continue;
                }
                if !seen.insert(hash) {
                    continue;
                }
            }
            new.push(index);
            let event = &candidate.event;
            let identity = identity_of(event);
            let of_sender = opening.entry(event.agent.as_str()).or_default();
            let room = (of_sender.len(), opening_in_all);
            let is_free = self.passes(uid, &identity, event, room) && of_sender.insert(identity);
            if !is_free {
                *needed.entry(event.agent.as_str()).or_default() += 1.0;
            } else if !event.is_healthy {
                opening_in_all += 1;
            }
        }
        let wait = needed
            .iter()
            .filter_map(|(agent, count)| self.lacking(uid, agent, *count, now))
            .max();
        if let Some(wait) = wait {
            return Plan::Wait(wait);
        }
        for (agent, count) in needed {
            self.bucket(uid, agent, now).tokens -= count;
        }
        Plan::Take { new, known }
    }

    /// Remembers what was taken in.
    pub(super) fn taken(&mut self, uid: u32, candidate: &Candidate, number: u64, now: Timestamp) {
        let identity = identity_of(&candidate.event);
        let caller = (uid, candidate.event.agent.clone());
        if candidate.event.is_healthy {
            if let Some(open) = self.open.get_mut(&caller) {
                self.open_in_all -= usize::from(open.remove(&identity));
                if open.is_empty() {
                    self.open.remove(&caller);
                }
            }
        } else if self.open_in_all < MAX_OPEN {
            let open = self.open.entry(caller).or_default();
            if open.len() < MAX_OPEN_OF_ONE {
                self.open_in_all += usize::from(open.insert(identity));
            }
        }
        let Some(hash) = candidate.hash else { return };
        if self.taken.len() >= MAX_DUPLICATES
            && let Some((_, oldest)) = self.taken.pop_front()
        {
            self.numbers.remove(&oldest);
        }
        self.numbers.insert(hash, number);
        self.taken.push_back((now, hash));
    }

    /// Whether an agent's clock has to be spoken of: `Some(healthy)`.
    pub(super) fn skew(&mut self, candidate: &Candidate, now: Timestamp) -> Option<bool> {
        let agent = candidate.event.agent.as_str();
        if !candidate.clock_skew {
            return self.skewed.remove(agent).map(|_| true);
        }
        let told = self.skewed.get(agent);
        if told.is_some_and(|at| now.duration_since(*at) < SKEW_AGAIN) {
            return None;
        }
        if told.is_none() && self.skewed.len() >= MAX_SKEWED {
            return None;
        }
        self.skewed.insert(agent.to_owned(), now);
        Some(false)
    }

    /// Whether an event needs no token: it opens what is not open, and there is room beside what the
    /// batch opens of its sender and in all.
    fn passes(
        &self,
        uid: u32,
        identity: &[u8; 16],
        event: &HealthEvent,
        (of_sender, in_all): (usize, usize),
    ) -> bool {
        let open = self.open.get(&(uid, event.agent.clone()));
        let known = open.is_some_and(|open| open.contains(identity));
        if event.is_healthy {
            known
        } else {
            !known
                && open.map_or(0, HashSet::len) + of_sender < MAX_OPEN_OF_ONE
                && self.open_in_all + in_all < MAX_OPEN
        }
    }

    fn lacking(
        &mut self,
        uid: u32,
        agent: &str,
        count: f64,
        now: Timestamp,
    ) -> Option<SignedDuration> {
        let lacking = count.min(BURST) - self.bucket(uid, agent, now).tokens;
        (lacking > 0.0).then(|| {
            SignedDuration::try_from_secs_f64(lacking / RATE).unwrap_or(SignedDuration::MAX)
        })
    }

    /// The sender's bucket, filled up to now.
    fn bucket(&mut self, uid: u32, agent: &str, now: Timestamp) -> &mut Bucket {
        let caller = (uid, agent.to_owned());
        if self.buckets.len() >= MAX_SENDERS && !self.buckets.contains_key(&caller) {
            let oldest = self.buckets.iter().min_by_key(|(_, bucket)| bucket.at);
            if let Some(oldest) = oldest.map(|(caller, _)| caller.clone()) {
                self.buckets.remove(&oldest);
            }
        }
        let bucket = self.buckets.entry(caller).or_insert(Bucket {
            tokens: BURST,
            at: now,
        });
        let seconds = now.duration_since(bucket.at).as_secs_f64().max(0.0);
        bucket.tokens = (bucket.tokens + seconds * RATE).min(BURST);
        bucket.at = now;
        bucket
    }

    fn forget(&mut self, now: Timestamp) {
        while let Some((at, hash)) = self.taken.front().copied() {
            if now.duration_since(at) < DUPLICATES_FOR {
                break;
            }
            self.taken.pop_front();
            self.numbers.remove(&hash);
        }
    }
}

/// Takes off what only an agent may say; `warden inject` is root and may mark its events.
pub(super) fn strip(event: &mut proto::HealthEvent, root: bool) {
    let injected = |key: &str| root && key == keys::INJECTED;
    event
        .metadata
        .retain(|key, _| !key.starts_with(keys::PREFIX) || injected(key));
}

/// Whether an event claims to be of a detector of this agent.
pub(super) fn owner<'a>(event: &HealthEvent, own: &'a [Triple]) -> Option<&'a Triple> {
    if event.metadata.contains_key(keys::INJECTED) {
        return None;
    }
    own.iter().find(|(agent, class, check)| {
        event.agent == *agent && event.component_class == *class && event.check_name == *check
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    fn candidate(agent: &str, code: u32, healthy: bool, hash: Option<u8>) -> Candidate {
        let event = HealthEvent {
            agent: agent.into(),
            check_name: "Check".into(),
            error_codes: vec![code.to_string()],
            is_healthy: healthy,
            ..HealthEvent::default()
        };
        Candidate {
            event,
            hash: hash.map(|n| [n; 32]),
            clock_skew: false,
        }
    }

    fn take(admission: &mut Admission, batch: &[Candidate], now: Timestamp) -> Plan {
        let plan = admission.plan(7, batch, now);
        if let Plan::Take { new, .. } = &plan {
            for index in new {
                admission.taken(7, &batch[*index], *index as u64 + 1, now);
            }
        }
        plan
    }

    fn all(new: Vec<usize>) -> Plan {
        Plan::Take {
            new,
            known: Vec::new(),
        }
    }

    #[test]
    fn an_equal_event_is_known_for_ten_minutes_and_in_its_own_batch() {
        let mut admission = Admission::default();
        let batch = [
            candidate("a", 1, false, Some(1)),
            candidate("a", 1, false, Some(1)),
            candidate("a", 1, false, None),
            candidate("a", 1, false, None),
        ];
        assert_eq!(take(&mut admission, &batch, at(0)), all(vec![0, 2, 3]));
        let again = Plan::Take {
            new: Vec::new(),
            known: vec![1],
        };
        assert_eq!(take(&mut admission, &batch[..1], at(599)), again);
        assert_eq!(take(&mut admission, &batch[..1], at(600)), all(vec![0]));
    }

    #[test]
    fn repeats_use_tokens_and_a_new_fault_passes_without() {
        let mut admission = Admission::default();
        let repeats: Vec<Candidate> = (0..1_000).map(|_| candidate("a", 1, false, None)).collect();
        take(&mut admission, &repeats[..1], at(0));
        for _ in 0..2 {
            assert!(matches!(
                take(&mut admission, &repeats, at(0)),
                Plan::Take { .. }
            ));
        }
        let Plan::Wait(wait) = admission.plan(7, &repeats[..20], at(0)) else {
            panic!("no tokens are left");
        };
        assert_eq!(wait, SignedDuration::from_secs(1));
        let other = [candidate("a", 2, false, None)];
        assert_eq!(
            take(&mut admission, &other, at(0)),
            all(vec![0]),
            "another fault"
        );
        let recovery = [candidate("a", 2, true, None)];
        assert_eq!(
            take(&mut admission, &recovery, at(0)),
            all(vec![0]),
            "its recovery"
        );
        assert!(
            matches!(admission.plan(7, &recovery, at(0)), Plan::Wait(_)),
            "said twice"
        );
        assert_eq!(
            take(&mut admission, &repeats[..20], at(1)),
            all((0..20).collect())
        );
        let sender = [candidate("b", 1, true, None)];
        assert_eq!(
            take(&mut admission, &sender, at(1)),
            all(vec![0]),
            "another agent's bucket"
        );
    }

    #[test]
    fn made_up_codes_pass_without_tokens_up_to_the_controllers_bound_only() {
        let mut admission = Admission::default();
        let codes = |agent: &str, from: u32, to: u32| -> Vec<Candidate> {
            let codes = from..to;
            codes
                .map(|code| candidate(agent, code, false, None))
                .collect()
        };
        // 512 without a token, 2,000 with those of the burst; the next ones 20 a second.
        for batch in codes("a", 0, 2_512).chunks(500) {
            assert!(matches!(
                take(&mut admission, batch, at(0)),
                Plan::Take { .. }
            ));
        }
        let next = codes("a", 3_000, 3_020);
        let wait = Plan::Wait(SignedDuration::from_secs(1));
        assert_eq!(take(&mut admission, &next, at(0)), wait);
        // One batch has no more than many.
        let mut other = Admission::default();
        assert!(matches!(
            take(&mut other, &codes("a", 0, 2_512), at(0)),
            Plan::Take { .. }
        ));
        assert_eq!(take(&mut other, &next, at(0)), wait);
        // Nobody else waits for it, and a recovery of what is open needs no token.
        let new = codes("b", 0, 1);
        assert_eq!(take(&mut admission, &new, at(0)), all(vec![0]));
        let recovery = [candidate("a", 5, true, None)];
        assert_eq!(take(&mut admission, &recovery, at(0)), all(vec![0]));
        assert_eq!(
            take(&mut admission, &next[..1], at(0)),
            all(vec![0]),
            "its room"
        );
    }

    #[test]
    fn a_wrong_clock_is_told_once_in_ten_minutes_and_its_end_once() {
        let mut admission = Admission::default();
        let good = candidate("a", 1, false, None);
        let bad = Candidate {
            clock_skew: true,
            ..good.clone()
        };
        assert_eq!(admission.skew(&good, at(0)), None);
        assert_eq!(admission.skew(&bad, at(0)), Some(false));
        assert_eq!(admission.skew(&bad, at(599)), None);
        assert_eq!(admission.skew(&bad, at(600)), Some(false));
        assert_eq!(admission.skew(&good, at(601)), Some(true));
        assert_eq!(admission.skew(&good, at(602)), None);
    }

    #[test]
    fn everything_remembered_is_bounded() {
        let mut admission = Admission::default();
        for n in 0..17_000_u32 {
            let mut sent = candidate(&(n % 300).to_string(), n, false, None);
            let mut hash = [0; 32];
            hash[..4].copy_from_slice(&n.to_be_bytes());
            sent.hash = Some(hash);
            sent.clock_skew = true;
            admission.plan(7, std::slice::from_ref(&sent), at(0));
            admission.taken(7, &sent, n.into(), at(0));
            admission.skew(&sent, at(0));
        }
        assert_eq!(admission.numbers.len(), MAX_DUPLICATES);
        assert_eq!(admission.taken.len(), MAX_DUPLICATES);
        assert_eq!(admission.open_in_all, MAX_OPEN);
        let open: usize = admission.open.values().map(HashSet::len).sum();
        assert_eq!(open, MAX_OPEN);
        assert!(admission.buckets.len() <= MAX_SENDERS);
        assert_eq!(admission.skewed.len(), MAX_SKEWED);
    }

    #[test]
    fn only_root_may_mark_an_event_as_injected_and_nobody_may_set_our_other_keys() {
        let marked = |root| {
            let mut event = proto::HealthEvent::default();
            for key in [keys::INJECTED, keys::ORDER, keys::DETECTOR, "mine"] {
                event.metadata.insert(key.into(), "x".into());
            }
            strip(&mut event, root);
            event.metadata.into_keys().collect::<Vec<_>>()
        };
        assert_eq!(marked(true), ["mine", keys::INJECTED]);
        assert_eq!(marked(false), ["mine"]);
    }
}
