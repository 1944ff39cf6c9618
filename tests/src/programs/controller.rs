//! The controller.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use testbed::{Process, Testbed, wait_for};

use super::{NAMESPACE, STOP, free_address, program};

/// A cold start on a busy machine; usually it is below 1 s.
const READY: Duration = Duration::from_secs(60);

/// How a controller is started.
#[derive(Debug, Clone)]
pub struct ControllerOptions {
    /// `silent`, `observe`, `cordon`.
    pub profile: String,
    /// More TOML, appended as it is.
    pub extra: String,
    /// More lines of the section `[store]`.
    pub store: String,
    /// More lines of the section `[ingest]`.
    pub ingest: String,
    /// More lines of the section `[api]`.
    pub api: String,
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
            ingest: String::new(),
            api: String::new(),
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
    store: PathBuf,
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
            "profile = {:?}\n[store]\npath = {:?}\n{}\n",
            options.profile,
            store.display().to_string(),
            options.store
        );
        writeln!(text, "[ingest]\nlisten = \"{ingest}\"\n{}", options.ingest)?;
        writeln!(text, "[api]\nlisten = \"{api}\"\n{}", options.api)?;
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
            store,
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

    /// Starts a second one with the same store, flags and port for agents, as the next pod of its
    /// Deployment would have them; its own folder has its log. It does not wait for it: as long as
    /// this one leads, that one is not ready.
    ///
    /// # Errors
    /// It can't be started.
    pub fn standby(&self, folder: &Path) -> anyhow::Result<Self> {
        let api = free_address()?;
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        let text = fs::read_to_string(&self.config)
            .with_context(|| format!("reading {}", self.config.display()))?;
        let text = text.replace(&self.api.to_string(), &api.to_string());
        let config = folder.join("controller.toml");
        fs::write(&config, text).with_context(|| format!("writing {}", config.display()))?;
        let (flags, insecure) = (self.flags.clone(), self.insecure);
        Ok(Self {
            process: start(folder, &config, &self.kubeconfig, insecure, &flags)?,
            folder: folder.to_owned(),
            store: self.store.clone(),
            config,
            kubeconfig: self.kubeconfig.clone(),
            flags,
            insecure,
            api_token: self.api_token.clone(),
            ingest: self.ingest,
            api,
        })
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

    /// All that it logged since it was first started here.
    ///
    /// # Errors
    /// The file can't be read.
    pub fn log(&self) -> anyhow::Result<String> {
        let path = self.folder.join("controller.log");
        fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
    }

    /// The folder of its store.
    pub fn store(&self) -> PathBuf {
        self.store.clone()
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
