//! What others do to a node: foreign cordons and taints, a person's uncordon, opt-outs.

use e2e::monitor::{fatal, healthy};
use e2e::nodes;
use serde_json::json;

use crate::kit::{Stage, explained, taints};

#[tokio::test(flavor = "multi_thread")]
async fn a_cordon_that_was_there_before_stays_after_the_release() {
    let stage = Stage::shared().await;
    let machine = stage.machine("cordoned-before").await;
    nodes::set_cordon(&stage.client(), &machine.name, true)
        .await
        .unwrap();
    machine
        .until(&stage.controller, "known as cordoned", |node| {
            node["object"]["cordoned"] == true
        })
        .await
        .unwrap();
    let fault = fatal("GpuMemWatch", "48", "0");
    machine.monitor.say(fault.clone()).await.unwrap();
    let node = stage.out(&machine).await;
    let before = nodes::annotation(&node, "quarantineHealthEventCordonPreExisting");
    assert_eq!(before, Some("True"));
    machine.monitor.say(healthy(&fault)).await.unwrap();
    let node = stage
        .node(&machine, "without our marks", |node| {
            nodes::marks(node).is_empty()
        })
        .await;
    assert!(nodes::is_cordoned(&node));
    stage.state(&machine, "Closed").await;
    let node = nodes::read(&stage.client(), &machine.name).await.unwrap();
    assert!(nodes::is_cordoned(&node));
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_taints_are_as_they_were_after_ours_came_and_went() {
    let stage = Stage::shared().await;
    let machine = stage.machine("foreign-taint").await;
    let foreign = json!({ "key": "foreign", "value": "x", "effect": "PreferNoSchedule" });
    stage
        .merge(&machine.name, json!({ "spec": { "taints": [foreign] } }))
        .await;
    let fault = fatal("GpuTaintWatch", "48", "0");
    machine.monitor.say(fault.clone()).await.unwrap();
    let node = stage.out(&machine).await;
    let mut keys = taints(&node);
    keys.sort_unstable();
    assert_eq!(keys, ["foreign", "warden.test/bad"]);
    machine.monitor.say(healthy(&fault)).await.unwrap();
    let node = stage.released(&machine).await;
    assert_eq!(taints(&node), ["foreign"]);
    let kept = node.spec.unwrap().taints.unwrap();
    let kept = kept.iter().find(|taint| taint.key == "foreign").unwrap();
    assert_eq!(serde_json::to_value(kept).unwrap(), foreign);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_persons_uncordon_ends_the_incident_and_holds_exactly_what_was_open() {
    let stage = Stage::shared().await;
    let machine = stage.machine("uncordoned").await;
    let fault = fatal("GpuMemWatch", "48", "0");
    machine.monitor.say(fault.clone()).await.unwrap();
    stage.out(&machine).await;
    nodes::set_cordon(&stage.client(), &machine.name, false)
        .await
        .unwrap();
    let node = stage
        .node(&machine, "without marks", |node| {
            nodes::marks(node).is_empty()
        })
        .await;
    // One write: where the marks are gone, the record is there and no cordon came back.
    let record = nodes::annotation(&node, "quarantinedNodeUncordonedManually");
    assert_eq!(record, Some("True"));
    assert!(!nodes::is_cordoned(&node));
    let incident = stage.state(&machine, "Closed").await;
    assert_eq!(incident["detail"], "ManualUncordon");
    explained(
        &stage.controller,
        &machine.name,
        &[
            "The node was uncordoned by hand ",
            "That ended incident ",
            "(ManualUncordon)",
            " these do not take it out again; what is open then is looked at as new:",
            "    GpuMemWatch 48 (GPU=0)",
            "rule      none may act on it before ",
        ],
    );
    // Said again, the same fault is held; another code is new and takes the node out.
    let mut again = fatal("GpuMemWatch", "48", "0");
    again.message = "the same again".to_owned();
    machine.monitor.say(again).await.unwrap();
    machine
        .monitor
        .say(fatal("GpuMemWatch", "94", "0"))
        .await
        .unwrap();
    let node = stage.out(&machine).await;
    let events = nodes::annotation(&node, "quarantineHealthEvent").unwrap();
    assert!(
        events.contains("GpuMemWatch 94") && !events.contains("again"),
        "{events}"
    );
    assert_eq!(
        nodes::annotation(&node, "quarantinedNodeUncordonedManually"),
        None
    );
    let shown = machine
        .until(&stage.controller, "shown", |_| true)
        .await
        .unwrap();
    assert_eq!(shown["incidents"].as_array().unwrap().len(), 2, "{shown:#}");
    assert_eq!(
        shown["incidents"][0]["faults"].as_array().unwrap().len(),
        1,
        "{shown:#}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_persons_untaint_lifts_our_cordon_too() {
    let stage = Stage::shared().await;
    let machine = stage.machine("untainted").await;
    machine
        .monitor
        .say(fatal("GpuTaintWatch", "48", "0"))
        .await
        .unwrap();
    let node = stage.out(&machine).await;
    assert_eq!(taints(&node), ["warden.test/bad"]);
    stage
        .merge(&machine.name, json!({ "spec": { "taints": null } }))
        .await;
    let node = stage
        .node(&machine, "without marks", |node| {
            nodes::marks(node).is_empty()
        })
        .await;
    assert_eq!(
        nodes::annotation(&node, "quarantinedNodeUntaintedManually"),
        Some("True")
    );
    assert!(!nodes::is_cordoned(&node) && taints(&node).is_empty());
    let incident = stage.state(&machine, "Closed").await;
    assert_eq!(incident["detail"], "ManualUntaint");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_protected_node_is_only_observed_and_explain_says_why() {
    let stage = Stage::shared().await;
    let machine = stage.machine("guarded").await;
    let fault = fatal("GpuMemWatch", "48", "0");
    machine.monitor.say(fault.clone()).await.unwrap();
    stage.state(&machine, "Observed").await;
    let node = nodes::read(&stage.client(), &machine.name).await.unwrap();
    assert!(nodes::marks(&node).is_empty() && !nodes::is_cordoned(&node));
    explained(
        &stage.controller,
        &machine.name,
        &[
            "has faults, but is only observed",
            "Named in quarantine.protected_nodes: only observed",
            "rule      GPU fatal error ruleset",
        ],
    );
    machine.monitor.say(healthy(&fault)).await.unwrap();
    stage.state(&machine, "Closed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_opted_out_node_is_not_taken_out_but_an_open_incident_ends() {
    let stage = Stage::shared().await;
    let label = |value: &str| json!({ "metadata": { "labels": { "k8saas.nvidia.com/ManagedByNVSentinel": value } } });
    let (out, fresh) = (
        stage.machine("opted-out-late").await,
        stage.machine("opted-out").await,
    );
    let fault = fatal("GpuMemWatch", "48", "0");
    out.monitor.say(fault.clone()).await.unwrap();
    stage.out(&out).await;
    for machine in [&out, &fresh] {
        stage.merge(&machine.name, label("false")).await;
        machine
            .until(&stage.controller, "known as opted out", |node| {
                let by = node["object"]["blocked_by"].as_array();
                by.is_some_and(|by| by.iter().any(|why| why == "opted_out"))
            })
            .await
            .unwrap();
    }
    fresh.monitor.say(fault.clone()).await.unwrap();
    fresh
        .until(&stage.controller, "with the fault", |node| {
            node["faults"].as_array().is_some_and(|all| !all.is_empty())
        })
        .await
        .unwrap();
    // The connector's write comes after the quarantine had its look at the same event.
    let node = stage
        .node(&fresh, "with a condition", |node| {
            nodes::condition(node, "GpuMemWatch") == Some("True")
        })
        .await;
    assert!(!nodes::is_cordoned(&node) && nodes::marks(&node).is_empty());
    out.monitor.say(healthy(&fault)).await.unwrap();
    stage.released(&out).await;
    let shown = fresh
        .until(&stage.controller, "shown", |_| true)
        .await
        .unwrap();
    assert_eq!(shown["incidents"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_node_is_taken_out_when_the_pause_ends() {
    let stage = Stage::shared().await;
    let machine = stage.machine("paused").await;
    let pause = |value| json!({ "metadata": { "annotations": { "warden.dev/pause": value } } });
    stage
        .merge(&machine.name, pause(json!("by a person")))
        .await;
    machine
        .until(&stage.controller, "known as paused", |node| {
            let by = node["object"]["blocked_by"].as_array();
            by.is_some_and(|by| by.iter().any(|why| why == "paused"))
        })
        .await
        .unwrap();
    machine
        .monitor
        .say(fatal("GpuMemWatch", "48", "0"))
        .await
        .unwrap();
    let node = stage
        .node(&machine, "with a condition", |node| {
            nodes::condition(node, "GpuMemWatch") == Some("True")
        })
        .await;
    assert!(!nodes::is_cordoned(&node));
    stage.merge(&machine.name, pause(json!(null))).await;
    stage.out(&machine).await;
}
