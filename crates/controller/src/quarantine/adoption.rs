//! A store that was lost, and the nodes that still tell.
//!
//! - A node that carries our mark: its incident and its faults are rebuilt from its annotations.
//! - A node that a person uncordoned before: what its agent's first settled report asserts is held,
//!   as it was. Until then, at most for [`Module::hold_wait`], nothing is opened there.

use decide::breaker::Cause;
use decide::quarantine::{Annotation, Decision, NodeFacts, Reason, Transition};
use event_store::{EventStore, Fingerprint, IncidentFilter, NewEvent, WriteError};
use health_event::incident::{CloseReason, Incident, IncidentId, Marks, QuarantineStatus};
use health_event::{HealthEvent, NodeName, Order, Sender, Subject, keys};
use jiff::{SignedDuration, Timestamp};
use k8s_api::health_events;

use super::breaker::TakenRecord;
use super::work::{Module, Next, Observed, TurnError, new_incident_id};
use super::{facts, said};

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
        // What can't be read names no fault: the incident is adopted without, and ends as recovered.
        let events = text
            .and_then(|text| health_events::parse(text).ok())
            .unwrap_or_default();
        let Some(seen) = &observed.node else {
            return Ok(Next::Done);
        };
        let value = || facts::node_value(seen);
        let adopted = decide::quarantine::adopt(node, &events, &self.rules, value, now);
        let Some(incident) = adopted else {
            return Ok(Next::Done);
        };
        restore_faults(&self.context.store, node, &events, now).await?;
        let cause = Cause {
            rule: "adopted".to_owned(),
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
    /// person had given it back, and the store that knew of what was lost. Holds what is open once
    /// the agent has settled.
    pub(super) async fn waits_for_hold(
        &self,
        name: &NodeName,
        observed: &Observed,
        now: Timestamp,
    ) -> Result<bool, TurnError> {
        let Some(node) = &observed.facts else {
            return Ok(false);
        };
        let records = [
            Annotation::UncordonedManually,
            Annotation::UntaintedManually,
        ];
        let recorded = records
            .iter()
            .any(|record| node.annotations.contains_key(record));
        if !self.context.store.is_new() || !recorded || observed.incident.is_some() {
            return Ok(false);
        }
        let filter = IncidentFilter {
            node: Some(name.clone()),
            ..IncidentFilter::default()
        };
        if !self.context.store.incidents(&filter, 1)?.is_empty() {
            return Ok(false);
        }
        let settled = observed.agent.settled_for.as_ref() == Some(&node.boot);
        let end = self
            .started_at
            .checked_add(self.hold_wait())
            .unwrap_or(Timestamp::MAX);
        if !settled && now < end {
            self.workers.wake_at(name, end);
            return Ok(true);
        }
        let faults = &observed.faults;
        let hold = decide::quarantine::hold_after_store_loss(node, faults, &self.policy, now);
        let Some(hold) = hold else { return Ok(false) };
        let incident = given_back(new_incident_id(), node, now);
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
        said::held(name);
        self.workers.wake(name);
        Ok(true)
    }

    /// How long a node may wait for its agent's word.
    fn hold_wait(&self) -> SignedDuration {
        self.policy.settle_timeout
    }
}

/// What is known of an incident that a person ended before the store was lost.
fn given_back(id: IncidentId, node: &NodeFacts, now: Timestamp) -> Incident {
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
    }
}

/// Puts the faults that a node's own annotation names back into a store that was lost. They stay
/// until the node's agent confirms or denies them; those of other senders until these speak.
async fn restore_faults(
    store: &EventStore,
    node: &NodeFacts,
    events: &[HealthEvent],
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
        }
    };
    let batch: Vec<NewEvent> = events
        .iter()
        .filter(|event| !event.is_healthy)
        .map(restored)
        .collect();
    if batch.is_empty() {
        return Ok(());
    }
    store.append(batch).await.map(|_| ())
}
