//! The routes, and from stored things to what they show.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use event_store::{StoredFault, TransitionsOf};
use health_event::text::harmless;
use health_event::{CloseCause, NodeName};
use jiff::Timestamp;
use tokio::sync::Semaphore;
use tokio::task::JoinError;

use super::asked::{EventQuery, IncidentQuery, NoQuery, OfIncident, OfNode, PAGE, Page, read_body};
use super::auth::ApiAuth;
use super::failed::{self, Failed, no_node, nodes_unread};
use super::watch::{self, Watches};
use super::{types, view};
use crate::context::Context;
use crate::requests::{Request as Ask, Requests};

/// Looks at the store at a time.
const LOOKS: usize = 4;
/// Bytes of a person's reason at most.
const LONGEST_REASON: usize = 1_024;

/// What the routes work on.
#[derive(Debug, Clone)]
pub struct ApiState {
    /// The process's parts.
    pub context: Context,
    /// Where persons' requests go.
    pub requests: Requests,
    /// Who may.
    pub auth: ApiAuth,
    /// Calls that stay open.
    pub watches: Watches,
}

/// Who calls, by the middleware.
#[derive(Debug, Clone)]
struct Actor(String);

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
        .route("/api/v1/nodes/{name}/cancel", post(cancel))
        .route("/api/v1/nodes/{name}/close", post(close))
        .route("/api/v1/incidents", get(incidents))
        .route("/api/v1/incidents/{id}", get(incident))
        .route("/api/v1/events", get(events))
        .route("/api/v1/watch", get(watch::watch))
        .route("/api/v1/breaker", get(breaker))
        .route("/api/v1/breaker/reset", post(breaker_reset))
        .method_not_allowed_fallback(failed::no_such_method)
        .layer(from_fn_with_state(Arc::clone(&state), admit))
        .fallback(failed::no_such_path)
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

async fn status(State(state): State<Arc<ApiState>>, _: NoQuery) -> Answer<types::Status> {
    let look = |state: &ApiState| Ok(view::status(&state.context, Timestamp::now())?);
    apart(&state, look).await
}

async fn nodes(State(state): State<Arc<ApiState>>, _: NoQuery) -> Answer<Vec<types::NodeLine>> {
    must_have_read(&state)?;
    let look = |state: &ApiState| Ok(view::node_lines(&state.context, Timestamp::now())?);
    apart(&state, look).await
}

async fn node(
    State(state): State<Arc<ApiState>>,
    OfNode(name): OfNode,
    _: NoQuery,
) -> Answer<types::Node> {
    apart(&state, move |state| shown(state, &name)).await
}

/// Looks at the store beside the threads that renew the Lease and decide: what a look costs grows with
/// what is stored. [`LOOKS`] at a time, so that many callers don't take all processors.
async fn apart<T: Send + 'static>(
    state: &Arc<ApiState>,
    look: impl FnOnce(&ApiState) -> Result<T, Failed> + Send + 'static,
) -> Answer<T> {
    static ROOM: Semaphore = Semaphore::const_new(LOOKS);
    // Never closed.
    let permit = ROOM.acquire().await;
    let state = Arc::clone(state);
    let done = tokio::task::spawn_blocking(move || look(&state)).await;
    drop(permit);
    match done.map_err(JoinError::try_into_panic) {
        Ok(done) => done.map(Json),
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        Err(Err(_)) => Err(failed::not_leading()),
    }
}

/// What there is to show of a node.
fn shown(state: &ApiState, name: &NodeName) -> Result<types::Node, Failed> {
    must_have_read(state)?;
    let node = view::node(&state.context, name, Timestamp::now())?;
    let lists = [&node.faults, &node.observed];
    let has_nothing = lists.iter().all(|faults| faults.is_empty())
        && node.incidents.is_empty()
        && node.closed.is_empty();
    if node.object.is_none() && has_nothing {
        return Err(no_node(name));
    }
    Ok(node)
}

async fn timeline(
    State(state): State<Arc<ApiState>>,
    OfNode(name): OfNode,
    page: Page,
) -> Answer<Vec<types::Step>> {
    let look = move |state: &ApiState| {
        let store = &state.context.store;
        let steps = store.transitions(TransitionsOf::Node(&name), page.after, page.limit)?;
        if steps.is_empty() {
            must_know(state, &name)?;
        }
        Ok(steps.into_iter().map(view::step).collect())
    };
    apart(&state, look).await
}

async fn incidents(
    State(state): State<Arc<ApiState>>,
    IncidentQuery { filter, limit }: IncidentQuery,
) -> Answer<Vec<types::Incident>> {
    let look = move |state: &ApiState| {
        let found = state.context.store.incidents(&filter, limit)?;
        let shown = found.iter().map(|i| view::incident(&state.context, i));
        Ok(shown.collect())
    };
    apart(&state, look).await
}

async fn incident(
    State(state): State<Arc<ApiState>>,
    OfIncident(id): OfIncident,
    _: NoQuery,
) -> Answer<types::IncidentDetail> {
    let look = move |state: &ApiState| {
        let store = &state.context.store;
        let Some(found) = store.incident(&id)? else {
            let text = format!("there is no incident {id}; see /api/v1/incidents");
            return Err(Failed::new(StatusCode::NOT_FOUND, "no_incident", text));
        };
        let steps = store.transitions(TransitionsOf::Incident(&id), 0, PAGE)?;
        Ok(types::IncidentDetail {
            incident: view::incident(&state.context, &found),
            timeline: steps.into_iter().map(view::step).collect(),
        })
    };
    apart(&state, look).await
}

async fn events(
    State(state): State<Arc<ApiState>>,
    EventQuery { page, node }: EventQuery,
) -> Answer<Vec<types::Event>> {
    let look = move |state: &ApiState| {
        let store = &state.context.store;
        let found = store.events(node.as_ref(), page.after, page.limit)?;
        Ok(found.into_iter().map(view::event).collect())
    };
    apart(&state, look).await
}

async fn breaker(
    State(state): State<Arc<ApiState>>,
    _: NoQuery,
) -> Answer<Vec<types::BreakerPool>> {
    let look = |state: &ApiState| Ok(view::breaker(&state.context)?);
    apart(&state, look).await
}

async fn breaker_reset(
    State(state): State<Arc<ApiState>>,
    Extension(Actor(actor)): Extension<Actor>,
    _: NoQuery,
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
    OfNode(node): OfNode,
    _: NoQuery,
    body: Body,
) -> Answer<types::Done> {
    let types::HoldRequest { reason } = read_body(body).await?;
    must_know(&state, &node)?;
    if harmless(&reason).trim().is_empty() {
        let text =
            format!("node {node} is not held: `reason` is empty; say why, for the next person");
        return Err(Failed::new(StatusCode::BAD_REQUEST, "no_reason", text));
    }
    short_enough(&reason, &format!("node {node} is not held"))?;
    ask(&state, Ask::Hold { node, reason }, actor).await
}

async fn release(
    State(state): State<Arc<ApiState>>,
    Extension(Actor(actor)): Extension<Actor>,
    OfNode(node): OfNode,
    _: NoQuery,
    body: Body,
) -> Answer<types::Done> {
    let types::ReleaseRequest { reason } = read_body(body).await?;
    must_know(&state, &node)?;
    short_enough(&reason, &format!("node {node} is not released"))?;
    ask(&state, Ask::Release { node, reason }, actor).await
}

async fn cancel(
    State(state): State<Arc<ApiState>>,
    Extension(Actor(actor)): Extension<Actor>,
    OfNode(node): OfNode,
    _: NoQuery,
    body: Body,
) -> Answer<types::Done> {
    let types::ReleaseRequest { reason } = read_body(body).await?;
    must_know(&state, &node)?;
    short_enough(
        &reason,
        &format!("the incident of node {node} is not ended"),
    )?;
    ask(&state, Ask::Cancel { node, reason }, actor).await
}

/// A reason stands in every look at the node.
fn short_enough(reason: &str, undone: &str) -> Result<(), Failed> {
    if reason.len() <= LONGEST_REASON {
        return Ok(());
    }
    let text = format!(
        "{undone}: `reason` has {} bytes; want at most {LONGEST_REASON}",
        reason.len()
    );
    Err(Failed::new(StatusCode::BAD_REQUEST, "long_reason", text))
}

async fn close(
    State(state): State<Arc<ApiState>>,
    Extension(Actor(actor)): Extension<Actor>,
    OfNode(node): OfNode,
    _: NoQuery,
    body: Body,
) -> Answer<types::Done> {
    let types::CloseRequest { fault } = read_body(body).await?;
    let store = &state.context.store;
    let mut open = store.open_faults(&node)?.to_vec();
    open.extend(store.observed(&node)?);
    let of_id = |open: &&StoredFault| view::fault_id(&open.id) == fault;
    let Some(found) = open.iter().find(of_id) else {
        let text = if open.is_empty() {
            // No name is pointed to that would not be found.
            shown(&state, &node)?;
            format!(
                "node {node} has no open fault {fault:?}, nor any other: nothing is to be closed"
            )
        } else {
            format!(
                "node {node} has no open fault {fault:?}; `warden explain {node}` shows their ids"
            )
        };
        return Err(Failed::new(StatusCode::NOT_FOUND, "no_fault", text));
    };
    let closed = store
        .close_fault(&found.id, CloseCause::Person, Timestamp::now())
        .await;
    closed?;
    tracing::info!(%node, fault = %found.id, actor, "fault closed by a person");
    Ok(Json(types::Done {
        done: format!("closed {}", found.id),
        only_recorded: false,
    }))
}

/// The nodes were read once.
fn must_have_read(state: &ApiState) -> Result<(), Failed> {
    if state.context.nodes.is_synced() {
        Ok(())
    } else {
        Err(nodes_unread())
    }
}

/// A node of the cluster, or one of which something is stored.
fn must_know(state: &ApiState, name: &NodeName) -> Result<(), Failed> {
    let context = &state.context;
    let is_known = context.nodes.get(name).is_some()
        || !context.store.events(Some(name), 0, 1)?.is_empty()
        || !context.store.open_incidents_of(name)?.is_empty();
    if is_known {
        return Ok(());
    }
    must_have_read(state)?;
    Err(no_node(name))
}

async fn ask(state: &ApiState, request: Ask, actor: String) -> Answer<types::Done> {
    match state.requests.ask(request, actor).await? {
        Ok(done) => Ok(Json(types::Done {
            done: done.text,
            only_recorded: done.only_recorded,
        })),
        Err(why) => Err(Failed::new(StatusCode::CONFLICT, "request_refused", why)),
    }
}
