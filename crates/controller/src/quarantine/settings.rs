//! From the configuration to what the decisions take.

use std::collections::BTreeSet;

use decide::breaker;
use decide::quarantine::{Cooperator, CooperatorPolicy, Mode, Policy};
use decide::rules::{self, RuleError, RuleSets};
use health_event::incident::Taint;
use health_event::{NodeName, Sender};
use jiff::{SignedDuration, Timestamp};
use k8s_api::names;

use crate::config::{self, Config, IngestConfig, QuarantineConfig, ServiceAccount};
use crate::nodes::{Keys, Pool, Wanted};

/// The rule sets of a configuration: those that ship, switched as configured, then the user's.
///
/// # Errors
/// All that is wrong with all of them.
pub fn rule_sets(config: &QuarantineConfig) -> Result<RuleSets, Vec<RuleError>> {
    let mut sets = rules::shipped();
    for set in &mut sets {
        set.enabled = (set.enabled || config.shipped_on.contains(&set.name))
            && !config.shipped_off.contains(&set.name);
    }
    sets.extend(config.rule_sets.iter().map(rule_set));
    RuleSets::compile(&sets)
}

fn rule_set(set: &config::RuleSetConfig) -> rules::RuleSetConfig {
    let rules_of = |list: &[config::RuleConfig]| {
        let rule = |rule: &config::RuleConfig| rules::RuleConfig {
            kind: match rule.kind {
                config::RuleKind::HealthEvent => "HealthEvent".to_owned(),
                config::RuleKind::Node => "Node".to_owned(),
            },
            expression: rule.expression.clone(),
        };
        list.iter().map(rule).collect()
    };
    rules::RuleSetConfig {
        name: set.name.clone(),
        version: String::new(),
        enabled: set.enabled,
        priority: i64::from(set.priority),
        all: rules_of(&set.all),
        any: rules_of(&set.any),
        taint: set.taint.as_ref().map(|taint| Taint {
            key: taint.key.clone(),
            value: taint.value.clone(),
            effect: taint.effect.clone(),
        }),
        cordon: set.cordon,
    }
}

/// The pools of the breaker, for the node cache.
pub fn pools(config: &QuarantineConfig) -> Vec<Pool> {
    let pool = |pool: &config::PoolConfig| Pool {
        name: pool.name.clone(),
        label: pool.label.clone(),
        value: pool.value.clone(),
    };
    config.breaker.pools.iter().map(pool).collect()
}

/// What the node cache must keep for this configuration.
pub fn wanted(config: &QuarantineConfig, rules: &RuleSets) -> Wanted {
    let mut wanted = Wanted::ours(&config.label_prefix);
    wanted
        .labels
        .extend(config.breaker.pools.iter().map(|pool| pool.label.clone()));
    for cooperator in &config.cooperators {
        wanted.labels.extend([cooperator.key.clone()]);
        wanted.annotations.extend([cooperator.key.clone()]);
    }
    wanted.labels.extend(config.external_owners.iter().cloned());
    wanted
        .annotations
        .extend(config.external_owners.iter().cloned());
    for path in rules.node_paths() {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        match path.as_slice() {
            ["metadata", "labels", key, ..] => wanted.labels.extend([(*key).to_owned()]),
            ["metadata", "annotations", key, ..] => wanted.annotations.extend([(*key).to_owned()]),
            ["metadata", "labels"] => wanted.labels = Keys::All,
            ["metadata", "annotations"] => wanted.annotations = Keys::All,
            ["metadata"] | [] => {
                wanted.labels = Keys::All;
                wanted.annotations = Keys::All;
                wanted
                    .paths
                    .insert(path.iter().map(|part| (*part).to_owned()).collect());
            }
            other => {
                wanted
                    .paths
                    .insert(other.iter().map(|part| (*part).to_owned()).collect());
            }
        }
    }
    wanted
}

/// The breaker's settings: the same for every pool.
pub fn bounds(config: &QuarantineConfig) -> breaker::Config {
    let breaker = &config.breaker;
    breaker::Config {
        enabled: breaker.enabled,
        level_percent: breaker.level_percentage,
        level_nodes: breaker.max_nodes,
        rate_percent: breaker.rate_percentage,
        rate_nodes: breaker.max_nodes,
        min_nodes: breaker.min_nodes,
        window: signed(breaker.window),
        auto_resume: breaker.auto_resume,
    }
}

/// Who may force a quarantine.
pub(super) fn forcing(config: &IngestConfig) -> BTreeSet<Sender> {
    let accounts = config.override_identities.iter();
    accounts.map(ServiceAccount::sender).collect()
}

/// How far the module may act by its configuration.
pub(super) fn mode(config: &QuarantineConfig) -> Mode {
    if !config.enabled {
        Mode::Off
    } else if config.dry_run {
        Mode::DryRun
    } else {
        Mode::Enforce
    }
}

/// What the decisions are bound to.
pub(super) fn policy(config: &Config, first_action_until: Option<Timestamp>) -> Policy {
    let actions = config.remediation.actions.iter();
    let groups = actions.map(|(name, action)| (name.clone(), action.equivalence_group.clone()));
    let repair_groups = groups.collect();
    let drains = config.drain.enabled && !config.drain.dry_run;
    let config = &config.quarantine;
    Policy {
        mode: mode(config),
        first_action_until,
        manual_uncordon_hold: signed(config.manual_uncordon_hold),
        settle_timeout: signed(config.settle_timeout),
        cooperators: config.cooperators.iter().map(cooperator).collect(),
        cooperator_policy: match config.cooperator_policy {
            config::CooperatorPolicy::Taint => CooperatorPolicy::Taint,
            config::CooperatorPolicy::Reassert => CooperatorPolicy::Reassert,
            config::CooperatorPolicy::Yield => CooperatorPolicy::Yield,
        },
        cooperator_taint: Taint {
            key: names::QUARANTINED_TAINT.text.to_owned(),
            value: "true".to_owned(),
            effect: "NoSchedule".to_owned(),
        },
        // What is no node name protects no node; the configuration's reader refuses it.
        protected_nodes: config
            .protected_nodes
            .iter()
            .filter_map(|name| NodeName::new(name).ok())
            .collect::<BTreeSet<_>>(),
        allow_protected: config.allow_protected,
        cordon_by: names::CORDON_BY_VALUE.to_owned(),
        drains,
        repair_groups,
    }
}

fn cooperator(cooperator: &config::Cooperator) -> Cooperator {
    Cooperator {
        key: cooperator.key.clone(),
        working: cooperator.working_values.iter().cloned().collect(),
    }
}

fn signed(span: std::time::Duration) -> SignedDuration {
    SignedDuration::try_from(span).unwrap_or(SignedDuration::MAX)
}
