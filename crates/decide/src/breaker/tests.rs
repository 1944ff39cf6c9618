use std::collections::{BTreeMap, BTreeSet};

use health_event::NodeName;
use health_event::incident::Bound;
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use super::*;

const POOL: &str = "gpu";

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

fn node(number: usize) -> NodeName {
    NodeName::new(&format!("n{number}")).unwrap()
}

fn asking(node: &NodeName, pool_size: usize) -> Ask<'_> {
    Ask {
        pool: POOL,
        pool_size,
        node,
        rule: "r",
        check: "c",
        paced: false,
        opened_at: at(0),
    }
}

fn take(state: &mut BreakerState, config: &Config, number: usize, size: usize, now: i64) -> Permit {
    state.take(config, &asking(&node(number), size), at(now))
}

fn rate_only() -> Config {
    Config {
        level_percent: 100,
        ..Config::default()
    }
}

fn is_tripped(state: &BreakerState) -> bool {
    state.pools.get(POOL).is_some_and(|p| p.tripped.is_some())
}

#[test]
fn bounds_are_the_reference_s_examples() {
    // quarantine 15: nodes, percentage, bound.
    let table = [
        (1, 50, 1),
        (2, 50, 1),
        (3, 50, 2),
        (5, 50, 3),
        (7, 50, 4),
        (10, 50, 5),
        (11, 50, 6),
        (50, 40, 20),
        (100, 20, 20),
        (375, 50, 188),
        (1500, 20, 300),
        (1500, 50, 750),
        (1500, 75, 1125),
    ];
    for (size, percent, bound) in table {
        let config = Config {
            level_percent: percent,
            rate_percent: percent,
            ..Config::default()
        };
        assert_eq!(config.level_bound(size), bound, "{size} {percent}");
        assert_eq!(config.rate_bound(size), bound, "{size} {percent}");
    }
}

#[test]
fn a_node_that_the_window_counts_already_does_not_trip_the_pool_when_it_falls_ill_again() {
    let (mut state, config) = (BreakerState::default(), rate_only());
    for number in 0..2 {
        assert_eq!(take(&mut state, &config, number, 4, 0), Permit::Taken);
    }
    state.release(POOL, &node(0));
    assert_eq!(take(&mut state, &config, 0, 4, 10), Permit::Taken);
    assert!(!is_tripped(&state));
    assert_eq!(
        take(&mut state, &config, 2, 4, 20),
        Permit::Withheld(Bound::Rate)
    );
}

#[test]
fn a_number_caps_and_the_least_number_of_nodes_is_always_allowed() {
    let config = Config {
        level_nodes: Some(500),
        min_nodes: 2,
        ..Config::default()
    };
    assert_eq!(config.level_bound(10_000), 500);
    assert_eq!(config.level_bound(100), 50);
    assert_eq!(config.level_bound(0), 2);
    assert_eq!(config.level_bound(usize::MAX), 500);
}

#[test]
fn the_bound_th_node_is_taken_and_the_next_trips() {
    let (mut state, config) = (BreakerState::default(), Config::default());
    for number in 0..5 {
        assert_eq!(take(&mut state, &config, number, 10, 0), Permit::Taken);
        assert!(!is_tripped(&state));
    }
    assert_eq!(
        take(&mut state, &config, 5, 10, 0),
        Permit::Withheld(Bound::Level)
    );
    let trip = state.pools[POOL].tripped.clone().unwrap();
    assert_eq!((trip.bound, trip.share, trip.counted), (Bound::Level, 5, 5));
    assert_eq!(trip.largest.rule, "r");
}

#[test]
fn row_105_a_reset_closes_a_tripped_pool() {
    let (mut state, config) = (BreakerState::default(), rate_only());
    for number in 0..6 {
        take(&mut state, &config, number, 10, 0);
    }
    assert!(is_tripped(&state));
    assert_eq!(state.reset(POOL), [node(5)]);
    assert!(!is_tripped(&state));
}

#[test]
fn a_node_that_does_not_want_its_turn_is_passed_over_and_keeps_its_place() {
    let (mut state, config) = (BreakerState::default(), rate_only());
    let asks = |state: &mut BreakerState, number: usize, now: i64| {
        let node = node(number);
        let ask = Ask {
            paced: true,
            opened_at: at(i64::try_from(number).unwrap()),
            ..asking(&node, 10)
        };
        state.take(&config, &ask, at(now))
    };
    let turn = |state: &mut BreakerState, now: i64| state.due(&config, POOL, 10, at(now)).node;
    assert_eq!(
        asks(&mut state, 0, 10),
        Permit::Taken,
        "alone in its window"
    );
    for number in [1, 2, 3] {
        assert_eq!(asks(&mut state, number, 10), Permit::Pace);
    }
    assert_eq!(turn(&mut state, 311), Some(node(1)));
    assert!(state.pass_over(POOL, &node(1)));
    assert!(!state.pass_over(POOL, &node(1)), "known already");
    assert!(!state.pass_over(POOL, &node(7)), "it does not wait");
    assert_eq!(turn(&mut state, 311), Some(node(2)));
    assert_eq!(asks(&mut state, 2, 311), Permit::Taken);
    // It asks again before the third: its place is the first still.
    assert_eq!(asks(&mut state, 1, 312), Permit::Pace);
    assert_eq!(turn(&mut state, 612), Some(node(1)));
    assert_eq!(asks(&mut state, 1, 612), Permit::Taken);
    assert_eq!(turn(&mut state, 912), Some(node(3)));
}

#[test]
fn row_106_six_events_a_reset_and_a_window_later_it_is_not_tripped_and_takes_again() {
    let (mut state, config) = (BreakerState::default(), rate_only());
    for number in 0..6 {
        take(&mut state, &config, number, 10, 0);
    }
    assert!(is_tripped(&state));
    state.reset(POOL);
    // Within the window the five taken still count.
    let within = take(&mut state.clone(), &config, 5, 10, 299);
    assert_ne!(within, Permit::Taken);
    // The reference's test waits 1.1 s after a window of 1 s; ours is 5 min.
    let later = 301;
    assert!(!is_tripped(&state), "no time trips it by itself");
    assert_eq!(take(&mut state, &config, 5, 10, later), Permit::Taken);
    assert!(!is_tripped(&state));
}

#[test]
fn row_108_the_same_node_ten_times_counts_once() {
    let (mut state, config) = (BreakerState::default(), rate_only());
    for round in 0..10 {
        assert_eq!(take(&mut state, &config, 0, 10, round), Permit::Taken);
        state.release(POOL, &node(0));
    }
    for number in 1..5 {
        assert_eq!(take(&mut state, &config, number, 10, 20), Permit::Taken);
    }
    assert_eq!(
        take(&mut state, &config, 5, 10, 20),
        Permit::Withheld(Bound::Rate)
    );
}

#[test]
fn row_109_four_of_ten_are_taken() {
    let (mut state, config) = (BreakerState::default(), Config::default());
    for number in 0..4 {
        assert_eq!(take(&mut state, &config, number, 10, 0), Permit::Taken);
    }
    assert!(!is_tripped(&state));
}

#[test]
fn row_110_the_fifth_of_ten_is_taken_and_the_sixth_never() {
    let (mut state, config) = (BreakerState::default(), Config::default());
    for number in 0..5 {
        assert_eq!(take(&mut state, &config, number, 10, 0), Permit::Taken);
    }
    for round in 0..3 {
        let answer = take(&mut state, &config, 5, 10, round);
        assert_eq!(answer, Permit::Withheld(Bound::Level));
    }
}

#[test]
fn row_112_after_a_reset_and_the_window_nothing_trips() {
    let config = Config {
        window: SignedDuration::from_secs(2),
        ..rate_only()
    };
    let mut state = BreakerState::default();
    for number in 0..6 {
        take(&mut state, &config, number, 10, 0);
    }
    assert!(is_tripped(&state));
    state.reset(POOL);
    assert_eq!(take(&mut state, &config, 5, 10, 3), Permit::Taken);
    assert!(!is_tripped(&state));
}

#[test]
fn row_113_ten_events_of_one_node_then_four_more_nodes() {
    let (mut state, config) = (BreakerState::default(), Config::default());
    for _ in 0..10 {
        assert_eq!(take(&mut state, &config, 0, 10, 0), Permit::Taken);
    }
    for number in 1..5 {
        assert_eq!(take(&mut state, &config, number, 10, 0), Permit::Taken);
    }
    assert_eq!(
        take(&mut state, &config, 5, 10, 0),
        Permit::Withheld(Bound::Level)
    );
}

#[test]
fn releases_pass_while_tripped_and_auto_resume_goes_on() {
    let config = Config {
        auto_resume: true,
        rate_percent: 100,
        ..Config::default()
    };
    let mut state = BreakerState::default();
    for number in 0..6 {
        take(&mut state, &config, number, 10, 0);
    }
    assert!(is_tripped(&state));
    state.release(POOL, &node(0));
    assert_eq!(state.pools[POOL].out.len(), 4);
    assert_eq!(state.due(&config, POOL, 10, at(1)).node, Some(node(5)));
    let without = Config {
        auto_resume: false,
        ..config
    };
    let mut state = BreakerState::default();
    for number in 0..6 {
        take(&mut state, &without, number, 10, 0);
    }
    state.release(POOL, &node(0));
    assert_eq!(
        take(&mut state, &without, 7, 10, 1),
        Permit::Withheld(Bound::Level)
    );
}

#[test]
fn waiting_nodes_go_by_turn_oldest_first() {
    let (mut state, config) = (BreakerState::default(), Config::default());
    let nodes: Vec<NodeName> = (0..4).map(node).collect();
    // The first-action delay is over; four nodes queue, n3 is the oldest.
    let ask = |number: usize| Ask {
        paced: true,
        opened_at: at(10 - i64::try_from(number).unwrap()),
        ..asking(&nodes[number], 100)
    };
    for number in [3, 2, 1, 0] {
        let want = if number == 3 {
            Permit::Taken
        } else {
            Permit::Pace
        };
        assert_eq!(state.take(&config, &ask(number), at(20)), want, "{number}");
    }
    // The first goes alone; a tenth of the rate bound of 50 is 5, so the others go together.
    let due = state.due(&config, POOL, 100, at(20));
    assert_eq!((due.node, due.again_at), (None, Some(at(320))));
    assert_eq!(state.due(&config, POOL, 100, at(320)).node, Some(node(2)));
    assert_eq!(state.take(&config, &ask(1), at(320)), Permit::Pace);
    for number in [2, 1, 0] {
        assert_eq!(
            state.take(&config, &ask(number), at(320)),
            Permit::Taken,
            "{number}"
        );
    }
    assert_eq!(state.due(&config, POOL, 100, at(320)), Due::default());
}

#[test]
fn in_a_small_pool_one_waiting_node_goes_a_window() {
    let (mut state, config) = (BreakerState::default(), Config::default());
    let (a, b) = (node(0), node(1));
    let ask = |node| Ask {
        paced: true,
        ..asking(node, 10)
    };
    assert_eq!(state.take(&config, &ask(&a), at(0)), Permit::Taken);
    assert_eq!(state.take(&config, &ask(&b), at(1)), Permit::Pace);
    let due = state.due(&config, POOL, 10, at(1));
    assert_eq!((due.node, due.again_at), (None, Some(at(300))));
    // A node whose fault opens after the delay does not queue.
    assert_eq!(take(&mut state, &config, 7, 10, 2), Permit::Taken);
    assert_eq!(state.due(&config, POOL, 10, at(300)).node, Some(b.clone()));
    assert_eq!(state.take(&config, &ask(&b), at(300)), Permit::Taken);
}

#[test]
fn a_turn_that_a_bound_stops_does_not_trip() {
    let (mut state, config) = (BreakerState::default(), Config::default());
    for number in 0..6 {
        take(&mut state, &config, number, 10, 0);
    }
    state.reset(POOL);
    assert_eq!(take(&mut state, &config, 5, 10, 1), Permit::Pace);
    assert!(!is_tripped(&state));
    assert_eq!(state.due(&config, POOL, 10, at(1)), Due::default());
    state.release(POOL, &node(0));
    // Level is free, the rate is not: the window has to pass.
    assert_eq!(state.due(&config, POOL, 10, at(1)).again_at, Some(at(300)));
    assert_eq!(take(&mut state, &config, 5, 10, 300), Permit::Taken);
}

#[test]
fn a_node_that_did_not_ask_counts_for_the_level_only() {
    let (mut state, config) = (BreakerState::default(), Config::default());
    for number in 0..5 {
        state.count(POOL, &node(number), Cause::default());
    }
    assert!(state.pools[POOL].window.is_empty());
    assert_eq!(
        take(&mut state, &config, 5, 10, 0),
        Permit::Withheld(Bound::Level)
    );
    // A person's hold on a withheld node takes it out of the queue.
    state.count(POOL, &node(5), Cause::default());
    assert!(state.pools[POOL].waiting.is_empty());
}

#[test]
fn the_trip_names_the_largest_cause() {
    let (mut state, config) = (BreakerState::default(), Config::default());
    for (number, rule) in ["a", "b", "b", "b", "c"].into_iter().enumerate() {
        let node = node(number);
        let ask = Ask {
            rule,
            ..asking(&node, 10)
        };
        state.take(&config, &ask, at(0));
    }
    take(&mut state, &config, 9, 10, 0);
    let trip = state.pools[POOL].tripped.clone().unwrap();
    assert_eq!(
        (trip.largest.rule.as_str(), trip.share, trip.counted),
        ("b", 3, 5)
    );
}

#[test]
fn pools_are_apart_and_a_disabled_breaker_counts_nothing() {
    let (mut state, config) = (BreakerState::default(), Config::default());
    for number in 0..6 {
        take(&mut state, &config, number, 10, 0);
    }
    let other = node(77);
    let ask = Ask {
        pool: "other",
        ..asking(&other, 10)
    };
    assert_eq!(state.take(&config, &ask, at(0)), Permit::Taken);
    let off = Config {
        enabled: false,
        ..config
    };
    assert_eq!(take(&mut state, &off, 8, 10, 0), Permit::Taken);
    assert!(!state.pools[POOL].out.contains_key(&node(8)));
}

#[test]
fn bad_settings_are_all_named() {
    let config = Config {
        level_percent: 0,
        rate_percent: 101,
        rate_nodes: Some(0),
        min_nodes: 0,
        window: SignedDuration::ZERO,
        ..Config::default()
    };
    let keys: Vec<_> = config.check().unwrap_err().iter().map(|e| e.key).collect();
    assert_eq!(
        keys,
        [
            "level_percent",
            "rate_percent",
            "rate_nodes",
            "min_nodes",
            "window"
        ]
    );
    assert!(Config::default().check().is_ok());
}

#[test]
fn silence_of_many_is_a_fault_of_the_pool() {
    let config = SilentConfig {
        share_percent: 20,
        min_nodes: 3,
        window: SignedDuration::from_mins(5),
        not_before: at(0),
    };
    let silent = |times: &[i64]| -> BTreeMap<NodeName, Timestamp> {
        times
            .iter()
            .enumerate()
            .map(|(i, t)| (node(i), at(*t)))
            .collect()
    };
    let found = |size, times: &[i64], now| {
        silent_share(&config, size, &silent(times), at(now)).map(|nodes| nodes.len())
    };
    assert_eq!(found(10, &[1, 2], 10), None, "two are too few");
    assert_eq!(found(10, &[1, 2, 3], 10), Some(3));
    assert_eq!(found(100, &[1, 2, 3], 10), None, "three of a hundred");
    assert_eq!(
        found(10, &[1, 200, 500], 600),
        None,
        "not within five minutes"
    );
    assert_eq!(found(10, &[1, 200, 300], 600), Some(3));
    assert_eq!(
        found(10, &[1, 2, 3], -1),
        None,
        "the controller has only just started"
    );
    assert_eq!(found(0, &[], 10), None);
}

/// One step of a random history.
#[derive(Debug, Clone)]
enum Step {
    Ask {
        node: usize,
        paced: bool,
    },
    Release(usize),
    Reset,
    Wait(i64),
    /// The process ends, and another reads what is stored.
    Restart,
}

/// What a new process has: trip, turns and who was taken out in the window, by the store; who is
/// out and who waits, by the incidents.
fn restarted(
    state: &BreakerState,
    answers: &BTreeMap<usize, Withheld>,
    taken: &[(i64, usize)],
    now: i64,
) -> BreakerState {
    let Some(pool) = state.pools.get(POOL) else {
        return BreakerState::default();
    };
    let newest: BTreeMap<usize, i64> = taken.iter().map(|(at, node)| (*node, *at)).collect();
    let mut newest: Vec<(i64, usize)> = newest.into_iter().map(|(n, t)| (t, n)).collect();
    newest.sort_unstable();
    let newest = newest.into_iter().filter(|(t, _)| now - t < 300);
    let taken = newest.map(|(t, number)| TakenOut {
        node: node(number),
        at: at(t),
        cause: Cause::default(),
    });
    let kept = PoolState::restored(pool.tripped.clone(), pool.paced.clone(), taken);
    let mut again = BreakerState::default();
    again.pools.insert(POOL.to_owned(), kept);
    for (number, why) in answers {
        again.wait_again(POOL, &node(*number), at(0), why);
    }
    for (name, cause) in &pool.out {
        again.count(POOL, name, cause.clone());
    }
    again
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..30_usize, any::<bool>()).prop_map(|(node, paced)| Step::Ask { node, paced }),
        3 => (0..30_usize).prop_map(Step::Release),
        1 => Just(Step::Reset),
        2 => (1..200_i64).prop_map(Step::Wait),
        1 => Just(Step::Restart),
    ];
    proptest::collection::vec(step, 0..120)
}

proptest! {
    #[test]
    fn level_and_rate_are_never_exceeded_and_no_withheld_node_is_forgotten(
        steps in steps(),
        size in 1..30_usize,
        percents in (1..=100_u32, 1..=100_u32),
        auto_resume: bool,
    ) {
        let config = Config {
            level_percent: percents.0,
            rate_percent: percents.1,
            auto_resume,
            ..Config::default()
        };
        let mut state = BreakerState::default();
        let mut now = 0;
        let mut taken: Vec<(i64, usize)> = Vec::new();
        let mut withheld: BTreeMap<usize, Withheld> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Ask { node: number, paced } => {
                    let name = node(number);
                    let was_out = state.pools.get(POOL).is_some_and(|p| p.out.contains_key(&name));
                    let ask = Ask { paced, ..asking(&name, size) };
                    let answer = state.take(&config, &ask, at(now));
                    if answer == Permit::Taken {
                        withheld.remove(&number);
                        if !was_out {
                            taken.push((now, number));
                        }
                    } else {
                        prop_assert!(!was_out, "a node that is out is withheld");
                        let why = match answer {
                            Permit::Withheld(bound) => Withheld::Breaker(bound),
                            Permit::Pace | Permit::Taken => Withheld::Pace,
                        };
                        withheld.insert(number, why);
                    }
                }
                Step::Release(number) => {
                    state.release(POOL, &node(number));
                    let out = state.pools.get(POOL).is_some_and(|p| p.out.contains_key(&node(number)));
                    prop_assert!(!out, "a release is never withheld");
                    withheld.remove(&number);
                }
                Step::Reset => {
                    let listed: BTreeSet<_> = state.reset(POOL).into_iter().collect();
                    prop_assert_eq!(&listed, &withheld.keys().map(|n| node(*n)).collect());
                }
                Step::Wait(seconds) => now += seconds,
                Step::Restart => state = restarted(&state, &withheld, &taken, now),
            }
            let Some(pool) = state.pools.get(POOL) else { continue };
            prop_assert!(pool.out.len() <= config.level_bound(size));
            let recent: BTreeSet<usize> = taken
                .iter()
                .filter(|(t, _)| now - t < 300)
                .map(|(_, n)| *n)
                .collect();
            prop_assert!(recent.len() <= config.rate_bound(size));
            let waiting: BTreeSet<_> = pool.waiting.keys().cloned().collect();
            prop_assert_eq!(waiting, withheld.keys().map(|n| node(*n)).collect());
            let queue = pool.queue.iter().map(|(_, n)| n);
            let paced = pool.waiting.iter().filter(|(_, w)| w.paced).map(|(n, _)| n);
            prop_assert!(queue.collect::<BTreeSet<_>>() == paced.collect::<BTreeSet<_>>());
        }
    }
}

#[test]
fn after_a_reset_and_a_restart_withheld_nodes_still_go_by_turn() {
    let (mut state, config) = (BreakerState::default(), Config::default());
    for number in 0..8 {
        take(&mut state, &config, number, 10, 0);
    }
    let why = Withheld::Breaker(Bound::Level);
    let withheld: BTreeMap<usize, Withheld> = (5..8).map(|n| (n, why.clone())).collect();
    let taken: Vec<(i64, usize)> = (0..5).map(|n| (0, n)).collect();
    for number in 0..5 {
        state.release(POOL, &node(number));
    }
    // Tripped, it stays so.
    let mut tripped = restarted(&state, &withheld, &taken, 400);
    assert!(is_tripped(&tripped));
    assert_eq!(tripped.due(&config, POOL, 10, at(400)), Due::default());
    state.reset(POOL);
    let mut state = restarted(&state, &withheld, &taken, 400);
    let permits: Vec<Permit> = (5..8)
        .map(|number| take(&mut state, &config, number, 10, 400))
        .collect();
    assert_eq!(permits, [Permit::Taken, Permit::Pace, Permit::Pace]);
}

#[test]
fn who_is_withheld_without_having_asked_goes_by_turn_the_oldest_first() {
    let (mut state, config) = (BreakerState::default(), rate_only());
    for (number, since) in [(1, 30), (2, 10), (3, 20)] {
        state.withhold(POOL, &node(number), at(since));
    }
    assert_eq!(state.pools[POOL].waiting.len(), 3);
    assert_eq!(state.due(&config, POOL, 10, at(60)).node, Some(node(2)));
    // Who does not want its turn yet lets the others pass, and who asks keeps its place.
    assert!(state.pass_over(POOL, &node(2)));
    assert_eq!(state.due(&config, POOL, 10, at(60)).node, Some(node(3)));
    // A breaker that is off has no queue.
    let off = Config {
        enabled: false,
        ..rate_only()
    };
    assert_eq!(take(&mut state, &off, 3, 10, 60), Permit::Taken);
    assert_eq!(state.pools[POOL].waiting.len(), 2);
}

#[test]
fn a_node_that_was_counted_before_its_incident_was_known_keeps_its_place_until_it_has_none() {
    let config = Config {
        level_nodes: Some(1),
        ..rate_only()
    };
    let mut state = BreakerState::default();
    state.count(POOL, &node(0), Cause::default());
    let permit = take(&mut state, &config, 1, 2, 0);
    assert_eq!(permit, Permit::Withheld(Bound::Level));
    // Its marks went before they were adopted: it asks like any other, and counts for the rate.
    assert!(state.forget_counted(&node(0)) && !state.forget_counted(&node(0)));
    drop(state.reset(POOL));
    assert_eq!(take(&mut state, &config, 0, 2, 1), Permit::Taken);
    assert!(state.pools[POOL].newly.contains_key(&node(0)));
    // What waits is not out, and keeps its place.
    assert!(!state.forget_counted(&node(1)));
    assert!(state.pools[POOL].waiting.contains_key(&node(1)));
}

#[test]
fn what_is_free_is_what_can_be_taken_before_the_pool_trips() {
    let config = Config {
        rate_percent: 30,
        ..Config::default()
    };
    let mut state = BreakerState::default();
    for taken in 0..3 {
        assert_eq!(state.free(&config, POOL, 10, at(0)), 3 - taken);
        assert_eq!(take(&mut state, &config, taken, 10, 0), Permit::Taken);
    }
    assert_eq!(state.free(&config, POOL, 10, at(0)), 0);
    // The window is over: the level allows two more.
    assert_eq!(state.free(&config, POOL, 10, at(301)), 2);
    let withheld = take(&mut state, &rate_only(), 9, 1, 301);
    assert!(matches!(withheld, Permit::Withheld(_)) && is_tripped(&state));
    assert_eq!(state.free(&config, POOL, 10, at(301)), 0);
    let off = Config {
        enabled: false,
        ..config
    };
    assert_eq!(state.free(&off, POOL, 10, at(301)), usize::MAX);
}
