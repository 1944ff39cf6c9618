//! What needs a controller of its own: bounds, lost stores, outages.

use std::time::Duration;

use e2e::machine::{SOON, events, until, until_state};
use e2e::monitor::{fatal, healthy, warning};
use e2e::{Controller, ControllerOptions, KernelLog, Machine, Monitor, nodes};
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::{Api, Client};
use serde_json::json;
use testbed::{Component, wait_for};

use crate::kit::{AT_ONCE, Turn, done, explained, refused};

const XID_79: &str =
    "NVRM: Xid (PCI:0000:17:00): 79, pid=4242, name=train.py, GPU has fallen off the bus.";

fn at_once() -> ControllerOptions {
    ControllerOptions {
        extra: AT_ONCE.to_owned(),
        ..ControllerOptions::default()
    }
}

/// A person's cordon and uncordon, both of which the controller has seen.
async fn cordon_and_uncordon(turn: &Turn, controller: &Controller, name: &str) {
    let client = turn.testbed.admin();
    for cordoned in [true, false] {
        nodes::set_cordon(&client, name, cordoned).await.unwrap();
        until(controller, name, "seen", |node| {
            node["object"]["cordoned"] == cordoned
        })
        .await
        .unwrap();
    }
}

/// Events about a node that the controller made of its own.
async fn own_events(client: &Client, node: &str) -> Vec<Event> {
    let events: Api<Event> = Api::namespaced(client.clone(), "default");
    let list = events.list(&ListParams::default()).await.unwrap();
    let ours = |event: &Event| {
        event.involved_object.name.as_deref() == Some(node)
            && event.reporting_component.as_deref() == Some("warden-controller")
    };
    list.into_iter().filter(ours).collect()
}

async fn reasons(client: &Client, node: &str) -> Vec<String> {
    let events = own_events(client, node).await;
    events
        .into_iter()
        .filter_map(|event| event.reason)
        .collect()
}

/// Waits for an Event about a node with this reason and all of these words.
async fn told(client: &Client, node: &str, reason: &str, words: &[&str]) {
    let what = format!("an Event {reason} about {node}");
    wait_for(what, SOON, || async {
        let events = own_events(client, node).await;
        let found = events.iter().any(|event| {
            let message = event.message.as_deref().unwrap_or_default();
            event.reason.as_deref() == Some(reason)
                && event.type_.as_deref() == Some("Warning")
                && words.iter().all(|word| message.contains(word))
        });
        Ok(found.then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_breaker_withholds_the_third_of_four_and_forgets_nobody() {
    let turn = Turn::take().await;
    let names = ["b0", "b1", "b2", "b3"];
    turn.nodes(&names).await;
    let options = ControllerOptions {
        // The level's default of 50 % is two of four; the rate is not what is looked at here.
        extra: "[lease]\nduration = \"10s\"\n[quarantine]\nfirst_action_delay = \"0s\"\n\
                [quarantine.circuitBreaker]\npercentage = 100\n"
            .to_owned(),
        ..ControllerOptions::default()
    };
    let mut controller = turn.controller(&options).await;
    let direct = Monitor::on_port(controller.ingest).unwrap();
    let fault = |node: &str| {
        let mut event = fatal("GpuMemWatch", "48", "0");
        event.node_name = node.to_owned();
        event
    };
    for name in &names[..2] {
        direct.say(fault(name)).await.unwrap();
        turn.node(name, "out", nodes::is_cordoned).await;
        until_state(&controller, name, "Quarantined").await.unwrap();
    }
    for name in &names[2..] {
        direct.say(fault(name)).await.unwrap();
        until_state(&controller, name, "Withheld").await.unwrap();
    }
    let pools = controller.json("/api/v1/breaker").await.unwrap();
    let gpu = pools
        .as_array()
        .unwrap()
        .iter()
        .find(|pool| pool["pool"] == "gpu")
        .unwrap()
        .clone();
    assert_eq!(gpu["tripped"], true, "{gpu:#}");
    assert_eq!(gpu["out"], 2, "{gpu:#}");
    assert_eq!(gpu["withheld"], json!(["b2", "b3"]), "{gpu:#}");
    let node = controller.json("/api/v1/nodes/b2").await.unwrap();
    assert_eq!(node["incidents"][0]["withheld_by"], "breaker", "{node:#}");
    explained(
        &controller,
        "b2",
        &[
            "should be out of service, but is withheld",
            "rule      GPU fatal error ruleset",
            "Not taken out yet: the pool's breaker is tripped by its level bound.",
            "The breaker of pool gpu is tripped: 2 of 4 nodes out, 2 withheld.",
            "warden breaker reset --pool gpu ",
        ],
    );

    let client = turn.testbed.admin();
    // Whoever is on call sees it with `kubectl get events`: the trip once, at the node that tripped.
    let words = ["level bound of pool gpu", "2 nodes counted, 2 of them"];
    told(&client, "b2", "BreakerTripped", &words).await;
    for name in &names[2..] {
        let words = ["not taken out of service", "level bound", "warden explain"];
        told(&client, name, "QuarantineWithheld", &words).await;
    }
    assert_eq!(reasons(&client, "b3").await, ["QuarantineWithheld"]);

    // A person's cordon and uncordon of a withheld node mean nothing to us.
    cordon_and_uncordon(&turn, &controller, "b2").await;
    until_state(&controller, "b2", "Withheld").await.unwrap();
    assert!(nodes::marks(&nodes::read(&client, "b2").await.unwrap()).is_empty());

    // Recoveries pass while it is tripped, for those out and for those withheld.
    direct.say(healthy(&fault("b0"))).await.unwrap();
    turn.node("b0", "released", |node| !nodes::is_cordoned(node))
        .await;
    // Until its release is known to be done it counts as out, over the restart that follows too.
    until_state(&controller, "b0", "Closed").await.unwrap();
    direct.say(healthy(&fault("b3"))).await.unwrap();
    let closed = until_state(&controller, "b3", "Closed").await.unwrap();
    assert_eq!(closed["detail"], "Recovered");
    assert!(nodes::marks(&nodes::read(&client, "b3").await.unwrap()).is_empty());

    // Tripped it stays over a restart; reset, it takes out who was withheld.
    controller.kill();
    controller.restart().await.unwrap();
    until_state(&controller, "b2", "Withheld").await.unwrap();
    let all = ["breaker", "reset"];
    let said = "reset; 1 withheld node is decided about again, by turn\n";
    done(&controller, &all, said);
    turn.node("b2", "out", nodes::is_cordoned).await;
    until_state(&controller, "b2", "Quarantined").await.unwrap();

    // With two out again, a third trips it again; a person drops it.
    direct.say(fault("b3")).await.unwrap();
    until_state(&controller, "b3", "Withheld").await.unwrap();
    let no_pool = ["breaker", "reset", "--pool", "gpus"];
    refused(&controller, &no_pool, &["there is no pool \"gpus\""]);
    let drop = ["breaker", "reset", "--pool", "gpu", "--drop-withheld"];
    let said = "reset; 1 withheld node is left in service\n";
    done(&controller, &drop, said);
    until_state(&controller, "b3", "Observed").await.unwrap();
    explained(
        &controller,
        "b3",
        &[
            "has faults, but is only observed",
            "dropped the withheld cordon (`warden breaker reset --drop-withheld`).",
            "Until they have ended once, these do not take it out again:",
        ],
    );
    cordon_and_uncordon(&turn, &controller, "b3").await;
    until_state(&controller, "b3", "Observed").await.unwrap();
    assert!(nodes::marks(&nodes::read(&client, "b3").await.unwrap()).is_empty());
    controller.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_store_is_rebuilt_and_nobody_is_released_before_its_fault_is_denied() {
    let turn = Turn::take().await;
    let mut controller = turn.controller(&at_once()).await;
    let kernel = |name| Machine::join(turn.testbed, &controller, name, KernelLog::Pipe);
    let mut still_bad = kernel("s-bad").await.unwrap();
    let mut rebooted = kernel("s-rebooted").await.unwrap();
    let monitored = turn.machine(&controller, "s-monitored").await;
    still_bad.agent.kernel_line(XID_79).unwrap();
    rebooted.agent.kernel_line(XID_79).unwrap();
    let fault = fatal("GpuMemWatch", "48", "0");
    monitored.monitor.say(fault.clone()).await.unwrap();
    let machines = ["s-bad", "s-rebooted", "s-monitored"];
    let mut ids = Vec::new();
    for name in machines {
        let incident = until_state(&controller, name, "Quarantined").await.unwrap();
        ids.push(incident["id"].clone());
    }
    controller.kill();
    std::fs::remove_dir_all(controller.store()).unwrap();
    // One machine reboots while nobody listens.
    rebooted.agent.kill();
    let boot = "another-boot";
    rebooted.agent.set_boot_id(boot).unwrap();
    turn.testbed.reboot("s-rebooted", boot).await.unwrap();
    controller.restart().await.unwrap();
    // Adopted, and out, as long as its agent has not spoken.
    for (name, id) in machines.iter().zip(&ids) {
        let incident = until_state(&controller, name, "Quarantined").await.unwrap();
        assert_eq!(&incident["id"], id, "{name} goes on as the same incident");
        let node = nodes::read(&turn.testbed.admin(), name).await.unwrap();
        assert!(nodes::is_cordoned(&node), "{name}");
    }
    rebooted.agent.spawn().unwrap();
    turn.node("s-rebooted", "released", |node| {
        !nodes::is_cordoned(node) && nodes::marks(node).is_empty()
    })
    .await;
    let closed = until_state(&controller, "s-rebooted", "Closed")
        .await
        .unwrap();
    assert_eq!(closed["detail"], "Recovered");
    still_bad.settled(&controller).await.unwrap();
    monitored.settled(&controller).await.unwrap();
    for name in ["s-bad", "s-monitored"] {
        until_state(&controller, name, "Quarantined").await.unwrap();
        assert!(nodes::is_cordoned(
            &nodes::read(&turn.testbed.admin(), name).await.unwrap()
        ));
    }
    monitored.monitor.say(healthy(&fault)).await.unwrap();
    turn.node("s-monitored", "released", |node| !nodes::is_cordoned(node))
        .await;
    still_bad.reboot(turn.testbed, &controller).await.unwrap();
    turn.node("s-bad", "released", |node| !nodes::is_cordoned(node))
        .await;
    controller.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_restarts_in_the_middle_delays_and_loses_nothing() {
    let turn = Turn::take().await;
    let options = ControllerOptions {
        // The Lease outlasts the outage, so that the same process goes on.
        extra: AT_ONCE.replace("\"10s\"", "\"60s\""),
        ..ControllerOptions::default()
    };
    let mut controller = turn.controller(&options).await;
    let id = controller.id();
    let machine = turn.machine(&controller, "restarted").await;
    turn.testbed.kill(Component::ApiServer);
    turn.testbed.stop(Component::ApiServer).await;
    let fault = fatal("GpuMemWatch", "48", "0");
    machine.monitor.say(fault.clone()).await.unwrap();
    machine.until_state(&controller, "Applying").await.unwrap();
    turn.start_api_server().await;
    turn.node("restarted", "out", nodes::is_cordoned).await;
    machine
        .until_state(&controller, "Quarantined")
        .await
        .unwrap();
    machine.monitor.say(healthy(&fault)).await.unwrap();
    turn.node("restarted", "released", |node| {
        !nodes::is_cordoned(node) && nodes::marks(node).is_empty()
    })
    .await;
    assert!(
        controller.is_running() && controller.id() == id,
        "the same process"
    );
    controller.stop().unwrap();
}

/// How long the controller is away, and what comes in meanwhile.
const AWAY: Duration = Duration::from_secs(10);
const MEANWHILE: usize = 1_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_events_sent_while_the_controller_is_down_arrive_once_and_in_order() {
    let turn = Turn::take().await;
    let mut controller = turn.controller(&at_once()).await;
    let machine = turn.machine(&controller, "waiting").await;
    controller.kill();
    let started = tokio::time::Instant::now();
    let step = AWAY / u32::try_from(MEANWHILE).unwrap();
    let mut sent = Vec::new();
    for number in 0..MEANWHILE {
        // Twenty checks with fifty codes each: all of their own identity; one is fatal.
        let check = format!("GpuCheck{}Watch", number % 20);
        let mut event = warning(&check, &number.to_string(), "0");
        event.is_fatal = number == MEANWHILE / 2;
        event.message = format!("event {number}");
        sent.push(event.message.clone());
        machine.monitor.say(event).await.unwrap();
        tokio::time::sleep_until(started + step * u32::try_from(number).unwrap()).await;
    }
    controller.restart().await.unwrap();
    let stored = wait_for("all events in the store", SOON, || async {
        let stored = events(&controller, "waiting").await?;
        let stored: Vec<String> = stored
            .iter()
            .filter(|event| event["agent"] == e2e::monitor::GPU_MONITOR)
            .map(|event| event["message"].as_str().unwrap_or_default().to_owned())
            .collect();
        anyhow::ensure!(stored.len() >= MEANWHILE, "{} are there", stored.len());
        Ok(Some(stored))
    })
    .await
    .unwrap();
    assert!(stored == sent, "once and in order");
    turn.node("waiting", "out", nodes::is_cordoned).await;
    controller.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_said_before_a_reboot_and_arrives_after_it_acts_once_it_is_said_again() {
    let turn = Turn::take().await;
    let mut controller = turn.controller(&at_once()).await;
    let mut machine = turn.machine(&controller, "late").await;
    controller.kill();
    let fault = fatal("GpuMemWatch", "48", "0");
    machine.monitor.say(fault.clone()).await.unwrap();
    machine.restart(turn.testbed).await.unwrap();
    controller.restart().await.unwrap();
    machine.settled(&controller).await.unwrap();
    // Of an earlier boot: stored and shown, without effect (faults-incidents 3, rule 6).
    let with_fault = |node: &serde_json::Value| {
        let faults = node["faults"].as_array();
        faults.is_some_and(|all| all.iter().any(|fault| fault["check"] == "GpuMemWatch"))
    };
    let shown = machine
        .until(&controller, "with its fault", with_fault)
        .await;
    let shown = shown.unwrap();
    assert_eq!(shown["incidents"], json!([]));
    assert_eq!(shown["faults"][0]["elsewhere"], true, "{shown:#}");
    let node = nodes::read(&turn.testbed.admin(), "late").await.unwrap();
    assert!(!nodes::is_cordoned(&node));
    // A monitor that starts with the machine says again what holds.
    machine
        .monitor
        .say(fatal("GpuMemWatch", "48", "0"))
        .await
        .unwrap();
    turn.node("late", "out", nodes::is_cordoned).await;
    machine
        .until_state(&controller, "Quarantined")
        .await
        .unwrap();
    let here = |node: &serde_json::Value| node["faults"][0]["elsewhere"] == false;
    machine
        .until(&controller, "of this boot", here)
        .await
        .unwrap();
    machine.monitor.say(healthy(&fault)).await.unwrap();
    turn.node("late", "released", |node| !nodes::is_cordoned(node))
        .await;
    controller.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_still_open_when_a_hold_ends_acts_although_nothing_else_happens() {
    let turn = Turn::take().await;
    let reports = "[reports]\ninterval = \"1s\"\n";
    let hold = "manual_uncordon_hold = \"2s\"\nfirst_action_delay";
    let options = ControllerOptions {
        extra: format!("{reports}{}", AT_ONCE.replace("first_action_delay", hold)),
        ..ControllerOptions::default()
    };
    let mut controller = turn.controller(&options).await;
    let machine = turn.machine(&controller, "held").await;
    machine
        .monitor
        .say(fatal("GpuMemWatch", "48", "0"))
        .await
        .unwrap();
    machine
        .until_state(&controller, "Quarantined")
        .await
        .unwrap();
    let client = turn.testbed.admin();
    nodes::set_cordon(&client, "held", false).await.unwrap();
    machine.until_state(&controller, "Closed").await.unwrap();
    // The reports that come meanwhile bring nothing new.
    turn.node("held", "out again", nodes::is_cordoned).await;
    machine
        .until_state(&controller, "Quarantined")
        .await
        .unwrap();
    controller.stop().unwrap();
}
