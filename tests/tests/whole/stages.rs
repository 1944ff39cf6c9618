//! The stages of the loop, to which nodes are brought so that something happens to them there.

use e2e::machine::SOON;
use e2e::monitor::fatal;
use e2e::proxy::{Held, Place};
use http::Method;
use k8s_api::names;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use testbed::{Behaviour, Outcome, wait_for};
use wire::datamodels::RecommendedAction;

use super::budgets::budget;
use super::kit::{Loop, ORDERS};
use super::settings::{Settings, slow};

/// How far the loop has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Its first cordon is not due yet.
    Withheld,
    /// Out, and its first drain is not due yet.
    Cordoned,
    /// Being emptied.
    Draining,
    /// A budget kept a pod there past the deadline.
    Failed,
    /// Its fault asks for a person.
    NeedsOperator,
    /// Empty; a person paused it before its reboot was ordered.
    Planned,
    /// The order is stored, and the call that makes its object is on its way.
    Requested,
    /// The provider has the signal.
    Sent,
    /// The same, and nobody knows what it did: the order was deleted since.
    Unknown,
    /// Ready in another boot, of which no agent has spoken.
    Repaired,
}

impl Stage {
    /// What is not due yet, and the stages that nodes of such a controller are brought to.
    const ALL: [(&str, &[Self]); 3] = [
        ("quarantine", &[Self::Withheld]),
        ("drain", &[Self::Cordoned]),
        (
            "",
            &[
                Self::Draining,
                Self::Failed,
                Self::NeedsOperator,
                Self::Planned,
                Self::Requested,
                Self::Sent,
                Self::Unknown,
                Self::Repaired,
            ],
        ),
    ];

    fn node(self, prefix: &str) -> String {
        format!("{prefix}-{self:?}").to_lowercase()
    }

    /// Signals that its node has had, and ever gets.
    pub(super) fn signals(self) -> usize {
        match self {
            Self::Withheld
            | Self::Cordoned
            | Self::Draining
            | Self::Failed
            | Self::NeedsOperator
            | Self::Planned
            | Self::Requested => 0,
            Self::Sent | Self::Unknown | Self::Repaired => 1,
        }
    }
}

/// Brings a node to each stage and lets `then` happen to it there, with the call that is on its way.
pub(super) async fn in_each_stage(
    prefix: &str,
    then: impl AsyncFn(&mut Loop, Stage, Option<Held>),
) {
    for (delayed, stages) in Stage::ALL {
        let mut settings = Settings {
            behaviour: slow(),
            proxied: true,
            set: vec![("drain", "immediate_deadline", "'2s'")],
            ..Settings::default()
        };
        if !delayed.is_empty() {
            settings.set.push((delayed, "first_action_delay", "'1h'"));
        }
        let (first, more) = stages.split_first().unwrap();
        let mut at = Loop::start_with(&first.node(prefix), settings).await;
        let held = at.reach(*first).await;
        then(&mut at, *first, held).await;
        for stage in more {
            at.join(&stage.node(prefix)).await;
            let held = at.reach(*stage).await;
            then(&mut at, *stage, held).await;
        }
        for stage in stages {
            let signals = at.provider.signals(&stage.node(prefix));
            assert_eq!(signals, stage.signals(), "{stage:?}");
        }
        at.controller.stop().unwrap();
    }
}

impl Loop {
    /// The namespace of pods that a budget keeps on the node.
    pub(super) fn kept(&self) -> String {
        format!("kept-{}", self.name())
    }

    /// Brings the node to the stage; answers the call that is on its way.
    async fn reach(&mut self, stage: Stage) -> Option<Held> {
        let proxy = self.proxy.as_ref().unwrap();
        let held =
            (stage == Stage::Requested).then(|| proxy.hold(Method::POST, ORDERS, Place::Request));
        match stage {
            Stage::Withheld | Stage::Cordoned | Stage::Draining | Stage::Planned => {
                self.work("may-finish", 1).await;
            }
            Stage::Failed => {
                let namespace = self.kept();
                self.work(&namespace, 1).await;
                budget(self, &namespace).await;
            }
            Stage::Unknown => self.provider.behave(Behaviour {
                outcome: Outcome::Fails,
                ..Behaviour::default()
            }),
            Stage::NeedsOperator | Stage::Requested | Stage::Sent | Stage::Repaired => {}
        }
        if stage == Stage::NeedsOperator {
            let mut fault = fatal("GpuPersonWatch", "48", "0");
            fault.recommended_action = RecommendedAction::ContactSupport.into();
            self.machine.monitor.say(fault).await.unwrap();
        } else {
            self.falls_ill();
        }
        self.arrives(stage, held).await
    }

    async fn arrives(&mut self, stage: Stage, held: Option<Held>) -> Option<Held> {
        match stage {
            Stage::Withheld => {
                let is_withheld = |i: &Value| i["state"] == "Withheld";
                let withheld = self.until("withheld", is_withheld).await;
                assert_eq!(withheld["withheld_by"], "first_action", "{withheld:#}");
            }
            Stage::Cordoned => {
                let drain = self.drain("Waiting").await;
                assert_eq!(drain["drain"]["detail"], "first_action", "{drain:#}");
            }
            Stage::Draining => drop(self.drain("Draining").await),
            Stage::Failed => drop(self.drain("Failed").await),
            Stage::NeedsOperator => {
                let repair = self.repair("NeedsOperator").await;
                assert_eq!(repair["repair"]["detail"], "unsupported", "{repair:#}");
            }
            Stage::Planned => {
                self.drain("Draining").await;
                self.pause().await;
                self.finish("may-finish").await;
                let blocked = self.until("empty, its reboot planned and paused", |i| {
                    i["drain"]["state"] == "Drained"
                        && i["repair"]["state"] == "Planned"
                        && i["repair"]["blocked_by"] == "paused"
                });
                blocked.await;
            }
            Stage::Requested => {
                let mut held = held.unwrap();
                held.arrived().await.unwrap();
                self.repair("Requested").await;
                return Some(held);
            }
            Stage::Sent => self.signalled(1).await,
            Stage::Unknown => self.order_is_lost().await,
            Stage::Repaired => {
                self.signalled(1).await;
                self.boots().await;
                self.repair("Succeeded").await;
            }
        }
        None
    }

    /// The provider does nothing and says INTERNAL, and a person deletes the order.
    async fn order_is_lost(&self) {
        self.signalled(1).await;
        self.provider.behave(slow());
        self.repair("Running").await;
        let order = self.orders().await.remove(0);
        let path = format!("{ORDERS}/{}", order["metadata"]["name"].as_str().unwrap());
        let request = http::Request::delete(path).body(Vec::new()).unwrap();
        let client = self.turn.testbed.admin();
        client.request::<Value>(request).await.unwrap();
        self.repair("Unknown").await;
    }

    /// As a person does, who then wants to look at it in peace.
    async fn pause(&self) {
        let pause = json!({ names::PAUSE.text: "by a person" });
        let pause = Patch::Merge(json!({ "metadata": { "annotations": pause } }));
        let nodes: Api<Node> = Api::all(self.turn.testbed.admin());
        let params = PatchParams::default();
        nodes.patch(self.name(), &params, &pause).await.unwrap();
        let seen = self
            .machine
            .until(&self.controller, "known as paused", |node| {
                let by = node["object"]["blocked_by"].as_array();
                by.is_some_and(|by| by.iter().any(|why| why == "paused"))
            });
        seen.await.unwrap();
    }

    /// Waits until an order of the node that was on its way has been made.
    pub(super) async fn made(&self) {
        wait_for("the order to be made", SOON, || async {
            let audit = self.turn.testbed.audit_events()?;
            let made = audit.iter().any(|event| {
                let object = event.object.as_ref();
                let node = object.map(|object| &object["spec"]["nodeName"]);
                event.resource == "rebootnodes"
                    && (event.verb.as_str(), event.code) == ("create", 201)
                    && node.is_some_and(|node| node == self.name())
            });
            Ok(made.then_some(()))
        })
        .await
        .unwrap();
    }
}
