//! Whether a program of the reference runs in the cluster: what it owns is then left to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;
use tracing::{info, warn};

use super::{Call, CallError, Kube};

/// Between looks: installing or removing the reference is a matter of minutes.
const LOOK: Duration = Duration::from_mins(1);
/// The same until the first answer: what waits for it should not wait for long.
const FIRST_LOOKS: Duration = Duration::from_secs(1);
/// Longest time for one look.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// A program of the reference, by the name that its chart gives it, in whatever namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// Writes node conditions and Events.
    PlatformConnectors,
    /// Cordons and taints.
    FaultQuarantine,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::PlatformConnectors => "platform-connectors",
            Self::FaultQuarantine => "fault-quarantine",
        }
    }

    fn resource(self) -> &'static str {
        match self {
            Self::PlatformConnectors => "daemonsets",
            Self::FaultQuarantine => "deployments",
        }
    }
}

/// Whether it runs, as last looked. Cheap to clone; all clones are one.
#[derive(Debug, Clone)]
pub struct Reference {
    program: Program,
    runs: Arc<AtomicBool>,
    is_known: Arc<AtomicBool>,
}

#[derive(Deserialize)]
struct List {
    items: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    #[serde(default)]
    spec: Spec,
}

#[derive(Deserialize, Default)]
struct Spec {
    /// A Deployment's; one that was scaled to nothing does not run.
    replicas: Option<u32>,
}

impl Reference {
    /// Until the first look it counts as running.
    pub fn new(program: Program) -> Self {
        Self {
            program,
            runs: Arc::new(AtomicBool::new(true)),
            is_known: Arc::new(AtomicBool::new(false)),
        }
    }

    /// Whether it runs.
    pub fn runs(&self) -> bool {
        self.runs.load(Ordering::Relaxed)
    }

    /// Between looks.
    pub fn pause(&self) -> Duration {
        if self.is_known.load(Ordering::Relaxed) {
            LOOK
        } else {
            FIRST_LOOKS
        }
    }

    /// Looks once. If that is refused it counts as running; if there is no answer, what was known
    /// stays.
    pub async fn look(&self, kube: &Kube) {
        let (name, resource) = (self.program.name(), self.program.resource());
        let call = Call {
            act: format!("look for the reference's {name}"),
            path: format!("/apis/apps/v1/{resource}?fieldSelector=metadata.name%3D{name}&limit=8"),
            write: None,
            accept: "application/json",
        };
        let runs = match kube.call(&call, Instant::now() + LOOK_TIMEOUT).await {
            Ok(body) => serde_json::from_slice::<List>(&body)
                .is_ok_and(|list| list.items.iter().any(|item| item.spec.replicas != Some(0))),
            Err(error @ CallError::Refused { .. }) => {
                warn!(
                    code = error.code(),
                    why = %error,
                    program = name,
                    "whether the reference's program runs can't be read: it counts as running"
                );
                true
            }
            Err(_) => return,
        };
        self.is_known.store(true, Ordering::Relaxed);
        if self.runs.swap(runs, Ordering::Relaxed) != runs {
            info!(program = name, runs, "a program of the reference");
        }
    }

    /// Looks again and again.
    pub async fn watch(&self, kube: &Kube) {
        loop {
            tokio::time::sleep(self.pause()).await;
            self.look(kube).await;
        }
    }
}
