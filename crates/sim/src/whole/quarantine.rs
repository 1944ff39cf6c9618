//! The quarantine's turn: it decides, stores and writes until it rests.

use decide::breaker::BreakerState;
use decide::drain;
use decide::janitor;
use decide::quarantine::{
    Annotation, Decision, MarkOrigin, NodeWrite, Policy, View, WriteFeedback, WriteKind,
};
use decide::remediation::wants;
use health_event::incident::{CloseReason, Incident, IncidentId, QuarantineStatus};
use jiff::Timestamp;
use k8s_api::IncidentMark;

use super::{Broken, Reboot, Setup, World, Wrong, breaker, promises};
use crate::world::Kept;
use crate::world::setup::boot_id;

/// Decisions in one turn, as the shell's.
const PASSES: usize = 8;

/// One turn; `dies`: the process ends between the first store and its write. Answers whether anything
/// changed.
pub(super) fn turn(setup: &Setup, world: &mut World, dies: bool) -> bool {
    let begin = world.clone();
    for _ in 0..PASSES {
        let before = world.clone();
        let Some(decision) = decide(setup, world) else {
            break;
        };
        world.fail(promises::of_quarantine(setup, world, &decision));
        let open = world.incident.clone();
        let stored = store(world, &decision);
        breaker::tell(setup, world, open.as_deref(), &decision);
        // What the label says of drain and repair is derived from both, and read by nobody here.
        let write = decision
            .write
            .filter(|write| setup.labels || write.kind != WriteKind::State);
        if let Some(write) = write {
            if dies {
                world.crash();
                return stored;
            }
            let landed = world
                .node
                .as_ref()
                .and_then(|node| node.patched(&write).ok());
            match landed {
                Some(node) => world.node = Some(Kept::new(node)),
                None => world.fail(Some(Broken::WriteRefused)),
            }
        }
        if *world == before {
            break;
        }
    }
    !dies && *world != begin
}

fn decide(setup: &Setup, world: &mut World) -> Option<Decision> {
    if world.node.is_none() && world.incident.is_none() {
        return None;
    }
    if let Some(node) = world.node.clone().filter(|_| !setup.agent) {
        // Where no agent reports, the node's status tells the boot.
        world.boots.change(|boots| {
            boots.observe(&node.facts.boot);
        });
    }
    let (decision, asked) = decision(setup, world, world.now());
    if let (Some(state), Some(breaker)) = (asked, &mut world.breaker.0) {
        breaker.state = Kept::new(state);
    }
    Some(decision)
}

/// What is decided at `now` of the world as it is, and what the breaker knows after it was asked; nothing
/// is changed.
fn decision(setup: &Setup, world: &World, now: Timestamp) -> (Decision, Option<BreakerState>) {
    let id = incident_id(world.ids);
    let hidden = setup.is_wrong(Wrong::ReleasesWithFault) && world.incident.is_some();
    let faults = if hidden || world.node.is_none() {
        Vec::new()
    } else {
        world.open_faults(setup)
    };
    let mut incident = world.incident.as_deref().cloned();
    if let Some(incident) = incident
        .as_mut()
        .filter(|_| setup.is_wrong(Wrong::ReleasesDuringRepair))
    {
        incident.repair = None;
    }
    let mut agent = (*world.known).clone();
    let settles = world
        .node
        .as_ref()
        .filter(|_| setup.is_wrong(Wrong::ReleasesUnsettled));
    if let Some(node) = settles {
        agent.settled_for = Some(node.facts.boot.clone());
    }
    let node = world.node.as_ref().map(|node| {
        let looks = !setup.is_wrong(Wrong::ReleasesDuringOthersRepair);
        decide::quarantine::NodeFacts {
            repaired_by_others: looks && may_be_rebooted(setup, world, incident.as_ref()),
            ..node.facts.clone()
        }
    });
    let holds = (*world.holds).clone();
    let forgets = setup.is_wrong(Wrong::ForgetsHold);
    let policy = Policy {
        drains: setup.drain.mode == drain::Mode::Enforce,
        ..setup.base.policy.clone()
    };
    let mut view = View {
        node: node.as_ref(),
        incident: incident.as_ref(),
        faults: &faults,
        holds: if forgets { &[] } else { &holds },
        agent: &agent,
        boots: &world.boots,
        policy: &policy,
        rules: &setup.base.rules,
        feedback: WriteFeedback::Idle,
        mark_origin: mark_origin(world),
        request: world.memory.request.as_deref(),
        permit: None,
        new_id: &id,
    };
    let mut decision = decide::quarantine::decide(&view, now);
    let mut asked = None;
    if let Some(wanted) = &decision.ask {
        let permit;
        (permit, asked) = breaker::ask(setup, world, wanted, now);
        view.permit = Some(permit);
        decision = decide::quarantine::decide(&view, now);
    }
    (decision, asked)
}

/// Whether something would be done at `now`, with nothing changed but the clock; and when it is looked at
/// again.
pub(super) fn acts(setup: &Setup, world: &World, now: Timestamp) -> (bool, Option<Timestamp>) {
    if world.node.is_none() && world.incident.is_none() {
        return (false, None);
    }
    let (decision, _) = decision(setup, world, now);
    let says = |write: &NodeWrite| setup.labels || write.kind != WriteKind::State;
    let write = decision.write.iter().any(says);
    let acts = write || decision.incident.is_some() || decision.holds.is_some();
    (acts, decision.wake_at)
}

/// Whether a reboot may still come that the incident does not wait for (any more).
fn may_be_rebooted(setup: &Setup, world: &World, incident: Option<&Incident>) -> bool {
    let own = |name: &str| incident.is_some_and(|incident| wants(incident, name));
    let begun = |reboot: &Reboot| reboot.body.started_at.is_some() && !reboot.is_over();
    let mut reboots = world.shown().iter();
    let mut intents = world.intents.iter();
    reboots.any(|reboot| begun(reboot) && !own(&reboot.name))
        || intents.any(|intent| {
            let object = world.reboot(intent.object);
            let deadline = janitor::deadline_of(Setup::now(intent.at), &setup.janitor);
            world.now() < deadline && !object.is_some_and(|object| own(&object.name))
        })
}

fn store(world: &mut World, decision: &Decision) -> bool {
    let now = world.now();
    if decision.request_done {
        world.memory.request = None;
    }
    if let Some(holds) = &decision.holds {
        world.holds = Kept::new(holds.clone());
    }
    let Some(incident) = &decision.incident else {
        return false;
    };
    if world.incident.is_none() {
        world.ids += 1;
        // What was reported before an incident opened is older than it.
        if world.known.started_at.is_some_and(|at| at > now) {
            world.known.change(|known| known.started_at = Some(now));
        }
    }
    if let Some(transition) = &decision.transition {
        world.did("quarantine", transition.reason.code());
        let given_back = |why: &CloseReason| match why {
            CloseReason::ManualUncordon
            | CloseReason::ManualUntaint
            | CloseReason::CancelledByPerson => true,
            CloseReason::Recovered | CloseReason::NodeDeleted => false,
        };
        match &transition.to {
            QuarantineStatus::Releasing(why) if given_back(why) => world.refuse(),
            QuarantineStatus::Closed(why) if given_back(why) && decision.holds.is_some() => {
                world.refuse();
            }
            QuarantineStatus::Withheld(_)
            | QuarantineStatus::Observed
            | QuarantineStatus::Applying
            | QuarantineStatus::Quarantined
            | QuarantineStatus::Releasing(_)
            | QuarantineStatus::Closed(_) => {}
        }
    }
    if incident.quarantine.is_closed() {
        world.over.change(|over| over.push(incident.id.clone()));
        world.incident = None;
    } else {
        // How rarely marks are put back is left to the tests beside the decision: it has too many states.
        let mut incident = incident.clone();
        incident.put_back.clear();
        world.incident = Some(Kept::new(incident));
    }
    true
}

impl World {
    /// A person gave the node back in spite of what is open now.
    fn refuse(&mut self) {
        for (refused, fault) in self.refused.iter_mut().zip(&self.faults) {
            *refused = fault.map(|fault| fault.opening).or(*refused);
        }
    }

    /// The agent has settled for the boot that the node shows.
    pub(super) fn has_settled(&self) -> bool {
        self.known.settled_for == Some(boot_id(0, self.boot))
    }
}

fn mark_origin(world: &World) -> MarkOrigin {
    let text = world
        .node
        .as_ref()
        .and_then(|node| node.facts.annotations.get(&Annotation::Incident));
    let mark = text.and_then(|text| IncidentMark::parse(text).ok());
    let bare = text.is_none() && world.incident.is_none();
    let last = || bare.then(|| world.over.last().cloned()).flatten();
    let named = mark.map(|mark| mark.incident).or_else(last);
    if named.is_some_and(|id| world.over.contains(&id)) {
        MarkOrigin::Closed
    } else {
        MarkOrigin::Unknown
    }
}

fn incident_id(number: u32) -> IncidentId {
    IncidentId::new(&format!("{number:026}")).expect("26 digits are an id")
}
