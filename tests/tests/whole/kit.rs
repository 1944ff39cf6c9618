//! A machine with an agent that reads a pipe, a controller that may do everything, at once, and a
//! provider.

use std::collections::BTreeSet;

use e2e::machine::SOON;
use e2e::proxy::Proxy;
use e2e::{Controller, ControllerOptions, KernelLog, Machine, nodes};
use k8s_api::names;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use testbed::{Behaviour, ProviderOptions, SimProvider, wait_for};

use super::settings::Settings;
use crate::kit::Turn;

const XID_79: &str =
    "NVRM: Xid (PCI:0000:17:00): 79, pid=4242, name=train.py, GPU has fallen off the bus.";
const REBOOT_NODE: &str =
    include_str!("../../../deploy/crds/janitor.dgxc.nvidia.com_rebootnodes.yaml");
/// Where orders of reboots are made.
pub(super) const ORDERS: &str = "/apis/janitor.dgxc.nvidia.com/v1alpha1/rebootnodes";
const STATE: &str = names::STATE_LABEL.text;

pub(super) struct Loop {
    pub(super) provider: SimProvider,
    pub(super) proxy: Option<Proxy>,
    pub(super) controller: Controller,
    pub(super) machine: Machine,
    pub(super) turn: Turn,
}

impl Loop {
    pub(super) async fn start(node: &str, behaviour: Behaviour) -> Self {
        let settings = Settings {
            behaviour,
            ..Settings::default()
        };
        Self::start_with(node, settings).await
    }

    pub(super) async fn start_with(node: &str, settings: Settings) -> Self {
        Self::start_on(Turn::take().await, node, settings).await
    }

    pub(super) async fn start_on(turn: Turn, node: &str, settings: Settings) -> Self {
        turn.testbed.install_crd(REBOOT_NODE).await.unwrap();
        let provider = SimProvider::start(ProviderOptions {
            behaviour: settings.behaviour.clone(),
            ..ProviderOptions::new(turn.testbed.admin())
        })
        .await
        .unwrap();
        let proxy = if settings.proxied {
            Some(Proxy::start(turn.testbed).await.unwrap())
        } else {
            None
        };
        let by_proxy = |proxy: &Proxy| proxy.kubeconfig(turn.testbed).unwrap();
        let as_user = |user: &str| {
            let config = turn.testbed.kubeconfig_for_user(user, &["system:masters"]);
            config.unwrap()
        };
        let options = ControllerOptions {
            profile: "remediate".to_owned(),
            extra: settings.text(&provider),
            kubeconfig: proxy
                .as_ref()
                .map(by_proxy)
                .or_else(|| settings.user.map(as_user)),
            flags: settings.flags,
            ..ControllerOptions::default()
        };
        let controller = turn.controller(&options).await;
        let machine = Machine::join(turn.testbed, &controller, node, KernelLog::Pipe)
            .await
            .unwrap();
        Self {
            provider,
            proxy,
            controller,
            machine,
            turn,
        }
    }

    /// Goes on with another machine.
    pub(super) async fn join(&mut self, node: &str) {
        let log = KernelLog::Pipe;
        let joined = Machine::join(self.turn.testbed, &self.controller, node, log).await;
        self.machine = joined.unwrap();
    }

    pub(super) fn falls_ill(&mut self) {
        self.machine.agent.kernel_line(XID_79).unwrap();
    }

    pub(super) fn name(&self) -> &str {
        &self.machine.name
    }

    /// Waits until the newest incident is as wanted.
    pub(super) async fn until(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let shown = self
            .machine
            .until(&self.controller, what, |node| is(&node["incidents"][0]));
        shown.await.unwrap()["incidents"][0].clone()
    }

    pub(super) async fn drain(&self, state: &str) -> Value {
        let what = format!("with its drain {state}");
        self.until(&what, |i| i["drain"]["state"] == state).await
    }

    pub(super) async fn repair(&self, state: &str) -> Value {
        let what = format!("with its repair {state}");
        self.until(&what, |i| i["repair"]["state"] == state).await
    }

    /// Waits until the provider has had so many signals.
    pub(super) async fn signalled(&self, times: usize) {
        let seen = wait_for(format!("signal {times}"), SOON, || async {
            Ok((self.signals() == times).then_some(()))
        });
        if let Err(error) = seen.await {
            panic!("{error:#}\n{}", self.controller.log_tail());
        }
    }

    pub(super) async fn released(&self) {
        self.turn
            .node(self.name(), "released", |node| {
                !nodes::is_cordoned(node) && nodes::marks(node).is_empty()
            })
            .await;
        let closed = self.until("closed", |i| i["state"] == "Closed").await;
        assert_eq!(closed["detail"], "Recovered", "{closed:#}");
    }

    /// The machine goes down and comes back, and its agent with it.
    pub(super) async fn rebooted(&mut self) {
        let played = self.machine.rebooted(self.turn.testbed).await;
        if let Err(error) = played {
            panic!("{error:#}\n{}", self.controller.log_tail());
        }
    }

    /// The same, but for the agent.
    pub(super) async fn boots(&mut self) {
        let played = self.machine.boots(self.turn.testbed).await;
        if let Err(error) = played {
            panic!("{error:#}\n{}", self.controller.log_tail());
        }
    }

    /// Waits until the node carries this state of the loop in its label.
    pub(super) async fn labelled(&self, state: &str) {
        let what = format!("labelled {state}");
        self.turn
            .node(self.name(), &what, |node| {
                let labels = node.metadata.labels.as_ref();
                labels
                    .and_then(|labels| labels.get(STATE))
                    .map(String::as_str)
                    == Some(state)
            })
            .await;
    }

    /// Pods on the node that nobody is about to delete.
    pub(super) async fn pods(&self, namespace: &str) -> Vec<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.turn.testbed.admin(), namespace);
        let on_node = ListParams::default().fields(&format!("spec.nodeName={}", self.name()));
        let pods = pods.list(&on_node).await.unwrap().items.into_iter();
        let stays = |pod: &Pod| pod.metadata.deletion_timestamp.is_none();
        pods.filter(stays).collect()
    }

    pub(super) async fn work(&self, namespace: &str, count: usize) {
        let made = self
            .turn
            .testbed
            .create_pods_on(self.name(), namespace, count);
        made.await.unwrap();
    }

    pub(super) async fn finish(&self, namespace: &str) {
        let pods: Api<Pod> = Api::namespaced(self.turn.testbed.admin(), namespace);
        for pod in self.pods(namespace).await {
            let over = Patch::Merge(json!({ "status": { "phase": "Succeeded" } }));
            let name = pod.metadata.name.unwrap();
            let params = PatchParams::default();
            pods.patch_status(&name, &params, &over).await.unwrap();
        }
    }

    /// Signals to reboot the machine.
    pub(super) fn signals(&self) -> usize {
        self.provider.signals(self.name())
    }

    /// Waits for a warning of the controller about the node with all of these words.
    pub(super) async fn warned(&self, reason: &str, words: &[&str]) {
        let events: Api<Event> = Api::namespaced(self.turn.testbed.admin(), "default");
        let what = format!("an Event {reason} about {}", self.name());
        wait_for(what, SOON, || async {
            let events = events.list(&ListParams::default()).await?;
            let told = events.iter().any(|event| {
                let is_of_node = event.involved_object.name.as_deref() == Some(self.name());
                let is_warning = event.type_.as_deref() == Some("Warning");
                let message = event.message.as_deref().unwrap_or_default();
                is_of_node
                    && is_warning
                    && event.reason.as_deref() == Some(reason)
                    && words.iter().all(|word| message.contains(word))
            });
            Ok(told.then_some(()))
        })
        .await
        .unwrap();
    }

    /// RebootNodes that name the node, in the order of their attempts.
    pub(super) async fn orders(&self) -> Vec<Value> {
        let request = http::Request::get(ORDERS).body(Vec::new()).unwrap();
        let list: Value = self.turn.testbed.admin().request(request).await.unwrap();
        let items = list["items"].as_array().unwrap().iter();
        let of_node = items.filter(|o| o["spec"]["nodeName"] == self.name());
        let mut orders: Vec<Value> = of_node.cloned().collect();
        orders.sort_by_key(|order| order["metadata"]["name"].as_str().map(str::to_owned));
        orders
    }

    /// Waits until there is no RebootNode that names the node.
    pub(super) async fn without_orders(&self) {
        wait_for("the orders to go", SOON, || async {
            let orders = self.orders().await;
            anyhow::ensure!(orders.is_empty(), "{orders:#?}");
            Ok(Some(()))
        })
        .await
        .unwrap();
    }

    /// Module, old and new state of each step of the node's incidents.
    pub(super) async fn steps(&self) -> Vec<[String; 3]> {
        let path = format!("/api/v1/nodes/{}/timeline", self.name());
        let timeline = self.controller.json(&path).await.unwrap();
        let step = |step: &Value| {
            ["module", "from", "to"].map(|key| step[key].as_str().unwrap_or_default().to_owned())
        };
        timeline.as_array().unwrap().iter().map(step).collect()
    }

    /// Each step was taken once, these among them.
    pub(super) async fn stepped_once(&self, wanted: &[[&str; 3]]) {
        let steps = self.steps().await;
        let once: BTreeSet<_> = steps.iter().collect();
        assert_eq!(once.len(), steps.len(), "each step once: {steps:#?}");
        for wanted in wanted {
            assert!(steps.iter().any(|s| s == wanted), "{wanted:?}: {steps:#?}");
        }
    }

    /// The machine was rebooted once, for one order and by one signal.
    pub(super) async fn once(&self) {
        let reboots = self.provider.reboots(self.name());
        let done = (self.signals(), reboots, self.orders().await.len());
        assert_eq!(done, (1, 1, 1), "{}", self.controller.log().unwrap());
    }
}
