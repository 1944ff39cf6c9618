//! Texts of logs, monitors, objects and servers never steer the reader's terminal, whatever prints
//! them: tables, explanations, timelines, errors, JSON.

use std::path::Path;

use health_event::text::steers;
use serde::Serialize;
use serde_json::Value;
use wire::api;

use crate::kit::{
    self, INCIDENT, Ran, Server, ago, incident, node, program, taken_out, tripped_pool, xid_79,
};

/// Clears the screen, sets the title, moves up, turns the writing round, hides; in 7 and 8 bits.
const HOSTILE: &str =
    "\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}1A\r\nX\u{202e}\u{200b}\u{feff}\u{e0041}\u{7f}";

/// Values that are no free texts: with anything else the program would not read further.
const FIXED: [&str; 3] = ["state", "detail", "to"];

/// Every text in it with [`HOSTILE`] before and behind, except times and, in a second look, states.
fn spoilt(value: &impl Serialize, states_too: bool) -> String {
    let mut value = serde_json::to_value(value).unwrap();
    spoil("", &mut value, states_too);
    value.to_string()
}

fn spoil(key: &str, value: &mut Value, states_too: bool) {
    match value {
        Value::String(text) => {
            let time = text.parse::<jiff::Timestamp>().is_ok();
            let fixed = FIXED.contains(&key) && !states_too;
            if !time && !fixed {
                *text = format!("{HOSTILE}{text}{HOSTILE}");
            }
        }
        Value::Array(all) => all
            .iter_mut()
            .for_each(|inner| spoil(key, inner, states_too)),
        Value::Object(all) => {
            for (key, inner) in all.iter_mut() {
                spoil(key, inner, states_too);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A node with everything on it that is ever printed.
fn laden(state: &str) -> api::Node {
    let mut node = api::Node {
        faults: vec![
            xid_79(),
            api::Fault {
                check: "Other".into(),
                incident: None,
                ..xid_79()
            },
        ],
        observed: vec![xid_79()],
        holds: vec![api::Hold {
            actor: "alice".into(),
            until: ago(-3_600),
            faults: vec!["node/gpu-17 SysLogsXIDError 79 PCI=0000:cb:00".into()],
        }],
        incidents: vec![incident(state)],
        ..node()
    };
    node.agent.state = "starting".into();
    node.agent.unsettled = vec!["kernel-log: starting".into()];
    node.incidents[0].needs_operator = Some("why".into());
    node.incidents[0].held_by = Some("alice: fan".into());
    node.incidents[0].withheld_by = Some("breaker".into());
    let blocks = ["paused", "external_owner k=v", "new"];
    node.object.as_mut().unwrap().blocked_by = blocks.map(str::to_owned).to_vec();
    node
}

fn server(node: &api::Node, states_too: bool) -> Server {
    let spoilt = |value: &dyn erased::Text| value.spoilt(states_too);
    let detail = api::IncidentDetail {
        incident: incident("Quarantined"),
        timeline: taken_out(),
    };
    let status = api::Status {
        ready: false,
        out: 1,
        pool_faults: vec![api::PoolFault {
            subject: "pool/gpu".into(),
            check: "PoolSilent".into(),
            message: "why".into(),
            since: None,
        }],
        ..kit::status()
    };
    let done = api::Done {
        only_recorded: false,
        done: "done".into(),
    };
    let problem = api::Problem {
        error: "no".into(),
        code: "no".into(),
    };
    Server::start(&[
        ("GET /api/v1/nodes/gpu-17", 200, spoilt(node)),
        (
            &format!("GET /api/v1/incidents/{INCIDENT}"),
            200,
            spoilt(&detail),
        ),
        ("GET /api/v1/status", 200, spoilt(&status)),
        ("GET /api/v1/breaker", 200, spoilt(&vec![tripped_pool()])),
        (
            "GET /api/v1/nodes",
            200,
            spoilt(&vec![kit::node_line("gpu-17", Some("Withheld"))]),
        ),
        (
            "GET /api/v1/nodes/gpu-17/timeline?after=0&limit=500",
            200,
            spoilt(&taken_out()),
        ),
        ("POST /api/v1/nodes/gpu-17/hold", 200, spoilt(&done)),
        ("POST /api/v1/nodes/gpu-17/release", 409, spoilt(&problem)),
        ("POST /api/v1/nodes/gpu-17/close", 500, HOSTILE.repeat(3)),
        ("POST /api/v1/breaker/reset", 200, HOSTILE.to_owned()),
    ])
}

/// So that answers of different types stand in one table.
mod erased {
    pub(super) trait Text {
        fn spoilt(&self, states_too: bool) -> String;
    }

    impl<T: serde::Serialize> Text for T {
        fn spoilt(&self, states_too: bool) -> String {
            super::spoilt(self, states_too)
        }
    }
}

#[track_caller]
fn steers_nothing(what: &dyn std::fmt::Debug, ran: &Ran) {
    for text in [&ran.out, &ran.err] {
        let bad = text.chars().find(|c| *c != '\n' && steers(*c));
        assert_eq!(bad, None, "{what:?}: {text:?}");
        assert!(
            !text.contains("owned") || text.starts_with('{') || text.starts_with('['),
            "{what:?}: a title is shown: {text}"
        );
    }
}

#[test]
fn nothing_that_a_server_says_steers_the_terminal() {
    let commands: [&[&str]; 10] = [
        &["explain", "gpu-17"],
        &["timeline", "gpu-17"],
        &["timeline", INCIDENT],
        &["status"],
        &["breaker"],
        &["hold", "gpu-17", "--reason", "x"],
        &["release", "gpu-17"],
        &["close", "gpu-17", "x"],
        &["breaker", "reset"],
        &["explain", "gpu-18"],
    ];
    for state in [
        "Quarantined",
        "Withheld",
        "Observed",
        "Applying",
        "Releasing",
    ] {
        for states_too in [false, true] {
            let server = server(&laden(state), states_too);
            for command in commands {
                for format in ["text", "json"] {
                    let mut program = program();
                    program.env("WARDEN_SERVER", server.url()).args(command);
                    let ran = Ran::from(program.args(["--format", format]).output().unwrap());
                    assert!(!(ran.out.clone() + &ran.err).is_empty());
                    steers_nothing(&(command, format, state), &ran);
                }
            }
        }
    }
    let closed = api::Incident {
        closed_at: Some(ago(10)),
        ..incident("Closed")
    };
    let well = api::Node {
        incidents: vec![closed],
        ..node()
    };
    let server = server(&well, true);
    let mut program = program();
    program
        .env("WARDEN_SERVER", server.url())
        .args(["explain", "gpu-17"]);
    steers_nothing(&"a last incident", &program.output().unwrap().into());
}

#[test]
fn nothing_in_a_log_or_a_files_name_steers_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let hostile = HOSTILE.replace(['\r', '\n'], "");
    let line = format!(
        "NVRM: Xid (PCI:0000:66:00): 149, {hostile}NETIR_LINK_EVT{hostile} Fatal XC0 i0 Link 09"
    );
    let map = format!("NVRM: GPU at PCI:0000:66:00: GPU-1{hostile}2");
    let name = folder.path().join(format!("log{hostile}"));
    std::fs::write(&name, format!("{map}\n[{hostile}] {line}\n{line}")).unwrap();
    let other = folder.path().join(format!("gone{hostile}"));
    for format in [
        &["--format", "text"][..],
        &["--format", "json"],
        &["--format", "json", "--group"],
    ] {
        let mut program = program();
        program.arg("scan").args(format).args([&name, &other]);
        let ran = Ran::from(program.output().unwrap());
        assert_eq!(ran.code, Some(2));
        assert!(ran.out.contains("xid:149"), "{}", ran.out);
        steers_nothing(&format, &ran);
    }
}

#[test]
fn nothing_in_a_configuration_steers_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a\u{1b}[2J.toml");
    for text in [
        format!("a = 1 {HOSTILE}"),
        format!("[store]\n[socket]\n# {HOSTILE}"),
        "\u{9b}".into(),
    ] {
        std::fs::write(&path, text).unwrap();
        for format in ["text", "json"] {
            let mut program = program();
            program
                .args(["config", "check", "--format", format])
                .arg(Path::new(&path));
            let ran = Ran::from(program.output().unwrap());
            assert_ne!(ran.code, Some(0));
            steers_nothing(&format, &ran);
        }
    }
}
