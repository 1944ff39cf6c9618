//! The Lease that one controller holds: the guard against a second one.
//!
//! # Guarantees
//! - Whoever does not hold the Lease starts no write ([`Leadership::write_deadline`] is none), and a
//!   write that was started is bounded by what is left of the Lease, less a margin for clocks.
//! - A holder that can't renew stops starting writes before the Lease runs out, and its task ends
//!   with [`LeaseError::Lost`]: the process ends, and waits once its supervisor has started it again.
//! - The number of the leadership rises with each holder and is part of every stored transition.
//!
//! # Assumptions
//! Clocks of machines may differ as they like, their speeds by less than a tenth: a foreign Lease
//! counts as run out when it did not change for its duration *as watched from here*.
//!
//! # Caveats
//! A controller that was killed leaves a Lease that runs; its successor waits for the rest of it,
//! and says for whom and how long, unless it can prove that the holder is dead ([`Heritage`]). One
//! that stops in order gives it back.

mod heritage;

pub use heritage::Heritage;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use telemetry::Subsystem;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::kubernetes::{Call, CallError, Kube, Write};
use crate::stop::Stop;

/// Between looks at a Lease that another one holds.
const LOOK: Duration = Duration::from_millis(500);

/// What the guard needs.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Who we are: different for each process.
    pub identity: String,
    /// How long a holder is believed, 3 s to 5 min; it is renewed after a third.
    pub duration: Duration,
    /// A holder whose process is proven to be dead: its Lease is free.
    pub dead: Option<String>,
    /// A holder whose process is proven to live, by the store that it has open: that store's folder.
    pub alive: Option<(String, PathBuf)>,
    /// Where it is shown whom we wait for.
    pub shown: Option<Subsystem>,
}

/// Why there is no leadership.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// It could not be renewed in time, or another one took it.
    #[error(
        "lease {lease} is lost: {why}. Before it ran out no write was begun any more, and this process \
         ends now. The kubelet, or whatever supervises it, must start it again: it waits then until the \
         API server answers and the lease is free. Meanwhile agents keep their events, and nodes stay as \
         they are"
    )]
    Lost {
        /// Namespace and name.
        lease: String,
        /// Why.
        why: String,
    },
    /// The API server refuses for good.
    #[error("lease {lease} can't be taken: {source}. Check the role of the service account")]
    Refused {
        /// Namespace and name.
        lease: String,
        /// Why.
        source: CallError,
    },
    /// There is no such namespace.
    #[error(
        "lease {lease} can't be made: there is no namespace {namespace}. Create it (`kubectl create \
         namespace {namespace}`), or name another in kubernetes.namespace"
    )]
    NoNamespace {
        /// Namespace and name.
        lease: String,
        /// Namespace.
        namespace: String,
    },
    /// The order to stop came first.
    #[error("stopped while waiting for lease {lease}")]
    Stopped {
        /// Namespace and name.
        lease: String,
    },
}

impl LeaseError {
    /// Static name of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Lost { .. } => "lease_lost",
            Self::Refused { .. } => "lease_refused",
            Self::NoNamespace { .. } => "no_namespace",
            Self::Stopped { .. } => "lease_stopped",
        }
    }
}

/// That this process leads, and until when. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Leadership {
    /// Number of the leadership.
    fencing: u64,
    /// Until then writes may run.
    until: Arc<watch::Sender<Option<Instant>>>,
    /// Before that nothing that can't be undone is done.
    irreversible_after: Instant,
}

impl Leadership {
    /// Leadership without a Lease, for a controller whose Lease is switched off; the number has to
    /// rise with each start.
    pub fn unguarded(fencing: u64) -> Self {
        let far = Instant::now() + Duration::from_hours(100 * 365 * 24);
        Self {
            fencing,
            until: Arc::new(watch::Sender::new(Some(far))),
            irreversible_after: Instant::now(),
        }
    }

    /// Number of the leadership.
    pub fn fencing(&self) -> u64 {
        self.fencing
    }

    /// The deadline of a write that starts now and may take `at_most`; none if no write may start.
    pub fn write_deadline(&self, at_most: Duration) -> Option<Instant> {
        let now = Instant::now();
        let until = (*self.until.borrow())?;
        (until > now).then(|| until.min(now + at_most))
    }

    /// Whether a write that can't be undone may start: the previous leader's last writes are over.
    pub fn may_do_irreversible(&self) -> bool {
        Instant::now() >= self.irreversible_after && self.write_deadline(LOOK).is_some()
    }
}

/// A held Lease.
#[derive(Debug)]
pub struct Lease {
    kube: Kube,
    settings: Settings,
    leadership: Leadership,
    version: String,
    transitions: u64,
    acquired: String,
}

/// The Lease as read.
#[derive(Debug, Deserialize)]
struct LeaseObject {
    metadata: ObjectMetadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ObjectMetadata {
    resource_version: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    holder_identity: Option<String>,
    lease_duration_seconds: Option<u64>,
    lease_transitions: Option<u64>,
}

impl Lease {
    /// Waits until the Lease is free and takes it. `kube` has connections of its own, so that a
    /// burst of node writes can't hold up a renewal.
    ///
    /// # Errors
    /// [`LeaseError::Refused`], [`LeaseError::Stopped`].
    pub async fn acquire(kube: Kube, settings: Settings, stop: &Stop) -> Result<Self, LeaseError> {
        let stopped = LeaseError::Stopped {
            lease: settings.path_name(),
        };
        tokio::select! {
            biased;
            () = stop.requested() => Err(stopped),
            lease = wait_and_take(kube, settings) => lease,
        }
    }

    /// Who holds the Lease now; none if nobody does, or if it can't be read.
    pub async fn held_by(kube: &Kube, settings: &Settings) -> Option<String> {
        let found = look(kube, settings).await.ok().flatten()?;
        Some(found.holder().to_owned()).filter(|holder| !holder.is_empty())
    }

    /// That we lead.
    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// Renews until the order to stop comes, which gives the Lease back.
    ///
    /// # Errors
    /// [`LeaseError::Lost`].
    pub async fn run(mut self, stop: Stop) -> Result<(), LeaseError> {
        let mut next = Instant::now() + self.settings.duration / 3;
        loop {
            tokio::select! {
                biased;
                () = stop.requested() => break,
                () = tokio::time::sleep_until(next) => {}
            }
            let Some(until) = *self.leadership.until.borrow() else {
                break;
            };
            match self.renew(until).await {
                Ok(()) => next = Instant::now() + self.settings.duration / 3,
                Err(CallError::Unavailable { message, .. }) if Instant::now() < until => {
                    warn!(
                        code = "lease_not_renewed",
                        why = message,
                        "the lease is not renewed yet"
                    );
                    next = Instant::now() + LOOK.min(self.settings.duration / 10);
                }
                Err(error) => {
                    self.leadership.until.send_replace(None);
                    return Err(self.lost(&error));
                }
            }
        }
        self.give_back().await;
        Ok(())
    }

    async fn renew(&mut self, until: Instant) -> Result<(), CallError> {
        let started = Instant::now();
        let holder = self.settings.identity.clone();
        let body = self.settings.body(
            Some(&self.version),
            &holder,
            self.settings.duration,
            self.transitions,
            &self.acquired,
        );
        match self
            .kube
            .metadata_call(&self.settings.put(&body), until)
            .await
        {
            Ok(metadata) => self.version = metadata.resource_version,
            Err(error @ CallError::Changed { .. }) => {
                // Ours all the same if the answer to an earlier renewal was lost.
                let lease = look(&self.kube, &self.settings).await?;
                let ours = lease.filter(|l| l.spec.holder_identity.as_deref() == Some(&holder));
                self.version = ours.ok_or(error)?.metadata.resource_version;
                return Err(CallError::Unavailable {
                    act: "renewal of the lease".to_owned(),
                    message: "an earlier renewal was answered late".to_owned(),
                });
            }
            Err(error) => return Err(error),
        }
        self.leadership
            .until
            .send_replace(Some(started + self.settings.usable()));
        Ok(())
    }

    async fn give_back(&self) {
        let until = self.leadership.until.send_replace(None);
        let second = Duration::from_secs(1);
        let body = self.settings.body(
            Some(&self.version),
            "",
            second,
            self.transitions,
            &self.acquired,
        );
        let deadline = until
            .unwrap_or_else(Instant::now)
            .min(Instant::now() + second * 3);
        match self.kube.call(&self.settings.put(&body), deadline).await {
            Ok(_) => info!(code = "lease_given_back", "the lease is given back"),
            Err(error) => warn!(
                code = "lease_not_given_back",
                %error,
                "the lease is not given back: the next controller waits until it runs out"
            ),
        }
    }

    fn lost(&self, error: &CallError) -> LeaseError {
        // Not the words that it is tried again: it is not.
        let why = match error {
            CallError::Unavailable { message, .. } => format!(
                "it was not renewed within {} s: {message}",
                self.settings.usable().as_secs_f32()
            ),
            CallError::NotFound { .. }
            | CallError::Changed { .. }
            | CallError::Refused { .. }
            | CallError::Budget { .. } => error.to_string(),
        };
        LeaseError::Lost {
            lease: self.settings.path_name(),
            why,
        }
    }
}

impl Settings {
    fn path_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Says for whom this controller waits, how long at most, and why.
    fn tell(&self, holder: &str, wait: Duration) {
        let until = Timestamp::now() + jiff::SignedDuration::try_from(wait).unwrap_or_default();
        let host = |identity: &str| identity.split('_').next().unwrap_or_default().to_owned();
        let alive = self.alive.as_ref().filter(|(alive, _)| alive == holder);
        let why = if let Some((_, store)) = alive {
            format!(
                "another controller leads: its process lives on this machine, and has the store {} \
                 open. Stop one of the two",
                store.display()
            )
        } else if host(holder) == host(&self.identity) {
            "it is another process of this host or pod, which has not given its lease back: that it \
             ended without stopping in order, or lives, can't be told apart before its lease runs out"
                .to_owned()
        } else {
            "another controller leads".to_owned()
        };
        warn!(
            code = "lease_held",
            lease = self.path_name(),
            holder,
            %until,
            why,
            "this controller waits: the lease is held until then, or longer if it is renewed"
        );
        if let Some(shown) = &self.shown {
            shown.not_ready(format!(
                "waiting for lease {}: held by {holder} until {until}, or longer if it is renewed; \
                 {why}",
                self.path_name()
            ));
        }
    }

    /// The part of the Lease in which writes may run: a tenth is left for clocks of other speed.
    fn usable(&self) -> Duration {
        self.duration * 9 / 10
    }

    fn collection(&self) -> String {
        format!(
            "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
            self.namespace
        )
    }

    fn read(&self) -> Call<'static> {
        self.call(
            "reading",
            format!("{}/{}", self.collection(), self.name),
            None,
        )
    }

    fn create<'a>(&self, body: &'a Value) -> Call<'a> {
        self.call("creation", self.collection(), Some((Write::Lease, body)))
    }

    fn put<'a>(&self, body: &'a Value) -> Call<'a> {
        let path = format!("{}/{}", self.collection(), self.name);
        self.call("change", path, Some((Write::LeaseRenewal, body)))
    }

    fn call<'a>(&self, act: &str, path: String, write: Option<(Write, &'a Value)>) -> Call<'a> {
        Call {
            act: format!("{act} of lease {}", self.path_name()),
            path,
            write,
            accept: "application/json",
        }
    }

    fn body(
        &self,
        version: Option<&str>,
        holder: &str,
        duration: Duration,
        transitions: u64,
        acquired: &str,
    ) -> Value {
        let mut metadata = json!({ "name": self.name, "namespace": self.namespace });
        if let Some(version) = version {
            metadata["resourceVersion"] = json!(version);
        }
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": duration.as_secs().max(1),
                "leaseTransitions": transitions,
                "acquireTime": acquired,
                "renewTime": now_text(),
            },
        })
    }
}

/// A time as Kubernetes' `MicroTime` wants it.
fn now_text() -> String {
    Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%S.%6fZ")
        .to_string()
}

async fn wait_and_take(kube: Kube, settings: Settings) -> Result<Lease, LeaseError> {
    let mut seen: Option<(String, Instant)> = None;
    let mut told = String::new();
    loop {
        let look = look(&kube, &settings).await;
        let found = match look {
            Ok(found) => found,
            Err(error @ CallError::Unavailable { .. }) => {
                warn!(code = "lease_unreadable", %error, "the lease can't be read");
                tokio::time::sleep(LOOK).await;
                continue;
            }
            Err(source) => {
                return Err(LeaseError::Refused {
                    lease: settings.path_name(),
                    source,
                });
            }
        };
        let holder = found.as_ref().map_or("", LeaseObject::holder).to_owned();
        let is_dead = settings.dead.as_ref() == Some(&holder);
        let wait = found.as_ref().filter(|_| !is_dead);
        let wait = wait.and_then(|lease| left(lease, &mut seen));
        let Some(wait) = wait else {
            let is_new = found.is_none();
            match take(&kube, &settings, found).await {
                Ok(lease) => return Ok(lease),
                // It can't be missing what is just being made.
                Err(CallError::NotFound { .. }) if is_new => {
                    return Err(LeaseError::NoNamespace {
                        lease: settings.path_name(),
                        namespace: settings.namespace.clone(),
                    });
                }
                // Another one was faster, it was deleted in between, or the answer was lost: look
                // again.
                Err(
                    CallError::Changed { .. }
                    | CallError::Budget { .. }
                    | CallError::Unavailable { .. }
                    | CallError::NotFound { .. },
                ) => {
                    tokio::time::sleep(LOOK).await;
                    continue;
                }
                Err(source) => {
                    return Err(LeaseError::Refused {
                        lease: settings.path_name(),
                        source,
                    });
                }
            }
        };
        if told != holder {
            settings.tell(&holder, wait);
            told = holder;
        }
        tokio::time::sleep(wait.min(LOOK)).await;
    }
}

impl LeaseObject {
    fn holder(&self) -> &str {
        self.spec.holder_identity.as_deref().unwrap_or_default()
    }
}

/// How long a foreign Lease still has to be watched; none if it is free.
fn left(lease: &LeaseObject, seen: &mut Option<(String, Instant)>) -> Option<Duration> {
    if lease.holder().is_empty() {
        return None;
    }
    let version = &lease.metadata.resource_version;
    let now = Instant::now();
    let since = match seen {
        Some((known, since)) if known == version => *since,
        Some(_) | None => {
            *seen = Some((version.clone(), now));
            now
        }
    };
    let duration = Duration::from_secs(lease.spec.lease_duration_seconds.unwrap_or(15).min(3_600));
    let end = since + duration + duration / 10;
    (end > now).then(|| end - now)
}

async fn look(kube: &Kube, settings: &Settings) -> Result<Option<LeaseObject>, CallError> {
    let call = settings.read();
    match kube.call(&call, Instant::now() + settings.duration).await {
        Ok(body) => {
            serde_json::from_slice(&body)
                .map(Some)
                .map_err(|error| CallError::Unavailable {
                    act: call.act,
                    message: format!("no lease: {error}"),
                })
        }
        Err(CallError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn take(
    kube: &Kube,
    settings: &Settings,
    found: Option<LeaseObject>,
) -> Result<Lease, CallError> {
    let started = Instant::now();
    let acquired = now_text();
    // A Lease that was deleted starts to count anew; the store's own number keeps it rising.
    let transitions = found
        .as_ref()
        .map_or(1, |l| l.spec.lease_transitions.unwrap_or_default() + 1);
    let version = found.as_ref().map(|l| l.metadata.resource_version.as_str());
    let body = settings.body(
        version,
        &settings.identity,
        settings.duration,
        transitions,
        &acquired,
    );
    let call = if found.is_some() {
        settings.put(&body)
    } else {
        settings.create(&body)
    };
    let metadata = kube
        .metadata_call(&call, started + settings.duration / 2)
        .await?;
    info!(code = "lease_taken", transitions, "this controller leads");
    let usable = settings.usable();
    Ok(Lease {
        kube: kube.clone(),
        leadership: Leadership {
            fencing: transitions,
            until: Arc::new(watch::Sender::new(Some(started + usable))),
            irreversible_after: started + settings.duration,
        },
        settings: settings.clone(),
        version: metadata.resource_version,
        transitions,
        acquired,
    })
}
