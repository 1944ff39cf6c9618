//! Objects that are over go once their time to live is.

use kube::api::{Patch, PatchParams};
use serde_json::json;
use testbed::{Outcome, wait_for};

use super::{Rig, end, failed, install, objects, order, order_with, say, succeeded};
use crate::harness::{Cluster, SOON};

fn annotation(object: &kube::api::DynamicObject, key: &str) -> Option<String> {
    let annotations = object.metadata.annotations.as_ref()?;
    annotations
        .get(&format!("nvsentinel.nvidia.com/{key}"))
        .cloned()
}

async fn until_gone(cluster: &Cluster, name: &str) {
    wait_for(format!("{name} to go"), SOON, || async {
        Ok(objects(cluster)
            .get_opt(name)
            .await?
            .is_none()
            .then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d13_d15_d19_the_first_look_writes_ttl_and_expiry_once() {
    let cluster = Cluster::with_nodes(&["j-ttl"]).await;
    let rig = Rig::start(&cluster, "").await;
    order(&cluster, "t", "j-ttl").await;
    assert_eq!(end(&cluster, "t").await, succeeded());
    let written = wait_for("the annotations", SOON, || async {
        let object = objects(&cluster).get("t").await?;
        Ok(annotation(&object, "expiry").is_some().then_some(object))
    })
    .await
    .unwrap();
    assert_eq!(annotation(&written, "ttl").as_deref(), Some("336h0m0s"));
    rig.until_free("j-ttl").await;
    let rig = rig.restart().await;
    let later = objects(&cluster).get("t").await.unwrap();
    assert_eq!(annotation(&later, "expiry"), annotation(&written, "expiry"));
    drop(rig);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d02_d05_d10_d14_d17_d18_what_is_over_goes_with_its_time_unless_preserved() {
    let cluster = Cluster::with_nodes(&[]).await;
    let rig = Rig::start(&cluster, "").await;
    let ttl = |more: serde_json::Value| {
        let mut annotations = json!({ "nvsentinel.nvidia.com/ttl": "1s" });
        annotations
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        annotations
    };
    let spec = json!({ "nodeName": "j-none" });
    let preserve = json!({ "nvsentinel.nvidia.com/preserve": "true" });
    order_with(&cluster, "kept", spec.clone(), ttl(preserve)).await;
    order_with(&cluster, "goes", spec.clone(), ttl(json!({}))).await;
    order_with(
        &cluster,
        "stays",
        spec,
        json!({ "nvsentinel.nvidia.com/ttl": "soon" }),
    )
    .await;
    until_gone(&cluster, "goes").await;
    rig.controller
        .until_metric(r#"janitor_ttl_deletions_total{kind="RebootNode"} 1"#)
        .await;
    // A person no longer wants to keep it.
    let patch =
        json!({ "metadata": { "annotations": { "nvsentinel.nvidia.com/preserve": null } } });
    let api = objects(&cluster);
    assert!(api.get_opt("kept").await.unwrap().is_some());
    api.patch("kept", &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
    until_gone(&cluster, "kept").await;
    assert!(api.get_opt("stays").await.unwrap().is_some());
}

/// The reference deletes it in the midst.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_over_stays_whatever_its_expiry() {
    let cluster = Cluster::with_nodes(&["j-midst"]).await;
    let rig = Rig::start(&cluster, "timeout = \"3s\"\ndefault_ttl = \"1s\"").await;
    rig.behave(Outcome::Fails);
    let object = order(&cluster, "m", "j-midst").await;
    let api = objects(&cluster);
    until_gone(&cluster, "m").await;
    let made = object.metadata.creation_timestamp.unwrap().0;
    let lived = jiff::Timestamp::now().duration_since(made);
    assert!(lived.as_millis() >= 3_000, "{lived:?}");
    assert!(api.get_opt("m").await.unwrap().is_none());
    rig.until_free("j-midst").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d03_switched_off_nothing_is_written_or_deleted() {
    let cluster = Cluster::with_nodes(&["j-off"]).await;
    install(&cluster).await;
    order_with(
        &cluster,
        "o",
        json!({ "nodeName": "j-off" }),
        json!({ "nvsentinel.nvidia.com/ttl": "1s", "nvsentinel.nvidia.com/expiry": "2026-01-01T00:00:00Z" }),
    )
    .await;
    say(
        &cluster,
        "o",
        json!({ "completionTime": "2026-01-01T00:00:00Z" }),
    )
    .await;
    let rig = Rig::start_on(
        &cluster,
        testbed::SimProvider::start(testbed::ProviderOptions::new(cluster.testbed.admin()))
            .await
            .unwrap(),
        super::config("127.0.0.1:1", "enable_ttl = false"),
        tempfile::tempdir().unwrap(),
    )
    .await;
    // Another object's end shows that the module is at work.
    order(&cluster, "p", "j-nobody").await;
    assert_eq!(end(&cluster, "p").await, failed("NodeNotFound"));
    let left = objects(&cluster).get("p").await.unwrap();
    assert_eq!(annotation(&left, "ttl"), None);
    assert!(objects(&cluster).get_opt("o").await.unwrap().is_some());
    drop(rig);
}
