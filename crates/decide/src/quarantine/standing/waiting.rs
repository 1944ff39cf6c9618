//! Withheld and Observed: nothing is on the node.

use health_event::incident::{CloseReason, Incident, QuarantineStatus, Withheld};
use jiff::Timestamp;

use super::Look;
use crate::breaker::Permit;
use crate::quarantine::decision::{Decision, Reason};
use crate::quarantine::facts::{Mode, Request, RequestKind};
use crate::quarantine::joining::{blocked, candidates};
use crate::quarantine::opening::{self, ask};
use crate::quarantine::{marks, observed_only, waits_instead, wake};

impl Look<'_> {
    pub(super) fn waiting(&self, withheld: Option<&Withheld>) -> Decision {
        if self.on.carries(self.incident).is_some() {
            // Which of the writes that were planned it was, only the node tells.
            return self.seen(self.marks_there());
        }
        let mut notes = Vec::new();
        let (mut next, changed) = self.refreshed(&mut notes);
        if let Some(request) = self.view.request {
            return self.person_on_waiting(next, request);
        }
        let mut decision = if next.held_by.is_none() && next.open_faults().next().is_none() {
            self.close(&next, CloseReason::Recovered, Reason::Recovered)
        } else if self.view.policy.mode != Mode::Off
            && marks::asks_nothing(self.view, self.node, &self.on, &next)
        {
            self.close(&next, CloseReason::Recovered, Reason::RulesGone)
        } else {
            self.start(&mut next, changed, withheld)
        };
        let idle = decision.incident.is_none() && decision.write.is_none();
        if idle && decision.ask.is_none() {
            let stray = opening::beside_waiting(self.view, self.node, &self.on, self.now);
            decision.write = stray.write;
            decision.notes.extend(stray.notes);
        }
        decision.notes.splice(0..0, notes);
        decision
    }

    fn start(&self, next: &mut Incident, changed: bool, withheld: Option<&Withheld>) -> Decision {
        let (view, node) = (self.view, self.node);
        if let Some((to, reason)) = waits_instead(view, node) {
            // What is switched off changes nothing that is at rest.
            if self.incident.quarantine == to || view.policy.mode == Mode::Off {
                return self.kept(next.clone(), changed);
            }
            return Decision {
                give_back: true,
                ..self.move_to(next, to, reason)
            };
        }
        let block = if node.opted_out {
            Some("opted_out")
        } else if node.paused {
            Some("paused")
        } else if next.held_by.is_none() && !self.wants_out(next) {
            Some("held")
        } else {
            None
        };
        if let Some(by) = block {
            let mut decision = self.kept(next.clone(), changed);
            decision.notes.push(blocked("open", by));
            return decision;
        }
        if next.held_by.is_some() {
            let actor = next.held_by.clone().unwrap_or_default();
            let mut decision = self.apply(next.clone(), Reason::PersonHold(actor));
            decision.count_out = true;
            return decision;
        }
        if let Some(until) = view.policy.first_action_until.filter(|u| self.now < *u) {
            let to = QuarantineStatus::Withheld(Withheld::FirstAction { until });
            let mut decision = if self.incident.quarantine == to {
                self.kept(next.clone(), changed)
            } else {
                self.move_to(next, to, Reason::FirstActionDelay)
            };
            wake(&mut decision, Some(until));
            return decision;
        }
        self.by_permit(next, changed, withheld)
    }

    /// Whether a fault of the incident is open that no hold suppresses.
    fn wants_out(&self, next: &Incident) -> bool {
        let found = candidates(self.view, self.node, self.now);
        let mut open = next.open_faults();
        open.any(|fault| found.faults.iter().any(|f| f.id == fault.id))
    }

    fn by_permit(&self, next: &Incident, changed: bool, withheld: Option<&Withheld>) -> Decision {
        let (to, reason) = match self.view.permit {
            None => {
                let paced = match withheld {
                    Some(Withheld::Breaker(_)) => false,
                    Some(
                        Withheld::FirstAction { .. } | Withheld::Pace | Withheld::OtherQuarantine,
                    )
                    | None => true,
                };
                return Decision {
                    ask: Some(ask(self.view, self.node, next, paced)),
                    ..Decision::default()
                };
            }
            Some(Permit::Taken) => return self.apply(next.clone(), Reason::Permitted),
            Some(Permit::Withheld(bound)) => {
                (Withheld::Breaker(bound), Reason::BreakerWithholds(bound))
            }
            Some(Permit::Pace) => (Withheld::Pace, Reason::Paced),
        };
        let to = QuarantineStatus::Withheld(to);
        if self.incident.quarantine == to {
            return self.kept(next.clone(), changed);
        }
        self.move_to(next, to, reason)
    }

    fn person_on_waiting(&self, mut next: Incident, request: &Request) -> Decision {
        let actor = request.actor.clone();
        let mut decision = match request.kind {
            RequestKind::Hold if self.view.policy.mode == Mode::Refused => {
                return Self::refused(opening::OTHER_QUARANTINE);
            }
            RequestKind::Hold if self.view.policy.mode == Mode::Off => {
                return Self::refused(opening::OFF);
            }
            RequestKind::Hold => {
                next.held_by = Some(actor.clone());
                if observed_only(self.view, self.node).is_some() {
                    self.noted(next, Reason::PersonHold(actor))
                } else {
                    let mut decision = self.apply(next, Reason::PersonHold(actor));
                    decision.count_out = true;
                    decision
                }
            }
            RequestKind::Release if next.held_by.is_none() => {
                return Self::refused(
                    "nobody holds this node any more; ask again to end its incident",
                );
            }
            RequestKind::Release => {
                next.held_by = None;
                self.noted(next, Reason::HoldReleased(actor))
            }
            RequestKind::Cancel => {
                let reason = Reason::PersonCancel(actor.clone());
                let mut decision = self.close(&next, CloseReason::CancelledByPerson, reason);
                self.hold_all(&mut decision, &actor, self.hold_end());
                decision
            }
            RequestKind::DropWithheld => {
                let reason = Reason::PersonDrop(actor.clone());
                let mut decision = self.move_to(&next, QuarantineStatus::Observed, reason);
                decision.give_back = true;
                self.hold_all(&mut decision, &actor, Timestamp::MAX);
                decision
            }
        };
        decision.request_done = true;
        decision
    }
}
