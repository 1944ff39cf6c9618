//! Nodes that are gone: what closes, what is forgotten, and what comes back.

use event_store::WriteError;
use health_event::{CloseCause, NodeName, ProcessingStrategy};

use crate::support::*;

#[test]
fn what_a_gone_node_leaves_closes_unless_it_was_spoken_of_since() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    send(&store, fault(1, "79"));
    send(&store, fault(2, "48"));
    let observed = strategy(fault(3, "13"), ProcessingStrategy::StoreOnly);
    send(&store, observed);
    let lasting = store.lasting_faults(&node()).unwrap();
    assert_eq!(lasting.len(), 3, "of every strategy");
    assert_eq!(store.lasting_nodes().unwrap(), [node()]);
    let counted: Vec<_> = lasting.iter().map(|f| (f.id.clone(), f.count)).collect();
    // One is heard of again before the closing is carried out.
    send(&store, fault(4, "48"));
    let close = || {
        let closed = store.close_gone(counted.clone(), CloseCause::NodeDeleted, 0, at(100));
        closed.wait().unwrap()
    };
    assert_eq!(close(), 2);
    assert_eq!(close(), 0);
    assert_eq!(open_codes(&store), ["48"]);
    store.close();
    let store = open(dir.path());
    let closed = store.fault(&fault_id("79")).unwrap().unwrap();
    assert_eq!(closed.cause, Some(CloseCause::NodeDeleted));
    assert!(!closed.asserted_by_agent, "no agent is there");
    let over = store.closed_faults(&node(), 20).unwrap();
    assert_eq!(over.len(), 2, "{over:?}");
    assert!(over.contains(&closed));
    assert_eq!(store.closed_faults(&node(), 1).unwrap().len(), 1);
    let asserted = store.asserted_set(&node()).unwrap();
    assert_eq!(asserted.len(), 1, "{asserted:?}");
    // The closing has the place of the newest word in the order.
    send(&store, fault(0, "79"));
    assert_eq!(open_codes(&store), ["48"]);
    send(&store, fault(5, "79"));
    assert_eq!(open_codes(&store).len(), 2);
}

#[test]
fn what_a_person_closed_and_the_agent_asserted_stays_no_longer() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    send(&store, fault(1, "79"));
    let id = fault_id("79");
    let closed = store.close_fault(&id, CloseCause::Person, at(2));
    assert!(closed.wait().unwrap());
    assert_eq!(store.lasting_faults(&node()).unwrap().len(), 1);
    let gone = store.close_gone(vec![(id.clone(), 1)], CloseCause::NodeReplaced, 0, at(3));
    assert_eq!(gone.wait().unwrap(), 0, "it was closed");
    assert!(store.lasting_faults(&node()).unwrap().is_empty());
    let closed = store.fault(&id).unwrap().unwrap();
    assert_eq!(closed.cause, Some(CloseCause::Person));
}

#[test]
fn an_agent_that_still_asserts_it_opens_it_again_with_the_same_event() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    let listed = || {
        let mut listed = fault(1, "79");
        listed.out_of_turn = true;
        listed
    };
    send(&store, fault(1, "79"));
    // Known as closed, and no longer known at all.
    for prune_at in [None, Some(at(90_000))] {
        let count = store.fault(&fault_id("79")).unwrap().unwrap().count;
        let faults = vec![(fault_id("79"), count)];
        let gone = store.close_gone(faults, CloseCause::NodeDeleted, 0, at(100));
        assert_eq!(gone.wait().unwrap(), 1);
        if let Some(now) = prune_at {
            assert!(store.prune(now).wait().unwrap().forgotten > 0);
            assert_eq!(store.fault(&fault_id("79")).unwrap(), None);
        }
        store.close();
        store = open(dir.path());
        send(&store, fault(1, "79"));
        assert!(
            open_codes(&store).is_empty(),
            "the copy from the spool is no new word"
        );
        send(&store, listed());
        assert_eq!(open_codes(&store), ["79"]);
        let again = store.fault(&fault_id("79")).unwrap().unwrap();
        assert!(again.asserted_by_agent && again.cause.is_none());
        let seq = again.last_seq;
        send(&store, listed());
        let twice = store.fault(&fault_id("79")).unwrap().unwrap();
        assert_eq!(twice.last_seq, seq, "the list a second time is nothing new");
    }
    // What anybody else ended stays ended.
    let id = fault_id("79");
    let closed = store.close_fault(&id, CloseCause::Person, at(200));
    assert!(closed.wait().unwrap());
    send(&store, listed());
    assert!(open_codes(&store).is_empty());
}

#[test]
fn a_healthy_word_said_meanwhile_still_counts() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    send(&store, fault(1, "79"));
    let faults = vec![(fault_id("79"), 1)];
    let gone = store.close_gone(faults, CloseCause::NodeDeleted, 0, at(100));
    assert_eq!(gone.wait().unwrap(), 1);
    send(&store, healthy(2));
    let mut listed = fault(1, "79");
    listed.out_of_turn = true;
    send(&store, listed);
    assert!(open_codes(&store).is_empty());
}

#[test]
fn what_is_kept_by_the_name_alone_goes_for_the_leader_only() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    send(&store, healthy(1));
    let other = NodeName::new("gpu-18").unwrap();
    for node in [&node(), &other] {
        for prefix in ["report", "gone"] {
            let put = store.state_put(&format!("{prefix}/{node}"), b"{}".to_vec(), 0);
            put.wait().unwrap();
        }
    }
    assert_eq!(store.lasting_nodes().unwrap(), [node()], "its spool");
    let keys = || vec!["report/gpu-17".to_owned(), "gone/gpu-17".to_owned()];
    let stale = store.forget_node(&node(), keys(), 7).wait().unwrap_err();
    assert!(matches!(stale, WriteError::Fenced { .. }), "{stale}");
    let stale = store.close_gone(vec![], CloseCause::NodeDeleted, 7, at(1));
    assert!(stale.wait().is_err());
    store.forget_node(&node(), keys(), 0).wait().unwrap();
    assert_eq!(store.last_order(&node()).unwrap(), None);
    assert_eq!(store.state_keys("report/").unwrap(), ["report/gpu-18"]);
    assert_eq!(store.state_keys("gone/").unwrap(), ["gone/gpu-18"]);
    assert!(store.lasting_nodes().unwrap().is_empty());
}

#[test]
fn a_thousand_names_that_came_and_went_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let name = |n: usize| NodeName::new(&format!("gone-{n}")).unwrap();
    for n in 0..1_000 {
        let mut new = fault(1, "79");
        new.event.id = format!("id-{n}");
        new.event.node_name = name(n).to_string();
        new.subject = health_event::Subject::Node(name(n));
        new.sender = health_event::Sender::agent(name(n).as_str());
        drop(store.append(vec![sealed(new)]));
        drop(store.state_put(&format!("report/{}", name(n)), b"{}".to_vec(), 0));
    }
    let known = store.state_put("last", Vec::new(), 0);
    known.wait().unwrap();
    assert_eq!(store.lasting_nodes().unwrap().len(), 1_000);
    for node in store.lasting_nodes().unwrap() {
        let lasting = store.lasting_faults(&node).unwrap();
        let faults = lasting.into_iter().map(|f| (f.id, f.count)).collect();
        drop(store.close_gone(faults, CloseCause::NodeDeleted, 0, at(100)));
        drop(store.forget_node(&node, vec![format!("report/{node}")], 0));
    }
    while store.prune(at(90_000)).wait().unwrap().more {}
    assert_eq!(store.stats().unwrap().open_faults, 0);
    assert!(store.lasting_nodes().unwrap().is_empty());
    assert!(store.state_keys("report/").unwrap().is_empty());
    let file = rusqlite::Connection::open(dir.path().join("store.db")).unwrap();
    for table in ["scopes", "faults", "clears", "spools"] {
        let sql = format!("SELECT count(*) FROM {table}");
        let rows: u64 = file.query_row(&sql, [], |row| row.get(0)).unwrap();
        assert_eq!(rows, 0, "{table}");
    }
}
