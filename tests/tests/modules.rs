//! Each module switched off alone: its permissions are not asked for, it costs no read and no
//! write, and the others work. The profile is the one in which all of them run.

use std::collections::BTreeSet;

use e2e::machine::{SOON, until, until_state};
use e2e::monitor::{fatal, healthy, warning};
use e2e::{ControllerOptions, http, nodes};
use serde_json::json;
use testbed::wait_for;
use tokio::net::TcpStream;

use crate::account::{
    ACCESS, AUTHORITY, CONDITIONS, CONNECTORS, EVENTS, LEASE, Limited, MARKS, NODES, QUARANTINES,
    TOKENS, in_every_profile, watched, writes,
};
use crate::kit::AT_ONCE;
use crate::profiles::told;
use crate::trust::Fleet;

fn with(extra: &str) -> ControllerOptions {
    ControllerOptions {
        extra: extra.to_owned(),
        ..ControllerOptions::default()
    }
}

fn without(mut all: BTreeSet<String>, what: &[&str]) -> BTreeSet<String> {
    for what in what {
        assert!(all.remove(*what), "{what} is not in {all:?}");
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_connector_nodes_go_out_and_come_back_untold() {
    let cluster = [NODES, TOKENS, ACCESS, MARKS, QUARANTINES];
    let options = with(&format!("{AT_ONCE}[connector]\nenabled = false\n"));
    let limited = Limited::start("untold", &[LEASE, AUTHORITY], &cluster, options).await;
    let (turn, controller) = (&limited.turn, &limited.controller);
    let machine = Fleet::new(turn).await.machine(controller, "untold").await;
    let fault = fatal("GpuMemWatch", "48", "0");
    let monitor = &machine.monitor;
    monitor
        .say(warning("GpuPowerWatch", "5", "0"))
        .await
        .unwrap();
    monitor.say(fault.clone()).await.unwrap();
    turn.node("untold", "out", nodes::is_cordoned).await;
    machine
        .until_state(controller, "Quarantined")
        .await
        .unwrap();
    monitor.say(healthy(&fault)).await.unwrap();
    machine.until_state(controller, "Closed").await.unwrap();
    let node = turn
        .node("untold", "released", |node| !nodes::is_cordoned(node))
        .await;
    assert_eq!(nodes::condition(&node, "GpuMemWatch"), None);
    let asked = limited.ended("untold").await;
    let mut expected = in_every_profile();
    expected.insert("patch nodes/ /untold".to_owned());
    assert_eq!(writes(&asked), expected);
    assert_eq!(watched(&asked), ["deployments", "nodes"].into());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_quarantine_faults_are_told_and_no_node_goes_out() {
    let cluster = [NODES, TOKENS, ACCESS, CONDITIONS, EVENTS, CONNECTORS];
    let options = with("[lease]\nduration = \"10s\"\n[quarantine]\nenabled = false\n");
    let limited = Limited::start("only-told", &[LEASE, AUTHORITY], &cluster, options).await;
    let (turn, controller) = (&limited.turn, &limited.controller);
    let machine = Fleet::new(turn)
        .await
        .machine(controller, "only-told")
        .await;
    let monitor = &machine.monitor;
    monitor.say(fatal("GpuMemWatch", "48", "0")).await.unwrap();
    monitor
        .say(warning("GpuPowerWatch", "5", "0"))
        .await
        .unwrap();
    let node = turn
        .node("only-told", "with a condition", |node| {
            nodes::condition(node, "GpuMemWatch") == Some("True")
        })
        .await;
    told(turn, "only-told", "GpuPowerWatch").await;
    assert!(!nodes::is_cordoned(&node) && nodes::marks(&node).is_empty());
    let shown = until(controller, "only-told", "with both faults", |node| {
        node["faults"].as_array().is_some_and(|all| all.len() == 2)
    })
    .await
    .unwrap();
    assert_eq!(shown["incidents"], json!([]), "{shown:#}");
    // A person is told why nothing follows.
    let path = "/api/v1/nodes/only-told/hold";
    let (status, body) = controller
        .post(path, &json!({ "reason": "x" }))
        .await
        .unwrap();
    assert_eq!(status, 503, "{body}");
    assert!(body.contains("quarantine.enabled"), "{body}");
    let asked = limited.ended("only-told").await;
    let mut expected = in_every_profile();
    expected.insert("create events default".to_owned());
    expected.insert("patch nodes/status /only-told".to_owned());
    assert_eq!(writes(&asked), expected);
    assert_eq!(watched(&asked), ["daemonsets", "nodes"].into());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_ingest_nobody_is_listened_to_and_a_person_still_takes_nodes_out() {
    // No Secret, no ConfigMap: there is nobody to show a certificate to.
    let cluster = [
        NODES,
        TOKENS,
        ACCESS,
        MARKS,
        CONDITIONS,
        EVENTS,
        CONNECTORS,
        QUARANTINES,
    ];
    let options = ControllerOptions {
        ingest: "enabled = false\n".to_owned(),
        ..with(AT_ONCE)
    };
    let limited = Limited::start("deaf", &[LEASE], &cluster, options).await;
    let (turn, controller) = (&limited.turn, &limited.controller);
    let heard = TcpStream::connect(controller.ingest).await;
    assert!(heard.is_err(), "somebody listens at {}", controller.ingest);
    turn.nodes(&["deaf"]).await;
    until(controller, "deaf", "known", |node| {
        node["object"].is_object()
    })
    .await
    .unwrap();
    for (act, body, state, cordoned) in [
        ("hold", json!({ "reason": "x" }), "Quarantined", true),
        ("release", json!({}), "Closed", false),
    ] {
        let path = format!("/api/v1/nodes/deaf/{act}");
        let (status, answer) = controller.post(&path, &body).await.unwrap();
        assert_eq!(status, 200, "{answer}");
        until_state(controller, "deaf", state).await.unwrap();
        let wanted = |node: &_| nodes::is_cordoned(node) == cordoned;
        turn.node("deaf", act, wanted).await;
    }
    let asked = limited.ended("deaf").await;
    let ca = [
        "create secrets warden",
        "create configmaps/ warden/warden-ca-bundle",
    ];
    let mut expected = without(in_every_profile(), &ca);
    expected.insert("patch nodes/ /deaf".to_owned());
    assert_eq!(writes(&asked), expected);
    assert_eq!(
        watched(&asked),
        ["daemonsets", "deployments", "nodes"].into()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_api_nobody_is_answered_and_the_loop_goes_on() {
    // No SubjectAccessReview: nobody asks for anything.
    let cluster = [
        NODES,
        TOKENS,
        MARKS,
        CONDITIONS,
        EVENTS,
        CONNECTORS,
        QUARANTINES,
    ];
    let options = ControllerOptions {
        api: "enabled = false\n".to_owned(),
        ..with(AT_ONCE)
    };
    let limited = Limited::start("mute", &[LEASE, AUTHORITY], &cluster, options).await;
    let (turn, controller) = (&limited.turn, &limited.controller);
    turn.nodes(&["mute"]).await;
    let fleet = Fleet::new(turn).await;
    let token = fleet.token("mute").await;
    fleet.publish_ca().await;
    let mut machine = fleet.prepare(controller, "mute", &token);
    machine.agent.spawn().unwrap();
    let fault = fatal("GpuMemWatch", "48", "0");
    machine.monitor.say(fault.clone()).await.unwrap();
    turn.node("mute", "out, with a condition", |node| {
        nodes::is_cordoned(node) && nodes::condition(node, "GpuMemWatch") == Some("True")
    })
    .await;
    let bearer = controller.api_token().unwrap();
    for (path, expected) in [("/api/v1/nodes", 404), ("/readyz", 200), ("/metrics", 200)] {
        let answer = http::get(controller.api, path, Some(&bearer)).await;
        assert_eq!(answer.unwrap().0, expected, "{path}");
    }
    machine.monitor.say(healthy(&fault)).await.unwrap();
    turn.node("mute", "released", |node| {
        !nodes::is_cordoned(node) && nodes::marks(node).is_empty()
    })
    .await;
    let asked = limited.ended("mute").await;
    let mut expected = without(in_every_profile(), &["create subjectaccessreviews "]);
    expected.insert("patch nodes/ /mute".to_owned());
    expected.insert("patch nodes/status /mute".to_owned());
    assert_eq!(writes(&asked), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_lease_none_is_read_or_written() {
    let cluster = [NODES, TOKENS, ACCESS];
    let options = ControllerOptions {
        profile: "silent".to_owned(),
        ..with("[lease]\nenabled = false\n")
    };
    let limited = Limited::start("unguarded", &[AUTHORITY], &cluster, options).await;
    limited.turn.nodes(&["unguarded"]).await;
    let path = "/api/v1/nodes/unguarded";
    wait_for("the node to be known", SOON, || async {
        limited.controller.json(path).await.map(Some)
    })
    .await
    .unwrap();
    let asked = limited.ended("unguarded").await;
    let leases = [
        "create leases/ warden/warden-controller",
        "update leases/ warden/warden-controller",
    ];
    assert_eq!(writes(&asked), without(in_every_profile(), &leases));
    assert!(asked.iter().all(|event| event.resource != "leases"));
}
