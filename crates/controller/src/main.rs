//! `warden-controller`.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use controller::args::Args;
use controller::config::{Config, ConfigError, Problem};
use controller::run;
use health_event::text::chain;

/// A configuration that can't be used, and a command line that can't.
const USAGE: u8 = 2;

/// A burst takes and frees millions of small pieces on every thread. The system's allocator keeps
/// what lies between those still in use.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Threads that serve: each has memory of its own, and one leader's work does not fill more.
const THREADS: usize = 8;

fn main() -> ExitCode {
    let args = Args::read();
    if let Some(file) = &args.check_config {
        return check(file).unwrap_or_else(|error| fail(&error));
    }
    let prepared = match run::prepare(args) {
        Ok(prepared) => prepared,
        Err(error) => return fail(&error),
    };
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get().min(THREADS));
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
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

/// `--check-config FILE`: everything that is wrong (`[[fault]]`) and odd (`[[warning]]`), and if
/// nothing is wrong what Warden does on its own (`acts`) and what a node costs (`[node_cache]`), as
/// TOML. A file of the reference is told in Warden's keys (`[reference]`).
fn check(file: &Path) -> anyhow::Result<ExitCode> {
    let reading = || format!("reading the configuration {}", file.display());
    let text = controller::config::read(file).with_context(reading)?;
    let mut out = std::io::stdout().lock();
    let theirs = controller::reference::translate(&text);
    if let Some(theirs) = &theirs {
        writeln!(out, "{}", theirs.table())?;
    }
    let (problems, warnings) = match &theirs {
        Some(theirs) => (theirs.problems.clone(), Vec::new()),
        None => run::check(&text),
    };
    let wrong = !problems.is_empty();
    if !wrong
        && theirs.is_none()
        && let Ok(config) = Config::parse(&text)
    {
        let acts = toml::Table::from_iter([("acts".to_owned(), config.acts().into())]);
        write!(out, "{acts}")?;
    }
    for (name, list) in [("fault", &problems), ("warning", &warnings)] {
        for Problem {
            key,
            value,
            allowed,
        } in list
        {
            let texts = [("key", key), ("value", value), ("allowed", allowed)];
            let told: toml::Table = texts
                .map(|(k, v)| (k.to_owned(), v.as_str().into()))
                .into_iter()
                .collect();
            writeln!(out, "[[{name}]]\n{told}")?;
        }
    }
    let cost = run::node_cost(&text).filter(|_| !wrong && theirs.is_none());
    if let Some(cost) = cost {
        writeln!(out, "[node_cache]\n{}", cost.table())?;
    }
    Ok(if wrong {
        ExitCode::from(USAGE)
    } else {
        ExitCode::SUCCESS
    })
}

#[expect(
    clippy::print_stderr,
    reason = "the last words of the process, also before logging"
)]
fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("warden-controller: {}", chain(error.as_ref()));
    if error.is::<ConfigError>() {
        ExitCode::from(USAGE)
    } else {
        ExitCode::FAILURE
    }
}
