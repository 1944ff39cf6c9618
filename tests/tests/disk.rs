//! A disk that fills up under the controller. Uses a small file system of its own; needs root.

use std::path::{Path, PathBuf};
use std::process::Command;

use e2e::machine::{SOON, events, until_state};
use e2e::monitor::{fatal, healthy, warning};
use e2e::{Controller, ControllerOptions, Monitor, nodes};
use testbed::wait_for;
use tonic::Code;

use crate::kit::{AT_ONCE, Turn};

/// A tmpfs, unmounted when it goes.
struct Small(PathBuf);

impl Small {
    fn mount(path: &Path, mebibytes: u32) -> Self {
        std::fs::create_dir_all(path).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={mebibytes}m"), "small"])
            .arg(path)
            .status()
            .unwrap();
        assert!(mounted.success(), "this test needs root and tmpfs");
        Self(path.to_owned())
    }

    /// Leaves so many bytes free.
    fn fill(&self, leave: u64) -> PathBuf {
        let stat = rustix::fs::statvfs(&self.0).unwrap();
        let free = stat.f_bavail * stat.f_frsize;
        let ballast = self.0.join("ballast");
        let size = usize::try_from(free - leave).unwrap();
        std::fs::write(&ballast, vec![1; size]).unwrap();
        ballast
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // Lazily: a controller that a failed test leaves behind may still have it open.
        Command::new("umount").arg("-l").arg(&self.0).status().ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_at_the_controller_refuses_events_loses_none_and_stops_no_transition() {
    let turn = Turn::take().await;
    let folder = turn.folder();
    let disk = Small::mount(&folder.join("store"), 64);
    let options = ControllerOptions {
        extra: AT_ONCE.to_owned(),
        store: "reserve = \"16MiB\"".to_owned(),
        ..ControllerOptions::default()
    };
    let mut controller = Controller::start(turn.testbed, &folder, &options)
        .await
        .unwrap();
    let machine = turn.machine(&controller, "full-disk").await;
    let direct = Monitor::on_port(controller.ingest).unwrap();
    let fault = fatal("GpuMemWatch", "48", "0");
    machine.monitor.say(fault.clone()).await.unwrap();
    machine
        .until_state(&controller, "Quarantined")
        .await
        .unwrap();

    let ballast = disk.fill(8 << 20);
    // The controller says come again; the agent takes its node's events in on its own disk.
    let mut refused = warning("GpuPowerWatch", "1", "0");
    refused.node_name = "full-disk".to_owned();
    let status = direct.call(vec![refused.clone()]).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(
        status.message().contains("free"),
        "what to do is said: {status}"
    );
    let before = events(&controller, "full-disk").await.unwrap().len();
    let mut kept = Vec::new();
    for number in 0..20 {
        let event = warning("GpuFullWatch", &number.to_string(), "0");
        kept.push(event.message.clone());
        machine.monitor.say(event).await.unwrap();
    }
    machine.monitor.say(healthy(&fault)).await.unwrap();
    // A person's uncordon is a transition: stored, and acted on.
    let client = turn.testbed.admin();
    nodes::set_cordon(&client, "full-disk", false)
        .await
        .unwrap();
    let closed = until_state(&controller, "full-disk", "Closed").await;
    assert_eq!(closed.unwrap()["detail"], "ManualUncordon");
    turn.node("full-disk", "without marks", |node| {
        nodes::marks(node).is_empty()
    })
    .await;
    assert_eq!(
        events(&controller, "full-disk").await.unwrap().len(),
        before
    );

    // Over a restart too.
    controller.kill();
    controller.restart().await.unwrap();
    let status = direct.call(vec![refused.clone()]).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");

    std::fs::remove_file(ballast).unwrap();
    direct.say(refused).await.unwrap();
    let stored = wait_for("what the agent kept", SOON, || async {
        let stored: Vec<String> = events(&controller, "full-disk")
            .await?
            .iter()
            .filter(|event| event["check"] == "GpuFullWatch")
            .map(|event| event["message"].as_str().unwrap_or_default().to_owned())
            .collect();
        Ok((stored.len() >= kept.len()).then_some(stored))
    })
    .await
    .unwrap();
    assert_eq!(stored, kept, "once and in order");
    machine
        .until(&controller, "without its fault", |node| {
            node["faults"]
                .as_array()
                .is_some_and(|all| all.iter().all(|fault| fault["check"] != "GpuMemWatch"))
        })
        .await
        .unwrap();
    controller.stop().unwrap();
    drop(controller);
}
