//! Retention: what goes, what never goes, what is told.

use std::time::Duration;

use event_store::{EventStore, Options, Pruned};
use health_event::incident::Hold;
use jiff::Timestamp;

use crate::support::*;

const DAY: i64 = 86_400;

fn prune(store: &EventStore, now: Timestamp) -> Pruned {
    let mut sum = Pruned::default();
    for _ in 0..1_000 {
        let step = store.prune(now).wait().unwrap();
        sum.events += step.events;
        sum.other_rows += step.other_rows;
        sum.forgotten += step.forgotten;
        if !step.more {
            return sum;
        }
    }
    panic!("retention does not come to an end");
}

#[test]
fn events_go_by_age_and_open_faults_stay() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for n in 1..=1_200 {
        drop(store.append(vec![fault(n, &format!("c{}", n % 3))]));
    }
    let mut late = fault(5_000, "late");
    late.received_at = at(10 * DAY);
    send(&store, late);
    let stored = store.stats().unwrap().last_seq;
    let pruned = prune(&store, at(15 * DAY));
    assert_eq!(pruned.events, stored - 1);
    assert_eq!(pruned.other_rows, 1_200 + 1 - stored, "ids of repeats");
    assert_eq!(pruned.forgotten, 0);
    assert_eq!(store.stats().unwrap().first_seq, stored);
    store.close();
    let store = open(dir.path());
    assert_eq!(open_codes(&store).len(), 4);
    let c0 = store.fault(&fault_id("c0")).unwrap().unwrap();
    assert_eq!(
        (c0.count, c0.event.error_codes),
        (400, vec!["c0".to_owned()])
    );
    // Positions go on.
    let next = send(&store, fault(6_000, "next")).outcome;
    assert_eq!(next, event_store::Outcome::Stored(stored + 1));
}

#[test]
fn memory_of_healthy_words_and_closed_faults_ends() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    send(&store, fault(1, "79"));
    send(&store, healthy(2));
    send(&store, fault(3, "48"));
    assert_eq!(prune(&store, at(DAY)).forgotten, 0);
    assert!(store.fault(&fault_id("79")).unwrap().is_some());
    let pruned = prune(&store, at(DAY + 10));
    assert_eq!(pruned.forgotten, 2, "one healthy word, one closed fault");
    assert_eq!(store.fault(&fault_id("79")).unwrap(), None);
    assert_eq!(open_codes(&store), ["48"]);
}

#[test]
fn what_the_agent_asserts_stays_known_though_a_person_closed_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    send(&store, fault(1, "79"));
    let closed = store.close_fault(&fault_id("79"), health_event::CloseCause::Person, at(2));
    closed.wait().unwrap();
    prune(&store, at(20 * DAY));
    assert_eq!(store.asserted_set(&node()).unwrap().len(), 1);
    assert!(open_codes(&store).is_empty());
}

#[test]
fn a_live_consumer_is_waited_for_and_a_dead_one_gets_one_gap() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for n in 1..=10 {
        send(&store, fault(n, &n.to_string()));
    }
    let now = at(15 * DAY);
    store.consumer_advance("exporter", 4, now).wait().unwrap();
    store.consumer_advance("exporter", 3, now).wait().unwrap();
    assert_eq!(
        prune(&store, now).events,
        4,
        "age does not pass a live consumer"
    );
    let seen = store.consumer_position("exporter").unwrap().unwrap();
    assert_eq!((seen.seq, seen.gap), (4, None));

    let later = at(17 * DAY);
    assert_eq!(prune(&store, later).events, 6);
    let gap = store
        .consumer_position("exporter")
        .unwrap()
        .unwrap()
        .gap
        .unwrap();
    assert_eq!((gap.from, gap.to, gap.count, gap.at), (5, 10, 6, later));

    assert_eq!(store.stats().unwrap().gaps, [("exporter".to_owned(), gap)]);
    // A second pass makes the one gap longer.
    send(&store, fault(11, "11"));
    prune(&store, at(40 * DAY));
    let gap = store
        .consumer_position("exporter")
        .unwrap()
        .unwrap()
        .gap
        .unwrap();
    assert_eq!((gap.from, gap.to, gap.count), (5, 11, 7));
    store
        .consumer_advance("exporter", 11, at(40 * DAY))
        .wait()
        .unwrap();
    assert_eq!(
        store.consumer_position("exporter").unwrap().unwrap().gap,
        None
    );
    let told = store.stats().unwrap().gaps;
    assert_eq!(
        told.len(),
        1,
        "what it did not see is told for longer: {told:?}"
    );
    assert_eq!(store.consumer_position("other").unwrap(), None);
}

#[test]
fn a_disabled_consumer_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    send(&store, fault(1, "79"));
    let now = at(15 * DAY);
    store.consumer_advance("exporter", 0, now).wait().unwrap();
    assert_eq!(prune(&store, now).events, 0);
    store
        .consumer_enable("exporter", false, now)
        .wait()
        .unwrap();
    assert_eq!(prune(&store, now).events, 1);
    assert_eq!(store.stats().unwrap().consumers.len(), 1);
}

#[test]
fn size_beats_age_and_consumers_but_not_open_faults() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        retention_bytes: 3 << 20,
        retention_age: Duration::MAX,
        ..Options::default()
    };
    let store = EventStore::open(dir.path(), options).unwrap();
    store.consumer_advance("exporter", 1, at(0)).wait().unwrap();
    for n in 1..=2_000 {
        let mut new = fault(n, "79");
        new.event.is_fatal = n % 2 == 0;
        new.event.message = "m".repeat(4_000);
        drop(store.append(vec![sealed(new)]));
    }
    send(&store, fault(3_000, "48"));
    assert!(store.stats().unwrap().live_bytes > 3 << 20);
    let pruned = prune(&store, at(10));
    let stats = store.stats().unwrap();
    assert!(
        pruned.events > 500 && stats.live_bytes <= 3 << 20,
        "{pruned:?} {stats:?}"
    );
    assert_eq!(stats.first_seq, pruned.events + 1);
    assert_eq!(open_codes(&store), ["79", "48"]);
    let gap = store
        .consumer_position("exporter")
        .unwrap()
        .unwrap()
        .gap
        .unwrap();
    assert_eq!((gap.from, gap.to), (2, pruned.events));
}

#[test]
fn a_repeat_that_is_sent_again_after_days_is_not_counted_twice() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    send(&store, fault(1, "79"));
    let outcome = send(&store, fault(2, "79")).outcome;
    assert_eq!(outcome, event_store::Outcome::Repeated);
    // The agent was away for longer than faults are remembered, and never got its answer.
    prune(&store, at(13 * DAY));
    for number in [1, 2] {
        let mut again = fault(number, "79");
        again.received_at = at(13 * DAY);
        let outcome = send(&store, again).outcome;
        assert_eq!(outcome, event_store::Outcome::Duplicate, "{number}");
    }
    assert_eq!(store.fault(&fault_id("79")).unwrap().unwrap().count, 2);
}

#[test]
fn machines_go_when_nothing_is_remembered_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let seen = |machine: &str, day: i64| {
        let boot = health_event::BootId::new("b");
        let observed = store.observe_boot(machine, &boot, "s", at(day * DAY));
        observed.wait().unwrap();
    };
    for machine in ["gone", "held", "machine-1", "young"] {
        seen(machine, 0);
    }
    // `machine-1` has an open fault, a person's hold on `held` ends on the tenth day.
    send(&store, fault(1, "79"));
    let hold = Hold {
        actor: "a person".to_owned(),
        until: at(10 * DAY),
        faults: Vec::new(),
    };
    let kept = store.holds_put("held", vec![hold], 0, at(0));
    kept.wait().unwrap();
    seen("young", 5);
    let known = |store: &EventStore| -> Vec<&str> {
        let all = ["gone", "held", "machine-1", "young"].into_iter();
        all.filter(|machine| store.machine(machine).unwrap().is_some())
            .collect()
    };
    prune(&store, at(13 * DAY));
    assert_eq!(known(&store), ["gone", "held", "machine-1", "young"]);
    prune(&store, at(15 * DAY));
    assert_eq!(known(&store), ["held", "machine-1", "young"]);
    prune(&store, at(25 * DAY));
    assert_eq!(known(&store), ["machine-1"]);
    store.close();
    assert_eq!(known(&open(dir.path())), ["machine-1"]);
}
