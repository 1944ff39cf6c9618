//! `/healthz`, `/readyz`, `/metrics`.
//!
//! Alive means that the process answers. Ready means that every subsystem that runs in this
//! process said that it is; one that is switched off is not listed, and one that loses its footing
//! (a lost watch, an unreachable API server) says so again. A part that works but for something says
//! what.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;

use crate::metrics::ControllerMetrics;

/// Which parts of the process are ready. Cheap to clone; all clones are one.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<Mutex<BTreeMap<&'static str, Standing>>>);

/// How it stands with a part.
#[derive(Debug, Clone)]
enum Standing {
    Ready,
    /// It works, but not all of it.
    Limited(String),
    NotReady(String),
}

/// One part's own say in the process's readiness.
#[derive(Debug, Clone)]
pub struct Subsystem {
    name: &'static str,
    all: Readiness,
}

impl Readiness {
    /// Adds a part, which is not ready until it says so. The same name again is the same part.
    pub fn subsystem(&self, name: &'static str) -> Subsystem {
        let subsystem = Subsystem {
            name,
            all: self.clone(),
        };
        subsystem.not_ready("starting");
        subsystem
    }

    /// Whether all parts are ready, and a line for each.
    pub fn report(&self) -> (bool, String) {
        let parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        for (name, state) in parts.iter() {
            let state = match state {
                Standing::Ready => "ready",
                Standing::Limited(what) | Standing::NotReady(what) => what,
            };
            // Writing to a string can't fail.
            let _ = writeln!(text, "{name}: {state}");
        }
        let ready = |state: &Standing| !matches!(state, Standing::NotReady(_));
        (parts.values().all(ready), text)
    }
}

impl Subsystem {
    /// It works.
    pub fn ready(&self) {
        self.set(Standing::Ready);
    }

    /// It works, but for what is said here, for people. The process stays ready: to take its address
    /// from its callers would keep the rest from them too.
    pub fn limited(&self, what: impl Into<String>) {
        self.set(Standing::Limited(what.into()));
    }

    /// It doesn't, and why; for people.
    pub fn not_ready(&self, why: impl Into<String>) {
        self.set(Standing::NotReady(why.into()));
    }

    fn set(&self, state: Standing) {
        let mut parts = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        parts.insert(self.name, state);
    }
}

/// What the three pages are made from.
#[derive(Debug, Clone)]
pub struct Admin {
    /// Readiness.
    pub readiness: Readiness,
    /// Numbers.
    pub metrics: Arc<ControllerMetrics>,
}

impl Admin {
    /// The routes.
    pub fn router(self) -> Router {
        Router::new()
            .route("/healthz", get(|| async { "ok\n" }))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .with_state(self)
    }
}

async fn readyz(State(admin): State<Admin>) -> impl IntoResponse {
    let (ready, text) = admin.readiness.report();
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, text)
}

async fn metrics(State(admin): State<Admin>) -> impl IntoResponse {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    (
        [(header::CONTENT_TYPE, OPEN_METRICS)],
        admin.metrics.encode(),
    )
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use tower::ServiceExt as _;

    use super::*;

    async fn get(admin: &Admin, path: &str) -> (StatusCode, String) {
        let request = http::Request::get(path)
            .body(axum::body::Body::empty())
            .unwrap();
        let answer = admin.clone().router().oneshot(request).await.unwrap();
        let status = answer.status();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn ready_only_when_every_part_is_and_no_longer_when_one_is_not() {
        let admin = Admin {
            readiness: Readiness::default(),
            metrics: Arc::new(ControllerMetrics::new()),
        };
        let store = admin.readiness.subsystem("store");
        let watch = admin.readiness.subsystem("node watch");
        store.ready();
        let (status, text) = get(&admin, "/readyz").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(text, "node watch: starting\nstore: ready\n");
        watch.ready();
        assert_eq!(get(&admin, "/readyz").await.0, StatusCode::OK);
        store.limited("the disk is full");
        let (status, text) = get(&admin, "/readyz").await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(text, "node watch: ready\nstore: the disk is full\n");
        watch.not_ready("the API server closed the watch");
        let (status, text) = get(&admin, "/readyz").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(text.contains("closed the watch"), "{text}");
        assert_eq!(get(&admin, "/healthz").await.0, StatusCode::OK);
    }

    #[tokio::test]
    async fn the_metrics_page_ends_as_open_metrics_demands() {
        let admin = Admin {
            readiness: Readiness::default(),
            metrics: Arc::new(ControllerMetrics::new()),
        };
        let (status, text) = get(&admin, "/metrics").await;
        assert_eq!(status, StatusCode::OK);
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
