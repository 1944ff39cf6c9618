//! Marks on a node of which the store knows no incident.

use std::collections::BTreeSet;

use health_event::incident::QuarantineStatus;
use k8s_api::IncidentMark;

use super::world::{World, at, event, healthy, xid_rule, xid_taint};
use crate::quarantine::{
    ADOPTED, Annotation, CordonOwner, Mode, NodeFacts, Note, StrayMarks, adopt,
    hold_after_store_loss,
};
use crate::rules::{NodeValue, RuleSets};

const XID: &str = "GpuXidError";

fn no_node() -> NodeValue {
    NodeValue::Map(std::collections::BTreeMap::new())
}

fn marked() -> NodeFacts {
    let mut world = World::xid();
    world.say(event(XID, "GPU 0, GPU 1", "79"));
    world.node().clone()
}

#[test]
fn marks_of_an_unknown_incident_are_adopted() {
    let mut before = World::xid();
    before.say(event(XID, "GPU 0, GPU 1", "79"));
    let events = before.annotated.clone();
    let mut world = World::xid();
    world.node = Some(before.node().clone());
    assert!(world.decide().adopt);
    let rules = RuleSets::compile(&[xid_rule()]).unwrap();
    let adopted = adopt(world.node(), &events, &rules, no_node, at(5)).unwrap();
    assert_eq!(adopted.quarantine, QuarantineStatus::Quarantined);
    assert_eq!(adopted.faults.len(), 2);
    assert!(adopted.marks.cordon && !adopted.marks.cordon_pre_existing);
    assert_eq!(adopted.id, before.incident.as_ref().unwrap().id);
    // It goes on as if nothing had been lost.
    world.incident = Some(adopted);
    world.scopes = before.scopes;
    world.last = before.last;
    world.seq = before.seq;
    world.settle();
    assert_eq!((world.status(), world.writes.len()), ("Quarantined", 0));
    world.say(healthy(XID, "", ""));
    assert!(!world.is_cordoned() && !world.has_taint(&xid_taint()));
}

#[test]
fn an_adopted_fault_without_a_rule_keeps_the_marks_until_it_closes() {
    let mut before = World::xid();
    before.say(event(XID, "GPU 0", "79"));
    let rules = RuleSets::compile(&[]).unwrap();
    let adopted = adopt(before.node(), &before.annotated, &rules, no_node, at(5)).unwrap();
    assert_eq!(
        adopted.faults[0].rules,
        BTreeSet::from([ADOPTED.to_owned()])
    );
    let mut world = before.clone();
    world.configs.clear();
    world.incident = Some(adopted);
    world.settle();
    assert!(world.is_cordoned() && world.has_taint(&xid_taint()));
    world.say(healthy(XID, "GPU 0", "79"));
    assert!(!world.is_cordoned());
}

#[test]
fn marks_that_contradict_each_other_are_removed_with_a_note() {
    let node = marked();
    let mark = |node: &NodeFacts| IncidentMark::parse(&node.annotations[&Annotation::Incident]);
    let mut unreadable = node.clone();
    unreadable
        .annotations
        .insert(Annotation::Incident, "{".into());
    let mut other_uid = node.clone();
    other_uid.uid = "uid-9".into();
    let mut nothing = node.clone();
    nothing.annotations.remove(&Annotation::IsCordoned);
    nothing.annotations.remove(&Annotation::AppliedTaints);
    nothing.cordon_owner = CordonOwner::Unknown;
    assert!(mark(&node).is_ok());
    for (stray, why) in [
        (unreadable, StrayMarks::Unreadable),
        (other_uid, StrayMarks::OtherUid),
        (nothing, StrayMarks::NothingMarked),
    ] {
        let mut world = World::xid();
        world.node = Some(stray.clone());
        let decision = world.decide();
        assert_eq!(decision.notes, [Note::StrayMarks(why)]);
        assert!(!decision.adopt && decision.write.is_some());
        world.settle();
        assert!(world.node().annotations.is_empty(), "{why:?}");
        let mut dry = World::xid();
        dry.policy.mode = Mode::DryRun;
        dry.node = Some(stray);
        assert!(dry.decide().write.is_none());
    }
}

#[test]
fn marks_of_the_reference_alone_are_left_alone() {
    let mut world = World::xid();
    let node = world.node_mut();
    node.annotations_absent = false;
    node.annotations
        .insert(Annotation::IsCordoned, "True".into());
    node.annotations
        .insert(Annotation::HealthEvents, "[]".into());
    node.unschedulable = Some(true);
    let before = world.node().clone();
    world.settle();
    assert_eq!(world.node(), &before);
    // Its cordon is a stranger's to us.
    world.say(event(XID, "GPU 0", ""));
    assert!(world.has(Annotation::CordonPreExisting));
    world.say(healthy(XID, "GPU 0", ""));
    assert!(world.is_cordoned());
}

#[test]
fn a_record_of_an_uncordon_starts_with_a_hold_after_the_store_was_lost() {
    let mut world = World::xid();
    world.store(&event(XID, "GPU 0", ""));
    let rules = RuleSets::compile(&world.configs).unwrap();
    let faults = world.faults(&rules);
    let policy = world.policy.clone();
    assert_eq!(
        hold_after_store_loss(world.node(), &faults, &policy, at(0)),
        None
    );
    let node = world.node_mut();
    node.annotations_absent = false;
    node.annotations
        .insert(Annotation::UncordonedManually, "True".into());
    let hold = hold_after_store_loss(world.node(), &faults, &policy, at(0)).unwrap();
    assert_eq!((hold.faults.len(), hold.until), (1, at(24 * 3600)));
    world.holds = vec![hold];
    world.settle();
    assert!(!world.is_cordoned());
}
