//! `warden timeline`: what happened to a node, or in one incident, step by step.

use std::io::{self, Write};

use health_event::NodeName;
use health_event::incident::IncidentId;
use jiff::Timestamp;
use serde_json::Value;
use wire::api::{IncidentDetail, Step};

use crate::api::{Api, ApiError, Connection};
use crate::output::{self, harmless, json_line, unless_gone};
use crate::output::{
    BOLD, Cell, DIM, Exit, Format, GREEN, Options, PLAIN, RED, Style, Table, YELLOW,
};
use crate::stages;
use crate::words::{self, Clock};

/// Steps of one answer of the API.
pub(crate) const PAGE: usize = 500;
/// Answers asked for at most: 10,000 steps of one node are years of incidents.
const PAGES: usize = 20;

const AFTER_HELP: &str = "\
A node's timeline shows all its incidents; TIME is local time, AFTER the time since the step before.

Exit codes: 0 shown; 2 wrong usage, an unknown incident, or no answer.";

/// Of what.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// A node's name, or an incident's id (26 characters, as `warden explain` shows it).
    #[arg(value_name = "NODE|INCIDENT", value_parser = target)]
    of: Target,
}

#[derive(Debug, Clone)]
enum Target {
    Node(NodeName),
    Incident(IncidentId),
}

fn target(text: &str) -> Result<Target, String> {
    // An incident's id is upper case, which no node's name is.
    match IncidentId::new(text) {
        Some(id) => Ok(Target::Incident(id)),
        None => NodeName::new(text).map(Target::Node).map_err(|error| {
            format!("want a node's name or an incident's id (26 characters): {error}")
        }),
    }
}

/// Asks and prints.
///
/// # Errors
/// [`ApiError`].
pub fn run(args: &Args, connection: &Connection, options: &Options) -> Result<Exit, ApiError> {
    let api = connection.open()?;
    let (json, steps, at) = match &args.of {
        Target::Incident(id) => {
            let answer = api.get::<IncidentDetail>(&format!("/api/v1/incidents/{id}"))?;
            if answer.value.timeline.len() >= PAGE {
                let node = &answer.value.incident.node;
                output::report_warning(&format!(
                    "these are the first {PAGE} steps of the incident; `warden timeline {node}` shows \
                     all"
                ));
            }
            (answer.json, answer.value.timeline, answer.at)
        }
        Target::Node(name) => of_node(&api, name)?,
    };
    let mut out = options.stdout();
    let printed = match options.format {
        Format::Json => json_line(&mut out, &json),
        Format::Text => print(&mut out, &args.of, &steps, &Clock::new(at)),
    };
    unless_gone(printed.and_then(|()| out.flush()))?;
    Ok(Exit::Clean)
}

/// All pages of a node's steps: as JSON, as values, and the controller's time.
fn of_node(api: &Api, name: &NodeName) -> Result<(String, Vec<Step>, Timestamp), ApiError> {
    let mut whole: Vec<Value> = Vec::new();
    let mut steps: Vec<Step> = Vec::new();
    loop {
        let after = steps.last().map_or(0, |step| step.seq);
        let path = format!("/api/v1/nodes/{name}/timeline?after={after}&limit={PAGE}");
        let page = api.get::<Vec<Step>>(&path)?;
        let cut = page.value.len() >= PAGE && steps.len() + PAGE >= PAGE * PAGES;
        if cut {
            let (most, at) = (PAGE * PAGES, page.value.last().map_or(0, |step| step.seq));
            output::report_warning(&format!(
                "these are the first {most} steps, up to number {at} of the store; there are more"
            ));
        }
        let last = page.value.len() < PAGE || cut;
        if steps.is_empty() && last {
            return Ok((page.json, page.value, page.at));
        }
        let values: Vec<Value> = serde_json::from_str(&page.json).unwrap_or_default();
        whole.extend(values);
        steps.extend(page.value);
        if last {
            return Ok((Value::Array(whole).to_string(), steps, page.at));
        }
    }
}

fn print(out: &mut impl Write, of: &Target, steps: &[Step], clock: &Clock) -> io::Result<()> {
    let Some(first) = steps.first() else {
        return match of {
            Target::Node(name) => writeln!(
                out,
                "{BOLD}node {name}{BOLD:#}: {GREEN}nothing was ever done to it{GREEN:#}; \
                 warden explain {name} tells what is known of it"
            ),
            Target::Incident(id) => writeln!(
                out,
                "{BOLD}incident {id}{BOLD:#}: its steps are older than what the store keeps"
            ),
        };
    };
    let mut incident = "";
    for group in steps.chunk_by(|a, b| a.incident == b.incident) {
        if !incident.is_empty() {
            writeln!(out)?;
        }
        incident = group.first().map_or(&first.incident, |step| &step.incident);
        let node = group.first().map_or(&first.node, |step| &step.node);
        writeln!(
            out,
            "{BOLD}node {}, incident {}{BOLD:#}",
            harmless(node),
            harmless(incident)
        )?;
        table(group, clock).print(out)?;
    }
    Ok(())
}

/// The steps of one incident.
pub(crate) fn table(steps: &[Step], clock: &Clock) -> Table {
    let mut table = Table::new(&["TIME", "AFTER", "STATE", "WHY"]);
    let mut before: Option<Timestamp> = None;
    for step in steps {
        let after =
            before.map(|before| format!("+{}", words::span(step.at.duration_since(before))));
        before = Some(step.at);
        let cells = vec![
            Cell::new(clock.local(step.at), DIM),
            Cell::new(after.unwrap_or_default(), PLAIN),
            Cell::new(change(step), style(step)),
            Cell::new(why(step), PLAIN),
        ];
        table.row(cells, "");
    }
    table
}

fn change(step: &Step) -> String {
    let change = match step.from.as_str() {
        "" if stages::part(step).is_some() => step.to.clone(),
        "" => format!("opened as {}", step.to),
        from if from == step.to => step.to.clone(),
        from => format!("{from} → {}", step.to),
    };
    match stages::part(step) {
        Some(part) => format!("{part} {change}"),
        None => change,
    }
}

fn style(step: &Step) -> Style {
    match step.to.as_str() {
        "Quarantined" | "Applying" | "Failed" | "NeedsOperator" => RED,
        "Closed" | "Drained" | "Succeeded" => GREEN,
        _ => YELLOW,
    }
}

/// The controller's plain words; whatever else is there if it has none.
pub(crate) fn why(step: &Step) -> String {
    if stages::part(step).is_some() {
        return stages::why(step);
    }
    let text = |key: &str| step.cause.get(key).and_then(Value::as_str);
    let Some(words) = text("text").or_else(|| text("reason")) else {
        return match &step.cause {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
                other.to_string()
            }
        };
    };
    let check = text("check").filter(|check| !check.is_empty());
    let check = check.map(|check| format!("check {check}"));
    let before = text("held_before").map(|who| format!("in place of {}", words::holder(who)));
    let beside = check.into_iter().chain(before).chain(played(step));
    let beside: Vec<String> = beside.collect();
    match beside.join("; ") {
        beside if beside.is_empty() => words.to_owned(),
        beside => format!("{words} ({beside})"),
    }
}

/// How many of the faults that were open then were no real ones.
fn played(step: &Step) -> Vec<String> {
    let count = |key: &str| step.cause.get(key).and_then(Value::as_u64);
    let open = count("open_faults").unwrap_or_default();
    let of = |count: u64, what: &str| match (count, open) {
        (1, 1) => format!("its fault {what}"),
        (count, open) => format!("{count} of {open} faults {what}"),
    };
    let injected = count("injected").map(|count| of(count, "injected by a person"));
    let stand_ins = count("stand_ins").map(|count| of(count, "from a stand-in or a user's line"));
    injected.into_iter().chain(stand_ins).collect()
}
