//! What happens to nodes: by people, by other controllers, by the machines themselves. Each act's
//! outcome is known for sure, and noted in the node's truth.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use e2e::machine::SOON;
use e2e::nodes;
use e2e::random::Random;
use k8s_api::names;
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use testbed::wait_for;
use ulid::Ulid;

use super::spot::Spot;
use super::{Chaos, OUR_TAINT};

/// Carries who wrote last, so that a write whose answer got lost is known to have happened.
const TOKEN: &str = "soak.test/wrote";
/// Longest time for which a node object is not there.
const AWAY: Duration = Duration::from_secs(3);
/// Taints of others, by number.
const FOREIGN_TAINTS: usize = 3;

/// One act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeAct {
    ForeignCordon,
    Uncordon,
    ForeignTaint,
    ForeignUntaint,
    OurUntaint,
    Release,
    NodeReplaced,
    Reboot,
    NotReady,
    KernelLine,
    Pause,
}

/// How often each comes, of the sum.
const WEIGHTS: [(NodeAct, usize); 11] = [
    (NodeAct::ForeignCordon, 14),
    (NodeAct::Uncordon, 14),
    (NodeAct::ForeignTaint, 10),
    (NodeAct::ForeignUntaint, 7),
    (NodeAct::OurUntaint, 6),
    (NodeAct::Release, 5),
    (NodeAct::NodeReplaced, 8),
    (NodeAct::Reboot, 7),
    (NodeAct::NotReady, 6),
    (NodeAct::KernelLine, 10),
    (NodeAct::Pause, 4),
];

impl NodeAct {
    pub(crate) fn draw(random: &mut Random) -> Self {
        let sum = WEIGHTS.iter().map(|(_, weight)| weight).sum();
        let mut at = random.below(sum);
        for (act, weight) in WEIGHTS {
            if at < weight {
                return act;
            }
            at -= weight;
        }
        Self::KernelLine
    }
}

impl Chaos {
    /// Up to so many acts, on nodes that are drawn; answers what was done.
    pub(crate) async fn act_on_nodes(&mut self, most: usize) -> anyhow::Result<String> {
        let mut done = Vec::new();
        for _ in 0..=self.random.below(most) {
            let act = NodeAct::draw(&mut self.random);
            let what = self.act_on_node(act).await;
            let what = what.with_context(|| format!("{act:?} after {done:?}"))?;
            self.count(&format!("{act:?}"));
            done.push(format!("{act:?} {what}"));
        }
        Ok(done.join(", "))
    }

    async fn act_on_node(&mut self, act: NodeAct) -> anyhow::Result<String> {
        let spot = self.draw();
        let number = self.random.below(FOREIGN_TAINTS);
        let taint = format!("foreign.test/{number}");
        let done = match act {
            NodeAct::ForeignCordon => self.cordon(&spot).await?,
            NodeAct::Uncordon => self.uncordon(&spot).await?,
            NodeAct::ForeignTaint => self.taint(&spot, &taint, true).await?,
            NodeAct::ForeignUntaint => self.taint(&spot, &taint, false).await?,
            NodeAct::OurUntaint => self.taint(&spot, OUR_TAINT, false).await?,
            NodeAct::Release => self.release(&spot).await,
            NodeAct::NodeReplaced => self.replace(&spot).await?,
            NodeAct::Reboot => self.reboot(&spot).await?,
            NodeAct::NotReady => self.not_ready(&spot).await?,
            NodeAct::Pause => self.pause(&spot).await?,
            NodeAct::KernelLine => self.kernel_line(&spot).await?,
        };
        let word = if done { "" } else { ", nothing to do" };
        Ok(format!("{}{word}", spot.name))
    }

    /// Somebody else cordons a node that nobody cordoned. Only where no incident is on the node:
    /// else nobody could tell whose the cordon is.
    async fn cordon(&self, spot: &Spot) -> anyhow::Result<bool> {
        let patch = json!([
            { "op": "test", "path": pointer(names::INCIDENT.text), "value": null },
            { "op": "test", "path": "/spec/unschedulable", "value": null },
            { "op": "add", "path": "/spec/unschedulable", "value": true },
        ]);
        let done = self.write(&spot.name, patch).await?;
        if done {
            spot.truth().cordoned = true;
        }
        Ok(done)
    }

    /// A person lifts whatever cordon there is.
    async fn uncordon(&self, spot: &Spot) -> anyhow::Result<bool> {
        let patch = json!([
            { "op": "test", "path": "/spec/unschedulable", "value": true },
            { "op": "remove", "path": "/spec/unschedulable" },
        ]);
        let done = self.write(&spot.name, patch).await?;
        if done {
            spot.truth().cordoned = false;
        }
        Ok(done)
    }

    /// Somebody puts a taint on, or takes it off, and leaves the others as they are.
    pub(crate) async fn taint(&self, spot: &Spot, key: &str, on: bool) -> anyhow::Result<bool> {
        let done = wait_for(format_args!("a taint of {}", spot.name), SOON, || async {
            let node = nodes::read(&self.testbed.admin(), &spot.name).await?;
            let before = node.spec.clone().unwrap_or_default().taints;
            let mut taints = before.clone().unwrap_or_default();
            if taints.iter().any(|taint| taint.key == key) == on {
                return Ok(Some(false));
            }
            taints.retain(|taint| taint.key != key);
            if on {
                taints.push(Taint {
                    key: key.to_owned(),
                    value: Some("theirs".to_owned()),
                    effect: "NoSchedule".to_owned(),
                    time_added: None,
                });
            }
            let patch = json!([
                { "op": "test", "path": "/spec/taints", "value": before },
                { "op": "add", "path": "/spec/taints", "value": taints },
            ]);
            let done = self.write(&spot.name, patch).await?;
            Ok(done.then_some(true))
        })
        .await?;
        if done && key != OUR_TAINT {
            let mut truth = spot.truth();
            if on {
                truth.taints.insert(key.to_owned());
            } else {
                truth.taints.remove(key);
            }
        }
        Ok(done)
    }

    /// A conditional write, whose outcome is known for sure: by its answer, or by the token that it
    /// carries.
    async fn write(&self, name: &str, mut patch: Value) -> anyhow::Result<bool> {
        let token = Ulid::new().to_string();
        let mark = json!({ "op": "add", "path": pointer(TOKEN), "value": token });
        patch
            .as_array_mut()
            .context("a JSON Patch is a list")?
            .push(mark);
        let client = self.testbed.admin();
        let request = http::Request::patch(format!("/api/v1/nodes/{name}"))
            .header("content-type", "application/json-patch+json")
            .body(serde_json::to_vec(&patch)?)?;
        match client.request::<Node>(request).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => Ok(false),
            Err(_) => {
                let node = wait_for("what became of a write", SOON, || async {
                    Ok(Some(nodes::read(&client, name).await?))
                })
                .await?;
                Ok(node.annotations().get(TOKEN) == Some(&token))
            }
        }
    }

    /// A person gives the node back with `warden release`.
    async fn release(&mut self, spot: &Spot) -> bool {
        if !self.controller.is_running() {
            return false;
        }
        let path = format!("/api/v1/nodes/{}/release", spot.name);
        let answer = self.controller.post(&path, &json!({})).await;
        answer.is_ok_and(|(status, _)| status == 200)
    }

    /// The node object goes, and the same machine registers again.
    async fn replace(&mut self, spot: &Spot) -> anyhow::Result<bool> {
        let nodes: Api<Node> = Api::all(self.testbed.admin());
        nodes.delete(&spot.name, &DeleteParams::default()).await?;
        wait_for("the node to go", SOON, || async {
            Ok(nodes.get_opt(&spot.name).await?.is_none().then_some(()))
        })
        .await?;
        {
            let mut truth = spot.truth();
            truth.cordoned = false;
            truth.paused = false;
            truth.not_ready = false;
            truth.taints.clear();
        }
        tokio::time::sleep(self.random.pause(AWAY)).await;
        self.testbed.add_nodes(&[spot.spec().await]).await?;
        Ok(true)
    }

    async fn reboot(&self, spot: &Spot) -> anyhow::Result<bool> {
        let mut machine = spot.machine.lock().await;
        machine.restart(&self.testbed).await?;
        spot.truth().rebooted = true;
        Ok(true)
    }

    pub(crate) async fn not_ready(&self, spot: &Spot) -> anyhow::Result<bool> {
        let was = spot.truth().not_ready;
        if was {
            self.testbed.set_ready(&spot.name).await?;
        } else {
            self.testbed.set_not_ready(&spot.name, "Chaos").await?;
        }
        spot.truth().not_ready = !was;
        Ok(true)
    }

    pub(crate) async fn pause(&self, spot: &Spot) -> anyhow::Result<bool> {
        let was = spot.truth().paused;
        let value = if was {
            Value::Null
        } else {
            json!("by a person")
        };
        let patch = json!({ "metadata": { "annotations": { names::PAUSE.text: value } } });
        Api::<Node>::all(self.testbed.admin())
            .patch(&spot.name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        spot.truth().paused = !was;
        Ok(true)
    }

    /// A fault that only a reboot ends.
    async fn kernel_line(&self, spot: &Spot) -> anyhow::Result<bool> {
        let mut machine = spot.machine.lock().await;
        if !machine.agent.pipe().exists() {
            return Ok(false);
        }
        let line = "NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.";
        machine.agent.kernel_line(line)?;
        ensure!(
            machine.agent.is_running(),
            "the agent of {} died",
            spot.name
        );
        Ok(true)
    }
}

/// The place of an annotation in a node object.
fn pointer(key: &str) -> String {
    format!("/metadata/annotations/{}", key.replace('/', "~1"))
}
