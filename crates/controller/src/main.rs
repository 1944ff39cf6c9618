//! `warden-controller`.

use std::process::ExitCode;

use clap::Parser as _;
use controller::args::Args;
use controller::config::ConfigError;
use controller::run;

/// A configuration that can't be used, and a command line that can't.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let prepared = match run::prepare(Args::parse()) {
        Ok(prepared) => prepared,
        Err(error) => return fail(&error),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return fail(&anyhow::Error::new(error).context("starting the runtime")),
    };
    let outcome = runtime.block_on(run::run(prepared));
    // What still runs holds nothing that must be finished.
    runtime.shutdown_background();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

#[expect(
    clippy::print_stderr,
    reason = "the last words of the process, also before logging"
)]
fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("warden-controller: {error:#}");
    if error.is::<ConfigError>() {
        ExitCode::from(USAGE)
    } else {
        ExitCode::FAILURE
    }
}
