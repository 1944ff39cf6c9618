//! Which faults take a node out: rule sets in CEL.

use std::collections::{BTreeMap, BTreeSet};

use health_event::HealthEvent;
use health_event::incident::Taint;

/// A rule set as configured.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RuleSetConfig {
    /// Name: unique; used in `cordon-reason` and metrics.
    pub name: String,
    /// Carried, never used.
    pub version: String,
    /// Disabled rule sets are compiled (and refused if bad), but never match.
    pub enabled: bool,
    /// The higher one decides the effect where two taints share key and value; at equal
    /// priorities the earlier rule set.
    pub priority: i64,
    /// All of these must match.
    pub all: Vec<RuleConfig>,
    /// One of these must match. With both lists, either list is enough (as in the reference).
    pub any: Vec<RuleConfig>,
    /// Taint of a match; none where the key is empty.
    pub taint: Option<Taint>,
    /// Whether a match cordons.
    pub cordon: bool,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RuleConfig {
    /// `HealthEvent` or `Node`.
    pub kind: String,
    /// CEL.
    pub expression: String,
}

/// Why a rule set can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rule set {rule_set:?}, {list}[{index}]: {reason}: {expression}")]
pub struct RuleError {
    /// Rule set.
    pub rule_set: String,
    /// `all`, `any`, or the key that is bad.
    pub list: &'static str,
    /// Position in the list, from 0.
    pub index: usize,
    /// Expression, cut to 200 characters.
    pub expression: String,
    /// What is wrong, and the allowed form.
    pub reason: String,
}

impl RuleError {
    /// Static name, for metrics.
    pub fn code(&self) -> &'static str {
        "rule_invalid"
    }
}

/// A JSON-like value: the part of a Node object that the rules read.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeValue {
    /// Boolean.
    Bool(bool),
    /// Integer.
    Int(i64),
    /// Text.
    Text(String),
    /// List.
    List(Vec<NodeValue>),
    /// Object; empty fields are absent, as in the API.
    Map(BTreeMap<String, NodeValue>),
}

/// Compiled rule sets; cheap to share.
#[derive(Debug, Default)]
pub struct RuleSets {
    sets: Vec<RuleSet>,
}

/// One compiled rule set.
#[derive(Debug)]
pub struct RuleSet {
    /// As configured.
    pub config: RuleSetConfig,
}

/// What an event matches.
#[derive(Debug, Default)]
pub struct Matches<'a> {
    /// In the order of the configuration.
    pub matched: Vec<&'a RuleSet>,
    /// Rules that could not be evaluated, which is no match.
    pub errors: Vec<EvaluationError>,
}

/// A rule that could not be evaluated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvaluationError {
    /// Rule set.
    pub rule_set: String,
    /// What the engine said.
    pub message: String,
}

impl Matches<'_> {
    /// Names of the matched rule sets.
    pub fn names(&self) -> BTreeSet<String> {
        self.matched.iter().map(|s| s.config.name.clone()).collect()
    }
}

impl RuleSets {
    /// Compiles rule sets behind the fence.
    ///
    /// # Errors
    /// All that is wrong with all of them.
    pub fn compile(configs: &[RuleSetConfig]) -> Result<Self, Vec<RuleError>> {
        let sets = configs.iter().map(|c| RuleSet { config: c.clone() });
        Ok(Self {
            sets: sets.collect(),
        })
    }

    /// The rule sets, in the order of the configuration.
    pub fn sets(&self) -> &[RuleSet] {
        &self.sets
    }

    /// A rule set by name.
    pub fn find(&self, name: &str) -> Option<&RuleSet> {
        self.sets.iter().find(|s| s.config.name == name)
    }

    /// Which enabled rule sets an event matches. `node` holds at least [`RuleSets::node_paths`];
    /// it is only asked for if a Node rule must be looked at.
    pub fn evaluate(&self, _event: &HealthEvent, _node: impl Fn() -> NodeValue) -> Matches<'_> {
        Matches::default()
    }

    /// The paths of the Node object that the expressions read, for example
    /// `["metadata", "labels", "zone"]`; a computed key keeps its parent.
    pub fn node_paths(&self) -> BTreeSet<Vec<String>> {
        BTreeSet::new()
    }
}

/// The rule sets that ship: the reference's six, and four of ours that are off.
pub fn shipped() -> Vec<RuleSetConfig> {
    Vec::new()
}

/// `cordon-reason` and other label values: every character outside `[A-Za-z0-9_.-]` becomes `-`,
/// cut to `limit` bytes (at most 63), and trimmed at both ends to a letter or digit.
pub fn label_value(_text: &str, _limit: usize) -> String {
    String::new()
}
