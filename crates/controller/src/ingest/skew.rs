//! `ClockSkew`: a fault of our own for a sender whose clock runs ahead.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use event_store::{EventStore, Fingerprint, NewEvent};
use health_event::{HealthEvent, NodeName, Sender, Subject, checks};
use jiff::Timestamp;

/// The check's name.
const CLOCK_SKEW: &str = "ClockSkew";

/// Nodes whose clock is known to run ahead.
#[derive(Debug, Default)]
pub struct ClockSkews(Mutex<HashSet<NodeName>>);

impl ClockSkews {
    /// With what the store has open.
    ///
    /// # Errors
    /// The store can't be read.
    pub fn load(store: &EventStore) -> Result<Self, event_store::ReadError> {
        let open =
            store
                .open_faults_all()?
                .into_iter()
                .filter_map(|fault| match fault.id.scope.subject {
                    Subject::Node(node) if fault.id.scope.check_name == CLOCK_SKEW => Some(node),
                    Subject::Node(_) | Subject::Pool(_) | Subject::Cluster => None,
                });
        Ok(Self(Mutex::new(open.collect())))
    }

    /// After faults of a node were closed by others: if its fault was among them, the next event
    /// that shows it opens it again.
    ///
    /// # Errors
    /// The store can't be read.
    pub(crate) fn forget_unless_open(
        &self,
        node: &NodeName,
        store: &EventStore,
    ) -> Result<(), event_store::ReadError> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.contains(node) {
            let open = store.open_faults(node)?;
            if !open.iter().any(|f| f.id.scope.check_name == CLOCK_SKEW) {
                known.remove(node);
            }
        }
        Ok(())
    }

    /// Adds to a batch the event that opens or closes the node's fault, if this event shows that
    /// it must.
    pub(super) fn note(
        &self,
        node: &NodeName,
        sender: &Sender,
        skewed: bool,
        now: Timestamp,
        batch: &mut Vec<NewEvent>,
    ) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = if skewed {
            known.insert(node.clone())
        } else {
            known.remove(node)
        };
        if changed {
            let message = if skewed {
                format!("{sender} claims times more than 10 min ahead of the controller")
            } else {
                "the clock is right again".to_owned()
            };
            batch.push(own_event(
                Subject::Node(node.clone()),
                CLOCK_SKEW,
                !skewed,
                message,
                now,
            ));
        }
    }
}

/// An event of the controller's own about a node's agent, or about a pool; never fatal.
pub(crate) fn own_event(
    subject: Subject,
    check: &str,
    healthy: bool,
    message: String,
    now: Timestamp,
) -> NewEvent {
    let (component_class, node_name) = match &subject {
        Subject::Node(node) => ("Agent", node.to_string()),
        Subject::Pool(_) => ("Pool", String::new()),
        Subject::Cluster => ("Cluster", String::new()),
    };
    let event = HealthEvent {
        id: ulid::Ulid::new().to_string(),
        agent: checks::WARDEN_AGENT.to_owned(),
        component_class: component_class.to_owned(),
        check_name: check.to_owned(),
        is_healthy: healthy,
        message,
        node_name,
        generated_at: Some(now),
        ..HealthEvent::default()
    };
    let body = wire::encode_body(&event);
    NewEvent {
        sender: Sender::controller(),
        subject,
        machine: String::new(),
        order: None,
        received_at: now,
        fingerprint: Fingerprint::of(&body),
        body,
        event,
        asserted_by_agent: false,
        newest_counts: false,
        inclusive: false,
        out_of_turn: false,
        standing: event_store::Standing::Counts,
    }
}
