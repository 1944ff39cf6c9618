//! Child processes that do not outlive us.
//!
//! Each one is killed by the kernel when the thread that started it ends (`PR_SET_PDEATHSIG`), so
//! all are started by one thread that lives as long as the process: then they go with us on
//! `kill -9` too. Each has its own process group, out of reach of the terminal's Ctrl-C.
//!
//! Whoever shows something that runs (the demo, `make testbed`) waits for [`unasked_end`] beside
//! it: a program that ends although nobody asked it to is told within [`WATCH_PAUSE`].

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak, mpsc};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};

/// How often a process that was asked to end is looked at.
const REAP_PAUSE: Duration = Duration::from_millis(10);
/// How often all processes are looked at by [`unasked_end`].
const WATCH_PAUSE: Duration = Duration::from_millis(200);

/// A running child with its log. Dropping it kills it.
#[derive(Debug)]
pub struct Process(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    child: Mutex<Child>,
    program: PathBuf,
    log: PathBuf,
    /// Whether its end was asked for.
    asked: AtomicBool,
}

/// A program that ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// File name of the program.
    pub program: String,
    /// Its process id.
    pub id: u32,
    /// How it ended: `exit status: 1`, `signal: 9 (SIGKILL)`.
    pub status: String,
    /// The end of its log, with the log's path.
    pub log_tail: String,
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            program,
            id,
            status,
            log_tail,
        } = self;
        write!(f, "{program} (process {id}) ended, {status}; {log_tail}")
    }
}

impl std::error::Error for Ended {}

/// All processes of this program that are not dropped.
static ALL: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// Waits until one of this program's [`Process`]es has ended without [`Process::terminate`],
/// [`Process::kill`] or a drop having asked for it, and tells which.
pub async fn unasked_end() -> Ended {
    loop {
        let ended = {
            let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|process| process.strong_count() > 0);
            all.iter()
                .filter_map(Weak::upgrade)
                .find_map(|process| process.unasked_end())
        };
        if let Some(ended) = ended {
            return ended;
        }
        tokio::time::sleep(WATCH_PAUSE).await;
    }
}

impl Shared {
    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn exit(&self) -> Option<ExitStatus> {
        self.child().try_wait().ok().flatten()
    }

    fn unasked_end(&self) -> Option<Ended> {
        // Looked at first: a process that is asked between the two looks is told one look late,
        // never wrongly.
        let status = self.exit()?;
        if self.asked.load(Ordering::SeqCst) {
            return None;
        }
        Some(self.told(status))
    }

    fn told(&self, status: ExitStatus) -> Ended {
        let program = self.program.file_name().unwrap_or_default();
        Ended {
            program: program.to_string_lossy().into_owned(),
            id: self.child().id(),
            status: status.to_string(),
            log_tail: self.log_tail(),
        }
    }

    fn log_tail(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(2048)..]).into_owned();
        format!("the end of {}:\n{}", self.log.display(), text.trim_end())
    }
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
        let shared = Arc::new(Shared {
            child: Mutex::new(child),
            program: program.to_owned(),
            log: log.to_owned(),
            asked: AtomicBool::new(false),
        });
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|process| process.strong_count() > 0);
        all.push(Arc::downgrade(&shared));
        Ok(Self(shared))
    }

    /// Its process id; it stays ours until the process is waited for.
    pub fn id(&self) -> u32 {
        self.0.child().id()
    }

    /// How it ended, if it has, whether that was asked for or not.
    pub fn ended(&self) -> Option<Ended> {
        Some(self.0.told(self.0.exit()?))
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.0.child().try_wait(), Ok(None))
    }

    /// Asks it to end (SIGTERM) without waiting.
    pub fn terminate(&self) {
        self.0.asked.store(true, Ordering::SeqCst);
        let mut child = self.0.child();
        // Once reaped, its number may be another process's; before, this can hit no other.
        if matches!(child.try_wait(), Ok(None))
            && let Some(pid) = Pid::from_raw(child.id().cast_signed())
        {
            // It fails for a child that has ended meanwhile, which is what was asked for.
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
        self.0.asked.store(true, Ordering::SeqCst);
        // It fails for a child that has ended, which is what was asked for.
        self.0.child().kill().ok();
    }

    /// The last lines of its log, at most 2 KiB, with the log's path.
    pub fn log_tail(&self) -> String {
        self.0.log_tail()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        // After SIGKILL this returns at once; an error means that it was reaped before.
        self.0.child().wait().ok();
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

    #[tokio::test]
    async fn program_that_ends_unasked_is_told_with_status_and_log_and_an_asked_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let asked = sleeper(folder.path());
        asked.terminate();
        let flags = ["-c".to_owned(), "echo why it went; exit 7".to_owned()];
        let log = folder.path().join("unasked.log");
        let unasked = Process::start(Path::new("/bin/sh"), &flags, folder.path(), &log).unwrap();
        // Others of this test program end unasked too: theirs is told first, or ours.
        let ended = tokio::time::timeout(Duration::from_secs(10), async {
            loop {
                let own = unasked.0.unasked_end();
                let any = unasked_end().await;
                assert_ne!(any.id, asked.id());
                if let Some(own) = own {
                    return own;
                }
            }
        });
        let ended = ended.await.unwrap();
        assert_eq!((ended.program.as_str(), ended.id), ("sh", unasked.id()));
        assert_eq!(ended.status, "exit status: 7");
        assert!(ended.log_tail.ends_with("why it went"), "{ended}");
    }
}
