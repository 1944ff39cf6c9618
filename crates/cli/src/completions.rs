//! `warden completions SHELL`.

use std::io::{self, Write as _};

use clap::CommandFactory as _;

use crate::Cli;
use crate::output::Exit;

/// For which shell.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell that will read them.
    shell: clap_complete::Shell,
}

/// Prints the completions.
///
/// # Errors
/// If standard output can't be written.
pub fn run(args: &Args) -> io::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "warden", &mut script);
    io::stdout().write_all(&script)?;
    Ok(Exit::Clean)
}
