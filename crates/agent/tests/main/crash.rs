use std::time::Duration;

use crate::kit::{Controller, Setup, until, xid};

/// Filling a spool of 1 MiB takes a second; this only ends a failed test.
const LONGEST: Duration = Duration::from_secs(60);

/// Die at every place, start again, and nothing that the kernel log said may be missing.
#[tokio::test]
async fn wherever_the_agent_dies_what_it_read_arrives() {
    // What a usual run does not pass has tests of its own: here, in `refused` and in `spool`.
    let rare = ["compact", "take-out", "replace", "copy"];
    for place in agent::crash::POINTS
        .into_iter()
        .filter(|place| !rare.iter().any(|part| place.contains(part)))
    {
        let controller = Controller::start();
        let mut setup = Setup::new();
        let flags = setup.flags.clone();
        setup.flag("--crash-at", place);
        let mut first = setup.start(&controller.url());
        setup.log(&xid(1, 79, 1));
        until(place, || (!first.is_running()).then_some(())).await;
        setup.flags = flags;
        // The pipe forgot what was read from it; a real ring would show it again.
        setup.log(&xid(1, 79, 1));
        let _second = setup.start(&controller.url());
        setup.log(&xid(2, 79, 1));
        until(place, || {
            controller.see(|r| r.sequences().contains(&2).then_some(()))
        })
        .await;
        let (mut sequences, numbers) = controller.see(|r| (r.sequences(), r.numbers()));
        assert!(numbers.is_sorted_by(|a, b| a <= b), "{place}: {numbers:?}");
        sequences.dedup();
        assert_eq!(sequences, [1, 2], "{place}");
        controller.settled().await;
        let count = controller.see(|r| r.reports.last().unwrap().asserted.as_ref().unwrap().count);
        assert_eq!(count, 1, "{place}");
    }
}

/// Die while a full spool is made smaller: what went is counted, also if the count itself was
/// not told yet.
#[tokio::test]
async fn dying_while_the_spool_is_compacted_keeps_the_count() {
    for place in ["spool.compact.before", "spool.compact.after"] {
        let mut controller = Controller::absent();
        let mut setup = Setup::new();
        setup.flag("--spool-max-bytes", "1048576");
        let small = setup.flags.clone();
        setup.flag("--crash-at", place);
        let mut first = setup.start(&controller.url());
        let mut written = 0;
        let end = tokio::time::Instant::now() + LONGEST;
        while first.is_running() {
            let now = tokio::time::Instant::now();
            assert!(now < end, "{place} is not reached in time");
            if setup.try_log(&xid(written + 1, 31, 1)) {
                written += 1;
            } else {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert!(written < 20_000, "{place} is never reached");
        }
        setup.flags = small;
        let _second = setup.start(&controller.url());
        written += 1;
        setup.log(&xid(written, 79, 1));
        controller.up();
        until(place, || {
            controller.see(|r| r.sequences().contains(&written).then_some(()))
        })
        .await;
        until("all is accounted for", || {
            controller.see(|r| {
                let mut sequences = r.sequences();
                // An event whose answer was late is sent again.
                sequences.sort_unstable();
                sequences.dedup();
                // What was in the pipe when the first agent died, the second one read.
                let lost = r.lost("kernel-log") + r.lost("spool");
                (sequences.len() as u64 + lost == written).then_some(())
            })
        })
        .await;
        if place.ends_with("after") {
            assert!(controller.see(|r| r.lost("spool")) > 0, "{place}");
        }
    }
}

#[test]
fn an_unknown_place_is_a_wrong_flag() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_warden-agent"))
        .args(["--node-name", "n", "--crash-at", "somewhere"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("spool.commit.before"));
}

#[test]
fn a_bad_configuration_tells_everything_and_exits_with_two() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_warden-agent"))
        .env_remove("NODE_NAME")
        .args([
            "--controller",
            "http://10.0.0.1:1",
            "--kernel-log",
            "syslog",
        ])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    for part in [
        "node_name (--node-name, NODE_NAME) is missing",
        "--controller = \"http://10.0.0.1:1/\"",
        "--kernel-log = \"syslog\"",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
