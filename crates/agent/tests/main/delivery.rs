use std::time::Duration;

use health_event::keys;
use tonic::Status;
use wire::warden::v1::DetectorState;

use crate::kit::{Controller, Setup, record, until, xid};

#[tokio::test]
async fn a_line_of_the_pipe_arrives_as_an_event_and_settles() {
    let controller = Controller::start().await;
    let mut setup = Setup::new();
    let agent = setup.start(&controller.url());
    setup.log(&record(1, "usb 1-1: new device"));
    setup.log(&xid(2, 79, 1));
    until("the event", || {
        controller.see(|r| (r.events.len() == 1).then_some(()))
    })
    .await;
    let event = controller.see(|r| r.events[0].clone());
    assert_eq!(event.node_name, "gpu-1");
    assert_eq!(event.error_codes, ["79"]);
    assert!(event.is_fatal);
    assert!(event.metadata[keys::ORDER].starts_with("boot-1/"));
    assert_eq!(event.metadata[keys::MACHINE_ID], "machine-1");
    assert!(event.metadata[keys::ORIGIN].contains("kernel-log=pipe:"));
    until("settled", || {
        controller
            .see(|r| (r.state("kernel-log") == Some(DetectorState::DetectorSettled)).then_some(()))
    })
    .await;
    assert!(agent.stop().success());
}

#[tokio::test]
async fn a_thousand_events_of_an_absent_controller_arrive_once_and_in_order() {
    let mut controller = Controller::absent().await;
    let mut setup = Setup::new();
    let agent = setup.start(&controller.url());
    for n in 1..=1_000 {
        setup.log(&xid(n, 79, u8::try_from(n % 8).unwrap()));
    }
    until("all in the spool", || {
        setup.logged().contains("not connected").then_some(())
    })
    .await;
    controller.up().await;
    until("all events", || {
        controller.see(|r| (r.events.len() >= 1_000).then_some(()))
    })
    .await;
    let numbers = controller.see(|r| r.numbers());
    assert!(numbers.is_sorted_by(|a, b| a < b), "in order, none twice");
    let want: Vec<u64> = (1..=1_000).collect();
    assert_eq!(controller.see(|r| r.sequences()), want);
    drop(agent);
}
