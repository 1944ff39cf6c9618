//! From a decided ask to a call: the one gate, and the one place that asks pods to go.

use std::time::Duration;

use decide::drain::{Ask, How, Mode, is_draining};
use event_store::EventStore;
use health_event::NodeName;
use health_event::incident::{IncidentId, QuarantineStatus};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::asked::Outcome;
use crate::kubernetes::{Call, CallError, Kube, Reference, Write, percent_encoded};
use crate::lease::Leadership;
use crate::pods::named;

/// Longest time for one call with its repetitions.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// What the API server says where the pod of the name has another UID: of an eviction or deletion that
/// finds another, and of one under whose hands it changes (apiserver: `rest.BeforeDelete`,
/// `storage.Preconditions`). Every other conflict says nothing about the pod.
const UID_DIFFERS: [&str; 2] = ["UID in the precondition", "UID in precondition"];

/// An ask, with what it was decided for.
#[derive(Debug, Clone)]
pub(super) struct Order {
    pub(super) node: NodeName,
    pub(super) incident: IncidentId,
    pub(super) version: u64,
    pub(super) ask: Ask,
}

/// What keeps a call from being made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blocked {
    /// This process does not lead (any more).
    NotLeading,
    /// The module only decides, or is off.
    Mode,
    /// The reference's own node-drainer runs: two must not drain one node.
    ReferenceRuns,
    /// Whether it runs could not be asked yet.
    ReferenceUnknown,
    /// The incident is another than it was decided for.
    Stale,
    /// The store does not say which it is.
    Unreadable,
}

impl Blocked {
    /// Static name.
    pub(super) fn code(self) -> &'static str {
        match self {
            Self::NotLeading => "not_leading",
            Self::Mode => "mode",
            Self::ReferenceRuns => "reference_runs",
            Self::ReferenceUnknown => "reference_unknown",
            Self::Stale => "stale",
            Self::Unreadable => "store_unreadable",
        }
    }
}

/// What a call needs beside itself.
#[derive(Debug)]
pub(super) struct Apply {
    pub(super) kube: Kube,
    pub(super) store: EventStore,
    pub(super) leadership: Leadership,
    pub(super) mode: Mode,
    pub(super) reference: Reference,
}

impl Apply {
    /// The gate: every call of the module passes it. Answers until when it may run.
    pub(super) fn gate(&self, order: &Order) -> Result<Instant, Blocked> {
        match self.mode {
            Mode::Enforce => {}
            Mode::DryRun | Mode::Refused | Mode::Off => return Err(Blocked::Mode),
        }
        if !self.reference.is_known() {
            return Err(Blocked::ReferenceUnknown);
        }
        // Since the decision, which knew of none.
        if self.reference.runs() {
            return Err(Blocked::ReferenceRuns);
        }
        let open = self.store.open_incidents_of(&order.node);
        let open = open.map_err(|_| Blocked::Unreadable)?;
        let stands = open.iter().any(|incident| {
            let rests = incident.quarantine == QuarantineStatus::Quarantined;
            let same = incident.id == order.incident && incident.version == order.version;
            same && rests && is_draining(incident)
        });
        if !stands {
            return Err(Blocked::Stale);
        }
        self.leadership
            .write_deadline(CALL_TIMEOUT)
            .ok_or(Blocked::NotLeading)
    }

    /// Makes the call; answers what became of it, and its code for people and metrics.
    pub(super) async fn send(&self, ask: &Ask, deadline: Instant) -> (Outcome, &'static str) {
        let pod = &ask.pod;
        let (namespace, name) = (&pod.namespace, &pod.name);
        let path = format!(
            "/api/v1/namespaces/{}/pods/{}",
            percent_encoded(namespace),
            percent_encoded(name)
        );
        let (what, path, kind, body) = match ask.how {
            How::Evict(grace) => (
                "eviction",
                format!("{path}/eviction"),
                Write::Eviction,
                eviction(ask, grace),
            ),
            How::Delete => ("deletion", path, Write::PodDeletion, deletion(ask)),
        };
        let call = Call {
            act: format!("{what} of {}", named(pod)),
            path,
            write: Some((kind, &body)),
            accept: "application/json",
        };
        match self.kube.call(&call, deadline).await {
            Ok(_) => (Outcome::Accepted, "accepted"),
            Err(error) => judged(error),
        }
    }
}

fn judged(error: CallError) -> (Outcome, &'static str) {
    let code = error.code();
    match error {
        CallError::NotFound { .. } => (Outcome::Accepted, "gone"),
        // Of the name there is another pod: ours is gone.
        CallError::Changed { message, .. } if UID_DIFFERS.iter().any(|s| message.contains(s)) => {
            (Outcome::Accepted, "gone")
        }
        CallError::Budget { message, after, .. } => {
            let why = message;
            (Outcome::Budget { why, after }, code)
        }
        error @ (CallError::Changed { .. }
        | CallError::Refused { .. }
        | CallError::Unavailable { .. }) => (Outcome::Failed(error.to_string()), code),
    }
}

fn eviction(ask: &Ask, grace: Option<i64>) -> Value {
    let mut options = json!({ "preconditions": { "uid": ask.pod.uid } });
    if let Some(grace) = grace {
        options["gracePeriodSeconds"] = json!(grace);
    }
    json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": { "namespace": ask.pod.namespace, "name": ask.pod.name },
        "deleteOptions": options,
    })
}

fn deletion(ask: &Ask) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "gracePeriodSeconds": 0,
        "preconditions": { "uid": ask.pod.uid },
    })
}

#[cfg(test)]
mod tests {
    use decide::drain::PodRef;

    use super::*;

    #[test]
    fn a_call_names_the_pods_uid_and_its_grace() {
        let ask = |how| Ask {
            pod: PodRef {
                namespace: "train".to_owned(),
                name: "a".to_owned(),
                uid: "u".to_owned(),
            },
            how,
        };
        let body = eviction(&ask(How::Evict(Some(60))), Some(60));
        assert_eq!(body["deleteOptions"]["preconditions"]["uid"], "u");
        assert_eq!(body["deleteOptions"]["gracePeriodSeconds"], 60);
        let own = eviction(&ask(How::Evict(None)), None);
        assert!(own["deleteOptions"].get("gracePeriodSeconds").is_none());
        let body = deletion(&ask(How::Delete));
        assert_eq!(
            (&body["gracePeriodSeconds"], &body["preconditions"]["uid"]),
            (&json!(0), &json!("u"))
        );
    }

    #[test]
    fn what_is_gone_is_done_and_everything_else_is_asked_again() {
        let act = || "eviction of pod a/b".to_owned();
        let changed = |message: &str| CallError::Changed {
            act: act(),
            message: message.to_owned(),
        };
        for gone in [
            "409 Precondition failed: UID in precondition: u, UID in object meta: v",
            "409 Operation cannot be fulfilled on Pod \"b\": the UID in the precondition (u) does \
             not match the UID in record (v)",
        ] {
            assert_eq!(judged(changed(gone)), (Outcome::Accepted, "gone"), "{gone}");
        }
        assert_eq!(
            judged(CallError::NotFound { act: act() }),
            (Outcome::Accepted, "gone")
        );
        let (outcome, code) = judged(changed("409 the budget changed in between"));
        assert!(matches!(outcome, Outcome::Failed(why) if why.contains("eviction of pod a/b")));
        assert_eq!(code, "changed");
        let after = Duration::from_secs(7);
        let budget = CallError::Budget {
            act: act(),
            message: "needs 2".to_owned(),
            after,
        };
        let why = "needs 2".to_owned();
        assert_eq!(
            judged(budget),
            (Outcome::Budget { why, after }, "disruption_budget")
        );
    }
}
