//! `warden status`.

use crate::kit::{self, Server, ask, node_line, pool, text, tripped_pool};
use wire::api;

fn server(status: &api::Status, pools: &[api::BreakerPool], nodes: &[api::NodeLine]) -> Server {
    Server::start(&[
        ("GET /api/v1/status", 200, text(status)),
        ("GET /api/v1/breaker", 200, text(&pools)),
        ("GET /api/v1/nodes", 200, text(&nodes)),
    ])
}

fn troubled() -> Server {
    let mut silent = node_line("gpu-3", None);
    silent.agent = "silent".into();
    let status = api::Status {
        out: 4,
        withheld: 2,
        open_faults: 7,
        agents_silent: 1,
        ..kit::status()
    };
    let nodes = [
        node_line("gpu-1", Some("Quarantined")),
        node_line("gpu-2", None),
        silent,
        node_line("gpu-5", Some("Withheld")),
    ];
    let other = api::BreakerPool {
        pool: "other".into(),
        nodes: 2,
        ..pool()
    };
    server(&status, &[tripped_pool(), other], &nodes)
}

#[test]
fn a_calm_cluster_fits_a_few_lines() {
    let server = server(&kit::status(), &[pool()], &[node_line("gpu-1", None)]);
    let ran = ask(&server, &["status", "--check"]);
    assert_eq!(ran.code, Some(0));
    insta::assert_snapshot!(ran.out);
}

#[test]
fn what_is_wrong_stands_out_and_only_check_makes_it_the_exit_code() {
    let server = troubled();
    let ran = ask(&server, &["status"]);
    assert_eq!(ran.code, Some(0));
    insta::assert_snapshot!(ran.out);
    assert_eq!(ask(&server, &["status", "--check"]).code, Some(1));
}

#[test]
fn a_ready_controller_whose_store_takes_no_events_in_says_so_and_check_fails() {
    let full = "store: event store: the disk is full (3 bytes free, 9 are kept in reserve)";
    let status = api::Status {
        parts: vec!["nodes: ready".into(), full.into()],
        ..kit::status()
    };
    let server = server(&status, &[pool()], &[]);
    let ran = ask(&server, &["status"]);
    assert_eq!(ran.code, Some(0));
    let told = format!(": ready\n  {full}\n");
    assert!(ran.out.contains(&told), "{}", ran.out);
    assert_eq!(ask(&server, &["status", "--check"]).code, Some(1));
}

#[test]
fn a_controller_that_is_not_ready_says_which_part() {
    let parts = vec!["store: ready".into(), "nodes: starting".into()];
    let status = api::Status {
        ready: false,
        parts,
        dry_run: true,
        ..kit::status()
    };
    let ran = ask(&server(&status, &[pool()], &[]), &["status", "--check"]);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.out.contains("NOT READY\n  nodes: starting\n"),
        "{}",
        ran.out
    );
    assert!(ran.out.contains("dry run"), "{}", ran.out);
    let off = api::Status {
        quarantine: "off".into(),
        ..kit::status()
    };
    let ran = ask(&server(&off, &[pool()], &[]), &["status"]);
    assert!(
        ran.out.contains("profile cordon, quarantine off: nodes"),
        "{}",
        ran.out
    );
}

#[test]
fn json_holds_the_three_answers_as_they_came() {
    let ran = ask(&troubled(), &["status", "--format", "json"]);
    let object: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(object["status"]["out"], 4);
    assert_eq!(object["breaker"][0]["trip"]["bound"], "rate");
    assert_eq!(object["nodes"].as_array().unwrap().len(), 4);
}

#[test]
fn a_list_of_odd_nodes_is_cut() {
    let nodes: Vec<_> = (0..60)
        .map(|n| node_line(&format!("n-{n}"), Some("Observed")))
        .collect();
    let ran = ask(&server(&kit::status(), &[pool()], &nodes), &["status"]);
    assert!(
        ran.out.contains("and 10 more: warden status --format json"),
        "{}",
        ran.out
    );
    assert!(!ran.out.contains("n-50"), "{}", ran.out);
}

#[test]
fn another_fault_quarantine_stands_out_and_is_not_well() {
    let status = api::Status {
        other_quarantine: Some("Deployment nvsentinel/fault-quarantine".into()),
        ..kit::status()
    };
    let ran = ask(&server(&status, &[pool()], &[]), &["status", "--check"]);
    assert_eq!(ran.code, Some(1));
    let told =
        "another fault-quarantine runs in this cluster (Deployment nvsentinel/fault-quarantine)";
    assert!(ran.out.contains(told), "{}", ran.out);
}

#[test]
fn what_a_lost_store_and_another_program_left_and_what_went_is_told() {
    let mut status = kit::status();
    (status.restored_faults, status.foreign_marked) = (2, 1);
    let gap = |of: &str, from| api::Gap {
        of: of.into(),
        from,
        to: from + 9,
        count: 10,
        at: kit::ago(60),
    };
    status.store.gaps = vec![gap("consumer connector", 5), gap("sender agent:gpu-17", 40)];
    let said = ask(&server(&status, &[], &[]), &["status"]).out;
    for part in [
        "2 faults from before the store was lost, whose senders have not spoken since",
        "1 node with marks of NVSentinel that Warden did not set",
        "consumer connector did not see events that went for the store's size: 10 of 5 to 14",
        "sender agent:gpu-17 had more than its share of the store: its oldest events went: 10 of 40",
    ] {
        assert!(said.contains(part), "{part}\n{said}");
    }
}

#[test]
fn agents_that_cannot_be_taken_at_their_word_stand_out_and_are_not_well() {
    for (conflicting, machine, want) in [
        (
            2,
            0,
            "2 nodes as which several agents report: a second installation",
        ),
        (
            0,
            1,
            "1 node whose agent runs on another machine than the node object names: what it tells",
        ),
    ] {
        let status = api::Status {
            agents_conflicting: conflicting,
            agents_other_machine: machine,
            ..kit::status()
        };
        let mut line = node_line("gpu-17", None);
        line.agent = if machine > 0 {
            "other machine"
        } else {
            "conflict"
        }
        .into();
        let ran = ask(&server(&status, &[pool()], &[line]), &["status", "--check"]);
        assert_eq!(ran.code, Some(1));
        assert!(ran.out.contains(want), "{}", ran.out);
        assert!(ran.out.contains("gpu-17"), "{}", ran.out);
    }
}

#[test]
fn it_says_when_it_last_looked_for_another_fault_quarantine() {
    let status = api::Status {
        other_quarantine_looked_at: Some(kit::ago(12)),
        ..kit::status()
    };
    let ran = ask(&server(&status, &[pool()], &[]), &["status", "--check"]);
    assert_eq!(ran.code, Some(0));
    let want = "no other fault-quarantine runs in this cluster (looked 12 s ago)";
    assert!(ran.out.contains(want), "{}", ran.out);
}

/// A node that only a person's word keeps in service is what the person on call must not overlook.
#[test]
fn a_fatal_fault_on_a_node_in_service_is_out_of_order_whatever_keeps_it_there() {
    let in_service = |name: &str, kept_by: &[&str]| api::NodeLine {
        open_faults: 1,
        fatal_faults: 1,
        kept_by: kept_by.iter().map(|by| (*by).to_owned()).collect(),
        ..node_line(name, None)
    };
    let observed = api::NodeLine {
        state: Some("Observed".into()),
        ..in_service("gpu-9", &["dry_run"])
    };
    let nodes = [
        in_service("gpu-1", &["paused"]),
        in_service("gpu-2", &["opted_out", "control_plane"]),
        in_service("gpu-3", &["held"]),
        in_service("gpu-4", &["external_owner maintenance=yes"]),
        in_service("gpu-5", &[]),
        observed,
    ];
    let status = api::Status {
        fatal_in_service: nodes.len(),
        ..kit::status()
    };
    let server = server(&status, &[pool()], &nodes);
    let ran = ask(&server, &["status", "--check"]);
    assert_eq!(ran.code, Some(1), "{}", ran.out);
    for told in [
        "6 nodes in service with a fatal fault open",
        "in service, fatal fault: paused ",
        "in service, fatal fault: opted out, control plane ",
        "in service, fatal fault: given back by a person ",
        "in service, fatal fault: repaired by others (maintenance=yes) ",
        "in service, fatal fault: no rule set acts ",
        "Observed, fatal fault: dry run ",
    ] {
        assert!(ran.out.contains(told), "{told:?} is not in {}", ran.out);
    }
    assert_eq!(ask(&server, &["status"]).code, Some(0));
}

#[test]
fn an_agent_in_another_boot_than_its_node_stands_out_and_is_not_well() {
    let status = api::Status {
        agents_other_boot: 1,
        ..kit::status()
    };
    let line = api::NodeLine {
        agent: "other boot".into(),
        ..node_line("gpu-17", None)
    };
    let ran = ask(&server(&status, &[pool()], &[line]), &["status", "--check"]);
    assert_eq!(ran.code, Some(1));
    let want =
        "1 node whose agent reports another boot than the node object shows: it may be neither";
    assert!(ran.out.contains(want), "{}", ran.out);
    assert!(ran.out.contains("gpu-17"), "{}", ran.out);
}
