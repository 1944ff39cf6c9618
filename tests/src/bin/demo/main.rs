//! `make demo`: a fault in the real kernel log takes a node out of scheduling, its work moves off, it
//! is rebooted, and once it is proven to be well it is back.
//!
//! Exit status: 0 when a separate read of the API server proved the whole of it: all nodes as they were,
//! the one that fell ill Ready in another boot, its order ended, all pods running (with `KEEP=1` also when
//! Ctrl-C ended it afterwards), 130 when it was interrupted before that, else 1.
//! No process outlives it, whichever way it ends.

mod look;
mod measured;
mod story;
mod verify;
mod work;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{anyhow, ensure};
use e2e::view::View;
use testbed::Ended;

/// Wrong usage.
const USAGE: u8 = 2;
/// What a shell says of a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;
/// A step fails a moment before it is seen that a program died under it, or after.
const SAME_CAUSE: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> ExitCode {
    let view = View::default();
    if let Some(argument) = std::env::args().nth(1) {
        view.title(&format!(
            "demo takes no arguments, {argument:?} neither. KEEP=1 in the environment leaves it running until \
             Ctrl-C, to look around in it."
        ));
        return ExitCode::from(USAGE);
    }
    let shown = AtomicBool::new(false);
    // The demo's future owns all processes: past this statement they are gone.
    let outcome = tokio::select! {
        biased;
        () = interrupted() => None,
        outcome = watched(&view, &shown) => Some(outcome),
    };
    match outcome {
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(error)) => {
            view.title(&format!("The demo failed: {error:#}"));
            ExitCode::FAILURE
        }
        None if shown.load(Ordering::SeqCst) => {
            view.title("Ctrl-C: everything was stopped.");
            ExitCode::SUCCESS
        }
        None => {
            view.title("Interrupted before the end; everything was stopped.");
            ExitCode::from(INTERRUPTED)
        }
    }
}

async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut int), Ok(mut term)) = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    ) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = int.recv() => {}
        _ = term.recv() => {}
    }
}

/// The demo, and a watch over its programs: one that dies ends it, by name, within a second.
async fn watched(view: &View, shown: &AtomicBool) -> anyhow::Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "the demo writes a line to /dev/kmsg, which only root may: run it as root"
    );
    let keep = std::env::var_os("KEEP").is_some_and(|value| !value.is_empty() && value != "0");
    story::introduce(view);
    // Before this is done a program that ends is told, or started again elsewhere, by the start.
    let testbed = story::cluster(view).await?;
    let ended = tokio::select! {
        outcome = story::tell(view, testbed, keep, shown) => match outcome {
            Ok(()) => return Ok(()),
            Err(error) if error.is::<Ended>() => error,
            Err(error) => match tokio::time::timeout(SAME_CAUSE, testbed::unasked_end()).await {
                Ok(ended) => anyhow!("{ended}\n\nSeen as: {error:#}"),
                Err(_) => error,
            },
        },
        ended = testbed::unasked_end() => anyhow!(ended),
    };
    Err(ended)
}
