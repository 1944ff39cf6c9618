//! From the command line to a running process, and to its end.

use std::process::Command;

use testbed::wait_for;

use crate::harness::{Cluster, SOON};
use crate::process::{Program, Sender, numbered};

#[test]
fn a_bad_configuration_ends_with_code_2_and_everything_that_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.toml");
    let text = "surprise = 1\n[ingest]\nmode = 'maybe'\n[[quarantine.rule-sets]]\nname = 'r'\n\
                match.all = [{ kind = 'HealthEvent', expression = 'event.isFatal ==' }]\n\
                [[quarantine.rule-sets]]\nname = 'no-expression'\n\
                match.any = [{ kind = 'HealthEvent' }]";
    std::fs::write(&path, text).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_warden-controller"))
        .arg("--config")
        .arg(&path)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("surprise = 1: allowed is no such key"),
        "{said}"
    );
    assert!(
        said.contains("ingest.mode = \"maybe\": allowed is enforce, audit or off"),
        "{said}"
    );
    assert!(said.contains("event.isFatal =="), "{said}");
    assert_eq!(said.matches("expression").count(), 1, "told once: {said}");
}

#[test]
fn a_rule_that_does_not_compile_is_a_bad_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.toml");
    let text = "[[quarantine.rule-sets]]\nname = 'mine'\n\
                match.all = [{ kind = 'HealthEvent', expression = 'event.isFatal ==' }]";
    std::fs::write(&path, text).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_warden-controller"))
        .arg("--config")
        .arg(&path)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("mine"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_thin_loop_takes_an_event_in_and_shows_it() {
    let cluster = Cluster::with_nodes(&["loop-1"]).await;
    cluster.testbed.ensure_namespace("warden").await.unwrap();
    let program = Program::start(&cluster.testbed.kubeconfig(), "", &["--insecure-local"]);
    program.up().await;
    let sender = Sender::new(program.plain().await, None);
    sender.send(vec![numbered("loop-1", 1)]).await.unwrap();

    let token = std::fs::read_to_string(program.store().join("api-token")).unwrap();
    let (status, node) = program
        .get("/api/v1/nodes/loop-1", Some(token.trim()))
        .await;
    assert_eq!(status, 200, "{node}");
    let node: serde_json::Value = serde_json::from_str(&node).unwrap();
    assert_eq!(node["faults"][0]["code"], "79", "{node}");
    assert_eq!(node["faults"][0]["sender"], "agent:loop-1", "{node}");
    assert_eq!(node["object"]["cordoned"], false, "{node}");

    assert_eq!(program.get("/api/v1/nodes", None).await.0, 401);
    assert_eq!(program.get("/api/v1/nodes", Some("wrong")).await.0, 401);
    for path in [
        "/api/v1/status",
        "/api/v1/nodes",
        "/api/v1/incidents",
        "/api/v1/events",
        "/api/v1/breaker",
        "/api/v1/nodes/loop-1/timeline",
    ] {
        let (status, body) = program.get(path, Some(token.trim())).await;
        assert_eq!(status, 200, "{path}: {body}");
    }
    let bad = [
        ("/api/v1/nodes/absent", 404),
        ("/api/v1/nodes/NOT_A_NAME", 400),
        ("/api/v1/incidents/short", 400),
        ("/api/v1/incidents/01ARZ3NDEKTSV4RRFFQ69G5FAV", 404),
        ("/api/v1/events?after=minus", 400),
        ("/api/v1/nothing", 404),
    ];
    for (path, want) in bad {
        let (status, body) = program.get(path, Some(token.trim())).await;
        assert_eq!(status, want, "{path}: {body}");
    }
    let fault = node["faults"][0]["id"].as_str().unwrap();
    let body = format!("{{\"fault\":{fault:?}}}");
    let close = "/api/v1/nodes/loop-1/close";
    assert_eq!(
        program
            .send("POST", close, Some(token.trim()), "{}")
            .await
            .0,
        400
    );
    assert_eq!(
        program
            .send("POST", close, Some(token.trim()), "{\"fault\":\"x\"}")
            .await
            .0,
        404
    );
    let (status, done) = program.send("POST", close, Some(token.trim()), &body).await;
    assert_eq!(status, 200, "{done}");
    let (_, node) = program
        .get("/api/v1/nodes/loop-1", Some(token.trim()))
        .await;
    let node: serde_json::Value = serde_json::from_str(&node).unwrap();
    assert_eq!(node["faults"], serde_json::json!([]), "{node}");

    let (_, metrics) = program.get("/metrics", None).await;
    assert!(
        metrics.contains("platform_connector_health_events_received_total 1"),
        "{metrics}"
    );
    assert!(
        metrics.contains("warden_ingest_stored_total 1"),
        "{metrics}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_one_waits_at_the_lease_and_a_stop_in_order_hands_it_over() {
    let cluster = Cluster::with_nodes(&[]).await;
    cluster.testbed.ensure_namespace("warden").await.unwrap();
    let kubeconfig = cluster.testbed.kubeconfig();
    let mut first = Program::start(&kubeconfig, "", &["--insecure-local"]);
    first.up().await;
    let second = Program::start(&kubeconfig, "", &["--insecure-local"]);
    second.said_code("lease_held").await;
    assert_eq!(second.get("/healthz", None).await.0, 200);
    let (status, parts) = second.get("/readyz", None).await;
    assert_eq!(status, 503);
    assert!(
        parts.contains("lease: waiting for lease warden/"),
        "{parts}"
    );
    assert_eq!(second.get("/api/v1/nodes", None).await.0, 503);

    first.terminate();
    assert!(first.ended().await.success(), "{}", first.log());
    second.up().await;
    wait_for("the second one to be ready", SOON, || async {
        let (status, parts) = second.get("/readyz", None).await;
        anyhow::ensure!(status == 200, "{parts}");
        Ok(Some(()))
    })
    .await
    .unwrap();
}
