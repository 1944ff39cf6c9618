//! The one thread that writes: takes whatever waits, commits it as one transaction, answers,
//! repeats.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode};

use crate::changes::Done;
use crate::checkpoint::{self, Checkpointer};
use crate::error::{OpenError, WriteError};
use crate::footing::{Footing, free_bytes};
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
    footing: Arc<Footing>,
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
        let reserve = options.reserve;
        let mut ledger = Ledger::load(&opened.connection, options).map_err(sqlite)?;
        ledger.rename_checks(&opened.connection).map_err(sqlite)?;
        shared.holds.store(ledger.holds, Ordering::Release);
        let footing = Footing::new(&dir, &opened.path, &opened.lock, reserve)?;
        Ok(Self {
            connection: opened.connection,
            ledger,
            dir,
            shared,
            checkpointer,
            mark: opened.mark,
            footing: Arc::new(footing),
            _lock: opened.lock,
        })
    }

    /// What it stands on.
    pub(crate) fn footing(&self) -> Arc<Footing> {
        Arc::clone(&self.footing)
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
                && self.footing.over().is_none()
                && !mark.keep()
            {
                tracing::error!(dir = %self.dir.display(), "another instance uses this event store");
                let dir = self.dir.clone();
                self.footing.end(WriteError::TakenOver { dir });
            }
            self.group(jobs);
            self.catch_up();
        }
        let over = self.footing.over().is_some();
        if let Some(mark) = self.mark.as_ref().filter(|_| !over) {
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
            Ok(done) => self.answer(jobs, done),
            Err(error) => self.one_by_one(jobs, &error),
        }
    }

    /// After a commit. It is durable only while the files are there under their names: what was
    /// committed into a file that is removed goes with the process, and is not acknowledged.
    fn answer(&self, jobs: Vec<Job>, done: Vec<Done>) {
        match self.footing.look() {
            Ok(()) => {
                for (job, done) in jobs.into_iter().zip(done) {
                    job.answer(done);
                }
            }
            Err(lost) => jobs.into_iter().for_each(|job| job.refuse(lost.clone())),
        }
    }

    /// Events are refused while the disk is short of space, everything once the store was lost or
    /// another instance has taken it over.
    fn refuse_some(&self, jobs: Vec<Job>) -> Vec<Job> {
        let full = jobs
            .iter()
            .any(Job::is_append)
            .then(|| self.footing.shortage())
            .flatten();
        let mut kept = Vec::with_capacity(jobs.len());
        for job in jobs {
            if let Some(over) = self.footing.over() {
                job.refuse(over.clone());
            } else if let Some(shortage) = full.as_ref().filter(|_| job.is_append()) {
                job.refuse(shortage.clone());
            } else {
                kept.push(job);
            }
        }
        kept
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
        self.footing.wrote(None);
        self.checkpointer.committed();
        let commit = self.ledger.committed();
        self.shared
            .publish(&commit, self.ledger.counters, self.ledger.holds);
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
        self.ledger.options.pass("store.commit.before");
        connection.prepare_cached("COMMIT")?.execute([])?;
        self.ledger.options.pass("store.commit.after");
        Ok(done)
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
                Ok(done) => self.answer(vec![job], done),
                Err(error) => job.refuse(self.refusal(&error)),
            }
        }
    }

    fn refusal(&self, error: &rusqlite::Error) -> WriteError {
        let refusal = if error.sqlite_error_code() == Some(ErrorCode::DiskFull) {
            WriteError::DiskFull {
                free: free_bytes(&self.dir).unwrap_or(0),
                reserve: self.ledger.options.reserve,
            }
        } else {
            WriteError::Storage(error.to_string())
        };
        self.footing.wrote(Some(refusal.clone()));
        refusal
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
