//! `warden timeline`.

use crate::kit::{
    INCIDENT, Ran, Server, ago, ask, incident, program, step, taken_out, text, warden,
};
use wire::api;

#[test]
fn an_incident_is_told_step_by_step() {
    let mut steps = taken_out();
    steps.push(step(
        9,
        ago(95),
        "Quarantined",
        "Quarantined",
        "faults joined or closed",
    ));
    steps.push(step(
        10,
        ago(90),
        "Quarantined",
        "Releasing",
        "no fault of the incident is open",
    ));
    steps.push(api::Step {
        cause: "an old text".into(),
        ..step(11, ago(90), "Releasing", "Closed", "")
    });
    let detail = api::IncidentDetail {
        incident: incident("Closed"),
        timeline: steps,
    };
    let path = format!("GET /api/v1/incidents/{INCIDENT}");
    let server = Server::start(&[(&path, 200, text(&detail))]);
    let ran = ask(&server, &["timeline", INCIDENT]);
    assert_eq!(ran.code, Some(0));
    insta::assert_snapshot!(ran.out);
    let json = ask(&server, &["timeline", INCIDENT, "--format", "json"]);
    assert_eq!(json.out, format!("{}\n", text(&detail)));
}

#[test]
fn a_nodes_pages_are_read_to_the_end() {
    let page: Vec<_> = (1..=500)
        .map(|n| step(n, ago(0), "Applying", "Applying", "x"))
        .collect();
    let mut last = step(501, ago(0), "", "Withheld", "y");
    last.incident = "01K4Y2WJ8R0000000000000002".into();
    let path = |after: u64| format!("GET /api/v1/nodes/gpu-17/timeline?after={after}&limit=500");
    let server = Server::start(&[
        (&path(0), 200, text(&page)),
        (&path(500), 200, text(&vec![last])),
    ]);
    let ran = ask(&server, &["timeline", "gpu-17"]);
    assert_eq!(ran.out.lines().count(), 500 + 1 + 2 * 2 + 1);
    assert!(
        ran.out
            .contains("\n\nnode gpu-17, incident 01K4Y2WJ8R0000000000000002\n"),
        "{}",
        ran.out
    );
    let json = ask(&server, &["timeline", "gpu-17", "--format", "json"]).out;
    let steps: Vec<api::Step> = serde_json::from_str(&json).unwrap();
    assert_eq!(steps.len(), 501);
}

#[test]
fn what_is_left_out_is_said() {
    let steps: Vec<_> = (1..=500)
        .map(|n| step(n, ago(0), "Applying", "Applying", "x"))
        .collect();
    let detail = api::IncidentDetail {
        incident: incident("Applying"),
        timeline: steps,
    };
    let path = format!("GET /api/v1/incidents/{INCIDENT}");
    let server = Server::start(&[(&path, 200, text(&detail))]);
    let mut command = program();
    command.env("WARDEN_SERVER", server.url());
    let ran = Ran::from(command.args(["timeline", INCIDENT]).output().unwrap());
    assert_eq!(ran.code, Some(0));
    let want = "warning: these are the first 500 steps of the incident; `warden timeline gpu-17`";
    assert!(ran.err.starts_with(want), "{}", ran.err);
}

#[test]
fn a_node_without_a_past_says_so() {
    let path = "GET /api/v1/nodes/gpu-17/timeline?after=0&limit=500";
    let server = Server::start(&[(path, 200, "[]".to_owned())]);
    let ran = ask(&server, &["timeline", "gpu-17"]);
    assert!(
        ran.out.contains("nothing was ever done to it"),
        "{}",
        ran.out
    );
}

#[test]
fn what_is_neither_a_node_nor_an_incident_is_refused() {
    let ran = warden(&["timeline", "Not_A_Name"]);
    assert_eq!(ran.code, Some(2));
    assert!(
        ran.err.contains("want a node's name or an incident's id"),
        "{}",
        ran.err
    );
}
