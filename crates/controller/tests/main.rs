//! The controller's parts on a real control plane (`testbed`).

mod harness;

mod quarantine;
