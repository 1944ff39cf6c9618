//! What a person can do: commands, each with what it does.

use serde::Serialize;
use wire::api::Incident;

use super::faults::{self, Role, role};
use super::marks::{self, Marks};
use super::next::{self, is_out};
use super::{FAULTS, Facts, boots, drain, repair};
use crate::words;

/// Faults whose `warden close` is spelled out; the others' ids stand above.
const CLOSES: usize = 3;

/// Annotations by which Warden knows what of a node's marks is its own, beside [`incident_mark`].
const MARKS: [&str; 4] = [
    "quarantineHealthEvent",
    "quarantineHealthEventAppliedTaints",
    "quarantineHealthEventIsCordoned",
    "quarantineHealthEventCordonPreExisting",
];

fn incident_mark() -> String {
    format!("{}incident", health_event::keys::PREFIX)
}

/// A command and what it does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Command {
    pub(super) command: String,
    pub(super) effect: String,
}

pub(super) fn command(command: impl Into<String>, effect: impl Into<String>) -> Command {
    Command {
        command: command.into(),
        effect: effect.into(),
    }
}

/// All that make sense here.
pub(super) fn commands(facts: &Facts) -> Vec<Command> {
    let mut list = Vec::new();
    let open = facts.open();
    if let Some(incident) = open {
        list.push(command(
            format!("warden timeline {}", incident.id),
            "everything that was done",
        ));
    }
    if let Some(pool) = facts.pool.as_ref().filter(|pool| pool.tripped) {
        list.push(command("warden breaker", "why it tripped, and who waits"));
        list.push(command(
            format!("warden breaker reset --pool {}", pool.pool),
            "take withheld nodes out, by turn",
        ));
    }
    list.extend(other_quarantine(facts));
    if facts.node.object.is_some() {
        if let Some(incident) = open.filter(|incident| incident.state == "Quarantined") {
            list.extend(drain::commands(facts, incident));
            list.extend(repair::commands(facts, incident));
        }
        list.extend(repairs(facts));
        list.extend(boots::commands(facts));
        list.extend(in_or_out(facts, open));
        list.extend(marks(facts));
    }
    list.extend(closes(facts));
    list
}

fn repairs(facts: &Facts) -> Vec<Command> {
    let (name, agent) = (&facts.node.name, facts.node.agent.state.as_str());
    let mut list = Vec::new();
    let mut faults = facts.node.faults.iter();
    let reboot = faults.any(|fault| words::end(fault).contains("reboot"));
    if let Some(effect) = repair::is_by_hand(facts).filter(|_| reboot) {
        list.push(command("reboot the machine", effect));
    }
    if matches!(agent, "silent" | "none") {
        list.push(command(
            next::agent_pods(name),
            "where its agent should run",
        ));
    }
    if words::is_doubted(&facts.node.faults) {
        list.push(command(
            format!(
                "kubectl get pods -A -o wide --field-selector spec.nodeName={name} | grep agent"
            ),
            "which agents run on the node: one should",
        ));
    }
    list
}

/// Take out, or give back: with Warden where it writes, else with kubectl.
fn in_or_out(facts: &Facts, open: Option<&Incident>) -> Vec<Command> {
    let name = &facts.node.name;
    let idle = faults::is_idle(facts);
    let after = if facts.node.faults.is_empty() {
        ""
    } else {
        "; its open faults do not take it out again for a while \
         (quarantine.manual_uncordon_hold)"
    };
    let release = |effect: &str| command(format!("warden release {name}"), effect);
    match open {
        Some(incident)
            if is_out(incident)
                && idle
                && (incident.state == "Quarantined"
                    || marks::on_node(facts, incident) != Marks::None) =>
        {
            return by_hand(facts, incident);
        }
        Some(incident) if incident.held_by.is_some() => {
            let cancel = command(
                format!("warden cancel {name} --reason TEXT"),
                format!("{}give it back now, with the hold{after}", stops(incident)),
            );
            return vec![
                release("end the hold: it comes back once its faults, if any, have ended"),
                cancel,
            ];
        }
        Some(incident) if is_out(incident) => {
            return vec![release(&format!(
                "{}give it back now{after}",
                stops(incident)
            ))];
        }
        Some(_) | None => {}
    }
    match (facts.is_well(), is_cordoned_by_others(facts)) {
        (true, true) => {
            let effect = "put it back, if whoever cordoned it agrees; Warden did not";
            return vec![command(format!("kubectl uncordon {name}"), effect)];
        }
        (true, false) => return Vec::new(),
        (false, _) => {}
    }
    let mut list = Vec::new();
    list.push(if idle || is_protected(facts) {
        command(
            format!("kubectl cordon {name}"),
            "take it out yourself: here Warden does not",
        )
    } else {
        command(
            format!("warden hold {name} --reason TEXT"),
            "take it out now and keep it out until you release it",
        )
    });
    if open.is_some_and(|incident| incident.state == "Withheld") && !idle {
        list.push(release(&format!("leave it in service{after}")));
    }
    list
}

/// What the end of an incident ends beside it.
fn stops(incident: &Incident) -> &'static str {
    let drain = incident.drain.as_ref().map(|drain| drain.state.as_str());
    let repair = incident.repair.as_ref().map(|repair| repair.state.as_str());
    match (repair, drain) {
        (Some("Requested" | "Running" | "Unknown"), _) => {
            "call the repair off, unless its signal may be sent, and "
        }
        (_, Some("Draining" | "Waiting")) => "stop the drain, and ",
        _ => "",
    }
}

/// Everything that has to come off a node which Warden took out, while Warden writes nothing.
fn by_hand(facts: &Facts, incident: &Incident) -> Vec<Command> {
    let name = &facts.node.name;
    let mut list = Vec::new();
    let object = facts.node.object.as_ref();
    if object.is_some_and(|object| object.cordoned) && incident.cordon {
        let effect = if incident.cordon_pre_existing {
            "it was cordoned before Warden took it out: take that off only if whoever did it agrees"
        } else {
            "give it back yourself: Warden writes nothing at the moment"
        };
        list.push(command(format!("kubectl uncordon {name}"), effect));
    }
    let on_node = |taint: &&String| object.is_some_and(|object| object.taints.contains(taint));
    for taint in incident.taints.iter().filter(on_node) {
        // As kubectl wants a taint without a value.
        let taint = taint.replacen("=:", ":", 1);
        list.push(command(
            format!("kubectl taint node {name} {taint}-"),
            "as long as this taint stays, the node is not in service",
        ));
    }
    let all = [incident_mark()]
        .into_iter()
        .chain(MARKS.map(str::to_owned));
    let keys: Vec<String> = all.map(|mark| format!("{mark}-")).collect();
    list.push(command(
        format!("kubectl annotate node {name} {}", keys.join(" ")),
        "last, and only if Warden is not to write again: else it takes these off itself, and knows by \
         them what was its own",
    ));
    list
}

pub(super) fn is_cordoned_by_others(facts: &Facts) -> bool {
    let cordoned = facts.node.object.as_ref().is_some_and(|o| o.cordoned);
    let ours = |i: &Incident| i.cordon && !i.cordon_pre_existing && is_out(i);
    cordoned && !facts.open().is_some_and(ours)
}

fn is_blocked_by(facts: &Facts, by: &str) -> bool {
    let object = facts.node.object.as_ref();
    object.is_some_and(|object| object.blocked_by.iter().any(|block| block == by))
}

pub(super) fn is_protected(facts: &Facts) -> bool {
    is_blocked_by(facts, "control_plane") || is_blocked_by(facts, "protected")
}

/// What takes off a person's own mark.
fn marks(facts: &Facts) -> Vec<Command> {
    let name = &facts.node.name;
    let mut list = Vec::new();
    if is_blocked_by(facts, "paused") {
        let key = format!("{}pause", health_event::keys::PREFIX);
        list.push(command(
            format!("kubectl annotate node {name} {key}-"),
            "end the pause",
        ));
    }
    if is_blocked_by(facts, "opted_out") {
        list.push(command(
            format!("kubectl label node {name} k8saas.nvidia.com/ManagedByNVSentinel-"),
            "end the opt-out",
        ));
    }
    list
}

/// What lets Warden act again where another fault-quarantine keeps it from that.
fn other_quarantine(facts: &Facts) -> Option<Command> {
    let matters = !facts.is_well() && faults::is_refused(facts);
    let status = facts.status.as_ref().filter(|_| matters)?;
    let what = status.other_quarantine.as_deref()?;
    let found = what
        .strip_prefix("Deployment ")
        .and_then(|name| name.split_once('/'));
    Some(match found {
        Some((namespace, name)) => command(
            format!("kubectl -n {namespace} scale deployment/{name} --replicas=0"),
            "stop the other fault-quarantine; Warden acts within half a minute",
        ),
        None => command(
            "kubectl get deployments -A | grep fault-quarantine",
            "whether another fault-quarantine runs",
        ),
    })
}

fn closes(facts: &Facts) -> Vec<Command> {
    let name = &facts.node.name;
    let sorted = faults::sorted(facts, &facts.node.faults);
    let close = |fault: &&wire::api::Fault| {
        let what = words::fault_and_device(fault);
        let effect = match role(facts, fault) {
            Role::Held(_) => {
                format!("said again, it counts as new and may take the node out: {what}")
            }
            Role::Acts(_) | Role::Elsewhere | Role::Shown => {
                format!("if you know that this is over: {what}")
            }
        };
        command(format!("warden close {name} {}", fault.id), effect)
    };
    let mut list: Vec<Command> = sorted.iter().take(CLOSES).map(close).collect();
    if sorted.len() > CLOSES {
        let effect = if sorted.len() > FAULTS {
            "the same for another fault; all ids: --format json"
        } else {
            "the same for another fault, by its id above"
        };
        list.push(command(format!("warden close {name} ID"), effect));
    }
    list
}

#[cfg(test)]
mod tests {
    use k8s_api::names;

    use super::*;

    #[test]
    fn the_annotations_that_are_named_are_those_that_warden_writes() {
        assert_eq!(incident_mark(), names::INCIDENT.text);
        let written = [
            names::HEALTH_EVENT,
            names::APPLIED_TAINTS,
            names::IS_CORDONED,
            names::CORDON_PRE_EXISTING,
        ];
        assert_eq!(MARKS, written.map(|name| name.text));
    }
}
