//! No sender fills more than its share of the store: beyond it the sender's own oldest events go.
//!
//! Nothing is refused for it: a recovery or a fault behind a backlog is taken in at once, what is
//! open stays open (faults are rows of their own), and others' events stay.
//!
//! # Guarantees
//! - An event that a live consumer has not seen stays. A consumer that stands still gets a gap.
//! - Of each sender the newest [`LEAST`] bytes stay, which is more than one batch: what is sent
//!   again because its answer was lost is still known.
//! - What went is written down by sender, in the same transaction: how many, from, to, when.

use std::collections::{BTreeSet, HashMap};

use health_event::Sender;
use jiff::Timestamp;
use rusqlite::{Connection, params};

use crate::codec::nanos;
use crate::ledger::Ledger;
use crate::retention::note_gaps;

/// The part of the store that one sender may fill: a twentieth (wire-agent 3).
const SHARE: u64 = 20;
/// The least share, bytes: twice the largest batch.
pub(crate) const LEAST: u64 = 8 << 20;
/// What an event takes beside its body, bytes: its columns and its entries in two indices.
const ROW: u64 = 384;
/// Events that one step looks at: some milliseconds of the writer's time.
const STEP: usize = 2_000;
/// Events of one sender that one step removes.
const STEP_GONE: usize = 500;

/// What each sender has in the store.
#[derive(Default)]
pub(crate) struct Shares {
    held: HashMap<Sender, u64>,
    /// By the transaction under way: bytes that came and went.
    pending: HashMap<Sender, (u64, u64)>,
    over: BTreeSet<Sender>,
    share: u64,
    /// Events that the store had when it was opened are counted beside the work: up to here.
    counted_to: u64,
    /// As of the last commit, to go back to.
    kept: u64,
    /// The last of them.
    opened_at: u64,
    /// Where the next step looks on.
    swept_to: u64,
}

impl Shares {
    pub(crate) fn new(retention_bytes: u64, last: u64) -> Self {
        Self {
            share: (retention_bytes / SHARE).max(LEAST),
            opened_at: last,
            ..Self::default()
        }
    }

    pub(crate) fn came(&mut self, sender: &Sender, body: usize) {
        self.pending.entry(sender.clone()).or_default().0 += size(body as u64);
    }

    fn went(&mut self, seq: u64, sender: &Sender, body: u64) {
        if seq <= self.counted_to || seq > self.opened_at {
            self.pending.entry(sender.clone()).or_default().1 += size(body);
        }
    }

    fn held(&self, sender: &Sender) -> u64 {
        let held = self.held.get(sender).copied().unwrap_or(0);
        let (came, went) = self.pending.get(sender).copied().unwrap_or_default();
        (held + came).saturating_sub(went)
    }

    /// Below this a sender that was over its share is left alone again.
    fn enough(&self) -> u64 {
        self.share - self.share / 8
    }

    pub(crate) fn committed(&mut self) {
        self.kept = self.counted_to;
        for (sender, (came, went)) in std::mem::take(&mut self.pending) {
            let held = self.held.get(&sender).copied().unwrap_or(0);
            let held = (held + came).saturating_sub(went);
            if held > self.share {
                self.over.insert(sender.clone());
            } else if held <= self.enough() {
                self.over.remove(&sender);
            }
            if held == 0 {
                self.held.remove(&sender);
            } else {
                self.held.insert(sender, held);
            }
        }
    }

    /// The transaction failed.
    pub(crate) fn reset(&mut self) {
        self.pending.clear();
        self.counted_to = self.kept;
        self.swept_to = 0;
    }
}

fn size(body: u64) -> u64 {
    body + ROW
}

/// Position, sender and bytes of an event's body.
type Seen = (u64, Sender, u64);

impl Ledger {
    /// Notes that the events up to a position go.
    pub(crate) fn note_dropped(
        &mut self,
        connection: &Connection,
        last: u64,
    ) -> rusqlite::Result<()> {
        for (seq, sender, body) in look(connection, 0, last, usize::MAX)? {
            self.shares.went(seq, &sender, body);
        }
        let behind = last.min(self.shares.opened_at);
        self.shares.counted_to = self.shares.counted_to.max(behind);
        Ok(())
    }

    /// One step of counting what was there at the start; whether another is to follow, at least to
    /// look at what this one brought out.
    pub(crate) fn count_shares(&mut self, connection: &Connection) -> rusqlite::Result<bool> {
        let (from, to) = (self.shares.counted_to, self.shares.opened_at);
        if from >= to {
            return Ok(false);
        }
        let events = look(connection, from, to, STEP)?;
        let done = events.len() < STEP;
        let last = events.last().map_or(to, |(seq, ..)| *seq);
        self.shares.counted_to = if done { to } else { last };
        for (_, sender, body) in events {
            self.shares.pending.entry(sender).or_default().0 += size(body);
        }
        Ok(true)
    }

    /// One step of dropping what senders have beyond their shares, up to a position that all live
    /// consumers have seen. Answers how many events went, and whether there is more to look at.
    pub(crate) fn shed(
        &mut self,
        connection: &Connection,
        seen: u64,
        now: Timestamp,
    ) -> rusqlite::Result<(u64, bool)> {
        let is_counted = self.shares.counted_to >= self.shares.opened_at;
        if self.shares.over.is_empty() || !is_counted {
            self.shares.swept_to = 0;
            return Ok((0, false));
        }
        let events = look(connection, self.shares.swept_to, seen, STEP)?;
        let mut more = events.len() == STEP;
        let mut swept_to = events.last().map_or(0, |(seq, ..)| *seq);
        let mut gone: HashMap<Sender, Vec<u64>> = HashMap::new();
        for (seq, sender, body) in events {
            let is_over = self.shares.over.contains(&sender);
            if !is_over || self.shares.held(&sender) <= self.shares.enough() {
                continue;
            }
            let of_sender = gone.entry(sender.clone()).or_default();
            if of_sender.len() == STEP_GONE {
                (more, swept_to) = (true, seq - 1);
                break;
            }
            of_sender.push(seq);
            self.shares.went(seq, &sender, body);
        }
        self.shares.swept_to = if more { swept_to } else { 0 };
        let mut count = 0;
        for (sender, seqs) in gone {
            count += seqs.len() as u64;
            drop_of(connection, &sender, &seqs, now)?;
        }
        self.counters.shed += count;
        Ok((count, more))
    }
}

/// Events behind a position and up to another, oldest first.
fn look(connection: &Connection, after: u64, to: u64, limit: usize) -> rusqlite::Result<Vec<Seen>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let to = i64::try_from(to).unwrap_or(i64::MAX);
    let mut statement = connection.prepare_cached(
        "SELECT seq, sender, length(body) FROM events WHERE seq > ?1 AND seq <= ?2
         ORDER BY seq LIMIT ?3",
    )?;
    let rows = statement.query_map(params![after, to, limit], |row| {
        let sender = Sender::from_stored(row.get_ref(1)?.as_str()?);
        Ok((row.get(0)?, sender, row.get(2)?))
    })?;
    rows.collect()
}

/// Removes these events of a sender, and writes that down for people and consumers.
fn drop_of(
    connection: &Connection,
    sender: &Sender,
    seqs: &[u64],
    now: Timestamp,
) -> rusqlite::Result<()> {
    let (Some(first), Some(last)) = (seqs.first(), seqs.last()) else {
        return Ok(());
    };
    let mut delete = connection.prepare_cached("DELETE FROM events WHERE seq = ?1")?;
    for seq in seqs {
        delete.execute([seq])?;
    }
    note_gaps(connection, *last, now)?;
    connection
        .prepare_cached(
            "INSERT INTO shed (sender, events, from_seq, to_seq, first_at, last_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?5)
             ON CONFLICT (sender) DO UPDATE SET events = events + excluded.events,
                from_seq = min(from_seq, excluded.from_seq),
                to_seq = max(to_seq, excluded.to_seq), last_at = excluded.last_at",
        )?
        .execute(params![
            sender.as_str(),
            seqs.len() as u64,
            first,
            last,
            nanos(now)
        ])?;
    Ok(())
}
