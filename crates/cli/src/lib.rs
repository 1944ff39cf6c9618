//! The subcommands of `warden`, one module each, and what they share about output.
//!
//! Every subcommand takes its own `Args` and [`output::Options`], writes to standard output, and
//! answers with an [`output::Exit`]. Errors name the object, what was tried, why it failed and
//! what to do next.

use clap::{Parser, Subcommand};

pub mod completions;
pub mod output;
pub mod scan;

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
    /// Print the completions of a shell.
    Completions(completions::Args),
}
