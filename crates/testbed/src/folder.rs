//! The folder of one testbed, removed with it whatever way its process ends.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, bail};

/// Waits for its standard input to end, which the death of our process brings about too; removes
/// the folder unless told `keep`. Retries, because processes killed at the same moment may still
/// be writing.
const SWEEPER: &str = r#"
read -r word
[ "$word" = keep ] && exit 0
for attempt in 1 2 3 4 5 6 7 8 9 10; do
    rm -rf -- "$1" 2>/dev/null && exit 0
    sleep 0.2
done
"#;

/// A folder that goes away on drop and also after `kill -9` of this process, unless kept.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    sweeper: Child,
}

impl Folder {
    /// Makes `chosen`, which must not exist or be empty, or a folder of its own among the
    /// temporary files.
    pub(crate) fn create(chosen: Option<&Path>) -> anyhow::Result<Self> {
        let path = match chosen {
            Some(path) => {
                std::fs::create_dir_all(path)
                    .with_context(|| format!("creating the testbed's folder {}", path.display()))?;
                if std::fs::read_dir(path)?.next().is_some() {
                    bail!(
                        "the testbed's folder {} is not empty; name another one or remove it",
                        path.display()
                    );
                }
                path.canonicalize()?
            }
            None => tempfile::Builder::new()
                .prefix("warden-testbed-")
                .tempdir()
                .context("creating the testbed's folder among the temporary files")?
                .keep(),
        };
        let sweeper = Command::new("sh")
            .args(["-c", SWEEPER, "testbed-sweeper"])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Out of reach of the terminal's Ctrl-C.
            .process_group(0)
            .spawn()
            .context("starting sh, which removes the testbed's folder when we die")?;
        let folder = Self { path, sweeper };
        for name in ["pki", "log", "etcd"] {
            folder.subfolder(name)?;
        }
        Ok(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a folder inside, readable by us only.
    pub(crate) fn subfolder(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.path.join(name);
        std::fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o700))
            .with_context(|| format!("restricting {}", path.display()))?;
        Ok(path)
    }

    /// Leaves the folder where it is.
    pub(crate) fn keep(&mut self) -> anyhow::Result<()> {
        if let Some(pipe) = &mut self.sweeper.stdin {
            pipe.write_all(b"keep\n")
                .with_context(|| format!("asking to keep {}", self.path.display()))?;
        }
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The sweeper does the work in every case; waiting for it also reaps it.
        drop(self.sweeper.stdin.take());
        let ended = self.sweeper.wait();
        debug_assert!(ended.is_ok(), "the sweeper is our own child: {ended:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_goes_on_drop_and_stays_when_kept() {
        let folder = Folder::create(None).unwrap();
        let path = folder.path().to_owned();
        drop(folder);
        assert!(!path.exists());

        let mut folder = Folder::create(None).unwrap();
        let path = folder.path().to_owned();
        folder.keep().unwrap();
        drop(folder);
        assert!(path.exists());
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn folder_in_use_is_refused() {
        let used = tempfile::tempdir().unwrap();
        std::fs::write(used.path().join("mine"), "").unwrap();
        let text = Folder::create(Some(used.path())).unwrap_err().to_string();
        assert!(text.contains("is not empty"), "{text}");
    }
}
