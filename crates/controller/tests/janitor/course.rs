//! From an object to its end.

use futures::StreamExt as _;
use health_event::NodeName;
use kube::api::{
    DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use serde_json::json;
use testbed::{Behaviour, Outcome, Rpc, wait_for};

use super::{
    Rig, condition, end, failed, install, leases, objects, order, order_with, say, status,
    succeeded, until,
};
use crate::harness::{Cluster, SOON};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r02_r03_r18_one_signal_proven_by_another_boot() {
    let cluster = Cluster::with_nodes(&["j-course"]).await;
    let rig = Rig::start(&cluster, "").await;
    let before = cluster.get("j-course").await;
    order(&cluster, "c", "j-course").await;
    assert_eq!(end(&cluster, "c").await, succeeded());
    let now = status(&cluster, "c").await;
    let (sent, reason, request) = condition(&now, "SignalSent").unwrap();
    assert_eq!((&*sent, &*reason), ("True", "Succeeded"));
    let calls = rig.provider.calls();
    let asked = calls.iter().filter(|call| call.rpc == Rpc::IsReady);
    assert!(asked.clone().count() >= 1 && asked.clone().all(|call| call.request == request));
    let times = ["startTime", "completionTime"].map(|key| now[key].as_str().unwrap().to_owned());
    assert!(times[0] <= times[1], "{times:?}");
    rig.until_free("j-course").await;
    assert_eq!(rig.provider.signals("j-course"), 1);
    let after = cluster.get("j-course").await;
    assert_ne!(testbed::boot_id(&before), testbed::boot_id(&after));
    for line in [
        r#"warden_janitor_actions_total{action_type="reboot",status="started",node="j-course"} 1"#,
        r#"warden_janitor_actions_total{action_type="reboot",status="succeeded",node="j-course"} 1"#,
        r#"janitor_action_mttr_seconds_count{action_type="reboot"} 1"#,
        r#"warden_janitor_signals_total{outcome="sent"} 1"#,
        "warden_janitor_reboots 0",
    ] {
        rig.controller.until_metric(line).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r06_a_refusal_is_the_end_and_says_so_in_both_conditions() {
    let cluster = Cluster::with_nodes(&["j-refused"]).await;
    let rig = Rig::start(&cluster, "").await;
    rig.behave(Outcome::Refuses(tonic::Code::NotFound));
    order(&cluster, "r", "j-refused").await;
    assert_eq!(end(&cluster, "r").await, failed("Failed"));
    let (sent, reason, why) = condition(&status(&cluster, "r").await, "SignalSent").unwrap();
    assert_eq!((&*sent, &*reason), ("False", "Failed"));
    assert!(
        why.contains("failed to send reboot signal: NotFound"),
        "{why}"
    );
    rig.until_free("j-refused").await;
    assert_eq!(rig.provider.signals("j-refused"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r14_a_lost_answer_is_not_sent_again_and_the_node_tells_that_it_rebooted() {
    let cluster = Cluster::with_nodes(&["j-lost"]).await;
    let rig = Rig::start(&cluster, "").await;
    for (name, outcome) in [("a", Outcome::LosesAnswer), ("b", Outcome::CutsConnection)] {
        rig.provider.behave(Behaviour {
            outcome,
            down_for: std::time::Duration::from_secs(1),
            ..Behaviour::default()
        });
        let before = rig.provider.signals("j-lost");
        order(&cluster, name, "j-lost").await;
        let unknown = |status: &serde_json::Value| {
            condition(status, "SignalSent").is_some_and(|(_, reason, _)| reason == "OutcomeUnknown")
        };
        until(&cluster, name, "its outcome is unknown", unknown).await;
        assert_eq!(end(&cluster, name).await, succeeded(), "{outcome:?}");
        assert_eq!(rig.provider.signals("j-lost"), before + 1);
        rig.until_free("j-lost").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r14_what_nobody_knows_and_nobody_sees_ends_at_its_deadline() {
    let cluster = Cluster::with_nodes(&["j-fails"]).await;
    let rig = Rig::start(&cluster, "timeout = \"1s\"").await;
    for (name, outcome) in [("a", Outcome::Fails), ("b", Outcome::IsUnavailable)] {
        rig.behave(outcome);
        order(&cluster, name, "j-fails").await;
        assert_eq!(end(&cluster, name).await, failed("Timeout"), "{outcome:?}");
        rig.until_free("j-fails").await;
    }
    assert_eq!(rig.provider.signals("j-fails"), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_provider_is_not_waited_for_beyond_its_time() {
    let cluster = Cluster::with_nodes(&["j-hangs"]).await;
    let rig = Rig::start(&cluster, "timeout = \"2s\"\ncall_timeout = \"300ms\"").await;
    rig.provider.behave(Behaviour {
        delay: SOON,
        outcome: Outcome::Fails,
        ..Behaviour::default()
    });
    order(&cluster, "h", "j-hangs").await;
    assert_eq!(end(&cluster, "h").await, failed("Timeout"));
    let (_, _, why) = condition(&status(&cluster, "h").await, "SignalSent").unwrap();
    assert!(why.contains("no answer within 300ms"), "{why}");
    assert_eq!(rig.provider.signals("j-hangs"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_that_lies_is_found_out_by_the_boot_that_stays() {
    let cluster = Cluster::with_nodes(&["j-lies"]).await;
    let rig = Rig::start(&cluster, "").await;
    rig.behave(Outcome::Lies);
    order(&cluster, "l", "j-lies").await;
    assert_eq!(end(&cluster, "l").await, failed("NoRebootObserved"));
    assert_eq!(rig.provider.signals("j-lies"), 1);
    rig.until_free("j-lies").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r04_a_node_that_is_not_ready_is_not_done_whatever_the_provider_says() {
    let cluster = Cluster::with_nodes(&["j-down"]).await;
    let rig = Rig::start(&cluster, "timeout = \"3s\"").await;
    rig.behave(Outcome::Lies);
    cluster
        .testbed
        .set_not_ready("j-down", "KubeletStopped")
        .await
        .unwrap();
    order(&cluster, "d", "j-down").await;
    assert_eq!(end(&cluster, "d").await, failed("Timeout"));
    rig.until_free("j-down").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_not_there_or_goes_ends_its_objects() {
    let cluster = Cluster::with_nodes(&["j-goes"]).await;
    let rig = Rig::start(&cluster, "").await;
    for (name, node) in [("never", "j-never"), ("bad", "Not A Node!")] {
        order(&cluster, name, node).await;
        assert_eq!(end(&cluster, name).await, failed("NodeNotFound"), "{node}");
    }
    rig.behave(Outcome::Fails);
    order(&cluster, "goes", "j-goes").await;
    rig.until_signals("j-goes", 1).await;
    cluster.delete("j-goes").await;
    // Its signal may still have its effect on the machine, whatever node that is then.
    assert_eq!(end(&cluster, "goes").await, failed("Timeout"));
    rig.until_free("j-goes").await;
    assert_eq!(rig.provider.signals("j-never"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r10_r11_r12_in_manual_mode_a_person_sends_and_the_node_proves_it() {
    let cluster = Cluster::with_nodes(&["j-manual"]).await;
    let rig = Rig::start(&cluster, "manualMode = true").await;
    order(&cluster, "m", "j-manual").await;
    let manual = |status: &serde_json::Value| condition(status, "ManualMode").is_some();
    let now = until(&cluster, "m", "manual mode", manual).await;
    let (is, reason, message) = condition(&now, "ManualMode").unwrap();
    assert_eq!((&*is, &*reason), ("True", "OutsideActorRequired"));
    assert_eq!(
        message,
        "Janitor is in manual mode, outside actor required to send reboot signal"
    );
    let (is, reason, _) = condition(&now, "SignalSent").unwrap();
    assert_eq!((&*is, &*reason), ("Unknown", "Initializing"));
    let mut conditions = now["conditions"].clone();
    for condition in conditions.as_array_mut().unwrap() {
        if condition["type"] == "SignalSent" {
            condition["status"] = json!("True");
            condition["reason"] = json!("Succeeded");
            condition["message"] = json!("by hand");
        }
    }
    say(&cluster, "m", json!({ "conditions": conditions })).await;
    cluster.testbed.reboot("j-manual", "by-hand").await.unwrap();
    assert_eq!(end(&cluster, "m").await, succeeded());
    let (_, _, message) = condition(&status(&cluster, "m").await, "SignalSent").unwrap();
    assert_eq!(message, "by hand", "a person's word stays");
    assert!(rig.provider.calls().is_empty());
    rig.until_free("j-manual").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_objects_for_one_node_run_one_after_the_other() {
    let cluster = Cluster::with_nodes(&["j-two"]).await;
    let rig = Rig::start(&cluster, "").await;
    rig.provider.behave(Behaviour {
        down_for: std::time::Duration::from_secs(1),
        ..Behaviour::default()
    });
    let names = ["first", "second"];
    for name in names {
        order(&cluster, name, "j-two").await;
    }
    for name in names {
        assert_eq!(end(&cluster, name).await, succeeded(), "{name}");
    }
    let signals: Vec<_> = rig
        .provider
        .calls()
        .into_iter()
        .filter(|c| c.rpc == Rpc::Reboot)
        .collect();
    assert_eq!(signals.len(), 2);
    let gap = signals[1].at.duration_since(signals[0].at);
    assert!(
        gap.as_millis() >= 1_000,
        "the second began within the first: {gap:?}"
    );
    rig.until_free("j-two").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_than_max_parallel_reboots_run_at_a_time_and_who_waits_holds_no_lock() {
    let nodes: Vec<String> = (0..6).map(|number| format!("j-many-{number}")).collect();
    let names: Vec<&str> = nodes.iter().map(String::as_str).collect();
    let cluster = Cluster::with_nodes(&names).await;
    let config = "max_parallel = 1\nqueue_timeout = \"2m\"";
    let rig = Rig::start(&cluster, config).await;
    rig.provider.behave(Behaviour {
        down_for: std::time::Duration::from_millis(500),
        ..Behaviour::default()
    });
    let api = leases(&cluster);
    let from = api.list(&ListParams::default()).await.unwrap().metadata;
    let from = from.resource_version.unwrap();
    let all = WatchParams::default().timeout(290);
    let mut changes = std::pin::pin!(api.watch(&all, &from).await.unwrap());
    for node in &names {
        order(&cluster, node, node).await;
    }
    for node in &names {
        assert_eq!(end(&cluster, node).await, succeeded(), "{node}");
    }
    let calls = rig.provider.calls();
    let signals = calls.into_iter().filter(|call| call.rpc == Rpc::Reboot);
    let mut signals: Vec<_> = signals.map(|call| call.at).collect();
    signals.sort_unstable();
    assert_eq!(signals.len(), names.len());
    for pair in signals.windows(2) {
        assert!(
            pair[1].duration_since(pair[0]).as_millis() >= 500,
            "{signals:?}"
        );
    }
    let (mut held, mut given_back) = (0, 0);
    while given_back < names.len() {
        match changes.next().await.unwrap().unwrap() {
            WatchEvent::Added(_) => held += 1,
            WatchEvent::Deleted(_) => (held, given_back) = (held - 1, given_back + 1),
            WatchEvent::Modified(_) | WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(error) => panic!("{error}"),
        }
        assert!(held <= 1, "locks that wait for a place: {held}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_excluded_node_and_one_that_is_paused_are_not_rebooted() {
    let cluster = Cluster::with_nodes(&["j-gold", "j-paused", "warden-controller"]).await;
    // The controller's own Lease has the name of a node.
    let lease =
        json!({ "metadata": { "name": "warden-controller" }, "spec": { "holderIdentity": "us" } });
    let lease = serde_json::from_value(lease).unwrap();
    let leases = leases(&cluster);
    leases.create(&PostParams::default(), &lease).await.unwrap();
    let keys = "[[janitor.exclusions]]\nmatchLabels = { pool = \"gold\" }\n";
    cluster
        .merge(
            "j-gold",
            json!({ "metadata": { "labels": { "pool": "gold" } } }),
        )
        .await;
    let pause = |value| json!({ "metadata": { "annotations": { "warden.dev/pause": value } } });
    cluster.merge("j-paused", pause(json!("yes"))).await;
    let rig = Rig::start(&cluster, keys).await;
    order(&cluster, "paused", "j-paused").await;
    order(&cluster, "gold", "j-gold").await;
    assert_eq!(end(&cluster, "gold").await, failed("NodeExcluded"));
    assert!(rig.provider.calls().is_empty());
    order(&cluster, "clash", "warden-controller").await;
    let clash = "the Lease that would lock the node is the controller's own";
    for (node, object, says) in [
        ("j-paused", "paused", "the node is paused"),
        ("warden-controller", "clash", clash),
    ] {
        let name = NodeName::new(node).unwrap();
        wait_for(format!("what {object} waits for"), SOON, || async {
            let waits = rig.controller.context.stages.reboot_waits(&name);
            let why = waits.get(object).is_some_and(|why| why.starts_with(says));
            anyhow::ensure!(why, "{waits:?}");
            Ok(Some(()))
        })
        .await
        .unwrap();
    }
    assert!(rig.provider.calls().is_empty());
    cluster.merge("j-paused", pause(json!(null))).await;
    assert_eq!(end(&cluster, "paused").await, succeeded());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_goes_after_its_signal_leaves_its_node_taken() {
    let cluster = Cluster::with_nodes(&["j-gone"]).await;
    let rig = Rig::start(&cluster, "").await;
    rig.behave(Outcome::Fails);
    order(&cluster, "gone", "j-gone").await;
    rig.until_signals("j-gone", 1).await;
    let api = objects(&cluster);
    api.delete("gone", &DeleteParams::default()).await.unwrap();
    rig.behave(Outcome::Obeys);
    order(&cluster, "next", "j-gone").await;
    // The lock may go with its object; the intent does not.
    let rig = rig.restart().await;
    assert_eq!(rig.intents().len(), 1);
    assert_eq!(rig.intents()[0].object, "gone");
    assert_eq!(rig.provider.signals("j-gone"), 1);
    // The late effect of the first signal is seen, and only then the next is sent.
    cluster.testbed.reboot("j-gone", "late").await.unwrap();
    rig.until_signals("j-gone", 2).await;
    assert_eq!(end(&cluster, "next").await, succeeded());
    rig.until_free("j-gone").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_asks_for_force_goes_to_the_provider_of_force() {
    let cluster = Cluster::with_nodes(&["j-force"]).await;
    install(&cluster).await;
    let start = || {
        let options = testbed::ProviderOptions::new(cluster.testbed.admin());
        testbed::SimProvider::start(options)
    };
    let (usual, force) = (start().await.unwrap(), start().await.unwrap());
    let keys = format!("force_provider = \"{}\"", force.address());
    let config = super::config(&usual.address().to_string(), &keys);
    let rig = Rig::start_on(&cluster, usual, config, tempfile::tempdir().unwrap()).await;
    let spec = json!({ "nodeName": "j-force", "force": true });
    order_with(&cluster, "f", spec, json!({})).await;
    assert_eq!(end(&cluster, "f").await, succeeded());
    assert_eq!(
        (force.signals("j-force"), rig.provider.signals("j-force")),
        (1, 0)
    );
}

/// The schema that ships takes what we write, and refuses what the reference's refuses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_definition_has_the_references_schema() {
    let cluster = Cluster::with_nodes(&[]).await;
    install(&cluster).await;
    let made = order(&cluster, "s", "n").await;
    assert_eq!(made.data["spec"]["force"], false, "the default");
    let refused = serde_json::from_value(json!({
        "apiVersion": "janitor.dgxc.nvidia.com/v1alpha1", "kind": "RebootNode",
        "metadata": { "name": "t" }, "spec": {},
    }))
    .unwrap();
    let api = objects(&cluster);
    let error = api
        .create(&PostParams::default(), &refused)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("spec.nodeName"), "{error}");
    let moved = Patch::Merge(json!({ "spec": { "nodeName": "other" } }));
    let error = api
        .patch("s", &PatchParams::default(), &moved)
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("nodeName cannot be changed after creation"),
        "{error}"
    );
    // As a person sees it.
    let request = http::Request::get("/apis/janitor.dgxc.nvidia.com/v1alpha1/rebootnodes/s")
        .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
        .body(Vec::new())
        .unwrap();
    let client = cluster.testbed.admin();
    let table: serde_json::Value = client.request(request).await.unwrap();
    let columns = table["columnDefinitions"].as_array().unwrap().iter();
    let columns: Vec<&str> = columns.map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(columns, ["Name", "Node", "Force", "NodeReady", "Age"]);
    assert_eq!(table["rows"][0]["cells"][1], "n");
}
