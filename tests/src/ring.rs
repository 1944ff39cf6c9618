//! The real kernel's log, which everything on this machine shares: whoever writes faults into it
//! holds one lock, so that no test, benchmark or demo takes another's lines for its own.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use testbed::wait_for;

/// The lock file; tests of the agent and the benchmarks name it too.
const LOCK: &str = "warden-kernel-ring.lock";
/// Longest wait for the others: the longest of them is a benchmark's flood.
pub const PATIENCE: Duration = Duration::from_mins(10);

/// The lock, held until it is dropped or this program ends.
#[derive(Debug)]
pub struct Ring {
    _lock: File,
}

impl Ring {
    /// Where its lock is.
    pub fn lock_file() -> PathBuf {
        std::env::temp_dir().join(LOCK)
    }

    /// Takes the lock if nobody holds it.
    ///
    /// # Errors
    /// The lock file can't be made.
    pub fn try_take() -> anyhow::Result<Option<Self>> {
        Self::try_take_file(&Self::lock_file())
    }

    fn try_take_file(path: &Path) -> anyhow::Result<Option<Self>> {
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
            .with_context(|| format!("opening the lock {}", path.display()))?;
        match lock.try_lock() {
            Ok(()) => Ok(Some(Self { _lock: lock })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("locking {}", path.display()))
            }
        }
    }

    /// Waits until nobody else holds it.
    ///
    /// # Errors
    /// Somebody did for [`PATIENCE`]; the text says how to find out who.
    pub async fn take() -> anyhow::Result<Self> {
        let path = Self::lock_file();
        let what = "the other test, benchmark or demo that uses this machine's kernel log";
        wait_for(what, PATIENCE, || async { Self::try_take() })
            .await
            .with_context(|| {
                format!(
                    "the kernel log is in use: see who has {} open (fuser, lsof), end it and try \
                     again",
                    path.display()
                )
            })
    }
}

/// A PCI domain that no machine has and that no other running demo uses: `d000` to `dfff`, by the
/// number of this process.
pub fn domain() -> String {
    format!("d{:03x}", std::process::id() & 0xfff)
}

/// Writes one record. The log is opened anew for each: the kernel limits user writes by open file.
/// Level 6, so that no slow console prints it.
///
/// # Errors
/// The log can't be opened or written, which only root may.
pub fn write(line: &str) -> anyhow::Result<()> {
    let mut log = OpenOptions::new()
        .write(true)
        .open("/dev/kmsg")
        .context("opening /dev/kmsg to write")?;
    log.write_all(format!("<6>{line}\n").as_bytes())
        .context("writing a line to /dev/kmsg")
}

/// The sequence number that the next record will have.
///
/// # Errors
/// The log can't be opened or read.
pub fn next_sequence() -> anyhow::Result<u64> {
    let nonblock = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits())?;
    let mut log = OpenOptions::new()
        .read(true)
        .custom_flags(nonblock)
        .open("/dev/kmsg")
        .context("opening /dev/kmsg to read")?;
    let mut next = 0;
    let mut record = vec![0; 8192];
    loop {
        match log.read(&mut record) {
            Ok(0) => bail!("/dev/kmsg ended, which it never does"),
            Ok(length) => {
                let text = String::from_utf8_lossy(&record[..length]);
                let sequence = text.split(',').nth(1);
                let sequence = sequence.and_then(|field| field.parse::<u64>().ok());
                next = sequence.map_or(next, |sequence| sequence + 1);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(next),
            // The oldest records were overwritten while we read: go on with what is left.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            Err(error) => return Err(error).context("reading /dev/kmsg"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_holds_it_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let held = Ring::try_take_file(&path).unwrap().unwrap();
        assert!(Ring::try_take_file(&path).unwrap().is_none());
        drop(held);
        assert!(Ring::try_take_file(&path).unwrap().is_some());
    }

    #[test]
    fn the_domain_is_one_of_the_demos() {
        let domain = domain();
        assert!(domain.len() == 4 && domain.starts_with('d'), "{domain}");
        assert!(u16::from_str_radix(&domain, 16).is_ok());
    }
}
