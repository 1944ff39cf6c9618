//! The headline of `warden explain` is what the node really is, whatever an incident's state says.

use wire::api;

use crate::explain::server_of;
use crate::kit::{self, ago, ask, incident, node, pool, xid_79};

/// What the controller does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Writes,
    DryRun,
    Off,
    Silent,
    OtherQuarantine,
}

const MODES: [Mode; 5] = [
    Mode::Writes,
    Mode::DryRun,
    Mode::Off,
    Mode::Silent,
    Mode::OtherQuarantine,
];
/// All in which nothing is written.
const IDLE: &[Mode] = &[Mode::DryRun, Mode::Off, Mode::Silent, Mode::OtherQuarantine];

fn status(mode: Mode) -> api::Status {
    let mut status = kit::status();
    match mode {
        Mode::Writes => {}
        Mode::DryRun => (status.dry_run, status.quarantine) = (true, "dry_run".into()),
        Mode::Off => status.quarantine = "off".into(),
        Mode::Silent => (status.profile, status.quarantine) = ("silent".into(), "off".into()),
        Mode::OtherQuarantine => {
            status.other_quarantine = Some("Deployment nvsentinel/fault-quarantine".into());
        }
    }
    status
}

/// What is on the node.
#[derive(Clone, Copy, Debug)]
enum OnNode {
    /// Cordon and taint, as the incident asks.
    Marks,
    /// A person took off the cordon.
    Taint,
    /// A person took off the taint.
    Cordon,
    /// Neither: not yet, or not any more.
    Nothing,
    /// The node object is not there.
    Gone,
}

const TAINT: &str = "gpu=bad:NoSchedule";

fn shown(state: &str, on_node: OnNode) -> api::Node {
    let mut node = node();
    node.faults = vec![xid_79()];
    let mut open = incident(state);
    (open.since, open.taints) = (ago(30), vec![TAINT.into()]);
    node.incidents = vec![open];
    let object = node.object.as_mut().unwrap();
    match on_node {
        OnNode::Marks => (object.cordoned, object.taints) = (true, vec![TAINT.into()]),
        OnNode::Taint => object.taints = vec![TAINT.into()],
        OnNode::Cordon => object.cordoned = true,
        OnNode::Nothing => {}
        OnNode::Gone => node.object = None,
    }
    node
}

fn headline(node: &api::Node, mode: Mode) -> String {
    let server = server_of(node, Vec::new(), &status(mode), pool());
    let ran = ask(&server, &["explain", "gpu-17"]);
    let head = ran.out.lines().next().unwrap_or_default().to_owned();
    let head = head.strip_prefix("node gpu-17 ").unwrap_or(&head);
    head.to_owned()
}

#[test]
fn it_is_what_the_node_really_is() {
    use OnNode::{Cordon, Gone, Marks, Nothing, Taint};
    let writes: &[Mode] = &[Mode::Writes];
    let table: &[(&str, OnNode, &[Mode], &str)] = &[
        ("Quarantined", Marks, &MODES, "is out of service (for 30 s)"),
        (
            "Quarantined",
            Nothing,
            IDLE,
            "is in service: Warden's marks were taken off, and the incident stays open while Warden does \
             not write (for 30 s)",
        ),
        (
            "Quarantined",
            Nothing,
            writes,
            "is in service: Warden's marks were taken off, and the incident is about to end (for 30 s)",
        ),
        (
            "Quarantined",
            Taint,
            &MODES,
            "has only some of Warden's marks left (for 30 s)",
        ),
        (
            "Quarantined",
            Cordon,
            &MODES,
            "has only some of Warden's marks left (for 30 s)",
        ),
        (
            "Applying",
            Nothing,
            writes,
            "is being taken out of service (for 30 s)",
        ),
        (
            "Applying",
            Nothing,
            IDLE,
            "is in service: the write that was to take it out is not begun again (for 30 s)",
        ),
        ("Releasing", Marks, writes, "is being given back (for 30 s)"),
        (
            "Releasing",
            Marks,
            IDLE,
            "is out of service: the write that was to give it back is not begun again (for 30 s)",
        ),
        (
            "Releasing",
            Nothing,
            &MODES,
            "is in service again; the incident is about to end (for 30 s)",
        ),
        (
            "Withheld",
            Nothing,
            &MODES,
            "should be out of service, but is withheld (for 30 s)",
        ),
        (
            "Withheld",
            Cordon,
            &MODES,
            "should be out of service, but is withheld; it is cordoned, not by Warden (for 30 s)",
        ),
        (
            "Observed",
            Nothing,
            &MODES,
            "has faults, but is only observed (for 30 s)",
        ),
        (
            "Observed",
            Cordon,
            &MODES,
            "is cordoned, not by Warden; its faults are only observed (for 30 s)",
        ),
        (
            "Quarantined",
            Gone,
            &MODES,
            "is not in the cluster; an incident of it is still open (for 30 s)",
        ),
    ];
    for (state, on_node, modes, want) in table {
        let node = shown(state, *on_node);
        for mode in *modes {
            assert_eq!(
                headline(&node, *mode),
                *want,
                "{state} {on_node:?} {mode:?}"
            );
        }
        // A person's hold is a reason to be out, and changes nothing of what is.
        let mut held = node.clone();
        held.incidents[0].held_by = Some("alice: broken fan".into());
        assert_eq!(headline(&held, modes[0]), *want, "{state} {on_node:?} held");
    }
}

#[test]
fn after_a_persons_uncordon_nothing_says_that_it_stays_out_or_can_be_given_back() {
    let node = shown("Quarantined", OnNode::Nothing);
    for mode in MODES {
        let server = server_of(&node, Vec::new(), &status(mode), pool());
        let said = ask(&server, &["explain", "gpu-17"]).out;
        assert!(!said.contains("The node stays out"), "{mode:?}: {said}");
        assert!(!said.contains("kubectl uncordon"), "{mode:?}: {said}");
        assert!(
            said.contains("takes it that a person gave the node back"),
            "{mode:?}: {said}"
        );
    }
}

#[test]
fn a_node_without_an_incident_is_told_by_who_cordoned_it() {
    let mut faulty = shown("Closed", OnNode::Nothing);
    faulty.incidents[0].closed_at = Some(ago(10));
    for mode in MODES {
        assert_eq!(headline(&faulty, mode), "is in service with 1 fault open");
    }
    faulty.object.as_mut().unwrap().cordoned = true;
    for mode in MODES {
        let want = "is cordoned, not by Warden, with 1 fault open";
        assert_eq!(headline(&faulty, mode), want);
    }
    faulty.object = None;
    for mode in MODES {
        let want = "is not in the cluster; 1 fault open when it was";
        assert_eq!(headline(&faulty, mode), want);
    }
}
