//! Moving the work off nodes that are out.
//!
//! # How
//! One worker a node at a time looks at the open incident of the node, its faults and its pods,
//! decides (`decide::drain`), stores what it decided, and puts the calls that follow into one queue.
//! The queue makes some calls at a time over all nodes, which take turns ([`lanes`]), so that no node's worker
//! waits for an API server; just before each call the incident's version is read again. What became of a
//! call is kept in memory by pod, and wakes the node.
//!
//! # Guarantees
//! - No call without the incident, in the version that it was decided for (P2); each names the pod's
//!   UID, so that another pod of the name is not touched (P3).
//! - After a restart deadlines are those that were stored. A pod that is going is not asked again.
//! - While pods may have changed unseen, nothing is decided by them (P6).
//! - Switched off, drains that run are cancelled, and nothing is followed (P9).
//!
//! # Bounds
//! The queue holds a call at most for each pod of the nodes that are to be empty.

mod apply;
mod asked;
mod facts;
mod lanes;
mod other;
mod run;
mod said;
mod settings;
mod startup;
mod work;

pub use run::{DrainError, run};
