//! Proof that the holder of a Lease is dead, for the process that comes after a `kill -9`.
//!
//! # Why it may take the Lease over at once
//! Whoever leads notes its identity and the kernel it runs on in the store's folder, which it has
//! locked. If the Lease is held by the one noted there, on the kernel that runs here, and the lock
//! is ours now, then that process is gone: the kernel frees the lock only when the last thread that
//! could write has ended. Anything less proves nothing: a lock on another machine (the volume was
//! moved, the note is of another boot) or on a network file system says nothing of a process there.
//! What the dead one had sent last may still arrive: its writes carry their tests, and what can't be
//! undone still waits one length of the Lease (`docs/decisions/0007`).

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use tracing::warn;

/// The note's name in the store's folder.
const NOTE: &str = "leader";
/// Where Linux says which boot of which kernel this is.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// No note of ours is longer.
const LONGEST: u64 = 1_024;

/// Who led last with the store of this folder.
#[derive(Debug)]
pub struct Heritage {
    folder: PathBuf,
    boot: Option<String>,
}

impl Heritage {
    /// Of a store's folder. `shared`: other machines may have it open too, so that no note counts.
    pub fn new(folder: &Path, shared: bool) -> Self {
        let boot = std::fs::read_to_string(BOOT_ID).ok();
        let boot = boot.map(|boot| boot.trim().to_owned());
        Self {
            folder: folder.to_owned(),
            boot: boot.filter(|boot| !shared && !boot.is_empty()),
        }
    }

    /// Whether this holder of the Lease led with this folder in this boot of this kernel: if the
    /// store's lock can be had, it is dead.
    pub fn is_of(&self, holder: &str) -> bool {
        let Some(boot) = &self.boot else {
            return false;
        };
        let path = self.folder.join(NOTE);
        let is_ours = std::fs::metadata(&path).is_ok_and(|m| m.is_file() && m.len() <= LONGEST);
        let note = if is_ours {
            std::fs::read_to_string(path).unwrap_or_default()
        } else {
            String::new()
        };
        note == text(holder, boot)
    }

    /// Notes that this identity leads; the store must be open. Without the note a successor waits.
    pub fn note(&self, identity: &str) {
        let Some(boot) = &self.boot else {
            return;
        };
        if let Err(error) = self.write(&text(identity, boot)) {
            warn!(
                code = "leader_not_noted",
                %error,
                "who leads can't be noted in the store's folder: after a kill the next controller \
                 waits until the lease runs out"
            );
        }
    }

    fn write(&self, text: &str) -> std::io::Result<()> {
        let (path, new) = (self.folder.join(NOTE), self.folder.join("leader.new"));
        let mut file = File::create(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(new, path)
    }
}

fn text(identity: &str, boot: &str) -> String {
    format!("{identity}\n{boot}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_noted_holder_of_this_boot_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let heritage = Heritage::new(folder.path(), false);
        assert!(!heritage.is_of("pod_1"), "no note");
        heritage.note("pod_1");
        assert!(heritage.is_of("pod_1"));
        assert!(!heritage.is_of("pod_2") && !heritage.is_of(""));
        let shared = Heritage::new(folder.path(), true);
        assert!(!shared.is_of("pod_1"), "another machine may have led");
        let elsewhere = Heritage {
            boot: Some("another".into()),
            ..Heritage::new(folder.path(), false)
        };
        assert!(!elsewhere.is_of("pod_1"), "the volume came from elsewhere");
        heritage.note("pod_2");
        assert!(heritage.is_of("pod_2") && !heritage.is_of("pod_1"));
        std::fs::write(folder.path().join(NOTE), "pod_2").unwrap();
        assert!(!heritage.is_of("pod_2"), "cut short");
    }
}
