//! What the middle knows; every step of it is synchronous.

use health_event::{BootId, Boots, HealthEvent, Order, keys};
use jiff::Timestamp;
use ulid::Ulid;

use super::outgoing::{Next, Outgoing, View};
use crate::detectors::{Detectors, Health};
use crate::faults::Faults;
use crate::ids::Identity;
use crate::spool::{Level, Position, Row, Stored, Write, identity_of, later_than};

/// How far numbers jump at a start: more than can have been sent and lost unsaved by a crash.
const RESTART_JUMP: u64 = 1 << 20;
/// Failed writes in a row after which the spool is a fault of its own, and good ones that end it.
const FAILURES: u32 = 3;
const SUCCESSES: u32 = 2;

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
    /// Kernel log records read.
    pub records_read: u64,
    /// Kernel log records lost.
    pub records_lost: u64,
    /// Calls on the socket that were answered with an error.
    pub calls_refused: u64,
    /// Calls on the socket that took too long, or that their caller gave up.
    pub calls_given_up: u64,
    /// Connections to the socket that found no place.
    pub turned_away: u64,
    /// Connections to the socket that the agent ended: nothing was called on them.
    pub ended: u64,
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
    /// Fullness of the spool.
    pub level: Level,
    /// Whether the controller's faults are still to be taken over.
    pub adopting: bool,
    /// Whether the spool can't be written.
    pub spool_fault: bool,
    /// Each detector.
    pub detectors: Vec<(&'static str, Health)>,
    /// Numbers.
    pub counters: Counters,
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

/// All of it.
#[derive(Debug)]
pub(super) struct State {
    spool_id: String,
    /// The spool has got another id since the start.
    renamed: bool,
    next_number: u64,
    outgoing: Outgoing,
    faults: Faults,
    position: Option<Position>,
    /// Boots seen, if the present one is new.
    boots: Option<Vec<String>>,
    /// Whether the controller's open faults are still to be taken over.
    adopting: bool,
    /// Whether more than the newest write is not on disk.
    rewrite: bool,
    spool: SpoolHealth,
    level: Level,
    counters: Counters,
    detectors: Detectors,
}

/// What comes with events that are taken in.
#[derive(Debug, Default)]
pub(super) struct Submission {
    /// They are of our own detectors.
    pub(super) own: bool,
    /// Up to where the kernel log is read with them.
    pub(super) position: Option<Position>,
    /// Gaps that they tell of.
    pub(super) told: Vec<i64>,
}

/// Whether the spool can be written.
#[derive(Debug, Default)]
struct SpoolHealth {
    failures: u32,
    successes: u32,
    raised: bool,
    /// Nothing was written for a while though much waits.
    stuck: bool,
}

impl SpoolHealth {
    /// A write failed. Answers whether that makes it a fault.
    fn failed(&mut self) -> bool {
        self.failures = self.failures.saturating_add(1);
        self.successes = 0;
        let raise = self.failures == FAILURES && !self.raised;
        self.raised |= raise;
        raise
    }

    /// A write worked. Answers whether that ends the fault.
    fn worked(&mut self) -> bool {
        self.stuck = false;
        self.failures = 0;
        self.successes = self.successes.saturating_add(1);
        let recovered = self.raised && self.successes >= SUCCESSES;
        self.raised &= !recovered;
        recovered
    }
}

impl State {
    pub(super) fn new(identity: Identity, stored: Stored, detectors: Detectors) -> Self {
        let known = stored.boots.iter().map(|boot| BootId::new(boot)).collect();
        let mut boots = Boots::new(known);
        let new_boot = boots.observe(&identity.boot);
        let texts = boots.as_slice().iter().map(|b| b.as_str().to_owned());
        let jump = if stored.fresh { 0 } else { RESTART_JUMP };
        let boot_texts = new_boot.then(|| texts.collect());
        let faults = Faults::new(identity, boots, stored.faults);
        Self {
            spool_id: stored.id,
            renamed: false,
            next_number: stored.last_number + jump + 1,
            outgoing: Outgoing::new(stored.last_number, stored.pending),
            position: stored.position,
            boots: boot_texts,
            adopting: !stored.adopted,
            rewrite: false,
            spool: SpoolHealth {
                raised: faults.is_raised("SpoolUnwritable"),
                ..SpoolHealth::default()
            },
            faults,
            level: stored.level,
            counters: Counters::default(),
            detectors,
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.outgoing.has_room()
    }

    pub(super) fn is_disk_stuck(&self) -> bool {
        self.spool.stuck
    }

    pub(super) fn note_disk_stuck(&mut self) {
        self.spool.stuck = true;
    }

    pub(super) fn are_safe(&self, numbers: &[u64]) -> bool {
        self.outgoing.are_safe(numbers)
    }

    pub(super) fn is_delivered(&self) -> bool {
        self.outgoing.is_delivered(self.outgoing.last_number())
    }

    pub(super) fn next(&self, limit: usize) -> Result<Next, View> {
        self.outgoing.next(limit)
    }

    pub(super) fn merge(&mut self, read: Vec<HealthEvent>, view: View, limit: usize) -> Next {
        self.outgoing.merge(read, view, limit)
    }

    pub(super) fn acknowledge(&mut self, through: u64, count: usize) {
        self.outgoing.acknowledge(through);
        self.counters.delivered += count as u64;
    }

    pub(super) fn count(&mut self, change: impl FnOnce(&mut Counters)) {
        change(&mut self.counters);
    }

    pub(super) fn note_level(&mut self, level: Level) {
        self.level = level;
    }

    pub(super) fn note_position(&mut self, position: Position) {
        self.position = Some(position);
    }

    pub(super) fn is_raised(&self, check: &str) -> bool {
        self.faults.is_raised(check)
    }

    pub(super) fn set_detector(&mut self, name: &'static str, health: Health) -> bool {
        self.detectors.set(name, health)
    }

    pub(super) fn saved_position(&self, identity: &Identity) -> Saved {
        match &self.position {
            None => Saved::None,
            // An unknown boot may be another one: better told twice than not at all.
            Some(_) if identity.boot.is_unknown() => Saved::OtherBoot,
            Some(p) if p.boot == identity.boot.as_str() && p.machine == identity.machine => {
                Saved::Here(p.sequence)
            }
            Some(_) => Saved::OtherBoot,
        }
    }

    /// Numbers events and answers what is to be written.
    pub(super) fn take_in(
        &mut self,
        events: Vec<HealthEvent>,
        submission: Submission,
        identity: &Identity,
    ) -> (Vec<u64>, Write) {
        let Submission {
            own,
            position,
            told,
        } = submission;
        let mut write = Write {
            told,
            ..Write::default()
        };
        let mut numbers = Vec::with_capacity(events.len());
        for event in events {
            let said = if own {
                self.faults.attach(event)
            } else {
                vec![event]
            };
            for event in said {
                let (number, event) = self.number(event, identity);
                let row = row_of(number, &event);
                if own {
                    let rows = self.faults.apply_encoded(&event, &row.body);
                    write.faults.extend(rows);
                }
                self.outgoing.push(number, event, row.body.len());
                write.rows.push(row);
                numbers.push(number);
            }
        }
        if position.is_some() {
            self.position = position;
        }
        self.complete(&mut write);
        (numbers, write)
    }

    /// Everything that is not known to be on disk.
    pub(super) fn whole_write(&mut self, with_faults: bool) -> Write {
        let rows = self.outgoing.unstored();
        let mut write = Write {
            rows: rows.map(|(number, event)| row_of(number, event)).collect(),
            whole: with_faults,
            ..Write::default()
        };
        if with_faults {
            write.faults = self.faults.rows();
        }
        self.complete(&mut write);
        write
    }

    /// The last write before a stop.
    pub(super) fn last_write(&mut self) -> Write {
        match self.rewrite() {
            Some(write) => write,
            None => self.whole_write(false),
        }
    }

    /// What failed before, if anything did.
    pub(super) fn rewrite(&mut self) -> Option<Write> {
        std::mem::take(&mut self.rewrite).then(|| self.whole_write(true))
    }

    /// Answers whether the spool recovered.
    pub(super) fn note_stored(&mut self, numbers: &[u64]) -> bool {
        for number in numbers {
            self.outgoing.note_stored(*number);
        }
        let recovered = self.spool.worked();
        // Once is not enough to believe it: the next try must not wait for the next event.
        self.rewrite |= self.spool.raised;
        recovered
    }

    /// Whether something is to be written again.
    pub(super) fn wants_rewrite(&self) -> bool {
        self.rewrite
    }

    /// Answers whether the spool is a fault of its own now.
    pub(super) fn note_failed(&mut self) -> bool {
        self.counters.write_failures += 1;
        self.rewrite = true;
        self.spool.failed()
    }

    pub(super) fn pass_done(&mut self) {
        self.detectors.pass_done();
    }

    /// Answers what is to be written, if this is the time to take faults over.
    pub(super) fn adopt(&mut self, events: &[HealthEvent]) -> Option<Write> {
        if !self.adopting {
            return None;
        }
        self.come_after(events);
        for event in events {
            self.faults.adopt(event);
        }
        let boots = self.faults.boots().as_slice().iter();
        self.boots = Some(boots.map(|boot| boot.as_str().to_owned()).collect());
        self.adopting = false;
        Some(self.whole_write(true))
    }

    /// If these events are of a spool that seems later than this one, because the clock was set
    /// back since, this one gets an id that is later: its events are the newer ones.
    fn come_after(&mut self, events: &[HealthEvent]) {
        let orders = events
            .iter()
            .filter_map(|event| event.metadata.get(keys::ORDER));
        let spools = orders.filter_map(|order| Some(order.parse::<Order>().ok()?.spool));
        let newest = spools.max().filter(|spool| **spool > *self.spool_id);
        if let Some(newest) = newest.and_then(|spool| Ulid::from_string(&spool).ok()) {
            self.spool_id = later_than(Some(newest)).to_string();
            self.renamed = true;
        }
    }

    /// Once, when the first full pass is done and the controller's faults are taken over: what
    /// has to be closed because of a reboot.
    pub(super) fn gone_after_reboot(&self) -> Option<Vec<HealthEvent>> {
        let now = !self.adopting && self.detectors.is_pass_open();
        now.then(|| self.faults.not_found_again())
    }

    pub(super) fn end_pass(&mut self) {
        self.detectors.end_pass(self.outgoing.last_number());
    }

    /// Answers whether a detector settled just now.
    pub(super) fn settle(&mut self) -> bool {
        let outgoing = &self.outgoing;
        self.detectors
            .settle(|number| outgoing.is_delivered(number))
    }

    /// The last events of the asserted faults.
    pub(super) fn asserted(&self) -> Vec<HealthEvent> {
        self.faults.list()
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let (count, hash) = self.faults.hash();
        Snapshot {
            spool_id: self.spool_id.clone(),
            last_number: self.outgoing.last_number(),
            in_memory: self.outgoing.in_memory(),
            count,
            hash,
            level: Level {
                oldest: self.oldest(),
                ..self.level
            },
            adopting: self.adopting,
            spool_fault: self.spool.raised,
            detectors: self.detectors.list(self.faults.is_overflowing()),
            counters: self.counters,
        }
    }

    /// When the oldest unacknowledged event was observed. The spool tells it after a commit only, and
    /// until then an event that is in memory counts.
    fn oldest(&self) -> Option<i64> {
        if self.is_delivered() {
            return None;
        }
        let in_memory = self.outgoing.first().and_then(|event| event.generated_at);
        let all = [self.level.oldest, in_memory.map(Timestamp::as_second)];
        all.into_iter().flatten().min()
    }

    fn number(&mut self, mut event: HealthEvent, identity: &Identity) -> (u64, HealthEvent) {
        let number = self.next_number;
        self.next_number += 1;
        self.counters.taken += 1;
        let order = Order {
            boot: identity.boot.clone(),
            spool: self.spool_id.as_str().into(),
            number,
        };
        if event.id.is_empty() {
            event.id = Ulid::new().to_string();
        }
        identity.node.as_str().clone_into(&mut event.node_name);
        event.generated_at.get_or_insert_with(Timestamp::now);
        let metadata = &mut event.metadata;
        metadata.insert(keys::ORDER.to_owned(), order.to_string());
        if !identity.machine.is_empty() {
            metadata.insert(keys::MACHINE_ID.to_owned(), identity.machine.clone());
        }
        (number, event)
    }

    /// Adds what goes with every write.
    fn complete(&self, write: &mut Write) {
        // Events that are in no write yet must not be passed by a saved position.
        if !self.rewrite {
            write.position.clone_from(&self.position);
        }
        write.boots.clone_from(&self.boots);
        write.adopted = !self.adopting;
        write.renamed = self.renamed.then(|| self.spool_id.clone());
        write.held_through = self.outgoing.held_through();
    }
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
