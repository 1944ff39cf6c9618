//! `[drain]`: the reference's keys under their names, and ours.

use std::time::Duration;

use decide::drain::{AtDeadline, EvictMode, Namespaces};
use toml::Value;

use super::Profile;
use super::reader::Section;
use super::sections::to_usize;

const DAY: Duration = Duration::from_hours(24);

/// The reference's chart's, and our own namespace.
const SYSTEM_NAMESPACES: &str =
    "^(nvsentinel|kube-system|gpu-operator|gmp-system|network-operator|skyhook|warden)$";

/// `[drain]`
#[derive(Debug, Clone)]
pub struct DrainConfig {
    /// Whether the module runs.
    pub enabled: bool,
    /// Decides and shows, but moves no pod.
    pub dry_run: bool,
    /// Nodes decided about at a time.
    pub workers: usize,
    /// Grace that an eviction asks for (the reference's key).
    pub grace: Duration,
    /// Which namespaces are drained, and how (the reference's keys).
    pub namespaces: Namespaces,
    /// Pods of `DeleteAfterTimeout` are deleted after this long (the reference's key).
    pub delete_after: Duration,
    /// How long a pod may be not Ready (the reference's key).
    pub not_ready_timeout: Duration,
    /// Whether only pods with GPUs are drained (the reference's key).
    pub gpu_pods_only: bool,
    /// Evicted pods are gone after this long.
    pub immediate_deadline: Duration,
    /// Pods of `AllowCompletion` have finished after this long; none = they may run for ever.
    pub completion_deadline: Option<Duration>,
    /// What happens to pods that are left at a deadline.
    pub at_deadline: AtDeadline,
    /// How much longer than it should a pod may be there before a repair that ends it passes it over.
    pub stuck_timeout: Duration,
    /// How long a kubelet may be silent before a repair that ends its pods passes them over.
    pub dead_kubelet_timeout: Duration,
    /// Delay of the first drain after the module was switched on; zero = none.
    pub first_action_delay: Duration,
}

impl DrainConfig {
    pub(super) fn read(mut s: Section<'_>, profile: Profile) -> Self {
        let (enabled, dry_run) = mode(&mut s, profile);
        not_part_of_this_version(&mut s);
        let completion = s.span(
            ("completion_deadline", "0s", help::COMPLETION_DEADLINE),
            "a span from 0s to 90d",
            Duration::ZERO..=DAY * 90,
        );
        Self {
            enabled,
            dry_run,
            workers: to_usize(s.number(
                ("workers", 64, "Nodes decided about at a time"),
                "a number from 1 to 1024",
                1..=1_024,
            )),
            grace: s.value(
                ("evictionTimeoutInSeconds", "60".into(), help::GRACE),
                "a text with a number from 1 to 604800, for example \"60\"",
                grace,
            ),
            namespaces: namespaces(&mut s),
            delete_after: minutes(
                &mut s,
                ("deleteAfterTimeoutMinutes", 60, help::DELETE_AFTER),
            ),
            not_ready_timeout: minutes(&mut s, ("notReadyTimeoutMinutes", 5, help::NOT_READY)),
            gpu_pods_only: s.flag("drainGPUPods", false, help::GPU_PODS),
            immediate_deadline: s.span(
                ("immediate_deadline", "1h", help::IMMEDIATE_DEADLINE),
                "a span from 1s to 30d",
                Duration::from_secs(1)..=DAY * 30,
            ),
            completion_deadline: (!completion.is_zero()).then_some(completion),
            at_deadline: s.name(
                ("at_deadline", "fail", help::AT_DEADLINE),
                "fail or delete",
                |text| match text {
                    "fail" => Some(AtDeadline::Fail),
                    "delete" => Some(AtDeadline::Delete),
                    _ => None,
                },
            ),
            stuck_timeout: s.span(
                ("stuck_timeout", "5m", help::STUCK_TIMEOUT),
                "a span from 1s to 24h",
                Duration::from_secs(1)..=DAY,
            ),
            dead_kubelet_timeout: s.span(
                ("dead_kubelet_timeout", "10m", help::DEAD_KUBELET_TIMEOUT),
                "a span from 1s to 24h",
                Duration::from_secs(1)..=DAY,
            ),
            first_action_delay: s.span(
                ("first_action_delay", "5m", help::FIRST_ACTION_DELAY),
                "a span from 0s to 7d",
                Duration::ZERO..=DAY * 7,
            ),
        }
    }
}

/// What the keys do, where a line is not enough.
mod help {
    pub(super) const GRACE: &str = "Grace that an eviction asks for, in place of the pod's own";
    pub(super) const SYSTEM: &str =
        "Namespaces that are never drained: a regular expression that may match anywhere";
    pub(super) const USER: &str = "Namespaces that are drained; of several that match one the most \
        specific counts, and one that none matches is left alone";
    pub(super) const DELETE_AFTER: &str = "After how many minutes of a drain the pods of \
        DeleteAfterTimeout are deleted without grace; 0 = the default";
    pub(super) const NOT_READY: &str = "How many minutes a pod may be not Ready before, \
        stuck_timeout later, a repair that ends it passes it over; 0 = the default";
    pub(super) const GPU_PODS: &str =
        "Whether only pods with GPUs are drained, by the device annotation, limits or claims";
    pub(super) const IMMEDIATE_DEADLINE: &str =
        "How long after a drain's beginning the pods of Immediate are gone";
    pub(super) const COMPLETION_DEADLINE: &str =
        "How long pods of AllowCompletion may run on; 0s = for ever";
    pub(super) const AT_DEADLINE: &str = "What happens to pods that are left at a deadline: fail asks \
        for a person, delete deletes them without grace and past their disruption budgets";
    pub(super) const STUCK_TIMEOUT: &str = "How long after its grace a pod may still be there before \
        a repair that ends it passes it over, or the drain of deleted pods fails";
    pub(super) const DEAD_KUBELET_TIMEOUT: &str =
        "How long a kubelet may be silent before a repair that ends its pods passes them over";
    pub(super) const FIRST_ACTION_DELAY: &str =
        "How long drains only wait after the module was switched on; 0s = not at all";
}

/// Whether the module runs, and whether it only decides: by the profile, which a key may weaken.
fn mode(s: &mut Section<'_>, profile: Profile) -> (bool, bool) {
    let acts = profile >= Profile::Drain;
    let enabled = s.flag(
        "enabled",
        acts,
        "Whether the module runs; off below profile drain",
    );
    let dry_run = s.flag(
        "dry_run",
        !acts,
        "Whether it only decides and shows; so below profile drain",
    );
    if !dry_run && !acts {
        s.problem("dry_run", &Value::from(false), "true below profile drain");
    }
    (enabled, dry_run)
}

/// Keys of the reference that ask for what there is not: leaving them out of sight would drain
/// otherwise than was asked for.
fn not_part_of_this_version(s: &mut Section<'_>) {
    let partial = "partialDrainEnabled";
    if s.flag(partial, false, "Not part of this version: always false") {
        let allowed =
            "false: partial drains are not part of this version; the whole node is drained";
        s.problem(partial, &Value::from(true), allowed);
    }
    s.value(
        (
            "customDrain",
            Value::Table(toml::Table::new()),
            "Not part of this version: absent, or with enabled = false",
        ),
        "nothing, or enabled = false: drains by plugins are not part of this version; say with \
         userNamespaces how pods are moved off",
        |value| {
            let enabled = value.as_table()?.get("enabled");
            enabled
                .is_none_or(|flag| flag.as_bool() == Some(false))
                .then_some(())
        },
    );
}

/// The reference's form: a text with a positive whole number.
fn grace(value: &Value) -> Option<Duration> {
    let seconds: u32 = value.as_str()?.parse().ok()?;
    (1..=604_800)
        .contains(&seconds)
        .then(|| Duration::from_secs(seconds.into()))
}

/// The reference's form, a whole number of minutes where 0 is the default, and fractions of one.
fn minutes(
    s: &mut Section<'_>,
    (key, default, help): (&'static str, u32, &'static str),
) -> Duration {
    let minutes = s.value(
        (key, i64::from(default).into(), help),
        "a number of minutes from 0 to 43200",
        |value| {
            #[expect(clippy::cast_precision_loss, reason = "larger ones are refused below")]
            let number = value
                .as_float()
                .or_else(|| value.as_integer().map(|whole| whole as f64))?;
            (0.0..=43_200.0).contains(&number).then_some(number)
        },
    );
    let default = Duration::from_mins(default.into());
    match Duration::try_from_secs_f64(minutes * 60.0) {
        Ok(span) if !span.is_zero() => span,
        Ok(_) | Err(_) => default,
    }
}

/// Both lists at once, because the policy is read of both.
fn namespaces(s: &mut Section<'_>) -> Namespaces {
    let system = s.text("systemNamespaces", SYSTEM_NAMESPACES, help::SYSTEM);
    let given = s.has("userNamespaces");
    let mut entries = s.sections(
        ("userNamespaces", "`*`: AllowCompletion", help::USER),
        entry,
    );
    if !given {
        entries = vec![("*".to_owned(), EvictMode::AllowCompletion)];
    }
    let as_text = |(name, mode): &(String, EvictMode)| (name.clone(), *mode);
    for (name, mode) in entries.iter().map(as_text) {
        if let Err(error) = Namespaces::new([(name.as_str(), mode)], "") {
            s.problem("userNamespaces", &Value::from(name), error.to_string());
            entries.clear();
            break;
        }
    }
    let entries = || entries.iter().map(|(name, mode)| (name.as_str(), *mode));
    Namespaces::new(entries(), &system).unwrap_or_else(|error| {
        s.problem("systemNamespaces", &Value::from(system), error.to_string());
        Namespaces::default()
    })
}

fn entry(mut s: Section<'_>) -> (String, EvictMode) {
    let missing = !s.has("name");
    let name = s.text(
        "name",
        "",
        "Pattern of namespaces: * any text, ? one character, [a-z]",
    );
    if missing {
        s.problem("name", &Value::from(""), "a pattern of namespaces");
    }
    let missing = !s.has("mode");
    let allowed = "Immediate, AllowCompletion or DeleteAfterTimeout";
    let mode = s.name(
        (
            "mode",
            "AllowCompletion",
            "How their pods are moved off; must be given",
        ),
        allowed,
        EvictMode::from_name,
    );
    if missing {
        s.problem("mode", &Value::from(""), allowed);
    }
    (name, mode)
}

#[cfg(test)]
mod tests {
    use super::super::{Config, ConfigError};
    use super::*;

    fn drain(text: &str) -> DrainConfig {
        let text = format!("profile = 'drain'\n[drain]\n{text}");
        Config::parse(&text).unwrap_or_else(|e| panic!("{e}")).drain
    }

    fn problems(text: &str) -> String {
        match Config::parse(&format!("profile = 'drain'\n[drain]\n{text}")) {
            Ok(_) => String::new(),
            Err(error @ (ConfigError::Problems(_) | ConfigError::Syntax(_))) => error.to_string(),
            Err(error @ ConfigError::TooLarge) => panic!("{error}"),
        }
    }

    #[test]
    fn what_is_not_given_is_the_references_chart_and_never_without_grace() {
        let config = drain("");
        assert!(config.enabled && !config.dry_run && !config.gpu_pods_only);
        assert_eq!(config.grace, Duration::from_mins(1));
        assert_eq!(config.delete_after, Duration::from_hours(1));
        assert_eq!(config.not_ready_timeout, Duration::from_mins(5));
        assert_eq!(config.completion_deadline, None);
        assert_eq!(config.at_deadline, AtDeadline::Fail);
        let mode = |name| config.namespaces.mode(name);
        assert_eq!(mode("train"), Some(EvictMode::AllowCompletion));
        for system in ["kube-system", "gpu-operator", "nvsentinel", "warden"] {
            assert_eq!(mode(system), None, "{system}");
        }
        let observing = Config::default().drain;
        assert!(!observing.enabled && observing.dry_run);
    }

    #[test]
    fn the_references_own_file_is_read() {
        let config = drain(
            "evictionTimeoutInSeconds = '30'\nsystemNamespaces = '^(kube-.*)$'\n\
             deleteAfterTimeoutMinutes = 1\nnotReadyTimeoutMinutes = 0\ndrainGPUPods = true\n\
             partialDrainEnabled = false\n[drain.customDrain]\nenabled = false\n\
             timeout = '30m'\n[[drain.userNamespaces]]\nname = 'a-*'\nmode = 'Immediate'\n\
             [[drain.userNamespaces]]\nname = 'b'\nmode = 'DeleteAfterTimeout'",
        );
        assert_eq!(config.grace, Duration::from_secs(30));
        assert_eq!(config.delete_after, Duration::from_mins(1));
        assert_eq!(config.not_ready_timeout, Duration::from_mins(5));
        assert!(config.gpu_pods_only);
        let mode = |name| config.namespaces.mode(name);
        assert_eq!(mode("a-1"), Some(EvictMode::Immediate));
        assert_eq!(mode("b"), Some(EvictMode::DeleteAfterTimeout));
        assert_eq!((mode("c"), mode("kube-x")), (None, None));
        let short = drain("deleteAfterTimeoutMinutes = 0.05").delete_after;
        assert_eq!(short, Duration::from_secs(3));
        assert_eq!(drain("userNamespaces = []").namespaces.mode("a"), None);
    }

    #[test]
    fn what_would_be_ignored_or_kill_at_once_is_refused_by_its_key() {
        let list = |name: &str, mode: &str| {
            format!("[[drain.userNamespaces]]\nname = {name:?}\nmode = {mode:?}")
        };
        for (text, wants) in [
            (
                "evictionTimeoutInSeconds = 60",
                "drain.evictionTimeoutInSeconds = 60",
            ),
            (
                "evictionTimeoutInSeconds = '0'",
                "a number from 1 to 604800",
            ),
            (
                "evictionTimeoutInSeconds = '-5'",
                "a number from 1 to 604800",
            ),
            (
                "evictionTimeoutInSeconds = '1m'",
                "a number from 1 to 604800",
            ),
            ("deleteAfterTimeoutMinutes = -1", "a number of minutes"),
            ("notReadyTimeoutMinutes = '5'", "a number of minutes"),
            ("partialDrainEnabled = true", "not part of this version"),
            (
                "[drain.customDrain]\nenabled = true",
                "not part of this version",
            ),
            ("systemNamespaces = '('", "drain.systemNamespaces"),
            (&list("a[", "Immediate"), "is no pattern of namespaces"),
            (
                &list("a", "Evict"),
                "Immediate, AllowCompletion or DeleteAfterTimeout",
            ),
            ("[[drain.userNamespaces]]\nname = 'a'", "mode"),
            (
                "[[drain.userNamespaces]]\nmode = 'Immediate'",
                "a pattern of namespaces",
            ),
            ("at_deadline = 'kill'", "fail or delete"),
            ("immediate_deadline = '0s'", "a span from 1s"),
            ("evictionTimeout = '5'", "drain.evictionTimeout"),
        ] {
            let said = problems(text);
            assert!(said.contains(wants), "{text}: {said}");
        }
        let error = Config::parse("[drain]\ndry_run = false").unwrap_err();
        assert!(error.to_string().contains("true below profile drain"));
    }
}
