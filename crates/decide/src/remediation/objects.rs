//! The objects that carry repairs out: their names, which of them is wanted, and what they tell where
//! the store was lost.

use health_event::incident::{Attempt, Effect, Incident, IncidentId, Repair, RepairStatus, Rung};
use health_event::{BootId, Boots};
use jiff::{SignedDuration, Timestamp};

use super::{Decision, Policy, Reason, Transition};
use crate::later;

/// Longest name of an object.
const NAME: usize = 253;

/// The name of an attempt's object: the same for the same attempt, another for any other, valid for
/// any node name.
pub fn object_name(incident: &Incident, number: u32) -> String {
    object_name_of(&incident.id, incident.node.as_str(), number)
}

/// The same of an incident that may not be known (any more).
pub fn object_name_of(incident: &IncidentId, node: &str, number: u32) -> String {
    let id = incident.as_str().to_ascii_lowercase();
    let tail = format!("-{id}-{number}");
    let head = format!("maintenance-{node}");
    let cut = head.len().min(NAME - tail.len());
    let head = head[..cut].trim_end_matches(['.', '-']);
    format!("{head}{tail}")
}

/// Whether an object has the name of an attempt of this incident.
pub fn is_named_for(incident: &Incident, object: &str) -> bool {
    let number = object.rsplit_once('-').and_then(|(_, n)| n.parse().ok());
    number.is_some_and(|number| object_name(incident, number) == object)
}

/// Whether an incident waits for what this object does: its attempt is under way.
pub fn wants(incident: &Incident, object: &str) -> bool {
    let repair = incident.repair.as_ref();
    let open =
        repair.filter(|repair| !incident.quarantine.is_closed() && repair.status.is_under_way());
    let attempt = open.and_then(|repair| repair.attempt.as_ref());
    attempt.is_some_and(|attempt| attempt.object == object)
}

/// Whether an object that an incident ordered is taken back: nobody waits for it, and nothing was sent
/// for it. What may have been sent can't be recalled: it keeps the node's lock and its deadline. An open
/// incident without an attempt was rebuilt after the store was lost, and its object is taken over.
pub fn is_recalled(incident: &Incident, object: &str, is_over: bool, may_be_sent: bool) -> bool {
    let attempt = incident
        .repair
        .as_ref()
        .and_then(|repair| repair.attempt.as_ref());
    let is_taken_over = !incident.quarantine.is_closed() && attempt.is_none();
    !is_over && !may_be_sent && !is_taken_over && !wants(incident, object)
}

/// Whether the machine has booted since this object was ordered, by a person's hand, by another signal
/// or by itself: what it was ordered for has happened, and a signal that was not sent is not sent any
/// more. `shown` is the boot of the node now.
pub fn has_happened(incident: &Incident, object: &str, shown: &BootId) -> bool {
    let repair = incident.repair.as_ref();
    let attempt = repair.and_then(|repair| repair.attempt.as_ref());
    attempt.is_some_and(|attempt| {
        let known = !shown.is_unknown() && !attempt.boot_before.is_unknown();
        let reboot = attempt.rung == Rung::Reboot && attempt.object == object;
        reboot && known && attempt.boot_before != *shown
    })
}

/// An object of an incident whose repair the store does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its name.
    pub object: String,
    /// Number of its attempt.
    pub number: u32,
    /// The action that it was ordered for.
    pub action: String,
    /// How strong it is.
    pub rung: Rung,
    /// Whether it asks for force.
    pub force: bool,
    /// Boot of the node when it was ordered; unknown if it does not say.
    pub boot_before: BootId,
    /// When it was made.
    pub made_at: Timestamp,
    /// When it ended well, if it did.
    pub done_at: Option<Timestamp>,
    /// Whether the object is there, and not its name alone on the node.
    pub is_there: bool,
}

/// An attempt whose action is not configured any more has this long.
pub(super) const DEADLINE: SignedDuration = SignedDuration::from_mins(35);

/// The repair of an incident that was rebuilt after the store was lost, as its last object tells, or the node
/// where the object is gone. What became of it is decided next; of one that is gone nobody knows whether its
/// signal is out, so that it is looked for until its deadline.
pub fn adopted(
    incident: &Incident,
    found: &[Found],
    policy: &Policy,
    now: Timestamp,
) -> Option<Decision> {
    let last = found
        .iter()
        .max_by_key(|found| (found.number, found.is_there))?;
    let before = incident.repair.as_ref();
    if incident.quarantine.is_closed() || before.is_some_and(|before| before.attempt.is_some()) {
        return None;
    }
    let from = before.map(|before| before.status.clone());
    let executor = policy.executors.get(&last.action);
    let deadline = executor.map_or(DEADLINE, |executor| executor.deadline);
    let before_it = found.iter().filter(|found| found.number < last.number);
    let status = if last.is_there {
        RepairStatus::Running
    } else {
        RepairStatus::Unknown
    };
    let mut next = incident.clone();
    next.version += 1;
    next.repair = Some(Repair {
        status: status.clone(),
        since: now,
        attempt: Some(Attempt {
            number: last.number,
            rung: last.rung,
            action: last.action.clone(),
            object: last.object.clone(),
            force: last.force,
            boot_before: last.boot_before.clone(),
            requested_at: last.made_at,
            deadline: later(last.made_at, deadline),
            not_begun_before: 0,
            seen_before: before_it.filter_map(|found| found.done_at).max(),
            effect: Effect::Pending,
        }),
    });
    Some(Decision {
        incident: Some(next),
        transition: Some(Transition {
            from,
            to: status,
            reason: Reason::Found,
        }),
        wake_at: Some(now),
        ..Decision::default()
    })
}

/// The boots of a machine with those that its node and its attempt tell: the node's status may show a
/// boot that no agent reported yet, and a store that is new does not know the boot before a repair.
pub fn boots_seen(known: &Boots, of_status: &BootId, attempt: Option<&Attempt>) -> Boots {
    let before = attempt.map(|attempt| &attempt.boot_before);
    let before = before.filter(|boot| !boot.is_unknown() && !known.as_slice().contains(boot));
    // One that the node shows still is the present one: its agent has not reported it yet.
    let before = before.filter(|boot| *boot != of_status);
    // Any other was seen before all that are known: were it newer, the store would know it.
    let mut boots = match before {
        Some(before) => {
            let known = known.as_slice().iter();
            let room = Boots::KEPT - 1;
            let skip = known.len().saturating_sub(room);
            Boots::new(
                std::iter::once(before)
                    .chain(known.skip(skip))
                    .cloned()
                    .collect(),
            )
        }
        None => known.clone(),
    };
    boots.observe(of_status);
    boots
}

#[cfg(test)]
mod tests {
    use health_event::incident::{CloseReason, DrainStatus, QuarantineStatus};

    use super::*;
    use crate::kit::{at, incident};

    fn found(number: u32) -> Found {
        Found {
            object: format!("maintenance-n1-x-{number}"),
            number,
            action: "RESTART_BM".to_owned(),
            rung: Rung::Reboot,
            force: number > 1,
            boot_before: BootId::new("b1"),
            made_at: at(1),
            done_at: None,
            is_there: true,
        }
    }

    fn policy() -> Policy {
        Policy {
            executors: std::collections::BTreeMap::new(),
            ladder: Vec::new(),
            max_attempts: 2,
            window: SignedDuration::from_hours(24),
            settle_timeout: SignedDuration::from_mins(10),
            queue_timeout: SignedDuration::from_hours(6),
            mode: super::super::Mode::Enforce,
            first_action_until: None,
        }
    }

    #[test]
    fn an_object_is_named_for_the_incident_whose_attempt_it_carries_out() {
        let one = incident(None);
        let mut other = one.clone();
        other.id = health_event::incident::IncidentId::new("01BRZ3NDEKTSV4RRFFQ69G5FAV").unwrap();
        for number in [1, 12] {
            let name = object_name(&one, number);
            assert!(is_named_for(&one, &name) && !is_named_for(&other, &name));
        }
        for odd in ["", "by-hand", "maintenance-n1-01arz3ndektsv4rrffq69g5fav-x"] {
            assert!(!is_named_for(&one, odd), "{odd}");
        }
    }

    #[test]
    fn an_object_is_recalled_unless_somebody_waits_for_it_or_it_may_be_sent() {
        let open = incident(Some(DrainStatus::Drained));
        let mine = found(1);
        let decision = adopted(&open, std::slice::from_ref(&mine), &policy(), at(2)).unwrap();
        let under_way = decision.incident.unwrap();
        assert!(wants(&under_way, &mine.object));
        assert!(!is_recalled(&under_way, &mine.object, false, false));
        assert!(is_recalled(&under_way, "maintenance-n1-x-0", false, false));
        assert!(!is_recalled(&open, &mine.object, false, false), "adopted");
        let mut closed = under_way.clone();
        closed.quarantine = QuarantineStatus::Closed(CloseReason::ManualUncordon);
        assert!(is_recalled(&closed, &mine.object, false, false));
        assert!(!is_recalled(&closed, &mine.object, false, true), "sent");
        assert!(!is_recalled(&closed, &mine.object, true, false), "over");
        let mut failed = under_way;
        failed.repair.as_mut().unwrap().status = RepairStatus::Cancelled;
        assert!(is_recalled(&failed, &mine.object, false, false));
    }

    #[test]
    fn what_has_happened_since_it_was_ordered_is_not_done_again() {
        let open = incident(Some(DrainStatus::Drained));
        let mine = found(1);
        let decision = adopted(&open, std::slice::from_ref(&mine), &policy(), at(2)).unwrap();
        let mut under_way = decision.incident.unwrap();
        let happened = |incident: &Incident, object: &str, shown: &str| {
            has_happened(incident, object, &BootId::new(shown))
        };
        assert!(happened(&under_way, &mine.object, "b2"));
        assert!(!happened(&under_way, &mine.object, "b1"));
        assert!(!happened(&under_way, &mine.object, ""), "not known");
        assert!(!happened(&under_way, "by-hand", "b2"), "not its object");
        let attempt =
            |incident: &mut Incident| incident.repair.as_mut().unwrap().attempt.take().unwrap();
        let mut last = attempt(&mut under_way);
        assert!(!happened(&under_way, &mine.object, "b2"), "none");
        last.rung = Rung::Reset;
        under_way.repair.as_mut().unwrap().attempt = Some(last);
        assert!(!happened(&under_way, &mine.object, "b2"), "a reset");
    }

    #[test]
    fn the_last_object_tells_of_the_attempt_that_a_lost_store_knew() {
        let lost = incident(None);
        assert_eq!(adopted(&lost, &[], &policy(), at(2)), None);
        let done = |number, minutes| Found {
            done_at: Some(at(minutes)),
            ..found(number)
        };
        let objects = [done(1, -2), done(3, 2), done(2, -1)];
        let decision = adopted(&lost, &objects, &policy(), at(2)).unwrap();
        let next = decision.incident.unwrap();
        assert_eq!(next.version, lost.version + 1);
        let repair = next.repair.clone().unwrap();
        assert_eq!(repair.status, RepairStatus::Running);
        let attempt = repair.attempt.unwrap();
        assert_eq!((attempt.number, attempt.force), (3, true));
        assert_eq!(attempt.deadline, at(36), "from when it was made");
        assert_eq!(
            attempt.seen_before,
            Some(at(-1)),
            "of its own nobody knows yet"
        );
        assert_eq!(
            adopted(&next, &[found(4)], &policy(), at(3)),
            None,
            "it is known"
        );
        let mut planned = lost.clone();
        planned.repair = Some(Repair {
            status: RepairStatus::Planned { rung: Rung::Reboot },
            since: at(1),
            attempt: None,
        });
        assert!(adopted(&planned, &[found(1)], &policy(), at(3)).is_some());
        let mut closed = lost;
        closed.quarantine = QuarantineStatus::Closed(CloseReason::Recovered);
        assert_eq!(adopted(&closed, &[found(1)], &policy(), at(3)), None);
    }

    #[test]
    fn an_attempt_that_the_node_names_and_whose_object_is_gone_is_unknown_until_its_deadline() {
        let lost = incident(None);
        let noted = |number| Found {
            is_there: false,
            ..found(number)
        };
        let decision = adopted(&lost, &[found(1), noted(2)], &policy(), at(2)).unwrap();
        let repair = decision.incident.unwrap().repair.unwrap();
        assert_eq!(repair.status, RepairStatus::Unknown);
        let attempt = repair.attempt.unwrap();
        assert_eq!((attempt.number, attempt.deadline), (2, at(36)));
        let decision = adopted(&lost, &[noted(2), found(2)], &policy(), at(2)).unwrap();
        let repair = decision.incident.unwrap().repair.unwrap();
        assert_eq!(repair.status, RepairStatus::Running, "its object tells");
    }

    #[test]
    fn the_boot_of_the_status_counts_unless_it_is_old_and_that_before_a_repair_is_past() {
        let boot = BootId::new;
        let known = Boots::new(vec![boot("b1"), boot("b2")]);
        let seen = |status: &str| boots_seen(&known, &boot(status), None);
        assert_eq!(seen("b3").present(), Some(&boot("b3")));
        assert_eq!(seen("b1").present(), Some(&boot("b2")), "a cache lags");
        assert_eq!(seen("").present(), Some(&boot("b2")));
        let mut attempt = adopted(&incident(None), &[found(1)], &policy(), at(2))
            .and_then(|decision| decision.incident?.repair?.attempt)
            .unwrap();
        let new = Boots::new(vec![boot("b2")]);
        let seen = boots_seen(&new, &boot("b2"), Some(&attempt));
        assert!(seen.is_past(&boot("b1")));
        assert_eq!(seen.present(), Some(&boot("b2")));
        let none = boots_seen(&Boots::default(), &boot(""), Some(&attempt));
        assert_eq!(none.present(), Some(&boot("b1")));
        let shown = boots_seen(&Boots::new(vec![boot("b0")]), &boot("b1"), Some(&attempt));
        assert_eq!(shown.present(), Some(&boot("b1")), "no agent reported it");
        let full: Vec<BootId> = (0..16).map(|n| boot(&format!("c{n}"))).collect();
        let full = Boots::new(full);
        let seen = boots_seen(&full, &boot("c15"), Some(&attempt));
        assert!(seen.is_past(&boot("b1")) && seen.present() == Some(&boot("c15")));
        attempt.boot_before = boot("c3");
        assert_eq!(boots_seen(&full, &boot(""), Some(&attempt)), full);
    }
}
