//! What each mode does to which pods.

use health_event::event::BehaviourOverrides;
use health_event::incident::{Repair, RepairStatus, Rung};
use health_event::{HealthEvent, NodeName, Sender};
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use testbed::wait_for;

use super::{
    assert_untouched, delete, drain_of, draining, finishes, pod, pod_calls, takes_out,
    until_blocked, until_drain, until_event, until_gone,
};
use crate::harness::{Cluster, Controller, SOON, fatal, is_cordoned, label};

const STATE: &str = "dgxc.nvidia.com/nvsentinel-state";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_row_1_2_5_6_8_17_18_22_26_each_namespace_is_drained_as_it_is_configured() {
    let cluster = Cluster::with_nodes(&["dm-all"]).await;
    let node = "dm-all";
    for (namespace, name) in [
        ("dm-now", "p"),
        ("dm-later", "p"),
        ("dm-else", "p"),
        ("kube-system", "dm-system"),
        ("dm-unlisted", "p"),
    ] {
        pod(&cluster, node, namespace, name, json!({})).await;
    }
    let voice = draining(&cluster, node, "evictionTimeoutInSeconds = '7'").await;
    takes_out(&voice, node).await;
    // Before anything finishes: the one that may finish, and the one that has twelve seconds.
    cluster
        .until(node, "cordoned, draining", |node| {
            is_cordoned(node) && label(node, STATE) == Some("draining")
        })
        .await;
    until_gone(&cluster, "dm-now", "p").await;
    until_blocked(&voice, &["dm-else/p completion", "dm-later/p timeout"]).await;
    let metric = format!("node_drainer_waiting_for_timeout{{node=\"{node}\"}} 1");
    voice.until_counted(&[&metric]).await;
    assert_untouched(&cluster, "dm-later", "p").await;
    until_event(
        &cluster,
        node,
        "Normal",
        "AwaitingPodCompletion",
        ": [dm-else/p]",
    )
    .await;
    let later = "[p] in namespace: [dm-later] or they will be force deleted on: 20";
    until_event(&cluster, node, "Warning", "WaitingBeforeForceDelete", later).await;
    // At its time it goes, although another runs on.
    until_gone(&cluster, "dm-later", "p").await;
    until_blocked(&voice, &["dm-else/p completion"]).await;
    assert_untouched(&cluster, "dm-else", "p").await;
    finishes(&cluster, "dm-else", "p").await;
    until_drain(&voice, "Drained", "").await;
    cluster
        .until(node, "drained", |node| {
            label(node, STATE) == Some("drain-succeeded")
        })
        .await;
    for (namespace, name) in [("kube-system", "dm-system"), ("dm-unlisted", "p")] {
        assert_untouched(&cluster, namespace, name).await;
        delete(&cluster, namespace, name).await;
    }
    delete(&cluster, "dm-else", "p").await;

    let evictions = pod_calls(&cluster, "dm-now");
    assert_eq!(evictions.len(), 1, "{evictions:?}");
    let sent = &evictions[0].object.as_ref().unwrap()["deleteOptions"];
    assert_eq!(sent["gracePeriodSeconds"], 7);
    assert!(sent["preconditions"]["uid"].is_string(), "{sent}");
    let deletions = pod_calls(&cluster, "dm-later");
    assert_eq!(deletions.len(), 1, "{deletions:?}");
    let sent = deletions[0].object.as_ref().unwrap();
    assert_eq!(sent["gracePeriodSeconds"], 0);
    assert!(sent["preconditions"]["uid"].is_string(), "{sent}");
    voice
        .until_counted(&[
            &format!(
                "node_drainer_events_processed_total{{drain_status=\"drained\",node=\"{node}\"}} 1"
            ),
            "node_drainer_pod_eviction_duration_seconds_count 1",
            "warden_drain_pod_calls_total{call=\"evict\",outcome=\"accepted\"} 1",
            "warden_drain_pod_calls_total{call=\"delete\",outcome=\"accepted\"} 1",
        ])
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_over_its_time_fails_alone_and_the_pods_of_other_modes_go_at_theirs() {
    let cluster = Cluster::with_nodes(&["dm-apart"]).await;
    let node = "dm-apart";
    pod(&cluster, node, "dp-else", "stays", json!({})).await;
    pod(&cluster, node, "dp-later", "p", json!({})).await;
    let voice = draining(&cluster, node, "completion_deadline = '500ms'").await;
    takes_out(&voice, node).await;
    let failed = until_drain(&voice, "Failed", "completion").await;
    assert!(failed["completion_deadline"].is_string(), "{failed}");
    assert_untouched(&cluster, "dp-later", "p").await;
    let says = "still running at the deadline: 1 pod (dp-else/stays)";
    until_event(&cluster, node, "Warning", "DrainFailed", says).await;
    until_gone(&cluster, "dp-later", "p").await;
    until_blocked(&voice, &["dp-else/stays completion"]).await;
    until_drain(&voice, "Failed", "completion").await;
    assert_untouched(&cluster, "dp-else", "stays").await;
    // One that comes has time still, and is asked to go; what was over its time goes by a person.
    pod(&cluster, node, "dp-later", "q", json!({})).await;
    delete(&cluster, "dp-else", "stays").await;
    until_gone(&cluster, "dp-later", "q").await;
    until_drain(&voice, "Drained", "").await;
    let calls = pod_calls(&cluster, "dp-later");
    assert_eq!(calls.len(), 2, "{calls:?}");
    let (_, page) = voice.program.get("/metrics", None).await;
    assert!(
        !page.contains("node_drainer_waiting_for_timeout{"),
        "{page}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_row_14_16_pods_of_daemon_sets_of_kubelets_and_finished_ones_are_let_be() {
    let cluster = Cluster::with_nodes(&["dm-none"]).await;
    let node = "dm-none";
    let mirror = json!({ "metadata": { "annotations": { "kubernetes.io/config.mirror": "h" } } });
    pod(&cluster, node, "dn-now", "mirror", mirror).await;
    let daemon = daemon_set(&cluster, "dn-now").await;
    pod(&cluster, node, "dn-now", "done", json!({})).await;
    finishes(&cluster, "dn-now", "done").await;
    let voice = draining(&cluster, node, "").await;
    takes_out(&voice, node).await;
    until_drain(&voice, "Drained", "").await;
    assert!(pod_calls(&cluster, "dn-now").is_empty());
    let skipped = format!(
        "node_drainer_events_processed_total{{drain_status=\"skipped\",node=\"{node}\"}} 1"
    );
    voice.until_counted(&[&skipped]).await;
    for pod in [&*daemon, "mirror", "done"] {
        assert_untouched(&cluster, "dn-now", pod).await;
    }
    let api = Api::<DaemonSet>::namespaced(cluster.testbed.admin(), "dn-now");
    api.delete("daemon", &DeleteParams::background())
        .await
        .unwrap();
}

/// A DaemonSet whose pod runs on the only node; answers the pod's name.
async fn daemon_set(cluster: &Cluster, namespace: &str) -> String {
    let object = json!({ "metadata": { "name": "daemon" }, "spec": {
        "selector": { "matchLabels": { "app": "daemon" } },
        "template": {
            "metadata": { "labels": { "app": "daemon" } },
            "spec": { "containers": [{ "name": "main", "image": "pause" }] },
        },
    } });
    let object = serde_json::from_value(object).unwrap();
    Api::<DaemonSet>::namespaced(cluster.testbed.admin(), namespace)
        .create(&PostParams::default(), &object)
        .await
        .unwrap();
    let of_it = ListParams::default().labels("app=daemon");
    wait_for("the DaemonSet's pod to run", SOON, || async {
        let pods = super::pods(cluster, namespace).list(&of_it).await?;
        let runs = pods.items.into_iter().find(testbed::is_running);
        Ok(runs.and_then(|pod| pod.metadata.name))
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_row_12_where_only_gpu_pods_are_drained_the_others_stay() {
    let cluster = Cluster::with_nodes(&["dm-gpu"]).await;
    let node = "dm-gpu";
    let annotated = json!({ "metadata": { "annotations": { "dgxc.nvidia.com/devices": "{}" } } });
    let limited = json!({ "spec": { "containers": [{ "name": "main", "image": "pause",
        "resources": { "limits": { "nvidia.com/gpu": "1" } } }] } });
    pod(&cluster, node, "dg-now", "annotated", annotated).await;
    pod(&cluster, node, "dg-now", "limited", limited).await;
    pod(&cluster, node, "dg-now", "cpu", json!({})).await;
    let voice = draining(&cluster, node, "drainGPUPods = true").await;
    takes_out(&voice, node).await;
    until_gone(&cluster, "dg-now", "annotated").await;
    until_gone(&cluster, "dg-now", "limited").await;
    until_drain(&voice, "Drained", "").await;
    assert_untouched(&cluster, "dg-now", "cpu").await;
    assert_eq!(pod_calls(&cluster, "dg-now").len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_row_4_a_pod_that_does_not_go_fails_the_drain_until_it_went_after_all() {
    let cluster = Cluster::with_nodes(&["dm-stays"]).await;
    let node = "dm-stays";
    pod(&cluster, node, "ds-now", "p", super::with_finalizer()).await;
    let voice = draining(&cluster, node, "immediate_deadline = '2s'").await;
    takes_out(&voice, node).await;
    until_blocked(&voice, &["ds-now/p terminating"]).await;
    until_drain(&voice, "Failed", "immediate").await;
    until_event(&cluster, node, "Warning", "DrainFailed", "ds-now/p").await;
    let node_now = voice.shown().await;
    assert_eq!(
        super::blockers(drain_of(&node_now)),
        ["ds-now/p terminating"]
    );
    assert_eq!(
        pod_calls(&cluster, "ds-now").len(),
        1,
        "going, it is not asked again"
    );
    super::without_finalizer(&cluster, "ds-now", "p").await;
    until_drain(&voice, "Drained", "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_row_13_an_allowed_sender_hurries_all_off_and_another_nobody() {
    let nodes = ["dm-force", "dm-asks"];
    let cluster = Cluster::with_nodes(&nodes).await;
    for node in nodes {
        pod(&cluster, node, "dfo-else", node, json!({})).await;
        pod(&cluster, node, "dfo-later", node, json!({})).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let senders = "override_identities = ['monitoring/monitor']\n\
                   [[ingest.cross_node_identities]]\nservice_account = 'monitoring/monitor'\n\
                   agents = ['test-monitor']";
    let patient = "deleteAfterTimeoutMinutes = 60";
    let text = format!(
        "profile = 'drain'\n[ingest]\n{senders}\n{}",
        super::config(patient)
    );
    let controller = Controller::start_with(&cluster, folder.path(), &text).await;
    let forced = |node| HealthEvent {
        drain_overrides: Some(BehaviourOverrides {
            force: true,
            skip: false,
        }),
        ..fatal(node, "Test", "0")
    };
    controller.append(forced(nodes[0])).await;
    let stranger = Sender::service_account("monitoring", "stranger");
    controller.append_as(stranger, forced(nodes[1])).await;
    until_gone(&cluster, "dfo-else", nodes[0]).await;
    until_gone(&cluster, "dfo-later", nodes[0]).await;
    let name = NodeName::new(nodes[1]).unwrap();
    wait_for("the other to wait", SOON, || async {
        let look = controller.context.stages.pods(&name).unwrap_or_default();
        Ok((look.blockers.len() == 2).then_some(()))
    })
    .await
    .unwrap();
    assert_untouched(&cluster, "dfo-else", nodes[1]).await;
    assert_untouched(&cluster, "dfo-later", nodes[1]).await;
    let calls = pod_calls(&cluster, "dfo-later");
    assert!(
        calls.iter().all(|call| call.subresource == "eviction"),
        "{calls:?}"
    );
    controller.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_is_not_ready_blocks_until_a_repair_is_planned_that_ends_it() {
    let node = "dm-unready";
    let cluster = Cluster::with_nodes(&[node]).await;
    pod(&cluster, node, "du-else", "p", json!({})).await;
    let long_ago = json!({ "status": { "conditions": [{ "type": "Ready", "status": "False",
        "lastTransitionTime": "2026-01-02T03:04:05Z" }] } });
    super::pods(&cluster, "du-else")
        .patch_status("p", &PatchParams::default(), &Patch::Merge(long_ago))
        .await
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "profile = 'drain'\n{}",
        super::config("stuck_timeout = '1s'")
    );
    let controller = Controller::start_with(&cluster, folder.path(), &text).await;
    controller.append(fatal(node, "Test", "0")).await;
    let name = NodeName::new(node).unwrap();
    let look = || controller.context.stages.pods(&name).unwrap_or_default();
    let waited = || async { Ok((look().blockers.len() == 1).then_some(())) };
    wait_for("it to be waited for", SOON, waited).await.unwrap();
    // What remediation stores when it plans a reboot.
    let before = controller.context.store.open_incidents_of(&name).unwrap()[0].clone();
    let mut incident = before.clone();
    incident.version += 1;
    incident.repair = Some(Repair {
        status: RepairStatus::Planned { rung: Rung::Reboot },
        since: jiff::Timestamp::now(),
        attempt: None,
    });
    let planned = event_store::Transition {
        incident,
        expected_version: Some(before.version),
        fencing: controller.context.fencing,
        module: "remediation".to_owned(),
        from: String::new(),
        to: "Planned".to_owned(),
        cause: "{}".to_owned(),
        at: jiff::Timestamp::now(),
        state_puts: Vec::new(),
        faults_joined: Vec::new(),
        holds: None,
    };
    controller.context.store.transition(planned).await.unwrap();
    wait_for("drained", SOON, || async {
        let open = controller.context.store.open_incidents_of(&name)?;
        let drain = open[0].drain.as_ref().map(|drain| drain.status.as_str());
        Ok((drain == Some("Drained")).then_some(()))
    })
    .await
    .unwrap();
    assert_untouched(&cluster, "du-else", "p").await;
    controller.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_row_44_row_017_a_quarantine_in_dry_run_moves_no_pod() {
    let node = "dm-dry";
    let cluster = Cluster::with_nodes(&[node]).await;
    pod(&cluster, node, "dq-now", "p", json!({})).await;
    let text = super::config("").replace("[quarantine]\n", "[quarantine]\ndry_run = true\n");
    let voice = super::started(&cluster, node, &text).await;
    takes_out(&voice, node).await;
    voice
        .until("observed", |node| {
            node["incidents"][0]["state"] == "Observed"
        })
        .await;
    // Whatever would be sent is sent within some milliseconds.
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    assert_untouched(&cluster, "dq-now", "p").await;
    assert!(drain_of(&voice.shown().await).is_null());
    assert!(!is_cordoned(&cluster.get(node).await));
}
