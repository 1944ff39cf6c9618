//! What goes with age and size: old events first, never an open fault, never unnoticed.

use std::time::Duration;

use health_event::Subject;
use jiff::{SignedDuration, Timestamp};
use rusqlite::{Connection, params};

use crate::changes::scopes_where;
use crate::codec::nanos;
use crate::ledger::{Ledger, holds_any};
use crate::records;
use crate::types::Pruned;

/// Rows that one step removes of a kind: some 10 ms of the writer's time.
const STEP: u64 = 500;
/// Scopes whose memory one step looks at.
const STEP_SCOPES: usize = 50;
/// Ids of repeats kept beyond the memory of faults at most, some 100 bytes each.
const REPEATS_MAX: u64 = 1_000_000;
/// A consumer that moved within this time is waited for.
const LIVE: SignedDuration = SignedDuration::from_hours(24);

impl Ledger {
    /// One step of retention.
    pub(crate) fn prune(
        &mut self,
        connection: &Connection,
        now: Timestamp,
    ) -> rusqlite::Result<Pruned> {
        let old = before(now, self.options.retention_age);
        let memory = before(now, self.options.fault_memory);
        let mut pruned = Pruned::default();
        let last = self.last_to_go(connection, now, old)?;
        if last > 0 {
            self.note_dropped(connection, last)?;
            pruned.events = drop_events(connection, last, now)?;
        }
        let uncounted = self.count_shares(connection)?;
        let (shed, unswept) = self.shed(connection, seen_by_all(connection, now)?, now)?;
        pruned.shed = shed;
        // As long as an event is known again by its id, a repeat is too: an agent that was away
        // may send either once more. Size and number beat that.
        let repeats = if self.over_size(connection)? {
            now
        } else if repeats_kept(connection)? > REPEATS_MAX {
            memory
        } else {
            old
        };
        pruned.other_rows = drop_others(connection, old, repeats)?;
        if self.holds {
            drop_held(connection)?;
            self.holds = holds_any(connection)?;
        }
        pruned.other_rows += self.forget_machines(connection, old)?;
        let scopes;
        (scopes, pruned.forgotten) = self.forget(connection, memory)?;
        pruned.more = pruned.events == STEP
            || uncounted
            || unswept
            || pruned.other_rows >= STEP
            || scopes > 0
            || (pruned.events + pruned.other_rows > 0 && self.over_size(connection)?);
        Ok(pruned)
    }

    /// The last event that goes in this step; 0 if none.
    fn last_to_go(
        &self,
        connection: &Connection,
        now: Timestamp,
        old: Timestamp,
    ) -> rusqlite::Result<u64> {
        let mut oldest = connection
            .prepare_cached("SELECT seq, received_at FROM events ORDER BY seq LIMIT ?1")?;
        let oldest: Vec<(u64, i64)> = oldest
            .query_map([STEP], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<Result<_, _>>()?;
        if self.over_size(connection)? {
            return Ok(oldest.last().map_or(0, |(seq, _)| *seq));
        }
        let seen = seen_by_all(connection, now)?;
        Ok(oldest
            .iter()
            .take_while(|(seq, at)| *at < nanos(old) && *seq <= seen)
            .last()
            .map_or(0, |(seq, _)| *seq))
    }

    fn over_size(&self, connection: &Connection) -> rusqlite::Result<bool> {
        Ok(live_bytes(connection)? > self.options.retention_bytes)
    }

    /// Forgets machines that were not seen for the time of retention, of which nothing is
    /// remembered: no fault, no healthy statement, no open incident, no hold that ended later.
    fn forget_machines(
        &mut self,
        connection: &Connection,
        old: Timestamp,
    ) -> rusqlite::Result<u64> {
        let mut statement = connection.prepare_cached(
            "SELECT machine, holds FROM machines m WHERE seen_at < ?1
                AND NOT EXISTS (SELECT 1 FROM scopes s WHERE s.machine = m.machine)
                AND NOT EXISTS (SELECT 1 FROM incidents i
                    WHERE i.machine = m.machine AND i.closed_at IS NULL)
             ORDER BY seen_at LIMIT ?2",
        )?;
        let candidates: Vec<(String, String)> = statement
            .query_map(params![nanos(old), STEP], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?
            .collect::<Result<_, _>>()?;
        let mut gone = 0;
        for (machine, holds) in candidates {
            // What can't be read may hold something.
            let holds = records::decode_holds(&holds);
            let holds_nothing = holds.is_ok_and(|holds| holds.iter().all(|hold| hold.until < old));
            if holds_nothing {
                gone += connection
                    .prepare_cached("DELETE FROM machines WHERE machine = ?1")?
                    .execute([&machine])? as u64;
                drop(self.boots.take(&machine));
                self.touch_machine(&machine);
            }
        }
        Ok(gone)
    }

    /// Forgets healthy statements and closed faults. Answers how many scopes it looked at and how
    /// many rows went.
    fn forget(
        &mut self,
        connection: &Connection,
        memory: Timestamp,
    ) -> rusqlite::Result<(usize, u64)> {
        let scopes = scopes_where(
            connection,
            "SELECT subject, agent, component, check_name FROM scopes WHERE scope IN (
                SELECT scope FROM clears WHERE received_at < ?1
                UNION ALL SELECT scope FROM faults
                    WHERE open = 0 AND asserted = 0 AND last_at < ?1
                LIMIT ?2)",
            params![nanos(memory), STEP_SCOPES],
        )?;
        let mut forgotten = 0;
        for key in &scopes {
            forgotten += self.with_scope(connection, key, |ledger, scope| {
                let boots = ledger.boots_of(connection, &scope.machine.clone())?;
                let before = scope.state.faults.clone();
                scope.state.forget(memory, &boots);
                // What the agent still asserts stays known, so that its report finds it here.
                // What was last received before that goes even where its sender's clock ran ahead.
                for fault in before {
                    let alive = scope.state.faults.iter().any(|f| f.row == fault.row);
                    let row = scope.rows.get(&fault.row);
                    let asserted = row.is_some_and(|row| row.asserted);
                    let stale = row.is_some_and(|row| row.facts.last_at < memory);
                    if !alive && asserted {
                        scope.state.faults.push(fault);
                    } else if alive && stale && !asserted && !fault.open {
                        scope.state.faults.retain(|f| f.row != fault.row);
                    }
                }
                let faults = scope.orphans().len() as u64;
                Ok(faults + scope.drop_clears(connection)?)
            })?;
            if let Subject::Node(node) = &key.subject {
                self.touch(node);
            }
        }
        Ok((scopes.len(), forgotten))
    }
}

/// Bytes of the database that hold content.
pub(crate) fn live_bytes(connection: &Connection) -> rusqlite::Result<u64> {
    let pragma = |sql| connection.query_row(sql, [], |row| row.get::<_, u64>(0));
    let pages = pragma("PRAGMA page_count")?.saturating_sub(pragma("PRAGMA freelist_count")?);
    Ok(pages * pragma("PRAGMA page_size")?)
}

/// Ids of repeats that are kept, or somewhat more.
fn repeats_kept(connection: &Connection) -> rusqlite::Result<u64> {
    connection
        .prepare_cached("SELECT coalesce(max(rowid) - min(rowid) + 1, 0) FROM repeat_ids")?
        .query_row([], |row| row.get(0))
}

fn before(now: Timestamp, span: Duration) -> Timestamp {
    let span = SignedDuration::try_from(span).unwrap_or(SignedDuration::MAX);
    now.saturating_sub(span).unwrap_or(Timestamp::MIN)
}

/// The position that all live consumers have seen; the last there can be if there are none.
fn seen_by_all(connection: &Connection, now: Timestamp) -> rusqlite::Result<u64> {
    let live = now.saturating_sub(LIVE).unwrap_or(Timestamp::MIN);
    let seen: Option<u64> = connection
        .prepare_cached("SELECT min(seq) FROM consumers WHERE enabled AND moved_at >= ?1")?
        .query_row([nanos(live)], |row| row.get(0))?;
    Ok(seen.unwrap_or(u64::MAX))
}

/// Writes down what consumers that have not seen all up to a position will miss.
pub(crate) fn note_gaps(
    connection: &Connection,
    last: u64,
    now: Timestamp,
) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO gaps (consumer, from_seq, to_seq, at)
             SELECT name, seq + 1, ?1, ?2 FROM consumers WHERE seq < ?1
             ON CONFLICT (consumer, from_seq) DO UPDATE SET
                to_seq = max(to_seq, excluded.to_seq), at = excluded.at",
        )?
        .execute(params![last, nanos(now)])?;
    Ok(())
}

/// Removes events up to a position and writes down what consumers will miss.
fn drop_events(connection: &Connection, last: u64, now: Timestamp) -> rusqlite::Result<u64> {
    note_gaps(connection, last, now)?;
    let gone = connection
        .prepare_cached("DELETE FROM events WHERE seq <= ?1")?
        .execute([last])?;
    Ok(gone as u64)
}

/// What was held of events that are gone.
fn drop_held(connection: &Connection) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "DELETE FROM held WHERE NOT EXISTS (SELECT 1 FROM events WHERE events.seq = held.seq)",
        )?
        .execute([])?;
    Ok(())
}

fn drop_others(
    connection: &Connection,
    old: Timestamp,
    repeats: Timestamp,
) -> rusqlite::Result<u64> {
    let steps = [
        (
            "DELETE FROM repeat_ids WHERE rowid IN (
                SELECT rowid FROM repeat_ids ORDER BY rowid LIMIT ?2) AND received_at < ?1",
            repeats,
        ),
        (
            "DELETE FROM incidents WHERE id IN (
                SELECT id FROM incidents WHERE closed_at IS NOT NULL AND closed_at < ?1 LIMIT ?2)",
            old,
        ),
        (
            "DELETE FROM transitions WHERE seq IN (
                SELECT seq FROM transitions ORDER BY seq LIMIT ?2) AND at < ?1
                AND incident NOT IN (SELECT id FROM incidents WHERE closed_at IS NULL)",
            old,
        ),
        ("DELETE FROM gaps WHERE at < ?1 AND ?2", old),
        ("DELETE FROM shed WHERE last_at < ?1 AND ?2", old),
        ("DELETE FROM unopened WHERE last_at < ?1 AND ?2", old),
        (
            "DELETE FROM spools WHERE at < ?1 AND ?2 AND EXISTS (
                SELECT 1 FROM spools s WHERE s.node = spools.node AND s.at > spools.at)",
            old,
        ),
    ];
    let mut gone = 0;
    for (sql, limit) in steps {
        gone += connection
            .prepare_cached(sql)?
            .execute(params![nanos(limit), STEP])?;
    }
    Ok(gone as u64)
}
