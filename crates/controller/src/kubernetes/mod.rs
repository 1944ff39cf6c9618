//! The way to the API server: a client that answers in bounded time, and the patches.
//!
//! # Invariants
//! - Every call has a deadline; only a watch's body has none. Nothing is repeated behind the
//!   caller's back: [`Kube::call`] repeats what the server did not take (429, 5xx, connection lost),
//!   within the caller's deadline, and says what happened.
//! - Whatever changes an object is a [`Write`] and passes two crash points: clippy refuses other ways.
//! - Small writes leave at once (`TCP_NODELAY`): without it the first request of a connection
//!   waits 40 ms for an acknowledgement that the server delays.

mod call;
mod client;
mod lines;
mod objects;
pub mod patch;
mod reference;
pub mod rights;
mod write;

pub use call::{Call, CallError, Kube, Metadata, Refusal};
pub(crate) use call::{jittered, percent_encoded};
pub use client::{ClientError, WARM, client, config};
pub use lines::MAX_LINE_BYTES;
pub(crate) use lines::{Lines, NotBegun};
pub(crate) use objects::{Change, Collection, Trouble, follow};
pub use reference::{Program, Reference};
pub use write::Write;
