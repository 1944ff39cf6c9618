//! Gap records inside the spool: noted in the transaction that takes events out, forgotten in the
//! one that writes the event which tells of them.

use std::collections::BTreeSet;

use rusqlite::{Connection, Transaction, params};

use super::database::{decoded, set_meta, sql, unsigned};
use super::identity_of;
use crate::own::{self, Gap};

/// Deletes events and notes the gap, in the transaction given. A gap record among them goes on as
/// a part of a new one of its source, so that no count is lost. Answers how many events went that
/// were no gap records, and the gaps.
pub(super) fn take_out(
    transaction: &Transaction<'_>,
    numbers: &[i64],
    source: &'static str,
    why: &str,
    dropped: u64,
) -> rusqlite::Result<(u64, Vec<(i64, Gap)>)> {
    let (told, numbers) = split_off_gaps(transaction, numbers)?;
    let mut gaps = told;
    if let (Some(first), Some(last)) = (numbers.iter().min(), numbers.iter().max()) {
        merge(
            &mut gaps,
            Gap {
                source,
                count: numbers.len() as u64,
                from: unsigned(*first),
                to: unsigned(*last),
                why: why.to_owned(),
            },
        );
    }
    let mut delete = transaction.prepare_cached("DELETE FROM events WHERE number = ?1")?;
    for number in &numbers {
        delete.execute([number])?;
    }
    let count = numbers.len() as u64;
    set_meta(transaction, "dropped", sql(dropped + count))?;
    let mut noted = Vec::with_capacity(gaps.len());
    for gap in gaps {
        noted.push((note(transaction, &gap)?, gap));
    }
    Ok((count, noted))
}

/// Notes a gap until it is told. Answers where.
pub(super) fn note(connection: &Connection, gap: &Gap) -> rusqlite::Result<i64> {
    connection
        .prepare_cached(
            "INSERT INTO gaps (source, count, first, last, why) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![
            gap.source,
            sql(gap.count),
            sql(gap.from),
            sql(gap.to),
            gap.why
        ])?;
    Ok(connection.last_insert_rowid())
}

/// Deletes the gap records among these events; answers what they told, and the other events.
fn split_off_gaps(
    transaction: &Transaction<'_>,
    numbers: &[i64],
) -> rusqlite::Result<(Vec<Gap>, Vec<i64>)> {
    let mut gaps = Vec::new();
    let mut events: BTreeSet<i64> = numbers.iter().copied().collect();
    for source in own::GAP_SOURCES {
        let identity = identity_of(&own::events_lost(&Gap {
            source,
            count: 0,
            from: 0,
            to: 0,
            why: String::new(),
        }));
        let mut statement =
            transaction.prepare("SELECT number, body FROM events WHERE identity = ?1")?;
        let rows: Vec<(i64, Vec<u8>)> = statement
            .query_map([identity], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<Result<_, _>>()?;
        for (number, body) in &rows {
            if !events.contains(number) {
                continue;
            }
            let Some(gap) = decoded(body).as_ref().and_then(own::gap_of) else {
                continue;
            };
            events.remove(number);
            transaction.execute("DELETE FROM events WHERE number = ?1", [number])?;
            merge(&mut gaps, gap);
        }
    }
    Ok((gaps, events.into_iter().collect()))
}

/// Adds a gap to those of its source; the newest reason stays.
fn merge(gaps: &mut Vec<Gap>, gap: Gap) {
    match gaps.iter_mut().find(|known| known.source == gap.source) {
        Some(known) => {
            known.count = known.count.saturating_add(gap.count);
            known.from = known.from.min(gap.from);
            known.to = known.to.max(gap.to);
            known.why = gap.why;
        }
        None => gaps.push(gap),
    }
}

/// Gaps that were noted and not told.
pub(super) fn untold(transaction: &Transaction<'_>) -> rusqlite::Result<Vec<(i64, Gap)>> {
    let mut statement =
        transaction.prepare("SELECT id, source, count, first, last, why FROM gaps ORDER BY id")?;
    let rows = statement.query_map([], |row| {
        let source: String = row.get(1)?;
        let source = own::GAP_SOURCES.into_iter().find(|known| *known == source);
        let gap = Gap {
            source: source.unwrap_or("spool"),
            count: unsigned(row.get(2)?),
            from: unsigned(row.get(3)?),
            to: unsigned(row.get(4)?),
            why: row.get(5)?,
        };
        Ok((row.get(0)?, gap))
    })?;
    rows.collect()
}
