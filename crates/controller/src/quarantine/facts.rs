//! From cache and store to what a decision looks at.

use std::collections::{BTreeMap, BTreeSet};

use decide::quarantine::{
    Annotation, Cooperator, FaultFacts, Label, NodeFacts, Origin, Policy, TaintRead,
};
use decide::rules::{NodeValue, RuleSets};
use event_store::{Machine, StoredFault};
use health_event::incident::Taint;
use health_event::{BootId, Sender};
use k8s_api::names;

use crate::config::QuarantineConfig;
use crate::kubernetes::patch::{annotation_name, label_key};
use crate::nodes::{self, ConditionStatus};

const ANNOTATIONS: [Annotation; 8] = [
    Annotation::Incident,
    Annotation::HealthEvents,
    Annotation::AppliedTaints,
    Annotation::IsCordoned,
    Annotation::CordonPreExisting,
    Annotation::UncordonedManually,
    Annotation::UntaintedManually,
    Annotation::RemediationState,
];

const LABELS: [Label; 7] = [
    Label::CordonBy,
    Label::CordonReason,
    Label::CordonTimestamp,
    Label::UncordonBy,
    Label::UncordonReason,
    Label::UncordonTimestamp,
    Label::State,
];

/// The node as the decision sees it.
pub(super) fn node_facts(
    node: &nodes::NodeFacts,
    pool: &str,
    policy: &Policy,
    config: &QuarantineConfig,
) -> NodeFacts {
    let annotation =
        |key: Annotation| Some((key, node.annotation(annotation_name(key).text)?.to_owned()));
    let label = |key: Label| {
        Some((
            key,
            node.label(&label_key(key, &config.label_prefix))?
                .to_owned(),
        ))
    };
    NodeFacts {
        name: node.name.clone(),
        uid: node.uid.to_string(),
        created_at: node.created_at,
        machine_id: node.system_uuid.to_string(),
        machine: node.machine().to_owned(),
        boot: BootId::new(&node.boot_id),
        ready: node.ready == Some(ConditionStatus::True),
        unschedulable: node.unschedulable,
        cordon_owner: node.cordon_owner,
        taints: node
            .taints
            .as_ref()
            .map(|taints| taints.iter().map(taint_read).collect()),
        annotations_absent: !node.has_annotations,
        labels_absent: !node.has_labels,
        annotations: ANNOTATIONS.into_iter().filter_map(annotation).collect(),
        labels: LABELS.into_iter().filter_map(label).collect(),
        cooperator_values: policy
            .cooperators
            .iter()
            .filter_map(|c| cooperator_value(node, c))
            .collect(),
        external_owner: node.external_owner(&config.external_owners),
        repaired_by_others: false,
        pool: pool.to_owned(),
        control_plane: node.label(names::CONTROL_PLANE.text).is_some(),
        opted_out: node.label(names::MANAGED_BY.text) == Some("false"),
        paused: node.annotation(names::PAUSE.text).is_some(),
    }
}

fn taint_read(taint: &nodes::NodeTaint) -> TaintRead {
    TaintRead {
        taint: Taint {
            key: taint.key.to_string(),
            value: taint.value.to_string(),
            effect: taint.effect.to_string(),
        },
        time_added: taint.time_added.as_ref().map(ToString::to_string),
    }
}

fn cooperator_value(node: &nodes::NodeFacts, cooperator: &Cooperator) -> Option<(String, String)> {
    let key = &cooperator.key;
    let value = node.label(key).or_else(|| node.annotation(key))?;
    Some((key.clone(), value.to_owned()))
}

/// An open fault as the decision sees it.
pub(super) fn fault_facts(
    fault: StoredFault,
    rules: &RuleSets,
    node: &nodes::NodeFacts,
    forcing: &BTreeSet<Sender>,
) -> (FaultFacts, Vec<decide::rules::EvaluationError>) {
    let mut event = fault.event;
    event.is_fatal = fault.fatal;
    event.recommended_action = fault.action;
    let verdict = rules.evaluate(&event, || node_value(node));
    let (matched, failed) = (verdict.names(), verdict.errors);
    let through_agent = fault.sender == Sender::agent(node.name.as_str());
    let facts = FaultFacts {
        id: fault.id,
        device: fault.device,
        event,
        seq: fault.opened_seq,
        through_agent,
        machine_id: fault.machine,
        boot: fault.boot,
        first_at: fault.opened_at.unwrap_or(fault.first_at),
        last_at: fault.last_at,
        matched,
        may_force: forcing.contains(&fault.sender),
    };
    (facts, failed)
}

/// Whether no rule set acts on a fault, for it was said of another machine or in an earlier boot.
pub fn is_elsewhere(fault: &StoredFault, node: &nodes::NodeFacts, machine: &Machine) -> bool {
    let said = Origin {
        machine_id: &fault.machine,
        boot: &fault.boot,
        at: fault.last_at,
    };
    let stands = Origin {
        machine_id: &node.system_uuid,
        boot: &BootId::new(&node.boot_id),
        at: node.created_at,
    };
    decide::quarantine::is_elsewhere(said, stands, &machine.boots)
}

/// The node object as Node rules see it: what the cache keeps, in the API's shape.
pub(super) fn node_value(node: &nodes::NodeFacts) -> NodeValue {
    let texts = |pairs: &[(std::sync::Arc<str>, std::sync::Arc<str>)]| {
        let entry = |(k, v): &(std::sync::Arc<str>, std::sync::Arc<str>)| (k.to_string(), text(v));
        NodeValue::Map(pairs.iter().map(entry).collect())
    };
    let mut metadata = BTreeMap::from([("name".to_owned(), text(node.name.as_str()))]);
    metadata.insert("uid".to_owned(), text(&node.uid));
    if node.has_labels {
        metadata.insert("labels".to_owned(), texts(&node.labels));
    }
    if node.has_annotations {
        metadata.insert("annotations".to_owned(), texts(&node.annotations));
    }
    let mut root = BTreeMap::from([("metadata".to_owned(), NodeValue::Map(metadata))]);
    for (path, value) in &node.extra {
        insert(&mut root, path, value);
    }
    NodeValue::Map(root)
}

fn text(text: &str) -> NodeValue {
    NodeValue::Text(text.to_owned())
}

/// Puts a value at a path, making the maps above it.
fn insert(map: &mut BTreeMap<String, NodeValue>, path: &[String], value: &serde_json::Value) {
    match path {
        [] => {}
        [last] => {
            map.entry(last.clone())
                .or_insert_with(|| node_value_of(value));
        }
        [first, rest @ ..] => {
            let below = map
                .entry(first.clone())
                .or_insert_with(|| NodeValue::Map(BTreeMap::new()));
            if let NodeValue::Map(below) = below {
                insert(below, rest, value);
            }
        }
    }
}

fn node_value_of(value: &serde_json::Value) -> NodeValue {
    match value {
        serde_json::Value::Bool(flag) => NodeValue::Bool(*flag),
        serde_json::Value::Number(number) => NodeValue::Int(number.as_i64().unwrap_or_default()),
        serde_json::Value::String(text) => NodeValue::Text(text.clone()),
        serde_json::Value::Array(list) => NodeValue::List(list.iter().map(node_value_of).collect()),
        serde_json::Value::Object(map) => NodeValue::Map(
            map.iter()
                .map(|(key, value)| (key.clone(), node_value_of(value)))
                .collect(),
        ),
        serde_json::Value::Null => NodeValue::Map(BTreeMap::new()),
    }
}
