//! The exit codes of every command against the contract: 0 done, nothing wrong; 1 done, faults found
//! or the object asked for is unhealthy; 2 usage or input/output error; `status` exits 0 unless asked
//! `--check`. And the flags of the connection, wherever they stand.

use std::path::Path;

use wire::api;

use crate::kit::{
    self, INCIDENT, Ran, Server, incident, node, pool, program, taken_out, text, tripped_pool,
};

const WELL: &str = "gpu-1";
const SICK: &str = "gpu-17";

/// Knows a node that is well and one that is out, and refuses what is asked for `gpu-3`.
fn server() -> Server {
    let sick = api::Node {
        incidents: vec![incident("Quarantined")],
        ..node()
    };
    let detail = api::IncidentDetail {
        incident: incident("Quarantined"),
        timeline: taken_out(),
    };
    let status = api::Status {
        out: 1,
        ..kit::status()
    };
    let done = r#"{"done":"done"}"#.to_owned();
    let refused =
        r#"{"error":"the node has no open incident","code":"request_refused"}"#.to_owned();
    Server::start(&[
        ("GET /api/v1/status", 200, text(&status)),
        ("GET /api/v1/breaker", 200, text(&[tripped_pool()])),
        (
            "GET /api/v1/nodes",
            200,
            text(&[kit::node_line(SICK, Some("Quarantined"))]),
        ),
        ("GET /api/v1/nodes/gpu-1", 200, text(&node())),
        ("GET /api/v1/nodes/gpu-17", 200, text(&sick)),
        (
            "GET /api/v1/nodes/gpu-17/timeline?after=0&limit=500",
            200,
            text(&taken_out()),
        ),
        (
            &format!("GET /api/v1/incidents/{INCIDENT}"),
            200,
            text(&detail),
        ),
        ("POST /api/v1/breaker/reset", 200, done.clone()),
        ("POST /api/v1/nodes/gpu-17/hold", 200, done.clone()),
        ("POST /api/v1/nodes/gpu-17/release", 200, done.clone()),
        ("POST /api/v1/nodes/gpu-17/close", 200, done),
        ("POST /api/v1/nodes/gpu-3/release", 409, refused),
    ])
}

fn calm() -> Server {
    Server::start(&[
        ("GET /api/v1/status", 200, text(&kit::status())),
        ("GET /api/v1/breaker", 200, text(&[pool()])),
        (
            "GET /api/v1/nodes",
            200,
            text(&[kit::node_line(WELL, None)]),
        ),
    ])
}

fn run(server: &str, arguments: &[&str], folder: &Path) -> Ran {
    let mut command = program();
    command.env("WARDEN_SERVER", server).current_dir(folder);
    command.args(arguments).output().unwrap().into()
}

#[test]
fn every_command_ends_as_the_contract_says() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    file("well.log", "[ 1.0] usb 1-1: new device\n");
    file("sick.log", "[ 1.0] NVRM: Xid (PCI:0000:CB:00): 79, x\n");
    file("syntax.toml", "[quarantine\n");
    let (troubled, calm) = (server(), calm());
    let (sick, well, nowhere) = (troubled.url(), calm.url(), "http://127.0.0.1:9".to_owned());
    let table: [(&str, &[&str], i32); 40] = [
        (&nowhere, &["scan", "well.log"], 0),
        (&nowhere, &["scan", "sick.log"], 1),
        (&nowhere, &["scan", "sick.log", "--format", "json"], 1),
        (&nowhere, &["scan", "none.log"], 2),
        (&nowhere, &["scan", "sick.log", "none.log"], 2),
        (&nowhere, &["scan"], 2),
        (&well, &["status"], 0),
        (&well, &["status", "--check"], 0),
        (&sick, &["status"], 0),
        (&sick, &["status", "--format", "json"], 0),
        (&sick, &["status", "--check"], 1),
        (&sick, &["status", "--check", "--format", "json"], 1),
        (&nowhere, &["status"], 2),
        (&nowhere, &["status", "--check"], 2),
        (&sick, &["explain", WELL], 0),
        (&sick, &["explain", SICK], 1),
        (&sick, &["explain", SICK, "--format", "json"], 1),
        (&sick, &["explain", "gpu-2"], 2),
        (&nowhere, &["explain", WELL], 2),
        (&sick, &["explain"], 2),
        (&sick, &["timeline", SICK], 0),
        (&sick, &["timeline", INCIDENT], 0),
        (&sick, &["timeline", "01K4Y2WJ8R0000000000000009"], 2),
        (&sick, &["breaker"], 0),
        (&sick, &["breaker", "show"], 0),
        (&sick, &["breaker", "reset"], 0),
        (&nowhere, &["breaker", "reset"], 2),
        (&sick, &["hold", SICK, "--reason", "x"], 0),
        (&sick, &["hold", SICK], 2),
        (&sick, &["release", SICK], 0),
        (&sick, &["release", "gpu-3"], 2),
        (&sick, &["close", SICK, "3f2a9c01d4e5"], 0),
        (&sick, &["close", SICK], 2),
        (&nowhere, &["inject", "--socket", "none.sock", "Check"], 2),
        (&nowhere, &["config", "check", "syntax.toml"], 1),
        (&nowhere, &["config", "check", "none.toml"], 2),
        (&nowhere, &["completions", "bash"], 0),
        (&nowhere, &["--help"], 0),
        (&nowhere, &["--version"], 0),
        (&nowhere, &[], 2),
    ];
    for (server, arguments, code) in table {
        let ran = run(server, arguments, folder.path());
        assert_eq!(ran.code, Some(code), "{arguments:?}: {ran:?}");
        let errs = code == 2;
        assert_eq!(errs, !ran.err.is_empty(), "{arguments:?}: {}", ran.err);
    }
}

#[test]
fn the_connections_flags_stand_before_and_behind_every_command() {
    let server = server();
    let url = server.url();
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "secret\n").unwrap();
    let token = token.to_str().unwrap();
    let flags = ["--server", &url, "--token-file", token];
    let commands: [&[&str]; 10] = [
        &["status"],
        &["explain", WELL],
        &["timeline", INCIDENT],
        &["breaker"],
        &["breaker", "show"],
        &["breaker", "reset"],
        &["hold", SICK, "--reason", "x"],
        &["release", SICK],
        &["close", SICK, "3f2a9c01d4e5"],
        // Whose own server is asked even where the environment names another.
        &["breaker", "reset", "--pool", "gpu"],
    ];
    for command in commands {
        let places =
            (0..=command.len()).filter(|at| *at < 3 && !command[..*at].contains(&"--reason"));
        for at in places {
            let arguments = [&command[..at], &flags, &command[at..]].concat();
            let ran = run("http://127.0.0.1:9", &arguments, folder.path());
            assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{arguments:?}");
            let called = server.called().pop().unwrap();
            assert_eq!(
                called.authorization.as_deref(),
                Some("Bearer secret"),
                "{arguments:?}"
            );
        }
    }
    // An alias with these flags also serves the commands that ask nobody.
    for command in [&["completions", "bash"][..], &["scan", "/dev/null"]] {
        for arguments in [[&flags, command].concat(), [command, &flags].concat()] {
            let ran = run(&url, &arguments, folder.path());
            assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{arguments:?}");
        }
    }
}
