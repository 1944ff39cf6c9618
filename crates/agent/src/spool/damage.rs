//! What becomes of a spool file that is no database any more, or was emptied: it is put aside, and a
//! gap record tells of it.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags, ffi};

use super::database::{PAGE_BYTES, unsigned};
use crate::crash;
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
    Err(damage(found))
}

/// What SQLite takes for a new database, or for one whose last writes never were, but is what is
/// left of one: the file is empty or gone, or its log. To be called before it is opened.
pub(super) fn look_for_loss(path: &Path) -> rusqlite::Result<()> {
    if length(path) == 0 {
        return Err(damage("it is empty or gone".to_owned()));
    }
    let (log, need) = (beside(path, "-wal"), logged(&beside(path, "-shm")));
    if length(&log) < need {
        return Err(damage(format!("{} is gone or cut short", log.display())));
    }
    Ok(())
}

/// An error as SQLite gives it for a damaged file.
pub(super) fn damage(found: String) -> rusqlite::Error {
    let code = ffi::Error::new(ffi::SQLITE_CORRUPT);
    rusqlite::Error::SqliteFailure(code, Some(found))
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// 0 if there is no file.
fn length(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |about| about.len())
}

/// Bytes that the log must have by its index, which a clean end removes and which is written after
/// the log is on disk. 0 if the index does not say. Layout: <https://sqlite.org/walformat.html>, 2.
fn logged(index: &Path) -> u64 {
    /// Where the number of frames stands, and that of those that are in the database too.
    const FRAMES: usize = 16;
    const BACKFILLED: usize = 96;
    /// Bytes before the first frame, and before each frame's page.
    const HEAD: u64 = 32;
    const FRAME_HEAD: u64 = 24;
    let mut bytes = [0; BACKFILLED + 4];
    let read = File::open(index).and_then(|mut index| index.read_exact(&mut bytes));
    let number = |at: usize| {
        let number = bytes[at..].first_chunk().copied().unwrap_or_default();
        u64::from(u32::from_ne_bytes(number))
    };
    match read {
        Ok(()) if number(FRAMES) > number(BACKFILLED) => {
            HEAD + number(FRAMES) * (FRAME_HEAD + PAGE_BYTES)
        }
        Ok(()) | Err(_) => 0,
    }
}

/// The new spool until it takes the damaged one's place.
const NEW: &str = "spool.new";
/// All that a spool holds whose files went from their place, until it takes that place.
pub(super) const WHOLE: &str = "spool.whole";

/// What is lost with a damaged file.
pub(super) fn lost(folder: &Path, error: &rusqlite::Error) -> Gap {
    let (count, from, to) = count(&folder.join("spool.db")).unwrap_or_default();
    let folder = folder.display();
    tracing::error!(%error, %folder, count, "the spool is damaged: it is put aside");
    Gap {
        source: "spool",
        count,
        from,
        to,
        why: format!(
            "the spool was damaged ({error}); what is left of it is put aside as \
             {folder}/spool.damaged; what of it the controller had not acknowledged is lost"
        ),
    }
}

/// Where a new spool is made; what an agent that died left there is removed.
pub(super) fn new_file(folder: &Path) -> std::io::Result<PathBuf> {
    let new = folder.join(NEW);
    for path in [beside(&new, ""), beside(&new, "-wal"), beside(&new, "-shm")] {
        unless_absent(std::fs::remove_file(path))?;
    }
    Ok(new)
}

/// Renames a damaged file, so that a person can look at it, and puts the new one in its place: the
/// agent starts from nothing, and the controller tells it what is open.
pub(super) fn put_aside(folder: &Path) -> std::io::Result<()> {
    replace(folder, NEW)
}

/// Renames what lies where a spool's files belong, and puts this file there.
pub(super) fn replace(folder: &Path, by: &str) -> std::io::Result<()> {
    for (name, aside) in [
        ("spool.db", "spool.damaged"),
        ("spool.db-wal", "spool.damaged-wal"),
        ("spool.db-shm", "spool.damaged-shm"),
    ] {
        unless_absent(std::fs::rename(folder.join(name), folder.join(aside)))?;
        crash::point("spool.replace.amid");
    }
    std::fs::rename(folder.join(by), folder.join("spool.db"))
}

/// Does the rest of it for an agent that died meanwhile: the old file has gone, and the new one is
/// whole, which one whose log is there may not be. What has its name only once it is whole comes
/// before whatever lies in its place.
pub(super) fn finish(folder: &Path) -> std::io::Result<()> {
    if folder.join(WHOLE).exists() {
        return replace(folder, WHOLE);
    }
    let new = folder.join(NEW);
    let amid = length(&new) > 0 && !beside(&new, "-wal").exists();
    if amid && !folder.join("spool.db").exists() {
        return put_aside(folder);
    }
    Ok(())
}

/// What a removal or renaming answers, if it is no fault that there is nothing.
pub(super) fn unless_absent(done: std::io::Result<()>) -> std::io::Result<()> {
    match done {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
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
