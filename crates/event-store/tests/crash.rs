//! `kill -9` while events are appended, and stops at the named points.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use event_store::{EventStore, Options};

use rusqlite::Connection;

use crate::renamed::{ALIASES, content, newer, older, open_now};
use crate::support::*;

const DIR: &str = "EVENT_STORE_CRASH_DIR";
const POINT: &str = "EVENT_STORE_CRASH_POINT";
/// Which pass of the point, from 1.
const PASS: &str = "EVENT_STORE_CRASH_PASS";

/// Not a test of its own: the program that is killed. Without the variable it does nothing.
#[test]
fn child_that_appends() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let point = std::env::var(POINT).unwrap_or_default();
    let passed = std::sync::atomic::AtomicU32::new(0);
    let hook = move |name: &'static str| {
        let n = passed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if name == point && n > 40 {
            std::process::abort();
        }
    };
    let options = Options {
        crash_points: Some(Arc::new(hook)),
        ..Options::default()
    };
    let store = EventStore::open(Path::new(&dir), options).unwrap();
    let start = store.stats().unwrap().last_seq * 10 + 1;
    let mut waiting = std::collections::VecDeque::new();
    for n in start.. {
        // Repeats of five faults and, now and then, a new one: both must be accounted for.
        let code = if n % 7 == 0 {
            format!("n{n}")
        } else {
            format!("r{}", n % 5)
        };
        waiting.push_back((n, code.clone(), store.append(vec![fault(n, &code)])));
        if waiting.len() == 16
            && let Some((n, code, reply)) = waiting.pop_front()
        {
            reply.wait().unwrap();
            let mut out = std::io::stdout().lock();
            writeln!(out, "acknowledged {n} {code}").unwrap();
            out.flush().unwrap();
        }
    }
}

fn spawn(dir: &Path, point: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::child_that_appends", "--nocapture"])
        .env(DIR, dir)
        .env(POINT, point)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Number and code of what the child was told to be durable, until `enough` or its end.
fn acknowledged(child: &mut Child, enough: usize) -> Vec<(u64, String)> {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut all = Vec::new();
    let mut killed = false;
    for line in lines.map_while(Result::ok) {
        let mut words = line.split(' ');
        if words.next() == Some("acknowledged") {
            let number = words.next().unwrap().parse().unwrap();
            all.push((number, words.next().unwrap().to_owned()));
        }
        if all.len() >= enough && !killed {
            child.kill().unwrap();
            killed = true;
        }
    }
    child.wait().unwrap();
    all
}

/// Everything acknowledged is stored, or counted in its fault; positions have no hole.
fn check(dir: &Path, sent: &[(u64, String)]) {
    let store = open(dir);
    let events = store.events(None, 0, 1_000_000).unwrap();
    let seqs: Vec<u64> = events.iter().map(|e| e.seq).collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
    let mut per_code: BTreeMap<&str, u64> = BTreeMap::new();
    for (number, code) in sent {
        *per_code.entry(code).or_default() += 1;
        let id = format!("id-{number}");
        if let Some(event) = events.iter().find(|e| e.id == id) {
            assert_eq!(event.body, fault(*number, code).body);
        }
    }
    for (code, acknowledged) in per_code {
        let fault = store.fault(&fault_id(code)).unwrap().unwrap();
        assert!(
            fault.open && fault.count >= acknowledged,
            "{code}: {} {acknowledged}",
            fault.count
        );
        let kept = events.iter().filter(|e| e.body == body_of(e, code)).count() as u64;
        assert_eq!(
            fault.count,
            kept + fault.repeats,
            "{code}: the counts add up"
        );
    }
    if let Some((last, code)) = sent.last() {
        let again = send(&store, fault(*last, code));
        assert_eq!(again.outcome, event_store::Outcome::Duplicate);
    }
}

fn body_of(event: &event_store::StoredEvent, code: &str) -> Vec<u8> {
    let number = event.id.trim_start_matches("id-").parse().unwrap();
    fault(number, code).body
}

#[test]
fn kill_9_loses_nothing_that_was_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let mut sent = Vec::new();
    for enough in [40, 1, 150] {
        let mut child = spawn(dir.path(), "");
        sent.extend(acknowledged(&mut child, enough));
        check(dir.path(), &sent);
    }
    assert!(sent.len() >= 191);
}

#[test]
fn a_stop_before_and_after_a_commit_loses_nothing_that_was_acknowledged() {
    for point in ["store.commit.before", "store.commit.after"] {
        let dir = tempfile::tempdir().unwrap();
        let sent = acknowledged(&mut spawn(dir.path(), point), usize::MAX);
        assert!(!sent.is_empty(), "{point}: the child got nowhere");
        check(dir.path(), &sent);
    }
}

/// Not a test of its own, as above: a version that knows another name of a check.
#[test]
fn child_that_opens() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let point = std::env::var(POINT).unwrap();
    let wanted: u32 = std::env::var(PASS).unwrap().parse().unwrap();
    let passed = std::sync::atomic::AtomicU32::new(0);
    let hook = move |name: &'static str| {
        if name == point && passed.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1 == wanted
        {
            std::process::abort();
        }
    };
    let options = Options {
        aliases: &ALIASES,
        crash_points: Some(Arc::new(hook)),
        ..Options::default()
    };
    EventStore::open(Path::new(&dir), options).unwrap().close();
}

/// Whether the child died.
fn died_at(dir: &Path, point: &str, pass: u32) -> bool {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::child_that_opens"])
        .env(DIR, dir)
        .env(POINT, point)
        .env(PASS, pass.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    !status.success()
}

/// Makes a file one of the first version: what later ones added goes.
fn as_of_the_first_version(file: &Connection) {
    let later =
        "SELECT 'DROP ' || type || ' ' || name || ';' FROM sqlite_schema WHERE sql IS NOT NULL
                 AND rowid > (SELECT rowid FROM sqlite_schema WHERE name = 'state')";
    let mut later = file.prepare(later).unwrap();
    let drops = later.query_map([], |row| row.get::<_, String>(0)).unwrap();
    let drops: Vec<String> = drops.map(Result::unwrap).collect();
    drop(later);
    assert!(drops.len() > 3, "{drops:?}");
    file.execute_batch(&drops.concat()).unwrap();
    file.pragma_update(None, "user_version", 1).unwrap();
}

#[test]
fn a_start_that_dies_while_it_brings_the_file_up_to_date_leaves_the_next_one_to_do_it() {
    let first = tempfile::tempdir().unwrap();
    let before = first.path().join("store.db");
    let store = open(first.path());
    for new in [
        older(fault(1, "79")),
        older(fault(2, "48")),
        fault(3, "79"),
        fault(4, "13"),
    ] {
        send(&store, new);
    }
    store.close();
    as_of_the_first_version(&Connection::open(&before).unwrap());
    let again = || {
        let dir = tempfile::tempdir().unwrap();
        std::fs::copy(&before, dir.path().join("store.db")).unwrap();
        dir
    };
    let undisturbed = again();
    newer(undisturbed.path()).close();
    let want = content(undisturbed.path());
    for point in ["store.begin.before", "store.begin.after"] {
        let mut pass = 1;
        loop {
            let dir = again();
            let died = died_at(dir.path(), point, pass);
            let store = newer(dir.path());
            assert!(!store.is_new(), "{point}:{pass}");
            assert_eq!(open_now(&store), ["13", "48", "79"], "{point}:{pass}");
            store.close();
            assert_eq!(content(dir.path()), want, "{point}:{pass}");
            if !died {
                break;
            }
            pass += 1;
        }
        assert!(
            pass > 3,
            "{point}: steps and names each pass it, not {pass}"
        );
    }
}

#[test]
fn a_store_whose_making_died_before_its_first_step_is_new_at_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    assert!(died_at(dir.path(), "store.begin.before", 1));
    assert!(dir.path().join("store.db").exists());
    assert!(open(dir.path()).is_new());
}
