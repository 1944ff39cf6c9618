//! The program `warden-agent`: flags, configuration, logging, and the runtime of one thread.

mod args;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use agent::config;
use anyhow::Context as _;
use args::Args;
use config::Given;
use health_event::text::chain;

/// Exit code of a wrong flag or configuration.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let (args, given) = Args::read();
    if let Some(file) = &args.check_config {
        return check(file, given).unwrap_or_else(|error| {
            complain(&error);
            ExitCode::FAILURE
        });
    }
    let (config, logging) = match load(&args, &given) {
        Ok(loaded) => loaded,
        Err(error) => {
            complain(&error);
            return ExitCode::from(USAGE);
        }
    };
    #[cfg(debug_assertions)]
    if let Some(place) = &args.crash_at
        && !agent::crash::choose(place)
    {
        let places = agent::crash::POINTS.join(", ");
        complain(&anyhow::anyhow!(
            "--crash-at {place:?}; allowed: one of {places}, with :N for the N-th time"
        ));
        return ExitCode::from(USAGE);
    }
    match start(config, &logging) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}

/// `--check-config FILE`: everything that is wrong, as TOML. The node's name comes from the pod's
/// environment, so that a file without one is whole.
fn check(file: &Path, mut given: Vec<Given>) -> anyhow::Result<ExitCode> {
    let text = config::read(file)
        .with_context(|| format!("configuration file {} can't be read", file.display()))?;
    if config::value_of(&text, "node_name").is_none() {
        given.push(Given {
            key: "node_name",
            name: "node_name",
            value: "checked".to_owned(),
        });
    }
    let faults = config::load(&text, &given)
        .err()
        .map(|error| error.0)
        .unwrap_or_default();
    let mut out = std::io::stdout().lock();
    for config::Fault {
        key,
        value,
        allowed,
    } in &faults
    {
        let texts = [
            ("key", Some(key)),
            ("value", value.as_ref()),
            ("allowed", Some(allowed)),
        ];
        let texts = texts
            .into_iter()
            .filter_map(|(k, v)| Some((k.to_owned(), v?.as_str().into())));
        writeln!(out, "[[fault]]\n{}", texts.collect::<toml::Table>())?;
    }
    let wrong = !faults.is_empty();
    Ok(if wrong {
        ExitCode::from(USAGE)
    } else {
        ExitCode::SUCCESS
    })
}

struct Logging {
    format: String,
    filter: String,
}

fn load(args: &Args, given: &[Given]) -> anyhow::Result<(config::Config, Logging)> {
    let file = match &args.config {
        Some(path) => config::read(path)
            .with_context(|| format!("configuration file {} can't be read", path.display()))?,
        None => String::new(),
    };
    let config = config::load(&file, given)?;
    let value = |key: &str, default: &str| {
        let given = given.iter().find(|given| given.key == key);
        given
            .map(|given| given.value.clone())
            .or_else(|| config::value_of(&file, key))
            .unwrap_or_else(|| default.to_owned())
    };
    let logging = Logging {
        format: value("log.format", "auto"),
        filter: value("log.filter", "info"),
    };
    Ok((config, logging))
}

fn start(config: config::Config, logging: &Logging) -> anyhow::Result<()> {
    telemetry::logging::init(logging.format.parse()?, &logging.filter)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime can't be started")?;
    runtime.block_on(agent::run::run(config))?;
    Ok(())
}

#[expect(
    clippy::print_stderr,
    reason = "the program's last word; logging may not be set up yet"
)]
fn complain(error: &anyhow::Error) {
    eprintln!("warden-agent: {}", chain(error.as_ref()));
}
