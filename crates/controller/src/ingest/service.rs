//! `datamodels.PlatformConnector`.

use std::sync::Arc;
use std::time::Duration;

use decide::gone::is_of_another;
use event_store::{EventStore, Fingerprint, NewEvent, Outcome, Standing, StoredEvent, WriteError};
use health_event::{HealthEvent, NodeName, Order, Sender, Subject, checks, keys};
use jiff::Timestamp;
use telemetry::ControllerMetrics;
use telemetry::metrics::RefusalLabel;
use tokio::time::Instant;
use tonic::{Request, Response, Status};
use ulid::Ulid;
use wire::Accepted;
use wire::datamodels::HealthEvents;
use wire::datamodels::platform_connector_server::PlatformConnector;

use super::limits::{Limits, Verdict};
use super::skew::ClockSkews;
use super::transform::Transformers;
use crate::crash;
use crate::nodes::NodeCache;
use crate::trust::{Caller, Gate};

/// When a caller that found the store busy or full should ask again.
const RETRY_STORE: Duration = Duration::from_secs(1);

/// Takes events in.
#[derive(Debug, Clone)]
pub struct EventService {
    gate: Arc<Gate>,
    store: EventStore,
    limits: Arc<Limits>,
    skews: Arc<ClockSkews>,
    nodes: NodeCache,
    transformers: Transformers,
    metrics: Arc<ControllerMetrics>,
}

impl EventService {
    /// Over its parts.
    pub fn new(
        gate: Arc<Gate>,
        store: EventStore,
        limits: Arc<Limits>,
        skews: Arc<ClockSkews>,
        nodes: NodeCache,
        transformers: Transformers,
        metrics: Arc<ControllerMetrics>,
    ) -> Self {
        Self {
            gate,
            store,
            limits,
            skews,
            nodes,
            transformers,
            metrics,
        }
    }

    async fn take_in(
        &self,
        request: Request<HealthEvents>,
        started: Instant,
    ) -> Result<(), Status> {
        let (headers, _, batch) = request.into_parts();
        let of_batch = u64::try_from(batch.events.len()).unwrap_or(u64::MAX);
        self.metrics
            .platform_connector_health_events_received
            .inc_by(of_batch);
        let caller = self
            .gate
            .identify(&headers)
            .await
            .map_err(|denied| denied.status())?;
        let events = self.read(&caller, batch)?;
        if events.is_empty() {
            return Ok(());
        }
        self.slow_down(&events).await?;
        let sizes: Vec<(Sender, usize)> = events
            .iter()
            .map(|event| (event.sender.clone(), event.body.len()))
            .collect();
        crash::point("ingest.before-append");
        let appended = self.store.append(events).await.map_err(|error| {
            self.count_refusal(error.code());
            status_of(&error)
        })?;
        crash::point("ingest.after-append");
        for ((sender, bytes), done) in sizes.into_iter().zip(&appended) {
            if matches!(done.outcome, Outcome::Stored(_)) {
                self.limits.charge(&sender, bytes, Instant::now());
            }
        }
        self.metrics.ingest_stored.inc_by(of_batch);
        self.metrics
            .ingest_acknowledge_seconds
            .observe(started.elapsed().as_secs_f64());
        Ok(())
    }

    /// The batch as the store takes it.
    fn read(&self, caller: &Caller, batch: HealthEvents) -> Result<Vec<NewEvent>, Status> {
        let now = Timestamp::now();
        let fingerprints: Vec<Fingerprint> = batch
            .events
            .iter()
            .map(|e| Fingerprint::of(&wire::received_bytes(e.clone())))
            .collect();
        let nameless: Vec<bool> = batch.events.iter().map(is_nameless).collect();
        let accepted = wire::accept(batch, None, now).map_err(|refusal| {
            self.count_refusal(refusal.code());
            refusal.status()
        })?;
        let mut events = Vec::with_capacity(accepted.len());
        let received = accepted.into_iter().zip(fingerprints).zip(nameless);
        for (index, ((mut accepted, fingerprint), nameless)) in received.enumerate() {
            if nameless {
                accepted.event.id = Ulid::new().to_string();
            }
            let node = self.speaks_for(caller, &accepted)?;
            refuse_wardens(index, &accepted.event).inspect_err(|_| {
                self.count_refusal("wardens_check");
            })?;
            let skewed = accepted.clock_skew;
            self.transformers.apply(&node, &mut accepted.event);
            let mut event = new_event(caller, node.clone(), accepted.event, fingerprint, now)
                .map_err(|why| {
                    self.count_refusal("bad_order");
                    Status::invalid_argument(format!("event {index}: {why}"))
                })?;
            let object = self.nodes.get(&node);
            if object.is_some_and(|object| is_of_another(&event.machine, &object.system_uuid)) {
                event.standing = Standing::Held;
            }
            self.skews
                .note(&node, &event.sender, skewed, now, &mut events);
            events.push(event);
        }
        Ok(events)
    }

    fn speaks_for(&self, caller: &Caller, accepted: &Accepted) -> Result<NodeName, Status> {
        let name = &accepted.event.node_name;
        self.gate
            .may_say(caller, &accepted.event)
            .map_err(|denied| denied.status())?;
        NodeName::new(name).map_err(|error| Status::invalid_argument(error.to_string()))
    }

    async fn slow_down(&self, events: &[NewEvent]) -> Result<(), Status> {
        let Some(first) = events.first() else {
            return Ok(());
        };
        match self
            .limits
            .take(&first.sender, events.len(), Instant::now())
        {
            Verdict::Pass(wait) => {
                if !wait.is_zero() {
                    tokio::time::sleep(wait).await;
                }
                Ok(())
            }
            Verdict::TooFast(wait) => {
                self.count_refusal("too_fast");
                let why = "the sender is above ingest.sender_rate";
                Err(wire::unavailable(why, wait))
            }
            Verdict::TooMuch(wait) => {
                self.count_refusal("too_much");
                let why = "the sender brings in more bytes a second than one sender may store";
                Err(wire::unavailable(why, wait))
            }
        }
    }

    fn count_refusal(&self, code: &'static str) {
        let label = RefusalLabel {
            code: code.to_owned(),
            mode: "refused".to_owned(),
        };
        self.metrics.ingest_refused.get_or_create(&label).inc();
    }
}

#[tonic::async_trait]
impl PlatformConnector for EventService {
    async fn health_event_occurred_v1(
        &self,
        request: Request<HealthEvents>,
    ) -> Result<Response<()>, Status> {
        let started = Instant::now();
        // A caller that hangs up does not take back what is being written: the rest runs in a task
        // of its own, so that no half of it is lost with the connection.
        let service = self.clone();
        let work = tokio::spawn(async move { service.take_in(request, started).await });
        let done = work.await;
        done.unwrap_or_else(|_| Err(Status::internal("taking the batch in failed; see the log")))?;
        Ok(Response::new(()))
    }
}

/// Whether nothing tells an event from the next one with the same content: it has neither an id nor
/// a time. It is one of its own then; said again after its recovery it is a new fault, as on the
/// agents' sockets. That a sender repeats it because an answer was lost only raises a count.
fn is_nameless(event: &wire::datamodels::HealthEvent) -> bool {
    event.id.is_empty() && event.generated_timestamp.is_none()
}

/// Refuses what only Warden says: the type of a node's condition is the check's name alone, so that
/// anybody could set the controller's own. What an agent kept in its spool (before it knew the name)
/// is answered so that it puts that event aside instead of keeping all behind it.
fn refuse_wardens(index: usize, event: &HealthEvent) -> Result<(), Status> {
    let spooled = event.metadata.contains_key(keys::ORDER);
    let by_agent = spooled && event.agent == checks::WARDEN_AGENT;
    let name = &event.check_name;
    if !checks::is_wardens(name) || (by_agent && !checks::is_controllers(name)) {
        return Ok(());
    }
    let why = format!(
        "event {index}: checkName {name:?} is what Warden says of itself, as a condition of the node \
         too, whatever agent is named; choose another name"
    );
    Err(if spooled {
        Status::invalid_argument(why)
    } else {
        Status::permission_denied(why)
    })
}

/// The gRPC answer to a write that did not happen. Everything but a bug can be sent again.
pub(crate) fn status_of(error: &WriteError) -> Status {
    wire::unavailable(&error.to_string(), RETRY_STORE)
}

/// An event as the store takes it, with what its sender may and may not say.
///
/// # Errors
/// The text of a bad order.
pub(crate) fn new_event(
    caller: &Caller,
    node: NodeName,
    mut event: HealthEvent,
    fingerprint: Fingerprint,
    now: Timestamp,
) -> Result<NewEvent, String> {
    let order = match (caller, event.metadata.get(keys::ORDER)) {
        (Caller::Agent(_) | Caller::Unchecked, Some(text)) => {
            Some(text.parse::<Order>().map_err(|error| error.to_string())?)
        }
        (Caller::Monitor(_), Some(_)) | (_, None) => None,
    };
    let from_agent = matches!(caller, Caller::Agent(_)) || order.is_some();
    if !from_agent {
        // These two are the controller's own word.
        let kept = [keys::CLAIMED_TIME, keys::OVERRIDDEN];
        event
            .metadata
            .retain(|key, _| !key.starts_with(keys::PREFIX) || kept.contains(&key.as_str()));
    }
    let asserted = from_agent && !event.is_healthy && event.metadata.contains_key(keys::DETECTOR);
    Ok(NewEvent {
        sender: caller.sender(&node, from_agent),
        machine: event
            .metadata
            .get(keys::MACHINE_ID)
            .cloned()
            .unwrap_or_default(),
        order,
        received_at: now,
        body: wire::encode_body(&event),
        fingerprint,
        asserted_by_agent: asserted,
        newest_counts: newest_counts(&event),
        inclusive: false,
        out_of_turn: false,
        standing: Standing::Counts,
        subject: Subject::Node(node),
        event,
    })
}

/// A held event that counts from now on: its node is the machine that it came from.
pub(crate) fn released(node: &NodeName, held: &StoredEvent) -> Option<NewEvent> {
    let mut event = wire::decode_body(&held.body).ok()?;
    event.id.clone_from(&held.id);
    let caller = if held.sender == Sender::agent(node.as_str()) {
        Caller::Agent(node.clone())
    } else {
        Caller::Unchecked
    };
    let content = Fingerprint::of(&held.body);
    let new = new_event(&caller, node.clone(), event, content, held.received_at).ok()?;
    Some(NewEvent {
        sender: held.sender.clone(),
        standing: Standing::Released(held.seq),
        ..new
    })
}

/// XID 154 states what the driver recommends now: its newest line replaces the earlier ones
/// (wire-agent 6, rule 11).
fn newest_counts(event: &HealthEvent) -> bool {
    event.agent == checks::SYSLOG_AGENT
        && event.check_name == checks::XID
        && event.error_codes == ["154"]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(metadata: &[(&str, &str)]) -> HealthEvent {
        HealthEvent {
            check_name: "Check".into(),
            node_name: "gpu-1".into(),
            metadata: metadata
                .iter()
                .map(|(k, v)| ((*k).into(), (*v).into()))
                .collect(),
            ..HealthEvent::default()
        }
    }

    fn taken(caller: &Caller, metadata: &[(&str, &str)]) -> Result<NewEvent, String> {
        let node = NodeName::new("gpu-1").unwrap();
        new_event(
            caller,
            node,
            event(metadata),
            Fingerprint([0; 16]),
            Timestamp::UNIX_EPOCH,
        )
    }

    const OURS: [(&str, &str); 4] = [
        (keys::ORDER, "b/s/7"),
        (keys::DETECTOR, "kernel-log"),
        (keys::MACHINE_ID, "m"),
        ("free", "kept"),
    ];

    #[test]
    fn an_agents_own_keys_count() {
        let agent = Caller::Agent(NodeName::new("gpu-1").unwrap());
        let new = taken(&agent, &OURS).unwrap();
        assert_eq!(new.sender.as_str(), "agent:gpu-1");
        assert_eq!(new.order.unwrap().number, 7);
        assert_eq!(new.machine, "m");
        assert!(new.asserted_by_agent);
        let error = taken(&agent, &[(keys::ORDER, "7")]).unwrap_err();
        assert!(error.contains("BOOT/SPOOL/NUMBER"), "{error}");
    }

    #[test]
    fn a_socket_senders_event_is_not_asserted_by_the_agent() {
        let agent = Caller::Agent(NodeName::new("gpu-1").unwrap());
        let new = taken(&agent, &OURS[..1]).unwrap();
        assert!(!new.asserted_by_agent);
    }

    #[test]
    fn from_anybody_else_they_are_taken_off() {
        let new = taken(&Caller::Unchecked, &OURS[1..]).unwrap();
        assert_eq!(new.sender.as_str(), "unchecked");
        assert_eq!(new.event.metadata.keys().collect::<Vec<_>>(), ["free"]);
        assert!(!new.asserted_by_agent && new.machine.is_empty());
    }

    #[test]
    fn only_xid_154_alone_is_replaced_by_its_newest() {
        let mut xid = event(&[]);
        xid.agent = checks::SYSLOG_AGENT.into();
        xid.check_name = checks::XID.into();
        xid.error_codes = vec!["154".into()];
        assert!(newest_counts(&xid));
        xid.error_codes = vec!["79".into()];
        assert!(!newest_counts(&xid));
    }
}
