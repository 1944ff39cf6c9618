//! What operators change about an event before it is stored: severity, health and action, by CEL.
//!
//! # Guarantees
//! - [`Overrides::compile`] reports everything that is wrong; expressions pass the fence of the rule
//!   sets, with the names that the reference's overrides see.
//! - The first rule that matches decides, as in the reference; one that can't be evaluated does not
//!   match, is reported with its name, and the next one is asked.
//! - The identity of a fault stays: neither agent, class, check, codes nor entities change, so that
//!   what an overridden event opened its recovery closes.

use std::collections::BTreeSet;
use std::sync::Arc;

use cel::{Context, Env, Program};
use health_event::{HealthEvent, RecommendedAction};

use super::values::{EventValue, Seen};
use super::{EvaluationError, Root, environment, fence, trial, verdict};

/// One rule as configured.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OverrideConfig {
    /// Name: unique; told in the stored event and by metrics.
    pub name: String,
    /// CEL over `event`.
    pub when: String,
    /// The severity that a match gets; none = as it is.
    pub is_fatal: Option<bool>,
    /// Whether a match says that all is well; none = as it is.
    pub is_healthy: Option<bool>,
    /// The action that a match asks for; none = as it is. `CUSTOM` has no name to go with it.
    pub recommended_action: Option<RecommendedAction>,
}

/// Why a rule can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("override {index} ({name:?}), {key}: {reason}")]
pub struct OverrideError {
    /// Position in the list, from 0.
    pub index: usize,
    /// Name of the rule.
    pub name: String,
    /// `name`, `when`, or `override` and the key in it.
    pub key: &'static str,
    /// What is wrong, and the allowed form.
    pub reason: String,
}

impl OverrideError {
    /// Static name, for metrics.
    pub fn code(&self) -> &'static str {
        "override_invalid"
    }
}

/// What became of one event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changed {
    /// The rule that matched, if it changed anything.
    pub rule: Option<String>,
    /// The fields that differ now, by the reference's names, each with what was said.
    pub fields: Vec<(&'static str, String)>,
    /// Rules that could not be evaluated.
    pub errors: Vec<EvaluationError>,
}

impl Changed {
    /// For the stored event: `RULE: isFatal was true, recommendedAction was RESTART_BM`; none where
    /// nothing was changed.
    pub fn text(&self) -> Option<String> {
        let rule = self.rule.as_ref()?;
        let fields = self.fields.iter();
        let fields: Vec<String> = fields
            .map(|(key, was)| format!("{key} was {was}"))
            .collect();
        Some(format!("{rule}: {}", fields.join(", ")))
    }

    /// Whether this field differs now.
    pub fn has(&self, field: &str) -> bool {
        self.fields.iter().any(|(key, _)| *key == field)
    }
}

/// Compiled overrides.
#[derive(Default)]
pub struct Overrides {
    env: Arc<Env>,
    rules: Vec<(OverrideConfig, Program)>,
}

impl std::fmt::Debug for Overrides {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rules = self.rules.iter().map(|(config, _)| config);
        f.debug_list().entries(rules).finish()
    }
}

impl Overrides {
    /// Compiles rules behind the fence.
    ///
    /// # Errors
    /// All that is wrong with all of them.
    pub fn compile(configs: &[OverrideConfig]) -> Result<Self, Vec<OverrideError>> {
        let env = Arc::new(environment());
        let (mut errors, mut rules) = (Vec::new(), Vec::with_capacity(configs.len()));
        let mut names = BTreeSet::new();
        for (index, config) in configs.iter().enumerate() {
            let error = |key, reason| OverrideError {
                index,
                name: config.name.clone(),
                key,
                reason,
            };
            if config.name.trim().is_empty() {
                errors.push(error("name", "the name is empty".to_owned()));
            } else if !names.insert(config.name.as_str()) {
                errors.push(error("name", "another override has this name".to_owned()));
            }
            errors.extend(bad_change(config).map(|(key, reason)| error(key, reason.to_owned())));
            match compile(&env, &config.when) {
                Ok(program) => rules.push((config.clone(), program)),
                Err(reasons) => errors.extend(reasons.into_iter().map(|r| error("when", r))),
            }
        }
        if errors.is_empty() {
            Ok(Self { env, rules })
        } else {
            Err(errors)
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Changes an event as the first rule that matches says.
    pub fn apply(&self, event: &mut HealthEvent) -> Changed {
        let mut changed = Changed::default();
        let Some(rule) = self.first(event, &mut changed.errors) else {
            return changed;
        };
        if let Some(fatal) = rule.is_fatal.filter(|to| *to != event.is_fatal) {
            changed.fields.push(("isFatal", event.is_fatal.to_string()));
            event.is_fatal = fatal;
        }
        if let Some(healthy) = rule.is_healthy.filter(|to| *to != event.is_healthy) {
            changed
                .fields
                .push(("isHealthy", event.is_healthy.to_string()));
            event.is_healthy = healthy;
        }
        let action = rule.recommended_action;
        if let Some(action) = action.filter(|to| *to != event.recommended_action) {
            let was = event.recommended_action.to_string();
            changed.fields.push(("recommendedAction", was));
            event.recommended_action = action;
            event.custom_recommended_action.clear();
        }
        changed.rule = (!changed.fields.is_empty()).then(|| rule.name.clone());
        changed
    }

    fn first(
        &self,
        event: &HealthEvent,
        errors: &mut Vec<EvaluationError>,
    ) -> Option<&OverrideConfig> {
        let mut context = Context::with_env(Arc::clone(&self.env));
        let seen = EventValue(event, Seen::ByOverrides);
        context.add_variable_as_val(Root::Incoming.name(), Box::new(seen));
        for (rule, program) in &self.rules {
            match verdict(program, &context) {
                Ok(true) => return Some(rule),
                Ok(false) => {}
                Err(message) => errors.push(EvaluationError {
                    rule_set: rule.name.clone(),
                    message,
                }),
            }
        }
        None
    }
}

/// What is wrong with what a rule changes.
fn bad_change(config: &OverrideConfig) -> Option<(&'static str, &'static str)> {
    let OverrideConfig {
        is_fatal,
        is_healthy,
        recommended_action,
        ..
    } = config;
    if *recommended_action == Some(RecommendedAction::Custom) {
        let reason = "CUSTOM can't be given here: it has no name of an action to go with it";
        return Some(("override.recommendedAction", reason));
    }
    let changes = is_fatal.is_some() || is_healthy.is_some() || recommended_action.is_some();
    (!changes).then_some((
        "override",
        "it changes nothing; want isFatal, isHealthy or recommendedAction",
    ))
}

fn compile(env: &Arc<Env>, source: &str) -> Result<Program, Vec<String>> {
    let checked = fence::check(env, Root::Incoming, source)?;
    trial::run(env, Root::Incoming, &checked.program, &checked.paths)
        .map_err(|reason| vec![reason])?;
    Ok(checked.program)
}
