//! Agents that are played: one TLS connection and one token a node, and events as an agent sends
//! them.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use futures::TryStreamExt as _;
use health_event::{
    Entity, HealthEvent, ProcessingStrategy, RecommendedAction, SentIdentity, checks, keys,
};
use jiff::Timestamp;
use testbed::NodeSpec;
use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use ulid::Ulid;
use wire::datamodels::HealthEvents;
use wire::datamodels::platform_connector_client::PlatformConnectorClient;
use wire::warden::v1::agent_client::AgentClient;
use wire::warden::v1::{Asserted, Detector, DetectorState, ReportRequest, Spool};

const CONNECT: Duration = Duration::from_secs(30);
const CALL: Duration = Duration::from_mins(2);
/// Detector whose faults these are.
const DETECTOR: &str = "kernel-log";
/// Device of every fault.
const PCI: &str = "0000:17:00";

/// The check of the faults that take a node out.
pub const CHECK: &str = checks::XID;

/// One played agent.
#[derive(Debug)]
pub struct Reporter {
    /// Its node.
    pub node: String,
    spec: NodeSpec,
    channel: Channel,
    token: MetadataValue<Ascii>,
    spool: String,
    process: String,
    number: AtomicU64,
}

/// Has all of them do something at the same time and waits for all.
///
/// # Errors
/// The first that failed.
pub async fn all<'a, F>(
    fleet: &'a [Reporter],
    act: impl Fn(&'a Reporter) -> F,
) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let calls: futures::stream::FuturesUnordered<F> = fleet.iter().map(act).collect();
    calls.try_collect().await
}

async fn channel(ingest: SocketAddr, ca: &str) -> anyhow::Result<Channel> {
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca));
    let endpoint = Endpoint::from_shared(format!("https://{ingest}"))?
        .tls_config(tls)?
        .connect_timeout(CONNECT)
        .timeout(CALL);
    Ok(endpoint.connect().await?)
}

impl Reporter {
    /// Connects to a controller whose certificate comes from `ca` (PEM), with the token of the
    /// agent on `node`, and reports that all is settled.
    ///
    /// # Errors
    /// There is no connection, or the report is refused.
    pub async fn connect(
        ingest: SocketAddr,
        ca: &str,
        token: &str,
        node: &str,
    ) -> anyhow::Result<Self> {
        let channel = channel(ingest, ca).await?;
        let reporter = Self {
            node: node.to_owned(),
            spec: NodeSpec::new(node),
            channel,
            token: format!("Bearer {token}").parse()?,
            spool: Ulid::new().to_string(),
            process: Ulid::new().to_string(),
            number: AtomicU64::new(0),
        };
        reporter.report().await?;
        Ok(reporter)
    }

    /// Connects once more, as after the loss of the connection, and reports; what it came over
    /// stays as it is.
    ///
    /// # Errors
    /// As [`Reporter::connect`].
    pub async fn again(&self, ingest: SocketAddr, ca: &str) -> anyhow::Result<Channel> {
        let channel = channel(ingest, ca).await?;
        self.report_over(&channel, DetectorState::DetectorSettled)
            .await?;
        Ok(channel)
    }

    /// The machine has booted: from now on this is the agent's process in that boot, whose detectors
    /// have not looked yet, and it reports so.
    ///
    /// # Errors
    /// The controller refuses the report.
    pub async fn boots(&mut self, boot_id: &str) -> anyhow::Result<()> {
        boot_id.clone_into(&mut self.spec.boot_id);
        self.process = Ulid::new().to_string();
        self.report_over(&self.channel, DetectorState::DetectorStarting)
            .await
    }

    /// Says that all is settled and that nothing is asserted.
    ///
    /// # Errors
    /// The controller refuses it.
    pub async fn report(&self) -> anyhow::Result<()> {
        self.report_over(&self.channel, DetectorState::DetectorSettled)
            .await
    }

    async fn report_over(&self, channel: &Channel, state: DetectorState) -> anyhow::Result<()> {
        let detector = Detector {
            name: DETECTOR.to_owned(),
            state: state.into(),
            why: String::new(),
        };
        let report = ReportRequest {
            node_name: self.node.clone(),
            boot_id: self.spec.boot_id.clone(),
            machine_id: self.spec.system_uuid.clone(),
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            spool_id: self.spool.clone(),
            process_id: self.process.clone(),
            detectors: vec![detector],
            spool: Some(Spool::default()),
            last_number: self.number.load(Ordering::Relaxed),
            asserted: Some(Asserted {
                hash_version: SentIdentity::VERSION,
                count: 0,
                hash: SentIdentity::hash_of_set([]).to_vec(),
            }),
            ..ReportRequest::default()
        };
        let mut client = AgentClient::new(channel.clone());
        client.report(self.request(report)).await?;
        Ok(())
    }

    /// Sends events and waits until they are durable.
    ///
    /// # Errors
    /// The controller refuses them.
    pub async fn send(&self, events: Vec<HealthEvent>) -> anyhow::Result<()> {
        let events = events.into_iter().map(|event| self.own(event).into());
        let batch = HealthEvents {
            version: 1,
            events: events.collect(),
        };
        let mut client = PlatformConnectorClient::new(self.channel.clone());
        client
            .health_event_occurred_v1(self.request(batch))
            .await
            .with_context(|| format!("sending as the agent of {}", self.node))?;
        Ok(())
    }

    /// The fault that takes the node out, and with it one that becomes an Event.
    ///
    /// # Errors
    /// The controller refuses them.
    pub async fn fall_ill(&self, round: usize) -> anyhow::Result<()> {
        self.send(vec![fault(false, round), remark(false, round)])
            .await
    }

    /// Takes both back.
    ///
    /// # Errors
    /// The controller refuses them.
    pub async fn recover(&self, round: usize) -> anyhow::Result<()> {
        self.send(vec![fault(true, round), remark(true, round)])
            .await
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let token = self.token.clone();
        request.metadata_mut().insert(wire::AUTHORIZATION, token);
        request
    }

    /// What an agent adds to an event.
    fn own(&self, mut event: HealthEvent) -> HealthEvent {
        let number = self.number.fetch_add(1, Ordering::Relaxed) + 1;
        event.id = Ulid::new().to_string();
        event.node_name.clone_from(&self.node);
        event.generated_at = Some(Timestamp::now());
        let order = format!("{}/{}/{number}", self.spec.boot_id, self.spool);
        event.metadata.extend(
            [
                (keys::ORDER, order),
                (keys::MACHINE_ID, self.spec.system_uuid.clone()),
                (keys::DETECTOR, DETECTOR.to_owned()),
            ]
            .map(|(key, value)| (key.to_owned(), value)),
        );
        event
    }
}

/// The fault that takes a node out of scheduling, or its end.
pub fn fault(healthy: bool, round: usize) -> HealthEvent {
    HealthEvent {
        is_fatal: !healthy,
        recommended_action: RecommendedAction::RestartBm,
        ..xid("79", healthy, round)
    }
}

/// A fault that becomes a Kubernetes Event and nothing else, or its end. Each round has another
/// device: one that comes and goes again and again is flapping, and held open.
fn remark(healthy: bool, round: usize) -> HealthEvent {
    let pci = format!("0000:{:02x}:{:02x}", round / 32 % 256, round % 32);
    HealthEvent {
        recommended_action: RecommendedAction::None,
        entities: vec![Entity::new("PCI", &pci)],
        ..xid("31", healthy, round)
    }
}

/// One of the many other events of a storm: stored, and without effect on the node. Each is
/// something else than the one before, so that none is only counted.
pub fn other(turn: usize) -> HealthEvent {
    HealthEvent {
        strategy: ProcessingStrategy::StoreOnly,
        recommended_action: RecommendedAction::None,
        ..xid("13", !turn.is_multiple_of(2), turn)
    }
}

fn xid(code: &str, healthy: bool, round: usize) -> HealthEvent {
    HealthEvent {
        version: 1,
        agent: checks::SYSLOG_AGENT.to_owned(),
        component_class: "GPU".to_owned(),
        check_name: CHECK.to_owned(),
        is_healthy: healthy,
        message: format!("NVRM: Xid (PCI:{PCI}): {code}, pid={round}, name=train.py, measured."),
        error_codes: vec![code.to_owned()],
        entities: vec![Entity::new("PCI", PCI)],
        ..HealthEvent::default()
    }
}
