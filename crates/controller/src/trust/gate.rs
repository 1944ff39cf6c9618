//! From a call's headers to who calls and for whom they may speak.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use health_event::{NodeName, Sender};
use telemetry::ControllerMetrics;
use telemetry::events::EventRefused;
use tokio::time::Instant;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use super::tokens::{ReviewError, TokenReviewer};
use crate::config::{IngestConfig, ServiceAccount, TrustMode};

/// Who calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// The agent of a node.
    Agent(NodeName),
    /// Anybody: nothing is checked, or what was found was let pass.
    Unchecked,
}

impl Caller {
    /// The sender under which an event is kept. Where nothing is checked, the agent that the event
    /// says it passed.
    pub fn sender(&self, node: &NodeName, passed_an_agent: bool) -> Sender {
        match self {
            Self::Agent(own) => Sender::agent(own.as_str()),
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
    #[error("{user} is not an agent; allowed are the service accounts of ingest.agents")]
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
        }
    }

    fn grpc_code(&self) -> Code {
        match self {
            Self::NoToken | Self::Token(ReviewError::Refused(_)) => Code::Unauthenticated,
            Self::Token(ReviewError::Unavailable(_)) => Code::Unavailable,
            Self::NotAnAgent { .. } | Self::NoNode { .. } | Self::ForeignNode { .. } => {
                Code::PermissionDenied
            }
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
    audit: bool,
}

impl Gate {
    /// Checks tokens, with mode and agents of the configuration.
    pub fn new(
        config: &IngestConfig,
        reviewer: Arc<TokenReviewer>,
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
        match checks.agent_of(headers).await {
            Ok(node) => Ok(Caller::Agent(node)),
            Err(denied) => self.deny("unknown", denied).map(|()| Caller::Unchecked),
        }
    }

    /// Whether the caller may speak for a node.
    ///
    /// # Errors
    /// [`Denied::ForeignNode`], in mode enforce.
    pub fn may_speak_for(&self, caller: &Caller, node: &str) -> Result<(), Denied> {
        match caller {
            Caller::Agent(own) if own.as_str() != node => {
                let denied = Denied::ForeignNode {
                    own: own.to_string(),
                    named: node.chars().take(253).collect(),
                };
                self.deny(&format!("agent:{own}"), denied)
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
    async fn agent_of(&self, headers: &MetadataMap) -> Result<NodeName, Denied> {
        let token = bearer(headers).ok_or(Denied::NoToken)?;
        let reviewed = self.reviewer.review(token).await?;
        let user = reviewed.user.clone();
        if !self.agents.contains(&user) {
            return Err(Denied::NotAnAgent { user });
        }
        let node = reviewed
            .node
            .as_deref()
            .and_then(|node| NodeName::new(node).ok());
        node.ok_or(Denied::NoNode { user })
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
