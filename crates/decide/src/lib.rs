//! Decisions, without any effect: `(what is, now) -> (what shall be, what to do)`.
//!
//! # Invariants
//! - No IO, clock, randomness or environment; equal arguments give equal answers (ordered maps
//!   only). The manifest and `clippy.toml` of this crate hold that.
//! - A decision names the transition and its cause as data; the shell stores, writes and reports.
//!
//! # Reading order
//! [`rules`] which faults take a node out, [`breaker`] how many nodes may be out, [`quarantine`]
//! what happens to one node, [`drain`] how the work leaves it, [`remediation`] what repair is
//! ordered, [`janitor`] how a reboot goes, [`connector`] what the node's conditions and Events say,
//! [`gone`] what becomes of the faults of nodes that are gone.

pub mod breaker;
pub mod connector;
pub mod drain;
pub mod gone;
pub mod janitor;
pub mod quarantine;
pub mod remediation;
pub mod rules;

#[cfg(test)]
mod kit;

use jiff::{SignedDuration, Timestamp};

/// A deadline: the end of time where it would lie beyond.
fn later(at: Timestamp, span: SignedDuration) -> Timestamp {
    at.checked_add(span).unwrap_or(Timestamp::MAX)
}
