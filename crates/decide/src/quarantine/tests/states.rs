//! Every state against every input.

use health_event::incident::{Bound, CloseReason, QuarantineStatus, Withheld};

use super::world::{World, event, healthy, xid_taint};
use crate::breaker::Cause;
use crate::quarantine::{
    Annotation, Decision, Mode, NodeFacts, Request, RequestKind, WriteFeedback,
};

const XID: &str = "GpuXidError";

const STATES: [&str; 6] = [
    "none",
    "Withheld",
    "Observed",
    "Applying",
    "Quarantined",
    "Releasing",
];

/// A world in a state, with one open fault of GPU 0 (none while Releasing), nothing under way.
fn in_state(state: &str) -> World {
    let mut world = World::xid();
    match state {
        "none" => {}
        "Withheld" => {
            world.pool_size = 1;
            let other = health_event::NodeName::new("other").unwrap();
            world.breaker.count("gpu", &other, Cause::default());
            world.say(event(XID, "GPU 0", ""));
        }
        "Observed" => {
            world.policy.mode = Mode::DryRun;
            world.say(event(XID, "GPU 0", ""));
        }
        "Applying" => {
            world.lose_writes = true;
            world.say(event(XID, "GPU 0", ""));
            world.lose_writes = false;
        }
        "Quarantined" => world.say(event(XID, "GPU 0", "")),
        "Releasing" => {
            world.say(event(XID, "GPU 0", ""));
            world.lose_writes = true;
            world.say(healthy(XID, "GPU 0", ""));
            world.lose_writes = false;
        }
        other => panic!("no state {other}"),
    }
    assert_eq!(world.status(), state);
    world
}

/// The state before, what happens, and the state and node after it all came to rest: `C` = the
/// node is cordoned.
fn table(name: &str, input: impl Fn(&mut World), want: [&str; 6]) {
    for (state, want) in STATES.iter().zip(want) {
        let mut world = in_state(state);
        input(&mut world);
        world.settle();
        let cordon = if world
            .node
            .as_ref()
            .is_some_and(|n| n.unschedulable == Some(true))
        {
            " C"
        } else {
            ""
        };
        assert_eq!(
            format!("{}{cordon}", world.status()),
            want,
            "{name} in {state}"
        );
    }
}

#[test]
fn nothing_new() {
    let rest = [
        "none",
        "Withheld",
        "Observed",
        "Quarantined C",
        "Quarantined C",
        "none",
    ];
    table("nothing", |_| {}, rest);
}

#[test]
fn another_fault_that_matches() {
    let joins = [
        "Quarantined C",
        "Withheld",
        "Observed",
        "Quarantined C",
        "Quarantined C",
        "Quarantined C",
    ];
    table("fault", |w| w.store(&event(XID, "GPU 1", "")), joins);
}

#[test]
fn a_fault_that_matches_nothing() {
    let same = [
        "none",
        "Withheld",
        "Observed",
        "Quarantined C",
        "Quarantined C",
        "none",
    ];
    table(
        "other fault",
        |w| w.store(&event("Other", "GPU 1", "")),
        same,
    );
}

#[test]
fn the_fault_recovers() {
    let ends = ["none"; 6];
    table("recovery", |w| w.store(&healthy(XID, "GPU 0", "")), ends);
}

#[test]
fn a_person_uncordons() {
    // In Applying the write has not happened, so there is nothing that a person undid.
    let ends = [
        "none",
        "Withheld",
        "Observed",
        "Quarantined C",
        "none",
        "none",
    ];
    table("uncordon", World::uncordon_by_hand, ends);
}

#[test]
fn a_person_untaints() {
    let ends = [
        "none",
        "Withheld",
        "Observed",
        "Quarantined C",
        "none",
        "none",
    ];
    table("untaint", |w| w.untaint_by_hand(&xid_taint()), ends);
}

#[test]
fn a_person_holds() {
    let out = [
        "Quarantined C",
        "Quarantined C",
        "Observed",
        "Quarantined C",
        "Quarantined C",
        "Quarantined C",
    ];
    table("hold", |w| request(w, RequestKind::Hold), out);
}

#[test]
fn a_person_releases_what_nobody_holds() {
    let same = [
        "none",
        "Withheld",
        "Observed",
        "Quarantined C",
        "Quarantined C",
        "none",
    ];
    table("release", |w| request(w, RequestKind::Release), same);
}

#[test]
fn a_person_cancels() {
    let ends = ["none"; 6];
    table("cancel", |w| request(w, RequestKind::Cancel), ends);
}

#[test]
fn a_person_drops_a_withheld_node() {
    let drops = [
        "none",
        "Observed",
        "Observed",
        "Quarantined C",
        "Quarantined C",
        "none",
    ];
    table("drop", |w| request(w, RequestKind::DropWithheld), drops);
}

#[test]
fn the_node_is_deleted() {
    table("deleted", |w| w.node = None, ["none"; 6]);
}

#[test]
fn another_machine_takes_the_name() {
    let replaced = |w: &mut World| {
        w.node = Some(NodeFacts {
            uid: "uid-2".into(),
            machine_id: "machine-2".into(),
            machine: "machine-2".into(),
            ..super::world::clean_node()
        });
    };
    table("other machine", replaced, ["none"; 6]);
}

#[test]
fn the_same_machine_registers_anew() {
    let again = |w: &mut World| {
        w.node = Some(NodeFacts {
            uid: "uid-2".into(),
            ..super::world::clean_node()
        });
    };
    let evaluated = [
        "none",
        "Withheld",
        "Observed",
        "Quarantined C",
        "Quarantined C",
        "none",
    ];
    table("same machine", again, evaluated);
}

#[test]
fn the_node_opts_out() {
    let kept = [
        "none",
        "Withheld",
        "Observed",
        "Quarantined C",
        "Quarantined C",
        "none",
    ];
    table("opt-out", |w| w.node_mut().opted_out = true, kept);
}

#[test]
fn the_module_is_switched_off() {
    // Nothing is written: what did not happen ends as if it had not been begun.
    let safe = [
        "none",
        "Withheld",
        "Observed",
        "Observed",
        "Quarantined C",
        "Releasing C",
    ];
    table("off", |w| w.policy.mode = Mode::Off, safe);
}

#[test]
fn another_quarantine_appears() {
    let refused = [
        "none",
        "Withheld",
        "Withheld",
        "Withheld",
        "Quarantined C",
        "Releasing C",
    ];
    table("refused", |w| w.policy.mode = Mode::Refused, refused);
}

/// The modes that write nothing.
const IDLE: [Mode; 3] = [Mode::Refused, Mode::DryRun, Mode::Off];

#[test]
fn a_module_that_may_not_write_any_more_records_what_happened_and_writes_nothing() {
    for mode in IDLE {
        // The write happened, and its answer was lost.
        for (state, want) in [("Applying", "Quarantined"), ("Releasing", "none")] {
            let mut world = in_state(state);
            world.step();
            world.policy.mode = mode;
            let writes = world.writes.len();
            world.settle();
            assert_eq!(
                (world.status(), world.writes.len()),
                (want, writes),
                "{mode:?}"
            );
        }
        // It did not happen, and what it was for is over.
        let mut world = in_state("Applying");
        world.policy.mode = mode;
        let writes = world.writes.len();
        world.say(healthy(XID, "GPU 0", ""));
        assert_eq!(
            (world.status(), world.writes.len()),
            ("none", writes),
            "{mode:?}"
        );
    }
}

#[test]
fn what_did_not_happen_is_done_once_the_module_may_write_again() {
    for mode in IDLE {
        for (state, want) in [("Applying", "Quarantined"), ("Releasing", "none")] {
            let mut world = in_state(state);
            world.policy.mode = mode;
            world.settle();
            world.policy.mode = Mode::Enforce;
            world.settle();
            assert_eq!(world.status(), want, "{mode:?} in {state}");
            assert_eq!(world.is_cordoned(), want == "Quarantined", "{mode:?}");
        }
    }
}

#[test]
fn a_change_of_the_marks_that_did_not_happen_leaves_those_from_before() {
    for mode in IDLE {
        let mut world = in_state("Quarantined");
        world.configs.push(super::world::rule_set(
            "second",
            "event.checkName == 'Second'",
            false,
            Some(super::world::taint("second", "true", "NoSchedule")),
        ));
        let before = world.node().clone();
        let marks = world.incident.as_ref().unwrap().marks.clone();
        world.lose_writes = true;
        world.say(event("Second", "GPU 1", ""));
        world.lose_writes = false;
        assert_eq!(world.status(), "Applying");
        world.policy.mode = mode;
        world.settle();
        let incident = world.incident.as_ref().unwrap();
        assert_eq!(
            (world.status(), &incident.marks),
            ("Quarantined", &marks),
            "{mode:?}"
        );
        assert_eq!(world.node(), &before);
        world.policy.mode = Mode::Enforce;
        world.settle();
        assert_eq!(world.incident.as_ref().unwrap().marks.taints.len(), 2);
    }
}

#[test]
fn a_release_that_was_begun_waits_and_is_known_by_the_node_if_it_was_late() {
    for mode in IDLE {
        let mut world = in_state("Quarantined");
        world.lose_writes = true;
        world.ask(RequestKind::Cancel);
        world.lose_writes = false;
        let mut late = world.clone();
        late.step();
        world.policy.mode = mode;
        world.settle();
        assert_eq!((world.status(), world.is_cordoned()), ("Releasing", true));
        let mut later = world.clone();
        later.policy.mode = Mode::Enforce;
        later.settle();
        assert_eq!((later.status(), later.is_cordoned()), ("none", false));
        world.node = late.node;
        world.settle();
        assert_eq!((world.status(), world.holds.len()), ("none", 1), "{mode:?}");
    }
}

#[test]
fn while_another_quarantine_runs_a_persons_hold_is_refused_and_its_end_taken() {
    let mut world = World::xid();
    world.policy.mode = Mode::Refused;
    world.say(event(XID, "GPU 0", ""));
    assert_eq!(
        world.incident.as_ref().unwrap().quarantine,
        QuarantineStatus::Withheld(Withheld::OtherQuarantine)
    );
    world.ask(RequestKind::Hold);
    assert_eq!(world.incident.as_ref().unwrap().held_by, None);
    assert!(world.request.is_none() && world.writes.is_empty());
    world.ask(RequestKind::Cancel);
    assert_eq!(world.status(), "none");
}

#[test]
fn dry_run_begins() {
    // What is on the node stays as it is: nothing is written.
    let still = [
        "none",
        "Observed",
        "Observed",
        "Observed",
        "Quarantined C",
        "Releasing C",
    ];
    table("dry run", |w| w.policy.mode = Mode::DryRun, still);
}

#[test]
fn enforcing_begins() {
    let acts = [
        "none",
        "Withheld",
        "Quarantined C",
        "Quarantined C",
        "Quarantined C",
        "none",
    ];
    table("enforce", |w| w.policy.mode = Mode::Enforce, acts);
}

#[test]
fn the_node_is_paused() {
    let kept = [
        "none",
        "Withheld",
        "Observed",
        "Quarantined C",
        "Quarantined C",
        "none",
    ];
    table("pause", |w| w.node_mut().paused = true, kept);
}

fn request(world: &mut World, kind: RequestKind) {
    world.request = Some(Request {
        kind,
        actor: "alice".into(),
    });
}

#[test]
fn requests_wait_for_releasing_to_end_and_are_answered() {
    for kind in [
        RequestKind::Hold,
        RequestKind::Release,
        RequestKind::Cancel,
        RequestKind::DropWithheld,
    ] {
        for state in STATES {
            let mut world = in_state(state);
            world.ask(kind);
            assert_eq!(world.request, None, "{kind:?} in {state}");
        }
    }
}

#[test]
fn while_a_write_is_under_way_nothing_is_decided() {
    for state in ["Applying", "Releasing"] {
        for feedback in [WriteFeedback::InFlight, WriteFeedback::Accepted] {
            let mut world = in_state(state);
            world.feedback = feedback;
            world.store(&event(XID, "GPU 7", ""));
            world.store(&healthy(XID, "GPU 0", ""));
            let decision = world.decide();
            assert_eq!(decision, Decision::default(), "{state} {feedback:?}");
        }
    }
}

#[test]
fn after_a_restart_the_node_says_whether_the_write_happened() {
    // Applied, and the answer was lost.
    let mut world = in_state("Applying");
    world.step();
    assert!(world.is_cordoned());
    let writes = world.writes.len();
    world.settle();
    assert_eq!(
        (world.status(), world.writes.len()),
        ("Quarantined", writes)
    );
    // Applied, and a person uncordoned before we looked.
    let mut world = in_state("Applying");
    world.step();
    world.uncordon_by_hand();
    world.settle();
    assert_eq!(world.status(), "none");
    assert!(world.has(Annotation::UncordonedManually));
    // Released, and the answer was lost: no second write.
    let mut world = in_state("Releasing");
    world.step();
    let writes = world.writes.len();
    world.settle();
    assert_eq!((world.status(), world.writes.len()), ("none", writes));
}

#[test]
fn a_write_that_never_happened_is_not_begun_for_a_healthy_node() {
    let mut world = in_state("Applying");
    let writes = world.writes.len();
    world.say(healthy(XID, "GPU 0", ""));
    assert_eq!((world.status(), world.writes.len()), ("none", writes));
    // Should the lost write land after all, its marks are stray and go.
    let mut late = in_state("Applying");
    late.step();
    let landed = late.node().clone();
    world.node = Some(landed);
    world.settle();
    assert!(!world.is_cordoned() && !world.has_taint(&xid_taint()));
    assert!(world.node().annotations.is_empty());
}

#[test]
fn a_write_that_lands_after_it_was_given_up_is_noticed() {
    let mut world = in_state("Applying");
    let mut late = world.clone();
    late.step();
    world.policy.mode = Mode::DryRun;
    world.settle();
    assert_eq!(world.status(), "Observed");
    world.node = late.node;
    world.settle();
    assert_eq!(world.status(), "Quarantined");
}

#[test]
fn a_fault_during_a_release_opens_an_incident_of_its_own() {
    let mut world = in_state("Releasing");
    world.say(event(XID, "GPU 3", ""));
    assert_eq!(world.over.len(), 1);
    assert_eq!(world.keys(), ["GpuXidError GPU=3"]);
    assert_ne!(world.incident.as_ref().unwrap().id, world.over[0].id);
}

#[test]
fn a_persons_uncordon_that_the_end_of_a_hold_overtook_stands() {
    let held = |opted_out: bool| {
        let mut world = World::xid();
        world.node_mut().opted_out = opted_out;
        world.ask(RequestKind::Hold);
        world.say(event(XID, "GPU 0", ""));
        request(&mut world, RequestKind::Release);
        world.lose_writes = true;
        world.settle();
        world.lose_writes = false;
        world
    };
    // It looked at no fault of a node that has opted out.
    let mut overtaken = held(true);
    assert_eq!(overtaken.status(), "Releasing");
    // What comes after the decision is another matter.
    let mut came_later = overtaken.clone();
    for world in [&mut overtaken, &mut came_later] {
        world.now += jiff::SignedDuration::from_secs(1);
        world.uncordon_by_hand();
    }
    overtaken.settle();
    let why = &overtaken.over.last().unwrap().quarantine;
    assert_eq!(*why, QuarantineStatus::Closed(CloseReason::ManualUncordon));
    assert!(overtaken.has(Annotation::UncordonedManually));
    overtaken.node_mut().opted_out = false;
    overtaken.settle();
    assert_eq!(
        (overtaken.status(), overtaken.is_cordoned()),
        ("none", false)
    );
    overtaken.say(event(XID, "GPU 3", ""));
    assert_eq!(overtaken.status(), "Quarantined", "another device");
    came_later.store(&healthy(XID, "GPU 0", ""));
    came_later.say(event(XID, "GPU 3", ""));
    came_later.node_mut().opted_out = false;
    came_later.settle();
    assert_eq!(came_later.keys(), ["GpuXidError GPU=3"]);
    // Where it has not, the fault is the incident's, and keeps the node out.
    let mut joined = held(false);
    assert_eq!(
        joined.status(),
        "Applying",
        "the marks name no holder any more"
    );
    joined.uncordon_by_hand();
    joined.settle();
    let why = &joined.over.last().unwrap().quarantine;
    assert_eq!(*why, QuarantineStatus::Closed(CloseReason::ManualUncordon));
}

#[test]
fn a_cordon_between_our_read_and_our_write_is_decided_anew() {
    let mut world = World::xid();
    world.store(&event(XID, "GPU 0", ""));
    let decision = world.decide();
    // What decide() planned was read before the person's cordon.
    let mut raced = world.clone();
    raced.incident = decision.incident;
    raced.cordon_by_hand();
    raced.write(decision.write.unwrap());
    assert!(
        !raced.has(Annotation::Incident),
        "the test on unschedulable failed"
    );
    raced.settle();
    assert!(raced.has(Annotation::CordonPreExisting));
    raced.say(healthy(XID, "GPU 0", ""));
    assert!(raced.is_cordoned(), "the person's cordon stays");
}

#[test]
fn our_annotations_are_put_back_if_only_they_were_removed() {
    let mut world = in_state("Quarantined");
    let before = world.node().clone();
    world.node_mut().annotations.clear();
    world.settle();
    let after = world.node();
    assert_eq!(
        after.annotations.keys().collect::<Vec<_>>(),
        before.annotations.keys().collect::<Vec<_>>()
    );
    assert!(
        !world.has(Annotation::CordonPreExisting),
        "our own cordon is not a stranger's"
    );
    world.node_mut().annotations.clear();
    world.uncordon_by_hand();
    world.settle();
    assert_eq!(world.status(), "none", "all undone is a person's uncordon");
}

#[test]
fn transitions_are_named_and_told_apart() {
    let world = in_state("Withheld");
    let transition = &world.transitions[0];
    assert_eq!(transition.from, None);
    assert_eq!(
        transition.to,
        QuarantineStatus::Withheld(Withheld::Breaker(Bound::Level))
    );
    assert_eq!(transition.reason.code(), "breaker_withholds");
    assert_eq!(
        transition.reason.to_string(),
        "the breaker's level bound is reached"
    );
    let mut world = in_state("Quarantined");
    world.node = None;
    world.settle();
    let last = world.transitions.last().unwrap();
    assert_eq!(last.to, QuarantineStatus::Closed(CloseReason::NodeDeleted));
    assert!(world.breaker.pools["gpu"].out.is_empty());
}
