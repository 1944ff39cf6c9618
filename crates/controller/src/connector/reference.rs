//! Whether a platform-connector of the reference runs in the cluster: while one does, its
//! condition types are its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::Method;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::kubernetes::{Call, CallError, Kube};

/// Name of its DaemonSet (chart of the reference).
const DAEMON_SET: &str = "platform-connectors";
/// Between looks: installing or removing the reference is a matter of minutes.
const LOOK: Duration = Duration::from_secs(60);
/// Longest time for one look.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// Cheap to clone; all clones are one.
#[derive(Debug, Clone)]
pub(super) struct Reference(Arc<AtomicBool>);

#[derive(Deserialize)]
struct List {
    items: Vec<IgnoredAny>,
}

impl Reference {
    /// Until the first look it counts as running.
    pub(super) fn new() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }

    pub(super) fn runs(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Looks once.
    pub(super) async fn look(&self, kube: &Kube) {
        let call = Call {
            act: "look for the reference's platform-connectors".to_owned(),
            method: Method::GET,
            path: format!(
                "/apis/apps/v1/daemonsets?fieldSelector=metadata.name%3D{DAEMON_SET}&limit=1"
            ),
            content_type: "",
            body: None,
            accept: "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        };
        let runs = match kube.call(&call, Instant::now() + LOOK_TIMEOUT).await {
            Ok(body) => serde_json::from_slice::<List>(&body).map(|list| !list.items.is_empty()),
            Err(error @ CallError::Refused { .. }) => {
                warn!(
                    code = error.code(),
                    why = %error,
                    "whether the reference's platform-connectors run can't be read: its conditions \
                     are left alone"
                );
                Ok(true)
            }
            // What was known stays.
            Err(_) => return,
        };
        let runs = runs.unwrap_or(true);
        if self.0.swap(runs, Ordering::Relaxed) != runs {
            info!(runs, "the reference's platform-connectors");
        }
    }

    /// Looks again and again.
    pub(super) async fn watch(&self, kube: &Kube) {
        loop {
            tokio::time::sleep(LOOK).await;
            self.look(kube).await;
        }
    }
}
