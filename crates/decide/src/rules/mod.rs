//! Which faults take a node out: rule sets in CEL, behind a fence.
//!
//! # Guarantees
//! - [`RuleSets::compile`] reports everything that is wrong, and accepts only expressions that
//!   are small, call nothing but known functions, see only what their kind may see, can't cost
//!   more than a bound on any event (`cost`), and give a boolean on an event with every field set
//!   (`tests`, the tables of refusals; the examples of `docs/cel.md`).
//! - An expression that can never match, since it names a field that isn't there or compares what is
//!   never equal, is refused; where only a part of it is so, [`RuleSets::warnings`] tells
//!   (`types`).
//! - An expression that fails at evaluation is no match, and is reported with its rule's name.
//! - Answers depend on nothing but event and node; rule sets are looked at in the order of the
//!   configuration, and the higher priority, then the earlier one, decides a taint's effect.
//!
//! # Caveats
//! - `matches()` compiles its regular expression at each evaluation (some 30 µs); the shipped
//!   rule sets don't use it.
//! - A node without labels reads as one with an empty map of labels.
//!
//! # Cost
//! One context an event for all rules. `event` is a view of the event whose fields are built when
//! read; `node` is only asked for once a Node rule must be looked at.

mod cost;
mod fence;
mod overrides;
mod shipped;
mod trial;
mod types;
mod values;

#[cfg(test)]
mod tests;

pub use overrides::{Changed, OverrideConfig, OverrideError, Overrides};
pub use shipped::shipped;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cel::{Context, Env, Program, Value};
use health_event::HealthEvent;
use health_event::incident::Taint;

use self::values::{EventValue, Seen};

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

/// Why a rule set can't be used, or what is odd about one that can.
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

/// What an expression may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Root {
    Event,
    /// An event as it is seen before it is stored: by overrides.
    Incoming,
    Node,
}

impl Root {
    fn name(self) -> &'static str {
        match self {
            Self::Event | Self::Incoming => "event",
            Self::Node => "node",
        }
    }

    fn from_kind(kind: &str) -> Option<Self> {
        match kind {
            "HealthEvent" => Some(Self::Event),
            "Node" => Some(Self::Node),
            _ => None,
        }
    }
}

/// Compiled rule sets; cheap to share.
#[derive(Default)]
pub struct RuleSets {
    sets: Vec<RuleSet>,
    env: Arc<Env>,
    node_paths: BTreeSet<Vec<String>>,
    warnings: Vec<RuleError>,
}

impl std::fmt::Debug for RuleSets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.sets).finish()
    }
}

/// One compiled rule set.
#[derive(Debug)]
pub struct RuleSet {
    /// As configured.
    pub config: RuleSetConfig,
    all: Vec<Rule>,
    any: Vec<Rule>,
}

#[derive(Debug)]
struct Rule {
    root: Root,
    program: Program,
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
    /// What the engine said, cut to 300 characters.
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
    /// All that is wrong with all of them, disabled ones included.
    pub fn compile(configs: &[RuleSetConfig]) -> Result<Self, Vec<RuleError>> {
        let env = Arc::new(environment());
        let (mut errors, mut warnings) = (duplicates(configs), Vec::new());
        let mut sets = Vec::with_capacity(configs.len());
        let mut node_paths = BTreeSet::new();
        for config in configs {
            let mut compile = |list, rules: &[RuleConfig]| {
                let mut compiled = Vec::with_capacity(rules.len());
                for (index, rule) in rules.iter().enumerate() {
                    let told = |reason| error(&config.name, list, index, &rule.expression, reason);
                    match compile_rule(&env, rule) {
                        Ok(Compiled {
                            rule,
                            node_paths: paths,
                            warnings: odd,
                        }) => {
                            compiled.push(rule);
                            warnings.extend(odd.into_iter().map(told));
                            if config.enabled {
                                node_paths.extend(paths);
                            }
                        }
                        Err(reasons) => errors.extend(reasons.into_iter().map(told)),
                    }
                }
                compiled
            };
            let (all, any) = (compile("all", &config.all), compile("any", &config.any));
            sets.push(RuleSet {
                config: config.clone(),
                all,
                any,
            });
        }
        if errors.is_empty() {
            Ok(Self {
                sets,
                env,
                node_paths,
                warnings,
            })
        } else {
            Err(errors)
        }
    }

    /// The rule sets, in the order of the configuration.
    pub fn sets(&self) -> &[RuleSet] {
        &self.sets
    }

    /// Parts of expressions that are never or always true, of rules that may match all the same.
    pub fn warnings(&self) -> &[RuleError] {
        &self.warnings
    }

    /// A rule set by name.
    pub fn find(&self, name: &str) -> Option<&RuleSet> {
        self.sets.iter().find(|s| s.config.name == name)
    }

    /// The names of the enabled rule sets that `before` does not have, or has otherwise or disabled.
    pub fn altered(&self, before: &Self) -> BTreeSet<&str> {
        let enabled = self.sets.iter().filter(|set| set.config.enabled);
        let is_new = |set: &&RuleSet| {
            let same = before.find(&set.config.name);
            same.is_none_or(|same| same.config != set.config)
        };
        enabled
            .filter(is_new)
            .map(|set| set.config.name.as_str())
            .collect()
    }

    /// Which enabled rule sets an event matches. `node` gives at least
    /// [`RuleSets::node_paths`]; it is called at most once, and only if a Node rule must be
    /// looked at.
    pub fn evaluate(&self, event: &HealthEvent, node: impl Fn() -> NodeValue) -> Matches<'_> {
        let mut event_context = Context::with_env(Arc::clone(&self.env));
        event_context.add_variable_as_val(
            Root::Event.name(),
            Box::new(EventValue(event, Seen::ByRules)),
        );
        let node_read = OnceCell::new();
        let node_context = OnceCell::new();
        let look = |rule: &Rule| match rule.root {
            Root::Event | Root::Incoming => verdict(&rule.program, &event_context),
            Root::Node => {
                let value = node_read.get_or_init(&node);
                verdict(
                    &rule.program,
                    node_context.get_or_init(|| node_context_of(&self.env, value)),
                )
            }
        };
        let mut matches = Matches::default();
        for set in self.sets.iter().filter(|s| s.config.enabled) {
            match set.evaluate(&look) {
                Ok(true) => matches.matched.push(set),
                Ok(false) => {}
                Err(message) => matches.errors.push(EvaluationError {
                    rule_set: set.config.name.clone(),
                    message,
                }),
            }
        }
        matches
    }

    /// The paths of the Node object that the enabled expressions read, for example
    /// `["metadata", "labels", "zone"]`; a computed key keeps its parent, `node` alone the empty
    /// path.
    pub fn node_paths(&self) -> &BTreeSet<Vec<String>> {
        &self.node_paths
    }
}

impl RuleSet {
    /// `any`: one success is a match, and then errors before it don't count. `all`: the first
    /// that is no success decides. A set with both lists matches by either.
    fn evaluate(&self, look: &impl Fn(&Rule) -> Result<bool, String>) -> Result<bool, String> {
        let mut failure = None;
        for rule in &self.any {
            match look(rule) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(message) => failure = failure.or(Some(message)),
            }
        }
        if !self.all.is_empty() {
            let mut every = true;
            for rule in &self.all {
                match look(rule) {
                    Ok(true) => continue,
                    Ok(false) => {}
                    Err(message) => failure = failure.or(Some(message)),
                }
                every = false;
                break;
            }
            if every {
                return Ok(true);
            }
        }
        failure.map_or(Ok(false), Err)
    }
}

/// What a group of rule sets, in the order of the configuration, asks for: whether to cordon, and
/// the taints. For one key and value one effect, and for one key and effect one value, since the
/// API server refuses a second.
pub fn wanted<'a>(sets: impl IntoIterator<Item = &'a RuleSet>) -> (bool, BTreeSet<Taint>) {
    let mut cordon = false;
    let mut asked: Vec<(i64, &Taint)> = Vec::new();
    for set in sets {
        cordon |= set.config.cordon;
        let taint = set.config.taint.as_ref().filter(|t| !t.key.is_empty());
        asked.extend(taint.map(|t| (set.config.priority, t)));
    }
    // Stable: at equal priorities the earlier set stays first.
    asked.sort_by_key(|(priority, _)| std::cmp::Reverse(*priority));
    let mut chosen: BTreeSet<Taint> = BTreeSet::new();
    for (_, taint) in asked {
        let taken = chosen
            .iter()
            .any(|c| c.key == taint.key && (c.value == taint.value || c.effect == taint.effect));
        if !taken {
            chosen.insert(taint.clone());
        }
    }
    (cordon, chosen)
}

fn node_context_of<'v>(env: &Arc<Env>, value: &'v NodeValue) -> Context<'v, 'v> {
    let mut context = Context::with_env(Arc::clone(env));
    context.add_variable_as_val(Root::Node.name(), values::node(value));
    context
}

fn verdict(program: &Program, context: &Context<'_, '_>) -> Result<bool, String> {
    match program.execute(context) {
        Ok(Value::Bool(verdict)) => Ok(verdict),
        Ok(other) => Err(format!("gave a {}, not a boolean", other.type_of())),
        Err(error) => Err(error.to_string().chars().take(300).collect()),
    }
}

/// The standard environment with the strings extension.
fn environment() -> Env {
    let mut env = Env::stdlib();
    let extended = env.add_extension(cel::extensions::strings);
    debug_assert!(extended.is_ok(), "the extension declares nothing twice");
    env
}

fn duplicates(configs: &[RuleSetConfig]) -> Vec<RuleError> {
    let mut seen = BTreeSet::new();
    let mut errors = Vec::new();
    for (index, config) in configs.iter().enumerate() {
        if config.name.trim().is_empty() {
            errors.push(error("", "name", index, "", "the name is empty".to_owned()));
        } else if !seen.insert(config.name.as_str()) {
            let reason = "another rule set has this name".to_owned();
            errors.push(error(&config.name, "name", index, "", reason));
        }
        if let Some(taint) = config.taint.as_ref().filter(|t| !t.key.is_empty())
            && !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&taint.effect.as_str())
        {
            let reason = format!(
                "taint effect {:?}; allowed are NoSchedule, PreferNoSchedule, NoExecute",
                taint.effect
            );
            errors.push(error(&config.name, "taint", index, "", reason));
        }
    }
    errors
}

fn error(
    rule_set: &str,
    list: &'static str,
    index: usize,
    expression: &str,
    reason: String,
) -> RuleError {
    RuleError {
        rule_set: rule_set.to_owned(),
        list,
        index,
        expression: expression.chars().take(200).collect(),
        reason,
    }
}

struct Compiled {
    rule: Rule,
    node_paths: BTreeSet<Vec<String>>,
    warnings: Vec<String>,
}

fn compile_rule(env: &Arc<Env>, rule: &RuleConfig) -> Result<Compiled, Vec<String>> {
    let root = Root::from_kind(&rule.kind).ok_or_else(|| {
        vec![format!(
            "kind {:?}; allowed are HealthEvent and Node",
            rule.kind
        )]
    })?;
    let checked = fence::check(env, root, &rule.expression)?;
    trial::run(env, root, &checked.program, &checked.paths).map_err(|reason| vec![reason])?;
    let node_paths = match root {
        Root::Event | Root::Incoming => BTreeSet::new(),
        Root::Node => checked.paths,
    };
    Ok(Compiled {
        rule: Rule {
            root,
            program: checked.program,
        },
        node_paths,
        warnings: checked.warnings,
    })
}
