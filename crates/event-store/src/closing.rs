//! Closings that no event brings: a person's, a report's, a gone node's, and flapping that is over.

use health_event::{CloseCause, FaultId, FaultKey, FaultState, Statement, Subject};
use jiff::Timestamp;
use rusqlite::{Connection, params};

use crate::changes::{Done, scopes_where};
use crate::codec::nanos;
use crate::fold::note_turn;
use crate::ledger::Ledger;
use crate::scopes::CachedScope;

impl Ledger {
    /// Closes one fault by a healthy statement for each of its senders, at the place of that
    /// sender's newest word. What the agent no longer asserts is not asserted from then on, open or
    /// closed; any other cause leaves that to the agent.
    pub(crate) fn close_fault(
        &mut self,
        connection: &Connection,
        id: &FaultId,
        cause: CloseCause,
        at: Timestamp,
    ) -> rusqlite::Result<bool> {
        let was_open = self.with_scope(connection, &id.scope, |ledger, scope| {
            if cause == CloseCause::NoLongerAsserted || cause.is_of_gone_node() {
                take_back(scope, &id.key);
            }
            let Some(fault) = scope.state.open_fault(&id.key).cloned() else {
                return Ok(false);
            };
            let boots = ledger.boots_of(connection, &scope.machine.clone())?;
            for statement in closings_of(&fault) {
                scope.state.apply(&statement, &boots, at);
                ledger.counters.clears_dropped += scope.store_clears(connection, &statement)?;
            }
            // A person does not wait for a fault that flaps.
            let held = scope.state.faults.iter_mut().find(|f| f.row == fault.row);
            if let Some(held) = held.filter(|f| f.open && f.held_until.is_some()) {
                held.held_until = Some(at);
                scope.state.release_flapping(at);
            }
            note_turns(ledger, scope, at, cause);
            Ok(true)
        })?;
        if let Subject::Node(node) = &id.scope.subject {
            self.touch(node);
        }
        Ok(was_open)
    }

    /// Closes those of which nothing was heard since they were counted. Answers how many.
    pub(crate) fn close_gone(
        &mut self,
        connection: &Connection,
        faults: &[(FaultId, u64)],
        cause: CloseCause,
        fencing: u64,
        at: Timestamp,
    ) -> rusqlite::Result<Done> {
        if let Some(fenced) = self.fenced(fencing) {
            return Ok(Done::Refused(fenced));
        }
        let mut closed = 0;
        for (id, count) in faults {
            let unheard = self.with_scope(connection, &id.scope, |_, scope| {
                let same = |fault: &&FaultState| fault.key() == id.key;
                let fault = scope.state.faults.iter().find(same);
                let row = fault.and_then(|fault| scope.rows.get(&fault.row));
                Ok(row.is_some_and(|row| row.facts.count == *count))
            })?;
            if unheard && self.close_fault(connection, id, cause, at)? {
                closed += 1;
            }
        }
        Ok(Done::Count(closed))
    }

    pub(crate) fn release_flapping(
        &mut self,
        connection: &Connection,
        now: Timestamp,
    ) -> rusqlite::Result<usize> {
        let due = scopes_where(
            connection,
            "SELECT DISTINCT s.subject, s.agent, s.component, s.check_name
             FROM faults f JOIN scopes s USING (scope)
             WHERE f.held_until IS NOT NULL AND f.held_until <= ?1",
            params![nanos(now)],
        )?;
        let mut released = 0;
        for key in due {
            released += self.with_scope(connection, &key, |ledger, scope| {
                let changes = scope.state.release_flapping(now);
                note_turns(ledger, scope, now, CloseCause::Recovered);
                Ok(changes.len())
            })?;
            if let Subject::Node(node) = &key.subject {
                self.touch(node);
            }
        }
        Ok(released)
    }
}

/// The agent asserts the fault no more.
fn take_back(scope: &mut CachedScope, key: &FaultKey) {
    for fault in scope.state.faults.iter().filter(|f| f.key() == *key) {
        if let Some(row) = scope.rows.get_mut(&fault.row).filter(|row| row.asserted) {
            row.asserted = false;
            row.changed = true;
        }
    }
}

pub(crate) fn note_turns(
    ledger: &Ledger,
    scope: &mut CachedScope,
    at: Timestamp,
    cause: CloseCause,
) {
    for fault in &scope.state.faults {
        if let Some(row) = scope.rows.get_mut(&fault.row)
            && row.open != fault.open
        {
            note_turn(row, fault.open, ledger.event_seq, at, cause);
        }
    }
}

fn closings_of(fault: &FaultState) -> Vec<Statement> {
    fault
        .raised
        .iter()
        .filter_map(|(sender, stack)| {
            let newest = stack.last()?;
            Some(Statement {
                sender: sender.clone(),
                stamp: newest.stamp.clone(),
                space: fault.space,
                devices: vec![fault.device.clone()],
                codes: vec![fault.code.clone()],
                healthy: true,
                fatal: false,
                action: fault.action,
                newest_counts: false,
                inclusive: true,
            })
        })
        .collect()
}
