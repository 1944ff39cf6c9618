//! The subcommands of `warden`, one module each, and what they share about output.
//!
//! Every subcommand takes its own `Args` and [`output::Options`], writes to standard output, and
//! answers with an [`output::Exit`]. Errors name the object, what was tried, why it failed and
//! what to do next.

use std::ffi::OsStr;
use std::path::Path;

use clap::builder::Resettable;
use clap::{Arg, CommandFactory as _, Parser, Subcommand};

pub mod api;
mod ask;
pub mod breaker;
pub mod cancel;
pub mod close;
pub mod completions;
pub mod config;
pub mod explain;
pub mod hold;
pub mod inject;
pub mod output;
pub mod release;
pub mod scan;
mod stages;
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
    /// How the controller is reached.
    #[command(flatten)]
    pub connection: api::Connection,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done, nothing wrong; 1 done, and something is wrong: faults \
found (scan, config check), a fault or an incident open (explain), only recorded (hold, release, cancel), \
anything out of order (status --check, and only with it); 2 wrong usage, or something could not be read, reached or done. \
Each command's --help says it for that command.";

/// Subcommands that ask no controller.
const ALONE: [&str; 4] = ["scan", "inject", "config", "completions"];

/// The command line. The connection's flags may stand before and behind a subcommand's name; the
/// subcommands that ask no controller pass them over, and their help does not show them.
pub fn command() -> clap::Command {
    with_plain_usage(flags())
}

fn flags() -> clap::Command {
    let whole = Cli::command()
        .mut_subcommand("scan", scan::with_later_flags)
        .mut_args(without_an_empty_variable);
    let connection = whole
        .get_arguments()
        .filter(|argument| api::FLAGS.contains(&argument.get_id().as_str()));
    let hidden: Vec<Arg> = connection
        .map(|argument| argument.clone().hide(true))
        .collect();
    ALONE.into_iter().fold(whole, |command, name| {
        command.mut_subcommand(name, |alone| alone.args(hidden.clone()))
    })
}

/// The same as its help and errors show it when it was started as `program`: under the name
/// `kubectl-warden` it is what `kubectl warden` runs.
pub fn command_as(program: &OsStr) -> clap::Command {
    let stem = Path::new(program).file_stem().unwrap_or_default();
    if stem == "kubectl-warden" {
        with_plain_usage(flags().bin_name("kubectl warden"))
    } else {
        command()
    }
}

/// A variable that is set and empty counts as not set.
fn without_an_empty_variable(argument: Arg) -> Arg {
    let value = argument.get_env().and_then(std::env::var_os);
    if value.is_some_and(|value| value.is_empty()) {
        argument.env(Resettable::Reset)
    } else {
        argument
    }
}

/// Errors show the usage that help shows. By itself an error's usage lists whatever has a value,
/// by default or by a variable too, as if it were required.
fn with_plain_usage(command: clap::Command) -> clap::Command {
    let mut built = command.clone();
    built.build();
    usage_of(command, &built)
}

fn usage_of(command: clap::Command, built: &clap::Command) -> clap::Command {
    let usage = built.clone().render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage).to_owned();
    let inner = built
        .get_subcommands()
        .filter(|inner| inner.get_name() != "help");
    inner.fold(command.override_usage(usage), |command, inner| {
        command.mut_subcommand(inner.get_name(), |plain| usage_of(plain, inner))
    })
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Find GPU driver errors (XIDs) in kernel logs, anywhere, without a cluster.
    Scan(scan::Args),
    /// Show the whole cluster on one screen: nodes that are out, breaker, agents, store.
    Status(status::Args),
    /// Tell what is wrong with a node, what was done, what comes next and what you can do.
    Explain(explain::Args),
    /// Show step by step what happened to a node or in an incident.
    Timeline(timeline::Args),
    /// Show or reset the breaker, which bounds how many nodes Warden takes out.
    Breaker(breaker::Args),
    /// Take a node out of service until a person releases it.
    Hold(hold::Args),
    /// Give a node back: end a hold, or its incident.
    Release(release::Args),
    /// End a node's incident now, with its hold, drain and repair.
    Cancel(cancel::Args),
    /// Close one fault that you know to be over.
    Close(close::Args),
    /// Report a health event through the agent's socket on this node, for tests and drills.
    Inject(inject::Args),
    /// Check a configuration file of warden-controller or warden-agent.
    Config(config::Args),
    /// Print a shell's completions of this program.
    Completions(completions::Args),
}
