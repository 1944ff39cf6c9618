//! The remediation's turn, and the object that it orders.

use decide::janitor;
use decide::remediation::{
    self, Decision, FaultFacts, Mode, NodeLook, Object, PastAttempt, View, boots_seen,
    is_named_for, wants,
};
use health_event::BootId;
use health_event::incident::{Attempt, Effect, Incident, Repair, RepairStatus};
use jiff::Timestamp;
use k8s_api::reboot_node::NO_REBOOT_OBSERVED;

use super::{Intent, Reboot, Setup, World, Wrong, promises};
use crate::world::Kept;
use crate::world::setup::boot_id;

/// Decisions in one turn, as the shell's.
const PASSES: usize = 8;

/// Decides and stores until it rests or an object is to be made, which comes later. Answers whether anything changed.
pub(super) fn turn(setup: &Setup, world: &mut World) -> bool {
    let mut changed = false;
    for _ in 0..PASSES {
        if !pass(setup, world) {
            break;
        }
        changed = true;
    }
    changed
}

fn pass(setup: &Setup, world: &mut World) -> bool {
    let Some(incident) = world.incident_here() else {
        return false;
    };
    if world.memory.order.is_some() {
        return false;
    }
    take_back(world);
    let decided = (incident.id.clone(), incident.version);
    let decision = decision(setup, world, &incident, world.now());
    if let Some(mut next) = decision.incident {
        if setup.is_wrong(Wrong::LooksOnce) {
            next.drain.clone_from(&incident.drain);
        }
        if setup.is_wrong(Wrong::ForgetsEffect)
            && let Some(attempt) = next.repair.as_mut().and_then(|r| r.attempt.as_mut())
        {
            attempt.seen_before = None;
        }
        let repair = next.repair.as_ref();
        let ordered = repair.filter(|repair| repair.status == RepairStatus::Requested);
        let ordered = ordered.and_then(|repair| repair.attempt.clone());
        if let (true, Some(attempt)) = (setup.is_wrong(Wrong::OrdersFirst), &ordered) {
            world.memory.order = Some(Kept::new((attempt.clone(), decided)));
            return true;
        }
        world.fail(promises::of_remediation(setup, world, &next));
        if let Some(transition) = &decision.transition {
            world.did("remediation", transition.reason.code());
        }
        let last = next
            .repair
            .as_ref()
            .and_then(|repair| repair.attempt.as_ref());
        let unbegun = last.filter(|last| last.effect == Effect::NotBegun);
        if let Some(object) = unbegun.map(|last| last.object.clone()) {
            world
                .past
                .change(|past| past.retain(|(counted, _)| *counted != object));
        }
        if let Some(attempt) = ordered {
            world.memory.order_refused = None;
            world.past.change(|past| {
                let counted = PastAttempt {
                    rung: attempt.rung,
                    at: attempt.requested_at,
                    // Whose it is its object's name tells.
                    of_incident: false,
                };
                past.push((attempt.object, counted));
            });
        }
        world.incident = Some(Kept::new(next));
        return true;
    }
    if let Some(order) = decision.order {
        world.memory.order = Some(Kept::new((order, decided)));
        return true;
    }
    false
}

/// What is decided at `now` of the world as it is; nothing is changed.
fn decision(setup: &Setup, world: &World, incident: &Incident, now: Timestamp) -> Decision {
    let past = |(object, past): &(String, PastAttempt)| PastAttempt {
        of_incident: is_named_for(incident, object) && !setup.is_wrong(Wrong::CountsByWindow),
        ..past.clone()
    };
    let past: Vec<PastAttempt> = world.past.iter().map(past).collect();
    let attempt = incident.repair.as_ref().and_then(|r| r.attempt.as_ref());
    let (node, boots) = look(setup, world, attempt);
    let object = object(setup, world, incident);
    let mode = if setup.is_wrong(Wrong::OrderIgnoresDryRun) {
        Mode::Enforce
    } else {
        setup.remediation.mode
    };
    let policy = remediation::Policy {
        mode,
        ..setup.remediation.clone()
    };
    let faults = faults(setup, world, incident);
    let drains = setup.drain.mode != decide::drain::Mode::Off;
    let view = View {
        incident,
        node: node.as_ref(),
        faults: &faults,
        wants_drain: drains && incident.open_faults().next().is_some(),
        boots: &boots,
        past: &past,
        object: &object,
        other_repair: other_repair(world, incident),
        waits_as_own_node: world.around.0.is_own && !setup.is_wrong(Wrong::OrdersOnOwnNode),
        policy: &policy,
    };
    let decision = remediation::decide(&view, now);
    let is_first = incident.repair.is_none();
    let covered = |next: &Incident| {
        let repair = next.repair.as_ref();
        is_first && repair.is_some_and(|repair| repair.status == RepairStatus::Cancelled)
    };
    if setup.is_wrong(Wrong::ForgetsCovered) && decision.incident.as_ref().is_some_and(covered) {
        return Decision::default();
    }
    decision
}

/// Whether something would be done at `now`, with nothing changed but the clock; and when it is looked at
/// again.
pub(super) fn acts(setup: &Setup, world: &World, now: Timestamp) -> (bool, Option<Timestamp>) {
    let Some(incident) = world.incident_here() else {
        return (false, None);
    };
    let decision = decision(setup, world, &incident, now);
    let acts = decision.incident.is_some() || decision.order.is_some();
    let wakes = !setup.is_wrong(Wrong::WakesNobody);
    (acts, decision.wake_at.filter(|_| wakes))
}

fn look(
    setup: &Setup,
    world: &World,
    attempt: Option<&Attempt>,
) -> (Option<NodeLook>, health_event::Boots) {
    let Some(node) = &world.node else {
        return (None, (*world.boots).clone());
    };
    let boots = boots_seen(&world.boots, &node.facts.boot, attempt);
    let mut boot = boots.present().cloned().unwrap_or_default();
    if setup.is_wrong(Wrong::ReadyIsEnough) && attempt.is_some() {
        boot = boot_id(0, u8::MAX);
    }
    let look = NodeLook {
        boot,
        ready: node.facts.ready,
        paused: node.facts.paused && !setup.is_wrong(Wrong::OrderIgnoresPause),
        external_owner: node.facts.external_owner.clone(),
    };
    (Some(look), boots)
}

fn faults(setup: &Setup, world: &World, incident: &Incident) -> Vec<FaultFacts> {
    let of_incident = |index: usize| {
        let fault = world.faults[index]?;
        let id = &setup.template(index).id;
        let mut open = incident.open_faults();
        let joined = open.any(|f| f.id == *id);
        joined.then(|| FaultFacts {
            id: id.clone(),
            action: setup.actions[index].to_owned(),
            boot: if setup.knows_boots[index] {
                boot_id(0, fault.boot)
            } else {
                BootId::default()
            },
            last_at: Setup::now(fault.said),
        })
    };
    (0..2).filter_map(of_incident).collect()
}

fn object(setup: &Setup, world: &World, incident: &Incident) -> Object {
    let repair = incident.repair.as_ref();
    let Some(attempt) = repair.and_then(|repair| repair.attempt.as_ref()) else {
        return Object::Absent;
    };
    if world.memory.order_refused.as_ref() == Some(&attempt.object) {
        return Object::Refused("an admission webhook does not want it".to_owned());
    }
    let named = |reboots: &[Kept<Reboot>]| {
        let found = reboots.iter().find(|r| r.name == attempt.object);
        found.cloned()
    };
    let unshown = named(world.shown()).is_none();
    if unshown && world.memory.made.as_ref() == Some(&attempt.object) {
        return Object::Running { since: None };
    }
    // Where the watch does not show it a direct read tells.
    let read = if unshown && !setup.is_wrong(Wrong::UnshownIsGone) {
        named(&world.reboots)
    } else {
        named(world.shown())
    };
    match read.as_deref() {
        None => Object::Absent,
        Some(reboot) if !reboot.is_over() => running(world, reboot),
        Some(reboot) if reboot.ready.0 == Some(true) => Object::Done {
            since: begun(world, reboot),
        },
        Some(reboot) if reboot.ready.1 == NO_REBOOT_OBSERVED => Object::NoReboot,
        Some(reboot) if is_over_unsent(reboot) => Object::NotBegun(reboot.ready.1.to_owned()),
        Some(reboot) => Object::Failed(reboot.ready.1.to_owned()),
    }
}

fn begun(world: &World, reboot: &Reboot) -> Option<Timestamp> {
    let intended = world.intents.iter().find(|i| i.object == reboot.uid);
    let since = reboot.body.started_at;
    since.or_else(|| intended.map(|intent| Setup::now(intent.at)))
}

fn running(world: &World, reboot: &Reboot) -> Object {
    let since = begun(world, reboot);
    let sent = reboot.body.signal != janitor::Signal::Unknown || reboot.body.says_manual;
    if since.is_none() && !sent {
        Object::Queued
    } else {
        Object::Running { since }
    }
}

/// What ended in the queue is no attempt on the machine.
fn take_back(world: &mut World) {
    let unsent = |object: &str| {
        let shown = world.shown().iter();
        let mut of_name = shown.filter(|reboot| reboot.name == object);
        of_name.any(|reboot| is_over_unsent(reboot))
    };
    let kept: Vec<_> = world
        .past
        .iter()
        .filter(|(object, _)| !unsent(object))
        .cloned()
        .collect();
    if kept.len() < world.past.len() {
        world.past = Kept::new(kept);
    }
}

/// Whether it ended in the queue, for no reason of its node.
fn is_over_unsent(reboot: &Reboot) -> bool {
    let body = &reboot.body;
    reboot.is_over() && body.started_at.is_none() && body.signal == janitor::Signal::Unknown
}

/// A repair object of the node that is not at its end and not this incident's present attempt.
fn other_repair(world: &World, incident: &Incident) -> bool {
    let object = |reboot: &&Kept<Reboot>| !reboot.is_over() && !wants(incident, &reboot.name);
    world.shown().iter().any(|reboot| object(&reboot))
}

/// Makes the object; the API server may refuse it.
pub(super) fn order(setup: &Setup, world: &mut World, refused: bool) -> bool {
    let Some(order) = world.memory.order.take() else {
        return false;
    };
    let (attempt, decided) = (*order).clone();
    if world.decided() != Some(decided) && !setup.is_wrong(Wrong::StaleOrder) {
        return true;
    }
    if refused {
        world.memory.order_refused = Some(attempt.object);
        return true;
    }
    let owner = world.node.as_ref().map(|node| node.facts.uid.clone());
    let Some(incident) = world.incident.clone() else {
        world.fail(Some(super::Broken::OrderWithoutIncident));
        return true;
    };
    let Some(owner) = owner.filter(|uid| *uid == incident.node_uid) else {
        return true;
    };
    // Until the watch shows it, the answer is believed.
    world.memory.made = setup.lags.then(|| attempt.object.clone());
    if world.reboots.iter().any(|r| r.name == attempt.object) {
        return true;
    }
    let id = incident.id.clone();
    world.fail(promises::of_order(setup, world, &attempt));
    world.did("remediation", "order");
    let made = Reboot {
        uid: 0,
        name: attempt.object,
        incident: Some(id),
        owner: Some(owner),
        body: body(world, attempt.force),
        ready: (None, ""),
    };
    world.make(setup, made);
    true
}

/// Takes one object back that nobody waits for, as far as its status tells that nothing was sent.
pub(super) fn recall(setup: &Setup, world: &mut World) -> bool {
    let recalled = |reboot: &Kept<Reboot>| {
        let sent = matches!(reboot.body.signal, janitor::Signal::Sent { .. });
        let may_be_sent = sent || reboot.body.started_at.is_some();
        world.is_recalled(setup, reboot, may_be_sent)
    };
    let shown = world
        .shown()
        .iter()
        .find(|reboot| recalled(reboot))
        .cloned();
    let Some(shown) = shown else {
        return false;
    };
    // Its version is a precondition.
    let Some(index) = world.reboots.iter().position(|reboot| *reboot == shown) else {
        return false;
    };
    let name = shown.name.clone();
    world
        .past
        .change(|past| past.retain(|(object, _)| *object != name));
    world.delete_reboot(setup, index);
    world.did("remediation", "recall");
    true
}

/// A new object, as far as decisions see it.
pub(super) fn body(world: &World, force: bool) -> janitor::RebootNode {
    janitor::RebootNode {
        created_at: world.now(),
        force,
        deleting: false,
        started_at: None,
        completed_at: None,
        signal: janitor::Signal::Unknown,
        says_manual: false,
        says_controller_here: false,
        end: None,
    }
}

impl World {
    /// The version of the open incident for which something may be decided now.
    pub(super) fn decided(&self) -> Option<super::memory::Decided> {
        let incident = self.incident.as_ref()?;
        Some((incident.id.clone(), incident.version))
    }

    /// The open incident of the node object that is there, or of one that is gone.
    pub(super) fn incident_here(&self) -> Option<Incident> {
        let incident = self.incident.as_deref()?;
        let node = self.node.as_ref();
        let here = node.is_none_or(|node| node.facts.uid == incident.node_uid);
        here.then(|| incident.clone())
    }

    /// Whether a repair may have its effect.
    pub(super) fn is_begun(&self, repair: &Repair) -> bool {
        let attempt = repair.attempt.as_ref();
        let named =
            |reboot: &&Kept<Reboot>| attempt.is_some_and(|attempt| attempt.object == reboot.name);
        let begun = match self.shown().iter().find(named) {
            Some(reboot) => running(self, reboot) != Object::Queued,
            None => repair.status != RepairStatus::Requested,
        };
        repair.status.is_under_way() && begun
    }

    /// Whether nobody waits for an object any more, for which nothing was sent.
    pub(super) fn is_recalled(&self, setup: &Setup, reboot: &Reboot, may_be_sent: bool) -> bool {
        let Some(id) = reboot.incident.as_ref() else {
            return false;
        };
        if setup.is_wrong(Wrong::IgnoresRecall) {
            return false;
        }
        match self.incident.as_deref().filter(|open| open.id == *id) {
            Some(open) => {
                remediation::is_recalled(open, &reboot.name, reboot.is_over(), may_be_sent)
            }
            // One that is over waits for nothing.
            None => !reboot.is_over() && !may_be_sent,
        }
    }

    pub(super) fn make(&mut self, setup: &Setup, mut reboot: Reboot) {
        self.falls_behind(setup);
        reboot.uid = self.reboot_uids;
        self.reboot_uids += 1;
        self.reboots.push(Kept::new(reboot));
    }

    /// Whether a signal may have its effect still whose object is gone.
    pub(super) fn orphan_runs(&self, setup: &Setup) -> bool {
        let boot = self.node.as_ref().map(|node| &node.facts.boot);
        let shown = |object: u8| self.shown().iter().any(|reboot| reboot.uid == object);
        let gone = |intent: &&Intent| !shown(intent.object);
        self.intents.iter().filter(gone).any(|intent| {
            let intent = janitor::Intent {
                boot_before: boot_id(0, intent.boot),
                at: Setup::now(intent.at),
                deadline: janitor::deadline_of(Setup::now(intent.at), &setup.janitor),
                fresh: false,
                manual: false,
            };
            janitor::runs_without_object(&intent, boot, &setup.janitor, self.now())
        })
    }
}
