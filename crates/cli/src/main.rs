//! `warden`, the program for people.

use std::process::ExitCode;

use clap::Parser;
use cli::output::{self, Exit};
use cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(exit) => exit.into(),
        Err(error) => {
            output::report_error(error.as_ref());
            Exit::Error.into()
        }
    }
}

/// One arm a subcommand; each lives in a module of its name.
fn run(cli: &Cli) -> anyhow::Result<Exit> {
    match &cli.command {
        Command::Scan(args) => Ok(cli::scan::run(args, &cli.output)?),
        Command::Completions(args) => Ok(cli::completions::run(args)?),
    }
}
