//! The whole loop with a real agent: fault, cordon, drain, reboot by a simulated provider, proof,
//! release; and what gets in its way.

use std::time::Duration;

use e2e::machine::SOON;
use e2e::{Controller, ControllerOptions, KernelLog, Machine, nodes};
use k8s_api::names;
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testbed::{Behaviour, Outcome, ProviderOptions, SimProvider, wait_for};

use crate::kit::{Turn, explained, warden};

const XID_79: &str =
    "NVRM: Xid (PCI:0000:17:00): 79, pid=4242, name=train.py, GPU has fallen off the bus.";
const REBOOT_NODE: &str =
    include_str!("../../deploy/crds/janitor.dgxc.nvidia.com_rebootnodes.yaml");
const STATE: &str = names::STATE_LABEL.text;

/// A machine with an agent that reads a pipe, a controller that may do everything, at once, and a
/// provider.
struct Loop {
    turn: Turn,
    provider: SimProvider,
    controller: Controller,
    machine: Machine,
}

impl Loop {
    async fn start(node: &str, behaviour: Behaviour) -> Self {
        let turn = Turn::take().await;
        turn.testbed.install_crd(REBOOT_NODE).await.unwrap();
        let provider = SimProvider::start(ProviderOptions {
            behaviour,
            ..ProviderOptions::new(turn.testbed.admin())
        })
        .await
        .unwrap();
        let options = ControllerOptions {
            profile: "remediate".to_owned(),
            extra: config(&provider),
            ..ControllerOptions::default()
        };
        let controller = turn.controller(&options).await;
        let machine = Machine::join(turn.testbed, &controller, node, KernelLog::Pipe)
            .await
            .unwrap();
        Self {
            turn,
            provider,
            controller,
            machine,
        }
    }

    fn falls_ill(&mut self) {
        self.machine.agent.kernel_line(XID_79).unwrap();
    }

    fn name(&self) -> &str {
        &self.machine.name
    }

    /// Waits until the newest incident is as wanted.
    async fn until(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let shown = self
            .machine
            .until(&self.controller, what, |node| is(&node["incidents"][0]));
        shown.await.unwrap()["incidents"][0].clone()
    }

    async fn drain(&self, state: &str) -> Value {
        let what = format!("with its drain {state}");
        self.until(&what, |i| i["drain"]["state"] == state).await
    }

    async fn repair(&self, state: &str) -> Value {
        let what = format!("with its repair {state}");
        self.until(&what, |i| i["repair"]["state"] == state).await
    }

    async fn released(&self) {
        self.turn
            .node(self.name(), "released", |node| {
                !nodes::is_cordoned(node) && nodes::marks(node).is_empty()
            })
            .await;
        let closed = self.until("closed", |i| i["state"] == "Closed").await;
        assert_eq!(closed["detail"], "Recovered", "{closed:#}");
    }

    async fn rebooted(&mut self) {
        let played = self.machine.rebooted(self.turn.testbed).await;
        if let Err(error) = played {
            panic!("{error:#}\n{}", self.controller.log_tail());
        }
    }

    /// Pods on the node that nobody is about to delete.
    async fn pods(&self, namespace: &str) -> Vec<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.turn.testbed.admin(), namespace);
        let on_node = ListParams::default().fields(&format!("spec.nodeName={}", self.name()));
        let pods = pods.list(&on_node).await.unwrap().items.into_iter();
        let stays = |pod: &Pod| pod.metadata.deletion_timestamp.is_none();
        pods.filter(stays).collect()
    }

    async fn work(&self, namespace: &str, count: usize) {
        let made = self
            .turn
            .testbed
            .create_pods_on(self.name(), namespace, count);
        made.await.unwrap();
    }

    async fn finish(&self, namespace: &str) {
        let pods: Api<Pod> = Api::namespaced(self.turn.testbed.admin(), namespace);
        for pod in self.pods(namespace).await {
            let over = Patch::Merge(json!({ "status": { "phase": "Succeeded" } }));
            let name = pod.metadata.name.unwrap();
            let params = PatchParams::default();
            pods.patch_status(&name, &params, &over).await.unwrap();
        }
    }

    fn signals(&self) -> usize {
        self.provider.signals(self.name())
    }

    /// Takes the cordon off as a person does.
    async fn uncordon(&self) {
        let client = self.turn.testbed.admin();
        nodes::set_cordon(&client, self.name(), false)
            .await
            .unwrap();
    }

    async fn closed_by_hand(&self) {
        let closed = self.until("closed", |i| i["state"] == "Closed").await;
        assert_eq!(closed["detail"], "ManualUncordon", "{closed:#}");
        self.turn
            .node(self.name(), "without marks", |node| {
                nodes::marks(node)
                    .iter()
                    .all(|mark| mark.contains("Manually"))
            })
            .await;
    }

    /// RebootNodes that name the node.
    async fn orders(&self) -> Vec<Value> {
        let path = "/apis/janitor.dgxc.nvidia.com/v1alpha1/rebootnodes";
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        let list: Value = self.turn.testbed.admin().request(request).await.unwrap();
        let items = list["items"].as_array().unwrap().iter();
        let of_node = items.filter(|o| o["spec"]["nodeName"] == self.name());
        of_node.cloned().collect()
    }
}

/// Everything at once, and short waits for what takes minutes in a real cluster.
fn config(provider: &SimProvider) -> String {
    format!(
        r#"
[lease]
duration = "3s"
[quarantine]
first_action_delay = "0s"
[quarantine.circuitBreaker]
enabled = false
[drain]
first_action_delay = "0s"
[[drain.userNamespaces]]
name = "at-once"
mode = "Immediate"
[[drain.userNamespaces]]
name = "may-finish"
mode = "AllowCompletion"
[remediation]
first_action_delay = "0s"
[janitor]
cspProviderHost = "{}"
cspProviderInsecure = true
cspProviderTokenPath = ""
ask_interval = "200ms"
no_reboot_after = "1s"
timeout = "90s"
"#,
        provider.address()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_is_drained_rebooted_proven_and_given_back() {
    let mut at = Loop::start("w-whole", Behaviour::default()).await;
    at.work("at-once", 2).await;
    at.work("may-finish", 1).await;
    at.falls_ill();
    let drain = at.drain("Draining").await;
    assert_eq!(drain["drain"]["passed_over"], json!([]), "{drain:#}");
    wait_for("the pods of at-once to go", SOON, || async {
        Ok(at.pods("at-once").await.is_empty().then_some(()))
    })
    .await
    .unwrap();
    at.turn
        .node(at.name(), "labelled draining", |node| {
            node.metadata
                .labels
                .as_ref()
                .unwrap()
                .get(STATE)
                .is_some_and(|s| s == "draining")
        })
        .await;
    explained(
        &at.controller,
        at.name(),
        &[
            "it waits for 1 pod",
            "may finish by itself (AllowCompletion)",
        ],
    );
    assert_eq!((at.pods("may-finish").await.len(), at.signals()), (1, 0));
    at.finish("may-finish").await;
    at.rebooted().await;
    at.released().await;
    assert_eq!(at.signals(), 1);
    let orders = at.orders().await;
    assert_eq!(orders.len(), 1, "{orders:#?}");
    let conditions = orders[0]["status"]["conditions"].as_array().unwrap();
    let ready = conditions
        .iter()
        .find(|c| c["type"] == "NodeReady")
        .unwrap();
    assert_eq!(
        (&ready["status"], &ready["reason"]),
        (&json!("True"), &json!("Succeeded"))
    );
    let (_, timeline, _) = warden(&at.controller, &["timeline", at.name()]);
    for step in [
        "Draining → Drained",
        "Planned → Requested",
        "Running → Succeeded",
        "Releasing → Closed",
    ] {
        assert!(timeline.contains(step), "{step}: {timeline}");
    }
    at.controller.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_that_comes_back_after_each_reboot_ends_with_a_person() {
    let mut at = Loop::start("w-ladder", Behaviour::default()).await;
    at.falls_ill();
    for attempt in 1..=2 {
        at.rebooted().await;
        assert_eq!(at.signals(), attempt);
        at.machine.settled(&at.controller).await.unwrap();
        at.falls_ill();
    }
    let repair = at.repair("NeedsOperator").await;
    assert_eq!(repair["repair"]["detail"], "exhausted", "{repair:#}");
    assert_eq!((at.signals(), at.orders().await.len()), (2, 2));
    let node = at
        .turn
        .node(at.name(), "labelled as failed", |node| {
            let labels = node.metadata.labels.as_ref().unwrap();
            labels
                .get(STATE)
                .is_some_and(|state| state == "remediation-failed")
        })
        .await;
    assert!(nodes::is_cordoned(&node));
    at.controller.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recovery_ends_a_drain_at_once_and_never_a_reboot() {
    let mut at = Loop::start("w-heals", Behaviour::default()).await;
    at.work("may-finish", 2).await;
    at.falls_ill();
    at.drain("Draining").await;
    // As an operator says that it is over.
    let close = async |at: &Loop| {
        let shown = at.machine.until(&at.controller, "ill", |node| {
            node["faults"].as_array().is_some_and(|all| !all.is_empty())
        });
        let fault = shown.await.unwrap()["faults"][0]["id"]
            .as_str()
            .unwrap()
            .to_owned();
        let (code, out, err) = warden(&at.controller, &["close", at.name(), &fault]);
        assert_eq!(code, Some(0), "{out}{err}");
    };
    close(&at).await;
    at.released().await;
    assert_eq!((at.pods("may-finish").await.len(), at.signals()), (2, 0));
    assert!(at.orders().await.is_empty());

    let slow = Behaviour {
        down_for: Duration::from_secs(2),
        ..Behaviour::default()
    };
    at.provider.behave(slow);
    at.finish("may-finish").await;
    at.falls_ill();
    at.repair("Running").await;
    wait_for("the signal", SOON, || async {
        Ok((at.signals() == 1).then_some(()))
    })
    .await
    .unwrap();
    close(&at).await;
    at.until("without an open fault", |i| {
        i["faults"][0]["closed_at"].is_string()
    })
    .await;
    // The reboot goes on, and the node waits for its end.
    let node = nodes::read(&at.turn.testbed.admin(), at.name())
        .await
        .unwrap();
    assert!(nodes::is_cordoned(&node));
    at.rebooted().await;
    at.released().await;
    assert_eq!(at.signals(), 1);
    at.controller.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_persons_uncordon_ends_every_stage_and_recalls_what_is_not_sent() {
    let behaviour = Behaviour {
        down_for: Duration::from_secs(2),
        ..Behaviour::default()
    };
    let mut at = Loop::start("w-hand", behaviour).await;
    // While pods are moved.
    at.work("may-finish", 1).await;
    at.falls_ill();
    at.drain("Draining").await;
    at.uncordon().await;
    at.closed_by_hand().await;
    assert_eq!((at.pods("may-finish").await.len(), at.signals()), (1, 0));
    assert!(at.orders().await.is_empty());
    at.controller.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_uncordon_after_the_signal_leaves_the_reboot_its_end_and_says_so() {
    let behaviour = Behaviour {
        down_for: Duration::from_secs(2),
        ..Behaviour::default()
    };
    let mut at = Loop::start("w-late-hand", behaviour).await;
    at.falls_ill();
    wait_for("the signal", SOON, || async {
        Ok((at.signals() == 1).then_some(()))
    })
    .await
    .unwrap();
    at.uncordon().await;
    at.closed_by_hand().await;
    let events: Api<Event> = Api::namespaced(at.turn.testbed.admin(), "default");
    wait_for("the Event", SOON, || async {
        let events = events.list(&ListParams::default()).await?;
        let told = events.iter().any(|event| {
            let is_of_node = event.involved_object.name.as_deref() == Some(at.name());
            is_of_node && event.reason.as_deref() == Some("RepairNotRecalled")
        });
        Ok(told.then_some(()))
    })
    .await
    .unwrap();
    at.rebooted().await;
    let ended = async || {
        let orders = at.orders().await;
        anyhow::ensure!(orders.len() == 1, "{orders:#?}");
        Ok(orders[0]["status"]["completionTime"]
            .is_string()
            .then_some(()))
    };
    wait_for("the end of the order", SOON, ended).await.unwrap();
    assert_eq!(at.signals(), 1);
    at.controller.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_deleted_in_any_stage_ends_its_incident() {
    for stage in ["draining", "rebooting"] {
        let node = format!("w-gone-{stage}");
        let behaviour = Behaviour {
            outcome: Outcome::Lies,
            ..Behaviour::default()
        };
        let mut at = Loop::start(&node, behaviour).await;
        if stage == "draining" {
            at.work("may-finish", 1).await;
        }
        at.falls_ill();
        if stage == "draining" {
            at.drain("Draining").await;
        } else {
            at.repair("Running").await;
        }
        at.turn.delete(&node).await;
        let incident = format!("/api/v1/incidents?node={node}");
        wait_for("the end of its incident", SOON, || async {
            let all = at.controller.json(&incident).await?;
            let over = all[0]["state"] == "Closed" && all[0]["detail"] == "NodeDeleted";
            anyhow::ensure!(over, "{all:#}");
            Ok(Some(()))
        })
        .await
        .unwrap();
        // The order went with its owner.
        wait_for("the order to go", SOON, || async {
            Ok(at.orders().await.is_empty().then_some(()))
        })
        .await
        .unwrap();
        at.controller.stop().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_that_never_opens_ends_with_a_person_and_says_so() {
    let mut at = Loop::start("w-budget", Behaviour::default()).await;
    at.work("at-once", 1).await;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(at.turn.testbed.admin(), "at-once");
    let budget = serde_json::from_value(json!({
        "metadata": { "name": "keeps" },
        "spec": { "maxUnavailable": 0, "selector": {} },
    }))
    .unwrap();
    budgets
        .create(&PostParams::default(), &budget)
        .await
        .unwrap();
    at.falls_ill();
    at.until("kept by the budget", |i| {
        i["drain"]["blockers"][0]["why"] == "budget"
    })
    .await;
    explained(
        &at.controller,
        at.name(),
        &[
            "a disruption budget keeps it",
            "The disruption budget keeps",
        ],
    );
    assert_eq!(at.signals(), 0, "nothing is rebooted over running work");
    budgets
        .delete("keeps", &DeleteParams::default())
        .await
        .unwrap();
    at.rebooted().await;
    at.released().await;
    at.controller.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_fails_lies_or_loses_its_answer_is_found_out() {
    // It reboots, and the answer says INTERNAL or does not come: no second signal.
    for (name, outcome) in [
        ("w-loses", Outcome::LosesAnswer),
        ("w-cuts", Outcome::CutsConnection),
    ] {
        let behaviour = Behaviour {
            outcome,
            ..Behaviour::default()
        };
        let mut at = Loop::start(name, behaviour).await;
        at.falls_ill();
        at.rebooted().await;
        at.released().await;
        assert_eq!(at.signals(), 1, "{outcome:?}");
        at.controller.stop().unwrap();
    }
    // It says that it did, and did not: seen, and asked again by force.
    let behaviour = Behaviour {
        outcome: Outcome::Lies,
        ..Behaviour::default()
    };
    let mut at = Loop::start("w-lies", behaviour).await;
    at.falls_ill();
    wait_for("the first signal", SOON, || async {
        Ok((at.signals() == 1).then_some(()))
    })
    .await
    .unwrap();
    at.provider.behave(Behaviour::default());
    at.rebooted().await;
    at.released().await;
    let mut orders = at.orders().await;
    orders.sort_by_key(|order| order["metadata"]["name"].as_str().map(str::to_owned));
    assert_eq!(orders[0]["spec"]["force"], false);
    assert_eq!(orders[1]["spec"]["force"], true);
    assert_eq!(at.signals(), 2);
    at.controller.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_dies_at_any_stage_loses_and_repeats_nothing() {
    let behaviour = Behaviour {
        down_for: Duration::from_secs(2),
        ..Behaviour::default()
    };
    let mut at = Loop::start("w-dies", behaviour).await;
    at.work("may-finish", 1).await;
    at.falls_ill();
    let before = at.drain("Draining").await["drain"]["immediate_deadline"].clone();
    at.controller.kill();
    at.controller.restart().await.unwrap();
    let after = at.drain("Draining").await["drain"]["immediate_deadline"].clone();
    assert_eq!(before, after, "the deadline is the one that was given");
    at.finish("may-finish").await;
    // A provider that was asked and whose answer is not known yet: the node tells.
    at.turn
        .node(at.name(), "down", |node| !testbed::is_ready(node))
        .await;
    at.controller.kill();
    at.controller.restart().await.unwrap();
    at.rebooted().await;
    at.released().await;
    let (_, timeline, _) = warden(&at.controller, &["timeline", at.name()]);
    let done = (at.signals(), at.orders().await.len());
    assert_eq!(done, (1, 1), "{timeline}");
    at.controller.stop().unwrap();
}
