//! The plain sections.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use health_event::NodeName;
use health_event::node::is_dns_subdomain;
use telemetry::logging::{self, LogFormat};
use toml::Value;

use super::Profile;
use super::reader::Section;

const DAY: Duration = Duration::from_hours(24);

/// `[log]`
#[derive(Debug, Clone)]
pub struct LogConfig {
    /// How a line looks.
    pub format: LogFormat,
    /// Which lines are written.
    pub filter: String,
}

impl LogConfig {
    pub(super) fn read(mut s: Section<'_>) -> Self {
        Self {
            format: s.name(
                (
                    "format",
                    "auto",
                    "How a log line looks; auto is pretty on a terminal, else JSON",
                ),
                LogFormat::ALLOWED,
                |text| text.parse().ok(),
            ),
            filter: s.name(
                ("filter", "info", "Which log lines are written"),
                "a level (error, warn, info, debug, trace), or TARGET=LEVEL parted by commas",
                |text| logging::check_filter(text).is_ok().then(|| text.to_owned()),
            ),
        }
    }
}

/// `[kubernetes]`
#[derive(Debug, Clone)]
pub struct KubernetesConfig {
    /// Namespace of the controller's own objects; none = the one it runs in, else `warden`.
    pub namespace: Option<String>,
    /// Node that the controller runs on; none = not known.
    pub node_name: Option<NodeName>,
}

impl KubernetesConfig {
    pub(super) fn read(mut s: Section<'_>) -> Self {
        let namespace = s.name(
            (
                "namespace",
                "",
                "Namespace of the controller's own Lease, Secret and ConfigMap; \
                               empty is the one that it runs in",
            ),
            "a DNS label, or \"\"",
            |text| (text.is_empty() || is_dns_label(text)).then(|| text.to_owned()),
        );
        let node_name = s.name(
            (
                "node_name",
                "",
                "Node that the controller runs on, which is drained and repaired last; empty is that \
                 of --node-name",
            ),
            "a node's name, or \"\"",
            |text| match text {
                "" => Some(None),
                text => NodeName::new(text).ok().map(Some),
            },
        );
        Self {
            namespace: (!namespace.is_empty()).then_some(namespace),
            node_name,
        }
    }
}

pub(super) fn is_dns_label(text: &str) -> bool {
    text.len() <= 63 && !text.contains('.') && is_dns_subdomain(text)
}

/// `[lease]`
#[derive(Debug, Clone)]
pub struct LeaseConfig {
    /// Whether a Lease guards against a second controller.
    pub enabled: bool,
    /// Name of the Lease.
    pub name: String,
    /// How long a holder is believed.
    pub duration: Duration,
}

impl LeaseConfig {
    pub(super) fn read(mut s: Section<'_>) -> Self {
        Self {
            enabled: s.flag(
                "enabled",
                true,
                "Whether a Lease guards against a second controller",
            ),
            name: s.name(
                ("name", "warden-controller", "Name of the Lease"),
                "a DNS subdomain",
                |text| is_dns_subdomain(text).then(|| text.to_owned()),
            ),
            duration: s.span(
                (
                    "duration",
                    "15s",
                    "How long a holder of the Lease is believed; renewed at a third",
                ),
                "a span from 3s to 5m",
                Duration::from_secs(3)..=Duration::from_mins(5),
            ),
        }
    }
}

/// `[store]`
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// Folder of the database.
    pub path: PathBuf,
    /// Whether a network file system is accepted.
    pub allow_network_fs: bool,
    /// How old events may become.
    pub max_age: Duration,
    /// How large the database may become, bytes.
    pub max_bytes: u64,
    /// Free bytes below which events are refused.
    pub reserve: u64,
    /// How long healthy statements and faults of nodes that do not exist are remembered.
    pub fault_memory: Duration,
}

impl StoreConfig {
    pub(super) fn read(mut s: Section<'_>) -> Self {
        Self {
            path: s.name(
                (
                    "path",
                    "/var/lib/warden/controller",
                    "Folder of the database",
                ),
                "a path",
                |text| (!text.is_empty()).then(|| PathBuf::from(text)),
            ),
            allow_network_fs: s.flag(
                "allow_network_fs",
                false,
                "Whether the folder may lie on a network file system",
            ),
            max_age: s.span(
                ("max_age", "14d", "How long events are kept"),
                "a span from 1h to 3650d",
                Duration::from_hours(1)..=DAY * 3_650,
            ),
            max_bytes: s.bytes("max_bytes", "2GiB", "How large the database may become"),
            reserve: s.bytes(
                "reserve",
                "64MiB",
                "With less free space events are refused, transitions are not",
            ),
            fault_memory: s.span(
                (
                    "fault_memory",
                    "24h",
                    "How long healthy statements, and faults of nodes that do not exist, \
                                         are remembered; at least as long as an agent may be out \
                                         of reach (less than 1h is for tests)",
                ),
                "a span from 1s to 30d",
                Duration::from_secs(1)..=DAY * 30,
            ),
        }
    }
}

/// `[dedup]`, with the reference's keys
#[derive(Debug, Clone)]
pub struct DedupConfig {
    /// Of the repeats of one fault at most one is stored in this time.
    pub window: Duration,
    /// Checks whose repeats are only counted; none = all.
    pub checks: Option<Vec<String>>,
}

impl DedupConfig {
    pub(super) fn read(mut s: Section<'_>) -> Self {
        let window = s.span(
            (
                "suppressionWindow",
                "1m",
                "Of the repeats of one fault at most one is stored in this time; all are counted",
            ),
            "a span from 1s to 1d",
            Duration::from_secs(1)..=DAY,
        );
        // The reference sweeps its memory this often; here the faults themselves are the memory.
        s.text("cleanupInterval", "60s", "Carried, never used");
        let checks = s.list(
            (
                "includeChecks",
                &[],
                "Checks whose repeats are only counted; empty: all",
            ),
            "a list of names of checks",
            |text| (!text.is_empty()).then(|| text.to_owned()),
        );
        Self {
            window,
            checks: Some(checks).filter(|checks| !checks.is_empty()),
        }
    }
}

/// `[reports]`
#[derive(Debug, Clone)]
pub struct ReportsConfig {
    /// Time between two heartbeats of an agent.
    pub interval: Duration,
    /// Whether a node whose agent is silent gets a fault of its own.
    pub agent_silent: bool,
    /// Whether every node should have an agent, also one that never had.
    pub expect_everywhere: bool,
    /// Percentage of a pool that, silent together, is a fault of the pool.
    pub silent_share: u32,
}

impl ReportsConfig {
    pub(super) fn read(mut s: Section<'_>) -> Self {
        Self {
            interval: s.span(
                (
                    "interval",
                    "60s",
                    "Time between two heartbeats of an agent, give or take a fifth",
                ),
                "a span from 1s to 5m",
                Duration::from_secs(1)..=Duration::from_mins(5),
            ),
            agent_silent: s.flag(
                "agent_silent",
                true,
                "Whether no report for three intervals raises AgentSilent (non-fatal)",
            ),
            expect_everywhere: s.flag(
                "expect_everywhere",
                true,
                "Whether every node should have an agent, also one that never had",
            ),
            silent_share: s.number(
                (
                    "silent_share",
                    20,
                    "Percentage of a pool (at least 3 nodes) that, silent or NotReady within 5 \
                     min, is a fault of the pool",
                ),
                "a number from 1 to 100",
                1..=100,
            ),
        }
    }
}

/// `[connector]`
#[derive(Debug, Clone)]
pub struct ConnectorConfig {
    /// Whether node conditions and Events are written.
    pub enabled: bool,
    /// Nodes worked on at a time.
    pub workers: usize,
    /// Bytes of a condition's message at most (the reference's key).
    pub max_condition_message_length: usize,
    /// Bytes of one event's message inside a compacted condition (the reference's key).
    pub compacted_message_length: usize,
    /// Whether open faults become node conditions.
    pub conditions: bool,
    /// Whether non-fatal events become Kubernetes Events.
    pub events: bool,
}

impl ConnectorConfig {
    pub(super) fn read(mut s: Section<'_>, profile: Profile) -> Self {
        let by_profile = profile > Profile::Silent;
        let config = Self {
            enabled: s.flag(
                "enabled",
                by_profile,
                "Whether node conditions and Events are written; off in profile silent",
            ),
            workers: to_usize(s.number(
                ("workers", 64, "Nodes written at a time"),
                "a number from 1 to 1024",
                1..=1_024,
            )),
            max_condition_message_length: to_usize(s.number(
                (
                    "MaxNodeConditionMessageLength",
                    1_024,
                    "Bytes of a condition's message",
                ),
                "a number from 64 to 32768",
                64..=32_768,
            )),
            compacted_message_length: to_usize(s.number(
                (
                    "CompactedHealthEventMsgLen",
                    72,
                    "Bytes of one fault's text where a condition's \
                                                    message is compacted",
                ),
                "a number from 16 to 4096",
                16..=4_096,
            )),
            conditions: s.flag("conditions", true, "Whether faults become node conditions"),
            events: s.flag(
                "events",
                true,
                "Whether non-fatal events become Kubernetes Events",
            ),
        };
        if config.enabled && !by_profile {
            s.problem("enabled", &Value::from(true), "false in profile silent");
        }
        config
    }
}

pub(super) fn to_usize(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// `[api]`
#[derive(Debug, Clone)]
pub struct ApiConfig {
    /// Whether `/api/v1` is served beside health and metrics.
    pub enabled: bool,
    /// Where health, metrics and the API are served.
    pub listen: Option<SocketAddr>,
}

impl ApiConfig {
    pub(super) fn read(mut s: Section<'_>) -> Self {
        Self {
            enabled: s.flag(
                "enabled",
                true,
                "Whether /api/v1 is served beside health and metrics",
            ),
            listen: s.address(
                "listen",
                "0.0.0.0:9441",
                "Where health, metrics and API are served",
            ),
        }
    }
}
