//! A monitor of a node, as any program may be one: it sends health events and retries as the
//! reference's monitors do, without changing a byte.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Status};
use wire::datamodels::platform_connector_client::PlatformConnectorClient;
use wire::datamodels::{Entity, HealthEvent, HealthEvents, RecommendedAction};

/// Longer than the agent holds a call (5 s) and shorter than a test's patience.
const CALL: Duration = Duration::from_secs(8);
/// Between two tries of the same batch.
const PAUSE: Duration = Duration::from_millis(50);

/// The agent name under which a fatal event matches a rule set that ships.
pub const GPU_MONITOR: &str = "gpu-health-monitor";

/// A sender on an agent's socket or on the controller's port.
#[derive(Debug, Clone)]
pub struct Monitor {
    client: PlatformConnectorClient<Channel>,
    authorization: Option<MetadataValue<Ascii>>,
}

impl Monitor {
    /// On an agent's unix socket. Connects at each call that finds no connection, so it outlives
    /// the agent.
    pub fn on_socket(path: PathBuf) -> Self {
        let connector = tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
        });
        let channel = Endpoint::from_static("http://agent").connect_with_connector_lazy(connector);
        Self {
            client: PlatformConnectorClient::new(channel),
            authorization: None,
        }
    }

    /// On the controller's port without TLS, past every agent.
    ///
    /// # Errors
    /// The address makes no URL.
    pub fn on_port(address: std::net::SocketAddr) -> anyhow::Result<Self> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
        Ok(Self {
            client: PlatformConnectorClient::new(endpoint.connect_lazy()),
            authorization: None,
        })
    }

    /// The same with a bearer token.
    ///
    /// # Errors
    /// It has characters that no token has.
    pub fn with_token(mut self, token: &str) -> anyhow::Result<Self> {
        let mut header: MetadataValue<Ascii> = format!("Bearer {token}").parse()?;
        header.set_sensitive(true);
        self.authorization = Some(header);
        Ok(self)
    }

    /// One call, without another try.
    ///
    /// # Errors
    /// What the service answers.
    pub async fn call(&self, events: Vec<HealthEvent>) -> Result<(), Status> {
        let batch = HealthEvents { version: 1, events };
        let mut request = Request::new(batch);
        request.set_timeout(CALL);
        if let Some(authorization) = &self.authorization {
            let name = wire::AUTHORIZATION;
            request.metadata_mut().insert(name, authorization.clone());
        }
        let mut client = self.client.clone();
        client.health_event_occurred_v1(request).await.map(drop)
    }

    /// Sends until it is acknowledged, the same bytes again whenever the answer is one that the
    /// reference's monitors retry or got lost; answers how many tries it took.
    ///
    /// # Errors
    /// A final answer, or none until the deadline.
    pub async fn send(&self, events: Vec<HealthEvent>, deadline: Duration) -> anyhow::Result<u32> {
        let end = Instant::now() + deadline;
        let mut tries = 1;
        loop {
            let Err(status) = self.call(events.clone()).await else {
                return Ok(tries);
            };
            if !is_retried(status.code()) {
                bail!("the events were refused: {status}");
            }
            if Instant::now() + PAUSE >= end {
                return Err(status).context("the events were not acknowledged in time");
            }
            tries += 1;
            sleep(PAUSE).await;
        }
    }

    /// One event, sent as [`Monitor::send`] does, within 30 s.
    ///
    /// # Errors
    /// As [`Monitor::send`].
    pub async fn say(&self, event: HealthEvent) -> anyhow::Result<()> {
        let text = event.message.clone();
        let sent = self.send(vec![event], Duration::from_secs(30)).await;
        sent.with_context(|| format!("sending {text:?}"))?;
        Ok(())
    }
}

/// UNAVAILABLE and DEADLINE_EXCEEDED, as in the reference; a connection that breaks off between
/// call and answer shows as one of the others.
fn is_retried(code: Code) -> bool {
    matches!(
        code,
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown
    )
}

/// A fatal event of `check` with `code` on one GPU, of the agent whose fatal events match a rule
/// set that ships.
pub fn fatal(check: &str, code: &str, gpu: &str) -> HealthEvent {
    HealthEvent {
        version: 1,
        agent: GPU_MONITOR.to_owned(),
        component_class: "GPU".to_owned(),
        check_name: check.to_owned(),
        is_fatal: true,
        message: format!("{check} {code} on GPU {gpu}"),
        recommended_action: RecommendedAction::ComponentReset.into(),
        error_code: vec![code.to_owned()],
        entities_impacted: vec![Entity {
            entity_type: "GPU".to_owned(),
            entity_value: gpu.to_owned(),
        }],
        generated_timestamp: Some(wire::timestamp_to_wire(Timestamp::now())),
        ..HealthEvent::default()
    }
}

/// The same, not fatal: it matches no rule set.
pub fn warning(check: &str, code: &str, gpu: &str) -> HealthEvent {
    HealthEvent {
        is_fatal: false,
        ..fatal(check, code, gpu)
    }
}

/// The word that what `of` says has gone.
pub fn healthy(of: &HealthEvent) -> HealthEvent {
    HealthEvent {
        is_fatal: false,
        is_healthy: true,
        message: format!("{} is well", of.check_name),
        recommended_action: RecommendedAction::None.into(),
        generated_timestamp: Some(wire::timestamp_to_wire(Timestamp::now())),
        ..of.clone()
    }
}
