//! A store that was lost, and the nodes that still tell.
//!
//! - A node that carries our mark: its incident and its faults are rebuilt from its annotations.
//! - A node that a person uncordoned before: what its agent's first settled report asserts is held,
//!   as it was. Until then, at most for `settle_timeout`, nothing is opened there. Which nodes these
//!   are is kept from the first start with an empty store on.

use std::sync::{MutexGuard, PoisonError};

use decide::breaker::Cause;
use decide::quarantine::{ADOPTED, Annotation, Decision, GivenBack, NodeFacts, Reason, Transition};
use event_store::{EventStore, Fingerprint, IncidentFilter, NewEvent, WriteError};
use health_event::incident::{CloseReason, Incident, IncidentId, Marks, QuarantineStatus};
use health_event::{HealthEvent, NodeName, Order, Sender, Subject, keys};
use jiff::Timestamp;
use k8s_api::health_events;

use super::breaker::TakenRecord;
use super::observe::Observed;
use super::work::{Module, Next, TurnError, new_incident_id};
use super::{facts, said, startup};
use crate::context::Context;

impl Module {
    /// The node carries marks of an incident that the store does not know: it is rebuilt.
    pub(super) async fn adopt(
        &self,
        name: &NodeName,
        observed: &Observed,
        now: Timestamp,
    ) -> Result<Next, TurnError> {
        let Some(node) = &observed.facts else {
            return Ok(Next::Done);
        };
        let text = node.annotations.get(&Annotation::HealthEvents);
        // Where it can't be read the agent has to say what the node is out for.
        let events = text.and_then(|text| health_events::parse(text).ok());
        let Some(seen) = &observed.node else {
            return Ok(Next::Done);
        };
        let value = || facts::node_value(seen);
        let adopted =
            decide::quarantine::adopt(node, events.as_deref(), &observed.rules, value, now);
        let Some(incident) = adopted else {
            return Ok(Next::Done);
        };
        restore_faults(&self.context.store, node, events.as_deref(), now).await?;
        let cause = Cause {
            rule: ADOPTED.to_owned(),
            check: String::new(),
        };
        self.breaker.lock().count(&incident.pool, name, cause);
        let decision = Decision {
            incident: Some(incident),
            ..Decision::default()
        };
        let taken = TakenRecord::default();
        let stored = self.store(&decision, observed, &taken, Vec::new(), now);
        if let Some(stored) = stored {
            match stored.await {
                Ok(_) | Err(WriteError::Stale { .. } | WriteError::AnotherOpen { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        said::adopted(&self.context.metrics, name);
        Ok(Next::Again)
    }

    /// Whether the node must wait for the word of its agent before anything is opened there: a
    /// person had given it back, and the store that knew of what was lost. Holds what is open when
    /// the wait ends; it does not come again.
    pub(super) async fn waits_for_hold(
        &self,
        name: &NodeName,
        observed: &Observed,
        now: Timestamp,
    ) -> Result<bool, TurnError> {
        let Some(record) = self.given_back().get(name).cloned() else {
            return Ok(false);
        };
        // A person is heard at once.
        let Some(node) = observed
            .facts
            .as_ref()
            .filter(|_| observed.request.is_none())
        else {
            return Ok(false);
        };
        let filter = IncidentFilter {
            node: Some(name.clone()),
            ..IncidentFilter::default()
        };
        // A crash may have come between the hold and the end of the wait.
        let last = self.context.store.incidents(&filter, 1)?.into_iter().next();
        let known = last.is_some_and(|last| last.opened_at >= record.since);
        if known || record.uid != node.uid {
            self.end_wait(name).await?;
            return Ok(false);
        }
        let found = decide::quarantine::given_back(
            node,
            observed.incident.as_ref(),
            &observed.faults,
            &observed.agent,
            &self.policy,
            record.since,
            now,
        );
        let hold = match found {
            GivenBack::Waits { until } => {
                self.workers.wake_at(name, until);
                return Ok(true);
            }
            GivenBack::Over => {
                self.end_wait(name).await?;
                return Ok(false);
            }
            GivenBack::Held(hold) => hold,
        };
        let incident = ended_by_person(new_incident_id(), node, now);
        let decision = Decision {
            transition: Some(Transition {
                from: None,
                to: incident.quarantine.clone(),
                reason: Reason::ManualUncordon,
            }),
            incident: Some(incident),
            holds: Some(vec![hold]),
            ..Decision::default()
        };
        let taken = TakenRecord::default();
        if let Some(stored) = self.store(&decision, observed, &taken, Vec::new(), now) {
            stored.await?;
        }
        self.end_wait(name).await?;
        said::held(name);
        self.workers.wake(name);
        Ok(true)
    }

    async fn end_wait(&self, name: &NodeName) -> Result<(), WriteError> {
        let Context { store, fencing, .. } = &self.context;
        store
            .state_delete(&startup::given_back_key(name), *fencing)
            .await?;
        self.given_back().remove(name);
        Ok(())
    }

    fn given_back(&self) -> MutexGuard<'_, startup::GivenBackNodes> {
        self.given_back
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is known of an incident that a person ended before the store was lost.
fn ended_by_person(id: IncidentId, node: &NodeFacts, now: Timestamp) -> Incident {
    Incident {
        id,
        node: node.name.clone(),
        node_uid: node.uid.clone(),
        machine: node.machine.clone(),
        version: 1,
        opened_seq: 0,
        opened_at: now,
        opened_boot: node.boot.clone(),
        closed_at: Some(now),
        quarantine: QuarantineStatus::Closed(CloseReason::ManualUncordon),
        since: now,
        faults: Vec::new(),
        marks: Marks::default(),
        pool: node.pool.clone(),
        marks_observed: false,
        marks_before: None,
        needs_operator: None,
        held_by: None,
        faults_unknown: false,
        reasserted: Vec::new(),
        put_back: Vec::new(),
        drain: None,
        repair: None,
        validation: None,
    }
}

/// Puts the faults that a node's own annotation names back into a store that was lost. They stay
/// until the node's agent confirms or denies them; those of other senders until these speak.
async fn restore_faults(
    store: &EventStore,
    node: &NodeFacts,
    events: Option<&[HealthEvent]>,
    now: Timestamp,
) -> Result<(), WriteError> {
    let restored = |event: &HealthEvent| {
        let order: Option<Order> = event.metadata.get(keys::ORDER).and_then(|o| o.parse().ok());
        let by_detector = event.metadata.contains_key(keys::DETECTOR);
        let mut event = event.clone();
        if !by_detector {
            let (key, value) = (keys::RESTORED.to_owned(), "true".to_owned());
            event.metadata.insert(key, value);
        }
        let body = wire::encode_body(&event);
        NewEvent {
            sender: Sender::agent(node.name.as_str()),
            event,
            subject: Subject::Node(node.name.clone()),
            machine: node.machine_id.clone(),
            order,
            received_at: now,
            fingerprint: Fingerprint::of(&body),
            body,
            asserted_by_agent: by_detector,
            newest_counts: false,
            inclusive: false,
            // Its number does not prove that all before it are here.
            out_of_turn: true,
            standing: event_store::Standing::Counts,
        }
    };
    let batch: Vec<NewEvent> = events
        .unwrap_or_default()
        .iter()
        .filter(|event| !event.is_healthy)
        .map(restored)
        .collect();
    if batch.is_empty() {
        return Ok(());
    }
    store.append(batch).await.map(|_| ())
}
