//! What keeps a signal from being sent.

use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testbed::{Outcome, ProviderOptions, SimProvider};

use super::{
    Rig, condition, config, end, failed, install, objects, order, order_with, status, succeeded,
    until,
};
use crate::harness::{Cluster, fatal, healthy};
use crate::remediation::kit::until_event;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_closed_incident_ordered_is_recalled() {
    let cluster = Cluster::with_nodes(&["j-recall"]).await;
    let rig = Rig::start(&cluster, "").await;
    let store = &rig.controller.context.store;
    rig.controller.append(fatal("j-recall", "Test", "0")).await;
    rig.controller.until_state("j-recall", "Quarantined").await;
    let node = health_event::NodeName::new("j-recall").unwrap();
    let id = store.open_incidents_of(&node).unwrap()[0]
        .id
        .as_str()
        .to_owned();
    let annotations = json!({ "warden.dev/incident": id, "warden.dev/attempt": "1" });
    let spec = json!({ "nodeName": "j-recall" });
    let name = format!("maintenance-j-recall-{}-1", id.to_ascii_lowercase());
    // An incident that is open, and knows of no attempt: the store may have been lost.
    order_with(&cluster, &name, spec.clone(), annotations.clone()).await;
    assert_eq!(end(&cluster, &name).await, succeeded());
    let api = objects(&cluster);
    api.delete(&name, &DeleteParams::default()).await.unwrap();
    cluster
        .merge("j-recall", json!({ "spec": { "unschedulable": null } }))
        .await;
    rig.controller.until_closed("j-recall").await;
    order_with(&cluster, &name, spec.clone(), annotations.clone()).await;
    assert_eq!(end(&cluster, &name).await, failed("Recalled"));
    assert_eq!(rig.provider.signals("j-recall"), 1);
    // A person's copy of it is the person's.
    order_with(&cluster, "copy", spec, annotations).await;
    assert_eq!(end(&cluster, "copy").await, succeeded());
    rig.until_free("j-recall").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_whose_incident_is_lost_ends_on_a_node_without_its_marks() {
    let cluster = Cluster::with_nodes(&["j-lost"]).await;
    let rig = Rig::start(&cluster, "queue_timeout = \"1m\"").await;
    let lost = "01ARZ3NDEKTSV4RRFFQ69G5FAV";
    let annotations = json!({ "warden.dev/incident": lost, "warden.dev/attempt": "1" });
    let name = |node: &str| format!("maintenance-{node}-{}-1", lost.to_ascii_lowercase());
    // The node was given back by hand while the store was gone.
    let spec = json!({ "nodeName": "j-lost" });
    order_with(&cluster, &name("j-lost"), spec, annotations).await;
    assert_eq!(end(&cluster, &name("j-lost")).await, failed("Recalled"));
    let says = status(&cluster, &name("j-lost")).await;
    let (_, _, why) = condition(&says, "NodeReady").unwrap();
    assert!(why.contains("the store was lost"), "{why}");
    assert_eq!(rig.provider.signals("j-lost"), 0);
    // A person's own needs no incident.
    order(&cluster, "by-hand", "j-lost").await;
    assert_eq!(end(&cluster, "by-hand").await, succeeded());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_that_the_controller_runs_on_is_not_rebooted_under_it() {
    let cluster = Cluster::with_nodes(&["j-own"]).await;
    install(&cluster).await;
    let provider = SimProvider::start(ProviderOptions::new(cluster.testbed.admin()));
    let provider = provider.await.unwrap();
    let host = provider.address().to_string();
    let moved = config(&host, "queue_timeout = \"1m\"");
    let queues = config(&host, "queue_timeout = \"15s\"");
    let here = format!("{queues}\n[kubernetes]\nnode_name = \"j-own\"\n");
    let rig = Rig::start_on(&cluster, provider, here, tempfile::tempdir().unwrap()).await;
    order(&cluster, "late", "j-own").await;
    let says = |status: &Value| {
        condition(status, "NodeReady").is_some_and(|(_, reason, _)| reason == "ControllerHere")
    };
    until(&cluster, "late", "it to say why it waits", says).await;
    let event = "RebootNode late is not begun: the controller itself runs on this node";
    until_event(&cluster, "j-own", "Warning", "RebootWaits", event).await;
    assert_eq!(end(&cluster, "late").await, failed("Timeout"));
    let (_, _, why) = condition(&status(&cluster, "late").await, "NodeReady").unwrap();
    assert!(why.contains("was not moved"), "{why}");
    order(&cluster, "next", "j-own").await;
    until(&cluster, "next", "it to say why it waits", says).await;
    assert!(rig.provider.calls().is_empty());
    // It runs elsewhere now.
    let rig = Rig {
        config: moved,
        ..rig
    };
    let rig = rig.restart().await;
    assert_eq!(end(&cluster, "next").await, succeeded());
    assert_eq!(rig.provider.signals("j-own"), 1);
}

/// The reference's janitor runs in the cluster.
async fn other_janitor(cluster: &Cluster) -> Api<Deployment> {
    let api: Api<Deployment> = Api::namespaced(cluster.testbed.admin(), "default");
    let labels = json!({ "app.kubernetes.io/name": "janitor" });
    let deployment = json!({
        "metadata": { "name": "janitor", "labels": labels },
        "spec": {
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": { "containers": [{ "name": "c", "image": "i" }] },
            },
        },
    });
    let deployment = serde_json::from_value(deployment).unwrap();
    api.create(&PostParams::default(), &deployment)
        .await
        .unwrap();
    api
}

async fn scale_away(api: &Api<Deployment>) {
    let scaled = Patch::Merge(json!({ "spec": { "replicas": 0 } }));
    api.patch("janitor", &PatchParams::default(), &scaled)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_references_janitor_runs_nothing_is_done() {
    let nodes = ["j-other", "j-other-begun", "j-other-held"];
    let cluster = Cluster::with_nodes(&nodes).await;
    let api = other_janitor(&cluster).await;
    let rig = Rig::start(&cluster, "timeout = \"1m\"\nqueue_timeout = \"1m\"").await;
    rig.controller.until_metric("warden_other_janitor 1").await;
    order(&cluster, "o", "j-other").await;
    // Its node has its turn at the change, and another at this one.
    cluster
        .merge("j-other", json!({ "metadata": { "labels": { "a": "b" } } }))
        .await;
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    assert!(status(&cluster, "o").await.is_null());
    assert!(rig.provider.calls().is_empty() && rig.intents().is_empty());
    // It begins one, is taken away, and ours follows that to its end without a signal of its own.
    let boot = json!({ "warden.dev/boot-before": "before" });
    let begun = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second()).unwrap();
    let spec = json!({ "nodeName": "j-other-begun" });
    order_with(&cluster, "b", spec, boot).await;
    super::say(&cluster, "b", json!({ "startTime": begun })).await;
    // It locks another node and is gone before it writes that it has called: nobody knows whether it did.
    let held = order(&cluster, "h", "j-other-held").await;
    super::locks::own_lease(&cluster, "j-other-held", &held).await;
    scale_away(&api).await;
    assert_eq!(end(&cluster, "b").await, succeeded());
    assert_eq!(end(&cluster, "o").await, succeeded());
    let unknown = |status: &Value| {
        condition(status, "SignalSent").is_some_and(|(_, reason, _)| reason == "OutcomeUnknown")
    };
    super::until(&cluster, "h", "nobody to know", unknown).await;
    let calls = rig.provider.calls();
    assert!(calls.iter().all(|call| call.node == "j-other"), "{calls:?}");
}

/// Its pod ends after it was seen to be gone: what it locks meanwhile it may signal, and never says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_references_janitor_locks_in_its_last_seconds_is_never_sent_again() {
    let cluster = Cluster::with_nodes(&["j-grace", "j-taken-over"]).await;
    let api = other_janitor(&cluster).await;
    let pause =
        |value: Value| json!({ "metadata": { "annotations": { "warden.dev/pause": value } } });
    cluster.merge("j-grace", pause(json!("by a person"))).await;
    let rig = Rig::start(&cluster, "timeout = \"1m\"\nqueue_timeout = \"1m\"").await;
    rig.controller.until_metric("warden_other_janitor 1").await;
    // Paused, it is not locked by us.
    let late = order(&cluster, "late", "j-grace").await;
    scale_away(&api).await;
    // What we carry out shows that what it had begun was taken over before.
    order(&cluster, "ours", "j-taken-over").await;
    assert_eq!(end(&cluster, "ours").await, succeeded());
    super::locks::own_lease(&cluster, "j-grace", &late).await;
    cluster.merge("j-grace", pause(json!(null))).await;
    let unknown = |status: &Value| {
        condition(status, "SignalSent").is_some_and(|(_, reason, _)| reason == "OutcomeUnknown")
    };
    super::until(&cluster, "late", "nobody to know", unknown).await;
    let lease = super::leases(&cluster).get_opt("j-grace").await.unwrap();
    assert!(lease.is_some(), "it keeps its lock");
    assert_eq!(rig.provider.signals("j-grace"), 0);
}

/// Nothing but the end of its intent tells that no reboot of the node may come any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_fault_has_healed_is_given_back_when_its_reboot_is_proven() {
    let cluster = Cluster::with_nodes(&["j-healed"]).await;
    let rig = Rig::start(&cluster, "timeout = \"1h\"\nqueue_timeout = \"1h\"").await;
    rig.behave(Outcome::Fails);
    let event = fatal("j-healed", "Test", "0");
    rig.controller.append(event.clone()).await;
    rig.controller.until_state("j-healed", "Quarantined").await;
    order(&cluster, "h", "j-healed").await;
    rig.until_signals("j-healed", 1).await;
    rig.controller.decided(healthy(&event)).await;
    rig.controller.until_state("j-healed", "Quarantined").await;
    cluster.testbed.reboot("j-healed", "at-last").await.unwrap();
    assert_eq!(end(&cluster, "h").await, succeeded());
    let closed = rig.controller.until_closed("j-healed").await;
    assert_eq!(closed, "Closed(Recovered)");
}

/// What the reference's janitor had begun, or ours before its store was lost: it ends by its deadline,
/// or by the boot that it says that the node had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_process_began_is_never_sent_again() {
    let cluster = Cluster::with_nodes(&["j-adopt", "j-adopt-told"]).await;
    super::install(&cluster).await;
    let boot = |boot: &str| json!({ "warden.dev/boot-before": boot });
    let now = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second()).unwrap();
    for (node, annotations) in [("j-adopt", json!({})), ("j-adopt-told", boot("before"))] {
        order_with(&cluster, node, json!({ "nodeName": node }), annotations).await;
        super::say(&cluster, node, json!({ "startTime": now })).await;
    }
    let provider = super::SimProvider::start(super::ProviderOptions::new(cluster.testbed.admin()));
    let provider = provider.await.unwrap();
    let config = super::config(&provider.address().to_string(), "timeout = \"3s\"");
    let rig = Rig::start_on(&cluster, provider, config, tempfile::tempdir().unwrap()).await;
    assert_eq!(end(&cluster, "j-adopt-told").await, succeeded());
    assert_eq!(end(&cluster, "j-adopt").await, failed("Timeout"));
    assert!(rig.provider.calls().is_empty());
    let start = status(&cluster, "j-adopt").await["startTime"].clone();
    assert_eq!(start, json!(now), "a start that stands stays");
    rig.until_free("j-adopt").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conditions_of_others_stay() {
    let cluster = Cluster::with_nodes(&["j-theirs"]).await;
    super::install(&cluster).await;
    order(&cluster, "t", "j-theirs").await;
    let theirs = json!({
        "type": "Theirs", "status": "True", "reason": "Because", "message": "m",
        "lastTransitionTime": "2026-01-02T03:04:05Z",
    });
    super::say(&cluster, "t", json!({ "conditions": [theirs] })).await;
    let provider =
        testbed::SimProvider::start(testbed::ProviderOptions::new(cluster.testbed.admin()));
    let provider = provider.await.unwrap();
    let config = super::config(&provider.address().to_string(), "");
    let rig = Rig::start_on(&cluster, provider, config, tempfile::tempdir().unwrap()).await;
    assert_eq!(end(&cluster, "t").await, succeeded());
    let now = status(&cluster, "t").await;
    assert_eq!(now["conditions"][0], theirs);
    assert!(condition(&now, "SignalSent").is_some());
    drop(rig);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_in_the_midst_asks_on_and_sends_nothing() {
    let cluster = Cluster::with_nodes(&["j-again"]).await;
    let rig = Rig::start(&cluster, "").await;
    rig.behave(Outcome::Fails);
    order(&cluster, "a", "j-again").await;
    rig.until_signals("j-again", 1).await;
    let rig = rig.restart().await;
    cluster.testbed.reboot("j-again", "at-last").await.unwrap();
    assert_eq!(end(&cluster, "a").await, succeeded());
    assert_eq!(rig.provider.signals("j-again"), 1);
    rig.until_free("j-again").await;
    assert!(objects(&cluster).get_opt("a").await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn switched_off_it_follows_what_was_sent_and_touches_nothing_else() {
    let cluster = Cluster::with_nodes(&["j-off-sent", "j-off-new"]).await;
    let mut rig = Rig::start(&cluster, "").await;
    rig.behave(Outcome::Fails);
    order(&cluster, "sent", "j-off-sent").await;
    rig.until_signals("j-off-sent", 1).await;
    let host = rig.provider.address().to_string();
    rig.config = super::config(&host, "").replace("[janitor]", "[janitor]\nenabled = false");
    let rig = rig.restart().await;
    assert!(controller::janitor::is_needed(&rig.controller.context));
    order(&cluster, "new", "j-off-new").await;
    cluster
        .testbed
        .reboot("j-off-sent", "at-last")
        .await
        .unwrap();
    assert_eq!(end(&cluster, "sent").await, succeeded());
    rig.until_free("j-off-sent").await;
    assert!(status(&cluster, "new").await.is_null());
    assert_eq!(rig.provider.calls().len(), 1);
    assert!(!controller::janitor::is_needed(&rig.controller.context));
}
