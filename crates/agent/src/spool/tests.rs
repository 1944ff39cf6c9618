use health_event::{Entity, keys};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::*;

fn event(code: &str, number: u64, fatal: bool) -> HealthEvent {
    HealthEvent {
        agent: "syslog-health-monitor".into(),
        check_name: "SysLogsXIDError".into(),
        error_codes: vec![code.into()],
        entities: vec![Entity::new("PCI", "0000:17:00")],
        is_fatal: fatal,
        message: "m".repeat(500),
        metadata: [(keys::ORDER.to_owned(), format!("b/s/{number}"))].into(),
        ..HealthEvent::default()
    }
}

fn row(event: &HealthEvent, number: u64) -> Row {
    Row {
        number,
        identity: identity_of(event),
        fatal: event.is_fatal,
        at: 1_700_000_000,
        body: wire::encode_body(event),
    }
}

async fn stored(outcomes: &mut UnboundedReceiver<Done>) -> Vec<Gap> {
    let mut gaps = Vec::new();
    loop {
        match outcomes.recv().await.unwrap() {
            Done::Stored(_) => {}
            Done::Failed(error) => panic!("{error}"),
            Done::Dropped(id, gap) => {
                assert!(id.is_some());
                gaps.push(gap);
            }
            Done::Level(_) => return gaps,
        }
    }
}

#[tokio::test]
async fn what_was_written_is_there_after_a_start() {
    let folder = tempfile::tempdir().unwrap();
    let (done, mut outcomes) = unbounded_channel();
    let (spool, thread, found) = Spool::open(folder.path(), 1 << 20, done).unwrap();
    assert!(found.fresh && !found.adopted && !found.pending);
    let fault = event("79", 3, true);
    let device = health_event::devices_of(&fault.entities).remove(0);
    let assertion = Assertion {
        identity: SentIdentity::of(&fault, &device, "79"),
        order: fault.metadata[keys::ORDER].parse().ok(),
        body: wire::encode_body(&fault).into(),
        device,
        code: "79".into(),
    };
    let position = Position {
        machine: "m".into(),
        boot: "b".into(),
        sequence: 17,
    };
    spool
        .write(Write {
            rows: (1..=3).map(|n| row(&event("79", n, true), n)).collect(),
            faults: vec![FaultRow {
                key: "k".into(),
                assertion: Some(assertion.clone()),
            }],
            position: Some(position.clone()),
            boots: Some(vec!["a".into(), "b".into()]),
            adopted: true,
            ..Write::default()
        })
        .unwrap();
    stored(&mut outcomes).await;
    spool.acknowledged(2);
    let rest = spool.read(0, 10).await.unwrap();
    assert_eq!(rest, vec![event("79", 3, true)]);
    thread.close();

    let (done, _outcomes) = unbounded_channel();
    let (_spool, thread, again) = Spool::open(folder.path(), 1 << 20, done).unwrap();
    assert_eq!(again.id, found.id);
    assert!(!again.fresh && again.adopted && again.pending);
    assert_eq!(again.last_number, 3);
    assert_eq!(again.position, Some(position));
    assert_eq!(again.boots, ["a", "b"]);
    assert_eq!(again.faults, vec![assertion]);
    thread.close();
}

#[tokio::test]
async fn a_second_agent_is_refused_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let (done, _outcomes) = unbounded_channel();
    let (_spool, thread, _) = Spool::open(folder.path(), 1 << 20, done.clone()).unwrap();
    let second = Spool::open(folder.path(), 1 << 20, done).unwrap_err();
    assert_eq!(second.code(), "spool_in_use");
    thread.close();
}

#[tokio::test]
async fn a_full_spool_keeps_first_and_newest_then_lets_the_oldest_that_are_not_fatal_go() {
    let folder = tempfile::tempdir().unwrap();
    let (done, mut outcomes) = unbounded_channel();
    let (spool, thread, _) = Spool::open(folder.path(), 1 << 20, done).unwrap();
    let mut number = 0;
    let mut gaps = Vec::new();
    // 2,000 repeats of one fatal and one other fault, then 2,000 others that are not fatal.
    for round in 0..60 {
        let mut write = Write::default();
        for n in 0..100 {
            number += 1;
            let event = match (round, n % 2) {
                (0..30, 0) => event("79", number, true),
                (0..30, _) => event("31", number, false),
                _ => event(&number.to_string(), number, false),
            };
            write.rows.push(row(&event, number));
        }
        spool.write(write).unwrap();
        gaps.extend(stored(&mut outcomes).await);
    }
    let left = spool.read(0, 10_000).await.unwrap();
    let fatal: Vec<&HealthEvent> = left.iter().filter(|e| e.is_fatal).collect();
    assert!(
        fatal.len() >= 2,
        "first and newest of the fatal fault are there"
    );
    assert_eq!(fatal[0], &event("79", 1, true));
    assert_eq!(fatal[fatal.len() - 1], &event("79", 2_999, true));
    let newest = &left[left.len() - 1];
    assert_eq!(newest, &event("6000", 6_000, false));
    let dropped: u64 = gaps.iter().map(|gap| gap.count).sum();
    assert_eq!(left.len() as u64 + dropped, 6_000, "what went is counted");
    let whys: Vec<&str> = gaps.iter().map(|gap| gap.why.as_str()).collect();
    assert!(whys.iter().any(|why| why.contains("first and newest")));
    assert!(whys.iter().any(|why| why.contains("not fatal went")));
    thread.close();
}

#[tokio::test]
async fn what_the_sender_holds_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (done, mut outcomes) = unbounded_channel();
    let (spool, thread, _) = Spool::open(folder.path(), 1 << 20, done).unwrap();
    for round in 0..30 {
        let rows = (1..=100).map(|n| round * 100 + n);
        let rows = rows.map(|n| row(&event("31", n, false), n)).collect();
        let write = Write {
            rows,
            held_through: 50,
            ..Write::default()
        };
        spool.write(write).unwrap();
        stored(&mut outcomes).await;
    }
    let first: Vec<HealthEvent> = spool.read(0, 50).await.unwrap();
    assert_eq!(
        first,
        (1..=50).map(|n| event("31", n, false)).collect::<Vec<_>>()
    );
    thread.close();
}

#[tokio::test]
async fn refused_events_are_put_aside_a_hundred_at_most() {
    let folder = tempfile::tempdir().unwrap();
    let (done, mut outcomes) = unbounded_channel();
    let (spool, thread, _) = Spool::open(folder.path(), 1 << 20, done).unwrap();
    for number in 1..=120 {
        let refused = spool.refuse(event("79", number, true), number, "bad code".into());
        refused.unwrap();
    }
    thread.close();
    outcomes.close();
    let mut names: Vec<_> = std::fs::read_dir(folder.path().join("refused"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    names.sort_unstable();
    assert_eq!(names.len(), 100);
    assert!(names[0].ends_with("00000000000000000021.txt"));
    let text = std::fs::read_to_string(&names[99]).unwrap();
    assert!(text.contains("bad code") && text.contains("SysLogsXIDError"));
}

#[tokio::test]
async fn a_gap_is_remembered_until_it_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let (done, mut outcomes) = unbounded_channel();
    let (spool, thread, _) = Spool::open(folder.path(), 1 << 20, done.clone()).unwrap();
    let rows = vec![row(&event("79", 1, true), 1)];
    spool
        .write(Write {
            rows,
            ..Write::default()
        })
        .unwrap();
    let refused = spool.refuse(event("79", 1, true), 1, "bad code".into());
    refused.unwrap();
    thread.close();
    let dropped = std::iter::from_fn(|| outcomes.try_recv().ok());
    let dropped = dropped
        .filter(|d| matches!(d, Done::Dropped(Some(_), _)))
        .count();
    assert_eq!(dropped, 1);

    let (spool, thread, stored) = Spool::open(folder.path(), 1 << 20, done.clone()).unwrap();
    assert!(!stored.pending, "the refused event is out of the way");
    let (id, gap) = stored.untold[0].clone();
    assert_eq!((gap.source, gap.count, gap.from), ("refused", 1, 1));
    spool
        .write(Write {
            told: vec![id],
            ..Write::default()
        })
        .unwrap();
    thread.close();
    let (_spool, thread, stored) = Spool::open(folder.path(), 1 << 20, done).unwrap();
    assert_eq!(stored.untold, Vec::new());
    thread.close();
}

#[tokio::test]
async fn a_damaged_spool_is_put_aside_and_a_new_one_begun() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("spool.db"), vec![7; 10_000]).unwrap();
    let (done, _outcomes) = unbounded_channel();
    let (_spool, thread, stored) = Spool::open(folder.path(), 1 << 20, done).unwrap();
    assert!(stored.fresh);
    let aside = std::fs::read(folder.path().join("spool.damaged")).unwrap();
    assert_eq!(aside, vec![7; 10_000]);
    thread.close();
}

#[tokio::test]
async fn no_position_passes_an_event_whose_write_failed() {
    let folder = tempfile::tempdir().unwrap();
    let (done, mut outcomes) = unbounded_channel();
    let (spool, thread, _) = Spool::open(folder.path(), 1 << 20, done.clone()).unwrap();
    let at = |sequence| {
        Some(Position {
            machine: "m".into(),
            boot: "b".into(),
            sequence,
        })
    };
    let mut too_large = row(&event("79", 1, true), 1);
    too_large.body = vec![0; 20 << 20];
    let failing = Write {
        rows: vec![too_large],
        position: at(1),
        ..Write::default()
    };
    spool.write(failing).unwrap();
    while !matches!(outcomes.recv().await.unwrap(), Done::Failed(_)) {}
    let later = Write {
        position: at(2),
        ..Write::default()
    };
    spool.write(later).unwrap();
    thread.close();
    let (spool, thread, stored) = Spool::open(folder.path(), 1 << 20, done.clone()).unwrap();
    assert_eq!(stored.position, None);
    drop(spool);
    thread.close();
    let (spool, thread, _) = Spool::open(folder.path(), 1 << 20, done.clone()).unwrap();
    let whole = Write {
        whole: true,
        position: at(3),
        ..Write::default()
    };
    spool.write(whole).unwrap();
    thread.close();
    let (_spool, thread, stored) = Spool::open(folder.path(), 1 << 20, done).unwrap();
    assert_eq!(stored.position, at(3));
    thread.close();
}

#[tokio::test]
async fn an_event_that_the_disk_garbled_leaves_a_gap_record_and_holds_nothing_up() {
    let folder = tempfile::tempdir().unwrap();
    let (done, mut outcomes) = unbounded_channel();
    let (spool, thread, _) = Spool::open(folder.path(), 1 << 20, done).unwrap();
    let mut rows: Vec<Row> = (1..=3).map(|n| row(&event("79", n, true), n)).collect();
    rows[1].body = vec![0xff; 64];
    spool
        .write(Write {
            rows,
            ..Write::default()
        })
        .unwrap();
    let read = spool.read(0, 2).await.unwrap();
    assert_eq!(read.len(), 2, "fewer would mean that there are no more");
    let gap = loop {
        if let Done::Dropped(Some(_), gap) = outcomes.recv().await.unwrap() {
            break gap;
        }
    };
    assert_eq!(
        (gap.source, gap.count, gap.from, gap.to),
        ("spool", 1, 2, 2)
    );
    assert_eq!(spool.read(0, 10).await.unwrap().len(), 2);
    assert!(outcomes.try_recv().is_err(), "told once");
    thread.close();
}
