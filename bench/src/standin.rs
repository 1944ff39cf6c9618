//! A server in the place of the controller that takes everything at once and says when it came:
//! for what is measured of the agent alone.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};
use wire::datamodels::platform_connector_server::{PlatformConnector, PlatformConnectorServer};
use wire::datamodels::{HealthEvent, HealthEvents};
use wire::warden::v1::agent_server::{Agent, AgentServer};
use wire::warden::v1::{DetectorState, ReportReply, ReportRequest};

/// What came.
#[derive(Debug)]
pub(crate) enum Came {
    /// An event, and when.
    Event(Instant, Box<HealthEvent>),
    /// A report; whether all its detectors that run are settled.
    Report(bool),
}

#[derive(Debug, Clone)]
struct Service(mpsc::UnboundedSender<Came>);

#[tonic::async_trait]
impl PlatformConnector for Service {
    async fn health_event_occurred_v1(
        &self,
        request: Request<HealthEvents>,
    ) -> Result<Response<()>, Status> {
        let at = Instant::now();
        for event in request.into_inner().events {
            // The bench may have what it waited for.
            self.0.send(Came::Event(at, Box::new(event))).ok();
        }
        Ok(Response::new(()))
    }
}

#[tonic::async_trait]
impl Agent for Service {
    async fn report(
        &self,
        request: Request<ReportRequest>,
    ) -> Result<Response<ReportReply>, Status> {
        let settled = request.into_inner().detectors.iter().all(|detector| {
            matches!(
                detector.state(),
                DetectorState::DetectorSettled | DetectorState::DetectorOff
            )
        });
        self.0.send(Came::Report(settled)).ok();
        Ok(Response::new(ReportReply {
            next_interval_seconds: 60,
            ..ReportReply::default()
        }))
    }
}

/// The server; it ends with this.
#[derive(Debug)]
pub(crate) struct StandIn {
    /// Where it listens, without TLS.
    pub address: SocketAddr,
    came: mpsc::UnboundedReceiver<Came>,
    _tasks: tokio::task::JoinSet<()>,
}

impl StandIn {
    /// Listens on a free port.
    ///
    /// # Errors
    /// It can't.
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (tell, came) = mpsc::unbounded_channel();
        let service = Service(tell);
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move {
            let incoming = TcpListenerStream::new(listener);
            let served = tonic::transport::Server::builder()
                .tcp_nodelay(true)
                .add_service(PlatformConnectorServer::new(service.clone()))
                .add_service(AgentServer::new(service))
                .serve_with_incoming(incoming)
                .await;
            // Whoever waits for what comes gives up at its deadline and says so.
            served.ok();
        });
        Ok(Self {
            address,
            came,
            _tasks: tasks,
        })
    }

    /// The next thing that came.
    ///
    /// # Errors
    /// Nothing came in time.
    pub(crate) async fn next(&mut self, time: Duration, what: &str) -> anyhow::Result<Came> {
        let came = tokio::time::timeout(time, self.came.recv()).await;
        came.with_context(|| format!("waited {time:?} for {what}"))?
            .context("the stand-in for the controller ended")
    }

    /// Waits for a report in which everything is settled.
    ///
    /// # Errors
    /// None came in time.
    pub(crate) async fn settled(&mut self, time: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + time;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if let Came::Report(true) = self.next(left, "the agent to settle").await? {
                return Ok(());
            }
        }
    }
}
