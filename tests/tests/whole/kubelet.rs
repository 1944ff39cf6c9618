//! A kubelet that falls silent: what terminates there, nobody ever says to be gone.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use testbed::Options;

use super::kit::Loop;
use super::settings::Settings;
use crate::kit::Turn;

/// `drain.dead_kubelet_timeout` here.
const DEAD: SignedDuration = SignedDuration::from_secs(3);

/// Since when the node controller says Unknown of the node's kubelet.
fn silent_since(node: &Node) -> Option<Timestamp> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|c| c.type_ == "Ready")?;
    let since = ready.last_transition_time.as_ref().map(|time| time.0);
    since.filter(|_| ready.status == "Unknown")
}

impl Loop {
    /// Gives the pods something that only a kubelet that speaks would take away.
    async fn stay(&self, namespace: &str) {
        let pods: Api<Pod> = Api::namespaced(self.turn.testbed.admin(), namespace);
        let stays = json!({ "metadata": { "finalizers": ["warden.test/kubelet"] } });
        for pod in self.pods(namespace).await {
            let (name, params) = (pod.metadata.name.unwrap(), PatchParams::default());
            pods.patch(&name, &params, &Patch::Merge(&stays))
                .await
                .unwrap();
        }
    }

    /// When the drain was done, and the facts that decided.
    async fn drained(&self) -> (Timestamp, Value) {
        let path = format!("/api/v1/nodes/{}/timeline", self.name());
        let steps = self.controller.json(&path).await.unwrap();
        let mut steps = steps.as_array().unwrap().iter();
        let step = steps.find(|step| step["to"] == "Drained").unwrap();
        let at = step["at"].as_str().unwrap().parse().unwrap();
        (at, step["cause"].clone())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_a_kubelet_that_stays_silent_count_as_gone_once_their_reboot_is_planned() {
    let turn = Turn::alone(Options {
        node_grace: Some(Duration::from_secs(20)),
        ..Options::default()
    });
    let settings = Settings {
        set: vec![("drain", "dead_kubelet_timeout", "'3s'")],
        ..Settings::default()
    };
    let mut at = Loop::start_on(turn.await, "w-dead", settings).await;
    at.work("at-once", 1).await;
    at.stay("at-once").await;
    at.work("may-finish", 1).await;
    at.falls_ill();
    at.until("with one pod that goes and one that runs", |i| {
        let blockers = i["drain"]["blockers"].as_array();
        let why = |b: &Value| b["why"].as_str().unwrap_or_default().to_owned();
        let mut why: Vec<_> = blockers.into_iter().flatten().map(why).collect();
        why.sort();
        why == ["completion", "terminating"] && i["repair"]["state"] == "Planned"
    })
    .await;
    at.turn.testbed.stop_heartbeats(at.name()).await.unwrap();
    let silent = at.turn.node(at.name(), "of a silent kubelet", |node| {
        silent_since(node).is_some()
    });
    let since = silent_since(&silent.await).unwrap();

    // Nothing more happens there, so nothing but the time wakes.
    at.signalled(1).await;
    let (drained, cause) = at.drained().await;
    assert!(drained >= since + DEAD, "{since} {drained}");
    let says = cause.to_string();
    assert!(
        says.contains("the repair ends 2 pods that did not go"),
        "{says}"
    );
    let pods: Api<Pod> = Api::namespaced(at.turn.testbed.admin(), "at-once");
    let left = pods.list(&kube::api::ListParams::default()).await.unwrap();
    let goes = left
        .iter()
        .filter(|p| p.metadata.deletion_timestamp.is_some());
    assert_eq!(goes.count(), 1, "it terminates still");
    assert_eq!(
        at.pods("may-finish").await.len(),
        1,
        "nobody asked it to go"
    );

    // The machine comes up again, and its kubelet speaks.
    at.turn.testbed.resume_heartbeats(at.name()).await.unwrap();
    at.rebooted().await;
    at.released().await;
    at.once().await;
    at.controller.stop().unwrap();
    at.turn.end().await;
}
