//! What a line of the kernel log says about the machine's parts: pure detection.
//!
//! [`rules::KernelLog`] is fed with one [`kmsg::Record`] after the other and answers with
//! [`finding::Finding`]s, each with a [`health_event::HealthEvent`] that lacks only what the
//! reader of the log knows: node, id and time.
//!
//! # Invariants
//! - No IO, no clock, no environment: the same records in the same order give the same findings.
//! - No input panics, stalls or grows the state without bound (proptests beside the parsers,
//!   fuzz targets in `fuzz/`).
//! - A record that matches nothing costs one pass of the prefilter and no allocation
//!   (`tests/main.rs`).
//! - Built-in detectors believe only records of kernel origin, unless told otherwise, and then
//!   every event says so.
//!
//! # Reading order
//! [`kmsg`] and [`lines`] what comes in, [`rules`] which detector looks at it, [`xid`] the
//! detector of GPU driver errors, [`finding`] what comes out.

pub mod finding;
pub mod kmsg;
pub mod lines;
mod pattern;
pub mod rules;
pub mod xid;

pub use finding::{Finding, Kind, Severity};
pub use kmsg::{Origin, Record};
pub use rules::{KernelLog, KernelLogConfig};
