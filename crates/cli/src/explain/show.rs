//! The explanation as text.

use std::io::{self, Write};

use wire::api::{Fault, Incident, Node, Step};

use super::can_do::is_cordoned_by_others;
use super::marks::{self, Marks};
use super::{FAULTS, Facts, boots, can_do, faults, next};
use crate::output::{BOLD, DIM, GREEN, RED, Style, YELLOW, counted, harmless};
use crate::stages;
use crate::timeline;
use crate::words::{self, Clock};

const INJECTED: &str = "by a person with `warden inject`: no part was read";
/// Newest steps of the incident that are printed.
const STEPS: usize = 8;
/// Faults that are over.
const CLOSED: usize = 5;
/// Characters of a command beside which there is room for what it does.
const COMMAND: usize = 44;
/// Characters of a message.
const MESSAGE: usize = 400;
const RESTORED: &str = "read back from the node after the store was lost; its sender has not spoken since: \
    it stays open until that does, or until `warden close`";

pub(super) fn print(out: &mut impl Write, facts: &Facts, clock: &Clock) -> io::Result<()> {
    head(out, facts, clock)?;
    if !facts.is_well() {
        wrong(out, facts, clock)?;
    }
    foreign(out, facts)?;
    observed(out, facts, clock)?;
    closed(out, &facts.node, clock)?;
    match facts.open() {
        Some(incident) => done(out, facts, incident, clock)?,
        None => last_incident(out, &facts.node, clock)?,
    }
    let next = next::steps(facts, clock);
    if !next.is_empty() {
        heading(out, "What happens next")?;
    }
    for line in next {
        let style = line.style();
        writeln!(out, "  {style}{}{style:#}", harmless(line.text()))?;
    }
    let commands = can_do::commands(facts);
    if !commands.is_empty() {
        heading(out, "What you can do")?;
    }
    let lengths = commands.iter().map(|c| c.command.chars().count());
    let width = lengths.filter(|length| *length <= COMMAND).max();
    for can_do::Command { command, effect } in commands {
        let (command, effect) = (harmless(&command), harmless(&effect));
        let width = width.unwrap_or_default();
        if command.chars().count() > COMMAND {
            writeln!(out, "  {BOLD}{command}{BOLD:#}\n  {:width$}  {effect}", "")?;
        } else {
            writeln!(out, "  {BOLD}{command:width$}{BOLD:#}  {effect}")?;
        }
    }
    Ok(())
}

fn heading(out: &mut impl Write, text: &str) -> io::Result<()> {
    writeln!(out, "\n{BOLD}{text}{BOLD:#}")
}

fn head(out: &mut impl Write, facts: &Facts, clock: &Clock) -> io::Result<()> {
    let node = &facts.node;
    let (text, style) = verdict(facts, clock);
    writeln!(
        out,
        "{BOLD}node {}{BOLD:#} {style}{}{style:#}",
        harmless(&node.name),
        harmless(&text)
    )?;
    let mut parts = Vec::new();
    match &node.object {
        Some(object) => {
            parts.push(format!("pool {}", object.pool));
            parts.push(format!("Ready {}", object.ready));
            parts.push(cordon(facts, object.cordoned).to_owned());
        }
        None => parts.push("not in the cluster".to_owned()),
    }
    let reported = node.agent.last_report_at.map(|at| clock.age(at));
    parts.push(match (node.agent.state.as_str(), reported) {
        ("none", _) => "no agent ever reported from it".to_owned(),
        (state, Some(age)) => format!("agent {state}, last report {age} ago"),
        (state, None) => format!("agent {state}"),
    });
    writeln!(out, "{DIM}{}{DIM:#}", harmless(&parts.join(" · ")))
}

fn cordon(facts: &Facts, is_cordoned: bool) -> &'static str {
    match is_cordoned {
        true if is_cordoned_by_others(facts) => "cordoned, not by Warden",
        true => "cordoned by Warden",
        false => "not cordoned",
    }
}

/// The node in one sentence, behind its name.
pub(super) fn verdict(facts: &Facts, clock: &Clock) -> (String, Style) {
    let Some(incident) = facts.open() else {
        return without_incident(facts);
    };
    let age = clock.age(incident.since);
    if facts.node.object.is_none() {
        let text = "is not in the cluster; an incident of it is still open";
        return (format!("{text} (for {age})"), YELLOW);
    }
    let stuck = next::is_stuck(facts, incident, clock);
    let not_through = if stuck {
        ", and that does not come through"
    } else {
        ""
    };
    let text = format!(
        "{}{not_through} (for {age})",
        with_incident(facts, incident)
    );
    let in_service = text.starts_with("is in service");
    let style = match incident.state.as_str() {
        "Observed" => YELLOW,
        "Releasing" if !stuck => YELLOW,
        "Applying" | "Quarantined" if in_service => YELLOW,
        _ => RED,
    };
    (text, style)
}

/// What the node is, by what is on it: a state tells what Warden did, or is about to do.
fn with_incident(facts: &Facts, incident: &Incident) -> String {
    let idle = faults::is_idle(facts);
    let others = is_cordoned_by_others(facts);
    let text = match (incident.state.as_str(), marks::on_node(facts, incident)) {
        ("Withheld", _) if others => {
            "should be out of service, but is withheld; it is cordoned, not by Warden"
        }
        ("Observed", _) if others => "is cordoned, not by Warden; its faults are only observed",
        ("Applying", Marks::None) if idle => {
            "is in service: the write that was to take it out is not begun again"
        }
        ("Quarantined", Marks::None) if idle => {
            "is in service: Warden's marks were taken off, and the incident stays open while Warden does \
             not write"
        }
        ("Quarantined", Marks::None) => {
            "is in service: Warden's marks were taken off, and the incident is about to end"
        }
        ("Quarantined", Marks::Part) => "has only some of Warden's marks left",
        ("Releasing", Marks::None) => "is in service again; the incident is about to end",
        ("Releasing", Marks::All | Marks::Part) if idle => {
            "is out of service: the write that was to give it back is not begun again"
        }
        ("Quarantined", Marks::All) if boots::is_late(facts) => {
            "is out of service, and a person is needed"
        }
        ("Quarantined", Marks::All) => {
            let text = stages::headline(incident);
            return text.unwrap_or_else(|| words::state("Quarantined").to_owned());
        }
        (state, _) => words::state(state),
    };
    text.to_owned()
}

fn without_incident(facts: &Facts) -> (String, Style) {
    let node = &facts.node;
    let faults = counted(node.faults.len() as u64, "fault");
    let is_wrong = !node.faults.is_empty();
    let cordoned = is_cordoned_by_others(facts);
    let agent = match node.agent.state.as_str() {
        "settled" => None,
        "none" => Some("no agent ever reported from it"),
        "silent" => Some("its agent does not report"),
        _ => Some("its agent has not finished its first look at this boot"),
    };
    let text = match (&node.object, is_wrong, cordoned, agent) {
        (None, true, ..) => format!("is not in the cluster; {faults} open when it was"),
        (None, false, ..) => "is not in the cluster, and no fault of it is open".to_owned(),
        (Some(_), true, true, _) => format!("is cordoned, not by Warden, with {faults} open"),
        (Some(_), true, false, _) => format!("is in service with {faults} open"),
        (Some(_), false, ..) if !facts.unconfirmed().is_empty() => {
            "may have a fault: a condition on it says so, and nobody has spoken of it since the store was \
             lost"
                .to_owned()
        }
        (Some(_), false, true, None) => {
            "has no open fault and no incident, but is cordoned, not by Warden".to_owned()
        }
        (Some(_), false, _, Some(why)) => {
            format!("has no fault that is known, but {why}")
        }
        (Some(_), false, false, None) if node.observed.is_empty() => {
            return ("is well: no fault is open, no incident".to_owned(), GREEN);
        }
        (Some(_), false, false, None) => {
            let observed = counted(node.observed.len() as u64, "fault");
            format!("is in service, and no fault acts on it (only observed: {observed})")
        }
    };
    (text, YELLOW)
}

fn wrong(out: &mut impl Write, facts: &Facts, clock: &Clock) -> io::Result<()> {
    heading(out, "What is wrong")?;
    let unconfirmed = facts.unconfirmed();
    if !unconfirmed.is_empty() {
        let list = harmless(&unconfirmed.join(", ")).into_owned();
        writeln!(
            out,
            "  {YELLOW}not known{YELLOW:#}: the node's conditions say that these checks found something: {list}"
        )?;
    }
    if facts.node.faults.is_empty() && (unconfirmed.is_empty() || facts.open().is_some()) {
        let said = if next::is_unknown(facts) {
            "What the node is out for is not known: the store was lost, and the node does not name it."
                .to_owned()
        } else if let Some(who) = facts.open().and_then(|i| i.held_by.as_deref()) {
            held(facts, who, clock)
        } else {
            "No fault is open any more.".to_owned()
        };
        return writeln!(out, "  {}", harmless(&said));
    }
    let sorted = faults::sorted(facts, &facts.node.faults);
    for fault in sorted.iter().take(FAULTS) {
        one_fault(out, facts, fault, clock)?;
    }
    let left_out = sorted.get(FAULTS..).unwrap_or_default();
    if !left_out.is_empty() {
        let fatal = left_out.iter().filter(|fault| fault.fatal).count();
        let (more, name) = (left_out.len(), harmless(&facts.node.name));
        writeln!(
            out,
            "  {DIM}and {more} more, {fatal} of them fatal: warden explain {name} --format \
             json{DIM:#}"
        )?;
    }
    Ok(())
}

/// A hold without a fault: who, why, since when, and what ends it.
fn held(facts: &Facts, who: &str, clock: &Clock) -> String {
    // Of a hold that took another's place: when it did. The marks that follow are a step of their own.
    let holds = |step: &&Step| step.cause["reason"] == "person_hold";
    let newest = facts.steps.iter().rfind(holds);
    let same = |step: &&Step| newest.is_some_and(|n| n.cause["text"] == step.cause["text"]);
    let since = facts
        .steps
        .iter()
        .filter(holds)
        .find(same)
        .map(|step| step.at);
    let since = since.map_or_else(String::new, |at| format!(" since {}", clock.since(at)));
    format!(
        "No fault is open. A person holds the node{since}: {}. `warden release {}` ends that.",
        words::holder(who),
        facts.node.name
    )
}

fn one_fault(out: &mut impl Write, facts: &Facts, fault: &Fault, clock: &Clock) -> io::Result<()> {
    let (word, style) = if fault.fatal {
        ("fatal", RED)
    } else {
        ("not fatal", YELLOW)
    };
    writeln!(
        out,
        "  {style}{}{style:#} ({word}, id {})",
        harmless(&words::fault(fault)),
        harmless(&fault.id)
    )?;
    let device = if fault.device.is_empty() {
        "none named"
    } else {
        &fault.device
    };
    let said = match fault.count {
        0 | 1 => "said once".to_owned(),
        count => format!("said {count} times, last {} ago", clock.age(fault.last_at)),
    };
    let since = clock.since(fault.since.unwrap_or(fault.last_at));
    let message: String = fault.message.chars().take(MESSAGE).collect();
    let lines = [
        ("device", device.to_owned()),
        ("since", format!("{since}, {said}")),
        (
            "said by",
            format!("{} ({}), check {}", fault.agent, fault.sender, fault.check),
        ),
        ("message", message),
        ("asks for", words::action(fault)),
        ("rule", faults::rule(facts, fault, clock)),
        (
            "restored",
            if fault.restored { RESTORED } else { "" }.to_owned(),
        ),
        (
            "injected",
            if fault.injected { INJECTED } else { "" }.to_owned(),
        ),
        ("origin", words::origin(&fault.origin)),
        ("override", fault.overridden.clone()),
    ];
    for (name, text) in lines.iter().filter(|(_, text)| !text.is_empty()) {
        writeln!(out, "    {DIM}{name:<8}{DIM:#}  {}", harmless(text))?;
    }
    Ok(())
}

/// Marks that another program set, and left.
fn foreign(out: &mut impl Write, facts: &Facts) -> io::Result<()> {
    let object = facts.node.object.as_ref();
    let marks = object.map_or(&[][..], |object| &object.foreign_marks);
    if marks.is_empty() {
        return Ok(());
    }
    heading(out, "Marks of NVSentinel (Warden leaves them alone)")?;
    writeln!(
        out,
        "  {}\n  Neither these annotations nor the cordon and taints that came with them are Warden's: it \
         does not take them off. While NVSentinel runs they are its own; once it is gone, take them off \
         by hand (kubectl uncordon, kubectl taint, kubectl annotate).",
        harmless(&marks.join(", "))
    )
}

fn observed(out: &mut impl Write, facts: &Facts, clock: &Clock) -> io::Result<()> {
    let observed = &facts.node.observed;
    if observed.is_empty() {
        return Ok(());
    }
    heading(out, "Only observed (these never act on the node)")?;
    for fault in faults::sorted(facts, observed).iter().take(FAULTS) {
        let since = clock.since(fault.since.unwrap_or(fault.last_at));
        let what = words::fault_and_device(fault);
        writeln!(out, "  {} since {since}", harmless(&what))?;
    }
    let more = observed.len().saturating_sub(FAULTS);
    if more > 0 {
        writeln!(out, "  {DIM}and {more} more{DIM:#}")?;
    }
    Ok(())
}

/// What is over, and why: the only place that tells of faults without an incident.
fn closed(out: &mut impl Write, node: &Node, clock: &Clock) -> io::Result<()> {
    if node.closed.is_empty() {
        return Ok(());
    }
    heading(out, "What is over")?;
    for over in node.closed.iter().take(CLOSED) {
        let what = words::fault_and_device(&over.fault);
        let (why, since) = (words::closing(&over.cause), clock.since(over.closed_at));
        writeln!(
            out,
            "  {}: {} {DIM}{since}{DIM:#}",
            harmless(&what),
            harmless(why)
        )?;
    }
    let more = node.closed.len().saturating_sub(CLOSED);
    if more > 0 {
        writeln!(out, "  {DIM}and {more} more{DIM:#}")?;
    }
    Ok(())
}

fn done(out: &mut impl Write, facts: &Facts, incident: &Incident, clock: &Clock) -> io::Result<()> {
    heading(out, "What was done")?;
    let skip = facts.steps.len().saturating_sub(STEPS);
    if skip > 0 {
        let id = harmless(&incident.id);
        writeln!(
            out,
            "  {DIM}{skip} earlier steps: warden timeline {id}{DIM:#}"
        )?;
    }
    timeline::table(&facts.steps[skip..], clock).print(out)?;
    if facts.steps.len() >= timeline::PAGE {
        let name = harmless(&facts.node.name);
        writeln!(out, "  {DIM}and more: warden timeline {name}{DIM:#}")?;
    }
    Ok(())
}

fn last_incident(out: &mut impl Write, node: &Node, clock: &Clock) -> io::Result<()> {
    let Some(incident) = node.incidents.first() else {
        return writeln!(out, "\nIt had no incident so far.");
    };
    let ended = incident.closed_at.unwrap_or(incident.since);
    let length = words::span(ended.duration_since(incident.opened_at));
    heading(out, "Last incident")?;
    writeln!(
        out,
        "  {} opened {}, ended after {length}: {}",
        harmless(&incident.id),
        clock.since(incident.opened_at),
        harmless(words::ending(incident))
    )?;
    for fault in incident.faults.iter().take(FAULTS) {
        writeln!(
            out,
            "  {} {DIM}rule {}{DIM:#}",
            harmless(&fault.fault),
            harmless(&faults::rules(&fault.rules))
        )?;
    }
    let more = incident.faults.len().saturating_sub(FAULTS);
    if more > 0 {
        writeln!(out, "  {DIM}and {more} more{DIM:#}")?;
    }
    writeln!(
        out,
        "  {BOLD}warden timeline {}{BOLD:#}",
        harmless(&incident.id)
    )
}
