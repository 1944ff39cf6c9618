//! A stand-in for a cloud provider that reboots machines: a real server of NVSentinel's
//! `CSPProviderService`, over simulated nodes. It says so at its start, and can't do anything else.
//!
//! ```no_run
//! # async fn example(testbed: &testbed::Testbed) -> anyhow::Result<()> {
//! use testbed::{Behaviour, Outcome, ProviderOptions, SimProvider};
//!
//! let provider = SimProvider::start(ProviderOptions::new(testbed.admin())).await?;
//! provider.behave(Behaviour { outcome: Outcome::LosesAnswer, ..Behaviour::default() });
//! // ... a client calls provider.address() ...
//! assert_eq!(provider.signals("gpu-00001"), 1);
//! # Ok(())
//! # }
//! ```
//!
//! A reboot here: the node becomes NotReady, shows another boot id after a while, and is Ready again.
//! kwok plays that by the testbed's levers.

use std::collections::HashMap;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::metadata::MetadataMap;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Code, Request, Response, Status};
use wire::provider::csp_provider_service_server::{CspProviderService, CspProviderServiceServer};
use wire::provider::{
    IsNodeReadyRequest, IsNodeReadyResponse, SendRebootSignalRequest, SendRebootSignalResponse,
    SendTerminateSignalRequest, SendTerminateSignalResponse,
};

use crate::nodes::{BOOT_ID, NOT_READY, boot_id, ready_condition, uuid_of};
use crate::{KeyedCertificate, wait_for};

/// How long kwok may take for one step of a reboot.
const STEP: Duration = Duration::from_secs(30);

/// What a provider is started with.
#[derive(Clone)]
pub struct ProviderOptions {
    /// Where it listens; by default a free port of loopback.
    pub listen: SocketAddr,
    /// With TLS; without by default.
    pub tls: Option<KeyedCertificate>,
    /// Bearer tokens that are let in; none: everybody is.
    pub tokens: Vec<String>,
    /// The way to the API server of the simulated nodes.
    pub client: Client,
    /// What it does at first.
    pub behaviour: Behaviour,
}

impl ProviderOptions {
    /// Plaintext on a free port of loopback, for everybody.
    pub fn new(client: Client) -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            tls: None,
            tokens: Vec::new(),
            client,
            behaviour: Behaviour::default(),
        }
    }
}

/// What the provider does with a signal to reboot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behaviour {
    /// From the call to the answer.
    pub delay: Duration,
    /// How long a node is down.
    pub down_for: Duration,
    /// What it does.
    pub outcome: Outcome,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            down_for: Duration::from_millis(200),
            outcome: Outcome::Obeys,
        }
    }
}

/// What becomes of a signal to reboot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The node reboots, and the answer says that it will.
    Obeys,
    /// The node reboots, and the answer is INTERNAL, as the published provider's to any failure.
    LosesAnswer,
    /// The node reboots, and the connection is cut before the answer.
    CutsConnection,
    /// Nothing happens, and the answer is INTERNAL.
    Fails,
    /// Nothing happens, and the answer is UNAVAILABLE.
    IsUnavailable,
    /// Nothing happens; the answer says that it will, and later that it did.
    Lies,
    /// Nothing happens, and the answer is this code.
    Refuses(Code),
}

/// A call of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rpc {
    /// `SendRebootSignal`.
    Reboot,
    /// `IsNodeReady`.
    IsReady,
    /// `SendTerminateSignal`.
    Terminate,
}

/// One call that came, whatever was answered.
#[derive(Clone, Debug)]
pub struct ProviderCall {
    /// When.
    pub at: Timestamp,
    /// Which.
    pub rpc: Rpc,
    /// Node that it named.
    pub node: String,
    /// Id of the request that it asked about.
    pub request: String,
    /// Whether its token was let in.
    pub admitted: bool,
}

/// A running provider; dropped, it is out of reach.
pub struct SimProvider {
    address: SocketAddr,
    shared: Arc<Shared>,
    server: JoinHandle<()>,
}

/// How far a reboot is.
#[derive(Clone)]
enum Progress {
    /// The machine is down.
    Rebooting,
    /// It is back.
    Done,
    /// It does not come back, and why.
    Stuck(String),
}

struct Shared {
    client: Client,
    behaviour: Mutex<Behaviour>,
    tokens: Mutex<Vec<String>>,
    calls: Mutex<Vec<ProviderCall>>,
    /// Nodes that were rebooted, each as often as it was.
    reboots: Mutex<Vec<String>>,
    down: Mutex<Down>,
    /// How far each request is, by its id.
    requests: Mutex<HashMap<String, Progress>>,
    /// The sockets, so that they can be cut.
    sockets: Mutex<Vec<TcpStream>>,
}

/// Nodes on their way through a reboot.
#[derive(Default)]
struct Down {
    now: usize,
    most: usize,
}

impl SimProvider {
    /// Starts it.
    ///
    /// # Errors
    /// The port is taken, or the certificate can't be used.
    pub async fn start(options: ProviderOptions) -> anyhow::Result<Self> {
        let listen = options.listen;
        let listener = TcpListener::bind(listen)
            .await
            .with_context(|| format!("listening on {listen} as a simulated provider"))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            client: options.client,
            behaviour: Mutex::new(options.behaviour),
            tokens: Mutex::new(options.tokens),
            calls: Mutex::default(),
            reboots: Mutex::default(),
            down: Mutex::default(),
            requests: Mutex::default(),
            sockets: Mutex::default(),
        });
        let mut server = Server::builder();
        if let Some(tls) = &options.tls {
            let identity = Identity::from_pem(&tls.certificate_pem, &tls.key_pem);
            let config = ServerTlsConfig::new().identity(identity);
            server = server
                .tls_config(config)
                .context("the certificate of the simulated provider")?;
        }
        let service = CspProviderServiceServer::new(Service(Arc::clone(&shared)));
        let kept = Arc::clone(&shared);
        let incoming = TcpListenerStream::new(listener).map(move |socket| {
            let socket = socket?.into_std()?;
            let mut sockets = locked(&kept.sockets);
            // A client connects for each call.
            sockets.retain(|socket| !matches!(socket.peek(&mut [0]), Ok(0)));
            sockets.push(socket.try_clone()?);
            tokio::net::TcpStream::from_std(socket)
        });
        let serving = server.add_service(service).serve_with_incoming(incoming);
        let server = tokio::spawn(async move {
            // It ends with its task; until then its clients see what fails.
            drop(serving.await);
        });
        Ok(Self {
            address,
            shared,
            server,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it does from now on.
    pub fn behave(&self, behaviour: Behaviour) {
        *locked(&self.shared.behaviour) = behaviour;
    }

    /// Whom it lets in from now on; none: everybody.
    pub fn let_in(&self, tokens: &[&str]) {
        *locked(&self.shared.tokens) = tokens.iter().map(ToString::to_string).collect();
    }

    /// Every call so far, in order.
    pub fn calls(&self) -> Vec<ProviderCall> {
        locked(&self.shared.calls).clone()
    }

    /// Signals to reboot a node that came and were let in, whatever was done with them.
    pub fn signals(&self, node: &str) -> usize {
        let calls = locked(&self.shared.calls);
        let signals = calls.iter().filter(|call| call.rpc == Rpc::Reboot);
        signals
            .filter(|call| call.admitted && call.node == node)
            .count()
    }
}

impl SimProvider {
    /// How many nodes were on their way through a reboot at the same time, at most so far: each from its
    /// signal until just before it is up again.
    pub fn most_at_once(&self) -> usize {
        locked(&self.shared.down).most
    }

    /// How often a node was rebooted: not each signal is obeyed.
    pub fn reboots(&self, node: &str) -> usize {
        let reboots = locked(&self.shared.reboots);
        reboots.iter().filter(|rebooted| *rebooted == node).count()
    }
}

impl Drop for SimProvider {
    fn drop(&mut self) {
        self.server.abort();
        self.shared.cut();
    }
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Cuts every connection.
    fn cut(&self) {
        for socket in locked(&self.sockets).drain(..) {
            // One that its client closed is as cut as it can be.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    fn admit(
        &self,
        metadata: &MetadataMap,
        rpc: Rpc,
        node: &str,
        request: &str,
    ) -> Result<(), Status> {
        let shown = metadata.get(wire::AUTHORIZATION);
        let shown = shown.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        let tokens = locked(&self.tokens);
        let admitted = tokens.is_empty() || shown.is_some_and(|t| tokens.iter().any(|k| k == t));
        locked(&self.calls).push(ProviderCall {
            at: Timestamp::now(),
            rpc,
            node: node.to_owned(),
            request: request.to_owned(),
            admitted,
        });
        if admitted {
            return Ok(());
        }
        Err(Status::unauthenticated(
            "the token is not one of those let in",
        ))
    }

    /// The published provider looks the node up first, and answers whatever fails with INTERNAL.
    async fn look_up(&self, node: &str) -> Result<(), Status> {
        let found = Api::<Node>::all(self.client.clone()).get_opt(node).await;
        match found {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(Status::internal(format!("node {node} not found"))),
            Err(error) => Err(Status::internal(format!("reading node {node}: {error}"))),
        }
    }

    /// Begins a reboot; its request is done once the node is back.
    fn begin(self: &Arc<Self>, node: &str, request: &str, down_for: Duration) {
        locked(&self.requests).insert(request.to_owned(), Progress::Rebooting);
        locked(&self.reboots).push(node.to_owned());
        {
            let mut down = locked(&self.down);
            down.now += 1;
            down.most = down.most.max(down.now);
        }
        let (shared, node) = (Arc::clone(self), node.to_owned());
        let request = request.to_owned();
        tokio::spawn(async move {
            let boot = uuid_of(&format!("{node}/{request}"));
            let mut went = shared.goes_down(&node, &boot, down_for).await;
            // Counted no more before anybody can see that it is up.
            locked(&shared.down).now -= 1;
            if went.is_ok() {
                went = shared.comes_up(&node).await;
            }
            let end = match went {
                Ok(()) => Progress::Done,
                Err(error) => Progress::Stuck(format!("{error:#}")),
            };
            locked(&shared.requests).insert(request, end);
        });
    }

    /// Down, and with another boot id.
    async fn goes_down(&self, node: &str, boot: &str, down_for: Duration) -> anyhow::Result<()> {
        self.lever(node, NOT_READY, json!("Rebooting")).await?;
        self.until(node, |node| {
            ready_condition(node).is_some_and(|(s, _)| s == "False")
        })
        .await?;
        tokio::time::sleep(down_for).await;
        self.lever(node, BOOT_ID, json!(boot)).await?;
        self.until(node, |node| boot_id(node) == Some(boot)).await
    }

    async fn comes_up(&self, node: &str) -> anyhow::Result<()> {
        self.lever(node, NOT_READY, Value::Null).await?;
        self.until(node, |node| {
            ready_condition(node).is_some_and(|(s, _)| s == "True")
        })
        .await
    }

    /// A machine reboots whether or not an API server answers meanwhile.
    async fn lever(&self, node: &str, key: &str, value: Value) -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({ "metadata": { "annotations": { key: value } } }));
        let api = Api::<Node>::all(self.client.clone());
        wait_for(format!("a lever of node {node}"), STEP, || async {
            api.patch_metadata(node, &PatchParams::default(), &patch)
                .await?;
            Ok(Some(()))
        })
        .await
    }

    async fn until(&self, node: &str, is: impl Fn(&Node) -> bool) -> anyhow::Result<()> {
        let api = Api::<Node>::all(self.client.clone());
        wait_for(format!("node {node} to go on rebooting"), STEP, || async {
            Ok(is(&api.get(node).await?).then_some(()))
        })
        .await
    }
}

struct Service(Arc<Shared>);

#[tonic::async_trait]
impl CspProviderService for Service {
    async fn send_reboot_signal(
        &self,
        request: Request<SendRebootSignalRequest>,
    ) -> Result<Response<SendRebootSignalResponse>, Status> {
        let node = request.get_ref().node_name.clone();
        self.0.admit(request.metadata(), Rpc::Reboot, &node, "")?;
        let Behaviour {
            delay,
            down_for,
            outcome,
        } = locked(&self.0.behaviour).clone();
        // What it does it does also where nobody waits for the answer any more.
        let shared = Arc::clone(&self.0);
        let done = tokio::spawn(async move { shared.signal(&node, down_for, outcome).await });
        let request_id = done
            .await
            .unwrap_or_else(|error| Err(Status::internal(error.to_string())));
        tokio::time::sleep(delay).await;
        if outcome == Outcome::CutsConnection {
            self.0.cut();
        }
        Ok(Response::new(SendRebootSignalResponse {
            request_id: request_id?,
        }))
    }

    async fn is_node_ready(
        &self,
        request: Request<IsNodeReadyRequest>,
    ) -> Result<Response<IsNodeReadyResponse>, Status> {
        let IsNodeReadyRequest {
            node_name,
            request_id,
        } = request.get_ref();
        self.0
            .admit(request.metadata(), Rpc::IsReady, node_name, request_id)?;
        self.0.look_up(node_name).await?;
        let progress = locked(&self.0.requests).get(request_id).cloned();
        let is_ready = match progress {
            Some(Progress::Rebooting) => false,
            Some(Progress::Done) => true,
            Some(Progress::Stuck(why)) => {
                let why = format!("node {node_name} does not come back: {why}");
                return Err(Status::internal(why));
            }
            None => {
                let why = format!("request {request_id} is not known");
                return Err(Status::internal(why));
            }
        };
        Ok(Response::new(IsNodeReadyResponse { is_ready }))
    }

    async fn send_terminate_signal(
        &self,
        request: Request<SendTerminateSignalRequest>,
    ) -> Result<Response<SendTerminateSignalResponse>, Status> {
        let node = &request.get_ref().node_name;
        self.0.admit(request.metadata(), Rpc::Terminate, node, "")?;
        // As most of the published ones.
        Err(Status::internal("terminate is not implemented"))
    }
}

impl Shared {
    /// Does what it is to do; answers the request's id.
    async fn signal(
        self: &Arc<Self>,
        node: &str,
        down_for: Duration,
        outcome: Outcome,
    ) -> Result<String, Status> {
        self.look_up(node).await?;
        let request = format!("sim-{}", Timestamp::now().as_nanosecond());
        match outcome {
            Outcome::Obeys | Outcome::CutsConnection => self.begin(node, &request, down_for),
            Outcome::LosesAnswer => {
                self.begin(node, &request, down_for);
                return Err(Status::internal("simulated: the answer is lost"));
            }
            Outcome::Fails => return Err(Status::internal("simulated: nothing was done")),
            Outcome::IsUnavailable => return Err(Status::unavailable("simulated: come back")),
            Outcome::Lies => {
                locked(&self.requests).insert(request.clone(), Progress::Done);
            }
            Outcome::Refuses(code) => return Err(Status::new(code, "simulated: refused")),
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connections_that_are_over_keep_no_file() {
        let nowhere = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let client = Client::try_from(nowhere).unwrap();
        let provider = SimProvider::start(ProviderOptions::new(client))
            .await
            .unwrap();
        wait_for("few sockets after many calls", STEP, || async {
            for _ in 0..20 {
                drop(tokio::net::TcpStream::connect(provider.address()).await?);
            }
            Ok((locked(&provider.shared.sockets).len() < 20).then_some(()))
        })
        .await
        .unwrap();
    }
}
