//! The gate, and the calls that make and take back repair objects.

use std::collections::BTreeMap;
use std::time::Duration;

use decide::janitor::ttl;
use decide::remediation::{Mode, is_recalled, wants};
use event_store::ReadError;
use health_event::NodeName;
use health_event::incident::{Attempt, Incident};
use jiff::{SignedDuration, Timestamp};
use k8s_api::names;
use k8s_api::reboot_node::{KIND, NewRebootNode, PATH, RebootNode};
use serde_json::json;
use tokio::time::Instant;

use super::attempts::Attempts;
use super::observe::Observed;
use super::work::{Module, Next, TurnError};
use super::{facts, said};
use crate::janitor::{self, StoredIntent};
use crate::kubernetes::{Call, CallError, Write};

/// Longest time for one write with its repetitions.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time for one read.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the watch may lag behind an answer before a direct read tells: ten times what it takes under
/// load.
const WATCH_LAG: SignedDuration = SignedDuration::from_secs(5);
const JSON: &str = "application/json";

/// What became of the calls for the object of an attempt, until the watch shows it. A hint that may be
/// lost: the same call is then made again under the same name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tried {
    /// Name of the object.
    pub(super) object: String,
    /// What is known.
    pub(super) fate: Fate,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fate {
    /// The API server said that it is there; believed until then, for the watch lags behind.
    There(Timestamp),
    /// It was refused for good: its words.
    Refused(String),
    /// It was refused for a reason that a person may mend meanwhile: the last words.
    NotYet(String),
}

fn there() -> Fate {
    let until = Timestamp::now().checked_add(WATCH_LAG);
    Fate::There(until.unwrap_or(Timestamp::MAX))
}

/// Why nothing is sent at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    /// It is looked at again soon.
    Soon,
    /// Whatever ends it wakes the node.
    Wakes,
}

impl Module {
    /// The gate: whether something that can't be undone may be begun on the node now, and until when
    /// the call may run. The decision before it knew the same but for what changed since.
    pub(super) fn gate(&self, observed: &Observed) -> Result<Instant, Held> {
        match self.policy_now().mode {
            Mode::Enforce => {}
            Mode::DryRun | Mode::Refused | Mode::Off => return Err(Held::Wakes),
        }
        let look = observed.look.as_ref().ok_or(Held::Wakes)?;
        if look.paused || look.external_owner.is_some() {
            return Err(Held::Wakes);
        }
        let may = self.reference.is_known() && self.leadership.may_do_irreversible();
        if !may {
            return Err(Held::Soon);
        }
        self.leadership
            .write_deadline(WRITE_TIMEOUT)
            .ok_or(Held::Soon)
    }

    /// Makes the object of the stored attempt.
    pub(super) async fn order(
        &self,
        observed: &Observed,
        incident: &Incident,
        attempt: &Attempt,
    ) -> Result<Next, TurnError> {
        let name = &incident.node;
        let (node, deadline) = match (&observed.node, self.gate(observed)) {
            (Some(node), Ok(deadline)) => (node, deadline),
            (Some(_), Err(Held::Soon)) => {
                self.wake_soon(name);
                return Ok(Next::Done);
            }
            (Some(_), Err(Held::Wakes)) | (None, _) => return Ok(Next::Done),
        };
        // A person may have ended the incident since.
        let now = self.context.store.incident(&incident.id)?;
        if now.is_none_or(|now| now.version != incident.version) {
            return Ok(Next::Again);
        }
        let made = self.make(incident, attempt, &node.uid, deadline).await;
        let fate = match made {
            Ok(()) => {
                said::object(&self.context.metrics, name, attempt, true);
                let drained = incident.drain.as_ref().map(|drain| drain.since);
                let since = drained.unwrap_or(attempt.requested_at);
                said::generated(&self.context.metrics, since, Timestamp::now());
                there()
            }
            // It is there (409), or can't be (422).
            Err(CallError::Changed { message, .. }) => match self.read(&attempt.object).await? {
                Some(object) if facts::incident_of(&object).as_ref() == Some(&incident.id) => {
                    said::object(&self.context.metrics, name, attempt, false);
                    there()
                }
                Some(object) => Fate::Refused(facts::taken(&object)),
                None => Fate::Refused(facts::words(&message)),
            },
            Err(error) => self.refused(name, error)?,
        };
        let again = !matches!(fate, Fate::NotYet(_));
        let refused = (!again).then_some("order_refused");
        self.context.stages.set_repair_blocked(name, refused);
        let object = attempt.object.clone();
        self.tried().insert(name.clone(), Tried { object, fate });
        Ok(if again { Next::Again } else { Next::Done })
    }

    /// What a refusal means. Nothing has reached the machine; what a person can mend without another
    /// order (no such kind, no permission) is tried again until the attempt's deadline.
    fn refused(&self, node: &NodeName, error: CallError) -> Result<Fate, TurnError> {
        let said = facts::words(&error.to_string());
        let fate = match &error {
            CallError::NotFound { .. } => Fate::NotYet(format!(
                "{said}: the API server knows no {KIND}; install its definition (deploy/crds)"
            )),
            // 405: the definition is being deleted.
            CallError::Refused { refusal, .. } if [401, 403, 405].contains(&refusal.status) => {
                Fate::NotYet(said)
            }
            CallError::Refused { .. } => Fate::Refused(said),
            CallError::Changed { .. }
            | CallError::Budget { .. }
            | CallError::Unavailable { .. } => return Err(error.into()),
        };
        if let Fate::NotYet(words) = &fate {
            said::failed(&self.context.metrics, node, "cr_creation_failed", words);
            self.wake_after_failure(node);
        }
        Ok(fate)
    }

    async fn make(
        &self,
        incident: &Incident,
        attempt: &Attempt,
        node_uid: &str,
        deadline: Instant,
    ) -> Result<(), CallError> {
        let number = attempt.number.to_string();
        // Known here, it costs the janitor no write.
        let expiry = ttl::expiry(names::REPAIR_TTL, attempt.requested_at).to_string();
        let new = NewRebootNode {
            name: &attempt.object,
            node: incident.node.as_str(),
            node_uid,
            force: attempt.force,
            labels: BTreeMap::from([(
                names::OBJECT_MANAGED_BY.text,
                names::OBJECT_MANAGED_BY_VALUE,
            )]),
            annotations: BTreeMap::from([
                (names::INCIDENT.text, incident.id.as_str()),
                (names::ATTEMPT.text, number.as_str()),
                (names::ACTION.text, attempt.action.as_str()),
                (names::BOOT_BEFORE.text, attempt.boot_before.as_str()),
                (names::TTL.text, names::REPAIR_TTL),
                (names::EXPIRY.text, expiry.as_str()),
            ]),
        };
        let body = new.render();
        let call = Call {
            act: format!(
                "order of {KIND} {} for node {}",
                attempt.object, incident.node
            ),
            path: format!("{PATH}?fieldManager={}", names::FIELD_MANAGER.text),
            write: Some((Write::Repair, &body)),
            accept: JSON,
        };
        self.context.kube.call(&call, deadline).await.map(drop)
    }

    /// The object of this name, read from the API server itself; none if it said that it is not there.
    pub(super) async fn read(&self, name: &str) -> Result<Option<RebootNode>, CallError> {
        let call = Call {
            act: format!("reading of {KIND} {name}"),
            path: format!("{PATH}/{name}"),
            write: None,
            accept: JSON,
        };
        let deadline = Instant::now() + READ_TIMEOUT;
        match self.context.kube.call(&call, deadline).await {
            Ok(body) => match serde_json::from_slice(&body) {
                Ok(object) => Ok(Some(object)),
                Err(error) => Err(CallError::Unavailable {
                    act: call.act,
                    message: format!("the answer is no {KIND}: {error}"),
                }),
            },
            Err(CallError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes back what nobody waits for any more among the node's objects.
    pub(super) async fn recall(&self, node: &NodeName) -> Result<(), TurnError> {
        if self.policy_now().mode == Mode::DryRun {
            return Ok(());
        }
        let objects = self.context.reboots.of_node(node.as_str());
        self.left.keep(node, |name| {
            objects.iter().any(|o| o.metadata.name == *name)
        });
        for object in objects {
            let unsent = facts::is_over_unsent(&object);
            if !unsent && (object.is_over() || object.metadata.deletion_timestamp.is_some()) {
                continue;
            }
            let Some(incident) = self.orderer(&object)? else {
                continue;
            };
            let name = &object.metadata.name;
            if unsent {
                self.take_back(&incident, name).await?;
                continue;
            }
            if wants(&incident, name) {
                continue;
            }
            // The incident's end was stored before: janitor looks for it between its intent and the
            // call, so that one of us sees the other.
            let may_be_sent = object.may_have_begun() || self.is_intended(&object)?;
            if is_recalled(&incident, name, false, may_be_sent) {
                // Before: one that was begun meanwhile stays, and is counted by its object.
                self.take_back(&incident, name).await?;
                self.delete(node, &object).await?;
            } else if may_be_sent && self.left.is_news(node, name) {
                said::left(node, name);
            }
        }
        Ok(())
    }

    /// Nothing was sent for an object: it is no attempt on its machine.
    async fn take_back(&self, incident: &Incident, object: &str) -> Result<(), TurnError> {
        let (store, machine) = (&self.context.store, &incident.machine);
        let mut attempts = Attempts::load(store, machine)?;
        if attempts.take_back(object) {
            let (key, value) = attempts.stored(machine);
            store.state_put(&key, value, self.context.fencing).await?;
        }
        Ok(())
    }

    fn is_intended(&self, object: &RebootNode) -> Result<bool, TurnError> {
        let intent = janitor::intent(&self.context.store, &object.metadata.uid)?;
        Ok(intent.is_some())
    }

    /// Whether a signal that was sent to the node or its machine may still have its effect, also if its object is gone.
    pub(super) fn is_signal_pending(
        &self,
        node: &NodeName,
        machine: &str,
    ) -> Result<bool, TurnError> {
        let now = Timestamp::now();
        let intents = janitor::intents(&self.context.store)?;
        let of_node =
            |intent: &StoredIntent| intent.is_of(node.as_str(), machine) && intent.deadline > now;
        Ok(intents.iter().any(of_node))
    }

    /// The incident that ordered an object, as it stands now; none for a copy of one, which a person
    /// made.
    fn orderer(&self, object: &RebootNode) -> Result<Option<Incident>, ReadError> {
        let Some(id) = facts::incident_of(object) else {
            return Ok(None);
        };
        let incident = self.context.store.incident(&id)?;
        Ok(incident.filter(|incident| facts::is_ordered_by(object, incident)))
    }

    async fn delete(&self, node: &NodeName, object: &RebootNode) -> Result<(), TurnError> {
        let Some(deadline) = self.leadership.write_deadline(WRITE_TIMEOUT) else {
            self.wake_soon(node);
            return Ok(());
        };
        let metadata = &object.metadata;
        let body = json!({ "preconditions": {
            "uid": metadata.uid,
            "resourceVersion": metadata.resource_version,
        } });
        let call = Call {
            act: format!("recall of {KIND} {} of node {node}", metadata.name),
            path: format!("{PATH}/{}", metadata.name),
            write: Some((Write::RepairDeletion, &body)),
            accept: JSON,
        };
        match self.context.kube.call(&call, deadline).await {
            Ok(_) => {
                said::recalled(&self.context.metrics, node, &metadata.name);
                Ok(())
            }
            // It is gone; or it was changed since it was read: something may have been sent, and its
            // change wakes.
            Err(CallError::NotFound { .. } | CallError::Changed { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
