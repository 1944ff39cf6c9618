//! What must hold of all nodes together.

use std::fmt;

use health_event::incident::{DrainStatus, QuarantineStatus, RepairStatus};

use super::super::{Broken as OfNode, Signal, World, promises};
use super::{Fleet, FleetSetup, What};
use decide::janitor;

/// A promise that was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Broken {
    /// One of a single node.
    Node(OfNode),
    /// More reboots are under way than may be.
    TooManyReboots,
    /// A reboot of the node is begun on which the controller runs.
    OwnNodeRebooted,
    /// The controller's own node begins to be drained while another is drained or repaired.
    OwnNodeDrainedBeside,
    /// A repair of the node is ordered on which the controller runs.
    OwnNodeOrdered,
    /// More nodes are out by permit than the breaker's bound.
    LevelExceeded,
    /// A node that the breaker withholds has marks of ours, or something is done to it.
    WithheldTouched,
    /// An order that nobody deleted is not there, or its incident does not follow it any more.
    OrderLost,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// One step of one node, `before` it with all others.
pub(super) fn of_step(
    setup: &FleetSetup,
    before: &Fleet,
    index: usize,
    after: &World,
) -> Option<Broken> {
    if is_touched(&before.nodes[index], after) {
        return Some(Broken::WithheldTouched);
    }
    if let Some(broken) = after.broken {
        return Some(Broken::Node(broken));
    }
    if exceeds_level(setup, before, index, after) {
        return Some(Broken::LevelExceeded);
    }
    let did = |module: &'static str, what: &'static str| after.did.0.contains(&(module, what));
    let own = before.own == Some(index);
    let mut others = (0..before.nodes.len()).filter(|other| *other != index);
    if did("janitor", "send") {
        let busy = |other: &usize| is_busy(setup, before, *other);
        if others.clone().filter(busy).count() >= setup.nodes[index].max_parallel {
            return Some(Broken::TooManyReboots);
        }
    }
    if own && did("janitor", "intend") {
        return Some(Broken::OwnNodeRebooted);
    }
    if own && did("drain", "wanted") && others.any(|other| is_at_work(&before.nodes[other])) {
        return Some(Broken::OwnNodeDrainedBeside);
    }
    (own && did("remediation", "order")).then_some(Broken::OwnNodeOrdered)
}

fn is_withheld(world: &World) -> bool {
    let incident = world.incident.as_deref();
    incident.is_some_and(|incident| matches!(incident.quarantine, QuarantineStatus::Withheld(_)))
}

/// Whether a withheld node is touched.
fn is_touched(before: &World, after: &World) -> bool {
    let acts = |did: &(&str, &str)| {
        matches!(
            did,
            ("drain", "evict" | "delete") | ("remediation", "order")
        )
    };
    let sent = after
        .signals
        .last()
        .filter(|_| after.signals.len() > before.signals.len());
    let sent = sent.and_then(|signal| before.reboot(signal.object));
    let for_incident = sent.is_some_and(|reboot| reboot.incident.is_some());
    let acted = after.did.0.iter().any(acts) || for_incident;
    let marked = after.node.as_ref().is_some_and(|node| node.carries_ours());
    (is_withheld(before) && acted) || (is_withheld(after) && marked)
}

/// Whether one more node goes out than may.
fn exceeds_level(setup: &FleetSetup, before: &Fleet, index: usize, after: &World) -> bool {
    let Some(config) = &setup.breaker else {
        return false;
    };
    let is_out = |world: &World| {
        let incident = world.incident.as_deref();
        incident.is_some_and(|incident| incident.quarantine.is_out())
    };
    let others = before
        .nodes
        .iter()
        .enumerate()
        .filter(|(other, _)| *other != index);
    let out = others.filter(|(_, world)| is_out(world)).count();
    let goes_out = is_out(after) && !is_out(&before.nodes[index]);
    let there = before.nodes.iter().filter(|world| world.node.is_some());
    goes_out && out >= config.level_bound(there.count())
}

/// Whether a signal may have its effect still, or its object waits for it.
fn is_busy(setup: &FleetSetup, fleet: &Fleet, index: usize) -> bool {
    let (setup, world) = (&setup.nodes[index], &fleet.nodes[index]);
    let unproven = |signal: &Signal| !promises::is_proven_undone(setup, world, *signal);
    let mut reboots = world.reboots.iter();
    world.signals.iter().any(unproven)
        || reboots.any(|reboot| {
            let sent = matches!(reboot.body.signal, janitor::Signal::Sent { .. });
            sent && !reboot.is_over()
        })
}

/// Whether a node is drained or repaired, as a witness sees it.
fn is_at_work(world: &World) -> bool {
    let Some(incident) = world.incident.as_deref() else {
        return false;
    };
    let drain = incident.drain.as_ref().map(|drain| &drain.status);
    let repair = incident.repair.as_ref().map(|repair| &repair.status);
    matches!(drain, Some(DrainStatus::Draining(_)))
        || matches!(
            repair,
            Some(RepairStatus::Requested | RepairStatus::Running | RepairStatus::Unknown)
        )
}

/// Of every state.
pub(super) fn of_fleet(setup: &FleetSetup, fleet: &Fleet) -> Option<Broken> {
    let deletes = |index: usize| {
        let limits = &setup.nodes[index].limits;
        [What::DeleteReboot, What::Delete]
            .iter()
            .any(|what| limits.contains_key(what))
    };
    let lost = |(index, world): (usize, &World)| !deletes(index) && has_lost_order(world);
    let mut nodes = fleet.nodes.iter().enumerate();
    nodes.any(lost).then_some(Broken::OrderLost)
}

fn has_lost_order(world: &World) -> bool {
    let incident = world.incident.as_deref();
    let Some(repair) = incident.and_then(|incident| incident.repair.as_ref()) else {
        return false;
    };
    let Some(attempt) = &repair.attempt else {
        return false;
    };
    let mut reboots = world.reboots.iter();
    let found = reboots.find(|reboot| reboot.name == attempt.object);
    match &repair.status {
        RepairStatus::Running => found.is_none(),
        RepairStatus::Unknown => found.is_some_and(|reboot| !reboot.is_over()),
        RepairStatus::Planned { .. }
        | RepairStatus::Requested
        | RepairStatus::Succeeded
        | RepairStatus::Failed(_)
        | RepairStatus::NeedsOperator(_)
        | RepairStatus::Cancelled => false,
    }
}
