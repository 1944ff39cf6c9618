//! The unix socket on which other monitors of this node report: the reference's event service.
//!
//! # Guarantees
//! - A reply is sent after every event of the batch is on disk or the controller has it.
//! - A call is held for up to [`HOLD`] before UNAVAILABLE, which existing clients retry.
//! - Nobody speaks for another node or for a detector of this agent.
//! - A caller with a token of its own is passed on under it, and never kept.

mod admission;
mod authority;
mod listen;
mod places;
mod turns;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use health_event::{checks, keys};
use jiff::Timestamp;
use tokio::time::Instant;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use ulid::Ulid;
use wire::AnswersLayer;
use wire::datamodels::HealthEvents;
use wire::datamodels::platform_connector_client::PlatformConnectorClient;
use wire::datamodels::platform_connector_server::{PlatformConnector, PlatformConnectorServer};
use wire::validate::RECEIVE_LIMIT;

use crate::core::Core;
use crate::detectors::{KERNEL_LOG_TRIPLES, Triple};
use crate::link::said;
use crate::own;
use crate::status::Status as AgentStatus;
use admission::{Admission, Candidate, Plan, owner, strip};
use listen::Peer;
use turns::{Arrived, TurnsLayer};

/// How long a call waits for room, tokens or the disk.
pub const HOLD: Duration = Duration::from_secs(5);
/// Longest call, its wait for its turn and its body included.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);
/// Calls that may wait on one connection, and bytes that may wait unread on it (HTTP/2's default):
/// with 64 connections at most that bounds what callers can make the agent keep.
const STREAMS: u32 = 16;
const WINDOW: u32 = 65_535;
/// How soon a caller should come again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The socket can't be served.
#[derive(Debug, thiserror::Error)]
#[error("socket {path} can't be served: {source}")]
pub struct SocketError {
    /// Path of the socket.
    path: String,
    /// Why.
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl SocketError {
    /// Static name.
    pub fn code(&self) -> &'static str {
        "socket"
    }
}

/// The id of an event that gives its time: a ULID made of what was sent, so that one whose answer
/// was lost with this process, and which is therefore sent again, is known to the controller.
fn id_of(hash: &[u8; 32], at: Timestamp) -> String {
    let mut random = [0; 16];
    random.copy_from_slice(&hash[..16]);
    let millis = u64::try_from(at.as_millisecond()).unwrap_or(0);
    Ulid::from_parts(millis, u128::from_be_bytes(random)).to_string()
}

/// The service.
#[derive(Debug)]
pub struct Socket {
    core: Arc<Core>,
    status: Arc<AgentStatus>,
    admission: Mutex<Admission>,
    uids: Vec<u32>,
    kernel_log: bool,
}

impl Socket {
    /// `uids`: who may call, empty = all. `kernel_log`: whether that detector is on.
    pub fn new(
        core: Arc<Core>,
        status: Arc<AgentStatus>,
        uids: Vec<u32>,
        kernel_log: bool,
    ) -> Self {
        Self {
            core,
            status,
            admission: Mutex::default(),
            uids,
            kernel_log,
        }
    }

    /// Serves until `stop` ends; the file is removed then. If it went before, it is made anew.
    ///
    /// # Errors
    /// [`SocketError`] if the file can't be made or the server ends.
    pub async fn serve(
        self,
        path: &Path,
        stop: impl Future<Output = ()>,
    ) -> Result<(), SocketError> {
        let error = |source: Box<dyn std::error::Error + Send + Sync>| SocketError {
            path: path.display().to_string(),
            source,
        };
        let (listener, mut file) = listen::bind(path).map_err(|e| error(e.into()))?;
        let (again, listeners) = tokio::sync::mpsc::channel(1);
        let (core, status) = (Arc::clone(&self.core), Arc::clone(&self.status));
        let service = PlatformConnectorServer::new(self).max_decoding_message_size(RECEIVE_LIMIT);
        let server = Server::builder()
            .max_concurrent_streams(STREAMS)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .layer(AnswersLayer::new(CALL_TIMEOUT))
            .layer(TurnsLayer)
            .add_service(service)
            .serve_with_incoming_shutdown(listen::incoming(listener, listeners, core), stop);
        tokio::select! {
            ended = server => ended.map_err(|e| error(e.into())),
            never = file.keep(&status, &again) => match never {},
        }
    }

    async fn take(&self, uid: u32, batch: HealthEvents) -> Result<(), Status> {
        let candidates = self.candidates(uid, batch)?;
        let deadline = Instant::now() + HOLD;
        let numbers = loop {
            let wait = match self.admit(uid, &candidates) {
                Admitted::Numbers(numbers) => break numbers,
                Admitted::NoTokens(wait) => Some(wait),
                Admitted::NoRoom => None,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            match wait {
                Some(wait) if wait > left => {
                    return Err(unavailable(
                        "too many events of this sender: 20 a second, 2000 at once",
                    ));
                }
                Some(wait) => tokio::time::sleep(wait).await,
                None => tokio::time::timeout(left, self.core.room())
                    .await
                    .map_err(|_| unavailable("neither disk nor controller take events now"))?,
            }
        };
        tokio::time::timeout_at(deadline, self.core.safe(&numbers))
            .await
            .map_err(|_| unavailable("neither disk nor controller confirmed the events in time"))
    }

    /// The batch as it would be taken in, or why not.
    fn candidates(&self, uid: u32, mut batch: HealthEvents) -> Result<Vec<Candidate>, Status> {
        let hashes: Vec<Option<[u8; 32]>> = batch
            .events
            .iter_mut()
            .map(|event| {
                let hash = event.generated_timestamp.map(|_| wire::sent_hash(event));
                strip(event, uid == 0);
                hash
            })
            .collect();
        let node = &self.core.identity().node;
        let accepted = wire::accept(batch, Some(node), Timestamp::now()).map_err(|r| r.status())?;
        let candidates = accepted.into_iter().zip(hashes);
        candidates
            .enumerate()
            .map(|(index, (accepted, hash))| {
                let mut event = accepted.event;
                self.refuse_foreign(index, &event)?;
                if !event.id.is_empty() {
                    let id = std::mem::take(&mut event.id);
                    event.metadata.insert(keys::SENDER_ID.to_owned(), id);
                }
                if let (Some(hash), Some(at)) = (&hash, event.generated_at) {
                    event.id = id_of(hash, at);
                }
                Ok(Candidate {
                    event,
                    hash,
                    clock_skew: accepted.clock_skew,
                })
            })
            .collect()
    }

    fn refuse_foreign(
        &self,
        index: usize,
        event: &health_event::HealthEvent,
    ) -> Result<(), Status> {
        let node = self.core.identity().node.as_str();
        if event.node_name != node {
            return Err(Status::permission_denied(format!(
                "event {index}: nodeName is {:?}, this is the agent of {node:?}; a caller that \
                 reports for other nodes sends its own bearer token with the call, and the \
                 controller decides",
                event.node_name
            )));
        }
        if event.agent == checks::WARDEN_AGENT {
            return Err(Status::permission_denied(format!(
                "event {index}: agent {:?} is this agent's own name",
                checks::WARDEN_AGENT
            )));
        }
        if checks::is_wardens(&event.check_name) {
            return Err(Status::permission_denied(format!(
                "event {index}: checkName {:?} is what Warden says of itself, as a condition of the \
                 node too, whatever agent is named; choose another name",
                event.check_name
            )));
        }
        let own: &[Triple] = if self.kernel_log {
            &KERNEL_LOG_TRIPLES
        } else {
            &[]
        };
        let Some((agent, _, check)) = owner(event, own) else {
            return Ok(());
        };
        Err(Status::permission_denied(format!(
            "event {index}: {check} of {agent} is what this agent reads from the kernel log \
             itself; switch the other monitor off, or ours with kernel_log.source = \"off\""
        )))
    }

    /// Without waiting, so that two equal calls at once are one.
    fn admit(&self, uid: u32, candidates: &[Candidate]) -> Admitted {
        let now = Timestamp::now();
        let mut admission = self.lock();
        let (new, known) = match admission.plan(uid, candidates, now) {
            Plan::Take { new, known } => (new, known),
            Plan::Wait(wait) => {
                return Admitted::NoTokens(wait.unsigned_abs());
            }
        };
        let events = new.iter().map(|i| candidates[*i].event.clone()).collect();
        let Ok(mut numbers) = self.core.submit_foreign(events) else {
            return Admitted::NoRoom;
        };
        let mut clocks = Vec::new();
        for (index, number) in new.iter().zip(&numbers) {
            let candidate = &candidates[*index];
            admission.taken(uid, candidate, *number, now);
            let skew = admission.skew(candidate, now);
            clocks.extend(skew.map(|healthy| own::clock_skew(&candidate.event.agent, healthy)));
        }
        drop(admission);
        for event in clocks {
            self.core.state_own(event);
        }
        numbers.extend(known);
        Admitted::Numbers(numbers)
    }

    /// Passes a batch on under its caller's own token.
    async fn pass_on(&self, request: Request<HealthEvents>) -> Result<(), Status> {
        let Some(channel) = self.status.channel() else {
            return Err(unavailable("no connection to the controller"));
        };
        let (metadata, _, batch) = request.into_parts();
        let mut onward = Request::new(batch);
        if let Some(token) = metadata.get(wire::AUTHORIZATION) {
            let mut token = token.clone();
            token.set_sensitive(true);
            onward.metadata_mut().insert(wire::AUTHORIZATION, token);
        }
        onward.set_timeout(HOLD);
        let mut client = PlatformConnectorClient::new(channel);
        let answer = tokio::time::timeout(HOLD, client.health_event_occurred_v1(onward)).await;
        match answer {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) if crate::delivery::is_transport(&error) => {
                Err(unavailable("the connection to the controller ended"))
            }
            Ok(Err(error)) => Err(Status::new(error.code(), said(&error))),
            Err(_) => Err(unavailable("the controller did not answer in time")),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Admission> {
        self.admission
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

enum Admitted {
    Numbers(Vec<u64>),
    NoTokens(Duration),
    NoRoom,
}

#[tonic::async_trait]
impl PlatformConnector for Socket {
    async fn health_event_occurred_v1(
        &self,
        request: Request<HealthEvents>,
    ) -> Result<Response<()>, Status> {
        if let Some(arrived) = request.extensions().get::<Arrived>() {
            arrived.set();
        }
        let Some(uid) = request.extensions().get::<Peer>().map(Peer::uid) else {
            return Err(unavailable("the caller's user id is not known"));
        };
        let answer = if !self.uids.is_empty() && !self.uids.contains(&uid) {
            Err(Status::permission_denied(format!(
                "user id {uid} is not in socket.uids"
            )))
        } else if request.metadata().contains_key(wire::AUTHORIZATION) {
            self.pass_on(request).await
        } else {
            self.take(uid, request.into_inner()).await
        };
        if let Err(error) = &answer {
            self.core.count(|counters| counters.calls_refused += 1);
            tracing::warn!(uid, code = ?error.code(), why = said(error), "call refused");
        }
        answer.map(Response::new)
    }
}

fn unavailable(why: &str) -> Status {
    wire::unavailable(why, RETRY_AFTER)
}
