//! A configuration's text with everything that is wrong and odd about it, rule sets included: before
//! anything starts, and each time the file changes.

use decide::rules::{OverrideError, RuleError, RuleSets};

use crate::config::{Config, ConfigError, Problem};
use crate::ingest;
use crate::quarantine;

/// Where rule sets stand in the file.
const RULE_SETS: &str = "quarantine.rule-sets";

/// A configuration with everything that is wrong and odd about it, rule sets included.
pub(crate) struct Checked {
    pub(crate) config: Config,
    /// Its rule sets, compiled; none where they are wrong.
    pub(crate) rules: Option<RuleSets>,
    pub(crate) problems: Vec<Problem>,
    pub(crate) warnings: Vec<Problem>,
}

/// # Errors
/// It is no TOML, or too large.
pub(crate) fn checked(text: &str) -> Result<Checked, ConfigError> {
    let (config, mut problems) = Config::parse_all(text)?;
    // Rule sets are checked before anything starts, whether or not the module is on. Where what was
    // told is about them too, only their expressions have more to tell.
    let told = problems.iter().any(|told| told.key.starts_with(RULE_SETS));
    let (rules, errors) = match quarantine::rule_sets(&config.quarantine) {
        Ok(rules) => (Some(rules), Vec::new()),
        Err(errors) => (None, errors),
    };
    let problem = |error: &RuleError| of_rule(&config, error);
    let errors = errors.iter();
    let errors = errors.filter(|error| !told || !error.expression.is_empty());
    problems.extend(errors.map(problem));
    let overrides = ingest::overrides(&config.ingest).err().unwrap_or_default();
    problems.extend(overrides.iter().map(|error| of_override(&config, error)));
    let warnings = rules.iter().flat_map(RuleSets::warnings).map(problem);
    // Where something is wrong its default stands in for it, which the file does not say.
    let mut contradictions = Vec::new();
    if problems.is_empty() {
        contradictions = config.contradictions();
    }
    Ok(Checked {
        warnings: warnings.chain(contradictions).collect(),
        config,
        rules,
        problems,
    })
}

fn of_override(config: &Config, error: &OverrideError) -> Problem {
    let rule = config.ingest.overrides.rules.get(error.index);
    let value = match error.key {
        "when" => rule.map(|rule| toml::Value::from(rule.when.as_str())),
        "name" => rule.map(|rule| toml::Value::from(rule.name.as_str())),
        _ => None,
    };
    Problem {
        key: format!("ingest.overrides.rules[{}].{}", error.index, error.key),
        value: value.map_or_else(|| "{}".to_owned(), |value| value.to_string()),
        allowed: format!("{}: {}", error.name, error.reason),
    }
}

/// Under the key in the file, where it is about an expression of the file.
fn of_rule(config: &Config, error: &RuleError) -> Problem {
    let mut sets = config.quarantine.rule_sets.iter();
    let set = sets.position(|set| set.name == error.rule_set);
    let (Some(set), false) = (set, error.expression.is_empty()) else {
        return Problem {
            key: RULE_SETS.to_owned(),
            value: "…".to_owned(),
            allowed: error.to_string(),
        };
    };
    let (list, index) = (error.list, error.index);
    Problem {
        key: format!("{RULE_SETS}[{set}].match.{list}[{index}].expression"),
        value: toml::Value::from(error.expression.as_str()).to_string(),
        allowed: format!(
            "CEL as docs/cel.md says. Rule set {:?}: {}",
            error.rule_set, error.reason
        ),
    }
}
