//! Beside the reference's platform-connectors: conditions of its types are its own as long as it runs,
//! and ours once it is gone and our detector has settled.

use e2e::monitor::fatal;
use e2e::{Controller, ControllerOptions, KernelLog, Machine, nodes};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use testbed::NodeSpec;

use crate::kit::{AT_ONCE, Turn};

/// A check of the kernel log that the reference has too.
const CHECK: &str = "SysLogsXIDError";
const THEIRS: &str = "ErrorCode:31 PCI:0000:17:00 written by a platform-connector";
const XID_79: &str = "NVRM: Xid (PCI:0000:17:00): 79, pid=1, name=x, GPU has fallen off the bus.";

async fn install(turn: &Turn) -> Api<DaemonSet> {
    let api: Api<DaemonSet> = Api::namespaced(turn.testbed.admin(), "default");
    let labels = json!({ "app.kubernetes.io/name": "nvsentinel" });
    let connectors = json!({
        "metadata": { "name": "platform-connectors" },
        "spec": { "selector": { "matchLabels": labels }, "template": {
            "metadata": { "labels": labels },
            "spec": {
                // It runs; no pod of it is needed here.
                "nodeSelector": { "nowhere": "true" },
                "containers": [{ "name": "c", "image": "i" }],
            } } },
    });
    let connectors = serde_json::from_value(connectors).unwrap();
    api.create(&PostParams::default(), &connectors)
        .await
        .unwrap();
    api
}

/// What a platform-connector writes.
async fn theirs(turn: &Turn, node: &str) {
    let now = Timestamp::now().to_string();
    let condition = json!({
        "type": CHECK, "status": "True", "reason": "SysLogsXIDErrorIsNotHealthy", "message": THEIRS,
        "lastHeartbeatTime": now, "lastTransitionTime": now,
    });
    let patch = json!({ "status": { "conditions": [condition] } });
    let nodes: Api<Node> = Api::all(turn.testbed.admin());
    let params = PatchParams::default();
    nodes
        .patch_status(node, &params, &Patch::Strategic(patch))
        .await
        .unwrap();
}

fn condition(node: &Node) -> &NodeCondition {
    let conditions = node.status.as_ref().unwrap().conditions.as_ref().unwrap();
    conditions.iter().find(|c| c.type_ == CHECK).unwrap()
}

fn is_theirs(node: &Node) -> bool {
    condition(node).status == "True" && condition(node).message.as_deref() == Some(THEIRS)
}

/// A node with their condition, and with a settled agent that reads a kernel log.
async fn machine(turn: &Turn, controller: &Controller, name: &str) -> Machine {
    turn.nodes(&[name]).await;
    theirs(turn, name).await;
    let folder = turn.testbed.folder().join("m");
    let machine = Machine::prepare(&folder, controller, &NodeSpec::new(name), KernelLog::Pipe);
    machine.unwrap().started(controller).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_of_the_references_types_are_taken_over_once_it_is_gone_and_we_have_looked() {
    let turn = Turn::take().await;
    let connectors = install(&turn).await;
    let options = ControllerOptions {
        extra: AT_ONCE.to_owned(),
        ..ControllerOptions::default()
    };
    let mut controller = turn.controller(&options).await;
    turn.nodes(&["x-alone"]).await;
    theirs(&turn, "x-alone").await;
    let well = machine(&turn, &controller, "x-well").await;
    let mut bad = machine(&turn, &controller, "x-bad").await;

    // It runs: with a settled detector, and with a fault of that very check, theirs stays.
    bad.agent.kernel_line(XID_79).unwrap();
    turn.node("x-bad", "out", nodes::is_cordoned).await;
    for machine in [&well, &bad] {
        // A condition of another type, that nobody else has, shows that ours were decided after that.
        let other = fatal("GpuOtherWatch", "1", "0");
        machine.monitor.say(other).await.unwrap();
        let has_other = |node: &Node| nodes::condition(node, "GpuOtherWatch") == Some("True");
        let node = turn
            .node(&machine.name, "with our condition", has_other)
            .await;
        assert!(is_theirs(&node), "{:?}", condition(&node));
        let listed = nodes::annotation(&node, "warden.dev/conditions").unwrap();
        assert!(!listed.contains(CHECK), "{listed}");
    }

    // It is gone: what we know is written, and what we looked for and did not find is denied.
    let name = "platform-connectors";
    connectors
        .delete(name, &DeleteParams::default())
        .await
        .unwrap();
    let denied = |node: &Node| condition(node).status == "False";
    let node = turn.node("x-well", "denied", denied).await;
    let reason = condition(&node).reason.as_deref();
    assert_eq!(reason, Some("SysLogsXIDErrorIsHealthy"));
    let ours = |node: &Node| {
        let message = condition(node).message.as_deref().unwrap_or_default();
        condition(node).status == "True" && message.contains("ErrorCode:79")
    };
    let node = turn.node("x-bad", "with our word", ours).await;
    let listed = nodes::annotation(&node, "warden.dev/conditions").unwrap();
    assert!(listed.contains(CHECK), "{listed}");
    // Where nobody of ours has looked, it stays.
    let node = nodes::read(&turn.testbed.admin(), "x-alone").await.unwrap();
    assert!(is_theirs(&node), "{:?}", condition(&node));
    // Once somebody has, it goes.
    let spec = NodeSpec::new("x-alone");
    let folder = turn.testbed.folder().join("m");
    let alone = Machine::prepare(&folder, &controller, &spec, KernelLog::Pipe);
    let _alone = alone.unwrap().started(&controller).await.unwrap();
    turn.node("x-alone", "denied", denied).await;
    controller.stop().unwrap();
}
