//! `warden explain` in each state that a person meets at night: what is wrong, since when, by which
//! rule, what comes, what blocks it, what to do.

use jiff::Timestamp;
use serde_json::Value;
use wire::api;

use crate::explain::{out, server_of};
use crate::kit::{self, INCIDENT, Ran, ago, ask, incident, node, pool, step, taken_out, xid_79};

/// A fault of the kit's node; `number` makes it a device and an id of its own.
fn fault(number: i64, code: &str, fatal: bool) -> api::Fault {
    api::Fault {
        id: format!("{number:012x}"),
        device: format!("PCI=0000:{number:02x}:00"),
        code: code.into(),
        fatal,
        since: Some(ago(1_000 - number)),
        incident: None,
        message: String::new(),
        ..xid_79()
    }
}

/// In service with one fault that is in no incident.
fn faulty() -> api::Node {
    api::Node {
        faults: vec![api::Fault {
            incident: None,
            ..xid_79()
        }],
        ..node()
    }
}

fn blocked_by(by: &str, node: api::Node) -> api::Node {
    let mut node = node;
    node.object.as_mut().unwrap().blocked_by = vec![by.into()];
    node
}

/// An incident that a person ended 2 minutes ago, and the hold that it left.
fn given_back(detail: &str, actor: &str, until: Timestamp) -> api::Node {
    let closed = api::Incident {
        detail: detail.into(),
        closed_at: Some(ago(120)),
        ..incident("Closed")
    };
    api::Node {
        incidents: vec![closed],
        holds: vec![api::Hold {
            actor: actor.into(),
            until,
            faults: vec!["node/gpu-17 SysLogsXIDError 79 PCI=0000:cb:00".into()],
        }],
        ..faulty()
    }
}

/// With an open incident in this state and nothing on the node.
fn waiting(state: &str) -> api::Node {
    let mut node = out();
    node.object.as_mut().unwrap().cordoned = false;
    node.incidents[0].state = state.into();
    node
}

/// What explain says; as JSON it says the same.
fn explained(node: &api::Node, steps: Vec<api::Step>, status: &api::Status) -> Ran {
    let server = server_of(node, steps, status, pool());
    let ran = ask(&server, &["explain", "gpu-17"]);
    let json = ask(&server, &["explain", "gpu-17", "--format", "json"]);
    assert_eq!(json.code, ran.code);
    let whole: Value = serde_json::from_str(&json.out).unwrap();
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = words(&ran.out);
    let mut said = vec![whole["verdict"].as_str().unwrap()];
    said.extend(
        whole["next"]
            .as_array()
            .unwrap()
            .iter()
            .map(|l| l["text"].as_str().unwrap()),
    );
    for command in whole["commands"].as_array().unwrap() {
        said.extend(["command", "effect"].map(|key| command[key].as_str().unwrap()));
    }
    for said in said {
        assert!(
            text.contains(&words(said)),
            "{said:?} is only in the JSON: {text}"
        );
    }
    ran
}

/// One snapshot a state; 1 is the exit code while something is wrong.
fn check(name: &str, code: i32, node: &api::Node, steps: Vec<api::Step>) {
    let ran = explained(node, steps, &kit::status());
    assert_eq!(ran.code, Some(code), "{name}");
    insta::assert_snapshot!(name, ran.out);
}

#[test]
fn a_node_that_is_gone_or_well() {
    let gone = |node: api::Node| api::Node {
        object: None,
        ..node
    };
    check("deleted_with_a_fault", 1, &gone(faulty()), Vec::new());
    let deleted = api::Incident {
        detail: "NodeDeleted".into(),
        closed_at: Some(ago(100)),
        ..incident("Closed")
    };
    let over = |second, cause: &str| api::ClosedFault {
        fault: fault(1, "79", true),
        closed_at: ago(second),
        cause: cause.to_owned(),
    };
    let causes = [
        "node deleted",
        "node replaced",
        "person",
        "reboot",
        "new",
        "x",
    ];
    let ended = api::Node {
        incidents: vec![deleted],
        closed: (1..)
            .zip(causes)
            .map(|(n, cause)| over(n * 60, cause))
            .collect(),
        ..gone(node())
    };
    check("deleted", 0, &ended, Vec::new());
    let mut cordoned = node();
    cordoned.object.as_mut().unwrap().cordoned = true;
    check("well_but_cordoned_by_others", 0, &cordoned, Vec::new());
    let mut silent = node();
    silent.agent.state = "silent".into();
    silent.agent.last_report_at = Some(ago(900));
    check("well_as_far_as_known", 0, &silent, Vec::new());
    let mut left = node();
    left.object.as_mut().unwrap().unconfirmed = vec!["Thermal".into(), "Power".into()];
    check("left_by_a_lost_store", 1, &left, Vec::new());
    let observed = api::Node {
        observed: vec![fault(1, "13", false), fault(2, "79", true)],
        ..node()
    };
    check("only_observed_faults", 0, &observed, Vec::new());
    check(
        "well_and_paused",
        0,
        &blocked_by("paused", node()),
        Vec::new(),
    );
}

#[test]
fn a_fault_without_an_incident() {
    check("no_rule_acts", 1, &faulty(), Vec::new());
    let mut new = faulty();
    (new.faults[0].since, new.faults[0].last_at) = (Some(ago(1)), ago(1));
    let said = explained(&new, Vec::new(), &kit::status()).out;
    assert!(said.contains("A fault was just said:"), "{said}");
    assert!(!said.contains("no rule set that is on acts"), "{said}");
    for by in ["opted_out", "protected", "control_plane", "paused"] {
        check(by, 1, &blocked_by(by, faulty()), Vec::new());
    }
    let mut other = faulty();
    other.faults[0].elsewhere = true;
    check("said_in_another_boot", 1, &other, Vec::new());
    let mut cordoned = faulty();
    cordoned.object.as_mut().unwrap().cordoned = true;
    check("faulty_and_cordoned_by_others", 1, &cordoned, Vec::new());
    let off = api::Status {
        quarantine: "off".into(),
        ..kit::status()
    };
    let ran = explained(&faulty(), Vec::new(), &off);
    insta::assert_snapshot!("quarantine_off", ran.out);
}

#[test]
fn a_node_that_a_person_gave_back_says_how_and_what_is_held_until_when() {
    let tomorrow = ago(120 - 86_400);
    let uncordoned = given_back("ManualUncordon", "a person at the node", tomorrow);
    check("held_after_an_uncordon", 1, &uncordoned, Vec::new());
    let table = [
        (
            given_back("ManualUntaint", "a person at the node", tomorrow),
            "A taint of Warden's was removed by hand 2026-09-12 03:18:30 CEST (2 min ago;",
        ),
        (
            given_back("CancelledByPerson", "alice", tomorrow),
            "alice gave the node back 2026-09-12 03:18:30 CEST (2 min ago). That ended incident",
        ),
        (
            given_back("Recovered", "a person before the store was lost", tomorrow),
            "The node was given back by a person before the store was lost.",
        ),
        (
            given_back("CancelledByPerson", "local", tomorrow),
            "somebody with the controller's local token gave the node back 2026-09-12 03:18:30",
        ),
        (
            given_back("ManualUncordon", "a person at the node", ago(10)),
            "That time is over; these do not take it out before the node's agent has reported once more:",
        ),
    ];
    for (node, want) in table {
        let ran = explained(&node, Vec::new(), &kit::status());
        assert!(ran.out.contains(want), "{want:?} is not in {}", ran.out);
    }
    let mut dropped = waiting("Observed");
    dropped.holds = given_back("", "bob", Timestamp::MAX).holds;
    dropped.faults[0].incident = Some(INCIDENT.into());
    let steps = vec![
        step(
            7,
            ago(505),
            "",
            "Withheld",
            "the breaker's rate bound is reached",
        ),
        step(
            8,
            ago(30),
            "Withheld",
            "Observed",
            "bob dropped the withheld cordon",
        ),
    ];
    check("dropped_by_a_person", 1, &dropped, steps);
}

#[test]
fn a_node_that_is_withheld_or_observed() {
    let first = vec![step(
        7,
        ago(20),
        "",
        "Withheld",
        "quarantine was switched on a moment ago",
    )];
    let mut node = waiting("Withheld");
    node.incidents[0].since = ago(20);
    node.incidents[0].detail = "quarantine was switched on; nothing is done before …".into();
    node.incidents[0].withheld_by = Some("first_action".into());
    node.incidents[0].not_before = Some(ago(-280));
    check("withheld_by_the_first_action", 1, &node, first);
    node.incidents[0].withheld_by = Some("pace".into());
    node.incidents[0].not_before = None;
    let ran = explained(&node, Vec::new(), &kit::status());
    let want = "Not taken out yet: withheld nodes are taken out one after the other";
    assert!(ran.out.contains(want), "{}", ran.out);

    // After a reset, while as many are out as may be.
    let full = api::BreakerPool { out: 4, ..pool() };
    let server = server_of(&node, Vec::new(), &kit::status(), full);
    let ran = ask(&server, &["explain", "gpu-17"]);
    let flat = ran.out.split_whitespace().collect::<Vec<_>>().join(" ");
    let want = "the level bound of the breaker is still reached: 4 out, of 4 that may be.";
    assert!(flat.contains(want), "{flat}");

    let dry = api::Status {
        dry_run: true,
        quarantine: "dry_run".into(),
        profile: "observe".into(),
        ..kit::status()
    };
    let steps = vec![step(
        7,
        ago(505),
        "",
        "Observed",
        "dry run: nothing is written",
    )];
    let ran = explained(&waiting("Observed"), steps, &dry);
    insta::assert_snapshot!("observed_in_a_dry_run", ran.out);
    let steps = vec![step(
        7,
        ago(505),
        "",
        "Observed",
        "the node is protected: it is only observed",
    )];
    check(
        "observed_as_protected",
        1,
        &blocked_by("protected", waiting("Observed")),
        steps,
    );
}

#[test]
fn a_node_on_which_something_does_not_come_through() {
    let mut node = waiting("Applying");
    node.incidents[0].since = ago(300);
    check("applying_is_stuck", 1, &node, taken_out()[..1].to_vec());
    let mut node = out();
    node.faults.clear();
    node.agent.state = "starting".into();
    node.incidents[0].needs_operator = Some("agent not settled".into());
    check("a_person_is_needed", 1, &node, taken_out());
    let starting = api::Status {
        ready: false,
        parts: vec!["store: ready".into(), "nodes: starting".into()],
        ..kit::status()
    };
    let ran = explained(&out(), taken_out(), &starting);
    assert!(
        ran.out
            .contains("The controller is not ready (nodes: starting)"),
        "{}",
        ran.out
    );
    let dry = api::Status {
        dry_run: true,
        quarantine: "dry_run".into(),
        ..kit::status()
    };
    let ran = explained(&out(), taken_out(), &dry);
    assert!(
        ran.out.contains("does not give the node back either"),
        "{}",
        ran.out
    );
    assert!(ran.out.contains("kubectl uncordon gpu-17"), "{}", ran.out);
    assert!(!ran.out.contains("warden release"), "{}", ran.out);
}

#[test]
fn a_node_held_by_a_person_says_who_and_why() {
    let mut node = out();
    node.faults.clear();
    node.incidents[0].faults.clear();
    node.incidents[0].held_by = Some("alice: broken fan".into());
    let steps = vec![
        step(
            7,
            ago(505),
            "",
            "Applying",
            "alice: broken fan holds the node out",
        ),
        step(
            8,
            ago(505),
            "Applying",
            "Quarantined",
            "the node shows our write",
        ),
    ];
    check("held_by_a_person", 1, &node, steps);
}

#[test]
fn of_many_faults_those_that_act_and_are_fatal_come_first_and_the_rest_is_counted() {
    let mut node = out();
    // Arrival: many that do not matter, then the one that took the node out, then a fatal one.
    node.faults = (1..=14).map(|number| fault(number, "13", false)).collect();
    node.faults.push(xid_79());
    node.faults.push(fault(20, "48", true));
    let ran = explained(&node, taken_out(), &kit::status());
    let told: Vec<&str> = ran
        .out
        .lines()
        .filter(|line| line.starts_with("  XID "))
        .collect();
    assert_eq!(told.len(), 10, "{}", ran.out);
    assert!(
        told[0].starts_with("  XID 79: ") && told[1].starts_with("  XID 48: "),
        "{told:?}"
    );
    // The newest of the rest.
    assert!(told[2].ends_with("id 00000000000e)"), "{told:?}");
    let want = "and 6 more, 0 of them fatal: warden explain gpu-17 --format json";
    assert!(ran.out.contains(want), "{}", ran.out);
    let next = "    XID 79: GPU has fallen off the bus (PCI=0000:cb:00) ends with a reboot";
    assert!(ran.out.contains(next), "{}", ran.out);
    assert!(ran.out.contains("warden close gpu-17 ID"), "{}", ran.out);
}

#[test]
fn an_unknown_node_says_where_to_look() {
    let problem =
        r#"{"error":"nothing is known of node gpu-99; see `kubectl get nodes`","code":"no_node"}"#;
    let server = kit::Server::start(&[("GET /api/v1/nodes/gpu-99", 404, problem.to_owned())]);
    for format in ["text", "json"] {
        let mut command = kit::program();
        command.env("WARDEN_SERVER", server.url());
        let ran = command
            .args(["explain", "gpu-99", "--format", format])
            .output()
            .unwrap();
        let ran = Ran::from(ran);
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""));
        assert!(
            ran.err.contains("see `kubectl get nodes` [no_node]"),
            "{}",
            ran.err
        );
    }
}

#[test]
fn what_another_quarantine_or_a_switched_off_one_leaves_undone_is_no_write_under_way() {
    let what = "Deployment nvsentinel/fault-quarantine";
    let refused = api::Status {
        other_quarantine: Some(what.into()),
        ..kit::status()
    };
    let mut withheld = blocked_by(&format!("other_quarantine {what}"), waiting("Withheld"));
    withheld.incidents[0].withheld_by = Some("other_quarantine".into());
    let steps = vec![step(
        7,
        ago(505),
        "",
        "Withheld",
        "another fault-quarantine runs in the cluster: nothing is written while it does",
    )];
    let ran = explained(&withheld, steps, &refused);
    insta::assert_snapshot!("withheld_by_another_quarantine", ran.out);
    let mut over = blocked_by(&format!("other_quarantine {what}"), out());
    over.faults.clear();
    let ran = explained(&over, Vec::new(), &refused);
    let kept = "While Warden does not write, it does not give the node back either.";
    assert!(ran.out.contains(kept), "{}", ran.out);
    // Where nothing is wrong it keeps nothing from being done.
    let well = blocked_by(&format!("other_quarantine {what}"), node());
    let ran = explained(&well, Vec::new(), &refused);
    assert!(!ran.out.contains("fault-quarantine"), "{}", ran.out);

    let off = api::Status {
        quarantine: "off".into(),
        ..kit::status()
    };
    let mut releasing = out();
    releasing.incidents[0].state = "Releasing".into();
    let ran = explained(&releasing, Vec::new(), &off);
    assert!(!ran.out.contains("does not come through"), "{}", ran.out);
    let begun = "it is not begun again before Warden may write";
    assert!(ran.out.contains(begun), "{}", ran.out);
}

#[test]
fn what_a_lost_store_left_is_told() {
    // After a person had given the node back.
    let mut node = blocked_by("given_back", faulty());
    node.faults[0].restored = true;
    check("given_back_before_the_store_was_lost", 1, &node, Vec::new());
    // A node that does not name all that it is out for, before and after its agent's time is over.
    let mut node = out();
    node.faults.clear();
    node.agent.state = "starting".into();
    node.incidents[0].faults.clear();
    node.incidents[0].faults_unknown = true;
    node.incidents[0].detail =
        "the store was lost and the node does not name all that it is out for; \
                                its agent's settled report will"
            .into();
    let found = vec![step(7, ago(505), "", "Quarantined", "found on the node")];
    check("faults_unknown", 1, &node, found.clone());
    node.incidents[0].needs_operator = Some("faults unknown".into());
    check("faults_unknown_and_a_person_is_needed", 1, &node, found);
}

#[test]
fn a_fault_that_nobody_read_from_a_part_says_so_wherever_it_is_told() {
    let mut node = out();
    node.faults[0].injected = true;
    let line = api::Fault {
        origin: "user, machine-id=m-1, boot-id-file=/tmp/boot".into(),
        ..fault(2, "48", true)
    };
    node.faults.push(line);
    let over = api::ClosedFault {
        fault: api::Fault {
            injected: true,
            ..fault(3, "63", false)
        },
        closed_at: ago(60),
        cause: "person".into(),
    };
    node.closed = vec![over];
    let mut steps = taken_out();
    let cause = steps[0].cause.as_object_mut().unwrap();
    for (key, count) in [("open_faults", 2), ("injected", 1), ("stand_ins", 1)] {
        cause.insert(key.into(), count.into());
    }
    check("injected", 1, &node, steps);
}

#[test]
fn a_fault_that_an_override_changed_says_by_which_and_what_was_said() {
    let mut node = out();
    node.faults[0].overridden = "quiet: isFatal was true".into();
    let ran = explained(&node, taken_out(), &kit::status());
    let want = "    override  quiet: isFatal was true\n";
    assert!(ran.out.contains(want), "{}", ran.out);
}

#[test]
fn agents_that_cannot_be_taken_at_their_word_say_what_to_do() {
    let doubt = |number, check: &str, message: &str| api::Fault {
        agent: "warden-agent".into(),
        component_class: "Agent".into(),
        check: check.into(),
        device: String::new(),
        message: message.into(),
        action: "NONE".into(),
        sender: "controller".into(),
        boot_id: String::new(),
        ..fault(number, "", false)
    };
    let node = api::Node {
        faults: vec![
            doubt(
                1,
                "AgentConflict",
                "several agents report as this node: process A, process B",
            ),
            doubt(
                2,
                "AgentMachineMismatch",
                "the node's agent runs on machine m-1, the node object says m-2",
            ),
        ],
        ..node()
    };
    check("agents_in_doubt", 1, &node, Vec::new());
}

#[test]
fn a_refused_write_is_told_with_its_code_since_when_and_when_it_is_tried_again() {
    let mut node = waiting("Applying");
    let object = node.object.as_mut().unwrap();
    object.blocked_by = vec!["write_refused taking out of node gpu-17: refused".into()];
    object.write_refused = Some(api::WriteRefused {
        code: "changed".into(),
        message:
            "taking out of node gpu-17: the object changed in between, or refuses the change: \
                  ValidatingAdmissionPolicy 'p' denied request: this node stays"
                .into(),
        since: ago(300),
        last_at: ago(3),
        times: 12,
        next_at: Some(ago(-2)),
    });
    check("a_write_is_refused", 1, &node, taken_out()[..1].to_vec());
    let object = node.object.as_mut().unwrap();
    object.write_refused.as_mut().unwrap().next_at = None;
    let ran = explained(&node, Vec::new(), &kit::status());
    assert!(ran.out.contains("the next try is now"), "{}", ran.out);
}

#[test]
fn a_refused_write_is_told_at_once_with_the_server_s_words() {
    let said = "taking out of node gpu-17: refuses the change: Invalid value: \"a b\"";
    for (state, what) in [
        ("Applying", "takes the node out"),
        ("Releasing", "gives the node back"),
    ] {
        let node = blocked_by(&format!("write_refused {said}"), waiting(state));
        let want = format!("The write that {what} is refused, and tried again and again: {said}.");
        let ran = explained(&node, Vec::new(), &kit::status());
        for want in [want.as_str(), "`warden release gpu-17`"] {
            let flat = ran.out.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(flat.contains(want), "{want}: {flat}");
        }
    }
}

#[test]
fn of_several_holds_none_is_told_to_have_ended_an_incident_that_another_may_have() {
    let mut node = given_back("CancelledByPerson", "ann", ago(-3_600));
    node.holds.push(api::Hold {
        actor: "bob".into(),
        ..node.holds[0].clone()
    });
    let said = explained(&node, Vec::new(), &kit::status()).out;
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    for who in ["ann", "bob"] {
        assert!(
            said.contains(&format!("The node was given back by {who}")),
            "{said}"
        );
    }
    assert!(!said.contains("That ended incident"), "{said}");
}
