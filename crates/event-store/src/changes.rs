//! Writes beside events: transitions, module state, boots, consumers.

use std::sync::Arc;

use health_event::incident::{Hold, Incident, IncidentId};
use health_event::{BootId, Boots, FaultId, NodeName, Scope};
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use crate::codec::nanos;
use crate::error::WriteError;
use crate::ledger::{Ledger, boots_to};
use crate::queue::Job;
use crate::records::{self, subject_from};
use crate::scopes::CachedScope;
use crate::types::{Appended, Pruned, Transition};

/// What a write did, for its answer.
pub(crate) enum Done {
    Appended(Vec<Appended>),
    Seq(u64),
    Unit,
    Bool(bool),
    Count(usize),
    Pruned(Pruned),
    Refused(WriteError),
}

impl Job {
    pub(crate) fn is_append(&self) -> bool {
        matches!(self, Self::Append(..))
    }

    /// Gives the answer. The caller may have gone away, which is its right.
    pub(crate) fn answer(self, done: Done) {
        match (self, done) {
            (job, Done::Refused(error)) => job.refuse(error),
            (Self::Append(_, answer), Done::Appended(all)) => drop(answer.send(Ok(all))),
            (Self::Transition(_, answer), Done::Seq(seq)) => drop(answer.send(Ok(seq))),
            (
                Self::StatePut { answer, .. }
                | Self::HoldsPut { answer, .. }
                | Self::Forget { answer, .. }
                | Self::ConsumerAdvance { answer, .. }
                | Self::ConsumerEnable { answer, .. }
                | Self::SetFencing(_, answer),
                Done::Unit,
            ) => drop(answer.send(Ok(()))),
            (
                Self::CloseFault { answer, .. } | Self::ObserveBoot { answer, .. },
                Done::Bool(yes),
            ) => drop(answer.send(Ok(yes))),
            (Self::ReleaseFlapping(_, answer) | Self::CloseGone { answer, .. }, Done::Count(n)) => {
                drop(answer.send(Ok(n)));
            }
            (Self::Prune(_, answer), Done::Pruned(pruned)) => drop(answer.send(Ok(pruned))),
            (job, _) => job.refuse(WriteError::Storage("answer of another write".to_owned())),
        }
    }
}

impl Ledger {
    pub(crate) fn transition(
        &mut self,
        connection: &Connection,
        transition: &Transition,
    ) -> rusqlite::Result<Done> {
        let incident = &transition.incident;
        if let Some(refused) = self.refusal(connection, transition)? {
            return Ok(Done::Refused(refused));
        }
        self.transition_seq += 1;
        self.touch(&incident.node);
        write_incident(connection, incident)?;
        connection
            .prepare_cached(
                "INSERT INTO transitions (seq, incident, node, version, at, module, from_state,
                    to_state, cause) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            )?
            .execute(params![
                self.transition_seq,
                incident.id.as_str(),
                incident.node.as_str(),
                incident.version,
                nanos(transition.at),
                transition.module,
                transition.from,
                transition.to,
                transition.cause
            ])?;
        for (key, value) in &transition.state_puts {
            put_state(connection, key, value)?;
        }
        for fault in &transition.faults_joined {
            self.set_incident(connection, fault, &incident.id)?;
        }
        if incident.closed_at.is_some() {
            self.leave_incident(connection, &incident.id)?;
        }
        if let Some(holds) = &transition.holds {
            self.touch_machine(&incident.machine);
            put_holds(connection, &incident.machine, holds, transition.at)?;
        }
        Ok(Done::Seq(self.transition_seq))
    }

    /// Why the plan may not be carried out any more.
    fn refusal(
        &self,
        connection: &Connection,
        transition: &Transition,
    ) -> rusqlite::Result<Option<WriteError>> {
        if let Some(fenced) = self.fenced(transition.fencing) {
            return Ok(Some(fenced));
        }
        let incident = &transition.incident;
        let found: Option<u64> = connection
            .prepare_cached("SELECT version FROM incidents WHERE id = ?1")?
            .query_row([incident.id.as_str()], |row| row.get(0))
            .optional()?;
        let rises = transition
            .expected_version
            .is_none_or(|version| incident.version > version);
        if found != transition.expected_version || !rises {
            return Ok(Some(WriteError::Stale {
                incident: incident.id.clone(),
                expected: transition.expected_version,
                found,
            }));
        }
        if found.is_some() || incident.closed_at.is_some() {
            return Ok(None);
        }
        let other: Option<String> = connection
            .prepare_cached(
                "SELECT id FROM incidents WHERE node_uid = ?1 AND closed_at IS NULL LIMIT 1",
            )?
            .query_row([&incident.node_uid], |row| row.get(0))
            .optional()?;
        Ok(other
            .and_then(|id| IncidentId::new(&id))
            .map(|other| WriteError::AnotherOpen {
                incident: incident.id.clone(),
                other,
            }))
    }

    pub(crate) fn fenced(&self, given: u64) -> Option<WriteError> {
        let current = self.fencing;
        (given != current).then_some(WriteError::Fenced { given, current })
    }

    fn set_incident(
        &mut self,
        connection: &Connection,
        id: &FaultId,
        incident: &IncidentId,
    ) -> rusqlite::Result<()> {
        self.with_scope(connection, &id.scope, |_, scope| {
            let open = scope.state.open_fault(&id.key).map(|fault| fault.row);
            if let Some(row) = open.and_then(|row| scope.rows.get_mut(&row)) {
                row.incident = Some(incident.as_str().to_owned());
                row.changed = true;
            }
            Ok(())
        })
    }

    /// When an incident is over its faults belong to none.
    fn leave_incident(&mut self, connection: &Connection, id: &IncidentId) -> rusqlite::Result<()> {
        let scopes = scopes_where(
            connection,
            "SELECT DISTINCT s.subject, s.agent, s.component, s.check_name
             FROM faults f JOIN scopes s USING (scope) WHERE f.incident = ?1",
            params![id.as_str()],
        )?;
        for key in scopes {
            self.with_scope(connection, &key, |_, scope| {
                for row in scope.rows.values_mut() {
                    if row.incident.as_deref() == Some(id.as_str()) {
                        row.incident = None;
                        row.changed = true;
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Runs `change` on a scope and writes what it changed.
    pub(crate) fn with_scope<T>(
        &mut self,
        connection: &Connection,
        key: &Scope,
        change: impl FnOnce(&mut Self, &mut CachedScope) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        let mut scope = match self.scopes.take(key) {
            Some(scope) => scope,
            None => CachedScope::load(connection, key)?,
        };
        let result = change(self, &mut scope)?;
        // A scope without a row has nothing to write: a change only touches what is there.
        if scope.number != 0 {
            let gone = scope.orphans();
            for row in &gone {
                scope.rows.remove(row);
            }
            let open = scope.store(connection, key, &gone)?;
            self.note_open(key, open);
            if scope.is_empty() {
                connection
                    .prepare_cached("DELETE FROM scopes WHERE scope = ?1")?
                    .execute([scope.number])?;
            } else {
                let weight = scope.weight();
                self.scopes.put(key.clone(), weight, scope);
            }
        }
        Ok(result)
    }

    pub(crate) fn state_put(
        &mut self,
        connection: &Connection,
        key: &str,
        value: &[u8],
        fencing: u64,
    ) -> rusqlite::Result<Done> {
        if let Some(fenced) = self.fenced(fencing) {
            return Ok(Done::Refused(fenced));
        }
        put_state(connection, key, value)?;
        Ok(Done::Unit)
    }

    pub(crate) fn holds_put(
        &mut self,
        connection: &Connection,
        machine: &str,
        holds: &[Hold],
        fencing: u64,
        at: Timestamp,
    ) -> rusqlite::Result<Done> {
        if let Some(fenced) = self.fenced(fencing) {
            return Ok(Done::Refused(fenced));
        }
        self.touch_machine(machine);
        put_holds(connection, machine, holds, at)?;
        Ok(Done::Unit)
    }

    pub(crate) fn set_fencing(
        &mut self,
        connection: &Connection,
        number: u64,
    ) -> rusqlite::Result<Done> {
        if number < self.fencing {
            return Ok(Done::Refused(WriteError::Fenced {
                given: number,
                current: self.fencing,
            }));
        }
        self.fencing = number;
        connection
            .prepare_cached("UPDATE counters SET fencing = ?1")?
            .execute([number])?;
        Ok(Done::Unit)
    }

    pub(crate) fn observe_boot(
        &mut self,
        connection: &Connection,
        machine: &str,
        boot: &BootId,
        spool: &str,
        at: Timestamp,
    ) -> rusqlite::Result<bool> {
        if machine.is_empty() {
            return Ok(false);
        }
        let mut boots: Boots = (*self.boots_of(connection, machine)?).clone();
        // Only a report knows the spool.
        let changed = if spool.is_empty() {
            boots.observe(boot)
        } else {
            boots.report(boot)
        };
        connection
            .prepare_cached(
                "INSERT INTO machines (machine, boots, spool, holds, seen_at)
                 VALUES (?1, ?2, ?3, '[]', ?4)
                 ON CONFLICT (machine) DO UPDATE SET boots = excluded.boots,
                    spool = iif(excluded.spool = '', spool, excluded.spool),
                    seen_at = excluded.seen_at",
            )?
            .execute(params![machine, boots_to(&boots), spool, nanos(at)])?;
        self.touch_machine(machine);
        self.boots.put(machine.to_owned(), 1, Arc::new(boots));
        Ok(changed)
    }

    /// Removes module states, and where the spools of a node's agents stand.
    pub(crate) fn forget_keys(
        &mut self,
        connection: &Connection,
        node: Option<&NodeName>,
        keys: &[String],
        fencing: u64,
    ) -> rusqlite::Result<Done> {
        if let Some(fenced) = self.fenced(fencing) {
            return Ok(Done::Refused(fenced));
        }
        for key in keys {
            connection
                .prepare_cached("DELETE FROM state WHERE key = ?1")?
                .execute([key])?;
        }
        if let Some(node) = node {
            connection
                .prepare_cached("DELETE FROM spools WHERE node = ?1")?
                .execute([node.as_str()])?;
        }
        Ok(Done::Unit)
    }
}

pub(crate) fn write_incident(connection: &Connection, incident: &Incident) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO incidents (id, node, node_uid, machine, version, opened_seq, opened_at,
                closed_at, state) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
             ON CONFLICT (id) DO UPDATE SET node = excluded.node, node_uid = excluded.node_uid,
                machine = excluded.machine, version = excluded.version,
                opened_seq = excluded.opened_seq, opened_at = excluded.opened_at,
                closed_at = excluded.closed_at, state = excluded.state",
        )?
        .execute(params![
            incident.id.as_str(),
            incident.node.as_str(),
            incident.node_uid,
            incident.machine,
            incident.version,
            incident.opened_seq,
            nanos(incident.opened_at),
            incident.closed_at.map(nanos),
            records::incident(incident)?
        ])?;
    Ok(())
}

pub(crate) fn put_holds(
    connection: &Connection,
    machine: &str,
    holds: &[Hold],
    at: Timestamp,
) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO machines (machine, boots, spool, holds, seen_at)
             VALUES (?1, '', '', ?2, ?3)
             ON CONFLICT (machine) DO UPDATE SET holds = excluded.holds",
        )?
        .execute(params![machine, records::holds(holds)?, nanos(at)])?;
    Ok(())
}

fn put_state(connection: &Connection, key: &str, value: &[u8]) -> rusqlite::Result<()> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO state (key, value) VALUES (?1, ?2)")?
        .execute(params![key, value])?;
    Ok(())
}

/// Scopes that a query names by subject, agent, class and check.
pub(crate) fn scopes_where(
    connection: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
) -> rusqlite::Result<Vec<Scope>> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    let mut scopes = Vec::new();
    while let Some(row) = rows.next()? {
        let subject = row.get_ref(0)?.as_str()?;
        let Some(subject) = subject_from(subject) else {
            return Err(rusqlite::Error::InvalidColumnName(subject.to_owned()));
        };
        scopes.push(Scope {
            subject,
            agent: row.get(1)?,
            component_class: row.get(2)?,
            check_name: row.get(3)?,
        });
    }
    Ok(scopes)
}

pub(crate) fn consumer_advance(
    connection: &Connection,
    name: &str,
    seq: u64,
    at: Timestamp,
) -> rusqlite::Result<Done> {
    connection
        .prepare_cached(
            "INSERT INTO consumers (name, seq, moved_at, enabled) VALUES (?1, ?2, ?3, 1)
             ON CONFLICT (name) DO UPDATE SET seq = max(seq, excluded.seq),
                moved_at = excluded.moved_at, enabled = 1",
        )?
        .execute(params![name, seq, nanos(at)])?;
    Ok(Done::Unit)
}

pub(crate) fn consumer_enable(
    connection: &Connection,
    name: &str,
    enabled: bool,
    at: Timestamp,
) -> rusqlite::Result<Done> {
    connection
        .prepare_cached(
            "INSERT INTO consumers (name, seq, moved_at, enabled) VALUES (?1, 0, ?2, ?3)
             ON CONFLICT (name) DO UPDATE SET enabled = excluded.enabled",
        )?
        .execute(params![name, nanos(at), enabled])?;
    Ok(Done::Unit)
}
