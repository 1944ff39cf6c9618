//! The program itself.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// What an agent is started with; the folders outlive it.
pub(crate) struct Setup {
    folder: TempDir,
    /// The writing end keeps the FIFO's content while no agent reads.
    pipe: File,
    pub(crate) flags: Vec<String>,
    machine: String,
    /// Folder of the spool.
    pub(crate) state: PathBuf,
}

impl Setup {
    /// A FIFO as kernel log, a boot id file, a machine id.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("kmsg");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let pipe = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(&fifo)
            .unwrap();
        let state = folder.path().join("state");
        let setup = Self {
            folder,
            pipe,
            flags: vec!["--kernel-log".into(), format!("pipe:{}", fifo.display())],
            machine: "machine-1".into(),
            state,
        };
        setup.boot("boot-1");
        setup
    }

    /// The machine's boot id from the next start on.
    pub(crate) fn boot(&self, id: &str) {
        std::fs::write(self.path("boot_id"), id).unwrap();
    }

    /// Adds a flag.
    pub(crate) fn flag(&mut self, name: &str, value: &str) {
        self.flags.extend([name.to_owned(), value.to_owned()]);
    }

    /// A path in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The unix socket, in a folder of its own.
    pub(crate) fn socket(&self) -> PathBuf {
        self.path("run/agent.sock")
    }

    /// Writes to the kernel log.
    pub(crate) fn log(&mut self, text: &str) {
        let start = std::time::Instant::now();
        while !self.try_log(text) {
            assert!(start.elapsed() < super::DEADLINE, "nobody reads the pipe");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// Writes to the kernel log if there is room in the pipe. Answers whether.
    pub(crate) fn try_log(&mut self, text: &str) -> bool {
        assert!(
            text.len() <= 4_096,
            "longer writes are not whole or nothing"
        );
        match self.pipe.write_all(text.as_bytes()) {
            Ok(()) => true,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Starts the agent; `url` is its controller.
    pub(crate) fn start(&self, url: &str) -> Agent {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.path("agent.log"))
            .unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_warden-agent"))
            .env_remove("NODE_NAME")
            .args(["--node-name", "gpu-1", "--machine-id", &self.machine])
            .args(["--controller", url])
            .args(url.starts_with("http://").then_some("--insecure-local"))
            .args([
                "--log-format",
                "json",
                "--log-filter",
                "debug,h2=info,hyper=info,tower=info",
            ])
            .args([Path::new("--state-dir"), &self.state])
            .args([Path::new("--socket"), &self.socket()])
            .args([Path::new("--boot-id-file"), &self.path("boot_id")])
            .args(&self.flags)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Agent { child }
    }

    /// Where the pages are, of an agent with `--admin-listen 127.0.0.1:0`.
    pub(crate) async fn pages(&self) -> String {
        super::until("the page's address", || {
            let log = self.logged();
            let line = log
                .lines()
                .rfind(|line| line.contains("serving /healthz"))?;
            let text = line.split("\"address\":\"").nth(1)?;
            text.split('"').next().map(str::to_owned)
        })
        .await
    }

    /// What the page at `path` says.
    pub(crate) async fn page(&self, path: &str) -> String {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let address = self.pages().await;
        let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    /// A number of `/metrics`.
    pub(crate) async fn metric(&self, name: &str) -> u64 {
        let page = self.page("/metrics").await;
        let line = page.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim().parse().unwrap()
    }

    /// What the agents of this folder logged.
    pub(crate) fn logged(&self) -> String {
        std::fs::read_to_string(self.path("agent.log")).unwrap_or_default()
    }
}

/// A running agent; killed on drop.
pub(crate) struct Agent {
    child: Child,
}

impl Agent {
    /// Sends SIGKILL and waits.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends SIGTERM and waits for the end.
    pub(crate) fn stop(mut self) -> ExitStatus {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).unwrap();
        let status = self.child.wait().unwrap();
        assert_eq!(status.signal(), None, "the agent ends by itself");
        status
    }

    /// Whether it still runs.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
