//! One check of one node in memory, with what its rows need, and the way to and from its rows.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use health_event::{FaultState, Scope, ScopeState, Statement, Subject};
use rusqlite::{Connection, OptionalExtension, params};

use crate::codec::nanos;
use crate::encode;
use crate::facts::Facts;

/// Bytes that the copies of one event in the rows of its faults may take; above, its message is
/// cut there.
pub const COPIES_MAX: usize = 1 << 20;

/// Faults that one check of one node may have, open and remembered: each event looks at all of them.
pub(crate) const FAULTS_MAX: usize = 2 * crate::bounds::NODE;

const INSERT_CLEAR: &str = "INSERT OR REPLACE INTO clears (scope, key, received_at, state)
    VALUES (?1, ?2, ?3, ?4)";

/// The newest event of a fault: own form, and protobuf.
#[derive(Clone)]
pub(crate) struct LastEvent {
    pub(crate) event: Arc<[u8]>,
    pub(crate) body: Arc<[u8]>,
}

/// What the row of a fault has beside its state.
pub(crate) struct Row {
    pub(crate) facts: Facts,
    pub(crate) asserted: bool,
    pub(crate) incident: Option<String>,
    /// Whether the fault was open when the row was written last.
    pub(crate) open: bool,
    /// The state as it was written last; empty if never.
    written: Vec<u8>,
    /// Facts, asserted or incident changed.
    pub(crate) changed: bool,
    /// To be written too.
    pub(crate) last_event: Option<LastEvent>,
}

impl Row {
    pub(crate) fn new(facts: Facts, last_event: LastEvent) -> Self {
        Self {
            facts,
            asserted: false,
            incident: None,
            open: false,
            written: Vec::new(),
            changed: true,
            last_event: Some(last_event),
        }
    }
}

pub(crate) struct CachedScope {
    /// Number of the row; 0 if there is none yet.
    pub(crate) number: i64,
    /// Machine of the last event.
    pub(crate) machine: String,
    machine_written: String,
    pub(crate) state: ScopeState,
    pub(crate) rows: HashMap<u64, Row>,
    /// Open faults as written last.
    open: usize,
    /// Healthy statements that have a row.
    clears: HashSet<[u8; 16]>,
}

impl CachedScope {
    pub(crate) fn weight(&self) -> usize {
        1 + self.rows.len() + self.clears.len()
    }

    /// Whether nothing is left that needs a row.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.clears.is_empty()
    }

    /// The scope as stored; an empty one if it is not.
    pub(crate) fn load(connection: &Connection, scope: &Scope) -> rusqlite::Result<Self> {
        let found: Option<(i64, String)> = connection
            .prepare_cached(
                "SELECT scope, machine FROM scopes
                 WHERE subject = ?1 AND check_name = ?2 AND agent = ?3 AND component = ?4",
            )?
            .query_row(
                params![
                    scope.subject.to_string(),
                    scope.check_name,
                    scope.agent,
                    scope.component_class
                ],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .optional()?;
        let (number, machine) = found.unwrap_or_default();
        let mut cached = Self {
            number,
            machine_written: machine.clone(),
            machine,
            state: ScopeState::default(),
            rows: HashMap::new(),
            open: 0,
            clears: HashSet::new(),
        };
        if number != 0 {
            cached.load_faults(connection)?;
            cached.load_clears(connection)?;
        }
        Ok(cached)
    }

    fn load_faults(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let mut statement = connection.prepare_cached(
            "SELECT fault, asserted, incident, state, facts FROM faults
             WHERE scope = ?1 ORDER BY fault",
        )?;
        let mut rows = statement.query([self.number])?;
        while let Some(row) = rows.next()? {
            let number: u64 = row.get(0)?;
            let written: Vec<u8> = row.get(3)?;
            let state = encode::decode_fault(&written, number)?;
            self.rows.insert(
                number,
                Row {
                    facts: Facts::decode(row.get_ref(4)?.as_blob()?)?,
                    asserted: row.get(1)?,
                    incident: row.get(2)?,
                    open: state.open,
                    written,
                    changed: false,
                    last_event: None,
                },
            );
            self.state.faults.push(state);
        }
        self.open = self.state.faults.iter().filter(|f| f.open).count();
        Ok(())
    }

    fn load_clears(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let mut statement = connection.prepare_cached(
            "SELECT key, state FROM clears WHERE scope = ?1 ORDER BY received_at",
        )?;
        let mut rows = statement.query([self.number])?;
        while let Some(row) = rows.next()? {
            self.clears.insert(row.get(0)?);
            let clear = encode::decode_clear(row.get_ref(1)?.as_blob()?)?;
            self.state.clears.push(clear);
        }
        Ok(())
    }

    /// Takes the rows of faults that are gone into those that they were found to be.
    pub(crate) fn absorb(&mut self, gone: u64, kept: u64) {
        let Some(gone) = self.rows.remove(&gone) else {
            return;
        };
        let Some(kept) = self.rows.get_mut(&kept) else {
            return;
        };
        kept.facts.count += gone.facts.count;
        kept.facts.repeats += gone.facts.repeats;
        kept.facts.first_seq = kept.facts.first_seq.min(gone.facts.first_seq);
        kept.facts.first_at = kept.facts.first_at.min(gone.facts.first_at);
        kept.asserted |= gone.asserted;
        kept.incident = kept.incident.take().or(gone.incident);
        kept.changed = true;
    }

    /// Rows whose fault the fold no longer has.
    pub(crate) fn orphans(&self) -> Vec<u64> {
        if self.rows.len() == self.state.faults.len() {
            return Vec::new();
        }
        let alive: HashSet<u64> = self.state.faults.iter().map(|f| f.row).collect();
        let orphans = self.rows.keys().filter(|row| !alive.contains(row));
        orphans.copied().collect()
    }

    /// Writes what changed. `gone` = rows of faults that no longer exist. Answers how many faults were
    /// open, and how many are.
    pub(crate) fn store(
        &mut self,
        connection: &Connection,
        scope: &Scope,
        gone: &[u64],
    ) -> rusqlite::Result<(usize, usize)> {
        self.store_scope(connection, scope)?;
        for row in gone {
            connection
                .prepare_cached("DELETE FROM faults WHERE fault = ?1")?
                .execute([row])?;
        }
        let node = match &scope.subject {
            Subject::Node(name) => Some(name.as_str()),
            Subject::Pool(_) | Subject::Cluster => None,
        };
        for fault in &self.state.faults {
            let Some(row) = self.rows.get_mut(&fault.row) else {
                continue;
            };
            let state = encode::fault(fault);
            if row.changed || state != row.written {
                row.open = fault.open;
                write_fault(connection, self.number, node, fault, &state, row)?;
                row.written = state;
                row.changed = false;
            }
        }
        let open = self.state.faults.iter().filter(|f| f.open).count();
        Ok((std::mem::replace(&mut self.open, open), open))
    }

    fn store_scope(&mut self, connection: &Connection, scope: &Scope) -> rusqlite::Result<()> {
        if self.number == 0 {
            let node = match &scope.subject {
                Subject::Node(name) => Some(name.as_str()),
                Subject::Pool(_) | Subject::Cluster => None,
            };
            connection
                .prepare_cached(
                    "INSERT INTO scopes (subject, node, agent, component, check_name, machine)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                )?
                .execute(params![
                    scope.subject.to_string(),
                    node,
                    scope.agent,
                    scope.component_class,
                    scope.check_name,
                    self.machine
                ])?;
            self.number = connection.last_insert_rowid();
        } else if self.machine != self.machine_written {
            connection
                .prepare_cached("UPDATE scopes SET machine = ?2 WHERE scope = ?1")?
                .execute(params![self.number, self.machine])?;
        }
        self.machine_written.clone_from(&self.machine);
        Ok(())
    }

    /// Writes what is remembered of a healthy statement and drops the rows of those that went for
    /// it. Answers how many went. The scope must have its row.
    pub(crate) fn store_clears(
        &mut self,
        connection: &Connection,
        statement: &Statement,
    ) -> rusqlite::Result<u64> {
        let mut insert = connection.prepare_cached(INSERT_CLEAR)?;
        let said = self
            .state
            .clears
            .iter()
            .filter(|c| c.stamp == statement.stamp && c.sender == statement.sender);
        for clear in said {
            let key = encode::clear_key(clear);
            self.clears.insert(key);
            insert.execute(params![
                self.number,
                key,
                nanos(clear.received_at),
                encode::clear(clear)
            ])?;
        }
        self.drop_clears(connection)
    }

    /// Writes all healthy statements anew, in place of those of this scope and of another one that
    /// goes into it.
    pub(crate) fn rewrite_clears(
        &mut self,
        connection: &Connection,
        gone: i64,
    ) -> rusqlite::Result<()> {
        connection
            .prepare_cached("DELETE FROM clears WHERE scope IN (?1, ?2)")?
            .execute([self.number, gone])?;
        let mut insert = connection.prepare_cached(INSERT_CLEAR)?;
        for clear in &self.state.clears {
            insert.execute(params![
                self.number,
                encode::clear_key(clear),
                nanos(clear.received_at),
                encode::clear(clear)
            ])?;
        }
        self.clears = self.state.clears.iter().map(encode::clear_key).collect();
        Ok(())
    }

    /// Drops the rows of healthy statements that the fold no longer remembers.
    pub(crate) fn drop_clears(&mut self, connection: &Connection) -> rusqlite::Result<u64> {
        if self.clears.len() == self.state.clears.len() {
            return Ok(0);
        }
        let alive: HashSet<[u8; 16]> = self.state.clears.iter().map(encode::clear_key).collect();
        let gone: Vec<[u8; 16]> = self.clears.difference(&alive).copied().collect();
        for key in &gone {
            connection
                .prepare_cached("DELETE FROM clears WHERE scope = ?1 AND key = ?2")?
                .execute(params![self.number, key])?;
        }
        self.clears = alive;
        Ok(gone.len() as u64)
    }
}

fn write_fault(
    connection: &Connection,
    scope: i64,
    node: Option<&str>,
    fault: &FaultState,
    state: &[u8],
    row: &mut Row,
) -> rusqlite::Result<()> {
    let key = fault.device.key();
    let held = fault.closes_at().map(nanos);
    let last = nanos(row.facts.last_at);
    let facts = row.facts.encode();
    let space = fault.space.number();
    let Some(new) = row.last_event.take() else {
        connection
            .prepare_cached(
                "UPDATE faults SET space = ?2, device_kind = ?3, device = ?4, code = ?5,
                    open = ?6, asserted = ?7, incident = ?8, held_until = ?9, last_at = ?10,
                    state = ?11, facts = ?12 WHERE fault = ?1",
            )?
            .execute(params![
                fault.row,
                space,
                key.kind(),
                key.as_str(),
                fault.code,
                fault.open,
                row.asserted,
                row.incident,
                held,
                last,
                state,
                facts
            ])?;
        return Ok(());
    };
    connection
        .prepare_cached(
            "INSERT INTO faults (fault, scope, node, space, device_kind, device, code, open,
                asserted, incident, held_until, last_at, state, facts, event, body)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)
             ON CONFLICT (fault) DO UPDATE SET space = excluded.space,
                device_kind = excluded.device_kind, device = excluded.device,
                code = excluded.code, open = excluded.open, asserted = excluded.asserted,
                incident = excluded.incident, held_until = excluded.held_until,
                last_at = excluded.last_at, state = excluded.state, facts = excluded.facts,
                event = excluded.event, body = excluded.body",
        )?
        .execute(params![
            fault.row,
            scope,
            node,
            space,
            key.kind(),
            key.as_str(),
            fault.code,
            fault.open,
            row.asserted,
            row.incident,
            held,
            last,
            state,
            facts,
            &*new.event,
            &*new.body
        ])?;
    Ok(())
}
