//! What a person asks for with `warden`, read back from the API server.

use e2e::monitor::fatal;
use e2e::nodes;
use serde_json::Value;

use crate::kit::{Stage, done, explained, refused, warden};

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_a_person_holds_is_out_until_a_person_releases_it() {
    let stage = Stage::shared().await;
    let machine = stage.machine("asked-hold").await;
    let node = machine.name.as_str();
    let controller = &stage.controller;
    let nothing = ["release", node];
    refused(controller, &nothing, &[node]);
    let hold = ["hold", node, "--reason", "the fan is loud"];
    done(controller, &hold, &format!("done for node {node}"));
    stage.out(&machine).await;
    explained(controller, node, &["the fan is loud"]);
    done(controller, &nothing, &format!("done for node {node}"));
    stage
        .node(&machine, "given back", |node| {
            !nodes::is_cordoned(node) && nodes::marks(node).is_empty()
        })
        .await;
    stage.state(&machine, "Closed").await;
    let unknown = ["hold", "asked-nobody", "--reason", "x"];
    refused(controller, &unknown, &["asked-nobody"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_that_a_person_closes_gives_its_node_back() {
    let stage = Stage::shared().await;
    let machine = stage.machine("asked-close").await;
    let node = machine.name.as_str();
    let controller = &stage.controller;
    let say = async || machine.monitor.say(fatal("GpuMemWatch", "48", "0")).await;
    say().await.unwrap();
    stage.out(&machine).await;
    let unknown = ["close", node, "000000000000"];
    refused(controller, &unknown, &["no open fault", "warden explain"]);
    assert!(nodes::is_cordoned(
        &nodes::read(&stage.client(), node).await.unwrap()
    ));
    // The id as a person finds it.
    let (code, out, err) = warden(controller, &["explain", node, "--format", "json"]);
    assert_eq!((code, err.as_str()), (Some(1), ""));
    let shown: Value = serde_json::from_str(&out).unwrap();
    let fault = id(&shown).unwrap_or_else(|| panic!("{shown:#}"));
    done(controller, &["close", node, &fault], "closed ");
    stage.released(&machine).await;
    // Said again it is open again.
    say().await.unwrap();
    stage.out(&machine).await;
    // Ended by a person while it is open, and held.
    done(
        controller,
        &["release", node],
        &format!("done for node {node}"),
    );
    stage
        .node(&machine, "given back", |node| {
            !nodes::is_cordoned(node) && nodes::marks(node).is_empty()
        })
        .await;
    let incident = stage.state(&machine, "Closed").await;
    assert_ne!(incident["detail"], "Recovered", "{incident:#}");
    explained(controller, node, &["GpuMemWatch 48 (GPU=0)"]);
}

/// The id of the first fault, wherever it stands.
fn id(shown: &Value) -> Option<String> {
    let faults = shown
        .get("faults")
        .or_else(|| shown["node"].get("faults"))?;
    Some(faults[0]["id"].as_str()?.to_owned())
}
