//! `warden`, the program for people.

use std::process::ExitCode;

use clap::FromArgMatches as _;
use cli::output::{self, Exit};
use cli::{Cli, Command};

fn main() -> ExitCode {
    let program = std::env::args_os().next().unwrap_or_default();
    let matches = cli::command_as(&program).get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
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
        Command::Status(args) => Ok(cli::status::run(args, &cli.connection, &cli.output)?),
        Command::Explain(args) => Ok(cli::explain::run(args, &cli.connection, &cli.output)?),
        Command::Timeline(args) => Ok(cli::timeline::run(args, &cli.connection, &cli.output)?),
        Command::Breaker(args) => Ok(cli::breaker::run(args, &cli.connection, &cli.output)?),
        Command::Hold(args) => Ok(cli::hold::run(args, &cli.connection, &cli.output)?),
        Command::Release(args) => Ok(cli::release::run(args, &cli.connection, &cli.output)?),
        Command::Cancel(args) => Ok(cli::cancel::run(args, &cli.connection, &cli.output)?),
        Command::Close(args) => Ok(cli::close::run(args, &cli.connection, &cli.output)?),
        Command::Inject(args) => Ok(cli::inject::run(args, &cli.output)?),
        Command::Config(args) => Ok(cli::config::run(args, &cli.output)?),
        Command::Completions(args) => Ok(cli::completions::run(args)?),
    }
}
