//! What becomes of a spool file that is no database any more: it is put aside, and a gap record
//! tells of it.

use std::path::Path;

use rusqlite::{Connection, OpenFlags, ffi};

use super::database::unsigned;
use crate::own::Gap;

/// Whether the file is no database any more, which no second try mends.
pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    matches!(
        error.sqlite_error_code(),
        Some(DatabaseCorrupt | NotADatabase)
    )
}

/// Looks at every page: damage that is found late, while events are sent, would hold them up. Takes
/// some 0.1 s for a full spool.
pub(super) fn look(connection: &Connection) -> rusqlite::Result<()> {
    let found: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if found == "ok" {
        return Ok(());
    }
    let code = ffi::Error::new(ffi::SQLITE_CORRUPT);
    Err(rusqlite::Error::SqliteFailure(code, Some(found)))
}

/// Renames a damaged file, so that a person can look at it, and the agent starts from nothing:
/// the controller tells it what is open. Answers what is lost with it.
pub(super) fn put_aside(folder: &Path, error: &rusqlite::Error) -> std::io::Result<Gap> {
    let lost = count(&folder.join("spool.db"));
    for (name, aside) in [
        ("spool.db", "spool.damaged"),
        ("spool.db-wal", "spool.damaged-wal"),
        ("spool.db-shm", "spool.damaged-shm"),
    ] {
        match std::fs::rename(folder.join(name), folder.join(aside)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    let (count, from, to) = lost.unwrap_or_default();
    let folder = folder.display();
    let gap = Gap {
        source: "spool",
        count,
        from,
        to,
        why: format!(
            "the spool was damaged ({error}) and put aside as {folder}/spool.damaged; what of it \
             the controller had not acknowledged is lost"
        ),
    };
    tracing::error!(%error, %folder, count, "the spool is damaged: it is put aside");
    Ok(gap)
}

/// How many events it held, and their first and last number; None if that can't be read any more.
fn count(path: &Path) -> Option<(u64, u64, u64)> {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).ok()?;
    let query = "SELECT count(*), coalesce(min(number), 0), coalesce(max(number), 0) FROM events";
    let numbers = connection.query_row(query, [], |row| {
        Ok((
            unsigned(row.get(0)?),
            unsigned(row.get(1)?),
            unsigned(row.get(2)?),
        ))
    });
    numbers.ok()
}
