//! Which of a node's open faults open an incident, join it, or leave it.

use std::collections::{BTreeSet, HashMap};

use health_event::incident::{
    HeldFault, Hold, Incident, IncidentFault, Validation, ValidationStatus,
};
use health_event::{BootId, Boots, FaultId};
use jiff::Timestamp;
use k8s_api::names::label_value;

use super::decision::Note;
use super::facts::{FaultFacts, Mode, NodeFacts, View};

/// Metadata key by which a sender of a forced event names who asked for it (reference).
const CREATOR: &str = "creator_id";

/// Closed faults that an incident keeps at most.
const CLOSED_KEPT: usize = 512;

/// The open faults that may act, oldest first, and why others may not.
pub(super) struct Candidates<'a> {
    pub(super) faults: Vec<&'a FaultFacts>,
    pub(super) notes: Vec<Note>,
}

pub(super) fn candidates<'a>(view: &View<'a>, node: &NodeFacts, now: Timestamp) -> Candidates<'a> {
    let mut found = Candidates {
        faults: Vec::new(),
        notes: Vec::new(),
    };
    let (mut suppressed, mut elsewhere) = (0, 0);
    let held = held(view.holds);
    let is_suppressed = |fault: &FaultFacts| {
        let until = held.get(&(&fault.id, fault.seq));
        until.is_some_and(|until| hold_lasts(view, *until, fault, now))
    };
    for fault in view.faults.iter().filter(|f| asks(f)) {
        if is_elsewhere(fault.origin(), node.origin(), view.boots) {
            elsewhere += 1;
        } else if is_suppressed(fault) {
            suppressed += 1;
        } else {
            found.faults.push(fault);
        }
    }
    if suppressed > 0 {
        found.notes.push(Note::Suppressed(suppressed));
    }
    if elsewhere > 0 {
        found.notes.push(Note::OtherMachineOrBoot(elsewhere));
    }
    if !found.faults.is_empty() && node.opted_out {
        found.faults.clear();
        found.notes.push(blocked("open", "opted_out"));
    }
    if !found.faults.is_empty() && view.policy.mode == Mode::Off {
        found.faults.clear();
        found.notes.push(blocked("open", "off"));
    }
    found.faults.sort_by_key(|f| (f.first_at, f.seq, &f.id));
    found
}

pub(super) fn blocked(step: &'static str, by: &'static str) -> Note {
    Note::Blocked { step, by }
}

/// Whether a fault asks for the node to be taken out.
pub(super) fn asks(fault: &FaultFacts) -> bool {
    let skip = fault.event.quarantine_overrides.is_some_and(|o| o.skip);
    !skip && (!fault.matched.is_empty() || is_forced(fault))
}

fn is_forced(fault: &FaultFacts) -> bool {
    fault.may_force && fault.event.quarantine_overrides.is_some_and(|o| o.force)
}

/// Machine, boot and time: of a fault's last word, or of a node object's creation.
#[derive(Debug, Clone, Copy)]
pub struct Origin<'a> {
    /// System UUID; empty if unknown.
    pub machine_id: &'a str,
    /// Boot.
    pub boot: &'a BootId,
    /// When.
    pub at: Timestamp,
}

/// Whether a fault was said of another machine under the node's name, or of an earlier boot: it may
/// not act then. A sender that names neither is believed if it spoke since the node object exists.
pub fn is_elsewhere(fault: Origin<'_>, node: Origin<'_>, boots: &Boots) -> bool {
    let known = !fault.machine_id.is_empty() && !node.machine_id.is_empty();
    if known && fault.machine_id != node.machine_id {
        return true;
    }
    if boots.is_past(fault.boot) {
        return true;
    }
    let same_boot = !fault.boot.is_unknown() && fault.boot == node.boot;
    !known && !same_boot && fault.at < node.at
}

impl FaultFacts {
    fn origin(&self) -> Origin<'_> {
        Origin {
            machine_id: &self.machine_id,
            boot: &self.boot,
            at: self.last_at,
        }
    }
}

impl NodeFacts {
    fn origin(&self) -> Origin<'_> {
        Origin {
            machine_id: &self.machine_id,
            boot: &self.boot,
            at: self.created_at,
        }
    }
}

/// The open faults by identity: a node may have thousands, and each is looked for.
pub(super) fn by_id(faults: &[FaultFacts]) -> HashMap<&FaultId, &FaultFacts> {
    faults.iter().map(|fault| (&fault.id, fault)).collect()
}

/// The end of the longest hold on each opening of a fault.
fn held(holds: &[Hold]) -> HashMap<(&FaultId, u64), Timestamp> {
    let mut until = HashMap::new();
    for hold in holds {
        for held in &hold.faults {
            let end = until
                .entry((&held.id, held.opened_seq))
                .or_insert(hold.until);
            *end = (*end).max(hold.until);
        }
    }
    until
}

/// A fault that has closed once and is open again has another opening, whether anybody looked in
/// between or not.
fn holds(held: &HeldFault, fault: &FaultFacts) -> bool {
    held.id == fault.id && held.opened_seq == fault.seq
}

/// After its end a hold lasts until the agent has spoken again about a fault that is its own.
fn hold_lasts(view: &View<'_>, until: Timestamp, fault: &FaultFacts, now: Timestamp) -> bool {
    if now < until {
        return true;
    }
    let agent = view.agent;
    fault.through_agent && agent.expected && agent.last_report_at.is_none_or(|at| at < until)
}

/// The holds without what has closed or ended. `None` if nothing changes.
pub(super) fn prune_holds(view: &View<'_>, now: Timestamp) -> Option<Vec<Hold>> {
    let open = by_id(view.faults);
    let lasting = |hold: &Hold| {
        let faults: Vec<HeldFault> = hold
            .faults
            .iter()
            .filter(|held| {
                let open = open.get(&held.id).filter(|fault| holds(held, fault));
                open.is_some_and(|fault| hold_lasts(view, hold.until, fault, now))
            })
            .cloned()
            .collect();
        (!faults.is_empty()).then(|| Hold {
            faults,
            ..hold.clone()
        })
    };
    let pruned: Vec<Hold> = view.holds.iter().filter_map(lasting).collect();
    (pruned != view.holds).then_some(pruned)
}

/// A hold on exactly the faults that are open now.
pub(super) fn hold_open_faults(faults: &[FaultFacts], actor: &str, until: Timestamp) -> Hold {
    let held = |fault: &FaultFacts| HeldFault {
        id: fault.id.clone(),
        opened_seq: fault.seq,
    };
    let held: BTreeSet<HeldFault> = faults.iter().map(held).collect();
    Hold {
        actor: actor.to_owned(),
        until,
        faults: held.into_iter().collect(),
    }
}

pub(super) fn incident_fault(fault: &FaultFacts, now: Timestamp) -> IncidentFault {
    let forced_by = is_forced(fault).then(|| {
        let creator = fault.event.metadata.get(CREATOR).map_or("", String::as_str);
        label_value(&format!("{}-{creator}", fault.event.agent))
    });
    IncidentFault {
        id: fault.id.clone(),
        rules: fault.matched.clone(),
        forced_by,
        action: fault.event.recommended_action,
        seq: fault.seq,
        joined_at: now,
        closed_at: None,
        through_agent: fault.through_agent,
    }
}

/// Brings the incident's faults in line with the open ones. Answers whether anything changed.
pub(super) fn refresh(
    view: &View<'_>,
    incident: &mut Incident,
    joining: &[&FaultFacts],
    now: Timestamp,
) -> bool {
    let mut changed = false;
    let open = by_id(view.faults);
    for fault in &mut incident.faults {
        // One that closed and opened again is another opening, which joins if its event asks.
        let same = |fact: &&&FaultFacts| fault.seq == 0 || fact.seq == fault.seq;
        match (open.get(&fault.id).filter(same), fault.closed_at) {
            (None, None) => {
                fault.closed_at = Some(now);
                changed = true;
            }
            (Some(fact), None) => {
                let (rules, action) = (fault.rules.len(), fault.action);
                fault.rules.extend(fact.matched.iter().cloned());
                fault.action = fact.event.recommended_action;
                changed |= rules != fault.rules.len() || action != fault.action;
            }
            (_, Some(_)) => {}
        }
    }
    let known = incident.faults.iter().enumerate();
    let mut places: HashMap<FaultId, usize> = known
        .filter(|_| !joining.is_empty())
        .map(|(place, fault)| (fault.id.clone(), place))
        .collect();
    for fact in joining {
        let fresh = incident_fault(fact, now);
        let place = places.get(&fact.id).copied();
        match place.and_then(|place| incident.faults.get_mut(place)) {
            Some(known) if known.closed_at.is_none() => {
                changed |= known.forced_by.is_none() && fresh.forced_by.is_some();
                known.forced_by = known.forced_by.take().or(fresh.forced_by);
            }
            Some(known) => {
                validate_anew(incident.validation.as_mut(), fresh.joined_at);
                *known = fresh;
                changed = true;
            }
            None => {
                validate_anew(incident.validation.as_mut(), fresh.joined_at);
                places.insert(fresh.id.clone(), incident.faults.len());
                incident.faults.push(fresh);
                changed = true;
            }
        }
    }
    if !joining.is_empty() {
        forget_closed(&mut incident.faults);
    }
    changed
}

/// Drops what closed beyond [`CLOSED_KEPT`], what joined first first: the whole incident is stored at
/// each step. The last that came through the node's agent stays, because the release asks for it.
fn forget_closed(faults: &mut Vec<IncidentFault>) {
    let closed = faults.iter().filter(|f| f.closed_at.is_some()).count();
    let mut surplus = closed.saturating_sub(CLOSED_KEPT);
    if surplus == 0 {
        return;
    }
    let through = |f: &IncidentFault| f.closed_at.is_some() && f.through_agent;
    let last = faults.iter().rev().find(|f| through(f));
    let last = last.map(|f| f.id.clone());
    faults.retain(|fault| {
        let goes = surplus > 0 && fault.closed_at.is_some() && last.as_ref() != Some(&fault.id);
        surplus -= usize::from(goes);
        !goes
    });
}

/// What was found before a fault says nothing of it: the node is validated anew, if it is at all.
fn validate_anew(validation: Option<&mut Validation>, now: Timestamp) {
    if let Some(validation) = validation {
        *validation = Validation {
            status: ValidationStatus::Running,
            since: now,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::{at, fault_id};

    #[test]
    fn an_incident_keeps_what_is_open_and_the_last_that_closed() {
        let fault = |n: usize| IncidentFault {
            id: fault_id(&n.to_string()),
            rules: BTreeSet::new(),
            forced_by: None,
            action: health_event::RecommendedAction::None,
            seq: n as u64,
            joined_at: at(0),
            closed_at: n.is_multiple_of(2).then(|| at(1)),
            through_agent: n == 0,
        };
        let mut faults: Vec<IncidentFault> = (0..2_000).map(fault).collect();
        forget_closed(&mut faults);
        let seqs = |closed: bool| -> Vec<u64> {
            let of = faults.iter().filter(|f| f.closed_at.is_some() == closed);
            of.map(|f| f.seq).collect()
        };
        assert_eq!(seqs(false).len(), 1_000);
        let mut newest: Vec<u64> = (0..2_000)
            .step_by(2)
            .skip(1_000 - (CLOSED_KEPT - 1))
            .collect();
        newest.insert(0, 0);
        assert_eq!(seqs(true), newest);
        let before = faults.clone();
        forget_closed(&mut faults);
        assert_eq!(faults, before);
    }
}
