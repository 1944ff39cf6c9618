//! Faults as the store keeps them: order, memory, strategies, flapping, closings, boots.

use event_store::{EventStore, NewEvent, Options, Standing};
use health_event::{BootId, CloseCause, ProcessingStrategy, Subject};
use proptest::prelude::*;

use crate::support::*;

#[test]
fn a_fault_opens_closes_and_opens_again_with_its_history() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    send(&store, fault(1, "79"));
    assert_eq!(nodes_with_open_faults(&store), [node()]);
    send(&store, healthy(2));
    let closed = store.fault(&fault_id("79")).unwrap().unwrap();
    assert_eq!(
        (closed.open, closed.cause),
        (false, Some(CloseCause::Recovered))
    );
    assert_eq!(closed.closed_at, Some(at(2)));
    assert!(nodes_with_open_faults(&store).is_empty());
    send(&store, fault(3, "79"));
    let again = store.fault(&fault_id("79")).unwrap().unwrap();
    assert!(again.open && again.closed_at.is_none() && again.cause.is_none());
    assert_eq!((again.count, again.first_seq, again.opened_seq), (2, 1, 3));
    assert_eq!(store.open_faults_all().unwrap(), [again]);
}

/// As it comes from another machine than the node is: its agent has spools of its own.
fn elsewhere(mut new: NewEvent, number: u64) -> NewEvent {
    new.machine = "machine-2".into();
    new.order = Some(order("boot-2", "spool-2", number));
    new.event.id = format!("elsewhere-{number}");
    new.standing = Standing::Held;
    sealed(new)
}

#[test]
fn what_another_machine_says_changes_nothing_whatever_comes_first() {
    let fatal = |number: u64, code: &str| elsewhere(fault(number, code), number);
    let well = |number: u64| elsewhere(healthy(number), number);
    // What both say, and the codes that are open then, by their machine.
    let table: [(Vec<NewEvent>, &[&str]); 7] = [
        (vec![fault(1, "79"), well(2)], &["79"]),
        (vec![well(2), fault(1, "79")], &["79"]),
        (vec![fault(1, "79"), fatal(2, "79"), well(3)], &["79"]),
        (vec![fault(1, "79"), fatal(2, "48"), well(3)], &["79"]),
        (vec![fatal(2, "79"), well(3), fault(1, "79")], &["79"]),
        (vec![well(3), fault(50, "79")], &["79"]),
        (vec![fault(1, "79"), fatal(2, "79"), healthy(3)], &[]),
    ];
    for (said, want) in table {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        for new in &said {
            send(&store, new.clone());
        }
        let open = store.open_faults_all().unwrap();
        let codes: Vec<&str> = open.iter().map(|f| f.id.key.code.as_str()).collect();
        assert_eq!(codes, want, "{said:#?}");
        assert!(
            open.iter().all(|fault| fault.machine == "machine-1"),
            "{open:#?}"
        );
        let stored = store.events(None, 0, 100).unwrap();
        assert_eq!(stored.len(), said.len(), "what has no effect is stored too");
    }
}

#[test]
fn what_was_held_counts_once_the_node_is_its_machine() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    send(&store, elsewhere(fault(1, "79"), 1));
    send(&store, elsewhere(fault(2, "48"), 2));
    send(&store, elsewhere(healthy(3), 3));
    send(&store, elsewhere(fault(4, "74"), 4));
    // Sent again, for its answer was lost.
    send(&store, elsewhere(fault(4, "74"), 4));
    store.close();
    let store = open(dir.path());
    let of = |machine: &str, after: u64| -> Vec<u64> {
        let held = store.held(&node(), machine, after, 100).unwrap();
        held.iter().map(|held| held.seq).collect()
    };
    assert_eq!(
        (of("machine-2", 0), of("machine-1", 0)),
        (vec![1, 2, 3, 4], vec![])
    );
    assert_eq!(of("machine-2", 3), [4]);
    let released = |number: u64, new: NewEvent| {
        let mut new = elsewhere(new, number);
        new.standing = Standing::Released(number);
        new
    };
    for _ in 0..2 {
        send(&store, released(1, fault(1, "79")));
        send(&store, released(2, fault(2, "48")));
        send(&store, released(3, healthy(3)));
        send(&store, released(4, fault(4, "74")));
    }
    assert_eq!(of("machine-2", 0), Vec::<u64>::new());
    assert_eq!(open_codes(&store), ["74"]);
    let fault = &store.open_faults_all().unwrap()[0];
    assert_eq!(
        (fault.count, fault.opened_seq),
        (1, 4),
        "as if it came when it did"
    );
    assert_eq!(store.events(None, 0, 100).unwrap().len(), 4);
}

#[test]
fn what_is_held_goes_with_its_event() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    send(&store, elsewhere(fault(1, "79"), 1));
    let later = at(1) + jiff::SignedDuration::from_hours(24 * 60);
    store.prune(later).wait().unwrap();
    let file = rusqlite::Connection::open(dir.path().join("store.db")).unwrap();
    let rows: u64 = file
        .query_row(
            "SELECT (SELECT count(*) FROM events) + (SELECT count(*) FROM held)",
            [],
            |r| r.get(0),
        )
        .unwrap();
    assert_eq!(rows, 0);
}

#[test]
fn a_reboot_is_named_as_the_cause() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    send(&store, fault(1, "79"));
    let mut reboot = healthy(2);
    reboot
        .event
        .metadata
        .insert(health_event::keys::CAUSE.to_owned(), "reboot".to_owned());
    send(&store, sealed(reboot));
    let closed = store.fault(&fault_id("79")).unwrap().unwrap();
    assert_eq!(closed.cause, Some(CloseCause::Reboot));
}

#[test]
fn a_healthy_word_that_came_first_is_remembered_across_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    send(&store, healthy(2));
    store.close();
    let store = open(dir.path());
    send(&store, fault(1, "79"));
    assert!(open_codes(&store).is_empty());
    send(&store, fault(3, "79"));
    assert_eq!(open_codes(&store), ["79"]);
}

#[test]
fn weaker_strategies_are_only_observed_and_a_stronger_healthy_word_closes_them() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    send(
        &store,
        strategy(fault(1, "79"), ProcessingStrategy::StoreOnly),
    );
    send(
        &store,
        strategy(fault(2, "79"), ProcessingStrategy::StoreAndAnalyse),
    );
    assert!(open_codes(&store).is_empty());
    assert_eq!(store.observed(&node()).unwrap().len(), 2);
    send(&store, fault(3, "79"));
    send(&store, strategy(healthy(4), ProcessingStrategy::StoreOnly));
    assert_eq!(store.observed(&node()).unwrap().len(), 1);
    assert_eq!(open_codes(&store), ["79"]);
    send(&store, healthy(5));
    assert!(store.observed(&node()).unwrap().is_empty());
    assert!(open_codes(&store).is_empty());
}

#[test]
fn a_persons_closing_lasts_until_any_later_event() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    send(&store, fault(5, "79"));
    send(&store, direct(fault(5, "79"), "dcgm"));
    let id = fault_id("79");
    assert!(
        store
            .close_fault(&id, CloseCause::Person, at(100))
            .wait()
            .unwrap()
    );
    assert!(
        !store
            .close_fault(&id, CloseCause::Person, at(100))
            .wait()
            .unwrap()
    );
    let closed = store.fault(&id).unwrap().unwrap();
    assert_eq!(
        (closed.open, closed.cause),
        (false, Some(CloseCause::Person))
    );
    assert!(closed.asserted_by_agent, "the agent still asserts it");
    store.close();
    let store = open(dir.path());
    send(&store, fault(4, "79"));
    assert!(
        open_codes(&store).is_empty(),
        "an earlier word opens nothing"
    );
    send(&store, fault(6, "79"));
    assert_eq!(open_codes(&store), ["79"]);
}

#[test]
fn a_persons_closing_of_a_fault_without_code_leaves_the_coded_ones_open() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    send(&store, fault(1, "79"));
    let mut uncoded = fault(2, "");
    uncoded.event.error_codes.clear();
    send(&store, sealed(uncoded));
    let closed = store.close_fault(&fault_id(""), CloseCause::Person, at(3));
    assert!(closed.wait().unwrap());
    assert_eq!(open_codes(&store), ["79"]);
}

/// A fault that may flap.
fn light(n: u64) -> NewEvent {
    let mut new = fault(n, "79");
    new.event.is_fatal = false;
    sealed(new)
}

/// It opens and closes six times in twelve seconds.
fn flap(store: &EventStore) {
    for round in 0..6 {
        send(store, light(round * 2 + 1));
        send(store, healthy(round * 2 + 2));
    }
}

#[test]
fn a_flapping_fault_is_held_and_released_by_the_timer() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    flap(&store);
    assert_eq!(open_codes(&store), ["79"]);
    let held = store.fault(&fault_id("79")).unwrap().unwrap();
    assert_eq!(held.held_until, Some(at(612)));
    store.close();
    let store = open(dir.path());
    assert_eq!(store.release_flapping(at(611)).wait().unwrap(), 0);
    assert_eq!(store.release_flapping(at(612)).wait().unwrap(), 1);
    assert!(open_codes(&store).is_empty());
    let closed = store.fault(&fault_id("79")).unwrap().unwrap();
    assert_eq!(closed.cause, Some(CloseCause::Recovered));
}

#[test]
fn a_held_fault_that_breaks_waits_the_whole_time_anew() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    flap(&store);
    let held_until = || store.fault(&fault_id("79")).unwrap().unwrap().held_until;
    send(&store, light(600));
    assert_eq!(held_until(), None, "it is not healthy");
    assert_eq!(store.release_flapping(at(2_000)).wait().unwrap(), 0);
    // Of its closings none is within ten minutes any more.
    send(&store, healthy(2_000));
    assert_eq!(held_until(), Some(at(2_600)));
    assert_eq!(store.release_flapping(at(2_600)).wait().unwrap(), 1);
}

#[test]
fn a_person_does_not_wait_for_a_flapping_fault() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for round in 0..6 {
        let mut new = fault(round * 2 + 1, "79");
        new.event.is_fatal = false;
        send(&store, sealed(new));
        send(&store, healthy(round * 2 + 2));
    }
    let closed = store.close_fault(&fault_id("79"), CloseCause::Person, at(20));
    assert!(closed.wait().unwrap());
    assert!(open_codes(&store).is_empty());
}

#[test]
fn boots_are_kept_in_the_order_seen_and_decide_what_is_later() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let observe = |boot: &str, spool: &str| {
        let reply = store.observe_boot("machine-1", &BootId::new(boot), spool, at(0));
        reply.wait().unwrap()
    };
    let see = |boot: &str| observe(boot, "spool-1");
    let present = || {
        let machine = store.machine("machine-1").unwrap().unwrap();
        machine.boots.present().cloned().unwrap()
    };
    assert!(see("boot-1") && see("boot-2") && !see("boot-2"));
    assert!(!see(""));
    // A node's status that lags behind changes nothing; the agent's own word does.
    assert!(!observe("boot-1", ""));
    assert_eq!(present(), BootId::new("boot-2"));
    assert!(see("boot-1"));
    assert_eq!(present(), BootId::new("boot-1"));
    assert!(see("boot-2"));
    assert_eq!(present(), BootId::new("boot-2"));
    let machine = store.machine("machine-1").unwrap().unwrap();
    assert_eq!(machine.spool, "spool-1");
    let mut later = healthy(1);
    later.order = Some(order("boot-2", "spool-1", 1));
    send(&store, later);
    // Higher number, earlier boot.
    send(&store, fault(900, "79"));
    assert!(open_codes(&store).is_empty());
    for n in 0..20 {
        see(&format!("b{n}"));
    }
    let machine = store.machine("machine-1").unwrap().unwrap();
    assert_eq!(machine.boots.as_slice().len(), 16);
}

#[test]
fn one_name_more_of_a_device_keeps_fault_and_history() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    send(&store, fault(1, "79"));
    let mut better = fault(2, "79");
    better
        .event
        .entities
        .push(health_event::Entity::new("PCI", "0000:17:00"));
    send(&store, sealed(better));
    let faults = store.open_faults(&node()).unwrap();
    assert_eq!(faults.len(), 1);
    assert_eq!(faults[0].id.key.device.as_str(), "PCI=0000:17:00");
    assert_eq!((faults[0].count, faults[0].first_seq), (2, 1));
}

#[test]
fn two_names_of_one_device_become_one_fault_with_both_counts() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let named = |n, entities: &[(&str, &str)]| {
        let mut new = fault(n, "79");
        new.event.entities = entities
            .iter()
            .map(|(kind, value)| health_event::Entity::new(kind, value))
            .collect();
        sealed(new)
    };
    send(&store, named(1, &[("GPU", "0")]));
    send(&store, named(2, &[("PCI", "0000:17:00")]));
    assert_eq!(store.open_faults(&node()).unwrap().len(), 2);
    send(&store, named(3, &[("PCI", "0000:17:00"), ("GPU", "0")]));
    store.close();
    let store = open(dir.path());
    let faults = store.open_faults(&node()).unwrap();
    assert_eq!(faults.len(), 1);
    assert_eq!((faults[0].count, faults[0].first_seq), (3, 1));
}

/// Words of one node about two codes, from its agent and a direct sender.
fn history() -> impl Strategy<Value = Vec<NewEvent>> {
    // One of five is said by another machine under the node's name.
    let one = (
        any::<bool>(),
        any::<bool>(),
        0..3_usize,
        any::<bool>(),
        0..5_u8,
    );
    prop::collection::vec(one, 1..10).prop_map(|words| {
        words
            .into_iter()
            .zip(1_u64..)
            .map(|((is_healthy, is_direct, code, fatal, machine), n)| {
                let mut new = if is_healthy {
                    healthy(n)
                } else {
                    fault(n, ["79", "48", "13"][code])
                };
                new.event.is_fatal = fatal && !is_healthy;
                let new = sealed(new);
                if machine == 0 {
                    elsewhere(new, n)
                } else if is_direct {
                    direct(new, "dcgm")
                } else {
                    new
                }
            })
            .collect()
    })
}

/// What is open in the end, and the number of words that each fault counts. Receipts are set far
/// apart in the order of arrival, so that nothing flaps.
fn fold(history: &[NewEvent], reopen_after: usize) -> Vec<(String, bool, u64)> {
    let dir = tempfile::tempdir().unwrap();
    let options = || Options {
        fault_memory: std::time::Duration::MAX,
        ..Options::default()
    };
    let mut store = EventStore::open(dir.path(), options()).unwrap();
    for (index, new) in history.iter().enumerate() {
        if index == reopen_after {
            store.close();
            store = EventStore::open(dir.path(), options()).unwrap();
        }
        let mut new = new.clone();
        new.received_at = at(1_000 * i64::try_from(index + 1).unwrap());
        send(&store, new);
    }
    let mut end: Vec<_> = store
        .open_faults(&node())
        .unwrap()
        .iter()
        .map(|f| (f.id.key.code.clone(), f.fatal, f.count))
        .collect();
    end.sort();
    end
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn order_duplication_and_restarts_do_not_matter(
        (original, shuffled) in history().prop_flat_map(|h| {
            let mut doubled = h.clone();
            doubled.extend(h.iter().take(4).cloned());
            (Just(h), Just(doubled).prop_shuffle())
        }),
        reopen_after in 0..10_usize,
    ) {
        let own: Vec<NewEvent> =
            original.into_iter().filter(|new| new.standing == Standing::Counts).collect();
        prop_assert_eq!(fold(&own, usize::MAX), fold(&shuffled, reopen_after));
    }
}

#[test]
fn what_the_controller_says_comes_last_whatever_its_clock_showed_before() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let said = |seconds: i64, is_healthy: bool| {
        let mut new = direct(fault(1, "silent"), "controller");
        new.sender = health_event::Sender::controller();
        new.event.is_healthy = is_healthy;
        new.event.id = format!("{seconds}-{is_healthy}");
        new.event.generated_at = Some(at(seconds));
        new.received_at = at(seconds);
        sealed(new)
    };
    let day = 86_400;
    // Its clock was a day ahead, twice; each word takes back the one before.
    for (seconds, is_healthy) in [
        (day, false),
        (10, true),
        (20, false),
        (30, true),
        (day + 5, false),
        (day + 6, true),
        (40, false),
    ] {
        send(&store, said(seconds, is_healthy));
        let open = !open_codes(&store).is_empty();
        assert_eq!(open, !is_healthy, "{seconds}");
    }
    store.close();
    let store = open(dir.path());
    send(&store, said(50, true));
    assert_eq!(open_codes(&store), Vec::<String>::new());
}

#[test]
fn a_pool_has_faults_of_its_own_that_no_node_has() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let about = |subject: Subject, number, is_healthy| {
        let mut new = direct(fault(number, "silent"), "controller");
        new.subject = subject;
        new.event.is_healthy = is_healthy;
        new
    };
    let pool = || Subject::Pool("gpu".to_owned());
    send(&store, about(pool(), 1, false));
    send(&store, about(Subject::Cluster, 2, false));
    send(&store, fault(3, "79"));
    store.close();
    let store = open(dir.path());
    let subjects = |store: &EventStore| -> Vec<String> {
        let open = store.open_faults_of_no_node().unwrap().into_iter();
        open.map(|fault| fault.id.scope.subject.to_string())
            .collect()
    };
    assert_eq!(subjects(&store), ["pool/gpu", "cluster"]);
    assert_eq!(open_codes(&store), ["79"]);
    assert_eq!(nodes_with_open_faults(&store), [node()]);
    let events = store.events(None, 0, 10).unwrap();
    let told: Vec<&Subject> = events.iter().map(|event| &event.subject).collect();
    assert_eq!(told, [&pool(), &Subject::Cluster, &Subject::Node(node())]);
    assert_eq!(store.events(Some(&node()), 0, 10).unwrap().len(), 1);
    send(&store, about(pool(), 4, true));
    assert_eq!(subjects(&store), ["cluster"]);
}
