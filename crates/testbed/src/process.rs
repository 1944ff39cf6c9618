//! Child processes that do not outlive us.
//!
//! Each one is killed by the kernel when the thread that started it ends (`PR_SET_PDEATHSIG`), so
//! all are started by one thread that lives as long as the process: then they go with us on
//! `kill -9` too. Each has its own process group, out of reach of the terminal's Ctrl-C.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};

/// How often a process that was asked to end is looked at.
const REAP_PAUSE: Duration = Duration::from_millis(10);

/// A running child with its log. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `program` in the folder `home` with an empty environment but for `HOME` and `PATH`;
    /// what it writes goes to the end of `log`.
    ///
    /// # Errors
    /// The log can't be opened, or the program can't be started.
    pub fn start(
        program: &Path,
        flags: &[String],
        home: &Path,
        log: &Path,
    ) -> anyhow::Result<Self> {
        let output = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("opening the log {}", log.display()))?;
        let mut command = Command::new(program);
        command
            .args(flags)
            // Nothing of the caller's environment (proxies, Go's debugging switches) counts.
            .env_clear()
            .env("HOME", home)
            .env("PATH", "/usr/bin:/bin")
            .current_dir(home)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0);
        let child = spawn(command).with_context(|| format!("starting {}", program.display()))?;
        Ok(Self {
            child,
            log: log.to_owned(),
        })
    }

    /// Its process id; it stays ours until the process is waited for.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Asks it to end (SIGTERM) without waiting.
    pub fn terminate(&self) {
        // A child that was not reaped keeps its number, so this can hit no other process.
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            // It fails for a child that has ended, which is what was asked for.
            kill_process(pid, Signal::TERM).ok();
        }
    }

    /// Waits until it has ended, no longer than to `end`; answers whether it has.
    pub fn ended_by(&mut self, end: Instant) -> bool {
        while self.is_running() {
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(REAP_PAUSE);
        }
        true
    }

    /// Kills it (SIGKILL) without waiting.
    pub fn kill(&mut self) {
        // It fails for a child that has ended, which is what was asked for.
        self.child.kill().ok();
    }

    /// The last lines of its log, at most 2 KiB.
    pub fn log_tail(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(2048)..]).into_owned();
        format!("the end of {}:\n{}", self.log.display(), text.trim_end())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        // After SIGKILL this returns at once; an error means that it was reaped before.
        self.child.wait().ok();
    }
}

type Request = (Command, mpsc::SyncSender<io::Result<Child>>);

/// Runs `command` on the thread that starts all children.
fn spawn(mut command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<mpsc::Sender<Request>> = OnceLock::new();
    die_with_parent(&mut command);
    let (reply, answer) = mpsc::sync_channel(1);
    SPAWNER
        .get_or_init(start_spawner)
        .send((command, reply))
        .map_err(|_| io::Error::other("the thread that starts processes has ended"))?;
    answer
        .recv()
        .map_err(|_| io::Error::other("the thread that starts processes has ended"))?
}

fn start_spawner() -> mpsc::Sender<Request> {
    let (requests, queue) = mpsc::channel::<Request>();
    std::thread::Builder::new()
        .name("testbed-spawner".to_owned())
        .spawn(move || {
            for (mut command, reply) in queue {
                // Nobody listens if the caller was cancelled; the child then dies on drop of the
                // answer only with us, so kill it here.
                if let Err(mpsc::SendError(Ok(mut orphan))) = reply.send(command.spawn()) {
                    orphan.kill().ok();
                    orphan.wait().ok();
                }
            }
        })
        .expect("a thread can be started");
    requests
}

/// Has the kernel kill the child when its parent's thread ends.
#[expect(
    unsafe_code,
    reason = "no safe call sets the parent-death signal between fork and exec"
)]
fn die_with_parent(command: &mut Command) {
    let parent = Pid::from_raw(std::process::id().cast_signed());
    // SAFETY: between fork and exec the closure makes two plain system calls; it takes no lock and
    // allocates nothing.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // A parent that died before the call above would never be noticed.
            if getppid() == parent {
                Ok(())
            } else {
                Err(io::ErrorKind::NotConnected.into())
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper(folder: &Path) -> Process {
        let flags = ["1000".to_owned()];
        Process::start(Path::new("/bin/sleep"), &flags, folder, &folder.join("log")).unwrap()
    }

    #[test]
    fn dropped_process_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let process = sleeper(folder.path());
        let entry = PathBuf::from(format!("/proc/{}", process.id()));
        assert!(entry.exists());
        drop(process);
        assert!(!entry.exists());
    }

    #[test]
    fn process_started_from_a_short_lived_thread_survives_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        let mut process = std::thread::spawn(move || sleeper(&path)).join().unwrap();
        assert!(!process.ended_by(Instant::now() + Duration::from_millis(100)));
        process.terminate();
        assert!(process.ended_by(Instant::now() + Duration::from_secs(10)));
    }

    #[test]
    fn log_tail_shows_what_the_program_wrote() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let flags = ["-c".to_owned(), "echo out of luck >&2".to_owned()];
        let mut process =
            Process::start(Path::new("/bin/sh"), &flags, folder.path(), &log).unwrap();
        assert!(process.ended_by(Instant::now() + Duration::from_secs(10)));
        assert!(process.log_tail().ends_with("out of luck"));
    }
}
