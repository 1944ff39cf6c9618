//! Whether a program of the reference runs in the cluster: what it owns is then left to it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use tokio::time::Instant;
use tracing::{info, warn};

use super::{Call, CallError, Kube};

/// Between looks: installing the reference is a matter of minutes.
const LOOK: Duration = Duration::from_mins(1);
/// The same while it runs: what waits for its end should not wait long.
const LOOK_RUNNING: Duration = Duration::from_secs(10);
/// The same until the first answer.
const FIRST_LOOKS: Duration = Duration::from_secs(1);
/// Longest time for one look.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// A program of the reference, in whatever namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// Writes node conditions and Events.
    PlatformConnectors,
    /// Cordons and taints.
    FaultQuarantine,
    /// Evicts pods.
    NodeDrainer,
    /// Orders repairs.
    FaultRemediation,
    /// Carries repairs out.
    Janitor,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::PlatformConnectors => "platform-connectors",
            Self::FaultQuarantine => "fault-quarantine",
            Self::NodeDrainer => "node-drainer",
            Self::FaultRemediation => "fault-remediation",
            Self::Janitor => "janitor",
        }
    }

    fn resource(self) -> &'static str {
        match self {
            Self::PlatformConnectors => "daemonsets",
            Self::FaultQuarantine | Self::NodeDrainer | Self::FaultRemediation | Self::Janitor => {
                "deployments"
            }
        }
    }

    /// What finds it: the name that its chart gives it, and the label that it has under another.
    fn selectors(self) -> &'static [&'static str] {
        match self {
            Self::PlatformConnectors => &["fieldSelector=metadata.name%3Dplatform-connectors"],
            Self::FaultQuarantine => &[
                "fieldSelector=metadata.name%3Dfault-quarantine",
                "labelSelector=app.kubernetes.io%2Fname%3Dfault-quarantine",
            ],
            Self::NodeDrainer => &[
                "fieldSelector=metadata.name%3Dnode-drainer",
                "labelSelector=app.kubernetes.io%2Fname%3Dnode-drainer",
            ],
            Self::FaultRemediation => &[
                "fieldSelector=metadata.name%3Dfault-remediation",
                "labelSelector=app.kubernetes.io%2Fname%3Dfault-remediation",
            ],
            // Others have programs of this name too.
            Self::Janitor => &[
                "fieldSelector=metadata.name%3Djanitor&labelSelector=app.kubernetes.io%2Fname%3Djanitor",
            ],
        }
    }
}

/// Whether it runs, as last looked. Cheap to clone; all clones are one.
#[derive(Debug, Clone)]
pub struct Reference {
    program: Program,
    runs: Arc<AtomicBool>,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    is_known: bool,
    /// When the last answer came.
    at: Option<Timestamp>,
    /// What runs: `Deployment nvsentinel/fault-quarantine`.
    what: Option<String>,
}

#[derive(Deserialize, Default)]
struct List {
    items: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    metadata: Named,
    #[serde(default)]
    spec: Spec,
}

#[derive(Deserialize)]
struct Named {
    namespace: String,
    name: String,
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
            seen: Arc::default(),
        }
    }

    /// Whether it runs.
    pub fn runs(&self) -> bool {
        self.runs.load(Ordering::Relaxed)
    }

    /// Whether a look was answered.
    pub fn is_known(&self) -> bool {
        self.seen().is_known
    }

    /// What runs, for people; none if it does not, or before the first look.
    pub fn found(&self) -> Option<String> {
        self.seen().what.clone()
    }

    /// When a look was last answered.
    pub fn looked_at(&self) -> Option<Timestamp> {
        self.seen().at
    }

    /// Between looks.
    pub fn pause(&self) -> Duration {
        match (self.is_known(), self.runs()) {
            (false, _) => FIRST_LOOKS,
            (true, true) => LOOK_RUNNING,
            (true, false) => LOOK,
        }
    }

    /// Looks once; answers whether something else is known now. If that is refused it counts as
    /// running; if there is no answer, what was known stays.
    pub async fn look(&self, kube: &Kube) -> bool {
        let name = self.program.name();
        let mut found = None;
        for selector in self.program.selectors() {
            found = match self.ask(kube, selector).await {
                Ok(found) => found,
                Err(error @ CallError::Refused { .. }) => {
                    warn!(
                        code = error.code(),
                        why = %error,
                        program = name,
                        "whether the reference's program runs can't be read: it counts as running"
                    );
                    let what = self.program.resource();
                    Some(format!(
                        "unknown: we may not list {what} ({})",
                        error.code()
                    ))
                }
                Err(_) => return false,
            };
            if found.is_some() {
                break;
            }
        }
        let mut seen = self.seen();
        let changed = !seen.is_known || seen.what != found;
        if changed {
            let what = found.as_deref().unwrap_or_default();
            info!(
                program = name,
                runs = found.is_some(),
                what,
                "a program of the reference"
            );
        }
        self.runs.store(found.is_some(), Ordering::Relaxed);
        *seen = Seen {
            is_known: true,
            at: Some(Timestamp::now()),
            what: found,
        };
        changed
    }

    /// Looks again and again until the future is dropped; tells what runs whenever something else is
    /// known.
    pub async fn watch(&self, kube: &Kube, tell: impl Fn(Option<String>)) {
        loop {
            if self.look(kube).await {
                tell(self.found());
            }
            tokio::time::sleep(self.pause()).await;
        }
    }

    /// The first that runs of those that a selector finds.
    async fn ask(&self, kube: &Kube, selector: &str) -> Result<Option<String>, CallError> {
        let (name, resource) = (self.program.name(), self.program.resource());
        let call = Call {
            act: format!("look for the reference's {name}"),
            path: format!("/apis/apps/v1/{resource}?{selector}&limit=8"),
            write: None,
            accept: "application/json",
        };
        let body = kube.call(&call, Instant::now() + LOOK_TIMEOUT).await?;
        let list = serde_json::from_slice::<List>(&body).unwrap_or_default();
        let mut running = list.items.iter().filter(|i| i.spec.replicas != Some(0));
        let kind = match self.program {
            Program::PlatformConnectors => "DaemonSet",
            Program::FaultQuarantine
            | Program::NodeDrainer
            | Program::FaultRemediation
            | Program::Janitor => "Deployment",
        };
        let said =
            |item: &Item| format!("{kind} {}/{}", item.metadata.namespace, item.metadata.name);
        Ok(running.next().map(said))
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
