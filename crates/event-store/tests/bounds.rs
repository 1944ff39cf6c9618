//! How many faults of one node may be open.

use event_store::bounds::{AGENT, CHECKS, LEAST, NODE};
use event_store::{EventStore, NewEvent, Outcome};
use health_event::Entity;

use crate::support::{at, direct, fault, healthy, node, open, sealed, send};

/// Of a monitor that makes up codes, one a second.
fn flood(agent: &str, number: usize, fatal: bool) -> NewEvent {
    let mut new = fault(number as u64, &number.to_string());
    new.event.agent = agent.into();
    new.event.check_name = "Flood".into();
    new.event.id = format!("{agent}-{number}");
    new.event.is_fatal = fatal;
    sealed(new)
}

fn send_all(store: &EventStore, events: impl IntoIterator<Item = NewEvent>) {
    let done = store.append(events.into_iter().collect()).wait().unwrap();
    assert!(done.iter().all(|a| matches!(a.outcome, Outcome::Stored(_))));
}

fn open_of(store: &EventStore, agent: &str) -> usize {
    let open = store.open_faults(&node()).unwrap();
    open.iter().filter(|f| f.id.scope.agent == agent).count()
}

#[test]
fn a_flood_fills_its_agents_share_and_keeps_nobody_else_out() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    send_all(&store, (1..=600).map(|n| flood("bad", n, false)));
    let non_fatal = AGENT - AGENT / 4;
    assert_eq!(open_of(&store, "bad"), non_fatal);
    let events = store.events(None, 0, 10_000).unwrap();
    assert_eq!(events.len(), 600, "all are stored");
    let unopened = store.unopened(10).unwrap();
    assert_eq!(unopened.len(), 1);
    assert_eq!(unopened[0].events, (600 - non_fatal) as u64);
    assert_eq!(
        (unopened[0].node.clone(), unopened[0].agent.as_str()),
        (node(), "bad")
    );
    assert_eq!(unopened[0].since, at(385));
    assert_eq!(unopened[0].at, at(600));
    // Fatal ones have a quarter more, and what is open is not full: it becomes graver.
    send_all(&store, (601..=900).map(|n| flood("bad", n, true)));
    assert_eq!(open_of(&store, "bad"), AGENT);
    send(&store, flood_again("bad", 1, 901, true));
    let graver = store.open_faults(&node()).unwrap();
    assert!(graver.iter().any(|f| f.id.key.code == "1" && f.fatal));
    // Neither a second bad agent nor both together keep the kernel's word out, or a third's.
    send_all(&store, (1_000..=1_600).map(|n| flood("worse", n, true)));
    assert_eq!(open_of(&store, "worse"), AGENT);
    send_all(&store, (2_000..=2_100).map(|n| flood("third", n, false)));
    assert_eq!(open_of(&store, "third"), LEAST);
    send(&store, fault(3_000, "79"));
    assert_eq!(open_of(&store, "syslog-health-monitor"), 1);
    assert!(store.open_faults(&node()).unwrap().len() <= NODE + LEAST + 1);
}

fn flood_again(agent: &str, code: usize, number: u64, fatal: bool) -> NewEvent {
    let mut new = flood(agent, code, fatal);
    let order = fault(number, "");
    new.order = order.order;
    new.received_at = order.received_at;
    new.event.generated_at = Some(at(number.cast_signed()));
    new.event.id = format!("{agent}-{number}-again");
    sealed(new)
}

#[test]
fn a_recovery_closes_in_a_full_node_and_makes_room_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    send_all(&store, (1..=600).map(|n| flood("bad", n, true)));
    assert_eq!(open_of(&store, "bad"), AGENT);
    store.close();
    let store = open(dir.path());
    send(&store, flood("bad", 700, true));
    assert_eq!(open_of(&store, "bad"), AGENT, "counted from the file");
    let mut well = flood_again("bad", 5, 701, false);
    well.event.is_healthy = true;
    send(&store, sealed(well));
    assert_eq!(open_of(&store, "bad"), AGENT - 1);
    send(&store, flood("bad", 702, true));
    send(&store, flood("bad", 703, true));
    assert_eq!(open_of(&store, "bad"), AGENT);
    let codes = store.open_faults(&node()).unwrap();
    assert!(codes.iter().any(|f| f.id.key.code == "702"));
    // A recovery of all closes all.
    let mut well = flood_again("bad", 1, 800, false);
    well.event.is_healthy = true;
    well.event.error_codes.clear();
    well.event.entities.clear();
    send(&store, sealed(well));
    assert_eq!(open_of(&store, "bad"), 0);
    send_all(&store, (900..=1_600).map(|n| flood("bad", n, true)));
    assert_eq!(open_of(&store, "bad"), AGENT);
}

#[test]
fn one_event_with_very_many_faults_opens_as_many_as_there_is_room_for() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut new = flood("bad", 1, true);
    new.event.entities = (0..64)
        .map(|n| Entity::new("GPU", &n.to_string()))
        .collect();
    new.event.error_codes = (0..64).map(|n| n.to_string()).collect();
    send(&store, sealed(new.clone()));
    assert_eq!(open_of(&store, "bad"), AGENT);
    assert_eq!(store.unopened(1).unwrap()[0].events, 1);
    // Said again it speaks of what is open, and of no more.
    let again = direct(new, "other-sender");
    send(&store, again);
    assert_eq!(open_of(&store, "bad"), AGENT);
}

#[test]
fn made_up_checks_that_are_over_are_forgotten_and_neither_the_open_nor_our_own() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let of_check = |n: usize, healthy: bool| {
        let mut new = flood("bad", 2 * n + usize::from(healthy), true);
        new.event.check_name = format!("Check{n}");
        new.event.error_codes.clear();
        new.event.is_healthy = healthy;
        sealed(new)
    };
    send(&store, fault(1, "79"));
    send(&store, healthy(2));
    // The first stays open.
    send(&store, of_check(2, false));
    let pairs = (3..=CHECKS + 50).flat_map(|n| [of_check(n, false), of_check(n, true)]);
    send_all(&store, pairs);
    let known = store.known_checks().unwrap();
    assert_eq!(known.len(), CHECKS);
    let is_known = |name: &str| known.iter().any(|known| known == name);
    assert!(is_known("SysLogsXIDError") && is_known("Check2"));
    assert!(!is_known("Check3") && is_known(&format!("Check{}", CHECKS + 50)));
    assert_eq!(open_of(&store, "bad"), 1);
}
