//! Crash runs at random moments.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::bail;
use e2e::crash::{Lane, Outcome, Plan, Story, Victim};
use testbed::{Options, Testbed};

use crate::say;

/// One run and how it went.
struct Line {
    seed: u64,
    plan: Plan,
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
        let plan = Plan::random(seed);
        let outcome = lane.follow(plan).await;
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
            "{:>5}/{runs}  seed {seed}  {plan}: {how}",
            lines.len() + 1
        ));
        lines.push(Line {
            seed,
            plan,
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
        "| story | who died | runs | failed | amid it | acknowledged | tries more |"
    )?;
    writeln!(text, "|---|---|---|---|---|---|---|")?;
    let victims = [(Victim::Agent, "agent"), (Victim::Controller, "controller")];
    let kinds = Story::ALL
        .into_iter()
        .flat_map(|story| victims.map(|who| (story, who)));
    for (story, (victim, name)) in kinds {
        let of = || {
            let kind = |line: &&Line| line.plan.story == story && line.plan.crash.victim == victim;
            lines.iter().filter(kind)
        };
        let good = || of().filter_map(|line| line.outcome.as_ref().ok());
        writeln!(
            text,
            "| {} | {name} | {} | {} | {} | {} | {} |",
            story.name(),
            of().count(),
            of().count() - good().count(),
            good().filter(|outcome| outcome.amid).count(),
            good().map(|outcome| outcome.acknowledged).sum::<usize>(),
            good().map(|outcome| outcome.retries).sum::<u32>()
        )?;
    }
    writeln!(
        text,
        "\nSends: a client sends events and repeats and keeps what was acknowledged; the node goes \
         out and comes back; all acknowledged contents are stored once and in order, the counts add \
         up, one incident, one release. Refused: the same after an event that the controller refuses; it is \
         put aside and told as lost, once. Reboot: the same, with a fault of the kernel log that ends \
         with a reboot. Breaker: a second node trips it; a person resets it, holds and releases a \
         node; each goes out and comes back as often as it should. Took {:.0} s.",
        took.as_secs_f64()
    )?;
    for line in lines {
        if let Err(error) = &line.outcome {
            writeln!(
                text,
                "\nSeed {} ({}):\n\n```\n{error:#}\n```",
                line.seed, line.plan
            )?;
        }
    }
    Ok(text)
}
