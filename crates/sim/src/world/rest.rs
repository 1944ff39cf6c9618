//! What must hold once nothing more happens by itself.
//!
//! Each step of the controller leads to another state of the world, so it is enough to look at
//! the states in which none is left; that these are reached follows from the bound on an
//! incident's version and from every write changing something.

use health_event::incident::{Incident, QuarantineStatus, Withheld};

use decide::quarantine::{Annotation, FaultFacts, Label, Mode, state_label};
use jiff::Timestamp;
use k8s_api::names;

use super::{Node, Setup, Site, Step, Voice, What, World};

/// Whether the controller has done all that it will do as things stand.
fn rests(setup: &Setup, world: &World) -> bool {
    let still = |site: &Site| {
        site.in_flight.is_none()
            && site.node == site.cache
            && !site.accepted
            && site.request.is_none()
    };
    world.sites.iter().all(still)
        && (0..world.sites.len()).all(|node| {
            Step {
                what: What::Decide,
                node,
                fault: 0,
            }
            .take(setup, world)
            .is_none()
        })
}

/// Whether a world in which nothing is left to do is as it should be; true of all others.
pub fn at_rest(setup: &Setup, world: &World) -> bool {
    if world.broken.is_some() || !rests(setup, world) {
        return true;
    }
    (0..world.sites.len()).all(|node| site_rests_well(setup, world, node))
}

fn site_rests_well(setup: &Setup, world: &World, index: usize) -> bool {
    let site = &world.sites[index];
    let Some(node) = &site.node else {
        return site.incident.is_none();
    };
    match &site.incident {
        None => {
            let may =
                world.acting(setup) == Mode::Enforce && !node.facts.opted_out && !node.facts.paused;
            let clean = !node.facts.annotations.contains_key(&Annotation::Incident)
                && node.is_as_before(&site.others);
            let cleans = world.acting(setup) == Mode::Enforce;
            let waits = site.given_back.is_some();
            let settled = site.known.settled_for.as_ref() == Some(&node.facts.boot);
            (clean || !cleans)
                && !(waits && settled)
                && !(may
                    && !waits
                    && (0..2).any(|fault| should_act(setup, site, node, index, fault)))
        }
        Some(incident) => {
            incident.node_uid == node.facts.uid
                && stays_for_a_reason(setup, world, site, node, incident)
        }
    }
}

/// An open fault of this machine in this boot that no hold suppresses.
fn should_act(setup: &Setup, site: &Site, node: &Node, index: usize, fault: usize) -> bool {
    let id = &setup.template(index, fault).id;
    let Some(fact) = site.open.0.iter().find(|fact| fact.id == *id) else {
        return false;
    };
    !site.is_held(site.machine, fact)
        && fact.machine_id == node.facts.machine_id
        && !site.boots[site.machine].is_past(&fact.boot)
}

impl Site {
    /// Whether a hold of a machine suppresses this opening of a fault.
    pub(super) fn is_held(&self, machine: usize, fact: &FaultFacts) -> bool {
        self.holds[machine].iter().any(|hold| {
            let mut faults = hold.faults.iter();
            faults.any(|held| held.id == fact.id && held.opened_seq == fact.seq)
        })
    }
}

fn has_open_fault(site: &Site, incident: &Incident) -> bool {
    let mut open = incident.open_faults();
    open.any(|fault| site.open.0.iter().any(|fact| fact.id == fault.id))
}

fn stays_for_a_reason(
    setup: &Setup,
    world: &World,
    site: &Site,
    node: &Node,
    incident: &Incident,
) -> bool {
    let mode = world.acting(setup);
    // What is switched off looks at nothing that is at rest.
    if mode == Mode::Off
        && !matches!(
            incident.quarantine,
            QuarantineStatus::Applying | QuarantineStatus::Releasing(_)
        )
    {
        return true;
    }
    let wanted = incident.held_by.is_some() || has_open_fault(site, incident);
    match &incident.quarantine {
        QuarantineStatus::Quarantined => {
            let marked = node.mark().is_some_and(|mark| mark.incident == incident.id);
            let waits = site.agent != Voice::Settled
                || site.known.settled_for.is_none()
                || !site.shows_boot(node);
            let free = mode == Mode::Enforce;
            (marked
                && (wanted || waits)
                && carries_what_it_asks(setup, world, site, node, incident))
                || !free
        }
        QuarantineStatus::Applying => node.facts.paused && mode == Mode::Enforce,
        QuarantineStatus::Releasing(_) => mode != Mode::Enforce,
        QuarantineStatus::Observed => wanted,
        QuarantineStatus::Withheld(why) => {
            let blocked = node.facts.paused || node.facts.opted_out || mode != Mode::Enforce;
            // A fault of an earlier boot waits for the agent's word.
            let acts = |fault: usize| {
                let index = world
                    .sites
                    .iter()
                    .position(|s| std::ptr::eq(s, site))
                    .unwrap_or(0);
                should_act(setup, site, node, index, fault)
            };
            let nothing_acts = !(0..2).any(acts);
            wanted && (blocked || nothing_acts || must_wait(setup, world, site, why))
        }
        QuarantineStatus::Closed(_) => false,
    }
}

fn must_wait(setup: &Setup, world: &World, site: &Site, why: &Withheld) -> bool {
    let now = world.now(setup);
    match why {
        Withheld::FirstAction { until } => now < *until,
        Withheld::OtherQuarantine => world.acting(setup) == Mode::Refused,
        Withheld::Breaker(_) => world
            .breaker
            .pools
            .get("gpu")
            .is_some_and(|pool| pool.tripped.is_some()),
        Withheld::Pace => {
            let mut breaker = (*world.breaker).clone();
            let due = breaker.due(&setup.breaker, "gpu", world.pool_size(), now);
            let ours = site.incident.as_ref().map(|incident| &incident.node);
            due.node.as_ref() != ours
        }
    }
}

/// The marks of the rule sets that the open faults matched, whatever else is there.
fn carries_what_it_asks(
    setup: &Setup,
    world: &World,
    site: &Site,
    node: &Node,
    incident: &Incident,
) -> bool {
    if node.facts.paused {
        return true;
    }
    if !says_its_state(setup, node, incident, world.now(setup)) {
        return false;
    }
    let taints = node.taints();
    let aside = taints.contains(&setup.policy.cooperator_taint);
    let yields = !node.facts.cooperator_values.is_empty()
        && setup.policy.cooperator_policy == decide::quarantine::CooperatorPolicy::Yield;
    let open = |fault: &health_event::incident::IncidentFault, rule: &str| {
        let is_open = site.open.0.iter().any(|fact| fact.id == fault.id);
        is_open && fault.rules.contains(rule)
    };
    let cordon = incident.held_by.is_some() || incident.open_faults().any(|f| open(f, "cordons"));
    let taint = incident.open_faults().any(|f| open(f, "taints"));
    // A store that is lost must not lose who holds the node.
    let held = node.mark().is_some_and(|mark| mark.held_by.is_some());
    (held == incident.held_by.is_some() || !has_open_fault(site, incident) && held)
        && (!cordon || node.is_cordoned() || aside || yields)
        && (!taint || taints.contains(&setup.taint()))
}

/// The label says how far the incident is; where a drain is to follow at once it says so, until none came.
fn says_its_state(setup: &Setup, node: &Node, incident: &Incident, now: Timestamp) -> bool {
    let says = node.facts.labels.get(&Label::State).map(String::as_str);
    let follows = setup.policy.drains && incident.drain.is_none() && incident.since == now;
    says == Some(state_label(incident)) || (follows && says == Some(names::STATE_DRAINING))
}
