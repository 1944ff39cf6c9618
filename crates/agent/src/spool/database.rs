//! All SQL of the spool.

use std::fs::File;
use std::path::{Path, PathBuf};

use health_event::{HealthEvent, SentIdentity, devices_of, keys};
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};
use ulid::Ulid;

use super::damage::{damage, finish, is_damage, look, look_for_loss, lost, new_file, put_aside};
use super::gaps::{note, take_out, untold};
use super::place::{self, Place};
use super::{Level, Position, Row, SpoolError, Stored, Write, id};
use crate::crash;
use crate::faults::Assertion;
use crate::own::Gap;

/// What no record of ours ever takes: the room that a compaction needs above the bound.
const SLACK_BYTES: u64 = 8 * 1024 * 1024;
pub(super) const PAGE_BYTES: u64 = 4_096;

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS events (
        number INTEGER PRIMARY KEY,
        identity BLOB NOT NULL,
        fatal INTEGER NOT NULL,
        at INTEGER NOT NULL,
        body BLOB NOT NULL
    );
    CREATE TABLE IF NOT EXISTS gaps (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        source TEXT NOT NULL,
        count INTEGER NOT NULL,
        first INTEGER NOT NULL,
        last INTEGER NOT NULL,
        why TEXT NOT NULL
    );
    CREATE TABLE IF NOT EXISTS faults (
        key TEXT PRIMARY KEY,
        code TEXT NOT NULL,
        identity BLOB NOT NULL,
        single BLOB NOT NULL,
        body BLOB NOT NULL
    ) WITHOUT ROWID;
";

/// Gaps, and where each is noted until it is told.
type Noted = Vec<(i64, Gap)>;

/// The open spool file. Holds the folder's lock.
#[derive(Debug)]
pub struct Database {
    connection: Connection,
    path: PathBuf,
    max_bytes: u64,
    dropped: u64,
    /// Above this it is full: `max_bytes`, or more where the last compaction left more.
    full_at: u64,
    /// Which files are open.
    place: Place,
    /// Released by the kernel however the process ends.
    lock: File,
}

impl Database {
    /// Opens or makes the file.
    ///
    /// # Errors
    /// [`SpoolError`] if folder or file can't be used, or another agent does.
    pub fn open(folder: &Path, max_bytes: u64) -> Result<(Self, Stored), SpoolError> {
        let io = |source| SpoolError::Folder {
            path: folder.to_owned(),
            source,
        };
        std::fs::create_dir_all(folder).map_err(io)?;
        let lock = lock(folder)?;
        let path = folder.join("spool.db");
        finish(folder).map_err(io)?;
        let error = |source| SpoolError::Database {
            path: path.clone(),
            act: "opened",
            source,
        };
        let last = id::last(folder);
        let known = id::is_known(folder);
        let opened = match read(&path, max_bytes, last, known, None) {
            Err(source) if is_damage(&source) => {
                let gap = lost(folder, &source);
                let new = new_file(folder).map_err(io)?;
                begin_anew(&new, max_bytes, last, &gap).map_err(error)?;
                crash::point("spool.replace.before");
                put_aside(folder).map_err(io)?;
                crash::point("spool.replace.after");
                let read = read(&path, max_bytes, last, false, None);
                read.map(|(connection, stored, dropped)| {
                    let fresh = true;
                    (connection, Stored { fresh, ..stored }, dropped)
                })
            }
            opened => opened,
        };
        let (connection, mut stored, dropped) = opened.map_err(error)?;
        id::remember(folder, &stored.id);
        let database = Self {
            connection,
            path: path.clone(),
            max_bytes,
            dropped,
            full_at: max_bytes,
            place: Place::of(folder).map_err(io)?,
            lock,
        };
        stored.level = database.level();
        Ok((database, stored))
    }

    /// Events, faults, position and acknowledgement in one transaction.
    pub(super) fn write(
        &mut self,
        writes: &[Write],
        through: Option<u64>,
    ) -> Result<(), SpoolError> {
        let transaction = self.connection.transaction();
        transaction
            .and_then(|transaction| {
                for write in writes {
                    apply(&transaction, write)?;
                }
                if let Some(through) = through {
                    transaction
                        .prepare_cached("DELETE FROM events WHERE number <= ?1")?
                        .execute([sql(through)])?;
                }
                transaction.commit()
            })
            .map_err(|source| self.error("written", source))
    }

    /// Looks whether the files are in their place, and else writes all that they hold there anew. Only
    /// after that is what was written safe.
    ///
    /// # Errors
    /// [`SpoolError`] if it can't be written there; the open files hold it as long as this runs.
    pub(super) fn stay(&mut self) -> Result<(), SpoolError> {
        let Some(gone) = self.place.gone().map(Path::to_owned) else {
            return Ok(());
        };
        let folder = self.path.parent().unwrap_or(&self.path).to_owned();
        let io = |source| SpoolError::Folder {
            path: folder.clone(),
            source,
        };
        std::fs::create_dir_all(&folder).map_err(io)?;
        if !self.place.has(place::LOCK) {
            // What is held keeps nobody out: nobody finds it.
            self.lock = lock(&folder)?;
        }
        place::copy(&self.connection, &folder)?;
        let opened = connect(&self.path, self.max_bytes).and_then(|mut connection| {
            let id: Option<String> = meta(&connection.transaction()?, "id")?;
            Ok((connection, id))
        });
        let (connection, id) = opened.map_err(|source| self.error("opened", source))?;
        // The files of the one before have other names or none: closing it touches nothing here.
        self.connection = connection;
        self.place = Place::of(&folder).map_err(io)?;
        id::remember(&folder, &id.unwrap_or_default());
        tracing::error!(gone = %gone.display(),
            "a file of the spool went from its place while the agent runs: all that it held is \
             written anew there; keep state_dir as long as the agent runs");
        Ok(())
    }

    /// The next events after a number. One that can't be read any more is taken out, and the gap is
    /// noted with it; fewer than `limit` means that there are no more.
    pub(super) fn read(
        &mut self,
        after: u64,
        limit: usize,
    ) -> Result<(Vec<HealthEvent>, Noted), SpoolError> {
        let mut gaps = Vec::new();
        loop {
            let rows = self
                .rows(after, limit)
                .map_err(|source| self.error("read", source))?;
            let (mut events, mut unreadable) = (Vec::with_capacity(rows.len()), Vec::new());
            for (number, body) in rows {
                match decoded(&body) {
                    Some(event) => events.push(event),
                    None => unreadable.push(number),
                }
            }
            if unreadable.is_empty() {
                return Ok((events, gaps));
            }
            gaps.extend(self.lose(&unreadable, "spool", "the disk gave back what is no event")?);
        }
    }

    fn rows(&self, after: u64, limit: usize) -> rusqlite::Result<Vec<(i64, Vec<u8>)>> {
        let mut statement = self.connection.prepare_cached(
            "SELECT number, body FROM events WHERE number > ?1 ORDER BY number LIMIT ?2",
        )?;
        let rows = statement.query_map(params![sql(after), sql(limit as u64)], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
        rows.collect()
    }

    /// How full it is.
    pub(super) fn level(&self) -> Level {
        Level {
            bytes: self.bytes().unwrap_or(0),
            oldest: self
                .connection
                .query_row("SELECT at FROM events ORDER BY number LIMIT 1", [], |row| {
                    row.get(0)
                })
                .optional()
                .unwrap_or_default(),
            dropped: self.dropped,
        }
    }

    /// Whether events must go.
    pub(super) fn is_full(&self) -> bool {
        self.bytes().is_ok_and(|bytes| bytes > self.full_at)
    }

    /// Notes what a compaction left: where nothing more can go, the next one waits for growth
    /// instead of searching again at every commit.
    pub(super) fn compacted(&mut self) {
        let bytes = self.bytes().unwrap_or(0);
        self.full_at = self.max_bytes.max(bytes + 1024 * 1024);
        if bytes <= self.max_bytes {
            self.full_at = self.max_bytes;
        }
    }

    /// Removes the events whose numbers `select` gives between `held` and `below`, and notes the
    /// gap with them.
    pub(super) fn remove(
        &mut self,
        select: &str,
        held: u64,
        below: u64,
        why: &str,
    ) -> Result<Noted, SpoolError> {
        let dropped = self.dropped;
        let connection = &mut self.connection;
        let mut run = || {
            let transaction = connection.transaction()?;
            let numbers: Vec<i64> = transaction
                .prepare(select)?
                .query_map([sql(held), sql(below)], |row| row.get(0))?
                .collect::<Result<_, _>>()?;
            let (count, gaps) = take_out(&transaction, &numbers, "spool", why, dropped)?;
            transaction.commit()?;
            Ok((count, gaps))
        };
        let (count, gaps) = run().map_err(|source| self.error("compacted", source))?;
        self.dropped += count;
        Ok(gaps)
    }

    /// Takes out an event that the controller refused, and notes the gap with it.
    pub(super) fn refuse(&mut self, number: u64, why: &str) -> Result<Noted, SpoolError> {
        self.lose(&[sql(number)], "refused", why)
    }

    /// Takes out events and notes the gap with them.
    fn lose(
        &mut self,
        numbers: &[i64],
        source: &'static str,
        why: &str,
    ) -> Result<Noted, SpoolError> {
        let dropped = self.dropped;
        let connection = &mut self.connection;
        let mut run = || {
            let transaction = connection.transaction()?;
            let (count, gaps) = take_out(&transaction, numbers, source, why, dropped)?;
            crash::point("spool.take-out.before");
            transaction.commit()?;
            crash::point("spool.take-out.after");
            Ok((count, gaps))
        };
        let (count, gaps) = run().map_err(|source| self.error("written", source))?;
        self.dropped += count;
        Ok(gaps)
    }

    /// Folds the log into the file, so that a start finds little to do.
    pub(super) fn close(self) {
        if let Err((_, error)) = self.connection.close() {
            tracing::warn!(%error, path = %self.path.display(), "spool not closed cleanly");
        }
    }

    fn bytes(&self) -> rusqlite::Result<u64> {
        let pages = |pragma: &str| {
            self.connection
                .pragma_query_value(None, pragma, |row| row.get::<_, i64>(0))
        };
        let used = pages("page_count")? - pages("freelist_count")?;
        Ok(u64::try_from(used).unwrap_or(0) * PAGE_BYTES)
    }

    fn error(&self, act: &'static str, source: rusqlite::Error) -> SpoolError {
        SpoolError::Database {
            path: self.path.clone(),
            act,
            source,
        }
    }
}

/// Takes the folder's lock.
fn lock(folder: &Path) -> Result<File, SpoolError> {
    let io = |source| SpoolError::Folder {
        path: folder.to_owned(),
        source,
    };
    let lock = File::create(folder.join(place::LOCK)).map_err(io)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(std::fs::TryLockError::WouldBlock) => Err(SpoolError::InUse(folder.to_owned())),
        Err(std::fs::TryLockError::Error(error)) => Err(io(error)),
    }
}

/// A new file for one that is damaged: it knows of the loss from its first commit on, and nobody
/// has touched the old one yet. So one record tells of the loss, wherever the agent dies.
fn begin_anew(path: &Path, max_bytes: u64, last: Option<Ulid>, gap: &Gap) -> rusqlite::Result<()> {
    let (connection, _, _) = read(path, max_bytes, last, false, Some(gap))?;
    // Folds the log into the file, which is renamed alone.
    connection.close().map_err(|(_, error)| error)
}

/// Opens the file and reads what it holds; answers the events dropped so far too. `last`: id of
/// the spool before, if the file has none. `known`: there was a spool, so that a file that holds none
/// is what is left of it. `gap`: what a new file has to tell.
fn read(
    path: &Path,
    max_bytes: u64,
    last: Option<Ulid>,
    known: bool,
    gap: Option<&Gap>,
) -> rusqlite::Result<(Connection, Stored, u64)> {
    if known {
        look_for_loss(path)?;
    }
    let mut connection = connect(path, max_bytes)?;
    look(&connection)?;
    let transaction = connection.transaction()?;
    let id: Option<String> = meta(&transaction, "id")?;
    let fresh = id.is_none();
    if fresh && known {
        return Err(damage("it holds no spool any more".to_owned()));
    }
    let id = id.unwrap_or_else(|| id::later_than(last).to_string());
    if fresh {
        set_meta(&transaction, "id", &id)?;
    }
    if let Some(gap) = gap {
        set_meta(&transaction, "dropped", sql(gap.count))?;
        note(&transaction, gap)?;
    }
    let (stored, dropped) = found(&transaction, id, fresh)?;
    crash::point("spool.begin.before");
    transaction.commit()?;
    crash::point("spool.begin.after");
    Ok((connection, stored, dropped))
}

/// What the file holds, and the events dropped so far.
fn found(
    transaction: &Transaction<'_>,
    id: String,
    fresh: bool,
) -> rusqlite::Result<(Stored, u64)> {
    let newest: Option<i64> =
        transaction.query_row("SELECT max(number) FROM events", [], |row| row.get(0))?;
    let last: Option<i64> = meta(transaction, "last_number")?;
    let boots: Option<String> = meta(transaction, "boots")?;
    let dropped = meta::<i64>(transaction, "dropped")?
        .and_then(|n| u64::try_from(n).ok())
        .unwrap_or(0);
    let stored = Stored {
        id,
        fresh,
        adopted: meta::<i64>(transaction, "adopted")?.is_some(),
        last_number: u64::try_from(last.max(newest).unwrap_or(0)).unwrap_or(0),
        pending: newest.is_some(),
        position: position(transaction)?,
        boots: boots
            .unwrap_or_default()
            .lines()
            .map(str::to_owned)
            .collect(),
        faults: faults(transaction)?,
        untold: untold(transaction)?,
        level: Level::default(),
    };
    Ok((stored, dropped))
}

fn connect(path: &Path, max_bytes: u64) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.set_prepared_statement_cache_capacity(16);
    // Values measured for a small resident set: build-notes 2.
    connection.pragma_update(None, "page_size", PAGE_BYTES)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "cache_size", -128)?;
    connection.pragma_update(None, "wal_autocheckpoint", 64)?;
    connection.pragma_update(None, "mmap_size", 0)?;
    connection.pragma_update(None, "journal_size_limit", 1024 * 1024)?;
    let pages = (max_bytes + SLACK_BYTES) / PAGE_BYTES;
    connection.pragma_update(None, "max_page_count", sql(pages))?;
    connection.execute_batch(SCHEMA)?;
    Ok(connection)
}

fn apply(transaction: &Transaction<'_>, write: &Write) -> rusqlite::Result<()> {
    for row in &write.rows {
        insert(transaction, row)?;
    }
    if let Some(row) = write.rows.last() {
        set_meta(transaction, "last_number", sql(row.number))?;
    }
    if write.whole {
        transaction.execute("DELETE FROM faults", [])?;
    }
    for fault in &write.faults {
        match &fault.assertion {
            Some(assertion) => transaction
                .prepare_cached("INSERT OR REPLACE INTO faults VALUES (?1, ?2, ?3, ?4, ?5)")?
                .execute(params![
                    fault.key,
                    assertion.code,
                    assertion.identity.0,
                    assertion
                        .single()
                        .map(|single| wire::encode_body(&single))
                        .unwrap_or_default(),
                    assertion.body,
                ])?,
            None => transaction
                .prepare_cached("DELETE FROM faults WHERE key = ?1")?
                .execute([&fault.key])?,
        };
    }
    for id in &write.told {
        transaction
            .prepare_cached("DELETE FROM gaps WHERE id = ?1")?
            .execute([id])?;
    }
    if let Some(position) = &write.position {
        set_meta(transaction, "machine", &position.machine)?;
        set_meta(transaction, "boot", &position.boot)?;
        set_meta(transaction, "sequence", sql(position.sequence))?;
    }
    if let Some(boots) = &write.boots {
        set_meta(transaction, "boots", boots.join("\n"))?;
    }
    if write.adopted {
        set_meta(transaction, "adopted", 1)?;
    }
    if let Some(id) = &write.renamed {
        set_meta(transaction, "id", id)?;
    }
    Ok(())
}

fn insert(transaction: &Transaction<'_>, row: &Row) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("INSERT OR REPLACE INTO events VALUES (?1, ?2, ?3, ?4, ?5)")?
        .execute(params![
            sql(row.number),
            row.identity,
            row.fatal,
            row.at,
            row.body
        ])?;
    Ok(())
}

pub(super) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn meta<T: rusqlite::types::FromSql>(
    transaction: &Transaction<'_>,
    key: &str,
) -> rusqlite::Result<Option<T>> {
    transaction
        .query_row("SELECT value FROM meta WHERE key = ?1", [key], |row| {
            row.get(0)
        })
        .optional()
}

pub(super) fn set_meta(
    transaction: &Transaction<'_>,
    key: &str,
    value: impl rusqlite::ToSql,
) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("INSERT OR REPLACE INTO meta VALUES (?1, ?2)")?
        .execute(params![key, value])?;
    Ok(())
}

fn position(transaction: &Transaction<'_>) -> rusqlite::Result<Option<Position>> {
    let machine: Option<String> = meta(transaction, "machine")?;
    let boot: Option<String> = meta(transaction, "boot")?;
    let sequence: Option<i64> = meta(transaction, "sequence")?;
    Ok(match (machine, boot, sequence) {
        (Some(machine), Some(boot), Some(sequence)) => Some(Position {
            machine,
            boot,
            sequence: u64::try_from(sequence).unwrap_or(0),
        }),
        _ => None,
    })
}

fn faults(transaction: &Transaction<'_>) -> rusqlite::Result<Vec<Assertion>> {
    let mut statement =
        transaction.prepare("SELECT code, identity, single, body FROM faults ORDER BY key")?;
    let rows = statement.query_map([], |row| {
        Ok((
            row.get::<_, String>(0)?,
            row.get::<_, [u8; 16]>(1)?,
            row.get::<_, Vec<u8>>(2)?,
            row.get::<_, Vec<u8>>(3)?,
        ))
    })?;
    let mut faults = Vec::new();
    for row in rows {
        let (code, identity, single, body) = row?;
        let (Some(single), Some(event)) = (decoded(&single), decoded(&body)) else {
            continue;
        };
        let order = event.metadata.get(keys::ORDER);
        let device = devices_of(&single.entities).into_iter().next();
        faults.push(Assertion {
            identity: SentIdentity(identity),
            order: order.and_then(|order| order.parse().ok()),
            body: body.into(),
            device: device.unwrap_or_default(),
            code,
        });
    }
    Ok(faults)
}

/// A stored event, if it is one; else that is said in the log.
pub(super) fn decoded(body: &[u8]) -> Option<HealthEvent> {
    match wire::decode_body(body) {
        Ok(event) => Some(event),
        Err(error) => {
            tracing::error!(%error, "spool holds bytes that are no event");
            None
        }
    }
}

/// SQLite's integers are signed; no number here comes near the bound.
pub(super) fn sql(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
