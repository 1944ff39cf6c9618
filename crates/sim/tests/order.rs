//! P4: whatever is lost, doubled or late, once the last report is applied the open faults are
//! those that the last report asserts, and those of other senders that these said last.

use health_event::{
    BootId, Boots, Device, Entity, Order, RecommendedAction, ScopeState, Sender, Space, Stamp,
    Statement,
};
use jiff::Timestamp;
use proptest::prelude::*;

/// One thing that the agent observed: a code of the one device, there or not.
#[derive(Debug, Clone)]
struct Observed {
    code: usize,
    healthy: bool,
    later_boot: bool,
    later_spool: bool,
}

const CODES: [&str; 3] = ["48", "79", "119"];

fn device() -> Device {
    Device::new([Entity::new("PCI", "0000:17:00")])
}

fn statement(
    sender: Sender,
    order: Option<Order>,
    code: &str,
    healthy: bool,
    at: i64,
) -> Statement {
    Statement {
        sender,
        stamp: Stamp {
            order,
            at: Timestamp::from_second(at).unwrap(),
        },
        space: Space::ExecuteRemediation,
        devices: vec![device()],
        codes: vec![code.to_owned()],
        healthy,
        fatal: true,
        action: RecommendedAction::RestartBm,
        newest_counts: false,
        inclusive: false,
    }
}

/// The agent's statements in the order in which it made them.
fn said_by_agent(history: &[Observed]) -> Vec<Statement> {
    let (mut boot, mut spool) = (0, 0);
    let mut say = |(observed, number): (&Observed, u64)| {
        boot = boot.max(usize::from(observed.later_boot));
        spool = spool.max(usize::from(observed.later_spool));
        let order = Order {
            boot: BootId::new(["boot-a", "boot-b"][boot]),
            spool: ["spool-a", "spool-b"][spool].into(),
            number,
        };
        let at = i64::try_from(number).unwrap();
        statement(
            Sender::agent("gpu-1"),
            Some(order),
            CODES[observed.code],
            observed.healthy,
            at,
        )
    };
    history.iter().zip(1..).map(&mut say).collect()
}

fn observed() -> impl Strategy<Value = Observed> {
    (0..CODES.len(), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(code, healthy, later_boot, later_spool)| Observed {
            code,
            healthy,
            later_boot,
            later_spool,
        },
    )
}

fn open(state: &ScopeState) -> Vec<String> {
    let mut open: Vec<_> = state
        .faults
        .iter()
        .filter(|f| f.open)
        .map(|f| f.code.clone())
        .collect();
    open.sort();
    open
}

/// The level: the newest statement of each asserted fault, and a closing of our own for whatever
/// else is open.
fn report(state: &mut ScopeState, made: &[Statement], boots: &Boots, now: Timestamp) {
    let newest = |code: &str| made.iter().rev().find(|s| s.codes[0] == code);
    for code in CODES {
        if let Some(asserted) = newest(code).filter(|s| !s.healthy) {
            state.apply(asserted, boots, now);
        }
    }
    let denied: Vec<String> = open(state)
        .into_iter()
        .filter(|code| newest(code).is_none_or(|s| s.healthy))
        .collect();
    for code in denied {
        let fault = state
            .faults
            .iter()
            .find(|f| f.open && f.code == code)
            .unwrap();
        let raised = &fault.raised[&Sender::agent("gpu-1")];
        let mut closing = statement(Sender::agent("gpu-1"), None, &code, true, 0);
        closing.stamp = raised.last().unwrap().stamp.clone();
        closing.inclusive = true;
        state.apply(&closing, boots, now);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn the_last_report_heals_loss_repetition_and_disorder(
        (history, arriving, late) in prop::collection::vec(observed(), 1..12).prop_flat_map(|history| {
            let made = said_by_agent(&history);
            // Some are lost, some come twice, in any order; some come only after the report.
            let mut doubled = made.clone();
            doubled.extend(made.clone());
            let some = prop::sample::subsequence(doubled.clone(), 0..=doubled.len()).prop_shuffle();
            let late = prop::sample::subsequence(made, 0..=history.len()).prop_shuffle();
            (Just(history), some, late)
        })
    ) {
        let made = said_by_agent(&history);
        let boots = Boots::new(vec![BootId::new("boot-a"), BootId::new("boot-b")]);
        let mut state = ScopeState::default();
        // Far apart, so that no fault flaps: holding is about times of receipt on purpose.
        let mut now = Timestamp::UNIX_EPOCH;
        for statement in &arriving {
            now += jiff::SignedDuration::from_hours(1);
            state.apply(statement, &boots, now);
        }
        report(&mut state, &made, &boots, now);
        let mut told: Vec<String> = CODES
            .into_iter()
            .filter(|code| made.iter().rev().find(|s| s.codes[0] == *code).is_some_and(|s| !s.healthy))
            .map(str::to_owned)
            .collect();
        told.sort();
        prop_assert_eq!(&open(&state), &told);
        for statement in &late {
            now += jiff::SignedDuration::from_hours(1);
            state.apply(statement, &boots, now);
        }
        // What was lost before and comes after the report is older than it; the next report
        // repairs what a lost healthy statement leaves open.
        report(&mut state, &made, &boots, now);
        prop_assert_eq!(&open(&state), &told);
    }
}
