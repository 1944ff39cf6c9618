//! What must hold in every state and at each step.

use std::fmt;

use decide::janitor::StatusChange;
use decide::quarantine::Decision;
use decide::remediation::{PastAttempt, is_named_for, wants};
use decide::{drain, remediation};
use health_event::incident::{
    Attempt, CloseReason, DrainStatus, Incident, QuarantineStatus, RepairStatus,
};
use jiff::Timestamp;

use super::{Reboot, Setup, Signal, World};
use crate::world::setup::boot_id;

/// A promise that was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Broken {
    /// A write to the node that was decided a moment ago is refused.
    WriteRefused,
    /// A pod is evicted without an open incident that is out with an open fault (P2).
    EvictionWithoutIncident,
    /// A pod is evicted before the drain is stored (P3).
    EvictionUnstored,
    /// An object is made without an open incident that is out (P2).
    OrderWithoutIncident,
    /// An object is made before its order is stored (P3).
    OrderUnstored,
    /// A signal is sent for an incident that is over or does not want it (P2).
    SignalWithoutIncident,
    /// A signal is sent before its intent is stored (P3).
    SignalUnstored,
    /// A signal is sent by who does not hold the node's lock.
    SignalWithoutLock,
    /// A signal is sent again.
    SignalTwice,
    /// A signal is sent while another repair of the node runs.
    TwoRepairs,
    /// A second reboot for one fault, and the first is not proven not to have happened.
    TwoReboots,
    /// A reboot is sent that happened since it was ordered.
    RebootedAlready,
    /// What may be sent and is not over does not hold the node's lock.
    RunsUnlocked,
    /// A recovery while a repair of the node is under way (rule 2).
    ReleasedDuringRepair,
    /// A recovery while a fault is open.
    ReleasedWithFault,
    /// A recovery in another boot of whose faults the agent has not spoken.
    ReleasedUnsettled,
    /// A drain is said to be done with a pod on the node that counts.
    DrainedWithPods,
    /// A drain is said to be done while the pods are not known (P6).
    DrainedUnknown,
    /// Something begins while the node is paused (rule 8).
    BegunWhilePaused,
    /// A stage acts in dry run (rule 7).
    ActedInDryRun,
    /// After a person gave the node back something is done to it for the same fault (rule 3).
    PersonOverruled,
    /// A reboot is said to have succeeded and the machine runs in its boot.
    SucceededInSameBoot,
    /// More attempts than the ladder has, in an incident or for the machine in a window.
    TooManyAttempts,
    /// A signal while pods are known to be on the node.
    SignalOverPods,
    /// A repair is ordered or begun with a pod on the node that was there at the drain's turn.
    RepairOverPods,
    /// A repair is ordered, and no fault was said since the machine booted.
    RepairOfCovered,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

fn first(checks: impl IntoIterator<Item = (bool, Broken)>) -> Option<Broken> {
    let mut checks = checks.into_iter();
    checks.find_map(|(broken, what)| broken.then_some(what))
}

/// Of every state.
pub(super) fn of_state(setup: &Setup, world: &World) -> Option<Broken> {
    let runs = |signal: &&Signal| {
        let reboot = world.reboot(signal.object);
        reboot.is_some_and(|reboot| !reboot.is_over())
    };
    let unlocked = |signal: &Signal| world.lock != Some(signal.object);
    let max = setup.remediation.max_attempts;
    let incident = world.incident.as_deref();
    let of_incident = |(object, _): &&(String, PastAttempt)| {
        incident.is_some_and(|incident| is_named_for(incident, object))
    };
    let since = world.now().checked_sub(setup.remediation.window);
    let since = since.unwrap_or(Timestamp::MIN);
    let counts = |(_, past): &&(String, PastAttempt)| past.at > since;
    first([
        (
            world.signals.iter().filter(runs).any(unlocked),
            Broken::RunsUnlocked,
        ),
        (
            world.past.iter().filter(of_incident).count() > max
                || world.past.iter().filter(counts).count() > max,
            Broken::TooManyAttempts,
        ),
    ])
}

/// A decision of the quarantine before it is stored.
pub(super) fn of_quarantine(setup: &Setup, world: &World, decision: &Decision) -> Option<Broken> {
    let (before, after) = (world.incident.as_deref()?, decision.incident.as_ref()?);
    let recovers = |status: &QuarantineStatus| match status {
        QuarantineStatus::Releasing(why) | QuarantineStatus::Closed(why) => {
            *why == CloseReason::Recovered
        }
        QuarantineStatus::Withheld(_)
        | QuarantineStatus::Observed
        | QuarantineStatus::Applying
        | QuarantineStatus::Quarantined => false,
    };
    if !recovers(&after.quarantine) || recovers(&before.quarantine) {
        return None;
    }
    let repair = before.repair.as_ref();
    let under_way = repair.is_some_and(|repair| repair.status.is_under_way());
    // Of one whose object is gone only its time can tell.
    let signal = |signal: &Signal| match world.reboot(signal.object) {
        Some(reboot) => !reboot.is_over(),
        None => !is_proven_undone(setup, world, *signal),
    };
    let booted = boot_id(0, world.boot_shown()) != before.opened_boot;
    let marked = world.node.as_ref().is_some_and(|node| node.carries_ours());
    first([
        (
            under_way || world.signals.iter().any(signal),
            Broken::ReleasedDuringRepair,
        ),
        (
            before.open_faults().any(|f| is_open(world, f.seq)),
            Broken::ReleasedWithFault,
        ),
        (
            marked && booted && world.known.expected && !world.has_settled(),
            Broken::ReleasedUnsettled,
        ),
    ])
}

fn is_open(world: &World, opening: u64) -> bool {
    let mut open = world.faults.iter().flatten();
    open.any(|fault| u64::from(fault.opening) == opening)
}

/// Whether an incident has something left to act for: an open fault that no person gave the node back
/// in spite of.
fn may_act(world: &World, incident: &Incident) -> bool {
    let refused = |opening: u64| {
        let mut refused = world.refused.iter().flatten();
        refused.any(|refused| u64::from(*refused) == opening)
    };
    incident.open_faults().any(|fault| !refused(fault.seq))
}

fn is_overruled(world: &World, incident: &Incident) -> bool {
    incident.open_faults().next().is_some() && !may_act(world, incident)
}

/// A change of the drain before it is stored.
pub(super) fn of_drain(setup: &Setup, world: &World, next: &Incident) -> Option<Broken> {
    let before = world.incident.as_ref()?.drain.as_ref().map(|d| &d.status);
    let after = &next.drain.as_ref()?.status;
    let paused = world.node.as_ref().is_some_and(|node| node.facts.paused);
    let begins = matches!(after, DrainStatus::Draining(_));
    let drained = *after == DrainStatus::Drained;
    let dry = setup.drain.mode == drain::Mode::DryRun;
    let running = matches!(before, Some(DrainStatus::Draining(_)));
    first([
        (begins && paused && !running, Broken::BegunWhilePaused),
        (begins && dry, Broken::ActedInDryRun),
        (drained && !world.memory.pods_known, Broken::DrainedUnknown),
        (drained && !world.pods.is_empty(), Broken::DrainedWithPods),
    ])
}

/// An eviction as it goes out.
pub(super) fn of_eviction(setup: &Setup, world: &World) -> Option<Broken> {
    let Some(incident) = world.incident.as_deref() else {
        return Some(Broken::EvictionWithoutIncident);
    };
    let out = incident.quarantine == QuarantineStatus::Quarantined;
    let drain = incident.drain.as_ref().map(|drain| &drain.status);
    first([
        (
            !out || incident.open_faults().next().is_none(),
            Broken::EvictionWithoutIncident,
        ),
        (
            setup.drain.mode == drain::Mode::DryRun,
            Broken::ActedInDryRun,
        ),
        (
            !matches!(drain, Some(DrainStatus::Draining(_))),
            Broken::EvictionUnstored,
        ),
        (is_overruled(world, incident), Broken::PersonOverruled),
    ])
}

/// A change of the repair before it is stored.
pub(super) fn of_remediation(setup: &Setup, world: &World, next: &Incident) -> Option<Broken> {
    let repair = next.repair.as_ref()?;
    let paused = world.node.as_ref().is_some_and(|node| node.facts.paused);
    let ordered = repair.status == RepairStatus::Requested;
    let dry = setup.remediation.mode == remediation::Mode::DryRun;
    let same_boot = repair
        .attempt
        .as_ref()
        .is_some_and(|attempt| attempt.boot_before == boot_id(0, world.boot_shown()));
    let succeeded = repair.status == RepairStatus::Succeeded;
    let shown = world.boot_shown();
    let joined = |index: usize| next.open_faults().any(|f| f.id == setup.template(index).id);
    let mut open = (0..2).filter_map(|index| world.faults[index].filter(|_| joined(index)));
    first([
        (
            ordered && is_full(setup, world, next),
            Broken::RepairOverPods,
        ),
        (
            ordered && !open.any(|fault| fault.boot >= shown),
            Broken::RepairOfCovered,
        ),
        (ordered && paused, Broken::BegunWhilePaused),
        (ordered && dry, Broken::ActedInDryRun),
        (succeeded && same_boot, Broken::SucceededInSameBoot),
    ])
}

/// Whether a pod is on the node that an open fault wants empty, of which the drain could know.
fn is_full(setup: &Setup, world: &World, incident: &Incident) -> bool {
    let drains = setup.drain.mode == drain::Mode::Enforce;
    let wanted = incident.open_faults().next().is_some();
    drains && wanted && world.pods.iter().any(|pod| pod.seen)
}

/// A reboot as it is begun: its intent is about to be stored.
pub(super) fn of_begin(setup: &Setup, world: &World, reboot: &Reboot) -> Option<Broken> {
    let again = world.intents.iter().any(|i| i.object == reboot.uid);
    let incident = world.incident.as_deref()?;
    let ordered = reboot.incident.as_ref() == Some(&incident.id) && wants(incident, &reboot.name);
    let full = is_full(setup, world, incident);
    first([(ordered && !again && full, Broken::RepairOverPods)])
}

/// An object as it is made.
pub(super) fn of_order(setup: &Setup, world: &World, attempt: &Attempt) -> Option<Broken> {
    let Some(incident) = world.incident.as_deref() else {
        return Some(Broken::OrderWithoutIncident);
    };
    let repair = incident.repair.as_ref();
    let stored = repair.is_some_and(|repair| {
        let same = repair.attempt.as_ref() == Some(attempt);
        same && repair.status.is_under_way()
    });
    let out = incident.quarantine == QuarantineStatus::Quarantined;
    let dry = setup.remediation.mode == remediation::Mode::DryRun;
    first([
        (!out, Broken::OrderWithoutIncident),
        (dry, Broken::ActedInDryRun),
        (!stored, Broken::OrderUnstored),
        (is_overruled(world, incident), Broken::PersonOverruled),
    ])
}

/// A signal as it goes out.
pub(super) fn of_signal(setup: &Setup, world: &World, reboot: &Reboot) -> Option<Broken> {
    let intended = world.intents.iter().any(|i| i.object == reboot.uid);
    let known = |signal: &Signal| world.reboot(signal.object);
    let runs = |signal: &&Signal| known(signal).is_some_and(|reboot| !reboot.is_over());
    let mut signals = world.signals.iter();
    let twice = world.signals.iter().any(|s| s.object == reboot.uid);
    let of_incident = reboot.incident.is_some();
    let unproven = |signal: &Signal| !is_proven_undone(setup, world, *signal);
    let paused = world.node.as_ref().is_some_and(|node| node.facts.paused);
    // What began before the pause goes on.
    let begun = world
        .intents
        .iter()
        .any(|i| i.object == reboot.uid && !i.paused);
    first([
        (paused && intended && !begun, Broken::BegunWhilePaused),
        (!intended, Broken::SignalUnstored),
        (twice, Broken::SignalTwice),
        (signals.any(|s| runs(&s)), Broken::TwoRepairs),
        (
            of_incident && world.signals.iter().any(unproven),
            Broken::TwoReboots,
        ),
        (world.lock != Some(reboot.uid), Broken::SignalWithoutLock),
    ])
    .or_else(|| of_incident.then(|| of_ordered(world, reboot)).flatten())
}

/// The signal of an object that an incident ordered.
fn of_ordered(world: &World, reboot: &Reboot) -> Option<Broken> {
    let id = reboot.incident.as_ref()?;
    let Some(incident) = world.incident.as_deref().filter(|open| open.id == *id) else {
        return Some(Broken::SignalWithoutIncident);
    };
    let attempt = incident.repair.as_ref().and_then(|r| r.attempt.as_ref());
    let shown = world.boot_shown();
    let rebooted = attempt.is_some_and(|attempt| attempt.boot_before != boot_id(0, shown));
    let said = |opening: u64| {
        let mut open = world.faults.iter().flatten();
        open.any(|fault| u64::from(fault.opening) == opening && fault.boot == shown)
    };
    let again = incident.open_faults().any(|fault| said(fault.seq));
    let drain = incident.drain.as_ref().map(|drain| &drain.status);
    let full = matches!(
        drain,
        Some(DrainStatus::Draining(_) | DrainStatus::Failed(_))
    );
    first([
        (full, Broken::SignalOverPods),
        (
            !wants(incident, &reboot.name),
            Broken::SignalWithoutIncident,
        ),
        (rebooted && !again, Broken::RebootedAlready),
        (is_overruled(world, incident), Broken::PersonOverruled),
    ])
}

/// Whether an earlier signal in the present boot is proven to have done nothing (rule 4); of one whose
/// object is gone only its time can tell.
pub(super) fn is_proven_undone(setup: &Setup, world: &World, signal: Signal) -> bool {
    let over = Setup::now(signal.at).checked_add(setup.janitor.timeout);
    signal.undone || over.is_ok_and(|over| over <= world.now())
}

/// An object as it comes to its end.
pub(super) fn of_end(world: &World, reboot: &Reboot, change: &StatusChange) -> Option<Broken> {
    let succeeded = change.node_ready.as_ref()?.status == Some(true);
    let stored = world.intents.iter().find(|i| i.object == reboot.uid);
    let same = stored.is_none_or(|intent| intent.boot == world.boot_shown());
    first([(succeeded && same, Broken::SucceededInSameBoot)])
}
