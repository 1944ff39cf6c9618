//! What happens next and what blocks it, from the facts alone.

use jiff::SignedDuration;
use serde::Serialize;
use wire::api::{Fault, Incident, MissingRight, PendingReboot};

use super::faults::{self, Role, role};
use super::marks::{self, Marks};
use super::{FAULTS, Facts, blocks, boots, can_do, drain, held, repair};
use crate::output::{PLAIN, RED, Style, YELLOW, counted, harmless};
use crate::timeline;
use crate::words::{self, Clock};

/// A write to a node that is not done by then does not go through: each is tried again within
/// seconds.
const STUCK_AFTER: SignedDuration = SignedDuration::from_secs(60);

/// A fault that was said no longer ago may not have been decided about yet.
const UNDECIDED: SignedDuration = SignedDuration::from_secs(3);

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", content = "text", rename_all = "snake_case")]
pub(super) enum Line {
    /// What comes.
    Comes(String),
    /// What keeps it from coming.
    Blocks(String),
    /// A person is needed.
    Person(String),
}

impl Line {
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Comes(text) | Self::Blocks(text) | Self::Person(text) => text,
        }
    }

    pub(super) fn style(&self) -> Style {
        match self {
            Self::Comes(_) => PLAIN,
            Self::Blocks(_) => YELLOW,
            Self::Person(_) => RED,
        }
    }
}

/// Whether the node is out by us, or may be.
pub(super) fn is_out(incident: &Incident) -> bool {
    matches!(
        incident.state.as_str(),
        "Applying" | "Quarantined" | "Releasing"
    )
}

/// Whether a write has been under way for too long.
pub(super) fn is_stuck(facts: &Facts, incident: &Incident, clock: &Clock) -> bool {
    if faults::is_idle(facts) {
        return false;
    }
    let writes = matches!(incident.state.as_str(), "Applying" | "Releasing");
    writes && clock.is_older(incident.since, STUCK_AFTER)
}

/// What happens next, and what blocks it.
pub(super) fn steps(facts: &Facts, clock: &Clock) -> Vec<Line> {
    let mut lines = match facts.open() {
        Some(incident) => of_incident(facts, incident, clock),
        None => without_incident(facts, clock),
    };
    lines.extend(pending_reboots(facts, clock));
    lines.extend(boots::lines(facts, clock));
    lines.extend(unconfirmed(facts));
    lines.extend(held::lines(facts, clock));
    lines.extend(missing_rights(facts, clock));
    lines.extend(blocks::lines(facts));
    lines
}

/// What the API server does not let Warden do, where that may keep something of an incident.
fn missing_rights(facts: &Facts, clock: &Clock) -> Vec<Line> {
    let missing = facts
        .status
        .iter()
        .flat_map(|status| &status.missing_rights);
    let line = |right: &MissingRight| {
        Line::Person(format!(
            "The API server does not let Warden {} {} since {}: {}. Give the controller's service account this \
             right (its ClusterRole or Role, deploy/).",
            right.verb,
            right.resource,
            clock.since(right.since),
            right.missed
        ))
    };
    let shown = missing.filter(|_| facts.open().is_some());
    shown.map(line).collect()
}

fn without_incident(facts: &Facts, clock: &Clock) -> Vec<Line> {
    if facts.node.object.is_none() {
        return gone(facts);
    }
    if facts.node.faults.is_empty() {
        return Vec::new();
    }
    let blocked = !blocks::lines(facts).is_empty() && !faults::is_dry_run(facts);
    let all = facts.node.faults.iter();
    let roles: Vec<Role<'_>> = all.map(|fault| role(facts, fault)).collect();
    let newest = facts.node.faults.iter().filter_map(|fault| fault.since);
    let is_new = newest
        .max()
        .is_some_and(|at| !clock.is_older(at, UNDECIDED));
    let why = if blocked || roles.iter().any(|role| matches!(role, Role::Held(_))) {
        "Warden leaves the node as it is; what is said below keeps it from acting."
    } else if roles.iter().all(|role| *role == Role::Elsewhere) {
        "Warden leaves the node as it is: these faults were said in another boot, or of another machine."
    } else if is_new {
        "A fault was just said: whether a rule set acts on it is decided within moments. Ask again."
    } else {
        "Warden leaves the node as it is: no rule set that is on acts on these faults."
    };
    let mut lines = vec![Line::Comes(why.to_owned())];
    lines.extend(ends(&faults::sorted(facts, &facts.node.faults), ""));
    lines
}

/// Reboots that may still come, beside the one that the incident waits for.
fn pending_reboots(facts: &Facts, clock: &Clock) -> Vec<Line> {
    let repair = facts.open().and_then(|incident| incident.repair.as_ref());
    let under_way =
        repair.filter(|repair| matches!(&*repair.state, "Requested" | "Running" | "Unknown"));
    let own = under_way.and_then(|repair| repair.attempt.as_ref());
    let others = facts.node.reboots.iter();
    let others = others.filter(|other| own.is_none_or(|own| own.object != other.object));
    let line = |reboot: &PendingReboot| {
        let object = &reboot.object;
        let until = reboot
            .until
            .map_or_else(String::new, |at| format!(", until {}", clock.local(at)));
        let Some(since) = reboot.since else {
            let why = match &reboot.waits_for {
                Some(why) => harmless(why).into_owned(),
                None => format!("`kubectl describe rebootnode {object}`"),
            };
            return Line::Comes(format!(
                "RebootNode {object} waits, and nothing was sent: {why}."
            ));
        };
        Line::Blocks(format!(
            "The node may still be rebooted{until}: the signal of RebootNode {object} may be out since {} \
             and can't be recalled.",
            clock.local(since)
        ))
    };
    others.map(line).collect()
}

/// What an earlier store left on the node.
fn unconfirmed(facts: &Facts) -> Vec<Line> {
    if facts.unconfirmed().is_empty() {
        return Vec::new();
    }
    let text = "A condition of an earlier store stays until its check speaks again, here or by a restart \
                of its monitor; one whose monitor is gone for good goes when `ingest.retired_checks` \
                names it. Look at the node: no rule set acts on what is not known.";
    vec![Line::Blocks(text.to_owned())]
}

fn gone(facts: &Facts) -> Vec<Line> {
    if facts.node.faults.is_empty() {
        return Vec::new();
    }
    let text = "Nothing, while there is no node of this name. What was said of it is kept for \
                store.fault_memory, and looked at when a node of this name and machine appears by \
                then; after that it closes (node deleted).";
    vec![Line::Comes(text.to_owned())]
}

/// How each of these ends.
fn ends(faults: &[&Fault], indent: &str) -> Vec<Line> {
    let line = |fault: &&Fault| {
        let (what, end) = (words::fault_and_device(fault), words::end(fault));
        Line::Comes(format!("{indent}{what} {end}."))
    };
    let mut lines: Vec<Line> = faults.iter().take(FAULTS).map(line).collect();
    if let Some(more) = faults.len().checked_sub(FAULTS).filter(|more| *more > 0) {
        lines.push(Line::Comes(format!("{indent}and {more} more")));
    }
    lines
}

fn of_incident(facts: &Facts, incident: &Incident, clock: &Clock) -> Vec<Line> {
    let mut lines = match incident.state.as_str() {
        "Withheld" => withheld(facts, incident, clock),
        "Observed" => observed(facts),
        "Applying" => vec![writes(facts, incident, "takes the node out", clock)],
        "Releasing" => vec![writes(facts, incident, "gives the node back", clock)],
        _ => quarantined(facts, incident, clock),
    };
    if incident.marks_removed > 0 {
        lines.push(Line::Blocks(format!(
            "Something takes Warden's annotations off this node again and again ({} times put back in the last \
             hour); the node stays out, and they are put back more and more rarely, up to each 10 min. Which they \
             are says the Event MarksRemoved; look for a controller that removes annotations it does not know.",
            incident.marks_removed
        )));
    }
    if let Some(why) = &incident.needs_operator {
        lines.insert(0, Line::Person(needs_operator(facts, why)));
    }
    lines
}

fn writes(facts: &Facts, incident: &Incident, what: &str, clock: &Clock) -> Line {
    if faults::is_idle(facts) {
        return Line::Blocks(format!(
            "The write that {what} was begun by an earlier controller; the node does not show it, and \
             it is not begun again before Warden may write. If it comes late it is noticed."
        ));
    }
    if let Some(said) = blocks::refused(facts, clock) {
        return Line::Person(format!(
            "The write that {what} is refused, and tried again and again: {said} Remove what refuses \
             it (an admission policy, a missing permission, or a taint of the rule set that is not \
             valid), or end the incident with `warden release {}`.",
            facts.node.name
        ));
    }
    if !is_stuck(facts, incident, clock) {
        return Line::Comes(format!("The write that {what} is under way."));
    }
    let age = clock.age(incident.since);
    Line::Person(format!(
        "The write that {what} has not come through for {age}; it is tried again and again. The \
         API server refuses it or can't be reached; the controller's log says why: `kubectl -n \
         warden logs deployment/warden-controller | grep {}`.",
        facts.node.name
    ))
}

fn needs_operator(facts: &Facts, why: &str) -> String {
    if why == "faults unknown" {
        return format!(
            "A person is needed: the store was lost, the node does not name all that it is out for, \
             and its agent has not told within quarantine.settle_timeout. It comes back once the \
             agent has, or at once with `warden release {}`. Look at the agent's pod: {}",
            facts.node.name,
            agent_pods(&facts.node.name)
        );
    }
    if why != "agent not settled" {
        return format!("A person is needed: {why}.");
    }
    format!(
        "A person is needed: the node's agent did not finish its first look at this boot within \
         quarantine.settle_timeout. Look at its pod: {}",
        agent_pods(&facts.node.name)
    )
}

/// The command that shows a node's agent.
pub(super) fn agent_pods(node: &str) -> String {
    format!("kubectl -n warden get pods -o wide --field-selector spec.nodeName={node}")
}

/// The nodes of the pool that are out, and how many may be, while no more may.
fn level_reached(facts: &Facts) -> Option<(usize, usize)> {
    let pool = facts.pool.as_ref()?;
    let bound = pool.level_bound.filter(|bound| pool.out >= *bound)?;
    Some((pool.out, bound))
}

fn withheld(facts: &Facts, incident: &Incident, clock: &Clock) -> Vec<Line> {
    let pool = facts.pool.as_ref().filter(|pool| pool.tripped);
    let why = match (incident.withheld_by.as_deref(), incident.not_before) {
        (Some("first_action"), Some(at)) if clock.is_ahead(at) => format!(
            "quarantine was switched on a short time ago and only shows what it would do until {} \
             (quarantine.first_action_delay). Then nodes go one after the other, the oldest first",
            clock.until(at)
        ),
        (Some("other_quarantine"), _) => {
            "another fault-quarantine runs in this cluster, and both would write the same marks. Once \
             it is gone, withheld nodes are taken out one after the other, the oldest fault first"
                .to_owned()
        }
        (Some("pace"), _) if let Some((out, bound)) = level_reached(facts) => format!(
            "the level bound of the breaker is still reached: {out} out, of {bound} that may be. Give \
             back nodes (`warden release`), or raise quarantine.circuitBreaker's bound"
        ),
        (Some("first_action" | "pace"), _) => {
            "withheld nodes are taken out one after the other, the oldest first".to_owned()
        }
        _ => incident.detail.clone(),
    };
    let mut lines = vec![
        Line::Blocks(format!("Not taken out yet: {why}.")),
        Line::Comes(
            "When that is over, it is taken out if its faults are still open; else the incident \
             ends without a mark on the node."
                .to_owned(),
        ),
    ];
    if let Some(pool) = pool {
        lines.push(Line::Person(format!(
            "The breaker of pool {} is tripped: {} of {} out, {} withheld. It stays so until a \
             person resets it, unless quarantine.circuitBreaker.auto_resume is on.",
            pool.pool,
            pool.out,
            counted(pool.nodes as u64, "node"),
            pool.withheld.len()
        )));
    }
    lines
}

fn observed(facts: &Facts) -> Vec<Line> {
    let comes = Line::Comes("The incident ends by itself when its faults end.".to_owned());
    // These say it themselves.
    let dropped = facts.node.holds.iter().any(faults::is_endless);
    if dropped || can_do::is_protected(facts) || faults::is_dry_run(facts) {
        return vec![comes];
    }
    let entered = facts.steps.iter().rev();
    let entered = entered
        .into_iter()
        .find(|step| step.to == "Observed" && step.from != "Observed");
    let why = entered.map(timeline::why).filter(|why| !why.is_empty());
    let why = why.map_or_else(String::new, |why| format!(": {why}"));
    vec![
        Line::Blocks(format!("Nothing is written to the node{why}.")),
        comes,
    ]
}

fn quarantined(facts: &Facts, incident: &Incident, clock: &Clock) -> Vec<Line> {
    if marks::on_node(facts, incident) == Marks::None {
        return vec![Line::Comes(given_back(facts))];
    }
    let mut lines = Vec::new();
    if let Some(who) = &incident.held_by {
        let who = words::holder(who);
        lines.push(Line::Blocks(format!(
            "Held by {who}: it stays out until the hold is ended."
        )));
    }
    if !incident.detail.is_empty() && incident.needs_operator.is_none() {
        lines.push(Line::Blocks(format!(
            "Not given back: {}.",
            incident.detail
        )));
    }
    lines.extend(awaited_reboot(incident));
    lines.extend(validated(incident));
    let has_stage = incident.drain.is_some() || incident.repair.is_some();
    if has_stage || incident.faults.iter().any(|f| f.closed_at.is_none()) {
        lines.extend(drain::lines(facts, incident, clock));
        lines.extend(repair::lines(facts, incident, clock));
    }
    let mut open = faults::sorted(facts, &facts.node.faults);
    open.retain(|fault| faults::acts(facts, fault));
    if !open.is_empty() {
        lines.push(Line::Comes(format!(
            "The node stays out until {} ended:",
            if open.len() == 1 {
                "this fault has"
            } else {
                "these faults have"
            }
        )));
        lines.extend(ends(&open, "  "));
    }
    lines.extend(unsettled(facts, open.is_empty()));
    if faults::is_idle(facts) {
        let text = "While Warden does not write, it does not give the node back either.";
        lines.push(Line::Blocks(text.to_owned()));
    } else {
        lines.push(Line::Comes(
            "Then Warden takes off its own marks and nothing else; others' cordons and taints \
             stay."
                .to_owned(),
        ));
    }
    lines
}

/// A reboot that the incident does not wait for, and that keeps the node all the same.
fn awaited_reboot(incident: &Incident) -> Option<Line> {
    let repair = incident.repair.as_ref().map(|repair| &*repair.state);
    let own = matches!(repair, Some("Requested" | "Running" | "Unknown"));
    let kept = incident.release_kept_by.as_deref() == Some("repair_under_way");
    (kept && !own).then(|| {
        Line::Blocks(
            "Not given back while a reboot may still come to it: one that a person ordered, or whose \
             attempt was given up, or nobody can read the RebootNode objects. `kubectl get rebootnodes` \
             shows them; it ends with the object, or with the signal's deadline."
                .to_owned(),
        )
    })
}

/// The check of the node, as long as it keeps it.
fn validated(incident: &Incident) -> Option<Line> {
    let validation = incident.validation.as_deref()?;
    match validation.strip_prefix("Failed: ") {
        Some(found) => Some(Line::Person(format!(
            "Not given back: its validation failed: {found}. A person is needed."
        ))),
        None if validation == "Running" => Some(Line::Blocks(
            "Not given back before its validation passed, which runs.".to_owned(),
        )),
        None => None,
    }
}

/// Somebody took off the marks of an incident.
fn given_back(facts: &Facts) -> String {
    let when = if faults::is_idle(facts) {
        "Once Warden writes again it"
    } else {
        "Warden"
    };
    format!(
        "{when} takes it that a person gave the node back: the incident ends, and its open faults do not \
         take the node out again for a while (quarantine.manual_uncordon_hold)."
    )
}

/// Whether nobody knows all that the node is out for.
pub(super) fn is_unknown(facts: &Facts) -> bool {
    facts.open().is_some_and(|incident| incident.faults_unknown)
}

/// What release waits for beside the faults.
fn unsettled(facts: &Facts, no_fault: bool) -> Option<Line> {
    let agent = &facts.node.agent;
    let waits = match agent.state.as_str() {
        "silent" => "the agent on the node does not report",
        "starting" => "the agent has not finished its first look at this boot",
        _ => return None,
    };
    let detectors = match agent.unsettled.join(", ") {
        list if list.is_empty() => String::new(),
        list => format!(" ({list})"),
    };
    let text = format!("{waits}{detectors}; without its word the node is not given back");
    Some(if no_fault {
        let why = if is_unknown(facts) {
            "What it is out for is not known, and"
        } else {
            "All faults ended, but"
        };
        Line::Blocks(format!("{why} {text}."))
    } else {
        Line::Blocks(format!("Also, {text}."))
    })
}
