//! The controller's memory: events, faults, incidents, transitions, in one SQLite database.
//!
//! # Guarantees
//! - A reply to a write comes after the commit reached the disk; what was acknowledged survives
//!   `kill -9`, a full disk and a restart.
//! - Faults are the fold of [`health_event::ScopeState`] over the events, written in the
//!   transaction that stores them. Open faults never fall to retention.
//! - Positions of events, and apart from them those of transitions, are gapless and rising.
//! - A transition is a compare-and-set on incident, version and leadership, with its cause.
//! - One process writes, in one thread; readers see whole commits, and after a reply at least its
//!   own.
//!
//! # Assumptions
//! A file system that keeps what `fsync` promised; one store a folder.
//!
//! # Reading order
//! [`store`] the handle, [`read`] what can be read, [`types`] what goes in and out, then the
//! inside: `writer` (group commit), `ledger` (what it keeps in memory), `append` (idempotency),
//! `fold` (repeats, counts, what the agent asserts), `scopes` (rows of one check), `closing` and
//! `changes` (other writes), `renamed` (checks with another name since), `retention`, `shares` (of
//! senders).

mod append;
pub mod bounds;
mod changes;
mod checkpoint;
mod closing;
mod codec;
mod encode;
mod error;
mod facts;
mod fold;
mod footing;
mod ledger;
mod options;
mod queue;
pub mod read;
mod recent;
mod records;
mod renamed;
mod reply;
mod retention;
mod rows;
mod schema;
mod scopes;
mod shares;
mod startup;
pub mod store;
pub mod types;
mod writer;

pub use error::{OpenError, ReadError, WriteError};
pub use options::{CrashPoints, Options};
pub use reply::Reply;
pub use scopes::COPIES_MAX;
pub use store::{CommitListener, EventStore};
pub use types::{
    Appended, AssertedFault, Batch, Commit, Consumer, Counters, Fingerprint, Gap, IncidentFilter,
    LastOrder, Machine, NewEvent, Outcome, Pruned, Shed, Standing, Stats, StoredEvent, StoredFault,
    StoredTransition, Transition, TransitionsOf, Unopened,
};
