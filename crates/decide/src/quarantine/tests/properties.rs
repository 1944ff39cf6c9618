//! Promises, over random histories: faults come and go, people act, writes are lost, the
//! controller restarts, the node reboots and is paused.

use std::collections::BTreeSet;

use health_event::incident::{Incident, QuarantineStatus};
use jiff::SignedDuration;
use k8s_api::IncidentMark;
use proptest::prelude::*;

use super::world::{World, at, event, healthy, rule_set, taint, xid_taint};
use crate::quarantine::{Annotation, Mode, NodeWrite, Request, RequestKind, Transition, WriteKind};
use crate::rules::RuleSetConfig;

#[derive(Debug, Clone)]
enum Step {
    Fault(usize, usize),
    Recovery(usize, usize),
    Uncordon,
    Untaint,
    ForeignTaint,
    Request(RequestKind),
    LoseWrites(bool),
    Pause(bool),
    OptOut(bool),
    Mode(Mode),
    Wait(i64),
    Reset,
    /// The controller starts again with these of the rule sets.
    Rules(bool, bool),
    /// One decision and its effects only: what comes next interrupts the rest.
    Once,
}

const CHECKS: [&str; 3] = ["A", "B", "C"];

fn fault_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3_usize, 0..3_usize).prop_map(|(c, g)| Step::Fault(c, g)),
        4 => (0..3_usize, 0..3_usize).prop_map(|(c, g)| Step::Recovery(c, g)),
        1 => any::<bool>().prop_map(Step::LoseWrites),
        1 => any::<bool>().prop_map(Step::Pause),
        1 => (1..600_i64).prop_map(Step::Wait),
        2 => Just(Step::Once),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    let requests = [
        RequestKind::Hold,
        RequestKind::Release,
        RequestKind::Cancel,
        RequestKind::DropWithheld,
    ];
    prop_oneof![
        8 => fault_step(),
        1 => Just(Step::Uncordon),
        1 => Just(Step::Untaint),
        1 => Just(Step::ForeignTaint),
        1 => proptest::sample::select(requests.to_vec()).prop_map(Step::Request),
        1 => any::<bool>().prop_map(Step::OptOut),
        1 => proptest::sample::select(vec![
            Mode::Enforce, Mode::Refused, Mode::DryRun, Mode::Off,
        ])
            .prop_map(Step::Mode),
        1 => Just(Step::Reset),
        1 => any::<(bool, bool)>().prop_map(|(a, b)| Step::Rules(a, b)),
    ]
}

fn rule_sets() -> [RuleSetConfig; 2] {
    [
        rule_set("a", "event.checkName == 'A'", true, Some(xid_taint())),
        rule_set(
            "b",
            "event.checkName == 'B'",
            false,
            Some(taint("b", "", "NoExecute")),
        ),
    ]
}

fn world() -> World {
    let mut world = World::new(rule_sets().to_vec());
    world.pool_size = 2;
    world.breaker_config.window = SignedDuration::from_secs(60);
    world
}

fn take(world: &mut World, step: &Step) {
    let gpu = |n: &usize| format!("GPU {n}");
    match step {
        Step::Fault(check, n) => world.store(&event(CHECKS[*check], &gpu(n), "1")),
        Step::Recovery(check, n) => world.store(&healthy(CHECKS[*check], &gpu(n), "")),
        Step::Uncordon => world.uncordon_by_hand(),
        Step::Untaint => world.untaint_by_hand(&xid_taint()),
        Step::ForeignTaint if !world.has_taint(&theirs()) => world.taint_by_hand(theirs()),
        Step::ForeignTaint => {}
        Step::Request(kind) => {
            world.request = Some(Request {
                kind: *kind,
                actor: "alice".into(),
            });
        }
        Step::LoseWrites(lose) => world.lose_writes = *lose,
        Step::Pause(paused) => world.node_mut().paused = *paused,
        Step::OptOut(out) => world.node_mut().opted_out = *out,
        Step::Mode(mode) => world.policy.mode = *mode,
        Step::Wait(seconds) => {
            world.now = world
                .now
                .checked_add(SignedDuration::from_secs(*seconds))
                .unwrap();
        }
        Step::Reset => {
            world.breaker.reset("gpu");
        }
        Step::Rules(a, b) => {
            let sets = rule_sets().into_iter().zip([*a, *b]);
            world.configs = sets.filter_map(|(set, kept)| kept.then_some(set)).collect();
        }
        Step::Once => {
            world.step();
            return;
        }
    }
    if !matches!(step, Step::Fault(..)) {
        world.settle();
    }
}

fn theirs() -> health_event::incident::Taint {
    taint("theirs", "x", "NoSchedule")
}

/// Whether a write is one that the incident which is open as it goes out asks for, or, without one,
/// takes marks off that no open incident made.
fn belongs(write: &NodeWrite, open: Option<&Incident>) -> Result<(), &'static str> {
    let mark = |text: Option<&String>| text.and_then(|text| IncidentMark::parse(text).ok());
    let puts_on = write.annotations.get(&Annotation::Incident);
    match (write.kind, open) {
        (WriteKind::Apply | WriteKind::Update, Some(open)) => {
            let Some(mark) = mark(puts_on.and_then(Option::as_ref)) else {
                return Err("it leaves no mark");
            };
            if (&mark.incident, mark.version) != (&open.id, open.version) {
                return Err("its mark is another incident's");
            }
            if !matches!(open.quarantine, QuarantineStatus::Applying) {
                return Err("the intent to take out is not stored");
            }
            let reason = open.open_faults().next().is_some() || open.held_by.is_some();
            reason.then_some(()).ok_or("it has no reason")
        }
        (WriteKind::State, Some(open)) => {
            let says = write.labels.values().flatten().map(String::as_str);
            let only = write
                .annotations
                .keys()
                .all(|key| *key == Annotation::RemediationState)
                && write.unschedulable.is_none()
                && write.taints.is_none();
            let right = only && says.eq([crate::quarantine::state_label(open)]);
            let rests = open.quarantine == QuarantineStatus::Quarantined;
            (right && rests)
                .then_some(())
                .ok_or("it says more than what is so")
        }
        (WriteKind::Release | WriteKind::StepBack, Some(open)) => {
            if !matches!(open.quarantine, QuarantineStatus::Releasing(_)) {
                return Err("the intent to give back is not stored");
            }
            let read = mark(write.test.incident.as_ref());
            let own = read.is_none_or(|mark| mark.incident == open.id);
            own.then_some(())
                .ok_or("it takes another incident's marks off")
        }
        (WriteKind::CleanUp, None) => {
            let adds = write.unschedulable == Some(true)
                || write.annotations.values().any(Option::is_some)
                || write.health_events.is_some();
            let adds = adds || write.test.incident.is_none();
            (!adds)
                .then_some(())
                .ok_or("it does more than to take stray marks off")
        }
        (_, None) => Err("no incident is open"),
        (WriteKind::CleanUp, Some(_)) => Err("an incident is open"),
    }
}

/// Nothing holds the node back any more and every fault recovers.
fn come_to_rest(world: &mut World) {
    world.lose_writes = false;
    world.policy.mode = Mode::Enforce;
    let node = world.node_mut();
    (node.paused, node.opted_out) = (false, false);
    world.settle();
    for check in CHECKS {
        world.store(&healthy(check, "", ""));
    }
    world.settle();
    world.ask(RequestKind::Release);
    assert!(world.last.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// Whoever asks gets an answer: only a write whose outcome is unknown lets a request wait.
    #[test]
    fn a_request_waits_for_nothing_but_a_write(steps in proptest::collection::vec(any_step(), 0..30)) {
        let mut world = world();
        for step in &steps {
            take(&mut world, step);
            world.settle();
            let in_doubt = matches!(world.status(), "Applying" | "Releasing");
            prop_assert!(world.request.is_none() || in_doubt, "{} {:?}", world.status(), world.request);
        }
    }

    #[test]
    fn release_restores_exactly_what_was_there(
        steps in proptest::collection::vec(any_step(), 0..30),
        foreign: [bool; 2],
    ) {
        let mut world = world();
        if foreign[0] {
            world.taint_by_hand(theirs());
        }
        if foreign[1] {
            world.taint_by_hand(xid_taint());
        }
        // A person may take off whatever they like; what they took off stays off.
        let mut expected: BTreeSet<_> =
            world.node().taints.iter().flatten().map(|t| t.taint.clone()).collect();
        for step in &steps {
            if matches!(step, Step::Untaint) {
                expected.remove(&xid_taint());
            } else if matches!(step, Step::ForeignTaint) {
                expected.insert(theirs());
            }
            take(&mut world, step);
        }
        come_to_rest(&mut world);
        prop_assert_eq!(world.status(), "none");
        prop_assert!(!world.is_cordoned());
        let left: BTreeSet<_> = world.node().taints.iter().flatten().map(|t| t.taint.clone()).collect();
        prop_assert_eq!(left, expected);
        let records = [Annotation::UncordonedManually, Annotation::UntaintedManually];
        prop_assert!(world.node().annotations.keys().all(|k| records.contains(k)));
        prop_assert!(world.breaker.pools.get("gpu").is_none_or(|p| p.out.is_empty() && p.waiting.is_empty()));
    }

    #[test]
    fn a_foreign_cordon_survives(steps in proptest::collection::vec(fault_step(), 0..30)) {
        let mut world = world();
        world.cordon_by_hand();
        for step in &steps {
            take(&mut world, step);
        }
        come_to_rest(&mut world);
        prop_assert!(world.is_cordoned());
    }

    #[test]
    fn every_write_belongs_to_an_open_incident_with_a_reason(
        steps in proptest::collection::vec(any_step(), 0..30),
    ) {
        let mut world = world();
        for step in &steps {
            let before = (world.writes.len(), world.transitions.len());
            take(&mut world, step);
            let may_write = world.policy.mode == Mode::Enforce;
            prop_assert!(may_write || world.writes.len() == before.0);
            let open = &world.open_at_write[before.0..];
            for (write, open) in world.writes[before.0..].iter().zip(open) {
                if let Err(why) = belongs(write, open.as_ref()) {
                    prop_assert!(false, "{why}: {write:?} in {open:?}");
                }
            }
            for Transition { from, to, .. } in &world.transitions[before.1..] {
                prop_assert!(!from.as_ref().is_some_and(QuarantineStatus::is_closed), "{to:?}");
            }
            if world.status() == "Quarantined" && !world.lose_writes {
                prop_assert!(world.has(Annotation::Incident) || world.policy.mode != Mode::Enforce);
            }
        }
    }

    #[test]
    fn a_node_is_out_only_with_a_mark_on_it(
        steps in proptest::collection::vec(
            prop_oneof![
                4 => (0..2_usize, 0..2_usize).prop_map(|(check, gpu)| Step::Fault(check, gpu)),
                1 => any_step(),
                2 => any::<bool>().prop_map(Step::LoseWrites),
                2 => any::<(bool, bool)>().prop_map(|(a, b)| Step::Rules(a, b)),
                2 => Just(Step::Wait(1)),
            ],
            0..30,
        ),
    ) {
        let mut world = world();
        for step in &steps {
            take(&mut world, step);
            let at_rest = !matches!(step, Step::Fault(..) | Step::Once) && !world.lose_writes;
            if at_rest && world.policy.mode == Mode::Enforce && world.status() == "Quarantined" {
                let b = world.has_taint(&taint("b", "", "NoExecute"));
                let marked = world.is_cordoned() || world.has_taint(&xid_taint()) || b;
                prop_assert!(marked, "out, without a mark: {:?}", world.transitions);
            }
        }
    }

    #[test]
    fn dry_run_writes_nothing(steps in proptest::collection::vec(any_step(), 0..30)) {
        let mut world = world();
        world.policy.mode = Mode::DryRun;
        for step in steps.iter().filter(|s| !matches!(s, Step::Mode(_))) {
            take(&mut world, step);
        }
        prop_assert!(world.writes.is_empty());
    }

    #[test]
    fn the_marks_are_those_of_the_open_faults_in_any_order(
        steps in proptest::collection::vec(fault_step(), 1..30),
    ) {
        let mut world = world();
        for step in &steps {
            take(&mut world, step);
        }
        world.lose_writes = false;
        world.node_mut().paused = false;
        world.settle();
        let open: BTreeSet<&str> = world.last.keys().map(|id| id.scope.check_name.as_str()).collect();
        let withheld = world.status() == "Withheld";
        prop_assert_eq!(world.is_cordoned(), open.contains("A") && !withheld);
        prop_assert_eq!(world.has_taint(&xid_taint()), open.contains("A") && !withheld);
        prop_assert_eq!(
            world.has_taint(&taint("b", "", "NoExecute")),
            open.contains("B") && !withheld
        );
        prop_assert_eq!(world.status() == "none", !open.contains("A") && !open.contains("B"));
    }

    #[test]
    fn a_hold_suppresses_exactly_what_was_open(
        before in proptest::collection::btree_set((0..2_usize, 0..3_usize), 1..6),
        after in proptest::collection::vec((0..2_usize, 0..3_usize, any::<bool>()), 0..10),
    ) {
        let mut world = world();
        for (check, gpu) in &before {
            world.say(event(CHECKS[*check], &format!("GPU {gpu}"), "1"));
        }
        world.ask(RequestKind::Cancel);
        prop_assert_eq!(world.status(), "none");
        let mut held = before;
        for (check, gpu, is_healthy) in after {
            if is_healthy {
                held.remove(&(check, gpu));
                world.say(healthy(CHECKS[check], &format!("GPU {gpu}"), ""));
            } else {
                world.say(event(CHECKS[check], &format!("GPU {gpu}"), "1"));
            }
            let suppressed = world.holds.iter().map(|h| h.faults.len()).sum::<usize>();
            prop_assert_eq!(suppressed, held.len());
            let tracked = world.keys().len();
            prop_assert_eq!(tracked, world.last.len() - held.len());
        }
        // A day later they are as new.
        world.now = at(25 * 3600);
        world.settle();
        prop_assert_eq!(world.keys().len(), world.last.len());
    }
}

#[test]
fn a_hold_while_off_writes_nothing_for_a_node_that_another_quarantine_kept_waiting() {
    let mut world = world();
    world.policy.mode = Mode::Refused;
    world.say(event("A", "GPU 0", "1"));
    world.policy.mode = Mode::Off;
    world.ask(RequestKind::Hold);
    assert_eq!(world.status(), "Withheld");
    assert!(world.writes.is_empty());
}
