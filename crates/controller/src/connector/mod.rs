//! Shows on the node objects what is wrong: conditions for fatal faults, Events for the others.
//!
//! # Guarantees
//! - A condition's message is rendered from the store, never from what stands on the node.
//! - The types that we wrote are listed on the node itself, in the same patch, so that a
//!   controller that lost its store still knows what to take back.
//! - Foreign types are never touched; the reference's only while it does not run.
//! - An Event that repeats is counted, not written again, and never looked for by a list: its name
//!   follows from what it says.
//!
//! # Bounds
//! One patch a node at a time; Events by pages of [`events::PAGE`], at most [`events::AT_ONCE`]
//! calls at a time; what a check last said healthy is kept for [`healthy::CHECKS`] checks a node.
//!
//! # Reading order
//! `healthy` what is known to be well, `facts` what is seen, `conditions` one node's turn,
//! [`events`] the follower of the store, `steps` what it says of what modules don't do, `looks` of what drains wait for, `run` all of it.

mod conditions;
pub mod events;
mod facts;
pub mod healthy;
mod looks;
mod run;
mod steps;

pub use facts::unconfirmed;
pub use run::{ConnectorError, run};
