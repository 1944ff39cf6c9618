//! One node under repair, and the test as janitor.

use event_store::TransitionsOf;
use health_event::incident::{Incident, OperatorReason, Repair, RepairStatus};
use health_event::{HealthEvent, NodeName, RecommendedAction};
use http::Request;
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};
use testbed::wait_for;

use crate::harness::{Cluster, Controller, RULES, SOON, fatal};

/// The definition that ships.
const CRD: &str = include_str!("../../../../deploy/crds/janitor.dgxc.nvidia.com_rebootnodes.yaml");
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const CRD_NAME: &str = "rebootnodes.janitor.dgxc.nvidia.com";

/// Repairs at once, without a drain, and carries nothing out itself.
pub(crate) fn config(extra: &str) -> String {
    let rules = RULES.replace("profile = \"cordon\"", "profile = \"remediate\"");
    format!(
        "{rules}\n[drain]\nenabled = false\n[janitor]\nenabled = false\n[remediation]\n\
         without_drain = true\nfirst_action_delay = \"0s\"\n{extra}\n"
    )
}

/// A fatal event of one GPU that asks for an action.
pub(crate) fn fault(node: &str, gpu: &str, action: RecommendedAction) -> HealthEvent {
    HealthEvent {
        recommended_action: action,
        ..fatal(node, "Test", gpu)
    }
}

/// Why the incident needs a person.
pub(crate) fn operator(incident: &Incident) -> OperatorReason {
    match incident.repair.as_ref().map(|repair| &repair.status) {
        Some(RepairStatus::NeedsOperator(why)) => why.clone(),
        other => panic!("{other:?}"),
    }
}

/// All objects.
pub(crate) fn objects(cluster: &Cluster) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("janitor.dgxc.nvidia.com", "v1alpha1", "RebootNode");
    Api::all_with(cluster.testbed.admin(), &ApiResource::from_gvk(&kind))
}

/// Has the API server know the objects, and none be there.
pub(crate) async fn install(cluster: &Cluster) {
    let client = cluster.testbed.admin();
    let request = Request::post(CRDS)
        .header("content-type", "application/yaml")
        .body(CRD.as_bytes().to_vec())
        .unwrap();
    match client.request::<Value>(request).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {}
        Err(error) => panic!("{error}"),
    }
    let api = objects(cluster);
    wait_for("the definition to be served", SOON, || async {
        Ok(api.list(&ListParams::default()).await.ok().map(drop))
    })
    .await
    .unwrap();
    api.delete_collection(&DeleteParams::default(), &ListParams::default())
        .await
        .unwrap();
    wait_for("no object to be there", SOON, || async {
        let left = api.list(&ListParams::default()).await?.items;
        Ok(left.is_empty().then_some(()))
    })
    .await
    .unwrap();
}

/// Has the API server forget the objects.
pub(crate) async fn uninstall(cluster: &Cluster) {
    let client = cluster.testbed.admin();
    let request = Request::delete(format!("{CRDS}/{CRD_NAME}"))
        .body(Vec::new())
        .unwrap();
    // Gone already is gone.
    let _ = client.request::<Value>(request).await;
    let api = objects(cluster);
    wait_for("the definition to go", SOON, || async {
        Ok(api
            .list(&ListParams::default())
            .await
            .is_err()
            .then_some(()))
    })
    .await
    .unwrap();
}

pub(crate) fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

/// Waits for an Event on the node whose message has this.
pub(crate) async fn until_event(
    cluster: &Cluster,
    node: &str,
    kind: &str,
    reason: &str,
    has: &str,
) {
    let api: Api<Event> = Api::namespaced(cluster.testbed.admin(), "default");
    let params = ListParams::default().fields(&format!("involvedObject.name={node}"));
    wait_for(format!("an Event {reason} with {has}"), SOON, || async {
        let events = api.list(&params).await?.items;
        let is = |event: &Event| {
            let says = event.message.as_ref().is_some_and(|m| m.contains(has));
            says && event.reason.as_deref() == Some(reason) && event.type_.as_deref() == Some(kind)
        };
        anyhow::ensure!(events.iter().any(is), "{events:?}");
        Ok(Some(()))
    })
    .await
    .unwrap();
}

/// A controller in this process, and a node.
pub(crate) struct Case<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) controller: Controller,
    pub(crate) node: NodeName,
    pub(crate) folder: tempfile::TempDir,
}

/// The repair of a node.
pub(crate) struct Of<'a> {
    pub(crate) controller: &'a Controller,
    pub(crate) node: NodeName,
}

impl<'a> Case<'a> {
    pub(crate) async fn start(cluster: &'a Cluster, node: &str, extra: &str) -> Self {
        install(cluster).await;
        Self::start_as(cluster, node, &config(extra)).await
    }

    /// With whatever objects there are, by a whole configuration.
    pub(crate) async fn start_as(cluster: &'a Cluster, node: &str, config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let controller = Controller::start_with(cluster, folder.path(), config).await;
        let node = NodeName::new(node).unwrap();
        Self {
            cluster,
            controller,
            node,
            folder,
        }
    }

    pub(crate) fn of(&self, node: &str) -> Of<'_> {
        Of {
            controller: &self.controller,
            node: NodeName::new(node).unwrap(),
        }
    }

    fn mine(&self) -> Of<'_> {
        self.of(self.node.as_str())
    }

    /// Waits until the repair of the node stands so.
    pub(crate) async fn until(&self, state: &str) -> Repair {
        self.mine().until(state).await
    }

    pub(crate) fn status(&self) -> RepairStatus {
        self.incident().repair.unwrap().status
    }

    pub(crate) fn incident(&self) -> Incident {
        self.mine().incident()
    }

    /// What keeps the planned repair.
    pub(crate) async fn until_blocked(&self, by: &str) {
        wait_for(format!("the repair to be kept by {by}"), SOON, || async {
            let blocked = self.controller.context.stages.repair_blocked(&self.node);
            anyhow::ensure!(blocked == Some(by), "{blocked:?}");
            Ok(Some(()))
        })
        .await
        .unwrap();
    }

    /// States that the repair went through.
    pub(crate) fn steps(&self) -> Vec<String> {
        let steps = self.transitions().into_iter();
        steps.map(|(to, _)| to).collect()
    }

    /// What was said of each step to this state.
    pub(crate) fn causes(&self, state: &str) -> Vec<String> {
        let steps = self.transitions().into_iter();
        steps
            .filter(|(to, _)| to == state)
            .map(|(_, cause)| cause)
            .collect()
    }

    fn transitions(&self) -> Vec<(String, String)> {
        let store = &self.controller.context.store;
        let of_node = TransitionsOf::Node(&self.node);
        let steps = store.transitions(of_node, 0, 500).unwrap().into_iter();
        steps
            .filter(|step| step.module == "remediation")
            .map(|step| (step.to, step.cause))
            .collect()
    }

    /// The objects of the node.
    pub(crate) async fn objects(&self) -> Vec<Value> {
        let api = objects(self.cluster);
        let all = api.list(&ListParams::default()).await.unwrap().items;
        let all = all.into_iter().map(|o| serde_json::to_value(o).unwrap());
        all.filter(|o| o["spec"]["nodeName"] == self.node.as_str())
            .collect()
    }

    /// The one object of the node.
    pub(crate) async fn only(&self) -> Value {
        let mut objects = self.objects().await;
        assert_eq!(objects.len(), 1, "{objects:#?}");
        objects.remove(0)
    }

    /// Waits for a second object of the node, and for it to be followed.
    pub(crate) async fn another(&self, first: &Value) -> Value {
        let second = wait_for("a second object", SOON, || async {
            let mut others = self.objects().await;
            others.retain(|object| name_of(object) != name_of(first));
            anyhow::ensure!(others.len() <= 1, "{others:#?}");
            Ok(others.pop())
        })
        .await
        .unwrap();
        self.until("Running").await;
        second
    }

    /// As janitor: the signal was sent.
    pub(crate) async fn sent(&self, name: &str) {
        let condition = condition("SignalSent", "True", "Succeeded", "request-1");
        self.patch(name, json!({ "conditions": [condition] })).await;
    }

    /// As janitor: it is at its end, well.
    pub(crate) async fn done(&self, name: &str) {
        let conditions = [
            condition("SignalSent", "True", "Succeeded", "request-1"),
            condition("NodeReady", "True", "Succeeded", "node is ready"),
        ];
        let now = jiff::Timestamp::now().to_string();
        let status = json!({ "conditions": conditions, "completionTime": now });
        self.patch(name, status).await;
    }

    /// As janitor: it is at its end, and failed.
    pub(crate) async fn failed(&self, name: &str) {
        let conditions = [
            condition("SignalSent", "False", "Failed", "the provider said no"),
            condition("NodeReady", "Unknown", "Initializing", "not yet"),
        ];
        let now = jiff::Timestamp::now().to_string();
        let status = json!({ "conditions": conditions, "completionTime": now });
        self.patch(name, status).await;
    }

    /// As janitor: the provider refused it before it took anything on.
    pub(crate) async fn refused(&self, name: &str) {
        let conditions = [
            condition("SignalSent", "False", "Failed", "PermissionDenied: no\nway"),
            condition("NodeReady", "False", "Failed", "it was not sent"),
        ];
        let now = jiff::Timestamp::now().to_string();
        let status = json!({ "conditions": conditions, "startTime": now, "completionTime": now });
        self.patch(name, status).await;
    }

    /// As janitor: it is begun now.
    pub(crate) async fn begun(&self, name: &str) {
        let now = jiff::Timestamp::now().to_string();
        self.patch(name, json!({ "startTime": now })).await;
    }

    /// As janitor: it had to wait for too long, and was never begun.
    pub(crate) async fn given_up(&self, name: &str) {
        let condition = condition(
            "NodeReady",
            "False",
            "Timeout",
            "it could not start in time",
        );
        let now = jiff::Timestamp::now().to_string();
        let status = json!({ "conditions": [condition], "completionTime": now });
        self.patch(name, status).await;
    }

    async fn patch(&self, name: &str, status: Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        objects(self.cluster)
            .patch_status(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    /// As janitor and as machine: it was rebooted.
    pub(crate) async fn rebooted(&self, object: &Value, boot: &str) {
        let testbed = self.cluster.testbed;
        testbed.reboot(self.node.as_str(), boot).await.unwrap();
        self.done(name_of(object)).await;
    }
}

impl Of<'_> {
    pub(crate) fn incident(&self) -> Incident {
        let store = &self.controller.context.store;
        let open = store.open_incidents_of(&self.node).unwrap();
        open.first().cloned().expect("an open incident")
    }

    pub(crate) async fn until(&self, state: &str) -> Repair {
        let node = &self.node;
        wait_for(format!("{node}: repair {state}"), SOON, || async {
            let store = &self.controller.context.store;
            let open = store.open_incidents_of(node)?;
            let repair = open.first().and_then(|incident| incident.repair.clone());
            let is = repair
                .as_ref()
                .is_some_and(|repair| repair.status.as_str() == state);
            anyhow::ensure!(is, "{repair:?}");
            Ok(repair)
        })
        .await
        .unwrap()
    }
}

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({
        "type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-02T03:04:05Z",
    })
}
