//! What ends a drain before it is done, and which pods it is about.

use std::time::Duration;

use controller::kubernetes::{self, Call, CallError, Kube, Write};
use serde_json::json;
use tokio::time::Instant;

use super::{
    assert_untouched, delete, draining, pod, pod_calls, send, takes_out, until_blocked,
    until_drain, until_gone, until_over,
};
use crate::harness::{Cluster, annotation, fatal, is_cordoned, label};

/// Longer than pods of `DeleteAfterTimeout` have in these tests.
const PAST_THE_DEADLINE: Duration = Duration::from_secs(14);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_row_32_33_34_40_41_42_row_021_024_an_uncordon_a_recovery_or_a_persons_word_ends_it()
{
    let nodes = ["de-uncordon", "de-recovery", "de-cancel"];
    let cluster = Cluster::with_nodes(&nodes).await;
    let mut words = Vec::new();
    let mut voice = draining(&cluster, nodes[0], "").await;
    for node in nodes {
        pod(&cluster, node, "de-later", node, json!({})).await;
    }
    for node in nodes {
        words.push(takes_out(&voice, node).await);
    }
    // Two faults of a node have one drain.
    send(&voice, fatal(nodes[0], "Test", "1")).await;
    let began = Instant::now();
    for node in nodes {
        voice.node = node;
        until_blocked(&voice, &[&format!("de-later/{node} timeout")]).await;
    }
    cluster
        .merge(nodes[0], json!({ "spec": { "unschedulable": null } }))
        .await;
    send(&voice, words.remove(1)).await;
    let path = format!("/api/v1/nodes/{}/cancel", nodes[2]);
    let (status, said) = voice.post(&path, "{\"reason\":\"keep it\"}").await;
    assert_eq!(status, 200, "{said}");
    for node in nodes {
        voice.node = node;
        until_over(&voice).await;
        cluster
            .until(node, "no state label", |node| {
                label(node, "dgxc.nvidia.com/nvsentinel-state").is_none()
            })
            .await;
        let cancelled =
            format!("node_drainer_cancelled_event_total{{node=\"{node}\",check_name=\"Test\"}} 1");
        voice.until_counted(&[&cancelled]).await;
    }
    assert!(began.elapsed() < PAST_THE_DEADLINE, "before the pods' time");
    tokio::time::sleep_until(began + PAST_THE_DEADLINE).await;
    for node in nodes {
        assert_untouched(&cluster, "de-later", node).await;
    }
    assert!(pod_calls(&cluster, "de-later").is_empty());
    for name in nodes {
        let node = cluster.get(name).await;
        assert!(!is_cordoned(&node), "{name}");
        let by_hand = (name == nodes[0]).then_some("True");
        let key = "quarantinedNodeUncordonedManually";
        assert_eq!(annotation(&node, key), by_hand, "{name}");
        assert_eq!(annotation(&node, "quarantineHealthEvent"), None, "{name}");
    }
    let (_, page) = voice.program.get("/metrics", None).await;
    assert!(
        !page.contains("node_drainer_waiting_for_timeout{"),
        "{page}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_row_45_a_node_that_is_deleted_ends_its_drain() {
    let cluster = Cluster::with_nodes(&["de-gone"]).await;
    let node = "de-gone";
    pod(&cluster, node, "dx-later", "p", json!({})).await;
    let voice = draining(&cluster, node, "").await;
    takes_out(&voice, node).await;
    until_blocked(&voice, &["dx-later/p timeout"]).await;
    let began = Instant::now();
    cluster.delete(node).await;
    until_over(&voice).await;
    assert!(began.elapsed() < PAST_THE_DEADLINE, "before the pod's time");
    tokio::time::sleep_until(began + PAST_THE_DEADLINE).await;
    let calls = pod_calls(&cluster, "dx-later");
    assert!(calls.is_empty(), "{calls:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_made_anew_under_the_same_name_is_another_pod() {
    let cluster = Cluster::with_nodes(&["de-again"]).await;
    let node = "de-again";
    pod(&cluster, node, "da-now", "p-0", json!({})).await;
    pod(&cluster, node, "da-else", "holds", json!({})).await;
    let voice = draining(&cluster, node, "").await;
    takes_out(&voice, node).await;
    until_gone(&cluster, "da-now", "p-0").await;
    until_blocked(&voice, &["da-else/holds completion"]).await;
    // As a StatefulSet does, but past the scheduler, which heeds the cordon.
    let again = json!({
        "metadata": { "name": "p-0" },
        "spec": { "nodeName": node, "containers": [{ "name": "main", "image": "pause" }] },
    });
    let again = serde_json::from_value(again).unwrap();
    let api = super::pods(&cluster, "da-now");
    api.create(&kube::api::PostParams::default(), &again)
        .await
        .unwrap();
    until_gone(&cluster, "da-now", "p-0").await;
    let uid = |call: &testbed::AuditEvent| {
        call.object.as_ref().unwrap()["deleteOptions"]["preconditions"]["uid"].clone()
    };
    let uids: Vec<_> = pod_calls(&cluster, "da-now").iter().map(uid).collect();
    assert_eq!(uids.len(), 2, "{uids:?}");
    assert_ne!(uids[0], uids[1]);
    delete(&cluster, "da-else", "holds").await;
    until_drain(&voice, "Drained", "").await;
    // One that was bound while the node was taken out shows itself late.
    let late = json!({
        "metadata": { "name": "late" },
        "spec": { "nodeName": node, "containers": [{ "name": "main", "image": "pause" }] },
    });
    let late = serde_json::from_value(late).unwrap();
    api.create(&kube::api::PostParams::default(), &late)
        .await
        .unwrap();
    until_gone(&cluster, "da-now", "late").await;
    until_drain(&voice, "Drained", "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_server_names_the_uid_when_the_pod_of_a_name_is_another() {
    let cluster = Cluster::with_nodes(&["de-uid"]).await;
    pod(&cluster, "de-uid", "du-now", "p", json!({})).await;
    let settings = kubernetes::config(Some(&cluster.testbed.kubeconfig()))
        .await
        .unwrap();
    let kube = Kube::new(kubernetes::client(&settings).unwrap());
    let path = "/api/v1/namespaces/du-now/pods/p".to_owned();
    let options = json!({ "gracePeriodSeconds": 0, "preconditions": { "uid": "another" } });
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": { "namespace": "du-now", "name": "p" }, "deleteOptions": options,
    });
    let deletion = json!({ "apiVersion": "v1", "kind": "DeleteOptions",
        "gracePeriodSeconds": 0, "preconditions": { "uid": "another" } });
    for (path, write, body) in [
        (format!("{path}/eviction"), Write::Eviction, eviction),
        (path, Write::PodDeletion, deletion),
    ] {
        let call = Call {
            act: "eviction of pod du-now/p".to_owned(),
            path,
            write: Some((write, &body)),
            accept: "application/json",
        };
        let deadline = Instant::now() + Duration::from_secs(10);
        let error = kube.call(&call, deadline).await.unwrap_err();
        // What `drain::apply` knows it by.
        assert!(
            matches!(&error, CallError::Changed { message, .. } if message.contains("UID in the precondition")),
            "{error}"
        );
    }
    assert_untouched(&cluster, "du-now", "p").await;
}
