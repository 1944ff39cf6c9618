use health_event::{Order, keys};
use wire::warden::v1::{DetectorState, ReportReply};

use crate::kit::{Controller, Setup, record, until, xid};

#[tokio::test]
async fn after_a_reboot_what_is_not_found_again_recovers_and_then_the_agent_settles() {
    let controller = Controller::start();
    let mut setup = Setup::new();
    let agent = setup.start(&controller.url());
    setup.log(&xid(500, 79, 1));
    setup.log(&xid(501, 48, 2));
    controller.events(2).await;
    controller.settled().await;
    assert!(agent.stop().success());

    setup.boot("boot-2");
    controller.see(|r| r.reports.clear());
    // The new boot's ring finds the second fault again.
    setup.log(&record(0, "Linux version 6.18"));
    setup.log(&xid(1, 48, 2));
    let _agent = setup.start(&controller.url());
    controller.settled().await;
    let events = controller.see(|r| r.events[2..].to_vec());
    assert_eq!(events.len(), 2, "{events:#?}");
    assert!(!events[0].is_healthy && events[0].error_codes == ["48"]);
    assert!(events[1].is_healthy && events[1].error_codes == ["79"]);
    assert_eq!(events[1].metadata[keys::CAUSE], "reboot");
    assert!(events[1].metadata[keys::ORDER].starts_with("boot-2/"));
    let last = controller.see(|r| r.reports.last().cloned().unwrap());
    assert_eq!(last.boot_id, "boot-2");
    assert_eq!(last.asserted.unwrap().count, 1);
    assert!(!last.started_from_nothing);
}

#[tokio::test]
async fn a_restart_in_the_same_boot_repeats_nothing_and_forgets_nothing() {
    let controller = Controller::start();
    let mut setup = Setup::new();
    let agent = setup.start(&controller.url());
    setup.log(&xid(1, 79, 1));
    controller.events(1).await;
    controller.settled().await;
    let before = controller.see(|r| r.reports.last().cloned().unwrap());
    assert!(agent.stop().success());
    controller.see(|r| r.reports.clear());
    setup.log(&xid(1, 79, 1));
    setup.log(&record(2, "nothing"));
    let _agent = setup.start(&controller.url());
    controller.settled().await;
    assert_eq!(
        controller.see(|r| r.sequences()),
        [1],
        "an old record is not told again"
    );
    let after = controller.see(|r| r.reports.last().cloned().unwrap());
    assert_eq!(after.asserted, before.asserted);
    assert_eq!(after.last_number, before.last_number);
    assert_ne!(after.process_id, before.process_id);
    assert_eq!(after.spool_id, before.spool_id);
}

#[tokio::test]
async fn the_list_is_sent_when_asked_for_and_only_then() {
    let controller = Controller::start();
    let mut setup = Setup::new();
    let _agent = setup.start(&controller.url());
    setup.log(&xid(1, 79, 1));
    controller.events(1).await;
    controller.settled().await;
    assert!(controller.see(|r| r.reports.iter().all(|report| !report.has_list)));
    let asks = ReportReply {
        want_list: true,
        next_interval_seconds: 1,
        ..ReportReply::default()
    };
    let quiet = ReportReply {
        next_interval_seconds: 3_600,
        ..ReportReply::default()
    };
    controller.see(|r| r.replies = vec![asks, quiet]);
    // A change of state makes it report: another fault does not, a reconnect does.
    let mut controller = controller;
    controller.down();
    controller.up();
    let report = until("the list", || {
        controller.see(|r| r.reports.iter().find(|report| report.has_list).cloned())
    })
    .await;
    let sent = controller.see(|r| r.events[0].clone());
    let listed = health_event::HealthEvent::try_from(report.asserted_events[0].clone()).unwrap();
    assert_eq!(listed, sent, "whole, id and order unchanged");
}

#[tokio::test]
async fn a_lost_spool_takes_over_what_the_controller_has_open_before_it_settles() {
    let controller = Controller::start();
    let mut setup = Setup::new();
    let agent = setup.start(&controller.url());
    setup.log(&xid(10, 79, 1));
    setup.log(&xid(11, 48, 2));
    controller.events(2).await;
    controller.settled().await;
    agent.kill();
    std::fs::remove_dir_all(&setup.state).unwrap();
    let open = controller.see(|r| r.events.clone());
    let reply = ReportReply {
        adopt: open.iter().cloned().map(Into::into).collect(),
        ..ReportReply::default()
    };
    controller.see(|r| {
        r.reports.clear();
        r.replies = vec![reply];
    });

    // Same boot: they stay open until they recover.
    let agent = setup.start(&controller.url());
    controller.settled().await;
    let (first, last) = controller.see(|r| (r.reports[0].clone(), r.reports.last().cloned()));
    assert!(first.started_from_nothing);
    assert_eq!(first.asserted.as_ref().unwrap().count, 0);
    assert_ne!(
        controller.see(|r| r.state_of(&first, "kernel-log")),
        Some(DetectorState::DetectorSettled),
        "not before the controller answered"
    );
    assert_eq!(last.unwrap().asserted.unwrap().count, 2);
    assert_eq!(
        controller.see(|r| r.events.len()),
        2,
        "nothing is told anew"
    );
    agent.kill();
    std::fs::remove_dir_all(&setup.state).unwrap();

    // Another boot: as after any reboot.
    setup.boot("boot-2");
    controller.see(|r| r.reports.clear());
    let _agent = setup.start(&controller.url());
    controller.settled().await;
    let healthy = controller.see(|r| r.events[2..].iter().filter(|e| e.is_healthy).count());
    assert_eq!(healthy, 2);
    let last = controller.see(|r| r.reports.last().cloned().unwrap());
    assert_eq!(last.asserted.unwrap().count, 0);
}

#[tokio::test]
async fn at_a_first_start_old_records_are_only_stored() {
    let controller = Controller::start();
    let mut setup = Setup::new();
    setup.flag("--first-start-lookback", "0");
    setup.log(&xid(1, 79, 1));
    let agent = setup.start(&controller.url());
    controller.settled().await;
    setup.log(&xid(2, 79, 1));
    controller.events(2).await;
    let events = controller.see(|r| r.events.clone());
    assert_eq!(
        events[0].strategy,
        health_event::ProcessingStrategy::StoreOnly
    );
    assert_eq!(events[0].metadata[keys::HISTORICAL], "true");
    assert_eq!(
        events[1].strategy,
        health_event::ProcessingStrategy::ExecuteRemediation
    );
    assert!(agent.stop().success());
}

#[tokio::test]
async fn a_spool_that_is_new_after_the_clock_was_set_back_counts_as_later() {
    let controller = Controller::start();
    let mut setup = Setup::new();
    let agent = setup.start(&controller.url());
    setup.log(&xid(10, 79, 1));
    controller.events(1).await;
    controller.settled().await;
    agent.kill();
    // The lost spool was made when the clock was a day ahead.
    let mut open = controller.see(|r| r.events[0].clone());
    let order: Order = open.metadata[keys::ORDER].parse().unwrap();
    let earlier = ulid::Ulid::from_string(&order.spool).unwrap();
    let ahead = ulid::Ulid::from_parts(earlier.timestamp_ms() + 86_400_000, 7).to_string();
    let later = Order {
        spool: ahead.as_str().into(),
        ..order
    };
    open.metadata.insert(keys::ORDER.into(), later.to_string());
    std::fs::remove_dir_all(&setup.state).unwrap();
    controller.see(|r| {
        r.reports.clear();
        r.replies = vec![ReportReply {
            adopt: vec![open.into()],
            ..ReportReply::default()
        }];
    });
    let agent = setup.start(&controller.url());
    controller.settled().await;
    let spool = controller.see(|r| r.reports.last().unwrap().spool_id.clone());
    assert!(spool > ahead, "{spool} {ahead}");
    setup.log(&xid(11, 48, 2));
    controller.events(2).await;
    let order = controller.see(|r| r.events[1].metadata[keys::ORDER].parse::<Order>());
    assert_eq!(*order.unwrap().spool, *spool);
    // And it stays so.
    agent.kill();
    controller.see(|r| r.reports.clear());
    let _agent = setup.start(&controller.url());
    controller.settled().await;
    assert_eq!(controller.see(|r| r.reports[0].spool_id.clone()), spool);
}

#[tokio::test]
async fn a_list_that_is_too_long_for_one_report_is_told_in_parts_that_deny_nothing() {
    let controller = Controller::start();
    let mut setup = Setup::new();
    let _agent = setup.start(&controller.url());
    let faults = 1_100;
    for n in 0..faults {
        let code = [79, 48, 62, 64, 95][usize::try_from(n / 256).unwrap()];
        setup.log(&xid(n + 1, code, u8::try_from(n % 256).unwrap()));
    }
    controller.events(usize::try_from(faults).unwrap()).await;
    controller.settled().await;
    let asks = ReportReply {
        want_list: true,
        next_interval_seconds: 1,
        ..ReportReply::default()
    };
    let quiet = ReportReply {
        next_interval_seconds: 3_600,
        ..ReportReply::default()
    };
    controller.see(|r| {
        r.reports.clear();
        r.replies = vec![asks, quiet];
    });
    let mut controller = controller;
    controller.down();
    controller.up();
    let reports = until("the list and a report after it", || {
        controller.see(|r| {
            let list = r.reports.iter().rposition(|report| report.has_list)?;
            (r.reports.len() > list + 1).then(|| r.reports.clone())
        })
    })
    .await;
    let lists: Vec<_> = reports.iter().filter(|report| report.has_list).collect();
    let counts: Vec<usize> = lists.iter().map(|l| l.asserted_events.len()).collect();
    assert_eq!(counts, [1_000, 100]);
    for list in lists {
        assert_eq!(list.asserted.as_ref().unwrap().count, 1_100);
        let blind: i32 = DetectorState::DetectorBlind.into();
        assert!(list.detectors.iter().all(|d| d.state == blind));
    }
    controller.settled().await;
    assert!(setup.logged().contains("told in parts"));
}
