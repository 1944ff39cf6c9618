use health_event::BootId;
use jiff::SignedDuration;
use proptest::prelude::*;

use super::*;
use crate::kit::{MINUTE, at};

fn policy() -> Policy {
    Policy {
        timeout: MINUTE * 25,
        queue_timeout: MINUTE * 360,
        no_reboot_after: MINUTE * 10,
        ask_interval: SignedDuration::from_secs(15),
        manual: false,
    }
}

/// All that a view borrows, with a shell that keeps what is stored and written.
#[derive(Clone)]
struct Case {
    object: RebootNode,
    node: Node,
    lock: Lock,
    intent: Option<Intent>,
    answer: Option<Answer>,
    asked_at: Option<Timestamp>,
    place: Place,
    excluded: bool,
    recalled: Option<Unwanted>,
    earlier_signal: bool,
    not_before: Option<Timestamp>,
    policy: Policy,
    sent: u32,
    ready: Option<Condition>,
    signal: Option<Condition>,
}

fn seen(boot: &str, ready: bool) -> Node {
    Node::Seen {
        boot: BootId::new(boot),
        ready,
    }
}

impl Case {
    fn new() -> Self {
        Self {
            object: RebootNode {
                created_at: at(0),
                force: false,
                deleting: false,
                started_at: None,
                completed_at: None,
                signal: Signal::Unknown,
                says_manual: false,
                says_controller_here: false,
                end: None,
            },
            node: seen("b1", true),
            lock: Lock::NotKnown,
            intent: None,
            answer: None,
            asked_at: None,
            place: Place::Free,
            excluded: false,
            recalled: None,
            earlier_signal: false,
            not_before: None,
            policy: policy(),
            sent: 0,
            ready: None,
            signal: None,
        }
    }

    fn decide(&self, now: Timestamp) -> Step {
        let view = View {
            object: &self.object,
            node: &self.node,
            lock: self.lock,
            intent: self.intent.as_ref(),
            answer: self.answer.as_ref(),
            asked_at: self.asked_at,
            place: self.place,
            excluded: self.excluded,
            recalled: self.recalled,
            earlier_signal: self.earlier_signal,
            not_before: self.not_before,
            policy: &self.policy,
        };
        decide(&view, now)
    }

    /// Does what was decided; the provider answers `answer` to a call.
    fn step(&mut self, now: Timestamp, answer: &Answer) -> Step {
        let step = self.decide(now);
        match &step {
            Step::Wait(_) => {}
            Step::Lock => self.lock = Lock::Ours,
            Step::Unlock => (self.lock, self.intent) = (Lock::NotKnown, None),
            Step::Intend(boot) => {
                self.intent = Some(Intent {
                    boot_before: boot.clone(),
                    at: now,
                    deadline: deadline_of(now, &self.policy),
                    fresh: true,
                    manual: self.policy.manual,
                });
            }
            Step::Send { .. } => {
                self.sent += 1;
                self.intent.as_mut().unwrap().fresh = false;
                self.answer = Some(answer.clone());
            }
            Step::Ask { .. } => {
                self.asked_at = Some(now);
                self.answer = Some(answer.clone());
            }
            Step::Write(change) => self.write(change),
        }
        step
    }

    fn write(&mut self, change: &StatusChange) {
        let object = &mut self.object;
        object.started_at = object.started_at.or(change.started_at);
        assert!(object.completed_at.is_none(), "written after its end");
        object.completed_at = change.completed_at;
        object.says_manual |= change.manual;
        let ready = change.node_ready.as_ref();
        let end = ready.filter(|_| change.completed_at.is_some());
        object.end = end.map(|ready| match ready.reason {
            "Failed" => End::Refused,
            NO_REBOOT_OBSERVED => End::NoReboot,
            _ => End::Other,
        });
        if let Some(signal) = &change.signal {
            object.signal = match signal.status {
                Some(true) => Signal::Sent {
                    request: signal.message.clone(),
                },
                Some(false) => Signal::Failed,
                None => Signal::Unknown,
            };
            self.signal = Some(signal.clone());
        }
        if let Some(ready) = &change.node_ready {
            object.says_controller_here = ready.reason == CONTROLLER_HERE;
            self.ready = Some(ready.clone());
        }
    }

    /// Until it waits; names of the steps.
    fn run(&mut self, now: Timestamp, answer: &Answer) -> Vec<&'static str> {
        let mut steps = Vec::new();
        for _ in 0..20 {
            steps.push(match self.step(now, answer) {
                Step::Wait(_) => return steps,
                Step::Lock => "lock",
                Step::Unlock => "unlock",
                Step::Intend(_) => "intend",
                Step::Send { force: false } => "send",
                Step::Send { force: true } => "send by force",
                Step::Ask { .. } => "ask",
                Step::Write(change) if change.completed_at.is_some() => "end",
                Step::Write(_) => "write",
            });
        }
        panic!("it never rests: {steps:?}");
    }

    /// Its process was killed, and another one knows what is stored and what stands on the object.
    fn restart(&mut self) {
        self.answer = None;
        self.asked_at = None;
        self.lock = Lock::NotKnown;
        if let Some(intent) = &mut self.intent {
            intent.fresh = false;
        }
    }

    fn end(&self) -> (Option<bool>, &'static str) {
        assert!(self.object.completed_at.is_some());
        self.says()
    }

    fn says(&self) -> (Option<bool>, &'static str) {
        let ready = self.ready.as_ref().unwrap();
        (ready.status, ready.reason)
    }
}

fn sent() -> Answer {
    Answer::Sent {
        request: "r-7".to_owned(),
    }
}

#[test]
fn the_whole_course_of_a_reboot() {
    let mut case = Case::new();
    assert_eq!(
        case.run(at(1), &sent()),
        ["lock", "intend", "send", "write", "ask"]
    );
    assert_eq!(case.object.started_at, Some(at(1)));
    assert_eq!(case.signal.as_ref().unwrap().message, "r-7");
    let wait = later(at(1), case.policy.ask_interval);
    assert_eq!(case.decide(at(1)), Step::Wait(Some(wait)));
    let request = "r-7".to_owned();
    assert_eq!(case.decide(at(2)), Step::Ask { request });
    case.node = seen("b1", false);
    assert_eq!(case.run(at(2), &Answer::NotDone), ["ask"]);
    case.node = seen("b2", false);
    assert_eq!(case.run(at(3), &Answer::Done), ["ask"]);
    case.node = seen("b2", true);
    assert_eq!(case.run(at(4), &Answer::Done), ["end", "unlock"]);
    assert_eq!(case.end(), (Some(true), "Succeeded"));
    assert_eq!(case.sent, 1);
}

#[test]
fn force_is_passed_on() {
    let mut case = Case::new();
    case.object.force = true;
    assert!(case.run(at(1), &sent()).contains(&"send by force"));
}

#[test]
fn a_refusal_ends_it_and_a_lost_answer_is_never_sent_again() {
    let mut refused = Case::new();
    let answer = Answer::Refused("no such instance".to_owned());
    let steps = refused.run(at(1), &answer);
    assert_eq!(steps, ["lock", "intend", "send", "end", "unlock"]);
    let signal = refused.signal.as_ref().unwrap();
    assert_eq!((signal.status, signal.reason), (Some(false), "Failed"));
    assert!(
        signal
            .message
            .contains("failed to send reboot signal: no such instance")
    );
    assert_eq!(refused.end(), (Some(false), "Failed"));

    let mut lost = Case::new();
    let answer = Answer::Lost("Internal".to_owned());
    assert_eq!(
        lost.run(at(1), &answer),
        ["lock", "intend", "send", "write"]
    );
    assert_eq!(lost.signal.as_ref().unwrap().reason, "OutcomeUnknown");
    assert_eq!(lost.run(at(25), &answer), [""; 0]);
    let mut late = lost.clone();
    assert_eq!(late.run(at(26), &answer), ["end", "unlock"]);
    assert_eq!(late.end(), (Some(false), "Timeout"));
    lost.node = seen("b2", true);
    assert_eq!(lost.run(at(2), &answer), ["end", "unlock"]);
    assert_eq!(lost.end(), (Some(true), "Succeeded"));
    assert_eq!((lost.sent, late.sent), (1, 1));
}

#[test]
fn a_process_killed_around_the_call_does_not_send_again() {
    for stop in 0..6 {
        let mut case = Case::new();
        for _ in 0..stop {
            case.step(at(1), &sent());
        }
        case.restart();
        case.run(at(2), &sent());
        // The call went out before, or the intent alone was stored: nobody knows which.
        let want = u32::from(stop != 2);
        assert_eq!(case.sent, want, "killed after {stop} steps");
        case.node = seen("b2", true);
        case.run(at(3), &Answer::Done);
        assert_eq!(case.end(), (Some(true), "Succeeded"));
    }
}

#[test]
fn an_intent_of_an_earlier_boot_is_stored_anew_before_its_signal() {
    let mut case = Case::new();
    case.step(at(1), &sent());
    case.step(at(1), &sent());
    case.node = seen("b2", true);
    assert_eq!(case.decide(at(1)), Step::Intend(BootId::new("b2")));
    case.run(at(1), &sent());
    assert!(
        case.object.completed_at.is_none(),
        "that boot proves nothing"
    );
    assert_eq!(case.sent, 1);
    case.node = seen("b3", true);
    case.run(at(2), &Answer::Done);
    assert_eq!(case.end(), (Some(true), "Succeeded"));
}

#[test]
fn done_in_the_same_boot_is_no_reboot() {
    let mut case = Case::new();
    case.run(at(1), &sent());
    assert_eq!(
        case.run(at(5), &Answer::Done),
        ["ask"],
        "it may be on its way"
    );
    assert_eq!(case.run(at(11), &Answer::Done), ["end", "unlock"]);
    assert_eq!(case.end(), (Some(false), "NoRebootObserved"));
    let mut not_done = Case::new();
    not_done.run(at(1), &sent());
    assert_eq!(not_done.run(at(11), &Answer::NotDone), ["ask"]);
    let down = Answer::NotAsked("unavailable".to_owned());
    assert_eq!(not_done.run(at(12), &down), ["ask"]);
    assert_eq!(not_done.run(at(26), &down), ["end", "unlock"]);
    assert_eq!(not_done.end(), (Some(false), "Timeout"));
}

#[test]
fn what_waits_for_a_place_gives_its_lock_back() {
    for place in [
        Place::Full,
        Place::Paused,
        Place::NotEmpty,
        Place::NotAdopted,
    ] {
        let mut case = Case::new();
        (case.place, case.lock) = (place, Lock::Ours);
        assert_eq!(case.decide(at(1)), Step::Unlock, "{place:?}");
        case.lock = Lock::NotKnown;
        assert_eq!(case.decide(at(1)), Step::Wait(Some(at(360))), "{place:?}");
    }
}

#[test]
fn every_state_has_an_end() {
    // Nobody gives it the lock, a place, a node.
    for change in [
        (|case: &mut Case| case.lock = Lock::Others) as fn(&mut Case),
        |case| case.place = Place::Full,
        |case| case.place = Place::Paused,
        |case| case.node = Node::NotKnown,
        |case| case.node = seen("", true),
    ] {
        let mut case = Case::new();
        change(&mut case);
        assert_eq!(case.decide(at(1)), Step::Wait(Some(at(360))));
        case.run(at(360), &sent());
        assert_eq!(case.end(), (Some(false), "Timeout"));
        assert_eq!((case.sent, case.object.started_at), (0, None));
    }
    // The node is gone before and after the signal.
    for before in [true, false] {
        let mut case = Case::new();
        if !before {
            case.run(at(1), &sent());
        }
        case.node = Node::Missing;
        case.run(at(2), &Answer::NotDone);
        if !before {
            // The machine may be there under another node object, and reboots still.
            assert_eq!((case.object.completed_at, case.lock), (None, Lock::Ours));
            case.run(at(26), &Answer::NotDone);
        }
        let why = if before { "NodeNotFound" } else { "Timeout" };
        assert_eq!(case.end(), (Some(false), why));
        assert_ne!(case.lock, Lock::Ours);
    }
}

#[test]
fn what_another_janitor_has_begun_is_followed_and_never_sent() {
    let mut case = Case::new();
    case.object.started_at = Some(at(1));
    assert_eq!(case.decide(at(2)), Step::Wait(Some(at(26))));
    case.run(at(26), &sent());
    assert_eq!(case.end(), (Some(false), "Timeout"));
    assert_eq!(case.sent, 0);
}

#[test]
fn another_boot_that_an_earlier_signal_may_have_brought_proves_a_signal_only_with_the_providers_word()
 {
    let mut case = Case::new();
    case.earlier_signal = true;
    case.run(at(1), &sent());
    case.node = seen("b2", true);
    case.run(at(2), &Answer::NotDone);
    assert_eq!(case.object.completed_at, None, "the node is kept out");
    assert_eq!(case.lock, Lock::Ours);
    let mut done = case.clone();
    done.run(at(3), &Answer::Done);
    assert_eq!(done.end(), (Some(true), "Succeeded"));
    // Who never says that it is done has its time.
    case.run(at(26), &Answer::NotDone);
    assert_eq!(case.end(), (Some(true), "Succeeded"));
}

#[test]
fn a_shorter_time_that_is_configured_later_ends_no_signal_that_is_out() {
    let mut case = Case::new();
    case.run(at(1), &sent());
    case.policy.timeout = MINUTE;
    case.run(at(25), &Answer::NotDone);
    assert_eq!(case.object.completed_at, None);
    case.run(at(26), &Answer::NotDone);
    assert_eq!(case.end(), (Some(false), "Timeout"));
}

#[test]
fn what_others_write_into_the_status_ends_no_signal() {
    fn over(case: &mut Case, end: End) {
        (case.object.completed_at, case.object.end) = (Some(at(2)), Some(end));
    }
    let ways: [fn(&mut Case); 7] = [
        |case| case.object.completed_at = Some(at(2)),
        |case| case.object.signal = Signal::Failed,
        |case| case.object.started_at = Some(at(-100_000)),
        |case| over(case, End::Other),
        |case| over(case, End::NoReboot),
        |case| over(case, End::Refused),
        |case| {
            over(case, End::Refused);
            case.object.signal = Signal::Failed;
        },
    ];
    for way in ways {
        let mut case = Case::new();
        case.run(at(1), &sent());
        way(&mut case);
        case.run(at(2), &Answer::NotDone);
        assert_eq!(case.lock, Lock::Ours);
        assert!(case.intent.is_some());
        case.node = seen("b2", true);
        case.run(at(3), &Answer::Done);
        assert!(case.intent.is_none() && case.lock != Lock::Ours);
        assert_eq!(case.sent, 1);
    }
    let mut case = Case::new();
    case.run(at(1), &sent());
    case.object.completed_at = Some(at(2));
    assert_eq!(case.decide(at(3)), Step::Wait(Some(at(26))));
    assert_eq!(case.decide(at(26)), Step::Unlock);
    // Ours say what was true when they were written, also after a restart.
    for (end, signal, from) in [
        (End::Refused, Signal::Failed, 3),
        (
            End::NoReboot,
            Signal::Sent {
                request: String::new(),
            },
            11,
        ),
    ] {
        let mut case = Case::new();
        case.run(at(1), &sent());
        case.restart();
        over(&mut case, end);
        (case.object.signal, case.lock) = (signal, Lock::Ours);
        assert_eq!(case.decide(at(from)), Step::Unlock, "{end:?}");
    }
    // A start that lies years ahead is no reason to wait for it.
    let mut case = Case::new();
    case.object.started_at = Some(at(10_000_000));
    assert_eq!(case.decide(at(1)), Step::Wait(Some(at(360))));
}

#[test]
fn what_was_sent_before_the_manual_mode_is_not_asked_for_again() {
    let mut case = Case::new();
    case.run(at(1), &Answer::Lost("away".to_owned()));
    case.restart();
    case.policy.manual = true;
    assert_eq!(case.run(at(2), &sent()), [""; 0]);
    assert!(!case.object.says_manual);
}

#[test]
fn an_excluded_node_is_not_rebooted() {
    let mut case = Case::new();
    case.excluded = true;
    assert_eq!(case.run(at(1), &sent()), ["end"]);
    assert_eq!(case.end(), (Some(false), "NodeExcluded"));
    // Once it may be sent it is followed.
    let mut case = Case::new();
    case.run(at(1), &sent());
    case.excluded = true;
    assert_eq!(case.run(at(2), &Answer::NotDone), ["ask"]);
}

#[test]
fn in_manual_mode_a_person_sends_it() {
    let mut case = Case::new();
    case.policy.manual = true;
    assert_eq!(case.run(at(1), &sent()), ["lock", "intend", "write"]);
    assert!(case.object.says_manual);
    case.restart();
    assert_eq!(case.run(at(2), &sent()), [""; 0]);
    case.object.signal = Signal::Sent {
        request: String::new(),
    };
    assert_eq!(
        case.run(at(3), &sent()),
        [""; 0],
        "the provider is never asked"
    );
    case.node = seen("b2", true);
    assert!(case.run(at(4), &sent()).starts_with(&["end"]));
    assert_eq!(case.end(), (Some(true), "Succeeded"));
    let mut case = Case::new();
    case.policy.manual = true;
    case.run(at(1), &sent());
    case.run(at(26), &sent());
    assert_eq!(case.end(), (Some(false), "Timeout"));
    assert!(case.ready.as_ref().unwrap().message.contains("nobody sent"));
    assert_eq!(case.sent, 0);
}

#[test]
fn an_object_that_goes_before_its_signal_gives_the_lock_back() {
    let mut case = Case::new();
    case.step(at(1), &sent());
    case.object.deleting = true;
    assert_eq!(case.run(at(2), &sent()), ["unlock"]);
    assert_eq!(case.decide(at(2)), Step::Wait(None));
}

#[test]
fn an_object_that_goes_after_its_signal_keeps_lock_and_deadline() {
    let mut case = Case::new();
    case.run(at(1), &sent());
    case.object.deleting = true;
    assert_eq!(case.run(at(2), &Answer::NotDone), ["ask"]);
    assert_eq!(case.lock, Lock::Ours);
    case.run(at(26), &Answer::NotDone);
    assert_eq!(case.end(), (Some(false), "Timeout"));
    assert_ne!(case.lock, Lock::Ours);
}

#[test]
fn what_is_recalled_is_not_sent_and_what_may_be_sent_is_not_recalled() {
    // Before the lock, under it, and in the moment between the stored intent and the call.
    for steps in 0..3 {
        let mut case = Case::new();
        for _ in 0..steps {
            case.step(at(1), &sent());
        }
        case.recalled = Some(Unwanted::Over);
        case.run(at(1), &sent());
        assert_eq!(case.end(), (Some(false), "Recalled"), "after {steps} steps");
        assert_eq!((case.sent, case.object.started_at), (0, None));
        assert_ne!(case.lock, Lock::Ours);
    }
    let mut case = Case::new();
    case.run(at(1), &sent());
    case.recalled = Some(Unwanted::Over);
    assert_eq!(case.run(at(2), &Answer::NotDone), ["ask"]);
    // A process that was killed in that moment can't say that it did not send.
    let mut case = Case::new();
    case.step(at(1), &sent());
    case.step(at(1), &sent());
    case.restart();
    case.recalled = Some(Unwanted::Over);
    assert_eq!(case.run(at(2), &sent()), [""; 0]);
}

#[test]
fn what_keeps_a_signal_keeps_it_also_between_the_stored_intent_and_the_call() {
    for place in [Place::Paused, Place::NotEmpty] {
        let mut case = Case::new();
        for _ in 0..2 {
            case.step(at(1), &sent());
        }
        assert!(case.intent.as_ref().is_some_and(|intent| intent.fresh));
        case.place = place;
        assert_eq!(case.run(at(1), &sent()), [""; 0], "{place:?}");
        assert_eq!(case.sent, 0);
        case.place = Place::Free;
        case.run(at(2), &sent());
        assert_eq!(case.sent, 1);
    }
}

#[test]
fn a_provider_out_of_reach_is_tried_again_until_the_queue_ends() {
    let mut case = Case::new();
    case.not_before = Some(at(3));
    assert_eq!(case.decide(at(1)), Step::Wait(Some(at(3))));
    assert_eq!(
        case.run(at(3), &sent()),
        ["lock", "intend", "send", "write", "ask"]
    );
    let mut case = Case::new();
    case.not_before = Some(at(400));
    assert_eq!(case.decide(at(1)), Step::Wait(Some(at(360))));
    case.run(at(360), &sent());
    assert_eq!(case.end(), (Some(false), "Timeout"));
    assert_eq!(case.sent, 0);
}

#[test]
fn between_tries_to_reach_the_provider_only_what_has_a_stored_intent_keeps_the_lock() {
    let mut case = Case::new();
    (case.lock, case.not_before) = (Lock::Ours, Some(at(3)));
    let mut intended = case.clone();
    assert_eq!(case.run(at(1), &sent()), ["unlock"]);
    assert_eq!(
        case.run(at(3), &sent()),
        ["lock", "intend", "send", "write", "ask"]
    );
    // Its machine has booted before the call: stored anew it is sent, and else nobody but we know.
    intended.intent = Some(Intent {
        boot_before: BootId::new("b0"),
        at: at(0),
        deadline: at(30),
        fresh: true,
        manual: false,
    });
    assert_eq!(intended.decide(at(1)), Step::Wait(Some(at(3))));
}

#[test]
fn a_node_that_the_controller_runs_on_says_so_until_it_moves_and_ends_at_the_deadline_else() {
    let here = || {
        let mut case = Case::new();
        (case.place, case.lock) = (Place::ControllerHere, Lock::Ours);
        assert_eq!(case.run(at(1), &sent()), ["unlock", "write"]);
        assert_eq!(case.says(), (None, "ControllerHere"));
        assert_eq!(case.decide(at(2)), Step::Wait(Some(at(360))));
        case
    };
    let mut moved = here();
    moved.place = Place::Full;
    assert_eq!(moved.run(at(3), &sent()), ["write"]);
    assert_eq!(moved.says(), (None, "Initializing"));
    moved.place = Place::Free;
    assert_eq!(moved.run(at(4), &sent())[..2], ["lock", "intend"]);
    let mut stays = here();
    assert_eq!(stays.run(at(360), &sent()), ["end"]);
    assert_eq!(stays.end(), (Some(false), "Timeout"));
    let why = stays.ready.map(|ready| ready.message).unwrap_or_default();
    assert!(why.contains("was not moved"), "{why}");
    assert_eq!(stays.sent, 0);
}

#[test]
fn an_order_of_an_incident_that_nobody_knows_ends_and_says_why() {
    let mut case = Case::new();
    case.recalled = Some(Unwanted::IncidentUnknown);
    case.run(at(1), &sent());
    assert_eq!(case.end(), (Some(false), "Recalled"));
    let why = case.ready.map(|ready| ready.message).unwrap_or_default();
    assert!(why.contains("store was lost"), "{why}");
    assert_eq!(case.sent, 0);
}

fn any_answer() -> impl Strategy<Value = Answer> {
    prop::sample::select(vec![
        sent(),
        Answer::Refused("r".to_owned()),
        Answer::Lost("l".to_owned()),
        Answer::Done,
        Answer::NotDone,
        Answer::NotAsked("n".to_owned()),
    ])
}

#[derive(Debug, Clone)]
enum Move {
    Step,
    Restart,
    Boot,
    Ready(bool),
    Gone,
    Later(i64),
    Others(bool),
}

fn any_move() -> impl Strategy<Value = Move> {
    prop_oneof![
        8 => Just(Move::Step),
        1 => Just(Move::Restart),
        1 => Just(Move::Boot),
        1 => any::<bool>().prop_map(Move::Ready),
        1 => Just(Move::Gone),
        2 => (0_i64..20).prop_map(Move::Later),
        1 => any::<bool>().prop_map(Move::Others),
    ]
}

proptest! {
    /// Whatever happens: one signal at most, only under the lock and after a stored intent;
    /// success only in another boot; an end at last.
    #[test]
    fn any_history(moves in prop::collection::vec((any_move(), any_answer()), 1..60), manual: bool) {
        let mut case = Case::new();
        case.policy.manual = manual;
        let (mut minutes, mut boots, mut rebooted) = (0, 1, false);
        for (next, mut answer) in moves {
            match next {
                Move::Step => {
                    let before = case.clone();
                    let is_send = matches!(before.decide(at(minutes)), Step::Send { .. });
                    if !is_send && matches!(answer, Answer::Sent { .. } | Answer::Refused(_) | Answer::Lost(_)) {
                        answer = Answer::NotDone;
                    }
                    if is_send && matches!(answer, Answer::Done | Answer::NotDone | Answer::NotAsked(_)) {
                        answer = Answer::Lost("late".to_owned());
                    }
                    case.step(at(minutes), &answer);
                    if is_send {
                        prop_assert_eq!(before.lock, Lock::Ours);
                        prop_assert!(before.intent.is_some_and(|i| i.fresh) && !manual);
                    }
                    prop_assert!(case.sent <= 1);
                    if case.object.completed_at.is_some() && before.object.completed_at.is_none() {
                        let succeeded = case.ready.as_ref().is_some_and(|r| r.status == Some(true));
                        prop_assert!(!succeeded || rebooted);
                    }
                }
                Move::Restart => case.restart(),
                Move::Boot => {
                    boots += 1;
                    rebooted |= case.intent.is_some();
                    case.node = seen(&format!("b{boots}"), true);
                }
                Move::Ready(ready) => case.node = seen(&format!("b{boots}"), ready),
                Move::Gone => case.node = Node::Missing,
                Move::Later(more) => minutes += more,
                Move::Others(others) if case.lock != Lock::Ours => {
                    case.lock = if others { Lock::Others } else { Lock::NotKnown };
                }
                Move::Others(_) => {}
            }
        }
        minutes += 24 * 60;
        for _ in 0..4 {
            case.step(at(minutes), &Answer::NotDone);
        }
        prop_assert!(case.object.completed_at.is_some(), "it has no end");
    }
}
