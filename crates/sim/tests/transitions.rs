//! Every transition that a decision can tell of is taken in some configuration, or left out with its
//! reason. They are listed from the decisions' own enums: a new one does not compile unlisted.

use std::collections::BTreeSet;

use decide::janitor::{Answer, Step};
use decide::quarantine::Mode;
use decide::{drain, quarantine, remediation};
use health_event::incident::Bound;
use k8s_api::reboot_node::{NO_REBOOT_OBSERVED, NODE_EXCLUDED, NODE_NOT_FOUND, RECALLED, TIMEOUT};
use sim::world::{Setup, What};

use crate::checked::seen;
use crate::looped::Taken;
use crate::whole;
use What::*;

/// Those that nothing in either world brings about, and why.
const LEFT_OUT: [(Taken, &str); 7] = [
    (
        ("quarantine", "rules_gone"),
        "rule sets do not change; tests/rules_gone.rs beside the decision",
    ),
    (
        ("drain", "other_drainer"),
        "no other program runs; tests.rs beside the decision",
    ),
    (
        ("drain", "off"),
        "modes of the drain do not switch; tests.rs beside the decision",
    ),
    (
        ("remediation", "off"),
        "modes of the remediation do not switch; tests.rs beside the decision",
    ),
    (
        ("remediation", "object_done"),
        "the boot before a repair is always known; tests.rs beside the decision",
    ),
    (
        ("remediation", "found"),
        "the store is not lost in the whole loop; objects.rs beside the decision",
    ),
    (
        ("janitor", NODE_EXCLUDED),
        "no node is excluded; tests.rs beside the decision",
    ),
];

/// The names of all variants of an enum; its match has no arm for all others.
macro_rules! codes {
    ($name:ident, $module:literal, $reason:ty, $($pattern:pat_param => $value:expr),* $(,)?) => {
        fn $name() -> Vec<Taken> {
            let code = |reason: &$reason| match reason {
                $($pattern)|* => ($module, reason.code()),
            };
            [$($value),*].iter().map(code).collect()
        }
    };
}

use quarantine::Reason as Q;
codes! {
    of_quarantine, "quarantine", Q,
    Q::FaultMatched { .. } => Q::FaultMatched { rules: Vec::new(), seq: 0 },
    Q::PersonHold(_) => Q::PersonHold(String::new()),
    Q::PersonCancel(_) => Q::PersonCancel(String::new()),
    Q::HoldReleased(_) => Q::HoldReleased(String::new()),
    Q::PersonDrop(_) => Q::PersonDrop(String::new()),
    Q::DryRun => Q::DryRun,
    Q::Protected => Q::Protected,
    Q::Off => Q::Off,
    Q::OtherQuarantine => Q::OtherQuarantine,
    Q::BreakerWithholds(_) => Q::BreakerWithholds(Bound::Level),
    Q::FirstActionDelay => Q::FirstActionDelay,
    Q::Paced => Q::Paced,
    Q::Permitted => Q::Permitted,
    Q::MarksChange => Q::MarksChange,
    Q::ReplannedWrite => Q::ReplannedWrite,
    Q::MarksRestored => Q::MarksRestored,
    Q::WriteSeen => Q::WriteSeen,
    Q::Recovered => Q::Recovered,
    Q::RulesGone => Q::RulesGone,
    Q::ManualUncordon => Q::ManualUncordon,
    Q::ManualUntaint => Q::ManualUntaint,
    Q::NodeGone => Q::NodeGone,
    Q::NodeReplaced => Q::NodeReplaced,
    Q::FaultsChange => Q::FaultsChange,
    Q::CooperatorUncordon(_) => Q::CooperatorUncordon(String::new()),
    Q::NeedsOperator => Q::NeedsOperator,
}

use drain::Reason as D;
codes! {
    of_drain, "drain", D,
    D::Wanted => D::Wanted,
    D::KeptWaiting => D::KeptWaiting,
    D::OtherDrainer => D::OtherDrainer,
    D::Empty => D::Empty,
    D::NothingToDo => D::NothingToDo,
    D::CameLate => D::CameLate,
    D::Deadline => D::Deadline,
    D::GoesOn => D::GoesOn,
    D::NotWanted => D::NotWanted,
    D::Off => D::Off,
}

use remediation::Reason as R;
codes! {
    of_remediation, "remediation", R,
    R::FaultsAsk => R::FaultsAsk,
    R::NodeEmpty => R::NodeEmpty,
    R::ObjectSeen => R::ObjectSeen,
    R::Begun => R::Begun,
    R::NotBegun => R::NotBegun,
    R::Off => R::Off,
    R::ObjectGone => R::ObjectGone,
    R::OtherBoot => R::OtherBoot,
    R::ObjectDone => R::ObjectDone,
    R::ObjectFailed => R::ObjectFailed,
    R::ObjectRefused => R::ObjectRefused,
    R::Deadline => R::Deadline,
    R::FaultsGone => R::FaultsGone,
    R::Booted => R::Booted,
    R::NothingLeft => R::NothingLeft,
    R::StillOpen => R::StillOpen,
    R::Found => R::Found,
}

/// What the loop does of a step of the janitor.
fn of_step(step: &Step) -> Option<&'static str> {
    match step {
        Step::Wait(_) => None,
        Step::Lock => Some("lock"),
        Step::Unlock => Some("unlock"),
        Step::Intend(_) => Some("intend"),
        Step::Send { .. } => Some("send"),
        Step::Ask { .. } => Some("ask"),
        Step::Write(_) => Some("status"),
    }
}

/// The same of an answer to a signal.
fn of_answer(answer: &Answer) -> Option<&'static str> {
    match answer {
        Answer::Sent { .. } => Some("sent"),
        Answer::Refused(_) => Some("refused"),
        Answer::Lost(_) => Some("lost"),
        // Of a question.
        Answer::Done | Answer::NotDone | Answer::NotAsked(_) => None,
    }
}

fn of_janitor() -> Vec<Taken> {
    let request = String::new;
    let steps = [
        Step::Wait(None),
        Step::Lock,
        Step::Unlock,
        Step::Intend(health_event::BootId::default()),
        Step::Send { force: false },
        Step::Ask { request: request() },
        Step::Write(decide::janitor::StatusChange::default()),
    ];
    let answers = [
        Answer::Sent { request: request() },
        Answer::Refused(request()),
        Answer::Lost(request()),
        Answer::Done,
        Answer::NotDone,
        Answer::NotAsked(request()),
    ];
    let ends = [
        "Succeeded",
        "Failed",
        NO_REBOOT_OBSERVED,
        TIMEOUT,
        NODE_NOT_FOUND,
        NODE_EXCLUDED,
        RECALLED,
    ];
    let steps = steps.iter().filter_map(of_step);
    let answers = answers.iter().filter_map(of_answer);
    let all = steps.chain(answers).chain(ends);
    all.map(|what| ("janitor", what)).collect()
}

/// All; the calls of drain and remediation among them.
pub(crate) fn all() -> BTreeSet<Taken> {
    let calls = [
        ("drain", "evict"),
        ("drain", "delete"),
        ("remediation", "order"),
        ("remediation", "recall"),
        ("quarantine", "adopted"),
    ];
    let of_modules = [of_quarantine(), of_drain(), of_remediation(), of_janitor()];
    of_modules.into_iter().flatten().chain(calls).collect()
}

/// Small worlds in which the quarantine does what it does not do in the whole loop.
fn small() -> Vec<Setup> {
    let one = |limits: &[(What, u8)]| Setup::new(1, 1, limits);
    let two = |limits: &[(What, u8)]| Setup::new(1, 2, limits);
    let modes = |modes: [Mode; 2]| {
        let limits = [(Break, 1), (SwitchMode, 1)];
        one(&limits).with_modes(modes.to_vec())
    };
    let mut delayed = Setup::new(2, 1, &[(Break, 2), (Tick, 1)]).with_level(2);
    delayed.policy.first_action_until = Some(delayed.now(1));
    let mut protected = one(&[(Break, 1)]);
    let name = &protected.template(0, 0).event.node_name;
    let name = health_event::NodeName::new(name).unwrap();
    protected.policy.protected_nodes.insert(name);
    let level = |limits: &[(What, u8)]| Setup::new(2, 1, limits).with_level(1);
    vec![
        one(&[(Hold, 1), (Release, 1)]),
        one(&[(Break, 1), (LoseStore, 1)]),
        one(&[(Break, 2), (Heal, 1), (Pause, 1)]),
        one(&[(Break, 1), (Strip, 1)]),
        one(&[(Break, 1), (Cooperate, 1), (CooperatorUncordon, 1)]),
        two(&[(Break, 2), (TimeOut, 1)]),
        two(&[(Break, 1), (Untaint, 1)]),
        modes([Mode::DryRun, Mode::Enforce]),
        modes([Mode::Enforce, Mode::Off]),
        modes([Mode::Refused, Mode::Enforce]),
        level(&[(Break, 2), (Drop, 1), (Reset, 1), (Heal, 1)]),
        delayed,
        protected,
    ]
}

#[test]
fn each_transition_is_taken_or_left_out_with_its_reason() {
    let of_worlds = small().into_iter().flat_map(seen);
    let mut taken: BTreeSet<Taken> = of_worlds.map(|what| ("quarantine", what)).collect();
    taken.extend(whole::taken());
    let all = all();
    let unlisted: Vec<&Taken> = taken.difference(&all).collect();
    assert!(unlisted.is_empty(), "taken and not listed: {unlisted:?}");
    let left_out: BTreeSet<Taken> = LEFT_OUT.iter().map(|(left, _)| *left).collect();
    let both: Vec<&Taken> = left_out.intersection(&taken).collect();
    assert!(both.is_empty(), "taken and left out: {both:?}");
    let known: BTreeSet<Taken> = taken.union(&left_out).copied().collect();
    let never: Vec<&Taken> = all.difference(&known).collect();
    assert!(never.is_empty(), "never taken: {never:?}");
}
