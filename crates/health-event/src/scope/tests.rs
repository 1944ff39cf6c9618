//! Tables for closing, and the property that order and repetition do not matter.

use proptest::prelude::*;

use super::*;
use crate::event::Entity;
use crate::order::{BootId, Order};

pub(super) fn device(text: &str) -> Device {
    Device::new(
        text.split(", ")
            .filter(|part| !part.is_empty())
            .map(|part| part.split_once(' ').unwrap())
            .map(|(kind, value)| Entity::new(kind, value)),
    )
}

fn devices(text: &str) -> Vec<Device> {
    let entities: Vec<Entity> = text
        .split('|')
        .flat_map(|part| device(part).entities().to_vec())
        .collect();
    if text.contains('|') {
        text.split('|').map(device).collect()
    } else {
        crate::devices_of(&entities)
    }
}

fn order(number: u64) -> Order {
    Order {
        boot: BootId::new("b"),
        spool: "s".into(),
        number,
    }
}

/// A statement of a node's agent: `H` or `U`, devices, codes joined by `,`.
pub(super) fn say(number: u64, word: &str, parts: &str, codes: &str) -> Statement {
    Statement {
        sender: Sender::agent("n1"),
        stamp: Stamp {
            order: Some(order(number)),
            at: Timestamp::from_second(number.cast_signed()).unwrap(),
        },
        space: Space::ExecuteRemediation,
        devices: devices(parts),
        codes: codes.split(',').map(str::to_owned).collect(),
        healthy: word == "H",
        fatal: true,
        action: RecommendedAction::RestartBm,
        newest_counts: false,
        inclusive: false,
    }
}

fn run(statements: &[Statement]) -> ScopeState {
    let mut state = ScopeState::default();
    for statement in statements {
        state.apply(
            statement,
            &Boots::default(),
            Timestamp::from_second(1_000).unwrap(),
        );
    }
    state
}

pub(super) fn open(state: &ScopeState) -> Vec<String> {
    let mut keys: Vec<String> = state
        .faults
        .iter()
        .filter(|f| f.open)
        .map(|f| format!("{} {}", f.device.key(), f.code).trim().to_owned())
        .collect();
    keys.sort();
    keys
}

#[track_caller]
fn check(history: &[(&str, &str, &str)], want: &[&str]) {
    let statements: Vec<Statement> = history
        .iter()
        .zip(1..)
        .map(|((word, parts, codes), number)| say(number, word, parts, codes))
        .collect();
    assert_eq!(open(&run(&statements)), want, "in order");
    let backwards: Vec<Statement> = statements.into_iter().rev().collect();
    assert_eq!(open(&run(&backwards)), want, "backwards");
}

#[test]
fn two_ports_of_one_nic_are_two_faults() {
    check(
        &[
            ("U", "NIC m, NICPort 1, NICPort 2", ""),
            ("H", "NIC m, NICPort 1", ""),
        ],
        &["NIC=m/NICPort=2"],
    );
}

#[test]
fn a_port_of_another_nic_closes_nothing() {
    check(
        &[("U", "NIC m, NICPort 1", ""), ("H", "NIC n, NICPort 1", "")],
        &["NIC=m/NICPort=1"],
    );
}

#[test]
fn a_nic_without_port_closes_all_its_ports() {
    check(
        &[("U", "NIC m, NICPort 1, NICPort 2", ""), ("H", "NIC m", "")],
        &[],
    );
}

#[test]
fn a_list_of_gpus_closes_one_by_one() {
    let fault = ("U", "GPU 0, GPU 1, GPU 2", "79");
    check(&[fault, ("H", "GPU 0", "")], &["GPU=1 79", "GPU=2 79"]);
    check(
        &[
            fault,
            ("H", "GPU 0", ""),
            ("H", "GPU 2", ""),
            ("H", "GPU 1", "79"),
        ],
        &[],
    );
}

#[test]
fn another_uuid_at_the_same_address_does_not_close() {
    check(
        &[
            ("U", "PCI 0000:17:00, GPU_UUID u1", "79"),
            ("H", "PCI 0000:17:00, GPU_UUID u2", ""),
        ],
        &["PCI=0000:17:00 79"],
    );
}

#[test]
fn the_same_uuid_at_another_address_does_not_close() {
    check(
        &[
            ("U", "PCI 0000:17:00, GPU_UUID u1", "79"),
            ("H", "PCI 0000:18:00, GPU_UUID u1", ""),
        ],
        &["PCI=0000:17:00 79"],
    );
}

#[test]
fn a_uuid_known_late_is_the_same_fault() {
    check(
        &[
            ("U", "PCI 0000:17:00", "79"),
            ("U", "PCI 0000:17:00, GPU_UUID u1", "79"),
        ],
        &["PCI=0000:17:00 79"],
    );
    check(
        &[
            ("U", "GPU_UUID u1", "79"),
            ("U", "PCI 0000:17:00, GPU_UUID u1", "79"),
            ("H", "PCI 0000:17:00", ""),
        ],
        &[],
    );
}

#[test]
fn two_names_of_one_device_become_one_fault_once_that_is_known() {
    check(
        &[
            ("U", "GPU 0", "79"),
            ("U", "PCI 0000:17:00", "79"),
            ("U", "PCI 0000:17:00, GPU 0", "79"),
        ],
        &["PCI=0000:17:00 79"],
    );
}

#[test]
fn a_healthy_statement_without_code_closes_every_code() {
    check(&[("U", "GPU 0", "163,98"), ("H", "GPU 0", "")], &[]);
}

#[test]
fn a_coded_healthy_statement_closes_its_code_only() {
    check(
        &[("U", "GPU 0", "163,98"), ("H", "GPU 0", "163")],
        &["GPU=0 98"],
    );
    check(&[("U", "GPU 0", ""), ("H", "GPU 0", "163")], &["GPU=0"]);
}

#[test]
fn a_healthy_statement_without_device_closes_the_whole_check() {
    check(
        &[("U", "GPU 0, GPU 1", "79"), ("U", "", "48"), ("H", "", "")],
        &[],
    );
    check(
        &[("U", "GPU 0", "79"), ("U", "GPU 1", "48"), ("H", "", "79")],
        &["GPU=1 48"],
    );
}

#[test]
fn fewer_types_are_enough_and_a_contradiction_is_not() {
    check(
        &[
            ("U", "PCI 0000:17:00, GPU_UUID u", "79"),
            ("H", "GPU_UUID u", ""),
        ],
        &[],
    );
    check(
        &[
            ("U", "PCI 0000:17:00, GPU_UUID u", "79"),
            ("H", "PCI 0000:17:00, GPU_UUID v", ""),
        ],
        &["PCI=0000:17:00 79"],
    );
}

#[test]
fn healthy_before_the_fault_closes_nothing_later() {
    check(&[("H", "GPU 0", ""), ("U", "GPU 0", "79")], &["GPU=0 79"]);
}

#[test]
fn a_late_fault_that_was_answered_opens_nothing() {
    let mut state = run(&[say(2, "H", "GPU 0", "")]);
    let changes = state.apply(
        &say(1, "U", "GPU 0", "79"),
        &Boots::default(),
        Timestamp::UNIX_EPOCH,
    );
    assert!(
        matches!(changes.as_slice(), [Change::Answered(_)]),
        "{changes:?}"
    );
    assert!(open(&state).is_empty());
}

#[test]
fn spaces_are_apart_and_a_stronger_healthy_statement_closes_the_weaker() {
    let mut observed = say(1, "U", "GPU 0", "79");
    observed.space = Space::StoreOnly;
    let acting = say(2, "U", "GPU 0", "79");
    let mut observed_healthy = say(3, "H", "GPU 0", "");
    observed_healthy.space = Space::StoreOnly;
    let state = run(&[observed.clone(), acting.clone(), observed_healthy]);
    let left: Vec<Space> = state
        .faults
        .iter()
        .filter(|f| f.open)
        .map(|f| f.space)
        .collect();
    assert_eq!(left, [Space::ExecuteRemediation]);
    assert!(open(&run(&[observed, acting, say(3, "H", "GPU 0", "")])).is_empty());
}

#[test]
fn between_senders_the_later_time_decides_and_at_equal_times_the_unhealthy_word() {
    let agent = say(5, "U", "GPU 0", "79");
    let mut other = say(5, "H", "GPU 0", "");
    other.sender = Sender::service_account("ops", "dcgm");
    other.stamp.order = None;
    assert_eq!(open(&run(&[agent.clone(), other.clone()])), ["GPU=0 79"]);
    other.stamp.at = Timestamp::from_second(6).unwrap();
    assert!(open(&run(&[agent.clone(), other.clone()])).is_empty());
    assert!(open(&run(&[other, agent])).is_empty());
}

#[test]
fn a_closing_of_our_own_lets_any_later_statement_open_again() {
    let mut closing = say(1, "H", "GPU 0", "79");
    closing.inclusive = true;
    let state = run(&[say(1, "U", "GPU 0", "79"), closing.clone()]);
    assert!(open(&state).is_empty());
    assert_eq!(
        open(&run(&[
            say(1, "U", "GPU 0", "79"),
            closing,
            say(2, "U", "GPU 0", "79")
        ])),
        ["GPU=0 79"]
    );
}

#[test]
fn a_closing_of_our_own_closes_exactly_what_it_names() {
    let raises = [
        say(1, "U", "", ""),
        say(2, "U", "GPU 0", ""),
        say(3, "U", "GPU 0", "79"),
        say(4, "U", "", "79"),
    ];
    let all = ["", "79", "GPU=0", "GPU=0 79"];
    for (parts, code, closed) in [("", "", ""), ("GPU 0", "", "GPU=0"), ("", "79", "79")] {
        let mut statements = raises.to_vec();
        let mut closing = say(9, "H", parts, code);
        closing.inclusive = true;
        statements.push(closing);
        let left: Vec<&str> = all.into_iter().filter(|key| *key != closed).collect();
        assert_eq!(open(&run(&statements)), left);
        statements.reverse();
        assert_eq!(open(&run(&statements)), left);
    }
}

#[test]
fn severity_and_action_only_rise_while_open() {
    let grave = say(1, "U", "GPU 0", "79");
    let mut light = say(2, "U", "GPU 0", "79");
    (light.fatal, light.action) = (false, RecommendedAction::None);
    let state = run(&[grave.clone(), light.clone()]);
    assert!(state.faults[0].fatal && state.faults[0].action == RecommendedAction::RestartBm);
    light.stamp = say(3, "U", "", "").stamp;
    let state = run(&[grave, say(2, "H", "GPU 0", ""), light]);
    assert!(!state.faults[0].fatal && state.faults[0].open);
}

#[test]
fn of_xid_154_the_newest_counts() {
    let mut first = say(1, "U", "GPU 0", "154");
    let mut second = say(2, "U", "GPU 0", "154");
    (first.newest_counts, second.newest_counts) = (true, true);
    second.action = RecommendedAction::ComponentReset;
    let state = run(&[first.clone(), second.clone()]);
    assert_eq!(state.faults[0].action, RecommendedAction::ComponentReset);
    assert_eq!(
        run(&[second, first]).faults[0].action,
        RecommendedAction::ComponentReset
    );
}

#[test]
fn a_flapping_fault_is_held_until_it_was_healthy_for_ten_minutes() {
    let mut state = ScopeState::default();
    let boots = Boots::default();
    let at = |second| Timestamp::from_second(second).unwrap();
    let mut number = 0;
    let mut flap = |state: &mut ScopeState, word: &str, second: i64| {
        number += 1;
        let mut statement = say(number, word, "GPU 0", "");
        statement.fatal = false;
        state.apply(&statement, &boots, at(second))
    };
    for round in 0..5 {
        flap(&mut state, "U", round * 20);
        assert!(matches!(
            flap(&mut state, "H", round * 20 + 10).as_slice(),
            [Change::Closed(_)]
        ));
    }
    flap(&mut state, "U", 100);
    assert_eq!(flap(&mut state, "H", 110), []);
    assert_eq!(open(&state), ["GPU=0"]);
    assert_eq!(state.release_flapping(at(709)), []);
    assert!(matches!(
        state.release_flapping(at(710)).as_slice(),
        [Change::Closed(_)]
    ));
}

#[test]
fn clears_are_bounded() {
    let history: Vec<Statement> = (1..400)
        .map(|n| say(n, "H", &format!("GPU {n}"), ""))
        .collect();
    assert_eq!(run(&history).clears.len(), CLEARS_KEPT);
}

/// Statements of two agents' spools and two direct senders about a handful of devices. Ids are
/// unique, as the store guarantees.
pub(super) fn history() -> impl Strategy<Value = Vec<Statement>> {
    let one = (
        0..4_usize,
        0..6_usize,
        0..3_usize,
        any::<bool>(),
        0..3_usize,
        0..8_i64,
        0..3_usize,
    );
    prop::collection::vec(one, 1..14).prop_map(|parts| {
        parts
            .into_iter()
            .zip(1_u64..)
            .map(
                |((sender, part, code, healthy, grade, at, space), number)| {
                    let names = [
                        "",
                        "GPU 0",
                        "GPU 1",
                        "GPU 0, GPU 1",
                        "PCI 0000:01:00",
                        "NIC m, NICPort 1",
                    ];
                    let mut s = say(
                        number,
                        if healthy { "H" } else { "U" },
                        names[part],
                        ["", "79", "79,48"][code],
                    );
                    s.stamp.at = Timestamp::from_second(at).unwrap();
                    s.fatal = grade > 1;
                    s.action = [
                        RecommendedAction::None,
                        RecommendedAction::RestartVm,
                        RecommendedAction::RestartBm,
                    ][grade];
                    s.space = [
                        Space::ExecuteRemediation,
                        Space::StoreOnly,
                        Space::StoreAndAnalyse,
                    ][space];
                    // Now and then a closing of the controller's own.
                    s.inclusive = healthy && grade == 2;
                    s.sender = match sender {
                        0 | 1 => Sender::agent("n1"),
                        _ => Sender::service_account("ns", &format!("s{sender}")),
                    };
                    if sender >= 2 {
                        s.stamp.order = None;
                    } else if let Some(order) = &mut s.stamp.order {
                        order.boot = BootId::new(["b1", "b2"][sender]);
                    }
                    s
                },
            )
            .collect()
    })
}

pub(super) type Summary = Vec<(FaultKey, bool, RecommendedAction)>;

pub(super) fn summary(statements: &[Statement]) -> Summary {
    summary_of(&taken_in(statements.iter().zip(1_i64..)).0)
}

/// What statements make, each with its place among the receipts.
pub(super) fn taken_in<'a>(
    statements: impl Iterator<Item = (&'a Statement, i64)>,
) -> (ScopeState, Boots) {
    let boots = Boots::new(vec![BootId::new("b1"), BootId::new("b2")]);
    let mut state = ScopeState::default();
    for (statement, index) in statements {
        // Far apart, so that no fault flaps: holding is about times of receipt on purpose.
        let now = Timestamp::from_second(index * 100_000).unwrap();
        state.apply(statement, &boots, now);
    }
    (state, boots)
}

pub(super) fn summary_of(state: &ScopeState) -> Summary {
    let mut open: Summary = state
        .faults
        .iter()
        .filter(|f| f.open)
        .map(|f| (f.key(), f.fatal, f.action))
        .collect();
    open.sort_by(|a, b| a.0.cmp(&b.0));
    open
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn arrival_order_and_repetition_do_not_matter(
        (original, shuffled) in history().prop_flat_map(|h| {
            let mut doubled = h.clone();
            doubled.extend(h.iter().take(5).cloned());
            (Just(h), Just(doubled).prop_shuffle())
        })
    ) {
        prop_assert_eq!(summary(&original), summary(&shuffled));
    }

    #[test]
    fn a_healthy_word_about_everything_closes_everything(h in history()) {
        let mut statements = h;
        for (sender, second) in [(Sender::agent("n1"), 100), (Sender::service_account("ns", "s2"), 101),
                                 (Sender::service_account("ns", "s3"), 102)] {
            let mut all = say(1_000, "H", "", "");
            all.stamp.at = Timestamp::from_second(second).unwrap();
            if sender != Sender::agent("n1") { all.stamp.order = None; }
            all.sender = sender;
            if let Some(order) = &mut all.stamp.order { order.boot = BootId::new("b2"); }
            statements.push(all);
        }
        prop_assert_eq!(summary(&statements), vec![]);
    }

    #[test]
    fn the_memory_of_a_fault_is_bounded_by_the_grades(h in history()) {
        let state = run(&h);
        for fault in &state.faults {
            for stack in fault.raised.values() {
                prop_assert!(stack.len() <= 18);
                prop_assert!(stack.windows(2).all(|w| !w[1].outweighs(&w[0])));
            }
        }
    }
}
