//! What must outlive the process: events that the controller has not acknowledged, the asserted
//! faults, the position in the kernel log, the boots seen, all in one SQLite file.
//!
//! # Guarantees
//! - Events, what they changed in the set of faults, and the position that they were read at are
//!   written in one transaction, synced to the disk before [`Done::Stored`], and the files are where
//!   the next start looks for them ([`place`]).
//! - Bounded by `spool_bytes`; what has to go leaves a gap record ([`compact`]).
//!
//! # How
//! A thread of its own, because a slow disk must not hold up sending. It takes whatever is queued,
//! commits once, and answers. Its only timer looks after the files while nothing is written.

mod compact;
mod damage;
mod database;
mod gaps;
mod id;
mod place;
mod refused;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use health_event::{HealthEvent, SentIdentity};
use tokio::sync::{mpsc::UnboundedSender, oneshot};

use crate::crash;
use crate::faults::{Assertion, FaultRow};
use crate::own::Gap;

pub use database::Database;
pub use id::later_than;

/// Commands on their way to the disk at most; beyond that a write counts as failed for now. Each
/// holds one batch of at most 1,000 events, most of them one.
const QUEUE: usize = 256;
/// How often it is looked whether the files are in their place, if nothing is written.
const LOOK: Duration = Duration::from_secs(5);
/// Commands written in one transaction at most.
const GROUP: usize = 64;

/// An event on its way to the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Order number.
    pub number: u64,
    /// What it speaks of, for compaction: the identities of its faults, hashed.
    pub identity: [u8; 16],
    /// Whether it is fatal.
    pub fatal: bool,
    /// Seconds since 1970 when it was observed.
    pub at: i64,
    /// The encoded event.
    pub body: Vec<u8>,
}

/// How far the kernel log was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// Machine whose log it is.
    pub machine: String,
    /// Boot.
    pub boot: String,
    /// Sequence number of the last record that needs no second look.
    pub sequence: u64,
}

/// One transaction's worth.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Write {
    /// Events.
    pub rows: Vec<Row>,
    /// Changed faults.
    pub faults: Vec<FaultRow>,
    /// This is everything that is not on disk: the stored faults are replaced by `faults` as a
    /// whole, and what failed before is made up for.
    pub whole: bool,
    /// New position.
    pub position: Option<Position>,
    /// Boots seen, oldest first.
    pub boots: Option<Vec<String>>,
    /// The controller's open faults were taken over.
    pub adopted: bool,
    /// The spool's id, if it is another one since the start.
    pub renamed: Option<String>,
    /// Gaps that `rows` tell of.
    pub told: Vec<i64>,
    /// The sender still holds all events up to this number in memory: compaction leaves them.
    pub held_through: u64,
}

enum Command {
    Write(Box<Write>),
    Acknowledged(u64),
    Read {
        after: u64,
        limit: usize,
        answer: oneshot::Sender<Result<Vec<HealthEvent>, SpoolError>>,
    },
    Refuse {
        event: Box<HealthEvent>,
        number: u64,
        reason: String,
    },
    Close,
}

/// What the thread tells.
#[derive(Debug)]
pub enum Done {
    /// These events (and all that came with them) are on the disk.
    Stored(Vec<u64>),
    /// A write failed, and why; everything unsaved has to be written again.
    Failed(SpoolError),
    /// Events went, for want of room or because the controller refused them. The gap is noted
    /// under this id until a write says that it is told; none if it could not be noted.
    Dropped(Option<i64>, Gap),
    /// How the spool stands after a commit.
    Level(Level),
}

/// How full the spool is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Level {
    /// Bytes used.
    pub bytes: u64,
    /// When the oldest unacknowledged event was observed (seconds since 1970).
    pub oldest: Option<i64>,
    /// Events dropped since the spool was made.
    pub dropped: u64,
}

/// Why the spool can't be used.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// The database.
    #[error("spool {path} can't be {act}: {source}")]
    Database {
        /// File.
        path: PathBuf,
        /// What was tried.
        act: &'static str,
        /// Why it failed.
        source: rusqlite::Error,
    },
    /// The folder.
    #[error("spool folder {path} can't be made or written: {source}; check the volume behind it")]
    Folder {
        /// Folder.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A second agent.
    #[error(
        "spool folder {0} is in use by another agent; stop that one, or give this one its own state_dir"
    )]
    InUse(PathBuf),
    /// The thread could not be started, or has ended.
    #[error("the spool's thread is not there")]
    Thread,
    /// The file is damaged.
    #[error("the spool is damaged; the agent ends, and its next start puts the file aside")]
    Damaged,
    /// Too much is on its way to the disk already.
    #[error("the disk under the spool does not keep up")]
    Busy,
}

impl SpoolError {
    /// Whether the file is no database any more.
    fn is_damage(&self) -> bool {
        matches!(self, Self::Database { source, .. } if damage::is_damage(source))
    }

    /// Static name.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Database { .. } => "spool_database",
            Self::Folder { .. } => "spool_folder",
            Self::InUse(_) => "spool_in_use",
            Self::Thread => "spool_thread",
            Self::Damaged => "spool_damaged",
            Self::Busy => "spool_busy",
        }
    }
}

/// What was found on the disk at start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The spool's ULID.
    pub id: String,
    /// Made just now: nothing is known of what this node said before.
    pub fresh: bool,
    /// Whether the controller's open faults were taken over since it was made.
    pub adopted: bool,
    /// Number of the last event that was ever written; 0 if none.
    pub last_number: u64,
    /// Whether unacknowledged events are there.
    pub pending: bool,
    /// Position.
    pub position: Option<Position>,
    /// Boots seen, oldest first.
    pub boots: Vec<String>,
    /// Asserted faults.
    pub faults: Vec<Assertion>,
    /// Gaps that were noted and not told.
    pub untold: Vec<(i64, Gap)>,
    /// How full it is.
    pub level: Level,
}

/// The sending side. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Spool {
    commands: SyncSender<Command>,
    /// Commands that the thread has not taken yet.
    waiting: Arc<AtomicUsize>,
    /// Last number given out to be sent.
    given_out: Arc<AtomicU64>,
}

/// The running thread.
#[derive(Debug)]
pub struct SpoolThread {
    commands: SyncSender<Command>,
    thread: JoinHandle<()>,
}

impl Spool {
    /// Opens or makes the spool in `folder` and starts its thread.
    ///
    /// # Errors
    /// [`SpoolError`] if the folder or the database can't be used.
    pub fn open(
        folder: &Path,
        max_bytes: u64,
        done: UnboundedSender<Done>,
    ) -> Result<(Self, SpoolThread, Stored), SpoolError> {
        let (database, stored) = Database::open(folder, max_bytes)?;
        let (commands, queue) = sync_channel(QUEUE);
        let folder = folder.to_owned();
        let waiting = Arc::new(AtomicUsize::new(0));
        let taken = Arc::clone(&waiting);
        let given_out = Arc::new(AtomicU64::new(0));
        let under_way = Arc::clone(&given_out);
        let thread = std::thread::Builder::new()
            .name("spool".into())
            .stack_size(256 * 1024)
            .spawn(move || run(database, &folder, &queue, &done, &taken, &under_way))
            .map_err(|_| SpoolError::Thread)?;
        let spool = Self {
            commands: commands.clone(),
            waiting,
            given_out,
        };
        Ok((spool, SpoolThread { commands, thread }, stored))
    }

    /// Hands a write over; the answer comes as [`Done`].
    ///
    /// # Errors
    /// [`SpoolError::Busy`] if too much is waiting; nothing of it will be written.
    pub fn write(&self, write: Write) -> Result<(), SpoolError> {
        self.send(Command::Write(Box::new(write)))
    }

    /// The controller has everything up to this number. Lost on a crash or when busy, which costs
    /// a second sending.
    pub fn acknowledged(&self, through: u64) {
        if let Err(error) = self.send(Command::Acknowledged(through)) {
            tracing::debug!(%error, through, "acknowledgement not noted on disk");
        }
    }

    /// The next events after a number, in order, at most `limit`.
    ///
    /// # Errors
    /// [`SpoolError`] if they can't be read.
    pub async fn read(&self, after: u64, limit: usize) -> Result<Vec<HealthEvent>, SpoolError> {
        let (answer, events) = oneshot::channel();
        self.send(Command::Read {
            after,
            limit,
            answer,
        })?;
        events.await.map_err(|_| SpoolError::Thread)?
    }

    /// Puts an event aside that the controller refused.
    ///
    /// # Errors
    /// [`SpoolError::Busy`] if too much is waiting; the event is not put aside then.
    pub fn refuse(
        &self,
        event: HealthEvent,
        number: u64,
        reason: String,
    ) -> Result<(), SpoolError> {
        self.send(Command::Refuse {
            event: Box::new(event),
            number,
            reason,
        })
    }

    /// Everything up to this number is under way or was: compaction leaves it alone, or it would be
    /// delivered and told as lost too.
    pub fn give_out(&self, number: u64) {
        self.given_out.fetch_max(number, Ordering::Relaxed);
    }

    /// Whether the disk keeps up: whoever can wait should, as long as it does not.
    pub fn keeps_up(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) < QUEUE / 2
    }

    /// One whose disk hangs: nothing of what is queued is ever taken. `full`: nothing more fits.
    #[cfg(test)]
    pub(crate) fn hanging(full: bool) -> (Self, impl Sized) {
        let (commands, queue) = sync_channel(QUEUE);
        let spool = Self {
            commands,
            waiting: Arc::default(),
            given_out: Arc::default(),
        };
        while full && spool.send(Command::Acknowledged(0)).is_ok() {}
        (spool, queue)
    }

    fn send(&self, command: Command) -> Result<(), SpoolError> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.commands.try_send(command).map_err(|error| {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            match error {
                TrySendError::Full(_) => SpoolError::Busy,
                TrySendError::Disconnected(_) => SpoolError::Thread,
            }
        })
    }
}

impl SpoolThread {
    /// Writes what is queued and ends the thread. Waits for the disk.
    pub fn close(self) {
        if self.commands.send(Command::Close).is_err() || self.thread.join().is_err() {
            tracing::error!("the spool's thread ended by itself");
        }
    }
}

/// What an event speaks of, in 16 bytes.
pub fn identity_of(event: &HealthEvent) -> [u8; 16] {
    let devices = health_event::devices_of(&event.entities);
    let codes = health_event::fault::codes_of(event);
    let all = devices
        .iter()
        .flat_map(|device| codes.iter().map(move |code| (device, code)))
        .map(|(device, code)| SentIdentity::of(event, device, code));
    let hash = SentIdentity::hash_of_set(all);
    let mut short = [0; 16];
    short.copy_from_slice(&hash[..16]);
    short
}

fn run(
    mut database: Database,
    folder: &Path,
    queue: &Receiver<Command>,
    done: &UnboundedSender<Done>,
    waiting: &AtomicUsize,
    given_out: &AtomicU64,
) {
    let mut missing = false;
    loop {
        let first = match queue.recv_timeout(LOOK) {
            Ok(first) => first,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                if let Err(error) = database.stay() {
                    tell(done, Done::Failed(error));
                }
                continue;
            }
        };
        let mut group = vec![first];
        while group.len() < GROUP {
            match queue.try_recv() {
                Ok(command) => group.push(command),
                Err(_) => break,
            }
        }
        // `Close` is sent past the counter, and is the last of all.
        waiting.fetch_sub(
            group.len().min(waiting.load(Ordering::Relaxed)),
            Ordering::Relaxed,
        );
        if !commit(&mut database, folder, group, done, &mut missing, given_out) {
            break;
        }
    }
    database.close();
}

/// Carries a group out. Answers whether to go on: not with a damaged file, which only the next
/// start can put aside. After a failed write something is `missing`,
/// until a whole write makes up for it; no position is saved as long.
fn commit(
    database: &mut Database,
    folder: &Path,
    group: Vec<Command>,
    done: &UnboundedSender<Done>,
    missing: &mut bool,
    given_out: &AtomicU64,
) -> bool {
    let (mut go_on, mut damaged) = (true, false);
    let mut writes = Vec::new();
    let mut through = None;
    let mut reads = Vec::new();
    let mut refusals = Vec::new();
    for command in group {
        match command {
            Command::Write(mut write) => {
                *missing &= !write.whole;
                write.position = write.position.filter(|_| !*missing);
                writes.push(*write);
            }
            Command::Acknowledged(number) => through = through.max(Some(number)),
            Command::Read {
                after,
                limit,
                answer,
            } => reads.push((after, limit, answer)),
            Command::Refuse {
                event,
                number,
                reason,
            } => refusals.push((event, number, reason)),
            Command::Close => go_on = false,
        }
    }
    // A refused event leaves with its gap record below, and not before it as acknowledged: the agent
    // may die in between. What is acknowledged with it goes with the next acknowledgement.
    let refused = refusals.iter().map(|(_, number, _)| number - 1).min();
    let through = through.map(|through| refused.map_or(through, |before| through.min(before)));
    let numbers: Vec<u64> = writes
        .iter()
        .flat_map(|w| w.rows.iter().map(|row| row.number))
        .collect();
    if !writes.is_empty() || through.is_some() {
        let held = writes.iter().map(|w| w.held_through).max().unwrap_or(0);
        // The sender does not know yet that these are on disk, and may send them from memory.
        let below = numbers.iter().min().copied().unwrap_or(u64::MAX);
        crash::point("spool.commit.before");
        // What is in a file that nobody finds again is not safe.
        let result = database.write(&writes, through);
        let result = result.and_then(|()| database.stay());
        crash::point("spool.commit.after");
        let stored = result.is_ok();
        damaged = result.as_ref().is_err_and(SpoolError::is_damage);
        *missing |= !stored;
        tell(
            done,
            match result {
                Ok(()) => Done::Stored(numbers),
                Err(error) => Done::Failed(error),
            },
        );
        if stored {
            let held = held.max(given_out.load(Ordering::Relaxed));
            match compact::compact(database, held, below) {
                Ok(gaps) => gaps
                    .into_iter()
                    .for_each(|(id, gap)| tell(done, Done::Dropped(Some(id), gap))),
                Err(error) => tracing::warn!(%error, "spool could not be compacted"),
            }
            tell(done, Done::Level(database.level()));
        }
    }
    for (event, number, reason) in refusals {
        refused::keep(folder, &event, number, &reason);
        for told in refuse(database, number, &reason) {
            tell(done, told);
        }
    }
    for (after, limit, answer) in reads {
        let read = database.read(after, limit);
        damaged |= read.as_ref().is_err_and(SpoolError::is_damage);
        let events = read.map(|(events, gaps)| {
            let lost = gaps.into_iter();
            lost.for_each(|(id, gap)| tell(done, Done::Dropped(Some(id), gap)));
            events
        });
        // Nobody waits any longer if the agent is stopping.
        let _ = answer.send(events);
    }
    if damaged {
        let error = SpoolError::Damaged;
        tracing::error!(%error, code = error.code(), "spool not usable");
    }
    go_on && !damaged
}

fn refuse(database: &mut Database, number: u64, reason: &str) -> Vec<Done> {
    let why = format!("the controller refused it: {reason}");
    match database.refuse(number, &why) {
        Ok(gaps) => gaps
            .into_iter()
            .map(|(id, gap)| Done::Dropped(Some(id), gap))
            .collect(),
        Err(error) => {
            tracing::warn!(%error, number, "refused event stays in the spool until the next start");
            let gap = Gap {
                source: "refused",
                count: 1,
                from: number,
                to: number,
                why,
            };
            vec![Done::Dropped(None, gap)]
        }
    }
}

fn tell(done: &UnboundedSender<Done>, what: Done) {
    // The receiver goes last when the agent stops.
    let _ = done.send(what);
}

#[cfg(test)]
mod tests;
