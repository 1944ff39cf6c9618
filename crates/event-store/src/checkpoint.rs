//! Moves the write-ahead log into the database from a second connection while the writer rests, so
//! that no commit waits for it (build-notes 4.10).

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use crate::error::OpenError;

/// Without a commit for this long the writer counts as resting.
const REST: Duration = Duration::from_millis(100);
/// Without a rest a checkpoint runs all the same after this many times [`REST`].
const ROUNDS_MAX: u32 = 5;
/// Pages in the log (64 MiB) above which the writer itself must make the pause that lets the log
/// start anew.
const LOG_PAGES_MAX: u64 = 16_384;

#[derive(Default)]
struct Signals {
    commits: AtomicU64,
    log_pages: AtomicU64,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    dirty: bool,
    stop: bool,
}

/// Handle of the thread; it ends with the handle.
pub(crate) struct Checkpointer {
    signals: Arc<Signals>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpointer {
    /// Starts the thread; without WAL there is nothing to do.
    pub(crate) fn start(path: &Path, wal: bool) -> Result<Self, OpenError> {
        let signals = Arc::new(Signals::default());
        if !wal {
            return Ok(Self {
                signals,
                thread: None,
            });
        }
        let connection = Connection::open_with_flags(
            path,
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
        )
        .and_then(|c| c.pragma_update(None, "cache_size", -64).map(|()| c))
        .map_err(|source| OpenError::Sqlite {
            path: path.to_owned(),
            source,
        })?;
        let shared = Arc::clone(&signals);
        let thread = std::thread::Builder::new()
            .name("store-checkpoint".to_owned())
            .spawn(move || run(&shared, &connection))
            .map_err(|source| OpenError::Io {
                act: "start the checkpointer for",
                path: path.to_owned(),
                source,
            })?;
        Ok(Self {
            signals,
            thread: Some(thread),
        })
    }

    /// Tells of a commit.
    pub(crate) fn committed(&self) {
        self.signals.commits.fetch_add(1, Ordering::Relaxed);
        let mut state = lock(&self.signals);
        if !state.dirty {
            state.dirty = true;
            drop(state);
            self.signals.wake.notify_one();
        }
    }

    /// Whether the log has become so long that the writer must checkpoint between two groups.
    pub(crate) fn is_behind(&self) -> bool {
        self.signals.log_pages.load(Ordering::Relaxed) > LOG_PAGES_MAX
    }

    /// Tells what the writer's own checkpoint found.
    pub(crate) fn note_log(&self, pages: u64) {
        self.signals.log_pages.store(pages, Ordering::Relaxed);
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        lock(&self.signals).stop = true;
        self.signals.wake.notify_all();
        if self.thread.take().is_some_and(|t| t.join().is_err()) {
            tracing::error!("the checkpointer of the event store panicked");
        }
    }
}

fn lock(signals: &Signals) -> std::sync::MutexGuard<'_, State> {
    signals.state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(signals: &Signals, connection: &Connection) {
    let mut fails = false;
    while wait_for_work(signals) {
        let before = signals.commits.load(Ordering::Relaxed);
        match checkpoint(connection) {
            Ok((log, done)) => {
                if std::mem::take(&mut fails) {
                    tracing::info!("checkpoints of the event store work again");
                }
                signals.note(log);
                let quiet = signals.commits.load(Ordering::Relaxed) == before;
                // A reader with an old snapshot can hold it back; the next commit tries again.
                if quiet && log == done {
                    lock(signals).dirty = false;
                } else if !pause(signals) {
                    return;
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut fails, true) {
                    tracing::warn!(%error, "checkpoint of the event store failed; tried again");
                }
                if !pause(signals) {
                    return;
                }
            }
        }
    }
}

impl Signals {
    fn note(&self, log: u64) {
        self.log_pages.store(log, Ordering::Relaxed);
    }
}

/// Waits for a commit and then for a rest, but not for ever. False = stop.
fn wait_for_work(signals: &Signals) -> bool {
    let state = signals
        .wake
        .wait_while(lock(signals), |s| !s.dirty && !s.stop);
    drop(state.unwrap_or_else(PoisonError::into_inner));
    let mut last = signals.commits.load(Ordering::Relaxed);
    for _ in 0..ROUNDS_MAX {
        if !pause(signals) {
            return false;
        }
        let now = signals.commits.load(Ordering::Relaxed);
        if now == last {
            break;
        }
        last = now;
    }
    true
}

/// False = stop.
fn pause(signals: &Signals) -> bool {
    let waited = signals
        .wake
        .wait_timeout_while(lock(signals), REST, |s| !s.stop);
    let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
    !state.stop
}

/// A passive checkpoint: (pages in the log, pages moved).
pub(crate) fn checkpoint(connection: &Connection) -> rusqlite::Result<(u64, u64)> {
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
        let pages = |i| row.get::<_, i64>(i).map(|n| u64::try_from(n).unwrap_or(0));
        Ok((pages(1)?, pages(2)?))
    })
}
