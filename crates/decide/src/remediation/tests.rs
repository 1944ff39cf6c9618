use health_event::NodeName;
use health_event::incident::{CloseReason, Drain, Withheld};
use proptest::prelude::*;

use super::*;
use crate::kit::{MINUTE, at, fault_id, incident};

fn boot(name: &str) -> BootId {
    BootId::new(name)
}

fn fault(action: &str, boot_id: &str, minutes: i64) -> FaultFacts {
    FaultFacts {
        id: fault_id(action),
        action: action.to_owned(),
        boot: boot(boot_id),
        last_at: at(minutes),
    }
}

fn executor(rung: Rung) -> Executor {
    Executor {
        rung,
        deadline: MINUTE * 30,
    }
}

fn policy() -> Policy {
    let executors = [
        ("COMPONENT_RESET", Rung::Reset),
        ("RESTART_BM", Rung::Reboot),
        ("RESTART_VM", Rung::Reboot),
    ];
    Policy {
        executors: executors
            .map(|(name, rung)| (name.to_owned(), executor(rung)))
            .into(),
        ladder: ["COMPONENT_RESET", "RESTART_BM"].map(str::to_owned).into(),
        max_attempts: 2,
        window: MINUTE * 60 * 24,
        settle_timeout: MINUTE * 10,
        queue_timeout: MINUTE * 360,
        mode: Mode::Enforce,
        first_action_until: None,
    }
}

/// All that a view borrows, and what the shell keeps between decisions.
#[derive(Clone)]
struct Case {
    incident: Incident,
    node: Option<NodeLook>,
    faults: Vec<FaultFacts>,
    wants_drain: bool,
    boots: Boots,
    past: Vec<PastAttempt>,
    object: Object,
    other_repair: bool,
    waits_as_own_node: bool,
    policy: Policy,
    ordered: Vec<Attempt>,
}

impl Case {
    /// A drained node with these faults, in its first boot.
    fn new(faults: &[FaultFacts]) -> Self {
        Self {
            incident: incident(Some(DrainStatus::Drained)),
            node: Some(NodeLook {
                boot: boot("b1"),
                ready: true,
                paused: false,
                external_owner: None,
            }),
            faults: faults.to_vec(),
            wants_drain: true,
            boots: Boots::new(vec![boot("b1")]),
            past: Vec::new(),
            object: Object::NotKnown,
            other_repair: false,
            waits_as_own_node: false,
            policy: policy(),
            ordered: Vec::new(),
        }
    }

    fn decide(&self, now: Timestamp) -> Decision {
        let view = View {
            incident: &self.incident,
            node: self.node.as_ref(),
            faults: &self.faults,
            wants_drain: self.wants_drain,
            boots: &self.boots,
            past: &self.past,
            object: &self.object,
            other_repair: self.other_repair,
            waits_as_own_node: self.waits_as_own_node,
            policy: &self.policy,
        };
        decide(&view, now)
    }

    /// Decides and stores, as the shell does.
    fn step(&mut self, now: Timestamp) -> Decision {
        let decision = self.decide(now);
        if let Some(next) = &decision.incident {
            assert_eq!(next.version, self.incident.version + 1);
            self.incident = next.clone();
            let repair = next.repair.as_ref().unwrap();
            if let (RepairStatus::Requested, Some(attempt)) = (&repair.status, &repair.attempt) {
                self.object = Object::NotKnown;
                self.past.push(PastAttempt {
                    rung: attempt.rung,
                    at: attempt.requested_at,
                    of_incident: true,
                });
                self.ordered.push(attempt.clone());
            }
            if let Some(last) = repair.attempt.as_ref().filter(|a| a.effect.is_unsent()) {
                self.past.retain(|past| past.at != last.requested_at);
            }
        }
        decision
    }

    /// Until nothing moves; the states it went through. A drain that is begun anew finds the node empty.
    fn settle(&mut self, now: Timestamp) -> Vec<&'static str> {
        let mut states = Vec::new();
        for _ in 0..20 {
            let Some(transition) = self.step(now).transition else {
                return states;
            };
            if self.begins_drain_anew() {
                self.incident.drain = Some(Drain {
                    status: DrainStatus::Drained,
                    since: now,
                });
            }
            states.push(transition.to.as_str());
        }
        panic!("it never rests: {states:?}");
    }

    fn begins_drain_anew(&self) -> bool {
        let drain = self.incident.drain.as_ref();
        drain.is_some_and(|drain| drain.status == DrainStatus::Cancelled)
    }

    fn status(&self) -> &RepairStatus {
        &self.incident.repair.as_ref().unwrap().status
    }

    fn reboot(&mut self, name: &str) {
        self.boots.report(&boot(name));
        self.node.as_mut().unwrap().boot = boot(name);
    }
}

fn unsupported(action: &str) -> RepairStatus {
    let action = action.to_owned();
    RepairStatus::NeedsOperator(OperatorReason::Unsupported { action })
}

fn exhausted(rung: Rung, again_at: Option<Timestamp>) -> RepairStatus {
    RepairStatus::NeedsOperator(OperatorReason::Exhausted { rung, again_at })
}

#[test]
fn a_reboot_is_ordered_seen_and_its_faults_are_covered() {
    let mut case = Case::new(&[fault("RESTART_BM", "b1", 0)]);
    assert_eq!(case.settle(at(1)), ["Planned", "Requested"]);
    let attempt = &case.ordered[0];
    assert_eq!((attempt.number, attempt.rung), (1, Rung::Reboot));
    assert_eq!(
        attempt.object,
        "maintenance-n1-01arz3ndektsv4rrffq69g5fav-1"
    );
    assert_eq!((attempt.force, attempt.deadline), (false, at(31)));
    assert_eq!(case.decide(at(1)).order.as_ref(), Some(attempt));
    case.object = Object::Running { since: None };
    assert_eq!(case.settle(at(2)), ["Running"]);
    assert_eq!(case.decide(at(2)).wake_at, Some(at(31)));
    case.node.as_mut().unwrap().ready = false;
    case.reboot("b2");
    case.object = Object::Done { since: None };
    assert_eq!(case.settle(at(3)), [""; 0], "it is not Ready");
    case.node.as_mut().unwrap().ready = true;
    assert_eq!(case.settle(at(4)), ["Succeeded"]);
    assert_eq!(
        case.decide(at(5)).wake_at,
        Some(at(14)),
        "its report is waited for"
    );
    case.faults.clear();
    assert_eq!(case.settle(at(6)), [""; 0], "the quarantine gives it back");
}

#[test]
fn a_reboot_that_did_not_happen_uses_the_attempt_up_and_the_next_asks_for_force() {
    // The object has seen it itself, or says that it is done, and its time is over without another boot.
    for says in [Object::NoReboot, Object::Done { since: None }] {
        let mut case = Case::new(&[fault("RESTART_BM", "b1", 0)]);
        case.settle(at(1));
        case.object = says.clone();
        let waits = if says == Object::NoReboot { 1 } else { 30 };
        let time = |ordered| ordered + waits;
        assert_eq!(
            case.settle(at(time(1))),
            ["Running", "Failed", "Planned", "Requested"]
        );
        assert_eq!(
            case.ordered[1].object,
            "maintenance-n1-01arz3ndektsv4rrffq69g5fav-2"
        );
        assert!(case.ordered[1].force, "{says:?}");
        case.object = says.clone();
        let states = case.settle(at(time(time(1))));
        assert_eq!(states, ["Running", "Failed", "NeedsOperator"]);
        assert_eq!(*case.status(), exhausted(Rung::Reboot, None));
        assert_eq!(case.ordered.len(), 2);
    }
}

/// Objects and nodes are seen by two watches, and neither waits for the other.
#[test]
fn an_object_that_is_done_before_its_node_is_seen_in_another_boot_orders_no_second_reboot() {
    let mut case = Case::new(&[fault("RESTART_BM", "b1", 0)]);
    case.settle(at(1));
    case.object = Object::Done { since: None };
    assert_eq!(case.settle(at(2)), ["Running"], "Ready in the old boot");
    assert_eq!(case.decide(at(2)).wake_at, Some(at(31)));
    case.reboot("b2");
    assert_eq!(case.settle(at(3)), ["Succeeded"]);
    assert_eq!(case.ordered.len(), 1);
}

#[test]
fn what_was_begun_late_and_is_done_has_its_whole_time_to_be_seen() {
    let mut case = Case::new(&[fault("RESTART_BM", "b1", 0)]);
    case.settle(at(1));
    case.object = Object::Queued;
    assert_eq!(case.settle(at(40)), ["Running"]);
    case.object = Object::Done {
        since: Some(at(41)),
    };
    assert_eq!(case.settle(at(42)), [""; 0]);
    assert_eq!(case.decide(at(42)).wake_at, Some(at(71)));
    case.reboot("b2");
    assert_eq!(case.settle(at(43)), ["Succeeded"]);
}

#[test]
fn a_fault_that_stays_open_after_a_reboot_that_came_late_or_by_itself_calls_a_person() {
    // The object's time was over before the machine was back; or it booted before any order.
    for ordered in [true, false] {
        let mut case = Case::new(&[fault("RESTART_BM", "b1", 0)]);
        case.incident.drain = ordered.then(|| Drain {
            status: DrainStatus::Drained,
            since: at(0),
        });
        case.settle(at(1));
        case.object = Object::Failed("Timeout".to_owned());
        case.node.as_mut().unwrap().ready = false;
        case.reboot("b2");
        let states = case.settle(at(2));
        let late = ["Running", "Failed"];
        let itself = ["Cancelled"];
        assert_eq!(states, if ordered { &late[..] } else { &itself[..] });
        case.node.as_mut().unwrap().ready = true;
        assert_eq!(case.settle(at(3)), [""; 0]);
        assert_eq!(case.decide(at(3)).wake_at, Some(at(12)));
        assert_eq!(case.settle(at(12)), ["NeedsOperator"]);
        case.faults.clear();
        assert_eq!(case.settle(at(13)), [""; 0], "the quarantine gives it back");
    }
}

#[test]
fn a_fault_that_is_said_again_in_the_new_boot_starts_the_next_attempt() {
    let mut case = Case::new(&[fault("RESTART_BM", "b1", 0)]);
    case.settle(at(1));
    case.object = Object::Done { since: None };
    case.reboot("b2");
    assert_eq!(case.settle(at(2)), ["Succeeded"]);
    case.faults = vec![fault("RESTART_BM", "b2", 3)];
    assert_eq!(case.settle(at(3)), ["Planned", "Requested"]);
    assert!(!case.ordered[1].force, "the first was seen to happen");
    case.object = Object::Done { since: None };
    case.reboot("b3");
    case.settle(at(4));
    case.faults = vec![fault("RESTART_BM", "b3", 5)];
    assert_eq!(case.settle(at(5)), ["NeedsOperator"]);
    assert_eq!(*case.status(), exhausted(Rung::Reboot, None));
}

#[test]
fn what_an_incident_has_used_up_it_does_not_get_back_and_what_its_machine_has_it_does() {
    let day = 24 * 60;
    let mut case = Case::new(&[fault("RESTART_BM", "b1", 0)]);
    for number in 1..=2 {
        case.settle(at(number));
        case.object = Object::Failed("no".to_owned());
    }
    case.settle(at(3));
    assert_eq!(*case.status(), exhausted(Rung::Reboot, None));
    assert_eq!(case.decide(at(3)).wake_at, None);
    for later in [day, day * 2, day * 365] {
        assert_eq!(case.settle(at(later)), [""; 0], "a person is at it");
    }
    // Another fault has no attempts of its own.
    case.faults.push(fault("RESTART_VM", "b1", 4));
    assert_eq!(case.settle(at(day * 3)), [""; 0]);

    // The next incident has its own, and waits for those of the machine.
    let mut next = Case::new(&[fault("RESTART_BM", "b1", 4)]);
    next.past.clone_from(&case.past);
    next.past
        .iter_mut()
        .for_each(|past| past.of_incident = false);
    assert_eq!(next.settle(at(5)), ["NeedsOperator"]);
    let free = at(day + 1);
    assert_eq!(*next.status(), exhausted(Rung::Reboot, Some(free)));
    assert_eq!(next.decide(at(6)).wake_at, Some(free));
    assert_eq!(next.settle(free), ["Planned", "Requested"]);
    // One of the machine's first two is left by then, and one of this incident's.
    next.object = Object::Failed("no".to_owned());
    next.settle(free);
    assert_eq!(next.ordered.len(), 1);
    let free = at(day + 3);
    next.settle(free);
    assert_eq!(next.ordered.len(), 2);
    next.object = Object::Failed("no".to_owned());
    next.settle(free);
    assert_eq!(*next.status(), exhausted(Rung::Reboot, None));

    // A stronger rung is climbed to, of which the incident has attempts left.
    let mut climbs = Case::new(&[fault("COMPONENT_RESET", "b1", 0)]);
    for minutes in 1..=4 {
        climbs.settle(at(minutes));
        climbs.object = Object::Failed("no".to_owned());
    }
    climbs.settle(at(5));
    let rungs: Vec<Rung> = climbs.ordered.iter().map(|a| a.rung).collect();
    assert_eq!(
        rungs,
        [Rung::Reset, Rung::Reset, Rung::Reboot, Rung::Reboot]
    );
    assert_eq!(*climbs.status(), exhausted(Rung::Reboot, None));
}

#[test]
fn before_each_attempt_the_node_is_looked_over_again() {
    let mut case = Case::new(&[fault("RESTART_BM", "b1", 0)]);
    case.settle(at(1));
    let first = case.incident.drain.clone();
    case.object = Object::Done { since: None };
    case.reboot("b2");
    case.settle(at(2));
    assert_eq!(case.incident.drain, first, "what comes now is let be");
    let mut failed = case.clone();
    case.faults = vec![fault("RESTART_BM", "b2", 60)];
    failed.incident.repair.as_mut().unwrap().status = RepairStatus::Failed(RepairFailure::Deadline);
    failed.faults.clone_from(&case.faults);
    for mut case in [case, failed] {
        assert_eq!(case.step(at(60)).transition.unwrap().to.as_str(), "Planned");
        assert!(case.begins_drain_anew());
        let waits = case.decide(at(61));
        assert_eq!(
            (waits.blocked, waits.transition),
            (Some("not_drained"), None)
        );
        assert_eq!(case.ordered.len(), 1);
    }
    // Nobody has looked for a while: no repair was planned.
    for (minutes, looks) in [(1, false), (2, true), (90, true)] {
        let mut late = Case::new(&[fault("NONE", "b1", 0)]);
        let since = late.incident.drain.as_ref().unwrap().since;
        late.settle(since);
        late.faults.push(fault("RESTART_BM", "b1", 0));
        late.step(since + MINUTE * minutes);
        assert_eq!(late.begins_drain_anew(), looks, "{minutes}");
    }
    // Another rung is planned meanwhile: its pods are followed.
    let mut rung = Case::new(&[fault("COMPONENT_RESET", "b1", 0)]);
    rung.other_repair = true;
    rung.settle(at(1));
    rung.faults.push(fault("RESTART_BM", "b1", 0));
    assert_eq!(rung.step(at(90)).transition.unwrap().to.as_str(), "Planned");
    assert!(!rung.begins_drain_anew());
}

#[test]
fn a_reboot_that_was_seen_covers_what_it_covered_whatever_became_of_the_next() {
    for object in [
        Object::Refused("no".to_owned()),
        Object::NotBegun("no".to_owned()),
        Object::ProviderRefused("no".to_owned()),
        Object::Failed("no".to_owned()),
        Object::NoReboot,
    ] {
        let (knows_no_boots, other) = (fault("RESTART_BM", "", 0), fault("RESTART_VM", "b2", 3));
        let mut case = Case::new(std::slice::from_ref(&knows_no_boots));
        case.settle(at(1));
        case.object = Object::Done { since: None };
        case.reboot("b2");
        case.settle(at(2));
        case.faults.push(other);
        case.settle(at(3));
        assert_eq!(case.ordered.len(), 2);
        // The second was for the other alone, which ends before it does.
        case.faults = vec![knows_no_boots];
        case.object = object.clone();
        case.settle(at(4));
        case.settle(at(30));
        assert_eq!(case.ordered.len(), 2, "{object:?}");
        let still = RepairStatus::NeedsOperator(OperatorReason::StillOpen);
        assert_eq!(*case.status(), still, "{object:?}");
        // Said again, it is another matter, for which an attempt may be left.
        case.faults[0].last_at = at(31);
        case.settle(at(31));
        let begun = !matches!(
            object,
            Object::Refused(_) | Object::NotBegun(_) | Object::ProviderRefused(_)
        );
        let status = case.status().as_str();
        assert_eq!(status, if begun { "NeedsOperator" } else { "Requested" });
    }
}

#[test]
fn a_fault_of_an_earlier_boot_that_nothing_was_planned_for_calls_a_person_unless_it_closes() {
    // Repairs were switched on after the boot, or the store was lost.
    let mut case = Case::new(&[fault("RESTART_BM", "b1", 0)]);
    case.reboot("b2");
    let decision = case.step(at(1));
    assert_eq!(decision.transition.unwrap().reason, Reason::Booted);
    assert_eq!(case.status(), &RepairStatus::Cancelled);
    assert_eq!(case.decide(at(1)).wake_at, Some(at(11)));
    let mut closes = case.clone();
    closes.faults.clear();
    assert_eq!(closes.settle(at(60)), [""; 0]);
    assert_eq!(case.settle(at(11)), ["NeedsOperator"]);
    let still = RepairStatus::NeedsOperator(OperatorReason::StillOpen);
    assert_eq!(case.status(), &still);
    case.faults = vec![fault("RESTART_BM", "b2", 12)];
    case.settle(at(12));
    assert_eq!(case.ordered.len(), 1, "it is said again");
}

#[test]
fn once_an_attempt_counts_no_more_the_next_is_ordered_without_anything_else() {
    let day = 24 * 60;
    let of = |rung, minutes| PastAttempt {
        rung,
        at: at(minutes),
        of_incident: false,
    };
    let reboot = |minutes| of(Rung::Reboot, minutes);
    let reset = |minutes| of(Rung::Reset, minutes);
    let table = [
        // The oldest of two leaves the window first; in whatever order they are known.
        (vec!["RESTART_BM"], vec![reboot(10), reboot(5)], Some(5)),
        // Three count, of which two must go: somebody ordered one by hand.
        (
            vec!["RESTART_BM"],
            vec![reboot(3), reboot(10), reboot(5)],
            Some(5),
        ),
        // The weaker rung is free first, or the stronger.
        (
            vec!["COMPONENT_RESET"],
            vec![reset(1), reset(2), reboot(3), reboot(4)],
            Some(1),
        ),
        (
            vec!["COMPONENT_RESET"],
            vec![reset(3), reset(4), reboot(1), reboot(2)],
            Some(1),
        ),
        // Another fault is what the person is called for.
        (
            vec!["CONTACT_SUPPORT", "RESTART_BM"],
            vec![reboot(5), reboot(10)],
            Some(5),
        ),
        (vec!["CONTACT_SUPPORT"], vec![reboot(5), reboot(10)], None),
    ];
    for (actions, past, oldest) in table {
        let faults: Vec<_> = actions.iter().map(|a| fault(a, "b1", 0)).collect();
        let mut case = Case::new(&faults);
        case.past = past;
        let free = oldest.map(|minutes| at(minutes + day));
        assert_eq!(case.decide(at(20)).wake_at, free, "{actions:?}");
        assert_eq!(case.settle(at(20)), ["NeedsOperator"], "{actions:?}");
        assert_eq!(case.decide(at(21)).wake_at, free, "{actions:?}");
        let Some(oldest) = oldest else { continue };
        assert_eq!(case.settle(at(oldest + day - 1)), [""; 0], "{actions:?}");
        let ordered = case.settle(at(oldest + day));
        assert_eq!(ordered, ["Planned", "Requested"], "{actions:?}");
    }
    let mut never = Case::new(&[fault("RESTART_BM", "b1", 0)]);
    never.policy.max_attempts = 0;
    never.settle(at(1));
    assert_eq!(never.decide(at(1)).wake_at, None);
}

#[test]
fn what_was_repaired_and_does_not_close_calls_a_person_and_no_second_reboot() {
    for covered in [fault("RESTART_BM", "b1", 0), fault("RESTART_BM", "", 0)] {
        let mut case = Case::new(&[covered]);
        case.settle(at(1));
        case.object = Object::Done { since: None };
        case.reboot("b2");
        assert_eq!(case.settle(at(2)), ["Succeeded"]);
        assert_eq!(case.settle(at(12)), ["NeedsOperator"]);
        assert_eq!(
            *case.status(),
            RepairStatus::NeedsOperator(OperatorReason::StillOpen)
        );
        assert_eq!(case.settle(at(60 * 48)), [""; 0]);
        // It is said again by a sender that knows no boots: what holds now is another matter.
        case.faults = vec![fault("RESTART_BM", "", 60 * 48)];
        assert_eq!(case.settle(at(60 * 48)), ["Planned", "Requested"]);
    }
}

#[test]
fn a_reboot_by_anybody_covers_what_was_said_before_it() {
    let mut case = Case::new(&[fault("RESTART_BM", "b1", 0)]);
    case.incident.drain = None;
    assert_eq!(case.settle(at(1)), ["Planned"]);
    case.reboot("b2");
    assert_eq!(case.settle(at(2)), ["Cancelled"]);
    // One that is told of an unknown boot may be of the present one.
    case.faults = vec![fault("RESTART_BM", "b9", 3)];
    assert_eq!(case.settle(at(3)), ["Planned"]);
}

#[test]
fn the_strongest_action_is_ordered_and_a_person_is_called_for_what_is_left() {
    for (actions, want) in [
        (&["COMPONENT_RESET"][..], Some(Rung::Reset)),
        (&["COMPONENT_RESET", "RESTART_VM"], Some(Rung::Reboot)),
        (&["CONTACT_SUPPORT", "RESTART_BM"], Some(Rung::Reboot)),
        (&["CONTACT_SUPPORT"], None),
        (&["NONE"], None),
        (&["UNKNOWN", "REPLACE_VM"], None),
    ] {
        let faults: Vec<_> = actions.iter().map(|a| fault(a, "b1", 0)).collect();
        let mut case = Case::new(&faults);
        case.settle(at(1));
        let ordered = case.ordered.first().map(|attempt| attempt.rung);
        assert_eq!(ordered, want, "{actions:?}");
        if want.is_none() {
            assert_eq!(*case.status(), unsupported(actions[0]));
        }
    }
    // Once the reboot has covered the one, the other still needs the person.
    let mut case = Case::new(&[fault("RESTART_BM", "b1", 0), fault("NONE", "b1", 0)]);
    case.settle(at(1));
    case.object = Object::Done { since: None };
    case.reboot("b2");
    case.settle(at(2));
    case.faults = vec![fault("NONE", "b2", 3)];
    assert_eq!(case.settle(at(3)), ["NeedsOperator"]);
}

#[test]
fn the_ladder_is_climbed_to_what_has_an_executor() {
    // A reset that nobody executes is a reboot.
    let mut case = Case::new(&[fault("COMPONENT_RESET", "b1", 0)]);
    case.policy.executors.remove("COMPONENT_RESET");
    case.settle(at(1));
    assert_eq!(case.ordered[0].action, "RESTART_BM");
    // Two resets that failed are followed by a reboot.
    let mut case = Case::new(&[fault("COMPONENT_RESET", "b1", 0)]);
    for _ in 0..2 {
        case.settle(at(1));
        case.object = Object::Failed("no".to_owned());
    }
    case.settle(at(1));
    let rungs: Vec<_> = case.ordered.iter().map(|a| a.rung).collect();
    assert_eq!(rungs, [Rung::Reset, Rung::Reset, Rung::Reboot]);
    assert!(!case.ordered[2].force);
    // Nobody climbs to what the ladder does not name.
    let mut case = Case::new(&[fault("RESTART_BM", "b1", 0)]);
    let terminate = executor(Rung::Terminate);
    case.policy
        .executors
        .insert("REPLACE_VM".to_owned(), terminate);
    case.policy.max_attempts = 0;
    case.settle(at(1));
    assert_eq!(case.ordered, []);
    case.policy.ladder.push("REPLACE_VM".to_owned());
    case.policy.max_attempts = 1;
    case.past = vec![PastAttempt {
        rung: Rung::Reboot,
        at: at(0),
        of_incident: false,
    }];
    case.settle(at(1));
    assert_eq!(case.ordered[0].rung, Rung::Terminate);
}

#[test]
fn nothing_is_ordered_while_something_keeps_it() {
    let blocked = |change: fn(&mut Case)| {
        let mut case = Case::new(&[fault("RESTART_BM", "b1", 0)]);
        change(&mut case);
        case.settle(at(1));
        assert_eq!(case.ordered, []);
        case.decide(at(1)).blocked
    };
    for (change, by) in [
        (
            (|case: &mut Case| case.incident.drain = None) as fn(&mut Case),
            "not_drained",
        ),
        (|case| case.node.as_mut().unwrap().paused = true, "paused"),
        (
            |case| case.node.as_mut().unwrap().external_owner = Some("x".to_owned()),
            "external_owner",
        ),
        (|case| case.other_repair = true, "other_repair"),
        (|case| case.waits_as_own_node = true, "own_node"),
        (
            |case| case.policy.first_action_until = Some(at(5)),
            "first_action",
        ),
        (|case| case.policy.mode = Mode::DryRun, "dry_run"),
        (|case| case.policy.mode = Mode::Refused, "other_remediation"),
    ] {
        assert_eq!(blocked(change), Some(by));
    }
    let mut case = Case::new(&[fault("RESTART_BM", "b1", 0)]);
    case.policy.first_action_until = Some(at(5));
    case.settle(at(1));
    assert_eq!(case.decide(at(1)).wake_at, Some(at(5)));
    assert_eq!(case.settle(at(5)), ["Requested"]);
    assert_eq!(blocked(|case| case.policy.mode = Mode::Off), None);
    assert_eq!(blocked(|case| case.node = None), None);
    let mut case = Case::new(&[fault("RESTART_BM", "b1", 0)]);
    case.incident.drain = None;
    case.wants_drain = false;
    case.settle(at(1));
    assert_eq!(case.ordered.len(), 1, "no fault wants a drain");
}

#[test]
fn the_order_is_repeated_by_its_name_until_the_object_is_seen_or_its_time_is_over() {
    let mut case = Case::new(&[fault("RESTART_BM", "b1", 0)]);
    case.settle(at(1));
    for object in [Object::NotKnown, Object::Absent] {
        case.object = object;
        assert_eq!(case.decide(at(30)).order.as_ref(), Some(&case.ordered[0]));
        assert_eq!(case.decide(at(30)).transition, None);
    }
    let mut late = case.clone();
    assert_eq!(late.settle(at(31)), ["Failed", "Planned", "Requested"]);
    case.object = Object::Refused("no such kind".to_owned());
    assert_eq!(case.settle(at(2)), ["Failed", "Planned", "Requested"]);
    // The machine booted although the object is not there: it is not rebooted again.
    let mut lost = Case::new(&[fault("RESTART_BM", "b1", 0)]);
    lost.settle(at(1));
    lost.reboot("b2");
    assert_eq!(lost.settle(at(2)), [""; 0], "not known is not absent");
    lost.node.as_mut().unwrap().ready = false;
    lost.object = Object::Absent;
    assert_eq!(lost.decide(at(2)).order, None, "it was carried out");
    assert_eq!(lost.clone().settle(at(31)).first(), Some(&"Failed"));
    lost.node.as_mut().unwrap().ready = true;
    lost.object = Object::Absent;
    assert_eq!(lost.settle(at(2)), ["Succeeded"]);
}

#[test]
fn an_object_that_vanished_is_unknown_until_the_node_tells_or_the_time_is_over() {
    let mut case = Case::new(&[fault("RESTART_BM", "b1", 0)]);
    case.settle(at(1));
    case.object = Object::Running { since: None };
    case.settle(at(2));
    case.object = Object::Absent;
    assert_eq!(case.settle(at(3)), ["Unknown"]);
    assert!(case.status().is_under_way());
    let mut late = case.clone();
    assert_eq!(late.settle(at(31)), ["Failed", "Planned", "Requested"]);
    case.reboot("b2");
    assert_eq!(case.settle(at(4)), ["Succeeded"]);
}

#[test]
fn in_a_queue_the_time_of_an_attempt_does_not_run() {
    let mut case = Case::new(&[fault("RESTART_BM", "b1", 0)]);
    case.settle(at(1));
    case.object = Object::Queued;
    assert_eq!(case.settle(at(2)), ["Running"]);
    let waits = case.decide(at(300));
    assert_eq!((waits.transition, waits.blocked), (None, Some("queued")));
    assert_eq!(
        waits.wake_at,
        Some(at(1 + 360 + 30)),
        "the janitor is first"
    );
    // Nobody knows it for a while: it may be queued.
    case.object = Object::NotKnown;
    assert_eq!(case.settle(at(300)), [""; 0]);
    // Begun, it has its whole time.
    let since = Some(at(299));
    case.object = Object::Running { since };
    assert_eq!(case.settle(at(300)), ["Running"]);
    let attempt = case.incident.repair.as_ref().unwrap().attempt.clone();
    assert_eq!(attempt.unwrap().deadline, at(329));
    assert_eq!(case.settle(at(328)), [""; 0]);
    assert_eq!(case.settle(at(329)), ["Failed", "Planned", "Requested"]);
}

#[test]
fn an_order_that_nobody_begins_fails_and_the_next_one_asks_for_no_force() {
    let mut case = Case::new(&[fault("RESTART_BM", "b1", 0)]);
    case.settle(at(1));
    case.object = Object::Queued;
    case.settle(at(2));
    let mut ended = case.clone();
    // The shell takes what was not begun back.
    (ended.past, ended.object) = (Vec::new(), Object::NotBegun("Timeout: too late".to_owned()));
    assert_eq!(ended.settle(at(361)), ["Failed", "Planned", "Requested"]);
    let next = ended.ordered.last().unwrap();
    assert_eq!((next.number, next.force), (2, false));
    // Twice in a row: a person is called, and a day after the last order it is tried again.
    ended.past.clear();
    ended.object = Object::NotBegun("Timeout: too late".to_owned());
    assert_eq!(
        ended.settle(at(800)),
        ["Running", "Failed", "NeedsOperator"]
    );
    let reason = RepairStatus::NeedsOperator(OperatorReason::NotBegun);
    assert_eq!(ended.status(), &reason);
    let day = at(361 + 24 * 60);
    assert_eq!(ended.decide(at(900)).wake_at, Some(day));
    assert_eq!(ended.clone().settle(day), ["Planned", "Requested"]);
    let mut well = ended.clone();
    well.faults.clear();
    assert_eq!(well.settle(at(900)), ["Cancelled"]);
    for object in [Object::Queued, Object::NotKnown] {
        let mut case = case.clone();
        case.object = object;
        assert_eq!(case.settle(at(390)), [""; 0]);
        let failed = case.step(at(391)).transition.unwrap();
        assert_eq!(failed.reason, Reason::NotBegun);
    }
    // Switched off, it is called off: nothing was sent.
    let mut off = case.clone();
    (off.object, off.policy.mode) = (Object::Queued, Mode::Off);
    assert_eq!(off.settle(at(3)), ["Cancelled"]);
    // Whoever rebooted it: it is seen, and the order needless.
    case.reboot("b2");
    case.object = Object::NotBegun("Recalled: it has booted".to_owned());
    assert_eq!(case.settle(at(3)), ["Succeeded"]);
}

/// A refusal is said at once; what it is for (a token, a permission) is mended by somebody in minutes.
#[test]
fn a_provider_that_refuses_is_asked_again_after_pauses_and_costs_no_machine_its_repair() {
    let mut case = Case::new(&[fault("RESTART_BM", "b1", 0)]);
    case.settle(at(1));
    let words = "PermissionDenied: no".to_owned();
    let mut now = at(1);
    for (number, pause, says) in [
        (1_u32, 15, "Failed"),
        (2, 60, "NeedsOperator"),
        (3, 240, "NeedsOperator"),
        (4, 960, "NeedsOperator"),
        (5, 1_800, "NeedsOperator"),
        (6, 1_800, "NeedsOperator"),
    ] {
        case.object = Object::ProviderRefused(words.clone());
        case.settle(now);
        let again_at = now + SignedDuration::from_secs(pause);
        let last = case
            .incident
            .repair
            .as_ref()
            .unwrap()
            .attempt
            .clone()
            .unwrap();
        assert_eq!(last.effect, Effect::ProviderRefused { again_at });
        assert_eq!((last.number, last.force), (number, false));
        assert_eq!(case.status().as_str(), says, "{number}");
        if let RepairStatus::NeedsOperator(reason) = case.status() {
            let words = words.clone();
            let refuses = OperatorReason::ProviderRefuses { words, again_at };
            assert_eq!(*reason, refuses, "the words and the time are told");
        }
        // Nothing before, whatever wakes the node; then the next.
        let just_before = again_at - SignedDuration::from_secs(1);
        assert_eq!(case.settle(just_before), [""; 0], "{number}");
        assert_eq!(case.decide(just_before).wake_at, Some(again_at));
        assert!(case.past.is_empty(), "it is no attempt on the machine");
        assert_eq!(case.settle(again_at), ["Planned", "Requested"], "{number}");
        now = again_at;
    }
    // Mended: the repair is done as if nothing had been.
    case.object = Object::Done { since: None };
    case.reboot("b2");
    let states = case.settle(now);
    assert_eq!(states, ["Succeeded"]);
    assert_eq!(case.past.len(), 1);
}

#[test]
fn the_pause_after_a_refusal_ends_with_the_faults_and_holds_after_a_restart() {
    let mut case = Case::new(&[fault("RESTART_BM", "b1", 0)]);
    case.settle(at(1));
    case.object = Object::ProviderRefused("no".to_owned());
    case.settle(at(1));
    // A restart knows what is stored alone: the object may not be seen yet.
    case.object = Object::NotKnown;
    assert_eq!(case.settle(at(1)), [""; 0]);
    let mut well = case.clone();
    well.faults.clear();
    assert_eq!(well.decide(at(1)).order, None);
    well.settle(at(2));
    assert_eq!(
        well.ordered.len(),
        1,
        "nothing is ordered for faults that are gone"
    );
    let mut off = case.clone();
    off.policy.mode = Mode::Off;
    assert_eq!(off.settle(at(2)), [""; 0]);
    assert_eq!(case.settle(at(2)), ["Planned", "Requested"]);
}

#[test]
fn an_order_that_a_person_deletes_unsent_is_not_repeated_in_its_incident() {
    let mut case = Case::new(&[fault("RESTART_BM", "b1", 0)]);
    case.settle(at(1));
    case.object = Object::Queued;
    case.settle(at(2));
    case.object = Object::CalledOff;
    assert_eq!(case.settle(at(3)), ["NeedsOperator"]);
    let called_off = RepairStatus::NeedsOperator(OperatorReason::CalledOff);
    assert_eq!(case.status(), &called_off);
    let last = case.incident.repair.as_ref().unwrap().attempt.clone();
    assert_eq!(last.unwrap().effect, Effect::NotBegun);
    case.faults.push(fault("RESTART_VM", "b1", 3));
    assert_eq!(case.settle(at(10_000)), [""; 0]);
    // Nor once it was another's turn to be used up meanwhile.
    let mut used_up = case.clone();
    used_up.past = [at(9_000), at(9_001)]
        .map(|at| PastAttempt {
            rung: Rung::Reboot,
            at,
            of_incident: false,
        })
        .into();
    assert_eq!(used_up.settle(at(9_002)), [""; 0]);
    assert_eq!(used_up.settle(at(12_000)), [""; 0]);
    case.faults.clear();
    assert_eq!(case.settle(at(10_001)), ["Cancelled"]);
}

#[test]
fn an_order_that_vanishes_with_its_definition_is_made_again_as_the_same_attempt() {
    let mut case = Case::new(&[fault("RESTART_BM", "b1", 0)]);
    case.settle(at(1));
    case.object = Object::Queued;
    case.settle(at(2));
    let before = case.incident.repair.clone().unwrap().attempt.unwrap();
    case.object = Object::Vanished;
    let again = case.decide(at(3));
    let repair = again.incident.unwrap().repair.unwrap();
    assert_eq!(repair.status, RepairStatus::Requested);
    let attempt = repair.attempt.unwrap();
    assert_eq!((&attempt.object, attempt.number), (&before.object, 1));
    assert_eq!(attempt.deadline, at(33), "it has its whole time again");
    assert_eq!(attempt.boot_before, before.boot_before);
    // Its machine has booted meanwhile: nothing is ordered, for it is seen.
    case.reboot("b2");
    assert_eq!(case.settle(at(4)), ["Succeeded"]);
}

#[test]
fn a_recovery_recalls_nothing_that_is_under_way() {
    let mut case = Case::new(&[fault("RESTART_BM", "b1", 0)]);
    case.settle(at(1));
    case.faults.clear();
    case.object = Object::Running { since: None };
    assert_eq!(case.settle(at(2)), ["Running"]);
    assert_eq!(case.settle(at(31)), ["Failed"]);
    assert_eq!(case.decide(at(32)), Decision::default());
    let mut planned = Case::new(&[fault("RESTART_BM", "b1", 0)]);
    planned.incident.drain = None;
    planned.settle(at(1));
    planned.faults.clear();
    assert_eq!(planned.settle(at(2)), ["Cancelled"]);
}

#[test]
fn a_node_that_is_gone_ends_by_its_deadline() {
    let mut case = Case::new(&[fault("RESTART_BM", "b1", 0)]);
    case.settle(at(1));
    case.object = Object::Running { since: None };
    case.settle(at(2));
    case.node = None;
    assert_eq!(case.settle(at(30)), [""; 0]);
    assert_eq!(case.settle(at(31)), ["Failed"]);
}

#[test]
fn where_boots_are_not_known_the_object_is_believed() {
    let mut case = Case::new(&[fault("RESTART_BM", "", 0)]);
    case.node.as_mut().unwrap().boot = boot("");
    case.settle(at(1));
    case.node.as_mut().unwrap().boot = boot("b2");
    case.object = Object::Running { since: None };
    assert_eq!(case.settle(at(2)), ["Running"], "nothing proves a reboot");
    case.object = Object::Done { since: None };
    assert_eq!(case.settle(at(3)), ["Succeeded"]);
}

#[test]
fn nothing_is_decided_unless_the_quarantine_is_at_rest() {
    for status in [
        QuarantineStatus::Withheld(Withheld::Pace),
        QuarantineStatus::Observed,
        QuarantineStatus::Applying,
        QuarantineStatus::Releasing(CloseReason::Recovered),
        QuarantineStatus::Closed(CloseReason::ManualUncordon),
    ] {
        let mut case = Case::new(&[fault("RESTART_BM", "b1", 0)]);
        case.incident.quarantine = status;
        assert_eq!(case.decide(at(0)), Decision::default());
    }
}

#[test]
fn names_are_valid_and_different_for_any_node_name() {
    let label = "a".repeat(63);
    let long = [&*label, &*label, &*label, &"b".repeat(61)].join(".");
    let dotted = format!("{}.{}", "a".repeat(60), [&*label; 2].join("."));
    for name in ["n1", &long, &dotted, "x-".repeat(30).trim_end_matches('-')] {
        let mut incident = Case::new(&[]).incident;
        incident.node = NodeName::new(name).unwrap();
        let names = [1, 2, u32::MAX].map(|number| object_name(&incident, number));
        for name in &names {
            assert!(NodeName::new(name).is_ok(), "{name}");
            assert!(name.contains("01arz3ndektsv4rrffq69g5fav"));
        }
        assert_ne!(names[0], names[1]);
    }
}

#[derive(Debug, Clone, Copy)]
enum Move {
    Decide,
    Object(usize),
    Boot,
    Ready(bool),
    Faults(usize),
    Drain(bool),
    Later(i64),
}

fn any_move() -> impl Strategy<Value = Move> {
    prop_oneof![
        6 => Just(Move::Decide),
        3 => (0_usize..9).prop_map(Move::Object),
        1 => Just(Move::Boot),
        1 => any::<bool>().prop_map(Move::Ready),
        2 => (0_usize..6).prop_map(Move::Faults),
        1 => any::<bool>().prop_map(Move::Drain),
        2 => (0_i64..60).prop_map(Move::Later),
    ]
}

proptest! {
    /// Whatever happens: an order is stored first, is for a fault that no repair covers, on a node that
    /// was found empty since the last one, one at a time, and no more than the attempts of a rung; and with
    /// a fault open something comes next, is waited for, or needs a person.
    #[test]
    fn any_history(moves in prop::collection::vec(any_move(), 1..80)) {
        let mut case = Case::new(&[fault("RESTART_BM", "b1", 0)]);
        let (mut minutes, mut boots, mut looked) = (0, 1, true);
        for step in moves {
            match step {
                Move::Object(which) => {
                    case.object = match which {
                        0 => Object::NotKnown,
                        1 => Object::Absent,
                        2 => Object::Refused(String::new()),
                        3 => Object::Running { since: None },
                        4 => Object::Queued,
                        5 => Object::NotBegun(String::new()),
                        6 => Object::Done { since: None },
                        7 => Object::ProviderRefused(String::new()),
                        _ => Object::Failed(String::new()),
                    };
                }
                Move::Boot => {
                    boots += 1;
                    case.reboot(&format!("b{boots}"));
                }
                Move::Ready(ready) => case.node.as_mut().unwrap().ready = ready,
                Move::Faults(which) => {
                    let now = case.node.as_ref().unwrap().boot.as_str().to_owned();
                    case.faults = match which {
                        0 => Vec::new(),
                        1 => vec![fault("RESTART_BM", &now, minutes)],
                        2 => vec![fault("COMPONENT_RESET", &now, minutes)],
                        3 => vec![fault("NONE", &now, minutes)],
                        4 => vec![fault("RESTART_BM", "b1", 0)],
                        _ => vec![fault("RESTART_BM", "", minutes)],
                    };
                }
                Move::Drain(done) => {
                    looked |= done;
                    let status = if done { DrainStatus::Drained } else { DrainStatus::Cancelled };
                    case.incident.drain = Some(Drain { status, since: at(minutes) });
                }
                Move::Later(more) => minutes += more,
                Move::Decide => {
                    let (before, ordered) = (case.clone(), case.ordered.len());
                    let decision = case.step(at(minutes));
                    let was = before.incident.repair.as_ref().map(|r| r.status.clone());
                    let running = was.as_ref().is_some_and(RepairStatus::is_under_way);
                    if case.ordered.len() > ordered {
                        prop_assert!(!running, "two at once");
                        let drain = before.incident.drain.map(|d| d.status);
                        prop_assert_eq!(drain, Some(DrainStatus::Drained));
                        let present = &before.node.as_ref().unwrap().boot;
                        let new = |f: &FaultFacts| f.boot.is_unknown() || f.boot == *present;
                        prop_assert!(before.faults.iter().any(new), "all is covered");
                        let of = |rung| case.past.iter().filter(move |p| p.rung == rung);
                        let rung = case.ordered.last().unwrap().rung;
                        prop_assert!(of(rung).count() <= case.policy.max_attempts);
                        prop_assert!(looked, "nobody looked whether it is empty still");
                    }
                    if let Some(transition) = &decision.transition
                        && !case.ordered.is_empty()
                        && matches!(transition.to, RepairStatus::Planned { .. })
                        && !matches!(transition.from, Some(RepairStatus::Planned { .. }))
                    {
                        looked = false;
                    }
                    if decision.transition.is_none() && !case.faults.is_empty() {
                        let needs = matches!(was, Some(RepairStatus::NeedsOperator(_)));
                        let comes = decision.wake_at.is_some() || decision.order.is_some();
                        prop_assert!(
                            needs || comes || decision.blocked.is_some(),
                            "nobody is told of {:?}",
                            was
                        );
                    }
                    if let Some(order) = decision.order {
                        prop_assert_eq!(was, Some(RepairStatus::Requested));
                        prop_assert_eq!(case.ordered.last(), Some(&order));
                    }
                    // What time alone would change, somebody looks at then.
                    if decision.transition.is_none() && case.ordered.len() == ordered {
                        for hours in [1, 7, 25] {
                            let then = at(minutes + hours * 60);
                            if case.decide(then).transition.is_some() {
                                let wakes = decision.wake_at.is_some_and(|wake| wake <= then);
                                prop_assert!(wakes, "nobody looks again");
                            }
                        }
                    }
                    if let Some(repair) = &case.incident.repair
                        && repair.status.is_under_way()
                    {
                        let mut deadline = repair.attempt.as_ref().unwrap().deadline;
                        if matches!(case.object, Object::Queued | Object::NotKnown) {
                            deadline += case.policy.queue_timeout;
                        }
                        prop_assert!(
                            decision.wake_at.is_some_and(|wake| wake <= deadline.max(at(minutes))),
                            "nobody looks again"
                        );
                    }
                }
            }
        }
    }
}
