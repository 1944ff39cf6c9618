//! The separate look at the API server that decides about success: what the demo did and saw on its way
//! counts for nothing here.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use e2e::nodes;
use e2e::view::View;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::ListParams;
use serde_json::Value;
use testbed::{Testbed, wait_for};

use crate::story::{CHECK, NODES, VICTIM};
use crate::work::SERVING;

/// Where orders of reboots are.
const ORDERS: &str = "/apis/janitor.dgxc.nvidia.com/v1alpha1/rebootnodes";
/// What the good end of an order is called in its condition.
const SUCCEEDED: &str = "Succeeded";

/// What there is.
pub(crate) struct Look {
    nodes: Vec<Node>,
    /// Orders of reboots.
    orders: Vec<Value>,
    /// Of the services.
    deployments: Vec<Deployment>,
    pods: Vec<Pod>,
}

impl Look {
    /// Reads all of it.
    ///
    /// # Errors
    /// The API server does not answer.
    pub(crate) async fn at(testbed: &Testbed) -> anyhow::Result<Self> {
        let client = testbed.admin();
        let all = ListParams::default();
        let nodes = Api::<Node>::all(client.clone()).list(&all).await?;
        let deployments = Api::<Deployment>::namespaced(client.clone(), SERVING);
        let pods = Api::<Pod>::namespaced(client.clone(), SERVING);
        Ok(Self {
            nodes: nodes.items,
            orders: orders(&client).await?,
            deployments: deployments.list(&all).await?.items,
            pods: pods.list(&all).await?.items,
        })
    }

    /// Name of each node, and whether it is cordoned.
    pub(crate) fn fleet(&self) -> Vec<(String, bool)> {
        let of = |node: &Node| {
            let name = node.metadata.name.clone().unwrap_or_default();
            (name, nodes::is_cordoned(node))
        };
        self.nodes.iter().map(of).collect()
    }

    fn victim(&self) -> anyhow::Result<&Node> {
        let is_it = |node: &&Node| node.metadata.name.as_deref() == Some(VICTIM);
        let found = self.nodes.iter().find(is_it);
        found.with_context(|| format!("there is no node {VICTIM}"))
    }
}

/// None where the kind is not known yet.
async fn orders(client: &kube::Client) -> anyhow::Result<Vec<Value>> {
    let request = http::Request::get(ORDERS).body(Vec::new())?;
    let list: Value = match client.request(request).await {
        Ok(list) => list,
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(Vec::new()),
        Err(error) => return Err(error).context("reading the orders of reboots"),
    };
    let items = list["items"].as_array();
    Ok(items.cloned().unwrap_or_default())
}

/// What a node looks like to those who must not notice anything.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    name: String,
    cordoned: bool,
    marks: Vec<String>,
    taints: Vec<String>,
}

fn seen(look: &Look) -> Vec<Seen> {
    let seen = |node: &Node| {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
        let keys = taints.into_iter().flatten().map(|taint| taint.key.clone());
        Seen {
            name: node.metadata.name.clone().unwrap_or_default(),
            cordoned: nodes::is_cordoned(node),
            marks: nodes::marks(node),
            taints: keys.collect(),
        }
    };
    look.nodes.iter().map(seen).collect()
}

/// Waits until a separate read of the API server proves all of it.
///
/// # Errors
/// It does not, in time; the text says what is missing.
pub(crate) async fn verify(
    view: &View,
    testbed: &Testbed,
    before: &Look,
    within: Duration,
) -> anyhow::Result<()> {
    view.title("A separate look at the API server");
    let step = view.step("what was done, and what is there");
    // Nothing of Warden is waited for, only what Kubernetes does after it.
    let after = wait_for("Kubernetes to follow", within, || async {
        let after = Look::at(testbed).await?;
        followed(&after)?;
        Ok(Some(after))
    })
    .await?;
    proven(before, &after)?;
    let victim = after.victim()?;
    let boot = testbed::boot_id(victim).unwrap_or_default();
    let short: String = boot.chars().take(8).collect();
    step.done(&format!("{VICTIM} is Ready in another boot ({short}…)"));
    for line in [
        format!("its RebootNode ended as {SUCCEEDED}, its condition {CHECK} is False;"),
        format!(
            "it is schedulable without a mark, the other {} nodes are untouched,",
            NODES - 1
        ),
        format!(
            "and each of the {} pods of the services runs.",
            wanted(&after)
        ),
    ] {
        view.note(&line);
    }
    view.fleet(&after.fleet());
    Ok(())
}

fn wanted(look: &Look) -> i32 {
    let replicas = |of: &Deployment| of.spec.as_ref().and_then(|spec| spec.replicas);
    look.deployments.iter().filter_map(replicas).sum()
}

/// Whether the node controller took off its taint, which it does a moment after an uncordon, and the pods
/// that were made anew run.
fn followed(after: &Look) -> anyhow::Result<()> {
    let victim = after.victim()?.spec.as_ref();
    let taints = victim.and_then(|spec| spec.taints.as_ref());
    ensure!(
        taints.is_none_or(Vec::is_empty),
        "{VICTIM} has taints: {taints:?}"
    );
    runs(after)
}

/// Whether what there was became what there is by one reboot, and nothing else is left of it.
fn proven(before: &Look, after: &Look) -> anyhow::Result<()> {
    let (was, is) = (seen(before), seen(after));
    ensure!(
        was == is,
        "nodes differ from what they were: before {was:?}, after {is:?}"
    );
    let (old, victim) = (before.victim()?, after.victim()?);
    ensure!(
        !nodes::is_cordoned(victim) && nodes::marks(victim).is_empty(),
        "{VICTIM} is still cordoned or marked"
    );
    let boots = [old, victim].map(|node| testbed::boot_id(node).unwrap_or_default());
    ensure!(
        !boots[1].is_empty() && boots[0] != boots[1],
        "{VICTIM} was not rebooted: its boot id was {:?} and is {:?}",
        boots[0],
        boots[1]
    );
    let ready = testbed::ready_condition(victim);
    ensure!(
        ready.is_some_and(|(status, _)| status == "True"),
        "{VICTIM} is not Ready: {ready:?}"
    );
    let fault = nodes::condition(victim, CHECK);
    ensure!(
        fault == Some("False"),
        "the condition {CHECK} of {VICTIM} is {fault:?}, not False"
    );
    ended(&after.orders)?;
    runs(after)
}

/// There is one order, of the victim, and it came to a good end.
fn ended(orders: &[Value]) -> anyhow::Result<()> {
    let [order] = orders else {
        bail!("there is not one RebootNode, but {}", orders.len());
    };
    let name = order["metadata"]["name"].as_str().unwrap_or_default();
    let of = order["spec"]["nodeName"].as_str().unwrap_or_default();
    ensure!(
        of == VICTIM,
        "RebootNode {name} is of {of}, not of {VICTIM}"
    );
    let status = &order["status"];
    ensure!(
        status["completionTime"].is_string(),
        "RebootNode {name} has not ended: {status}"
    );
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let mut ready = conditions.filter(|condition| condition["type"] == "NodeReady");
    ensure!(
        ready.any(|ready| ready["status"] == "True" && ready["reason"] == SUCCEEDED),
        "RebootNode {name} did not end well: {status}"
    );
    Ok(())
}

/// Each service has the pods that it wants, and they run.
fn runs(look: &Look) -> anyhow::Result<()> {
    ensure!(
        look.deployments.len() == 2,
        "there are {} services, not 2",
        look.deployments.len()
    );
    for deployment in &look.deployments {
        let name = deployment.metadata.name.as_deref().unwrap_or_default();
        let wants = deployment.spec.as_ref().and_then(|spec| spec.replicas);
        let of_it = |pod: &&Pod| {
            let labels = pod.metadata.labels.as_ref();
            labels.is_some_and(|labels| labels.get("app").is_some_and(|app| app == name))
        };
        let has = look.pods.iter().filter(of_it).filter(|pod| serves(pod));
        let has = i32::try_from(has.count())?;
        ensure!(
            wants == Some(has),
            "of service {name} {has} pods run, not {}",
            wants.unwrap_or_default()
        );
    }
    Ok(())
}

/// Whether the pod runs, is Ready, and stays.
fn serves(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    let is_ready = conditions
        .into_iter()
        .flatten()
        .any(|c| c.type_ == "Ready" && c.status == "True");
    testbed::is_running(pod) && is_ready && pod.metadata.deletion_timestamp.is_none()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What two reads say, as the API server does.
    struct Case {
        before: Value,
        after: Value,
    }

    fn node(name: &str, boot: &str, condition: &str) -> Value {
        json!({
            "metadata": { "name": name, "labels": { "pool": "a" } },
            "spec": {},
            "status": {
                "conditions": [
                    { "type": "Ready", "status": "True", "reason": "KubeletReady" },
                    { "type": CHECK, "status": condition },
                ],
                "nodeInfo": {
                    "architecture": "", "bootID": boot, "containerRuntimeVersion": "",
                    "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "",
                    "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": "",
                },
            },
        })
    }

    fn pod(app: &str) -> Value {
        json!({
            "metadata": { "labels": { "app": app } },
            "status": {
                "phase": "Running",
                "conditions": [{ "type": "Ready", "status": "True" }],
            },
        })
    }

    fn service(name: &str, replicas: i32) -> Value {
        json!({ "metadata": { "name": name }, "spec": {
            "replicas": replicas, "selector": {}, "template": {} } })
    }

    fn order() -> Value {
        json!({
            "metadata": { "name": "o" },
            "spec": { "nodeName": VICTIM },
            "status": {
                "completionTime": "2026-01-02T03:04:05Z",
                "conditions": [
                    { "type": "SignalSent", "status": "True", "reason": "Succeeded" },
                    { "type": "NodeReady", "status": "True", "reason": "Succeeded" },
                ],
            },
        })
    }

    impl Case {
        fn good() -> Self {
            Self {
                before: json!({
                    "nodes": [node(VICTIM, "b1", "True"), node("other", "o1", "False")],
                    "orders": [], "deployments": [], "pods": [],
                }),
                after: json!({
                    "nodes": [node(VICTIM, "b2", "False"), node("other", "o1", "False")],
                    "orders": [order()],
                    "deployments": [service("inference", 2), service("late", 1)],
                    "pods": [pod("inference"), pod("inference"), pod("late")],
                }),
            }
        }

        /// The same, but for one thing afterwards.
        fn but(path: &str, value: Value) -> Self {
            let mut case = Self::good();
            *case.after.pointer_mut(path).unwrap() = value;
            case
        }

        fn proven(&self) -> Result<(), String> {
            let look = |of: &Value| Look {
                nodes: serde_json::from_value(of["nodes"].clone()).unwrap(),
                orders: serde_json::from_value(of["orders"].clone()).unwrap(),
                deployments: serde_json::from_value(of["deployments"].clone()).unwrap(),
                pods: serde_json::from_value(of["pods"].clone()).unwrap(),
            };
            let proven = proven(&look(&self.before), &look(&self.after));
            proven.map_err(|error| format!("{error:#}"))
        }
    }

    #[test]
    fn one_reboot_that_left_nothing_behind_is_proven() {
        assert_eq!(Case::good().proven(), Ok(()));
    }

    fn fails(path: &str, value: &Value, says: &str) {
        let case = Case::but(path, value.clone());
        let told = case.proven().expect_err(&format!("{path} {value}"));
        assert!(told.contains(says), "{path} {value}: {told}");
    }

    #[test]
    fn a_node_that_is_not_as_it_should_be_fails_it_and_is_named() {
        let differ = "nodes differ from what they were";
        let mark = json!({ "warden.dev/incident": "x" });
        let taint = json!([{ "key": "warden.test/bad", "effect": "PreferNoSchedule" }]);
        let by = json!({ "pool": "a", "k8saas.nvidia.com/cordon-by": "x" });
        let unready = |status: &str| json!({ "type": "Ready", "status": status });
        for (path, value, says) in [
            ("/nodes/0/spec", json!({ "unschedulable": true }), differ),
            (
                "/nodes/0/metadata",
                json!({ "name": VICTIM, "annotations": mark }),
                differ,
            ),
            ("/nodes/0/spec", json!({ "taints": taint }), differ),
            ("/nodes/1/spec", json!({ "unschedulable": true }), differ),
            ("/nodes/1/spec", json!({ "taints": taint }), differ),
            ("/nodes/1/metadata/labels", by, differ),
            ("/nodes/1/metadata/name", json!("another"), differ),
            (
                "/nodes/0/status/nodeInfo/bootID",
                json!("b1"),
                "was not rebooted",
            ),
            (
                "/nodes/0/status/nodeInfo/bootID",
                json!(""),
                "was not rebooted",
            ),
            (
                "/nodes/0/status/conditions/0",
                unready("False"),
                "is not Ready",
            ),
            (
                "/nodes/0/status/conditions/0",
                unready("Unknown"),
                "is not Ready",
            ),
            (
                "/nodes/0/status/conditions/1/status",
                json!("True"),
                "not False",
            ),
            (
                "/nodes/0/status/conditions/1/status",
                json!("Unknown"),
                "not False",
            ),
            (
                "/nodes/0/status/conditions/1/type",
                json!("Another"),
                "is None, not False",
            ),
        ] {
            fails(path, &value, says);
        }
    }

    #[test]
    fn an_order_that_did_not_end_well_and_pods_that_do_not_run_fail_it_and_are_named() {
        let over = "/orders/0/status";
        let mut goes = pod("late")["metadata"].clone();
        goes["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
        for (path, value, says) in [
            ("/orders", json!([]), "there is not one RebootNode, but 0"),
            (
                "/orders",
                json!([order(), order()]),
                "there is not one RebootNode, but 2",
            ),
            (
                "/orders/0/spec/nodeName",
                json!("other"),
                "is of other, not of",
            ),
            (
                "/orders/0/status/completionTime",
                Value::Null,
                "has not ended",
            ),
            (over, Value::Null, "has not ended"),
            (
                "/orders/0/status/conditions/1/status",
                json!("False"),
                "did not end well",
            ),
            (
                "/orders/0/status/conditions/1/reason",
                json!("Recalled"),
                "did not end well",
            ),
            ("/orders/0/status/conditions", json!([]), "did not end well"),
            (
                "/deployments",
                json!([service("inference", 2)]),
                "there are 1 services",
            ),
            (
                "/deployments/0/spec/replicas",
                json!(3),
                "of service inference 2 pods run, not 3",
            ),
            (
                "/pods/0/status/phase",
                json!("Pending"),
                "of service inference 1 pods run, not 2",
            ),
            (
                "/pods/2/status/phase",
                json!("Failed"),
                "of service late 0 pods run, not 1",
            ),
            (
                "/pods/2/status/conditions/0/status",
                json!("False"),
                "of service late 0 pods",
            ),
            ("/pods/2/metadata", goes, "of service late 0"),
        ] {
            fails(path, &value, says);
        }
    }

    #[test]
    fn a_node_that_was_out_before_is_no_success() {
        let mut case = Case::but("/nodes/0/spec", json!({ "unschedulable": true }));
        case.before["nodes"][0]["spec"]["unschedulable"] = json!(true);
        let told = case.proven().unwrap_err();
        assert!(told.contains("is still cordoned or marked"), "{told}");
    }
}
