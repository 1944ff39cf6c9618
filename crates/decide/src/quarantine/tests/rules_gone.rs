//! The controller starts again without the rule sets that open faults matched.

use health_event::incident::Marks;

use super::world::{World, event, xid_taint};
use crate::quarantine::{Mode, RequestKind};

const XID: &str = "GpuXidError";

fn applying() -> World {
    let mut world = World::xid();
    world.lose_writes = true;
    world.say(event(XID, "GPU 0", ""));
    assert_eq!(world.status(), "Applying");
    world
}

fn restart_without_rules(world: &mut World) {
    world.configs.clear();
    world.settle();
}

#[test]
fn a_write_that_is_refused_stays_under_way_with_the_marks_that_it_was_to_bring() {
    let mut world = applying();
    restart_without_rules(&mut world);
    assert_eq!(world.status(), "Applying");
    assert!(!world.is_cordoned());
    world.lose_writes = false;
    world.settle();
    assert_eq!(world.status(), "Quarantined");
    assert!(world.is_cordoned() && world.has_taint(&xid_taint()));
}

#[test]
fn a_write_whose_marks_are_not_known_ends_without_one() {
    let mut world = applying();
    world.lose_writes = false;
    world.incident.as_mut().unwrap().marks = Marks::default();
    restart_without_rules(&mut world);
    assert_eq!(world.status(), "none");
    assert!(world.writes.is_empty() && !world.is_cordoned());
    assert_eq!(
        world.transitions.last().unwrap().reason.code(),
        "rules_gone"
    );
}

#[test]
fn a_person_s_cancel_ends_a_write_that_is_refused() {
    let mut world = applying();
    restart_without_rules(&mut world);
    world.ask(RequestKind::Cancel);
    assert_eq!(world.status(), "none");
}

#[test]
fn what_waits_or_is_observed_ends_without_a_mark() {
    for mode in [Mode::DryRun, Mode::Refused] {
        let mut world = World::xid();
        world.policy.mode = mode;
        world.say(event(XID, "GPU 0", ""));
        restart_without_rules(&mut world);
        world.policy.mode = Mode::Enforce;
        world.settle();
        assert_eq!(world.status(), "none", "{mode:?}");
        assert!(world.writes.is_empty());
    }
}

#[test]
fn what_is_out_stays_out_with_its_marks() {
    let mut world = World::xid();
    world.say(event(XID, "GPU 0", ""));
    restart_without_rules(&mut world);
    assert_eq!(world.status(), "Quarantined");
    assert!(world.is_cordoned() && world.has_taint(&xid_taint()));
}

#[test]
fn a_released_hold_does_not_say_that_the_incident_ended() {
    let mut world = World::xid();
    world.say(event(XID, "GPU 0", ""));
    world.ask(RequestKind::Hold);
    world.ask(RequestKind::Release);
    assert_eq!(world.status(), "Quarantined");
    let said = world.transitions.iter().map(|t| t.reason.to_string());
    let said: Vec<String> = said.filter(|text| text.contains("alice")).collect();
    assert!(
        said.iter().any(|t| t.contains("alice released the hold")),
        "{said:?}"
    );
    assert!(!said.iter().any(|t| t.contains("ended")), "{said:?}");
}
