//! What drain and repair mean for the quarantine.

use health_event::incident::{
    Attempt, Drain, DrainDeadlines, DrainFailed, DrainFailure, DrainStatus, DrainWait, Effect,
    OperatorReason, Repair, RepairFailure, RepairStatus, Rung,
};
use health_event::{BehaviourOverrides, BootId};
use jiff::Timestamp;

use super::world::{World, at, event, healthy};
use crate::quarantine::{Annotation, Label, Note, RequestKind, WriteKind, state_label};

const XID: &str = "GpuXidError";

fn drain(status: DrainStatus) -> Drain {
    Drain {
        status,
        since: at(1),
    }
}

fn draining() -> DrainStatus {
    DrainStatus::Draining(DrainDeadlines {
        immediate: at(100),
        delete: at(100),
        completion: None,
    })
}

fn failed_drain() -> DrainStatus {
    let DrainStatus::Draining(deadlines) = draining() else {
        unreachable!("it is what it makes")
    };
    let why = DrainFailure::Immediate;
    DrainStatus::Failed(DrainFailed { why, deadlines })
}

fn repair(status: RepairStatus, effect: Effect) -> Repair {
    Repair {
        status,
        since: at(2),
        attempt: Some(Attempt {
            number: 1,
            rung: Rung::Reboot,
            action: "RESTART_BM".to_owned(),
            object: "maintenance-n1-x-1".to_owned(),
            force: false,
            boot_before: BootId::new("boot-1"),
            requested_at: at(2),
            deadline: at(2_000),
            not_begun_before: 0,
            seen_before: None,
            effect,
        }),
    }
}

/// A node that is out for one fault.
fn out() -> World {
    let mut world = World::xid();
    world.say(event(XID, "GPU 0", ""));
    assert_eq!(world.status(), "Quarantined");
    // Every state that is set below lasts.
    world.now = at(60);
    world
}

/// What another module stores.
fn set(world: &mut World, drain: Option<Drain>, repair: Option<Repair>) {
    let incident = world.incident.as_mut().unwrap();
    (incident.drain, incident.repair) = (drain, repair);
    incident.version += 1;
    world.settle();
}

fn label(world: &World) -> &str {
    &world.node().labels[&Label::State]
}

fn seen(at: Timestamp) -> Repair {
    repair(RepairStatus::Succeeded, Effect::Seen { at })
}

#[test]
fn drain_row_104_row_180_the_state_label_follows_drain_and_repair() {
    let reboot = RepairStatus::Planned { rung: Rung::Reboot };
    let person = RepairStatus::NeedsOperator(OperatorReason::StillOpen);
    let failed = RepairStatus::Failed(RepairFailure::Deadline);
    let waiting = DrainStatus::Waiting(DrainWait::Paused);
    let over = failed_drain();
    let drained = DrainStatus::Drained;
    for (drains, repairs, want) in [
        (None, None, "quarantined"),
        (Some(waiting), Some(reboot.clone()), "quarantined"),
        (Some(draining()), Some(reboot.clone()), "draining"),
        (Some(draining()), Some(person.clone()), "draining"),
        (Some(over.clone()), Some(reboot.clone()), "drain-failed"),
        (Some(drained.clone()), Some(reboot), "drain-succeeded"),
        (Some(drained.clone()), None, "drain-succeeded"),
        (
            Some(drained.clone()),
            Some(RepairStatus::Requested),
            "remediating",
        ),
        (
            Some(drained.clone()),
            Some(RepairStatus::Running),
            "remediating",
        ),
        (
            Some(drained.clone()),
            Some(RepairStatus::Unknown),
            "remediating",
        ),
        (
            Some(drained.clone()),
            Some(RepairStatus::Succeeded),
            "remediation-succeeded",
        ),
        (Some(drained.clone()), Some(failed), "remediation-failed"),
        (Some(drained), Some(person.clone()), "remediation-failed"),
        (Some(DrainStatus::Cancelled), None, "quarantined"),
        (None, Some(person), "remediation-failed"),
    ] {
        let mut world = out();
        let repairs = repairs.map(|status| repair(status, Effect::Pending));
        set(&mut world, drains.map(drain), repairs);
        assert_eq!(label(&world), want);
        assert_eq!(state_label(world.incident.as_ref().unwrap()), want);
        assert_eq!(world.status(), "Quarantined");
        let writes = world.writes.len();
        world.settle();
        assert_eq!(world.writes.len(), writes, "{want}: it is written once");
    }
    // What a person was called for has healed, after a reboot that was seen.
    let mut world = out();
    let seen = repair(RepairStatus::Cancelled, Effect::Seen { at: at(3) });
    set(&mut world, Some(drain(DrainStatus::Drained)), Some(seen));
    assert_eq!(label(&world), "remediation-succeeded");
}

/// The label is rendered from the incident: whatever it follows, what is so now is written.
#[test]
fn drain_row_105_106_row_181_182_184_each_state_follows_any_and_goes_with_the_release() {
    let stages = [
        (None, None),
        (Some(draining()), None),
        (Some(DrainStatus::Drained), None),
        (Some(failed_drain()), None),
        (Some(DrainStatus::Drained), Some(RepairStatus::Running)),
        (Some(DrainStatus::Drained), Some(RepairStatus::Succeeded)),
        (
            Some(DrainStatus::Drained),
            Some(RepairStatus::Failed(RepairFailure::Deadline)),
        ),
    ];
    let stage = |world: &mut World, (drains, repairs): &(Option<_>, Option<_>)| {
        let repairs = repairs
            .clone()
            .map(|status| repair(status, Effect::Pending));
        set(world, drains.clone().map(drain), repairs);
        let want = state_label(world.incident.as_ref().unwrap());
        assert_eq!(label(world), want);
        want
    };
    let mut seen = std::collections::BTreeSet::new();
    for from in &stages {
        for to in &stages {
            let mut world = out();
            let before = stage(&mut world, from);
            let writes = world.writes.len();
            let after = stage(&mut world, to);
            assert_eq!(world.writes.len() > writes, before != after);
            assert!(
                world.notes.is_empty(),
                "{before} {after}: {:?}",
                world.notes
            );
            seen.insert(after);
        }
        let mut world = out();
        stage(&mut world, from);
        world.uncordon_by_hand();
        world.settle();
        assert_eq!(world.status(), "none");
        assert!(!world.node().labels.contains_key(&Label::State));
        let writes = world.writes.len();
        world.settle();
        assert_eq!(
            world.writes.len(),
            writes,
            "what is absent is not taken off"
        );
    }
    assert_eq!(seen.len(), 7, "{seen:?}");
}

#[test]
fn drain_row_102_row_177_178_a_label_that_was_not_written_is_written_later() {
    let mut world = out();
    world.lose_writes = true;
    set(&mut world, Some(drain(draining())), None);
    assert_eq!(label(&world), "quarantined");
    let decided = world.decide().write.unwrap();
    assert_eq!(world.decide().write.as_ref(), Some(&decided), "and again");
    // Its tests fail where the mark has changed since it was read: nothing is written, and it is
    // decided anew.
    world.lose_writes = false;
    let read = world.node().annotations[&Annotation::Incident].clone();
    let other = "another".to_owned();
    world
        .node_mut()
        .annotations
        .insert(Annotation::Incident, other);
    world.write(decided);
    assert_eq!(label(&world), "quarantined");
    world
        .node_mut()
        .annotations
        .insert(Annotation::Incident, read);
    world.settle();
    assert_eq!(label(&world), "draining");
}

#[test]
fn a_state_that_another_one_follows_at_once_is_said_only_if_it_lasts() {
    let reboot = RepairStatus::Planned { rung: Rung::Reboot };
    let drained = || Some(drain(DrainStatus::Drained));
    for (repairs, since, says, next, then) in [
        (
            reboot,
            2,
            "drain-succeeded",
            RepairStatus::Requested,
            "remediating",
        ),
        (
            RepairStatus::Succeeded,
            2,
            "remediation-succeeded",
            RepairStatus::Failed(RepairFailure::Deadline),
            "remediation-failed",
        ),
    ] {
        let mut world = out();
        set(&mut world, Some(drain(draining())), None);
        let writes = world.writes.len();
        world.now = at(since);
        set(
            &mut world,
            drained(),
            Some(repair(repairs, Effect::Pending)),
        );
        assert_eq!((label(&world), world.writes.len()), ("draining", writes));
        assert_eq!(
            world.wake_at,
            Some(at(since + 1)),
            "and it is looked at again"
        );
        let mut lasts = world.clone();
        lasts.now = at(since + 1);
        lasts.settle();
        assert_eq!(label(&lasts), says);
        set(&mut world, drained(), Some(repair(next, Effect::Pending)));
        assert_eq!((label(&world), world.writes.len()), (then, writes + 1));
    }
    // Nobody is known to follow these.
    let mut world = out();
    world.now = at(1);
    set(&mut world, drained(), None);
    assert_eq!(label(&world), "drain-succeeded");
    let waits = DrainStatus::Waiting(DrainWait::Paused);
    set(&mut world, Some(drain(waits)), None);
    assert_eq!(label(&world), "quarantined");
}

#[test]
fn where_a_drain_follows_the_cordon_says_so_until_it_does_not_come() {
    let drains = |change: fn(&mut World)| {
        let mut world = World::xid();
        world.policy.drains = true;
        change(&mut world);
        world
    };
    let mut world = drains(|_| {});
    world.say(event(XID, "GPU 0", ""));
    assert_eq!((label(&world), world.writes.len()), ("draining", 1));
    set(&mut world, Some(drain(draining())), None);
    assert_eq!((label(&world), world.writes.len()), ("draining", 1));
    let mut late = drains(|_| {});
    late.say(event(XID, "GPU 0", ""));
    assert_eq!(late.wake_at, Some(at(30)));
    late.now = at(30);
    late.settle();
    assert_eq!(label(&late), "quarantined", "no drain came");
    // A fault that needs none, and a person's hold, are followed by none.
    let mut skips = event(XID, "GPU 0", "");
    skips.drain_overrides = Some(BehaviourOverrides {
        force: false,
        skip: true,
    });
    let mut world = drains(|_| {});
    world.say(skips);
    assert_eq!((label(&world), world.writes.len()), ("quarantined", 1));
    let mut world = drains(|_| {});
    world.ask(RequestKind::Hold);
    assert_eq!((label(&world), world.writes.len()), ("quarantined", 1));
}

#[test]
fn a_label_that_somebody_changed_is_written_again_and_a_release_takes_it_off() {
    let mut world = out();
    set(&mut world, Some(drain(draining())), None);
    world
        .node_mut()
        .labels
        .insert(Label::State, "mine".to_owned());
    world.settle();
    assert_eq!(label(&world), "draining");
    let last = world.writes.last().unwrap();
    assert_eq!(last.kind, WriteKind::State);
    assert!(last.annotations.is_empty() && last.unschedulable.is_none());
    world.say(healthy(XID, "GPU 0", ""));
    assert_eq!(world.status(), "none");
    assert!(!world.node().labels.contains_key(&Label::State));
    let over = world.over.last().unwrap();
    assert_eq!(over.drain.as_ref().unwrap().status, DrainStatus::Cancelled);
}

#[test]
fn a_repair_under_way_keeps_the_node_out_and_a_person_s_uncordon_does_not_wait_for_it() {
    for status in [
        RepairStatus::Requested,
        RepairStatus::Running,
        RepairStatus::Unknown,
    ] {
        let mut world = out();
        let drained = Some(drain(DrainStatus::Drained));
        set(
            &mut world,
            drained.clone(),
            Some(repair(status, Effect::Pending)),
        );
        let mut by_hand = world.clone();
        world.say(healthy(XID, "GPU 0", ""));
        assert_eq!(world.status(), "Quarantined");
        let by = Note::Blocked {
            step: "release",
            by: "repair_under_way",
        };
        assert!(world.notes.contains(&by));
        // It ends as it may, and the rule is looked at again.
        let failed = RepairStatus::Failed(RepairFailure::Deadline);
        let failed = repair(failed, Effect::Failed);
        set(&mut world, drained, Some(failed.clone()));
        assert_eq!(world.status(), "none");
        let over = world.over.last().unwrap();
        assert_eq!(over.repair.as_ref(), Some(&failed));

        by_hand.uncordon_by_hand();
        by_hand.settle();
        assert_eq!(by_hand.status(), "none");
        let over = by_hand.over.last().unwrap().repair.as_ref().unwrap();
        assert_eq!(over.status, RepairStatus::Cancelled);
        assert_eq!(over.attempt.as_ref().unwrap().effect, Effect::Pending);
    }
}

#[test]
fn a_repair_that_a_person_ordered_keeps_the_node_out_too() {
    let mut world = out();
    world.node_mut().repaired_by_others = true;
    world.say(healthy(XID, "GPU 0", ""));
    assert_eq!(world.status(), "Quarantined");
    world.node_mut().repaired_by_others = false;
    world.settle();
    assert_eq!(world.status(), "none");
}

#[test]
fn repair_row_126_162_164_the_last_repair_stands_on_the_node_until_it_is_given_back() {
    let mut world = out();
    let drained = Some(drain(DrainStatus::Drained));
    let running = repair(RepairStatus::Running, Effect::Pending);
    set(&mut world, drained.clone(), Some(running));
    let text = &world.node().annotations[&Annotation::RemediationState];
    let group = r#"{"restart":{"maintenanceCR":"maintenance-n1-x-1","#;
    assert!(text.contains(group), "{text}");
    assert!(text.contains(r#""actionName":"RESTART_BM""#), "{text}");
    let mut ungrouped = repair(RepairStatus::Running, Effect::Pending);
    ungrouped.attempt.as_mut().unwrap().action = "REPLACE_DISK".to_owned();
    let mut other = out();
    set(&mut other, drained.clone(), Some(ungrouped));
    let text = &other.node().annotations[&Annotation::RemediationState];
    assert!(text.contains(r#"{"REPLACE_DISK":{"#), "{text}");
    assert_eq!(label(&world), "remediating");
    let writes = world.writes.len();
    let failed = RepairStatus::Failed(RepairFailure::Deadline);
    set(&mut world, drained, Some(repair(failed, Effect::Failed)));
    assert_eq!(world.writes.len(), writes + 1, "both in one write");
    let mut others = world.clone();
    world.say(healthy(XID, "GPU 0", ""));
    let key = Annotation::RemediationState;
    assert_eq!(world.status(), "none");
    assert!(!world.node().annotations.contains_key(&key));
    // What another program wrote there is its own.
    others.feedback = crate::quarantine::WriteFeedback::Accepted;
    others
        .node_mut()
        .annotations
        .insert(key, "theirs".to_owned());
    others.say(healthy(XID, "GPU 0", ""));
    assert_eq!(others.status(), "none");
    assert_eq!(others.node().annotations[&key], "theirs");
}

#[test]
fn without_an_agent_a_repaired_node_proves_itself_by_being_ready_and_quiet() {
    let mut world = out();
    let drained = Some(drain(DrainStatus::Drained));
    set(&mut world, drained, Some(seen(at(100))));
    world.node_mut().boot = BootId::new("boot-2");
    world.boots.observe(&BootId::new("boot-2"));
    world.now = at(120);
    world.say(healthy(XID, "GPU 0", ""));
    assert_eq!(world.status(), "Quarantined");
    assert_eq!(world.wake_at, Some(at(700)));
    // What is said of the new boot has it wait anew.
    world.now = at(300);
    world.boot = BootId::new("boot-2");
    world.say(event(XID, "GPU 1", ""));
    world.say(healthy(XID, "GPU 1", ""));
    assert_eq!(world.wake_at, Some(at(900)));
    world.now = at(900);
    world.node_mut().ready = false;
    world.settle();
    assert_eq!(world.status(), "Quarantined");
    world.node_mut().ready = true;
    world.settle();
    assert_eq!(world.status(), "none");
}

#[test]
fn with_an_agent_its_word_is_enough_after_a_repair() {
    let mut world = World::xid();
    world.through_agent = true;
    world.agent.expected = true;
    world.agent.started_at = Some(at(-100));
    world.say(event(XID, "GPU 0", ""));
    let drained = Some(drain(DrainStatus::Drained));
    set(&mut world, drained, Some(seen(at(100))));
    world.node_mut().boot = BootId::new("boot-2");
    world.boots.observe(&BootId::new("boot-2"));
    world.now = at(120);
    world.say(healthy(XID, "GPU 0", ""));
    assert_eq!(world.status(), "Quarantined");
    world.agent.settled_for = Some(BootId::new("boot-2"));
    world.settle();
    assert_eq!(world.status(), "none");
}
