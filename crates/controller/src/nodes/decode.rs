//! From a line of the watch to [`NodeFacts`].
//!
//! The line is read once; what is not wanted is skipped while parsing and never built. Texts are
//! borrowed from the line until it is known which are kept; keys and the values of labels, which
//! repeat over the nodes, are kept once.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;

use health_event::{NodeName, checks};
use jiff::Timestamp;
use k8s_api::ConditionList;
use k8s_api::names::{self, Kind};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::owner::ManagedCordon;
use super::{ConditionStatus, NodeCondition, NodeFacts, NodeTaint};

/// Which keys of a map are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Keys {
    /// Every one.
    All,
    /// These.
    Only(BTreeSet<String>),
}

impl Keys {
    fn has(&self, key: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(keys) => keys.contains(key),
        }
    }

    /// Adds keys.
    pub fn extend(&mut self, more: impl IntoIterator<Item = String>) {
        match self {
            Self::All => {}
            Self::Only(keys) => keys.extend(more),
        }
    }

    fn join(&mut self, more: &Self) {
        match more {
            Self::All => *self = Self::All,
            Self::Only(keys) => self.extend(keys.iter().cloned()),
        }
    }
}

/// What is kept of a node: what Warden itself writes and reads, and what the configuration adds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Labels.
    pub labels: Keys,
    /// Annotations.
    pub annotations: Keys,
    /// Other fields that the rules read. Nodes are then parsed a second time, as a tree: about
    /// 0.2 ms for a large one.
    pub paths: BTreeSet<Vec<String>>,
}

impl Wanted {
    /// What every configuration needs, with labels of ours under `label_prefix`.
    pub fn ours(label_prefix: &str) -> Self {
        let of = |kind: Kind| names::ALL.iter().filter(move |n| n.kind == kind);
        let plain = of(Kind::Label).map(|n| n.text.to_owned());
        let prefixed = of(Kind::PrefixedLabel).map(|n| n.with_prefix(label_prefix));
        Self {
            labels: Keys::Only(plain.chain(prefixed).collect()),
            annotations: Keys::Only(of(Kind::Annotation).map(|n| n.text.to_owned()).collect()),
            paths: BTreeSet::new(),
        }
    }

    /// What both keep.
    #[must_use]
    pub fn with(&self, more: &Self) -> Self {
        let mut both = self.clone();
        both.labels.join(&more.labels);
        both.annotations.join(&more.annotations);
        both.paths.extend(more.paths.iter().cloned());
        both
    }
}

/// What a line of the watch says.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one at a time, and nearly all are nodes"
)]
pub(super) enum Line {
    /// A node was added or changed.
    Node(NodeFacts),
    /// A node is gone from the watch.
    Gone(NodeName),
    /// Everything up to this version was seen.
    Bookmark {
        /// Version.
        resource_version: String,
        /// Whether the first list is complete.
        initial_end: bool,
    },
    /// The server ends the watch.
    Error {
        /// HTTP status; 410 means that the version is too old.
        code: u16,
        /// Its words.
        message: String,
    },
}

/// One page of a list.
pub(super) struct Page {
    pub(super) nodes: Vec<NodeFacts>,
    pub(super) resource_version: String,
    pub(super) next: Option<String>,
}

/// Decodes, and keeps repeating texts once.
pub(super) struct Decoder {
    wanted: Wanted,
    texts: HashSet<Arc<str>>,
    lists: HashSet<Arc<[Arc<str>]>>,
    /// Size at which texts that nobody holds any more are let go.
    sweep_at: usize,
}

/// Fewer texts than this are never swept.
const SWEEP_FLOOR: usize = 4_096;

impl Decoder {
    pub(super) fn new(wanted: Wanted) -> Self {
        Self {
            wanted,
            texts: HashSet::new(),
            lists: HashSet::new(),
            sweep_at: SWEEP_FLOOR,
        }
    }

    pub(super) fn line(&mut self, line: &[u8]) -> serde_json::Result<(Line, String)> {
        let event: RawEvent<'_> = serde_json::from_slice(line)?;
        let version = event.object.metadata.resource_version.to_string();
        let line = match &*event.kind {
            "BOOKMARK" => Line::Bookmark {
                resource_version: version.clone(),
                initial_end: event.object.metadata.annotations.as_ref().is_some_and(|a| {
                    a.0.iter()
                        .any(|(k, v)| *k == "k8s.io/initial-events-end" && *v == "true")
                }),
            },
            "ERROR" => Line::Error {
                code: event.object.code,
                message: event.object.message.chars().take(300).collect(),
            },
            "DELETED" => Line::Gone(name_of(&event.object)?),
            _ => {
                let mut facts = self.facts(event.object)?;
                if !self.wanted.paths.is_empty() {
                    let tree: Value = serde_json::from_slice(line)?;
                    facts.extra = self.extra(&tree["object"]);
                }
                Line::Node(facts)
            }
        };
        Ok((line, version))
    }

    pub(super) fn page(&mut self, body: &[u8]) -> serde_json::Result<Page> {
        let list: RawList<'_> = serde_json::from_slice(body)?;
        let next = list.metadata.next.to_string();
        let resource_version = list.metadata.resource_version.to_string();
        let mut nodes = Vec::with_capacity(list.items.len());
        for node in list.items {
            nodes.push(self.facts(node)?);
        }
        if !self.wanted.paths.is_empty() {
            let tree: Value = serde_json::from_slice(body)?;
            for (index, node) in nodes.iter_mut().enumerate() {
                node.extra = self.extra(&tree["items"][index]);
            }
        }
        Ok(Page {
            resource_version,
            next: (!next.is_empty()).then_some(next),
            nodes,
        })
    }

    /// One node as a direct read gives it.
    pub(super) fn node(&mut self, body: &[u8]) -> serde_json::Result<NodeFacts> {
        let mut facts = self.facts(serde_json::from_slice(body)?)?;
        if !self.wanted.paths.is_empty() {
            facts.extra = self.extra(&serde_json::from_slice(body)?);
        }
        Ok(facts)
    }

    fn extra(&self, node: &Value) -> Box<[(Vec<String>, Value)]> {
        let at = |path: &Vec<String>| {
            let found = path.iter().try_fold(node, |value, key| value.get(key))?;
            Some((path.clone(), found.clone()))
        };
        self.wanted.paths.iter().filter_map(at).collect()
    }

    fn facts(&mut self, node: RawNode<'_>) -> serde_json::Result<NodeFacts> {
        let name = name_of(&node)?;
        let RawNode {
            metadata,
            spec,
            status,
            ..
        } = node;
        let listed = metadata
            .annotations
            .iter()
            .flat_map(|a| a.0.iter())
            .find(|(key, _)| *key == names::CONDITIONS.text)
            .and_then(|(_, text)| ConditionList::parse(text).ok())
            .unwrap_or_default();
        let labels = metadata.labels.as_ref();
        let annotations = metadata.annotations.as_ref();
        let ready = status.conditions.iter().find(|c| c.kind == "Ready");
        let facts = NodeFacts {
            name,
            uid: Arc::from(&*metadata.uid),
            resource_version: metadata.resource_version.parse().unwrap_or_default(),
            has_labels: labels.is_some(),
            has_annotations: annotations.is_some(),
            labels: labels.map(|l| self.labels(l)).unwrap_or_default(),
            annotations: annotations.map(|a| self.annotations(a)).unwrap_or_default(),
            unschedulable: spec.unschedulable,
            cordon_owner: metadata.managed_fields.0,
            taints: spec
                .taints
                .map(|taints| taints.iter().map(|t| self.taint(t)).collect()),
            created_at: metadata
                .creation_timestamp
                .parse()
                .unwrap_or(Timestamp::UNIX_EPOCH),
            provider_id: spec.provider_id.as_ref().into(),
            boot_id: status.node_info.boot_id.as_ref().into(),
            system_uuid: status.node_info.system_uuid.as_ref().into(),
            ready: ready.map(|c| ConditionStatus::parse(&c.status)),
            ready_since: ready
                .and_then(|c| c.last_transition_time.as_ref())
                .and_then(|at| at.0.parse().ok()),
            conditions: status
                .conditions
                .iter()
                .filter(|c| is_wanted_condition(&c.kind, &listed))
                .map(|c| NodeCondition {
                    kind: self.keep(&c.kind),
                    status: ConditionStatus::parse(&c.status),
                    reason: self.keep(&c.reason),
                    message: self.keep(&c.message),
                })
                .collect(),
            foreign_conditions: self.foreign(&status.conditions, &listed),
            extra: Box::default(),
        };
        self.sweep();
        Ok(facts)
    }

    fn labels(&mut self, pairs: &Pairs<'_>) -> Box<[(Arc<str>, Arc<str>)]> {
        let wanted = self.wanted.labels.clone_filter(pairs);
        wanted
            .iter()
            .map(|(k, v)| (self.keep(k), self.keep(v)))
            .collect()
    }

    /// Values of annotations are as a rule a node's own: they are not looked up.
    fn annotations(&mut self, pairs: &Pairs<'_>) -> Box<[(Arc<str>, Arc<str>)]> {
        let wanted = self.wanted.annotations.clone_filter(pairs);
        wanted
            .iter()
            .map(|(k, v)| (self.keep(k), Arc::from(*v)))
            .collect()
    }

    fn foreign(
        &mut self,
        conditions: &[RawCondition<'_>],
        listed: &ConditionList,
    ) -> Arc<[Arc<str>]> {
        let mut types: Vec<Arc<str>> = conditions
            .iter()
            .filter(|c| !is_wanted_condition(&c.kind, listed))
            .map(|c| self.keep(&c.kind))
            .collect();
        types.sort_unstable();
        if let Some(known) = self.lists.get(types.as_slice()) {
            return known.clone();
        }
        let new: Arc<[Arc<str>]> = types.into();
        self.lists.insert(new.clone());
        new
    }

    fn taint(&mut self, taint: &RawTaint<'_>) -> NodeTaint {
        NodeTaint {
            key: self.keep(&taint.key),
            value: self.keep(&taint.value),
            effect: self.keep(&taint.effect),
            time_added: taint.time_added.as_ref().map(|t| t.0.as_ref().into()),
        }
    }

    fn keep(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return known.clone();
        }
        let new: Arc<str> = Arc::from(text);
        self.texts.insert(new.clone());
        new
    }

    fn sweep(&mut self) {
        if self.texts.len() >= self.sweep_at {
            self.lists.retain(|list| Arc::strong_count(list) > 1);
            self.texts.retain(|text| Arc::strong_count(text) > 1);
            self.sweep_at = (self.texts.len() * 2).max(SWEEP_FLOOR);
        }
    }
}

impl Keys {
    fn clone_filter<'a>(&self, pairs: &'a Pairs<'_>) -> Vec<(&'a str, &'a str)> {
        pairs
            .0
            .iter()
            .filter(|(k, _)| self.has(k))
            .map(|(k, v)| (&**k, &**v))
            .collect()
    }
}

/// Conditions of checks that we know, and those that we wrote on this node.
fn is_wanted_condition(kind: &str, listed: &ConditionList) -> bool {
    checks::CHECKS.iter().any(|c| c.name == kind) || listed.0.contains(kind)
}

fn name_of(node: &RawNode<'_>) -> serde_json::Result<NodeName> {
    NodeName::new(&node.metadata.name).map_err(serde::de::Error::custom)
}

#[derive(Deserialize)]
struct RawEvent<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    object: RawNode<'a>,
}

#[derive(Deserialize)]
struct RawList<'a> {
    #[serde(borrow)]
    metadata: RawListMetadata<'a>,
    #[serde(borrow)]
    items: Vec<RawNode<'a>>,
}

#[derive(Deserialize)]
struct RawListMetadata<'a> {
    #[serde(rename = "resourceVersion", borrow)]
    resource_version: Cow<'a, str>,
    #[serde(rename = "continue", borrow, default)]
    next: Cow<'a, str>,
}

/// A node, a bookmark, or the status that ends a watch.
#[derive(Deserialize)]
struct RawNode<'a> {
    #[serde(borrow, default)]
    metadata: RawMetadata<'a>,
    #[serde(borrow, default)]
    spec: RawSpec<'a>,
    #[serde(borrow, default, deserialize_with = "status_or_text")]
    status: RawStatus<'a>,
    #[serde(default)]
    code: u16,
    #[serde(borrow, default)]
    message: Cow<'a, str>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct RawMetadata<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    uid: Cow<'a, str>,
    #[serde(borrow, default)]
    resource_version: Cow<'a, str>,
    #[serde(borrow, default)]
    creation_timestamp: Cow<'a, str>,
    #[serde(borrow)]
    labels: Option<Pairs<'a>>,
    #[serde(borrow)]
    annotations: Option<Pairs<'a>>,
    #[serde(default)]
    managed_fields: ManagedCordon,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct RawSpec<'a> {
    unschedulable: Option<bool>,
    #[serde(borrow)]
    taints: Option<Vec<RawTaint<'a>>>,
    #[serde(rename = "providerID", borrow, default)]
    provider_id: Cow<'a, str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawTaint<'a> {
    #[serde(borrow)]
    key: Cow<'a, str>,
    #[serde(borrow, default)]
    value: Cow<'a, str>,
    #[serde(borrow)]
    effect: Cow<'a, str>,
    #[serde(borrow)]
    time_added: Option<Text<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct RawStatus<'a> {
    #[serde(borrow, default)]
    conditions: Vec<RawCondition<'a>>,
    #[serde(borrow, default)]
    node_info: RawNodeInfo<'a>,
}

#[derive(Deserialize)]
struct RawCondition<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    status: Cow<'a, str>,
    #[serde(borrow, default)]
    reason: Cow<'a, str>,
    #[serde(borrow, default)]
    message: Cow<'a, str>,
    #[serde(rename = "lastTransitionTime", borrow, default)]
    last_transition_time: Option<Text<'a>>,
}

#[derive(Deserialize, Default)]
struct RawNodeInfo<'a> {
    #[serde(rename = "bootID", borrow, default)]
    boot_id: Cow<'a, str>,
    #[serde(rename = "systemUUID", borrow, default)]
    system_uuid: Cow<'a, str>,
}

/// A text that is borrowed inside an `Option` too.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// In a `Status` object, `status` is a text.
fn status_or_text<'de, D: Deserializer<'de>>(from: D) -> Result<RawStatus<'de>, D::Error> {
    struct StatusVisitor;
    impl<'de> Visitor<'de> for StatusVisitor {
        type Value = RawStatus<'de>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a node's status")
        }
        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
            RawStatus::deserialize(serde::de::value::MapAccessDeserializer::new(map))
        }
        fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
            Ok(RawStatus::default())
        }
    }
    from.deserialize_any(StatusVisitor)
}

/// A map of texts, in its order.
struct Pairs<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct PairsVisitor;
        impl<'de> Visitor<'de> for PairsVisitor {
            type Value = Pairs<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of texts")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::with_capacity(map.size_hint().unwrap_or_default());
                while let Some((key, value)) = map.next_entry::<Text<'de>, Text<'de>>()? {
                    pairs.push((key.0, value.0));
                }
                Ok(Pairs(pairs))
            }
        }
        from.deserialize_map(PairsVisitor)
    }
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
