//! Tests of the rule sets, with what they share.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use health_event::incident::Taint;
use health_event::{
    BehaviourOverrides, Entity, HealthEvent, ProcessingStrategy, RecommendedAction,
};
use proptest::prelude::*;

use super::*;

mod configuration;
mod cost;
mod evaluation;
mod fence;
mod overrides;
mod shipped;
mod types;
mod wanted_marks;

const OPT_OUT: &str = k8s_api::names::MANAGED_BY.text;

fn rule(kind: &str, expression: &str) -> RuleConfig {
    RuleConfig {
        kind: kind.to_owned(),
        expression: expression.to_owned(),
    }
}

fn event_rules(expressions: &[&str]) -> Vec<RuleConfig> {
    expressions.iter().map(|e| rule("HealthEvent", e)).collect()
}

fn set(name: &str, all: Vec<RuleConfig>, any: Vec<RuleConfig>) -> RuleSetConfig {
    RuleSetConfig {
        name: name.to_owned(),
        enabled: true,
        all,
        any,
        cordon: true,
        ..RuleSetConfig::default()
    }
}

fn event(agent: &str, check: &str, fatal: bool, codes: &[&str]) -> HealthEvent {
    HealthEvent {
        agent: agent.to_owned(),
        component_class: "GPU".to_owned(),
        check_name: check.to_owned(),
        is_fatal: fatal,
        error_codes: codes.iter().map(|c| (*c).to_owned()).collect(),
        ..HealthEvent::default()
    }
}

fn labels(pairs: &[(&str, &str)]) -> NodeValue {
    let text = |t: &&str| NodeValue::Text((*t).to_owned());
    let labels = pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), text(v)))
        .collect();
    let mut metadata = BTreeMap::from([("name".to_owned(), NodeValue::Text("n".to_owned()))]);
    if !pairs.is_empty() {
        metadata.insert("labels".to_owned(), NodeValue::Map(labels));
    }
    NodeValue::Map(BTreeMap::from([(
        "metadata".to_owned(),
        NodeValue::Map(metadata),
    )]))
}

/// (matches, number of errors) of one set on one event and node.
fn outcome(config: RuleSetConfig, event: &HealthEvent, node: &NodeValue) -> (bool, usize) {
    let sets = RuleSets::compile(&[config]).unwrap();
    let matches = sets.evaluate(event, || node.clone());
    (!matches.matched.is_empty(), matches.errors.len())
}

fn reasons(kind: &str, expression: &str) -> Vec<String> {
    let config = set("s", vec![rule(kind, expression)], Vec::new());
    match RuleSets::compile(&[config]) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.into_iter().map(|e| e.reason).collect(),
    }
}
