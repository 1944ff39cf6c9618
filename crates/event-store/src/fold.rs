//! What an event that the fold took in means for the rows of its check's faults: positions, counts,
//! the newest event, what the agent asserts, what opened and closed.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use health_event::{
    Boots, Change, CloseCause, Device, FaultState, HealthEvent, RecommendedAction, Sender,
    SentIdentity, Stamp, Statement, keys,
};
use jiff::{SignedDuration, Timestamp};
use rusqlite::Connection;

use crate::encode;
use crate::facts::{Facts, Word};
use crate::ledger::Ledger;
use crate::scopes::{COPIES_MAX, CachedScope, LastEvent, Row};
use crate::types::{NewEvent, Outcome};

/// One event that the fold has just taken in, and the rows that have to say so.
pub(crate) struct Fold<'a> {
    pub(crate) new: &'a NewEvent,
    pub(crate) statement: &'a Statement,
    pub(crate) boots: &'a Boots,
    pub(crate) scope: &'a mut CachedScope,
    pub(crate) changes: &'a [Change],
    /// Position of the event, if it is stored already.
    pub(crate) stored: Option<u64>,
}

impl Fold<'_> {
    /// Brings positions, counts and flags of all faults of the check up to date and stores the
    /// event, unless it is a mere repeat.
    pub(crate) fn account(
        &mut self,
        ledger: &mut Ledger,
        connection: &Connection,
        id: &str,
    ) -> rusqlite::Result<Outcome> {
        let named = self.named();
        let stored = match self.stored {
            Some(seq) => Some(seq),
            None if self.is_repeat(ledger, &named) => None,
            None => {
                let at = self.statement.stamp.at;
                Some(ledger.store_event(connection, self.new, id, at)?)
            }
        };
        let outcome = if let Some(seq) = stored {
            Outcome::Stored(seq)
        } else {
            ledger.note_repeat(connection, self.new, id)?;
            Outcome::Repeated
        };
        let seq = stored.unwrap_or(ledger.event_seq);
        if self.statement.healthy {
            self.account_healthy(ledger, &named, seq);
        } else {
            self.account_unhealthy(ledger, &named, stored);
        }
        self.account_opened_and_closed(seq);
        Ok(outcome)
    }

    /// What the statement names and, by index, the fault that each of it means.
    fn named(&self) -> Vec<(Device, String, Option<usize>)> {
        let mut named = Vec::new();
        for device in &self.statement.devices {
            for code in &self.statement.codes {
                let at = self
                    .scope
                    .state
                    .position(self.statement.space, device, code);
                named.push((device.clone(), code.clone(), at));
            }
        }
        named
    }

    /// Whether the event says nothing that its open faults did not say last, and one that said so
    /// was stored a short time ago.
    fn is_repeat(&self, ledger: &Ledger, named: &[(Device, String, Option<usize>)]) -> bool {
        let options = &ledger.options;
        let counted = options
            .repeat_checks
            .as_ref()
            .is_none_or(|checks| checks.contains(&self.new.event.check_name));
        let window = SignedDuration::try_from(options.repeat_window).unwrap_or(SignedDuration::MAX);
        let all_repeated = !self.changes.is_empty()
            && self
                .changes
                .iter()
                .all(|change| matches!(change, Change::Repeated(_)));
        let word = Word::of(&self.new.event);
        let says_nothing = |at: Option<usize>| {
            let fault = at.and_then(|at| self.scope.state.faults.get(at));
            let row = fault.and_then(|f| self.scope.rows.get(&f.row));
            row.is_some_and(|row| {
                let stored = row.facts.stored_at;
                row.open
                    && row.facts.word == word
                    && self.new.received_at.duration_since(stored) < window
            })
        };
        counted
            && !self.statement.healthy
            && all_repeated
            && named.iter().all(|(_, _, at)| says_nothing(*at))
    }

    /// `stored`: position of the event, if it was stored.
    fn account_unhealthy(
        &mut self,
        ledger: &mut Ledger,
        named: &[(Device, String, Option<usize>)],
        stored: Option<u64>,
    ) {
        let last_event = stored.map(|_| copies(self.new, named.len()));
        let mut seen = HashSet::with_capacity(named.len());
        for (device, code, at) in named {
            let Some(fault) = at.and_then(|at| self.scope.state.faults.get_mut(at)) else {
                continue;
            };
            if fault.row == 0 {
                ledger.fault_row += 1;
                fault.row = ledger.fault_row;
            }
            if !seen.insert(fault.row) {
                continue;
            }
            let number = fault.row;
            let sent = SentIdentity::of(&self.new.event, device, code);
            if !self.scope.rows.contains_key(&number) {
                let copy = last_event
                    .clone()
                    .unwrap_or_else(|| copies(self.new, named.len()));
                let row = Row::new(self.first_facts(sent, stored.unwrap_or(0)), copy);
                self.scope.rows.insert(number, row);
            }
            self.count(number, sent, stored, last_event.as_ref());
            self.note_asserted(number, device, code, sent);
        }
    }

    fn first_facts(&self, sent: SentIdentity, seq: u64) -> Facts {
        Facts {
            first_seq: seq,
            last_seq: seq,
            opened_seq: 0,
            opened_at: None,
            count: 0,
            repeats: 0,
            first_at: self.new.received_at,
            last_at: self.new.received_at,
            stored_at: self.new.received_at,
            machine: self.new.machine.clone(),
            sent,
            sender: self.new.sender.clone(),
            stamp: self.statement.stamp.clone(),
            word: Word::of(&self.new.event),
            agent_stamp: None,
            closed_at: None,
            cause: None,
        }
    }

    fn count(
        &mut self,
        number: u64,
        sent: SentIdentity,
        stored: Option<u64>,
        last_event: Option<&LastEvent>,
    ) {
        let Some(row) = self.scope.rows.get_mut(&number) else {
            return;
        };
        row.changed = true;
        let facts = &mut row.facts;
        facts.count += 1;
        facts.last_at = facts.last_at.max(self.new.received_at);
        if let Some(seq) = stored {
            facts.last_seq = seq;
            facts.stored_at = self.new.received_at;
        } else {
            facts.repeats += 1;
        }
        if !is_newer(&self.new.sender, &self.statement.stamp, facts, self.boots) {
            return;
        }
        facts.stamp = self.statement.stamp.clone();
        facts.sender = self.new.sender.clone();
        facts.machine.clone_from(&self.new.machine);
        facts.sent = sent;
        if let Some(last_event) = last_event {
            facts.word = Word::of(&self.new.event);
            row.last_event = Some(last_event.clone());
        }
    }

    /// The agent asserts this fault, unless a later healthy word of its own is known already.
    fn note_asserted(&mut self, number: u64, device: &Device, code: &str, sent: SentIdentity) {
        let stamp = &self.statement.stamp;
        let space = self.statement.space;
        let answered = self.scope.state.clears.iter().any(|clear| {
            clear.sender == self.new.sender
                && !clear.inclusive
                && clear.covers(space, device, code)
                && clear.stamp.compare(stamp, self.boots) == Ordering::Greater
        });
        let Some(row) = self.scope.rows.get_mut(&number) else {
            return;
        };
        let older = row
            .facts
            .agent_stamp
            .as_ref()
            .is_some_and(|known| stamp.compare(known, self.boots) == Ordering::Less);
        if self.new.asserted_by_agent && !answered && !older {
            row.asserted = true;
            row.facts.agent_stamp = Some(stamp.clone());
            row.facts.sent = sent;
            row.changed = true;
        }
    }

    /// A healthy event: the agent takes back what it asserted, or, where a transformer made its
    /// word healthy, asserts what is not wrong here.
    fn account_healthy(
        &mut self,
        ledger: &mut Ledger,
        named: &[(Device, String, Option<usize>)],
        seq: u64,
    ) {
        if self.new.asserted_by_agent {
            self.account_overridden(ledger, named, seq);
            return;
        }
        let stamp = &self.statement.stamp;
        let covering: Vec<_> = self
            .scope
            .state
            .clears
            .iter()
            .filter(|c| c.sender == self.new.sender && c.stamp == *stamp && !c.inclusive)
            .cloned()
            .collect();
        for fault in &self.scope.state.faults {
            let Some(row) = self.scope.rows.get_mut(&fault.row) else {
                continue;
            };
            let agents = row
                .facts
                .agent_stamp
                .as_ref()
                .is_some_and(|known| stamp.compare(known, self.boots) == Ordering::Greater);
            let covered = || {
                covering
                    .iter()
                    .any(|c| c.covers(fault.space, &fault.device, &fault.code))
            };
            if agents && row.asserted && covered() {
                row.asserted = false;
                row.facts.agent_stamp = Some(stamp.clone());
                row.changed = true;
            }
        }
    }

    fn account_overridden(
        &mut self,
        ledger: &mut Ledger,
        named: &[(Device, String, Option<usize>)],
        seq: u64,
    ) {
        for (device, code, _) in named {
            let space = self.statement.space;
            let at = self.scope.state.position(space, device, code);
            let number = match at.and_then(|at| self.scope.state.faults.get(at)) {
                Some(fault) => fault.row,
                None => self.remember_closed(ledger, device, code, named.len(), seq),
            };
            let sent = SentIdentity::of(&self.new.event, device, code);
            self.note_asserted(number, device, code, sent);
        }
    }

    /// A fault that never was open here, kept because the agent asserts it.
    fn remember_closed(
        &mut self,
        ledger: &mut Ledger,
        device: &Device,
        code: &str,
        named: usize,
        seq: u64,
    ) -> u64 {
        ledger.fault_row += 1;
        let number = ledger.fault_row;
        let sent = SentIdentity::of(&self.new.event, device, code);
        let row = Row::new(self.first_facts(sent, seq), copies(self.new, named));
        self.scope.rows.insert(number, row);
        self.scope.state.faults.push(FaultState {
            space: self.statement.space,
            device: device.clone(),
            described: self.statement.stamp.at,
            code: code.to_owned(),
            raised: BTreeMap::new(),
            open: false,
            fatal: false,
            action: RecommendedAction::None,
            closings: Vec::new(),
            held_until: None,
            row: number,
        });
        number
    }

    fn account_opened_and_closed(&mut self, seq: u64) {
        let cause = cause_of(&self.new.event);
        let at = self.new.received_at;
        for fault in &self.scope.state.faults {
            let Some(row) = self.scope.rows.get_mut(&fault.row) else {
                continue;
            };
            if row.open != fault.open {
                note_turn(row, fault.open, seq, at, cause);
            }
        }
    }

    /// Rows of faults that were found to be another one go into that one's row.
    pub(crate) fn drop_orphans(&mut self) -> Vec<u64> {
        let orphans = self.scope.orphans();
        if orphans.is_empty() {
            return orphans;
        }
        let named = self.named();
        let kept = named.iter().find_map(|(_, _, at)| {
            let fault = at.and_then(|at| self.scope.state.faults.get(at));
            fault.map(|f| f.row)
        });
        for orphan in &orphans {
            match kept {
                Some(kept) => self.scope.absorb(*orphan, kept),
                None => drop(self.scope.rows.remove(orphan)),
            }
        }
        orphans
    }
}

/// Notes that a fault opened or closed.
pub(crate) fn note_turn(row: &mut Row, open: bool, seq: u64, at: Timestamp, cause: CloseCause) {
    row.changed = true;
    if open {
        row.facts.opened_seq = seq;
        row.facts.opened_at = Some(at);
        row.facts.closed_at = None;
        row.facts.cause = None;
        // Whether it belongs to an incident is decided anew.
        row.incident = None;
    } else {
        row.facts.closed_at = Some(at);
        row.facts.last_at = row.facts.last_at.max(at);
        row.facts.cause = Some(cause);
    }
}

/// Whether a statement is at least as new as the newest one of the row.
pub(crate) fn is_newer(sender: &Sender, stamp: &Stamp, facts: &Facts, boots: &Boots) -> bool {
    if *sender == facts.sender {
        stamp.compare(&facts.stamp, boots) != Ordering::Less
    } else {
        stamp.at >= facts.stamp.at
    }
}

/// The copies of an event for the rows of its faults.
fn copies(new: &NewEvent, named: usize) -> LastEvent {
    let share = COPIES_MAX / named.max(1);
    let body: &[u8] = if new.body.len() > share {
        &[]
    } else {
        &new.body
    };
    let message_max = if body.len() == new.body.len() {
        usize::MAX
    } else {
        share.min(256)
    };
    LastEvent {
        event: Arc::from(encode::event(
            &new.event,
            message_max.min(new.event.message.len()),
        )),
        body: Arc::from(body),
    }
}

/// Why a healthy event closes.
fn cause_of(event: &HealthEvent) -> CloseCause {
    let named = event.metadata.get(keys::CAUSE);
    named
        .and_then(|cause| CloseCause::from_stored(cause))
        .unwrap_or(CloseCause::Recovered)
}
