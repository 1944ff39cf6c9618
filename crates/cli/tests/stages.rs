//! `warden explain`, `timeline` and `status` in each state of drain and repair, with each thing that
//! blocks them.

use jiff::SignedDuration;
use serde_json::json;
use wire::api;

use crate::explain::{out, server_of};
use crate::kit::{self, INCIDENT, Server, ago, ask, pool, step, taken_out, text};

/// A controller that drains and repairs.
fn repairs() -> api::Status {
    api::Status {
        profile: "remediate".into(),
        drain: "enforce".into(),
        remediation: "enforce".into(),
        janitor: "enforce".into(),
        ..kit::status()
    }
}

fn drain(state: &str, detail: &str) -> api::Drain {
    api::Drain {
        state: state.into(),
        detail: detail.into(),
        since: ago(400),
        not_before: None,
        immediate_deadline: None,
        delete_at: None,
        completion_deadline: None,
        at_deadline: "fail".into(),
        blockers: Vec::new(),
        passed_over: Vec::new(),
    }
}

fn draining(blockers: Vec<api::Blocker>) -> api::Drain {
    api::Drain {
        immediate_deadline: Some(ago(-3_200)),
        delete_at: Some(ago(-3_200)),
        blockers,
        ..drain("Draining", "")
    }
}

fn blocker(pod: &str, why: &str, detail: &str, until: Option<i64>) -> api::Blocker {
    api::Blocker {
        pod: pod.into(),
        why: why.into(),
        detail: detail.into(),
        until: until.map(|seconds| ago(-seconds)),
    }
}

fn repair(state: &str, detail: &str, words: &str) -> api::Repair {
    api::Repair {
        state: state.into(),
        detail: detail.into(),
        words: words.into(),
        since: ago(120),
        again_at: None,
        blocked_by: None,
        attempt: None,
    }
}

fn attempt(effect: &str) -> api::RepairAttempt {
    api::RepairAttempt {
        number: 1,
        rung: "reboot".into(),
        action: "RESTART_BM".into(),
        object: "maintenance-gpu-17-01k4y2wj8r0000000000000001-1".into(),
        force: false,
        boot_before: "boot-1".into(),
        requested_at: ago(130),
        deadline: ago(-1_370),
        effect: effect.into(),
    }
}

/// Out, with these.
fn node(drain: Option<api::Drain>, repair: Option<api::Repair>) -> api::Node {
    let mut node = out();
    node.incidents[0].drain = drain;
    node.incidents[0].repair = repair;
    node
}

/// From the headline's second line on what is of drain and repair: the rest is told by other tests.
fn told(node: &api::Node, steps: Vec<api::Step>, status: &api::Status) -> String {
    let server = server_of(node, steps, status, pool());
    let ran = ask(&server, &["explain", "gpu-17"]);
    assert_eq!(ran.code, Some(1), "{}", ran.out);
    let headline = ran.out.lines().next().unwrap();
    let next = ran.out.find("What happens next").unwrap();
    format!("{headline}\n\n{}", &ran.out[next..])
}

fn check(name: &str, node: &api::Node) {
    insta::assert_snapshot!(name, told(node, taken_out(), &repairs()));
}

#[test]
fn each_state_of_a_drain_says_what_goes_on_and_what_a_person_can_do() {
    for why in ["paused", "other_drainer", "own_node", "turn"] {
        let node = node(Some(drain("Waiting", why)), None);
        check(&format!("drain_waits_{why}"), &node);
    }
    let first = api::Drain {
        not_before: Some(ago(-200)),
        ..drain("Waiting", "first_action")
    };
    check("drain_waits_first_action", &node(Some(first), None));
    let dry = api::Drain {
        blockers: vec![blocker("train/a", "asked", "", None)],
        passed_over: vec!["train/b".into()],
        ..drain("Waiting", "dry_run")
    };
    check("drain_in_a_dry_run", &node(Some(dry), None));
    check("drain_begins", &node(Some(draining(Vec::new())), None));
    let drained = api::Drain {
        passed_over: (1..=7).map(|n| format!("train/stuck-{n}")).collect(),
        ..drain("Drained", "")
    };
    let planned = repair("Planned", "reboot", "");
    check("drained", &node(Some(drained), Some(planned)));
    for why in ["immediate", "deleted", "completion"] {
        let left = match why {
            "immediate" => blocker(
                "train/ps-0",
                "budget",
                "The disruption budget ps needs 2",
                None,
            ),
            "deleted" => blocker("train/ps-0", "terminating", "", None),
            _ => blocker("train/ps-0", "completion", "", None),
        };
        let failed = api::Drain {
            blockers: vec![left],
            ..drain("Failed", why)
        };
        check(&format!("drain_failed_{why}"), &node(Some(failed), None));
    }
    let mut ended = api::Step {
        module: "drain".into(),
        ..step(9, ago(400), "Draining", "Cancelled", "")
    };
    ended.cause = json!({ "reason": "not_wanted" });
    let cancelled = node(Some(drain("Cancelled", "")), None);
    let told = told(&cancelled, vec![ended], &repairs());
    insta::assert_snapshot!("drain_cancelled", told);
}

/// Row "a PDB that refuses is never silent": its own words, the pod, the deadline and the commands.
#[test]
fn each_blocker_of_a_drain_is_named_with_its_reason_and_its_deadline() {
    let budget = "The disruption budget ps needs 2 healthy pods and has 2 currently";
    let failed = "eviction of pod batch/f: pods \"f\" is forbidden [forbidden]";
    let blockers = vec![
        blocker("batch/a", "asked", "", Some(3_200)),
        blocker("batch/b", "terminating", "", Some(120)),
        blocker("train/ps-0", "budget", budget, Some(3_200)),
        blocker("batch/f", "failed", failed, Some(3_200)),
        blocker("long/c", "completion", "", None),
        blocker("long/d", "completion", "", Some(7_200)),
        blocker("batch/t", "timeout", "", Some(3_200)),
        blocker("batch/k", "came", "", Some(40)),
        blocker("batch/x", "new_reason", "of a newer controller", None),
        blocker("batch/o", "asked", "", Some(-5)),
    ];
    check("drain_blockers", &node(Some(draining(blockers)), None));
}

#[test]
fn of_many_pods_those_that_need_a_person_come_first_and_the_rest_is_counted() {
    let mut blockers: Vec<api::Blocker> = (0..40)
        .map(|n| blocker(&format!("batch/p-{n:02}"), "terminating", "", Some(60)))
        .collect();
    blockers.extend((0..20).map(|n| blocker(&format!("batch/q-{n:02}"), "asked", "", Some(60))));
    let words = "The disruption budget ps needs 2 healthy pods and has 2 currently";
    blockers.push(blocker("train/ps-0", "budget", words, Some(3_200)));
    let told = told(
        &node(Some(draining(blockers)), None),
        taken_out(),
        &repairs(),
    );
    let pods: Vec<&str> = told
        .lines()
        .filter(|l| l.contains(": was asked to go"))
        .collect();
    assert_eq!(pods.len(), 9, "{told}");
    assert!(told.contains("it waits for 61 pods"), "{told}");
    assert!(
        told.contains("and 51 more: 11 asked to go, 40 going"),
        "{told}"
    );
    assert!(told.find("train/ps-0").unwrap() < told.find("batch/q-00").unwrap());
}

#[test]
fn each_state_of_a_repair_says_what_goes_on_and_what_a_person_can_do() {
    let drained = || Some(drain("Drained", ""));
    check(
        "repair_planned",
        &node(drained(), Some(repair("Planned", "reboot", ""))),
    );
    let under_way = [("Requested", 4), ("Running", 120), ("Unknown", 60)];
    for (state, _) in under_way {
        let repair = api::Repair {
            attempt: Some(attempt("pending")),
            ..repair(state, "", "")
        };
        let name = format!("repair_{}", state.to_lowercase());
        check(&name, &node(drained(), Some(repair)));
    }
    let forced = api::RepairAttempt {
        number: 2,
        force: true,
        boot_before: String::new(),
        deadline: ago(3),
        ..attempt("pending")
    };
    let late = api::Repair {
        attempt: Some(forced),
        ..repair("Running", "", "")
    };
    check("repair_late_with_force", &node(drained(), Some(late)));
    let other = api::RepairAttempt {
        rung: "hand-over".into(),
        action: "REPLACE_VM".into(),
        ..attempt("pending")
    };
    let handed = api::Repair {
        attempt: Some(other),
        ..repair("Running", "", "")
    };
    check("repair_handed_over", &node(drained(), Some(handed)));
    let mut proven = node(
        drained(),
        Some(api::Repair {
            attempt: Some(attempt("seen")),
            ..repair("Succeeded", "", "")
        }),
    );
    proven.agent.state = "starting".into();
    check("repair_succeeded", &proven);
    let ended = repair("Cancelled", "", "");
    check("repair_cancelled", &node(drained(), Some(ended)));
}

#[test]
fn each_failure_of_a_repair_and_each_need_of_a_person_says_why() {
    let drained = || Some(drain("Drained", ""));
    let failures = [
        ("no_reboot_observed", "", "not_seen"),
        ("refused", "RebootNode is invalid: spec.nodeName", "failed"),
        ("object", "ProviderError: quota exceeded", "failed"),
        ("deadline", "", "failed"),
    ];
    for (why, words, effect) in failures {
        let failed = api::Repair {
            attempt: Some(attempt(effect)),
            ..repair("Failed", why, words)
        };
        check(
            &format!("repair_failed_{why}"),
            &node(drained(), Some(failed)),
        );
    }
    for (state, effect_at) in [("Failed", -15), ("NeedsOperator", -240)] {
        let refused = api::Repair {
            attempt: Some(attempt("provider_refused")),
            again_at: Some(ago(effect_at)),
            ..repair(state, "provider_refused", "Failed: PermissionDenied: no")
        };
        let node = node(drained(), Some(refused));
        check(&format!("repair_provider_refused_{state}"), &node);
        let told = told(&node, taken_out(), &repairs());
        assert!(told.contains("PermissionDenied: no"), "{told}");
        assert!(told.contains("is asked again"), "{told}");
        assert!(!told.contains("nobody began"), "{told}");
    }
    let needs = [
        ("unsupported", "CONTACT_SUPPORT", None),
        ("exhausted", "reboot", Some(attempt("failed"))),
        ("still_open", "", Some(attempt("seen"))),
        ("not_begun", "", Some(attempt("not_begun"))),
        ("called_off", "", Some(attempt("not_begun"))),
    ];
    for (why, words, attempt) in needs {
        let needs = api::Repair {
            attempt,
            ..repair("NeedsOperator", why, words)
        };
        check(
            &format!("repair_needs_{why}"),
            &node(drained(), Some(needs)),
        );
    }
}

/// Without the right to read pods there is no drain, and nobody is told to repair with pods on the node.
#[test]
fn a_right_that_is_missing_is_named_with_what_does_not_happen_for_it() {
    let right = |verb: &str, resource: &str, missed: &str| api::MissingRight {
        verb: verb.into(),
        resource: resource.into(),
        missed: missed.into(),
        since: ago(90),
    };
    let lacks = api::Status {
        missing_rights: vec![
            right("list", "pods", "pods of nodes can't be read"),
            right(
                "delete",
                "leases.coordination.k8s.io",
                "no lock is given back",
            ),
        ],
        ..repairs()
    };
    let planned = api::Repair {
        blocked_by: Some("not_drained".into()),
        ..repair("Planned", "reboot", "")
    };
    let node = node(None, Some(planned));
    let without = told(&node, taken_out(), &repairs());
    assert!(without.contains("drains are off"), "{without}");
    let told = told(&node, taken_out(), &lacks);
    assert!(told.contains("its pods can't be read"), "{told}");
    assert!(
        told.contains("does not let Warden list pods since"),
        "{told}"
    );
    assert!(told.contains("delete leases.coordination.k8s.io"), "{told}");
    for not in ["drains are off", "without_drain"] {
        assert!(!told.contains(not), "{not}: {told}");
    }
}

/// The attempts of the machine are free again at a time, those of an incident never.
#[test]
fn what_goes_on_by_itself_is_told_with_its_time_and_with_what_keeps_it() {
    let again = api::Repair {
        attempt: Some(attempt("failed")),
        again_at: Some(ago(-7_200)),
        ..repair("NeedsOperator", "exhausted", "reboot")
    };
    let node = node(Some(drain("Drained", "")), Some(again));
    check("repair_needs_exhausted_for_a_time", &node);
    let told = told(&node, taken_out(), &repairs());
    let says = [
        "ordered by itself at 2026-09-12 05:20:30 CEST (in 2 h)",
        "kubectl annotate node gpu-17 warden.dev/pause=TEXT",
    ];
    for says in says {
        assert!(told.contains(says), "{says}: {told}");
    }
}

/// What is left to a person once the attempts are used up depends on who carries orders out.
#[test]
fn once_the_attempts_are_used_up_a_persons_own_order_is_offered_where_somebody_carries_it_out() {
    let used_up = api::Repair {
        attempt: Some(attempt("failed")),
        ..repair("NeedsOperator", "exhausted", "reboot")
    };
    let node = node(Some(drain("Drained", "")), Some(used_up));
    let order = r#"echo '{"apiVersion":"janitor.dgxc.nvidia.com/v1alpha1","kind":"RebootNode","metadata":{"generateName":"by-hand-"},"spec":{"nodeName":"gpu-17","force":false}}' | kubectl create -f -"#;
    for (janitor, offered, says) in [
        ("enforce", true, "the janitor carries it out"),
        ("manual", true, "waits for you to send the signal"),
        ("", true, "the janitor carries it out"),
        ("off", false, "repair it yourself"),
    ] {
        let status = api::Status {
            janitor: janitor.into(),
            ..repairs()
        };
        let told = told(&node, taken_out(), &status);
        assert_eq!(told.contains(order), offered, "{janitor}: {told}");
        assert!(told.contains(says), "{janitor}: {told}");
        assert!(told.contains("orders nothing more in it"), "{told}");
        assert!(!told.contains("warden.dev/pause"), "{told}");
        assert!(told.contains("warden release gpu-17"), "{told}");
    }
}

#[test]
fn each_thing_that_keeps_a_planned_repair_is_named() {
    let kept = [
        "dry_run",
        "other_remediation",
        "paused",
        "external_owner",
        "not_drained",
        "other_repair",
        "left_repair",
        "own_node",
        "first_action",
        "turn",
        "objects_unknown",
        "no_definition",
        "api_error",
        "starting",
        "of_a_newer_controller",
    ];
    for by in kept {
        let planned = api::Repair {
            blocked_by: Some(by.into()),
            ..repair("Planned", "reboot", "")
        };
        check(
            &format!("repair_kept_{by}"),
            &node(Some(drain("Drained", "")), Some(planned)),
        );
    }
}

#[test]
fn an_order_that_nobody_begins_and_a_reboot_that_is_not_awaited_are_named() {
    let queued = api::Repair {
        blocked_by: Some("queued".into()),
        attempt: Some(attempt("Pending")),
        ..repair("Running", "", "")
    };
    check(
        "repair_queued",
        &node(Some(drain("Drained", "")), Some(queued.clone())),
    );
    let own = api::Repair {
        blocked_by: Some("own_node".into()),
        ..queued
    };
    check(
        "repair_own_node",
        &node(Some(drain("Drained", "")), Some(own)),
    );
    let given_up = api::Repair {
        attempt: Some(attempt("Failed")),
        ..repair("Failed", "not_begun", "Timeout: it could not start in time")
    };
    check(
        "repair_not_begun",
        &node(Some(drain("Drained", "")), Some(given_up)),
    );
    let mut healed = node(Some(drain("Cancelled", "")), None);
    healed.faults.clear();
    healed.incidents[0].faults[0].closed_at = Some(ago(10));
    healed.incidents[0].release_kept_by = Some("repair_under_way".into());
    let told = told(&healed, taken_out(), &repairs());
    assert!(told.contains("a reboot may still come"), "{told}");
    for (validation, says) in [
        ("Running", Some("before its validation passed")),
        (
            "Failed: a GPU is slow",
            Some("validation failed: a GPU is slow"),
        ),
        ("Passed", None),
    ] {
        healed.incidents[0].release_kept_by = Some("validation".into());
        healed.incidents[0].validation = Some(validation.into());
        let told = self::told(&healed, taken_out(), &repairs());
        match says {
            Some(says) => assert!(told.contains(says), "{validation}: {told}"),
            None => assert!(!told.contains("validation"), "{told}"),
        }
    }
}

#[test]
fn a_reboot_that_may_still_come_is_told_whatever_became_of_its_incident() {
    let mut released = node(None, None);
    released.incidents.clear();
    let object = attempt("Pending").object;
    released.reboots = vec![
        api::PendingReboot {
            object: "by-hand".into(),
            since: None,
            until: None,
            waits_for: Some("the node is paused (annotation warden.dev/pause)".into()),
        },
        api::PendingReboot {
            object: object.clone(),
            since: Some(ago(60)),
            until: Some(ago(-1_440)),
            waits_for: None,
        },
    ];
    let says = told(&released, taken_out(), &repairs());
    assert!(says.contains("RebootNode by-hand waits"), "{says}");
    assert!(
        says.contains("nothing was sent: the node is paused"),
        "{says}"
    );
    assert!(
        !says.contains("kubectl describe rebootnode by-hand"),
        "{says}"
    );
    assert!(says.contains("may still be rebooted, until"), "{says}");
    let running = api::Repair {
        attempt: Some(attempt("Pending")),
        ..repair("Running", "", "")
    };
    let mut own = node(Some(drain("Drained", "")), Some(running));
    own.reboots = released.reboots;
    let says = told(&own, taken_out(), &repairs());
    assert!(
        !says.contains("may still be rebooted"),
        "told by the repair: {says}"
    );
}

#[test]
fn a_planned_repair_whose_node_is_never_drained_says_which_option_decides() {
    let dry = || Some(drain("Waiting", "dry_run"));
    for (drain, name) in [(None, "off"), (dry(), "dry")] {
        let planned = api::Repair {
            blocked_by: Some("not_drained".into()),
            ..repair("Planned", "reboot", "")
        };
        let status = api::Status {
            drain: if drain.is_none() { "off" } else { "dry_run" }.into(),
            ..repairs()
        };
        let told = told(&node(drain, Some(planned)), taken_out(), &status);
        assert!(told.contains("remediation.without_drain"), "{name}: {told}");
    }
}

#[test]
fn a_profile_that_moves_or_repairs_nothing_says_so_and_how_to_do_it_by_hand() {
    let told = told(&out(), taken_out(), &kit::status());
    insta::assert_snapshot!("stages_are_off", told);
}

#[test]
fn a_held_node_can_be_released_or_its_incident_cancelled() {
    let mut node = node(Some(draining(Vec::new())), None);
    node.incidents[0].held_by = Some("alice: broken fan".into());
    check("held_and_draining", &node);
}

#[test]
fn a_timeline_tells_the_whole_loop() {
    let of = |seq, seconds: i64, module: &str, from: &str, to: &str, reason: &str| api::Step {
        module: module.into(),
        cause: json!({ "reason": reason }),
        ..step(
            seq,
            ago(505) + SignedDuration::from_secs(seconds),
            from,
            to,
            "",
        )
    };
    let mut steps = taken_out();
    steps.extend([
        of(9, 1, "remediation", "", "Planned", "faults_ask"),
        of(10, 1, "drain", "", "Draining", "wanted"),
        of(11, 70, "drain", "Draining", "Drained", "empty"),
        of(12, 70, "remediation", "Planned", "Requested", "node_empty"),
        of(13, 71, "remediation", "Requested", "Running", "object_seen"),
        of(14, 200, "remediation", "Running", "Succeeded", "other_boot"),
        of(
            15,
            300,
            "remediation",
            "Succeeded",
            "NeedsOperator",
            "a_new_reason",
        ),
    ]);
    let detail = api::IncidentDetail {
        incident: kit::incident("Quarantined"),
        timeline: steps,
    };
    let path = format!("GET /api/v1/incidents/{INCIDENT}");
    let server = Server::start(&[(&path, 200, text(&detail))]);
    let ran = ask(&server, &["timeline", INCIDENT]);
    insta::assert_snapshot!("timeline_of_the_whole_loop", ran.out);
}

/// Each reason for which a drain or a repair changes, with a state that it leads to: the controller's own
/// words where it sends them, else those of the code.
#[test]
fn a_timeline_has_words_for_each_reason_of_drain_and_repair() {
    use decide::{drain, remediation};
    let drains = [
        (drain::Reason::Wanted, "Draining"),
        (drain::Reason::KeptWaiting, "Waiting"),
        (drain::Reason::OtherDrainer, "Waiting"),
        (drain::Reason::Empty, "Drained"),
        (drain::Reason::NothingToDo, "Drained"),
        (drain::Reason::CameLate, "Draining"),
        (drain::Reason::Deadline, "Failed"),
        (drain::Reason::GoesOn, "Draining"),
        (drain::Reason::NotWanted, "Cancelled"),
        (drain::Reason::Off, "Cancelled"),
    ];
    let repairs = [
        (remediation::Reason::FaultsAsk, "Planned"),
        (remediation::Reason::NodeEmpty, "Requested"),
        (remediation::Reason::ObjectSeen, "Running"),
        (remediation::Reason::Begun, "Running"),
        (remediation::Reason::NotBegun, "Failed"),
        (remediation::Reason::Off, "Failed"),
        (remediation::Reason::ObjectGone, "Unknown"),
        (remediation::Reason::OtherBoot, "Succeeded"),
        (remediation::Reason::ObjectDone, "Succeeded"),
        (remediation::Reason::ObjectFailed, "Failed"),
        (remediation::Reason::ObjectRefused, "Failed"),
        (remediation::Reason::Deadline, "Failed"),
        (remediation::Reason::FaultsGone, "Cancelled"),
        (remediation::Reason::Booted, "Cancelled"),
        (remediation::Reason::NothingLeft, "NeedsOperator"),
        (remediation::Reason::StillOpen, "NeedsOperator"),
        (remediation::Reason::Found, "Running"),
    ];
    let drains = drains.map(|(reason, to)| ("drain", reason.code(), to));
    let repairs = repairs.map(|(reason, to)| ("remediation", reason.code(), to));
    let all: Vec<_> = drains.into_iter().chain(repairs).collect();
    let steps = (1..)
        .zip(&all)
        .map(|(seq, (module, reason, to))| api::Step {
            module: (*module).into(),
            cause: json!({ "reason": reason }),
            ..step(seq, ago(505), "before", to, "")
        });
    let detail = api::IncidentDetail {
        incident: kit::incident("Quarantined"),
        timeline: steps.collect(),
    };
    let path = format!("GET /api/v1/incidents/{INCIDENT}");
    let server = Server::start(&[(&path, 200, text(&detail))]);
    let ran = ask(&server, &["timeline", INCIDENT]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    for (module, reason, to) in &all {
        assert!(ran.out.contains(to), "{module} {reason}: {}", ran.out);
        let code = format!("  {reason}\n");
        assert!(!ran.out.contains(&code), "a bare code: {}", ran.out);
    }
    insta::assert_snapshot!("timeline_of_every_reason", ran.out);
    // The controller's own words go first.
    let told = api::IncidentDetail {
        timeline: vec![api::Step {
            module: "remediation".into(),
            cause: json!({ "reason": "object_failed", "text": "its object says: quota exceeded" }),
            ..step(1, ago(505), "Running", "Failed", "")
        }],
        ..detail
    };
    let server = Server::start(&[(&path, 200, text(&told))]);
    let ran = ask(&server, &["timeline", INCIDENT]);
    assert!(
        ran.out.contains("its object says: quota exceeded"),
        "{}",
        ran.out
    );
}

#[test]
fn status_counts_nodes_that_drain_are_repaired_or_need_a_person() {
    let line = |name: &str, drain: &str, repair: Option<&str>, person| api::NodeLine {
        drain: Some(drain.into()),
        repair: repair.map(str::to_owned),
        marks_removed: 0,
        needs_person: person,
        ..kit::node_line(name, Some("Quarantined"))
    };
    let nodes = [
        line("gpu-1", "Draining", Some("Planned"), false),
        line("gpu-2", "Drained", Some("Running"), false),
        line("gpu-3", "Failed", None, true),
        line("gpu-4", "Cancelled", Some("Planned"), false),
    ];
    let status = api::Status {
        out: 4,
        draining: 1,
        repairing: 3,
        need_person: 1,
        ..repairs()
    };
    let server = Server::start(&[
        ("GET /api/v1/status", 200, text(&status)),
        ("GET /api/v1/breaker", 200, text(&[pool()])),
        ("GET /api/v1/nodes", 200, text(&nodes)),
    ]);
    let ran = ask(&server, &["status"]);
    insta::assert_snapshot!("status_of_the_whole_loop", ran.out);
}

/// What is said of the deadline of a drain, the line alone.
fn of_deadline(drain: api::Drain) -> String {
    let said = told(&node(Some(drain), None), taken_out(), &repairs());
    let lines: Vec<_> = said
        .lines()
        .filter(|line| line.contains("drain.at_deadline"))
        .collect();
    assert_eq!(lines.len(), 1, "{said}");
    lines[0].trim().to_owned()
}

#[test]
fn a_drain_names_what_is_configured_for_its_deadline_and_what_happens_then() {
    let evicted = |at_deadline: &str, seconds: i64| api::Drain {
        at_deadline: at_deadline.into(),
        immediate_deadline: Some(ago(-seconds)),
        ..draining(vec![blocker("train/ps-0", "budget", "needs 2", None)])
    };
    let completes = |at_deadline: &str| api::Drain {
        completion_deadline: Some(ago(-600)),
        immediate_deadline: None,
        at_deadline: at_deadline.into(),
        ..draining(vec![blocker("train/ps-0", "completion", "", Some(600))])
    };
    let fails = "the drain fails, and a person is needed (drain.at_deadline is fail).";
    let deleted = "is deleted, without grace and past its disruption budgets (drain.at_deadline is delete); \
                   what is still there drain.stuck_timeout later fails the drain.";
    for (drain, begins, ends) in [
        (
            evicted("fail", 600),
            "Evicted pods have to be gone by 2026-09-12 03:30:30 CEST (in 10 min): what is left then is not \
             asked any more,",
            fails,
        ),
        (
            evicted("delete", 600),
            "Evicted pods have to be gone by 2026-09-12 03:30:30 CEST (in 10 min): what is left then",
            deleted,
        ),
        (
            evicted("fail", -5),
            "Evicted pods have to be gone by 2026-09-12 03:20:25 CEST (5 s ago), which is over: what is left",
            "the drain is about to fail, and a person is needed (drain.at_deadline is fail).",
        ),
        (
            evicted("delete", -5),
            "Evicted pods have to be gone by 2026-09-12 03:20:25 CEST (5 s ago), which is over: what is left \
             is deleted now,",
            "what is still there drain.stuck_timeout later fails the drain.",
        ),
        (
            completes("fail"),
            "Pods of AllowCompletion have to be at their end by",
            fails,
        ),
        (
            completes("delete"),
            "Pods of AllowCompletion have to be at their end by",
            deleted,
        ),
        // An older controller does not tell.
        (
            evicted("", 600),
            "Evicted pods have to be gone by",
            "or they are deleted (drain.at_deadline).",
        ),
    ] {
        let line = of_deadline(drain);
        assert!(line.starts_with(begins), "{line}");
        assert!(line.ends_with(ends), "{line}");
    }
}

fn in_two_boots(late: bool, repair_kept: bool, repair: Option<api::Repair>) -> api::Node {
    let mut node = node(Some(drain("Drained", "")), repair);
    node.agent.boot_id = "boot-agent".into();
    node.boots_differ = Some(api::BootsDiffer {
        agent: "boot-agent".into(),
        agent_since: Some(ago(3_600)),
        node: "boot-1".into(),
        node_since: Some(ago(1_200)),
        repair_kept,
        late,
    });
    node
}

#[test]
fn an_agent_in_another_boot_than_its_node_is_told_with_what_that_keeps_away_and_what_to_do() {
    let late = in_two_boots(true, true, None);
    check("other_boot_late", &late);
    let said = told(&late, taken_out(), &repairs());
    for part in [
        "node gpu-17 is out of service, and a person is needed",
        "reports boot boot-agent, and the node object shows boot boot-1 (status.nodeInfo.bootID). That is so \
         since 2026-09-12 03:00:30 CEST (20 min ago).",
        "No repair is ordered meanwhile, and the node is not given back",
        "restart the kubelet, which writes it",
        "kubectl get node gpu-17 -o jsonpath='{.status.nodeInfo.bootID}'",
    ] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    // Right after a reboot it is nobody's work, and said all the same.
    let early = told(&in_two_boots(false, true, None), taken_out(), &repairs());
    assert!(early.contains("Right after a reboot that is so"), "{early}");
    assert!(!early.contains("person is needed"), "{early}");
    // What keeps no repair away is not said to.
    let planned = Some(repair("Planned", "reboot", ""));
    for node in [
        in_two_boots(true, false, None),
        in_two_boots(true, true, planned),
    ] {
        let said = told(&node, taken_out(), &repairs());
        assert!(!said.contains("No repair is ordered meanwhile"), "{said}");
        assert!(said.contains("The node is not given back before"), "{said}");
    }
}
