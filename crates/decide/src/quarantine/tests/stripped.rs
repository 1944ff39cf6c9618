//! Somebody takes our annotations off, writes come late, faults close and open unseen: what is ours
//! comes off all the same, and what is not stays.

use health_event::incident::PUT_BACKS;
use jiff::SignedDuration;

use super::world::{World, at, event, healthy, rule_set, xid_taint};
use crate::breaker::Cause;
use crate::quarantine::{Annotation, CordonOwner, Mode, Note, StrayMarks};

const CORDONS: &str = "Cordons";
const TAINTS: &str = "Taints";

/// One check whose rule set cordons and one whose rule set taints.
fn two_rules() -> World {
    World::new(vec![
        rule_set("c", "event.checkName == 'Cordons'", true, None),
        rule_set("t", "event.checkName == 'Taints'", false, Some(xid_taint())),
    ])
}

/// The same where faults come through the node's agent, which has settled long ago.
fn through_agent() -> World {
    let mut world = two_rules();
    world.through_agent = true;
    world.agent.expected = true;
    world.agent.settled_for = Some(health_event::BootId::new("boot-1"));
    world.agent.started_at = Some(at(-10));
    world
}

/// The agent has not settled since.
fn restart_agent(world: &mut World) {
    world.agent.started_at = Some(at(5));
    world.agent.settled_for = None;
}

fn strip(world: &mut World) {
    let node = world.node_mut();
    node.annotations.clear();
    node.labels.clear();
    world.annotated.clear();
}

/// An API server that does not say who made the cordon.
fn untold(world: &mut World) {
    world.node_mut().cordon_owner = CordonOwner::Unknown;
}

/// What happens while writes are lost.
fn without_writes(world: &mut World, happens: impl FnOnce(&mut World)) {
    world.lose_writes = true;
    happens(world);
    world.lose_writes = false;
}

#[test]
fn marks_that_were_stripped_while_they_shrank_come_off() {
    for (heals, is_told) in [
        (TAINTS, true),
        (TAINTS, false),
        (CORDONS, true),
        (CORDONS, false),
    ] {
        let mut world = two_rules();
        world.say(event(CORDONS, "GPU 0", ""));
        world.say(event(TAINTS, "GPU 0", ""));
        without_writes(&mut world, |world| world.say(healthy(heals, "GPU 0", "")));
        assert_eq!(world.status(), "Applying");
        strip(&mut world);
        if !is_told {
            untold(&mut world);
        }
        world.settle();
        let case = format!("{heals} healed, told {is_told}");
        assert_eq!(world.status(), "Quarantined", "{case}");
        assert_eq!(world.is_cordoned(), heals == TAINTS, "{case}");
        assert_eq!(world.has_taint(&xid_taint()), heals == CORDONS, "{case}");
        let last = if heals == TAINTS { CORDONS } else { TAINTS };
        world.say(healthy(last, "GPU 0", ""));
        assert_eq!(world.status(), "none", "{case}");
        assert!(
            !world.is_cordoned() && !world.has_taint(&xid_taint()),
            "{case}"
        );
    }
}

#[test]
fn a_person_who_undoes_all_while_the_marks_grow_is_not_overruled() {
    let mut world = two_rules();
    world.say(event(CORDONS, "GPU 0", ""));
    without_writes(&mut world, |world| world.say(event(TAINTS, "GPU 0", "")));
    strip(&mut world);
    world.uncordon_by_hand();
    world.settle();
    assert_eq!(world.status(), "none");
    assert!(!world.is_cordoned() && !world.has_taint(&xid_taint()));
    assert_eq!(world.holds[0].faults.len(), 2);
}

#[test]
fn a_release_whose_annotations_were_stripped_goes_on_where_the_cordon_is_known_to_be_ours() {
    let leaving = || {
        let mut world = World::xid();
        world.say(event("GpuXidError", "GPU 0", ""));
        without_writes(&mut world, |world| {
            world.say(healthy("GpuXidError", "GPU 0", ""));
        });
        assert_eq!(world.status(), "Releasing");
        strip(&mut world);
        world
    };
    let mut world = leaving();
    world.settle();
    assert_eq!(world.status(), "none");
    assert!(!world.is_cordoned() && !world.has_taint(&xid_taint()));
    // Where nothing tells whose it is, it stays and is shown.
    let mut world = leaving();
    untold(&mut world);
    world.step();
    let left = Note::Blocked {
        step: "release",
        by: "owner_unknown",
    };
    assert_eq!(world.notes, [left]);
    world.settle();
    assert_eq!(world.status(), "none");
    assert!(world.is_cordoned());
    // Our write arrived, and another cordoned since: theirs.
    let mut world = leaving();
    world.uncordon_by_hand();
    world.untaint_by_hand(&xid_taint());
    world.cordon_by_hand();
    world.settle();
    assert_eq!(world.status(), "none");
    assert!(world.is_cordoned());
}

#[test]
fn a_first_write_that_landed_and_was_stripped_unseen_is_known_by_its_cordon() {
    let landed = || {
        let mut world = World::xid();
        without_writes(&mut world, |world| {
            world.say(event("GpuXidError", "GPU 0", ""));
        });
        world.step();
        assert!(world.is_cordoned());
        strip(&mut world);
        world
    };
    let mut world = landed();
    world.settle();
    assert_eq!(world.status(), "Quarantined");
    assert!(!world.has(Annotation::CordonPreExisting));
    world.say(healthy("GpuXidError", "GPU 0", ""));
    assert!(!world.is_cordoned());
    // Of a taint nothing tells whose it is: it may be another's, like ours.
    assert!(world.has_taint(&xid_taint()));
    // Healed before we looked: the cordon is taken off, not left.
    let mut world = landed();
    world.say(healthy("GpuXidError", "GPU 0", ""));
    assert_eq!(world.status(), "none");
    assert!(!world.is_cordoned() && world.has_taint(&xid_taint()));
    // Where nothing tells, a cordon without our annotations is another's.
    let mut world = landed();
    untold(&mut world);
    world.settle();
    assert!(world.has(Annotation::CordonPreExisting));
}

#[test]
fn a_cordon_of_ours_alone_is_lifted_if_its_incident_is_known() {
    let mut world = World::xid();
    world.say(event("GpuXidError", "GPU 0", ""));
    world.say(healthy("GpuXidError", "GPU 0", ""));
    let cordoned = |world: &World, owner: CordonOwner| {
        let mut world = world.clone();
        world.cordon_by_hand();
        world.node_mut().cordon_owner = owner;
        world
    };
    let mut ours = cordoned(&world, CordonOwner::Us);
    assert_eq!(
        ours.decide().notes,
        [Note::StrayMarks(StrayMarks::CordonAlone)]
    );
    ours.settle();
    assert!(!ours.is_cordoned());
    for owner in [CordonOwner::Others, CordonOwner::Unknown] {
        let mut world = cordoned(&world, owner);
        world.settle();
        assert!(world.is_cordoned(), "{owner:?}");
    }
    // After a loss of the store nobody knows what it was for; the next fault takes it over.
    let mut lost = cordoned(&World::xid(), CordonOwner::Us);
    lost.step();
    let unknown = Note::Blocked {
        step: "clean_up",
        by: "incident_unknown",
    };
    assert_eq!(lost.notes, [unknown]);
    lost.settle();
    assert!(lost.is_cordoned());
    lost.say(event("GpuXidError", "GPU 0", ""));
    assert!(!lost.has(Annotation::CordonPreExisting));
    lost.say(healthy("GpuXidError", "GPU 0", ""));
    assert!(!lost.is_cordoned());
}

#[test]
fn a_cordon_that_another_put_in_the_place_of_ours_stays() {
    let mut world = World::xid();
    world.say(event("GpuXidError", "GPU 0", ""));
    world.uncordon_by_hand();
    world.cordon_by_hand();
    world.settle();
    assert_eq!(world.status(), "Quarantined");
    assert!(world.has(Annotation::CordonPreExisting));
    world.say(healthy("GpuXidError", "GPU 0", ""));
    assert!(world.is_cordoned() && !world.has_taint(&xid_taint()));
}

#[test]
fn each_single_annotation_is_put_back() {
    let mut world = World::xid();
    world.say(event("GpuXidError", "GPU 0", ""));
    let keys: Vec<Annotation> = world.node().annotations.keys().copied().collect();
    assert_eq!(keys.len(), 4);
    for key in keys {
        let mut stripped = world.clone();
        stripped.node_mut().annotations.remove(&key);
        stripped.settle();
        assert!(stripped.has(key), "{key:?}");
        stripped.say(healthy("GpuXidError", "GPU 0", ""));
        assert!(!stripped.is_cordoned(), "{key:?}");
        assert!(!stripped.has_taint(&xid_taint()), "{key:?}");
        assert!(stripped.node().annotations.is_empty(), "{key:?}");
    }
}

/// Another controller takes annotations off that it does not know, as soon as they are there.
#[test]
fn marks_that_are_taken_off_again_and_again_are_put_back_more_and_more_rarely() {
    for (key, heals) in [
        (Annotation::Incident, false),
        (Annotation::HealthEvents, false),
        (Annotation::Incident, true),
    ] {
        let mut world = through_agent();
        world.say(event(CORDONS, "GPU 0", ""));
        if heals {
            restart_agent(&mut world);
            world.say(healthy(CORDONS, "GPU 0", ""));
        }
        let begin = world.writes.len();
        for _ in 0..20 {
            world.node_mut().annotations.remove(&key);
            world.settle();
        }
        assert_eq!(world.writes.len() - begin, PUT_BACKS, "{key:?} {heals}");
        assert_eq!(world.status(), "Quarantined", "{key:?}: the node stays out");
        assert!(world.is_cordoned() && !world.has(key));
        // A restart knows it: the times stand in the incident. Each time it waits for twice as long.
        for pause in [15, 30, 60, 120, 240, 480, 600] {
            let again_at = world.now + SignedDuration::from_secs(pause);
            // Where the agent's word is waited for, its time may be over first.
            let wake_at = world.decide().wake_at.unwrap();
            let same = if heals {
                wake_at <= again_at
            } else {
                wake_at == again_at
            };
            assert!(same, "{key:?} {pause}: {wake_at}");
            world.now = again_at - SignedDuration::from_secs(1);
            world.settle();
            assert!(!world.has(key), "{key:?} {pause}");
            world.now = again_at;
            world.settle();
            assert!(world.has(key), "{key:?} {pause}");
            world.node_mut().annotations.remove(&key);
        }
        // Left in peace for an hour, it is as if nothing had been.
        world.now += SignedDuration::from_hours(2);
        world.settle();
        assert!(world.has(key));
        assert_eq!(world.incident.as_ref().unwrap().put_back.len(), 1);
    }
}

#[test]
fn marks_that_are_left_off_for_a_while_follow_the_faults_and_go_with_them() {
    let mut world = two_rules();
    world.say(event(CORDONS, "GPU 0", ""));
    for _ in 0..5 {
        world.node_mut().annotations.remove(&Annotation::Incident);
        world.settle();
    }
    assert!(!world.has(Annotation::Incident));
    let mut joined = world.clone();
    joined.say(event(TAINTS, "GPU 0", ""));
    assert!(
        joined.has_taint(&xid_taint()),
        "a fault that joins waits for nothing"
    );
    // Nor does a person, nor a recovery.
    let mut uncordoned = world.clone();
    uncordoned.node_mut().unschedulable = None;
    uncordoned.settle();
    assert_eq!(uncordoned.status(), "none");
    world.say(healthy(CORDONS, "GPU 0", ""));
    assert_eq!(world.status(), "none");
    assert!(!world.is_cordoned());
}

#[test]
fn marks_of_a_closed_incident_go_although_another_incident_waits() {
    let mut world = World::xid();
    without_writes(&mut world, |world| {
        world.say(event("GpuXidError", "GPU 0", ""));
    });
    let mut late = world.clone();
    late.step();
    world.say(healthy("GpuXidError", "GPU 0", ""));
    assert_eq!(world.over.len(), 1);
    // The pool is full now; a new fault waits, and then the old write arrives.
    world.pool_size = 1;
    let other = health_event::NodeName::new("other").unwrap();
    world.breaker.count("gpu", &other, Cause::default());
    world.say(event("GpuXidError", "GPU 1", ""));
    assert_eq!(world.status(), "Withheld");
    world.node = late.node.clone();
    let decision = world.decide();
    assert_eq!(
        decision.notes,
        [Note::StrayMarks(StrayMarks::IncidentClosed)]
    );
    world.settle();
    assert_eq!(world.status(), "Withheld");
    assert!(!world.is_cordoned() && !world.has_taint(&xid_taint()));
    assert!(world.node().annotations.is_empty());
    // Stripped as well: the cordon alone tells.
    world.node = late.node;
    strip(&mut world);
    world.untaint_by_hand(&xid_taint());
    world.settle();
    assert!(!world.is_cordoned());
}

#[test]
fn a_fault_that_closed_and_opened_unseen_is_no_longer_held() {
    let mut world = World::xid();
    world.say(event("GpuXidError", "GPU 0", "79"));
    world.uncordon_by_hand();
    world.settle();
    world.say(event("GpuXidError", "GPU 0", "79"));
    assert_eq!(world.status(), "none", "a repeat is no new opening");
    world.store(&healthy("GpuXidError", "GPU 0", "79"));
    world.store(&event("GpuXidError", "GPU 0", "79"));
    world.settle();
    assert_eq!(world.status(), "Quarantined");
    assert!(world.holds.is_empty());
}

#[test]
fn another_opening_of_a_fault_joins_only_if_its_event_matches() {
    let mut world = World::xid();
    world.say(event("GpuXidError", "GPU 0", "79"));
    let mut mild = event("GpuXidError", "GPU 0", "79");
    mild.is_fatal = false;
    world.store(&healthy("GpuXidError", "GPU 0", "79"));
    world.store(&mild);
    world.settle();
    assert_eq!(world.status(), "none", "what it matched before has closed");
    assert!(!world.is_cordoned());
    // While it stays open it stays matched.
    let mut world = World::xid();
    world.say(event("GpuXidError", "GPU 0", "79"));
    world.say(mild);
    assert_eq!(world.status(), "Quarantined");
}

#[test]
fn a_recovery_during_a_change_of_the_marks_waits_for_the_agent_and_the_owner_too() {
    let changing = || {
        let mut world = two_rules();
        world.through_agent = true;
        world.agent.expected = true;
        world.agent.settled_for = Some(health_event::BootId::new("boot-1"));
        world.agent.started_at = Some(at(-10));
        world.say(event(CORDONS, "GPU 0", ""));
        without_writes(&mut world, |world| world.say(event(TAINTS, "GPU 0", "")));
        assert_eq!(world.status(), "Applying");
        world
    };
    let heal = |world: &mut World| {
        world.store(&healthy(CORDONS, "GPU 0", ""));
        world.store(&healthy(TAINTS, "GPU 0", ""));
        world.settle();
    };
    let mut world = changing();
    restart_agent(&mut world);
    heal(&mut world);
    assert_eq!(world.status(), "Quarantined");
    assert!(world.is_cordoned() && !world.has_taint(&xid_taint()));
    world.agent.settled_for = Some(health_event::BootId::new("boot-1"));
    world.settle();
    assert_eq!(world.status(), "none");
    assert!(!world.is_cordoned());
    let mut world = changing();
    world.node_mut().external_owner = Some("them".into());
    heal(&mut world);
    assert_eq!(world.status(), "Quarantined");
    assert!(world.is_cordoned());
    let mut world = changing();
    heal(&mut world);
    assert_eq!(world.status(), "none");
}

#[test]
fn a_step_back_that_is_late_fails_where_the_taint_is_on_again() {
    let mut world = two_rules();
    world.say(event(TAINTS, "GPU 0", ""));
    world.untaint_by_hand(&xid_taint());
    let step_back = world.decide().write.unwrap();
    assert_eq!(step_back.taints, None, "there is none of ours to take off");
    // A late write of ours puts the taint back, with the mark that the other one tests for.
    let untainted = world.clone();
    world.taint_by_hand(xid_taint());
    let marked = world.node().clone();
    world.write(step_back.clone());
    assert_eq!(*world.node(), marked, "or the taint would be left alone");
    let mut world = untainted;
    world.write(step_back);
    assert!(world.has(Annotation::UntaintedManually) && !world.has(Annotation::Incident));
}

#[test]
fn annotations_come_back_while_nothing_but_the_agents_word_is_waited_for() {
    let mut world = through_agent();
    world.say(event(CORDONS, "GPU 0", ""));
    world.say(event(TAINTS, "GPU 0", ""));
    restart_agent(&mut world);
    world.say(healthy(CORDONS, "GPU 0", ""));
    world.say(healthy(TAINTS, "GPU 0", ""));
    assert_eq!(world.status(), "Quarantined");
    let waits = world.node().clone();
    assert!(waits.annotations.contains_key(&Annotation::Incident));
    let keys: Vec<Annotation> = waits.annotations.keys().copied().collect();
    for key in keys {
        let mut world = world.clone();
        world.node_mut().annotations.remove(&key);
        world.settle();
        assert!(world.has(key), "{key:?}");
    }
    strip(&mut world);
    world.settle();
    let (now, before) = (world.node(), &waits);
    assert_eq!(world.status(), "Quarantined");
    assert_eq!(
        (now.unschedulable, &now.taints),
        (before.unschedulable, &before.taints)
    );
    assert!(world.has(Annotation::Incident));
    world.agent.settled_for = Some(health_event::BootId::new("boot-1"));
    world.settle();
    assert_eq!(world.status(), "none");
    assert!(!world.is_cordoned() && !world.has_taint(&xid_taint()));
}

#[test]
fn a_change_that_was_written_and_stripped_unseen_brings_back_nothing_that_it_took_off() {
    let mut world = through_agent();
    world.say(event(TAINTS, "GPU 0", ""));
    world.store(&event(CORDONS, "GPU 0", ""));
    world.store(&healthy(TAINTS, "GPU 0", ""));
    world.step();
    assert_eq!(world.status(), "Applying");
    assert!(world.is_cordoned() && !world.has_taint(&xid_taint()));
    strip(&mut world);
    restart_agent(&mut world);
    world.say(healthy(CORDONS, "GPU 0", ""));
    assert_eq!(world.status(), "Quarantined");
    assert!(world.is_cordoned() && !world.has_taint(&xid_taint()));
}

#[test]
fn what_we_put_on_again_is_ours_whatever_an_old_annotation_says() {
    let mut world = two_rules();
    world.taint_by_hand(xid_taint());
    without_writes(&mut world, |world| world.say(event(TAINTS, "GPU 0", "")));
    let late = world.decide().write.unwrap();
    // Another takes its taint off, a new incident opens, and only then the old one's write arrives.
    world.over.extend(world.incident.take());
    world.untaint_by_hand(&xid_taint());
    without_writes(&mut world, World::settle);
    assert!(!world.has_taint(&xid_taint()));
    world.write(late.clone());
    assert!(!world.has_taint(&xid_taint()));
    world.settle();
    assert!(world.has_taint(&xid_taint()));
    world.say(healthy(TAINTS, "GPU 0", ""));
    assert_eq!(world.status(), "none");
    assert!(!world.has_taint(&xid_taint()));
    // The same, seen by the incident that planned it, which knows better than the annotation.
    let mut world = two_rules();
    world.say(event(TAINTS, "GPU 0", ""));
    strip(&mut world);
    let old = late.annotations[&Annotation::AppliedTaints]
        .clone()
        .unwrap();
    let mut mark = k8s_api::IncidentMark {
        incident: world.incident.as_ref().unwrap().id.clone(),
        version: 1,
        node_uid: world.node().uid.clone(),
        held_by: None,
    };
    mark.version -= 1;
    let annotations = &mut world.node_mut().annotations;
    annotations.insert(Annotation::Incident, mark.render());
    annotations.insert(Annotation::AppliedTaints, old);
    world.settle();
    world.say(healthy(TAINTS, "GPU 0", ""));
    assert!(!world.has_taint(&xid_taint()));
}

#[test]
fn a_late_write_of_an_earlier_plan_is_taken_for_what_it_brought() {
    let mut world = two_rules();
    without_writes(&mut world, |world| world.say(event(CORDONS, "GPU 0", "")));
    let late = world.decide().write.unwrap();
    without_writes(&mut world, |world| world.say(event(TAINTS, "GPU 0", "")));
    world.policy.mode = Mode::DryRun;
    world.settle();
    assert_eq!(world.status(), "Observed");
    world.taint_by_hand(xid_taint());
    // The first of two writes arrives; another has put a taint like ours on meanwhile.
    let mut first = late;
    first.test.taints = None;
    world.write(first);
    world.settle();
    assert_eq!(world.status(), "Quarantined");
    let marks = &world.incident.as_ref().unwrap().marks;
    assert!(marks.cordon && marks.taints.is_empty());
    world.policy.mode = Mode::Enforce;
    world.say(healthy(TAINTS, "GPU 0", ""));
    world.say(healthy(CORDONS, "GPU 0", ""));
    assert_eq!(world.status(), "none");
    assert!(!world.is_cordoned() && world.has_taint(&xid_taint()));
}

#[test]
fn a_cordon_of_ours_alone_is_lifted_on_a_paused_node_too() {
    let mut world = World::xid();
    world.say(event("GpuXidError", "GPU 0", ""));
    world.say(healthy("GpuXidError", "GPU 0", ""));
    world.cordon_by_hand();
    let node = world.node_mut();
    (node.cordon_owner, node.paused) = (CordonOwner::Us, true);
    world.say(event("GpuXidError", "GPU 0", ""));
    assert_eq!(world.status(), "none");
    assert!(!world.is_cordoned());
}

#[test]
fn a_mark_that_comes_back_late_while_we_leave_says_itself_what_it_brought() {
    let mut world = two_rules();
    // Another has a taint like ours when the first write is planned, and takes it off before one lands.
    world.taint_by_hand(xid_taint());
    without_writes(&mut world, |world| world.say(event(TAINTS, "GPU 0", "")));
    let mut late = world.decide().write.unwrap();
    world.untaint_by_hand(&xid_taint());
    world.settle();
    assert_eq!(world.status(), "Quarantined");
    let marks = &world.incident.as_ref().unwrap().marks;
    assert!(marks.taints_pre_existing.is_empty());
    without_writes(&mut world, |world| {
        world.say(healthy(TAINTS, "GPU 0", ""));
    });
    assert_eq!(world.status(), "Releasing");
    // All of ours is taken off by hand, the other's taint comes back, and then the first write arrives.
    strip(&mut world);
    world.untaint_by_hand(&xid_taint());
    world.taint_by_hand(xid_taint());
    late.test.annotations_absent = world.node().annotations_absent;
    world.write(late);
    assert!(world.has(Annotation::Incident), "or nothing came late");
    world.settle();
    assert_eq!(world.status(), "none");
    assert!(world.has_taint(&xid_taint()), "it is another's");
    assert!(!world.has(Annotation::Incident));
}

#[test]
fn a_step_back_that_is_late_fails_where_a_write_that_was_given_up_cordoned_and_was_stripped() {
    let mut world = two_rules();
    world.say(event(TAINTS, "GPU 0", ""));
    strip(&mut world);
    without_writes(&mut world, |world| world.say(event(CORDONS, "GPU 0", "")));
    assert_eq!(world.status(), "Applying");
    let mut given_up = world.decide().write.unwrap();
    // A person takes the taint off, and the controller leaves, by what it saw last.
    let before = world.node.clone();
    world.untaint_by_hand(&xid_taint());
    let step_back = world.decide().write.unwrap();
    world.node = before;
    given_up.test.taints = None;
    world.write(given_up);
    assert!(world.is_cordoned(), "or nothing came late");
    strip(&mut world);
    world.untaint_by_hand(&xid_taint());
    let cordoned = world.node().clone();
    world.write(step_back);
    assert_eq!(*world.node(), cordoned, "or nobody knows of the cordon");
    world.settle();
    assert_eq!(world.status(), "none");
    assert!(!world.is_cordoned());
}

#[test]
fn an_incident_that_leaves_before_it_saw_its_marks_leaves_anothers_taint_alone() {
    let mut world = two_rules();
    without_writes(&mut world, |world| world.say(event(CORDONS, "GPU 0", "")));
    let late = world.decide().write.unwrap();
    without_writes(&mut world, |world| world.say(event(TAINTS, "GPU 0", "")));
    assert_eq!(world.status(), "Applying");
    // Another puts a taint like ours on, the first write arrives, and a person uncordons.
    world.taint_by_hand(xid_taint());
    world.write(late);
    assert!(world.is_cordoned(), "or nothing came late");
    world.uncordon_by_hand();
    // The answer is lost between decision and write, so that the node is read again.
    without_writes(&mut world, |world| {
        world.step();
    });
    assert_eq!(world.status(), "Releasing");
    world.settle();
    assert_eq!(world.status(), "none");
    assert!(world.has_taint(&xid_taint()), "it is another's");
}
