//! Every point at which a program can die, one run each, and random moments. Each test has a
//! control plane of its own: a controller that comes back looks at all nodes.

use std::time::Instant;

use e2e::crash::{Crash, Lane, Moment, Plan, Story, Victim, When, Whole};
use e2e::machine::SOON;
use e2e::monitor::fatal;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use testbed::{Options, Testbed};

use crate::kit::Turn;
use crate::trust::{self, CA, Fleet, bundle, forget_authority};

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
const LATER_OF_THE_CONTROLLER: [&str; 18] = [
    // Steps of a new store's schema.
    "store.begin.before:2",
    "store.begin.after:2",
    // Intents: to take out, taken out, to give back. Patches: out, and back.
    "quarantine.before-intent:3",
    "quarantine.after-intent:3",
    "write.node.before:2",
    "write.node.after:2",
    "write.conditions.before:2",
    "write.conditions.after:2",
    "write.event.before:20",
    "write.event.after:20",
    // Taken at the start, renewed later.
    "write.lease-renewal.before:3",
    "write.lease-renewal.after:3",
    "store.commit.before:6",
    "store.commit.after:6",
    "store.commit.before:12",
    "store.commit.after:12",
    "store.commit.before:20",
    "store.commit.after:20",
];

/// Later passes of the whole loop: between each commit of drain and remediation and what it is followed by,
/// and some commits of all modules on the way.
const LATER_OF_THE_WHOLE: [&str; 12] = [
    // The first begins the drain; the second says that the node is empty.
    "drain.before-transition:2",
    "drain.after-transition:2",
    // Planned; then ordered, before the object is made; seen; succeeded.
    "remediation.before-transition:2",
    "remediation.after-transition:2",
    "remediation.before-transition:3",
    "remediation.after-transition:3",
    "remediation.before-transition:4",
    "remediation.after-transition:4",
    "store.commit.before:10",
    "store.commit.after:10",
    "store.commit.before:14",
    "store.commit.after:14",
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
        let crash = Crash {
            victim: Victim::Agent,
            when: When::At(point),
        };
        let part = point.rsplit_once('.').map_or(point, |(part, _)| part);
        let run = match part {
            // Room is made in a full spool only.
            "spool.compact" => lane.run_spool_full(point).await,
            "spool.take-out" => lane.run_refused(crash).await.map(drop),
            "spool.copy" => lane.run_removed(point).await,
            "spool.replace" => lane.run_damaged(point).await,
            _ => lane.run(crash).await.map(drop),
        };
        println!("{point}: {} s", started.elapsed().as_secs());
        run.unwrap_or_else(|error| panic!("{point}: {error:#}"));
    }
}

/// What has to be there for a controller to pass a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needs {
    /// Nothing but what every run does.
    Loop,
    /// A Lease.
    Lease,
    /// TLS under an authority of its own.
    Authority,
    /// Everything that follows the cordon.
    Whole,
    /// A person's order of a reboot, and its end.
    Order,
}

/// Each point of the product is in one of the groups, so each is run: a new one that is never
/// passed fails its group.
fn needs(point: &str) -> Needs {
    let (what, _) = point.rsplit_once('.').unwrap_or_default();
    match what {
        "write.lease" | "write.lease-renewal" => Needs::Lease,
        "write.authority" | "write.authority-change" | "write.bundle" | "write.bundle-change" => {
            Needs::Authority
        }
        "write.eviction"
        | "write.pod-deletion"
        | "write.repair"
        | "write.repair-status"
        | "write.node-lock"
        | "write.node-unlock"
        | "drain"
        | "remediation"
        | "janitor" => Needs::Whole,
        "write.repair-expiry" | "write.repair-deletion" => Needs::Order,
        _ => Needs::Loop,
    }
}

fn points(of: Needs) -> Vec<&'static str> {
    let all = controller::crash::POINTS.into_iter();
    let all = all.chain(LATER_OF_THE_CONTROLLER);
    let mut points: Vec<_> = all.filter(|point| needs(point) == of).collect();
    if of == Needs::Whole {
        points.extend(LATER_OF_THE_WHOLE);
    }
    points
}

async fn die_at(lane: &mut Lane<'_>, point: &'static str) -> String {
    let started = Instant::now();
    // A list is asked for only where the sets of asserted faults differ, and a store is begun where
    // there is none.
    let run = if point == "report.after-close" || point.starts_with("store.begin") {
        lane.run_store_lost(point).await
    } else {
        let crash = Crash {
            victim: Victim::Controller,
            when: When::At(point),
        };
        lane.run(crash).await.map(drop)
    };
    run.unwrap_or_else(|error| panic!("{point}: {error:#}"));
    format!("{point}: {} s", started.elapsed().as_secs())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_dies_at_any_point_loses_and_repeats_nothing() {
    let testbed = testbed().await;
    let mut lane = Lane::start(&testbed, "points").await.unwrap();
    for point in points(Needs::Loop) {
        println!("{}", die_at(&mut lane, point).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_dies_with_its_lease_half_written_loses_and_repeats_nothing() {
    let testbed = testbed().await;
    let mut lane = Lane::start_leased(&testbed, "leased").await.unwrap();
    for point in points(Needs::Lease) {
        println!("{}", die_at(&mut lane, point).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_dies_behind_the_cordon_moves_reboots_and_gives_back_once() {
    let testbed = testbed().await;
    let mut whole = Whole::start(&testbed, "whole").await.unwrap();
    for point in points(Needs::Whole) {
        let started = Instant::now();
        let run = whole.run_loop(point).await;
        let far = run.unwrap_or_else(|error| panic!("{point}: {error:#}"));
        println!("{point}: {} s, died {far}", started.elapsed().as_secs());
    }
    for point in points(Needs::Order) {
        let started = Instant::now();
        let run = whole.run_order(point).await;
        run.unwrap_or_else(|error| panic!("{point}: {error:#}"));
        println!("{point}: {} s", started.elapsed().as_secs());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_dies_with_its_authority_half_made_is_trusted_after_its_next_start() {
    let turn = Turn::take().await;
    turn.testbed.ensure_namespace("warden").await.unwrap();
    forget_authority(&turn).await;
    let mut controller = trust::controller(&turn).await;
    let fleet = Fleet::new(&turn).await;
    for (number, point) in points(Needs::Authority).into_iter().enumerate() {
        controller.stop().unwrap();
        if point.contains("-change") {
            near_its_end(&turn).await;
        } else {
            forget_authority(&turn).await;
        }
        controller.set_flags(vec!["--crash-at".to_owned(), point.to_owned()]);
        controller.spawn_again().unwrap();
        let died = controller.ended_within(SOON);
        assert!(died, "it never came to {point}; {}", controller.log_tail());
        controller.restart().await.unwrap();
        // Certificates in the bundle: the one that signs, and in a change the next one.
        let bundle = bundle(&turn).await;
        let certificates = bundle.matches("BEGIN CERTIFICATE").count();
        let wanted = if point.contains("-change") { 2 } else { 1 };
        assert_eq!(certificates, wanted, "{point}");
        // An agent that trusts what is published comes through.
        let name = format!("trusts-{number}");
        let machine = fleet.machine(&controller, &name).await;
        let fault = fatal("GpuMemWatch", "48", "0");
        machine.monitor.say(fault).await.unwrap();
        let out = machine.until_state(&controller, "Quarantined").await;
        out.unwrap_or_else(|error| panic!("{point}: {error:#}"));
    }
}

/// Gives the authority a month to live: a next one is due.
async fn near_its_end(turn: &Turn) {
    let end = (Timestamp::now() + SignedDuration::from_hours(24 * 30)).to_string();
    let data = json!({ "stringData": { "ca.not-after": end }, "data": {
        "next.crt": null, "next.key": null, "next.not-after": null, "next.published-at": null,
    } });
    let secrets: Api<Secret> = Api::namespaced(turn.testbed.admin(), "warden");
    let params = PatchParams::default();
    secrets
        .patch(CA, &params, &Patch::Merge(data))
        .await
        .unwrap();
}

/// What an agent passes when it starts in a new boot: the word that its fault is gone, its report
/// that it is settled, and their delivery.
const AFTER_A_REBOOT: [&str; 10] = [
    "spool.commit.before",
    "spool.commit.after",
    "spool.commit.before:2",
    "spool.commit.after:2",
    "delivery.send.before",
    "delivery.send.after",
    "report.send.before",
    "report.send.after",
    "report.send.before:2",
    "report.send.after:2",
];

/// What a controller passes that was started just before: report, healthy event, intent, release.
const RELEASE: [&str; 17] = [
    "ingest.before-append",
    "ingest.after-append",
    "report.before-compare",
    "quarantine.before-intent",
    "quarantine.after-intent",
    "write.node.before",
    "write.node.after",
    "write.conditions.before",
    "write.conditions.after",
    "store.commit.before",
    "store.commit.after",
    "store.commit.before:3",
    "store.commit.after:3",
    "store.commit.before:5",
    "store.commit.after:5",
    "store.commit.before:7",
    "store.commit.after:7",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_dies_at_any_point_of_a_reboot_releases_once_and_for_its_reason() {
    let testbed = testbed().await;
    let mut lane = Lane::start(&testbed, "reboots").await.unwrap();
    let agent = AFTER_A_REBOOT.map(|point| (Victim::Agent, point));
    let controller = RELEASE.map(|point| (Victim::Controller, point));
    for (victim, point) in agent.into_iter().chain(controller) {
        let started = Instant::now();
        let when = When::At(point);
        let run = lane.run_reboot(Crash { victim, when }, Moment::Turn).await;
        println!("{victim:?} at {point}: {} s", started.elapsed().as_secs());
        run.unwrap_or_else(|error| panic!("{victim:?} at {point}: {error:#}"));
    }
}

/// What a controller passes between the end of the first node's fault and the end of the story:
/// release, reset, take-out of the withheld node, its release, hold and release by a person.
const BREAKER: [&str; 18] = [
    "quarantine.before-intent",
    "quarantine.after-intent",
    "quarantine.before-intent:3",
    "quarantine.after-intent:3",
    "quarantine.before-intent:5",
    "quarantine.after-intent:5",
    "quarantine.before-intent:7",
    "quarantine.after-intent:7",
    "write.node.before:2",
    "write.node.after:2",
    "write.node.before:3",
    "write.node.after:3",
    "write.node.before:4",
    "write.node.after:4",
    "store.commit.before:8",
    "store.commit.after:8",
    "store.commit.before:14",
    "store.commit.after:14",
];

/// The same from the beginning: the first goes out, the second trips the breaker.
const TRIP: [&str; 4] = [
    "quarantine.before-intent:3",
    "quarantine.after-intent:3",
    "store.commit.before:6",
    "store.commit.after:6",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_dies_between_a_trip_and_a_release_by_a_person_forgets_no_node() {
    let testbed = testbed().await;
    let mut lane = Lane::start(&testbed, "breaker").await.unwrap();
    let trip = TRIP.map(|point| (Moment::Beginning, point));
    let later = BREAKER.map(|point| (Moment::Turn, point));
    let mut failed = Vec::new();
    for (moment, point) in trip.into_iter().chain(later) {
        let started = Instant::now();
        let crash = Crash {
            victim: Victim::Controller,
            when: When::At(point),
        };
        let run = lane.run_breaker(crash, moment).await;
        println!("{point}: {} s", started.elapsed().as_secs());
        failed.extend(run.err().map(|error| format!("{point}: {error:#}")));
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

/// Random moments of the whole loop here.
const WHOLE_RUNS: u64 = 10;

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_at_any_moment_of_the_whole_loop_reboots_once_and_gives_back() {
    let testbed = testbed().await;
    let mut whole = Whole::start(&testbed, "moments").await.unwrap();
    let first = u64::from(std::process::id());
    let mut within = 0;
    for seed in first..first + WHOLE_RUNS {
        let started = Instant::now();
        let after = Whole::moment(seed);
        let run = whole.run_at(after).await;
        let far = run.unwrap_or_else(|error| panic!("seed {seed}: {error:#}"));
        let (after, took) = (after.as_millis(), started.elapsed().as_millis());
        println!("seed {seed}: killed after {after} ms, {far}; {took} ms in all");
        within += u64::from(far.is_within());
    }
    println!("{within} of {WHOLE_RUNS} were killed between the first step and the last");
    assert!(
        within >= WHOLE_RUNS / 2,
        "{within} kills alone met the loop"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_at_any_moment_loses_and_repeats_nothing() {
    let testbed = testbed().await;
    let mut lane = Lane::start(&testbed, "random").await.unwrap();
    let first = u64::from(std::process::id());
    let plans: Vec<Plan> = (first..first + RANDOM_RUNS).map(Plan::random).collect();
    for story in Story::ALL {
        assert!(plans.iter().any(|plan| plan.story == story), "{story:?}");
    }
    println!("seeds {first} to {}", first + RANDOM_RUNS - 1);
    for (seed, plan) in (first..).zip(plans) {
        let started = Instant::now();
        let run = lane.follow(plan).await;
        println!("{plan}: {} s", started.elapsed().as_secs());
        run.unwrap_or_else(|error| panic!("seed {seed}: {error:#}"));
    }
}
