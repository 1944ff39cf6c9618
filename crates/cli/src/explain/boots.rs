//! The agent reports another boot than the node object shows: since when, what that keeps away, and what a
//! person does about it.

use wire::api::{BootsDiffer, Incident};

use super::Facts;
use super::can_do::{Command, command};
use super::next::Line;
use crate::stages;
use crate::words::Clock;

/// Whether that is so for longer than a reboot explains.
pub(super) fn is_late(facts: &Facts) -> bool {
    let differ = facts.node.boots_differ.as_ref();
    differ.is_some_and(|differ| differ.late)
}

/// What is told of it; nothing where the boots are one.
pub(super) fn lines(facts: &Facts, clock: &Clock) -> Vec<Line> {
    let Some(differ) = &facts.node.boots_differ else {
        return Vec::new();
    };
    let mut lines = vec![
        told(differ, differ_text(differ, clock)),
        told(differ, keeps(facts, differ).to_owned()),
    ];
    lines.retain(|line| !line.text().is_empty());
    lines.push(Line::Comes(if differ.late {
        "  No reboot takes that long: one of them is wrong. The machine's own boot id stands in \
         /proc/sys/kernel/random/boot_id on it. If the agent's is another, mend what it reads (boot_id_file, \
         or an agent in a machine of its own) and restart its pod; if the node object's is \
         another, restart the kubelet, which writes it."
            .to_owned()
    } else {
        "  Right after a reboot that is so until both the kubelet and the agent have told of the new boot; \
         it needs a person if it stays."
            .to_owned()
    }));
    lines
}

fn told(differ: &BootsDiffer, text: String) -> Line {
    if differ.late {
        Line::Person(text)
    } else {
        Line::Blocks(text)
    }
}

fn differ_text(differ: &BootsDiffer, clock: &Clock) -> String {
    let person = if differ.late {
        "A person is needed: the"
    } else {
        "The"
    };
    let (agent, node) = (&differ.agent, &differ.node);
    let since = match differ.since() {
        Some(at) => format!(" That is so since {}.", clock.since(at)),
        None => String::new(),
    };
    format!(
        "{person} node's agent reports boot {agent}, and the node object shows boot {node} \
         (status.nodeInfo.bootID).{since}"
    )
}

/// What it keeps Warden from.
fn keeps(facts: &Facts, differ: &BootsDiffer) -> &'static str {
    let Some(incident) = facts
        .open()
        .filter(|incident| super::next::is_out(incident))
    else {
        return "";
    };
    if differ.repair_kept && waits_for_a_repair(facts, incident) {
        "  No repair is ordered meanwhile, and the node is not given back: Warden takes it that the machine \
         has booted since its faults were said, and waits until the agent tells from the boot that the node \
         shows what is still wrong."
    } else {
        "  The node is not given back before the agent has finished its first look at the boot that the node \
         shows."
    }
}

/// Whether a repair would be planned, and is not.
fn waits_for_a_repair(facts: &Facts, incident: &Incident) -> bool {
    let repair = incident.repair.as_ref().map(|repair| repair.state.as_str());
    let has_fault = incident.faults.iter().any(|f| f.closed_at.is_none());
    let acts = stages::acts(facts.status.as_ref(), |status| &status.remediation);
    acts && has_fault && matches!(repair, None | Some("Cancelled" | "Failed"))
}

/// What tells which of the two is wrong.
pub(super) fn commands(facts: &Facts) -> Vec<Command> {
    let name = &facts.node.name;
    if !is_late(facts) {
        return Vec::new();
    }
    vec![
        command(
            format!("kubectl get node {name} -o jsonpath='{{.status.nodeInfo.bootID}}'"),
            "the boot that the node object shows: compare it with the machine's own",
        ),
        command(
            super::next::agent_pods(name),
            "the agent's pod: deleted, it starts again and tells its boot anew",
        ),
    ]
}
