//! What one decision looks at: from cache, store and objects, and where these do not tell, from the API
//! server itself.

use std::sync::Arc;

use decide::remediation::{FaultFacts, Mode, NodeLook, Object, boots_seen};
use health_event::incident::{Attempt, Incident, RepairStatus};
use health_event::{BootId, Boots, NodeName};
use jiff::Timestamp;
use k8s_api::names;
use k8s_api::reboot_node::{CRD, KIND, RebootNode};
use serde::Deserialize;
use tokio::time::Instant;

use super::attempts::Attempts;
use super::order::{Fate, READ_TIMEOUT};
use super::work::{Module, TurnError};
use super::{facts, said};
use crate::kubernetes::{Call, CallError};
use crate::{janitor, nodes};

/// Path of the definitions of kinds.
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// A definition of a kind, as far as it is looked at.
#[derive(Debug, Default, Deserialize)]
struct Definition {
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    creation_timestamp: Option<Timestamp>,
    deletion_timestamp: Option<Timestamp>,
}

/// What a pass saw.
pub(super) struct Observed {
    pub(super) node: Option<Arc<nodes::NodeFacts>>,
    pub(super) look: Option<NodeLook>,
    pub(super) faults: Vec<FaultFacts>,
    pub(super) wants_drain: bool,
    pub(super) boots: Boots,
    pub(super) attempts: Attempts,
    pub(super) object: Object,
    pub(super) other_repair: bool,
    /// Until when others' objects for the node may have an effect, where nobody ends them.
    pub(super) others_until: Option<Timestamp>,
}

impl Module {
    /// The incident of the node object that is there now, else of one that may be gone.
    pub(super) fn incident(&self, name: &NodeName) -> Result<Option<Incident>, TurnError> {
        let open = self.context.store.open_incidents_of(name)?;
        let node = self.context.nodes.get(name);
        let of_node = open.iter().find(|incident| match &node {
            Some(node) => incident.node_uid == *node.uid,
            None => true,
        });
        Ok(of_node.cloned())
    }

    /// Everything that one decision looks at; none if nothing can be decided now.
    pub(super) async fn observe(&self, incident: &Incident) -> Result<Option<Observed>, TurnError> {
        let name = &incident.node;
        let store = &self.context.store;
        let node = self.context.nodes.get(name);
        let under_way = is_under_way(incident);
        if self.policy_now().mode == Mode::Off && !under_way {
            return Ok(None);
        }
        if node.is_none() {
            if !under_way {
                return Ok(None);
            }
            // The cache lost it: only a direct read says that it is gone.
            let deadline = Instant::now() + READ_TIMEOUT;
            if self.context.kube.node_uid(name, deadline).await?.is_some() {
                self.wake_soon(name);
                return Ok(None);
            }
        }
        let machine = store.machine(&incident.machine)?.unwrap_or_default();
        let of_status = node.as_ref().map(|node| BootId::new(&node.boot_id));
        let boots = boots_seen(
            &machine.boots,
            &of_status.unwrap_or_default(),
            said::attempt_of(incident),
        );
        let owners = &self.context.config.quarantine.external_owners;
        let look = node
            .as_ref()
            .map(|node| facts::node_look(node, &boots, owners));
        let stored = store.open_faults(name)?;
        let open = facts::open_faults(incident, &stored);
        let wants_drain = open.iter().any(|fault| facts::wants_drain(fault));
        let object = self.object(incident, look.as_ref()).await?;
        let others_until = self.others_until(incident);
        Ok(Some(Observed {
            faults: open.into_iter().map(facts::fault_facts).collect(),
            wants_drain: wants_drain && self.drain_counts,
            attempts: self.attempts(incident)?,
            other_repair: others_until.is_some(),
            others_until,
            node,
            look,
            boots,
            object,
        }))
    }

    /// What is known of the object of the attempt that is under way.
    async fn object(
        &self,
        incident: &Incident,
        look: Option<&NodeLook>,
    ) -> Result<Object, TurnError> {
        let Some(attempt) = said::attempt_of(incident).filter(|_| is_under_way(incident)) else {
            return Ok(Object::NotKnown);
        };
        let reboots = &self.context.reboots;
        if let Some(object) = reboots.get(&attempt.object) {
            // From now on the watch tells, also that it is gone.
            self.tried().remove(&incident.node);
            return self.told_by(&object, incident);
        }
        let tried = self.tried().get(&incident.node).cloned();
        let tried = tried.filter(|tried| tried.object == attempt.object);
        if let Some(object) = tried.and_then(|tried| self.told(tried.fate, attempt, incident)) {
            return Ok(object);
        }
        if !reboots.is_known() {
            if self.policy.mode != Mode::Off {
                self.wake_soon(&incident.node);
            }
            return Ok(Object::NotKnown);
        }
        let requested = is_at(incident, &RepairStatus::Requested);
        let booted = look.is_some_and(|look| look.boot != attempt.boot_before);
        if requested && !booted {
            // Ordered under its name it is made, or found.
            return Ok(Object::NotKnown);
        }
        match self.read(&attempt.object).await {
            Ok(Some(object)) => self.told_by(&object, incident),
            Ok(None) if look.is_some() => self.gone(incident, attempt).await,
            Ok(None) => Ok(Object::Absent),
            // The longest that it may take holds although nobody can read it.
            Err(error) if attempt.deadline <= Timestamp::now() => {
                let metrics = &self.context.metrics;
                said::failed(metrics, &incident.node, error.code(), &error.to_string());
                self.wake_after_failure(&incident.node);
                Ok(Object::NotKnown)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// What it means that an object is not there (any more). Where our janitor carries repairs out it is known
    /// whether anything was sent for it.
    async fn gone(&self, incident: &Incident, attempt: &Attempt) -> Result<Object, TurnError> {
        let was_there = is_at(incident, &RepairStatus::Running);
        if !was_there || !self.context.config.janitor.enabled {
            return Ok(Object::Absent);
        }
        let intents = janitor::intents(&self.context.store)?;
        if intents.iter().any(|intent| intent.object == attempt.object) {
            return Ok(Object::Absent);
        }
        let since = attempt.requested_at;
        let away = self.context.reboots.were_undefined_since(since)
            || self.was_defined_anew(since).await?;
        Ok(if away {
            Object::Vanished
        } else {
            Object::CalledOff
        })
    }

    /// Whether the definition of the objects is being deleted, or is newer than an order: all objects went with
    /// the one before. No where it may not be read.
    async fn was_defined_anew(&self, ordered_at: Timestamp) -> Result<bool, TurnError> {
        let call = Call {
            act: format!("reading of the definition of {KIND}"),
            path: format!("{CRDS}/{CRD}"),
            write: None,
            accept: "application/json",
        };
        let deadline = Instant::now() + READ_TIMEOUT;
        match self.context.kube.call(&call, deadline).await {
            Ok(body) => {
                let definition: Definition = serde_json::from_slice(&body).unwrap_or_default();
                let Metadata {
                    creation_timestamp,
                    deletion_timestamp,
                } = definition.metadata;
                let is_newer = creation_timestamp.is_some_and(|at| at > ordered_at);
                Ok(is_newer || deletion_timestamp.is_some())
            }
            Err(CallError::NotFound { .. }) => Ok(true),
            Err(CallError::Refused { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn told_by(&self, object: &RebootNode, incident: &Incident) -> Result<Object, TurnError> {
        let intent = janitor::intent(&self.context.store, &object.metadata.uid)?;
        let intended_at = intent.map(|intent| intent.at);
        Ok(facts::object(object, &incident.id, intended_at))
    }

    /// What the calls for the object told, where the watch does not show it.
    fn told(&self, fate: Fate, attempt: &Attempt, incident: &Incident) -> Option<Object> {
        let now = Timestamp::now();
        match fate {
            Fate::There(until) if now < until => {
                self.workers.wake_at(&incident.node, until);
                Some(Object::Running { since: None })
            }
            Fate::Refused(words) => Some(Object::Refused(words)),
            // Its time is over without it: the last refusal is why.
            Fate::NotYet(words) if attempt.deadline <= now => Some(Object::Refused(words)),
            Fate::There(_) | Fate::NotYet(_) => None,
        }
    }

    /// Attempts on the incident's machine: those stored, and those that only objects know.
    fn attempts(&self, incident: &Incident) -> Result<Attempts, TurnError> {
        let mut attempts = Attempts::load(&self.context.store, &incident.machine)?;
        for object in self.context.reboots.of_node(incident.node.as_str()) {
            let label = object.metadata.labels.get(names::OBJECT_MANAGED_BY.text);
            let ours = label.is_some_and(|by| by == names::OBJECT_MANAGED_BY_VALUE);
            if facts::is_over_unsent(&object) {
                attempts.take_back(&object.metadata.name);
                continue;
            }
            if let Some(found) = facts::found(&object).filter(|_| ours) {
                attempts.add_found(found.rung, found.made_at, &found.object);
            }
        }
        Ok(attempts)
    }

    /// Until when other repair objects of the node that are not at their end may have an effect; none: there is
    /// none.
    fn others_until(&self, incident: &Incident) -> Option<Timestamp> {
        let mine = said::attempt_of(incident).filter(|_| is_under_way(incident));
        let objects = self.context.reboots.of_node(incident.node.as_str());
        let others = objects.iter().filter(|object| {
            !object.is_over() && mine.is_none_or(|mine| mine.object != object.metadata.name)
        });
        let config = &self.context.config.janitor;
        others
            .map(|object| janitor::left_until(object, config))
            .max()
    }
}

pub(super) fn is_under_way(incident: &Incident) -> bool {
    let repair = incident.repair.as_ref();
    repair.is_some_and(|repair| repair.status.is_under_way())
}

fn is_at(incident: &Incident, status: &RepairStatus) -> bool {
    incident.repair.as_ref().map(|repair| &repair.status) == Some(status)
}
