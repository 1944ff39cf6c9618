//! Making room in a full spool.
//!
//! First, per identity the first and the newest event stay, and the rest become a count. Then the
//! oldest non-fatal identities go whole. Each step leaves a gap record. Events that the sender
//! still holds in memory are left alone.

use super::SpoolError;
use super::database::Database;
use crate::crash;
use crate::own::Gap;

/// Between the first and the newest of their identity. At most 50,000 a step: the list is in
/// memory.
const BETWEEN: &str = "
    SELECT e.number FROM events AS e JOIN (
        SELECT identity, min(number) AS first, max(number) AS newest
        FROM events GROUP BY identity
    ) AS g ON e.identity = g.identity
    WHERE e.number > ?1 AND e.number < ?2 AND e.number <> g.first AND e.number <> g.newest
    LIMIT 50000";

/// All events of the non-fatal identities with the oldest newest event, an eighth of them.
const OLDEST: &str = "
    SELECT number FROM events
    WHERE number > ?1 AND number < ?2 AND identity IN (
        SELECT identity FROM events GROUP BY identity HAVING max(fatal) = 0
        ORDER BY max(number) LIMIT 1 + (SELECT count(DISTINCT identity) / 8 FROM events))
    LIMIT 50000";

/// Makes room if the bound is passed, among the events above `held` and below `below`.
pub(super) fn compact(
    database: &mut Database,
    held: u64,
    below: u64,
) -> Result<Vec<(i64, Gap)>, SpoolError> {
    let mut gaps = Vec::new();
    if !database.is_full() {
        return Ok(gaps);
    }
    for (select, why) in [
        (
            BETWEEN,
            "the spool was full: repeats were cut to first and newest",
        ),
        (
            OLDEST,
            "the spool was full: the oldest faults that are not fatal went",
        ),
    ] {
        if !database.is_full() {
            break;
        }
        crash::point("spool.compact.before");
        gaps.extend(database.remove(select, held, below, why)?);
        crash::point("spool.compact.after");
    }
    database.compacted();
    Ok(gaps)
}
