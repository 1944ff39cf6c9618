//! How fast and how much one sender may send.
//!
//! Two buckets a sender: events a second (a sender above it waits, which is its flow control), and
//! bytes, so that one sender fills at most its share of the store. Both are in memory; after a start
//! what each sender has stored is taken from its share again ([`Limits::charge`]).

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use health_event::Sender;
use tokio::time::Instant;

use crate::config::{IngestConfig, StoreConfig};

/// The part of the store that one sender may fill: a twentieth.
const SHARE: u64 = 20;
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
    /// The share of the store is used up; come back after this long.
    ShareUsed(Duration),
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
    /// May be below nothing: what was let pass is owed.
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
                per_second: share / store.max_age.as_secs_f64(),
                burst: share,
            },
            buckets: Mutex::default(),
        }
    }

    /// Takes what is stored already from the senders' shares.
    pub fn charge(&self, stored: Vec<(Sender, u64)>, now: Instant) {
        let mut all = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        for (sender, bytes) in stored {
            let [_, share] = all.get(&sender, now, [self.events, self.bytes]);
            let bytes = f64::from(u32::try_from(bytes).unwrap_or(u32::MAX));
            share.level = (share.level - bytes).max(-self.bytes.burst);
        }
    }

    /// Takes a batch from the sender's buckets. `urgent` (something is fatal) passes the share.
    pub fn take(
        &self,
        sender: &Sender,
        events: usize,
        bytes: usize,
        urgent: bool,
        now: Instant,
    ) -> Verdict {
        let mut all = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let [speed, share] = all.get(sender, now, [self.events, self.bytes]);
        let wait = speed.wait_for(to_f64(events), self.events, now);
        if wait > LONGEST_HOLD {
            return Verdict::TooFast(wait);
        }
        let share_wait = share.wait_for(to_f64(bytes), self.bytes, now);
        if !urgent && !share_wait.is_zero() {
            return Verdict::ShareUsed(share_wait);
        }
        speed.level -= to_f64(events);
        // What is owed is bounded, so that urgent events don't shut a sender out for days.
        share.level = (share.level - to_f64(bytes)).max(-self.bytes.burst);
        Verdict::Pass(wait)
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
        let take = |sender: &Sender, events, now| limits.take(sender, events, 0, false, now);
        assert_eq!(take(&a, 1_000, now), Verdict::Pass(Duration::ZERO));
        assert_eq!(take(&a, 100, now), Verdict::Pass(Duration::from_secs(1)));
        assert_eq!(take(&a, 200, now), Verdict::TooFast(Duration::from_secs(3)));
        assert_eq!(take(&b, 1_000, now), Verdict::Pass(Duration::ZERO));
        let later = now + Duration::from_secs(2);
        assert_eq!(take(&a, 100, later), Verdict::Pass(Duration::ZERO));
    }

    #[test]
    fn a_sender_fills_a_twentieth_of_the_store_and_what_is_fatal_passes() {
        let limits = limits("[store]\nmax_bytes = '20MiB'\nmax_age = '1h'");
        let sender = Sender::agent("a");
        let now = Instant::now();
        let take = |bytes, urgent| limits.take(&sender, 1, bytes, urgent, now);
        assert_eq!(take(1 << 20, false), Verdict::Pass(Duration::ZERO));
        assert!(matches!(take(1_000, false), Verdict::ShareUsed(_)));
        assert_eq!(take(1_000, true), Verdict::Pass(Duration::ZERO));
        let later = now + Duration::from_hours(1);
        assert_eq!(
            limits.take(&sender, 1, 1_000, false, later),
            Verdict::Pass(Duration::ZERO)
        );
    }

    #[test]
    fn what_is_stored_already_counts_and_only_its_senders() {
        let limits = limits("[store]\nmax_bytes = '20MiB'\nmax_age = '1h'");
        let (full, half, fresh) = (Sender::agent("a"), Sender::agent("b"), Sender::agent("c"));
        let now = Instant::now();
        limits.charge(vec![(full.clone(), 1 << 20), (half.clone(), 1 << 19)], now);
        let take = |sender: &Sender, bytes| limits.take(sender, 1, bytes, false, now);
        assert!(matches!(take(&full, 1_000), Verdict::ShareUsed(_)));
        assert_eq!(take(&half, 1 << 19), Verdict::Pass(Duration::ZERO));
        assert!(matches!(take(&half, 1_000), Verdict::ShareUsed(_)));
        assert_eq!(take(&fresh, 1 << 20), Verdict::Pass(Duration::ZERO));
    }
}
