//! `make soak`: crash runs at random moments, as many as asked for, with a summary that is kept.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use e2e::crash::{Crash, Lane, Outcome, Victim};
use testbed::{Options, Testbed};

/// Runs unless `--runs` says otherwise.
const RUNS: u64 = 60;

fn main() -> ExitCode {
    let options = match Asked::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            say(&format!(
                "soak: {error}\nusage: soak [--runs N] [--seed N] [--results DIR]"
            ));
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(soak(&options)),
        Err(error) => Err(error.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("soak: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// The command line.
struct Asked {
    runs: u64,
    seed: u64,
    results: PathBuf,
}

impl Asked {
    fn parse(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut asked = Self {
            runs: RUNS,
            seed: u64::from(std::process::id()) << 16,
            results: repository.join("bench/results"),
        };
        while let Some(flag) = arguments.next() {
            let value = arguments
                .next()
                .with_context(|| format!("{flag} has no value"))?;
            let number = || {
                value
                    .parse()
                    .with_context(|| format!("{flag} {value}: want a number"))
            };
            match flag.as_str() {
                "--runs" => asked.runs = number()?,
                "--seed" => asked.seed = number()?,
                "--results" => asked.results = PathBuf::from(&value),
                _ => bail!("unknown option {flag}"),
            }
        }
        Ok(asked)
    }
}

/// One run and how it went.
struct Line {
    seed: u64,
    crash: Crash,
    outcome: anyhow::Result<Outcome>,
}

async fn soak(asked: &Asked) -> anyhow::Result<()> {
    let Asked {
        runs,
        seed,
        results,
    } = asked;
    say(&format!("{runs} crash runs, seeds from {seed}"));
    let testbed = Testbed::start(Options::default()).await?;
    let mut lane = Lane::start(&testbed, "soak").await?;
    let started = Instant::now();
    let mut lines = Vec::new();
    for seed in *seed..seed + runs {
        let crash = Crash::random(seed);
        let outcome = lane.run(crash).await;
        let how = match &outcome {
            Ok(outcome) => format!(
                "ok: {} acknowledged, {} tries more, {:.1} s",
                outcome.acknowledged,
                outcome.retries,
                outcome.took.as_secs_f64()
            ),
            Err(error) => format!("FAILED: {error:#}"),
        };
        say(&format!(
            "{:>5}/{runs}  seed {seed}  {crash}: {how}",
            lines.len() + 1
        ));
        lines.push(Line {
            seed,
            crash,
            outcome,
        });
    }
    let text = summary(&lines, started.elapsed())?;
    let path = write(results, &text)?;
    say(&format!("\n{text}\nwritten to {}", path.display()));
    let failed = lines.iter().filter(|line| line.outcome.is_err()).count();
    ensure!(failed == 0, "{failed} of {runs} runs failed");
    Ok(())
}

fn summary(lines: &[Line], took: Duration) -> anyhow::Result<String> {
    let mut text = String::from("# Crash runs\n\n");
    let now = jiff::Zoned::now();
    writeln!(text, "{} at random moments, {}.\n", lines.len(), now.date())?;
    writeln!(
        text,
        "| who died | runs | failed | amid the sends | acknowledged | tries more |"
    )?;
    writeln!(text, "|---|---|---|---|---|---|")?;
    for (victim, name) in [(Victim::Agent, "agent"), (Victim::Controller, "controller")] {
        let of = || lines.iter().filter(|line| line.crash.victim == victim);
        let good = || of().filter_map(|line| line.outcome.as_ref().ok());
        writeln!(
            text,
            "| {name} | {} | {} | {} | {} | {} |",
            of().count(),
            of().count() - good().count(),
            good().filter(|outcome| outcome.amid).count(),
            good().map(|outcome| outcome.acknowledged).sum::<usize>(),
            good().map(|outcome| outcome.retries).sum::<u32>()
        )?;
    }
    writeln!(
        text,
        "\nEach run: a client sends events and repeats and keeps what was acknowledged; the node \
         goes out and comes back; all acknowledged contents are stored once and in order, the \
         counts add up, one incident, one release. Took {:.0} s.",
        took.as_secs_f64()
    )?;
    for line in lines {
        if let Err(error) = &line.outcome {
            writeln!(
                text,
                "\nSeed {} ({}):\n\n```\n{error:#}\n```",
                line.seed, line.crash
            )?;
        }
    }
    Ok(text)
}

fn write(folder: &Path, text: &str) -> anyhow::Result<PathBuf> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("creating the folder {}", folder.display()))?;
    let path = folder.join(format!("soak-{}.md", jiff::Zoned::now().date()));
    std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

#[expect(clippy::print_stderr, reason = "the program's output for people")]
fn say(text: &str) {
    eprintln!("{text}");
}
