//! The real kernel log.

use std::fs::{File, OpenOptions};
use std::io::Write as _;

use health_event::keys;

use crate::kit::{Controller, Setup};

/// One test on the ring at a time, over all processes.
fn ring_lock() -> File {
    let lock = File::create(std::env::temp_dir().join("warden-kernel-ring.lock")).unwrap();
    lock.lock().unwrap();
    lock
}

/// Opened anew for each line: the kernel limits user writes for each open file.
fn write_line(text: &str) {
    let mut ring = OpenOptions::new().write(true).open("/dev/kmsg").unwrap();
    ring.write_all(format!("<3>{text}\n").as_bytes()).unwrap();
}

#[tokio::test]
async fn a_line_of_the_real_ring_arrives_and_nothing_from_before_the_start() {
    let _lock = ring_lock();
    let controller = Controller::start();
    let mut setup = Setup::new();
    let domain = 0xf00e_u32;
    let line =
        |code: u32, text: &str| format!("NVRM: Xid (PCI:{domain:04x}:aa:00): {code}, {text}");
    write_line(&line(79, "test before"));
    setup.flags = [
        "--kernel-log",
        "kmsg",
        "--kernel-log-start",
        "end",
        "--accept-user-records",
    ]
    .map(String::from)
    .to_vec();
    let agent = setup.start(&controller.url());
    controller.settled().await;
    assert_eq!(controller.see(|r| r.of_domain("f00e").len()), 0);
    for code in [79, 48, 63] {
        write_line(&line(code, "test after"));
    }
    let codes = crate::kit::until("three lines", || {
        controller.see(|r| {
            let events = r.of_domain("f00e");
            (events.len() == 3).then(|| {
                events
                    .iter()
                    .map(|e| e.error_codes[0].clone())
                    .collect::<Vec<_>>()
            })
        })
    })
    .await;
    assert_eq!(codes, ["79", "48", "63"]);
    let event = controller.see(|r| r.of_domain("f00e")[0].clone());
    assert!(event.metadata[keys::ORIGIN].starts_with("user"));
    let age = jiff::Timestamp::now().duration_since(event.generated_at.unwrap());
    assert!(age.abs() < jiff::SignedDuration::from_secs(10), "{age}");

    // While it was stopped two more come; only these are news.
    assert!(agent.stop().success());
    for code in [94, 95] {
        write_line(&line(code, "test away"));
    }
    let _agent = setup.start(&controller.url());
    let count = crate::kit::until("what was said while it was away", || {
        controller.see(|r| {
            let events = r.of_domain("f00e");
            events
                .iter()
                .any(|e| e.error_codes == ["95"])
                .then_some(events.len())
        })
    })
    .await;
    assert_eq!(count, 5);
}
