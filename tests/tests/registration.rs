//! A node object that is deleted and made again.

use e2e::Monitor;
use e2e::machine::{self, SOON};
use e2e::monitor::fatal;
use e2e::nodes;
use testbed::NodeSpec;

use crate::kit::Stage;

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_registers_again_is_taken_out_again_on_the_same_machine_only() {
    let stage = Stage::shared().await;
    let machine = stage.machine("again").await;
    machine
        .monitor
        .say(fatal("GpuMemWatch", "48", "0"))
        .await
        .unwrap();
    let first = stage.out(&machine).await.metadata.uid;
    stage.delete_node("again").await;
    let incident = stage.state(&machine, "Closed").await;
    assert_eq!(incident["detail"], "NodeDeleted");
    stage
        .testbed
        .add_nodes(&[NodeSpec::new("again")])
        .await
        .unwrap();
    let second = stage.out(&machine).await.metadata.uid;
    assert_ne!(first, second);

    // The same name on another machine: its agent does not run there.
    let mut machine = machine;
    machine.agent.kill();
    stage.delete_node("again").await;
    stage.state(&machine, "Closed").await;
    let mut other = NodeSpec::new("again");
    other.system_uuid = "00000000-0000-4000-8000-00000000000a".to_owned();
    other.boot_id = "another-boot".to_owned();
    stage.testbed.add_nodes(&[other]).await.unwrap();
    stage
        .testbed
        .wait_nodes_ready(&["again"], SOON)
        .await
        .unwrap();
    // A fault of this machine shows that the other's had its look and no effect.
    let direct = Monitor::on_port(stage.controller.ingest).unwrap();
    let mut fault = fatal("GpuMemWatch", "94", "1");
    fault.node_name = "again".to_owned();
    direct.say(fault).await.unwrap();
    let node = stage.out(&machine).await;
    let events = nodes::annotation(&node, "quarantineHealthEvent").unwrap();
    let events: serde_json::Value = serde_json::from_str(events).unwrap();
    assert_eq!(events.as_array().unwrap().len(), 1, "{events:#}");
    assert_eq!(events[0]["errorCode"], serde_json::json!(["94"]));
    let node = stage
        .node(&machine, "with the condition", |node| {
            nodes::condition(node, "GpuMemWatch") == Some("True")
        })
        .await;
    let conditions = node.status.unwrap().conditions.unwrap();
    let mut conditions = conditions.iter().filter(|c| c.type_ == "GpuMemWatch");
    let message = conditions.next().unwrap().message.clone().unwrap();
    assert!(message.contains("GpuMemWatch 94"), "{message}");
    assert!(!message.contains("GpuMemWatch 48"), "{message}");
    let shown = machine::until(&stage.controller, "again", "shown", |_| true)
        .await
        .unwrap();
    assert_eq!(shown["incidents"].as_array().unwrap().len(), 3, "{shown:#}");
}
