//! What a person left behind who gave the node back: who or what ended which incident, which faults
//! do not act until when, and what ends that earlier. (A hold in the controller's words; to a reader
//! `warden hold` is the opposite.)

use wire::api::{Hold, Incident};

use super::next::Line;
use super::{FAULTS, Facts, faults};
use crate::words::{self, Clock};

/// Endings that leave a hold.
const BY_PERSON: [&str; 3] = ["ManualUncordon", "ManualUntaint", "CancelledByPerson"];

pub(super) fn lines(facts: &Facts, clock: &Clock) -> Vec<Line> {
    let holds = facts.node.holds.iter();
    holds.flat_map(|hold| of(facts, hold, clock)).collect()
}

fn of(facts: &Facts, hold: &Hold, clock: &Clock) -> Vec<Line> {
    let cause = if faults::is_endless(hold) {
        format!(
            "{} dropped the withheld cordon (`warden breaker reset --drop-withheld`).",
            words::actor_and_why(&hold.actor)
        )
    } else {
        cause(facts, hold, clock)
    };
    let mut lines = vec![Line::Blocks(cause), Line::Blocks(length(hold, clock))];
    for name in hold.faults.iter().take(FAULTS) {
        lines.push(Line::Blocks(format!("  {}", fault(facts, name))));
    }
    if let Some(more) = hold.faults.len().checked_sub(FAULTS).filter(|n| *n > 0) {
        lines.push(Line::Blocks(format!("  and {more} more")));
    }
    lines.push(Line::Comes(
        "A fault of another code or device is new and may take the node out at once; so may one of \
         these that has ended and comes again."
            .to_owned(),
    ));
    lines
}

/// A hold does not name the incident that left it: where there is one hold, the newest that a person ended did.
fn cause(facts: &Facts, hold: &Hold, clock: &Clock) -> String {
    let by_person = |incident: &&Incident| BY_PERSON.contains(&incident.detail.as_str());
    let closed = facts
        .node
        .incidents
        .iter()
        .filter(|i| i.closed_at.is_some());
    let mut of_incidents = facts.node.holds.iter().filter(|h| !faults::is_endless(h));
    let is_only = of_incidents.next().is_some() && of_incidents.next().is_none();
    let newest = closed.into_iter().find(by_person).filter(|_| is_only);
    let Some(incident) = newest else {
        return format!(
            "The node was given back by {}.",
            words::actor_and_why(&hold.actor)
        );
    };
    let ended = incident.closed_at.unwrap_or(incident.since);
    let (when, age) = (clock.local(ended), clock.age(ended));
    let how = match incident.detail.as_str() {
        "ManualUncordon" => format!(
            "The node was uncordoned by hand {when} ({age} ago; the node does not show by whom, an \
             audit log of the API server does)."
        ),
        "ManualUntaint" => format!(
            "A taint of Warden's was removed by hand {when} ({age} ago; the node does not show by \
             whom, an audit log of the API server does)."
        ),
        _ => format!(
            "{} gave the node back {when} ({age} ago).",
            words::actor_and_why(&hold.actor)
        ),
    };
    let (id, reason) = (&incident.id, &incident.detail);
    format!("{how} That ended incident {id} ({reason}).")
}

fn length(hold: &Hold, clock: &Clock) -> String {
    if faults::is_endless(hold) {
        "Until they have ended once, these do not take it out again:".to_owned()
    } else if clock.is_ahead(hold.until) {
        format!(
            "Until {} these do not take it out again; what is open then is looked at as new:",
            clock.until(hold.until)
        )
    } else {
        "That time is over; these do not take it out before the node's agent has reported once \
         more:"
            .to_owned()
    }
}

/// An open fault in words; else its name without the node's.
fn fault(facts: &Facts, name: &str) -> String {
    let open = facts.node.faults.iter();
    let mut open = open.filter(|fault| faults::name(facts, fault) == name);
    let bare = || {
        name.split_once(' ')
            .map_or(name, |(_, rest)| rest)
            .to_owned()
    };
    open.next().map_or_else(bare, words::fault_and_device)
}
