use std::process::Command;

use crate::kit::{Controller, Setup, until, xid};

#[tokio::test]
async fn kill_nine_during_load_loses_nothing_that_was_read() {
    let mut controller = Controller::absent();
    let mut setup = Setup::new();
    let mut sequence = 0;
    for round in 0..4 {
        let agent = setup.start(&controller.url());
        let mark = format!("round {round}");
        for _ in 0..150 {
            sequence += 1;
            setup.log(&xid(sequence, 79, 1));
        }
        // Killed somewhere in the middle of it, and once with the controller there.
        if round == 2 {
            controller.up();
            until(&mark, || {
                controller.see(|r| (!r.events.is_empty()).then_some(()))
            })
            .await;
            controller.down();
        } else {
            // Without any saved position nobody could know what an agent took out of the pipe.
            until(&mark, || {
                has_events(&setup.state.join("spool.db")).then_some(())
            })
            .await;
        }
        agent.kill();
    }
    let _agent = setup.start(&controller.url());
    controller.up();
    sequence += 1;
    setup.log(&xid(sequence, 79, 1));
    until("the last event", || {
        controller.see(|r| r.sequences().contains(&sequence).then_some(()))
    })
    .await;
    // A pipe has no memory: what one agent took out of it and did not get to disk is gone with
    // it, and then a gap record says so.
    until("read + lost = written", || {
        controller.see(|r| {
            let mut distinct = r.sequences();
            distinct.sort_unstable();
            distinct.dedup();
            (distinct.len() as u64 + r.lost("kernel-log") == sequence).then_some(())
        })
    })
    .await;
    // An acknowledgement that a kill cut off is made up for by a second sending.
    let numbers = controller.see(|r| r.numbers());
    assert!(numbers.is_sorted_by(|a, b| a < b));
}

/// Whether an agent has written events, and with them its position.
fn has_events(spool: &std::path::Path) -> bool {
    use rusqlite::{Connection, OpenFlags};
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
    Connection::open_with_flags(spool, flags)
        .and_then(|c| c.query_row("SELECT count(*) > 0 FROM events", [], |row| row.get(0)))
        .unwrap_or(false)
}

/// A file system of its own that can be filled.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn mount(path: &std::path::Path) -> Self {
        std::fs::create_dir_all(path).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
            .arg(path)
            .status()
            .unwrap();
        assert!(mounted.success(), "this test needs root and tmpfs");
        Self(path.to_owned())
    }

    fn fill(&self) {
        let mut file = std::fs::File::create(self.0.join("ballast")).unwrap();
        let block = [0; 4096];
        while std::io::Write::write_all(&mut file, &block).is_ok() {}
    }

    fn forbid(&self) {
        let mounted = Command::new("mount")
            .args(["-o", "remount,ro"])
            .arg(&self.0)
            .status()
            .unwrap();
        assert!(mounted.success(), "this test needs root");
    }

    fn free(&self) {
        std::fs::remove_file(self.0.join("ballast")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test]
async fn a_full_disk_stops_neither_delivery_nor_the_agent_and_heals() {
    let mut controller = Controller::start();
    let mut setup = Setup::new();
    let disk = SmallDisk::mount(&setup.state);
    let mut agent = setup.start(&controller.url());
    setup.log(&xid(1, 79, 1));
    controller.events(1).await;
    controller.settled().await;
    disk.fill();
    for n in 2..=101 {
        setup.log(&xid(n, 79, 1));
    }
    until("events past the full disk", || {
        controller.see(|r| (r.sequences().len() >= 101).then_some(()))
    })
    .await;
    until("the fault of the spool itself", || {
        controller.see(|r| r.of_check("SpoolUnwritable").first().map(|e| e.is_healthy))
    })
    .await;
    assert!(agent.is_running());
    // Neither disk nor controller: a caller on the socket is told to come again.
    controller.down();
    let refused = crate::socket::send(&setup, vec![crate::socket::event("full")]).await;
    assert_eq!(refused.unwrap_err().code(), tonic::Code::Unavailable);
    disk.free();
    until("the spool's recovery", || {
        let healed = setup.logged().contains("spool can be written again");
        healed.then_some(())
    })
    .await;
    controller.up();
    until("what waited in memory", || {
        controller.see(|r| r.of_check("Custom").first().map(|_| ()))
    })
    .await;
    assert!(agent.stop().success());
}

#[tokio::test]
async fn a_start_on_a_full_or_read_only_disk_ends_with_an_error_that_names_it() {
    let controller = Controller::start();
    for full in [true, false] {
        let setup = Setup::new();
        let disk = SmallDisk::mount(&setup.state);
        if full {
            disk.fill();
        } else {
            disk.forbid();
        }
        let mut agent = setup.start(&controller.url());
        until("its end", || (!agent.is_running()).then_some(())).await;
        let logged = setup.logged();
        let state = setup.state.display().to_string();
        assert!(logged.contains(&state), "full: {full}: {logged}");
    }
}

/// Twenty events that take several pages each.
async fn fill(setup: &Setup) {
    for n in 0..20 {
        let mut event = crate::socket::event(&"m".repeat(12_000));
        event.error_code = vec![n.to_string()];
        crate::socket::send(setup, vec![event]).await.unwrap();
    }
}

/// Overwrites the link to the next page in a page of nothing but message text.
fn break_a_chain(file: &std::path::Path) {
    let mut bytes = std::fs::read(file).unwrap();
    let of_text = |page: &&mut [u8]| page[4..].iter().all(|b| *b == b'm');
    let page = bytes.chunks_exact_mut(4_096).find(of_text);
    page.unwrap()[..4].copy_from_slice(&[0xff; 4]);
    std::fs::write(file, bytes).unwrap();
}

#[tokio::test]
async fn a_damaged_spool_is_put_aside_with_a_gap_record() {
    type Damage = fn(&std::path::Path);
    // What is done to the file, and how many events are known to be lost with it.
    let table: [(&str, Damage, u64); 2] = [
        (
            "no database",
            |file| std::fs::write(file, [7; 9_000]).unwrap(),
            0,
        ),
        ("a broken page", break_a_chain, 20),
    ];
    for (name, damage, count) in table {
        let mut controller = Controller::absent();
        let setup = Setup::new();
        let agent = setup.start(&controller.url());
        fill(&setup).await;
        assert!(agent.stop().success());
        damage(&setup.state.join("spool.db"));
        let ahead = ulid::Ulid::from_parts(u64::from(u32::MAX) << 12, 7).to_string();
        let id = setup.state.join("spool.id");
        assert!(std::fs::read_to_string(&id).unwrap().trim() < ahead.as_str());
        // As if the clock had been ahead when it was made.
        std::fs::write(&id, &ahead).unwrap();
        let _agent = setup.start(&controller.url());
        controller.up();
        let gap = until(name, || {
            controller.see(|r| r.of_check("EventsLost").first().map(|e| (*e).clone()))
        })
        .await;
        assert_eq!(gap.error_codes, ["spool"], "{name}");
        assert_eq!(gap.metadata["count"], count.to_string(), "{name}");
        assert!(gap.message.contains("spool.damaged"), "{name}: {gap:?}");
        assert!(gap.generated_at.is_some());
        assert!(setup.state.join("spool.damaged").exists(), "{name}");
        let order: health_event::Order = gap.metadata[health_event::keys::ORDER].parse().unwrap();
        assert!(*order.spool > *ahead, "{name}: later than the spool before");
        assert_eq!(controller.see(|r| r.events.len()), 1, "{name}: told once");
    }
}

/// Die wherever a new spool takes a damaged one's place: one record tells of the loss, and of all
/// of it.
#[tokio::test]
async fn dying_while_a_damaged_spool_is_put_aside_keeps_the_count() {
    let places = agent::crash::POINTS.into_iter();
    let places = places.filter(|place| place.contains("begin") || place.contains("replace"));
    // Amid the renaming there are several moments.
    for place in places.chain(["spool.replace.amid:2", "spool.replace.amid:3"]) {
        let mut controller = Controller::absent();
        let mut setup = Setup::new();
        let agent = setup.start(&controller.url());
        fill(&setup).await;
        // Killed, so that there is a log, which is renamed too.
        agent.kill();
        break_a_chain(&setup.state.join("spool.db"));
        let flags = setup.flags.clone();
        setup.flag("--crash-at", place);
        let mut agent = setup.start(&controller.url());
        until(place, || (!agent.is_running()).then_some(())).await;
        setup.flags = flags;
        for start in 2..=3 {
            let agent = setup.start(&controller.url());
            if start == 2 {
                controller.up();
            }
            until(place, || {
                setup
                    .logged()
                    .matches("agent starts")
                    .nth(start - 1)
                    .map(|_| ())
            })
            .await;
            until(place, || {
                controller.see(|r| (r.lost("spool") == 20).then_some(()))
            })
            .await;
            assert!(agent.stop().success());
        }
        let told = controller.see(|r| r.of_check("EventsLost").len());
        assert_eq!(told, 1, "{place}: told once");
        let aside = std::fs::read(setup.state.join("spool.damaged")).unwrap();
        assert!(aside.windows(64).any(|text| text == [b'm'; 64]), "{place}");
        assert!(!setup.state.join("spool.new").exists(), "{place}");
    }
}

#[tokio::test]
async fn acknowledged_events_that_went_with_a_file_leave_a_gap_record() {
    const EMPTIED: bool = true;
    // Events before the kill, which files are emptied or removed then, and whether something is
    // lost with them: 20 large ones reach the database itself, the last one stays in the log.
    let table: [(u32, bool, &[&str], bool); 9] = [
        (1, EMPTIED, &["spool.db", "spool.db-wal"], true),
        (21, EMPTIED, &["spool.db", "spool.db-wal"], true),
        (21, EMPTIED, &["spool.db"], true),
        (21, EMPTIED, &["spool.db-wal"], true),
        (1, !EMPTIED, &["spool.db"], true),
        (
            21,
            !EMPTIED,
            &["spool.db", "spool.db-wal", "spool.db-shm"],
            true,
        ),
        (21, !EMPTIED, &["spool.db-wal"], true),
        (1, !EMPTIED, &["spool.db-wal", "spool.db-shm"], true),
        (21, !EMPTIED, &["spool.db-shm"], false),
    ];
    for (events, emptied, names, lost) in table {
        let name = format!("{events} events, emptied: {emptied}, {names:?}");
        let mut controller = Controller::absent();
        let setup = Setup::new();
        let agent = setup.start(&controller.url());
        let mut reader = None;
        if events > 1 {
            fill(&setup).await;
            // Whoever reads keeps what is written from now on out of the database.
            let disk = rusqlite::Connection::open(setup.state.join("spool.db")).unwrap();
            disk.execute_batch("BEGIN; SELECT * FROM meta;").unwrap();
            reader = Some(disk);
        }
        let last = crate::socket::send(&setup, vec![crate::socket::event("x")]);
        last.await.unwrap();
        drop(reader);
        agent.kill();
        for name in names {
            let path = setup.state.join(name);
            if emptied {
                std::fs::write(path, []).unwrap();
            } else {
                std::fs::remove_file(path).unwrap();
            }
        }
        let agent = setup.start(&controller.url());
        controller.up();
        until(&name, || {
            controller.see(|r| (!r.events.is_empty()).then_some(()))
        })
        .await;
        let told = controller.see(|r| r.of_check("EventsLost").len());
        assert_eq!(told, usize::from(lost), "{name}");
        controller.settled().await;
        // What is whole is no damage, also after a kill.
        agent.kill();
        let again = setup.start(&controller.url());
        until("the third start", || {
            setup.logged().matches("agent starts").nth(2).map(|_| ())
        })
        .await;
        assert!(again.stop().success());
        let found = setup.logged().matches("the spool is damaged").count();
        assert_eq!(found, usize::from(lost), "{name}");
    }
}

#[tokio::test]
async fn a_spool_that_is_damaged_while_it_is_used_ends_the_agent() {
    let mut controller = Controller::absent();
    let setup = Setup::new();
    let agent = setup.start(&controller.url());
    fill(&setup).await;
    assert!(agent.stop().success());
    // It starts with what is on disk, and finds out when that has to be sent.
    let mut agent = setup.start(&controller.url());
    until("the start", || {
        setup.logged().matches("agent starts").nth(1).map(|_| ())
    })
    .await;
    break_a_chain(&setup.state.join("spool.db"));
    controller.up();
    until("its end", || (!agent.is_running()).then_some(())).await;
    assert!(setup.logged().contains("spool_damaged"));
    let _agent = setup.start(&controller.url());
    until("the gap record", || {
        controller.see(|r| (r.lost("spool") == 20).then_some(()))
    })
    .await;
}
