//! The drain's turn, and the evictions that it decided.

use std::collections::BTreeMap;

use decide::drain::{Asked, How, Mode, Phase, PodFacts, PodRef, View};
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
    let now = world.now();
    let pods: Vec<PodFacts> = world.pods.iter().map(|pod| facts(*pod, now)).collect();
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
    let seen = if setup.is_wrong(Wrong::EvictsFirst) {
        draining(&incident)
    } else {
        incident.clone()
    };
    let view = View {
        incident: &seen,
        overrides: &BTreeMap::new(),
        ends_processes: true,
        repair_under_way: repair.is_some_and(|repair| world.is_begun(repair)),
        kubelet_silent_since: None,
        paused: paused && !setup.is_wrong(Wrong::DrainIgnoresPause),
        waits_as_own_node: waits_as_own_node(setup, world, &incident),
        pods: known.then_some(listed),
        asked: &world.memory.asked,
        policy: &policy,
    };
    let decision = decide::drain::decide(&view, now);
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
        return false;
    }
    world.memory.evictions = Some(Kept::new((decision.asks, decided)));
    true
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
