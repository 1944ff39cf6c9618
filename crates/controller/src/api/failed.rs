//! Answers that are no success: JSON all of them, with object, act, cause, next step and a code.

use axum::Json;
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use event_store::{ReadError, WriteError};
use health_event::NodeName;

use super::auth::Refused;
use super::types;
use crate::requests::RequestError;

/// Characters of a path that an answer repeats.
const SHOWN: usize = 200;

/// An answer that is no success.
#[derive(Debug)]
pub(crate) struct Failed(StatusCode, types::Problem);

impl Failed {
    pub(crate) fn new(status: StatusCode, code: &str, error: impl Into<String>) -> Self {
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
        let mut response = (self.0, Json(self.1)).into_response();
        if self.0 == StatusCode::UNAUTHORIZED {
            let scheme = header::HeaderValue::from_static("Bearer");
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
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

impl From<WriteError> for Failed {
    fn from(error: WriteError) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
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

pub(super) fn no_node(name: &NodeName) -> Failed {
    let text = format!("nothing is known of node {name}; see `kubectl get nodes`");
    Failed::new(StatusCode::NOT_FOUND, "no_node", text)
}

/// Before all nodes were read once, none can be said not to be there.
pub(super) fn nodes_unread() -> Failed {
    let text = "the cluster's nodes have not been read yet, so nothing can be said of any; /readyz \
                says what keeps the node watch, then ask again";
    Failed::new(StatusCode::SERVICE_UNAVAILABLE, "nodes_unread", text)
}

/// Before this process leads it has nothing to show.
pub(crate) fn not_leading() -> Failed {
    let text = "this controller does not lead (yet), and only the leader has the store; /readyz \
                says what it waits for, then ask again";
    Failed::new(StatusCode::SERVICE_UNAVAILABLE, "not_leading", text)
}

/// What is there instead of a switched-off API.
pub(crate) fn switched_off() -> Failed {
    let text = "this controller serves no API: api.enabled is false; there are /healthz, /readyz, \
                /metrics";
    Failed::new(StatusCode::NOT_FOUND, "api_off", text)
}

pub(super) async fn no_such_path(uri: Uri) -> Failed {
    let path: String = uri.path().chars().take(SHOWN).collect();
    let text = format!(
        "there is no path {path}; there are /healthz, /readyz, /metrics and, under /api/v1, \
         status, nodes, incidents, events, watch, breaker"
    );
    Failed::new(StatusCode::NOT_FOUND, "no_such_path", text)
}

pub(super) async fn no_such_method(method: Method, uri: Uri) -> Failed {
    let path: String = uri.path().chars().take(SHOWN).collect();
    let text = format!(
        "{path} can't be asked with {method}; header `allow` of this answer says what it takes"
    );
    Failed::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", text)
}
