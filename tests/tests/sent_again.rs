//! A sender on the socket that sends again, because it heard no answer, is heard once.

use std::fs;
use std::path::Path;

use e2e::KernelLog;
use e2e::machine::events;
use e2e::monitor::warning;
use health_event::checks;

use crate::kit::Stage;

#[tokio::test(flavor = "multi_thread")]
async fn an_event_sent_again_because_its_answer_got_lost_is_one_event() {
    let stage = Stage::shared().await;
    let machine = stage.machine("lost-answer").await;
    let event = warning("GpuMemWatch", "13", "0");
    for _ in 0..3 {
        machine.monitor.say(event.clone()).await.unwrap();
    }
    machine
        .monitor
        .say(warning("GpuMemWatch", "14", "0"))
        .await
        .unwrap();
    let shown = machine
        .until(&stage.controller, "with both", |node| {
            node["faults"].as_array().is_some_and(|all| all.len() == 2)
        })
        .await
        .unwrap();
    for fault in shown["faults"].as_array().unwrap() {
        assert_eq!(fault["count"], 1, "{fault:#}");
    }
    let stored = events(&stage.controller, "lost-answer").await.unwrap();
    assert_eq!(
        stored
            .iter()
            .filter(|e| e["check"] == "GpuMemWatch")
            .count(),
        2,
        "{stored:#?}"
    );
}

/// The files of a folder, one level deep.
fn copy(from: &Path, to: &Path) {
    if to.exists() {
        fs::remove_dir_all(to).unwrap();
    }
    fs::create_dir_all(to).unwrap();
    for file in fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        if file.file_type().unwrap().is_file() {
            fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
    }
}

/// A fatal line is sent while the spool still writes it: an agent that is killed in between reads
/// the line again.
#[tokio::test(flavor = "multi_thread")]
async fn a_kernel_line_that_is_read_again_after_its_reader_died_is_one_event() {
    let stage = Stage::shared().await;
    let mut machine = stage.machine_with("read-again", KernelLog::Pipe).await;
    let (folder, kept) = (
        machine.agent.state(),
        machine.agent.state().with_extension("kept"),
    );
    machine.agent.kill();
    copy(&folder, &kept);
    machine.agent.revive().unwrap();
    let line =
        |bus: &str| format!("NVRM: Xid (PCI:0000:{bus}:00): 79, GPU has fallen off the bus.");
    let shows = |want: usize| {
        move |node: &serde_json::Value| node["faults"].as_array().is_some_and(|f| f.len() == want)
    };
    machine.agent.kernel_line(&line("3b")).unwrap();
    let until = machine.until(&stage.controller, "with the line's fault", shows(1));
    until.await.unwrap();

    machine.agent.kill();
    copy(&kept, &folder);
    machine.agent.revive().unwrap();
    machine.agent.kernel_line(&line("5d")).unwrap();
    let node = machine
        .until(&stage.controller, "with both", shows(2))
        .await
        .unwrap();
    for fault in node["faults"].as_array().unwrap() {
        assert_eq!(fault["count"], 1, "{fault:#}");
    }
    let stored = events(&stage.controller, "read-again").await.unwrap();
    let of_lines = stored.iter().filter(|e| e["check"] == checks::XID);
    assert_eq!(of_lines.count(), 2, "{stored:#?}");
}
