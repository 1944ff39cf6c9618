//! `[remediation]`: the reference's actions under their names, and ours.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_api::reboot_node;
use toml::Value;

use super::reader::Section;
use super::sections::to_usize;
use super::{Profile, alike};

const DAY: Duration = Duration::from_hours(24);
/// Actions that ask for a person or for nothing, and the one whose name stands elsewhere.
const NO_REPAIR: [&str; 4] = ["NONE", "CONTACT_SUPPORT", "UNKNOWN", "CUSTOM"];
/// Actions of the reference's chart that are reboots.
const DEFAULT_ACTIONS: [&str; 3] = ["COMPONENT_RESET", "RESTART_BM", "RESTART_VM"];
/// Longest name of an action or of a group, in bytes.
const LONGEST_NAME: usize = 63;
/// Default of `deadline`: longer than the 30 min that janitor gives a reboot.
const DEADLINE: &str = "35m";

/// `[remediation]`
#[derive(Debug, Clone)]
pub struct RemediationConfig {
    /// Whether the module runs.
    pub enabled: bool,
    /// Decides and shows, but orders no repair.
    pub dry_run: bool,
    /// Nodes worked on at a time.
    pub workers: usize,
    /// What is ordered, by the action's name. An action that is not listed calls a person.
    pub actions: BTreeMap<String, ActionConfig>,
    /// Actions to climb to when a weaker repair did not help, from weak to strong.
    pub ladder: Vec<String>,
    /// Attempts of one rung in an incident, and for a machine within [`RemediationConfig::attempts_window`].
    pub max_attempts: usize,
    /// How long attempts count for a machine.
    pub attempts_window: Duration,
    /// How long a repaired node may take until its faults are closed.
    pub settle_timeout: Duration,
    /// Whether nodes are repaired with their pods on them while the drain does not act.
    pub without_drain: bool,
    /// Delay of the first repair after the module was switched on; zero = none.
    pub first_action_delay: Duration,
}

/// `[remediation.remediationActions.NAME]`: a reboot, the one repair of this version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActionConfig {
    /// Name of the group in the annotation `latestFaultRemediationState`.
    pub equivalence_group: String,
    /// An attempt has this long from its order to its effect.
    pub deadline: Duration,
    /// `supersedingEquivalenceGroups`: without effect, for no repair is ordered while any other of the node is
    /// under way.
    pub superseding: Vec<String>,
}

impl RemediationConfig {
    pub(super) fn read(mut s: Section<'_>, profile: Profile) -> Self {
        let (enabled, dry_run) = mode(&mut s, profile);
        let workers = s.number(
            ("workers", 64, "Nodes worked on at a time"),
            "a number from 1 to 1024",
            1..=1_024,
        );
        let actions = actions(&mut s);
        let ladder = ladder(&mut s, &actions);
        Self {
            enabled,
            dry_run,
            workers: to_usize(workers),
            actions,
            ladder,
            max_attempts: to_usize(s.number(
                ("max_attempts", 2, help::MAX_ATTEMPTS),
                "a number from 1 to 16",
                1..=16,
            )),
            attempts_window: s.span(
                ("attempts_window", "24h", help::ATTEMPTS_WINDOW),
                "a span from 1m to 30d",
                Duration::from_mins(1)..=DAY * 30,
            ),
            settle_timeout: s.span(
                ("settle_timeout", "10m", help::SETTLE_TIMEOUT),
                "a span from 1s to 24h",
                Duration::from_secs(1)..=DAY,
            ),
            without_drain: s.flag("without_drain", false, help::WITHOUT_DRAIN),
            first_action_delay: s.span(
                ("first_action_delay", "5m", help::FIRST_ACTION_DELAY),
                "a span from 0s to 7d",
                Duration::ZERO..=DAY * 7,
            ),
        }
    }
}

fn mode(s: &mut Section<'_>, profile: Profile) -> (bool, bool) {
    let acts = profile >= Profile::Remediate;
    let enabled = s.flag(
        "enabled",
        acts,
        "Whether the module runs; off below profile remediate",
    );
    let dry_run = s.flag(
        "dry_run",
        !acts,
        "Whether it only decides and shows; so below profile remediate",
    );
    if !dry_run && !acts {
        s.problem(
            "dry_run",
            &Value::from(false),
            "true below profile remediate",
        );
    }
    (enabled, dry_run)
}

fn actions(s: &mut Section<'_>) -> BTreeMap<String, ActionConfig> {
    const KEY: &str = "remediationActions";
    let given = s.tables(
        (
            KEY,
            "`COMPONENT_RESET`, `RESTART_BM`, `RESTART_VM`: a RebootNode in group `restart`",
            "What is ordered for an action, by its name (a custom one has its own); what is not \
             listed calls a person",
        ),
        action,
    );
    let Some(given) = given else {
        let of = |name: &str| (name.to_owned(), reboot());
        return DEFAULT_ACTIONS.iter().map(|name| of(name)).collect();
    };
    let groups: BTreeSet<&str> = given
        .iter()
        .map(|(_, action)| action.equivalence_group.as_str())
        .collect();
    for (name, action) in &given {
        if NO_REPAIR.contains(&name.as_str()) || group_name(name).is_none() {
            let allowed = "the name of an action of 1 to 63 bytes; NONE asks for nothing, \
                CONTACT_SUPPORT and UNKNOWN for a person, and a CUSTOM one has a name of its own";
            s.problem(&format!("{KEY}.{name}"), &Value::from("{…}"), allowed);
        }
        for group in &action.superseding {
            let known = groups.contains(group.as_str()) && *group != action.equivalence_group;
            if !known {
                let key = format!("{KEY}.{name}.supersedingEquivalenceGroups");
                let allowed = "groups of other actions than those of its own group";
                s.problem(&key, &Value::from(group.as_str()), allowed);
            }
        }
    }
    given.into_iter().collect()
}

fn reboot() -> ActionConfig {
    ActionConfig {
        superseding: Vec::new(),
        equivalence_group: "restart".to_owned(),
        deadline: super::reader::parse_span(DEADLINE).expect("the default is a span"),
    }
}

fn action(mut s: Section<'_>) -> ActionConfig {
    let (group, version) = reboot_node::API_VERSION
        .split_once('/')
        .expect("a group and a version");
    only(
        &mut s,
        ("apiGroup", group, "API group of the object"),
        help::GROUP,
    );
    only(&mut s, ("version", version, "Its version"), help::VERSION);
    only(&mut s, ("kind", reboot_node::KIND, "Its kind"), help::KIND);
    let cluster = |text: &str| ["", "Cluster"].contains(&text).then_some(());
    let scope = ("scope", "Cluster", "Where the object lives");
    s.name(scope, help::SCOPE, cluster);
    only(&mut s, ("namespace", "", "Its namespace"), help::NAMESPACE);
    let condition = (
        "completeConditionType",
        reboot_node::NODE_READY,
        "Condition that is True once it is done",
    );
    only(&mut s, condition, help::CONDITION);
    let template = (
        "templateFileName",
        "",
        "Carried: the object has one form, which stands in the program",
    );
    s.name(template, help::TEMPLATE, |text| {
        ["", "nvidia-reboot.yaml"].contains(&text).then_some(())
    });
    only(
        &mut s,
        ("impactedEntityScope", "", "Part of the node that it is for"),
        help::ENTITY_SCOPE,
    );
    let superseding = s.list(
        (
            "supersedingEquivalenceGroups",
            &[],
            "Carried, and without effect: no repair is ordered while any other of the node is under way",
        ),
        "names of groups",
        group_name,
    );
    let equivalence_group = s.name(
        (
            "equivalenceGroup",
            "restart",
            "Group in the annotation latestFaultRemediationState",
        ),
        "a text of 1 to 63 bytes",
        group_name,
    );
    let deadline = s.span(
        ("deadline", DEADLINE, help::DEADLINE),
        "a span from 1s to 7d",
        Duration::from_secs(1)..=DAY * 7,
    );
    ActionConfig {
        equivalence_group,
        deadline,
        superseding,
    }
}

/// A key that has one value in this version.
fn only(
    s: &mut Section<'_>,
    (key, value, help): (&'static str, &'static str, &'static str),
    allowed: &'static str,
) {
    s.name((key, value, help), allowed, |text| {
        (text == value).then_some(())
    });
}

fn group_name(text: &str) -> Option<String> {
    let ok = (1..=LONGEST_NAME).contains(&text.len()) && !text.contains(char::is_control);
    ok.then(|| text.to_owned())
}

fn ladder(s: &mut Section<'_>, actions: &BTreeMap<String, ActionConfig>) -> Vec<String> {
    let given = s.has("ladder");
    let ladder = s.list(
        (
            "ladder",
            &["COMPONENT_RESET", "RESTART_BM"],
            "Actions to climb to when a weaker repair did not help, from weak to strong; those that are \
             not configured are passed over",
        ),
        "names of actions",
        group_name,
    );
    let configured = || actions.keys().map(String::as_str);
    for name in ladder
        .iter()
        .filter(|name| given && !actions.contains_key(*name))
    {
        let names: Vec<&str> = configured().collect();
        let allowed = if names.is_empty() {
            "no rung: remediation.remediationActions has no action".to_owned()
        } else {
            let meant = alike::meant(name, configured());
            format!(
                "an action of remediation.remediationActions ({}){meant}",
                names.join(", ")
            )
        };
        s.problem("ladder", &Value::from(name.as_str()), allowed);
    }
    ladder
}

/// What is allowed where this version carries a part of the reference, and what keys do where a line is
/// not enough.
mod help {
    pub(super) const GROUP: &str =
        "\"janitor.dgxc.nvidia.com\": this version orders RebootNode alone";
    pub(super) const VERSION: &str = "\"v1alpha1\": this version orders RebootNode alone";
    pub(super) const KIND: &str = "\"RebootNode\": TerminateNode, GPUReset and kinds of your own are not \
        part of this version. An action that needs them is better not listed: a person is called then";
    pub(super) const SCOPE: &str =
        "\"Cluster\" or \"\": objects in a namespace are not part of this version";
    pub(super) const NAMESPACE: &str =
        "\"\": a RebootNode lives in none, and other kinds are not part of this version";
    pub(super) const CONDITION: &str = "\"NodeReady\", the one of RebootNode";
    pub(super) const TEMPLATE: &str = "\"\" or \"nvidia-reboot.yaml\": templates of your own are not part \
        of this version";
    pub(super) const ENTITY_SCOPE: &str =
        "\"\": a reboot is of a whole node, and a reset of one GPU is not part of this version";
    pub(super) const DEADLINE: &str = "How long an attempt has from its order until another boot is seen; \
        longer than the timeout of what carries it out (janitor.timeout)";
    pub(super) const MAX_ATTEMPTS: &str = "Attempts of one rung in an incident, and for a machine within attempts_window; then a person is called";
    pub(super) const ATTEMPTS_WINDOW: &str = "How long an attempt counts for the machine, in whatever incident it was made; for that incident it \
         counts as long as it is open";
    pub(super) const SETTLE_TIMEOUT: &str =
        "How long a repaired node may take until its faults are closed before a person is called";
    pub(super) const FIRST_ACTION_DELAY: &str =
        "How long repairs are only shown after remediation was switched on; 0s = not at all";
    pub(super) const WITHOUT_DRAIN: &str = "Whether a node is repaired with its pods on it while the drain \
        is off or only shows; otherwise no repair is ordered then, unless every fault says to skip the drain";
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    fn problems(text: &str) -> Vec<String> {
        let (_, problems) = Config::parse_all(text).unwrap();
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_defaults_are_the_charts() {
        let config = Config::default().remediation;
        let names: Vec<&str> = config.actions.keys().map(String::as_str).collect();
        assert_eq!(names, ["COMPONENT_RESET", "RESTART_BM", "RESTART_VM"]);
        assert_eq!(config.ladder, ["COMPONENT_RESET", "RESTART_BM"]);
        assert_eq!(config.actions["RESTART_VM"].equivalence_group, "restart");
        assert_eq!((config.enabled, config.dry_run), (false, true));
        assert_eq!(config.actions["RESTART_BM"].deadline.as_secs(), 35 * 60);
    }

    #[test]
    fn repair_row_110_118_120_the_references_reboot_actions_are_read_as_they_are() {
        let text = r#"
            [remediation.remediationActions.RESTART_BM]
            apiGroup = "janitor.dgxc.nvidia.com"
            version = "v1alpha1"
            kind = "RebootNode"
            scope = "Cluster"
            namespace = ""
            completeConditionType = "NodeReady"
            templateFileName = "nvidia-reboot.yaml"
            equivalenceGroup = "restart"
            [remediation.remediationActions.RESTART_VM]
            equivalenceGroup = "restart"
            [remediation.remediationActions.COMPONENT_RESET]
            equivalenceGroup = "reset"
            supersedingEquivalenceGroups = ["restart"]
            deadline = "1h"
            [remediation.remediationActions.REPLACE_DISK]
            equivalenceGroup = "disk-replace"
        "#;
        let config = Config::parse(text).unwrap().remediation;
        let group = |action: &str| config.actions[action].equivalence_group.as_str();
        assert_eq!(group("RESTART_BM"), group("RESTART_VM"));
        assert_eq!(group("REPLACE_DISK"), "disk-replace");
        assert_eq!(config.actions["COMPONENT_RESET"].deadline.as_secs(), 3_600);
        let none = Config::parse("[remediation]\nremediationActions = {}").unwrap();
        assert!(none.remediation.actions.is_empty());
    }

    #[test]
    fn repair_row_112_113_114_116_what_this_version_does_not_carry_is_refused_by_key() {
        const OF: &str = "remediation.remediationActions.RESTART_BM";
        for (line, key, says) in [
            ("scope = 'Invalid'", "scope", "\"Cluster\""),
            ("scope = 'Namespaced'", "scope", "not part of this version"),
            ("namespace = 'x'", "namespace", "not part of this version"),
            ("equivalenceGroup = ''", "equivalenceGroup", "1 to 63"),
            ("kind = 'TerminateNode'", "kind", "a person is called then"),
            ("kind = 'GPUReset'", "kind", "not part of this version"),
            ("apiGroup = 'x.io'", "apiGroup", "janitor.dgxc.nvidia.com"),
            ("version = 'v2'", "version", "v1alpha1"),
            (
                "templateFileName = 'own.yaml'",
                "templateFileName",
                "templates",
            ),
            (
                "impactedEntityScope = 'GPU_UUID'",
                "impactedEntityScope",
                "GPU",
            ),
            (
                "completeConditionType = 'X'",
                "completeConditionType",
                "NodeReady",
            ),
            (
                "supersedingEquivalenceGroups = ['none']",
                "supersedingEquivalenceGroups",
                "other actions",
            ),
            (
                "supersedingEquivalenceGroups = ['restart']",
                "supersedingEquivalenceGroups",
                "its own group",
            ),
            ("deadline = '0s'", "deadline", "from 1s"),
            ("templateFile = 'x'", "templateFile", "no such key"),
        ] {
            let found = problems(&format!("[{OF}]\n{line}"));
            assert_eq!(found.len(), 1, "{line}: {found:?}");
            assert!(found[0].starts_with(&format!("{OF}.{key} = ")), "{found:?}");
            assert!(found[0].contains(says), "{found:?}");
        }
    }

    #[test]
    fn repair_row_137_actions_that_ask_for_no_repair_cant_be_given_one() {
        for name in ["NONE", "CONTACT_SUPPORT", "UNKNOWN", "CUSTOM", "''"] {
            let found = problems(&format!("[remediation.remediationActions.{name}]"));
            assert_eq!(found.len(), 1, "{name}: {found:?}");
        }
        let found = problems("[remediation]\nladder = ['REPLACE_VM']\nremediationActions = 1");
        assert_eq!(found.len(), 2, "{found:?}");
        let below = problems("profile = 'drain'\n[remediation]\ndry_run = false");
        assert_eq!(below.len(), 1, "{below:?}");
    }
}
