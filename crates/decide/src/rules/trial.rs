//! An expression is tried out on a full and on a bare subject before it is accepted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cel::{Context, Env, Program, Value};
use health_event::{BehaviourOverrides, Entity, HealthEvent, RecommendedAction};
use jiff::Timestamp;

use super::values::{EventValue, Seen};
use super::{NodeValue, Root, node_context_of, types};

/// A boolean where every field is set; where every optional field is null, a boolean or an error.
pub(super) fn run(
    env: &Arc<Env>,
    root: Root,
    program: &Program,
    paths: &BTreeSet<Vec<String>>,
) -> Result<(), String> {
    let (full, null) = match root {
        Root::Event | Root::Incoming => {
            let seen = if root == Root::Event {
                Seen::ByRules
            } else {
                Seen::ByOverrides
            };
            let on = |event: &HealthEvent| {
                let mut context = Context::with_env(Arc::clone(env));
                context.add_variable_as_val(root.name(), Box::new(EventValue(event, seen)));
                program.execute(&context)
            };
            (on(&full_event(paths)), on(&HealthEvent::default()))
        }
        Root::Node => {
            let on = |node: &NodeValue| program.execute(&node_context_of(env, node));
            let bare = NodeValue::Map(BTreeMap::new());
            (on(&full_node(paths)), on(&bare))
        }
    };
    let what = root.name();
    match full {
        Ok(Value::Bool(_)) => {}
        Ok(other) => {
            let kind = other.type_of();
            return Err(format!(
                "gives a {kind} on a full {what}; it must be a boolean"
            ));
        }
        Err(error) => {
            let error: String = error.to_string().chars().take(300).collect();
            return Err(format!("fails on a full {what}: {error}"));
        }
    }
    match null {
        Ok(Value::Bool(_)) | Err(_) => Ok(()),
        Ok(other) => Err(format!(
            "gives a {} on a {what} without optional fields; it must be a boolean",
            other.type_of()
        )),
    }
}

/// Elements of each list of the full event: as many codes as an event may have, so that every
/// index that can ever be right is right here.
const FULL_LIST: usize = 64;

/// A value of a label or of metadata: one that reads as number and as boolean too.
const CONVERTIBLE: &str = "1";

/// An event with every field set, and in its metadata every key that the expression reads.
fn full_event(paths: &BTreeSet<Vec<String>>) -> HealthEvent {
    let read = paths.iter().filter_map(|path| match path.as_slice() {
        [field, key, ..] if field == "metadata" => Some(key.as_str()),
        _ => None,
    });
    let metadata = read
        .chain(["key"])
        .map(|key| (key.to_owned(), CONVERTIBLE.to_owned()));
    let overrides = Some(BehaviourOverrides {
        force: true,
        skip: true,
    });
    HealthEvent {
        id: "id".to_owned(),
        version: 1,
        agent: "agent".to_owned(),
        component_class: "GPU".to_owned(),
        check_name: "Check".to_owned(),
        is_fatal: true,
        is_healthy: false,
        message: "message".to_owned(),
        recommended_action: RecommendedAction::Custom,
        custom_recommended_action: "custom".to_owned(),
        error_codes: vec!["79".to_owned(); FULL_LIST],
        entities: vec![Entity::new("GPU", "0"); FULL_LIST],
        metadata: metadata.collect(),
        generated_at: Some(Timestamp::UNIX_EPOCH),
        node_name: "node".to_owned(),
        quarantine_overrides: overrides,
        drain_overrides: overrides,
        ..HealthEvent::default()
    }
}

/// A node with every known field, and with every path that the expression reads.
fn full_node(paths: &BTreeSet<Vec<String>>) -> NodeValue {
    let mut node = types::full_node(CONVERTIBLE);
    for path in paths {
        let leaf = NodeValue::Text(CONVERTIBLE.to_owned());
        add_path(&mut node, path, &leaf);
    }
    node
}

fn add_path(node: &mut NodeValue, path: &[String], leaf: &NodeValue) {
    let mut at = node;
    for (index, part) in path.iter().enumerate() {
        let NodeValue::Map(fields) = at else { return };
        let last = index + 1 == path.len();
        at = fields.entry(part.clone()).or_insert_with(|| {
            if last {
                leaf.clone()
            } else {
                NodeValue::Map(BTreeMap::new())
            }
        });
    }
}
