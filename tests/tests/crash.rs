//! Every point at which a program can die, one run each, and random moments. Each test has a
//! control plane of its own: a controller that comes back looks at all nodes.

use std::time::Instant;

use e2e::crash::{Crash, Lane, Victim, When};
use testbed::{Options, Testbed};

/// Random runs here; `make soak` does more.
const RANDOM_RUNS: u64 = 10;

/// Points that a starting agent passes for its own sake; later times are those of events.
const LATER: [&str; 4] = [
    "spool.commit.before:10",
    "spool.commit.after:10",
    "delivery.send.before:5",
    "delivery.send.after:5",
];

/// Points that a starting controller passes for its own sake; later passes are those of events,
/// reports, decisions and their outcomes.
const LATER_OF_THE_CONTROLLER: [&str; 10] = [
    // Intents: to take out, taken out, to give back. Patches: out, and back.
    "quarantine.before-intent:3",
    "quarantine.after-intent:3",
    "write.node.before:2",
    "write.node.after:2",
    "store.commit.before:6",
    "store.commit.after:6",
    "store.commit.before:12",
    "store.commit.after:12",
    "store.commit.before:20",
    "store.commit.after:20",
];

async fn testbed() -> Testbed {
    Testbed::start(Options::default()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_dies_at_any_point_loses_and_repeats_nothing() {
    let testbed = testbed().await;
    let mut lane = Lane::start(&testbed, "points").await.unwrap();
    for point in agent::crash::POINTS.into_iter().chain(LATER) {
        let started = Instant::now();
        // Room is made in a full spool only.
        let run = if point.starts_with("spool.compact") {
            lane.run_spool_full(point).await
        } else {
            let crash = Crash {
                victim: Victim::Agent,
                when: When::At(point),
            };
            lane.run(crash).await.map(drop)
        };
        println!("{point}: {} s", started.elapsed().as_secs());
        run.unwrap_or_else(|error| panic!("{point}: {error:#}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_dies_at_any_point_loses_and_repeats_nothing() {
    let testbed = testbed().await;
    let mut lane = Lane::start(&testbed, "points").await.unwrap();
    let points = controller::crash::POINTS.into_iter();
    for point in points.chain(LATER_OF_THE_CONTROLLER) {
        let started = Instant::now();
        // A list is asked for only where the sets of asserted faults differ.
        let run = if point == "report.after-close" {
            lane.run_store_lost(point).await
        } else {
            let crash = Crash {
                victim: Victim::Controller,
                when: When::At(point),
            };
            lane.run(crash).await.map(drop)
        };
        println!("{point}: {} s", started.elapsed().as_secs());
        run.unwrap_or_else(|error| panic!("{point}: {error:#}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_at_any_moment_loses_and_repeats_nothing() {
    let testbed = testbed().await;
    let mut lane = Lane::start(&testbed, "random").await.unwrap();
    let first = u64::from(std::process::id());
    println!("seeds {first} to {}", first + RANDOM_RUNS - 1);
    for seed in first..first + RANDOM_RUNS {
        let run = lane.run(Crash::random(seed)).await;
        run.unwrap_or_else(|error| panic!("seed {seed}: {error:#}"));
    }
}
