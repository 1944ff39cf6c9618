//! A kernel log that can't be read for a while.

use wire::warden::v1::DetectorState;

use crate::kit::{Controller, Setup, until, xid};

#[tokio::test]
async fn an_unreadable_kernel_log_is_a_fault_after_three_failures_and_no_more_after_two_successes()
{
    let controller = Controller::start();
    let mut setup = Setup::new();
    let agent = setup.start(&controller.url());
    setup.log(&xid(1, 79, 1));
    controller.events(1).await;
    controller.settled().await;
    let asserted = controller.see(|r| r.reports.last().unwrap().asserted.clone());
    assert!(agent.stop().success());

    let (here, away) = (setup.path("kmsg"), setup.path("away"));
    std::fs::rename(&here, &away).unwrap();
    let tries = |setup: &Setup| setup.logged().matches("tried again").count();
    assert_eq!(tries(&setup), 0);
    let agent = setup.start(&controller.url());
    until("the fault", || {
        controller.see(|r| {
            r.of_check("KernelLogUnreadable")
                .first()
                .map(|e| e.is_healthy)
        })
    })
    .await;
    assert_eq!(tries(&setup), 3);
    // It was readable in this boot, so that nobody waits for it to appear.
    let fault = controller.see(|r| r.of_check("KernelLogUnreadable")[0].clone());
    assert!(!fault.is_healthy && !fault.is_fatal);
    assert!(fault.message.contains("No such file"), "{}", fault.message);
    // It asserts what it knew and denies nothing.
    controller.see(|r| {
        let report = r.reports.last().unwrap();
        let state = r.state_of(report, "kernel-log");
        assert_eq!(state, Some(DetectorState::DetectorBlind));
        assert!(report.detectors[0].why.contains("No such file"));
        assert_eq!(report.asserted, asserted, "the set is as it was");
        assert!(r.events.iter().all(|e| !e.is_healthy));
    });
    assert!(agent.stop().success());

    // A restart forgets nothing of it.
    let _agent = setup.start(&controller.url());
    std::fs::rename(&away, &here).unwrap();
    setup.log(&xid(2, 48, 2));
    until("its end", || {
        let ended = |r: &mut crate::kit::Received| r.of_check("KernelLogUnreadable").len() == 2;
        controller.see(|r| ended(r).then_some(()))
    })
    .await;
    controller.see(|r| {
        let end = r.events.last().unwrap();
        assert!(end.is_healthy && end.check_name == "KernelLogUnreadable");
        // What it read on its first success came before: one success is not enough.
        assert_eq!(r.sequences(), [1, 2]);
    });
    controller.settled().await;
}
