//! The event service: from a sender's call to events on disk.
//!
//! # Guarantees
//! - The reply comes after the whole batch is durable (P1). Anything else is refused whole, with an
//!   answer that says whether sending it again helps: `UNAVAILABLE` (with a hint when) does,
//!   `INVALID_ARGUMENT`, `UNAUTHENTICATED` and `PERMISSION_DENIED` don't.
//! - Keys under `warden.dev/` count only from agents; from others they are taken off.
//! - Transformers have a fixed order: labels of the node first, then overrides, which may read them.
//!   What was said counts where an event is compared with itself (its fingerprint), what became of it
//!   everywhere else.
//! - A sender is slowed down, then told to come back; it never takes more than its share of the
//!   store, and what is fatal passes that bound.
//!
//! # Bounds
//! 4 MiB and 1,000 events a batch; `ingest.max_connections`; 64 calls at a time a connection.

pub mod idle;
pub mod limits;
pub mod listener;
mod service;
mod skew;
mod transform;

pub use service::EventService;
pub(crate) use service::{new_event, released, status_of};
pub use skew::ClockSkews;
pub(crate) use skew::own_event;
pub use transform::Transformers;
pub(crate) use transform::overrides;
