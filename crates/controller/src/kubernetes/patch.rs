//! A decided write as one JSON Patch, with the tests that make it safe.
//!
//! # Guarantees
//! The API server refuses the patch as a whole unless the node is still the same object, carries
//! the incident annotation that was read, and has the cordon and the taints that were read wherever
//! the patch changes them or takes our annotations off them. Everything else on the node may have
//! changed: heart-beats don't disturb.

use std::collections::BTreeMap;

use decide::quarantine::{Annotation, Label, NodeWrite, TaintRead};
use k8s_api::health_events;
use k8s_api::names::{self, Name};
use serde_json::{Map, Value, json};

/// The name of an annotation.
pub fn annotation_name(annotation: Annotation) -> Name {
    match annotation {
        Annotation::Incident => names::INCIDENT,
        Annotation::HealthEvents => names::HEALTH_EVENT,
        Annotation::AppliedTaints => names::APPLIED_TAINTS,
        Annotation::IsCordoned => names::IS_CORDONED,
        Annotation::CordonPreExisting => names::CORDON_PRE_EXISTING,
        Annotation::UncordonedManually => names::UNCORDONED_MANUALLY,
        Annotation::UntaintedManually => names::UNTAINTED_MANUALLY,
        Annotation::RemediationState => names::REMEDIATION_STATE,
    }
}

/// The key of a label, with the configured prefix where it has one.
pub fn label_key(label: Label, prefix: &str) -> String {
    let name = match label {
        Label::CordonBy => names::CORDON_BY,
        Label::CordonReason => names::CORDON_REASON,
        Label::CordonTimestamp => names::CORDON_TIMESTAMP,
        Label::UncordonBy => names::UNCORDON_BY,
        Label::UncordonReason => names::UNCORDON_REASON,
        Label::UncordonTimestamp => names::UNCORDON_TIMESTAMP,
        Label::State => return names::STATE_LABEL.text.to_owned(),
    };
    name.with_prefix(prefix)
}

/// The JSON Patch of a write.
pub fn node_patch(write: &NodeWrite, label_prefix: &str) -> Value {
    let tests = &write.test;
    let mut patch = vec![test("/metadata/uid", json!(tests.uid))];
    patch.push(if tests.annotations_absent {
        // A test below a map that is not there never passes.
        test("/metadata/annotations", Value::Null)
    } else {
        test(
            &pointer("annotations", names::INCIDENT.text),
            json!(tests.incident),
        )
    });
    if let Some(read) = tests.unschedulable {
        patch.push(test("/spec/unschedulable", json!(read)));
    }
    if let Some(read) = &tests.taints {
        patch.push(test(
            "/spec/taints",
            read.as_deref().map_or(Value::Null, taint_list),
        ));
    }
    let labels: BTreeMap<String, &Option<String>> = write
        .labels
        .iter()
        .map(|(l, v)| (label_key(*l, label_prefix), v))
        .collect();
    if tests.labels_absent && !labels.is_empty() {
        patch.push(test("/metadata/labels", Value::Null));
    }
    match write.unschedulable {
        Some(true) => patch.push(add("/spec/unschedulable", true.into())),
        Some(false) => patch.push(remove("/spec/unschedulable")),
        None => {}
    }
    match write.taints.as_deref() {
        Some([]) => patch.push(remove("/spec/taints")),
        Some(taints) => patch.push(add("/spec/taints", taint_list(taints))),
        None => {}
    }
    let events = write.health_events.as_deref().map(health_events::render);
    let mut annotations: BTreeMap<String, &Option<String>> = write
        .annotations
        .iter()
        .map(|(a, v)| (annotation_name(*a).text.to_owned(), v))
        .collect();
    if events.is_some() {
        annotations.insert(names::HEALTH_EVENT.text.to_owned(), &events);
    }
    patch.extend(map("annotations", tests.annotations_absent, &annotations));
    patch.extend(map("labels", tests.labels_absent, &labels));
    Value::Array(patch)
}

/// The operations on one map of the metadata.
fn map(name: &str, is_absent: bool, change: &BTreeMap<String, &Option<String>>) -> Vec<Value> {
    if change.is_empty() {
        return Vec::new();
    }
    if is_absent {
        // Nothing can be added below a map that is not there.
        let new: Map<String, Value> = change
            .iter()
            .filter_map(|(key, wanted)| Some((key.clone(), json!(wanted.as_ref()?))))
            .collect();
        return vec![add(&format!("/metadata/{name}"), Value::Object(new))];
    }
    let operation = |(key, wanted): (&String, &&Option<String>)| match wanted {
        Some(value) => add(&pointer(name, key), json!(value)),
        None => remove(&pointer(name, key)),
    };
    change.iter().map(operation).collect()
}

/// The taints as the API server renders them: an empty value is left out.
fn taint_list(taints: &[TaintRead]) -> Value {
    let one = |read: &TaintRead| {
        let mut taint = Map::new();
        taint.insert("key".to_owned(), json!(read.taint.key));
        if !read.taint.value.is_empty() {
            taint.insert("value".to_owned(), json!(read.taint.value));
        }
        taint.insert("effect".to_owned(), json!(read.taint.effect));
        if let Some(time) = &read.time_added {
            taint.insert("timeAdded".to_owned(), json!(time));
        }
        Value::Object(taint)
    };
    taints.iter().map(one).collect()
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "the macro below takes it by reference"
)]
fn test(path: &str, value: Value) -> Value {
    json!({ "op": "test", "path": path, "value": value })
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "the macro below takes it by reference"
)]
fn add(path: &str, value: Value) -> Value {
    json!({ "op": "add", "path": path, "value": value })
}

fn remove(path: &str) -> Value {
    json!({ "op": "remove", "path": path })
}

fn pointer(map: &str, key: &str) -> String {
    format!(
        "/metadata/{map}/{}",
        key.replace('~', "~0").replace('/', "~1")
    )
}

#[cfg(test)]
#[path = "patch_tests.rs"]
mod tests;
