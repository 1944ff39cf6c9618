//! The loop from the fault to the release, faults on its way, and recoveries.

use e2e::machine::SOON;
use e2e::nodes;
use serde_json::json;
use testbed::{Behaviour, wait_for};

use super::kit::Loop;
use super::settings::slow;
use crate::kit::{explained, warden};

/// Another device than the one that falls ill first.
const ANOTHER: &str = "NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.";

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_is_drained_rebooted_proven_and_given_back() {
    let mut at = Loop::start("w-whole", Behaviour::default()).await;
    at.work("at-once", 2).await;
    at.work("may-finish", 1).await;
    at.falls_ill();
    let drain = at.drain("Draining").await;
    assert_eq!(drain["drain"]["passed_over"], json!([]), "{drain:#}");
    wait_for("the pods of at-once to go", SOON, || async {
        Ok(at.pods("at-once").await.is_empty().then_some(()))
    })
    .await
    .unwrap();
    at.labelled("draining").await;
    explained(
        &at.controller,
        at.name(),
        &[
            "it waits for 1 pod",
            "may finish by itself (AllowCompletion)",
        ],
    );
    assert_eq!((at.pods("may-finish").await.len(), at.signals()), (1, 0));
    at.finish("may-finish").await;
    at.rebooted().await;
    at.released().await;
    at.once().await;
    let orders = at.orders().await;
    let conditions = orders[0]["status"]["conditions"].as_array().unwrap();
    let ready = conditions
        .iter()
        .find(|c| c["type"] == "NodeReady")
        .unwrap();
    assert_eq!(
        (&ready["status"], &ready["reason"]),
        (&json!("True"), &json!("Succeeded"))
    );
    let (_, timeline, _) = warden(&at.controller, &["timeline", at.name()]);
    for step in [
        "Draining → Drained",
        "Planned → Requested",
        "Running → Succeeded",
        "Releasing → Closed",
    ] {
        assert!(timeline.contains(step), "{step}: {timeline}");
    }
    at.controller.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_that_comes_back_after_each_reboot_ends_with_a_person() {
    let mut at = Loop::start("w-ladder", Behaviour::default()).await;
    at.falls_ill();
    for attempt in 1..=2 {
        at.rebooted().await;
        assert_eq!(at.signals(), attempt);
        at.machine.settled(&at.controller).await.unwrap();
        at.falls_ill();
    }
    let repair = at.repair("NeedsOperator").await;
    assert_eq!(repair["repair"]["detail"], "exhausted", "{repair:#}");
    assert_eq!((at.signals(), at.orders().await.len()), (2, 2));
    at.labelled("remediation-failed").await;
    let node = nodes::read(&at.turn.testbed.admin(), at.name()).await;
    assert!(nodes::is_cordoned(&node.unwrap()));
    at.controller.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_during_the_reboot_joins_and_is_covered_by_it() {
    let mut at = Loop::start("w-amid", slow()).await;
    at.falls_ill();
    at.signalled(1).await;
    at.machine.agent.kernel_line(ANOTHER).unwrap();
    let joined = at
        .until("with both faults", |i| {
            let faults = i["faults"].as_array();
            faults.is_some_and(|all| all.len() == 2 && all.iter().all(|f| f["closed_at"].is_null()))
        })
        .await;
    let state = joined["repair"]["state"].as_str().unwrap();
    assert!(["Requested", "Running"].contains(&state), "{joined:#}");
    at.rebooted().await;
    at.released().await;
    at.once().await;
    let ended = at.until("closed", |i| i["state"] == "Closed").await;
    assert_eq!(ended["id"], joined["id"], "one incident");
    at.controller.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_that_the_new_boot_begins_with_is_the_next_attempt_of_the_same_incident() {
    let mut at = Loop::start("w-begins", Behaviour::default()).await;
    at.falls_ill();
    at.boots().await;
    // The kernel says it before there is an agent: it is found by the first look of the new boot.
    let first = at.repair("Succeeded").await;
    at.falls_ill();
    at.machine.agent.spawn().unwrap();
    at.signalled(2).await;
    let node = nodes::read(&at.turn.testbed.admin(), at.name()).await;
    assert!(nodes::is_cordoned(&node.unwrap()), "never given back");
    at.rebooted().await;
    at.released().await;
    assert_eq!((at.signals(), at.provider.reboots(at.name())), (2, 2));
    assert_eq!(at.orders().await.len(), 2);
    let path = format!("/api/v1/incidents?node={}", at.name());
    let all = at.controller.json(&path).await.unwrap();
    let ids: Vec<_> = all.as_array().unwrap().iter().map(|i| &i["id"]).collect();
    assert_eq!(ids, [&first["id"]], "one incident");
    at.controller.stop().unwrap();
}

/// As an operator says that it is over.
async fn close(at: &Loop) {
    let shown = at.machine.until(&at.controller, "ill", |node| {
        node["faults"].as_array().is_some_and(|all| !all.is_empty())
    });
    let fault = shown.await.unwrap()["faults"][0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let (code, out, err) = warden(&at.controller, &["close", at.name(), &fault]);
    assert_eq!(code, Some(0), "{out}{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recovery_ends_a_drain_at_once_and_never_a_reboot() {
    let mut at = Loop::start("w-heals", slow()).await;
    at.work("may-finish", 2).await;
    at.falls_ill();
    at.drain("Draining").await;
    close(&at).await;
    at.released().await;
    assert_eq!((at.pods("may-finish").await.len(), at.signals()), (2, 0));
    assert!(at.orders().await.is_empty());

    at.finish("may-finish").await;
    at.falls_ill();
    at.repair("Running").await;
    at.signalled(1).await;
    close(&at).await;
    at.until("without an open fault", |i| {
        i["faults"][0]["closed_at"].is_string()
    })
    .await;
    // The reboot goes on, and the node waits for its end.
    let node = nodes::read(&at.turn.testbed.admin(), at.name()).await;
    assert!(nodes::is_cordoned(&node.unwrap()));
    at.rebooted().await;
    at.released().await;
    at.once().await;
    at.controller.stop().unwrap();
}
