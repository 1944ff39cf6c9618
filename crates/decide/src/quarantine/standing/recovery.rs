//! A node on which no fault of the incident is open any more: what it still waits for.

use health_event::incident::{CloseReason, Effect, Incident, ValidationStatus};
use jiff::Timestamp;

use super::Look;
use crate::later;
use crate::quarantine::decision::{Decision, Reason};
use crate::quarantine::joining::blocked;
use crate::quarantine::opening::applying_marks;
use crate::quarantine::{observed_only, on_node};

/// Text of [`Incident::needs_operator`] where the agent does not settle.
const NOT_SETTLED: &str = "agent not settled";
/// The same where nothing but an agent's word could tell what the node is out for.
const FAULTS_UNKNOWN: &str = "faults unknown";

impl Look<'_> {
    pub(super) fn recovered(&self, mut next: Incident, changed: bool) -> Decision {
        let mode = self.view.policy.mode.blocks();
        let blocker = mode.or_else(|| self.release_blocker(&next));
        let Some(by) = blocker else {
            return self.release(&next, CloseReason::Recovered, Reason::Recovered);
        };
        if let Some(mut decision) = self.restored(&next) {
            decision.notes.push(blocked("release", by));
            return decision;
        }
        let mut decision = Decision::default();
        let closed = next.faults.iter().filter_map(|f| f.closed_at).max();
        let since = closed.or_else(|| next.faults_unknown.then_some(next.opened_at));
        let deadline = since.map(|at| later(at, self.view.policy.settle_timeout));
        let missing = match by {
            "agent_not_settled" => Some(NOT_SETTLED),
            "faults_unknown" => Some(FAULTS_UNKNOWN),
            _ => None,
        };
        let late = missing.filter(|_| deadline.is_some_and(|at| at <= self.now));
        if let (Some(missing), None) = (late, &next.needs_operator) {
            next.needs_operator = Some(missing.to_owned());
            decision = self.noted(next, Reason::NeedsOperator);
        } else {
            if missing.is_some() && late.is_none() {
                decision.wake_at = deadline;
            }
            if by == "settling" {
                decision.wake_at = self.proves_itself_at(&next);
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

    /// Our annotations, where somebody took any of them off: what still waits says why the node is
    /// out.
    fn restored(&self, next: &Incident) -> Option<Decision> {
        // What a cooperating controller undid is not done again for faults that are over.
        let uncordoned = self.on.cordon && !on_node::is_cordoned(self.node);
        let mut there = self.marks_there();
        there.cordon &= !uncordoned;
        let marked = self.on.carries(self.incident).is_some();
        if (marked && uncordoned) || on_node::carries_all(self.node, self.incident, &there) {
            return None;
        }
        if self.cannot_write().is_some() || observed_only(self.view, self.node).is_some() {
            return None;
        }
        if self.left_off_until().is_some() {
            return None;
        }
        Some(applying_marks(
            self.view,
            self.node,
            &self.on,
            self.put_back(next.clone()),
            there,
            Some(self.incident.quarantine.clone()),
            Reason::MarksRestored,
            self.now,
        ))
    }

    /// What keeps a node out of which no fault is open, beside the mode.
    pub(super) fn release_blocker(&self, next: &Incident) -> Option<&'static str> {
        let repair = next.repair.as_ref();
        let own = repair.is_some_and(|repair| repair.status.is_under_way());
        if own || self.node.repaired_by_others {
            Some("repair_under_way")
        } else if next
            .validation
            .as_ref()
            .is_some_and(|v| v.status != ValidationStatus::Passed)
        {
            Some("validation")
        } else if self.node.external_owner.is_some() {
            Some("external_owner")
        } else if next.faults_unknown && !self.view.agent.has_settled(self.node) {
            Some("faults_unknown")
        } else if !self.is_settled(next) {
            Some("agent_not_settled")
        } else if self.proves_itself_at(next).is_some_and(|at| at > self.now) || self.is_away(next)
        {
            Some("settling")
        } else {
            None
        }
    }

    /// Where no agent can say that a repaired node is well: until when nothing may be said against it.
    fn proves_itself_at(&self, next: &Incident) -> Option<Timestamp> {
        let Effect::Seen { at } = next.repair.as_ref()?.attempt.as_ref()?.effect else {
            return None;
        };
        let joined = next.faults.iter().map(|fault| fault.joined_at).max();
        let quiet_since = joined.into_iter().chain([at]).max()?;
        let alone = !self.view.agent.expected;
        alone.then(|| later(quiet_since, self.view.policy.settle_timeout))
    }

    /// The same, and it is not Ready.
    fn is_away(&self, next: &Incident) -> bool {
        self.proves_itself_at(next).is_some() && !self.node.ready
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
        !(booted || restarted) || agent.has_settled(self.node)
    }
}
