//! Die while an event that can't be sent leaves the spool: it is in `refused/` or in the log, with
//! one gap record, and nothing else goes with it.

use std::path::Path;

use crate::kit::{Controller, Setup, until, xid};

const PLACES: [&str; 2] = ["spool.take-out.before", "spool.take-out.after"];
/// The one of five that can't be sent.
const BAD: u64 = 3;

fn open(setup: &Setup) -> rusqlite::Connection {
    rusqlite::Connection::open(setup.state.join("spool.db")).unwrap()
}

/// Five events of the kernel log, on disk.
async fn five(setup: &mut Setup) {
    for n in 1..=5 {
        setup.log(&xid(n, if n == BAD { 31 } else { 79 }, 1));
    }
    until("five events on disk", || {
        let disk = rusqlite::Connection::open_with_flags(
            setup.state.join("spool.db"),
            rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY,
        );
        let count = disk
            .ok()?
            .query_row("SELECT count(*) FROM events", [], |row| row.get(0));
        (count == Ok(5)).then_some(())
    })
    .await;
}

/// What was put aside.
fn aside(state: &Path) -> Vec<String> {
    let Ok(files) = std::fs::read_dir(state.join("refused")) else {
        return Vec::new();
    };
    let paths = files.map(|file| file.unwrap().path());
    paths
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect()
}

/// Starts again without a place to die at, twice: all is told, and then nothing more.
async fn accounted_for(
    place: &str,
    setup: &Setup,
    controller: &Controller,
    source: &str,
    want: &[u64],
) {
    for start in 1..=2 {
        let reports = controller.see(|r| r.reports.len());
        let agent = setup.start(&controller.url());
        let mark = format!("{place}, start {start}: all is accounted for");
        until(&mark, || {
            controller.see(|r| {
                let all = want.iter().all(|n| r.sequences().contains(n));
                let spoke = r.reports.len() > reports;
                (spoke && all && r.lost(source) == 1).then_some(())
            })
        })
        .await;
        assert!(agent.stop().success());
    }
    assert_eq!(controller.see(|r| r.sequences()), want, "{place}: in order");
    let told = controller.see(|r| r.of_check("EventsLost").len());
    assert_eq!(told, 1, "{place}: told once");
}

#[tokio::test]
async fn a_refused_event_is_put_aside_with_one_gap_record_wherever_the_agent_dies() {
    // In the second round the disk hangs meanwhile: what was acknowledged after the refusal then
    // reaches it together with the refusal.
    for (place, hangs) in PLACES.into_iter().flat_map(|p| [(p, false), (p, true)]) {
        let mut controller = Controller::absent();
        controller.see(|r| r.bad_code = Some("31".into()));
        let mut setup = Setup::new();
        let flags = setup.flags.clone();
        setup.flag("--crash-at", place);
        let mut agent = setup.start(&controller.url());
        five(&mut setup).await;
        let mut want = vec![1, 2, 4, 5];
        if hangs {
            // Whoever holds the database's write lock holds up the spool as a hanging disk would.
            let disk = open(&setup);
            disk.execute_batch("BEGIN IMMEDIATE").unwrap();
            setup.log(&xid(6, 79, 1));
            want.push(6);
            controller.up();
            until("all that the refusal held up", || {
                controller.see(|r| r.sequences().contains(&6).then_some(()))
            })
            .await;
            disk.execute_batch("ROLLBACK").unwrap();
        } else {
            controller.up();
        }
        until(place, || (!agent.is_running()).then_some(())).await;
        setup.flags = flags;
        accounted_for(place, &setup, &controller, "refused", &want).await;
        let aside = aside(&setup.state);
        let refused = |text: &String| text.contains("test 3") && text.contains("errorCode is bad");
        assert!(
            aside.len() == 1 && aside.iter().all(refused),
            "{place}: {aside:?}"
        );
    }
}

#[tokio::test]
async fn an_event_that_the_disk_garbled_leaves_one_gap_record_wherever_the_agent_dies() {
    for place in PLACES {
        let mut controller = Controller::absent();
        let mut setup = Setup::new();
        let agent = setup.start(&controller.url());
        five(&mut setup).await;
        assert!(agent.stop().success());
        let garble = "UPDATE events SET body = x'ff' WHERE number = \
                      (SELECT number FROM events ORDER BY number LIMIT 1 OFFSET 2)";
        assert_eq!(open(&setup).execute(garble, []), Ok(1));
        let flags = setup.flags.clone();
        setup.flag("--crash-at", place);
        controller.up();
        let mut agent = setup.start(&controller.url());
        until(place, || (!agent.is_running()).then_some(())).await;
        setup.flags = flags;
        accounted_for(place, &setup, &controller, "spool", &[1, 2, 4, 5]).await;
        assert!(
            setup
                .logged()
                .contains("spool holds bytes that are no event")
        );
    }
}
