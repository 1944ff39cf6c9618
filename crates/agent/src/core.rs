//! The middle of the agent: numbers every event, keeps it in memory until it is safe, folds our
//! own into the asserted set, and knows what is to be sent next.
//!
//! # Invariants
//! - Numbers rise; after a start they begin above any that a crash may have used unsaved.
//! - An event leaves memory only when it is on disk or the controller has it.
//! - What is not on disk is at most [`MAX_UNSAFE_EVENTS`] events and [`MAX_UNSAFE_BYTES`] bytes;
//!   beyond that nothing is taken in: socket calls wait, the kernel log waits in its ring.
//! - Events are handed out in order.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use health_event::{HealthEvent, Order, keys};
use jiff::Timestamp;
use tokio::sync::{Notify, watch};
use ulid::Ulid;

use crate::detectors::{Detectors, Health};
use crate::faults::Faults;
use crate::ids::Identity;
use crate::own::{self, Gap};
use crate::spool::{Done, Level, Position, Row, Spool, SpoolError, Stored, Write, identity_of};

/// Events that are neither on disk nor acknowledged at most.
pub const MAX_UNSAFE_EVENTS: usize = 2_048;
/// Their encoded bytes at most.
pub const MAX_UNSAFE_BYTES: usize = 4 * 1024 * 1024;
/// Events kept in memory for sending though they are on disk, at most; the rest is read back.
const WINDOW: usize = 256;
/// One sending at most.
const BATCH_EVENTS: usize = 256;
const BATCH_BYTES: usize = 1024 * 1024;
/// How far numbers jump at a start: more than can have been sent and lost unsaved by a crash.
const RESTART_JUMP: u64 = 1 << 20;
/// Failed writes in a row after which the spool is a fault of its own, and good ones that end it.
const FAILURES: u32 = 3;
const SUCCESSES: u32 = 2;
/// How often a failed write is tried again.
pub const RETRY: Duration = Duration::from_secs(1);

/// No room: what is not safe yet must become so first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the spool can't be written and the controller can't be reached: {MAX_UNSAFE_EVENTS} events \
     wait in memory"
)]
pub struct NoRoom;

/// The shared middle. Every lock is short and never held across an await.
#[derive(Debug)]
pub struct Core {
    identity: Identity,
    inner: Mutex<Inner>,
    spool: Spool,
    /// Something to send.
    pub send: Notify,
    /// Something to report.
    pub report: Notify,
    /// Rises whenever events became safe.
    progress: watch::Sender<u64>,
    /// A write failed and has to be repeated.
    retry: Notify,
}

#[derive(Debug)]
struct Inner {
    spool_id: String,
    next_number: u64,
    last_number: u64,
    acknowledged: u64,
    /// Highest number that may be on disk only; none if memory holds all that is not
    /// acknowledged.
    on_disk_through: Option<u64>,
    memory: BTreeMap<u64, Queued>,
    unsafe_events: usize,
    unsafe_bytes: usize,
    faults: Faults,
    position: Option<Position>,
    boots: Option<Vec<String>>,
    adopting: bool,
    adopted_unsaved: bool,
    rewrite: bool,
    failures: u32,
    successes: u32,
    spool_fault: bool,
    level: Level,
    counters: Counters,
    detectors: Detectors,
    pass_done: bool,
}

#[derive(Debug, Clone)]
struct Queued {
    event: HealthEvent,
    bytes: usize,
    stored: bool,
}

/// Numbers for `/metrics`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Events taken in.
    pub taken: u64,
    /// Events that the controller has.
    pub delivered: u64,
    /// Events that it refused.
    pub refused: u64,
    /// Failed writes of the spool.
    pub write_failures: u64,
    /// Kernel log records lost.
    pub records_lost: u64,
}

/// What stands to be sent.
#[derive(Debug)]
pub enum Next {
    /// These, in order.
    Batch(Vec<(u64, HealthEvent)>),
    /// Nothing.
    Empty,
}

/// How things stand, for the report and for `/healthz`.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Spool.
    pub spool_id: String,
    /// The last event that the set includes.
    pub last_number: u64,
    /// Events not acknowledged and in memory.
    pub in_memory: usize,
    /// Asserted faults.
    pub count: u32,
    /// Their hash.
    pub hash: [u8; 32],
    /// The asserted events, if asked for.
    pub list: Option<Vec<HealthEvent>>,
    /// Fullness of the spool.
    pub level: Level,
    /// Whether the controller's faults are still to be taken over.
    pub adopting: bool,
    /// Whether the spool can be written.
    pub spool_fault: bool,
    /// Each detector.
    pub detectors: Vec<(&'static str, Health)>,
    /// Numbers.
    pub counters: Counters,
}

impl Core {
    /// From what the spool held.
    pub fn new(identity: Identity, spool: Spool, stored: Stored, detectors: Detectors) -> Self {
        let mut boots = health_event::Boots::new(
            stored
                .boots
                .iter()
                .map(|boot| health_event::BootId::new(boot))
                .collect(),
        );
        let new_boot = boots.observe(&identity.boot);
        let boot_texts = || {
            boots
                .as_slice()
                .iter()
                .map(|boot| boot.as_str().to_owned())
                .collect()
        };
        let faults = Faults::new(identity.clone(), boots.clone(), stored.faults);
        let jump = if stored.fresh { 0 } else { RESTART_JUMP };
        let inner = Inner {
            spool_id: stored.id,
            next_number: stored.last_number + jump + 1,
            last_number: stored.last_number,
            acknowledged: 0,
            on_disk_through: stored.pending.then_some(stored.last_number),
            memory: BTreeMap::new(),
            unsafe_events: 0,
            unsafe_bytes: 0,
            boots: new_boot.then(boot_texts),
            spool_fault: faults.is_raised("SpoolUnwritable"),
            faults,
            position: stored.position,
            adopting: !stored.adopted,
            adopted_unsaved: false,
            rewrite: false,
            failures: 0,
            successes: 0,
            level: Level::default(),
            counters: Counters::default(),
            detectors,
            pass_done: false,
        };
        Self {
            identity,
            inner: Mutex::new(inner),
            spool,
            send: Notify::new(),
            report: Notify::new(),
            progress: watch::Sender::new(0),
            retry: Notify::new(),
        }
    }

    /// Who this agent is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Takes in events of our own detectors, with the position up to which they are complete.
    ///
    /// # Errors
    /// [`NoRoom`]: nothing was taken in; wait with [`Core::room`].
    pub fn submit_own(
        &self,
        events: Vec<HealthEvent>,
        position: Option<Position>,
    ) -> Result<(), NoRoom> {
        self.submit(events, position, true).map(drop)
    }

    /// Takes in events of the socket. Answers their numbers.
    ///
    /// # Errors
    /// [`NoRoom`]: nothing was taken in.
    pub fn submit_foreign(&self, events: Vec<HealthEvent>) -> Result<Vec<u64>, NoRoom> {
        self.submit(events, None, false)
    }

    /// Waits until there is room.
    pub async fn room(&self) {
        let mut progress = self.progress.subscribe();
        while !self.lock().has_room() {
            if progress.changed().await.is_err() {
                return;
            }
        }
    }

    /// Waits until anything became safe or acknowledged.
    pub async fn advanced(&self) {
        // The sender lives as long as this.
        let _ = self.progress.subscribe().changed().await;
    }

    /// Waits until all these events are on disk or the controller has them.
    pub async fn safe(&self, numbers: &[u64]) {
        let mut progress = self.progress.subscribe();
        while !self.lock().are_safe(numbers) {
            if progress.changed().await.is_err() {
                return;
            }
        }
    }

    /// What is to be sent next, at most `limit` events.
    ///
    /// # Errors
    /// [`SpoolError`] if events are on disk only and can't be read.
    pub async fn next(&self, limit: usize) -> Result<Next, SpoolError> {
        let limit = limit.min(BATCH_EVENTS);
        let (after, view) = {
            let inner = self.lock();
            if inner.on_disk_through.is_none() {
                return Ok(batch(inner.memory.iter().map(clone_queued), limit));
            }
            (inner.acknowledged, inner.view(limit))
        };
        let read = self.spool.read(after, limit).await?;
        Ok(self.lock().merge(read, view, limit))
    }

    /// The controller has everything up to this number.
    pub fn acknowledged(&self, through: u64, count: usize) {
        {
            let mut inner = self.lock();
            inner.acknowledged = inner.acknowledged.max(through);
            inner.counters.delivered += count as u64;
            let later = inner.memory.split_off(&(through + 1));
            let gone = std::mem::replace(&mut inner.memory, later);
            for queued in gone.values() {
                inner.make_safe(queued);
            }
        }
        self.spool.acknowledged(through);
        self.advance();
        self.try_settle();
    }

    /// The controller refuses this one event for good: it is put aside.
    pub fn refused(&self, number: u64, event: HealthEvent, reason: String) {
        self.lock().counters.refused += 1;
        let gap = Gap {
            source: "refused",
            count: 1,
            from: number,
            to: number,
            why: format!("the controller refused it: {reason}"),
        };
        self.spool.refuse(event, number, reason);
        self.acknowledged(number, 0);
        self.state_own(own::events_lost(&gap));
    }

    /// States something about ourselves; without room it is only logged.
    pub fn state_own(&self, event: HealthEvent) {
        let message = event.message.clone();
        if self.submit_own(vec![event], None).is_err() {
            tracing::warn!(
                message,
                "no room to send what the agent states about itself"
            );
        }
    }

    /// Takes in what the spool's thread tells.
    pub fn done(&self, done: Done) {
        match done {
            Done::Stored(numbers) => self.stored(&numbers),
            Done::Failed(_, error) => self.failed(&error),
            Done::Dropped(gap) => {
                tracing::warn!(count = gap.count, why = gap.why, "events dropped");
                self.state_own(own::events_lost(&gap));
            }
            Done::Level(level) => self.lock().level = level,
        }
    }

    /// Runs for ever: repeats failed writes once a second, as long as there are any.
    pub async fn run_retries(self: Arc<Self>) {
        loop {
            self.retry.notified().await;
            tokio::time::sleep(RETRY).await;
            self.write_again();
        }
    }

    /// Notes how far the kernel log was read though nothing was found, for the next write.
    pub fn note_position(&self, position: Position) {
        self.lock().position = Some(position);
    }

    /// Writes the noted position, at a graceful stop.
    pub fn flush(&self) {
        let write = self.lock().whole_write(false);
        if let Err(error) = self.spool.write(write) {
            tracing::warn!(%error, "position not saved; matching lines since may be told again");
        }
    }

    /// Counts lost records for `/metrics`.
    pub fn count_lost(&self, records: u64) {
        self.lock().counters.records_lost += records;
    }

    /// The saved position, if it is of this machine and boot.
    pub fn saved_position(&self) -> Saved {
        let inner = self.lock();
        match &inner.position {
            None => Saved::None,
            Some(p)
                if p.boot == self.identity.boot.as_str() && p.machine == self.identity.machine =>
            {
                Saved::Here(p.sequence)
            }
            Some(_) => Saved::OtherBoot,
        }
    }

    /// Whether a check of ours is asserted, also from before this process.
    pub fn is_raised(&self, check: &'static str) -> bool {
        self.lock().faults.is_raised(check)
    }

    /// A detector's state changed by what it reads.
    pub fn detector(&self, name: &'static str, health: Health) {
        if self.lock().detectors.set(name, health) {
            self.report.notify_one();
        }
    }

    /// The kernel log was read to its end for the first time.
    pub fn pass_done(&self) {
        self.lock().pass_done = true;
        self.try_settle();
    }

    /// Takes over the faults that the controller has open from this node's detectors.
    pub fn adopt(&self, events: &[HealthEvent]) {
        let write = {
            let mut inner = self.lock();
            if !inner.adopting {
                return;
            }
            for event in events {
                inner.faults.adopt(event);
            }
            inner.adopting = false;
            inner.adopted_unsaved = true;
            inner.whole_write(true)
        };
        tracing::info!(
            count = events.len(),
            "took over what the controller has open"
        );
        if self.spool.write(write).is_err() {
            self.lock().rewrite = true;
            self.retry.notify_one();
        }
        self.try_settle();
        self.report.notify_one();
    }

    /// How things stand.
    pub fn snapshot(&self, with_list: bool) -> Snapshot {
        let inner = self.lock();
        let (count, hash) = inner.faults.hash();
        Snapshot {
            spool_id: inner.spool_id.clone(),
            last_number: inner.last_number,
            in_memory: inner.memory.len(),
            count,
            hash,
            list: with_list.then(|| inner.faults.list()),
            level: inner.level,
            adopting: inner.adopting,
            spool_fault: inner.spool_fault,
            detectors: inner
                .detectors
                .list(inner.acknowledged, inner.faults.is_overflowing()),
            counters: inner.counters,
        }
    }

    fn submit(
        &self,
        events: Vec<HealthEvent>,
        position: Option<Position>,
        own: bool,
    ) -> Result<Vec<u64>, NoRoom> {
        let (numbers, result) = {
            let mut inner = self.lock();
            if !inner.has_room() {
                return Err(NoRoom);
            }
            let mut write = Write::default();
            let mut numbers = Vec::with_capacity(events.len());
            for event in events {
                numbers.push(inner.take_in(event, &self.identity, own, &mut write));
            }
            if position.is_some() {
                inner.position = position;
            }
            inner.complete(&mut write);
            // Under the lock, so that the disk sees the numbers in order.
            (numbers, self.spool.write(write))
        };
        self.send.notify_one();
        if let Err(error) = result {
            self.failed(&error);
        }
        Ok(numbers)
    }

    fn stored(&self, numbers: &[u64]) {
        let recovered = {
            let mut inner = self.lock();
            for number in numbers {
                inner.note_stored(*number);
            }
            inner.failures = 0;
            inner.successes = inner.successes.saturating_add(1);
            let recovered = inner.spool_fault && inner.successes >= SUCCESSES;
            inner.spool_fault &= !recovered;
            recovered
        };
        self.advance();
        if recovered {
            self.state_own(own::state(
                "SpoolUnwritable",
                "spool",
                true,
                "the spool can be written again",
            ));
        }
    }

    fn failed(&self, error: &SpoolError) {
        let raise = {
            let mut inner = self.lock();
            inner.counters.write_failures += 1;
            inner.failures = inner.failures.saturating_add(1);
            inner.successes = 0;
            inner.rewrite = true;
            let raise = inner.failures == FAILURES && !inner.spool_fault;
            inner.spool_fault |= raise;
            raise
        };
        tracing::warn!(%error, code = error.code(), "spool write failed; it is repeated");
        self.retry.notify_one();
        if raise {
            let message = format!("events can't be kept on disk: {error}; free space on it");
            self.state_own(own::state("SpoolUnwritable", "spool", false, &message));
        }
    }

    fn write_again(&self) {
        let write = {
            let mut inner = self.lock();
            if !inner.rewrite {
                return;
            }
            inner.rewrite = false;
            inner.whole_write(true)
        };
        if let Err(error) = self.spool.write(write) {
            self.failed(&error);
        }
    }

    /// After the first full pass (and with the controller's faults taken over): closes what a
    /// reboot ended, once; the detectors settle when that is delivered.
    fn try_settle(&self) {
        let gone = {
            let inner = self.lock();
            if inner.adopting || !inner.pass_done || inner.detectors.has_settle_number() {
                None
            } else {
                Some(inner.faults.not_found_again())
            }
        };
        if let Some(gone) = gone {
            if !gone.is_empty() && self.submit_own(gone, None).is_err() {
                // Tried again at the next acknowledgement.
                return;
            }
            let mut inner = self.lock();
            let number = inner.last_number;
            inner.detectors.settle_at(number);
        }
        let mut inner = self.lock();
        let acknowledged = inner.acknowledged;
        let nothing_waits = inner.memory.is_empty() && inner.on_disk_through.is_none();
        if inner.detectors.settle(acknowledged, nothing_waits) {
            self.report.notify_one();
        }
    }

    fn advance(&self) {
        self.progress.send_modify(|n| *n = n.wrapping_add(1));
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is known of the position in the kernel log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Saved {
    /// Nothing: first install or lost state.
    None,
    /// A position of another boot or machine.
    OtherBoot,
    /// A position of this boot.
    Here(u64),
}

impl Inner {
    fn has_room(&self) -> bool {
        self.unsafe_events < MAX_UNSAFE_EVENTS && self.unsafe_bytes < MAX_UNSAFE_BYTES
    }

    fn are_safe(&self, numbers: &[u64]) -> bool {
        numbers
            .iter()
            .all(|number| self.memory.get(number).is_none_or(|queued| queued.stored))
    }

    fn take_in(
        &mut self,
        mut event: HealthEvent,
        identity: &Identity,
        own: bool,
        write: &mut Write,
    ) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.last_number = number;
        self.counters.taken += 1;
        let order = Order {
            boot: identity.boot.clone(),
            spool: self.spool_id.as_str().into(),
            number,
        };
        event.id = Ulid::new().to_string();
        event.node_name = identity.node.as_str().to_owned();
        event.generated_at.get_or_insert_with(Timestamp::now);
        let metadata = &mut event.metadata;
        metadata.insert(keys::ORDER.to_owned(), order.to_string());
        if !identity.machine.is_empty() {
            metadata.insert(keys::MACHINE_ID.to_owned(), identity.machine.clone());
        }
        if own {
            write.faults.extend(self.faults.apply(&event));
        }
        let row = row_of(number, &event);
        let bytes = row.body.len();
        write.rows.push(row);
        self.unsafe_events += 1;
        self.unsafe_bytes += bytes;
        let queued = Queued {
            event,
            bytes,
            stored: false,
        };
        self.memory.insert(number, queued);
        number
    }

    /// Adds what goes with every write.
    fn complete(&mut self, write: &mut Write) {
        write.position.clone_from(&self.position);
        write.boots.clone_from(&self.boots);
        write.adopted = !self.adopting && self.adopted_unsaved;
        write.held_through = self.held_through();
    }

    /// Everything that is not known to be on disk.
    fn whole_write(&mut self, with_faults: bool) -> Write {
        let mut write = Write {
            rows: self
                .memory
                .iter()
                .filter(|(_, queued)| !queued.stored)
                .map(|(number, queued)| row_of(*number, &queued.event))
                .collect(),
            replace_faults: with_faults,
            faults: if with_faults {
                self.faults.rows()
            } else {
                Vec::new()
            },
            ..Write::default()
        };
        self.complete(&mut write);
        write
    }

    /// All unacknowledged events up to this number are in memory.
    fn held_through(&self) -> u64 {
        if self.on_disk_through.is_some() {
            return self.acknowledged;
        }
        self.memory.keys().next_back().copied().unwrap_or(0)
    }

    fn note_stored(&mut self, number: u64) {
        let Some(queued) = self.memory.get_mut(&number) else {
            return;
        };
        if queued.stored {
            return;
        }
        queued.stored = true;
        let (bytes, size) = (queued.bytes, self.memory.len());
        self.unsafe_events = self.unsafe_events.saturating_sub(1);
        self.unsafe_bytes = self.unsafe_bytes.saturating_sub(bytes);
        // Beyond the window the disk remembers it for us.
        if size > WINDOW || self.on_disk_through.is_some() {
            self.memory.remove(&number);
            self.on_disk_through = self.on_disk_through.max(Some(number));
        }
    }

    fn make_safe(&mut self, queued: &Queued) {
        if !queued.stored {
            self.unsafe_events = self.unsafe_events.saturating_sub(1);
            self.unsafe_bytes = self.unsafe_bytes.saturating_sub(queued.bytes);
        }
    }

    /// What memory holds at the moment when the disk is asked. Taken together with the question,
    /// because an event may become stored, and leave memory, before the answer is looked at.
    fn view(&self, limit: usize) -> View {
        View {
            through: self.last_number,
            events: self.memory.iter().take(limit).map(clone_queued).collect(),
        }
    }

    /// Puts what was read back and what was only in memory into one order.
    fn merge(&mut self, read: Vec<HealthEvent>, view: View, limit: usize) -> Next {
        let complete = read.len() < limit && view.events.len() < limit;
        let mut through = view.through;
        let mut all: BTreeMap<u64, HealthEvent> = read
            .into_iter()
            .filter_map(|event| Some((number_of(&event)?, event)))
            .collect();
        if all.len() >= limit {
            through = through.min(all.keys().next_back().copied().unwrap_or(0));
        }
        if view.events.len() >= limit {
            through = through.min(view.events.last().map_or(0, |(number, _)| *number));
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

/// See [`Inner::view`].
#[derive(Debug)]
struct View {
    /// Last number assigned: nothing later belongs into this answer.
    through: u64,
    events: Vec<(u64, HealthEvent)>,
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

fn row_of(number: u64, event: &HealthEvent) -> Row {
    Row {
        number,
        identity: identity_of(event),
        fatal: event.is_fatal,
        at: event.generated_at.map_or(0, Timestamp::as_second),
        body: wire::encode_body(event),
    }
}

fn number_of(event: &HealthEvent) -> Option<u64> {
    let order: Order = event.metadata.get(keys::ORDER)?.parse().ok()?;
    Some(order.number)
}

#[cfg(test)]
mod tests;
