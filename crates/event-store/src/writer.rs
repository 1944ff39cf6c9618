//! The one thread that writes: takes whatever waits, commits it as one transaction, answers,
//! repeats.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode};

use crate::changes::Done;
use crate::checkpoint::{self, Checkpointer};
use crate::error::{OpenError, WriteError};
use crate::ledger::Ledger;
use crate::options::Options;
use crate::queue::{Job, Queue};
use crate::startup::{Mark, Opened};
use crate::store::Shared;

/// How often what was not used lately is given back: a burst's memory is gone after two turns.
const TURN: Duration = Duration::from_secs(30);

/// The writer and all that only it touches.
pub(crate) struct Writer {
    connection: Connection,
    ledger: Ledger,
    dir: PathBuf,
    shared: Arc<Shared>,
    checkpointer: Checkpointer,
    mark: Option<Mark>,
    taken_over: bool,
    _lock: std::fs::File,
}

impl Writer {
    pub(crate) fn new(
        opened: Opened,
        options: Options,
        dir: PathBuf,
        shared: Arc<Shared>,
        checkpointer: Checkpointer,
    ) -> Result<Self, OpenError> {
        let sqlite = |source| OpenError::Sqlite {
            path: opened.path.clone(),
            source,
        };
        let mut ledger = Ledger::load(&opened.connection, options).map_err(sqlite)?;
        ledger.rename_checks(&opened.connection).map_err(sqlite)?;
        Ok(Self {
            connection: opened.connection,
            ledger,
            dir,
            shared,
            checkpointer,
            mark: opened.mark,
            taken_over: false,
            _lock: opened.lock,
        })
    }

    /// Runs until the queue is closed and empty.
    pub(crate) fn run(mut self, queue: &Queue) {
        let _last = Abandon(queue);
        let beat: Option<Duration> = self.mark.as_ref().map(Mark::beat);
        // When the caches turn next; none while nothing is in them.
        let mut turn: Option<Instant> = None;
        loop {
            let until = turn.map(|at| at.saturating_duration_since(Instant::now()));
            let Some(jobs) = queue.take(beat.into_iter().chain(until).min()) else {
                break;
            };
            let now = Instant::now();
            if turn.is_some_and(|at| at <= now) {
                turn = self.turn().then(|| now + TURN);
            }
            if !jobs.is_empty() {
                turn = turn.or(Some(now + TURN));
            }
            if let Some(mark) = &mut self.mark
                && !self.taken_over
                && !mark.keep()
            {
                tracing::error!(dir = %self.dir.display(), "another instance uses this event store");
                self.taken_over = true;
            }
            self.group(jobs);
            self.catch_up();
        }
        if let Some(mark) = self.mark.as_ref().filter(|_| !self.taken_over) {
            mark.remove();
        }
    }

    /// Gives back what was not used since the turn before; whether there is still something.
    fn turn(&mut self) -> bool {
        self.shared.turn();
        if let Err(error) = shrink(&self.connection) {
            tracing::warn!(%error, "the event store's writer can't give its memory back");
        }
        self.ledger.turn()
    }

    fn group(&mut self, jobs: Vec<Job>) {
        let jobs = self.refuse_some(jobs);
        if jobs.is_empty() {
            return;
        }
        match self.commit(&jobs) {
            Ok(done) => {
                for (job, done) in jobs.into_iter().zip(done) {
                    job.answer(done);
                }
            }
            Err(error) => self.one_by_one(jobs, &error),
        }
    }

    /// Events are refused while the disk is short of space, everything once another instance has
    /// taken the store over.
    fn refuse_some(&self, jobs: Vec<Job>) -> Vec<Job> {
        let full = jobs
            .iter()
            .any(Job::is_append)
            .then(|| self.shortage())
            .flatten();
        let mut kept = Vec::with_capacity(jobs.len());
        for job in jobs {
            if self.taken_over {
                job.refuse(WriteError::Closed);
            } else if let Some(shortage) = full.as_ref().filter(|_| job.is_append()) {
                job.refuse(shortage.clone());
            } else {
                kept.push(job);
            }
        }
        kept
    }

    fn shortage(&self) -> Option<WriteError> {
        let reserve = self.ledger.options.reserve;
        match free_bytes(&self.dir) {
            Ok(free) if free >= reserve => None,
            Ok(free) => Some(WriteError::DiskFull { free, reserve }),
            // Unknown is not full: the write itself will tell.
            Err(_) => None,
        }
    }

    /// One transaction for all; nothing is answered before it is durable.
    fn commit(&mut self, jobs: &[Job]) -> rusqlite::Result<Vec<Done>> {
        self.ledger.begin();
        let result = self.transact(jobs);
        if result.is_err() {
            if !self.connection.is_autocommit()
                && let Err(error) = self.connection.execute_batch("ROLLBACK")
            {
                tracing::error!(%error, "the event store can't roll back");
            }
            if let Err(error) = self.ledger.reset(&self.connection) {
                tracing::error!(%error, "the event store can't read its counters");
            }
            return result;
        }
        self.checkpointer.committed();
        let commit = self.ledger.committed();
        self.shared.publish(&commit, self.ledger.counters);
        result
    }

    fn transact(&mut self, jobs: &[Job]) -> rusqlite::Result<Vec<Done>> {
        let connection = &self.connection;
        connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let mut done = Vec::with_capacity(jobs.len());
        for job in jobs {
            done.push(self.ledger.apply(connection, job)?);
        }
        self.ledger.finish(connection)?;
        self.pass("store.commit.before");
        connection.prepare_cached("COMMIT")?.execute([])?;
        self.pass("store.commit.after");
        Ok(done)
    }

    fn pass(&self, point: &'static str) {
        if let Some(hook) = &self.ledger.options.crash_points {
            hook(point);
        }
    }

    /// After a failed group each write is tried alone, so that one can't take others down: with a
    /// full disk a transition may still fit.
    fn one_by_one(&mut self, jobs: Vec<Job>, error: &rusqlite::Error) {
        tracing::error!(%error, writes = jobs.len(), "a group of writes to the event store failed");
        let alone = jobs.len() == 1;
        for job in jobs {
            if alone {
                job.refuse(self.refusal(error));
                continue;
            }
            match self.commit(std::slice::from_ref(&job)) {
                Ok(done) => {
                    let done = done.into_iter().next();
                    job.answer(done.unwrap_or(Done::Refused(WriteError::Closed)));
                }
                Err(error) => job.refuse(self.refusal(&error)),
            }
        }
    }

    fn refusal(&self, error: &rusqlite::Error) -> WriteError {
        if error.sqlite_error_code() == Some(ErrorCode::DiskFull) {
            return WriteError::DiskFull {
                free: free_bytes(&self.dir).unwrap_or(0),
                reserve: self.ledger.options.reserve,
            };
        }
        WriteError::Storage(error.to_string())
    }

    fn catch_up(&self) {
        if !self.checkpointer.is_behind() {
            return;
        }
        match checkpoint::checkpoint(&self.connection) {
            Ok((log, done)) => self.checkpointer.note_log(log.saturating_sub(done)),
            Err(error) => tracing::warn!(%error, "checkpoint of the event store failed"),
        }
    }
}

/// Gives back the pages that a connection keeps; the system's cache still has them.
pub(crate) fn shrink(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch("PRAGMA shrink_memory")
}

/// Leaves no caller waiting for ever should the writer panic, as in a listener.
struct Abandon<'a>(&'a Queue);

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

/// Bytes that an unprivileged process may still write there.
pub(crate) fn free_bytes(dir: &std::path::Path) -> std::io::Result<u64> {
    let stat = rustix::fs::statvfs(dir)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}
