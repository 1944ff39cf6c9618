//! Crash runs at random moments.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::bail;
use e2e::crash::{Crash, Lane, Outcome, Victim};
use testbed::{Options, Testbed};

use crate::say;

/// One run and how it went.
struct Line {
    seed: u64,
    crash: Crash,
    outcome: anyhow::Result<Outcome>,
}

/// So many runs, with seeds from `first` on; answers a summary.
///
/// # Errors
/// The summary, if a run failed.
pub(crate) async fn run(first: u64, runs: u64) -> anyhow::Result<String> {
    say(&format!("{runs} crash runs, seeds from {first}"));
    let testbed = Testbed::start(Options::default()).await?;
    let mut lane = Lane::start(&testbed, "soak").await?;
    let started = Instant::now();
    let mut lines = Vec::new();
    for seed in first..first + runs {
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
    if lines.iter().any(|line| line.outcome.is_err()) {
        bail!("{text}");
    }
    Ok(text)
}

fn summary(lines: &[Line], took: Duration) -> anyhow::Result<String> {
    let mut text = format!("## Crash runs\n\n{} at random moments.\n\n", lines.len());
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
