//! `warden status`: the whole cluster on one screen.

use std::io::{self, Write};

use wire::api::{BreakerPool, NodeLine, Status, Store};

use crate::api::{ApiError, Connection};
use crate::breaker;
use crate::output::{
    BOLD, Cell, DIM, Exit, Format, GREEN, Options, PLAIN, RED, Style, Table, YELLOW,
};
use crate::output::{counted, harmless, json_line, unless_gone};
use crate::stages;
use crate::words::{self, Clock};

/// Nodes that are printed.
const SHOWN: usize = 50;
/// Gaps in the events that are printed.
const GAPS: usize = 5;

const AFTER_HELP: &str = "\
Exit codes: 0 answered, whatever the answer; 1 only with --check: something is out of order; 2 wrong \
usage, or no answer.";

/// What beside showing.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// For scripts: exit with 1 if the controller is not ready, a node is out, withheld or in need of a person, a
    /// node is in service with a fatal fault open, whoever or whatever keeps Warden from acting on it (a pause,
    /// an opt-out, a person who gave it back, a dry run, no rule set), a breaker is tripped, another
    /// fault-quarantine runs, the rule sets of the configuration file do not run, an agent is silent or
    /// can't be taken at its word, or a pool has a fault. Without it the exit code is 0 then too.
    #[arg(long)]
    check: bool,
}

/// Asks and prints.
///
/// # Errors
/// [`ApiError`].
pub fn run(args: &Args, connection: &Connection, options: &Options) -> Result<Exit, ApiError> {
    let api = connection.open()?;
    let status = api.get::<Status>("/api/v1/status")?;
    let pools = api.get::<Vec<BreakerPool>>("/api/v1/breaker")?;
    let nodes = api.get::<Vec<NodeLine>>("/api/v1/nodes")?;
    let mut out = options.stdout();
    let printed = match options.format {
        Format::Json => {
            let (status, pools, nodes) = (&status.json, &pools.json, &nodes.json);
            let whole = format!(r#"{{"status":{status},"breaker":{pools},"nodes":{nodes}}}"#);
            json_line(&mut out, &whole)
        }
        Format::Text => {
            let clock = Clock::new(status.at);
            print(&mut out, &status.value, &pools.value, &nodes.value, &clock)
        }
    };
    unless_gone(printed.and_then(|()| out.flush()))?;
    let wrong = !is_well(&status.value) || pools.value.iter().any(|pool| pool.tripped);
    Ok(if args.check && wrong {
        Exit::Unhealthy
    } else {
        Exit::Clean
    })
}

fn is_well(status: &Status) -> bool {
    status.ready
        && status.parts.iter().all(|part| is_ready(part))
        && status.out == 0
        && status.withheld == 0
        && status.need_person == 0
        && status.fatal_in_service == 0
        && status.agents_silent == 0
        && status.agents_conflicting == 0
        && status.agents_other_machine == 0
        && status.agents_other_boot == 0
        && status.other_quarantine.is_none()
        && status.pool_faults.is_empty()
        && status.config.problem.is_none()
}

fn print(
    out: &mut impl Write,
    status: &Status,
    pools: &[BreakerPool],
    nodes: &[NodeLine],
    clock: &Clock,
) -> io::Result<()> {
    head(out, status, clock)?;
    writeln!(out)?;
    breaker::table(out, pools, clock)?;
    let odd: Vec<&NodeLine> = nodes.iter().filter(|node| is_odd(node)).collect();
    if odd.is_empty() {
        return writeln!(out, "\n{GREEN}No node is out, withheld or silent.{GREEN:#}");
    }
    writeln!(out)?;
    let mut table = Table::new(&[
        "NODE", "STATE", "POOL", "FAULTS", "AGENT", "READY", "CORDONED",
    ]);
    for node in odd.iter().take(SHOWN) {
        table.row(cells(node), "");
    }
    table.print(out)?;
    let more = odd.len().saturating_sub(SHOWN);
    if more > 0 {
        writeln!(
            out,
            "{DIM}and {more} more: warden status --format json{DIM:#}"
        )?;
    }
    writeln!(out, "\nwarden explain NODE tells why, and what to do.")
}

/// A part may say that it does not all that it should, and the process is ready all the same.
fn is_ready(part: &str) -> bool {
    part.ends_with(": ready")
}

/// How the controller's file differs from what runs.
fn configuration(out: &mut impl Write, status: &Status, clock: &Clock) -> io::Result<()> {
    if let Some(problem) = &status.config.problem {
        writeln!(
            out,
            "  {RED}the rule sets of the configuration file do not run{RED:#} since {}, those from before \
             do: {}",
            clock.since(problem.since),
            harmless(&problem.why)
        )?;
    }
    let keys = &status.config.needs_restart;
    if !keys.is_empty() {
        writeln!(
            out,
            "  {YELLOW}changed in the configuration file, and taken at the next start{YELLOW:#}: {}",
            harmless(&keys.join(", "))
        )?;
    }
    Ok(())
}

fn head(out: &mut impl Write, status: &Status, clock: &Clock) -> io::Result<()> {
    let (word, style) = if status.ready {
        ("ready", GREEN)
    } else {
        ("NOT READY", RED)
    };
    let dry = match status.quarantine.as_str() {
        "off" => ", quarantine off: nodes are not touched",
        _ if status.dry_run => ", dry run: nodes are not touched",
        _ => "",
    };
    writeln!(
        out,
        "{BOLD}warden-controller {}{BOLD:#}, profile {}{dry}: {style}{word}{style:#}",
        harmless(&status.version),
        harmless(&status.profile)
    )?;
    for part in status.parts.iter().filter(|part| !is_ready(part)) {
        writeln!(out, "  {YELLOW}{}{YELLOW:#}", harmless(part))?;
    }
    if let Some(what) = &status.other_quarantine {
        writeln!(
            out,
            "  {RED}another fault-quarantine runs in this cluster{RED:#} ({}): nodes are neither taken \
             out nor given back while it does. Remove it, or scale it to 0 replicas",
            harmless(what)
        )?;
    } else if let Some(at) = status.other_quarantine_looked_at {
        writeln!(
            out,
            "  {DIM}no other fault-quarantine runs in this cluster (looked {} ago){DIM:#}",
            clock.age(at)
        )?;
    }
    configuration(out, status, clock)?;
    let marked = |count: usize, style: Style| if count == 0 { PLAIN } else { style };
    let (out_by_us, held) = (marked(status.out, RED), marked(status.withheld, YELLOW));
    writeln!(
        out,
        "  nodes   {}: {out_by_us}{} out{out_by_us:#}, {held}{} withheld{held:#}{}",
        status.nodes,
        status.out,
        status.withheld,
        stages_of(status)
    )?;
    writeln!(
        out,
        "  faults  {} open, {} only observed",
        status.open_faults, status.observed_faults
    )?;
    if status.fatal_in_service > 0 {
        writeln!(
            out,
            "  {RED}{} in service with a fatal fault open{RED:#}: something keeps Warden from acting, as STATE \
             below says",
            counted(status.fatal_in_service as u64, "node")
        )?;
    }
    left_over(out, status)?;
    let silent = marked(status.agents_silent, RED);
    writeln!(
        out,
        "  agents  {silent}{} silent{silent:#}, {} without one",
        status.agents_silent,
        counted(status.agents_missing as u64, "node")
    )?;
    doubts(out, status)?;
    for fault in &status.pool_faults {
        writeln!(
            out,
            "  {RED}{} {}{RED:#}: {}",
            harmless(&fault.subject),
            harmless(&fault.check),
            harmless(&fault.message)
        )?;
    }
    let store = &status.store;
    writeln!(
        out,
        "  store   {}, events {} to {}, {} free {DIM}({}){DIM:#}",
        words::bytes(store.live_bytes),
        store.first_seq,
        store.last_seq,
        words::bytes(store.free_bytes),
        harmless(&store.id)
    )?;
    gaps(out, store)
}

/// Nodes of which something goes on, or does not.
fn stages_of(status: &Status) -> String {
    let told = [
        (status.draining, YELLOW, "draining"),
        (
            status.repairing,
            YELLOW,
            "with a repair planned or under way",
        ),
        (status.need_person, RED, "in need of a person"),
    ];
    let told = told.into_iter().filter(|(count, ..)| *count > 0);
    let told = told.map(|(count, style, what)| format!(", {style}{count} {what}{style:#}"));
    told.collect::<Vec<_>>().concat()
}

/// Agents that can't be taken at their word.
fn doubts(out: &mut impl Write, status: &Status) -> io::Result<()> {
    let told = [
        (
            status.agents_conflicting,
            "as which several agents report",
            "a second installation, or two machines with one host name",
        ),
        (
            status.agents_other_machine,
            "whose agent runs on another machine than the node object names",
            "what it tells has no effect",
        ),
        (
            status.agents_other_boot,
            "whose agent reports another boot than the node object shows",
            "it may be neither repaired nor given back",
        ),
    ];
    for (count, what, why) in told.into_iter().filter(|(count, ..)| *count > 0) {
        let nodes = counted(count as u64, "node");
        writeln!(
            out,
            "  {RED}{nodes} {what}{RED:#}: {why}; `warden explain NODE` tells what to do"
        )?;
    }
    Ok(())
}

/// What a lost store and another program left behind.
fn left_over(out: &mut impl Write, status: &Status) -> io::Result<()> {
    if status.restored_faults > 0 {
        writeln!(
            out,
            "  {YELLOW}{} from before the store was lost{YELLOW:#}, whose senders have not spoken since: \
             they stay open until these do, or until `warden close NODE FAULT`",
            counted(status.restored_faults as u64, "fault")
        )?;
    }
    if status.foreign_marked > 0 {
        writeln!(
            out,
            "  {YELLOW}{} with marks of NVSentinel{YELLOW:#} that Warden did not set and leaves alone: \
             `warden explain NODE` names them",
            counted(status.foreign_marked as u64, "node")
        )?;
    }
    Ok(())
}

/// What of the events went before its time.
fn gaps(out: &mut impl Write, store: &Store) -> io::Result<()> {
    for gap in store.gaps.iter().take(GAPS) {
        let what = if gap.of.starts_with("sender ") {
            "had more than its share of the store: its oldest events went"
        } else {
            "did not see events that went for the store's size"
        };
        writeln!(
            out,
            "  {YELLOW}{}{YELLOW:#} {what}: {} of {} to {}, last at {}",
            harmless(&gap.of),
            gap.count,
            gap.from,
            gap.to,
            gap.at
        )?;
    }
    let more = store.gaps.len().saturating_sub(GAPS);
    if more > 0 {
        writeln!(
            out,
            "  {DIM}and {more} more: warden status --format json{DIM:#}"
        )?;
    }
    Ok(())
}

fn is_odd(node: &NodeLine) -> bool {
    node.state.is_some() || node.open_faults > 0 || is_wrong(&node.agent)
}

/// Whether a node's agent does not do what it should.
fn is_wrong(agent: &str) -> bool {
    matches!(
        agent,
        "silent" | "conflict" | "other machine" | "other boot"
    )
}

/// What keeps Warden from acting on a node with a fatal fault: `, fatal fault, paused`.
fn kept(node: &NodeLine) -> String {
    if node.fatal_faults == 0 || (node.state.is_some() && node.kept_by.is_empty()) {
        return String::new();
    }
    let words = node.kept_by.iter().map(|by| {
        let (kind, what) = by.split_once(' ').unwrap_or((by, ""));
        match kind {
            "opted_out" => "opted out".to_owned(),
            "control_plane" => "control plane".to_owned(),
            "held" => "given back by a person".to_owned(),
            "given_back" => "given back before the store was lost".to_owned(),
            "dry_run" => "dry run".to_owned(),
            "off" => "quarantine off".to_owned(),
            "other_quarantine" => "another fault-quarantine".to_owned(),
            "external_owner" => format!("repaired by others ({what})"),
            _ => by.clone(),
        }
    });
    let words: Vec<String> = words.collect();
    let why = if words.is_empty() {
        "no rule set acts".to_owned()
    } else {
        words.join(", ")
    };
    format!(", fatal fault: {why}")
}

fn cells(node: &NodeLine) -> Vec<Cell> {
    let state = node.state.as_deref();
    let style = match state {
        Some(_) if node.given_back => YELLOW,
        Some(_) if node.needs_person => RED,
        Some("Quarantined" | "Applying") => RED,
        Some(_) => YELLOW,
        None if node.fatal_faults > 0 => YELLOW,
        None => DIM,
    };
    let state = match state {
        Some(state) if node.given_back => format!("{state}, given back by hand"),
        Some(state) => format!("{state}{}", stages::of_line(node)),
        None => "in service".to_owned(),
    };
    let state = format!("{state}{}", kept(node));
    let unless = |well: bool, style: Style| if well { PLAIN } else { style };
    vec![
        Cell::new(&node.name, BOLD),
        Cell::new(state, style),
        Cell::new(&node.pool, PLAIN),
        Cell::new(node.open_faults.to_string(), PLAIN),
        Cell::new(&node.agent, unless(!is_wrong(&node.agent), RED)),
        Cell::new(&node.ready, unless(node.ready == "True", YELLOW)),
        Cell::new(if node.cordoned { "yes" } else { "no" }, PLAIN),
    ]
}
