//! Rows of the reference's acceptance list that a decision settles.

use std::collections::BTreeMap;

use health_event::HealthEvent;
use health_event::incident::{CloseReason, QuarantineStatus};
use k8s_api::{AppliedTaint, IncidentMark};

use super::world::{
    World, clean_node, event, forced, healthy, rule_set, taint, xid_rule, xid_taint,
};
use crate::quarantine::{Annotation, Label, Mode, RequestKind};

const XID: &str = "GpuXidError";

fn quarantined() -> World {
    let mut world = World::xid();
    world.say(event(XID, "GPU 0", "79"));
    assert_eq!(world.status(), "Quarantined");
    world
}

fn assert_clean(world: &World) {
    assert_eq!(world.status(), "none");
    assert!(!world.is_cordoned() && !world.has_taint(&xid_taint()));
    let left: Vec<_> = world.node().annotations.keys().collect();
    assert!(
        left.iter().all(|k| matches!(
            k,
            Annotation::UncordonedManually | Annotation::UntaintedManually
        )),
        "{left:?}"
    );
    for label in [
        Label::CordonBy,
        Label::CordonReason,
        Label::CordonTimestamp,
        Label::State,
    ] {
        assert!(!world.node().labels.contains_key(&label), "{label:?}");
    }
}

fn last_close(world: &World) -> CloseReason {
    let last = &world.over.last().unwrap().quarantine;
    let QuarantineStatus::Closed(why) = last else {
        panic!("not closed: {last:?}");
    };
    *why
}

#[test]
fn row_001_an_event_that_matches_nothing_leaves_no_trace() {
    let mut world = World::xid();
    world.say(event("UnknownCheck", "GPU 0", "999"));
    assert_eq!(world.node(), &clean_node());
}

#[test]
fn row_002_an_opted_out_node_is_left_alone() {
    let mut world = World::xid();
    world.node_mut().opted_out = true;
    world.say(event(XID, "GPU 0", "79"));
    assert!(world.writes.is_empty() && !world.is_cordoned());
    // Opting in again acts on what is still open.
    world.node_mut().opted_out = false;
    world.settle();
    assert!(world.is_cordoned());
}

#[test]
fn row_004_005_a_foreign_cordon_is_noted_and_stays_after_recovery() {
    let mut world = World::xid();
    world.cordon_by_hand();
    world.say(event(XID, "GPU 0", "79"));
    for key in [
        Annotation::HealthEvents,
        Annotation::IsCordoned,
        Annotation::CordonPreExisting,
    ] {
        assert!(world.has(key), "{key:?}");
    }
    world.say(healthy(XID, "GPU 0", ""));
    assert!(world.is_cordoned() && !world.has_taint(&xid_taint()));
    assert!(world.node().annotations.is_empty());
}

#[test]
fn row_014_016_dry_run_writes_nothing_to_the_node() {
    let mut world = World::xid();
    world.policy.mode = Mode::DryRun;
    world.say(event(XID, "GPU 0", "79"));
    assert_eq!(world.status(), "Observed");
    world.say(healthy(XID, "GPU 0", ""));
    assert_eq!(last_close(&world), CloseReason::Recovered);
    assert!(world.writes.is_empty());
    assert_eq!(world.node(), &clean_node());
}

#[test]
fn row_032_the_node_comes_back_with_the_last_fault() {
    let mut world = World::xid();
    world.say(event(XID, "GPU 0", "79"));
    world.say(event(XID, "GPU 1", "80"));
    assert_eq!(
        world.keys(),
        ["GpuXidError GPU=0 79", "GpuXidError GPU=1 80"]
    );
    world.say(healthy(XID, "GPU 0", "79"));
    assert!(world.is_cordoned());
    world.say(healthy(XID, "GPU 1", "80"));
    assert_clean(&world);
}

#[test]
fn row_033_the_annotation_holds_the_message() {
    let world = quarantined();
    assert_eq!(world.annotated[0].message, "GpuXidError occurred");
}

#[test]
fn row_041_a_forced_event_is_withheld_by_a_tripped_breaker() {
    let mut world = World::xid();
    world.pool_size = 1;
    world.breaker.count(
        "gpu",
        &health_event::NodeName::new("other").unwrap(),
        crate::breaker::Cause::default(),
    );
    world.say(forced(event("Other", "GPU 0", ""), "test"));
    assert_eq!(world.status(), "Withheld");
    assert!(!world.is_cordoned());
}

#[test]
fn row_042_a_withheld_node_that_was_dropped_stays_out_of_it() {
    let mut world = World::xid();
    world.pool_size = 1;
    let other = health_event::NodeName::new("other").unwrap();
    world
        .breaker
        .count("gpu", &other, crate::breaker::Cause::default());
    world.say(event(XID, "GPU 0", "79"));
    assert_eq!(world.status(), "Withheld");
    world.ask(RequestKind::DropWithheld);
    world.breaker.reset("gpu");
    world.breaker.release("gpu", &other);
    world.settle();
    assert_eq!(world.status(), "Observed");
    assert!(!world.is_cordoned());
    world.say(healthy(XID, "GPU 0", "79"));
    world.say(event(XID, "GPU 0", "79"));
    assert!(world.is_cordoned(), "a fault that opens anew is new");
}

#[test]
fn row_068_one_event_of_three_gpus_is_three_keys() {
    let mut world = World::xid();
    world.say(event(XID, "GPU 1, GPU 2, GPU 3", ""));
    assert_eq!(world.keys().len(), 3);
}

#[test]
fn row_069_same_entity_and_code_again_adds_nothing() {
    let mut world = World::xid();
    world.say(event(XID, "GPU 1", "62"));
    let writes = world.writes.len();
    world.say(event(XID, "GPU 1", "62"));
    assert_eq!(world.keys().len(), 1);
    assert_eq!(world.writes.len(), writes, "and writes nothing");
}

#[test]
fn row_070_another_code_is_another_key() {
    let mut world = World::xid();
    world.say(event(XID, "GPU 1", "62"));
    world.say(event(XID, "GPU 1", "63"));
    assert_eq!(
        world.keys(),
        ["GpuXidError GPU=1 62", "GpuXidError GPU=1 63"]
    );
}

/// What is left after healthy events, from events of (entities, codes).
fn left(said: &[(&str, &str)], cleared: &[(&str, &str)]) -> Vec<String> {
    let mut world = World::xid();
    for (entities, codes) in said {
        world.say(event(XID, entities, codes));
    }
    for (entities, codes) in cleared {
        world.say(healthy(XID, entities, codes));
    }
    let keys = world.keys();
    assert_eq!(
        keys.is_empty(),
        !world.is_cordoned(),
        "out exactly while a key is left"
    );
    keys
}

#[test]
fn row_072_073_healthy_without_code_finds_the_gpu() {
    assert!(left(&[("GPU 1", "62")], &[("GPU 1", "")]).is_empty());
}

#[test]
fn row_074_another_gpu_is_not_found() {
    assert_eq!(left(&[("GPU 1", "62")], &[("GPU 2", "")]).len(), 1);
}

#[test]
fn row_076_one_of_two_gpus_of_one_event_recovers() {
    assert_eq!(
        left(&[("GPU 1, GPU 2", "")], &[("GPU 1", "")]),
        ["GpuXidError GPU=2"]
    );
    // The reference loses the second recovery (weak point W1).
    assert!(left(&[("GPU 1, GPU 2", "")], &[("GPU 1", ""), ("GPU 2", "")]).is_empty());
}

#[test]
fn row_077_two_of_three_gpus_recover() {
    assert_eq!(
        left(&[("GPU 1, GPU 2, GPU 3", "")], &[("GPU 1, GPU 3", "")]).len(),
        1
    );
}

#[test]
fn row_078_a_gpu_never_seen_removes_nothing() {
    assert_eq!(left(&[("GPU 1", "")], &[("GPU 99", "")]).len(), 1);
}

#[test]
fn row_080_healthy_without_entities_clears_the_check() {
    let mut world = World::new(vec![rule_set("s", "event.isFatal", true, None)]);
    world.say(event(
        "SysLogsXIDError",
        "PCI 0000:17:00, GPU_UUID GPU-1",
        "79",
    ));
    assert_eq!(world.keys().len(), 1);
    world.say(healthy("SysLogsXIDError", "", ""));
    assert_clean(&world);
}

#[test]
fn row_081_healthy_without_entities_leaves_other_checks() {
    let mut world = World::new(vec![rule_set("s", "event.isFatal", true, None)]);
    world.say(event("SysLogsXIDError", "GPU 0", ""));
    world.say(event("SysLogsSXIDError", "GPU 0", ""));
    world.say(healthy("SysLogsXIDError", "", ""));
    assert_eq!(world.keys(), ["SysLogsSXIDError GPU=0"]);
    assert!(world.is_cordoned());
}

#[test]
fn row_082_another_agent_s_recovery_removes_nothing() {
    let mut world = quarantined();
    let other = HealthEvent {
        agent: "other".into(),
        ..healthy(XID, "", "")
    };
    world.say(other);
    assert_eq!(world.keys().len(), 1);
}

#[test]
fn row_084_one_event_of_two_entities_is_one_element() {
    let mut world = World::xid();
    world.say(event(XID, "GPU 0, GPU 1", "79"));
    assert_eq!(world.annotated.len(), 1);
    assert_eq!(world.annotated[0].entities.len(), 2);
    world.say(healthy(XID, "GPU 1", ""));
    assert_eq!(world.annotated.len(), 1);
    assert_eq!(
        world.annotated[0].entities[0].value, "0",
        "only what is still open"
    );
}

#[test]
fn row_085_healthy_without_code_clears_all_codes() {
    assert!(left(&[("GPU 1", "163"), ("GPU 1", "98")], &[("GPU 1", "")]).is_empty());
}

#[test]
fn row_086_healthy_with_a_code_clears_that_code() {
    assert_eq!(
        left(&[("GPU 1", "163"), ("GPU 1", "98")], &[("GPU 1", "163")]),
        ["GpuXidError GPU=1 98"]
    );
    assert_eq!(
        left(&[("GPU 1", "163,98")], &[("GPU 1", "163")]),
        ["GpuXidError GPU=1 98"]
    );
    assert!(left(&[("GPU 1", "163,98")], &[("GPU 1", "163"), ("GPU 1", "98")]).is_empty());
}

#[test]
fn row_088_healthy_without_a_code_finds_all_codes_and_with_one_that_one() {
    let both = [("GPU 1", "163"), ("GPU 1", "98")];
    assert!(left(&both, &[("GPU 1", "")]).is_empty());
    assert_eq!(left(&both, &[("GPU 1", "98")]), ["GpuXidError GPU=1 163"]);
}

#[test]
fn codes_that_do_not_share_their_entities_are_apart_in_the_annotation() {
    let mut world = World::xid();
    world.say(event(XID, "GPU 0, GPU 1", "79,48"));
    assert_eq!(world.annotated.len(), 1);
    world.say(healthy(XID, "GPU 1", "48"));
    let mut parts: Vec<_> = world
        .annotated
        .iter()
        .map(|e| (e.error_codes.join(","), e.entities.len()))
        .collect();
    parts.sort();
    assert_eq!(parts, [("48".into(), 1), ("79".into(), 2)]);
}

#[test]
fn row_089_114_a_fatal_event_marks_a_clean_node() {
    let world = quarantined();
    let node = world.node();
    assert!(world.is_cordoned() && world.has_taint(&xid_taint()));
    assert_eq!(node.annotations[&Annotation::IsCordoned], "True");
    assert!(!world.has(Annotation::CordonPreExisting));
    let applied = AppliedTaint::parse_list(&node.annotations[&Annotation::AppliedTaints]).unwrap();
    assert_eq!(applied.len(), 1);
    assert_eq!(
        (&applied[0].taint, applied[0].pre_existing),
        (&xid_taint(), false)
    );
    assert_eq!(node.labels[&Label::CordonBy], "Warden");
    assert_eq!(node.labels[&Label::CordonReason], "XID-rule");
    assert_eq!(node.labels[&Label::CordonTimestamp], "2023-11-14T22-13-20Z");
    assert_eq!(node.labels[&Label::State], "quarantined");
    assert_eq!(world.annotated[0].check_name, XID);
    assert_eq!(world.writes.len(), 1, "one write");
    let mark = IncidentMark::parse(&node.annotations[&Annotation::Incident]).unwrap();
    assert_eq!(mark.node_uid, "uid-1");
}

#[test]
fn row_090_116_release_takes_everything_off_and_says_so() {
    let mut world = quarantined();
    world.say(healthy(XID, "GPU 0", "79"));
    assert_clean(&world);
    let labels = &world.node().labels;
    assert_eq!(labels[&Label::UncordonBy], "Warden");
    assert_eq!(labels[&Label::UncordonReason], "XID-rule-removed");
    assert!(labels.contains_key(&Label::UncordonTimestamp));
    assert_eq!(world.writes.len(), 2, "one write out, one back");
    assert_eq!(last_close(&world), CloseReason::Recovered);
}

#[test]
fn row_092_124_a_healthy_event_on_a_clean_node_does_nothing() {
    let mut world = World::xid();
    world.say(healthy(XID, "GPU 0", ""));
    assert_eq!(world.node(), &clean_node());
    assert!(world.transitions.is_empty());
}

#[test]
fn row_094_others_taints_stay() {
    let mut world = World::xid();
    let theirs = taint("other", "x", "NoExecute");
    world.taint_by_hand(theirs.clone());
    world.say(event(XID, "GPU 0", ""));
    world.say(healthy(XID, "GPU 0", ""));
    assert_clean(&world);
    assert_eq!(world.node().taints.as_ref().unwrap()[0].taint, theirs);
    assert_eq!(world.node().taints.as_ref().unwrap().len(), 1);
}

#[test]
fn row_096_176_a_taint_that_was_there_is_single_and_stays() {
    let mut world = World::xid();
    world.taint_by_hand(xid_taint());
    world.say(event(XID, "GPU 0", ""));
    let count = world
        .node()
        .taints
        .iter()
        .flatten()
        .filter(|t| t.taint == xid_taint())
        .count();
    assert_eq!(count, 1);
    let applied =
        AppliedTaint::parse_list(&world.node().annotations[&Annotation::AppliedTaints]).unwrap();
    assert!(applied[0].pre_existing);
    world.say(healthy(XID, "GPU 0", ""));
    assert!(world.has_taint(&xid_taint()) && !world.is_cordoned());
    assert!(world.node().annotations.is_empty());
}

#[test]
fn row_118_120_two_gpus_in_two_events() {
    let mut world = World::xid();
    world.say(event(XID, "GPU 0", ""));
    world.say(event(XID, "GPU 1", ""));
    assert_eq!(world.keys().len(), 2);
    world.say(healthy(XID, "GPU 0", ""));
    assert!(world.is_cordoned());
    world.say(healthy(XID, "GPU 1", ""));
    assert_clean(&world);
}

#[test]
fn row_121_two_checks_recover_one_after_the_other() {
    let nvlink = rule_set("NVLink", "event.checkName == 'GpuNvLink'", true, None);
    let mut world = World::new(vec![xid_rule(), nvlink]);
    world.say(event(XID, "GPU 0", ""));
    world.say(event("GpuNvLink", "GPU 1", ""));
    world.say(healthy(XID, "GPU 0", ""));
    assert_eq!(world.keys(), ["GpuNvLink GPU=1"]);
    assert!(
        world.is_cordoned() && !world.has_taint(&xid_taint()),
        "the marks follow"
    );
    world.say(healthy("GpuNvLink", "GPU 1", ""));
    assert_clean(&world);
}

#[test]
fn row_122_healthy_without_entities_releases() {
    assert!(left(&[("GPU 0, GPU 1", "")], &[("", "")]).is_empty());
}

#[test]
fn row_125_142_one_of_three_gpus_recovers() {
    let mut world = World::xid();
    for gpu in ["GPU 0", "GPU 1", "GPU 2"] {
        world.say(event(XID, gpu, ""));
    }
    world.say(healthy(XID, "GPU 1", ""));
    assert_eq!(world.keys(), ["GpuXidError GPU=0", "GpuXidError GPU=2"]);
    let values: Vec<_> = world
        .annotated
        .iter()
        .map(|e| e.entities[0].value.as_str())
        .collect();
    assert_eq!(values, ["0", "2"]);
}

#[test]
fn row_126_eight_gpus_recover() {
    let gpus: Vec<String> = (0..8).map(|n| format!("GPU {n}")).collect();
    let said: Vec<(&str, &str)> = gpus.iter().map(|g| (g.as_str(), "")).collect();
    assert!(left(&said, &said).is_empty());
}

#[test]
fn row_130_three_cycles() {
    let mut world = World::xid();
    for _ in 0..3 {
        world.say(event(XID, "GPU 0", ""));
        assert!(world.is_cordoned());
        world.say(healthy(XID, "GPU 0", ""));
        assert_clean(&world);
    }
}

#[test]
fn row_132_a_check_that_never_failed_releases_nothing() {
    let mut world = quarantined();
    world.say(healthy("Other", "GPU 0", ""));
    assert_eq!(world.keys().len(), 1);
    assert!(world.is_cordoned());
}

#[test]
fn row_134_a_fault_that_is_not_fatal_does_not_match() {
    let mut world = World::xid();
    world.say(HealthEvent {
        is_fatal: false,
        ..event(XID, "GPU 0", "")
    });
    assert_eq!(world.node(), &clean_node());
    // The same fault, grown fatal, does.
    world.say(event(XID, "GPU 0", ""));
    assert!(world.is_cordoned());
}

#[test]
fn row_136_150_156_an_event_that_matches_nothing_changes_nothing() {
    let mut world = quarantined();
    let before = world.node().clone();
    world.say(event("GpuMemWatch", "GPU 0", ""));
    assert_eq!(world.node(), &before);
    assert_eq!(world.keys().len(), 1);
}

#[test]
fn row_137_138_a_node_cordoned_before_keeps_its_cordon() {
    let mut world = World::xid();
    world.cordon_by_hand();
    world.say(event(XID, "GPU 0", ""));
    assert!(world.has(Annotation::CordonPreExisting) && world.has_taint(&xid_taint()));
    assert!(!world.node().labels.contains_key(&Label::CordonBy));
    world.say(healthy(XID, "GPU 0", ""));
    assert!(world.is_cordoned());
    assert!(!world.node().labels.contains_key(&Label::UncordonBy));
}

#[test]
fn row_146_a_taint_only_rule_does_not_cordon() {
    let mut world = World::new(vec![rule_set(
        "t",
        "event.isFatal",
        false,
        Some(xid_taint()),
    )]);
    world.say(event(XID, "GPU 0", ""));
    assert!(world.has_taint(&xid_taint()) && !world.is_cordoned());
    assert!(world.has(Annotation::HealthEvents) && !world.has(Annotation::IsCordoned));
    world.say(healthy(XID, "GPU 0", ""));
    assert_clean(&world);
}

#[test]
fn row_148_149_a_new_quarantine_removes_the_old_records() {
    for record in [
        Annotation::UncordonedManually,
        Annotation::UntaintedManually,
    ] {
        let mut world = World::xid();
        let node = world.node_mut();
        node.annotations_absent = false;
        node.annotations = BTreeMap::from([(record, "True".to_owned())]);
        world.say(event(XID, "GPU 0", ""));
        assert!(!world.has(record) && world.has(Annotation::HealthEvents));
    }
}

#[test]
fn row_152_dry_run_decides_as_it_would_and_leaves_the_annotations_off() {
    let mut world = World::xid();
    world.policy.mode = Mode::DryRun;
    world.say(event(XID, "GPU 0", "79"));
    // Decided, with the rule that matched and what it asks for.
    assert_eq!(world.status(), "Observed");
    assert_eq!(world.keys(), ["GpuXidError GPU=0 79"]);
    let incident = world.incident.clone().unwrap();
    assert!(incident.faults[0].rules.contains("XID rule"));
    let last = world.transitions.last().unwrap();
    assert_eq!(last.to, QuarantineStatus::Observed);
    // On the node there is neither cordon nor taint, nor, unlike the reference, an annotation.
    assert!(!world.is_cordoned() && !world.has_taint(&xid_taint()));
    assert!(world.node().annotations.is_empty() && world.node().labels.is_empty());
    // The same event without dry run has all of it: the rule was at work.
    let enforced = quarantined();
    assert!(enforced.is_cordoned() && enforced.has_taint(&xid_taint()));
    assert!(enforced.has(Annotation::HealthEvents));
}

#[test]
fn row_153_taint_and_cordon_of_two_rule_sets_join() {
    let a = rule_set("a", "event.isFatal", false, Some(xid_taint()));
    let b = rule_set("b", "event.isFatal", true, None);
    let mut world = World::new(vec![a, b]);
    world.say(event(XID, "GPU 0", ""));
    assert!(world.is_cordoned() && world.has_taint(&xid_taint()));
    assert!(world.has(Annotation::IsCordoned) && world.has(Annotation::AppliedTaints));
    assert_eq!(world.node().labels[&Label::CordonReason], "a-b");
}

#[test]
fn row_157_022_158_a_person_s_uncordon_ends_it() {
    let mut world = World::xid();
    for gpu in ["GPU 0", "GPU 1", "GPU 2"] {
        world.say(event(XID, gpu, ""));
    }
    world.uncordon_by_hand();
    world.settle();
    assert_clean(&world);
    assert_eq!(
        world.node().annotations[&Annotation::UncordonedManually],
        "True"
    );
    assert_eq!(last_close(&world), CloseReason::ManualUncordon);
    // The reference takes the node out again at once; here exactly these faults are held.
    world.say(event(XID, "GPU 1", ""));
    assert!(!world.is_cordoned());
    world.say(event(XID, "GPU 3", ""));
    assert!(world.is_cordoned());
}

#[test]
fn row_160_two_rule_sets_with_two_taints_come_and_go() {
    let b_taint = taint("b", "", "NoSchedule");
    let a = rule_set("a", "event.checkName == 'A'", true, Some(xid_taint()));
    let b = rule_set("b", "event.checkName == 'B'", true, Some(b_taint.clone()));
    let mut world = World::new(vec![a, b]);
    world.say(event("A", "GPU 0", ""));
    world.say(event("B", "GPU 0", ""));
    assert!(world.has_taint(&xid_taint()) && world.has_taint(&b_taint));
    world.say(healthy("A", "GPU 0", ""));
    assert!(!world.has_taint(&xid_taint()) && world.has_taint(&b_taint));
    assert!(world.is_cordoned());
    world.say(healthy("B", "GPU 0", ""));
    assert_clean(&world);
    assert!(!world.has_taint(&b_taint));
}

#[test]
fn row_161_two_recoveries_at_once_release() {
    let mut world = World::new(vec![rule_set(
        "s",
        "event.isFatal",
        true,
        Some(xid_taint()),
    )]);
    world.say(event("A", "GPU 0", ""));
    world.say(event("B", "", ""));
    world.store(&healthy("A", "GPU 0", ""));
    world.store(&healthy("B", "", ""));
    world.settle();
    assert_clean(&world);
}

#[test]
fn row_162_164_what_was_undone_while_nobody_looked_is_cleaned_up() {
    let mut world = quarantined();
    world.uncordon_by_hand();
    world.untaint_by_hand(&xid_taint());
    world.settle();
    assert_clean(&world);
    assert!(world.has(Annotation::UncordonedManually) && world.has(Annotation::UntaintedManually));
}

#[test]
fn row_166_a_person_s_untaint_ends_it() {
    let mut world = quarantined();
    world.untaint_by_hand(&xid_taint());
    world.settle();
    // The reference leaves the cordon behind; here all our marks go.
    assert_clean(&world);
    assert_eq!(
        world.node().annotations[&Annotation::UntaintedManually],
        "True"
    );
    assert_eq!(last_close(&world), CloseReason::ManualUntaint);
}

#[test]
fn a_forced_event_names_who_asked_and_makes_legal_labels() {
    let mut world = World::xid();
    let mut asked = forced(event("Other", "GPU 0", ""), "bob");
    asked.message = "please look at this. ".into();
    world.say(asked);
    let labels = &world.node().labels;
    assert_eq!(labels[&Label::CordonBy], "gpu-health-monitor-bob");
    assert_eq!(labels[&Label::CordonReason], "please-look-at-this");
    let mut world = World::xid();
    world.say(forced(event("Other", "GPU 0", ""), ""));
    assert_eq!(world.node().labels[&Label::CordonBy], "gpu-health-monitor");
}

#[test]
fn a_sender_that_may_not_force_forces_nothing() {
    let mut world = World::xid();
    world.may_force = false;
    world.say(forced(event("Other", "GPU 0", ""), "bob"));
    assert!(!world.is_cordoned());
}
