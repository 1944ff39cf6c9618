//! The agent, and the machine's disk under it.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, bail};
use testbed::Process;

use super::{STOP, program};

/// Where an agent reads the kernel log.
#[derive(Debug, Clone)]
pub enum KernelLog {
    /// `/dev/kmsg`, from its end or a sequence number.
    Kmsg(String),
    /// A FIFO in the agent's folder, written by [`Agent::kernel_line`].
    Pipe,
    /// Not read.
    Off,
}

/// How an agent and the controller know each other, where it is not plaintext on loopback.
#[derive(Debug, Clone)]
pub struct Trust {
    /// Certificates that the controller's was signed with (PEM).
    pub ca_file: PathBuf,
    /// The agent's bearer token.
    pub token_file: PathBuf,
}

/// One machine with its agent. Dropping it kills the agent; its folder stays.
#[derive(Debug)]
pub struct Agent {
    process: Option<Process>,
    folder: PathBuf,
    /// Node that it speaks for.
    pub node: String,
    machine_id: String,
    kernel_log: KernelLog,
    controller: SocketAddr,
    trust: Option<Trust>,
    flags: Vec<String>,
    /// The kernel's records of this boot, as written into the pipe.
    ring: Vec<String>,
    /// Keeps what is in the pipe while no agent has it open.
    holder: Option<fs::File>,
}

impl Agent {
    /// Starts the agent of `node` in `folder`, which is the machine's disk.
    ///
    /// # Errors
    /// The program or its pipe can't be made.
    pub fn start(
        folder: &Path,
        node: &str,
        machine_id: &str,
        boot_id: &str,
        kernel_log: KernelLog,
        controller: SocketAddr,
    ) -> anyhow::Result<Self> {
        let mut agent = Self::prepare(folder, node, machine_id, boot_id, kernel_log, controller)?;
        agent.spawn()?;
        Ok(agent)
    }

    /// As [`Agent::start`], without a process yet: [`Agent::spawn`] starts it.
    ///
    /// # Errors
    /// The folder can't be written.
    pub fn prepare(
        folder: &Path,
        node: &str,
        machine_id: &str,
        boot_id: &str,
        kernel_log: KernelLog,
        controller: SocketAddr,
    ) -> anyhow::Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        let mut agent = Self {
            process: None,
            folder: folder.to_owned(),
            node: node.to_owned(),
            machine_id: machine_id.to_owned(),
            kernel_log,
            controller,
            trust: None,
            flags: Vec::new(),
            ring: Vec::new(),
            holder: None,
        };
        agent.set_boot_id(boot_id)?;
        Ok(agent)
    }

    /// From its next start on: TLS and a token.
    pub fn set_trust(&mut self, trust: Trust) {
        self.trust = Some(trust);
    }

    /// More flags from its next start on.
    pub fn set_flags(&mut self, flags: Vec<String>) {
        self.flags = flags;
    }

    /// The socket on which the node's monitors speak to it.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("nvsentinel.sock")
    }

    /// The folder of its spool.
    pub fn state(&self) -> PathBuf {
        self.folder.join("state")
    }

    /// The boot id that it will find at its next start.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn set_boot_id(&mut self, boot_id: &str) -> anyhow::Result<()> {
        let path = self.folder.join("boot-id");
        fs::write(&path, boot_id).with_context(|| format!("writing {}", path.display()))
    }

    /// Where it reads the kernel log from its next start on.
    pub fn set_kernel_log(&mut self, kernel_log: KernelLog) {
        self.kernel_log = kernel_log;
    }

    /// Starts the agent's process.
    ///
    /// # Errors
    /// The program or its pipe can't be made.
    pub fn spawn(&mut self) -> anyhow::Result<()> {
        self.process = None;
        let mut flags: Vec<String> = [
            ("--node-name", self.node.clone()),
            ("--machine-id", self.machine_id.clone()),
            (
                "--boot-id-file",
                self.folder.join("boot-id").display().to_string(),
            ),
            ("--state-dir", self.state().display().to_string()),
            ("--socket", self.socket().display().to_string()),
        ]
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .collect();
        flags.extend(self.connection());
        flags.extend(self.flags.iter().cloned());
        match &self.kernel_log {
            KernelLog::Off => flags.extend(["--kernel-log", "off"].map(str::to_owned)),
            KernelLog::Kmsg(start) => flags.extend(
                ["--kernel-log", "kmsg", "--kernel-log-start", start.as_str()].map(str::to_owned),
            ),
            KernelLog::Pipe => {
                let pipe = self.pipe();
                if !pipe.exists() {
                    make_pipe(&pipe)?;
                }
                flags.extend([
                    "--kernel-log".to_owned(),
                    format!("pipe:{}", pipe.display()),
                ]);
            }
        }
        let config = self.folder.join("agent.toml");
        fs::write(&config, "[kernel_log]\naccept_user_records = true\n")
            .with_context(|| format!("writing {}", config.display()))?;
        flags.extend(["--config".to_owned(), config.display().to_string()]);
        let log = self.folder.join("agent.log");
        self.process = Some(Process::start(
            &program("warden-agent")?,
            &flags,
            &self.folder,
            &log,
        )?);
        Ok(())
    }

    fn connection(&self) -> Vec<String> {
        let controller = self.controller;
        let Some(trust) = &self.trust else {
            return vec![
                "--controller".to_owned(),
                format!("http://{controller}"),
                "--insecure-local".to_owned(),
            ];
        };
        vec![
            "--controller".to_owned(),
            format!("https://{controller}"),
            "--ca-file".to_owned(),
            trust.ca_file.display().to_string(),
            "--token-file".to_owned(),
            trust.token_file.display().to_string(),
        ]
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Whether it runs.
    pub fn is_running(&mut self) -> bool {
        self.process.as_mut().is_some_and(Process::is_running)
    }

    /// Its process id, while it runs.
    pub fn id(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }

    /// Asks it to end and waits.
    ///
    /// # Errors
    /// It did not end in time.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        let Some(mut process) = self.process.take() else {
            return Ok(());
        };
        process.terminate();
        if process.ended_by(Instant::now() + STOP) {
            return Ok(());
        }
        bail!(
            "the agent of {} did not end within {STOP:?}; {}",
            self.node,
            process.log_tail()
        )
    }

    /// Writes one record into the agent's pipe, as the kernel would print `text`.
    ///
    /// # Errors
    /// The pipe can't be written.
    pub fn kernel_line(&mut self, text: &str) -> anyhow::Result<()> {
        use std::io::Write as _;
        let sequence = self.ring.len();
        let since_boot = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let micros = since_boot.tv_sec * 1_000_000 + since_boot.tv_nsec / 1_000;
        // Priority 3 of facility 0: an error of the kernel's own.
        let record = format!("3,{sequence},{micros},-;{text}\n");
        self.ring.push(record.clone());
        let path = self.pipe();
        // Opened for reading too, so that it does not wait for an agent that is not there.
        let mut pipe = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .with_context(|| format!("opening {}", path.display()))?;
        pipe.write_all(record.as_bytes())
            .with_context(|| format!("writing {}", path.display()))
    }

    /// Starts a process that died, as after `kill -9` on a machine that lives on: it finds the
    /// kernel's ring as the machine has it, read or not.
    ///
    /// # Errors
    /// As [`Agent::spawn`].
    pub fn revive(&mut self) -> anyhow::Result<()> {
        self.kill();
        if matches!(self.kernel_log, KernelLog::Pipe) {
            self.fill_pipe()?;
        }
        self.spawn()
    }

    /// The next boot begins with an empty kernel ring. For a process that is about to die.
    ///
    /// # Errors
    /// The pipe can't be made anew.
    pub fn empty_ring(&mut self) -> anyhow::Result<()> {
        self.ring.clear();
        self.fill_pipe()
    }

    /// A new pipe with the records of this boot; a process that has the old one open keeps it.
    fn fill_pipe(&mut self) -> anyhow::Result<()> {
        use std::io::Write as _;
        let path = self.pipe();
        if path.exists() {
            fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
        }
        make_pipe(&path)?;
        let mut pipe = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .with_context(|| format!("opening {}", path.display()))?;
        pipe.write_all(self.ring.concat().as_bytes())
            .with_context(|| format!("writing {}", path.display()))?;
        self.holder = Some(pipe);
        Ok(())
    }

    /// The end of its log.
    pub fn log_tail(&self) -> String {
        self.process
            .as_ref()
            .map(Process::log_tail)
            .unwrap_or_default()
    }

    /// The FIFO that stands in for the kernel log; there once it was started with one.
    pub fn pipe(&self) -> PathBuf {
        self.folder.join("kmsg")
    }
}

fn make_pipe(path: &Path) -> anyhow::Result<()> {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0)
        .with_context(|| format!("making the pipe {}", path.display()))
}
