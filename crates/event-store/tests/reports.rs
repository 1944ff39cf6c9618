//! What the reconciliation of an agent's report needs.

use health_event::{CloseCause, SentIdentity};

use crate::support::*;

#[test]
fn the_asserted_set_is_what_the_agent_said_not_what_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    send(&store, fault(1, "79"));
    send(&store, fault(2, "48"));
    send(&store, direct(fault(3, "13"), "dcgm"));
    store
        .close_fault(&fault_id("79"), CloseCause::Person, at(9))
        .wait()
        .unwrap();
    let codes = || {
        let set = store.asserted_set(&node()).unwrap();
        let codes = set.into_iter().map(|f| (f.id.key.code, f.open));
        codes.collect::<Vec<_>>()
    };
    assert_eq!(codes(), [("79".to_owned(), false), ("48".to_owned(), true)]);
    let sent: Vec<SentIdentity> = store
        .asserted_set(&node())
        .unwrap()
        .iter()
        .map(|f| f.sent)
        .collect();
    let new = fault(1, "79");
    let device = health_event::devices_of(&new.event.entities).remove(0);
    assert_eq!(sent[0], SentIdentity::of(&new.event, &device, "79"));
    send(&store, healthy(4));
    assert!(codes().is_empty());
    send(&store, fault(3, "79"));
    assert!(codes().is_empty(), "a late word that was taken back");
}

#[test]
fn what_the_list_denies_is_asserted_no_more_also_where_a_person_closed_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    send(&store, fault(1, "79"));
    send(&store, fault(2, "48"));
    let close = |code: &str, cause| {
        let closed = store.close_fault(&fault_id(code), cause, at(9));
        closed.wait().unwrap()
    };
    let asserted = || store.asserted_set(&node()).unwrap().len();
    assert!(close("79", CloseCause::Person));
    assert_eq!(asserted(), 2, "the agent still asserts it");
    assert!(!close("79", CloseCause::NoLongerAsserted), "it was closed");
    assert_eq!(asserted(), 1);
    assert!(close("48", CloseCause::NoLongerAsserted));
    assert_eq!(asserted(), 0);
    let cause = |code: &str| store.fault(&fault_id(code)).unwrap().unwrap().cause;
    assert_eq!(cause("79"), Some(CloseCause::Person), "why it closed stays");
    assert_eq!(cause("48"), Some(CloseCause::NoLongerAsserted));
    // A later word asserts it again, and so it is after a restart.
    send(&store, fault(3, "79"));
    assert_eq!(asserted(), 1);
    store.close();
    let store = open(dir.path());
    assert_eq!(store.asserted_set(&node()).unwrap().len(), 1);
}

#[test]
fn open_faults_of_a_check_are_of_all_nodes_and_strategies() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    send(&store, fault(1, "79"));
    let mut observed = fault(2, "48");
    observed.event.strategy = health_event::ProcessingStrategy::StoreOnly;
    send(&store, sealed(observed));
    let mut other = fault(3, "13");
    other.event.check_name = "SysLogsSXIDError".into();
    send(&store, sealed(other));
    let found = store.open_faults_of_check("syslog-health-monitor", "SysLogsXIDError");
    let codes: Vec<String> = found.unwrap().into_iter().map(|f| f.id.key.code).collect();
    assert_eq!(codes, ["79", "48"]);
}

#[test]
fn what_an_override_made_healthy_is_asserted_and_not_open() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut overridden = fault(1, "79");
    overridden.event.is_healthy = true;
    let mut overridden = sealed(overridden);
    overridden.asserted_by_agent = true;
    send(&store, overridden);
    store.close();
    let store = open(dir.path());
    assert!(open_codes(&store).is_empty());
    let set = store.asserted_set(&node()).unwrap();
    assert_eq!((set.len(), set[0].open), (1, false));
    assert_eq!(set[0].order, Some(order("boot-1", "spool-1", 1)));
    send(&store, healthy(2));
    assert!(store.asserted_set(&node()).unwrap().is_empty());
}

#[test]
fn the_last_number_in_turn_is_kept_for_each_spool() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    assert_eq!(store.last_order(&node()).unwrap(), None);
    send(&store, fault(3, "79"));
    let mut ahead = fault(9, "48");
    ahead.out_of_turn = true;
    send(&store, ahead.clone());
    assert_eq!(
        store.last_stored_number(&node(), "spool-1").unwrap(),
        Some(3)
    );
    // The copy from the spool is a duplicate, and proves that all before it is here.
    ahead.out_of_turn = false;
    send(&store, ahead);
    assert_eq!(
        store.last_stored_number(&node(), "spool-1").unwrap(),
        Some(9)
    );
    send(&store, fault(4, "13"));
    assert_eq!(
        store.last_stored_number(&node(), "spool-1").unwrap(),
        Some(9)
    );
    let mut other = fault(20, "1");
    other.order = Some(order("boot-2", "spool-2", 1));
    send(&store, other);
    let last = store.last_order(&node()).unwrap().unwrap();
    assert_eq!(
        (last.boot.as_str(), last.spool.as_str(), last.number),
        ("boot-2", "spool-2", 1)
    );
}
