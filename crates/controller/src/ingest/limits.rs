//! How fast and how much one sender may send.
//!
//! Two buckets a sender, events a second and stored bytes a second: flow control, which never holds
//! a sender back for longer than seconds, since a fault or a recovery may wait behind what is sent.
//! That one sender fills at most its share of the store is the store's own work (its retention).

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use health_event::Sender;
use tokio::time::Instant;

use crate::config::{IngestConfig, StoreConfig};

/// The part of the store that one sender may bring in between two runs of its retention, which are
/// a minute apart: a twentieth.
const SHARE: u64 = 20;
const MINUTE: f64 = 60.0;
/// Stored bytes that a sender may always bring in: in a second, and at once (a whole batch).
const LEAST_BYTES: f64 = 1_048_576.0;
const LEAST_BURST: f64 = 4.0 * LEAST_BYTES;
/// Longest time that stored bytes keep a sender waiting.
const LONGEST_DEBT: f64 = 5.0;
/// Longest time that a call is held to slow its sender down; more is a refusal with a hint.
const LONGEST_HOLD: Duration = Duration::from_secs(2);
/// Senders in one generation of the memory; two are kept.
const GENERATION: usize = 131_072;

/// What a batch has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Go on at once, or after this long.
    Pass(Duration),
    /// Come back after this long.
    TooFast(Duration),
    /// More was stored than may come in at once; come back after this long, some seconds.
    TooMuch(Duration),
}

/// All senders' buckets.
#[derive(Debug)]
pub struct Limits {
    events: Rate,
    bytes: Rate,
    buckets: Mutex<Generations>,
}

#[derive(Debug, Clone, Copy)]
struct Rate {
    per_second: f64,
    burst: f64,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    /// May be below nothing: what was stored is owed.
    level: f64,
    at: Instant,
}

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<Sender, [Bucket; 2]>,
    old: HashMap<Sender, [Bucket; 2]>,
}

impl Limits {
    /// By the configuration.
    pub fn new(ingest: &IngestConfig, store: &StoreConfig) -> Self {
        // Bytes and seconds lie far below 2^52: their conversion is exact.
        #[expect(
            clippy::cast_precision_loss,
            reason = "a share of the store needs no exact bytes"
        )]
        let share = (store.max_bytes / SHARE) as f64;
        Self {
            events: Rate {
                per_second: f64::from(ingest.sender_rate),
                burst: f64::from(ingest.sender_burst),
            },
            bytes: Rate {
                per_second: (share / MINUTE).max(LEAST_BYTES),
                burst: (share / 4.0).max(LEAST_BURST),
            },
            buckets: Mutex::default(),
        }
    }

    /// Takes what became rows of the store from its sender's bucket. Repeats and duplicates cost
    /// nothing: they are counted, not stored.
    pub fn charge(&self, sender: &Sender, bytes: usize, now: Instant) {
        let mut all = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let [_, stored] = all.get(sender, now, [self.events, self.bytes]);
        // What is owed is bounded: calls side by side don't add up to more than seconds.
        let most = -self.bytes.per_second * LONGEST_DEBT;
        stored.level = (stored.level - to_f64(bytes)).max(most);
    }

    /// Takes a batch from the sender's bucket of events, if both let it pass.
    pub fn take(&self, sender: &Sender, events: usize, now: Instant) -> Verdict {
        let mut all = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let [speed, stored] = all.get(sender, now, [self.events, self.bytes]);
        let wait = speed.wait_for(to_f64(events), self.events, now);
        if wait > LONGEST_HOLD {
            return Verdict::TooFast(wait);
        }
        // Until nothing is owed any more: what this batch will cost is known when it is stored.
        let owed = stored.wait_for(0.0, self.bytes, now);
        if owed > LONGEST_HOLD {
            return Verdict::TooMuch(owed);
        }
        speed.level -= to_f64(events);
        Verdict::Pass(wait.max(owed))
    }
}

fn to_f64(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

impl Bucket {
    /// Fills up to now, and says how long until `amount` is there.
    fn wait_for(&mut self, amount: f64, rate: Rate, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.level = (self.level + passed * rate.per_second).min(rate.burst);
        self.at = now;
        let missing = (amount - self.level).max(0.0);
        Duration::try_from_secs_f64(missing / rate.per_second).unwrap_or(Duration::MAX)
    }
}

impl Generations {
    fn get(&mut self, sender: &Sender, now: Instant, rates: [Rate; 2]) -> &mut [Bucket; 2] {
        if !self.young.contains_key(sender) && self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        let fresh = || {
            rates.map(|rate| Bucket {
                level: rate.burst,
                at: now,
            })
        };
        let known = self.old.remove(sender);
        self.young
            .entry(sender.clone())
            .or_insert_with(|| known.unwrap_or_else(fresh))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn limits(text: &str) -> Limits {
        let config = Config::parse(text).unwrap();
        Limits::new(&config.ingest, &config.store)
    }

    #[test]
    fn a_sender_above_its_rate_is_slowed_then_told_to_come_back_and_others_are_not() {
        let limits = limits("[ingest]\nsender_rate = 100\nsender_burst = 1000");
        let (a, b) = (Sender::agent("a"), Sender::agent("b"));
        let now = Instant::now();
        let take = |sender: &Sender, events, now| limits.take(sender, events, now);
        assert_eq!(take(&a, 1_000, now), Verdict::Pass(Duration::ZERO));
        assert_eq!(take(&a, 100, now), Verdict::Pass(Duration::from_secs(1)));
        assert_eq!(take(&a, 200, now), Verdict::TooFast(Duration::from_secs(3)));
        assert_eq!(take(&b, 1_000, now), Verdict::Pass(Duration::ZERO));
        let later = now + Duration::from_secs(2);
        assert_eq!(take(&a, 100, later), Verdict::Pass(Duration::ZERO));
    }

    #[test]
    fn what_was_stored_keeps_its_sender_waiting_for_seconds_at_most_and_no_other() {
        // A minute's share is some 1.8 MB a second, a quarter of it 27 MB (25.6 MiB) at once.
        let limits = limits("[store]\nmax_bytes = '2GiB'");
        let (a, b) = (Sender::agent("a"), Sender::agent("b"));
        let now = Instant::now();
        let take = |sender: &Sender, now| limits.take(sender, 1, now);
        limits.charge(&a, 25 << 20, now);
        assert_eq!(take(&a, now), Verdict::Pass(Duration::ZERO));
        limits.charge(&a, 3 << 20, now);
        assert!(matches!(take(&a, now), Verdict::Pass(wait) if !wait.is_zero()));
        // However much more was under way.
        for _ in 0..100 {
            limits.charge(&a, 4 << 20, now);
        }
        assert!(matches!(take(&a, now), Verdict::TooMuch(wait) if wait < Duration::from_secs(6)));
        assert_eq!(take(&b, now), Verdict::Pass(Duration::ZERO));
        let later = now + Duration::from_secs(5);
        assert!(matches!(take(&a, later), Verdict::Pass(_)));
    }

    #[test]
    fn a_small_store_takes_a_whole_batch_at_once() {
        let limits = limits("[store]\nmax_bytes = '1MiB'");
        let (sender, now) = (Sender::agent("a"), Instant::now());
        limits.charge(&sender, 4 << 20, now);
        assert_eq!(limits.take(&sender, 1, now), Verdict::Pass(Duration::ZERO));
    }
}
