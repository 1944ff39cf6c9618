//! Whether the spool's files are still where the next start looks for them. One that was removed or
//! replaced while it is used goes on taking writes, and all of them are lost with the process: so it
//! is written anew, from the files that are still open, before anything more is said to be safe.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::SpoolError;
use super::damage::{WHOLE, replace, unless_absent};
use crate::crash;

/// Files without which a start would not find what is acknowledged, and the lock that keeps a second
/// agent out of it. The log's index is made anew from the log.
const FILES: [&str; 3] = ["spool.db", "spool.db-wal", LOCK];
/// Whoever uses the folder holds it.
pub(super) const LOCK: &str = "lock";
/// A copy until it is whole.
const COPY: &str = "spool.copy";

/// Which files are open: device and inode of each path.
#[derive(Debug)]
pub(super) struct Place(Vec<(PathBuf, (u64, u64))>);

impl Place {
    /// Of files that were opened just now.
    ///
    /// # Errors
    /// If one is not there.
    pub(super) fn of(folder: &Path) -> io::Result<Self> {
        let files = FILES.map(|name| folder.join(name)).into_iter();
        let known = files.map(|path| about(&path).map(|about| (path, about)));
        Ok(Self(known.collect::<io::Result<_>>()?))
    }

    /// The first file that went from its place, or is another one now. Costs three `stat`.
    pub(super) fn gone(&self) -> Option<&Path> {
        let gone = self.0.iter().find(|file| !is_there(file));
        gone.map(|(path, _)| path.as_path())
    }

    /// Whether this one of them is in its place.
    pub(super) fn has(&self, name: &str) -> bool {
        let mut files = self.0.iter().filter(|(path, _)| path.ends_with(name));
        files.all(is_there)
    }
}

/// Puts a copy of all that a connection reads where its files were; what lies there instead is put
/// aside. It takes its place whole or not at all; once it is whole the next start does the rest for
/// an agent that dies.
///
/// # Errors
/// [`SpoolError`] if it can't be written, or does not come to its place.
pub(super) fn copy(connection: &Connection, folder: &Path) -> Result<(), SpoolError> {
    let io = |source| SpoolError::Folder {
        path: folder.to_owned(),
        source,
    };
    let copy = folder.join(COPY);
    unless_absent(std::fs::remove_file(&copy)).map_err(io)?;
    let name = copy
        .to_str()
        .ok_or_else(|| io(io::Error::new(io::ErrorKind::InvalidFilename, "no UTF-8")))?;
    let copied = connection.execute("VACUUM INTO ?1", [name]);
    copied.map_err(|source| SpoolError::Database {
        path: copy.clone(),
        act: "written",
        source,
    })?;
    // SQLite does not sync it.
    let placed = || {
        File::open(&copy)?.sync_all()?;
        crash::point("spool.copy.before");
        std::fs::rename(&copy, folder.join(WHOLE))?;
        crash::point("spool.copy.amid");
        replace(folder, WHOLE)?;
        File::open(folder)?.sync_all()?;
        crash::point("spool.copy.after");
        Ok(())
    };
    placed().map_err(io)
}

fn is_there((path, known): &(PathBuf, (u64, u64))) -> bool {
    about(path).is_ok_and(|found| found == *known)
}

fn about(path: &Path) -> io::Result<(u64, u64)> {
    let about = std::fs::metadata(path)?;
    Ok((about.dev(), about.ino()))
}
