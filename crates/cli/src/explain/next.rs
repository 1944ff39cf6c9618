//! What happens next, what blocks it, and what a person can do: from the facts alone.

use wire::api::{Fault, Incident};

use super::Facts;
use crate::output::{PLAIN, RED, Style, YELLOW, counted};
use crate::words::{self, Clock};

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
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

/// Which rule sets a fault matched.
pub(super) fn rule(facts: &Facts, fault: &Fault) -> String {
    let known = facts.open().and_then(|incident| {
        let name = fault_name(facts, fault);
        incident.faults.iter().find(|of| of.fault == name)
    });
    match known {
        Some(known) if known.rules.is_empty() => {
            "none: its sender forced the quarantine".to_owned()
        }
        Some(known) => known.rules.join(", "),
        None => "none acts on it".to_owned(),
    }
}

/// A fault as incidents name it: `node/gpu-17 SysLogsXIDError 79 PCI=0000:17:00`.
fn fault_name(facts: &Facts, fault: &Fault) -> String {
    let mut name = format!("node/{} {}", facts.node.name, fault.check);
    for part in [&fault.code, &fault.device] {
        if !part.is_empty() {
            name = format!("{name} {part}");
        }
    }
    name
}

/// What happens next, and what blocks it.
pub(super) fn steps(facts: &Facts, clock: &Clock) -> Vec<Line> {
    let mut lines = match facts.open() {
        Some(incident) => of_incident(facts, incident),
        None => without_incident(facts),
    };
    for hold in &facts.node.holds {
        lines.push(Line::Blocks(format!(
            "A hold by {} keeps {} from taking the node out until {}: {}",
            hold.actor,
            counted(hold.faults.len() as u64, "fault"),
            clock.local(hold.until),
            hold.faults.join(", ")
        )));
    }
    lines.extend(on_the_node(facts));
    lines
}

fn without_incident(facts: &Facts) -> Vec<Line> {
    let profile = facts.status.as_ref().map(|status| status.profile.as_str());
    let silent = profile == Some("silent");
    let kept = silent || !facts.node.holds.is_empty() || on_the_node(facts).next().is_some();
    let why = if kept {
        "The node stays in service; what is said below keeps Warden from acting."
    } else {
        "The node stays in service: no rule set matches these faults."
    };
    let mut lines = vec![Line::Comes(why.to_owned())];
    for fault in &facts.node.faults {
        lines.push(Line::Comes(format!(
            "{} {}.",
            words::fault(fault),
            words::end(fault)
        )));
    }
    match &facts.status {
        Some(_) if silent => lines.push(Line::Blocks(
            "Profile silent: faults are stored and shown, and rule sets are not asked.".to_owned(),
        )),
        Some(status) if status.dry_run => lines.push(dry_run(&status.profile)),
        Some(_) | None => {}
    }
    lines
}

fn dry_run(profile: &str) -> Line {
    Line::Blocks(format!(
        "Dry run (profile {profile}): Warden decides and shows, and does not touch the node."
    ))
}

fn of_incident(facts: &Facts, incident: &Incident) -> Vec<Line> {
    let mut lines = match incident.state.as_str() {
        "Withheld" => withheld(facts, incident),
        "Observed" => observed(facts),
        "Applying" => vec![Line::Comes(
            "The write that takes the node out is under way. If this lasts longer than a minute, \
             see the controller's log."
                .to_owned(),
        )],
        "Releasing" => vec![Line::Comes(
            "The write that gives the node back is under way. If this lasts longer than a minute, \
             see the controller's log."
                .to_owned(),
        )],
        _ => quarantined(facts, incident),
    };
    if let Some(why) = &incident.needs_operator {
        lines.push(Line::Person(format!("A person is needed: {why}")));
    }
    lines
}

fn withheld(facts: &Facts, incident: &Incident) -> Vec<Line> {
    let mut lines = vec![
        Line::Blocks(format!("Not taken out yet: {}.", incident.detail)),
        Line::Comes(
            "When that is over, it is taken out if its faults are still open; else the incident \
             ends without a mark on the node."
                .to_owned(),
        ),
    ];
    if let Some(pool) = facts.pool.as_ref().filter(|pool| pool.tripped) {
        lines.push(Line::Person(format!(
            "The breaker of pool {} is tripped: {} of {} out, {} withheld. It stays so until a \
             person resets it, unless quarantine.breaker.auto_resume is on.",
            pool.pool,
            pool.out,
            counted(pool.nodes as u64, "node"),
            pool.withheld.len()
        )));
    }
    lines
}

fn observed(facts: &Facts) -> Vec<Line> {
    let why = match &facts.status {
        Some(status) if status.dry_run => dry_run(&status.profile),
        Some(_) | None => Line::Blocks(
            "The node is protected, or a person dropped the withheld cordon: nothing is written \
             to it."
                .to_owned(),
        ),
    };
    let comes = "The incident ends by itself when its faults end.".to_owned();
    vec![why, Line::Comes(comes)]
}

fn quarantined(facts: &Facts, incident: &Incident) -> Vec<Line> {
    let mut lines = Vec::new();
    if let Some(who) = &incident.held_by {
        lines.push(Line::Blocks(format!(
            "Held by {who}: it stays out until the hold is ended."
        )));
    }
    let open: Vec<&Fault> = facts
        .node
        .faults
        .iter()
        .filter(|fault| fault.incident.as_deref() == Some(incident.id.as_str()))
        .collect();
    if !open.is_empty() {
        lines.push(Line::Comes(format!(
            "The node stays out until {} ended:",
            if open.len() == 1 {
                "this fault has"
            } else {
                "these faults have"
            }
        )));
    }
    for fault in &open {
        lines.push(Line::Comes(format!(
            "  {} {}.",
            words::fault(fault),
            words::end(fault)
        )));
    }
    if let Some(line) = unsettled(facts, open.is_empty()) {
        lines.push(line);
    }
    lines.push(Line::Comes(
        "Then Warden takes off its own marks and nothing else; others' cordons and taints stay."
            .to_owned(),
    ));
    lines
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
        Line::Blocks(format!("All faults ended, but {text}."))
    } else {
        Line::Blocks(format!("Also, {text}."))
    })
}

/// What the node object itself says to us.
fn on_the_node(facts: &Facts) -> impl Iterator<Item = Line> {
    let blocks = facts
        .node
        .object
        .iter()
        .flat_map(|object| &object.blocked_by);
    let line = |block: &String| match block.split_once(' ').unwrap_or((block, "")) {
        ("paused", _) => format!(
            "Paused by annotation {}pause: nothing new is started here; release still happens.",
            health_event::keys::PREFIX
        ),
        ("opted_out", _) => {
            "Opted out by label k8saas.nvidia.com/ManagedByNVSentinel=false: rules \
                             do not match here; an open incident still ends."
                .to_owned()
        }
        ("control_plane", _) => "A control-plane node: only observed, unless \
                                 quarantine.allow_protected is on."
            .to_owned(),
        ("external_owner", mark) => {
            format!(
                "Another system repairs this node ({mark}): Warden does not give it back before \
                     that mark is gone."
            )
        }
        _ => format!("Blocked: {block}."),
    };
    blocks.map(move |block| Line::Blocks(line(block)))
}

/// Commands, each with what it does.
pub(super) fn commands(facts: &Facts) -> Vec<(String, String)> {
    let name = &facts.node.name;
    let mut list = Vec::new();
    let mut add = |command: String, effect: &str| list.push((command, effect.to_owned()));
    let open = facts.open();
    if let Some(incident) = open {
        add(
            format!("warden timeline {}", incident.id),
            "everything that was done",
        );
    }
    if let Some(pool) = facts.pool.as_ref().filter(|pool| pool.tripped) {
        let pool = &pool.pool;
        add("warden breaker".to_owned(), "why it tripped, and who waits");
        add(
            format!("warden breaker reset --pool {pool}"),
            "take withheld nodes out, by turn",
        );
    }
    let by_reboot = |fault: &&Fault| words::end(fault).contains("reboot");
    if facts.node.faults.iter().any(|fault| by_reboot(&fault)) {
        add(
            "reboot the machine".to_owned(),
            "Warden does not reboot nodes in this version; it looks again after the boot",
        );
    }
    match open {
        Some(incident) if incident.held_by.is_some() => {
            add(format!("warden release {name}"), "end the hold");
        }
        Some(incident) if is_out(incident) => add(
            format!("warden release {name}"),
            "give it back now; the faults open now do not take it out again for a while",
        ),
        Some(_) | None => add(
            format!("warden hold {name} --reason TEXT"),
            "take it out now and keep it out until you release it",
        ),
    }
    for fault in facts.node.faults.iter().take(super::FAULTS) {
        add(
            format!("warden close {name} {}", fault.id),
            &format!("if you know that this is over: {}", words::fault(fault)),
        );
    }
    list
}
