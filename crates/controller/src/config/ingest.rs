//! `[ingest]`: who may send what, and where.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use health_event::node::is_dns_subdomain;
use health_event::{Sender, checks};
use toml::Value;

use super::labels;
use super::reader::{Section, not_empty};
use super::sections::is_dns_label;
use super::transformers::{MetadataConfig, OverridesConfig};

/// Whether senders are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrustMode {
    /// What is not allowed is refused.
    Enforce,
    /// What is not allowed is counted and let pass.
    Audit,
    /// Nothing is checked; on loopback only.
    Off,
}

impl TrustMode {
    fn from_name(name: &str) -> Option<Self> {
        match name {
            "enforce" => Some(Self::Enforce),
            "audit" => Some(Self::Audit),
            "off" => Some(Self::Off),
            _ => None,
        }
    }
}

/// A service account.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServiceAccount {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl ServiceAccount {
    fn parse(text: &str) -> Option<Self> {
        let (namespace, name) = text.split_once('/')?;
        (is_dns_label(namespace) && is_dns_subdomain(name)).then(|| Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }

    /// As the store names it.
    pub fn sender(&self) -> Sender {
        Sender::service_account(&self.namespace, &self.name)
    }

    /// The user name under which the API server knows it.
    pub fn user_name(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.name)
    }
}

/// A check of an agent, by the names that are in use now.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckRef {
    /// Agent.
    pub agent: String,
    /// Check.
    pub check: String,
}

impl CheckRef {
    fn parse(text: &str) -> Option<Self> {
        let (agent, check) = text.split_once('/')?;
        let named = |part: &str| !part.is_empty() && !part.contains(['/', ' ']);
        if !named(agent) || !named(check) {
            return None;
        }
        let (agent, check) = checks::present_name(agent, check, &checks::ALIASES);
        Some(Self {
            agent: agent.to_owned(),
            check: check.to_owned(),
        })
    }
}

const CHECKS_ALLOWED: &str = "a list of AGENT/CHECK";

/// The reference's kernel-log checks: its monitor never says that they are over.
const REBOOT_CLEARS: [&str; 4] = [
    "syslog-health-monitor/SysLogsXIDError",
    "syslog-health-monitor/SysLogsSXIDError",
    "syslog-health-monitor/SysLogsGPUFallenOff",
    "syslog-health-monitor/SysLogsNICDriverError",
];

/// A caller that is no agent and may report all the same: a monitor of the cluster, or one of a node that
/// sends a token of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Who.
    pub account: ServiceAccount,
    /// Only for the node that its token names.
    pub own_node: bool,
    /// Under these names of agents; empty = all but Warden's own.
    pub agents: Vec<String>,
    /// Of these checks; empty = all.
    pub checks: Vec<String>,
    /// For nodes that carry all these labels, key and value.
    pub node_selector: Vec<(String, String)>,
}

impl Identity {
    fn read(mut s: Section<'_>) -> Self {
        let given = s.has("service_account");
        let account = s.name(
            ("service_account", "", "Who, as NAMESPACE/NAME"),
            "NAMESPACE/NAME",
            |text| {
                (text.is_empty() || ServiceAccount::parse(text).is_some()).then(|| text.to_owned())
            },
        );
        if !given || account.is_empty() {
            s.problem("service_account", &Value::from(""), "NAMESPACE/NAME");
        }
        let names = |s: &mut Section<'_>, key, help| {
            s.list((key, &[], help), "a list of names", |text| {
                (!text.is_empty()).then(|| text.to_owned())
            })
        };
        Self {
            // What could not be read is a problem already, and nobody's name.
            account: ServiceAccount::parse(&account).unwrap_or(ServiceAccount {
                namespace: String::new(),
                name: String::new(),
            }),
            own_node: s.flag(
                "own_node",
                false,
                "Only for the node that its token names, not for others",
            ),
            agents: names(
                &mut s,
                "agents",
                "Names of agents that it may report as; none = all but warden-agent",
            ),
            checks: names(&mut s, "checks", "Checks that it may report; none = all"),
            node_selector: s.list(
                (
                    "node_selector",
                    &[],
                    "Labels, as LABEL=VALUE, of which a node must carry all; none = all nodes",
                ),
                "a list of LABEL=VALUE",
                selector,
            ),
        }
    }
}

fn selector(text: &str) -> Option<(String, String)> {
    let (key, value) = text.split_once('=')?;
    (labels::is_key(key) && labels::is_value(value)).then(|| (key.to_owned(), value.to_owned()))
}

/// `[ingest]`
#[derive(Debug, Clone)]
pub struct IngestConfig {
    /// Whether events are taken in.
    pub enabled: bool,
    /// Where, with TLS.
    pub listen: Option<SocketAddr>,
    /// Where, without TLS; a token is still needed.
    pub plaintext_listen: Option<SocketAddr>,
    /// Whether senders are checked.
    pub mode: TrustMode,
    /// Audiences of which a token must have one.
    pub audiences: Vec<String>,
    /// Service accounts of agents.
    pub agents: Vec<ServiceAccount>,
    /// Callers that are no agents and may report.
    pub cross_node_identities: Vec<Identity>,
    /// Service accounts whose events may force a quarantine.
    pub override_identities: Vec<ServiceAccount>,
    /// Connections kept at most.
    pub max_connections: u32,
    /// Events a second that one sender may send in the long run.
    pub sender_rate: u32,
    /// Events that one sender may send at once.
    pub sender_burst: u32,
    /// Checks of socket senders whose faults a reboot closes.
    pub reboot_clears: Vec<CheckRef>,
    /// Checks that no longer exist: their open faults close at start.
    pub retired_checks: Vec<CheckRef>,
    /// `[ingest.metadata]`
    pub metadata: MetadataConfig,
    /// `[ingest.overrides]`
    pub overrides: OverridesConfig,
    /// `[ingest.tls]`
    pub tls: TlsConfig,
}

impl IngestConfig {
    pub(super) fn read(mut s: Section<'_>) -> Self {
        let config = Self {
            enabled: s.flag("enabled", true, "Whether events and reports are taken in"),
            listen: s.address("listen", "0.0.0.0:9440", "Where agents call, with TLS"),
            plaintext_listen: s.address(
                "plaintext_listen",
                "",
                "Where senders without TLS call (the reference's gRPC sink); a token is still \
                 needed",
            ),
            mode: s.name(
                (
                    "mode",
                    "enforce",
                    "Whether senders are checked; off is for loopback only",
                ),
                "enforce, audit or off",
                TrustMode::from_name,
            ),
            // None would be no check of audiences: the API server then takes its own.
            audiences: s.some(
                (
                    "audiences",
                    &["warden"],
                    "Audiences of which a sender's token must have one",
                ),
                "a list of at least one text",
                not_empty,
            ),
            agents: s.list(
                (
                    "agents",
                    &["warden/warden-agent"],
                    "Service accounts of agents",
                ),
                "a list of NAMESPACE/NAME",
                ServiceAccount::parse,
            ),
            cross_node_identities: cross_node_identities(&mut s),
            override_identities: override_identities(&mut s),
            max_connections: s.number(
                (
                    "max_connections",
                    10_000,
                    "Connections at most: at this number the longest idle one is closed for the next caller",
                ),
                "a number from 1 to 1000000",
                1..=1_000_000,
            ),
            sender_rate: s.number(
                (
                    "sender_rate",
                    2_000,
                    "Events a second that one sender may send in the long run",
                ),
                "a number from 1 to 1000000",
                1..=1_000_000,
            ),
            sender_burst: s.number(
                (
                    "sender_burst",
                    20_000,
                    "Events that one sender may send at once",
                ),
                "a number from 1000 to 10000000 (a batch has up to 1000 events)",
                1_000..=10_000_000,
            ),
            reboot_clears: s.list(
                (
                    "reboot_clears",
                    &REBOOT_CLEARS,
                    "Checks of monitors on the agents' sockets whose faults a reboot closes",
                ),
                CHECKS_ALLOWED,
                CheckRef::parse,
            ),
            retired_checks: s.list(
                (
                    "retired_checks",
                    &[],
                    "Checks that no monitor makes any more; their open faults close at start",
                ),
                CHECKS_ALLOWED,
                CheckRef::parse,
            ),
            metadata: MetadataConfig::read(s.section("metadata")),
            overrides: OverridesConfig::read(s.section("overrides")),
            tls: TlsConfig::read(s.section("tls")),
        };
        if config.mode == TrustMode::Off {
            for (key, listen) in [
                ("listen", config.listen),
                ("plaintext_listen", config.plaintext_listen),
            ] {
                if let Some(listen) = listen.filter(|l| !l.ip().is_loopback()) {
                    let value = Value::from(listen.to_string());
                    s.problem(key, &value, "a loopback address while ingest.mode is off");
                }
            }
        }
        config
    }
}

fn cross_node_identities(s: &mut Section<'_>) -> Vec<Identity> {
    s.sections(
        (
            "cross_node_identities",
            "none",
            "Callers that are no agents and may report: monitors of the cluster, and monitors of a node \
             that send a token of their own",
        ),
        Identity::read,
    )
}

fn override_identities(s: &mut Section<'_>) -> Vec<ServiceAccount> {
    s.list(
        (
            "override_identities",
            &[],
            "Service accounts, of those, whose events may force a quarantine",
        ),
        "a list of NAMESPACE/NAME",
        ServiceAccount::parse,
    )
}

/// `[ingest.tls]`
#[derive(Debug, Clone)]
pub struct TlsConfig {
    /// Name of the Service that agents call.
    pub service: String,
    /// The cluster's domain.
    pub cluster_domain: String,
    /// Further names and addresses in the certificate.
    pub extra_names: Vec<String>,
    /// A given certificate chain (PEM) instead of our own authority.
    pub certificate_file: Option<PathBuf>,
    /// Its key (PEM).
    pub key_file: Option<PathBuf>,
    /// How often our own authority and its certificate are looked at.
    pub look_every: Duration,
}

impl TlsConfig {
    fn read(mut s: Section<'_>) -> Self {
        let config = Self {
            service: s.name(
                (
                    "service",
                    "warden-controller",
                    "Name of the Service that agents call",
                ),
                "a DNS label",
                |text| is_dns_label(text).then(|| text.to_owned()),
            ),
            cluster_domain: s.name(
                ("cluster_domain", "cluster.local", "The cluster's domain"),
                "a DNS subdomain",
                |text| is_dns_subdomain(text).then(|| text.to_owned()),
            ),
            extra_names: s.list(
                (
                    "extra_names",
                    &[],
                    "Further names and addresses in the certificate",
                ),
                "a list of DNS names and IP addresses",
                |text| {
                    let ok = is_dns_subdomain(text) || text.parse::<std::net::IpAddr>().is_ok();
                    ok.then(|| text.to_owned())
                },
            ),
            certificate_file: s.path(
                "certificate_file",
                "",
                "A given certificate chain (PEM) instead of our own authority; read again when it \
                 changes",
            ),
            key_file: s.path("key_file", "", "The given certificate's private key (PEM)"),
            look_every: s.span(
                (
                    "look_every",
                    "10m",
                    "How often our own authority and certificate are looked at; their changes have days",
                ),
                "a span from 1s to 1h",
                Duration::from_secs(1)..=Duration::from_hours(1),
            ),
        };
        if config.certificate_file.is_some() != config.key_file.is_some() {
            let missing = if config.key_file.is_none() {
                "key_file"
            } else {
                "certificate_file"
            };
            let allowed = "both certificate_file and key_file, or neither";
            s.problem(missing, &Value::from(""), allowed);
        }
        config
    }
}
