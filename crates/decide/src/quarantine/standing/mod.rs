//! A node with an open incident.

mod recovery;
mod waiting;

use health_event::incident::{
    CloseReason, Incident, Marks, PUT_BACKS, QuarantineStatus, REASSERTS,
};
use jiff::{SignedDuration, Timestamp};

use k8s_api::marks::hold_text;

use super::decision::{Decision, Note, Reason, Transition, WriteKind};
use super::facts::{
    Annotation, CooperatorPolicy, FaultFacts, MarkOrigin, Mode, NodeFacts, Request, RequestKind,
    View, WriteFeedback,
};
use super::joining::{asks, blocked, by_id, candidates, hold_open_faults, refresh};
use super::on_node::{self, MarkRead, OnNode};
use super::opening::{applying, applying_marks};
use super::{derived, marks, moved, observed_only, waits_instead, wake};
use crate::later;

/// In which [`REASSERTS`] and [`PUT_BACKS`] are counted.
const AN_HOUR: SignedDuration = SignedDuration::from_hours(1);
/// How long our marks are left off at first by whom takes them off again and again; it doubles.
const PUT_BACK_PAUSE: SignedDuration = SignedDuration::from_secs(15);
/// Longest of these pauses.
const PUT_BACK_LONGEST: SignedDuration = SignedDuration::from_mins(10);
/// Who holds what a person's uncordon or untaint suppresses.
const AT_THE_NODE: &str = "a person at the node";

pub(super) fn decide(
    view: &View<'_>,
    node: &NodeFacts,
    incident: &Incident,
    now: Timestamp,
) -> Decision {
    let look = Look {
        view,
        node,
        on: OnNode::of_incident(node, incident),
        incident,
        now,
    };
    match &incident.quarantine {
        QuarantineStatus::Withheld(why) => look.waiting(Some(why)),
        QuarantineStatus::Observed => look.waiting(None),
        QuarantineStatus::Applying => look.applying(),
        QuarantineStatus::Quarantined => look.quarantined(),
        QuarantineStatus::Releasing(why) => look.releasing(*why),
        QuarantineStatus::Closed(_) => Decision::default(),
    }
}

struct Look<'a> {
    view: &'a View<'a>,
    node: &'a NodeFacts,
    on: OnNode,
    incident: &'a Incident,
    now: Timestamp,
}

impl Look<'_> {
    /// The incident one version later with its faults as they are now, and whether they changed.
    fn refreshed(&self, notes: &mut Vec<Note>) -> (Incident, bool) {
        let mut next = self.incident.clone();
        next.version += 1;
        if self.view.policy.mode == Mode::Off {
            return (next, false);
        }
        let found = candidates(self.view, self.node, self.now);
        notes.extend(found.notes);
        let changed = refresh(self.view, &mut next, &found.faults, self.now);
        // What the agent asserts by its settled report is open in the store before that is known.
        let told = next.faults_unknown && self.view.agent.has_settled(self.node);
        next.faults_unknown &= !told;
        (next, changed || told)
    }

    /// Stored, without a change of state.
    fn noted(&self, next: Incident, reason: Reason) -> Decision {
        let to = self.incident.quarantine.clone();
        Decision {
            transition: Some(Transition {
                from: Some(to.clone()),
                to,
                reason,
            }),
            incident: Some(next),
            ..Decision::default()
        }
    }

    fn kept(&self, next: Incident, changed: bool) -> Decision {
        if changed {
            self.noted(next, Reason::FaultsChange)
        } else {
            Decision::default()
        }
    }

    fn move_to(&self, next: &Incident, to: QuarantineStatus, reason: Reason) -> Decision {
        let mut base = next.clone();
        // `moved` counts from the stored version.
        base.version = self.incident.version;
        base.quarantine = self.incident.quarantine.clone();
        moved(&base, to, reason, self.now)
    }

    fn close(&self, next: &Incident, why: CloseReason, reason: Reason) -> Decision {
        let was_out = self.incident.quarantine.is_out();
        let left = was_out && on_node::may_be_left(self.node, self.incident);
        Decision {
            give_back: true,
            notes: left
                .then(|| blocked("release", "owner_unknown"))
                .into_iter()
                .collect(),
            ..self.move_to(next, QuarantineStatus::Closed(why), reason)
        }
    }

    fn apply(&self, next: Incident, reason: Reason) -> Decision {
        let from = Some(self.incident.quarantine.clone());
        applying(self.view, self.node, &self.on, next, from, reason, self.now)
    }

    fn take_off(&self, why: CloseReason) -> super::NodeWrite {
        let (kind, records): (_, &[Annotation]) = match why {
            CloseReason::ManualUncordon => (WriteKind::StepBack, &[Annotation::UncordonedManually]),
            CloseReason::ManualUntaint => (WriteKind::StepBack, &[Annotation::UntaintedManually]),
            CloseReason::Recovered | CloseReason::NodeDeleted => (WriteKind::Release, &[]),
            CloseReason::CancelledByPerson => (WriteKind::StepBack, &[]),
        };
        let mut records = records.to_vec();
        let (_, untainted) = on_node::tampering(self.node, &self.on, self.incident);
        if why == CloseReason::ManualUncordon && untainted {
            records.push(Annotation::UntaintedManually);
        }
        marks::take_off(self.view, self.node, &self.on, kind, &records, self.now)
    }

    fn release(&self, next: &Incident, why: CloseReason, reason: Reason) -> Decision {
        let write = self.take_off(why);
        Decision {
            write: Some(write),
            ..self.move_to(next, QuarantineStatus::Releasing(why), reason)
        }
    }

    fn refused(why: &'static str) -> Decision {
        Decision {
            request_done: true,
            notes: vec![Note::RequestRefused(why)],
            ..Decision::default()
        }
    }

    /// A hold on what is open now, after a person acted.
    fn hold_all(&self, decision: &mut Decision, actor: &str, until: Timestamp) {
        if !self.view.faults.is_empty() && self.now < until {
            let hold = hold_open_faults(self.view.faults, actor, until);
            decision.holds = Some(vec![hold]);
        }
    }

    fn hold_end(&self) -> Timestamp {
        later(self.now, self.view.policy.manual_uncordon_hold)
    }

    // Applying: the outcome of our write is unknown.

    fn applying(&self) -> Decision {
        let carried = self.on.carries(self.incident);
        if carried == Some(self.incident.version) {
            return self.seen(self.incident.marks.clone());
        }
        match self.view.feedback {
            WriteFeedback::InFlight | WriteFeedback::Accepted => return Decision::default(),
            WriteFeedback::Idle => {}
        }
        let mut notes = Vec::new();
        let (next, _) = self.refreshed(&mut notes);
        let cancelled = self.view.request.filter(|r| r.kind == RequestKind::Cancel);
        // Off does not refresh the incident, and yet takes no node out for what has closed.
        let open = by_id(self.view.faults);
        let over = next.held_by.is_none() && !next.open_faults().any(|f| open.contains_key(&f.id));
        let mut decision = if let Some((to, reason)) = waits_instead(self.view, self.node) {
            self.unwritten(&next, over, to, reason)
        } else if let Some(request) = cancelled {
            let reason = Reason::PersonCancel(request.actor.clone());
            let why = CloseReason::CancelledByPerson;
            let mut decision = if self.carries_unknown() {
                self.release(&next, why, reason)
            } else {
                self.undo(&next, why, reason)
            };
            self.hold_all(&mut decision, &request.actor, self.hold_end());
            decision.request_done = true;
            decision
        } else if let Some(decision) = self.stepped_in(&next) {
            decision
        } else if over {
            self.over(next)
        } else if marks::asks_nothing(self.view, self.node, &self.on, &next) {
            self.undo(&next, CloseReason::Recovered, Reason::RulesGone)
        } else {
            let wanted = marks::plan(self.view, self.node, &self.on, &next);
            self.write_again(next, wanted)
        };
        decision.notes.splice(0..0, notes);
        decision
    }

    /// The node shows a write of ours, maybe one that was given up as lost.
    fn seen(&self, marks: Marks) -> Decision {
        let mut seen = self.incident.clone();
        seen.marks = marks;
        seen.marks_observed = true;
        seen.marks_before = None;
        let to = QuarantineStatus::Quarantined;
        let mut decision = moved(&seen, to, Reason::WriteSeen, self.now);
        decision.count_out = !self.incident.quarantine.is_out();
        // What a person did meanwhile, and faults that came, are looked at next.
        decision.wake_at = Some(self.now);
        decision
    }

    /// Whether the node carries marks of this incident, of whatever version. Marks that are known to
    /// be ours are there even if somebody took our annotations off; those of another incident are
    /// looked at once this one is over.
    fn is_marked(&self) -> bool {
        let others = matches!(self.on.mark, MarkRead::Ours(_)) && !self.incident.marks_observed;
        self.on.carries(self.incident).is_some() || !(self.on.marks_nothing() || others)
    }

    /// Whether the node carries the mark of an incident that was lost with a store. Adopted, it would keep
    /// the node out for what a person ended.
    fn carries_unknown(&self) -> bool {
        let ours = matches!(self.on.mark, MarkRead::Ours(_));
        let other = self.on.carries(self.incident).is_none();
        ours && other && self.view.mark_origin == MarkOrigin::Unknown
    }

    /// What is there of this incident, as it records it.
    fn marks_there(&self) -> Marks {
        let before = self.incident.marks_before.as_ref();
        let reasons = before.unwrap_or(&self.incident.marks).reasons.clone();
        self.on.marks(reasons)
    }

    /// Every fault closed while a change of the marks is under way.
    fn over(&self, next: Incident) -> Decision {
        let blocker = self.is_marked().then(|| self.release_blocker(&next));
        let Some(by) = blocker.flatten() else {
            return self.undo(&next, CloseReason::Recovered, Reason::Recovered);
        };
        // The node stays out as it is; the write makes one that is late fail. What a cooperating
        // controller undid is not done again for faults that are over.
        let mut there = self.marks_there();
        there.cordon &= on_node::is_cordoned(self.node);
        let mut decision = self.write_again(next, there);
        decision.notes.push(blocked("release", by));
        decision
    }

    /// Takes off what an earlier write may have put on, or closes if nothing is there.
    fn undo(&self, next: &Incident, why: CloseReason, reason: Reason) -> Decision {
        if !self.is_marked() {
            return self.close(next, why, reason);
        }
        self.release(next, why, reason)
    }

    /// Nothing may be written any more, and the node does not show the write that was under way: it
    /// is not begun again. A late one is noticed all the same.
    fn unwritten(
        &self,
        next: &Incident,
        over: bool,
        to: QuarantineStatus,
        reason: Reason,
    ) -> Decision {
        if self.is_marked() {
            return self.stays_out(next.clone(), reason);
        }
        if over {
            return self.close(next, CloseReason::Recovered, Reason::Recovered);
        }
        Decision {
            give_back: true,
            ..self.move_to(next, to, reason)
        }
    }

    /// The change that was under way is not begun again: the node keeps the marks that it has.
    fn stays_out(&self, mut next: Incident, reason: Reason) -> Decision {
        next.marks = self.marks_there();
        next.marks_before = None;
        next.marks_observed = true;
        self.move_to(&next, QuarantineStatus::Quarantined, reason)
    }

    fn write_again(&self, next: Incident, wanted: Marks) -> Decision {
        let same = wanted == self.incident.marks && next.faults == self.incident.faults;
        if same {
            let write = marks::apply(self.view, self.node, &self.on, self.incident, self.now);
            return Decision {
                write: Some(write),
                ..Decision::default()
            };
        }
        let (view, node, on) = (self.view, self.node, &self.on);
        let from = Some(self.incident.quarantine.clone());
        let reason = Reason::ReplannedWrite;
        applying_marks(view, node, on, next, wanted, from, reason, self.now)
    }

    /// A person, or a cooperating controller, undid our marks.
    fn stepped_in(&self, next: &Incident) -> Option<Decision> {
        let (uncordoned, untainted) = on_node::tampering(self.node, &self.on, self.incident);
        if !uncordoned && !untainted {
            return None;
        }
        if uncordoned
            && !untainted
            && let Some(key) = marks::cooperator(self.view, self.node)
        {
            // Once no fault is open the node is simply given back, with its taint, if any.
            let wanted = next.held_by.is_some() || next.open_faults().next().is_some();
            return wanted.then(|| self.make_way(next, key));
        }
        let (why, reason) = if uncordoned {
            (CloseReason::ManualUncordon, Reason::ManualUncordon)
        } else {
            (CloseReason::ManualUntaint, Reason::ManualUntaint)
        };
        if let Some(note) = self.cannot_write() {
            let notes = vec![note];
            return Some(Decision {
                notes,
                ..Decision::default()
            });
        }
        let mut decision = self.release(next, why, reason);
        self.hold_all(&mut decision, AT_THE_NODE, self.hold_end());
        Some(decision)
    }

    fn make_way(&self, next: &Incident, key: &str) -> Decision {
        let note = Note::CooperatorUncordon(key.to_owned());
        let mut decision = if let Some(blocked) = self.cannot_write() {
            Decision {
                notes: vec![blocked],
                ..Decision::default()
            }
        } else {
            let reason = Reason::CooperatorUncordon(key.to_owned());
            let mut next = next.clone();
            if self.view.policy.cooperator_policy == CooperatorPolicy::Reassert {
                next.reasserted.retain(|at| later(*at, AN_HOUR) > self.now);
                next.reasserted.push(self.now);
                let over = next.reasserted.len().saturating_sub(REASSERTS + 1);
                next.reasserted.drain(..over);
            }
            self.apply(next, reason)
        };
        decision.notes.push(note);
        decision
    }

    fn cannot_write(&self) -> Option<Note> {
        let by = self.view.policy.mode.blocks()?;
        Some(blocked("write", by))
    }

    // Quarantined: our marks were seen on the node.

    fn quarantined(&self) -> Decision {
        let mut decision = self.at_rest();
        if decision.incident.is_none() {
            wake(&mut decision, self.left_off_until());
        }
        let rests = match &decision.incident {
            Some(next) => next.quarantine == QuarantineStatus::Quarantined,
            None => true,
        };
        let may_write = self.view.feedback == WriteFeedback::Idle
            && self.cannot_write().is_none()
            && observed_only(self.view, self.node).is_none();
        if rests
            && may_write
            && decision.write.is_none()
            && self.on.carries(self.incident).is_some()
        {
            let incident = decision.incident.as_ref().unwrap_or(self.incident);
            let write = derived::write(self.node, incident, self.view.policy);
            let passes = derived::passes_until(incident).filter(|until| self.now < *until);
            match (write, passes) {
                (Some(_), Some(until)) => wake(&mut decision, Some(until)),
                (write, _) => decision.write = write,
            }
        }
        decision
    }

    fn at_rest(&self) -> Decision {
        let mut notes = Vec::new();
        let (mut next, changed) = self.refreshed(&mut notes);
        let idle = self.cannot_write().is_some();
        let mut decision = if let Some(request) = self.view.request.filter(|_| idle) {
            self.person_on_quarantined(next, request)
        } else if let Some(decision) = self.stepped_in(&next) {
            decision
        } else if let Some(request) = self.view.request {
            self.person_on_quarantined(next, request)
        } else if next.held_by.is_none() && next.open_faults().next().is_none() {
            self.recovered(next, changed)
        } else {
            next.needs_operator = None;
            self.follow(next, changed)
        };
        decision.notes.splice(0..0, notes);
        decision
    }

    fn person_on_quarantined(&self, mut next: Incident, request: &Request) -> Decision {
        let actor = request.actor.clone();
        let mut decision = match request.kind {
            RequestKind::Hold => {
                next.held_by = Some(actor.clone());
                self.noted(next, Reason::PersonHold(actor))
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
                if self.cannot_write().is_some() {
                    return Self::refused(
                        "quarantine does not write at the moment, so that the node is not given back; \
                         `warden explain NODE` names the kubectl commands that do",
                    );
                }
                let reason = Reason::PersonCancel(actor.clone());
                let mut decision = self.release(&next, CloseReason::CancelledByPerson, reason);
                self.hold_all(&mut decision, &actor, self.hold_end());
                decision
            }
            RequestKind::DropWithheld => {
                return Self::refused("the node is out already; `warden release` gives it back");
            }
        };
        // A hold or its end may change the marks.
        wake(&mut decision, Some(self.now));
        decision.request_done = true;
        decision
    }

    /// The marks follow the open faults.
    fn follow(&self, next: Incident, changed: bool) -> Decision {
        let wanted = marks::plan(self.view, self.node, &self.on, &next);
        let marked = self.on.carries(self.incident).is_some();
        let as_wanted = on_node::carries_all(self.node, self.incident, &wanted);
        let operator = next.needs_operator != self.incident.needs_operator;
        if as_wanted && !changed {
            return self.kept(next, operator);
        }
        if self.cannot_write().is_some() || observed_only(self.view, self.node).is_some() {
            return self.kept(next, changed);
        }
        let same = !changed && wanted == self.incident.marks && self.says_who_holds();
        if same && let Some(until) = self.left_off_until() {
            let mut decision = self.kept(next, operator);
            decision.notes.push(blocked("write", "marks_removed"));
            wake(&mut decision, Some(until));
            return decision;
        }
        if self.node.paused && marked {
            let mut decision = self.kept(next, changed);
            decision.notes.push(blocked("write", "paused"));
            return decision;
        }
        let reason = match &next.held_by {
            _ if !marked || same => Reason::MarksRestored,
            // No fault changed: the mark is to name who holds the node now, and why.
            Some(who) if !changed => Reason::PersonHold(who.clone()),
            Some(_) | None => Reason::MarksChange,
        };
        let restores = reason == Reason::MarksRestored;
        let next = if restores { self.put_back(next) } else { next };
        self.apply(next, reason)
    }

    /// Whether our annotation names who holds the node, or that nobody does; one that is gone names nobody
    /// wrongly.
    fn says_who_holds(&self) -> bool {
        let holder = self.incident.held_by.as_deref().map(hold_text);
        self.on.carries(self.incident).is_none() || self.on.held_by() == holder.as_deref()
    }

    /// Until when marks that somebody took off are left off, because they were put back often enough.
    fn left_off_until(&self) -> Option<Timestamp> {
        let before = self.put_back_lately(self.incident);
        let more = before.len().checked_sub(PUT_BACKS)?;
        let times = 1_i32.checked_shl(u32::try_from(more).ok()?);
        let pause = times.and_then(|times| PUT_BACK_PAUSE.checked_mul(times));
        let pause = pause
            .filter(SignedDuration::is_positive)
            .map_or(PUT_BACK_LONGEST, |pause| pause.min(PUT_BACK_LONGEST));
        let until = later(*before.last()?, pause);
        (self.now < until).then_some(until)
    }

    fn put_back_lately(&self, incident: &Incident) -> Vec<Timestamp> {
        let lately = |at: &&Timestamp| later(**at, AN_HOUR) > self.now;
        incident.put_back.iter().filter(lately).copied().collect()
    }

    /// The incident with one more time at which its marks were put back.
    fn put_back(&self, mut next: Incident) -> Incident {
        next.put_back = self.put_back_lately(&next);
        next.put_back.push(self.now);
        next
    }

    // Releasing: the outcome of our write is unknown.

    fn releasing(&self, why: CloseReason) -> Decision {
        // Somebody may have taken our annotations off before our write arrived: a cordon that is
        // ours alone proves that it did not.
        let cancelled = why == CloseReason::CancelledByPerson;
        let gone =
            self.on.carries(self.incident).is_none() && !(cancelled && self.carries_unknown());
        if gone && !on_node::has_own_cordon(self.node) {
            let reason = match why {
                CloseReason::Recovered
                | CloseReason::NodeDeleted
                | CloseReason::CancelledByPerson => Reason::WriteSeen,
                CloseReason::ManualUncordon => Reason::ManualUncordon,
                CloseReason::ManualUntaint => Reason::ManualUntaint,
            };
            let mut decision = self.close(self.incident, why, reason);
            // A fault that came meanwhile opens an incident of its own.
            decision.wake_at = Some(self.now);
            return decision;
        }
        match self.view.feedback {
            WriteFeedback::InFlight | WriteFeedback::Accepted => return Decision::default(),
            WriteFeedback::Idle => {}
        }
        match self.cannot_write() {
            None => self.uncordoned_before(why).unwrap_or_else(|| Decision {
                write: Some(self.take_off(why)),
                ..Decision::default()
            }),
            // It is not begun again, and may still arrive: only the node tells.
            Some(note) => Decision {
                notes: vec![note],
                ..Decision::default()
            },
        }
    }
    /// A person uncordoned the node before our release arrived, and maybe before it was decided. It did not
    /// look at faults that are not the incident's, as where the node has opted out: of these, what was open
    /// by then does not take the node out again.
    fn uncordoned_before(&self, why: CloseReason) -> Option<Decision> {
        let said = OnNode::read(self.node);
        let own = said.cordon && !said.cordon_pre_existing;
        let (uncordoned, _) = on_node::tampering(self.node, &self.on, self.incident);
        let cooperates = marks::cooperator(self.view, self.node).is_some();
        if why != CloseReason::Recovered || !own || !uncordoned || cooperates {
            return None;
        }
        let by_then = |fault: &&FaultFacts| asks(fault) && fault.first_at <= self.incident.since;
        let open: Vec<FaultFacts> = self.view.faults.iter().filter(by_then).cloned().collect();
        let until = self.hold_end();
        if open.is_empty() || until <= self.now {
            return None;
        }
        let (why, reason) = (CloseReason::ManualUncordon, Reason::ManualUncordon);
        let mut decision = self.release(self.incident, why, reason);
        decision.holds = Some(vec![hold_open_faults(&open, AT_THE_NODE, until)]);
        Some(decision)
    }
}
