//! What keeps a node from being taken out, or from coming back.

use std::collections::BTreeSet;

use health_event::incident::{Bound, CloseReason, QuarantineStatus, Withheld};
use health_event::{BootId, NodeName};
use jiff::SignedDuration;

use super::world::{World, at, clean_node, event, forced, healthy, rule_set, taint, xid_taint};
use crate::breaker::Cause;
use crate::quarantine::{Annotation, Cooperator, CooperatorPolicy, Mode, Note, RequestKind};

const XID: &str = "GpuXidError";

fn tripped() -> World {
    let mut world = World::xid();
    world.pool_size = 1;
    let other = NodeName::new("other").unwrap();
    world.breaker.count("gpu", &other, Cause::default());
    world.say(event(XID, "GPU 0", ""));
    assert_eq!(
        world.incident.as_ref().unwrap().quarantine,
        QuarantineStatus::Withheld(Withheld::Breaker(Bound::Level))
    );
    world
}

#[test]
fn a_withheld_node_is_taken_after_the_reset_if_its_fault_is_still_open() {
    let mut world = tripped();
    world.breaker.reset("gpu");
    world.settle();
    assert_eq!(
        world.incident.as_ref().unwrap().quarantine,
        QuarantineStatus::Withheld(Withheld::Pace)
    );
    world
        .breaker
        .release("gpu", &NodeName::new("other").unwrap());
    world.settle();
    assert!(world.is_cordoned());
}

#[test]
fn a_withheld_node_that_recovers_ends_without_a_mark() {
    let mut world = tripped();
    world.say(healthy(XID, "GPU 0", ""));
    assert_eq!(world.status(), "none");
    assert_eq!(world.node(), &clean_node());
    assert!(world.breaker.pools["gpu"].waiting.is_empty());
}

#[test]
fn a_recovery_passes_a_tripped_breaker() {
    let mut world = World::xid();
    world.pool_size = 1;
    world.say(event(XID, "GPU 0", ""));
    world.breaker.pools.get_mut("gpu").unwrap().tripped = Some(crate::breaker::Trip {
        since: at(0),
        bound: Bound::Level,
        largest: Cause::default(),
        share: 1,
        counted: 1,
    });
    world.say(healthy(XID, "GPU 0", ""));
    assert!(!world.is_cordoned());
}

#[test]
fn the_first_action_delay_withholds_and_then_lets_through() {
    let mut world = World::xid();
    world.policy.first_action_until = Some(at(300));
    world.say(event(XID, "GPU 0", ""));
    let until = Withheld::FirstAction { until: at(300) };
    assert_eq!(
        world.incident.as_ref().unwrap().quarantine,
        QuarantineStatus::Withheld(until)
    );
    assert_eq!(world.wake_at, Some(at(300)));
    assert!(world.writes.is_empty());
    world.now = at(300);
    world.settle();
    assert!(world.is_cordoned());
    // A fault that opens after the delay does not queue.
    let mut world = World::xid();
    world.policy.first_action_until = Some(at(-1));
    world.say(event(XID, "GPU 0", ""));
    assert!(world.is_cordoned());
}

#[test]
fn protected_nodes_are_observed_unless_allowed() {
    for protect in [true, false] {
        let mut world = World::xid();
        if protect {
            world.policy.protected_nodes = BTreeSet::from([NodeName::new("n1").unwrap()]);
        } else {
            world.node_mut().control_plane = true;
        }
        world.say(event(XID, "GPU 0", ""));
        assert_eq!((world.status(), world.writes.len()), ("Observed", 0));
        world.policy.allow_protected = true;
        world.settle();
        assert!(world.is_cordoned());
    }
}

#[test]
fn a_paused_node_waits_and_then_acts_and_still_releases() {
    let mut world = World::xid();
    world.node_mut().paused = true;
    world.say(event(XID, "GPU 0", ""));
    assert_eq!(world.status(), "none");
    world.node_mut().paused = false;
    world.settle();
    assert!(world.is_cordoned());
    world.node_mut().paused = true;
    world.say(healthy(XID, "GPU 0", ""));
    assert!(!world.is_cordoned());
}

#[test]
fn a_node_with_an_external_owner_is_taken_out_but_not_given_back() {
    let mut world = World::xid();
    world.node_mut().external_owner = Some("nico".into());
    world.say(event(XID, "GPU 0", ""));
    assert!(world.is_cordoned());
    world.say(healthy(XID, "GPU 0", ""));
    assert!(world.is_cordoned());
    let by = Note::Blocked {
        step: "release",
        by: "external_owner",
    };
    assert!(world.notes.contains(&by));
    world.node_mut().external_owner = None;
    world.settle();
    assert!(!world.is_cordoned());
}

#[test]
fn a_rebooted_node_comes_back_once_its_agent_has_settled() {
    let mut world = World::xid();
    world.through_agent = true;
    world.agent.expected = true;
    world.agent.started_at = Some(at(-100));
    world.say(event(XID, "GPU 0", ""));
    // Without a reboot or a restart the word of the agent is enough.
    let mut plain = world.clone();
    plain.say(healthy(XID, "GPU 0", ""));
    assert_eq!(plain.status(), "none");
    // With one, it must be settled for the present boot.
    world.now = at(10);
    world.node_mut().boot = BootId::new("boot-2");
    world.boots.observe(&BootId::new("boot-2"));
    world.say(healthy(XID, "GPU 0", ""));
    assert!(world.is_cordoned());
    assert_eq!(world.wake_at, Some(at(610)));
    world.agent.settled_for = Some(BootId::new("boot-1"));
    world.settle();
    assert!(world.is_cordoned());
    let mut late = world.clone();
    world.agent.settled_for = Some(BootId::new("boot-2"));
    world.settle();
    assert_eq!(world.status(), "none");
    // An agent that does not settle makes it a person's case.
    late.now = at(610);
    late.settle();
    let needs = late.incident.as_ref().unwrap().needs_operator.as_deref();
    assert_eq!(needs, Some("agent not settled"));
    assert!(late.is_cordoned());
    late.agent.settled_for = Some(BootId::new("boot-2"));
    late.settle();
    assert_eq!(late.status(), "none");
}

#[test]
fn a_restarted_agent_must_settle_too_and_a_node_without_one_need_not() {
    let mut world = World::xid();
    world.through_agent = true;
    world.agent.expected = true;
    world.agent.started_at = Some(at(-100));
    world.say(event(XID, "GPU 0", ""));
    world.agent.started_at = Some(at(5));
    world.now = at(10);
    let mut without = world.clone();
    world.say(healthy(XID, "GPU 0", ""));
    assert!(world.is_cordoned());
    world.agent.settled_for = Some(BootId::new("boot-1"));
    world.settle();
    assert_eq!(world.status(), "none");
    without.agent.expected = false;
    without.say(healthy(XID, "GPU 0", ""));
    assert_eq!(without.status(), "none");
}

#[test]
fn an_old_boot_s_fault_stays_in_its_incident_but_opens_none() {
    let mut world = World::xid();
    world.say(event(XID, "GPU 0", ""));
    world.node_mut().boot = BootId::new("boot-2");
    world.boots.observe(&BootId::new("boot-2"));
    world.settle();
    assert!(world.is_cordoned(), "a reboot alone closes nothing");
    // A late event of the old boot joins nothing.
    world.say(event(XID, "GPU 5", ""));
    assert_eq!(world.keys(), ["GpuXidError GPU=0"]);
    assert!(world.notes.contains(&Note::OtherMachineOrBoot(1)) || world.keys().len() == 1);
}

#[test]
fn a_fault_of_another_machine_has_no_effect() {
    let mut world = World::xid();
    world.machine_id = "machine-0".into();
    world.say(event(XID, "GPU 0", ""));
    assert_eq!(world.status(), "none");
    assert_eq!(world.notes, [Note::OtherMachineOrBoot(1)]);
    // Nor has one that names no machine and is older than the node object.
    let mut world = World::xid();
    world.machine_id = String::new();
    world.boot = BootId::default();
    world.node_mut().created_at = at(50);
    world.say(event(XID, "GPU 0", ""));
    assert_eq!(world.status(), "none");
    world.now = at(60);
    world.say(event(XID, "GPU 0", ""));
    assert!(world.is_cordoned());
}

#[test]
fn an_event_that_asks_to_be_skipped_is() {
    let mut world = World::xid();
    let mut skipped = event(XID, "GPU 0", "");
    skipped.quarantine_overrides = Some(health_event::BehaviourOverrides {
        force: true,
        skip: true,
    });
    world.say(skipped);
    assert_eq!(world.status(), "none");
}

#[test]
fn a_hold_ends_after_its_time_and_a_fresh_report() {
    let mut world = World::xid();
    world.through_agent = true;
    world.agent.expected = true;
    world.say(event(XID, "GPU 0", ""));
    world.uncordon_by_hand();
    world.settle();
    let end = at(24 * 3600);
    assert_eq!(world.wake_at, Some(end));
    world.now = end;
    world.agent.last_report_at = Some(at(100));
    world.settle();
    assert!(!world.is_cordoned(), "the report is older than the end");
    world.agent.last_report_at = Some(end);
    world.settle();
    assert!(world.is_cordoned());
    assert!(world.holds.is_empty());
}

#[test]
fn a_hold_of_zero_holds_nothing() {
    let mut world = World::xid();
    world.policy.manual_uncordon_hold = SignedDuration::ZERO;
    world.say(event(XID, "GPU 0", ""));
    world.uncordon_by_hand();
    world.settle();
    assert_eq!(world.over.len(), 1);
    assert!(
        world.is_cordoned(),
        "the fault is open and nothing holds it"
    );
}

#[test]
fn a_held_identity_that_closed_once_is_new_when_it_opens_again() {
    let mut world = World::xid();
    world.say(event(XID, "GPU 0", "79"));
    world.say(event(XID, "GPU 1", "79"));
    world.uncordon_by_hand();
    world.settle();
    world.say(healthy(XID, "GPU 0", "79"));
    assert_eq!(world.holds[0].faults.len(), 1);
    world.say(event(XID, "GPU 0", "79"));
    assert_eq!(world.keys(), ["GpuXidError GPU=0 79"]);
}

#[test]
fn an_incident_is_of_the_machine_by_which_its_holds_are_kept() {
    // No system UUID: the provider id stands for the machine.
    let mut world = World::xid();
    world.machine_id = String::new();
    let node = world.node_mut();
    node.machine_id = String::new();
    node.machine = "provider://m-1".into();
    world.say(event(XID, "GPU 0", "79"));
    assert_eq!(world.incident.as_ref().unwrap().machine, "provider://m-1");
}

#[test]
fn a_person_s_hold_needs_no_fault_and_no_permit_and_counts() {
    let mut world = tripped();
    world.say(healthy(XID, "GPU 0", ""));
    world.ask(RequestKind::Hold);
    assert!(world.is_cordoned());
    assert!(
        world.breaker.pools["gpu"]
            .out
            .contains_key(&NodeName::new("n1").unwrap())
    );
    // It does not end by itself, and ends when released.
    world.settle();
    assert_eq!(world.status(), "Quarantined");
    world.ask(RequestKind::Release);
    assert_eq!(world.status(), "none");
    assert!(!world.is_cordoned());
}

#[test]
fn a_released_hold_leaves_the_node_out_while_a_fault_is_open() {
    let mut world = World::xid();
    world.ask(RequestKind::Hold);
    world.say(event(XID, "GPU 0", ""));
    assert!(world.has_taint(&xid_taint()));
    world.ask(RequestKind::Release);
    assert!(world.is_cordoned());
    world.say(healthy(XID, "GPU 0", ""));
    assert!(!world.is_cordoned());
}

#[test]
fn a_cancel_holds_what_was_open() {
    let mut world = World::xid();
    world.say(event(XID, "GPU 0", ""));
    world.ask(RequestKind::Cancel);
    assert_eq!(world.status(), "none");
    assert!(!world.is_cordoned());
    assert_eq!(
        world.over[0].quarantine,
        QuarantineStatus::Closed(CloseReason::CancelledByPerson)
    );
    assert!(!world.has(Annotation::UncordonedManually));
}

#[test]
fn a_taint_only_incident_gains_a_cordon_when_a_cordon_rule_joins() {
    // The reference never does (weak point W4).
    let a = rule_set("a", "event.checkName == 'A'", false, Some(xid_taint()));
    let b = rule_set("b", "event.checkName == 'B'", true, None);
    let mut world = World::new(vec![a, b]);
    world.say(event("A", "GPU 0", ""));
    world.cordon_by_hand();
    world.say(event("B", "GPU 0", ""));
    assert!(
        world.has(Annotation::CordonPreExisting),
        "a person's cordon came between"
    );
    world.say(healthy("B", "GPU 0", ""));
    world.say(healthy("A", "GPU 0", ""));
    assert!(world.is_cordoned());
}

#[test]
fn another_owner_s_taint_of_the_same_key_and_effect_is_left_alone() {
    let mut world = World::xid();
    let theirs = taint("nvidia.com/gpu-xid-error", "theirs", "NoSchedule");
    world.taint_by_hand(theirs.clone());
    world.say(event(XID, "GPU 0", ""));
    assert!(world.is_cordoned() && world.has_taint(&theirs) && !world.has_taint(&xid_taint()));
    world.say(healthy(XID, "GPU 0", ""));
    assert!(world.has_taint(&theirs));
}

#[test]
fn a_rule_set_that_is_gone_still_stands_for_what_it_brought() {
    let mut world = World::xid();
    world.say(event(XID, "GPU 0", ""));
    world.configs = vec![rule_set("other", "event.isHealthy", true, None)];
    world.settle();
    assert!(world.is_cordoned() && world.has_taint(&xid_taint()));
    world.say(healthy(XID, "GPU 0", ""));
    assert!(!world.is_cordoned() && !world.has_taint(&xid_taint()));
}

fn with_cooperator(policy: CooperatorPolicy) -> World {
    let mut world = World::xid();
    world.policy.cooperator_policy = policy;
    world.policy.cooperators = vec![Cooperator {
        key: "upgrade".into(),
        working: BTreeSet::from(["uncordon-required".to_owned()]),
    }];
    world.say(event(XID, "GPU 0", ""));
    let working = ("upgrade".to_owned(), "uncordon-required".to_owned());
    world.node_mut().cooperator_values.extend([working]);
    world.settle();
    world
}

#[test]
fn a_cooperator_s_uncordon_is_no_person_s() {
    let mut world = with_cooperator(CooperatorPolicy::Taint);
    let aside = world.policy.cooperator_taint.clone();
    assert!(
        world.is_cordoned() && !world.has_taint(&aside),
        "at work, and not yet uncordoned"
    );
    world.uncordon_by_hand();
    world.settle();
    assert!(!world.is_cordoned() && world.has_taint(&aside));
    assert_eq!(world.status(), "Quarantined");
    world.node_mut().cooperator_values.clear();
    world.settle();
    assert!(
        world.is_cordoned() && !world.has_taint(&aside),
        "the cordon comes back after"
    );
    world.say(healthy(XID, "GPU 0", ""));
    assert_eq!(world.status(), "none");
    assert!(!world.is_cordoned());
}

#[test]
fn yielding_to_a_cooperator_leaves_its_uncordon_until_it_has_finished() {
    let mut world = with_cooperator(CooperatorPolicy::Yield);
    world.uncordon_by_hand();
    world.settle();
    assert!(!world.is_cordoned());
    assert_eq!(world.status(), "Quarantined");
    let said = |t: &crate::quarantine::Transition| t.reason.code() == "cooperator_uncordon";
    assert!(world.transitions.iter().any(said));
    // It was no person's: once it has finished the node is out again, and nothing is held.
    world.node_mut().cooperator_values.clear();
    world.settle();
    assert!(world.is_cordoned() && world.holds.is_empty());
    world.say(healthy(XID, "GPU 0", ""));
    assert_eq!(world.status(), "none");
    assert!(!world.is_cordoned());
}

#[test]
fn a_cooperator_s_uncordon_is_answered_three_times_an_hour_and_then_by_a_taint() {
    let mut world = with_cooperator(CooperatorPolicy::Reassert);
    let aside = world.policy.cooperator_taint.clone();
    for minute in 0..3 {
        world.now = at(minute * 60);
        world.uncordon_by_hand();
        world.settle();
        assert!(world.is_cordoned() && !world.has_taint(&aside), "{minute}");
    }
    world.now = at(600);
    world.uncordon_by_hand();
    world.settle();
    assert!(!world.is_cordoned() && world.has_taint(&aside));
    assert_eq!(world.incident.as_ref().unwrap().reasserted.len(), 4);
    world.node_mut().cooperator_values.clear();
    world.settle();
    assert!(world.is_cordoned() && !world.has_taint(&aside));
    // Another hour, another three.
    world.now = at(600 + 3_600);
    let working = ("upgrade".to_owned(), "uncordon-required".to_owned());
    world.node_mut().cooperator_values.extend([working]);
    world.uncordon_by_hand();
    world.settle();
    assert!(world.is_cordoned() && !world.has_taint(&aside));
    assert_eq!(world.incident.as_ref().unwrap().reasserted.len(), 1);
    assert_eq!(world.status(), "Quarantined");
}

#[test]
fn a_person_s_untaint_counts_although_a_cooperator_works() {
    let mut world = with_cooperator(CooperatorPolicy::Taint);
    world.untaint_by_hand(&xid_taint());
    world.settle();
    assert_eq!(world.status(), "none");
}

#[test]
fn forced_faults_cordon_without_a_rule() {
    let mut world = World::new(Vec::new());
    world.say(forced(event("Any", "GPU 0", ""), "bob"));
    assert!(world.is_cordoned());
    world.say(healthy("Any", "GPU 0", ""));
    assert!(!world.is_cordoned());
}

#[test]
fn the_place_in_the_queue_is_the_age_of_the_oldest_open_fault() {
    let mut world = World::xid();
    world.policy.mode = Mode::Off;
    world.say(event(XID, "GPU 0", ""));
    assert_eq!(world.status(), "none");
    // Switched on an hour later: the incident is new, its fault is not.
    world.now = at(3_600);
    world.policy.mode = Mode::Enforce;
    world.pool_size = 1;
    let other = NodeName::new("other").unwrap();
    world.breaker.count("gpu", &other, Cause::default());
    world.say(event(XID, "GPU 1", ""));
    assert_eq!(world.incident.as_ref().unwrap().opened_at, at(3_600));
    let name = NodeName::new("n1").unwrap();
    assert_eq!(world.breaker.pools["gpu"].waiting[&name].since, at(0));
}
