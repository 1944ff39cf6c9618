//! Sends events and reports to the controller for as long as the agent runs.
//!
//! # Guarantees
//! - Events go in order, one call at a time; what was not acknowledged is sent again, unchanged.
//! - A new event goes out at once when none waits before it, without waiting for the disk.
//! - No answer but an acknowledgement, or INVALID_ARGUMENT for one event alone, takes an event
//!   out of the queue.

use std::sync::Arc;
use std::time::Duration;

use health_event::HealthEvent;
use tokio::sync::Notify;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use wire::datamodels::HealthEvents;
use wire::datamodels::platform_connector_client::PlatformConnectorClient;

use crate::backoff::Backoff;
use crate::core::{Core, Next};
use crate::crash;
use crate::link::{Link, said};
use crate::report;
use crate::spool::SpoolError;
use crate::status::Status as AgentStatus;

/// One call.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// First and longest wait before a batch is sent again.
const AGAIN_FIRST: Duration = Duration::from_millis(100);
const AGAIN_MOST: Duration = Duration::from_secs(10);
/// Reconnecting: the bounds within which a fleet spreads. 10,000 agents are to be back 20 s after
/// their controller is, and it takes some 2,000 new connections a second.
const CONNECT_FIRST: Duration = Duration::from_secs(2);
const CONNECT_MOST: Duration = Duration::from_secs(15);
/// How often a missing CA bundle is looked for.
const CA_WAIT: Duration = Duration::from_secs(1);
const BATCH: usize = 256;

/// Runs for ever.
pub async fn run(core: Arc<Core>, link: Arc<Link>, status: Arc<AgentStatus>) {
    let mut backoff = Backoff::new(CONNECT_FIRST, CONNECT_MOST);
    let mut first = true;
    loop {
        if !std::mem::take(&mut first) {
            tokio::time::sleep(backoff.wait()).await;
        }
        let ended = Arc::new(Notify::new());
        let channel = match link.connect(Arc::clone(&ended)).await {
            Ok(channel) => channel,
            Err(error) => {
                tracing::warn!(%error, code = error.code(), "not connected");
                status.disconnected(&error.to_string());
                if error.code() == "ca_file" {
                    backoff.reset();
                    tokio::time::sleep(CA_WAIT).await;
                    first = true;
                }
                continue;
            }
        };
        status.connected(Some(channel.clone()));
        tracing::info!("connected to the controller");
        let why = tokio::select! {
            () = ended.notified() => "the connection ended".to_owned(),
            why = send(&core, &link, channel.clone(), &status) => why,
            why = report::run(&core, &link, channel, &status) => why,
        };
        tracing::warn!(why, "connection to the controller lost");
        status.disconnected(&why);
        if status.worked() {
            backoff.reset();
        }
    }
}

/// Sends until the connection is of no use. Answers why.
async fn send(core: &Core, link: &Link, channel: Channel, status: &AgentStatus) -> String {
    let mut client = PlatformConnectorClient::new(channel);
    let mut backoff = Backoff::new(AGAIN_FIRST, AGAIN_MOST);
    let mut limit = BATCH;
    loop {
        let batch = match core.next(limit).await {
            Ok(Next::Batch(batch)) => batch,
            Ok(Next::Empty) => {
                core.send.notified().await;
                continue;
            }
            Err(error) => {
                tracing::warn!(%error, "events can't be read back from the spool");
                tokio::time::sleep(backoff.wait()).await;
                continue;
            }
        };
        match call(&mut client, link, &batch).await {
            Ok(()) => {
                let last = batch.last().map_or(0, |(number, _)| *number);
                core.acknowledged(last, batch.len());
                status.delivered();
                backoff.reset();
                limit = (limit * 2).min(BATCH);
            }
            Err(error) if error.code() == Code::InvalidArgument => {
                match refused(core, batch, &error) {
                    Ok(next) => limit = next,
                    Err(error) => {
                        tracing::warn!(%error, "refused event not put aside; it is sent again");
                        limit = 1;
                        tokio::time::sleep(backoff.wait()).await;
                    }
                }
            }
            Err(error) => {
                status.refused(&error);
                if is_transport(&error) {
                    return said(&error);
                }
                tracing::warn!(code = ?error.code(), why = said(&error), "batch not taken");
                tokio::time::sleep(backoff.wait()).await;
            }
        }
    }
}

/// Halves the batch until the bad event stands alone, which is put aside. Answers the next limit.
fn refused(
    core: &Core,
    mut batch: Vec<(u64, HealthEvent)>,
    error: &Status,
) -> Result<usize, SpoolError> {
    if batch.len() > 1 {
        return Ok(batch.len() / 2);
    }
    if let Some((number, event)) = batch.pop() {
        let why = said(error);
        core.refused(number, event, why.clone())?;
        tracing::error!(
            number,
            why,
            "event refused by the controller; it is put aside"
        );
    }
    Ok(1)
}

async fn call(
    client: &mut PlatformConnectorClient<Channel>,
    link: &Link,
    batch: &[(u64, HealthEvent)],
) -> Result<(), Status> {
    let events = batch
        .iter()
        .map(|(_, event)| event.clone().into())
        .collect();
    let request = authorised(link, HealthEvents { version: 1, events })?;
    crash::point("delivery.send.before");
    let answer = client.health_event_occurred_v1(request).await;
    crash::point("delivery.send.after");
    answer.map(drop)
}

/// A request with the agent's token and a time limit.
///
/// # Errors
/// UNAUTHENTICATED if the token can't be read: nothing is sent then.
pub fn authorised<T>(link: &Link, message: T) -> Result<Request<T>, Status> {
    let mut request = Request::new(message);
    request.set_timeout(CALL_TIMEOUT);
    let header = link
        .authorization()
        .map_err(|error| Status::unauthenticated(error.to_string()))?;
    if let Some(header) = header {
        request.metadata_mut().insert(wire::AUTHORIZATION, header);
    }
    Ok(request)
}

/// Whether the call failed below gRPC, so that only a new connection helps.
pub fn is_transport(error: &Status) -> bool {
    matches!(
        error.code(),
        Code::Unknown | Code::Cancelled | Code::DeadlineExceeded
    ) || std::error::Error::source(error).is_some()
}
