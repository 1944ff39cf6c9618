//! A real Kubernetes control plane (etcd, kube-apiserver, kube-controller-manager, kube-scheduler)
//! on 127.0.0.1 for tests, benchmarks and the demo, with kwok playing the GPU nodes.
//!
//! ```no_run
//! # use std::time::Duration;
//! # async fn example() -> anyhow::Result<()> {
//! use testbed::{Options, Testbed};
//!
//! let testbed = Testbed::start(Options { nodes: 3, ..Options::default() }).await?;
//! testbed.set_not_ready("gpu-00001", "KubeletStopped").await?;
//! # Ok(())
//! # }
//! ```
//!
//! A start takes 4 s and 700 MiB, so the tests of one program share a testbed:
//!
//! ```no_run
//! use testbed::{Options, Testbed};
//! use tokio::sync::OnceCell;
//!
//! async fn shared() -> &'static Testbed {
//!     static SHARED: OnceCell<Testbed> = OnceCell::const_new();
//!     SHARED
//!         .get_or_try_init(|| Testbed::start(Options::default()))
//!         .await
//!         .expect("the testbed starts")
//! }
//! ```
//!
//! Guarantees:
//! - Dropped or not: when the [`Testbed`] or its process is gone, by whatever way, so are the
//!   processes and the folder (unless kept). Proven in `tests/main.rs`.
//! - Any number run side by side, in one process or in many.
//! - Nothing waits without a deadline, and the client repeats no request by itself.
//!
//! Caveats: a client belongs to the tokio runtime that it was made on, so each test asks for its
//! own ([`Testbed::admin`]). Containers don't run; kwok says that they do.

mod audit;
mod binaries;
mod certificates;
mod client;
mod component;
mod crds;
mod folder;
mod nodes;
mod ports;
mod process;
mod processes;
mod provider;
mod tokens;
mod wait;
mod workloads;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use kube::{Client, Config};
use serde_json::Value;

pub use crate::audit::AuditEvent;
pub use crate::binaries::BINARIES_VARIABLE;
pub use crate::certificates::KeyedCertificate;
pub use crate::component::{AUDIENCE, Component};
pub use crate::nodes::{NodeSpec, boot_id, is_ready, ready_condition};
pub use crate::process::{Ended, Process, unasked_end};
pub use crate::provider::{Behaviour, Outcome, ProviderCall, ProviderOptions, Rpc, SimProvider};
pub use crate::tokens::{NODE_NAME_EXTRA, node_of};
pub use crate::wait::wait_for;
pub use crate::workloads::is_running;

use crate::certificates::Authority;
use crate::client::Credential;
use crate::component::{AUDIT_LOG, AUDIT_POLICY, STAGES, Settings, kubeconfig_name};
use crate::folder::Folder;
use crate::ports::Ports;
use crate::processes::{PortTaken, Processes};

/// Objects created at a time; more gain nothing on two cores.
pub(crate) const PARALLEL_WRITES: usize = 16;

/// Up to this many nodes the short grace period holds.
const SMALL_FLEET: usize = 200;
/// The default of Kubernetes (40 s), and room for kwok's renewal at a quarter of the lease.
const SMALL_FLEET_GRACE: Duration = Duration::from_secs(50);
/// Long, so that a large fleet's leases are few writes.
const LARGE_FLEET_GRACE: Duration = Duration::from_secs(400);

/// Starts after which a port that somebody else takes every time is an error.
const START_ATTEMPTS: usize = 3;

/// How long numbered nodes may take to be ready: measured 10 ms a node, here ten times that.
const READY_BASE: Duration = Duration::from_mins(1);
const READY_PER_NODE: Duration = Duration::from_millis(100);

/// What to start.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Number of GPU nodes (`gpu-00000`, …) that are ready when the start returns; 0 by default.
    pub nodes: usize,
    /// Whether etcd waits for the disk, as in production; off by default. Only a loss of power
    /// shows the difference, and latencies do.
    pub fsync: bool,
    /// Whether the API server keeps an audit log for [`Testbed::audit_events`]; off by default.
    pub audit_log: bool,
    /// The folder with the programs; by default [`BINARIES_VARIABLE`], then the cache folder that
    /// `scripts/control-plane.sh` fills.
    pub binaries: Option<PathBuf>,
    /// The folder for data, logs and kubeconfigs, empty or not there yet; by default one among the
    /// temporary files. Removed at the end unless kept.
    pub folder: Option<PathBuf>,
    /// After how long without a heartbeat a node's `Ready` becomes `Unknown`, in whole seconds; by
    /// default 50 s up to 200 `nodes` and 400 s above.
    pub node_grace: Option<Duration>,
}

impl Options {
    fn node_grace_or_default(&self) -> Duration {
        self.node_grace.unwrap_or(if self.nodes <= SMALL_FLEET {
            SMALL_FLEET_GRACE
        } else {
            LARGE_FLEET_GRACE
        })
    }
}

/// A running control plane. Dropping it stops everything and removes its folder.
pub struct Testbed {
    options: Options,
    programs: PathBuf,
    authority: Authority,
    admin: Config,
    ports: Ports,
    // Dropped in this order: no process writes into the folder when it is removed.
    processes: Processes,
    folder: Folder,
}

impl fmt::Debug for Testbed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Testbed")
            .field("options", &self.options)
            .field("folder", &self.folder.path())
            .field("api_url", &self.api_url())
            .finish_non_exhaustive()
    }
}

impl Testbed {
    /// Starts the control plane and its nodes; takes 4 s without nodes and a second more for each
    /// hundred (2 cores).
    ///
    /// # Errors
    /// The programs are not built (the text says how to), one of them ended or did not become
    /// healthy (the text has the end of its log), or the nodes did not become ready.
    pub async fn start(options: Options) -> anyhow::Result<Self> {
        let programs = binaries::locate(options.binaries.as_deref())?;
        let mut attempt = 1;
        loop {
            // Boxed: the future holds several requests and takes 20 KB.
            let started = Box::pin(Self::start_once(options.clone(), programs.clone())).await;
            match started {
                Err(error) if error.is::<PortTaken>() && attempt < START_ATTEMPTS => attempt += 1,
                started => return started,
            }
        }
    }

    async fn start_once(options: Options, programs: PathBuf) -> anyhow::Result<Self> {
        let folder = Folder::create(options.folder.as_deref())?;
        let ports = Ports::take()?;
        let authority = certificates::write(&folder.path().join("pki"))?;
        let url = format!("https://127.0.0.1:{}", ports.api_server());
        let admin = authority.client("admin", &["system:masters"])?;
        let ca_pem = authority.pem();
        let kubeconfig = client::kubeconfig(&url, &ca_pem, &Credential::Certificate(&admin));
        let testbed = Self {
            admin: client::config(kubeconfig.clone()).await?,
            options,
            programs,
            authority,
            ports,
            processes: Processes::default(),
            folder,
        };
        testbed.write("admin.kubeconfig", kubeconfig.to_string())?;
        testbed.write(STAGES, include_str!("stages.yaml"))?;
        testbed.write(AUDIT_POLICY, include_str!("audit-policy.yaml"))?;
        for component in Component::ALL {
            if let Some((user, groups)) = component.user() {
                let certificate = testbed.authority.client(user, groups)?;
                testbed.write_kubeconfig(
                    component.program(),
                    &Credential::Certificate(&certificate),
                )?;
            }
        }
        testbed.start_all().await?;
        let nodes = NodeSpec::numbered(0..testbed.options.nodes);
        let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        testbed.add_nodes(&nodes).await?;
        let per_node = READY_PER_NODE.saturating_mul(u32::try_from(nodes.len())?);
        testbed
            .wait_nodes_ready(&names, READY_BASE + per_node)
            .await?;
        Ok(testbed)
    }

    /// Starts in an order in which each finds what it needs; the last three need only the API
    /// server.
    async fn start_all(&self) -> anyhow::Result<()> {
        self.start_component(Component::Etcd).await?;
        self.start_component(Component::ApiServer).await?;
        futures::try_join!(
            self.start_component(Component::ControllerManager),
            self.start_component(Component::Scheduler),
            self.start_component(Component::Kwok),
        )?;
        Ok(())
    }

    /// Starts a component that was stopped and waits until it is healthy; nothing happens if it
    /// runs.
    ///
    /// # Errors
    /// It ended or was not healthy after 90 s; the text has the end of its log.
    pub async fn start_component(&self, component: Component) -> anyhow::Result<()> {
        let folder = self.folder.path();
        let flags = Settings {
            folder,
            ports: &self.ports,
            fsync: self.options.fsync,
            audit_log: self.options.audit_log,
            node_grace: self.options.node_grace_or_default(),
        }
        .flags(component);
        let program = self.programs.join(component.program());
        self.processes.start(component, &program, &flags, folder)?;
        let (base, path) = component.health(&self.ports);
        self.processes
            .wait_healthy(component, || {
                Box::pin(client::check_health(&self.admin, &base, path))
            })
            .await
    }

    /// Ends a component with SIGTERM, and with SIGKILL if it still runs 10 s later; nothing happens
    /// if it does not run.
    pub async fn stop(&self, component: Component) {
        self.processes.stop(component).await;
    }

    /// Ends a component with SIGKILL.
    pub fn kill(&self, component: Component) {
        self.processes.kill(component);
    }

    /// [`Testbed::stop`], then [`Testbed::start_component`].
    ///
    /// # Errors
    /// Those of the start.
    pub async fn restart(&self, component: Component) -> anyhow::Result<()> {
        self.stop(component).await;
        self.start_component(component).await
    }

    /// The process number of a component, if it was started and not stopped.
    pub fn process_id(&self, component: Component) -> Option<u32> {
        self.processes.id(component)
    }

    /// A client of the administrator, for the runtime that asks.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn admin(&self) -> Client {
        client::client(&self.admin).expect("the same settings made a client at the start")
    }

    /// A client that shows a bearer token, for the runtime that asks.
    ///
    /// # Errors
    /// The text is no token (it holds characters that no header can).
    pub async fn client_for_token(&self, token: &str) -> anyhow::Result<Client> {
        let kubeconfig =
            client::kubeconfig(&self.api_url(), &self.ca_pem(), &Credential::Token(token));
        client::client(&client::config(kubeconfig).await?)
    }

    /// The administrator's kubeconfig file.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("admin.kubeconfig")
    }

    /// Writes the kubeconfig file `<name>.kubeconfig` that shows a bearer token.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn kubeconfig_for_token(&self, name: &str, token: &str) -> anyhow::Result<PathBuf> {
        self.write_kubeconfig(name, &Credential::Token(token))
    }

    /// Writes the kubeconfig file `<user>.kubeconfig` with a new client certificate of `user` in
    /// `groups`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn kubeconfig_for_user(&self, user: &str, groups: &[&str]) -> anyhow::Result<PathBuf> {
        let certificate = self.authority.client(user, groups)?;
        self.write_kubeconfig(user, &Credential::Certificate(&certificate))
    }

    /// Two ports on 127.0.0.1 that nothing else takes while the testbed runs, for programs that are
    /// tried against it.
    pub fn spare_ports(&self) -> [u16; 2] {
        self.ports.spare()
    }

    /// Where the API server listens: `https://127.0.0.1:<port>`.
    pub fn api_url(&self) -> String {
        format!("https://127.0.0.1:{}", self.ports.api_server())
    }

    /// The certificate of the authority that signed the API server's and all clients', PEM.
    pub fn ca_pem(&self) -> String {
        self.authority.pem()
    }

    /// A certificate for a test's own server (a webhook) reached under `names`, DNS names or IP
    /// addresses, signed by the authority of [`Testbed::ca_pem`].
    ///
    /// # Errors
    /// One of the names is no DNS name.
    pub fn serving_certificate(&self, names: &[&str]) -> anyhow::Result<KeyedCertificate> {
        self.authority.server(names)
    }

    /// Everything in the audit log so far, in the order of the answers. A request may be logged a
    /// moment after its answer: wait for it with [`wait_for`].
    ///
    /// # Errors
    /// The testbed was started without [`Options::audit_log`], or the log cannot be read.
    pub fn audit_events(&self) -> anyhow::Result<Vec<AuditEvent>> {
        audit::read(&self.folder.path().join(AUDIT_LOG))
    }

    /// The folder with kubeconfigs, data (`etcd`) and logs (`log/<program>.log`).
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Leaves the folder where it is when the testbed ends.
    ///
    /// # Errors
    /// The process that would remove it does not listen.
    pub fn keep(&mut self) -> anyhow::Result<()> {
        self.folder.keep()
    }

    fn write_kubeconfig(&self, name: &str, credential: &Credential<'_>) -> anyhow::Result<PathBuf> {
        let kubeconfig: Value = client::kubeconfig(&self.api_url(), &self.ca_pem(), credential);
        self.write(&kubeconfig_name(name), kubeconfig.to_string())
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> anyhow::Result<PathBuf> {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }
}
