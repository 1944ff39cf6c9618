//! Checks that have another name since: what the file holds under an older one is brought under the
//! present one before anything is written, so that a newer version closes what an older one opened.
//!
//! Renamed is what decides: scopes with their faults and healthy statements, and the faults that
//! open incidents and holds name. Events, transitions and incidents that are over stay as they were
//! written: they are history.

use std::collections::BTreeMap;

use health_event::checks::{Alias, present_name};
use health_event::incident::{Hold, Incident, IncidentFault};
use health_event::{CloseCause, Device, FaultId, FaultKey, Scope, Space};
use jiff::Timestamp;
use rusqlite::{Connection, params};

use crate::changes::{put_holds, scopes_where, write_incident};
use crate::closing::note_turns;
use crate::codec::from_nanos;
use crate::fold::is_newer;
use crate::ledger::Ledger;
use crate::records;
use crate::scopes::{CachedScope, LastEvent, Row};

/// What faults of older names are called now, where that is not the name of the check alone.
type Renamed = BTreeMap<FaultId, FaultId>;

/// A fault as it was before two scopes became one.
struct Before {
    row: u64,
    space: Space,
    device: Device,
    code: String,
}

impl Ledger {
    /// Brings the file to the present names, all or nothing. The same file gives the same result
    /// whenever it is opened.
    pub(crate) fn rename_checks(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let aliases = self.options.aliases;
        if aliases.is_empty() {
            return Ok(());
        }
        let transaction = connection.unchecked_transaction()?;
        let mut renamed = Renamed::new();
        for alias in aliases {
            let older = scopes_where(
                connection,
                "SELECT subject, agent, component, check_name FROM scopes
                 WHERE agent = ?1 AND check_name = ?2 ORDER BY subject, component",
                params![alias.old_agent, alias.old_check],
            )?;
            for older in older {
                self.rename(connection, &older, alias, &mut renamed)?;
            }
        }
        rename_in_incidents(connection, aliases, &renamed)?;
        rename_in_holds(connection, aliases, &renamed)?;
        self.options.pass("store.begin.before");
        transaction.commit()?;
        self.options.pass("store.begin.after");
        Ok(())
    }

    fn rename(
        &mut self,
        connection: &Connection,
        older: &Scope,
        alias: &Alias,
        renamed: &mut Renamed,
    ) -> rusqlite::Result<()> {
        let present = renamed_scope(older, &[*alias]);
        let mut kept = CachedScope::load(connection, &present)?;
        let gone = CachedScope::load(connection, older)?;
        tracing::info!(
            code = "check_renamed",
            from = format!("{}/{}", older.agent, older.check_name),
            to = format!("{}/{}", present.agent, present.check_name),
            subject = %older.subject,
            faults = gone.rows.len(),
            "what the store holds of a check is under its present name from now on"
        );
        if kept.number == 0 {
            connection
                .prepare_cached("UPDATE scopes SET agent = ?2, check_name = ?3 WHERE scope = ?1")?
                .execute(params![gone.number, present.agent, present.check_name])?;
            return Ok(());
        }
        let before = before(&gone);
        for (was, is) in self.join(connection, &mut kept, gone, &present, before)? {
            let id = |scope: &Scope, key| FaultId {
                scope: scope.clone(),
                key,
            };
            renamed.insert(id(older, was), id(&present, is));
        }
        Ok(())
    }

    /// Makes two scopes one. Answers what each fault of the one that goes is now.
    fn join(
        &mut self,
        connection: &Connection,
        kept: &mut CachedScope,
        gone: CachedScope,
        present: &Scope,
        older: Vec<Before>,
    ) -> rusqlite::Result<Vec<(FaultKey, FaultKey)>> {
        // Its own clock would give another result at each opening.
        let now = newest(kept).max(newest(&gone));
        let mut all = before(kept);
        let names: Vec<(u64, FaultKey)> = older.iter().map(|b| (b.row, b.key())).collect();
        all.extend(older);
        if kept.machine.is_empty() {
            kept.machine.clone_from(&gone.machine);
        }
        let boots = self.boots_of(connection, &kept.machine)?;
        connection
            .prepare_cached("UPDATE faults SET scope = ?2 WHERE scope = ?1")?
            .execute([gone.number, kept.number])?;
        kept.rows.extend(gone.rows);
        kept.state.merge(gone.state, &boots, now);
        let orphans = kept.orphans();
        for orphan in &orphans {
            let Some(row) = kept.rows.remove(orphan) else {
                continue;
            };
            let heir = all.iter().find(|b| b.row == *orphan);
            let heir = heir.and_then(|b| row_of(kept, b));
            let heir = heir.and_then(|row| kept.rows.get_mut(&row));
            if let Some(heir) = heir {
                let newer = is_newer(&row.facts.sender, &row.facts.stamp, &heir.facts, &boots);
                let event = last_event(connection, *orphan)?;
                inherit(heir, row, newer.then_some(event));
            }
        }
        note_turns(self, kept, now, CloseCause::Recovered);
        kept.store(connection, present, &orphans)?;
        // Another agent's name may be what they are counted under now.
        self.open_faults.clear();
        kept.rewrite_clears(connection, gone.number)?;
        connection
            .prepare_cached("DELETE FROM scopes WHERE scope = ?1")?
            .execute([gone.number])?;
        let is = |(row, was): (u64, FaultKey)| {
            let before = all.iter().find(|b| b.row == row)?;
            let row = row_of(kept, before)?;
            let fault = kept.state.faults.iter().find(|f| f.row == row)?;
            Some((was, fault.key()))
        };
        Ok(names.into_iter().filter_map(is).collect())
    }
}

impl Before {
    fn key(&self) -> FaultKey {
        FaultKey {
            space: self.space,
            device: self.device.key(),
            code: self.code.clone(),
        }
    }
}

fn before(scope: &CachedScope) -> Vec<Before> {
    let faults = scope.state.faults.iter();
    faults
        .map(|fault| Before {
            row: fault.row,
            space: fault.space,
            device: fault.device.clone(),
            code: fault.code.clone(),
        })
        .collect()
}

/// The row of the fault that one of before is part of.
fn row_of(scope: &CachedScope, before: &Before) -> Option<u64> {
    let own = scope.state.faults.iter().find(|f| f.row == before.row);
    let found = || {
        let at = scope
            .state
            .position(before.space, &before.device, &before.code)?;
        scope.state.faults.get(at)
    };
    own.or_else(found).map(|fault| fault.row)
}

/// When a scope was last spoken of.
fn newest(scope: &CachedScope) -> Timestamp {
    let rows = scope.rows.values().map(|row| row.facts.last_at);
    let clears = scope.state.clears.iter().map(|clear| clear.received_at);
    rows.chain(clears).max().unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Takes the row of a fault into the one that it was found to be; `newer`: its last event, if that
/// is the newest of both.
fn inherit(heir: &mut Row, gone: Row, newer: Option<LastEvent>) {
    heir.changed = true;
    let (facts, other) = (&mut heir.facts, gone.facts);
    if gone.open {
        // One opening, of which the earlier began it: a hold and an incident name that one.
        let earlier = !heir.open || other.opened_seq < facts.opened_seq;
        if earlier {
            (facts.opened_seq, facts.opened_at) = (other.opened_seq, other.opened_at);
        }
        let own = heir.incident.take().filter(|_| heir.open);
        heir.incident = own.or(gone.incident);
        (facts.closed_at, facts.cause) = (None, None);
        heir.open = true;
    }
    heir.asserted |= gone.asserted;
    facts.count += other.count;
    facts.repeats += other.repeats;
    facts.first_seq = facts.first_seq.min(other.first_seq);
    facts.first_at = facts.first_at.min(other.first_at);
    facts.last_seq = facts.last_seq.max(other.last_seq);
    facts.last_at = facts.last_at.max(other.last_at);
    if let Some(event) = newer {
        heir.last_event = Some(event);
        facts.stored_at = other.stored_at;
        facts.machine = other.machine;
        facts.sent = other.sent;
        facts.sender = other.sender;
        facts.stamp = other.stamp;
        facts.word = other.word;
        facts.agent_stamp = other.agent_stamp;
    }
}

fn last_event(connection: &Connection, row: u64) -> rusqlite::Result<LastEvent> {
    connection
        .prepare_cached("SELECT event, body FROM faults WHERE fault = ?1")?
        .query_row([row], |row| {
            let (event, body): (Vec<u8>, Vec<u8>) = (row.get(0)?, row.get(1)?);
            Ok(LastEvent {
                event: event.into(),
                body: body.into(),
            })
        })
}

fn renamed_scope(scope: &Scope, aliases: &[Alias]) -> Scope {
    let (agent, check) = present_name(&scope.agent, &scope.check_name, aliases);
    Scope {
        agent: agent.to_owned(),
        check_name: check.to_owned(),
        ..scope.clone()
    }
}

fn rename_id(id: &mut FaultId, aliases: &[Alias], renamed: &Renamed) {
    match renamed.get(id) {
        Some(now) => *id = now.clone(),
        None => id.scope = renamed_scope(&id.scope, aliases),
    }
}

fn rename_in_incidents(
    connection: &Connection,
    aliases: &[Alias],
    renamed: &Renamed,
) -> rusqlite::Result<()> {
    let mut statement =
        connection.prepare("SELECT state FROM incidents WHERE closed_at IS NULL ORDER BY id")?;
    let texts: Vec<String> = statement
        .query_map([], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    for text in texts {
        let before = records::decode_incident(&text)?;
        let mut after = Incident {
            faults: Vec::with_capacity(before.faults.len()),
            ..before.clone()
        };
        for fault in &before.faults {
            let mut fault = fault.clone();
            rename_id(&mut fault.id, aliases, renamed);
            match after.faults.iter_mut().find(|f| f.id == fault.id) {
                Some(same) => join_incident_fault(same, fault),
                None => after.faults.push(fault),
            }
        }
        if after != before {
            write_incident(connection, &after)?;
        }
    }
    Ok(())
}

fn join_incident_fault(kept: &mut IncidentFault, other: IncidentFault) {
    kept.rules.extend(other.rules);
    kept.forced_by = kept.forced_by.take().or(other.forced_by);
    if other.action.strength() > kept.action.strength() {
        kept.action = other.action;
    }
    kept.seq = kept.seq.min(other.seq);
    kept.joined_at = kept.joined_at.min(other.joined_at);
    kept.closed_at = kept.closed_at.zip(other.closed_at).map(|(a, b)| a.max(b));
    kept.through_agent |= other.through_agent;
}

fn rename_in_holds(
    connection: &Connection,
    aliases: &[Alias],
    renamed: &Renamed,
) -> rusqlite::Result<()> {
    let mut statement = connection
        .prepare("SELECT machine, holds, seen_at FROM machines WHERE holds <> '[]' ORDER BY 1")?;
    let rows: Vec<(String, String, i64)> = statement
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<Result<_, _>>()?;
    for (machine, text, seen_at) in rows {
        let before = records::decode_holds(&text)?;
        let mut after: Vec<Hold> = before.clone();
        for held in after.iter_mut().flat_map(|hold| &mut hold.faults) {
            rename_id(&mut held.id, aliases, renamed);
        }
        if after != before {
            put_holds(connection, &machine, &after, from_nanos(seen_at))?;
        }
    }
    Ok(())
}
