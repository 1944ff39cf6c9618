//! `warden explain`.

use crate::kit::{
    self, Server, ago, ask, incident, node, pool, taken_out, text, tripped_pool, xid_79,
};
use crate::kit::{INCIDENT, step};
use serde_json::{Value, json};
use wire::api;

pub(crate) fn server_of(
    node: &api::Node,
    steps: Vec<api::Step>,
    status: &api::Status,
    pool: api::BreakerPool,
) -> Server {
    let incident = node
        .incidents
        .first()
        .cloned()
        .unwrap_or_else(|| incident("Closed"));
    let detail = api::IncidentDetail {
        incident,
        timeline: steps,
    };
    Server::start(&[
        ("GET /api/v1/nodes/gpu-17", 200, text(node)),
        (
            &format!("GET /api/v1/incidents/{INCIDENT}"),
            200,
            text(&detail),
        ),
        ("GET /api/v1/status", 200, text(status)),
        ("GET /api/v1/breaker", 200, text(&[pool])),
    ])
}

fn explain(node: &api::Node) -> (Option<i32>, String) {
    let server = server_of(node, taken_out(), &kit::status(), pool());
    let ran = ask(&server, &["explain", "gpu-17"]);
    (ran.code, ran.out)
}

/// Out of service because of an XID 79.
pub(crate) fn out() -> api::Node {
    let mut node = node();
    node.faults = vec![xid_79()];
    node.incidents = vec![incident("Quarantined")];
    node.object.as_mut().unwrap().cordoned = true;
    node
}

#[test]
fn a_node_that_is_out_is_explained_from_what_is_wrong_to_what_to_do() {
    let (code, out) = explain(&out());
    assert_eq!(code, Some(1));
    insta::assert_snapshot!(out);
}

#[test]
fn a_healthy_node_says_so_and_shows_its_last_incident() {
    let mut node = node();
    let closed = api::Incident {
        detail: "Recovered".into(),
        closed_at: Some(ago(100)),
        ..incident("Closed")
    };
    node.incidents = vec![closed];
    let (code, out) = explain(&node);
    assert_eq!(code, Some(0));
    insta::assert_snapshot!(out);
    let (code, out) = explain(&kit::node());
    assert_eq!(code, Some(0));
    assert!(out.contains("It had no incident so far."), "{out}");
}

#[test]
fn a_node_withheld_by_the_breaker_names_the_pool_and_the_reset() {
    let mut node = out();
    node.object.as_mut().unwrap().cordoned = false;
    node.incidents[0].state = "Withheld".into();
    node.incidents[0].detail = "the pool's breaker is tripped by its rate bound".into();
    let steps = vec![step(
        7,
        ago(505),
        "",
        "Withheld",
        "the breaker's rate bound is reached",
    )];
    let server = server_of(&node, steps, &kit::status(), tripped_pool());
    let ran = ask(&server, &["explain", "gpu-17"]);
    assert_eq!(ran.code, Some(1));
    insta::assert_snapshot!(ran.out);
}

#[test]
fn a_node_whose_faults_ended_waits_for_its_agent_by_name() {
    let mut node = out();
    node.faults.clear();
    node.agent.state = "starting".into();
    node.agent.unsettled = vec!["kernel-log: starting".into()];
    node.incidents[0].needs_operator = Some("the agent does not settle".into());
    let (code, out) = explain(&node);
    assert_eq!(code, Some(1));
    insta::assert_snapshot!(out);
}

/// Else the state of one moment would be explained by the steps of another.
#[test]
fn a_node_whose_incident_moves_while_it_is_read_is_read_again_a_few_times() {
    let node = out();
    let asked = |node: &api::Node, moved: u64| {
        let mut incident = node.incidents[0].clone();
        incident.version += moved;
        let detail = api::IncidentDetail {
            incident,
            timeline: taken_out(),
        };
        let server = Server::start(&[
            ("GET /api/v1/nodes/gpu-17", 200, text(node)),
            (
                &format!("GET /api/v1/incidents/{INCIDENT}"),
                200,
                text(&detail),
            ),
            ("GET /api/v1/status", 200, text(&kit::status())),
            ("GET /api/v1/breaker", 200, text(&[pool()])),
        ]);
        let ran = ask(&server, &["explain", "gpu-17"]);
        assert_eq!(ran.code, Some(1), "{}", ran.err);
        assert!(ran.out.contains("What happens next"), "{}", ran.out);
        let called = server.called().into_iter();
        let of_node = |line: &str| line == "GET /api/v1/nodes/gpu-17";
        called.filter(|called| of_node(&called.line)).count()
    };
    assert_eq!((asked(&node, 0), asked(&node, 1)), (1, 3));
}

#[test]
fn whatever_blocks_is_named() {
    let mut node = node();
    node.faults = vec![api::Fault {
        incident: None,
        ..xid_79()
    }];
    let marks = [
        "paused",
        "opted_out",
        "control_plane",
        "external_owner k=v",
        "new_one",
    ];
    node.object.as_mut().unwrap().blocked_by = marks.map(str::to_owned).to_vec();
    node.holds = vec![api::Hold {
        actor: "alice".into(),
        until: ago(-3_600),
        faults: vec!["node/gpu-17 SysLogsXIDError 79 PCI=0000:cb:00".into()],
    }];
    let status = api::Status {
        dry_run: true,
        profile: "observe".into(),
        ..kit::status()
    };
    let server = server_of(&node, Vec::new(), &status, pool());
    let ran = ask(&server, &["explain", "gpu-17"]);
    assert_eq!(ran.code, Some(1));
    insta::assert_snapshot!(ran.out);
}

#[test]
fn a_silent_controller_says_that_it_asks_no_rules() {
    let mut node = node();
    node.faults = vec![api::Fault {
        incident: None,
        ..xid_79()
    }];
    let status = api::Status {
        dry_run: true,
        profile: "silent".into(),
        ..kit::status()
    };
    let server = server_of(&node, Vec::new(), &status, pool());
    let out = ask(&server, &["explain", "gpu-17"]).out;
    assert!(out.contains("rule sets are not asked"), "{out}");
    assert!(!out.contains("no rule set matches"), "{out}");
}

#[test]
fn each_state_has_its_words() {
    let table = [
        ("Observed", "has faults, but is only observed"),
        (
            "Applying",
            "The write that takes the node out is under way.",
        ),
        (
            "Releasing",
            "The write that gives the node back is under way.",
        ),
        ("Quarantined", "Held by alice (broken fan)"),
    ];
    for (state, want) in table {
        let mut node = out();
        node.incidents[0].state = state.into();
        node.incidents[0].since = ago(20);
        node.object.as_mut().unwrap().cordoned = state != "Observed";
        node.incidents[0].held_by = Some("alice: broken fan".into());
        let (code, out) = explain(&node);
        assert_eq!(code, Some(1));
        assert!(out.contains(want), "{state}: {out}");
    }
}

#[test]
fn what_stands_in_a_rule_sets_place_is_worded() {
    let table: [(&[&str], &str); 3] = [
        (&[], "none: its sender forced the quarantine"),
        (
            &["<adopted>"],
            "none today: the node carried its marks when the store was lost",
        ),
        (&["A", "B"], "A, B"),
    ];
    for (rules, want) in table {
        let mut node = out();
        node.incidents[0].faults[0].rules = rules.iter().map(ToString::to_string).collect();
        let (_, out) = explain(&node);
        assert!(out.contains(&format!("    rule      {want}\n")), "{out}");
        node.faults.clear();
        node.incidents[0].closed_at = Some(ago(1));
        let (_, out) = explain(&node);
        assert!(out.contains(&format!(" rule {want}\n")), "{out}");
    }
}

#[test]
fn what_can_not_be_read_is_left_out_and_said() {
    let server = Server::start(&[("GET /api/v1/nodes/gpu-17", 200, text(&out()))]);
    let mut command = kit::program();
    command
        .env("WARDEN_SERVER", server.url())
        .args(["explain", "gpu-17"]);
    let ran = kit::Ran::from(command.output().unwrap());
    assert_eq!(ran.code, Some(1));
    assert!(ran.out.contains("XID 79"), "{}", ran.out);
    assert!(
        ran.err.contains("not shown: GET /api/v1/status"),
        "{}",
        ran.err
    );
}

#[test]
fn faults_that_are_only_observed_leave_the_node_well() {
    let mut node = node();
    node.observed = vec![api::Fault {
        incident: None,
        ..xid_79()
    }];
    let (code, out) = explain(&node);
    assert_eq!(code, Some(0));
    assert!(
        out.contains("Only observed (these never act on the node)\n  XID 79"),
        "{out}"
    );
}

#[test]
fn json_is_what_the_api_said_with_what_follows_and_colours_can_be_forced() {
    let server = server_of(&out(), taken_out(), &kit::status(), pool());
    let ran = ask(&server, &["explain", "gpu-17", "--format", "json"]);
    assert_eq!((ran.code, ran.out.lines().count()), (Some(1), 1));
    let whole: Value = serde_json::from_str(&ran.out).unwrap();
    let node: Value = serde_json::from_str(&text(&out())).unwrap();
    for (key, value) in node.as_object().unwrap() {
        assert_eq!(whole[key], *value, "{key}");
    }
    assert_eq!(
        whole["timeline"],
        serde_json::to_value(taken_out()).unwrap()
    );
    assert_eq!(whole["status"]["profile"], "cordon");
    assert_eq!(whole["breaker"]["pool"], "gpu");
    assert_eq!(whole["verdict"], "is out of service (for 8 min 24 s)");
    let stays = json!({"kind": "comes", "text": "The node stays out until this fault has ended:"});
    assert!(whole["next"].as_array().unwrap().contains(&stays));
    assert_eq!(
        whole["commands"][0]["command"],
        format!("warden timeline {INCIDENT}")
    );
    let ran = ask(&server, &["explain", "gpu-17", "--color", "always"]);
    assert!(ran.out.contains("\u{1b}["), "{}", ran.out);
    assert!(
        !ran.out.contains("\u{1b}[2J"),
        "the log's own sequences never reach a terminal"
    );
}
