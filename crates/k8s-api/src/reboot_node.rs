//! `RebootNode`, the order to reboot a node: the reference's object, read and made.
//!
//! Group `janitor.dgxc.nvidia.com`, version `v1alpha1`, of the whole cluster, with a status
//! subresource (janitor: CRDs).

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// `apiVersion`.
pub const API_VERSION: &str = "janitor.dgxc.nvidia.com/v1alpha1";
/// `kind`.
pub const KIND: &str = "RebootNode";
/// Path of the collection on the API server.
pub const PATH: &str = "/apis/janitor.dgxc.nvidia.com/v1alpha1/rebootnodes";
/// Name of the definition of the kind.
pub const CRD: &str = "rebootnodes.janitor.dgxc.nvidia.com";
/// Condition: whether the signal was sent; its message while True is the provider's id of the
/// request.
pub const SIGNAL_SENT: &str = "SignalSent";
/// Condition: whether the node came back.
pub const NODE_READY: &str = "NodeReady";
/// Reason of [`NODE_READY`] False: the provider says that it is done, and the node has stayed in its
/// boot; ours.
pub const NO_REBOOT_OBSERVED: &str = "NoRebootObserved";
/// Reason of [`NODE_READY`] False: its effect was not seen in time, or, without a start time, nobody began
/// it in time.
pub const TIMEOUT: &str = "Timeout";
/// Reason of [`NODE_READY`] False: whoever made it does not want it any more, and nothing was sent; ours.
pub const RECALLED: &str = "Recalled";
/// Reason of [`NODE_READY`] False: its node is excluded from repairs; ours.
pub const NODE_EXCLUDED: &str = "NodeExcluded";
/// Reason of [`NODE_READY`] False: its node does not exist (any more); ours.
pub const NODE_NOT_FOUND: &str = "NodeNotFound";
/// Reason of [`NODE_READY`] Unknown: the controller runs on the node, and nothing is sent before it runs
/// elsewhere; ours.
pub const CONTROLLER_HERE: &str = "ControllerHere";
/// Condition: a person sends the signal.
pub const MANUAL_MODE: &str = "ManualMode";

/// The object, as far as we read it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RebootNode {
    /// Metadata.
    pub metadata: Metadata,
    /// What is ordered.
    #[serde(default)]
    pub spec: Spec,
    /// What became of it.
    #[serde(default)]
    pub status: Status,
}

/// Its metadata.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Version.
    pub resource_version: String,
    /// When it was made.
    pub creation_timestamp: Option<Timestamp>,
    /// It is being deleted.
    pub deletion_timestamp: Option<Timestamp>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
}

/// What is ordered.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    /// Name of the node: any text, people make these objects too.
    pub node_name: String,
    /// By force.
    pub force: bool,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// When the work on it began.
    pub start_time: Option<Timestamp>,
    /// When it ended; while absent it is under way.
    pub completion_time: Option<Timestamp>,
    /// Conditions.
    pub conditions: Vec<Condition>,
}

/// A condition, in the standard form (`metav1.Condition`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Reason.
    #[serde(default)]
    pub reason: String,
    /// Message.
    #[serde(default)]
    pub message: String,
    /// Since when the status holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Timestamp>,
    /// Generation that it was set for; kept as it was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

impl RebootNode {
    /// Whether something may have been sent for it: it was begun, says what came of its signal, or waits for
    /// a person, who may have acted and not said so yet.
    pub fn may_have_begun(&self) -> bool {
        let is = |kind: &str, says: fn(&str) -> bool| {
            self.condition(kind)
                .is_some_and(|condition| says(&condition.status))
        };
        self.status.start_time.is_some()
            || is(SIGNAL_SENT, |status| status != "Unknown")
            || is(MANUAL_MODE, |status| status == "True")
    }

    /// A condition by its type.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|c| c.kind == kind)
    }

    /// Whether it is at its end.
    pub fn is_over(&self) -> bool {
        self.status.completion_time.is_some()
    }
}

/// A new object, as it is posted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRebootNode<'a> {
    /// Name.
    pub name: &'a str,
    /// Node.
    pub node: &'a str,
    /// UID of the node object, which owns it: without the node it goes.
    pub node_uid: &'a str,
    /// By force.
    pub force: bool,
    /// Labels.
    pub labels: BTreeMap<&'a str, &'a str>,
    /// Annotations.
    pub annotations: BTreeMap<&'a str, &'a str>,
}

impl NewRebootNode<'_> {
    /// The body of the POST.
    pub fn render(&self) -> Value {
        json!({
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {
                "name": self.name,
                "labels": self.labels,
                "annotations": self.annotations,
                "ownerReferences": [{
                    "apiVersion": "v1",
                    "kind": "Node",
                    "name": self.node,
                    "uid": self.node_uid,
                    "controller": false,
                    "blockOwnerDeletion": false,
                }],
            },
            "spec": {"nodeName": self.node, "force": self.force},
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_read_whoever_made_it() {
        let text = r#"{"apiVersion":"janitor.dgxc.nvidia.com/v1alpha1","kind":"RebootNode",
            "metadata":{"name":"r","uid":"u","resourceVersion":"7",
                "creationTimestamp":"2026-01-02T03:04:05Z","managedFields":[{}]},
            "spec":{"nodeName":"gpu-1","force":true},
            "status":{"startTime":"2026-01-02T03:04:06Z","conditions":[
                {"type":"SignalSent","status":"True","reason":"Succeeded","message":"op-1",
                 "lastTransitionTime":"2026-01-02T03:04:06Z"}]}}"#;
        let object: RebootNode = serde_json::from_str(text).unwrap();
        assert_eq!(object.spec.node_name, "gpu-1");
        assert!(object.spec.force && !object.is_over());
        assert_eq!(object.condition(SIGNAL_SENT).unwrap().message, "op-1");
        assert!(object.condition(NODE_READY).is_none());
        let bare = r#"{"metadata":{"name":"r"}}"#;
        let object: RebootNode = serde_json::from_str(bare).unwrap();
        assert_eq!(object.spec, Spec::default());
    }

    #[test]
    fn what_is_posted_is_read_back() {
        let new = NewRebootNode {
            name: "maintenance-gpu-1-01k-1",
            node: "gpu-1",
            node_uid: "u-1",
            force: false,
            labels: BTreeMap::from([("app.kubernetes.io/managed-by", "warden")]),
            annotations: BTreeMap::new(),
        };
        let read: RebootNode = serde_json::from_value(new.render()).unwrap();
        assert_eq!(read.metadata.name, new.name);
        assert_eq!(read.spec.node_name, "gpu-1");
        let owner = &new.render()["metadata"]["ownerReferences"][0];
        assert_eq!(
            (&owner["name"], &owner["uid"]),
            (&json!("gpu-1"), &json!("u-1"))
        );
    }
}
