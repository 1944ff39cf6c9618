//! Crash runs at random moments.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::bail;
use e2e::crash::{Lane, Outcome, Plan, Story, Victim, Whole};
use testbed::{Options, Testbed};

use crate::say;

/// One run of the short loop, from fault to release without a drain or a repair, for so many of the whole.
const WHOLE_FOR_A_SHORT: u64 = 4;

/// One run and how it went.
struct Line {
    seed: u64,
    plan: Plan,
    outcome: anyhow::Result<Outcome>,
}

/// So many runs of the whole loop, with seeds from `first` on, and fewer of the short one; answers a
/// summary.
///
/// # Errors
/// The summary, if a run failed.
pub(crate) async fn run(first: u64, runs: u64) -> anyhow::Result<String> {
    let (mut text, mut failed) = whole(first, runs).await?;
    let (short, short_failed) = short(first, runs.div_ceil(WHOLE_FOR_A_SHORT)).await?;
    text.push_str(&short);
    failed |= short_failed;
    if failed {
        bail!("{text}");
    }
    Ok(text)
}

/// Runs of the short loop: agent or controller are killed anywhere in a story. Answers a summary, and
/// whether one failed.
async fn short(first: u64, runs: u64) -> anyhow::Result<(String, bool)> {
    say(&format!(
        "{runs} crash runs of the short loop, seeds from {first}"
    ));
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
    Ok((text, lines.iter().any(|line| line.outcome.is_err())))
}

/// Runs of the whole loop: a controller that is killed anywhere between the line and the release.
/// Answers a summary, and whether one failed.
async fn whole(first: u64, runs: u64) -> anyhow::Result<(String, bool)> {
    say(&format!(
        "{runs} crash runs of the whole loop, seeds from {first}"
    ));
    let testbed = Testbed::start(Options::default()).await?;
    let mut whole = Whole::start(&testbed, "whole").await?;
    let started = Instant::now();
    let mut failures = String::new();
    let (mut failed, mut within) = (0, 0);
    for seed in first..first + runs {
        let after = Whole::moment(seed);
        let run = whole.run_at(after).await;
        let how = match &run {
            Ok(far) => {
                within += u64::from(far.is_within());
                format!("{far}: ok")
            }
            Err(error) => format!("FAILED: {error:#}"),
        };
        say(&format!(
            "seed {seed}  killed after {} ms: {how}",
            after.as_millis()
        ));
        if let Err(error) = run {
            failed += 1;
            writeln!(failures, "\nSeed {seed}:\n\n```\n{error:#}\n```")?;
        }
    }
    let text = format!(
        "## Crash runs of the whole loop\n\n{runs} kills of the controller at random moments of the \
         first {} ms after the line, {failed} failed: two pods are moved, the machine is rebooted once, \
         the node is back. {within} met the loop between its first stored step and its last; fewer \
         than half would fail. Took {:.0} s.\n{failures}",
        Whole::MILLIS,
        started.elapsed().as_secs_f64()
    );
    Ok((text, failed > 0 || within < runs / 2))
}

fn summary(lines: &[Line], took: Duration) -> anyhow::Result<String> {
    let mut text = format!(
        "\n## Crash runs of the short loop\n\n{} at random moments.\n\n",
        lines.len()
    );
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
