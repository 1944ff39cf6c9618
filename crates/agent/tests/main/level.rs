//! What the report says of the spool: the controller compares nothing while something is under way,
//! and people see what was dropped.

use health_event::keys;
use jiff::Timestamp;
use tonic::Status;
use wire::warden::v1::{ReportReply, Spool};

use crate::kit::{Controller, Setup, until, xid};

/// The bound of the small spool, and what a compaction may leave above it (`compact`).
const BOUND: u64 = 1 << 20;
const ABOVE: u64 = 1 << 20;

/// The spool's own numbers, read from its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OnDisk {
    /// Events that are no gap records.
    events: u64,
    oldest: Option<i64>,
    bytes: u64,
}

fn on_disk(setup: &Setup) -> Option<OnDisk> {
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let disk = rusqlite::Connection::open_with_flags(setup.state.join("spool.db"), flags).ok()?;
    let number = |query: &str| {
        disk.query_row(query, [], |row| row.get::<_, Option<i64>>(0))
            .ok()
    };
    let unsigned = |number: Option<i64>| u64::try_from(number.unwrap_or(0)).unwrap();
    let of_xids = "SELECT count(*) FROM events WHERE instr(body, CAST('NVRM: Xid' AS BLOB)) > 0";
    let pages =
        number("SELECT page_count - freelist_count FROM pragma_page_count, pragma_freelist_count")?;
    Some(OnDisk {
        events: unsigned(number(of_xids)?),
        oldest: number("SELECT min(at) FROM events")?,
        bytes: unsigned(pages) * 4_096,
    })
}

fn spool_of(controller: &Controller, report: usize) -> Spool {
    controller.see(|r| r.reports[report].spool.unwrap())
}

fn oldest(spool: &Spool) -> Option<i64> {
    spool.oldest.map(|at| at.seconds)
}

#[tokio::test]
async fn the_first_report_tells_how_full_the_spool_is_and_what_it_dropped() {
    let mut controller = Controller::absent();
    // Nothing is taken before the first report was looked at.
    controller.see(|r| r.answers = vec![Err(Status::unavailable("not yet")); 1_000]);
    let mut setup = Setup::new();
    setup.flag("--spool-max-bytes", &BOUND.to_string());
    let agent = setup.start(&controller.url());
    let before = Timestamp::now().as_second();
    let mut written = 1;
    setup.log(&xid(1, 31, 1));
    until("the first event on disk", || {
        on_disk(&setup).filter(|disk| disk.events == 1)
    })
    .await;
    let after = Timestamp::now().as_second();
    let dropped = "the spool was full: repeats were cut to first and newest";
    while !setup.logged().contains(dropped) {
        for _ in 0..100 {
            written += 1;
            setup.log(&xid(written, 31, 1));
        }
        assert!(written < 20_000, "it is never full");
        tokio::task::yield_now().await;
    }
    // The last one is there, so all before it are there or were dropped.
    written += 1;
    setup.log(&xid(written, 79, 1));
    let last = format!(
        "SELECT count(*) = 1 AND (SELECT count(*) FROM gaps) = 0 FROM events
         WHERE instr(body, CAST('test {written}' AS BLOB)) > 0"
    );
    until("the last event on disk, and all gap records", || {
        let disk = rusqlite::Connection::open(setup.state.join("spool.db")).ok()?;
        let there = disk.query_row(&last, [], |row| row.get::<_, bool>(0));
        (there == Ok(true)).then_some(())
    })
    .await;
    // Also after a restart, before anything is written.
    assert!(agent.stop().success());
    let disk = on_disk(&setup).unwrap();
    let gone = written - disk.events;
    assert!(gone > 0);
    controller.up();
    let agent = setup.start(&controller.url());
    until("the first report", || {
        controller.see(|r| r.reports.first().map(|_| ()))
    })
    .await;
    let first = spool_of(&controller, 0);
    // The first of an identity stays.
    let oldest_at = oldest(&first).unwrap();
    assert!(
        (before..=after).contains(&oldest_at),
        "{oldest_at} {before} {after}"
    );
    assert_eq!((oldest(&first), first.bytes), (disk.oldest, disk.bytes));
    assert!(
        (BOUND / 8..=BOUND + ABOVE).contains(&first.bytes),
        "{first:?}"
    );
    assert_eq!(first.dropped, gone);

    controller.see(|r| r.answers.clear());
    until("all that is left", || {
        controller.see(|r| r.sequences().contains(&written).then_some(()))
    })
    .await;
    assert_eq!(
        controller.see(|r| r.lost("spool")),
        gone,
        "as the gap records say"
    );
    assert!(agent.stop().success());
    // With nothing under way there is no oldest, and what was dropped stays counted.
    let reports = controller.see(|r| r.reports.len());
    let agent = setup.start(&controller.url());
    until("a report of the next process", || {
        controller.see(|r| (r.reports.len() > reports).then_some(()))
    })
    .await;
    let later = spool_of(&controller, reports);
    assert_eq!((oldest(&later), later.dropped), (None, gone));
    assert!(later.bytes < first.bytes, "{later:?}");
    drop(agent);
}

#[tokio::test]
async fn an_event_that_is_not_on_disk_yet_is_told_as_waiting() {
    let controller = Controller::start();
    let reply = ReportReply {
        next_interval_seconds: 1,
        ..ReportReply::default()
    };
    controller.see(|r| r.replies = vec![reply]);
    let mut setup = Setup::new();
    let _agent = setup.start(&controller.url());
    controller.settled().await;
    // Whoever holds the database's write lock holds up the spool as a hanging disk would.
    let disk = rusqlite::Connection::open(setup.state.join("spool.db")).unwrap();
    disk.execute_batch("BEGIN IMMEDIATE").unwrap();
    controller.see(|r| r.answers = vec![Err(Status::unavailable("not yet")); 1_000]);
    setup.log(&xid(1, 79, 1));
    let report = until("a report that includes the event", || {
        controller.see(|r| {
            let report = r.reports.iter().find(|report| report.last_number > 0)?;
            Some(report.clone())
        })
    })
    .await;
    assert!(oldest(&report.spool.unwrap()).is_some(), "{report:?}");
    disk.execute_batch("ROLLBACK").unwrap();
    controller.see(|r| r.answers.clear());
    controller.events(1).await;
    let number = controller.see(|r| r.events[0].metadata[keys::ORDER].clone());
    assert!(
        number.ends_with(&format!("/{}", report.last_number)),
        "{number}"
    );
}
