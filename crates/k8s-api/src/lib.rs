//! What Warden says to and reads from Kubernetes: every name, and the values that stand under
//! them.
//!
//! # Invariants
//! - No client, no clock: names are constants, values are parsed and rendered.
//! - Whatever [`marks`] and [`health_events`] render, they parse back to the same value; what they
//!   parse was written by anyone, so a text that is no such value is an error and never a panic.
//!
//! # Reading order
//! [`names`] what exists and who writes it, [`marks`] the values of our annotations and labels,
//! [`health_events`] the list that tells other programs which faults hold a node, [`reboot_node`] the
//! order to reboot one, [`remediation_state`] which of them repairs a node.

pub mod health_events;
pub mod marks;
pub mod names;
pub mod reboot_node;
pub mod remediation_state;

pub use marks::{AppliedTaint, ConditionList, IncidentMark, ValueError};
