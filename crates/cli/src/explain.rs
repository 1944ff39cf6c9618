//! `warden explain NODE`: what is wrong, what was done, what comes next and what blocks it, and
//! what a person can do.

use std::io::{self, Write};

use health_event::NodeName;
use wire::api::{BreakerPool, Fault, Incident, IncidentDetail, Node, Status, Step};

use crate::api::{ApiError, Connection};
use crate::ask;
use crate::output::{self, BOLD, DIM, Exit, Format, GREEN, Options, RED, Style, YELLOW};
use crate::output::{counted, harmless, unless_gone};
use crate::timeline;
use crate::words::{self, Clock};

mod next;

/// Newest steps of the incident that are printed.
const STEPS: usize = 8;
/// Faults that are printed in full.
const FAULTS: usize = 10;
/// Characters of a message.
const MESSAGE: usize = 400;

/// Which.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Node.
    #[arg(value_parser = ask::node)]
    node: NodeName,
}

/// Everything that the explanation is made of. What could not be read is left out.
#[derive(Debug)]
struct Facts {
    node: Node,
    /// Steps of the open incident, oldest first.
    steps: Vec<Step>,
    status: Option<Status>,
    /// The node's pool.
    pool: Option<BreakerPool>,
}

impl Facts {
    fn open(&self) -> Option<&Incident> {
        let incidents = self.node.incidents.iter();
        incidents.into_iter().find(|i| i.closed_at.is_none())
    }

    fn is_well(&self) -> bool {
        self.node.faults.is_empty() && self.open().is_none()
    }
}

/// Asks and explains. The answer is [`Exit::Unhealthy`] while a fault or an incident is open.
///
/// # Errors
/// [`ApiError`].
pub fn run(args: &Args, options: &Options) -> Result<Exit, ApiError> {
    let api = args.connection.open()?;
    let answer = api.get::<Node>(&format!("/api/v1/nodes/{}", args.node))?;
    let mut facts = Facts {
        node: answer.value,
        steps: Vec::new(),
        status: None,
        pool: None,
    };
    let exit = if facts.is_well() {
        Exit::Clean
    } else {
        Exit::Unhealthy
    };
    let mut out = options.stdout();
    let printed = match options.format {
        Format::Json => writeln!(out, "{}", answer.json),
        Format::Text => {
            if let Some(id) = facts.open().map(|incident| incident.id.clone()) {
                let detail = api.get::<IncidentDetail>(&format!("/api/v1/incidents/{id}"));
                facts.steps = shown(detail).map(|d| d.timeline).unwrap_or_default();
            }
            if !facts.is_well() {
                facts.status = shown(api.get::<Status>("/api/v1/status"));
                let pools = shown(api.get::<Vec<BreakerPool>>("/api/v1/breaker"));
                let name = facts.open().map(|incident| incident.pool.clone());
                facts.pool = pools
                    .into_iter()
                    .flatten()
                    .find(|p| Some(&p.pool) == name.as_ref());
            }
            print(&mut out, &facts, &Clock::new(answer.at))
        }
    };
    unless_gone(printed.and_then(|()| out.flush()))?;
    Ok(exit)
}

/// What is known of the node is worth printing also where the rest can't be read.
fn shown<T>(answer: Result<crate::api::Answer<T>, ApiError>) -> Option<T> {
    match answer {
        Ok(answer) => Some(answer.value),
        Err(error) => {
            output::report_warning(&format!("not shown: {error}"));
            None
        }
    }
}

fn print(out: &mut impl Write, facts: &Facts, clock: &Clock) -> io::Result<()> {
    head(out, facts, clock)?;
    if facts.is_well() {
        observed(out, &facts.node.observed, clock)?;
        return last_incident(out, &facts.node, clock);
    }
    wrong(out, facts, clock)?;
    observed(out, &facts.node.observed, clock)?;
    if let Some(incident) = facts.open() {
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
    }
    heading(out, "What happens next")?;
    for line in next::steps(facts, clock) {
        let style = line.style();
        writeln!(out, "  {style}{}{style:#}", harmless(line.text()))?;
    }
    heading(out, "What you can do")?;
    let commands = next::commands(facts);
    let width = commands
        .iter()
        .map(|(command, _)| command.chars().count())
        .max();
    for (command, effect) in commands {
        let command = harmless(&command).into_owned();
        let width = width.unwrap_or_default();
        writeln!(
            out,
            "  {BOLD}{command:width$}{BOLD:#}  {}",
            harmless(&effect)
        )?;
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
            parts.push(cordon(object.cordoned, facts.open()).to_owned());
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

fn cordon(cordoned: bool, open: Option<&Incident>) -> &'static str {
    let ours = open.is_some_and(|i| i.cordon && !i.cordon_pre_existing && next::is_out(i));
    match (cordoned, ours) {
        (true, true) => "cordoned by Warden",
        (true, false) => "cordoned, not by Warden",
        (false, _) => "not cordoned",
    }
}

fn verdict(facts: &Facts, clock: &Clock) -> (String, Style) {
    let Some(incident) = facts.open() else {
        return match facts.node.faults.len() as u64 {
            0 => ("is well: no fault is open, no incident".to_owned(), GREEN),
            faults => (
                format!("is in service with {} open", counted(faults, "fault")),
                YELLOW,
            ),
        };
    };
    let age = clock.age(incident.since);
    let text = format!("{} (for {age})", words::state(&incident.state));
    let style = match incident.state.as_str() {
        "Observed" | "Releasing" => YELLOW,
        _ => RED,
    };
    (text, style)
}

fn wrong(out: &mut impl Write, facts: &Facts, clock: &Clock) -> io::Result<()> {
    heading(out, "What is wrong")?;
    if facts.node.faults.is_empty() {
        return writeln!(out, "  No fault is open any more.");
    }
    for fault in facts.node.faults.iter().take(FAULTS) {
        one_fault(out, facts, fault, clock)?;
    }
    let more = facts.node.faults.len().saturating_sub(FAULTS);
    if more > 0 {
        let name = harmless(&facts.node.name);
        writeln!(
            out,
            "  {DIM}and {more} more: warden explain {name} --format json{DIM:#}"
        )?;
    }
    Ok(())
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
        (
            "asks for",
            format!("{} ({})", words::action(&fault.action), fault.action),
        ),
        ("rule", next::rule(facts, fault)),
    ];
    for (name, text) in lines.iter().filter(|(_, text)| !text.is_empty()) {
        writeln!(out, "    {DIM}{name:<8}{DIM:#}  {}", harmless(text))?;
    }
    Ok(())
}

fn observed(out: &mut impl Write, faults: &[Fault], clock: &Clock) -> io::Result<()> {
    if faults.is_empty() {
        return Ok(());
    }
    heading(out, "Only observed (these never act on the node)")?;
    for fault in faults.iter().take(FAULTS) {
        let since = clock.since(fault.since.unwrap_or(fault.last_at));
        let (what, device) = (words::fault(fault), harmless(&fault.device));
        writeln!(out, "  {} {device} since {since}", harmless(&what))?;
    }
    let more = faults.len().saturating_sub(FAULTS);
    if more > 0 {
        writeln!(out, "  {DIM}and {more} more{DIM:#}")?;
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
        harmless(words::ending(&incident.detail))
    )?;
    for fault in incident.faults.iter().take(FAULTS) {
        let rules = fault.rules.join(", ");
        writeln!(
            out,
            "  {} {DIM}rule {}{DIM:#}",
            harmless(&fault.fault),
            harmless(&rules)
        )?;
    }
    writeln!(
        out,
        "  {BOLD}warden timeline {}{BOLD:#}",
        harmless(&incident.id)
    )
}
