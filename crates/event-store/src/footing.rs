//! Whether the store still stands on what it was opened on: its files under their names, and room
//! on their disk.

use std::fs::{self, File, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::error::{OpenError, WriteError};

/// What SQLite puts beside the database in WAL; each stays while the database is open.
const BESIDE: [&str; 2] = ["-wal", "-shm"];

/// What is looked at before and after writes, by the writer and by whoever asks.
#[derive(Debug)]
pub(crate) struct Footing {
    dir: PathBuf,
    reserve: u64,
    files: Vec<Noted>,
    over: OnceLock<WriteError>,
    failing: Mutex<Option<WriteError>>,
}

/// A file as it was opened.
#[derive(Debug)]
struct Noted {
    path: PathBuf,
    /// Device and inode.
    id: (u64, u64),
}

impl Footing {
    /// Of a store that is open and was read from, so that SQLite's own files are there.
    pub(crate) fn new(
        dir: &Path,
        database: &Path,
        lock: &File,
        reserve: u64,
    ) -> Result<Self, OpenError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| OpenError::Io {
                act: "look at",
                path,
                source,
            }
        };
        let lock_path = dir.join("store.lock");
        let held = lock.metadata().map_err(io(&lock_path))?;
        let opened = fs::metadata(database).map_err(io(database))?;
        let mut files = vec![
            Noted::new(database.to_owned(), &opened),
            Noted::new(lock_path, &held),
        ];
        for suffix in BESIDE {
            let mut path = database.as_os_str().to_owned();
            path.push(suffix);
            let path = PathBuf::from(path);
            // Outside WAL there are none.
            if let Ok(found) = fs::metadata(&path) {
                files.push(Noted::new(path, &found));
            }
        }
        Ok(Self {
            dir: dir.to_owned(),
            reserve,
            files,
            over: OnceLock::new(),
            failing: Mutex::new(None),
        })
    }

    /// Why nothing is written any more, once that is so.
    pub(crate) fn over(&self) -> Option<&WriteError> {
        self.over.get()
    }

    /// From now on nothing is written any more; the first reason stays.
    pub(crate) fn end(&self, why: WriteError) {
        // Set already is ended already.
        let _ = self.over.set(why);
    }

    /// Looks whether the files are still there under their names; what was committed before is
    /// durable then.
    pub(crate) fn look(&self) -> Result<(), WriteError> {
        if self.over().is_none()
            && let Some(gone) = self.files.iter().find(|file| file.is_gone())
        {
            let path = gone.path.clone();
            self.end(WriteError::Lost { path });
        }
        self.over().map_or(Ok(()), |over| Err(over.clone()))
    }

    /// Why events are refused for want of room, if they are.
    pub(crate) fn shortage(&self) -> Option<WriteError> {
        let reserve = self.reserve;
        match free_bytes(&self.dir) {
            Ok(free) if free >= reserve => None,
            Ok(free) => Some(WriteError::DiskFull { free, reserve }),
            // Unknown is not full: the write itself will tell.
            Err(_) => None,
        }
    }

    /// The last write went through, or did not.
    pub(crate) fn wrote(&self, failed: Option<WriteError>) {
        *self.failing.lock().unwrap_or_else(PoisonError::into_inner) = failed;
    }

    /// Why the last write failed, if it did.
    pub(crate) fn failing(&self) -> Option<WriteError> {
        self.failing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Noted {
    fn new(path: PathBuf, found: &Metadata) -> Self {
        let id = (found.dev(), found.ino());
        Self { path, id }
    }

    /// Removed, or another file now. That it can't be asked proves nothing: the write will tell.
    fn is_gone(&self) -> bool {
        match fs::metadata(&self.path) {
            Ok(found) => (found.dev(), found.ino()) != self.id,
            Err(error) => matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
        }
    }
}

/// Bytes that an unprivileged process may still write there.
pub(crate) fn free_bytes(dir: &Path) -> std::io::Result<u64> {
    let stat = rustix::fs::statvfs(dir)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}
