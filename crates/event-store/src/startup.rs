//! What is checked before the store is used: one process, a file system to be trusted, a sound
//! file, a schema that we know.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::error::OpenError;
use crate::options::Options;
use crate::schema::MIGRATIONS;

/// How often the mark of a store on a network file system is rewritten.
const BEAT: Duration = Duration::from_secs(5);
/// Pages that the writer keeps, in KiB: decides the resident size (build-notes 3).
const WRITER_CACHE_KIB: i64 = 8_192;
/// The WAL file is cut back to this when it is started anew.
const WAL_KEPT_BYTES: i64 = 64 << 20;

/// A store that passed the checks.
pub(crate) struct Opened {
    pub(crate) path: PathBuf,
    pub(crate) connection: Connection,
    pub(crate) wal: bool,
    pub(crate) store_id: String,
    pub(crate) is_new: bool,
    pub(crate) mark: Option<Mark>,
    /// Held as long as the store is open; the kernel frees it with the process.
    pub(crate) lock: File,
}

/// Opens and checks; `network` says what kind of file system it is, where that is known already.
pub(crate) fn open(
    dir: &Path,
    options: &Options,
    network: Option<&'static str>,
) -> Result<Opened, OpenError> {
    open_with(dir, options, network, BEAT)
}

/// As [`open`]; a mark is rewritten after each `beat`.
pub(crate) fn open_with(
    dir: &Path,
    options: &Options,
    network: Option<&'static str>,
    beat: Duration,
) -> Result<Opened, OpenError> {
    let io = |act, path: &Path| {
        let path = path.to_owned();
        move |source| OpenError::Io { act, path, source }
    };
    fs::create_dir_all(dir).map_err(io("create", dir))?;
    let network = match network {
        Some(kind) => Some(kind),
        None => network_kind(dir).map_err(io("ask for the file system of", dir))?,
    };
    if let Some(kind) = network.filter(|_| !options.allow_network_fs) {
        return Err(OpenError::NetworkFileSystem {
            dir: dir.to_owned(),
            kind: kind.to_owned(),
        });
    }
    let lock = lock(dir)?;
    let mark = match network {
        Some(_) => Some(Mark::take(dir, beat)?),
        None => None,
    };
    let path = dir.join("store.db");
    let is_there = path.exists();
    let sqlite = |source: rusqlite::Error| classify(&path, source);
    let connection = connect(&path, network.is_none()).map_err(sqlite)?;
    if is_there {
        check(&path, &connection)?;
    }
    let is_new = migrate(&path, &connection, options)?;
    let store_id = connection
        .query_row("SELECT value FROM meta WHERE key = 'store_id'", [], |r| {
            r.get(0)
        })
        .map_err(sqlite)?;
    Ok(Opened {
        connection,
        wal: network.is_none(),
        store_id,
        is_new,
        mark,
        lock,
        path,
    })
}

/// How long the lock is waited for: a child that was forked while the store was open holds it until
/// it has executed its program, and a killed process until the kernel has taken it apart.
const LOCK_WAIT: Duration = Duration::from_millis(500);
/// Between two tries.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

fn lock(dir: &Path) -> Result<File, OpenError> {
    let path = dir.join("store.lock");
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path);
    let io = |source| OpenError::Io {
        act: "lock",
        path: path.clone(),
        source,
    };
    let file = file.map_err(io)?;
    let until = Instant::now() + LOCK_WAIT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < until => {
                std::thread::sleep(LOCK_PAUSE);
            }
            Err(TryLockError::WouldBlock) => {
                return Err(OpenError::Locked {
                    dir: dir.to_owned(),
                });
            }
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
    }
}

/// The name of a network file system, if it is one. FUSE counts: what stands behind it is unknown.
/// Numbers: statfs(2).
fn network_kind(dir: &Path) -> std::io::Result<Option<&'static str>> {
    const KINDS: [(i64, &str); 13] = [
        (0x6969, "NFS"),
        (0x517b, "SMB"),
        (0xff53_4d42, "CIFS"),
        (0xfe53_4d42, "SMB2"),
        (0x00c3_6400, "Ceph"),
        (0x0bd0_0bd0, "Lustre"),
        (0x0102_1997, "9p"),
        (0x5346_414f, "AFS"),
        (0x0116_1970, "GFS2"),
        (0x7461_636f, "OCFS2"),
        (0x4750_4653, "GPFS"),
        (0x1983_0326, "BeeGFS"),
        (0x6573_5546, "FUSE"),
    ];
    let magic = rustix::fs::statfs(dir)?.f_type;
    Ok(KINDS
        .iter()
        .find(|(number, _)| *number == magic)
        .map(|(_, name)| *name))
}

/// Keeps prepared statements prepared: without this SQLite parses some of them anew at each new
/// value, to choose a plan for it (a sixth of the controller's time in a burst of 1,000 nodes).
/// More of them than ever are in use stay cached.
pub(crate) fn keep_prepared(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(96);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

fn connect(path: &Path, wal: bool) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    keep_prepared(&connection)?;
    let journal = if wal { "WAL" } else { "TRUNCATE" };
    connection.pragma_update(None, "journal_mode", journal)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    // The checkpointer does it, so that no commit waits for one (build-notes 4.10).
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.pragma_update(None, "journal_size_limit", WAL_KEPT_BYTES)?;
    connection.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    Ok(connection)
}

fn classify(path: &Path, source: rusqlite::Error) -> OpenError {
    let path = path.to_owned();
    match source.sqlite_error_code() {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => OpenError::Corrupt {
            path,
            detail: source.to_string(),
        },
        Some(_) | None => OpenError::Sqlite { path, source },
    }
}

fn check(path: &Path, connection: &Connection) -> Result<(), OpenError> {
    let verdict: String = connection
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(|source| classify(path, source))?;
    if verdict == "ok" {
        return Ok(());
    }
    Err(OpenError::Corrupt {
        path: path.to_owned(),
        detail: verdict,
    })
}

/// Brings the schema to the newest version, one transaction a step. Answers whether there was none:
/// a start that died before its first step leaves a file too.
fn migrate(path: &Path, connection: &Connection, options: &Options) -> Result<bool, OpenError> {
    let sqlite = |source: rusqlite::Error| classify(path, source);
    let found: i64 = connection
        .query_row("PRAGMA user_version", [], |row| row.get(0))
        .map_err(sqlite)?;
    let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
    if found > known || found < 0 {
        return Err(OpenError::NewerSchema {
            path: path.to_owned(),
            found,
            known,
        });
    }
    let done = usize::try_from(found).unwrap_or(0);
    for (step, version) in MIGRATIONS.iter().zip(1_i64..).skip(done) {
        let script = format!("BEGIN IMMEDIATE; {step} PRAGMA user_version = {version};");
        connection.execute_batch(&script).map_err(sqlite)?;
        options.pass("store.begin.before");
        connection.execute_batch("COMMIT").map_err(sqlite)?;
        options.pass("store.begin.after");
    }
    Ok(found == 0)
}

/// Guard of a store on a network file system, where locks may not reach other hosts: a file with
/// our id and a count, rewritten every few seconds. Whoever sees it change keeps away.
pub(crate) struct Mark {
    path: PathBuf,
    id: String,
    count: u64,
    beat: Duration,
    written: Instant,
}

impl Mark {
    fn take(dir: &Path, beat: Duration) -> Result<Self, OpenError> {
        let path = dir.join("store.instance");
        let before = fs::read_to_string(&path).ok();
        let deadline = Instant::now() + beat * 2 + beat / 5;
        while before.is_some() && Instant::now() < deadline {
            std::thread::sleep(beat / 10);
            if fs::read_to_string(&path).ok() != before {
                return Err(OpenError::Locked {
                    dir: dir.to_owned(),
                });
            }
        }
        let now = jiff::Timestamp::now().as_nanosecond();
        let mut mark = Self {
            id: format!("{}-{now}", std::process::id()),
            count: 0,
            beat,
            written: Instant::now(),
            path,
        };
        mark.write().map_err(|source| OpenError::Io {
            act: "write the mark",
            path: mark.path.clone(),
            source,
        })?;
        Ok(mark)
    }

    /// How long the writer may wait for work before the mark is due.
    pub(crate) fn beat(&self) -> Duration {
        self.beat
    }

    /// Rewrites the mark if it is due. Answers false if another instance has put its own there:
    /// then nothing may be written any more.
    pub(crate) fn keep(&mut self) -> bool {
        if self.written.elapsed() < self.beat {
            return true;
        }
        let there = fs::read_to_string(&self.path);
        if there.is_ok_and(|text| !text.starts_with(&self.id)) {
            return false;
        }
        if let Err(error) = self.write() {
            tracing::warn!(path = %self.path.display(), %error, "can't rewrite the store's mark");
        }
        true
    }

    fn write(&mut self) -> std::io::Result<()> {
        self.count += 1;
        self.written = Instant::now();
        fs::write(&self.path, format!("{} {}\n", self.id, self.count))
    }

    /// Takes the mark away, so that the next start needs no wait.
    pub(crate) fn remove(&self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "can't remove the store's mark");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEAT_FAST: Duration = Duration::from_millis(50);
    /// Watches for long, so that a busy machine lets the other one beat meanwhile.
    const BEAT_SLOW: Duration = Duration::from_secs(2);

    #[test]
    fn a_network_file_system_is_refused_unless_allowed_and_then_leaves_wal() {
        let dir = tempfile::tempdir().unwrap();
        let refused = open_with(dir.path(), &Options::default(), Some("NFS"), BEAT_FAST);
        assert!(matches!(
            refused.map(drop),
            Err(OpenError::NetworkFileSystem { .. })
        ));
        let options = Options {
            allow_network_fs: true,
            ..Options::default()
        };
        let opened = open_with(dir.path(), &options, Some("NFS"), BEAT_FAST).unwrap();
        let mode: String = opened
            .connection
            .query_row("PRAGMA journal_mode", [], |row| row.get(0))
            .unwrap();
        assert_eq!((mode.as_str(), opened.wal), ("truncate", false));
    }

    #[test]
    fn a_mark_that_changes_keeps_a_second_instance_away() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = Mark::take(dir.path(), BEAT_FAST).unwrap();
        let alive = std::thread::scope(|scope| {
            let second = scope.spawn(|| Mark::take(dir.path(), BEAT_SLOW).map(drop));
            while !second.is_finished() {
                first.keep();
            }
            second.join().unwrap()
        });
        assert!(matches!(alive, Err(OpenError::Locked { .. })));
        // The first one is gone without a word: its mark stands still and may be taken.
        let mut second = Mark::take(dir.path(), BEAT_FAST).unwrap();
        first.beat = Duration::ZERO;
        assert!(!first.keep());
        second.beat = Duration::ZERO;
        assert!(second.keep());
    }

    #[test]
    fn a_local_file_system_is_no_network_one() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(network_kind(dir.path()).unwrap(), None);
    }
}
