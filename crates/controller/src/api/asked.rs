//! What a call asks for, read strictly: unknown, repeated and malformed parts are refused with
//! what was given and what is allowed.

use std::str::FromStr;

use axum::body::{Body, to_bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path, Query};
use axum::http::request::Parts;
use axum::http::{StatusCode, Uri};
use health_event::NodeName;
use health_event::incident::IncidentId;
use http_body_util::LengthLimitError;
use serde::de::DeserializeOwned;

use super::failed::Failed;

/// Largest body of a request.
const LARGEST_BODY: usize = 64 * 1024;
/// Elements of an answer, unless fewer are asked for.
pub(super) const PAGE: usize = 500;
/// The last position that a store can have: its numbers are signed.
const LAST_POSITION: u64 = i64::MAX.unsigned_abs();
/// Characters of what a caller gave that an answer repeats.
const SHOWN: usize = 100;

/// The query of a call, taken apart key by key.
pub(super) struct Asked(Vec<(String, String)>);

impl Asked {
    fn of(uri: &Uri) -> Result<Self, Failed> {
        let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|error| bad_query(&format!("can't be read: {error}"), "KEY=VALUE&…"))?;
        Ok(Self(pairs))
    }

    /// The value of a key, which may be given once.
    fn take(&mut self, key: &str) -> Result<Option<String>, Failed> {
        let Some(at) = self.0.iter().position(|(name, _)| name == key) else {
            return Ok(None);
        };
        let (_, value) = self.0.remove(at);
        if self.0.iter().any(|(name, _)| name == key) {
            return Err(bad_query(&format!("`{key}` is given twice"), "once"));
        }
        Ok(Some(value))
    }

    fn parse<T: FromStr>(
        &mut self,
        key: &str,
        allowed: &str,
        fits: impl Fn(&T) -> bool,
    ) -> Result<Option<T>, Failed> {
        let Some(text) = self.take(key)? else {
            return Ok(None);
        };
        let value = text.parse().ok().filter(fits);
        let problem = || bad_query(&format!("`{key}` is {:?}", shown(&text)), allowed);
        value.map(Some).ok_or_else(problem)
    }

    fn limit(&mut self) -> Result<usize, Failed> {
        let allowed = format!("a number from 1 to {PAGE}");
        let limit = self.parse("limit", &allowed, |limit| (1..=PAGE).contains(limit))?;
        Ok(limit.unwrap_or(PAGE))
    }

    fn after(&mut self) -> Result<Option<u64>, Failed> {
        let allowed = "`seq` of the last element seen, or 0";
        self.parse("after", allowed, |after| *after <= LAST_POSITION)
    }

    fn node(&mut self) -> Result<Option<NodeName>, Failed> {
        self.take("node")?.map(|name| node_name(&name)).transpose()
    }

    /// Nothing else may be asked for.
    fn finish(self, allowed: &str) -> Result<(), Failed> {
        match self.0.first() {
            None => Ok(()),
            Some((key, _)) => {
                let given = format!("`{}` is no key of this path", shown(key));
                Err(bad_query(&given, allowed))
            }
        }
    }
}

/// A call that takes no query.
pub(super) struct NoQuery;

impl<S: Sync> FromRequestParts<S> for NoQuery {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failed> {
        Asked::of(&parts.uri)?.finish("no query")?;
        Ok(Self)
    }
}

/// Where a list goes on, and how long it is.
pub(super) struct Page {
    pub(super) after: u64,
    pub(super) limit: usize,
}

impl<S: Sync> FromRequestParts<S> for Page {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failed> {
        let mut asked = Asked::of(&parts.uri)?;
        let (after, limit) = (asked.after()?.unwrap_or_default(), asked.limit()?);
        asked.finish("after, limit")?;
        Ok(Self { after, limit })
    }
}

/// Which events.
pub(super) struct EventQuery {
    pub(super) page: Page,
    pub(super) node: Option<NodeName>,
}

impl<S: Sync> FromRequestParts<S> for EventQuery {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failed> {
        let mut asked = Asked::of(&parts.uri)?;
        let (after, limit) = (asked.after()?.unwrap_or_default(), asked.limit()?);
        let (page, node) = (Page { after, limit }, asked.node()?);
        asked.finish("after, limit, node")?;
        Ok(Self { page, node })
    }
}

/// Which steps, and from where.
pub(super) struct WatchQuery {
    pub(super) after: Option<u64>,
    pub(super) node: Option<NodeName>,
}

impl<S: Sync> FromRequestParts<S> for WatchQuery {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failed> {
        let mut asked = Asked::of(&parts.uri)?;
        let (after, node) = (asked.after()?, asked.node()?);
        asked.finish("after, node")?;
        Ok(Self { after, node })
    }
}

/// Which incidents.
pub(super) struct IncidentQuery {
    pub(super) filter: event_store::IncidentFilter,
    pub(super) limit: usize,
}

impl<S: Sync> FromRequestParts<S> for IncidentQuery {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failed> {
        let mut asked = Asked::of(&parts.uri)?;
        let limit = asked.limit()?;
        let before = asked.take("before")?;
        let filter = event_store::IncidentFilter {
            node: asked.node()?,
            open: asked.parse("open", "true or false", |_| true)?,
            before: before.as_deref().map(incident_id).transpose()?,
        };
        asked.finish("node, open, before, limit")?;
        Ok(Self { filter, limit })
    }
}

/// The node that the path names.
pub(super) struct OfNode(pub(super) NodeName);

impl<S: Send + Sync> FromRequestParts<S> for OfNode {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failed> {
        let name = in_path(parts, state).await?;
        node_name(&name).map(Self)
    }
}

/// The incident that the path names.
pub(super) struct OfIncident(pub(super) IncidentId);

impl<S: Send + Sync> FromRequestParts<S> for OfIncident {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failed> {
        let id = in_path(parts, state).await?;
        incident_id(&id).map(Self)
    }
}

async fn in_path<S: Send + Sync>(parts: &mut Parts, state: &S) -> Result<String, Failed> {
    let path: Result<Path<String>, PathRejection> = Path::from_request_parts(parts, state).await;
    path.map(|Path(name)| name).map_err(|error| {
        let text = format!(
            "the path can't be read: {}; want UTF-8, percent-encoded where needed",
            error.body_text()
        );
        Failed::new(StatusCode::BAD_REQUEST, "bad_path", text)
    })
}

/// A JSON body; none at all is an empty object.
pub(super) async fn read_body<T: DeserializeOwned>(body: Body) -> Result<T, Failed> {
    let bytes = to_bytes(body, LARGEST_BODY).await.map_err(|error| {
        let inner = std::error::Error::source(&error);
        if inner.is_some_and(<dyn std::error::Error>::is::<LengthLimitError>) {
            let text = format!("the body is too large; want at most {LARGEST_BODY} bytes");
            Failed::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", text)
        } else {
            let text = format!("the body can't be read: {error}; send the call again");
            Failed::new(StatusCode::BAD_REQUEST, "bad_body", text)
        }
    })?;
    let bytes = if bytes.is_empty() {
        &b"{}"[..]
    } else {
        &bytes[..]
    };
    let bad = |why: &str| {
        let text = format!("the body is not as wanted: {why}; want a JSON object of this path");
        Failed::new(StatusCode::BAD_REQUEST, "bad_body", text)
    };
    // A list would be read as the fields in their order.
    if !bytes.trim_ascii_start().starts_with(b"{") {
        return Err(bad("it is no object"));
    }
    serde_json::from_slice(bytes).map_err(|error| bad(&error.to_string()))
}

fn node_name(text: &str) -> Result<NodeName, Failed> {
    NodeName::new(text)
        .map_err(|error| Failed::new(StatusCode::BAD_REQUEST, "bad_node_name", error.to_string()))
}

fn incident_id(text: &str) -> Result<IncidentId, Failed> {
    IncidentId::new(text).ok_or_else(|| {
        let text = format!(
            "{:?} is no incident's id; want a ULID: 26 digits and upper-case letters, as \
             /api/v1/incidents shows them",
            shown(text)
        );
        Failed::new(StatusCode::BAD_REQUEST, "bad_incident_id", text)
    })
}

fn bad_query(given: &str, allowed: &str) -> Failed {
    let text = format!("query: {given}; allowed: {allowed}");
    Failed::new(StatusCode::BAD_REQUEST, "bad_query", text)
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}
