//! Incidents: compare-and-set, fencing, what changes with them.

use event_store::{EventStore, IncidentFilter, Transition, TransitionsOf, WriteError};
use health_event::incident::{
    CloseReason, HeldFault, Hold, Incident, IncidentFault, IncidentId, Marks, QuarantineStatus,
};
use health_event::{BootId, RecommendedAction};

use crate::support::*;

const ID: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAV";

pub(crate) fn incident(id: &str, uid: &str, version: u64) -> Incident {
    Incident {
        id: IncidentId::new(id).unwrap(),
        node: node(),
        node_uid: uid.into(),
        machine: "machine-1".into(),
        version,
        opened_seq: 1,
        opened_at: at(1),
        opened_boot: BootId::new("boot-1"),
        closed_at: None,
        quarantine: QuarantineStatus::Applying,
        since: at(1),
        faults: vec![IncidentFault {
            id: fault_id("79"),
            rules: ["rule".to_owned()].into(),
            forced_by: None,
            action: RecommendedAction::RestartBm,
            seq: 1,
            joined_at: at(1),
            closed_at: None,
            through_agent: true,
        }],
        marks: Marks::default(),
        pool: "gpu".into(),
        marks_observed: false,
        marks_before: None,
        needs_operator: None,
        held_by: None,
        faults_unknown: false,
        reasserted: Vec::new(),
        put_back: Vec::new(),
        drain: None,
        repair: None,
        validation: None,
    }
}

pub(crate) fn transition(incident: Incident, expected_version: Option<u64>) -> Transition {
    Transition {
        incident,
        expected_version,
        fencing: 0,
        module: "quarantine".into(),
        from: "-".into(),
        to: "Applying".into(),
        cause: r#"{"seq":1}"#.into(),
        at: at(1),
        state_puts: vec![("breaker".into(), b"1".to_vec())],
        faults_joined: vec![fault_id("79")],
        holds: None,
    }
}

fn opened(store: &EventStore) {
    send(store, fault(1, "79"));
    let first = transition(incident(ID, "uid-1", 1), None);
    assert_eq!(store.transition(first).wait().unwrap(), 1);
}

#[test]
fn an_incident_opens_changes_and_closes_with_all_that_belongs_to_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    opened(&store);
    let id = IncidentId::new(ID).unwrap();
    assert_eq!(store.state_get("breaker").unwrap(), Some(b"1".to_vec()));
    let joined = store.fault(&fault_id("79")).unwrap().unwrap();
    assert_eq!(joined.incident, Some(id.clone()));
    assert_eq!(
        store
            .open_incident_of_uid("uid-1")
            .unwrap()
            .unwrap()
            .version,
        1
    );
    assert_eq!(store.open_incidents_of(&node()).unwrap().len(), 1);

    let mut closed = incident(ID, "uid-1", 2);
    closed.closed_at = Some(at(2));
    closed.quarantine = QuarantineStatus::Closed(CloseReason::ManualUncordon);
    let mut last = transition(closed.clone(), Some(1));
    let hold = Hold {
        actor: "ada".into(),
        until: at(1_000),
        faults: vec![HeldFault {
            id: fault_id("79"),
            opened_seq: 1,
        }],
    };
    last.holds = Some(vec![hold.clone()]);
    last.faults_joined.clear();
    assert_eq!(store.transition(last).wait().unwrap(), 2);
    store.close();
    let store = open(dir.path());
    assert_eq!(store.incident(&id).unwrap(), Some(closed));
    assert!(store.open_incidents().unwrap().is_empty());
    assert_eq!(
        store.fault(&fault_id("79")).unwrap().unwrap().incident,
        None
    );
    assert_eq!(store.machine("machine-1").unwrap().unwrap().holds, [hold]);
    // Without an incident they change alone, under the leadership that holds.
    let put = |fencing: u64| {
        store
            .holds_put("machine-1", Vec::new(), fencing, at(3))
            .wait()
    };
    let current = store.fencing().unwrap();
    assert!(matches!(put(current + 1), Err(WriteError::Fenced { .. })));
    assert_eq!(store.machine("machine-1").unwrap().unwrap().holds.len(), 1);
    put(current).unwrap();
    assert!(
        store
            .machine("machine-1")
            .unwrap()
            .unwrap()
            .holds
            .is_empty()
    );
    let all = store
        .transitions(TransitionsOf::Incident(&id), 0, 10)
        .unwrap();
    assert_eq!(
        all.iter().map(|t| (t.seq, t.version)).collect::<Vec<_>>(),
        [(1, 1), (2, 2)]
    );
    assert_eq!(
        store
            .transitions(TransitionsOf::Node(&node()), 1, 10)
            .unwrap()
            .len(),
        1
    );
    assert_eq!(
        store.transitions(TransitionsOf::All, 0, 1).unwrap()[0].cause,
        r#"{"seq":1}"#
    );
    let filter = IncidentFilter {
        open: Some(false),
        ..IncidentFilter::default()
    };
    assert_eq!(store.incidents(&filter, 10).unwrap().len(), 1);
}

#[test]
fn a_stale_plan_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    opened(&store);
    for (version, expected) in [(1, None), (3, Some(2)), (1, Some(1))] {
        let mut plan = transition(incident(ID, "uid-1", version), expected);
        plan.state_puts = vec![("breaker".into(), b"changed".to_vec())];
        let refused = store.transition(plan).wait().unwrap_err();
        assert!(matches!(refused, WriteError::Stale { .. }), "{refused}");
    }
    assert_eq!(store.state_get("breaker").unwrap(), Some(b"1".to_vec()));
    assert_eq!(store.stats().unwrap().last_transition, 1);
    let next = transition(incident(ID, "uid-1", 2), Some(1));
    assert_eq!(
        store.transition(next).wait().unwrap(),
        2,
        "no number is used up by a refusal"
    );
}

#[test]
fn a_node_object_has_one_open_incident() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    opened(&store);
    let other = "01BX5ZZKBKACTAV9WEVGEMMVRZ";
    let refused = store
        .transition(transition(incident(other, "uid-1", 1), None))
        .wait();
    assert!(matches!(refused, Err(WriteError::AnotherOpen { .. })));
    store
        .transition(transition(incident(other, "uid-2", 1), None))
        .wait()
        .unwrap();
    assert_eq!(store.open_incidents_of(&node()).unwrap().len(), 2);
}

#[test]
fn a_leadership_that_is_over_changes_nothing_across_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.set_fencing(7).wait().unwrap();
    store.close();
    let store = open(dir.path());
    assert_eq!(store.fencing().unwrap(), 7);
    assert!(matches!(
        store.set_fencing(6).wait(),
        Err(WriteError::Fenced { .. })
    ));
    for fencing in [6, 8] {
        let put = store.state_put("k", vec![1], fencing).wait();
        assert_eq!(
            put,
            Err(WriteError::Fenced {
                given: fencing,
                current: 7
            })
        );
        let mut plan = transition(incident(ID, "uid-1", 1), None);
        plan.fencing = fencing;
        let refused = store.transition(plan).wait().unwrap_err();
        assert_eq!(refused.code(), "fenced");
    }
    assert!(store.open_incidents().unwrap().is_empty());
    store.state_put("k", vec![1], 7).wait().unwrap();
    assert_eq!(store.state_get("k").unwrap(), Some(vec![1]));
}

#[test]
fn a_fault_that_opens_again_belongs_to_no_incident_until_it_joins() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    opened(&store);
    send(&store, healthy(2));
    send(&store, fault(3, "79"));
    assert_eq!(
        store.fault(&fault_id("79")).unwrap().unwrap().incident,
        None
    );
}

/// Readers beside the writer may have begun before a commit: what they read must not be given to
/// those who ask after its reply.
#[test]
fn after_a_reply_every_reader_sees_the_write_though_others_read_all_the_time() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let over = std::sync::atomic::AtomicBool::new(false);
    let done = || over.load(std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|threads| {
        for _ in 0..3 {
            threads.spawn(|| {
                while !done() {
                    store.open_faults(&node()).unwrap();
                    store.open_incidents_of(&node()).unwrap();
                    store.machine("machine-1").unwrap();
                }
            });
        }
        for number in 1..=200_u64 {
            send(&store, fault(number, &number.to_string()));
            let open = store.open_faults(&node()).unwrap();
            assert_eq!(open.len(), usize::try_from(number).unwrap());
            let before = (number > 1).then_some(number - 1);
            let change = transition(incident(ID, "uid-1", number), before);
            store.transition(change).wait().unwrap();
            let open = store.open_incidents_of(&node()).unwrap();
            assert_eq!(open[0].version, number);
            let boot = BootId::new(&format!("boot-{number}"));
            let at = at(number.cast_signed());
            store
                .observe_boot("machine-1", &boot, "spool-1", at)
                .wait()
                .unwrap();
            let machine = store.machine("machine-1").unwrap().unwrap();
            assert_eq!(machine.boots.present(), Some(&boot));
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
