//! `warden completions SHELL`.

use std::io::{self, Write as _};

use clap::CommandFactory as _;

use crate::Cli;
use crate::output::{Exit, unless_gone};

const AFTER_HELP: &str = "\
Examples:
  bash  source <(warden completions bash)
  zsh   warden completions zsh > \"${fpath[1]}/_warden\"
  fish  warden completions fish > ~/.config/fish/completions/warden.fish

Exit codes: 0 printed; 2 wrong usage.";

/// For which shell.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// The shell that reads them.
    shell: clap_complete::Shell,
}

/// Prints the completions.
///
/// # Errors
/// If standard output can't be written.
pub fn run(args: &Args) -> io::Result<Exit> {
    let mut script = Vec::new();
    // Without what `crate::command` hides: completions would offer it.
    clap_complete::generate(args.shell, &mut Cli::command(), "warden", &mut script);
    unless_gone(io::stdout().write_all(&script))?;
    Ok(Exit::Clean)
}
