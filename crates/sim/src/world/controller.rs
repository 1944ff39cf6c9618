//! The shell around the decisions: observe, decide, store, write; crash and come back.

use decide::breaker::{Ask, BreakerState, Cause, PoolState};
use decide::quarantine::{
    Annotation, Decision, GivenBack, MarkOrigin, NodeWrite, Policy, RequestKind, View,
    WriteFeedback, WriteKind, will_be_adopted,
};
use health_event::incident::{CloseReason, IncidentId, QuarantineStatus};
use jiff::Timestamp;
use k8s_api::IncidentMark;

use super::cluster::{Cordon, Refusal};
use super::promises::{self, Broken, Judged};
use super::setup::{boot_id, machine_id, node_name, node_value};
use super::{Aside, Kept, MACHINES, Setup, Site, World};

/// What the store did not know before a decision and knows after it.
pub(super) struct Decided {
    pub(super) decision: Decision,
    breaker: Option<BreakerState>,
}

/// The decision about a node as things stand; nothing is changed. `None` if the worker would not
/// come to decide.
pub(super) fn decision(
    setup: &Setup,
    world: &World,
    policy: &Policy,
    node: usize,
) -> Option<Decided> {
    let site = &world.sites[node];
    if site.in_flight.is_some() || (site.cache.is_none() && site.node.is_some()) {
        return None;
    }
    if site.cache.is_none() && site.incident.is_none() {
        return None;
    }
    let machine = site.machine_seen();
    let mut boots = (*site.boots[machine]).clone();
    if let Some(cache) = &site.cache {
        boots.observe(&cache.facts.boot);
    }
    let now = world.now(setup);
    let id = incident_id(world.ids);
    let seen = setup.broken_rule.map(|rule| rule.see(site, policy));
    let (facts, open, policy) = match &seen {
        Some(seen) => (seen.node.as_ref(), &seen.faults, &seen.policy),
        None => (
            site.cache.as_ref().map(|cache| &cache.facts),
            &*site.open.0,
            policy,
        ),
    };
    let mut view = View {
        node: facts,
        incident: site.incident.as_deref(),
        faults: if site.cache.is_some() { open } else { &[] },
        holds: &site.holds[machine],
        agent: &site.known,
        boots: &boots,
        policy,
        rules: &setup.rules,
        feedback: if site.accepted {
            WriteFeedback::Accepted
        } else {
            WriteFeedback::Idle
        },
        mark_origin: site.mark_origin(),
        request: site.request.as_deref(),
        permit: None,
        new_id: &id,
    };
    let decision = decide::quarantine::decide(&view, now);
    let Some(wanted) = &decision.ask else {
        return Some(Decided {
            decision,
            breaker: None,
        });
    };
    let mut breaker = (*world.breaker).clone();
    if site.incident.is_none() {
        breaker.forget_counted(&node_name(node));
    }
    let permit = breaker.take(
        &setup.breaker,
        &Ask {
            pool: &wanted.pool,
            pool_size: world.pool_size(),
            node: &node_name(node),
            rule: &wanted.rule,
            check: &wanted.check,
            paced: wanted.paced,
            opened_at: wanted.opened_at,
        },
        now,
    );
    view.permit = Some(permit);
    let decision = decide::quarantine::decide(&view, now);
    Some(Decided {
        decision,
        breaker: Some(breaker),
    })
}

/// One pass of the worker. Answers whether anything changed.
pub(super) fn decide(setup: &Setup, world: &mut World, node: usize) -> bool {
    let policy = world.policy(setup);
    let before = world.clone();
    if waits_for_word(setup, world, &policy, node) {
        return *world != before;
    }
    let Some(decided) = decision(setup, world, &policy, node) else {
        return false;
    };
    world.sites[node].note_boot_shown();
    let Decided { decision, breaker } = decided;
    if decision.ask.is_some() {
        world.fail(Some(Broken::AsksTwice));
        return true;
    }
    if let Some(breaker) = breaker {
        world.breaker = Kept::new(breaker);
    } else if world.sites[node].incident.is_none() && !decision.adopt {
        world.forget_counted(node);
    }
    if decision.adopt {
        adopt(setup, world, node);
        world.fail(promises::of_levels(setup, &before, world, Some(node)));
        return *world != before;
    }
    let judged = Judged {
        world: &before,
        policy: &policy,
        now: before.now(setup),
        node,
        decision: &decision,
    };
    world.fail(promises::of_decision(&judged));
    world.did = Aside(decision.transition.as_ref().map(|t| t.reason.code()));
    store(world, &decision, node, world.now(setup));
    let site = &mut world.sites[node];
    if decision.request_done {
        site.request = None;
    }
    if let Some(write) = decision.write
        && !is_blocked(&write, site)
    {
        site.in_flight = Some(Kept::new(write));
    }
    world.fail(promises::of_levels(setup, &before, world, None));
    *world != before
}

/// Whether the worker decides nothing about the node in this turn: a person had given it back when
/// the store was lost.
fn waits_for_word(setup: &Setup, world: &mut World, policy: &Policy, node: usize) -> bool {
    let now = world.now(setup);
    let site = &mut world.sites[node];
    let (Some((uid, since)), Some(cache)) = (&site.given_back, &site.cache) else {
        return false;
    };
    if site.request.is_some() {
        return false;
    }
    let found = if *uid == cache.facts.uid {
        decide::quarantine::given_back(
            &cache.facts,
            site.incident.as_deref(),
            &site.open.0,
            &site.known,
            policy,
            setup.now(*since),
            now,
        )
    } else {
        GivenBack::Over
    };
    match found {
        GivenBack::Waits { .. } => true,
        GivenBack::Over => {
            site.given_back = None;
            false
        }
        GivenBack::Held(hold) => {
            site.given_back = None;
            let machine = site.machine_seen();
            site.holds[machine].change(|holds| holds.push(hold));
            true
        }
    }
}

/// The gate of the shell: a paused node is not taken out.
fn is_blocked(write: &NodeWrite, site: &Site) -> bool {
    write.kind == WriteKind::Apply && site.cache.as_ref().is_some_and(|c| c.facts.paused)
}

fn store(world: &mut World, decision: &Decision, node: usize, now: Timestamp) {
    let World {
        sites,
        ids,
        breaker,
        clock,
        ..
    } = world;
    let site = &mut sites[node];
    let machine = site.machine_seen();
    let pool_before = site.incident.as_ref().map(|incident| incident.pool.clone());
    if let Some(incident) = &decision.incident {
        if site.incident.is_none() {
            *ids += 1;
            site.opened(now);
        }
        site.follow_ghosts(*clock, decision, incident);
        let asked = site.request.as_deref().filter(|_| decision.request_done);
        match asked.map(|request| request.kind) {
            Some(RequestKind::Hold) => site.held = incident.held_by.is_some(),
            Some(RequestKind::Release | RequestKind::Cancel) => site.held = false,
            Some(RequestKind::DropWithheld) | None => {}
        }
        site.held &= !incident.quarantine.is_closed();
        site.incident = if incident.quarantine.is_closed() {
            site.closed
                .change(|closed| closed.push(incident.id.clone()));
            None
        } else {
            // How rarely marks are put back is left to the tests beside the decision: too many states.
            let mut incident = incident.clone();
            incident.put_back.clear();
            Some(Kept::new(incident))
        };
    }
    if let Some(holds) = &decision.holds {
        site.holds[machine] = Kept::new(holds.clone());
    }
    if decision.give_back {
        let pool = pool_before.unwrap_or_else(|| "gpu".to_owned());
        breaker.change(|breaker| breaker.release(&pool, &node_name(node)));
    }
    if decision.count_out
        && let Some(incident) = &decision.incident
    {
        site.by_person = true;
        let pool = &incident.pool;
        breaker.change(|breaker| breaker.count(pool, &node_name(node), Cause::default()));
    }
}

/// The node carries marks of an incident that the store does not know.
fn adopt(setup: &Setup, world: &mut World, node: usize) {
    let now = world.now(setup);
    let site = &mut world.sites[node];
    let Some(cache) = site.cache.clone() else {
        return;
    };
    let listed = cache.facts.annotations.get(&Annotation::HealthEvents);
    let events = listed.map(|_| cache.events.as_slice());
    let adopted = decide::quarantine::adopt(&cache.facts, events, &setup.rules, node_value, now);
    let Some(incident) = adopted else {
        return world.fail(Some(Broken::NotAdopted));
    };
    let held = cache.mark().is_some_and(|mark| mark.held_by.is_some());
    site.held |= held;
    site.unnamed = listed.is_none() || (cache.events.is_empty() && !held);
    for event in &cache.events {
        let known =
            |fault: &usize| setup.template(node, *fault).event.check_name == event.check_name;
        if let Some(fault) = (0..setup.faults).find(known) {
            let machine = &cache.facts.machine_id;
            site.said[fault].change(|said| said.take_in(event, machine, now));
        }
    }
    site.look_again(setup, node);
    site.restarted = true;
    let pool = incident.pool.clone();
    site.incident = Some(Kept::new(incident));
    world
        .breaker
        .change(|breaker| breaker.count(&pool, &node_name(node), Cause::default()));
    world.did = Aside(Some("adopted"));
}

/// The write arrives at the API server, and the answer at the controller.
pub(super) fn arrive(setup: &Setup, world: &mut World, node: usize) -> bool {
    let Some(write) = world.sites[node].in_flight.take() else {
        return false;
    };
    let was_fresh = {
        let site = &world.sites[node];
        site.node == site.cache
    };
    match land(setup, world, node, &write, false) {
        Ok(changed) => {
            world.sites[node].accepted = true;
            // A way out that finds nothing left to take off ends with the next decision.
            let leaves = matches!(write.kind, WriteKind::Release | WriteKind::StepBack);
            if !changed && !leaves {
                world.fail(Some(Broken::WritesNothing));
            }
        }
        Err(refusal) => {
            if was_fresh || refusal == Refusal::Invalid {
                world.fail(Some(Broken::RefusedWithoutCause));
            }
            // The shell reads the node again.
            world.sites[node].see();
        }
    }
    true
}

/// A write that nobody waits for arrives after all.
pub(super) fn arrive_late(setup: &Setup, world: &mut World, node: usize, which: usize) -> bool {
    if which >= world.sites[node].late.len() {
        return false;
    }
    let write = world.sites[node].late.remove(which);
    // Refused or not: nobody hears of it.
    let _ = land(setup, world, node, &write, true);
    true
}

fn land(
    setup: &Setup,
    world: &mut World,
    node: usize,
    write: &NodeWrite,
    late: bool,
) -> Result<bool, Refusal> {
    let site = &world.sites[node];
    let object = site.node.clone().ok_or(Refusal::Changed)?;
    let next = object.patched(write)?;
    let changed = next != *object;
    let broken = promises::of_landing(site, &object, &next, write, late);
    world.fail(broken);
    let site = &mut world.sites[node];
    if let Some(mark) = next.mark() {
        site.stripped = false;
        if late && setup.may_exceed_level() && object.mark().is_none() {
            site.came_late = Some(mark.incident);
        }
    }
    site.node = Some(Kept::new(next));
    site.forget_hold();
    Ok(changed)
}

/// The process ends and another begins: what was only in memory is gone.
pub(super) fn restart(setup: &Setup, world: &mut World) -> bool {
    for site in &mut world.sites {
        site.give_up_waiting();
        site.request = None;
        site.see();
    }
    let mut breaker = BreakerState::default();
    for (name, pool) in &world.breaker.pools {
        // Trip, turns and window are stored.
        let (tripped, paced) = (pool.tripped.clone(), pool.paced.clone());
        let kept = PoolState::restored(tripped, paced, pool.window.iter().cloned());
        breaker.pools.insert(name.clone(), kept);
    }
    // Who is out and who waits follows from the incidents, and from marks whose incident is unknown.
    for (node, site) in world.sites.iter().enumerate() {
        let Some(incident) = &site.incident else {
            // Where nobody asks the breaker it makes no difference.
            if setup.breaker.enabled
                && let Some(cache) = &site.cache
                && will_be_adopted(&cache.facts, site.mark_origin())
            {
                breaker.count(&cache.facts.pool, &node_name(node), Cause::default());
            }
            continue;
        };
        if incident.quarantine.is_out() {
            breaker.count(&incident.pool, &incident.node, Cause::default());
        }
        if let QuarantineStatus::Withheld(why) = &incident.quarantine {
            breaker.wait_again(&incident.pool, &incident.node, incident.opened_at, why);
        }
    }
    world.breaker = Kept::new(breaker);
    true
}

/// The process ends and another begins with an empty store.
pub(super) fn lose_store(setup: &Setup, world: &mut World) -> bool {
    for site in &mut world.sites {
        site.incident = None;
        if site.stripped {
            site.nobody_knows();
        }
        site.closed = Kept::default();
        site.holds = [Kept::default(), Kept::default()];
        site.boots = [Kept::default(), Kept::default()];
        site.known.change(|known| {
            known.settled_for = None;
            known.started_at = None;
            known.last_report_at = None;
        });
        for said in &mut site.said {
            // The agent's own numbers go on.
            let number = said.number;
            *said = Kept::new(super::Said {
                number,
                ..super::Said::default()
            });
        }
        site.open = Aside::default();
        site.restarted = false;
        let node = site.node.as_ref();
        site.given_back = node
            .filter(|node| decide::quarantine::was_given_back(&node.facts))
            .map(|node| (node.facts.uid.clone(), world.clock));
        if site.given_back.is_none() {
            site.refused = [None; 2];
        }
        site.forget_hold();
        site.unnamed = false;
    }
    world.breaker = Kept::default();
    restart(setup, world)
}

fn incident_id(number: u32) -> IncidentId {
    IncidentId::new(&format!("{number:026}")).expect("26 digits are an id")
}

impl World {
    /// A node without an incident that is not adopted is not out, whatever was counted at start.
    fn forget_counted(&mut self, node: usize) {
        let name = node_name(node);
        let mut pools = self.breaker.pools.values();
        if pools.any(|pool| pool.out.contains_key(&name)) {
            self.breaker.change(|breaker| {
                breaker.forget_counted(&name);
            });
        }
    }

    pub(super) fn pool_size(&self) -> usize {
        self.sites
            .iter()
            .filter(|site| site.cache.is_some())
            .count()
    }
}

impl Site {
    /// The machine that a decision is about.
    pub(super) fn machine_seen(&self) -> usize {
        let node = self.cache.as_ref().map(|cache| &cache.facts.machine_id);
        let id = node.or_else(|| self.incident.as_ref().map(|incident| &incident.machine));
        (0..MACHINES)
            .find(|m| id == Some(&machine_id(*m)))
            .unwrap_or_default()
    }

    fn note_boot_shown(&mut self) {
        let machine = self.machine_seen();
        let Some(cache) = &self.cache else { return };
        let boot = cache.facts.boot.clone();
        if !self.boots[machine].as_slice().contains(&boot) {
            self.boots[machine].change(|boots| {
                boots.observe(&boot);
            });
        }
    }

    fn mark_origin(&self) -> MarkOrigin {
        let text = self
            .cache
            .as_ref()
            .and_then(|c| c.facts.annotations.get(&Annotation::Incident));
        let mark = text.and_then(|text| IncidentMark::parse(text).ok());
        let bare = text.is_none() && self.incident.is_none();
        let last = || bare.then(|| self.closed.last().cloned()).flatten();
        let named = mark.map(|mark| mark.incident).or_else(last);
        if named.is_some_and(|id| self.closed.contains(&id)) {
            MarkOrigin::Closed
        } else {
            MarkOrigin::Unknown
        }
    }

    /// All that was reported before an incident opened is older than it.
    fn opened(&mut self, now: Timestamp) {
        self.restarted = false;
        self.by_person = false;
        if self.known.started_at.is_some_and(|at| at > now) {
            self.known.change(|known| known.started_at = Some(now));
        }
    }

    /// Keeps track of what persons wanted, by what the controller made of it.
    fn follow_ghosts(
        &mut self,
        clock: u8,
        decision: &Decision,
        incident: &health_event::incident::Incident,
    ) {
        use CloseReason::CancelledByPerson;
        let to = &incident.quarantine;
        let closed = matches!(to, QuarantineStatus::Closed(_));
        let releasing = self
            .incident
            .as_ref()
            .is_some_and(|i| matches!(i.quarantine, QuarantineStatus::Releasing(_)));
        if closed && releasing && self.stripped {
            // Whoever took our annotations off while we left has the rest.
            if let Some(node) = self.node.clone() {
                self.others.change(|others| {
                    if !node.tells_owner {
                        others.cordon = Cordon::Unclear;
                    }
                    others.unclear = true;
                });
            }
        }
        if self.stripped && *to == QuarantineStatus::Applying && !incident.marks.cordon {
            // It can't be told from a person's uncordon whether this change was written.
            self.refused = [None; 2];
        }
        let cancelled = *to == QuarantineStatus::Releasing(CancelledByPerson)
            || (*to == QuarantineStatus::Closed(CancelledByPerson) && !releasing);
        // A hold is of the machine; what another machine has under this name is not refused.
        let here = self
            .node
            .as_ref()
            .is_some_and(|node| node.facts.uid == incident.node_uid);
        if cancelled && here && decision.holds.is_some() {
            for fault in 0..2 {
                if self.is_open(fault) {
                    self.refused[fault] = Some(clock + 1);
                }
            }
        }
    }

    /// Whether the object shows the machine's present boot.
    pub(super) fn shows_boot(&self, node: &super::Node) -> bool {
        node.facts.boot == boot_id(self.machine, self.boot)
    }
}
