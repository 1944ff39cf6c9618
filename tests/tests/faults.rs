//! What opens and what closes: the loop, several faults, order, dead senders, lost spools.

use e2e::monitor::{fatal, healthy, warning};
use e2e::{KernelLog, Monitor, machine, nodes};
use health_event::checks;
use serde_json::json;

use crate::kit::Stage;

/// The kernel's line for a GPU that fell off the bus; its check is cleared by a reboot.
const XID_79: &str =
    "NVRM: Xid (PCI:0000:17:00): 79, pid=4242, name=train.py, GPU has fallen off the bus.";

#[tokio::test(flavor = "multi_thread")]
async fn a_kernel_line_takes_the_node_out_and_a_reboot_without_it_puts_it_back() {
    let stage = Stage::shared().await;
    let mut machine = stage.machine_with("loop", KernelLog::Pipe).await;
    machine.agent.kernel_line(XID_79).unwrap();
    let node = stage.out(&machine).await;
    let event = nodes::annotation(&node, "quarantineHealthEvent").unwrap();
    assert!(event.contains("fallen off the bus"), "{event}");
    stage
        .node(&machine, "with the condition", |node| {
            nodes::condition(node, checks::XID) == Some("True")
        })
        .await;
    machine
        .reboot(&stage.testbed, &stage.controller)
        .await
        .unwrap();
    stage.released(&machine).await;
    stage
        .node(&machine, "well", |node| {
            nodes::condition(node, checks::XID) == Some("False")
        })
        .await;
    let steps = stage
        .controller
        .json("/api/v1/nodes/loop/timeline")
        .await
        .unwrap();
    let mut steps: Vec<_> = steps
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["to"].as_str().unwrap())
        .collect();
    // A change within a state (a fault closes) is a step too.
    steps.dedup();
    assert_eq!(steps, ["Applying", "Quarantined", "Releasing", "Closed"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repair_that_the_driver_asks_for_after_its_error_is_known_and_the_same_stay_out() {
    let stage = Stage::shared().await;
    let mut machine = stage.machine_with("recovery", KernelLog::Pipe).await;
    let asked = |node: &serde_json::Value| {
        let faults = node["incidents"][0]["faults"].as_array();
        let open = faults.into_iter().flatten();
        let open = open.filter(|fault| fault["closed_at"].is_null());
        let mut actions: Vec<String> = open
            .map(|fault| fault["action"].as_str().unwrap_or_default().to_owned())
            .collect();
        actions.sort();
        actions.join(" ")
    };
    let recovery = |to| {
        format!(
            "NVRM: Xid (PCI:0000:17:00): 154, GPU recovery action changed from 0x0 (None) to {to}"
        )
    };
    let lines = [
        "NVRM: Xid (PCI:0000:17:00): 119, pid=1, name=a, Timeout after 6s of waiting for RPC"
            .to_owned(),
        recovery("0x1 (GPU Reset Required)"),
    ];
    for line in &lines {
        machine.agent.kernel_line(line).unwrap();
    }
    stage.out(&machine).await;
    machine
        .agent
        .kernel_line(&recovery("0x2 (Node Reboot Required)"))
        .unwrap();
    let shown = machine
        .until(&stage.controller, "with both demands", |node| {
            asked(node) == "COMPONENT_RESET RESTART_BM"
        })
        .await
        .unwrap();
    assert_eq!(shown["incidents"].as_array().unwrap().len(), 1, "{shown:#}");
    machine
        .reboot(&stage.testbed, &stage.controller)
        .await
        .unwrap();
    stage.released(&machine).await;
    let after = machine
        .until(&stage.controller, "without a fault", |node| {
            node["faults"].as_array().is_some_and(Vec::is_empty)
        })
        .await
        .unwrap();
    assert_eq!(after["incidents"].as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_faults_one_heals_and_the_node_stays_out_until_the_other_does() {
    let stage = Stage::shared().await;
    let machine = stage.machine("two").await;
    let first = fatal("GpuMemWatch", "48", "0");
    let second = fatal("GpuNvlinkWatch", "74", "1");
    machine.monitor.say(first.clone()).await.unwrap();
    machine.monitor.say(second.clone()).await.unwrap();
    stage.out(&machine).await;
    let both = |node: &k8s_openapi::api::core::v1::Node| {
        let event = nodes::annotation(node, "quarantineHealthEvent").unwrap_or_default();
        (
            event.contains("GpuMemWatch"),
            event.contains("GpuNvlinkWatch"),
        )
    };
    stage
        .node(&machine, "marked for both", |node| {
            both(node) == (true, true)
        })
        .await;
    machine.monitor.say(healthy(&first)).await.unwrap();
    // The annotation is rewritten, so the recovery was looked at.
    let node = stage
        .node(&machine, "marked for the second", |node| {
            both(node) == (false, true)
        })
        .await;
    assert!(nodes::is_cordoned(&node));
    machine.monitor.say(healthy(&second)).await.unwrap();
    stage.released(&machine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_healthy_word_that_came_before_its_older_fault_keeps_it_closed() {
    let stage = Stage::shared().await;
    let machine = stage.machine("early").await;
    let direct = Monitor::on_port(stage.controller.ingest).unwrap();
    let mut fault = fatal("GpuPcieWatch", "31", "0");
    fault.node_name = "early".to_owned();
    let well = healthy(&fault);
    direct.say(well.clone()).await.unwrap();
    direct.say(fault.clone()).await.unwrap();
    // A later one is what shows that the earlier was looked at.
    let mut probe = warning("GpuProbeWatch", "1", "0");
    probe.node_name = "early".to_owned();
    direct.say(probe).await.unwrap();
    let shown = machine
        .until(&stage.controller, "with the probe", |node| {
            node["faults"]
                .as_array()
                .is_some_and(|faults| !faults.is_empty())
        })
        .await
        .unwrap();
    assert_eq!(shown["faults"].as_array().unwrap().len(), 1, "{shown:#}");
    assert_eq!(shown["incidents"], json!([]));
    let stored = machine::events(&stage.controller, "early").await.unwrap();
    assert!(
        stored
            .iter()
            .any(|e| e["message"] == fault.message.as_str()),
        "stored all the same"
    );
    // The same after the healthy word is new.
    fault.generated_timestamp = Some(wire::timestamp_to_wire(jiff::Timestamp::now()));
    direct.say(fault).await.unwrap();
    stage.out(&machine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fault_of_a_monitor_that_died_stays_through_a_reboot_until_a_person_closes_it() {
    let stage = Stage::shared().await;
    let mut machine = stage.machine("dead-monitor").await;
    machine
        .monitor
        .say(fatal("GpuThermalWatch", "62", "0"))
        .await
        .unwrap();
    stage.out(&machine).await;
    // The monitor says nothing any more; agent and machine restart, and the agent settles.
    machine.agent.kill();
    machine.agent.spawn().unwrap();
    machine.settled(&stage.controller).await.unwrap();
    machine
        .reboot(&stage.testbed, &stage.controller)
        .await
        .unwrap();
    // A new fault of the new boot passes through everything that could have closed the old one.
    let probe = fatal("GpuProbeWatch", "1", "0");
    machine.monitor.say(probe.clone()).await.unwrap();
    machine
        .until(&stage.controller, "with both faults", |node| {
            node["incidents"][0]["faults"]
                .as_array()
                .is_some_and(|all| all.len() == 2)
        })
        .await
        .unwrap();
    machine.monitor.say(healthy(&probe)).await.unwrap();
    let shown = machine
        .until(&stage.controller, "with one fault", |node| {
            node["faults"].as_array().is_some_and(|all| all.len() == 1)
        })
        .await
        .unwrap();
    let node = stage.out(&machine).await;
    assert!(nodes::is_cordoned(&node));
    let body = json!({ "fault": shown["faults"][0]["id"] });
    let path = "/api/v1/nodes/dead-monitor/close";
    let (status, answer) = stage.controller.post(path, &body).await.unwrap();
    assert_eq!(status, 200, "{answer}");
    stage.released(&machine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kernel_log_fault_of_another_monitor_ends_with_a_reboot() {
    let stage = Stage::shared().await;
    let mut machine = stage.machine("kernel-monitor").await;
    let mut fault = fatal(checks::XID, "79", "0");
    fault.agent = checks::SYSLOG_AGENT.to_owned();
    machine.monitor.say(fault).await.unwrap();
    stage.out(&machine).await;
    machine
        .reboot(&stage.testbed, &stage.controller)
        .await
        .unwrap();
    stage.released(&machine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_lost_its_spool_takes_its_fault_over_before_it_settles() {
    let stage = Stage::shared().await;
    let mut machine = stage.machine_with("spool-lost", KernelLog::Pipe).await;
    machine.agent.kernel_line(XID_79).unwrap();
    stage.out(&machine).await;
    machine.agent.kill();
    std::fs::remove_dir_all(machine.agent.state()).unwrap();
    let since = jiff::Timestamp::now();
    machine.agent.spawn().unwrap();
    machine
        .until(&stage.controller, "with a settled new agent", |node| {
            let started = node["agent"]["process_since"].as_str().unwrap_or_default();
            let started = started.parse::<jiff::Timestamp>();
            node["agent"]["state"] == "settled" && started.is_ok_and(|started| started > since)
        })
        .await
        .unwrap();
    // Another line passes through all that could have released the node.
    machine
        .agent
        .kernel_line(&XID_79.replace("0000:17", "0000:18"))
        .unwrap();
    machine
        .until(&stage.controller, "with both faults", |node| {
            node["faults"].as_array().is_some_and(|all| all.len() == 2)
        })
        .await
        .unwrap();
    let incidents = stage
        .controller
        .json("/api/v1/incidents?node=spool-lost")
        .await
        .unwrap();
    assert_eq!(incidents.as_array().unwrap().len(), 1, "{incidents:#}");
    stage.out(&machine).await;
    // Lost once more, and another boot: as after any reboot.
    machine.agent.kill();
    std::fs::remove_dir_all(machine.agent.state()).unwrap();
    machine
        .reboot(&stage.testbed, &stage.controller)
        .await
        .unwrap();
    stage.released(&machine).await;
}
