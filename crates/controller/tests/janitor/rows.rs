//! Rows of the reference's acceptance list that one look does not prove.

use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use testbed::{Outcome, Rpc, wait_for};

use super::{Rig, condition, end, leases, objects, order, status, succeeded, until};
use crate::harness::{Cluster, SOON};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r07_r08_l10_l15_looked_at_often_it_is_under_way_keeps_its_lock_and_sends_once() {
    let cluster = Cluster::with_nodes(&["j-often"]).await;
    let keys = "timeout = \"1m\"\nno_reboot_after = \"1m\"";
    let rig = Rig::start(&cluster, keys).await;
    // It says that it is done, and the node has not rebooted yet.
    rig.behave(Outcome::Lies);
    let object = order(&cluster, "o", "j-often").await;
    let is_sent = |status: &serde_json::Value| {
        condition(status, "SignalSent").is_some_and(|(sent, _, _)| sent == "True")
    };
    until(&cluster, "o", "sent", is_sent).await;
    for n in 0..30 {
        let touch = json!({ "metadata": { "labels": { "touched": n.to_string() } } });
        let touch = Patch::Merge(touch);
        let api = objects(&cluster);
        api.patch("o", &PatchParams::default(), &touch)
            .await
            .unwrap();
    }
    let asked = || {
        let calls = rig.provider.calls();
        calls.iter().filter(|call| call.rpc == Rpc::IsReady).count()
    };
    let before = asked();
    wait_for("it to be looked at after the last touch", SOON, || async {
        Ok((asked() >= before + 2).then_some(()))
    })
    .await
    .unwrap();
    let now = status(&cluster, "o").await;
    let (ready, reason, _) = condition(&now, "NodeReady").unwrap();
    assert_eq!((&*ready, &*reason), ("Unknown", "Initializing"));
    assert!(now["completionTime"].is_null(), "{now}");
    let lock = leases(&cluster).get("j-often").await.unwrap();
    let owner = lock.metadata.owner_references.unwrap().remove(0);
    assert_eq!(Some(owner.uid), object.metadata.uid);
    assert_eq!(rig.provider.signals("j-often"), 1);
    // A person takes the lock off: there is nothing to give back.
    let now = DeleteParams::default();
    leases(&cluster).delete("j-often", &now).await.unwrap();
    cluster.testbed.reboot("j-often", "at-last").await.unwrap();
    assert_eq!(end(&cluster, "o").await, succeeded());
    rig.until_free("j-often").await;
    let page = rig.controller.metrics();
    assert!(
        !page.contains("action_type=\"unlock\""),
        "it is no failure: {page}"
    );
}

/// The unlock names the Lease that was taken, and the API server says that it is another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l13_a_lock_that_is_anothers_by_now_is_left_alone() {
    let cluster = Cluster::with_nodes(&["j-passed"]).await;
    let keys = "timeout = \"1m\"\nno_reboot_after = \"1m\"";
    let rig = Rig::start(&cluster, keys).await;
    rig.behave(Outcome::Lies);
    order(&cluster, "p", "j-passed").await;
    rig.until_signals("j-passed", 1).await;
    let api = leases(&cluster);
    let now = DeleteParams::default();
    api.delete("j-passed", &now).await.unwrap();
    let owner = cluster.get("j-passed").await.metadata.uid;
    let theirs = json!({ "metadata": { "name": "j-passed", "ownerReferences": [{
        "apiVersion": "v1", "kind": "Node", "name": "j-passed", "uid": owner,
    }] } });
    let theirs = serde_json::from_value(theirs).unwrap();
    let theirs = api.create(&PostParams::default(), &theirs).await.unwrap();
    cluster.testbed.reboot("j-passed", "at-last").await.unwrap();
    assert_eq!(end(&cluster, "p").await, succeeded());
    wait_for("no intent to be left", SOON, || async {
        Ok(rig.intents().is_empty().then_some(()))
    })
    .await
    .unwrap();
    let left = api.get("j-passed").await.unwrap();
    assert_eq!(left.metadata.uid, theirs.metadata.uid);
    let page = rig.controller.metrics();
    assert!(!page.contains("action_type=\"unlock\""), "{page}");
}
