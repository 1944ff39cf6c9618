//! A check that a newer version calls otherwise: what the file holds under the older name.

use std::collections::BTreeMap;
use std::path::Path;

use event_store::{EventStore, NewEvent, Options, Transition};
use health_event::checks::Alias;
use health_event::incident::{HeldFault, Hold, Incident, IncidentFault};
use health_event::{CloseCause, FaultId, RecommendedAction};
use rusqlite::Connection;
use rusqlite::types::Value;

use crate::support::*;
use crate::transitions::{incident, transition};

/// The name that the helpers use is the present one.
pub(crate) const ALIASES: [Alias; 1] = [Alias {
    old_agent: "xid-monitor",
    old_check: "Xid",
    agent: "syslog-health-monitor",
    check: "SysLogsXIDError",
}];

/// A version that knows the older name.
pub(crate) fn newer(dir: &Path) -> EventStore {
    let options = Options {
        aliases: &ALIASES,
        ..Options::default()
    };
    EventStore::open(dir, options).unwrap()
}

/// The same, said under the older name.
pub(crate) fn older(mut new: NewEvent) -> NewEvent {
    new.event.agent = ALIASES[0].old_agent.into();
    new.event.check_name = ALIASES[0].old_check.into();
    sealed(new)
}

fn older_id(code: &str) -> FaultId {
    let mut id = fault_id(code);
    id.scope.agent = ALIASES[0].old_agent.into();
    id.scope.check_name = ALIASES[0].old_check.into();
    id
}

/// The healthy word about GPU 0 and one code.
fn healthy_of(number: u64, code: &str) -> NewEvent {
    let mut new = healthy(number);
    new.event.error_codes = vec![code.to_owned()];
    sealed(new)
}

/// Codes of the open faults, sorted.
pub(crate) fn open_now(store: &EventStore) -> Vec<String> {
    let mut codes = open_codes(store);
    codes.sort();
    codes
}

/// All that a file holds, by table.
pub(crate) fn content(dir: &Path) -> BTreeMap<String, Vec<Vec<Value>>> {
    let file = Connection::open(dir.join("store.db")).unwrap();
    let mut names = file
        .prepare("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
        .unwrap();
    let names = names.query_map([], |row| row.get(0)).unwrap();
    let table = |name: String| {
        let mut rows = file.prepare(&format!("SELECT * FROM {name}")).unwrap();
        let columns = rows.column_count();
        let row = |row: &rusqlite::Row<'_>| (0..columns).map(|at| row.get(at)).collect();
        let rows = rows.query_map([], row).unwrap().map(Result::unwrap);
        (name, rows.collect())
    };
    names.map(|name| table(name.unwrap())).collect()
}

#[test]
fn a_newer_version_closes_what_an_older_one_opened() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    send(&store, older(fault(1, "79")));
    send(&store, older(fault(2, "48")));
    assert!(store.fault(&fault_id("79")).unwrap().is_none());
    store.close();

    let store = newer(dir.path());
    assert!(store.fault(&older_id("79")).unwrap().is_none());
    let known = store.fault(&fault_id("79")).unwrap().unwrap();
    assert!(known.open && known.asserted_by_agent);
    assert_eq!((known.count, known.opened_seq), (1, 1));
    // As it was said: that is history, and what the report's hash is made of.
    assert_eq!(known.event.agent, "xid-monitor");
    assert_eq!(open_now(&store), ["48", "79"]);
    send(&store, healthy(3));
    assert!(open_codes(&store).is_empty());
    let closed = store.fault(&fault_id("79")).unwrap().unwrap();
    assert_eq!(closed.cause, Some(CloseCause::Recovered));
    // An agent that was not changed yet still speaks of the same fault.
    send(&store, older(fault(4, "79")));
    assert!(store.fault(&fault_id("79")).unwrap().unwrap().open);
    send(&store, older(healthy(5)));
    assert!(open_codes(&store).is_empty());
}

#[test]
fn what_was_said_well_under_the_older_name_answers_a_late_fault_under_the_present_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    send(&store, older(healthy(5)));
    store.close();
    let store = newer(dir.path());
    send(&store, fault(4, "79"));
    assert!(open_codes(&store).is_empty());
    send(&store, fault(6, "79"));
    assert_eq!(open_codes(&store), ["79"]);
}

/// A version without the alias ran for a while: both names are in the file.
#[test]
fn two_names_in_one_file_become_one_check() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for new in [
        older(fault(1, "79")), // and under the present name again: one fault
        older(fault(2, "48")), // and well under the present name: closes
        older(fault(3, "31")), // only under the older name: stays
        fault(4, "13"),        // only under the present name, well under the older one
        healthy_of(5, "48"),
        fault(6, "79"),
        older(healthy_of(7, "13")),
    ] {
        send(&store, new);
    }
    assert_eq!(
        open_now(&store),
        ["13", "31", "48", "79", "79"],
        "five, of which two are one"
    );
    store.close();

    let store = newer(dir.path());
    assert_eq!(open_now(&store), ["31", "79"]);
    let one = store.fault(&fault_id("79")).unwrap().unwrap();
    assert_eq!((one.count, one.first_seq, one.last_seq), (2, 1, 6));
    assert_eq!((one.opened_seq, one.opened_at), (1, Some(at(1))));
    assert_eq!(one.event.id, "id-6", "the newest event");
    let well = store.fault(&fault_id("48")).unwrap().unwrap();
    assert_eq!(
        (well.open, well.cause),
        (false, Some(CloseCause::Recovered))
    );
    store.close();

    let after = content(dir.path());
    assert_eq!((after["scopes"].len(), after["faults"].len()), (1, 4));
    newer(dir.path()).close();
    assert_eq!(
        content(dir.path()),
        after,
        "a second opening finds nothing to do"
    );
}

#[test]
fn the_same_file_gives_the_same_result_whenever_it_is_opened() {
    let [one, two] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let store = open(one.path());
    for new in [
        older(fault(1, "79")),
        fault(2, "79"),
        older(healthy(3)),
        fault(4, "48"),
    ] {
        send(&store, new);
    }
    store.close();
    std::fs::copy(one.path().join("store.db"), two.path().join("store.db")).unwrap();
    newer(one.path()).close();
    std::thread::sleep(std::time::Duration::from_millis(5));
    newer(two.path()).close();
    assert_eq!(content(one.path()), content(two.path()));
}

#[test]
fn incidents_and_holds_follow_the_name() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    send(&store, older(fault(1, "79")));
    send(&store, fault(2, "79"));
    let joined = |id: FaultId, rule: &str, seq| IncidentFault {
        id,
        rules: [rule.to_owned()].into(),
        forced_by: None,
        action: RecommendedAction::RestartBm,
        seq,
        joined_at: at(seq.cast_signed()),
        closed_at: None,
        through_agent: true,
    };
    let both = [(older_id("79"), "older", 1), (fault_id("79"), "present", 2)];
    let under_hold = |(id, _, opened_seq): &(FaultId, &str, u64)| HeldFault {
        id: id.clone(),
        opened_seq: *opened_seq,
    };
    let incident = Incident {
        faults: both
            .clone()
            .map(|(id, rule, seq)| joined(id, rule, seq))
            .into(),
        ..incident("01ARZ3NDEKTSV4RRFFQ69G5FAV", "uid-1", 1)
    };
    let hold = Hold {
        actor: "ann".into(),
        until: at(1_000),
        faults: both.iter().map(under_hold).collect(),
    };
    let opened = Transition {
        faults_joined: both.iter().map(|(id, ..)| id.clone()).collect(),
        holds: Some(vec![hold]),
        ..transition(incident.clone(), None)
    };
    store.transition(opened).wait().unwrap();
    store.close();

    let store = newer(dir.path());
    let open = store.open_incidents_of(&node()).unwrap();
    let [fault] = open[0].faults.as_slice() else {
        panic!("{:?}", open[0].faults)
    };
    assert_eq!((&fault.id, fault.seq), (&fault_id("79"), 1));
    assert_eq!(fault.rules, ["older", "present"].map(str::to_owned).into());
    assert_eq!(
        open[0].version, incident.version,
        "nothing about it was decided"
    );
    let known = store.fault(&fault_id("79")).unwrap().unwrap();
    assert_eq!(known.incident, Some(incident.id.clone()));
    let machine = store.machine("machine-1").unwrap().unwrap();
    let under_hold = HeldFault {
        id: fault_id("79"),
        opened_seq: known.opened_seq,
    };
    assert!(
        machine.holds[0].faults.contains(&under_hold),
        "{:?}",
        machine.holds
    );
}
