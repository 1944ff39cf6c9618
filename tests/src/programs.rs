//! The programs under test: the controller and the agents, as they are shipped, on loopback.

use std::fmt::Write as _;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use testbed::{Process, Testbed, wait_for};

/// A cold start on a busy machine; usually it is below 1 s.
const READY: Duration = Duration::from_secs(60);
/// The controller's own namespace, which an installation makes.
pub const NAMESPACE: &str = "warden";
/// What a program gets to end by itself.
const STOP: Duration = Duration::from_secs(20);

/// The folder of the built programs: `WARDEN_BIN_DIR`, else beside the running test or program.
///
/// # Errors
/// The programs are not there; the text says how to build them.
pub fn program(name: &str) -> anyhow::Result<PathBuf> {
    let folder = match std::env::var_os("WARDEN_BIN_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => beside_us()?,
    };
    let path = folder.join(name);
    if !path.is_file() {
        bail!(
            "no program {}; build it with cargo build --workspace --bins",
            path.display()
        );
    }
    Ok(path)
}

fn beside_us() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("finding the path of this program")?;
    let folder = own.parent().context("this program has no folder")?;
    // Test binaries lie one folder deeper.
    let deps = folder.file_name().is_some_and(|name| name == "deps");
    Ok(if deps {
        folder.parent().unwrap_or(folder).to_owned()
    } else {
        folder.to_owned()
    })
}

/// A free port on loopback. Another program may take it before ours does; the start then fails
/// with its name.
fn free_address() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").context("looking for a free port")?;
    Ok(listener.local_addr()?)
}

/// How a controller is started.
#[derive(Debug, Clone)]
pub struct ControllerOptions {
    /// `silent`, `observe`, `cordon`.
    pub profile: String,
    /// More TOML, appended as it is.
    pub extra: String,
    /// More lines of the section `[store]`.
    pub store: String,
    /// Plaintext on loopback, without tokens.
    pub insecure: bool,
    /// More flags, for example `--crash-at`.
    pub flags: Vec<String>,
    /// Whose kubeconfig it uses; the administrator's by default.
    pub kubeconfig: Option<PathBuf>,
}

impl Default for ControllerOptions {
    fn default() -> Self {
        Self {
            profile: "cordon".to_owned(),
            extra: String::new(),
            store: String::new(),
            insecure: true,
            flags: Vec::new(),
            kubeconfig: None,
        }
    }
}

/// A running controller. Dropping it kills it; its folder stays.
#[derive(Debug)]
pub struct Controller {
    process: Process,
    folder: PathBuf,
    config: PathBuf,
    kubeconfig: PathBuf,
    flags: Vec<String>,
    insecure: bool,
    api_token: Option<String>,
    /// Where agents call.
    pub ingest: SocketAddr,
    /// Where API, health and metrics answer.
    pub api: SocketAddr,
}

impl Controller {
    /// Starts one in `folder` and waits until it says that it is ready.
    ///
    /// # Errors
    /// It can't be started, ends, or is not ready in time; the text has the end of its log.
    pub async fn start(
        testbed: &Testbed,
        folder: &Path,
        options: &ControllerOptions,
    ) -> anyhow::Result<Self> {
        testbed.ensure_namespace(NAMESPACE).await?;
        let (ingest, api) = (free_address()?, free_address()?);
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        let store = folder.join("store");
        let mut text = format!(
            "profile = {:?}\n[store]\npath = {:?}\n{}\n[ingest]\n",
            options.profile,
            store.display().to_string(),
            options.store
        );
        writeln!(text, "listen = \"{ingest}\"\n[api]\nlisten = \"{api}\"")?;
        text.push_str(&options.extra);
        let config = folder.join("controller.toml");
        fs::write(&config, text).with_context(|| format!("writing {}", config.display()))?;
        let kubeconfig = options
            .kubeconfig
            .clone()
            .unwrap_or_else(|| testbed.kubeconfig());
        let mut controller = Self {
            process: start(
                folder,
                &config,
                &kubeconfig,
                options.insecure,
                &options.flags,
            )?,
            folder: folder.to_owned(),
            config,
            kubeconfig,
            flags: options.flags.clone(),
            insecure: options.insecure,
            api_token: None,
            ingest,
            api,
        };
        controller.wait_ready().await?;
        Ok(controller)
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.process.kill();
        self.process.ended_by(Instant::now() + STOP);
    }

    /// Asks it to end and waits.
    ///
    /// # Errors
    /// It did not end in time.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        self.process.terminate();
        if self.process.ended_by(Instant::now() + STOP) {
            return Ok(());
        }
        bail!(
            "the controller did not end within {STOP:?}; {}",
            self.process.log_tail()
        )
    }

    /// Starts it again with the same configuration, folder and addresses, without extra flags.
    ///
    /// # Errors
    /// As [`Controller::start`].
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        self.flags.clear();
        self.spawn_again()?;
        self.wait_ready().await
    }

    /// Starts it again and does not wait.
    ///
    /// # Errors
    /// The program can't be started.
    pub fn spawn_again(&mut self) -> anyhow::Result<()> {
        self.kill();
        self.process = start(
            &self.folder,
            &self.config,
            &self.kubeconfig,
            self.insecure,
            &self.flags,
        )?;
        Ok(())
    }

    /// Whether it runs.
    pub fn is_running(&mut self) -> bool {
        self.process.is_running()
    }

    /// Waits until the process ended by itself.
    pub fn ended_within(&mut self, time: Duration) -> bool {
        self.process.ended_by(Instant::now() + time)
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// The end of its log.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }

    /// The folder of its store.
    pub fn store(&self) -> PathBuf {
        self.folder.join("store")
    }

    /// Which token to show to the API, where it is not the one of `--insecure-local`.
    pub fn set_api_token(&mut self, token: String) {
        self.api_token = Some(token);
    }

    /// The token that the API takes with `--insecure-local`, or the one that was set.
    ///
    /// # Errors
    /// The file is not there.
    pub fn api_token(&self) -> anyhow::Result<String> {
        if let Some(token) = &self.api_token {
            return Ok(token.clone());
        }
        let path = self.store().join("api-token");
        let text =
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        Ok(text.trim().to_owned())
    }

    /// `GET` of the API, with [`Controller::api_token`].
    ///
    /// # Errors
    /// No answer in time, another status than 200, or no JSON.
    pub async fn json(&self, path: &str) -> anyhow::Result<serde_json::Value> {
        crate::http::get_json(self.api, path, &self.api_token()?).await
    }

    /// `POST` to the API, with [`Controller::api_token`]: the status and the body.
    ///
    /// # Errors
    /// No answer in time.
    pub async fn post(
        &self,
        path: &str,
        body: &serde_json::Value,
    ) -> anyhow::Result<(u16, String)> {
        crate::http::post(self.api, path, &self.api_token()?, body).await
    }

    /// More flags from its next start on; [`Controller::restart`] drops them.
    pub fn set_flags(&mut self, flags: Vec<String>) {
        self.flags = flags;
    }

    /// Waits until `/readyz` answers 200.
    ///
    /// # Errors
    /// It ended, or is not ready in time; the text has the end of its log.
    pub async fn wait_ready(&mut self) -> anyhow::Result<()> {
        let api = self.api;
        let process = &self.process;
        let ready = wait_for("the controller to be ready", READY, || {
            let ended = process.ended();
            async move {
                if let Some(ended) = ended {
                    return Ok(Some(Err(ended)));
                }
                let (status, _) = crate::http::get(api, "/readyz", None).await?;
                Ok((status == 200).then_some(Ok(())))
            }
        })
        .await;
        match ready {
            Ok(outcome) => Ok(outcome?),
            Err(error) => Err(error.context(process.log_tail())),
        }
    }
}

fn start(
    folder: &Path,
    config: &Path,
    kubeconfig: &Path,
    insecure: bool,
    more: &[String],
) -> anyhow::Result<Process> {
    let mut flags = vec![
        "--config".to_owned(),
        config.display().to_string(),
        "--kubeconfig".to_owned(),
        kubeconfig.display().to_string(),
    ];
    if insecure {
        flags.push("--insecure-local".to_owned());
    }
    flags.extend(more.iter().cloned());
    let log = folder.join("controller.log");
    Process::start(&program("warden-controller")?, &flags, folder, &log)
}

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
    sequence: u64,
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
            sequence: 0,
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
        self.sequence += 1;
        let since_boot = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let micros = since_boot.tv_sec * 1_000_000 + since_boot.tv_nsec / 1_000;
        // Priority 3 of facility 0: an error of the kernel's own.
        let record = format!("3,{},{micros},-;{text}\n", self.sequence);
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
