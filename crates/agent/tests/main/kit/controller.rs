//! A gRPC server that takes events and reports as the controller does.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use health_event::{HealthEvent, Order, keys};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};
use wire::datamodels::HealthEvents;
use wire::datamodels::platform_connector_server::{PlatformConnector, PlatformConnectorServer};
use wire::warden::v1::agent_server::{Agent as AgentService, AgentServer};
use wire::warden::v1::{DetectorState, ReportReply, ReportRequest};

/// All that came in, over all connections and restarts of the server.
#[derive(Default)]
pub(crate) struct Received {
    pub events: Vec<HealthEvent>,
    pub reports: Vec<ReportRequest>,
    /// Answer to the next batches; taken from the front for each.
    pub answers: Vec<Result<(), Status>>,
    /// Refuse every batch that holds an event with this code.
    pub bad_code: Option<String>,
    /// Answer to the next reports; the last one stays.
    pub replies: Vec<ReportReply>,
    /// Tokens seen with batches.
    pub tokens: Vec<Option<String>>,
    /// Refuse tokens other than this.
    pub token: Option<String>,
    pub calls: usize,
}

impl Received {
    /// Order numbers of the events.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.events
            .iter()
            .map(|e| e.metadata[keys::ORDER].parse::<Order>().unwrap().number)
            .collect()
    }

    /// The detector's state in the last report.
    pub(crate) fn state(&self, detector: &str) -> Option<DetectorState> {
        let report = self.reports.last()?;
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
    pub received: Arc<Mutex<Received>>,
    address: SocketAddr,
    stop: Option<Arc<Notify>>,
    task: Option<tokio::task::JoinHandle<()>>,
}

impl Controller {
    /// Starts on a free port.
    pub(crate) async fn start() -> Self {
        let mut controller = Self::absent().await;
        controller.up().await;
        controller
    }

    /// A port on which nothing listens yet.
    pub(crate) async fn absent() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self {
            received: Arc::default(),
            address: listener.local_addr().unwrap(),
            stop: None,
            task: None,
        }
    }

    /// Listens.
    pub(crate) async fn up(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        let stop = Arc::new(Notify::new());
        let service = Service(Arc::clone(&self.received));
        let signal = Arc::clone(&stop);
        self.stop = Some(stop);
        self.task = Some(tokio::spawn(async move {
            let server = tonic::transport::Server::builder()
                .add_service(PlatformConnectorServer::new(service.clone()))
                .add_service(AgentServer::new(service))
                .serve_with_incoming(TcpListenerStream::new(listener));
            tokio::select! {
                result = server => result.unwrap(),
                () = signal.notified() => {}
            }
        }));
    }

    /// Ends all connections and stops listening.
    pub(crate) async fn down(&mut self) {
        if let (Some(stop), Some(task)) = (self.stop.take(), self.task.take()) {
            stop.notify_one();
            task.await.unwrap();
        }
    }

    /// Its URL.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Looks at what came in.
    pub(crate) fn see<T>(&self, look: impl FnOnce(&mut Received) -> T) -> T {
        look(&mut self.received.lock().unwrap())
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
        received
            .events
            .extend(accepted.into_iter().map(|a| a.event));
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
