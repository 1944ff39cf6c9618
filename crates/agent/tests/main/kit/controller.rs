//! A gRPC server that takes events and reports as the controller does.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use health_event::{HealthEvent, Order, keys};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Identity, ServerTlsConfig};
use tonic::{Request, Response, Status};
use wire::datamodels::HealthEvents;
use wire::datamodels::platform_connector_server::{PlatformConnector, PlatformConnectorServer};
use wire::warden::v1::agent_server::{Agent as AgentService, AgentServer};
use wire::warden::v1::{DetectorState, ReportReply, ReportRequest};

use super::until;

/// A CA and a leaf of it.
pub(crate) struct Tls {
    pub(crate) ca_pem: String,
    identity: Identity,
}

impl Tls {
    /// For one name.
    pub(crate) fn new(name: &str) -> Self {
        let ca_key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca = params.self_signed(&ca_key).unwrap();
        let issuer = rcgen::Issuer::from_params(&params, &ca_key);
        let key = rcgen::KeyPair::generate().unwrap();
        let leaf = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        let leaf = leaf.signed_by(&key, &issuer).unwrap();
        Self {
            ca_pem: ca.pem(),
            identity: Identity::from_pem(leaf.pem(), key.serialize_pem()),
        }
    }
}

/// All that came in, over all connections and restarts of the server.
#[derive(Default)]
pub(crate) struct Received {
    pub(crate) events: Vec<HealthEvent>,
    pub(crate) reports: Vec<ReportRequest>,
    /// Answer to the next batches; taken from the front for each.
    pub(crate) answers: Vec<Result<(), Status>>,
    /// Refuse every batch that holds an event with this code.
    pub(crate) bad_code: Option<String>,
    /// Answer to the next reports; the last one stays.
    pub(crate) replies: Vec<ReportReply>,
    /// Tokens seen with batches.
    pub(crate) tokens: Vec<Option<String>>,
    /// Refuse tokens other than this.
    pub(crate) token: Option<String>,
    pub(crate) calls: usize,
    /// Events that came again under their id.
    pub(crate) resent: usize,
}

impl Received {
    /// As the store: the same id with the same content is one event.
    fn take(&mut self, event: HealthEvent) {
        match self.events.iter().find(|known| known.id == event.id) {
            Some(known) => {
                let order = |event: &HealthEvent| event.metadata.get(keys::ORDER).cloned();
                let found = [keys::KERNEL_RECORD_ID, keys::REBOOT_RECOVERY_ID];
                let is_found = found.iter().any(|prefix| event.id.starts_with(prefix));
                if is_found && order(known) != order(&event) {
                    // Its finder died before it had noted it, and the next one found it again.
                    let said = |event: &HealthEvent| wire::received_bytes(event.clone().into());
                    assert_eq!(said(known), said(&event), "{known:?} and {event:?}");
                } else {
                    assert_eq!(*known, event, "sent again, and unchanged");
                }
                self.resent += 1;
            }
            None => self.events.push(event),
        }
    }

    /// Order numbers of the events.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.events
            .iter()
            .map(|e| e.metadata[keys::ORDER].parse::<Order>().unwrap().number)
            .collect()
    }

    /// The detector's state in the last report.
    pub(crate) fn state(&self, detector: &str) -> Option<DetectorState> {
        self.state_of(self.reports.last()?, detector)
    }

    /// Events of a check.
    pub(crate) fn of_check(&self, check: &str) -> Vec<&HealthEvent> {
        self.events
            .iter()
            .filter(|e| e.check_name == check)
            .collect()
    }

    /// Events of a PCI domain.
    pub(crate) fn of_domain(&self, domain: &str) -> Vec<&HealthEvent> {
        let of_domain = |e: &&HealthEvent| e.entities.iter().any(|x| x.value.starts_with(domain));
        self.events.iter().filter(of_domain).collect()
    }

    /// What the gap records of a source count.
    pub(crate) fn lost(&self, source: &str) -> u64 {
        let gaps = self.of_check("EventsLost");
        // One that was sent again, because its answer was late, is the same record.
        let distinct: BTreeMap<&str, u64> = gaps
            .iter()
            .filter(|e| e.error_codes == [source])
            .map(|e| (e.id.as_str(), e.metadata["count"].parse().unwrap()))
            .collect();
        distinct.values().sum()
    }

    /// The detector's state in a report.
    #[expect(clippy::unused_self, reason = "reads like its sibling")]
    pub(crate) fn state_of(&self, report: &ReportRequest, detector: &str) -> Option<DetectorState> {
        let found = report.detectors.iter().find(|d| d.name == detector)?;
        DetectorState::try_from(found.state).ok()
    }

    /// The first word of each event's message after `test`, for XIDs of the kit.
    pub(crate) fn sequences(&self) -> Vec<u64> {
        self.events
            .iter()
            .filter_map(|e| e.message.rsplit_once("test ")?.1.parse().ok())
            .collect()
    }
}

/// The server; stopped on drop, what it received stays.
pub(crate) struct Controller {
    received: Arc<Mutex<Received>>,
    address: SocketAddr,
    tls: Option<ServerTlsConfig>,
    running: Option<(
        tokio::sync::oneshot::Sender<()>,
        std::thread::JoinHandle<()>,
    )>,
}

impl Controller {
    /// Starts on a free port.
    pub(crate) fn start() -> Self {
        let mut controller = Self::absent();
        controller.up();
        controller
    }

    /// The same with TLS.
    pub(crate) fn start_tls(tls: &Tls) -> Self {
        let mut controller = Self::absent();
        controller.tls = Some(ServerTlsConfig::new().identity(tls.identity.clone()));
        controller.up();
        controller
    }

    /// A port on which nothing listens yet.
    pub(crate) fn absent() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        Self {
            received: Arc::default(),
            address: listener.local_addr().unwrap(),
            tls: None,
            running: None,
        }
    }

    /// Listens.
    pub(crate) fn up(&mut self) {
        let listener = std::net::TcpListener::bind(self.address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let service = Service(Arc::clone(&self.received));
        let mut builder = tonic::transport::Server::builder();
        if let Some(tls) = &self.tls {
            builder = builder.tls_config(tls.clone()).unwrap();
        }
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        // A runtime of its own: when it goes, all connections go with it, as with a process.
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                let server = builder
                    .add_service(PlatformConnectorServer::new(service.clone()))
                    .add_service(AgentServer::new(service))
                    .serve_with_incoming(TcpListenerStream::new(listener));
                tokio::select! {
                    result = server => result.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        self.running = Some((stop, thread));
    }

    /// Ends all connections and stops listening.
    pub(crate) fn down(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            drop(stop);
            thread.join().unwrap();
        }
    }

    /// Its URL.
    pub(crate) fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Waits for so many events.
    pub(crate) async fn events(&self, count: usize) {
        until("events", || {
            self.see(|r| (r.events.len() >= count).then_some(()))
        })
        .await;
    }

    /// Waits until the kernel log's detector says that it is settled.
    pub(crate) async fn settled(&self) {
        until("settled", || {
            let settled = Some(DetectorState::DetectorSettled);
            self.see(|r| (r.state("kernel-log") == settled).then_some(()))
        })
        .await;
    }

    /// Looks at what came in.
    pub(crate) fn see<T>(&self, look: impl FnOnce(&mut Received) -> T) -> T {
        look(&mut self.received.lock().unwrap())
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.down();
    }
}

#[derive(Clone)]
struct Service(Arc<Mutex<Received>>);

#[tonic::async_trait]
impl PlatformConnector for Service {
    async fn health_event_occurred_v1(
        &self,
        request: Request<HealthEvents>,
    ) -> Result<Response<()>, Status> {
        let token = request
            .metadata()
            .get(wire::AUTHORIZATION)
            .map(|t| t.to_str().unwrap().to_owned());
        let mut received = self.0.lock().unwrap();
        received.calls += 1;
        received.tokens.push(token.clone());
        if received.token.is_some() && received.token != token {
            return Err(Status::unauthenticated("unknown token"));
        }
        if !received.answers.is_empty() {
            received.answers.remove(0)?;
        }
        let now = jiff::Timestamp::now();
        let accepted = wire::accept(request.into_inner(), None, now).map_err(|r| r.status())?;
        let bad = |event: &HealthEvent| {
            let bad = received.bad_code.as_ref();
            bad.is_some_and(|code| event.error_codes.contains(code))
        };
        if accepted.iter().any(|a| bad(&a.event)) {
            return Err(Status::invalid_argument("event 0: errorCode is bad"));
        }
        for event in accepted.into_iter().map(|a| a.event) {
            received.take(event);
        }
        Ok(Response::new(()))
    }
}

#[tonic::async_trait]
impl AgentService for Service {
    async fn report(
        &self,
        request: Request<ReportRequest>,
    ) -> Result<Response<ReportReply>, Status> {
        let mut received = self.0.lock().unwrap();
        received.reports.push(request.into_inner());
        let reply = match received.replies.len() {
            0 => ReportReply::default(),
            1 => received.replies[0].clone(),
            _ => received.replies.remove(0),
        };
        Ok(Response::new(reply))
    }
}
