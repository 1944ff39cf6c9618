//! Errors. Each has a static code for metrics and says what to do next.

use std::path::PathBuf;

use health_event::incident::IncidentId;

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error(
        "event store {dir} is in use by another process; stop that one first, two writers would \
         destroy the store"
    )]
    Locked {
        /// Folder of the store.
        dir: PathBuf,
    },
    /// It lies on a network file system.
    #[error(
        "event store {dir} lies on a network file system ({kind}), where locks and fsync can't be \
         relied on; give it a local volume, or set store.allow_network_fs"
    )]
    NetworkFileSystem {
        /// Folder of the store.
        dir: PathBuf,
        /// What it is.
        kind: String,
    },
    /// A newer version of Warden wrote it.
    #[error(
        "event store {path} has schema version {found}, this program knows up to {known}; run the \
         version that wrote it, or a newer one, or move the file away (marks and reports rebuild)"
    )]
    NewerSchema {
        /// The database.
        path: PathBuf,
        /// Version in the file.
        found: i64,
        /// Version that this program writes.
        known: i64,
    },
    /// The file is damaged or is no store.
    #[error(
        "event store {path} is damaged or no store at all: {detail}; move it away and start again \
         (marks and reports rebuild), or restore a copy"
    )]
    Corrupt {
        /// The database.
        path: PathBuf,
        /// What the check said.
        detail: String,
    },
    /// Folder or lock file could not be used.
    #[error("event store: can't {act} {path}; check that the volume is mounted and writable")]
    Io {
        /// What was tried.
        act: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The database refused something else.
    #[error("event store {path} can't be opened; check that the volume is writable and not full")]
    Sqlite {
        /// The database.
        path: PathBuf,
        /// Why.
        source: rusqlite::Error,
    },
}

impl OpenError {
    /// For metrics.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Locked { .. } => "store_locked",
            Self::NetworkFileSystem { .. } => "store_network_fs",
            Self::NewerSchema { .. } => "store_newer_schema",
            Self::Corrupt { .. } => "store_corrupt",
            Self::Io { .. } => "store_io",
            Self::Sqlite { .. } => "store_sqlite",
        }
    }
}

/// Why something was not written. Nothing of it is stored, unless said otherwise.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// Too much waits to be written.
    #[error("event store: the queue of writes is full; try again shortly")]
    Busy,
    /// The file system has less than the reserve free.
    #[error(
        "event store: the disk is full ({free} bytes free, {reserve} are kept in reserve): events \
         are refused until there is space; enlarge the volume or lower store.max_bytes"
    )]
    DiskFull {
        /// Bytes free.
        free: u64,
        /// Bytes wanted.
        reserve: u64,
    },
    /// The database refused; outcome unknown only if the failure was in the commit itself, and
    /// then a repeated append is found to be a duplicate.
    #[error("event store: writing failed: {0}; it is tried again with the next write")]
    Storage(String),
    /// A file of the store is no longer there under its name: nothing written now would last.
    #[error(
        "event store: {path} was removed or replaced while it was open: what is written now would be \
         lost, so that nothing is acknowledged any more, and the process ends. Started again, it opens \
         what lies there, or makes a new store, which marks on nodes and agents' reports rebuild"
    )]
    Lost {
        /// The file.
        path: PathBuf,
    },
    /// Another instance put its mark into the store's folder, on a network file system.
    #[error(
        "event store {dir}: another instance has put its mark there and writes now, so that this \
         process writes no more, and ends. Stop one of the two, or give each a folder of its own"
    )]
    TakenOver {
        /// Folder of the store.
        dir: PathBuf,
    },
    /// The store was closed.
    #[error("event store is closed")]
    Closed,
    /// The plan was made under a leadership that is over.
    #[error("event store: leadership {given} is over, {current} holds; the plan is dropped")]
    Fenced {
        /// Number of the plan.
        given: u64,
        /// Number that holds.
        current: u64,
    },
    /// The incident changed since the plan was made.
    #[error(
        "incident {incident}: the plan was made for version {expected:?}, stored is {found:?}; the \
         plan is dropped and made anew"
    )]
    Stale {
        /// Incident.
        incident: IncidentId,
        /// Version of the plan; none = must not exist.
        expected: Option<u64>,
        /// Version stored; none = does not exist.
        found: Option<u64>,
    },
    /// The node already has another open incident.
    #[error("incident {incident}: the node object already has the open incident {other}")]
    AnotherOpen {
        /// The new one.
        incident: IncidentId,
        /// The open one.
        other: IncidentId,
    },
}

impl WriteError {
    /// Whether this store takes no write any more, whatever is done about it: only another opening
    /// helps.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Lost { .. } | Self::TakenOver { .. } | Self::Closed => true,
            Self::Busy
            | Self::DiskFull { .. }
            | Self::Storage(_)
            | Self::Fenced { .. }
            | Self::Stale { .. }
            | Self::AnotherOpen { .. } => false,
        }
    }

    /// For metrics.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Busy => "store_busy",
            Self::DiskFull { .. } => "store_disk_full",
            Self::Storage(_) => "store_failed",
            Self::Lost { .. } => "store_lost",
            Self::TakenOver { .. } => "store_taken_over",
            Self::Closed => "store_closed",
            Self::Fenced { .. } => "fenced",
            Self::Stale { .. } => "stale",
            Self::AnotherOpen { .. } => "another_open",
        }
    }
}

/// Why something could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The database refused.
    #[error("event store: reading {what} failed; see the cause, reads are tried anew each time")]
    Sqlite {
        /// What was read.
        what: &'static str,
        /// Why.
        #[source]
        source: rusqlite::Error,
    },
}

impl ReadError {
    /// For metrics.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Sqlite { .. } => "store_read",
        }
    }
}
