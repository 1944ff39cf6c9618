//! What must hold at each step.

use std::fmt;

use decide::quarantine::{Decision, FaultFacts, Mode, NodeWrite, Policy, WriteKind};
use health_event::BootId;
use health_event::incident::{CloseReason, Incident, IncidentFault, QuarantineStatus};
use jiff::Timestamp;

use super::setup::boot_id;
use super::{Node, Setup, Site, World};

/// A promise that was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Broken {
    /// The breaker answered, and is asked again.
    AsksTwice,
    /// A mark of an unknown incident is neither adopted nor removed.
    NotAdopted,
    /// A write takes a node out, or changes its marks, without an incident of this object that is
    /// open and holds an open fault or a person's request (P2).
    WriteWithoutIncident,
    /// A closed incident changes (P2).
    ClosedChanges,
    /// A second incident opens beside an open one.
    SecondIncident,
    /// An incident's version does not rise by one with each change.
    VersionJumps,
    /// Recovered, with a fault of the incident open, or while a person holds the node.
    ReleasedWithOpenFault,
    /// Recovered before the agent's present process was settled for the present boot.
    ReleasedUnsettled,
    /// Another's cordon is gone after our write (P5).
    ForeignCordonRemoved,
    /// Another's taint is gone after our write (P5).
    ForeignTaintRemoved,
    /// After we left the node is not what it was before us, but for records (P5).
    NotAsBefore,
    /// A person's uncordon is answered by a cordon for the same faults.
    PersonOverruled,
    /// Something is written in a mode that writes nothing, or to a protected node.
    WroteInDryRun,
    /// A module that is off opens an incident.
    OpenedWhileOff,
    /// An incident opens or grows by a fault of another machine or an earlier boot (rule 6).
    ActedForAnother,
    /// A node that has opted out, or is paused, is taken out, or an incident opens there, though no
    /// person asked (rule 8).
    ActedOnOptedOut,
    /// A node is taken out before the first action's delay is over, though no person asked (rule 10).
    ActedTooSoon,
    /// More nodes are out by permit than the breaker's bound.
    LevelExceeded,
    /// A write changes nothing, and would be repeated for ever.
    WritesNothing,
    /// A write that was decided on the present object is refused.
    RefusedWithoutCause,
    /// An incident's version rises without end.
    NeverRests,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Changes of one incident that no history within the bounds needs.
const ENDLESS: u64 = 60;

pub(super) struct Judged<'a> {
    pub(super) world: &'a World,
    pub(super) policy: &'a Policy,
    pub(super) now: Timestamp,
    pub(super) node: usize,
    pub(super) decision: &'a Decision,
}

/// Looks at a decision and at the world in which it was made.
pub(super) fn of_decision(judged: &Judged<'_>) -> Option<Broken> {
    let site = &judged.world.sites[judged.node];
    let after = judged.decision.incident.as_ref();
    let opens = site.incident.is_none() && after.is_some();
    let off = judged.policy.mode == Mode::Off;
    let checks = [
        (opens && off).then_some(Broken::OpenedWhileOff),
        of_record(site, after),
        after.and_then(|after| of_rules(judged, site, after)),
        after.and_then(|after| of_release(site, judged.decision, after, off)),
        judged
            .decision
            .write
            .as_ref()
            .and_then(|write| of_write(judged, site, write)),
    ];
    checks.into_iter().flatten().next()
}

/// The store's rules about incidents.
fn of_record(site: &Site, after: Option<&Incident>) -> Option<Broken> {
    let after = after?;
    if site.closed.contains(&after.id) {
        return Some(Broken::ClosedChanges);
    }
    let version = match &site.incident {
        Some(before) if before.id != after.id => return Some(Broken::SecondIncident),
        Some(before) => before.version + 1,
        None => 1,
    };
    if after.version != version {
        return Some(Broken::VersionJumps);
    }
    (after.version > ENDLESS).then_some(Broken::NeverRests)
}

/// Whom the decision takes out, or would: rules 6, 8 and 10 of an incident.
fn of_rules(judged: &Judged<'_>, site: &Site, after: &Incident) -> Option<Broken> {
    let before = site.incident.as_deref();
    let known = |fault: &&IncidentFault| {
        before.is_some_and(|before| before.faults.iter().any(|known| known.id == fault.id))
    };
    let of_another = |fault: &IncidentFault| {
        let mut facts = site.open.0.iter().filter(|fact| fact.id == fault.id);
        facts.any(|fact| !site.cache_is_of(&fact.machine_id, &fact.boot))
    };
    let mut joined = after.open_faults().filter(|fault| !known(fault));
    if !after.quarantine.is_closed() && joined.any(of_another) {
        return Some(Broken::ActedForAnother);
    }
    if judged.decision.request_done || after.held_by.is_some() {
        return None;
    }
    // That a late write has landed is only noticed: such a node is Quarantined at once.
    let is_applying = after.quarantine == QuarantineStatus::Applying;
    let goes_out = is_applying && !before.is_some_and(|b| b.quarantine.is_out());
    let node = site.cache.as_ref().map(|cache| &cache.facts);
    let left_alone = node.is_some_and(|node| node.opted_out || node.paused);
    if left_alone && (goes_out || before.is_none()) {
        return Some(Broken::ActedOnOptedOut);
    }
    let waits = judged.policy.first_action_until;
    let too_soon = goes_out && waits.is_some_and(|until| judged.now < until);
    too_soon.then_some(Broken::ActedTooSoon)
}

/// A recovery: nothing of the incident is open, and the agent has spoken.
fn of_release(site: &Site, decision: &Decision, after: &Incident, off: bool) -> Option<Broken> {
    let begins = site
        .incident
        .as_ref()
        .is_none_or(|before| !is_releasing(before));
    let status = &after.quarantine;
    let recovers = match status {
        QuarantineStatus::Releasing(why) | QuarantineStatus::Closed(why) => {
            *why == CloseReason::Recovered && begins
        }
        QuarantineStatus::Withheld(_)
        | QuarantineStatus::Observed
        | QuarantineStatus::Applying
        | QuarantineStatus::Quarantined => false,
    };
    if !recovers {
        return None;
    }
    // Another opening counts once it joins: not where it is of another machine or an earlier boot,
    // or where a person's hold suppresses it.
    // Of an adopted one it is not known which opening it was, only that it was open until it closed.
    let was_open = |fault: &IncidentFault| {
        let mut before = site.incident.iter().flat_map(|before| before.open_faults());
        before.any(|known| known.id == fault.id)
    };
    let open = |fault: &IncidentFault| {
        let same = |fact: &&FaultFacts| fact.id == fault.id;
        let fact = site.open.0.iter().find(same);
        fact.is_some_and(|fact| {
            (fault.seq == 0 && was_open(fault))
                || fact.seq == fault.seq
                || (site.cache_is_of(&fact.machine_id, &fact.boot)
                    && !site.is_held(site.machine_seen(), fact))
        })
    };
    // What opens again on a node that has opted out no longer counts (faults-incidents 3, rule 8), nor
    // what does so while the module is off: it opens an incident once that is on again.
    let opted_out = site
        .cache
        .as_ref()
        .is_some_and(|cache| cache.facts.opted_out);
    let counts = |fault: &IncidentFault| !(opted_out || off) || fault.closed_at.is_none();
    let mut own = after.faults.iter().filter(|fault| counts(fault));
    if after.held_by.is_some() || site.held || own.any(open) {
        return Some(Broken::ReleasedWithOpenFault);
    }
    let was_out = site.incident.as_ref().is_some_and(|i| {
        let marked = || {
            site.cache
                .as_ref()
                .is_some_and(|cache| cache.mark().is_some())
        };
        match i.quarantine {
            QuarantineStatus::Quarantined => true,
            QuarantineStatus::Applying => marked(),
            QuarantineStatus::Withheld(_)
            | QuarantineStatus::Observed
            | QuarantineStatus::Releasing(_)
            | QuarantineStatus::Closed(_) => false,
        }
    });
    let cache = site
        .cache
        .as_ref()
        .filter(|_| was_out && decision.write.is_some())?;
    let changed = cache.facts.boot != after.opened_boot || site.restarted;
    let settled_for = site.known.settled_for.as_ref();
    let present = boot_id(site.machine, site.boot);
    let settled = settled_for == Some(&cache.facts.boot) || settled_for == Some(&present);
    let through_agent = after.faults.iter().any(|fault| fault.through_agent);
    ((through_agent && changed || site.unnamed) && !settled).then_some(Broken::ReleasedUnsettled)
}

impl Site {
    /// Whether the controller sees this machine in this boot, or one after it of which it has not
    /// heard.
    fn cache_is_of(&self, machine: &str, boot: &BootId) -> bool {
        let seen = self
            .cache
            .as_ref()
            .is_some_and(|c| c.facts.machine_id == machine);
        let mut boots = (*self.boots[self.machine_seen()]).clone();
        if let Some(cache) = &self.cache {
            boots.observe(&cache.facts.boot);
        }
        seen && !boots.is_past(boot)
    }
}

fn is_releasing(incident: &Incident) -> bool {
    matches!(incident.quarantine, QuarantineStatus::Releasing(_))
}

fn takes_out(write: &NodeWrite) -> bool {
    match write.kind {
        WriteKind::Apply | WriteKind::Update => true,
        WriteKind::Release | WriteKind::StepBack | WriteKind::CleanUp | WriteKind::State => false,
    }
}

fn of_write(judged: &Judged<'_>, site: &Site, write: &NodeWrite) -> Option<Broken> {
    let protected = judged.policy.protected_nodes.contains(&write.node);
    if judged.policy.mode.blocks().is_some() || protected {
        return Some(Broken::WroteInDryRun);
    }
    let stored = judged
        .decision
        .incident
        .as_ref()
        .or(site.incident.as_deref());
    if !takes_out(write) {
        return None;
    }
    let Some(incident) =
        stored.filter(|i| i.node_uid == write.test.uid && !i.quarantine.is_closed())
    else {
        return Some(Broken::WriteWithoutIncident);
    };
    let open = |fault: &IncidentFault| {
        site.open
            .0
            .iter()
            .any(|fact| fact.id == fault.id && !fact.matched.is_empty())
    };
    // A node that waits for its agent's word keeps what it has, and its annotations come back if
    // somebody took them off: that takes nothing more out.
    let keeps = write.unschedulable.is_none() && write.taints.is_none();
    if incident.held_by.is_none() && !keeps && !incident.open_faults().any(open) {
        return Some(Broken::WriteWithoutIncident);
    }
    // What was decided before the watch showed the person's doing fails its tests.
    let fresh = site.node == site.cache;
    (fresh && write.kind == WriteKind::Apply && is_refused(site, incident))
        .then_some(Broken::PersonOverruled)
}

/// Whether a person has uncordoned the node for every fault that the incident has.
fn is_refused(site: &Site, incident: &Incident) -> bool {
    let mut open = incident.open_faults().peekable();
    let named = |fault: &IncidentFault| {
        (0..2).any(|index| {
            let said = site.open.0.iter().find(|fact| fact.id == fault.id);
            let check = site.said[index]
                .raised
                .as_ref()
                .map(|(event, _)| &event.check_name);
            said.is_some_and(|fact| Some(&fact.event.check_name) == check)
                && site.refused[index].is_some()
        })
    };
    incident.held_by.is_none() && open.peek().is_some() && open.all(named)
}

/// What a write did to the object.
pub(super) fn of_landing(
    site: &Site,
    before: &Node,
    after: &Node,
    write: &NodeWrite,
    late: bool,
) -> Option<Broken> {
    if let Some(broken) = after.against(&site.others) {
        return Some(broken);
    }
    // One that finds nothing to take off leaves nothing behind; another incident may stand there, whose
    // marks one of an incident that is over leaves alone.
    let stands = |incident: &Incident| match incident.quarantine {
        QuarantineStatus::Applying | QuarantineStatus::Quarantined => true,
        QuarantineStatus::Withheld(_)
        | QuarantineStatus::Observed
        | QuarantineStatus::Releasing(_)
        | QuarantineStatus::Closed(_) => false,
    };
    let beside = late && site.incident.as_deref().is_some_and(stands);
    let says = write.kind == WriteKind::State;
    let leaves = !takes_out(write) && !says && after != before && !beside;
    if leaves && !after.is_as_before(&site.others) {
        return Some(Broken::NotAsBefore);
    }
    let cordons = !before.is_cordoned() && after.is_cordoned();
    let incident = site.incident.as_deref().filter(|_| cordons && !late)?;
    is_refused(site, incident).then_some(Broken::PersonOverruled)
}

/// The breaker's bound on nodes that are out by permit. It counts what the process could know: nodes that
/// are adopted, and of which one has a mark that a late write brought after the permit of another or
/// before the store was lost, may exceed it; a permit never does.
pub(super) fn of_levels(
    setup: &Setup,
    before: &World,
    world: &World,
    adopted: Option<usize>,
) -> Option<Broken> {
    if !setup.breaker.enabled {
        return None;
    }
    let came_late = |site: &Site| {
        let open = site.incident.as_ref().map(|incident| &incident.id);
        adopted.is_some() && site.came_late.is_some() && site.came_late.as_ref() == open
    };
    let out = |world: &World| {
        let by_permit = |site: &&Site| {
            site.incident
                .as_ref()
                .is_some_and(|i| i.quarantine.is_out() && !site.by_person)
        };
        let sites = world.sites.iter().filter(by_permit);
        sites.filter(|site| !came_late(site)).count()
    };
    let rises = out(world) > out(before);
    (rises && out(world) > setup.breaker.level_bound(world.pool_size()))
        .then_some(Broken::LevelExceeded)
}
