//! `warden hold`, `warden release`, `warden cancel`, `warden close`, and the completions of all.

use crate::kit::{Ran, Server, ask, program, warden};

fn server() -> Server {
    let done = r#"{"done":"done for node gpu-17"}"#.to_owned();
    Server::start(&[
        ("POST /api/v1/nodes/gpu-17/hold", 200, done.clone()),
        ("POST /api/v1/nodes/gpu-17/release", 200, done.clone()),
        ("POST /api/v1/nodes/gpu-17/cancel", 200, done.clone()),
        ("POST /api/v1/nodes/gpu-17/close", 200, done),
    ])
}

#[test]
fn each_sends_its_body_and_prints_what_was_done() {
    let table: [(&[&str], &str); 5] = [
        (
            &["hold", "gpu-17", "--reason", "broken \"fan\""],
            r#"{"reason":"broken \"fan\""}"#,
        ),
        (&["release", "gpu-17"], "{}"),
        (
            &["release", "gpu-17", "--reason", "it is new"],
            r#"{"reason":"it is new"}"#,
        ),
        (
            &["cancel", "gpu-17", "--reason", "a drill"],
            r#"{"reason":"a drill"}"#,
        ),
        (
            &["close", "gpu-17", "3f2a9c01d4e5"],
            r#"{"fault":"3f2a9c01d4e5"}"#,
        ),
    ];
    let server = server();
    for (arguments, body) in table {
        let ran = ask(&server, arguments);
        assert_eq!(
            (ran.code, ran.out.as_str()),
            (Some(0), "done for node gpu-17\n")
        );
        let called = server.called().pop().unwrap();
        assert_eq!(called.body, body);
        assert_eq!(
            called.line,
            format!("POST /api/v1/nodes/gpu-17/{}", arguments[0])
        );
    }
    let json = ask(&server, &["release", "gpu-17", "--format", "json"]);
    assert_eq!(json.out, "{\"done\":\"done for node gpu-17\"}\n");
}

/// A script must not take a node for out, or back, to which nothing was written.
#[test]
fn what_was_only_recorded_has_an_exit_code_of_its_own() {
    let text = "recorded for node gpu-17: the hold. Nothing is written to the node";
    let done = format!(r#"{{"done":"{text}","only_recorded":true}}"#);
    let server = Server::start(&[
        ("POST /api/v1/nodes/gpu-17/hold", 200, done.clone()),
        ("POST /api/v1/nodes/gpu-17/release", 200, done.clone()),
    ]);
    for arguments in [
        &["hold", "gpu-17", "--reason", "x"][..],
        &["release", "gpu-17"],
    ] {
        let ran = ask(&server, arguments);
        assert_eq!((ran.code, ran.out), (Some(1), format!("{text}\n")));
        let ran = ask(&server, &[arguments, &["--format", "json"]].concat());
        assert_eq!((ran.code, ran.out), (Some(1), format!("{done}\n")));
    }
}

#[test]
fn a_node_that_is_no_name_is_never_sent() {
    for name in ["Node", "a/b", "a?b", ".."] {
        let ran = warden(&["release", name]);
        assert_eq!(ran.code, Some(2), "{name}");
        assert!(ran.err.contains("<NODE>"), "{}", ran.err);
    }
    for act in ["hold", "cancel"] {
        let ran = warden(&[act, "gpu-17"]);
        assert!(ran.err.contains("--reason"), "a {act} needs a reason");
    }
}

#[test]
fn a_hold_whose_reason_says_nothing_is_never_sent() {
    let server = server();
    for reason in ["", "  ", "\n\t", "\u{200b}"] {
        let mut command = program();
        command.env("WARDEN_SERVER", server.url());
        let ran = command.args(["hold", "gpu-17", "--reason", reason]);
        let ran = Ran::from(ran.output().unwrap());
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{reason:?}");
        assert!(
            ran.err.contains("--reason <TEXT>") && ran.err.contains("say why"),
            "{reason:?}: {}",
            ran.err
        );
    }
    assert_eq!(server.called(), []);
}

#[test]
fn completions_know_every_subcommand() {
    for shell in ["bash", "zsh", "fish"] {
        let ran = warden(&["completions", shell]);
        assert_eq!(ran.code, Some(0));
        let names = [
            "scan", "status", "explain", "timeline", "breaker", "hold", "release", "cancel",
            "close", "inject", "config",
        ];
        for name in names {
            assert!(ran.out.contains(name), "{shell} does not know {name}");
        }
        for flag in ["journal", "npd", "driver-version"] {
            let offered =
                ran.out.contains(&format!("--{flag}")) || ran.out.contains(&format!("-l {flag}"));
            assert!(!offered, "{shell} offers {flag}, which is not there yet");
        }
    }
}
