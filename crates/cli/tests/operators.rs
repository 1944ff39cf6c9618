//! What tired operators were told wrongly, or not at all.

use serde_json::json;
use wire::api;

use crate::explain::{out, server_of};
use crate::kit::{self, Ran, Server, ago, ask, pool, step, taken_out, text, xid_79};

fn explained(node: &api::Node, steps: Vec<api::Step>, status: &api::Status) -> Ran {
    ask(
        &server_of(node, steps, status, pool()),
        &["explain", "gpu-17"],
    )
}

fn dry_run() -> api::Status {
    api::Status {
        dry_run: true,
        profile: "observe".into(),
        quarantine: "dry_run".into(),
        ..kit::status()
    }
}

fn held() -> api::Node {
    let mut node = out();
    node.faults.clear();
    node.incidents[0].faults.clear();
    node.incidents[0].held_by = Some("ann: the fan is loud".into());
    node
}

/// As the controller stores a hold and, if it took another's place, whose.
fn hold(seq: u64, seconds: i64, text: &str, before: Option<&str>) -> api::Step {
    let mut step = step(seq, ago(seconds), "Quarantined", "Quarantined", text);
    step.cause["reason"] = json!("person_hold");
    if let Some(before) = before {
        step.cause["held_before"] = json!(before);
    }
    step
}

#[test]
fn a_held_node_without_faults_says_who_holds_it_why_since_when_and_how_it_ends() {
    let mut steps = taken_out();
    steps.push(hold(9, 120, "bob holds the node out: heat", None));
    let anew = "ann holds the node out: the fan is loud";
    steps.push(hold(10, 90, anew, Some("bob: heat")));
    steps.push(hold(11, 60, anew, None));
    let ran = explained(&held(), steps, &kit::status());
    assert_eq!(ran.code, Some(1));
    let started = ran
        .out
        .find("No fault is open. A person holds the node since ");
    let told = &ran.out[started.unwrap_or_else(|| panic!("{}", ran.out))..];
    let told = told.lines().next().unwrap();
    assert!(
        told.contains("(1 min 30 s ago)")
            && told.ends_with(": ann (the fan is loud). `warden release gpu-17` ends that."),
        "{told}"
    );
    let (in_place, no_more) = ("(in place of bob (heat))", "No fault is open any more.");
    assert!(
        ran.out.contains(in_place) && !ran.out.contains(no_more),
        "{}",
        ran.out
    );
    // Also where the steps could not be read.
    let ran = explained(&held(), Vec::new(), &kit::status());
    let want = "A person holds the node: ann (the fan is loud).";
    assert!(ran.out.contains(want), "{}", ran.out);
}

#[test]
fn a_repair_of_the_site_is_told_by_its_name() {
    let mut node = out();
    node.faults = vec![api::Fault {
        action: "CUSTOM".into(),
        custom_action: "RESEAT_RISER".into(),
        ..xid_79()
    }];
    let ran = explained(&node, taken_out(), &kit::status());
    let want = "RESEAT_RISER (a repair of this site, CUSTOM)";
    assert!(ran.out.contains(want), "{}", ran.out);
}

#[test]
fn everything_that_has_to_come_off_by_hand_is_named() {
    let off = api::Status {
        profile: "silent".into(),
        quarantine: "off".into(),
        ..kit::status()
    };
    let annotate = "kubectl annotate node gpu-17 warden.dev/incident- quarantineHealthEvent- \
                    quarantineHealthEventAppliedTaints- quarantineHealthEventIsCordoned- \
                    quarantineHealthEventCordonPreExisting-";
    for status in [dry_run(), off] {
        let mut node = out();
        node.incidents[0].taints = vec![
            "warden.dev/fault=x:NoSchedule".into(),
            "a=:NoExecute".into(),
        ];
        let taints = ["other=1:NoSchedule".to_owned()];
        let object = node.object.as_mut().unwrap();
        object.taints = [&taints[..], &node.incidents[0].taints].concat();
        let [uncordon, taint, bare] = [
            "kubectl uncordon gpu-17",
            "kubectl taint node gpu-17 warden.dev/fault=x:NoSchedule-",
            "kubectl taint node gpu-17 a:NoExecute-",
        ];
        let ran = explained(&node, taken_out(), &status);
        for want in [uncordon, taint, bare, annotate] {
            assert!(ran.out.contains(want), "{want} in {}", ran.out);
        }
        let foreign = "node gpu-17 other";
        assert!(!ran.out.contains(foreign), "{}", ran.out);
        // What came off already is not named again.
        node.object.as_mut().unwrap().cordoned = false;
        let ran = explained(&node, taken_out(), &status);
        assert!(
            !ran.out.contains(uncordon) && ran.out.contains(taint),
            "{}",
            ran.out
        );
        node.object.as_mut().unwrap().taints = taints.to_vec();
        let ran = explained(&node, taken_out(), &status);
        assert!(
            !ran.out.contains("kubectl taint") && ran.out.contains(annotate),
            "{}",
            ran.out
        );
        assert!(!ran.out.contains("warden release"), "{}", ran.out);
    }
}

#[test]
fn a_node_that_was_given_back_by_hand_is_no_red_one() {
    let line = api::NodeLine {
        given_back: true,
        ..kit::node_line("gpu-17", Some("Quarantined"))
    };
    let server = Server::start(&[
        ("GET /api/v1/status", 200, text(&dry_run())),
        ("GET /api/v1/breaker", 200, text(&[pool()])),
        ("GET /api/v1/nodes", 200, text(&[line])),
    ]);
    let ran = ask(&server, &["status"]);
    assert!(
        ran.out.contains("Quarantined, given back by hand"),
        "{}",
        ran.out
    );
}

#[test]
fn a_file_that_does_not_run_is_told_by_status() {
    let mut status = kit::status();
    status.config = api::ConfigState {
        problem: Some(api::ConfigProblem {
            code: "config_bad".into(),
            why: "quarantine.workers = 0: allowed is a number from 1 to 1024".into(),
            since: ago(90),
        }),
        needs_restart: vec!["store.path".into()],
    };
    let server = Server::start(&[
        ("GET /api/v1/status", 200, text(&status)),
        ("GET /api/v1/breaker", 200, "[]".into()),
        ("GET /api/v1/nodes", 200, "[]".into()),
    ]);
    let ran = ask(&server, &["status", "--check"]);
    assert_eq!(ran.code, Some(1));
    for want in [
        "the rule sets of the configuration file do not run since",
        "those from before do: quarantine.workers = 0",
        "taken at the next start: store.path",
    ] {
        assert!(ran.out.contains(want), "{}", ran.out);
    }
}
