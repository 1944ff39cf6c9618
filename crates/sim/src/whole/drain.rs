//! The drain's turn, and the evictions that it decided.

use std::collections::BTreeMap;

use decide::drain::{Asked, Decision, How, Mode, Phase, PodFacts, PodRef, View};
use health_event::incident::{Drain, DrainDeadlines, DrainStatus, Incident, QuarantineStatus};
use jiff::Timestamp;

use super::{Leaves, Pod, Setup, World, Wrong, promises};
use crate::world::Kept;

fn pod_ref(pod: Pod) -> PodRef {
    let namespace = match pod.leaves {
        Leaves::Evicted => "evicted",
        Leaves::Completes => "completes",
    };
    PodRef {
        namespace: namespace.to_owned(),
        name: format!("pod-{}", pod.uid),
        uid: pod.uid.to_string(),
    }
}

fn facts(pod: Pod, now: Timestamp) -> PodFacts {
    PodFacts {
        pod: pod_ref(pod),
        phase: Phase::Running,
        of_daemon_set: false,
        is_mirror: false,
        has_devices: true,
        created_at: None,
        deleted_by: pod.going.then_some(now),
        not_ready_since: None,
    }
}

/// Decides and stores; calls come later. Answers whether anything changed.
pub(super) fn turn(setup: &Setup, world: &mut World) -> bool {
    let Some(incident) = world.incident_here() else {
        return false;
    };
    // The worker waits for its calls.
    if world.memory.evictions.is_some() {
        return false;
    }
    let (seen, decision) = decision(setup, world, &incident, world.now());
    let looked = look(world, &incident);
    let decided = (incident.id.clone(), incident.version);
    if let Some(next) = decision.incident.filter(|_| seen == incident) {
        world.fail(promises::of_drain(setup, world, &next));
        if let Some(transition) = &decision.transition {
            world.did("drain", transition.reason.code());
        }
        world.incident = Some(Kept::new(next));
        return true;
    }
    if decision.asks.is_empty() {
        return looked;
    }
    world.memory.evictions = Some(Kept::new((decision.asks, decided)));
    true
}

/// From now on the drain knows of the pods that are there, or would if it followed them. Answers whether
/// there was a new one.
fn look(world: &mut World, incident: &Incident) -> bool {
    let rests = incident.quarantine == QuarantineStatus::Quarantined;
    let news = |pod: &Pod| !pod.seen;
    if !rests || !world.memory.pods_known || !world.pods.iter().any(news) {
        return false;
    }
    world.pods.iter_mut().for_each(|pod| pod.seen = true);
    true
}

/// What is decided at `now` of the world as it is, and of which incident; nothing is changed.
fn decision(
    setup: &Setup,
    world: &World,
    incident: &Incident,
    now: Timestamp,
) -> (Incident, Decision) {
    let pods: Vec<PodFacts> = world
        .pods
        .iter()
        .map(|pod| facts(*pod, world.now()))
        .collect();
    let known = world.memory.pods_known || setup.is_wrong(Wrong::UnknownIsEmpty);
    let listens = world.memory.pods_known && !setup.is_wrong(Wrong::OverlooksPods);
    let listed: &[PodFacts] = if listens { &pods } else { &[] };
    let paused = world.node.as_ref().is_some_and(|node| node.facts.paused);
    let repair = incident.repair.as_ref();
    let policy = decide::drain::Policy {
        mode: if setup.is_wrong(Wrong::DrainIgnoresDryRun) {
            Mode::Enforce
        } else {
            setup.drain.mode
        },
        ..setup.drain.clone()
    };
    let is_withheld = matches!(incident.quarantine, QuarantineStatus::Withheld(_));
    let seen = if setup.is_wrong(Wrong::DrainsWithheld) && is_withheld {
        let mut seen = incident.clone();
        seen.quarantine = QuarantineStatus::Quarantined;
        draining(&seen)
    } else if setup.is_wrong(Wrong::EvictsFirst) {
        draining(incident)
    } else {
        incident.clone()
    };
    let mut view = View {
        incident: &seen,
        overrides: &BTreeMap::new(),
        ends_processes: true,
        repair_under_way: repair.is_some_and(|repair| world.is_begun(repair)),
        kubelet_silent_since: None,
        paused: paused && !setup.is_wrong(Wrong::DrainIgnoresPause),
        waits_as_own_node: waits_as_own_node(setup, world, incident),
        waits_for_turn: false,
        pods: None,
        asked: &world.memory.asked,
        policy: &policy,
    };
    let ordered = repair.is_some_and(|repair| repair.status.is_under_way());
    let forgets = ordered && setup.is_wrong(Wrong::FollowsPlannedAlone);
    if decide::drain::needs_pods(&view, now) && !forgets {
        view.pods = known.then_some(listed);
    }
    let decision = decide::drain::decide(&view, now);
    (seen, decision)
}

/// Whether something would be done at `now`, with nothing changed but the clock; and when it is looked at
/// again.
pub(super) fn acts(setup: &Setup, world: &World, now: Timestamp) -> (bool, Option<Timestamp>) {
    let Some(incident) = world.incident_here() else {
        return (false, None);
    };
    let (_, decision) = decision(setup, world, &incident, now);
    let acts = decision.incident.is_some() || !decision.asks.is_empty();
    (acts, decision.wake_at)
}

/// Whether the controller runs on this node, and another one is drained or repaired. What has begun waits
/// no more.
fn waits_as_own_node(setup: &Setup, world: &World, incident: &Incident) -> bool {
    let around = world.around.0;
    let drain = incident.drain.as_ref().map(|drain| &drain.status);
    let begun = matches!(
        drain,
        Some(DrainStatus::Draining(_) | DrainStatus::Failed(_))
    );
    let looks = !setup.is_wrong(Wrong::DrainsOwnNodeAtOnce);
    looks && around.is_own && around.others_at_work && !begun
}

/// What a shell that stores last would go by.
fn draining(incident: &Incident) -> Incident {
    let mut seen = incident.clone();
    if seen.quarantine == QuarantineStatus::Quarantined && seen.drain.is_none() {
        seen.drain = Some(Drain {
            status: DrainStatus::Draining(DrainDeadlines {
                immediate: Timestamp::MAX,
                delete: Timestamp::MAX,
                completion: None,
            }),
            since: Timestamp::UNIX_EPOCH,
        });
    }
    seen
}

/// The first of the calls; a budget may refuse it.
pub(super) fn evict(setup: &Setup, world: &mut World, refused: bool) -> bool {
    let Some(evictions) = world.memory.evictions.take() else {
        return false;
    };
    let (mut asks, decided) = (*evictions).clone();
    let is_stale =
        world.decided() != Some(decided.clone()) && !setup.is_wrong(Wrong::StaleEviction);
    if is_stale || asks.is_empty() {
        return true;
    }
    let ask = asks.remove(0);
    let answer = if refused {
        Asked::Budget {
            why: "it needs one more".to_owned(),
            again_at: Setup::now(world.clock + 1),
        }
    } else {
        world.fail(promises::of_eviction(setup, world));
        let evicted = |pod: &&mut Pod| pod_ref(**pod) == ask.pod;
        if let Some(pod) = world.pods.iter_mut().find(evicted) {
            pod.going = true;
        }
        match ask.how {
            How::Evict(_) => world.did("drain", "evict"),
            How::Delete => world.did("drain", "delete"),
        }
        Asked::Accepted
    };
    world.memory.asked.change(|asked| {
        asked.insert(ask.pod.uid, answer);
    });
    if !asks.is_empty() {
        world.memory.evictions = Some(Kept::new((asks, decided)));
    }
    true
}
