//! Events on their way out: kept in memory until they are safe, handed out in order. Pure.
//!
//! # Invariants (property test below)
//! - Each event is handed out in order and until it is acknowledged, whatever the disk does.
//! - An event leaves memory only when it is on disk or acknowledged.

use std::collections::BTreeMap;

use health_event::{HealthEvent, Order, keys};

/// Events that are neither on disk nor acknowledged at most.
pub const MAX_UNSAFE_EVENTS: usize = 2_048;
/// Their encoded bytes at most.
pub const MAX_UNSAFE_BYTES: usize = 4 * 1024 * 1024;
/// Events kept in memory for sending though they are on disk, at most; the rest is read back.
const WINDOW: usize = 256;
/// Bytes of one sending at most, a quarter of what a gRPC library takes.
const BATCH_BYTES: usize = 1024 * 1024;

/// What stands to be sent.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// These, in order.
    Batch(Vec<(u64, HealthEvent)>),
    /// Nothing.
    Empty,
}

/// The queue.
#[derive(Debug)]
pub(super) struct Outgoing {
    last_number: u64,
    acknowledged: u64,
    /// Highest number that may be on disk only; none if memory holds all that is not
    /// acknowledged.
    on_disk_through: Option<u64>,
    memory: BTreeMap<u64, Queued>,
    unsafe_events: usize,
    unsafe_bytes: usize,
}

#[derive(Debug)]
struct Queued {
    event: HealthEvent,
    bytes: usize,
    stored: bool,
}

/// What memory holds at the moment when the disk is asked. Taken together with the question,
/// because an event may become stored, and leave memory, before the answer is looked at.
#[derive(Debug)]
pub(super) struct View {
    /// Nothing up to here is asked for.
    pub(super) after: u64,
    /// Last number assigned: nothing later belongs into this answer.
    through: u64,
    events: Vec<(u64, HealthEvent)>,
}

impl Outgoing {
    /// After a start: the last number on disk, and whether events wait there.
    pub(super) fn new(last_number: u64, pending: bool) -> Self {
        Self {
            last_number,
            acknowledged: 0,
            on_disk_through: pending.then_some(last_number),
            memory: BTreeMap::new(),
            unsafe_events: 0,
            unsafe_bytes: 0,
        }
    }

    /// Takes in an event that is on its way to the disk.
    pub(super) fn push(&mut self, number: u64, event: HealthEvent, bytes: usize) {
        self.last_number = number;
        self.unsafe_events += 1;
        self.unsafe_bytes += bytes;
        let queued = Queued {
            event,
            bytes,
            stored: false,
        };
        self.memory.insert(number, queued);
    }

    /// Number of the last event.
    pub(super) fn last_number(&self) -> u64 {
        self.last_number
    }

    /// Events in memory.
    pub(super) fn in_memory(&self) -> usize {
        self.memory.len()
    }

    /// The first unacknowledged event that is in memory.
    pub(super) fn first(&self) -> Option<&HealthEvent> {
        self.memory.values().next().map(|queued| &queued.event)
    }

    /// Whether more may be taken in.
    pub(super) fn has_room(&self) -> bool {
        self.unsafe_events < MAX_UNSAFE_EVENTS && self.unsafe_bytes < MAX_UNSAFE_BYTES
    }

    /// Whether everything up to this number is acknowledged.
    pub(super) fn is_delivered(&self, number: u64) -> bool {
        self.acknowledged >= number || (self.memory.is_empty() && self.on_disk_through.is_none())
    }

    /// Whether all of these are on disk or acknowledged.
    pub(super) fn are_safe(&self, numbers: &[u64]) -> bool {
        numbers
            .iter()
            .all(|number| self.memory.get(number).is_none_or(|queued| queued.stored))
    }

    /// Events that are not known to be on disk.
    pub(super) fn unstored(&self) -> impl Iterator<Item = (u64, &HealthEvent)> {
        self.memory
            .iter()
            .filter(|(_, queued)| !queued.stored)
            .map(|(number, queued)| (*number, &queued.event))
    }

    /// All unacknowledged events up to this number are in memory.
    pub(super) fn held_through(&self) -> u64 {
        if self.on_disk_through.is_some() {
            return self.acknowledged;
        }
        self.memory.keys().next_back().copied().unwrap_or(0)
    }

    /// The event is on disk.
    pub(super) fn note_stored(&mut self, number: u64) {
        let Some(queued) = self.memory.get_mut(&number).filter(|q| !q.stored) else {
            return;
        };
        queued.stored = true;
        self.unsafe_events = self.unsafe_events.saturating_sub(1);
        self.unsafe_bytes = self.unsafe_bytes.saturating_sub(queued.bytes);
        // Beyond the window the disk remembers it for us.
        if self.memory.len() > WINDOW || self.on_disk_through.is_some() {
            self.memory.remove(&number);
            self.on_disk_through = self.on_disk_through.max(Some(number));
        }
    }

    /// The controller has everything up to this number.
    pub(super) fn acknowledge(&mut self, through: u64) {
        self.acknowledged = self.acknowledged.max(through);
        let later = self.memory.split_off(&(through + 1));
        let gone = std::mem::replace(&mut self.memory, later);
        for queued in gone.values().filter(|queued| !queued.stored) {
            self.unsafe_events = self.unsafe_events.saturating_sub(1);
            self.unsafe_bytes = self.unsafe_bytes.saturating_sub(queued.bytes);
        }
    }

    /// What is to be sent next, or what to ask the disk for.
    pub(super) fn next(&self, limit: usize) -> Result<Next, View> {
        if self.on_disk_through.is_none() {
            return Ok(batch(self.memory.iter().map(clone_queued), limit));
        }
        Err(View {
            after: self.acknowledged,
            through: self.last_number,
            events: self.memory.iter().take(limit).map(clone_queued).collect(),
        })
    }

    /// Puts what was read back and what was only in memory into one order.
    pub(super) fn merge(&mut self, read: Vec<HealthEvent>, view: View, limit: usize) -> Next {
        let complete = read.len() < limit && view.events.len() < limit;
        let mut through = view.through;
        let mut all: BTreeMap<u64, HealthEvent> = read
            .into_iter()
            .filter_map(|event| Some((number_of(&event)?, event)))
            .collect();
        for truncated in [
            all.keys()
                .next_back()
                .copied()
                .filter(|_| all.len() >= limit),
            view.events.get(limit - 1).map(|(number, _)| *number),
        ] {
            through = truncated.map_or(through, |number| through.min(number));
        }
        all.extend(view.events);
        all.retain(|number, _| *number > self.acknowledged && *number <= through);
        let nothing_newer = self.on_disk_through <= Some(view.through);
        if complete && nothing_newer && all.keys().all(|n| self.memory.contains_key(n)) {
            self.on_disk_through = None;
        }
        batch(all.into_iter(), limit)
    }
}

fn clone_queued((number, queued): (&u64, &Queued)) -> (u64, HealthEvent) {
    (*number, queued.event.clone())
}

fn batch(events: impl Iterator<Item = (u64, HealthEvent)>, limit: usize) -> Next {
    let mut batch = Vec::new();
    let mut bytes = 0;
    for (number, event) in events.take(limit) {
        bytes += size_of(&event);
        if bytes > BATCH_BYTES && !batch.is_empty() {
            break;
        }
        batch.push((number, event));
    }
    if batch.is_empty() {
        Next::Empty
    } else {
        Next::Batch(batch)
    }
}

/// About what the event takes on the wire: its texts, and a little for each.
fn size_of(event: &HealthEvent) -> usize {
    let metadata: usize = event
        .metadata
        .iter()
        .map(|(k, v)| k.len() + v.len() + 8)
        .sum();
    let entities: usize = event
        .entities
        .iter()
        .map(|e| e.kind.len() + e.value.len() + 8)
        .sum();
    event.message.len() + metadata + entities + event.error_codes.len() * 64 + 512
}

fn number_of(event: &HealthEvent) -> Option<u64> {
    let order: Order = event.metadata.get(keys::ORDER)?.parse().ok()?;
    Some(order.number)
}

#[cfg(test)]
mod tests;
