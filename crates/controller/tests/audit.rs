//! What each profile writes, by the API server's own log.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use testbed::wait_for;

use crate::harness::{Cluster, Controller, RULES, SOON, condition, fatal, is_cordoned};

/// The writes of the administrator, as whom the controller runs, since a moment: verb, resource and
/// subresource. Those to nodes also say whether they touch more than the status.
fn writes(cluster: &Cluster, since: jiff::Timestamp) -> BTreeSet<String> {
    let events = cluster.testbed.audit_events().unwrap();
    let ours = events
        .into_iter()
        .filter(|event| event.is_write() && event.at >= since && event.user == "admin");
    ours.map(|event| format!("{} {}/{}", event.verb, event.resource, event.subresource))
        .collect()
}

/// How long nothing is written in the profile that writes nothing; where something is, it comes
/// within some 20 ms of the commit.
const QUIET: Duration = Duration::from_secs(2);

/// A fault and a warning are stored, and everything that follows happens.
async fn run(profile: &str, expect_condition: bool) -> BTreeSet<String> {
    let cluster = Cluster::with_nodes(&["a-node"]).await;
    let folder = tempfile::tempdir().unwrap();
    let config = RULES.replace("\"cordon\"", &format!("{profile:?}"));
    let since = jiff::Timestamp::now();
    let controller = Controller::start_with(&cluster, folder.path(), &config).await;
    controller.append(fatal("a-node", "Both", "0")).await;
    let mut warning = fatal("a-node", "Power", "0");
    warning.is_fatal = false;
    controller.append(warning).await;
    if expect_condition {
        let shown = |node: &Node| condition(node, "Both").is_some();
        cluster.until("a-node", "the condition", shown).await;
        controller.until_state("a-node", "Observed").await;
        wait_for("the Event in the log", SOON, || async {
            Ok(writes(&cluster, since)
                .contains("create events/")
                .then_some(()))
        })
        .await
        .unwrap();
    } else {
        quiet(&cluster, &controller, since).await;
    }
    let node = cluster.get("a-node").await;
    assert!(!is_cordoned(&node));
    // Whatever it would write on the way out is in the log before this write of ours.
    controller.kill().await;
    cluster
        .merge(
            "a-node",
            serde_json::json!({ "metadata": { "labels": { "seen": "1" } } }),
        )
        .await;
    wait_for("the last write in the log", SOON, || async {
        let seen = |event: &testbed::AuditEvent| {
            event
                .object
                .as_ref()
                .is_some_and(|o| o["metadata"]["labels"]["seen"] == "1")
        };
        Ok(cluster
            .testbed
            .audit_events()?
            .iter()
            .any(seen)
            .then_some(()))
    })
    .await
    .unwrap();
    let mut all = writes(&cluster, since);
    assert!(all.remove("patch nodes/"), "our own patch is in the log");
    let node_patches = cluster
        .testbed
        .audit_events()
        .unwrap()
        .into_iter()
        .filter(|event| {
            event.at >= since
                && event.verb == "patch"
                && event.resource == "nodes"
                && event.subresource.is_empty()
                && event.user == "admin"
        });
    assert_eq!(
        node_patches.count(),
        1,
        "only the test patches the node itself"
    );
    all
}

/// Nobody decides, and nothing is written, neither at once nor later.
async fn quiet(cluster: &Cluster, controller: &Controller, since: jiff::Timestamp) {
    // Stored and shown, so that a module that ran would have been woken.
    let stats = controller.context.store.stats().unwrap();
    assert_eq!((stats.open_faults, stats.open_incidents), (2, 0));
    let end = tokio::time::Instant::now() + QUIET;
    while tokio::time::Instant::now() < end {
        assert_eq!(writes(cluster, since), BTreeSet::new());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let metrics = controller.metrics();
    let none = "fault_quarantine_event_handling_duration_seconds_count 0";
    assert!(metrics.lines().any(|line| line == none), "{metrics}");
    let stats = controller.context.store.stats().unwrap();
    let consumers = stats.consumers.iter().filter(|consumer| consumer.enabled);
    assert_eq!(consumers.count(), 0, "{stats:?}");
    assert_eq!((stats.open_faults, stats.open_incidents), (2, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_writes_nothing() {
    assert_eq!(run("silent", false).await, BTreeSet::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn observe_writes_conditions_and_events_only() {
    let allowed = ["create events/", "patch nodes/status"].map(String::from);
    assert_eq!(run("observe", true).await, BTreeSet::from(allowed));
}
