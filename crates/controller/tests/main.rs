//! The controller's parts on a real control plane (`testbed`).

mod harness;
mod process;

mod quarantine;
mod audit;
mod connector;
mod lease;
mod nodes;
mod ingest;
mod trust;
mod reports;
mod startup;
mod latency_tmp;
