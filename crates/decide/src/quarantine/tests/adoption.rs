//! Marks on a node of which the store knows no incident.

use std::collections::BTreeSet;

use health_event::incident::QuarantineStatus;
use k8s_api::IncidentMark;

use super::world::{World, at, event, healthy, xid_rule, xid_taint};
use crate::quarantine::{
    ADOPTED, AgentFacts, Annotation, CordonOwner, FaultFacts, GivenBack, MarkOrigin, Mode,
    NodeFacts, Note, RequestKind, StrayMarks, adopt, given_back, will_be_adopted,
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
    let adopted = adopt(world.node(), Some(&events), &rules, no_node, at(5)).unwrap();
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
    let adopted = adopt(
        before.node(),
        Some(&before.annotated),
        &rules,
        no_node,
        at(5),
    )
    .unwrap();
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
fn a_person_who_holds_a_node_still_does_after_the_store_was_lost() {
    let mut before = World::xid();
    before.ask(RequestKind::Hold);
    let rules = RuleSets::compile(&[xid_rule()]).unwrap();
    let adopt = |world: &World| {
        let events = Some(world.annotated.as_slice());
        adopt(world.node(), events, &rules, no_node, at(5)).unwrap()
    };
    let adopted = adopt(&before);
    assert_eq!(adopted.held_by, before.incident.as_ref().unwrap().held_by);
    assert!(!adopted.faults_unknown, "nothing but the hold");
    let mut world = before.clone();
    world.incident = Some(adopted);
    world.settle();
    assert!(world.is_cordoned(), "{}", world.status());
    world.ask(RequestKind::Release);
    assert!(!world.is_cordoned());
    // A hold on a node that is out already is written down there too, and so is its end.
    let mut world = World::xid();
    world.say(event(XID, "GPU 0", "79"));
    assert_eq!(adopt(&world).held_by, None);
    world.ask(RequestKind::Hold);
    assert!(adopt(&world).held_by.is_some());
    world.ask(RequestKind::Release);
    assert_eq!(adopt(&world).held_by, None);
}

#[test]
fn where_the_annotation_does_not_name_all_the_agent_has_the_word() {
    let mut before = World::xid();
    before.say(event(XID, "GPU 0", "79"));
    let rules = RuleSets::compile(&[xid_rule()]).unwrap();
    let mut cut = before.annotated.clone();
    cut[0]
        .metadata
        .insert(k8s_api::names::LEFT_OUT.text.to_owned(), "3".into());
    let cases = [
        ("unreadable", None),
        ("empty", Some(&[][..])),
        ("cut", Some(&cut[..])),
    ];
    for (what, events) in cases {
        let adopted = adopt(before.node(), events, &rules, no_node, at(5)).unwrap();
        assert!(adopted.faults_unknown, "{what}");
        let mut world = before.clone();
        world.incident = Some(adopted);
        // Nothing is known to be open, and the agent has not been heard.
        world.last.clear();
        world.agent = AgentFacts::default();
        world.settle();
        assert!(world.is_cordoned(), "{what}: {}", world.status());
        // Without its word a person is needed, and can end it.
        world.now = at(5 + 601);
        world.settle();
        let needs = |world: &World| world.incident.as_ref().unwrap().needs_operator.clone();
        assert_eq!(needs(&world).as_deref(), Some("faults unknown"), "{what}");
        assert!(world.is_cordoned(), "{what}");
        let mut person = world.clone();
        person.ask(RequestKind::Cancel);
        assert!(!person.is_cordoned(), "{what}");
        // It settles, and has nothing to say against the node.
        world.agent.expected = true;
        world.settle();
        assert!(world.is_cordoned(), "{what}: it has not settled");
        world.agent.settled_for = Some(world.node().boot.clone());
        world.settle();
        assert!(!world.is_cordoned(), "{what}: {}", world.status());
    }
    let known = adopt(
        before.node(),
        Some(&before.annotated),
        &rules,
        no_node,
        at(5),
    );
    assert!(!known.unwrap().faults_unknown);
}

#[test]
fn a_node_that_a_person_gave_back_waits_for_one_word_of_its_agent_after_the_store_was_lost() {
    let mut world = World::xid();
    world.store(&event(XID, "GPU 0", ""));
    let rules = RuleSets::compile(&world.configs).unwrap();
    let faults = world.faults(&rules);
    let policy = world.policy.clone();
    let agent = |settled: bool| AgentFacts {
        expected: settled,
        settled_for: settled.then(|| world.node().boot.clone()),
        ..AgentFacts::default()
    };
    let look = |node: &NodeFacts, faults: &[FaultFacts], settled: bool, now: i64| {
        given_back(node, None, faults, &agent(settled), &policy, at(0), at(now))
    };
    assert_eq!(look(world.node(), &faults, true, 1), GivenBack::Over);
    let mut node = world.node().clone();
    node.annotations
        .insert(Annotation::UncordonedManually, "True".into());
    let until = at(600);
    assert_eq!(look(&node, &faults, false, 1), GivenBack::Waits { until });
    // It has nothing to say: what comes later is new.
    assert_eq!(look(&node, &[], true, 1), GivenBack::Over);
    // Nobody speaks: what is open then is held, and nothing later.
    let span = |found| match found {
        GivenBack::Held(hold) => Some((hold.faults.len(), hold.until)),
        GivenBack::Waits { .. } | GivenBack::Over => None,
    };
    let day = 24 * 3600;
    assert_eq!(
        span(look(&node, &faults, false, 600)),
        Some((1, at(600 + day)))
    );
    assert_eq!(look(&node, &[], false, 600), GivenBack::Over);
    let GivenBack::Held(hold) = look(&node, &faults, true, 1) else {
        panic!("what the first settled report asserts is not held");
    };
    assert_eq!((hold.faults.len(), hold.until), (1, at(1 + day)));
    world.node = Some(node);
    world.holds = vec![hold];
    world.settle();
    assert!(!world.is_cordoned());
}

#[test]
fn what_is_counted_before_any_turn_is_exactly_what_its_turn_adopts() {
    let marked = marked();
    let mut other_uid = marked.clone();
    other_uid.uid = "another".into();
    let mut unreadable = marked.clone();
    unreadable
        .annotations
        .insert(Annotation::Incident, "?".into());
    let mut nothing = marked.clone();
    nothing.annotations.remove(&Annotation::IsCordoned);
    nothing.annotations.remove(&Annotation::AppliedTaints);
    (nothing.unschedulable, nothing.taints) = (None, None);
    let bare = World::xid().node().clone();
    let table = [
        ("marked", marked, true),
        ("other UID", other_uid, false),
        ("unreadable", unreadable, false),
        ("nothing marked", nothing, false),
        ("bare", bare, false),
    ];
    for (case, node, adopted) in table {
        let mut world = World::xid();
        world.node = Some(node);
        assert_eq!(world.decide().adopt, adopted, "{case}");
        let will = |origin| will_be_adopted(world.node(), origin);
        assert_eq!(will(MarkOrigin::Unknown), adopted, "{case}");
        assert!(!will(MarkOrigin::Closed), "{case}");
    }
}

#[test]
fn a_cancel_beside_the_mark_of_a_lost_incident_gives_the_node_back() {
    // The write of an incident that was lost with the store arrives when another one has opened.
    let late = || {
        let mut lost = World::xid();
        lost.say(event(XID, "GPU 0", "79"));
        let mut world = World::xid();
        world.lose_writes = true;
        world.say(event(XID, "GPU 0", "79"));
        world.lose_writes = false;
        assert_eq!(world.status(), "Applying");
        world.incident.as_mut().unwrap().id =
            health_event::incident::IncidentId::new(&"9".repeat(26)).unwrap();
        world.node = lost.node;
        world.annotated = lost.annotated;
        world
    };
    let mut world = late();
    world.ask(RequestKind::Cancel);
    assert_eq!(world.status(), "none");
    assert!(!world.is_cordoned() && world.node().annotations.is_empty());
    assert_eq!(world.holds.len(), 1);
    // The write that gives it back is lost: it is written again, whoever the cordon is said to be of.
    let mut world = late();
    world.lose_writes = true;
    world.request = Some(crate::quarantine::Request {
        kind: RequestKind::Cancel,
        actor: "alice".into(),
    });
    world.step();
    assert_eq!(world.status(), "Releasing");
    world.lose_writes = false;
    world.node_mut().cordon_owner = CordonOwner::Unknown;
    world.settle();
    assert_eq!(world.status(), "none");
    assert!(!world.is_cordoned() && world.node().annotations.is_empty());
}
