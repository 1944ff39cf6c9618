//! What each open fault means to its node, and in which order faults are told.

use std::cmp::Reverse;

use wire::api::{Fault, Hold, IncidentFault};

use super::Facts;
use crate::words::{self, Clock};

/// What a fault means to its node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Role<'a> {
    /// It is a fault of the open incident.
    Acts(Option<&'a IncidentFault>),
    /// A person gave the node back while it was open.
    Held(&'a Hold),
    /// It was said in an earlier boot, or of another machine under the name.
    Elsewhere,
    /// No rule set acts on it.
    Shown,
}

pub(super) fn role<'a>(facts: &'a Facts, fault: &Fault) -> Role<'a> {
    let name = name(facts, fault);
    if let Some(incident) = facts.open()
        && acts(facts, fault)
    {
        return Role::Acts(incident.faults.iter().find(|of| of.fault == name));
    }
    if let Some(hold) = facts.node.holds.iter().find(|h| h.faults.contains(&name)) {
        return Role::Held(hold);
    }
    if fault.elsewhere {
        Role::Elsewhere
    } else {
        Role::Shown
    }
}

/// Whether a fault is one of the open incident, without looking for it there: asked of each fault, of
/// which a node may have a thousand.
pub(super) fn acts(facts: &Facts, fault: &Fault) -> bool {
    let open = facts.open();
    open.is_some_and(|incident| fault.incident.as_ref() == Some(&incident.id))
}

/// Which rule sets a fault matched, or why none acts on it.
pub(super) fn rule(facts: &Facts, fault: &Fault, clock: &Clock) -> String {
    match role(facts, fault) {
        Role::Acts(Some(of)) => rules(&of.rules),
        Role::Acts(None) => "one of the incident's".to_owned(),
        Role::Held(hold) if clock.is_ahead(hold.until) && !is_endless(hold) => {
            format!(
                "none may act on it before {}: the node was given back",
                clock.local(hold.until)
            )
        }
        Role::Held(_) => "none may act on it for now: the node was given back".to_owned(),
        Role::Elsewhere => "none: it was said in another boot, or of another machine".to_owned(),
        Role::Shown if is_off(facts) => "none is asked: quarantine is off".to_owned(),
        Role::Shown => "none acts on it".to_owned(),
    }
}

/// The rule sets of an incident's fault, or what took their place.
pub(super) fn rules(rules: &[String]) -> String {
    if rules.is_empty() {
        "none: its sender forced the quarantine".to_owned()
    } else if rules.iter().any(|rule| rule == words::ADOPTED) {
        "none today: the node carried its marks when the store was lost".to_owned()
    } else {
        rules.join(", ")
    }
}

/// Whether the hold ends with its faults only.
pub(super) fn is_endless(hold: &Hold) -> bool {
    hold.until == jiff::Timestamp::MAX
}

/// Whether the controller asks no rule set.
pub(super) fn is_off(facts: &Facts) -> bool {
    let status = facts.status.as_ref();
    status.is_some_and(|status| status.quarantine == "off" || status.profile == "silent")
}

/// Whether the controller decides and does not write.
pub(super) fn is_dry_run(facts: &Facts) -> bool {
    !is_off(facts) && facts.status.as_ref().is_some_and(|status| status.dry_run)
}

/// Whether the controller writes nothing because another fault-quarantine runs.
pub(super) fn is_refused(facts: &Facts) -> bool {
    let status = facts.status.as_ref();
    let refused = status.is_some_and(|status| status.other_quarantine.is_some());
    refused && !is_off(facts) && !is_dry_run(facts)
}

/// Whether the controller writes nothing to nodes, for whatever reason.
pub(super) fn is_idle(facts: &Facts) -> bool {
    is_off(facts) || is_dry_run(facts) || is_refused(facts)
}

/// A fault as incidents and holds name it: `node/gpu-17 SysLogsXIDError 79 PCI=0000:17:00`.
pub(super) fn name(facts: &Facts, fault: &Fault) -> String {
    let mut name = format!("node/{} {}", facts.node.name, fault.check);
    for part in [&fault.code, &fault.device] {
        if !part.is_empty() {
            name = format!("{name} {part}");
        }
    }
    name
}

/// What acts comes first, then what is fatal, then the newest.
pub(super) fn sorted<'a>(facts: &Facts, faults: &'a [Fault]) -> Vec<&'a Fault> {
    let mut sorted: Vec<&Fault> = faults.iter().collect();
    sorted.sort_by_key(|fault| {
        let acts = acts(facts, fault);
        let since = fault.since.unwrap_or(fault.last_at);
        (Reverse(acts), Reverse(fault.fatal), Reverse(since))
    });
    sorted
}
