//! Taking events in.

use std::sync::{Arc, Mutex};

use event_store::{Commit, Outcome};
use health_event::{Change, RecommendedAction};

use crate::support::*;

#[test]
fn what_was_acknowledged_is_there_after_reopening_with_gapless_positions() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    assert!(store.is_new());
    let id = store.store_id().to_owned();
    for n in 1..=5 {
        let appended = send(&store, fault(n, &n.to_string()));
        assert_eq!(appended.outcome, Outcome::Stored(n));
    }
    store.close();
    let store = open(dir.path());
    assert_eq!((store.is_new(), store.store_id()), (false, id.as_str()));
    let events = store.events(None, 0, 100).unwrap();
    let seqs: Vec<u64> = events.iter().map(|e| e.seq).collect();
    assert_eq!(seqs, [1, 2, 3, 4, 5]);
    assert_eq!(events[2].body, fault(3, "3").body);
    assert_eq!(events[2].id, "id-3");
    assert_eq!(store.events(Some(&node()), 3, 1).unwrap()[0].seq, 4);
    let stored = store.fault(&fault_id("3")).unwrap().unwrap();
    assert_eq!(stored.event, fault(3, "3").event);
    assert_eq!(stored.order, Some(order("boot-1", "spool-1", 3)));
    assert_eq!(send(&store, fault(6, "6")).outcome, Outcome::Stored(6));
}

#[test]
fn a_duplicate_changes_nothing_also_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    send(&store, fault(1, "79"));
    let before = store.fault(&fault_id("79")).unwrap();
    assert_eq!(send(&store, fault(1, "79")).outcome, Outcome::Duplicate);
    store.close();
    let store = open(dir.path());
    assert_eq!(send(&store, fault(1, "79")).outcome, Outcome::Duplicate);
    assert_eq!(store.fault(&fault_id("79")).unwrap(), before);
    assert_eq!(store.counters().duplicates, 1);
    // The same id of another sender is another event.
    let mut other = direct(fault(1, "48"), "dcgm");
    other.event.id = "id-1".into();
    assert_eq!(send(&store, sealed(other)).outcome, Outcome::Stored(2));
}

#[test]
fn a_duplicate_within_one_batch_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let batch = vec![fault(1, "79"), fault(1, "79"), fault(2, "48")];
    let all = store.append(batch).wait().unwrap();
    let outcomes: Vec<Outcome> = all.iter().map(|a| a.outcome).collect();
    assert_eq!(
        outcomes,
        [Outcome::Stored(1), Outcome::Duplicate, Outcome::Stored(2)]
    );
}

#[test]
fn the_same_id_with_other_content_is_kept_under_a_fresh_id_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    send(&store, fault(1, "79"));
    let mut other = fault(1, "48");
    other.event.message = "other".into();
    let other = sealed(other);
    let first = send(&store, other.clone());
    assert_eq!(first.outcome, Outcome::Stored(2));
    assert!(first.id.starts_with("id-1~"));
    let again = send(&store, other);
    assert_eq!((again.outcome, again.id), (Outcome::Duplicate, first.id));
    assert_eq!(store.counters().id_conflicts, 1);
    assert_eq!(open_codes(&store), ["79", "48"]);
}

#[test]
fn an_event_without_id_is_known_by_its_content() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let nameless = |code: &str| {
        let mut new = direct(fault(1, code), "x");
        new.event.id.clear();
        sealed(new)
    };
    assert_eq!(send(&store, nameless("79")).outcome, Outcome::Stored(1));
    assert_eq!(send(&store, nameless("79")).outcome, Outcome::Duplicate);
    assert_eq!(send(&store, nameless("48")).outcome, Outcome::Stored(2));
    assert_eq!(store.counters().id_conflicts, 0);
}

#[test]
fn repeats_are_counted_durably_and_at_most_one_a_minute_is_stored() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for n in 1..=70 {
        let outcome = send(&store, fault(n, "79")).outcome;
        let want = match n {
            1 => Outcome::Stored(1),
            61 => Outcome::Stored(2),
            _ => Outcome::Repeated,
        };
        assert_eq!(outcome, want, "event {n}");
    }
    store.close();
    let store = open(dir.path());
    let stored = store.fault(&fault_id("79")).unwrap().unwrap();
    assert_eq!((stored.count, stored.repeats), (70, 68));
    assert_eq!((stored.first_seq, stored.last_seq), (1, 2));
    assert_eq!(stored.last_at, at(70));
    assert_eq!(stored.order, Some(order("boot-1", "spool-1", 70)));
    assert_eq!(
        store.last_stored_number(&node(), "spool-1").unwrap(),
        Some(70)
    );
    // A repeat that is delivered again is not counted again.
    assert_eq!(send(&store, fault(65, "79")).outcome, Outcome::Duplicate);
    let again = store.fault(&fault_id("79")).unwrap().unwrap();
    assert_eq!(again.count, 70);
}

#[test]
fn what_differs_in_severity_action_or_overrides_is_no_repeat() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    send(&store, fault(1, "79"));
    let mut lighter = fault(2, "79");
    lighter.event.is_fatal = false;
    assert_eq!(send(&store, sealed(lighter)).outcome, Outcome::Stored(2));
    let mut stronger = fault(3, "79");
    stronger.event.recommended_action = RecommendedAction::ReplaceVm;
    assert_eq!(send(&store, sealed(stronger)).outcome, Outcome::Stored(3));
    let mut forced = fault(4, "79");
    forced.event.quarantine_overrides = Some(health_event::BehaviourOverrides {
        force: true,
        skip: false,
    });
    assert_eq!(send(&store, sealed(forced)).outcome, Outcome::Stored(4));
    let stored = store.fault(&fault_id("79")).unwrap().unwrap();
    assert!(stored.fatal, "severity only rises");
    assert_eq!(stored.action, RecommendedAction::ReplaceVm);
    assert_eq!((stored.count, stored.repeats, stored.opened_seq), (4, 0, 1));
}

#[test]
fn listeners_hear_of_a_commit_before_its_reply() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let heard: Arc<Mutex<Vec<Commit>>> = Arc::default();
    let ears = Arc::clone(&heard);
    store.on_commit(Box::new(move |commit| {
        ears.lock().unwrap().push(commit.clone());
    }));
    send(&store, fault(1, "79"));
    let commits = heard.lock().unwrap().clone();
    assert_eq!(
        commits,
        [Commit {
            machines: Vec::new(),
            first_seq: 1,
            last_seq: 1,
            nodes: vec![node()],
            transitions: false,
        }]
    );
}

#[test]
fn a_listener_may_hold_the_last_handle() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let inside = Mutex::new(Some(store.clone()));
    let (told, closed) = std::sync::mpsc::channel();
    store.on_commit(Box::new(move |_| {
        drop(inside.lock().unwrap().take());
        told.send(()).unwrap();
    }));
    let reply = store.append(vec![fault(1, "79")]);
    drop(store);
    closed
        .recv_timeout(std::time::Duration::from_secs(10))
        .unwrap();
    reply.wait().unwrap();
}

#[test]
fn a_listener_that_panics_leaves_no_caller_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.on_commit(Box::new(|_| panic!("a fault of the listener")));
    let first = store.append(vec![fault(1, "79")]).wait().unwrap_err();
    assert_eq!(first.code(), "store_closed");
    let second = store.append(vec![fault(2, "48")]).wait().unwrap_err();
    assert_eq!(second.code(), "store_closed");
    drop(store);
    assert_eq!(open_codes(&open(dir.path())), ["79"], "it was committed");
}

#[test]
fn after_closing_writes_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.close();
    let refused = store.append(vec![fault(1, "79")]).wait().unwrap_err();
    assert_eq!(refused.code(), "store_closed");
}

#[test]
fn many_callers_are_answered_from_few_commits() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let replies: Vec<_> = (1..=500)
        .map(|n| store.append(vec![fault(n, &format!("c{n}"))]))
        .collect();
    let mut seqs: Vec<u64> = replies
        .into_iter()
        .map(|reply| match reply.wait().unwrap()[0].outcome {
            Outcome::Stored(seq) => seq,
            other @ (Outcome::Repeated | Outcome::Duplicate) => panic!("{other:?}"),
        })
        .collect();
    seqs.sort_unstable();
    assert_eq!(seqs, (1..=500).collect::<Vec<u64>>());
    assert!(store.counters().commits < 250, "{:?}", store.counters());
}

#[test]
fn an_event_that_names_thousands_of_faults_keeps_their_copies_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut wide = fault(1, "");
    wide.event.entities = (0..64)
        .map(|n| health_event::Entity::new("GPU", &n.to_string()))
        .collect();
    wide.event.error_codes = (0..16).map(|n| n.to_string()).collect();
    wide.event.message = "m".repeat(16 << 10);
    // A quarter of the widest that is accepted, with room for a slow machine: to notice should
    // the time ever grow with the square again.
    let started = std::time::Instant::now();
    let appended = send(&store, sealed(wide));
    assert!(started.elapsed().as_secs() < 5, "{:?}", started.elapsed());
    assert_eq!(appended.changes.len(), 64 * 16);
    assert!(matches!(appended.changes[0], Change::Opened(_)));
    let faults = store.open_faults(&node()).unwrap();
    assert_eq!(faults.len(), 64 * 16);
    assert!(
        faults
            .iter()
            .all(|f| f.body.is_empty() && f.event.message.len() == 256)
    );
}

#[test]
fn healthy_words_are_bounded_and_those_that_go_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let batch = (1..=300)
        .map(|n| {
            let mut new = healthy(n);
            new.event.entities = vec![health_event::Entity::new("GPU", &n.to_string())];
            sealed(new)
        })
        .collect();
    store.append(batch).wait().unwrap();
    assert_eq!(store.counters().clears_dropped, 300 - 256);
    store.close();
    let store = open(dir.path());
    let late = |gpu: &str| {
        let mut new = fault(1_000, "79");
        new.event.id = format!("late-{gpu}");
        new.order = Some(order("boot-1", "spool-0", 1));
        new.event.entities = vec![health_event::Entity::new("GPU", gpu)];
        sealed(new)
    };
    send(&store, late("300"));
    assert!(open_codes(&store).is_empty(), "remembered");
    send(&store, late("1"));
    assert_eq!(open_codes(&store), ["79"], "the oldest went");
}
