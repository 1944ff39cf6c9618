//! From a call's headers to who calls and for whom they may speak.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use health_event::{HealthEvent, NodeName, Sender, checks};
use telemetry::ControllerMetrics;
use telemetry::events::EventRefused;
use tokio::time::Instant;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use super::tokens::{ReviewError, TokenReviewer};
use crate::config::{Identity, IngestConfig, ServiceAccount, TrustMode};
use crate::nodes::NodeCache;

/// Who calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// The agent of a node.
    Agent(NodeName),
    /// One of `ingest.cross_node_identities`.
    Monitor(Monitor),
    /// Anybody: nothing is checked, or what was found was let pass.
    Unchecked,
}

/// See [`Caller::Monitor`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Monitor {
    identity: Arc<Identity>,
    /// Node that its token names.
    node: Option<NodeName>,
}

impl Caller {
    /// The sender under which an event is kept. Where nothing is checked, the agent that the event
    /// says it passed.
    pub fn sender(&self, node: &NodeName, passed_an_agent: bool) -> Sender {
        match self {
            Self::Agent(own) => Sender::agent(own.as_str()),
            Self::Monitor(monitor) => monitor.identity.account.sender(),
            Self::Unchecked if passed_an_agent => Sender::agent(node.as_str()),
            Self::Unchecked => Sender::from_stored("unchecked"),
        }
    }
}

/// Why a call is not allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// No bearer token.
    #[error("the call has no bearer token; want header `authorization: Bearer TOKEN`")]
    NoToken,
    /// The token is not believed or can't be checked.
    #[error(transparent)]
    Token(#[from] ReviewError),
    /// Not an agent's service account.
    #[error(
        "{user} is not an agent; allowed are the service accounts of ingest.agents, and for events those of \
         ingest.cross_node_identities"
    )]
    NotAnAgent {
        /// User name.
        user: String,
    },
    /// The token is bound to no node.
    #[error(
        "the token of {user} names no node; want a projected service account token of a pod (the \
         API server adds the node since Kubernetes 1.30)"
    )]
    NoNode {
        /// User name.
        user: String,
    },
    /// A monitor says what it may not.
    #[error("{user} may not report this: {why}; see its entry in ingest.cross_node_identities")]
    NotIts {
        /// User name.
        user: String,
        /// What does not fit.
        why: String,
    },
    /// The labels of nodes are not known yet.
    #[error("the nodes are not known yet, and {user} may report for some of them only; ask again")]
    NodesUnknown {
        /// User name.
        user: String,
    },
    /// The call speaks for another node.
    #[error("the agent of node {own} may not speak for node {named}")]
    ForeignNode {
        /// Whose token it is.
        own: String,
        /// Whom the call names.
        named: String,
    },
}

impl Denied {
    /// Static name for metrics.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoToken => "no_token",
            Self::Token(error) => error.code(),
            Self::NotAnAgent { .. } => "not_an_agent",
            Self::NoNode { .. } => "no_node",
            Self::ForeignNode { .. } => "foreign_node",
            Self::NotIts { .. } => "not_its",
            Self::NodesUnknown { .. } => "nodes_unknown",
        }
    }

    fn grpc_code(&self) -> Code {
        match self {
            Self::NoToken | Self::Token(ReviewError::Refused(_)) => Code::Unauthenticated,
            Self::Token(ReviewError::Unavailable(_)) | Self::NodesUnknown { .. } => {
                Code::Unavailable
            }
            Self::NotAnAgent { .. }
            | Self::NoNode { .. }
            | Self::ForeignNode { .. }
            | Self::NotIts { .. } => Code::PermissionDenied,
        }
    }

    /// The gRPC answer.
    pub fn status(&self) -> Status {
        let status = Status::new(self.grpc_code(), self.to_string());
        if self.grpc_code() == Code::Unavailable {
            wire::with_retry_hint(status, RETRY_TOKEN)
        } else {
            status
        }
    }

    /// Whether asking again helps: that is never an attempt to do what is not allowed.
    fn is_temporary(&self) -> bool {
        self.grpc_code() == Code::Unavailable
    }
}

/// When a caller whose token could not be checked should ask again.
const RETRY_TOKEN: Duration = Duration::from_secs(2);

/// How often one sender's refusals of one kind are logged.
const LOGGED_EVERY: Duration = Duration::from_mins(1);
/// Senders and kinds that are remembered for that.
const LOGGED_MOST: usize = 4_096;

/// Says who calls.
#[derive(Debug)]
pub struct Gate {
    checks: Option<Checks>,
    logged: Logged,
    metrics: Arc<ControllerMetrics>,
}

#[derive(Debug)]
struct Checks {
    reviewer: Arc<TokenReviewer>,
    agents: HashSet<String>,
    /// By user name.
    monitors: HashMap<String, Arc<Identity>>,
    nodes: NodeCache,
    audit: bool,
}

impl Gate {
    /// Checks tokens, with mode and agents of the configuration.
    pub fn new(
        config: &IngestConfig,
        reviewer: Arc<TokenReviewer>,
        nodes: NodeCache,
        metrics: Arc<ControllerMetrics>,
    ) -> Self {
        let checks = match config.mode {
            TrustMode::Off => None,
            TrustMode::Enforce | TrustMode::Audit => Some(Checks {
                reviewer,
                agents: config
                    .agents
                    .iter()
                    .map(ServiceAccount::user_name)
                    .collect(),
                monitors: config
                    .cross_node_identities
                    .iter()
                    .map(|identity| (identity.account.user_name(), Arc::new(identity.clone())))
                    .collect(),
                nodes,
                audit: config.mode == TrustMode::Audit,
            }),
        };
        Self {
            checks,
            logged: Logged::default(),
            metrics,
        }
    }

    /// Checks nothing: for loopback.
    pub fn unchecked(metrics: Arc<ControllerMetrics>) -> Self {
        Self {
            checks: None,
            logged: Logged::default(),
            metrics,
        }
    }

    /// Who calls, by the call's headers.
    ///
    /// # Errors
    /// [`Denied`]; in audit mode only what is temporary.
    pub async fn identify(&self, headers: &MetadataMap) -> Result<Caller, Denied> {
        let Some(checks) = &self.checks else {
            return Ok(Caller::Unchecked);
        };
        match checks.caller_of(headers).await {
            Ok(caller) => Ok(caller),
            Err(denied) => self.deny("unknown", denied).map(|()| Caller::Unchecked),
        }
    }

    /// Whether the caller may send this event.
    ///
    /// # Errors
    /// [`Denied`], in mode enforce.
    pub fn may_say(&self, caller: &Caller, event: &HealthEvent) -> Result<(), Denied> {
        match (caller, &self.checks) {
            (Caller::Agent(_), _) => self.may_speak_for(caller, &event.node_name),
            (Caller::Monitor(monitor), Some(checks)) => checks
                .may_say(monitor, event)
                .or_else(|denied| self.deny(monitor.identity.account.sender().as_str(), denied)),
            (Caller::Monitor(_) | Caller::Unchecked, _) => Ok(()),
        }
    }

    /// Whether the caller may speak as the agent of a node.
    ///
    /// # Errors
    /// [`Denied::ForeignNode`], [`Denied::NotAnAgent`], in mode enforce.
    pub fn may_speak_for(&self, caller: &Caller, node: &str) -> Result<(), Denied> {
        match caller {
            Caller::Agent(own) if own.as_str() != node => {
                let denied = Denied::ForeignNode {
                    own: own.to_string(),
                    named: node.chars().take(253).collect(),
                };
                self.deny(&format!("agent:{own}"), denied)
            }
            Caller::Monitor(monitor) => {
                let user = monitor.identity.account.user_name();
                let denied = Denied::NotAnAgent { user };
                self.deny(monitor.identity.account.sender().as_str(), denied)
            }
            Caller::Agent(_) | Caller::Unchecked => Ok(()),
        }
    }

    /// Logs and counts; answers whether the call ends here.
    fn deny(&self, sender: &str, denied: Denied) -> Result<(), Denied> {
        let audit = self.checks.as_ref().is_some_and(|checks| checks.audit);
        let let_pass = audit && !denied.is_temporary();
        let refused = EventRefused {
            sender,
            code: denied.code(),
            why: &denied.to_string(),
            let_pass,
        };
        if self.logged.is_due(sender, denied.code(), Instant::now()) {
            refused.emit(&self.metrics);
        } else {
            refused.count(&self.metrics);
        }
        if let_pass { Ok(()) } else { Err(denied) }
    }
}

impl Checks {
    async fn caller_of(&self, headers: &MetadataMap) -> Result<Caller, Denied> {
        let token = bearer(headers).ok_or(Denied::NoToken)?;
        let reviewed = self.reviewer.review(token).await?;
        let user = reviewed.user.clone();
        let node = reviewed
            .node
            .as_deref()
            .and_then(|node| NodeName::new(node).ok());
        if self.agents.contains(&user) {
            return node.map(Caller::Agent).ok_or(Denied::NoNode { user });
        }
        match self.monitors.get(&user) {
            Some(identity) if identity.own_node && node.is_none() => Err(Denied::NoNode { user }),
            Some(identity) => Ok(Caller::Monitor(Monitor {
                identity: Arc::clone(identity),
                node,
            })),
            None => Err(Denied::NotAnAgent { user }),
        }
    }

    fn may_say(&self, monitor: &Monitor, event: &HealthEvent) -> Result<(), Denied> {
        let identity = &monitor.identity;
        let user = identity.account.user_name();
        let named: String = event.node_name.chars().take(253).collect();
        let denied = |why: String| {
            let user = user.clone();
            Err(Denied::NotIts { user, why })
        };
        let own = monitor.node.as_ref().map(NodeName::as_str);
        if identity.own_node && own != Some(event.node_name.as_str()) {
            let own = own.unwrap_or_default();
            return denied(format!("node {named}, while its token is of node {own}"));
        }
        let is_wardens = event.agent == checks::WARDEN_AGENT;
        if is_wardens || !(identity.agents.is_empty() || identity.agents.contains(&event.agent)) {
            let agent: String = event.agent.chars().take(100).collect();
            return denied(format!("agent {agent:?} is none of its"));
        }
        if !identity.checks.is_empty() && !identity.checks.contains(&event.check_name) {
            let check: String = event.check_name.chars().take(100).collect();
            return denied(format!("check {check:?} is none of its"));
        }
        if identity.node_selector.is_empty() {
            return Ok(());
        }
        if !self.nodes.is_synced() {
            return Err(Denied::NodesUnknown { user });
        }
        let node = NodeName::new(&event.node_name).ok();
        let node = node.and_then(|name| self.nodes.get(&name));
        let lacks = |(key, value): &&(String, String)| {
            node.as_ref()
                .is_none_or(|node| node.label(key) != Some(value.as_str()))
        };
        match identity.node_selector.iter().find(lacks) {
            Some((key, value)) => {
                denied(format!("node {named} does not carry label {key}={value}"))
            }
            None => Ok(()),
        }
    }
}

/// Which refusals were logged lately: a caller in a loop must not fill the log.
#[derive(Debug, Default)]
struct Logged(Mutex<HashMap<(String, &'static str), Instant>>);

impl Logged {
    /// Whether a line of this sender and code is due: one a minute.
    fn is_due(&self, sender: &str, code: &'static str, now: Instant) -> bool {
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (sender.to_owned(), code);
        if logged
            .get(&key)
            .is_some_and(|at| now.duration_since(*at) < LOGGED_EVERY)
        {
            return false;
        }
        if logged.len() >= LOGGED_MOST {
            logged.clear();
        }
        logged.insert(key, now);
        true
    }
}

/// The token of `authorization: Bearer TOKEN`; the scheme in any case (RFC 9110).
fn bearer(headers: &MetadataMap) -> Option<&str> {
    let value = headers.get(wire::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bearer_token_is_found_whatever_the_case_and_blanks() {
        let table = [
            ("Bearer abc", Some("abc")),
            ("bearer  abc ", Some("abc")),
            ("Basic abc", None),
            ("Bearer", None),
            ("", None),
        ];
        for (value, want) in table {
            let mut headers = MetadataMap::new();
            headers.insert(wire::AUTHORIZATION, value.parse().unwrap());
            assert_eq!(bearer(&headers), want, "{value}");
        }
        assert_eq!(bearer(&MetadataMap::new()), None);
    }

    #[test]
    fn a_caller_in_a_loop_is_logged_once_a_minute_and_the_memory_is_bounded() {
        let logged = Logged::default();
        let now = Instant::now();
        assert!(logged.is_due("agent:a", "foreign_node", now));
        assert!(!logged.is_due("agent:a", "foreign_node", now));
        assert!(logged.is_due("agent:b", "foreign_node", now));
        assert!(logged.is_due("agent:a", "no_node", now));
        assert!(logged.is_due("agent:a", "foreign_node", now + LOGGED_EVERY));
        for n in 0..3 * LOGGED_MOST {
            logged.is_due(&format!("agent:{n}"), "no_node", now);
        }
        assert!(logged.0.lock().unwrap().len() <= LOGGED_MOST);
    }

    #[test]
    fn what_is_temporary_says_so_and_the_rest_is_final() {
        let user = "u".to_owned();
        let table = [
            (Denied::NoToken, Code::Unauthenticated),
            (
                ReviewError::Refused("x".into()).into(),
                Code::Unauthenticated,
            ),
            (
                ReviewError::Unavailable("x".into()).into(),
                Code::Unavailable,
            ),
            (
                Denied::NotAnAgent { user: user.clone() },
                Code::PermissionDenied,
            ),
            (Denied::NoNode { user }, Code::PermissionDenied),
        ];
        for (denied, code) in table {
            let status = denied.status();
            assert_eq!(status.code(), code, "{denied}");
            let hint = status.metadata().contains_key("grpc-retry-pushback-ms");
            assert_eq!(hint, code == Code::Unavailable, "{denied}");
        }
    }
}
