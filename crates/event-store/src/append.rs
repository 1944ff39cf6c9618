//! Taking events in: idempotency, repeats, and what they do to the faults of their check.

use health_event::fault::codes_of;
use health_event::{CloseCause, Scope, Sender, Stamp, Statement, Subject, devices_of};
use jiff::{SignedDuration, Timestamp};
use rusqlite::{Connection, params};

use crate::bounds::Fit;
use crate::codec::nanos;
use crate::fold::Fold;
use crate::ledger::Ledger;
use crate::rows::subject_column;
use crate::scopes::{CachedScope, FAULTS_MAX};
use crate::types::{Appended, Fingerprint, NewEvent, Outcome, Standing};

/// A claimed time further ahead of the receipt than this does not count (faults-incidents 2).
const AHEAD_MAX: SignedDuration = SignedDuration::from_mins(10);

/// Whether an event was taken in before.
enum Known {
    Duplicate(String),
    /// New, to be kept under this id.
    New(String),
}

impl Ledger {
    pub(crate) fn append(
        &mut self,
        connection: &Connection,
        batch: &[NewEvent],
    ) -> rusqlite::Result<Vec<Appended>> {
        batch
            .iter()
            .map(|new| self.append_one(connection, new))
            .collect()
    }

    fn append_one(
        &mut self,
        connection: &Connection,
        new: &NewEvent,
    ) -> rusqlite::Result<Appended> {
        if let Standing::Released(seq) = new.standing {
            return self.release(connection, new, seq);
        }
        if let (Some(order), Subject::Node(node)) = (&new.order, &new.subject)
            && !new.out_of_turn
        {
            self.note_spool(node, order, new.received_at);
        }
        let id = match self.known(connection, new)? {
            Known::Duplicate(id) if self.opens_again(connection, new)? => {
                format!("{id}~again-{}", self.event_seq + 1)
            }
            Known::Duplicate(id) => {
                self.counters.duplicates += 1;
                return Ok(Appended {
                    outcome: Outcome::Duplicate,
                    id,
                    changes: Vec::new(),
                });
            }
            Known::New(id) => id,
        };
        if new.standing == Standing::Held {
            return self.hold(connection, new, id);
        }
        self.fold(connection, new, id, None)
    }

    /// Stores an event that has no effect for now.
    fn hold(
        &mut self,
        connection: &Connection,
        new: &NewEvent,
        id: String,
    ) -> rusqlite::Result<Appended> {
        let seq = self.store_event(connection, new, &id, statement_of(new).stamp.at)?;
        connection
            .prepare_cached("INSERT INTO held (node, machine, seq) VALUES (?1, ?2, ?3)")?
            .execute(params![subject_column(&new.subject), new.machine, seq])?;
        self.holds = true;
        if let Subject::Node(node) = &new.subject {
            self.touch(node);
        }
        Ok(Appended {
            outcome: Outcome::Stored(seq),
            id,
            changes: Vec::new(),
        })
    }

    /// From now on a held event counts, as if it came when it did; once.
    fn release(
        &mut self,
        connection: &Connection,
        new: &NewEvent,
        seq: u64,
    ) -> rusqlite::Result<Appended> {
        let was_held = connection
            .prepare_cached("DELETE FROM held WHERE node = ?1 AND machine = ?2 AND seq = ?3")?
            .execute(params![subject_column(&new.subject), new.machine, seq])?;
        let id = new.event.id.clone();
        if was_held == 0 {
            return Ok(Appended {
                outcome: Outcome::Duplicate,
                id,
                changes: Vec::new(),
            });
        }
        self.fold(connection, new, id, Some(seq))
    }

    /// What an event does to the faults of its check; it is stored, unless it is already.
    fn fold(
        &mut self,
        connection: &Connection,
        new: &NewEvent,
        id: String,
        stored: Option<u64>,
    ) -> rusqlite::Result<Appended> {
        if let Subject::Node(node) = &new.subject {
            self.touch(node);
        }
        let key = Scope::about(&new.event, new.subject.clone(), self.options.aliases);
        let mut scope = match self.scopes.take(&key) {
            Some(scope) => scope,
            None => CachedScope::load(connection, &key)?,
        };
        // A direct sender names no machine: then the one that was last heard of counts.
        if !new.machine.is_empty() {
            scope.machine.clone_from(&new.machine);
        }
        let boots = self.boots_of(connection, &scope.machine)?;
        let mut statement = statement_of(new);
        if new.sender == Sender::controller() {
            come_last(&mut statement, &scope);
        }
        let mut fit = if statement.healthy {
            Fit::Whole
        } else {
            self.fit(connection, &key, &scope, &mut statement)?
        };
        let named = statement.devices.len() * statement.codes.len();
        if !statement.healthy && fit != Fit::Nothing && !make_room(connection, &mut scope, named)? {
            fit = Fit::Nothing;
        }
        if fit != Fit::Whole {
            self.note_unopened(connection, &key, new.received_at)?;
        }
        let appended = if fit == Fit::Nothing {
            let seq = match stored {
                Some(seq) => seq,
                None => self.store_event(connection, new, &id, statement.stamp.at)?,
            };
            Appended {
                outcome: Outcome::Stored(seq),
                id,
                changes: Vec::new(),
            }
        } else {
            if scope.number == 0 {
                self.forget_a_check(connection, &key)?;
            }
            let changes = scope.state.apply(&statement, &boots, new.received_at);
            let mut fold = Fold {
                new,
                statement: &statement,
                boots: &boots,
                scope: &mut scope,
                changes: &changes,
                stored,
            };
            let outcome = fold.account(self, connection, &id)?;
            let gone = fold.drop_orphans();
            let open = scope.store(connection, &key, &gone)?;
            self.note_open(&key, open);
            if statement.healthy {
                self.counters.clears_dropped += scope.store_clears(connection, &statement)?;
            }
            Appended {
                outcome,
                id,
                changes,
            }
        };
        let weight = scope.weight();
        self.scopes.put(key, weight, scope);
        Ok(appended)
    }

    /// Whether a known event is taken in once more: an agent asserts what was closed because its
    /// node was gone. The closing is forgotten, so that the event counts as if it came now.
    fn opens_again(&mut self, connection: &Connection, new: &NewEvent) -> rusqlite::Result<bool> {
        if !new.out_of_turn || new.event.is_healthy {
            return Ok(false);
        }
        let key = Scope::about(&new.event, new.subject.clone(), self.options.aliases);
        let statement = statement_of(new);
        self.with_scope(connection, &key, |_, scope| {
            let mut opens = false;
            for device in &statement.devices {
                for code in &statement.codes {
                    let at = scope.state.position(statement.space, device, code);
                    let fault = at.and_then(|at| scope.state.faults.get(at));
                    let row = fault.and_then(|fault| scope.rows.get(&fault.row));
                    // One that is no longer known was closed so, and then forgotten.
                    let gone = row.is_none_or(|row| {
                        !row.open && row.facts.cause.is_some_and(CloseCause::is_of_gone_node)
                    });
                    if gone {
                        opens = true;
                        let clears = &mut scope.state.clears;
                        clears
                            .retain(|c| !(c.inclusive && c.covers(statement.space, device, code)));
                    }
                }
            }
            if scope.number != 0 {
                scope.drop_clears(connection)?;
            }
            Ok(opens)
        })
    }

    /// Looks for the event by id. Same sender, id and content is a duplicate; other content under
    /// a known id gets an id of its own, made from its content so that a retry finds it.
    fn known(&mut self, connection: &Connection, new: &NewEvent) -> rusqlite::Result<Known> {
        if new.event.id.is_empty() {
            let id = format!("content:{}", new.fingerprint);
            return Ok(match find(connection, &new.sender, &id)? {
                Some(_) => Known::Duplicate(id),
                None => Known::New(id),
            });
        }
        let id = &new.event.id;
        match find(connection, &new.sender, id)? {
            None => Ok(Known::New(id.clone())),
            Some(content) if content == new.fingerprint => Ok(Known::Duplicate(id.clone())),
            Some(_) => {
                let fresh = format!("{id}~{}", new.fingerprint);
                if find(connection, &new.sender, &fresh)?.is_some() {
                    return Ok(Known::Duplicate(fresh));
                }
                self.counters.id_conflicts += 1;
                Ok(Known::New(fresh))
            }
        }
    }

    pub(crate) fn store_event(
        &mut self,
        connection: &Connection,
        new: &NewEvent,
        id: &str,
        at: Timestamp,
    ) -> rusqlite::Result<u64> {
        self.event_seq += 1;
        let event = &new.event;
        let boot = new.order.as_ref().map_or("", |o| o.boot.as_str());
        connection
            .prepare_cached(
                "INSERT INTO events (seq, id, sender, fingerprint, node, machine, boot,
                    generated_at, received_at, strategy, healthy, fatal, agent, check_name,
                    component, body)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)",
            )?
            .execute(params![
                self.event_seq,
                id,
                new.sender.as_str(),
                new.fingerprint.0,
                subject_column(&new.subject),
                new.machine,
                boot,
                nanos(at),
                nanos(new.received_at),
                event.strategy.number(),
                event.is_healthy,
                event.is_fatal,
                event.agent,
                event.check_name,
                event.component_class,
                new.body
            ])?;
        self.shares.came(&new.sender, new.body.len());
        Ok(self.event_seq)
    }

    pub(crate) fn note_repeat(
        &mut self,
        connection: &Connection,
        new: &NewEvent,
        id: &str,
    ) -> rusqlite::Result<()> {
        self.counters.repeats += 1;
        connection
            .prepare_cached(
                "INSERT INTO repeat_ids (id, sender, fingerprint, received_at)
                 VALUES (?1, ?2, ?3, ?4)",
            )?
            .execute(params![
                id,
                new.sender.as_str(),
                new.fingerprint.0,
                nanos(new.received_at)
            ])?;
        Ok(())
    }
}

/// Makes sure that a check can take `named` more faults: closed ones go, oldest first.
fn make_room(
    connection: &Connection,
    scope: &mut CachedScope,
    named: usize,
) -> rusqlite::Result<bool> {
    let faults = &mut scope.state.faults;
    if faults.len() + named <= FAULTS_MAX {
        return Ok(true);
    }
    let mut closed: Vec<(Timestamp, u64)> = faults
        .iter()
        .filter(|f| !f.open && scope.rows.get(&f.row).is_none_or(|row| !row.asserted))
        .map(|f| (f.described, f.row))
        .collect();
    closed.sort_unstable();
    closed.truncate((faults.len() + named).saturating_sub(FAULTS_MAX));
    faults.retain(|f| closed.iter().all(|(_, row)| *row != f.row));
    for (_, row) in &closed {
        scope.rows.remove(row);
        connection
            .prepare_cached("DELETE FROM faults WHERE fault = ?1")?
            .execute([row])?;
    }
    Ok(scope.state.faults.len() + named <= FAULTS_MAX)
}

/// The content that a sender's id stands for, if it is known.
fn find(
    connection: &Connection,
    sender: &Sender,
    id: &str,
) -> rusqlite::Result<Option<Fingerprint>> {
    for sql in [
        "SELECT sender, fingerprint FROM events WHERE id = ?1",
        "SELECT sender, fingerprint FROM repeat_ids WHERE id = ?1",
    ] {
        let mut statement = connection.prepare_cached(sql)?;
        let mut rows = statement.query([id])?;
        while let Some(row) = rows.next()? {
            if row.get_ref(0)?.as_str()? == sender.as_str() {
                return Ok(Some(Fingerprint(row.get(1)?)));
            }
        }
    }
    Ok(None)
}

/// What the controller says itself is later than all that it said of the check before, whatever its clock
/// showed then: it is one speaker, and says one thing after the other.
fn come_last(statement: &mut Statement, scope: &CachedScope) {
    let own = |sender: &Sender| *sender == statement.sender;
    let raised = scope.state.faults.iter().flat_map(|fault| &fault.raised);
    let raised = raised.filter(|(sender, _)| own(sender));
    let raised = raised.flat_map(|(_, stack)| stack.iter().map(|raise| raise.stamp.at));
    let cleared = scope.state.clears.iter();
    let cleared = cleared
        .filter(|clear| own(&clear.sender))
        .map(|clear| clear.stamp.at);
    let last = raised.chain(cleared).max();
    let next = last.and_then(|last| last.checked_add(SignedDuration::from_nanos(1)).ok());
    statement.stamp.at = statement.stamp.at.max(next.unwrap_or(statement.stamp.at));
}

fn statement_of(new: &NewEvent) -> Statement {
    let event = &new.event;
    let latest = new.received_at.saturating_add(AHEAD_MAX);
    let latest = latest.unwrap_or(Timestamp::MAX);
    let claimed = event.generated_at.filter(|at| *at <= latest);
    Statement {
        sender: new.sender.clone(),
        stamp: Stamp {
            order: new.order.clone(),
            at: claimed.unwrap_or(new.received_at),
        },
        space: event.strategy,
        devices: devices_of(&event.entities),
        codes: codes_of(event).into_iter().map(str::to_owned).collect(),
        healthy: event.is_healthy,
        fatal: event.is_fatal,
        action: event.recommended_action,
        newest_counts: new.newest_counts,
        inclusive: new.inclusive,
    }
}
