//! `[janitor]`

use std::path::PathBuf;
use std::time::Duration;

use decide::janitor::selector::{Operator, Requirement, Selector};
use toml::Value;

use super::Profile;
use super::labels::{KEY_ALLOWED, VALUE_ALLOWED, is_key, is_value};
use super::reader::Section;
use super::sections::{is_dns_label, to_usize};

const DAY: Duration = Duration::from_hours(24);

/// `[janitor]`
#[derive(Debug, Clone)]
pub struct JanitorConfig {
    /// Whether the module runs.
    pub enabled: bool,
    /// A person sends the signals (the reference's key).
    pub manual: bool,
    /// From the signal to the effect (the reference's key).
    pub timeout: Duration,
    /// An object that could not start for this long ends.
    pub queue_timeout: Duration,
    /// Where the provider says that it is done, the node may stay in its boot for this long.
    pub no_reboot_after: Duration,
    /// Between questions to the provider.
    pub ask_interval: Duration,
    /// Reboots at a time in the cluster.
    pub max_parallel: usize,
    /// Nodes worked on at a time.
    pub workers: usize,
    /// Nodes that are never rebooted (the reference's key).
    pub exclusions: Vec<Selector>,
    /// Who reboots machines.
    pub provider: ProviderConfig,
    /// How long an object without a word of its own is kept; zero: for ever.
    pub default_ttl: Duration,
    /// Whether objects that are over go.
    pub enable_ttl: bool,
    /// Namespace of the node locks; none = the controller's.
    pub lock_namespace: Option<String>,
}

/// How the provider is reached.
#[derive(Debug, Clone)]
pub struct ProviderConfig {
    /// `HOST:PORT` (the reference's key).
    pub host: String,
    /// `HOST:PORT` of the one that is asked where an object asks for force; none = the same.
    pub force_host: Option<String>,
    /// Who signs their certificates.
    pub ca_path: PathBuf,
    /// Without TLS.
    pub insecure: bool,
    /// The token that is shown to them; none shows none.
    pub token_path: Option<PathBuf>,
    /// Longest wait for the answer to a signal.
    pub call_timeout: Duration,
}

impl JanitorConfig {
    pub(super) fn read(mut s: Section<'_>, profile: Profile) -> Self {
        let acts = profile >= Profile::Remediate;
        let enabled = s.flag(
            "enabled",
            acts,
            "Whether the module carries repairs out; off below profile remediate",
        );
        if enabled && !acts {
            s.problem(
                "enabled",
                &Value::from(true),
                "false below profile remediate",
            );
        }
        let manual = s.flag(
            "manualMode",
            false,
            "Whether a person sends the signals, and says so in the object's status",
        );
        let (timeout, queue_timeout, no_reboot_after, ask_interval) = times(&mut s);
        Self {
            enabled,
            manual,
            timeout,
            queue_timeout,
            no_reboot_after,
            ask_interval,
            max_parallel: to_usize(s.number(
                (
                    "max_parallel",
                    10,
                    "Reboots at a time in the cluster, whoever ordered them",
                ),
                "a number from 1 to 10000",
                1..=10_000,
            )),
            workers: to_usize(s.number(
                ("workers", 32, "Nodes worked on at a time"),
                "a number from 1 to 1024",
                1..=1_024,
            )),
            exclusions: s.sections(
                (
                    "exclusions",
                    "none",
                    "Nodes that are never rebooted, each by a label selector",
                ),
                exclusion,
            ),
            provider: ProviderConfig::read(&mut s),
            default_ttl: s.span(
                (
                    "default_ttl",
                    "336h",
                    "How long an object that says nothing about it is kept; 0s: for ever",
                ),
                "a span from 0s to 3650d",
                Duration::ZERO..=DAY * 3_650,
            ),
            enable_ttl: s.flag(
                "enable_ttl",
                true,
                "Whether objects that are over are deleted once their time to live is",
            ),
            lock_namespace: optional(s.name(
                (
                    "lock_namespace",
                    "",
                    "Namespace of the Leases that lock nodes: that of the reference's janitor \
                     where both are used by turns; empty is the controller's",
                ),
                "a DNS label, or \"\"",
                |text| (text.is_empty() || is_dns_label(text)).then(|| text.to_owned()),
            )),
        }
    }

    /// Labels that the exclusions read.
    pub fn label_keys(&self) -> impl Iterator<Item = String> {
        let requirements = self.exclusions.iter().flat_map(|selector| &selector.0);
        requirements.map(|requirement| requirement.key.clone())
    }
}

fn times(s: &mut Section<'_>) -> (Duration, Duration, Duration, Duration) {
    // Short ones are for tests.
    let second = Duration::from_millis(100);
    (
        s.span(
            (
                "timeout",
                "25m",
                "From the signal to the node in another boot and Ready",
            ),
            "a span from 100ms to 1d",
            second..=DAY,
        ),
        s.span(
            (
                "queue_timeout",
                "6h",
                "An object that could not start for this long ends",
            ),
            "a span from 100ms to 30d",
            second..=DAY * 30,
        ),
        s.span(
            (
                "no_reboot_after",
                "10m",
                "Where the provider says that it is done, a node that is Ready in the boot that \
                 it had is NoRebootObserved after this long",
            ),
            "a span from 100ms to 1d",
            second..=DAY,
        ),
        s.span(
            (
                "ask_interval",
                "15s",
                "Between questions to the provider about one reboot",
            ),
            "a span from 100ms to 1h",
            second..=Duration::from_hours(1),
        ),
    )
}

fn optional(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

impl ProviderConfig {
    fn read(s: &mut Section<'_>) -> Self {
        const HOST: &str = "HOST:PORT";
        let host = s.name(
            (
                "cspProviderHost",
                "janitor-provider.nvsentinel.svc.cluster.local:50051",
                "Who reboots machines: a server of NVSentinel's CSPProviderService",
            ),
            HOST,
            |text| is_host(text).then(|| text.to_owned()),
        );
        let force_host = optional(s.name(
            (
                "force_provider",
                "",
                "The same for objects that ask for force, which are those after a reboot that \
                 was not seen to happen; empty is the same server",
            ),
            "HOST:PORT, or \"\"",
            |text| (text.is_empty() || is_host(text)).then(|| text.to_owned()),
        ));
        let ca_path = s.name(
            (
                "cspProviderCAPath",
                "/etc/nvsentinel/janitor/csp-ca/ca.crt",
                "Certificates (PEM) that sign the servers'; read again for each connection",
            ),
            "a path",
            |text| (!text.is_empty()).then(|| PathBuf::from(text)),
        );
        let insecure = s.flag(
            "cspProviderInsecure",
            false,
            "Whether the servers are asked without TLS; on loopback only",
        );
        let anywhere = s.flag(
            "insecure_beyond_loopback",
            false,
            "Whether cspProviderInsecure holds for servers that are not on loopback too: who is \
             between can read the token, and reboot nodes",
        );
        for (key, host) in [
            ("cspProviderHost", Some(&host)),
            ("force_provider", force_host.as_ref()),
        ] {
            let Some(host) = host else { continue };
            if insecure && !anywhere && !is_loopback(host) {
                s.problem(
                    key,
                    &Value::from(host.as_str()),
                    "a loopback address with cspProviderInsecure, unless \
                     insecure_beyond_loopback is set",
                );
            }
        }
        Self {
            host,
            force_host,
            ca_path,
            insecure,
            token_path: optional(s.text(
                "cspProviderTokenPath",
                "/var/run/secrets/nvsentinel/csp-provider/token",
                "File with the token that is shown to the servers, read for each call; empty: none",
            ))
            .map(PathBuf::from),
            call_timeout: s.span(
                (
                    "call_timeout",
                    "5m",
                    "Longest wait for the answer to a signal (one cloud answers after up to 4 min); \
                     then only the node tells whether it was taken",
                ),
                "a span from 100ms to 30m",
                Duration::from_millis(100)..=Duration::from_mins(30),
            ),
        }
    }
}

/// `HOST:PORT`, as a URL takes it.
fn is_host(text: &str) -> bool {
    let Ok(authority) = text.parse::<http::uri::Authority>() else {
        return false;
    };
    let named = !authority.host().is_empty() && !text.contains('@');
    named && authority.port_u16().is_some_and(|port| port > 0)
}

fn is_loopback(host: &str) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let name = name.trim_start_matches('[').trim_end_matches(']');
    let address = name.parse::<std::net::IpAddr>();
    name == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// A label selector, as Kubernetes writes it.
fn exclusion(mut s: Section<'_>) -> Selector {
    // A requirement that can't be read is told by its own key.
    let is_empty = s.is_empty("matchLabels") && s.is_empty("matchExpressions");
    let labels = s.value(
        (
            "matchLabels",
            Value::Table(toml::Table::new()),
            "Labels that all have these values",
        ),
        "a table of labels and their values, as Kubernetes takes them",
        match_labels,
    );
    let expressions = s.sections(
        (
            "matchExpressions",
            "none",
            "Requirements of labels, of which all hold",
        ),
        expression,
    );
    let selector = Selector(
        labels
            .into_iter()
            .chain(expressions.into_iter().flatten())
            .collect(),
    );
    if is_empty {
        s.problem(
            "matchLabels",
            &Value::Table(toml::Table::new()),
            "at least one of matchLabels and matchExpressions: an empty selector would exclude \
             every node",
        );
    }
    selector
}

fn match_labels(value: &Value) -> Option<Vec<Requirement>> {
    let labels = value.as_table()?.iter();
    let requirement = |(key, value): (&String, &Value)| {
        let value = value.as_str()?;
        (is_key(key) && is_value(value)).then(|| Requirement {
            key: key.clone(),
            operator: Operator::In(vec![value.to_owned()]),
        })
    };
    labels.map(requirement).collect()
}

/// None where it was bad, which is reported.
fn expression(mut s: Section<'_>) -> Option<Requirement> {
    let given = s.has("key");
    let key = s.name(("key", "", "Key of the label"), KEY_ALLOWED, |text| {
        (text.is_empty() || is_key(text)).then(|| text.to_owned())
    });
    if !given || key.is_empty() {
        s.problem("key", &Value::from(""), KEY_ALLOWED);
    }
    let operator = s.name(
        ("operator", "Exists", "What is asked of it"),
        "In, NotIn, Exists or DoesNotExist",
        |text| {
            ["In", "NotIn", "Exists", "DoesNotExist"]
                .into_iter()
                .find(|name| *name == text)
        },
    );
    let values = s.list(
        ("values", &[], "Values for In and NotIn"),
        VALUE_ALLOWED,
        |text| is_value(text).then(|| text.to_owned()),
    );
    let wants_values = matches!(operator, "In" | "NotIn");
    if s.is_bad("operator") || s.is_bad("values") {
        return None;
    }
    if wants_values == values.is_empty() {
        let allowed = if wants_values {
            "at least one value for In and NotIn"
        } else {
            "no values for Exists and DoesNotExist"
        };
        let values: Vec<Value> = values.iter().map(|v| Value::from(v.as_str())).collect();
        s.problem("values", &Value::Array(values), allowed);
        return None;
    }
    let operator = match operator {
        "In" => Operator::In(values),
        "NotIn" => Operator::NotIn(values),
        "DoesNotExist" => Operator::DoesNotExist,
        _ => Operator::Exists,
    };
    (!key.is_empty()).then_some(Requirement { key, operator })
}

#[cfg(test)]
mod tests {
    use super::super::{Config, ConfigError};
    use super::*;

    fn problems(janitor: &str) -> Vec<String> {
        match Config::parse(&format!("profile = 'remediate'\n[janitor]\n{janitor}")) {
            Ok(_) => Vec::new(),
            Err(ConfigError::Problems(found)) => found.iter().map(ToString::to_string).collect(),
            Err(other) => vec![other.to_string()],
        }
    }

    #[test]
    fn defaults_are_those_of_the_references_chart() {
        let config = Config::parse("profile = 'remediate'").unwrap().janitor;
        assert!(config.enabled && !config.manual && config.enable_ttl);
        assert_eq!(config.timeout, Duration::from_mins(25));
        assert_eq!(config.default_ttl, Duration::from_hours(336));
        assert!(!config.provider.insecure && config.provider.force_host.is_none());
        assert!(!Config::parse("").unwrap().janitor.enabled);
    }

    #[test]
    fn everything_bad_is_reported_with_what_is_allowed() {
        let found = problems(
            "timeout = '0s'
             cspProviderHost = 'provider'
             max_parallel = 0
             lock_namespace = 'a.b'
             [[janitor.exclusions]]
             [[janitor.exclusions]]
             matchLabels = { 'bad key' = 'x' }
             [[janitor.exclusions]]
             matchExpressions = [
               { key = 'pool', operator = 'In' },
               { key = 'pool', operator = 'Exists', values = ['x'] },
               { operator = 'Exists' },
               { key = 'pool', operator = 'Near' },
             ]",
        );
        for want in [
            "janitor.timeout = \"0s\"",
            "janitor.cspProviderHost = \"provider\": allowed is HOST:PORT",
            "janitor.max_parallel = 0",
            "janitor.lock_namespace = \"a.b\"",
            "an empty selector would exclude every node",
            "janitor.exclusions[1].matchLabels",
            "at least one value for In and NotIn",
            "no values for Exists and DoesNotExist",
            "janitor.exclusions[2].matchExpressions[2].key",
            "janitor.exclusions[2].matchExpressions[3].operator = \"Near\"",
        ] {
            assert!(found.iter().any(|f| f.contains(want)), "{want}: {found:#?}");
        }
        assert!(!problems("[janitor.unknown]\nx = 1").is_empty());
    }

    #[test]
    fn what_is_bad_is_told_once_and_nothing_that_follows_from_it() {
        let exclusion = |inner: &str| format!("[[janitor.exclusions]]\n{inner}");
        for (text, key) in [
            (
                "cspProviderInsecure = true\ncspProviderHost = 'provider'".to_owned(),
                "janitor.cspProviderHost = \"provider\"",
            ),
            (
                "cspProviderInsecure = true\nforce_provider = 7\ncspProviderHost = 'localhost:1'"
                    .to_owned(),
                "janitor.force_provider = 7",
            ),
            (
                exclusion("matchLabels = { 'bad key' = 'x' }"),
                "janitor.exclusions[0].matchLabels",
            ),
            (
                exclusion("matchLabels = 'pool=a'"),
                "janitor.exclusions[0].matchLabels",
            ),
            (
                exclusion("matchExpressions = [{ key = 'bad key', operator = 'Exists' }]"),
                "janitor.exclusions[0].matchExpressions[0].key = \"bad key\"",
            ),
            (
                exclusion("matchExpressions = [{ key = 'a', operator = 'in', values = ['x'] }]"),
                "janitor.exclusions[0].matchExpressions[0].operator = \"in\"",
            ),
            (
                exclusion("matchExpressions = [{ key = 'a', operator = 'In', values = ['/'] }]"),
                "janitor.exclusions[0].matchExpressions[0].values",
            ),
            (
                exclusion("matchExpressions = [{ key = 'a', operator = 'In' }]"),
                "janitor.exclusions[0].matchExpressions[0].values = []",
            ),
            (
                exclusion("matchLabels = {}"),
                "janitor.exclusions[0].matchLabels = {}",
            ),
            (exclusion(""), "janitor.exclusions[0].matchLabels = {}"),
        ] {
            let told = problems(&text);
            assert_eq!(told.len(), 1, "{text}: {told:#?}");
            assert!(told[0].starts_with(key), "{text}: {told:?}");
        }
    }

    /// The forms of a label selector, as the reference's chart takes them.
    #[test]
    fn every_form_of_a_selector_that_asks_for_something_is_taken() {
        for (inner, asked) in [
            ("matchLabels = { pool = 'a', 'x.io/b' = '' }", 2),
            ("matchExpressions = [{ key = 'a', operator = 'Exists' }]", 1),
            (
                "matchExpressions = [{ key = 'a', operator = 'DoesNotExist', values = [] }]",
                1,
            ),
            (
                "matchExpressions = [{ key = 'a', operator = 'In', values = ['x', 'y'] }]",
                1,
            ),
            (
                "matchExpressions = [{ key = 'a', operator = 'NotIn', values = ['x'] }]",
                1,
            ),
            (
                "matchLabels = {}\nmatchExpressions = [{ key = 'a', operator = 'Exists' }]",
                1,
            ),
            ("matchLabels = { a = 'b' }\nmatchExpressions = []", 1),
            (
                "matchLabels = { a = 'b' }\nmatchExpressions = [{ key = 'c', operator = 'Exists' }]",
                2,
            ),
        ] {
            let text = format!("profile = 'remediate'\n[[janitor.exclusions]]\n{inner}");
            let config = Config::parse(&text).unwrap_or_else(|error| panic!("{inner}: {error}"));
            let exclusions = config.janitor.exclusions;
            let asks: Vec<usize> = exclusions.iter().map(|selector| selector.0.len()).collect();
            assert_eq!(asks, [asked], "{inner}");
        }
    }

    #[test]
    fn without_tls_only_on_loopback_unless_said() {
        let host = |host: &str, more: &str| {
            problems(&format!(
                "cspProviderInsecure = true\ncspProviderHost = '{host}'\n{more}"
            ))
        };
        for near in ["127.0.0.1:1", "localhost:50051", "[::1]:7"] {
            assert_eq!(host(near, ""), Vec::<String>::new());
        }
        for far in ["10.0.0.1:1", "provider.ns:50051"] {
            assert!(host(far, "")[0].contains("a loopback address"), "{far}");
            assert!(host(far, "insecure_beyond_loopback = true").is_empty());
        }
        let force = host("127.0.0.1:1", "force_provider = '10.0.0.1:1'");
        assert!(force[0].starts_with("janitor.force_provider"), "{force:?}");
    }

    #[test]
    fn exclusions_are_label_selectors() {
        let config = Config::parse(
            "[[janitor.exclusions]]
             matchLabels = { pool = 'gold' }
             [[janitor.exclusions]]
             matchExpressions = [{ key = 'a/b', operator = 'DoesNotExist' }]",
        );
        let config = config.unwrap().janitor;
        assert_eq!(config.exclusions.len(), 2);
        assert!(config.exclusions[0].matches(|_| Some("gold")));
        assert!(!config.exclusions[1].matches(|_| Some("x")));
        let keys: Vec<String> = config.label_keys().collect();
        assert_eq!(keys, ["pool", "a/b"]);
    }
}
