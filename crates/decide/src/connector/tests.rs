use std::collections::{BTreeMap, BTreeSet};

use health_event::{
    Device, Entity, HealthEvent, ProcessingStrategy, RecommendedAction, devices_of,
};
use jiff::Timestamp;
use proptest::prelude::*;

use super::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

fn entities(text: &str) -> Vec<Entity> {
    text.split(", ")
        .filter_map(|part| part.split_once(' '))
        .map(|(kind, value)| Entity::new(kind, value))
        .collect()
}

fn fault(
    seq: u64,
    parts: &str,
    code: &str,
    message: &str,
    action: RecommendedAction,
) -> FaultEntry {
    FaultEntry {
        check: "Check".into(),
        seq,
        device: Device::new(entities(parts)),
        code: code.into(),
        fatal: true,
        message: message.into(),
        action,
        last_at: at(i64::try_from(seq).unwrap()),
    }
}

fn text(faults: &[FaultEntry], limits: Limits) -> String {
    let faults: Vec<&FaultEntry> = faults.iter().collect();
    message::message(&message::entries(&faults), limits)
}

#[test]
fn entries_read_as_the_reference_s() {
    use RecommendedAction as Action;
    let pcie = fault(
        1,
        "GPU 0",
        "DCGM_FR_PCI_REPLAY_RATE",
        "Pcie error on GPU 0",
        Action::Unknown,
    );
    assert_eq!(
        text(&[pcie], Limits::default()),
        "ErrorCode:DCGM_FR_PCI_REPLAY_RATE GPU:0 Pcie error on GPU 0 Recommended Action=UNKNOWN;"
    );
    let two = [
        fault(1, "GPU 0", "44", "", Action::ContactSupport),
        fault(2, "GPU 0", "45", "", Action::None),
    ];
    assert_eq!(
        text(&two, Limits::default()),
        "ErrorCode:44 GPU:0 Recommended Action=CONTACT_SUPPORT;\
         ErrorCode:45 GPU:0 Recommended Action=NONE;"
    );
    let odd = fault(1, "GPU 0", "", "a;b <c>@d:e", Action::Custom);
    assert_eq!(
        text(&[odd], Limits::default()),
        "GPU:0 a.b <c>@d:e Recommended Action=CUSTOM;"
    );
}

#[test]
fn faults_of_one_event_are_one_entry_for_each_group_of_codes() {
    let restart = RecommendedAction::RestartBm;
    let faults = [
        fault(1, "GPU 0", "48", "m", restart),
        fault(1, "GPU 0", "79", "m", restart),
        fault(1, "GPU 1", "79", "m", restart),
        fault(2, "GPU 1", "13", "", restart),
    ];
    assert_eq!(
        text(&faults, Limits::default()),
        "ErrorCode:48 GPU:0 m Recommended Action=RESTART_BM;\
         ErrorCode:79 GPU:0 GPU:1 m Recommended Action=RESTART_BM;\
         ErrorCode:13 GPU:1 Recommended Action=RESTART_BM;"
    );
    let both = [
        fault(1, "GPU 0", "48", "", restart),
        fault(1, "GPU 0", "79", "", restart),
    ];
    assert_eq!(
        text(&both, Limits::default()),
        "ErrorCode:48 ErrorCode:79 GPU:0 Recommended Action=RESTART_BM;"
    );
}

/// The part of one compacted entry that stands before its `;`.
fn compacted(fault: FaultEntry, compact: usize) -> String {
    let limits = Limits {
        message: 170,
        compact,
    };
    let filler = fault.clone();
    let other = FaultEntry {
        seq: fault.seq + 1,
        device: Device::new([Entity::new("GPU", "999")]),
        ..filler
    };
    let text = text(&[fault, other], limits);
    text.split(';').next().unwrap().to_owned()
}

#[test]
fn a_long_entry_is_compacted_around_its_identity() {
    let restart = RecommendedAction::RestartVm;
    let nvlink = "GPU 3's NvLink link 0 is currently down Check the cables and the switches";
    let long = fault(1, "GPU 3", "DCGM_FR_NVLINK_DOWN", nvlink, restart);
    assert_eq!(
        compacted(long, 80),
        "ErrorCode:DCGM_FR_NVLINK_DOWN GPU:3 GPU 3's NvLink link 0 is currently down C... \
         Recommended Action=RESTART_VM"
    );
    let identity = "x".repeat(80);
    let wide = fault(
        1,
        &format!("GPU {identity}"),
        "",
        "some text that is not short",
        restart,
    );
    let limits = Limits {
        message: 125,
        compact: 72,
    };
    assert_eq!(
        text(&[wide], limits),
        format!("GPU:{identity} ... Recommended Action=RESTART_VM;")
    );
}

#[test]
fn eight_long_entries_keep_their_identities() {
    let restart = RecommendedAction::RestartVm;
    let faults: Vec<FaultEntry> = (0..8)
        .map(|n| {
            let parts = format!("GPU {n}, PCI 0000:0{n}:00");
            fault(n + 1, &parts, "79", &"words ".repeat(28), restart)
        })
        .collect();
    let text = text(&faults, Limits::default());
    assert!(text.len() <= 1024);
    for n in 0..8 {
        assert!(text.contains(&format!("GPU:{n} ")) && text.contains(&format!("PCI:0000:0{n}:00")));
    }
}

#[test]
fn one_entry_far_too_long_is_cut() {
    let restart = RecommendedAction::RestartVm;
    let codes: Vec<FaultEntry> = (0..300)
        .map(|n| fault(1, "GPU 0", &format!("code-{n}"), "", restart))
        .collect();
    let text = text(&codes, Limits::default());
    assert_eq!(text.len(), 1024);
    assert!(text.starts_with("ErrorCode:code-0 ") && text.ends_with(";..."));
}

#[test]
fn exactly_the_limit_is_not_truncated() {
    let one = fault(1, "GPU 0", "", "abc", RecommendedAction::None);
    let whole = text(std::slice::from_ref(&one), Limits::default());
    let limits = |message| Limits {
        message,
        compact: 5,
    };
    assert_eq!(text(std::slice::from_ref(&one), limits(whole.len())), whole);
    assert_ne!(text(&[one], limits(whole.len() - 1)), whole);
}

#[test]
fn repeats_of_one_identity_go_only_when_it_is_too_long() {
    let none = RecommendedAction::None;
    let two = [
        fault(1, "GPU 0", "79", "first time", none),
        fault(2, "GPU 0, PCI 0000:17:00", "79", "second time", none),
    ];
    assert!(text(&two, Limits::default()).contains("first time"));
    let limits = Limits {
        message: 90,
        compact: 72,
    };
    let short = text(&two, limits);
    assert!(
        !short.contains("first time") && short.contains("second time"),
        "{short}"
    );
}

#[derive(Default)]
struct Node {
    conditions: BTreeMap<String, ConditionRead>,
    listed: BTreeSet<String>,
    faults: Vec<FaultEntry>,
    healthy: BTreeMap<String, Timestamp>,
    known: BTreeSet<String>,
    configured: BTreeSet<String>,
    reference_types: BTreeSet<String>,
    reference_runs: bool,
    settled: BTreeSet<String>,
}

impl Node {
    fn decide(&self) -> StatusWrite {
        let view = View {
            conditions: &self.conditions,
            listed: &self.listed,
            faults: &self.faults,
            healthy: &self.healthy,
            known: &self.known,
            configured: &self.configured,
            reference_types: &self.reference_types,
            reference_runs: self.reference_runs,
            settled: &self.settled,
        };
        decide(&view, Limits::default(), at(100))
    }

    /// Writes what is decided; a second decision must have nothing to add.
    fn run(&mut self) -> StatusWrite {
        // The store remembers what was open.
        self.known
            .extend(self.faults.iter().map(|fault| fault.check.clone()));
        let write = self.decide();
        for condition in &write.set {
            let read = ConditionRead {
                is_true: condition.is_true,
                reason: condition.reason.clone(),
                message: condition.message.clone(),
            };
            self.conditions.insert(condition.kind.clone(), read);
        }
        self.conditions
            .retain(|kind, _| !write.remove.contains(kind));
        if let Some(listed) = &write.listed {
            self.listed.clone_from(listed);
        }
        assert!(
            self.decide().is_empty(),
            "it writes again: {:?}",
            self.decide()
        );
        write
    }

    fn says(&self, kind: &str) -> Option<(bool, &str)> {
        self.conditions
            .get(kind)
            .map(|c| (c.is_true, c.reason.as_str()))
    }

    fn foreign(kind: &str) -> Self {
        let read = ConditionRead {
            is_true: false,
            reason: "Theirs".into(),
            message: "theirs".into(),
        };
        Self {
            conditions: BTreeMap::from([(kind.to_owned(), read)]),
            configured: BTreeSet::from([kind.to_owned()]),
            ..Self::default()
        }
    }
}

fn with_fault() -> Node {
    Node {
        faults: vec![fault(1, "GPU 0", "79", "m", RecommendedAction::RestartBm)],
        configured: BTreeSet::from(["Check".to_owned()]),
        ..Node::default()
    }
}

#[test]
fn what_a_store_that_was_lost_does_not_know_stays_until_somebody_knows_better() {
    let mut written = with_fault();
    written.run();
    for configured in [true, false] {
        let lost = || {
            let mut node = Node {
                conditions: written.conditions.clone(),
                listed: written.listed.clone(),
                ..Node::default()
            };
            node.configured
                .extend(configured.then(|| "Check".to_owned()));
            node
        };
        assert!(lost().decide().is_empty(), "nobody said that it is over");
        let mut said = lost();
        said.healthy.insert("Check".to_owned(), at(7));
        let mut looked = lost();
        looked.settled.insert("Check".to_owned());
        let mut ended = lost();
        ended.known.insert("Check".to_owned());
        for mut node in [said, looked, ended] {
            node.run();
            let want = configured.then_some((false, "CheckIsHealthy"));
            assert_eq!(node.says("Check"), want);
        }
        // What says that all is well is no loss.
        let mut well = lost();
        well.conditions.get_mut("Check").unwrap().is_true = false;
        well.run();
        assert_eq!(well.says("Check").is_some(), configured);
    }
}

#[test]
fn row_012_a_fatal_fault_sets_the_condition_and_its_end_clears_it() {
    let mut node = with_fault();
    let write = node.run();
    assert_eq!(node.says("Check"), Some((true, "CheckIsNotHealthy")));
    assert_eq!(write.set[0].transition_at, Some(at(1)));
    assert_eq!(write.listed, Some(BTreeSet::from(["Check".to_owned()])));
    // More of it changes the message, not the time of the transition.
    node.faults
        .push(fault(2, "GPU 1", "79", "m", RecommendedAction::RestartBm));
    let write = node.run();
    assert_eq!(
        (write.set[0].transition_at, write.set[0].heartbeat_at),
        (None, at(2))
    );
    // Closed, also without a healthy word: for example by a person.
    node.faults.clear();
    node.run();
    assert_eq!(node.says("Check"), Some((false, "CheckIsHealthy")));
    assert_eq!(node.conditions["Check"].message, "No Health Failures");
}

#[test]
fn a_repeat_of_a_fault_writes_nothing() {
    let mut node = with_fault();
    node.faults
        .push(fault(2, "GPU 1", "79", "m", RecommendedAction::RestartBm));
    node.run();
    node.faults[0].last_at = at(50);
    assert!(node.decide().is_empty());
}

#[test]
fn healthy_before_any_fault_writes_false_and_unknown_writes_nothing() {
    let mut node = Node {
        healthy: BTreeMap::from([("Check".to_owned(), at(3))]),
        configured: BTreeSet::from(["Check".to_owned(), "Unknown".to_owned()]),
        ..Node::default()
    };
    node.run();
    assert_eq!(node.says("Check"), Some((false, "CheckIsHealthy")));
    assert_eq!(node.says("Unknown"), None);
}

#[test]
fn a_fault_that_is_not_fatal_makes_no_condition() {
    let mut node = with_fault();
    node.faults[0].fatal = false;
    assert!(node.decide().is_empty());
}

#[test]
fn listed_types_without_fault_and_check_go() {
    let mut node = with_fault();
    node.run();
    node.configured.clear();
    node.run();
    assert_eq!(
        node.says("Check"),
        Some((true, "CheckIsNotHealthy")),
        "its fault is open"
    );
    node.faults.clear();
    let write = node.run();
    assert_eq!(write.remove, BTreeSet::from(["Check".to_owned()]));
    assert_eq!(write.listed, Some(BTreeSet::new()));
}

#[test]
fn foreign_types_are_never_touched() {
    for kind in ["Check", "Ready"] {
        let mut node = Node::foreign(kind);
        node.faults = with_fault().faults;
        node.faults[0].check = kind.into();
        assert!(node.decide().is_empty(), "{kind}");
        node.faults.clear();
        node.healthy.insert(kind.into(), at(1));
        assert!(node.decide().is_empty(), "{kind}");
    }
    // Kubernetes' own not even where it is not there yet.
    let mut node = with_fault();
    node.faults[0].check = "Ready".into();
    assert!(node.decide().is_empty());
}

#[test]
fn the_reference_s_types_are_left_alone_until_our_detector_has_settled() {
    // A detector that finds nothing says no healthy word: that it has looked is enough.
    for word in [Some(at(1)), None] {
        let mut node = Node::foreign("Check");
        node.conditions.get_mut("Check").unwrap().is_true = true;
        node.reference_types = BTreeSet::from(["Check".to_owned()]);
        node.healthy.extend(word.map(|at| ("Check".to_owned(), at)));
        node.settled.insert("Check".into());
        node.reference_runs = true;
        assert!(node.decide().is_empty());
        node.reference_runs = false;
        node.settled.clear();
        assert!(node.decide().is_empty());
        node.settled.insert("Check".into());
        node.run();
        assert_eq!(
            node.says("Check"),
            Some((false, "CheckIsHealthy")),
            "{word:?}"
        );
    }
}

fn non_fatal() -> HealthEvent {
    HealthEvent {
        agent: "gpu-health-monitor".into(),
        check_name: "GpuPowerWatch".into(),
        entities: entities("GPU 0"),
        message: "power".into(),
        node_name: "n1".into(),
        generated_at: Some(at(7)),
        ..HealthEvent::default()
    }
}

#[test]
fn row_013_a_fault_that_is_not_fatal_makes_an_event() {
    let post = event_post(&non_fatal(), Limits::default(), at(9)).unwrap();
    assert_eq!(
        (post.kind.as_str(), post.reason.as_str()),
        ("GpuPowerWatch", "GpuPowerWatchIsNotHealthy")
    );
    assert_eq!(post.message, "GPU:0 power Recommended Action=NONE;");
    assert_eq!(
        (post.component.as_str(), post.node.as_str(), post.at),
        ("gpu-health-monitor", "n1", at(7))
    );
    let later = HealthEvent {
        generated_at: None,
        ..non_fatal()
    };
    let repeat = event_post(&later, Limits::default(), at(9)).unwrap();
    assert_eq!((repeat.at, repeat.key()), (at(9), post.key()));
}

#[test]
fn row_009_other_events_make_none() {
    for event in [
        HealthEvent {
            is_fatal: true,
            ..non_fatal()
        },
        HealthEvent {
            is_healthy: true,
            ..non_fatal()
        },
        HealthEvent {
            strategy: ProcessingStrategy::StoreOnly,
            ..non_fatal()
        },
        HealthEvent {
            strategy: ProcessingStrategy::StoreAndAnalyse,
            ..non_fatal()
        },
    ] {
        assert_eq!(event_post(&event, Limits::default(), at(9)), None);
    }
}

proptest! {
    #[test]
    fn a_message_keeps_its_limit(
        parts in proptest::collection::vec(
            (1..6_u64, 0..4_u8, "[0-9]{0,3}", ".{0,60}", any::<bool>()),
            1..20,
        ),
        message in 64..1200_usize,
        compact in 0..100_usize,
    ) {
        let faults: Vec<FaultEntry> = parts
            .iter()
            .map(|(seq, gpu, code, words, restart)| {
                let action = if *restart { RecommendedAction::RestartBm } else { RecommendedAction::None };
                fault(*seq, &format!("GPU {gpu}"), code, words, action)
            })
            .collect();
        let limits = Limits { message, compact };
        let made = text(&faults, limits);
        prop_assert!(made.len() <= message, "{} > {message}", made.len());
        prop_assert!(made.ends_with(';') || made.ends_with("..."));
    }
}

#[test]
fn devices_of_an_event_are_printed_as_sent() {
    let sent = entities("NIC mlx5_1, NICPort 1");
    let device = &devices_of(&sent)[0];
    let entry = FaultEntry {
        device: device.clone(),
        ..fault(1, "", "", "", RecommendedAction::None)
    };
    assert_eq!(
        text(&[entry], Limits::default()),
        "NIC:mlx5_1 NICPort:1 Recommended Action=NONE;"
    );
}

#[test]
fn nothing_that_steers_a_terminal_comes_into_a_condition_or_event() {
    let mut event = HealthEvent {
        agent: "a".into(),
        check_name: "C".into(),
        message: "one\u{1b}[2J two\u{202e}\nthree; four".into(),
        error_codes: vec!["7\u{7}9".into()],
        entities: vec![Entity::new("GP\u{200b}U", "0\r1")],
        ..HealthEvent::default()
    };
    let post = event_post(&event, Limits::default(), Timestamp::UNIX_EPOCH).unwrap();
    assert_eq!(
        post.message,
        "ErrorCode:79 GPU:01 one two three. four Recommended Action=NONE;"
    );
    event.is_fatal = true;
    let entry = FaultEntry {
        check: "C".into(),
        seq: 1,
        device: Device::new(event.entities.clone()),
        code: event.error_codes[0].clone(),
        fatal: true,
        message: event.message.clone(),
        action: event.recommended_action,
        last_at: Timestamp::UNIX_EPOCH,
    };
    let message = unhealthy("C", &[&entry], Limits::default()).message;
    assert_eq!(message, post.message);
}

/// A node of which one sender said fatal things under very many names, and then a check that we
/// know spoke.
fn crowded(checks: u64, name: impl Fn(u64) -> String) -> Node {
    let mut node = Node::default();
    for seq in 1..=checks {
        let mut fault = fault(seq, "GPU 0", "", "bad", RecommendedAction::None);
        fault.check = name(seq);
        node.faults.push(fault);
    }
    let mut xid = fault(
        checks + 1,
        "GPU 0",
        "79",
        "off the bus",
        RecommendedAction::None,
    );
    health_event::checks::XID.clone_into(&mut xid.check);
    node.faults.push(xid);
    node
}

#[test]
fn one_sender_with_very_many_checks_leaves_room_for_the_checks_that_are_known() {
    let mut node = crowded(9_417, |n| format!("monitor-check-{n:05}"));
    node.run();
    assert_eq!(node.conditions.len(), OWN_CONDITIONS + 2);
    assert_eq!(node.listed.len(), OWN_CONDITIONS + 2);
    assert!(node.says(health_event::checks::XID).unwrap().0);
    assert!(node.says(MORE_FAULTS).unwrap().0);
    assert!(
        node.says("monitor-check-00064").is_some(),
        "the oldest stay"
    );
    assert!(node.says("monitor-check-00065").is_none());
    // As they close, the conditions are those of what is left, and none says that there are more.
    node.faults.retain(|f| f.seq > 9_400);
    node.run();
    assert_eq!(node.conditions.len(), 9_417 - 9_400 + 1);
    assert!(node.says(MORE_FAULTS).is_none());
}

#[test]
fn long_names_take_no_more_room_than_short_ones() {
    let mut node = crowded(60, |n| format!("{n:0>1000}"));
    node.run();
    let bytes: usize = node.listed.iter().map(String::len).sum();
    assert!(bytes <= OWN_CONDITION_BYTES + 100, "{bytes}");
    assert!(node.says(health_event::checks::XID).unwrap().0);
}

#[test]
fn a_node_that_is_full_already_is_emptied_and_a_foreign_condition_never_is() {
    let mut node = Node::foreign("Theirs");
    node.healthy.insert("Theirs".into(), at(0));
    for n in 0..500 {
        let kind = format!("own-{n}");
        node.listed.insert(kind.clone());
        node.healthy.insert(kind.clone(), at(n));
        node.configured.insert(kind.clone());
        let read = ConditionRead {
            is_true: false,
            reason: format!("{kind}{HEALTHY_SUFFIX}"),
            message: NO_HEALTH_FAILURES.into(),
        };
        node.conditions.insert(kind, read);
    }
    node.run();
    assert_eq!(node.conditions.len(), OWN_CONDITIONS + 1);
    assert_eq!(node.says("Theirs"), Some((false, "Theirs")));
    assert!(node.says(MORE_FAULTS).is_none(), "nothing is wrong");
}
