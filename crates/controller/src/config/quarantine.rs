//! `[quarantine]`: the reference's keys under their names, and ours.

use std::collections::BTreeSet;
use std::time::Duration;

use toml::Value;

use super::reader::Section;
use super::sections::to_usize;
use super::{Profile, labels};

const DAY: Duration = Duration::from_hours(24);

/// `[quarantine]`
#[derive(Debug, Clone)]
pub struct QuarantineConfig {
    /// Whether the module runs.
    pub enabled: bool,
    /// Decides, stores and shows, but writes nothing to nodes.
    pub dry_run: bool,
    /// Nodes worked on at a time.
    pub workers: usize,
    /// Prefix of the labels `cordon-by`, `cordon-reason`, … (the reference's key).
    pub label_prefix: String,
    /// Delay of the first action after quarantine was switched on; zero = none.
    pub first_action_delay: Duration,
    /// How long a person's uncordon suppresses the faults open at that moment; zero = not.
    pub manual_uncordon_hold: Duration,
    /// How long an agent may take to settle after a repair or restart before a person is asked.
    pub settle_timeout: Duration,
    /// Nodes that are only observed, beside the control plane's.
    pub protected_nodes: BTreeSet<String>,
    /// Whether protected nodes are acted on all the same.
    pub allow_protected: bool,
    /// Controllers whose uncordon is not a person's.
    pub cooperators: Vec<Cooperator>,
    /// What an uncordon by one of them leads to.
    pub cooperator_policy: CooperatorPolicy,
    /// Keys of labels, annotations or taints that say that somebody else repairs the node.
    pub external_owners: BTreeSet<String>,
    /// Shipped rule sets that are switched off or on beyond the default, by name.
    pub shipped_off: BTreeSet<String>,
    /// See [`QuarantineConfig::shipped_off`].
    pub shipped_on: BTreeSet<String>,
    /// What becomes of new rule sets that would take out more nodes at once than the breaker lets go.
    pub rule_change: RuleChange,
    /// `[quarantine.circuitBreaker]`
    pub breaker: BreakerConfig,
    /// Rule sets of the user, in the reference's form.
    pub rule_sets: Vec<RuleSetConfig>,
}

/// A controller that may uncordon, known by its own key on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cooperator {
    /// Label or annotation.
    pub key: String,
    /// Values that mean that it works; empty = the key's presence.
    pub working_values: Vec<String>,
}

/// What follows when a co-operating controller uncordons a node of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CooperatorPolicy {
    /// Keep a NoSchedule taint of ours.
    Taint,
    /// Cordon again, three times an hour at most, then as `taint`.
    Reassert,
    /// Leave it.
    Yield,
}

impl CooperatorPolicy {
    const ALLOWED: &'static str = "taint, reassert or yield";

    fn from_name(name: &str) -> Option<Self> {
        match name {
            "taint" => Some(Self::Taint),
            "reassert" => Some(Self::Reassert),
            "yield" => Some(Self::Yield),
            _ => None,
        }
    }
}

/// What becomes of new or altered rule sets that match more nodes with open faults than the breaker lets go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleChange {
    /// What ran before stays, until they match fewer.
    Refuse,
    /// They take effect, and the breaker withholds what is beyond it.
    Warn,
}

impl RuleChange {
    const ALLOWED: &'static str = "refuse or warn";

    fn from_name(name: &str) -> Option<Self> {
        match name {
            "refuse" => Some(Self::Refuse),
            "warn" => Some(Self::Warn),
            _ => None,
        }
    }
}

/// `[quarantine.circuitBreaker]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BreakerConfig {
    /// Whether there is one.
    pub enabled: bool,
    /// Percentage of a pool newly taken out in the window (the reference's key).
    pub rate_percentage: u32,
    /// The window (the reference's key).
    pub window: Duration,
    /// Percentage of a pool out at one time.
    pub level_percentage: u32,
    /// The least bound, in nodes.
    pub min_nodes: u32,
    /// The largest bound, in nodes; none = by percentage only.
    pub max_nodes: Option<u32>,
    /// Whether it closes by itself when no bound is reached any more.
    pub auto_resume: bool,
    /// Pools; the first whose label matches has the node, `other` has the rest.
    pub pools: Vec<PoolConfig>,
}

/// A pool of nodes, by label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolConfig {
    /// Name.
    pub name: String,
    /// Label's key.
    pub label: String,
    /// Label's value.
    pub value: String,
}

/// What a rule looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleKind {
    /// The event.
    HealthEvent,
    /// The node object.
    Node,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleConfig {
    /// What it looks at.
    pub kind: RuleKind,
    /// CEL; checked by the module's compiler.
    pub expression: String,
}

/// The taint of a rule set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaintConfig {
    /// Key.
    pub key: String,
    /// Value, maybe empty.
    pub value: String,
    /// Effect.
    pub effect: String,
}

/// One rule set, `[[quarantine.rule-sets]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleSetConfig {
    /// Name; unique.
    pub name: String,
    /// Whether it is used.
    pub enabled: bool,
    /// Which taint wins where two sets name the same key; higher wins.
    pub priority: u32,
    /// All must match.
    pub all: Vec<RuleConfig>,
    /// One must match.
    pub any: Vec<RuleConfig>,
    /// Taint to put on.
    pub taint: Option<TaintConfig>,
    /// Whether to cordon.
    pub cordon: bool,
}

impl QuarantineConfig {
    pub(super) fn read(mut s: Section<'_>, profile: Profile) -> Self {
        let (enabled, dry_run) = mode(&mut s, profile);
        Self {
            enabled,
            dry_run,
            workers: to_usize(s.number(
                ("workers", 64, "Nodes written at a time"),
                "a number from 1 to 1024",
                1..=1_024,
            )),
            label_prefix: s.name(
                ("label-prefix", "k8saas.nvidia.com/", help::LABEL_PREFIX),
                labels::PREFIX_ALLOWED,
                |text| labels::is_prefix(text).then(|| text.to_owned()),
            ),
            first_action_delay: s.span(
                ("first_action_delay", "5m", help::FIRST_ACTION_DELAY),
                "a span from 0s to 7d",
                Duration::ZERO..=DAY * 7,
            ),
            manual_uncordon_hold: s.span(
                ("manual_uncordon_hold", "24h", help::MANUAL_UNCORDON_HOLD),
                "a span from 0s to 30d",
                Duration::ZERO..=DAY * 30,
            ),
            settle_timeout: s.span(
                ("settle_timeout", "10m", help::SETTLE_TIMEOUT),
                "a span from 10s to 24h",
                Duration::from_secs(10)..=DAY,
            ),
            protected_nodes: names(&mut s, ("protected_nodes", help::PROTECTED), node_name),
            allow_protected: s.flag("allow_protected", false, help::ALLOW_PROTECTED),
            cooperators: cooperators(&mut s),
            cooperator_policy: s.name(
                ("cooperator_policy", "taint", help::COOPERATOR_POLICY),
                CooperatorPolicy::ALLOWED,
                CooperatorPolicy::from_name,
            ),
            external_owners: names(&mut s, ("external_owners", help::EXTERNAL_OWNERS), |text| {
                labels::is_key(text).then(|| text.to_owned())
            }),
            shipped_off: names(&mut s, ("shipped_off", help::SHIPPED_OFF), any_name),
            shipped_on: names(&mut s, ("shipped_on", help::SHIPPED_ON), any_name),
            rule_change: s.name(
                ("rule_change", "refuse", help::RULE_CHANGE),
                RuleChange::ALLOWED,
                RuleChange::from_name,
            ),
            breaker: BreakerConfig::read(s.section("circuitBreaker")),
            rule_sets: rule_sets(&mut s),
        }
    }
}

/// What the keys of [`QuarantineConfig`] do, where a line is not enough.
mod help {
    pub(super) const LABEL_PREFIX: &str =
        "Prefix of the labels cordon-by, cordon-reason, uncordon-by, …";
    pub(super) const FIRST_ACTION_DELAY: &str =
        "How long matches are only shown after quarantine was switched on; 0s = not at all";
    pub(super) const MANUAL_UNCORDON_HOLD: &str = "How long a person's uncordon keeps the faults \
        open at that moment from acting again; 0s = not";
    pub(super) const SETTLE_TIMEOUT: &str =
        "How long an agent may take to settle before a person is asked";
    pub(super) const PROTECTED: &str = "Nodes that are only observed, beside the control plane's";
    pub(super) const ALLOW_PROTECTED: &str =
        "Whether protected and control-plane nodes are acted on all the same";
    pub(super) const COOPERATOR_POLICY: &str =
        "What follows when a co-operating controller uncordons a node of ours";
    pub(super) const EXTERNAL_OWNERS: &str = "Keys of labels, annotations or taints that say that \
        somebody else repairs the node: no repair and no release while one stands";
    pub(super) const RULE_CHANGE: &str = "What becomes of new rule sets that match more nodes at once \
        than the breaker lets go: refuse keeps those that ran before, warn lets the breaker withhold";
    pub(super) const SHIPPED_OFF: &str = "Shipped rule sets not to use";
    pub(super) const SHIPPED_ON: &str = "Shipped rule sets to use that are off by default";
}

/// Whether the module runs, and whether it only decides: by the profile, which a key may weaken.
fn mode(s: &mut Section<'_>, profile: Profile) -> (bool, bool) {
    let acts = profile >= Profile::Cordon;
    let decides = profile > Profile::Silent;
    let enabled = s.flag(
        "enabled",
        decides,
        "Whether the module runs; off in profile silent",
    );
    let dry_run = s.flag(
        "dry_run",
        !acts,
        "Whether it only decides, stores and shows; so in profile observe",
    );
    if enabled && !decides {
        s.problem("enabled", &Value::from(true), "false in profile silent");
    }
    if !dry_run && !acts {
        s.problem("dry_run", &Value::from(false), "true below profile cordon");
    }
    (enabled, dry_run)
}

fn names(
    s: &mut Section<'_>,
    (key, help): (&'static str, &'static str),
    parse: impl Fn(&str) -> Option<String>,
) -> BTreeSet<String> {
    s.list((key, &[], help), "a list of names", parse)
        .into_iter()
        .collect()
}

fn any_name(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn node_name(text: &str) -> Option<String> {
    health_event::node::is_dns_subdomain(text).then(|| text.to_owned())
}

/// The default list holds what is known to cordon and uncordon by itself.
fn cooperators(s: &mut Section<'_>) -> Vec<Cooperator> {
    let given = s.has("cooperators");
    let list = s.sections(
        (
            "cooperators",
            "the GPU operator's driver upgrade, and kured",
            "Controllers that uncordon nodes as part of their own work: that is no person's uncordon",
        ),
        cooperator,
    );
    if given {
        return list;
    }
    vec![
        Cooperator {
            key: k8s_api::names::DRIVER_UPGRADE_STATE.text.to_owned(),
            working_values: k8s_api::names::DRIVER_UPGRADE_WORKING
                .map(str::to_owned)
                .to_vec(),
        },
        Cooperator {
            key: k8s_api::names::KURED_REBOOT.text.to_owned(),
            working_values: Vec::new(),
        },
    ]
}

fn cooperator(mut s: Section<'_>) -> Cooperator {
    Cooperator {
        key: required_key(&mut s, "key", "Label or annotation by which it is known"),
        working_values: s.list(
            (
                "working_values",
                &[],
                "Values that mean that it works; none = any",
            ),
            "a list of texts",
            |text| Some(text.to_owned()),
        ),
    }
}

/// A text that must be there.
fn required(s: &mut Section<'_>, key: &'static str, help: &'static str) -> String {
    let text = s.text(key, "", help);
    if text.is_empty() {
        s.problem(key, &Value::from(""), "a text that is not empty");
    }
    text
}

/// A key of a label, an annotation or a taint that must be there.
fn required_key(s: &mut Section<'_>, key: &'static str, help: &'static str) -> String {
    let missing = !s.has(key);
    let text = s.name((key, "", help), labels::KEY_ALLOWED, |text| {
        (text.is_empty() || labels::is_key(text)).then(|| text.to_owned())
    });
    if missing || text.is_empty() {
        s.problem(key, &Value::from(""), labels::KEY_ALLOWED);
    }
    text
}

/// A value of a label or a taint.
fn label_value(s: &mut Section<'_>, key: (&'static str, &str, &'static str)) -> String {
    s.name(key, labels::VALUE_ALLOWED, |text| {
        labels::is_value(text).then(|| text.to_owned())
    })
}

impl BreakerConfig {
    fn read(mut s: Section<'_>) -> Self {
        let percentage = "a number from 1 to 100";
        let max_nodes = s.number(
            (
                "max_nodes",
                0,
                "The largest bound, in nodes; 0 = by percentage only",
            ),
            "a number from 0 to 1000000",
            0..=1_000_000,
        );
        Self {
            enabled: s.flag(
                "enabled",
                true,
                "Whether the breaker bounds what is taken out",
            ),
            rate_percentage: s.number(
                (
                    "percentage",
                    50,
                    "Percentage of a pool newly taken out in the window",
                ),
                percentage,
                1..=100,
            ),
            window: s.span(
                ("duration", "5m", "The window"),
                "a span from 1s to 24h",
                Duration::from_secs(1)..=DAY,
            ),
            level_percentage: s.number(
                (
                    "level_percentage",
                    50,
                    "Percentage of a pool out at one time",
                ),
                percentage,
                1..=100,
            ),
            min_nodes: s.number(
                ("min_nodes", 1, "The least bound, in nodes"),
                "a number from 1 to 1000000",
                1..=1_000_000,
            ),
            max_nodes: (max_nodes > 0).then_some(max_nodes),
            auto_resume: s.flag(
                "auto_resume",
                false,
                "Whether it closes by itself when no bound is reached any more",
            ),
            pools: pools(&mut s),
        }
    }
}

fn pools(s: &mut Section<'_>) -> Vec<PoolConfig> {
    let given = s.has("pools");
    let pools = s.sections(
        (
            "pools",
            "`gpu`: label `nvidia.com/gpu.present=true`",
            "Pools with bounds of their own; the first whose label matches has the node, `other` has \
             the rest",
        ),
        |mut s| PoolConfig {
            name: required(&mut s, "name", "Name of the pool"),
            label: required_key(&mut s, "label", "Label's key"),
            value: label_value(&mut s, ("value", "true", "Label's value")),
        },
    );
    if !given {
        return vec![PoolConfig {
            name: "gpu".to_owned(),
            label: k8s_api::names::GPU_PRESENT.text.to_owned(),
            value: "true".to_owned(),
        }];
    }
    let mut seen = BTreeSet::from(["other"]);
    for pool in &pools {
        if !seen.insert(&pool.name) {
            let allowed = "unique names; \"other\" is taken";
            s.problem("pools", &Value::from(pool.name.as_str()), allowed);
        }
    }
    pools
}

fn rule_sets(s: &mut Section<'_>) -> Vec<RuleSetConfig> {
    let sets = s.sections(
        (
            "rule-sets",
            "none beside those that ship",
            "Rule sets in the reference's form",
        ),
        rule_set,
    );
    let mut seen = BTreeSet::new();
    for set in &sets {
        if !set.name.is_empty() && !seen.insert(&set.name) {
            s.problem("rule-sets", &Value::from(set.name.as_str()), "unique names");
        }
    }
    sets
}

fn rule_set(mut s: Section<'_>) -> RuleSetConfig {
    let mut matching = s.section("match");
    let all = rules(&mut matching, "all", "Rules that must all match");
    let any = rules(&mut matching, "any", "Rules of which one must match");
    drop(matching);
    if all.is_empty() && any.is_empty() {
        s.problem(
            "match",
            &Value::from("{}"),
            "at least one rule in match.all or match.any",
        );
    }
    // The reference carries a version and never uses it.
    s.text("version", "", "Carried, never used");
    RuleSetConfig {
        name: required(
            &mut s,
            "name",
            "Name, in cordon-reason, metrics and explanations",
        ),
        enabled: s.flag("enabled", true, "Whether it is used"),
        priority: s.number(
            (
                "priority",
                0,
                "Which taint wins where two sets name the same key; higher wins",
            ),
            "a number from 0 to 1000000",
            0..=1_000_000,
        ),
        all,
        any,
        taint: taint(s.section("taint")),
        cordon: s
            .section("cordon")
            .flag("shouldCordon", false, "Whether to cordon"),
    }
}

fn rules(s: &mut Section<'_>, key: &'static str, help: &'static str) -> Vec<RuleConfig> {
    let rule = |mut s: Section<'_>| {
        // The default stands only for a missing kind, which is reported below.
        let missing = !s.has("kind");
        let kind = s.name(
            (
                "kind",
                "HealthEvent",
                "What the rule looks at; must be given",
            ),
            "HealthEvent or Node",
            |text| match text {
                "HealthEvent" => Some(RuleKind::HealthEvent),
                "Node" => Some(RuleKind::Node),
                _ => None,
            },
        );
        if missing {
            s.problem("kind", &Value::from(""), "HealthEvent or Node");
        }
        RuleConfig {
            kind,
            expression: required(&mut s, "expression", "CEL that gives true or false"),
        }
    };
    s.sections((key, "none", help), rule)
}

fn taint(mut s: Section<'_>) -> Option<TaintConfig> {
    let key = s.name(
        ("key", "", "Key of the taint; empty = no taint"),
        labels::KEY_ALLOWED,
        |text| (text.is_empty() || labels::is_key(text)).then(|| text.to_owned()),
    );
    let value = label_value(&mut s, ("value", "", "Value of the taint"));
    let effect = s.name(
        ("effect", "", "Effect of the taint"),
        "NoSchedule, PreferNoSchedule or NoExecute",
        |text| {
            let known = ["", "NoSchedule", "PreferNoSchedule", "NoExecute"];
            known.contains(&text).then(|| text.to_owned())
        },
    );
    if !key.is_empty() && effect.is_empty() {
        let allowed = "NoSchedule, PreferNoSchedule or NoExecute";
        s.problem("effect", &Value::from(""), allowed);
    }
    (!key.is_empty()).then_some(TaintConfig { key, value, effect })
}
