//! What the store knows of one fault: statements folded by [`ScopeState`].

use decide::quarantine::FaultFacts;
use health_event::{
    BootId, Boots, HealthEvent, Order, ScopeState, Sender, Space, Stamp, Statement, devices_of,
    keys,
};
use jiff::Timestamp;

/// All that was said about one check of one node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Said {
    /// Folded.
    pub scope: ScopeState,
    /// The newest unhealthy event and the machine that it is about.
    pub raised: Option<(HealthEvent, String)>,
    /// Number of the agent's newest statement; it lives in the agent's spool and survives the
    /// store.
    pub number: u64,
    /// How often the fault opened: stands for the position of the event that opened it.
    pub openings: u64,
    /// When the fault opened.
    pub first_at: Timestamp,
    /// When it was last said.
    pub last_at: Timestamp,
}

impl Said {
    /// Whether the fault is open.
    pub fn is_open(&self) -> bool {
        self.scope.faults.iter().any(|fault| fault.open)
    }

    /// The order of the newest unhealthy event.
    pub fn order(&self) -> Option<Order> {
        let (event, _) = self.raised.as_ref()?;
        event.metadata.get(keys::ORDER)?.parse().ok()
    }

    /// The agent says that the fault is there.
    pub fn raise(&mut self, template: &HealthEvent, boot: &BootId, machine: &str, now: Timestamp) {
        self.number += 1;
        let mut event = template.clone();
        let order = Order {
            boot: boot.clone(),
            spool: "spool".into(),
            number: self.number,
        };
        event
            .metadata
            .insert(keys::ORDER.to_owned(), order.to_string());
        self.take_in(&event, machine, now);
    }

    /// The agent says that it is not.
    pub fn heal(&mut self, template: &HealthEvent, boot: &BootId, now: Timestamp) {
        self.number += 1;
        let order = Order {
            boot: boot.clone(),
            spool: "spool".into(),
            number: self.number,
        };
        let mut statement = statement(template, Some(order), now);
        statement.healthy = true;
        self.scope.apply(&statement, &Boots::default(), now);
    }

    /// An unhealthy event arrives, new, once more, or from a node's annotation.
    pub fn take_in(&mut self, event: &HealthEvent, machine: &str, now: Timestamp) {
        let was_open = self.is_open();
        let order = event
            .metadata
            .get(keys::ORDER)
            .and_then(|text| text.parse().ok());
        self.scope
            .apply(&statement(event, order, now), &Boots::default(), now);
        if self.is_open() {
            if !was_open {
                self.openings += 1;
                self.first_at = now;
            }
            self.last_at = now;
            self.raised = Some((event.clone(), machine.to_owned()));
        }
    }

    /// The fault as a decision sees it.
    pub fn facts(&self, template: &FaultFacts) -> Option<FaultFacts> {
        let (event, machine) = self.raised.as_ref().filter(|_| self.is_open())?;
        Some(FaultFacts {
            event: event.clone(),
            boot: self.order().map(|order| order.boot).unwrap_or_default(),
            machine_id: machine.clone(),
            seq: template.seq + 2 * self.openings,
            first_at: self.first_at,
            last_at: self.last_at,
            ..template.clone()
        })
    }
}

fn statement(event: &HealthEvent, order: Option<Order>, now: Timestamp) -> Statement {
    Statement {
        sender: Sender::agent(&event.node_name),
        stamp: Stamp { order, at: now },
        space: Space::ExecuteRemediation,
        devices: devices_of(&event.entities),
        codes: event.error_codes.clone(),
        healthy: false,
        fatal: event.is_fatal,
        action: event.recommended_action,
        newest_counts: false,
        inclusive: false,
    }
}
