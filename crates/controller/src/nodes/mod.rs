//! The nodes as the rest of the controller sees them: a cache fed by one watch, decoded into the
//! few fields that decisions need.
//!
//! # Guarantees
//! - What [`NodeCache::get`] answers was on the API server at one moment; a later moment follows
//!   within a watch's delay. A write that must not meet another moment carries its own tests
//!   (see `kubernetes::patch`).
//! - A node that the cache lost is *not* proven to be deleted: only a direct read says that.
//! - Each change of a node wakes it once, after the change can be read.
//!
//! # Bounds
//! One line of the watch at most [`crate::kubernetes::MAX_LINE_BYTES`]; about 1 KB of memory a node with the
//! shipped rules (measured in the tests).

mod cache;
mod cost;
mod decode;
mod owner;
mod typical;
pub mod watch;

use std::collections::BTreeSet;
use std::sync::Arc;

use decide::quarantine::CordonOwner;
use health_event::NodeName;
use jiff::Timestamp;
use k8s_api::names;
use serde_json::Value;

pub use cache::{NodeCache, OTHER_POOL, Pool};
pub use cost::NodeCost;
pub use decode::{Keys, Wanted};

/// What is known of one node object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    /// Name.
    pub name: NodeName,
    /// UID of the object.
    pub uid: Arc<str>,
    /// When the object was created.
    pub created_at: Timestamp,
    /// Version of the object; the API server promises that they can be compared (1.35).
    pub resource_version: u64,
    /// Whether the object has a map of labels at all.
    pub has_labels: bool,
    /// Whether the object has a map of annotations at all.
    pub has_annotations: bool,
    /// Wanted labels.
    pub labels: Box<[(Arc<str>, Arc<str>)]>,
    /// Wanted annotations.
    pub annotations: Box<[(Arc<str>, Arc<str>)]>,
    /// `spec.unschedulable` as it stands: absent is not `false`.
    pub unschedulable: Option<bool>,
    /// Who last changed `spec.unschedulable`, by the API server's record.
    pub cordon_owner: CordonOwner,
    /// `spec.taints` in their order; absent is not empty.
    pub taints: Option<Box<[NodeTaint]>>,
    /// `spec.providerID`; empty if absent.
    pub provider_id: Box<str>,
    /// `status.nodeInfo.bootID`; empty if absent.
    pub boot_id: Box<str>,
    /// `status.nodeInfo.systemUUID`; empty if absent.
    pub system_uuid: Box<str>,
    /// Status of condition `Ready`; none if the node never said.
    pub ready: Option<ConditionStatus>,
    /// Since when it has that status; none if the node did not say.
    pub ready_since: Option<Timestamp>,
    /// The wanted conditions, `Ready` not among them.
    pub conditions: Box<[NodeCondition]>,
    /// Types of all other conditions, sorted: who owns them is not known, so that nobody writes
    /// them. Nodes with the same types share the list.
    pub foreign_conditions: Arc<[Arc<str>]>,
    /// What the rules read beyond all this, by path; as a rule nothing.
    pub extra: Box<[(Vec<String>, Value)]>,
}

/// Status of a node condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionStatus {
    /// `True`.
    True,
    /// `False`.
    False,
    /// `Unknown`, or anything else.
    Unknown,
}

impl ConditionStatus {
    fn parse(text: &str) -> Self {
        match text {
            "True" => Self::True,
            "False" => Self::False,
            _ => Self::Unknown,
        }
    }
}

/// A taint as the API server shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeTaint {
    /// Key.
    pub key: Arc<str>,
    /// Value; the API server leaves an empty one out.
    pub value: Arc<str>,
    /// Effect.
    pub effect: Arc<str>,
    /// When it was put on, as written.
    pub time_added: Option<Box<str>>,
}

/// A node condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeCondition {
    /// Type.
    pub kind: Arc<str>,
    /// Status.
    pub status: ConditionStatus,
    /// Reason.
    pub reason: Arc<str>,
    /// Message.
    pub message: Arc<str>,
}

impl NodeFacts {
    /// A wanted label's value.
    pub fn label(&self, key: &str) -> Option<&str> {
        value_of(&self.labels, key)
    }

    /// A wanted annotation's value.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        value_of(&self.annotations, key)
    }

    /// Whether the scheduler passes the node by.
    pub fn is_cordoned(&self) -> bool {
        self.unschedulable.unwrap_or_default()
    }

    /// The reference's marks on a node that does not carry ours: whoever set them, it was not us.
    pub fn foreign_marks(&self) -> impl Iterator<Item = &'static str> {
        let is_ours = self.annotation(names::INCIDENT.text).is_some();
        let marks = [
            names::HEALTH_EVENT,
            names::APPLIED_TAINTS,
            names::IS_CORDONED,
        ];
        let has = move |key: &&str| {
            let value = self.annotation(key);
            !is_ours && value.is_some_and(|value| !value.is_empty())
        };
        marks.into_iter().map(|mark| mark.text).filter(has)
    }

    /// Who else repairs the node at the moment: the reference's taint or label, or one of these keys of
    /// labels, annotations and taints, as `key=value`.
    pub fn external_owner(&self, keys: &BTreeSet<String>) -> Option<String> {
        let said = |(key, value): (&str, &str)| format!("{key}={value}");
        let is_owner = |key: &str| *key == *names::EXTERNAL_REMEDIATION.text || keys.contains(key);
        let mut taints = self.taints.iter().flatten();
        if let Some(taint) = taints.find(|taint| is_owner(&taint.key)) {
            return Some(said((&taint.key, &taint.value)));
        }
        let label = names::EXTERNALLY_MANAGED.text;
        if self.label(label) == Some("false") {
            return Some(said((label, "false")));
        }
        let of = |key: &String| {
            Some((
                key.clone(),
                self.label(key).or_else(|| self.annotation(key))?,
            ))
        };
        let (key, value) = keys.iter().find_map(of)?;
        Some(said((&key, value)))
    }

    /// The machine behind the node: system UUID, else provider id, else the UID of the object.
    pub fn machine(&self) -> &str {
        [&*self.system_uuid, &*self.provider_id]
            .into_iter()
            .find(|id| !id.is_empty())
            .unwrap_or(&self.uid)
    }
}

fn value_of<'a>(pairs: &'a [(Arc<str>, Arc<str>)], key: &str) -> Option<&'a str> {
    pairs
        .iter()
        .find(|(k, _)| **k == *key)
        .map(|(_, value)| &**value)
}

/// A node from a line of the watch, for tests of what looks at nodes.
#[cfg(test)]
pub(crate) fn decoded(line: &str, wanted: Wanted) -> NodeFacts {
    match decode::Decoder::new(wanted).line(line.as_bytes()) {
        Ok((decode::Line::Node(node), _)) => node,
        other => panic!("{other:?}"),
    }
}
