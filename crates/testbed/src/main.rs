//! Runs a control plane with simulated GPU nodes until Ctrl-C, for trying things by hand.

mod next_steps;

use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Parser;
use testbed::{Options, Testbed};
use tokio::signal::unix::{SignalKind, signal};

/// Runs a real Kubernetes control plane with simulated GPU nodes until Ctrl-C.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Number of GPU nodes (gpu-00000, ...).
    #[arg(long, default_value_t = 10)]
    nodes: usize,
    /// Folder for data, logs and kubeconfigs, empty or not there yet [default: a temporary one].
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Leave that folder where it is at the end.
    #[arg(long)]
    keep: bool,
    /// Have etcd wait for the disk, as in production.
    #[arg(long)]
    fsync: bool,
    /// Have the API server keep an audit log (log/audit.log).
    #[arg(long)]
    audit_log: bool,
    /// Seconds without a heartbeat after which a node is Unknown [default: 50, over 200 nodes 400].
    #[arg(long)]
    node_grace_seconds: Option<u64>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let mut output = std::io::stdout();
    let mut interrupt = signal(SignalKind::interrupt()).context("listening for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let begin = Instant::now();
    writeln!(output, "starting (nodes: {}) ...", arguments.nodes)?;
    let start = Testbed::start(Options {
        nodes: arguments.nodes,
        fsync: arguments.fsync,
        audit_log: arguments.audit_log,
        folder: arguments.dir,
        node_grace: arguments.node_grace_seconds.map(Duration::from_secs),
        ..Options::default()
    });
    let mut testbed = tokio::select! {
        testbed = start => testbed?,
        _ = interrupt.recv() => return Ok(()),
        _ = terminate.recv() => return Ok(()),
    };
    if arguments.keep {
        testbed.keep()?;
    }
    let next = next_steps::prepare(&testbed, arguments.nodes).await?;
    writeln!(output, "ready after {:.1?}\n{next}", begin.elapsed())?;
    let outcome = tokio::select! {
        ended = testbed::unasked_end() => Err(ended.into()),
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    };
    writeln!(output, "stopping")?;
    drop(testbed);
    outcome
}
