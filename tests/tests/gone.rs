//! Nodes that are gone, that came back, and that are another machine now.

use std::time::{Duration, Instant};

use e2e::machine::{self, SOON};
use e2e::monitor::{fatal, healthy};
use e2e::{Controller, ControllerOptions, KernelLog, Machine, Monitor, nodes};
use health_event::keys;
use rusqlite::{Connection, OpenFlags};
use serde_json::json;
use testbed::{Component, NodeSpec, wait_for};
use wire::datamodels::HealthEvent;

use crate::kit::{AT_ONCE, Turn, explained};

const XID_79: &str =
    "NVRM: Xid (PCI:0000:17:00): 79, pid=4242, name=train.py, GPU has fallen off the bus.";
/// Long beside what is awaited within it, short for a test.
const MEMORY: Duration = Duration::from_secs(12);

/// A controller that remembers faults of nodes that are gone for [`MEMORY`], and whose agents
/// report each second.
fn forgetful() -> ControllerOptions {
    ControllerOptions {
        extra: format!("{AT_ONCE}\n[reports]\ninterval = '1s'\nexpect_everywhere = false\n"),
        store: format!("fault_memory = '{}s'", MEMORY.as_secs()),
        ..ControllerOptions::default()
    }
}

async fn until_open(controller: &Controller, count: u64) {
    wait_for(format!("{count} open faults"), SOON, || async {
        let status = controller.json("/api/v1/status").await?;
        let open = status["open_faults"].as_u64();
        anyhow::ensure!(open == Some(count), "{open:?}: {}", controller.log_tail());
        Ok(Some(()))
    })
    .await
    .unwrap();
}

/// Waits until a node has these open faults, by check and code.
async fn until_faults(controller: &Controller, node: &str, want: &[&str]) {
    machine::until(controller, node, &format!("with {want:?}"), |shown| {
        let faults = shown["faults"].as_array().unwrap().iter();
        let mut names: Vec<String> = faults
            .map(|f| format!("{} {}", f["check"], f["code"]).replace('"', ""))
            .map(|name| name.trim().to_owned())
            .collect();
        names.sort();
        names == want
    })
    .await
    .unwrap();
}

/// An event as it comes through the agent of this machine.
fn through_agent(event: &HealthEvent, node: &str, machine: &str, number: u64) -> HealthEvent {
    let mut event = event.clone();
    node.clone_into(&mut event.node_name);
    event.id = format!("{node}-{number}");
    let order = format!("boot/{node}/{number}");
    event.metadata.insert(keys::ORDER.to_owned(), order);
    let machine = machine.to_owned();
    event.metadata.insert(keys::MACHINE_ID.to_owned(), machine);
    event
}

/// Rows that the controller's store keeps by the names of nodes: since when they are gone, their
/// agents' reports and spools.
fn rows(controller: &Controller) -> [u64; 3] {
    let path = controller.store().join("store.db");
    let store = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let count = |from: &str| {
        let sql = format!("SELECT count(*) FROM {from}");
        store.query_row(&sql, [], |row| row.get(0)).unwrap()
    };
    [
        count("state WHERE key LIKE 'gone/%'"),
        count("state WHERE key LIKE 'report/%'"),
        count("spools"),
    ]
}

async fn until_rows(controller: &Controller, want: [u64; 3]) {
    wait_for(format!("{want:?} rows"), SOON, || async {
        let rows = rows(controller);
        anyhow::ensure!(rows == want, "{rows:?}");
        Ok(Some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_deleted_node_leaves_ends_after_the_memory_also_over_a_kill() {
    let turn = Turn::take().await;
    let mut controller = turn.controller(&forgetful()).await;
    let mut machine = Machine::join(turn.testbed, &controller, "deleted", KernelLog::Pipe)
        .await
        .unwrap();
    machine.agent.kernel_line(XID_79).unwrap();
    let said = fatal("GpuMemWatch", "48", "0");
    machine.monitor.say(said).await.unwrap();
    machine
        .until_state(&controller, "Quarantined")
        .await
        .unwrap();
    machine.agent.kill();
    let all = ["AgentSilent", "GpuMemWatch 48", "SysLogsXIDError 79"];
    until_faults(&controller, "deleted", &all).await;

    let deleted = Instant::now();
    turn.delete("deleted").await;
    // No agent is expected where no node is; everything else waits.
    until_faults(&controller, "deleted", &all[1..]).await;
    let kept = ["store.fault_memory, and looked at when a node of this name and machine appears"];
    explained(&controller, "deleted", &kept);
    until_rows(&controller, [1, 1, 1]).await;
    controller.kill();
    assert!(
        deleted.elapsed() < MEMORY,
        "the machine is too slow for this test"
    );
    controller.restart().await.unwrap();
    until_open(&controller, 0).await;
    assert!(deleted.elapsed() >= MEMORY, "{:?}", deleted.elapsed());
    let shown = machine.until(&controller, "shown", |_| true).await.unwrap();
    let closed = shown["closed"].as_array().unwrap();
    assert_eq!(closed.len(), 3, "{shown:#}");
    assert!(
        closed.iter().all(|f| f["cause"] == "node deleted"),
        "{shown:#}"
    );
    until_rows(&controller, [0; 3]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_another_machine_now_drops_the_faults_of_the_one_before() {
    let turn = Turn::take().await;
    let controller = turn.controller(&forgetful()).await;
    let mut machine = turn.machine(&controller, "exchanged").await;
    let said = fatal("GpuMemWatch", "48", "0");
    machine.monitor.say(said.clone()).await.unwrap();
    machine
        .until_state(&controller, "Quarantined")
        .await
        .unwrap();
    machine.agent.kill();
    turn.delete("exchanged").await;
    machine.until_state(&controller, "Closed").await.unwrap();
    let before = NodeSpec::new("exchanged").system_uuid;
    let mut other = NodeSpec::new("exchanged");
    other.system_uuid = "00000000-0000-4000-8000-00000000000b".to_owned();
    other.boot_id = "another-boot".to_owned();
    let registered = Instant::now();
    turn.testbed.add_nodes(&[other]).await.unwrap();
    let gone = |shown: &serde_json::Value| {
        let faults = shown["faults"].as_array().unwrap();
        faults.iter().all(|f| f["check"] != "GpuMemWatch")
    };
    machine
        .until(&controller, "without the fault", gone)
        .await
        .unwrap();
    assert!(
        registered.elapsed() < MEMORY,
        "at once: {:?}",
        registered.elapsed()
    );
    let shown = machine.until(&controller, "shown", |_| true).await.unwrap();
    let mut closed = shown["closed"].as_array().unwrap().iter();
    let replaced = |f: &serde_json::Value| f["cause"] == "node replaced" && f["code"] == "48";
    assert!(closed.any(replaced), "{shown:#}");

    // Late words of the machine before are stored, and have no effect; what is said here has.
    let direct = Monitor::on_port(controller.ingest).unwrap();
    let late = fatal("GpuMemWatch", "94", "0");
    let late = through_agent(&late, "exchanged", &before, 1);
    direct.say(late).await.unwrap();
    let events = machine::events(&controller, "exchanged").await.unwrap();
    assert_eq!(
        events.last().unwrap()["codes"],
        json!(["94"]),
        "{events:#?}"
    );
    until_rows_held(&controller, 1).await;
    let shown = machine.until(&controller, "shown", |_| true).await.unwrap();
    assert!(gone(&shown), "{shown:#}");
    let node = nodes::read(&turn.testbed.admin(), "exchanged")
        .await
        .unwrap();
    assert!(!nodes::is_cordoned(&node) && nodes::marks(&node).is_empty());
    let conditions = node.status.unwrap().conditions.unwrap();
    let conditions: Vec<_> = conditions
        .iter()
        .filter(|c| c.type_ == "GpuMemWatch")
        .collect();
    assert!(
        conditions.iter().all(|c| c.status != "True"),
        "{conditions:?}"
    );
}

/// Waits until the store holds this many events of machines that their nodes are not.
async fn until_rows_held(controller: &Controller, want: u64) {
    wait_for(format!("{want} held events"), SOON, || async {
        let path = controller.store().join("store.db");
        let store = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        let held: u64 = store.query_row("SELECT count(*) FROM held", [], |row| row.get(0))?;
        anyhow::ensure!(held == want, "{held}");
        Ok(Some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_speaks_before_its_kubelet_is_heard_once_the_node_is_it_also_over_a_kill() {
    let turn = Turn::take().await;
    let mut controller = turn.controller(&forgetful()).await;
    let direct = Monitor::on_port(controller.ingest).unwrap();
    turn.nodes(&["board"]).await;
    let machine = "00000000-0000-4000-8000-00000000000c";
    let of_board = |event: &HealthEvent, number| through_agent(event, "board", machine, number);
    let (over, stays) = (
        fatal("GpuMemWatch", "48", "0"),
        fatal("GpuMemWatch", "94", "1"),
    );
    direct.say(of_board(&over, 1)).await.unwrap();
    direct.say(of_board(&healthy(&over), 2)).await.unwrap();
    direct.say(of_board(&stays, 3)).await.unwrap();
    until_rows_held(&controller, 3).await;
    until_faults(&controller, "board", &[]).await;
    controller.kill();
    controller.restart().await.unwrap();
    // The kubelet of the machine with the new board registers.
    let status = json!({ "status": { "nodeInfo": { "systemUUID": machine } } });
    let objects: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(turn.testbed.admin());
    objects
        .patch_status(
            "board",
            &kube::api::PatchParams::default(),
            &kube::api::Patch::Merge(status),
        )
        .await
        .unwrap();
    until_faults(&controller, "board", &["GpuMemWatch 94"]).await;
    turn.node("board", "out", nodes::is_cordoned).await;
    until_rows_held(&controller, 0).await;
    let direct = Monitor::on_port(controller.ingest).unwrap();
    direct.say(of_board(&healthy(&stays), 4)).await.unwrap();
    turn.node("board", "back", |node| !nodes::is_cordoned(node))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_comes_back_in_time_keeps_its_faults_and_later_it_has_none() {
    let turn = Turn::take().await;
    let controller = turn.controller(&forgetful()).await;
    let direct = Monitor::on_port(controller.ingest).unwrap();
    let said = fatal("GpuMemWatch", "48", "0");
    turn.nodes(&["back", "late"]).await;
    for node in ["back", "late"] {
        let machine = NodeSpec::new(node).system_uuid;
        let event = through_agent(&said, node, &machine, 1);
        direct.say(event).await.unwrap();
        machine::until_state(&controller, node, "Quarantined")
            .await
            .unwrap();
        turn.delete(node).await;
        machine::until_state(&controller, node, "Closed")
            .await
            .unwrap();
        // "early" was never there when its fault is said.
        if node == "back" {
            turn.nodes(&["back"]).await;
            let early = NodeSpec::new("early").system_uuid;
            let event = through_agent(&said, "early", &early, 1);
            direct.say(event).await.unwrap();
            until_faults(&controller, "early", &["GpuMemWatch 48"]).await;
            turn.nodes(&["early"]).await;
        }
    }
    for node in ["back", "early"] {
        machine::until_state(&controller, node, "Quarantined")
            .await
            .unwrap();
    }
    // By then the memory of all three is over.
    until_faults(&controller, "late", &[]).await;
    turn.nodes(&["late"]).await;
    // A fault of now shows that the node had its look.
    let mut now = fatal("GpuMemWatch", "94", "1");
    now.node_name = "late".to_owned();
    direct.say(now).await.unwrap();
    let node = turn
        .node("late", "taken out", |node| {
            nodes::annotation(node, "quarantineHealthEvent").is_some()
        })
        .await;
    let events = nodes::annotation(&node, "quarantineHealthEvent").unwrap();
    let events: serde_json::Value = serde_json::from_str(events).unwrap();
    assert_eq!(events.as_array().unwrap().len(), 1, "{events:#}");
    assert_eq!(events[0]["errorCode"], json!(["94"]));
    for node in ["back", "early"] {
        machine::until_state(&controller, node, "Quarantined")
            .await
            .unwrap();
        until_faults(&controller, node, &["GpuMemWatch 48"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_still_asserts_a_fault_brings_it_back_with_its_node() {
    let turn = Turn::take().await;
    let controller = turn.controller(&forgetful()).await;
    let mut machine = Machine::join(turn.testbed, &controller, "holiday", KernelLog::Pipe)
        .await
        .unwrap();
    machine.agent.kernel_line(XID_79).unwrap();
    machine
        .until_state(&controller, "Quarantined")
        .await
        .unwrap();
    machine.agent.kill();
    turn.delete("holiday").await;
    until_faults(&controller, "holiday", &[]).await;
    turn.nodes(&["holiday"]).await;
    machine.agent.spawn().unwrap();
    machine
        .until_state(&controller, "Quarantined")
        .await
        .unwrap();
    until_faults(&controller, "holiday", &["SysLogsXIDError 79"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_names_that_never_were_leave_nothing_and_no_answer_ends_nothing() {
    let turn = Turn::take().await;
    let mut options = forgetful();
    // Without a lease nothing ends when the API server does not answer.
    options.extra = options
        .extra
        .replace("duration = \"10s\"", "enabled = false");
    let controller = turn.controller(&options).await;
    let direct = Monitor::on_port(controller.ingest).unwrap();
    let said = fatal("GpuMemWatch", "48", "0");
    turn.testbed.stop(Component::ApiServer).await;
    let names = (0..1_000).map(|n| format!("never-{n}"));
    let events = names.map(|node| through_agent(&said, &node, "made-up", 1));
    direct.send(events.collect(), SOON).await.unwrap();
    wait_for("a read that fails", SOON, || async {
        let log = controller.log_tail();
        Ok(log
            .contains("whether the node is gone is not known")
            .then_some(()))
    })
    .await
    .unwrap();
    until_open(&controller, 1_000).await;
    turn.start_api_server().await;
    until_open(&controller, 0).await;
    until_rows(&controller, [0; 3]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_silent_still_when_its_node_is_back_is_told_again() {
    let turn = Turn::take().await;
    let controller = turn.controller(&forgetful()).await;
    let mut machine = turn.machine(&controller, "silent").await;
    machine.agent.kill();
    until_faults(&controller, "silent", &["AgentSilent"]).await;
    turn.delete("silent").await;
    until_faults(&controller, "silent", &[]).await;
    turn.nodes(&["silent"]).await;
    until_faults(&controller, "silent", &["AgentSilent"]).await;
    machine.agent.spawn().unwrap();
    until_faults(&controller, "silent", &[]).await;
}
