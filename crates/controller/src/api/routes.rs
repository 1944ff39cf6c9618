//! The routes, and from stored things to what they show.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use event_store::{IncidentFilter, ReadError, TransitionsOf};
use health_event::incident::IncidentId;
use health_event::{CloseCause, NodeName};
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::auth::{ApiAuth, Refused};
use super::{types, view};
use crate::context::Context;
use crate::requests::{Request as Ask, RequestError, Requests};

/// Largest body of a request.
const LARGEST_BODY: usize = 64 * 1024;
/// Elements of an answer, unless fewer are asked for.
const PAGE: usize = 500;

/// What the routes work on.
#[derive(Debug, Clone)]
pub struct ApiState {
    /// The process's parts.
    pub context: Context,
    /// Where persons' requests go.
    pub requests: Requests,
    /// Who may.
    pub auth: ApiAuth,
}

/// Who calls, by the middleware.
#[derive(Debug, Clone)]
struct Actor(String);

/// An answer that is no success.
#[derive(Debug)]
struct Failed(StatusCode, types::Problem);

impl Failed {
    fn new(status: StatusCode, code: &str, error: impl Into<String>) -> Self {
        Self(
            status,
            types::Problem {
                error: error.into(),
                code: code.to_owned(),
            },
        )
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        (self.0, Json(self.1)).into_response()
    }
}

impl From<ReadError> for Failed {
    fn from(error: ReadError) -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            error.code(),
            error.to_string(),
        )
    }
}

impl From<RequestError> for Failed {
    fn from(error: RequestError) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            error.code(),
            error.to_string(),
        )
    }
}

impl From<Refused> for Failed {
    fn from(refused: Refused) -> Self {
        Self::new(refused.status, refused.code, refused.why)
    }
}

type Answer<T> = Result<Json<T>, Failed>;

/// `/api/v1`.
pub fn router(state: ApiState) -> Router {
    let state = Arc::new(state);
    Router::new()
        .route("/api/v1/status", get(status))
        .route("/api/v1/nodes", get(nodes))
        .route("/api/v1/nodes/{name}", get(node))
        .route("/api/v1/nodes/{name}/timeline", get(timeline))
        .route("/api/v1/nodes/{name}/hold", post(hold))
        .route("/api/v1/nodes/{name}/release", post(release))
        .route("/api/v1/nodes/{name}/close", post(close))
        .route("/api/v1/incidents", get(incidents))
        .route("/api/v1/incidents/{id}", get(incident))
        .route("/api/v1/events", get(events))
        .route("/api/v1/breaker", get(breaker))
        .route("/api/v1/breaker/reset", post(breaker_reset))
        .layer(from_fn_with_state(Arc::clone(&state), admit))
        .with_state(state)
}

async fn admit(State(state): State<Arc<ApiState>>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    match state
        .auth
        .check(request.headers(), request.method(), &path)
        .await
    {
        Ok(user) => {
            request.extensions_mut().insert(Actor(user));
            next.run(request).await
        }
        Err(refused) => Failed::from(refused).into_response(),
    }
}

async fn status(State(state): State<Arc<ApiState>>) -> Answer<types::Status> {
    Ok(Json(view::status(&state.context, Timestamp::now())?))
}

async fn nodes(State(state): State<Arc<ApiState>>) -> Answer<Vec<types::NodeLine>> {
    Ok(Json(view::node_lines(&state.context, Timestamp::now())?))
}

async fn node(State(state): State<Arc<ApiState>>, Path(name): Path<String>) -> Answer<types::Node> {
    let name = node_name(&name)?;
    let node = view::node(&state.context, &name, Timestamp::now())?;
    if node.object.is_none() && node.faults.is_empty() && node.incidents.is_empty() {
        return Err(no_node(&name));
    }
    Ok(Json(node))
}

/// Where a list goes on, and how long it is.
#[derive(Debug, Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct Page {
    after: u64,
    limit: Option<usize>,
    node: Option<String>,
}

impl Page {
    fn limit(&self) -> usize {
        self.limit.unwrap_or(PAGE).clamp(1, PAGE)
    }
}

async fn timeline(
    State(state): State<Arc<ApiState>>,
    Path(name): Path<String>,
    Query(page): Query<Page>,
) -> Answer<Vec<types::Step>> {
    let name = node_name(&name)?;
    let of = TransitionsOf::Node(&name);
    let steps = state
        .context
        .store
        .transitions(of, page.after, page.limit())?;
    Ok(Json(steps.into_iter().map(view::step).collect()))
}

/// Which incidents.
#[derive(Debug, Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct IncidentQuery {
    node: Option<String>,
    open: Option<bool>,
    before: Option<String>,
    limit: Option<usize>,
}

async fn incidents(
    State(state): State<Arc<ApiState>>,
    Query(query): Query<IncidentQuery>,
) -> Answer<Vec<types::Incident>> {
    let filter = IncidentFilter {
        node: query.node.as_deref().map(node_name).transpose()?,
        open: query.open,
        before: query.before.as_deref().map(incident_id).transpose()?,
    };
    let limit = query.limit.unwrap_or(PAGE).clamp(1, PAGE);
    let found = state.context.store.incidents(&filter, limit)?;
    Ok(Json(found.iter().map(view::incident).collect()))
}

async fn incident(
    State(state): State<Arc<ApiState>>,
    Path(id): Path<String>,
) -> Answer<types::IncidentDetail> {
    let id = incident_id(&id)?;
    let store = &state.context.store;
    let Some(found) = store.incident(&id)? else {
        let text = format!("there is no incident {id}; see /api/v1/incidents");
        return Err(Failed::new(StatusCode::NOT_FOUND, "no_incident", text));
    };
    let steps = store.transitions(TransitionsOf::Incident(&id), 0, PAGE)?;
    Ok(Json(types::IncidentDetail {
        incident: view::incident(&found),
        timeline: steps.into_iter().map(view::step).collect(),
    }))
}

async fn events(
    State(state): State<Arc<ApiState>>,
    Query(page): Query<Page>,
) -> Answer<Vec<types::Event>> {
    let node = page.node.as_deref().map(node_name).transpose()?;
    let found = state
        .context
        .store
        .events(node.as_ref(), page.after, page.limit())?;
    Ok(Json(found.into_iter().map(view::event).collect()))
}

async fn breaker(State(state): State<Arc<ApiState>>) -> Answer<Vec<types::BreakerPool>> {
    Ok(Json(view::breaker(&state.context)?))
}

async fn breaker_reset(
    State(state): State<Arc<ApiState>>,
    Extension(Actor(actor)): Extension<Actor>,
    body: Body,
) -> Answer<types::Done> {
    let types::BreakerReset {
        pool,
        drop_withheld,
    } = read_body(body).await?;
    let request = Ask::BreakerReset {
        pool,
        drop_withheld,
    };
    ask(&state, request, actor).await
}

async fn hold(
    State(state): State<Arc<ApiState>>,
    Extension(Actor(actor)): Extension<Actor>,
    Path(name): Path<String>,
    body: Body,
) -> Answer<types::Done> {
    let node = node_name(&name)?;
    let types::HoldRequest { reason } = read_body(body).await?;
    ask(&state, Ask::Hold { node, reason }, actor).await
}

async fn release(
    State(state): State<Arc<ApiState>>,
    Extension(Actor(actor)): Extension<Actor>,
    Path(name): Path<String>,
) -> Answer<types::Done> {
    let node = node_name(&name)?;
    ask(&state, Ask::Release { node }, actor).await
}

async fn close(
    State(state): State<Arc<ApiState>>,
    Extension(Actor(actor)): Extension<Actor>,
    Path(name): Path<String>,
    body: Body,
) -> Answer<types::Done> {
    let node = node_name(&name)?;
    let types::CloseRequest { fault } = read_body(body).await?;
    let store = &state.context.store;
    let mut open = store.open_faults(&node)?;
    open.extend(store.observed(&node)?);
    let Some(found) = open
        .into_iter()
        .find(|open| view::fault_id(&open.id) == fault)
    else {
        let text = format!("node {node} has no open fault {fault:?}; see /api/v1/nodes/{node}");
        return Err(Failed::new(StatusCode::NOT_FOUND, "no_fault", text));
    };
    let closed = store
        .close_fault(&found.id, CloseCause::Person, Timestamp::now())
        .await;
    closed.map_err(|error| {
        Failed::new(
            StatusCode::SERVICE_UNAVAILABLE,
            error.code(),
            error.to_string(),
        )
    })?;
    tracing::info!(%node, fault = %found.id, actor, "fault closed by a person");
    Ok(Json(types::Done {
        done: format!("closed {}", found.id),
    }))
}

async fn ask(state: &ApiState, request: Ask, actor: String) -> Answer<types::Done> {
    match state.requests.ask(request, actor).await? {
        Ok(done) => Ok(Json(types::Done { done })),
        Err(why) => Err(Failed::new(StatusCode::CONFLICT, "request_refused", why)),
    }
}

/// A JSON body; none at all is an empty object.
async fn read_body<T: DeserializeOwned>(body: Body) -> Result<T, Failed> {
    let bad = |why: String| Failed::new(StatusCode::BAD_REQUEST, "bad_body", why);
    let bytes = to_bytes(body, LARGEST_BODY).await.map_err(|_| {
        bad(format!(
            "the body can't be read; want at most {LARGEST_BODY} bytes"
        ))
    })?;
    let bytes = if bytes.is_empty() {
        &b"{}"[..]
    } else {
        &bytes[..]
    };
    serde_json::from_slice(bytes)
        .map_err(|error| bad(format!("the body is not as wanted: {error}")))
}

fn node_name(text: &str) -> Result<NodeName, Failed> {
    NodeName::new(text)
        .map_err(|error| Failed::new(StatusCode::BAD_REQUEST, "bad_node_name", error.to_string()))
}

fn incident_id(text: &str) -> Result<IncidentId, Failed> {
    IncidentId::new(text).ok_or_else(|| {
        let text = "want an incident's id: a ULID of 26 characters";
        Failed::new(StatusCode::BAD_REQUEST, "bad_incident_id", text)
    })
}

fn no_node(name: &NodeName) -> Failed {
    let text = format!("nothing is known of node {name}; see `kubectl get nodes`");
    Failed::new(StatusCode::NOT_FOUND, "no_node", text)
}
