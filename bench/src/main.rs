//! `make bench`: measures the programs as they are shipped, on a real control plane, over socket
//! and TCP with TLS and tokens, and sets each figure beside the raw limit of the same run.
//!
//! A measurement that does not run counts as missed. The table is printed and kept under
//! `bench/results/`.

mod agent_alone;
mod appends;
mod burst;
mod cluster;
mod decisions;
mod facts;
mod fleet;
mod idle;
mod incident;
mod kmsg;
mod latency;
mod process;
mod raw;
mod reconnect;
mod report;
mod seen;
mod standin;
mod stats;
mod suite;
mod whole;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, ValueEnum};

use crate::facts::{Facts, workspace};
use crate::suite::Suite;

/// The controller's, whose store and decisions are measured in this process.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Groups of rows that can be measured alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Group {
    /// The event store alone.
    Store,
    /// Quarantine decisions alone.
    Decide,
    /// Kernel line → decoded.
    Decoded,
    /// Floods of lines.
    Flood,
    /// API calls an incident.
    Calls,
    /// Kernel line → unschedulable.
    Line,
    /// The same after idle.
    Idle,
    /// Socket event → unschedulable.
    Socket,
    /// One fault in a storm.
    Storm,
    /// Release of one.
    Release,
    /// 100, 200 and 1,000 nodes at once.
    Burst,
    /// Memory and CPU.
    Memory,
    /// All agents come back after a kill of the controller.
    Reconnect,
    /// Drain, reboot and release: calls, single stages, evictions, and 1,000 nodes at once.
    Whole,
    /// The reboots of 1,000 empty nodes ordered at once.
    Orders,
}

/// Measures Warden.
#[derive(Debug, Parser)]
#[command(name = "bench", version, about)]
pub(crate) struct Args {
    /// Measure only these groups of rows.
    #[arg(long, value_delimiter = ',', value_enum)]
    only: Vec<Group>,
    /// A short smoke of every row: the figures prove nothing.
    #[arg(long)]
    quick: bool,
    /// How long nothing happens before the lines after idle [default: 10, of which the goal
    /// speaks; after less the row is no answer to it].
    #[arg(long)]
    idle_minutes: Option<u64>,
    /// Nodes that go through all stages, or whose reboots are ordered, at once [default: 1000].
    #[arg(long)]
    whole_nodes: Option<usize>,
    /// Rounds of each burst [default: 7; evictions of group `whole` have 2].
    #[arg(long)]
    rounds: Option<usize>,
    /// Folder of the stores of this run, on the disk that counts [default: in target].
    #[arg(long)]
    scratch: Option<PathBuf>,
    /// More TOML for the controller, to try out what a setting does.
    #[arg(long, default_value = "")]
    settings: String,
    /// Don't write a file under bench/results.
    #[arg(long)]
    no_file: bool,
}

/// Idle time of which the goal speaks.
pub(crate) const GOAL_IDLE: Duration = Duration::from_mins(10);

impl Args {
    fn wants(&self, group: Group) -> bool {
        self.only.is_empty() || self.only.contains(&group)
    }

    /// The whole measurement, or the smoke.
    fn pick<T>(&self, whole: T, smoke: T) -> T {
        if self.quick { smoke } else { whole }
    }

    fn rounds(&self) -> usize {
        self.rounds.unwrap_or_else(|| self.pick(7, 1)).max(1)
    }

    /// As [`Args::rounds`], of the evictions.
    fn eviction_rounds(&self) -> usize {
        self.rounds.unwrap_or_else(|| self.pick(2, 1)).max(1)
    }

    fn whole_nodes(&self) -> usize {
        self.whole_nodes
            .unwrap_or_else(|| self.pick(1_000, 8))
            .max(1)
    }

    fn idle(&self) -> Duration {
        let minutes = self.idle_minutes.map(Duration::from_mins);
        minutes.unwrap_or_else(|| self.pick(GOAL_IDLE, Duration::from_secs(2)))
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = tokio::select! {
        outcome = measure(&args) => outcome,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted; everything was stopped")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("bench: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn measure(args: &Args) -> anyhow::Result<()> {
    let scratch = args
        .scratch
        .clone()
        .unwrap_or_else(|| workspace().join("target"));
    std::fs::create_dir_all(&scratch)
        .with_context(|| format!("creating the folder {}", scratch.display()))?;
    let scratch = tempfile::Builder::new()
        .prefix("bench-")
        .tempdir_in(&scratch)
        .context("making a scratch folder")?;
    let facts = Facts::observe(scratch.path())?;
    for (name, value) in &facts.machine {
        say(&format!("{name}: {value}"));
    }
    let rows = Suite::new(args, scratch.path()).run().await;
    say(&format!("\n{}", report::text(&rows)));
    if args.no_file {
        return Ok(());
    }
    let command: Vec<String> = std::env::args().skip(1).collect();
    let command = format!("bench {}", command.join(" "));
    let page = report::markdown(&rows, &facts, command.trim_end());
    let path = report::keep(&page, &facts, &workspace().join("bench/results"))?;
    say(&format!("kept in {}", path.display()));
    Ok(())
}

/// A line for people; a closed pipe ends the output, not the measurement.
pub(crate) fn say(text: &str) {
    writeln!(std::io::stdout().lock(), "{text}").ok();
}
