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
    let told = "quarantine.rule-sets[0].match.all[0].expression = \"event.isFatal ==\": allowed is CEL as \
                docs/cel.md says. Rule set \"r\": not valid CEL";
    assert!(said.contains(told), "{said}");
    assert_eq!(
        said.matches(".expression").count(),
        2,
        "told once each: {said}"
    );
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

/// Runs the program, and gives its exit code, standard output and standard error.
fn ran(arguments: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warden-controller"));
    let variables = variables.iter().copied();
    let output = command.args(arguments).envs(variables).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn a_file_of_the_reference_is_told_in_wardens_keys_which_the_program_then_takes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.toml");
    let file = path.to_str().unwrap();
    let theirs = "evictionTimeoutInSeconds = '60'\npartialDrainEnabled = true\n\
                  [[userNamespaces]]\nname = 'train-*'\nmode = 'Immediate'";
    std::fs::write(&path, theirs).unwrap();
    let (code, out, err) = ran(&["--check-config", file], &[]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    let told: toml::Table = out.parse().unwrap();
    let left = &told["reference"]["left"][0];
    assert_eq!(left["key"].as_str(), Some("partialDrainEnabled"));
    std::fs::write(&path, told["reference"]["toml"].as_str().unwrap()).unwrap();
    let (code, out, _) = ran(&["--check-config", file], &[]);
    assert_eq!(code, Some(0), "{out}");
    assert!(out.starts_with("acts = "), "it is one of ours: {out}");
    std::fs::write(&path, "evictionTimeoutInSeconds = 60").unwrap();
    let (code, out, _) = ran(&["--check-config", file], &[]);
    assert_eq!(code, Some(2), "{out}");
    assert!(out.contains("drain.evictionTimeoutInSeconds"), "{out}");
}

#[test]
fn a_rule_that_can_never_match_is_a_fault_and_a_part_that_never_does_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.toml");
    let file = path.to_str().unwrap();
    let set = |expression: &str| {
        let text = format!(
            "[[quarantine.rule-sets]]\nname = 'mine'\nmatch.any = [{{ kind = 'HealthEvent', \
             expression = \"{expression}\" }}]"
        );
        std::fs::write(&path, text).unwrap();
    };
    set("event.isFatal == 'true'");
    let (code, out, err) = ran(&["--check-config", file], &[]);
    assert_eq!((code, err.as_str()), (Some(2), ""));
    assert!(
        out.contains("[[fault]]") && out.contains("which is never true: write true"),
        "{out}"
    );
    let (code, _, err) = ran(&["--config", file], &[]);
    assert_eq!(code, Some(2));
    assert!(
        err.contains("can never match: event.isFatal == \"true\""),
        "{err}"
    );

    set("event.agent == 'a' || event.isFatal == 'true'");
    let (code, out, err) = ran(&["--check-config", file], &[]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let told: toml::Table = out.parse().unwrap();
    let warning = &told["warning"][0];
    assert_eq!(
        warning["key"].as_str(),
        Some("quarantine.rule-sets[0].match.any[0].expression")
    );
    assert!(!told.contains_key("fault"), "{out}");

    // Values that are right alone, and together keep something from ever happening.
    let pair = "profile = 'remediate'\n[janitor]\nno_reboot_after = '1h'";
    std::fs::write(&path, pair).unwrap();
    let (code, out, err) = ran(&["--check-config", file], &[]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let told: toml::Table = out.parse().unwrap();
    let warning = &told["warning"][0];
    assert_eq!(warning["key"].as_str(), Some("janitor.no_reboot_after"));
    let better = warning["allowed"].as_str().unwrap();
    assert!(better.contains("janitor.timeout (25m)"), "{better}");
}

#[test]
fn an_empty_variable_counts_as_not_set_and_usage_shows_no_variable() {
    let variables = [("WARDEN_CONFIG", ""), ("KUBECONFIG", "/nowhere")];
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("absent");
    let kubeconfig = kubeconfig.to_str().unwrap();
    let (code, _, err) = ran(
        &["--kubeconfig", kubeconfig, "--insecure-local"],
        &variables,
    );
    assert_eq!(code, Some(1), "{err}");
    let last = err.lines().last().unwrap();
    assert!(
        last.starts_with("warden-controller: ") && last.contains(kubeconfig),
        "{err}"
    );
    assert_eq!(
        last.matches("No such file").count(),
        1,
        "each cause once: {last}"
    );
    let (code, _, err) = ran(&["--absent"], &[("WARDEN_CONFIG", "/c")]);
    assert_eq!(code, Some(2));
    assert!(
        err.contains("\nUsage: warden-controller [OPTIONS]\n"),
        "{err}"
    );
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
    for body in [
        "",
        "{}",
        "{\"reason\":\" \\n\"}",
        "{\"reason\":\"\\u200b\"}",
    ] {
        let hold = "/api/v1/nodes/loop-1/hold";
        let (status, said) = program.send("POST", hold, Some(token.trim()), body).await;
        assert_eq!(status, 400, "{body}: {said}");
        assert!(
            said.contains("no_reason") && said.contains("say why"),
            "{said}"
        );
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
