//! A sender's share of the store: what goes, what stays, what is told.

use event_store::{EventStore, NewEvent, Options, Outcome, Pruned};
use health_event::Entity;
use jiff::Timestamp;

use crate::support::*;

/// The least share.
const SHARE: u64 = 8 << 20;

/// A store in which a twentieth is the least share.
fn small() -> Options {
    Options {
        retention_bytes: SHARE * 20,
        ..Options::default()
    }
}

fn prune(store: &EventStore, now: Timestamp) -> Pruned {
    let mut sum = Pruned::default();
    for _ in 0..1_000 {
        let step = store.prune(now).wait().unwrap();
        sum.shed += step.shed;
        sum.events += step.events;
        if !step.more {
            return sum;
        }
    }
    panic!("retention does not come to an end");
}

/// An event of 15 KB; the next about the same device comes 64 s later, when it is stored again.
fn of(sender: &str, number: u64) -> NewEvent {
    let mut new = fault(number, "79");
    new.event.entities = vec![Entity::new("GPU", &(number % 64).to_string())];
    new.event.is_fatal = number.is_multiple_of(2);
    let mut new = direct(new, sender);
    new.body.resize(15_000, b'm');
    new
}

fn flood(store: &EventStore, sender: &str, numbers: std::ops::Range<u64>) {
    let sent: Vec<_> = numbers
        .map(|number| store.append(vec![of(sender, number)]))
        .collect();
    for reply in sent {
        reply.wait().unwrap();
    }
}

/// Bytes of the bodies that a sender has in the store, and its first and last position.
fn held(store: &EventStore, sender: &str) -> (u64, u64, u64) {
    let (mut bytes, mut first, mut last, mut after) = (0, 0, 0, 0);
    loop {
        let page = store.events(None, after, 500).unwrap();
        let Some(end) = page.last() else {
            return (bytes, first, last);
        };
        after = end.seq;
        for event in page.iter().filter(|e| e.sender.as_str().contains(sender)) {
            bytes += event.body.len() as u64;
            first = if first == 0 { event.seq } else { first };
            last = event.seq;
        }
    }
}

#[test]
fn a_flood_of_one_sender_takes_its_own_oldest_events_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let store = EventStore::open(dir.path(), small()).unwrap();
    flood(&store, "quiet", 0..10);
    flood(&store, "loud", 0..1_000);
    let open = store.stats().unwrap().open_faults;
    assert!(held(&store, "loud").0 > SHARE);
    let pruned = prune(&store, at(2_000));
    let (bytes, first, last) = held(&store, "loud");
    assert!(bytes < SHARE && bytes > SHARE / 2, "{bytes}");
    assert!(
        first > 11 && last == 1_000,
        "the oldest went: {first}, {last}"
    );
    assert_eq!(held(&store, "quiet").1, 1, "another's older events stay");
    let stats = store.stats().unwrap();
    assert_eq!(stats.open_faults, open, "no fault went with its event");
    assert_eq!((stats.counters.shed, pruned.events), (pruned.shed, 0));
    let told = &stats.shed;
    assert_eq!(told.len(), 1);
    assert!(told[0].sender.as_str().contains("loud"), "{told:?}");
    assert_eq!(
        (told[0].events, told[0].from, told[0].at),
        (pruned.shed, 11, at(2_000))
    );
    assert_eq!(told[0].to, first - 1);
    // What comes meanwhile is taken in; once more it is brought back to the share.
    flood(&store, "loud", 1_000..2_000);
    assert!(prune(&store, at(3_000)).shed > 0);
    assert!(held(&store, "loud").0 < SHARE);
    // A last batch whose answer was lost is still known.
    let again = store.append((1_900..2_000).map(|n| of("loud", n)).collect());
    let again = again.wait().unwrap();
    assert!(again.iter().all(|a| a.outcome == Outcome::Duplicate));
    // What went is told for as long as events are kept.
    prune(&store, at(16 * 86_400));
    assert_eq!(store.stats().unwrap().shed, []);
}

#[test]
fn what_was_stored_before_a_restart_counts_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = EventStore::open(dir.path(), small()).unwrap();
    flood(&store, "loud", 0..500);
    flood(&store, "quiet", 0..5);
    assert_eq!(prune(&store, at(2_000)).shed, 0, "within its share");
    store.close();
    let store = EventStore::open(dir.path(), small()).unwrap();
    flood(&store, "loud", 500..600);
    let pruned = prune(&store, at(2_000));
    assert!(pruned.shed > 0, "the sum is above the share");
    let bytes = held(&store, "loud").0;
    assert!(bytes < SHARE && bytes > SHARE / 2, "{bytes}");
    store.close();
    let store = EventStore::open(dir.path(), small()).unwrap();
    assert_eq!(prune(&store, at(2_000)).shed, 0, "counted once");
    assert_eq!(store.stats().unwrap().shed[0].events, pruned.shed);
    assert_eq!(held(&store, "loud").0, bytes);
}

#[test]
fn a_live_consumer_is_waited_for_and_a_dead_one_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let store = EventStore::open(dir.path(), small()).unwrap();
    flood(&store, "loud", 0..1_000);
    let advanced = store.consumer_advance("exporter", 4, at(2_000));
    advanced.wait().unwrap();
    assert_eq!(prune(&store, at(2_001)).shed, 4);
    let later = at(2_000 + 86_400 + 1);
    assert!(prune(&store, later).shed > 100);
    let exporter = store.consumer_position("exporter").unwrap().unwrap();
    let gap = exporter.gap.unwrap();
    assert_eq!((gap.from, gap.at), (5, later));
    assert_eq!(gap.to, held(&store, "loud").1 - 1);
}

#[test]
fn repeats_and_duplicates_cost_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = EventStore::open(dir.path(), small()).unwrap();
    flood(&store, "loud", 0..1);
    for number in 1..2_000_u64 {
        let mut repeat = of("loud", number);
        repeat.event.entities = of("loud", 0).event.entities;
        repeat.event.is_fatal = true;
        repeat.received_at = at(1);
        let outcome = store.append(vec![sealed(repeat)]).wait().unwrap()[0].outcome;
        assert_eq!(outcome, Outcome::Repeated, "{number}");
    }
    assert_eq!(prune(&store, at(2)).shed, 0);
    assert_eq!(store.stats().unwrap().last_seq, 1);
}
