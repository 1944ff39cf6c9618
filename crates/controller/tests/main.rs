//! The controller's parts on a real control plane (`testbed`).
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "the helpers of a test fail it, as the test itself does"
)]
#![expect(
    clippy::disallowed_methods,
    reason = "a test writes as persons and other programs do"
)]

mod harness;
mod process;
mod voice;

mod agents;
mod api;
mod audit;
mod connector;
mod crowd;
mod drain;
mod footing;
mod ingest;
mod janitor;
mod lease;
mod metrics;
mod node_cost;
mod nodes;
mod older;
mod owner;
mod quarantine;
mod remediation;
mod reports;
mod rows;
mod startup;
mod store_log;
mod store_lost;
mod transformers;
mod trust;
