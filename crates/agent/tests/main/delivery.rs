use health_event::keys;
use tonic::Status;

use crate::kit::{Controller, Setup, record, until, xid};

#[tokio::test]
async fn a_line_of_the_pipe_arrives_as_an_event_and_settles() {
    let controller = Controller::start();
    let mut setup = Setup::new();
    let agent = setup.start(&controller.url());
    setup.log(&record(1, "usb 1-1: new device"));
    setup.log(&xid(2, 79, 1));
    controller.events(1).await;
    let event = controller.see(|r| r.events[0].clone());
    assert_eq!(event.node_name, "gpu-1");
    assert_eq!(event.error_codes, ["79"]);
    assert!(event.is_fatal);
    assert!(event.metadata[keys::ORDER].starts_with("boot-1/"));
    assert_eq!(event.metadata[keys::MACHINE_ID], "machine-1");
    assert!(event.metadata[keys::ORIGIN].contains("kernel-log=pipe:"));
    until("the agent's own log tells of it", || {
        let log = setup.logged();
        let mut lines = log.lines();
        lines
            .any(|line| line.contains("read in the kernel log") && line.contains("f00d:01:00"))
            .then_some(())
    })
    .await;
    controller.settled().await;
    let report = controller.see(|r| r.reports[0].clone());
    assert!(report.started_from_nothing, "a new spool says so");
    assert!(agent.stop().success());
}

#[tokio::test]
async fn user_records_count_only_when_asked_for() {
    let controller = Controller::start();
    let mut setup = Setup::new();
    let agent = setup.start(&controller.url());
    let user = |n: u64| xid(n, 79, 1).replacen("3,", "11,", 1);
    setup.log(&user(1));
    setup.log(&xid(2, 48, 1));
    controller.events(1).await;
    assert_eq!(controller.see(|r| r.sequences()), [2]);
    assert!(agent.stop().success());
    setup.flags.push("--accept-user-records".into());
    let _agent = setup.start(&controller.url());
    setup.log(&user(3));
    controller.events(2).await;
    let event = controller.see(|r| r.events[1].clone());
    assert!(event.metadata[keys::ORIGIN].starts_with("user"));
}

#[tokio::test]
async fn a_thousand_events_of_an_absent_controller_arrive_once_and_in_order() {
    let mut controller = Controller::absent();
    let mut setup = Setup::new();
    let _agent = setup.start(&controller.url());
    for n in 1..=1_000 {
        setup.log(&xid(n, 79, u8::try_from(n % 8).unwrap()));
    }
    until("a refused connection", || {
        setup.logged().contains("not connected").then_some(())
    })
    .await;
    controller.up();
    controller.events(1_000).await;
    let numbers = controller.see(|r| r.numbers());
    assert!(numbers.is_sorted_by(|a, b| a < b), "in order");
    assert_eq!(controller.see(|r| r.resent), 0, "none twice");
    assert_eq!(
        controller.see(|r| r.sequences()),
        (1..=1_000).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn a_controller_that_comes_and_goes_gets_every_event_once_and_a_report_each_time() {
    let mut controller = Controller::start();
    let mut setup = Setup::new();
    let _agent = setup.start(&controller.url());
    for round in 0..3_u64 {
        setup.log(&xid(round * 2 + 1, 79, 1));
        let count = usize::try_from(round).unwrap() * 2 + 1;
        controller.events(count).await;
        let reports = controller.see(|r| r.reports.len());
        controller.down();
        setup.log(&xid(round * 2 + 2, 79, 1));
        controller.up();
        controller.events(count + 1).await;
        until("a report after the reconnect", || {
            controller.see(|r| (r.reports.len() > reports).then_some(()))
        })
        .await;
    }
    assert_eq!(controller.see(|r| r.sequences()), [1, 2, 3, 4, 5, 6]);
}

#[tokio::test]
async fn answers_that_are_no_verdict_keep_the_event() {
    let controller = Controller::start();
    controller.see(|r| {
        r.answers = vec![
            Err(Status::unavailable("starting")),
            Err(Status::permission_denied("not this node")),
            Err(Status::unauthenticated("token unknown")),
            Err(Status::resource_exhausted("slow down")),
            Err(Status::internal("oops")),
        ];
    });
    let mut setup = Setup::new();
    let _agent = setup.start(&controller.url());
    setup.log(&xid(1, 79, 1));
    controller.events(1).await;
    assert_eq!(controller.see(|r| (r.sequences(), r.calls)), (vec![1], 6));
}

#[tokio::test]
async fn one_bad_event_is_put_aside_and_the_others_go_on() {
    let mut controller = Controller::absent();
    controller.see(|r| r.bad_code = Some("31".into()));
    let mut setup = Setup::new();
    let _agent = setup.start(&controller.url());
    for n in 1..=40 {
        setup.log(&xid(n, if n == 23 { 31 } else { 79 }, 1));
    }
    controller.up();
    // 39 of the kernel log and the gap record.
    controller.events(40).await;
    let want: Vec<u64> = (1..=40).filter(|n| *n != 23).collect();
    assert_eq!(controller.see(|r| r.sequences()), want);
    let gap = controller.see(|r| {
        let gap = r.events.iter().find(|e| e.check_name == "EventsLost");
        gap.cloned().unwrap()
    });
    assert_eq!(gap.metadata["count"], "1");
    assert!(gap.message.contains("errorCode is bad"));
    let aside = until("the refused event's file", || {
        let mut files = std::fs::read_dir(setup.state.join("refused")).ok()?;
        std::fs::read_to_string(files.next()?.ok()?.path()).ok()
    })
    .await;
    assert!(aside.contains("errorCode is bad") && aside.contains("test 23"));
}

#[tokio::test]
async fn a_jump_in_the_sequence_leaves_a_gap_record() {
    let controller = Controller::start();
    let mut setup = Setup::new();
    let _agent = setup.start(&controller.url());
    setup.log(&xid(10, 79, 1));
    controller.events(1).await;
    // At once: at an end of the log it would tell what it knows of so far.
    let records = [11, 14, 20].map(|n| record(n, "nothing"));
    setup.log(&records.concat());
    controller.events(2).await;
    let gap = controller.see(|r| r.events[1].clone());
    assert_eq!(gap.check_name, "EventsLost");
    assert_eq!(gap.strategy, health_event::ProcessingStrategy::StoreOnly);
    let lost = |key: &str| gap.metadata[key].as_str().to_owned();
    assert_eq!(
        (lost("count"), lost("from"), lost("to")),
        ("7".into(), "12".into(), "19".into())
    );
}

#[tokio::test]
async fn a_fatal_event_does_not_wait_for_the_disk() {
    let controller = Controller::start();
    let mut setup = Setup::new();
    let _agent = setup.start(&controller.url());
    setup.log(&xid(1, 79, 1));
    controller.events(1).await;
    controller.settled().await;
    // Whoever holds the database's write lock holds up the spool as a hanging disk would.
    let disk = rusqlite::Connection::open(setup.state.join("spool.db")).unwrap();
    disk.execute_batch("BEGIN IMMEDIATE").unwrap();
    setup.log(&xid(2, 79, 1));
    controller.events(2).await;
    // What the disk does not take is sent once it says so, and this one was sent before.
    let log = setup.logged();
    assert!(!log.contains("spool write failed"), "{log}");
    disk.execute_batch("ROLLBACK").unwrap();
}

#[tokio::test]
async fn a_source_that_is_not_there_is_told_as_blind_and_read_when_it_comes() {
    let controller = Controller::start();
    let mut setup = Setup::new();
    let here = setup.path("kmsg");
    let away = setup.path("away");
    std::fs::rename(&here, &away).unwrap();
    let _agent = setup.start(&controller.url());
    let why = until("blind", || {
        controller.see(|r| {
            let report = r.reports.last()?;
            let detector = report.detectors.iter().find(|d| d.name == "kernel-log")?;
            detector
                .why
                .contains("can't be read")
                .then(|| detector.why.clone())
        })
    })
    .await;
    assert!(why.contains("No such file"), "{why}");
    std::fs::rename(&away, &here).unwrap();
    controller.settled().await;
    setup.log(&xid(1, 79, 1));
    controller.events(1).await;
}

#[tokio::test]
async fn the_admin_page_tells_how_things_stand() {
    let controller = Controller::start();
    let mut setup = Setup::new();
    setup.flag("--admin-listen", "127.0.0.1:0");
    let _agent = setup.start(&controller.url());
    controller.settled().await;
    let health = setup.page("/healthz").await;
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    for part in [
        "controller: connected",
        "kernel-log: settled",
        "stand-in: kernel-log=pipe:",
    ] {
        assert!(health.contains(part), "{part}: {health}");
    }
    let metrics = setup.page("/metrics").await;
    assert!(
        metrics.contains("warden_agent_controller_connected 1"),
        "{metrics}"
    );
    assert!(setup.page("/other").await.starts_with("HTTP/1.1 404"));
}
