//! A sender on the socket that sends again, because it heard no answer, is heard once.

use e2e::machine::events;
use e2e::monitor::warning;

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
