//! A node on which no fault of the incident is open any more: what it still waits for.

use health_event::incident::{CloseReason, Incident};

use super::Look;
use crate::quarantine::decision::{Decision, Reason};
use crate::quarantine::joining::blocked;
use crate::quarantine::later;

/// Text of [`Incident::needs_operator`] where the agent does not settle.
const NOT_SETTLED: &str = "agent not settled";

impl Look<'_> {
    pub(super) fn recovered(&self, mut next: Incident, changed: bool) -> Decision {
        let mode = self.view.policy.mode.blocks();
        let blocker = mode.or_else(|| self.release_blocker(&next));
        let Some(by) = blocker else {
            return self.release(&next, CloseReason::Recovered, Reason::Recovered);
        };
        let mut decision = Decision::default();
        let closed = next.faults.iter().filter_map(|f| f.closed_at).max();
        let deadline = closed.map(|at| later(at, self.view.policy.settle_timeout));
        let late = by == "agent_not_settled" && deadline.is_some_and(|at| at <= self.now);
        if late && next.needs_operator.is_none() {
            next.needs_operator = Some(NOT_SETTLED.to_owned());
            decision = self.noted(next, Reason::NeedsOperator);
        } else {
            if by == "agent_not_settled" && !late {
                decision.wake_at = deadline;
            }
            if changed {
                decision = Decision {
                    wake_at: decision.wake_at,
                    ..self.noted(next, Reason::FaultsChange)
                };
            }
        }
        decision.notes.push(blocked("release", by));
        decision
    }

    /// What keeps a node out of which no fault is open, beside the mode.
    pub(super) fn release_blocker(&self, next: &Incident) -> Option<&'static str> {
        if self.node.external_owner.is_some() {
            Some("external_owner")
        } else if !self.is_settled(next) {
            Some("agent_not_settled")
        } else {
            None
        }
    }

    /// Whether the agent's word is in, where it is needed: a fault came through it, and since the
    /// incident opened the node booted anew or the agent was restarted.
    fn is_settled(&self, next: &Incident) -> bool {
        let agent = self.view.agent;
        let through = next.faults.iter().any(|f| f.through_agent);
        if !through || !agent.expected {
            return true;
        }
        let booted = !self.node.boot.is_unknown() && self.node.boot != next.opened_boot;
        let restarted = agent.started_at.is_none_or(|at| at > next.opened_at);
        let settled = agent.settled_for.as_ref();
        let present = settled.is_some_and(|b| *b == self.node.boot || self.node.boot.is_unknown());
        !(booted || restarted) || present
    }
}
