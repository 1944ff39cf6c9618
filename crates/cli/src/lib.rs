//! The subcommands of `warden`, one module each, and what they share about output.
//!
//! Every subcommand takes its own `Args` and [`output::Options`], writes to standard output, and
//! answers with an [`output::Exit`]. Errors name the object, what was tried, why it failed and
//! what to do next.

use clap::{Parser, Subcommand};

pub mod api;
mod ask;
pub mod breaker;
pub mod close;
pub mod completions;
pub mod config;
pub mod explain;
pub mod hold;
pub mod inject;
pub mod output;
pub mod release;
pub mod scan;
pub mod status;
pub mod timeline;
mod tls;
mod words;

/// Finds hardware faults on Kubernetes GPU nodes, and shows what Warden does about them.
#[derive(Debug, Parser)]
#[command(name = "warden", version, after_help = EXIT_CODES)]
pub struct Cli {
    /// How to print.
    #[command(flatten)]
    pub output: output::Options,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done, nothing wrong; 1 done, faults found or the object \
asked for is unhealthy; 2 usage or input/output error.";

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Decode kernel logs anywhere, without a cluster.
    Scan(scan::Args),
    /// Show the whole cluster on one screen: nodes out, breaker, silent agents, store.
    Status(status::Args),
    /// Tell what is wrong with a node, what was done, what comes next and what you can do.
    Explain(explain::Args),
    /// Show step by step what happened to a node or in an incident.
    Timeline(timeline::Args),
    /// Show or reset the bound on nodes out of service.
    Breaker(breaker::Args),
    /// Take a node out of service until a person releases it.
    Hold(hold::Args),
    /// End a hold, or give a node back now.
    Release(release::Args),
    /// Close one fault that you know to be over.
    Close(close::Args),
    /// Report a health event through the agent's socket on this node.
    Inject(inject::Args),
    /// Check a configuration file.
    Config(config::Args),
    /// Print the completions of a shell.
    Completions(completions::Args),
}
