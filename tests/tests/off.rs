//! Quarantine switched off, or down to dry run, while a write of it is under way; and on again.

use std::path::Path;
use std::time::Duration;

use e2e::machine::{SOON, until_state};
use e2e::monitor::{Monitor, fatal, healthy};
use e2e::{Controller, ControllerOptions, nodes};
use testbed::wait_for;
use wire::datamodels::HealthEvent;

use crate::kit::{AT_ONCE, Turn, explained};

/// `[quarantine]` with one more line.
fn with(line: &str) -> ControllerOptions {
    ControllerOptions {
        extra: AT_ONCE.replace("[quarantine]\n", &format!("[quarantine]\n{line}\n")),
        ..ControllerOptions::default()
    }
}

fn off() -> ControllerOptions {
    with("enabled = false")
}

fn dying_at(point: &str) -> ControllerOptions {
    ControllerOptions {
        flags: vec!["--crash-at".to_owned(), point.to_owned()],
        ..with("")
    }
}

fn fault(node: &str) -> HealthEvent {
    let mut event = fatal("GpuMemWatch", "48", "0");
    node.clone_into(&mut event.node_name);
    event
}

/// A controller on the store in `folder` that dies at a point for what it is told.
async fn dies(turn: &Turn, folder: &Path, point: &str, told: HealthEvent) {
    let mut controller = Controller::start(turn.testbed, folder, &dying_at(point))
        .await
        .unwrap();
    let monitor = Monitor::on_port(controller.ingest).unwrap();
    // It may die before it answers.
    let _ = monitor.call(vec![told]).await;
    assert!(controller.ended_within(SOON), "it dies at {point}");
}

async fn starts(turn: &Turn, folder: &Path, options: &ControllerOptions) -> Controller {
    Controller::start(turn.testbed, folder, options)
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_under_way_when_quarantine_went_off_ends_as_the_node_shows_and_nothing_is_written()
{
    let turn = Turn::take().await;
    turn.nodes(&["off-a", "off-b"]).await;
    let client = turn.testbed.admin();
    let (unwritten, written) = (turn.folder(), turn.folder());

    // The intent is stored, the write was never sent: the node was not taken out, and is not.
    dies(&turn, &unwritten, "quarantine.after-intent", fault("off-a")).await;
    let mut controller = starts(&turn, &unwritten, &off()).await;
    let incident = until_state(&controller, "off-a", "Observed").await.unwrap();
    explained(
        &controller,
        "off-a",
        &[
            "quarantine is switched off: nothing is written",
            "Quarantine is off",
        ],
    );
    let node = nodes::read(&client, "off-a").await.unwrap();
    assert!(!nodes::is_cordoned(&node) && nodes::marks(&node).is_empty());
    controller.stop().unwrap();
    // On again it acts on what is open at that moment, in the same incident.
    let mut controller = starts(&turn, &unwritten, &with("")).await;
    turn.node("off-a", "out", nodes::is_cordoned).await;
    let out = until_state(&controller, "off-a", "Quarantined")
        .await
        .unwrap();
    assert_eq!(out["id"], incident["id"]);
    controller.stop().unwrap();

    // The write arrived, its answer did not: the node is out, and stays so.
    dies(&turn, &written, "write.node.after", fault("off-b")).await;
    let mut controller = starts(&turn, &written, &off()).await;
    until_state(&controller, "off-b", "Quarantined")
        .await
        .unwrap();
    let monitor = Monitor::on_port(controller.ingest).unwrap();
    monitor.say(healthy(&fault("off-b"))).await.unwrap();
    controller.stop().unwrap();
    // Nor does dry run give it back.
    let mut controller = starts(&turn, &written, &with("dry_run = true")).await;
    until_state(&controller, "off-b", "Quarantined")
        .await
        .unwrap();
    assert!(nodes::is_cordoned(
        &nodes::read(&client, "off-b").await.unwrap()
    ));
    controller.stop().unwrap();
    let mut controller = starts(&turn, &written, &with("")).await;
    turn.node("off-b", "given back", |node| {
        !nodes::is_cordoned(node) && nodes::marks(node).is_empty()
    })
    .await;
    controller.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_under_way_when_quarantine_went_off_is_told_apart_by_the_node() {
    let turn = Turn::take().await;
    turn.nodes(&["rel-a", "rel-b"]).await;
    let client = turn.testbed.admin();
    for (name, point, written) in [
        ("rel-a", "quarantine.after-intent", false),
        ("rel-b", "write.node.after", true),
    ] {
        let folder = turn.folder();
        let mut controller = starts(&turn, &folder, &with("")).await;
        let monitor = Monitor::on_port(controller.ingest).unwrap();
        monitor.say(fault(name)).await.unwrap();
        until_state(&controller, name, "Quarantined").await.unwrap();
        controller.stop().unwrap();
        dies(&turn, &folder, point, healthy(&fault(name))).await;
        let mut controller = starts(&turn, &folder, &off()).await;
        if written {
            let closed = until_state(&controller, name, "Closed").await.unwrap();
            assert_eq!(closed["detail"], "Recovered");
        } else {
            until_state(&controller, name, "Releasing").await.unwrap();
            explained(
                &controller,
                name,
                &[
                    "it is not begun again before Warden may write",
                    "Quarantine is off",
                ],
            );
            assert!(nodes::is_cordoned(
                &nodes::read(&client, name).await.unwrap()
            ));
        }
        controller.stop().unwrap();
        let mut controller = starts(&turn, &folder, &with("")).await;
        turn.node(name, "given back", |node| {
            !nodes::is_cordoned(node) && nodes::marks(node).is_empty()
        })
        .await;
        controller.stop().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn switched_on_again_the_oldest_fault_goes_first_after_the_delay() {
    let turn = Turn::take().await;
    // By name the youngest would be first.
    let names = ["on-c", "on-b", "on-a"];
    turn.nodes(&names).await;
    let folder = turn.folder();
    let mut controller = starts(&turn, &folder, &off()).await;
    let monitor = Monitor::on_port(controller.ingest).unwrap();
    for name in names {
        monitor.say(fault(name)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    controller.stop().unwrap();
    // A window as long as the test: one goes, the others wait for their turn.
    let on = ControllerOptions {
        extra: "[lease]\nduration = \"10s\"\n[quarantine]\nfirst_action_delay = \"3s\"\n\
                [quarantine.circuitBreaker]\nduration = \"1h\"\n"
            .to_owned(),
        ..ControllerOptions::default()
    };
    // Off is known to have been off: on again is a step up, and waits as the first start does.
    let mut controller = starts(&turn, &folder, &on).await;
    for name in names {
        let incident = until_state(&controller, name, "Withheld").await.unwrap();
        assert_eq!(incident["withheld_by"], "first_action", "{incident:#}");
    }
    turn.node("on-c", "out", nodes::is_cordoned).await;
    for name in &names[1..] {
        let what = format!("{name} to wait for its turn");
        wait_for(what, SOON, || async {
            let node = controller.json(&format!("/api/v1/nodes/{name}")).await?;
            Ok((node["incidents"][0]["withheld_by"] == "pace").then_some(()))
        })
        .await
        .unwrap();
    }
    controller.stop().unwrap();
}
