//! What Warden's programs say about themselves: log, metrics, readiness.
//!
//! # Invariants
//! - A metric or log-event name is spelt once, here; call sites use one struct an event, whose
//!   `emit` writes the log line and the metrics together.
//! - Labels come from bounded sets (codes, states, rule names, node names of the cluster); text of
//!   errors never is a label.
//! - Where the meaning is the reference's, so is the name (`metrics.csv` of the fact sheets).
//!
//! # Reading order
//! [`logging`] the subscriber, [`metrics`] the controller's numbers, [`events`] what is logged,
//! [`admin`] `/healthz`, `/readyz`, `/metrics`.

pub mod admin;
pub mod events;
pub mod logging;
pub mod metrics;

pub use admin::{Admin, Readiness, Subsystem};
pub use metrics::ControllerMetrics;
