//! The event service: from a sender's call to events on disk.
//!
//! # Guarantees
//! - The reply comes after the whole batch is durable (P1). Anything else is refused whole, with an
//!   answer that says whether sending it again helps: `UNAVAILABLE` (with a hint when) does,
//!   `INVALID_ARGUMENT`, `UNAUTHENTICATED` and `PERMISSION_DENIED` don't.
//! - Keys under `warden.dev/` count only from agents; from others they are taken off.
//! - A sender is slowed down, then told to come back; it never takes more than its share of the
//!   store, and what is fatal passes that bound.
//!
//! # Bounds
//! 4 MiB and 1,000 events a batch; `ingest.max_connections`; 64 calls at a time a connection.

pub mod limits;
pub mod listener;
mod service;
mod skew;

use std::time::Duration;

use tonic::Status;

pub use service::EventService;
pub(crate) use service::{new_event, status_of};
pub use skew::ClockSkews;
pub(crate) use skew::own_event;

/// Trailing metadata by which a gRPC server says when to try again, as gRPC's own clients read it
/// (gRFC A6).
const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// Adds to a status when to try again.
pub fn with_retry_hint(mut status: Status, after: Duration) -> Status {
    let milliseconds = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
    status.metadata_mut().insert(PUSHBACK, milliseconds.into());
    status
}
