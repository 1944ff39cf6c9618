//! `warden explain NODE`: what is wrong, what was done, what comes next and what blocks it, and
//! what a person can do.

use std::io::Write as _;

use health_event::NodeName;
use serde::Serialize;
use serde_json::Value;
use wire::api::{BreakerPool, Incident, IncidentDetail, Node, Status, Step};

use crate::api::{Answer, Api, ApiError, Connection};
use crate::ask;
use crate::output::{self, Exit, Format, Options, json_line, unless_gone};
use crate::words::Clock;

mod blocks;
mod boots;
mod can_do;
mod drain;
mod faults;
mod held;
mod marks;
mod next;
mod repair;
mod show;

/// Faults that are told in full.
const FAULTS: usize = 10;
/// Looks at a node whose incident moves meanwhile, at most.
const READS: usize = 3;

const AFTER_HELP: &str = "\
JSON is what the API says of the node, with the open incident's steps as `timeline`, the \
controller's `status`, the node's pool as `breaker`, and what the text says as `verdict`, `next` and \
`commands`.

Exit codes: 0 no fault and no incident is open; 1 one is; 2 wrong usage, an unknown node, or no \
answer.";

/// Which.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// The node's name, as `kubectl get nodes` shows it.
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
        self.node.faults.is_empty() && self.open().is_none() && self.unconfirmed().is_empty()
    }

    /// Conditions of which nobody has spoken since the store was lost.
    fn unconfirmed(&self) -> &[String] {
        let object = self.node.object.as_ref();
        object.map_or(&[], |object| &object.unconfirmed)
    }
}

/// What the text says, for programs.
#[derive(Debug, Serialize)]
struct Explained<'a> {
    timeline: &'a [Step],
    status: Option<&'a Status>,
    breaker: Option<&'a BreakerPool>,
    verdict: String,
    next: Vec<next::Line>,
    commands: Vec<can_do::Command>,
}

/// Asks and explains. The answer is [`Exit::Unhealthy`] while a fault or an incident is open, or a
/// condition says of what is not known that it is wrong.
///
/// # Errors
/// [`ApiError`].
pub fn run(args: &Args, connection: &Connection, options: &Options) -> Result<Exit, ApiError> {
    let api = connection.open()?;
    let (clock, json, facts) = read(&api, &args.node)?;
    let mut out = options.stdout();
    let printed = match options.format {
        Format::Json => json_line(&mut out, &whole(&json, &facts, &clock)),
        Format::Text => show::print(&mut out, &facts, &clock),
    };
    unless_gone(printed.and_then(|()| out.flush()))?;
    Ok(if facts.is_well() {
        Exit::Clean
    } else {
        Exit::Unhealthy
    })
}

/// The node with its incident, both of one moment: an incident that moved between two answers is read
/// again.
fn read(api: &Api, node: &NodeName) -> Result<(Clock, String, Facts), ApiError> {
    let mut left = READS;
    loop {
        let answer = api.get::<Node>(&format!("/api/v1/nodes/{node}"))?;
        let (facts, has_moved) = gather(api, answer.value);
        left -= 1;
        if !has_moved || left == 0 {
            return Ok((Clock::new(answer.at), answer.json, facts));
        }
    }
}

/// All that is known, and whether the open incident has moved since the node was read.
fn gather(api: &Api, node: Node) -> (Facts, bool) {
    let mut has_moved = false;
    let mut facts = Facts {
        node,
        steps: Vec::new(),
        status: known(api.get::<Status>("/api/v1/status")),
        pool: None,
    };
    if let Some(incident) = facts.open().cloned() {
        let path = format!("/api/v1/incidents/{}", incident.id);
        let detail = known(api.get::<IncidentDetail>(&path));
        let pools = known(api.get::<Vec<BreakerPool>>("/api/v1/breaker"));
        let mut pools = pools.into_iter().flatten();
        facts.pool = pools.find(|pool| pool.pool == incident.pool);
        let version = detail.as_ref().map(|detail| detail.incident.version);
        has_moved = version.is_some_and(|version| version != incident.version);
        facts.steps = detail.map(|detail| detail.timeline).unwrap_or_default();
    }
    (facts, has_moved)
}

/// What is known of the node is worth telling also where the rest can't be read.
fn known<T>(answer: Result<Answer<T>, ApiError>) -> Option<T> {
    match answer {
        Ok(answer) => Some(answer.value),
        Err(error) => {
            output::report_warning(&format!("not shown: {}", output::chain(&error)));
            None
        }
    }
}

/// What the API said of the node, and what follows from it.
fn whole(node: &str, facts: &Facts, clock: &Clock) -> String {
    let explained = Explained {
        timeline: &facts.steps,
        status: facts.status.as_ref(),
        breaker: facts.pool.as_ref(),
        verdict: show::verdict(facts, clock).0,
        next: next::steps(facts, clock),
        commands: can_do::commands(facts),
    };
    let mut whole: Value = serde_json::from_str(node).unwrap_or_default();
    let explained = serde_json::to_value(explained).unwrap_or_default();
    if let (Value::Object(whole), Value::Object(explained)) = (&mut whole, explained) {
        whole.extend(explained);
    }
    whole.to_string()
}
