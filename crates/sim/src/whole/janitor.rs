//! The janitor's turn for one object, and the provider that it calls.

use decide::drain::keeps_repair;
use decide::janitor::{
    self, Answer, Beside, End, Lock, Node, Place, RebootNode, Signal, StatusChange, Step, Unwanted,
    View,
};
use decide::remediation::has_happened;
use jiff::Timestamp;
use k8s_api::reboot_node::{CONTROLLER_HERE, NO_REBOOT_OBSERVED, TIMEOUT};

use super::memory::Call;
use super::step::Provider;
use super::{Intent, Reboot, Setup, World, Wrong, promises};
use crate::world::Kept;
use crate::world::setup::boot_id;

/// What is done next with an object; none if its call is under way.
fn decide(setup: &Setup, world: &World, reboot: &Reboot, now: Timestamp) -> Option<Step> {
    let busy = world.memory.call.as_ref();
    if busy.is_some_and(|call| call.object == reboot.uid) {
        return None;
    }
    let node = match &world.node {
        None => Node::Missing,
        Some(node) => Node::Seen {
            boot: node.facts.boot.clone(),
            ready: node.facts.ready,
        },
    };
    let node = match node {
        Node::Seen { ready, .. } if setup.is_wrong(Wrong::ReadyIsEnough) => Node::Seen {
            boot: boot_id(0, u8::MAX),
            ready,
        },
        Node::Missing | Node::NotKnown | Node::Seen { .. } => node,
    };
    let paused = world.node.as_ref().is_some_and(|node| node.facts.paused);
    let paused = paused && !setup.is_wrong(Wrong::JanitorIgnoresPause);
    let stored = world.intents.iter().find(|i| i.object == reboot.uid);
    let (answer, asked_at) = match world.memory.answers.get(&reboot.uid) {
        Some((answer, asked_at)) => (Some(answer.clone()), *asked_at),
        None => (None, None),
    };
    let again = setup.is_wrong(Wrong::SendsAgain) && matches!(answer, None | Some(Answer::Lost(_)));
    let fresh = world.memory.fresh.contains(&reboot.uid) || again;
    let intent = stored.map(|intent| janitor::Intent {
        boot_before: boot_id(0, intent.boot),
        at: Setup::now(intent.at),
        deadline: janitor::deadline_of(Setup::now(intent.at), &setup.janitor),
        fresh,
        manual: false,
    });
    let answer = answer.filter(|_| !again);
    let recalled = is_recalled(setup, world, reboot, intent.as_ref());
    let view = View {
        object: &reboot.body,
        node: &node,
        lock: lock(setup, world, reboot),
        intent: intent.as_ref(),
        answer: answer.as_ref(),
        asked_at: asked_at.map(Setup::now),
        place: if paused {
            Place::Paused
        } else if is_draining(world, reboot) && !setup.is_wrong(Wrong::RebootsOverPods) {
            Place::NotEmpty
        } else {
            place(setup, world, reboot)
        },
        excluded: false,
        recalled: recalled.then_some(Unwanted::Over),
        earlier_signal: earlier_signal(world, reboot),
        not_before: None,
        policy: &setup.janitor,
    };
    Some(janitor::decide(&view, now))
}

/// Whether something would be done with an object at `now`, with nothing changed but the clock; and when it
/// is looked at again.
pub(super) fn acts(
    setup: &Setup,
    world: &World,
    reboot: &Reboot,
    now: Timestamp,
) -> (bool, Option<Timestamp>) {
    match decide(setup, world, reboot, now) {
        None => (false, None),
        Some(Step::Wait(again)) => (false, again),
        Some(
            Step::Lock
            | Step::Unlock
            | Step::Intend(_)
            | Step::Send { .. }
            | Step::Ask { .. }
            | Step::Write(_),
        ) => (true, None),
    }
}

/// Whether the signal of another object in the same boot came to the end of its time.
fn earlier_signal(world: &World, reboot: &Reboot) -> bool {
    let intended = world.intents.iter().find(|i| i.object == reboot.uid);
    let is_earlier = |other: &&Reboot, boot| {
        let sent = other.uid != reboot.uid && other.body.started_at.is_some();
        sent && other.ready.1 == TIMEOUT && world.boot_before(other.uid) == boot
    };
    let mut others = world.shown().iter().map(|other| &**other);
    intended.is_some_and(|intent| others.any(|other| is_earlier(&other, intent.boot)))
}

/// Whether a reboot of this node may be begun beside those of others.
fn place(setup: &Setup, world: &World, reboot: &Reboot) -> Place {
    let around = world.around.0;
    let (here, own) = ("here", "own");
    // Its own intent is there where its boot changed before the call, and it is stored anew.
    let intents = world.intents.iter().map(|intent| intent.object);
    let taken = intents.chain(world.memory.reserved);
    let taken = taken.filter(|object| *object != reboot.uid);
    let mut under_way = vec!["other"; usize::from(around.under_way)];
    under_way.extend(taken.map(|_| here));
    under_way.extend(around.own_runs.then_some(own));
    let is_own = around.is_own && !setup.is_wrong(Wrong::OwnNodeIsAny);
    let beside = Beside {
        own_node: if is_own { here } else { own },
        under_way: &under_way,
        max_parallel: if setup.is_wrong(Wrong::IgnoresPlaces) {
            usize::MAX
        } else {
            setup.max_parallel
        },
    };
    janitor::place(here, beside)
}

/// Whether pods are moved off again for whose incident the object was made.
fn is_draining(world: &World, reboot: &Reboot) -> bool {
    let open = world.incident.as_deref();
    let ordered = open.filter(|open| reboot.incident.as_ref() == Some(&open.id));
    ordered.is_some_and(keeps_repair)
}

/// As the Lease says at each look, so that an object that was at its end before a crash gives it back
/// all the same.
fn lock(setup: &Setup, world: &World, reboot: &Reboot) -> Lock {
    match world.lock {
        Some(owner) if owner == reboot.uid => Lock::Ours,
        _ if (setup.is_wrong(Wrong::NoLock) || setup.is_wrong(Wrong::SharesLock))
            && !reboot.is_over() =>
        {
            Lock::Ours
        }
        Some(_) => Lock::Others,
        // A signal whose object is gone may have its effect still.
        None if world.orphan_runs(setup) && !setup.is_wrong(Wrong::IgnoresOrphans) => Lock::Others,
        None => Lock::NotKnown,
    }
}

/// Whom it was made for does not want it any more, or what it was made for has happened: the incident
/// and the boot are looked up at each decision, so that the last look is between the stored intent
/// and the signal.
fn is_recalled(
    setup: &Setup,
    world: &World,
    reboot: &Reboot,
    intent: Option<&janitor::Intent>,
) -> bool {
    let called = intent.is_some_and(|intent| !intent.fresh);
    let may_be_sent = called || matches!(reboot.body.signal, Signal::Sent { .. });
    let shown = world.node.as_ref().map(|node| &node.facts.boot);
    let needless = || {
        let open = world.incident.as_deref()?;
        Some(has_happened(open, &reboot.name, shown?))
    };
    let looks = !setup.is_wrong(Wrong::IgnoresBoot);
    world.is_recalled(setup, reboot, may_be_sent) || (looks && needless() == Some(true))
}

/// One step of one object; `provider`: what it makes of a call. Answers whether anything changed.
pub(super) fn turn(setup: &Setup, world: &mut World, index: usize, provider: Provider) -> bool {
    let Some(reboot) = world.shown().get(index).cloned() else {
        return false;
    };
    let Some(step) = decide(setup, world, &reboot, world.now()) else {
        return false;
    };
    // Only a call may end in several ways.
    let calls = matches!(step, Step::Send { .. } | Step::Ask { .. });
    if !calls && provider != Provider::Honest {
        return false;
    }
    match step {
        // The turn is over, and with it the place that came to no intent.
        Step::Wait(_) => world
            .memory
            .reserved
            .take_if(|of| *of == reboot.uid)
            .is_some(),
        Step::Lock => {
            world.memory.reserved = setup.max_parallel_is_bound().then_some(reboot.uid);
            if world.lock.is_none() {
                world.lock = Some(reboot.uid);
            }
            world.did("janitor", "lock");
            true
        }
        Step::Unlock => unlock(setup, world, &reboot),
        Step::Intend(_) if setup.is_wrong(Wrong::SendsFirst) => {
            send(setup, world, &reboot, provider)
        }
        Step::Intend(_) => {
            world.fail(promises::of_begin(setup, world, &reboot));
            intend(world, &reboot)
        }
        Step::Send { .. } => send(setup, world, &reboot, provider),
        Step::Ask { .. } => ask(world, &reboot, provider),
        Step::Write(change) => write(world, reboot.uid, &change),
    }
}

fn unlock(setup: &Setup, world: &mut World, reboot: &Reboot) -> bool {
    if setup.is_wrong(Wrong::KeepsLock) {
        return false;
    }
    if world.lock == Some(reboot.uid) {
        world.lock = None;
    }
    if !setup.is_wrong(Wrong::KeepsIntent) {
        world.intents.retain(|intent| intent.object != reboot.uid);
    }
    world.memory.forget(reboot.uid);
    world.did("janitor", "unlock");
    true
}

fn intend(world: &mut World, reboot: &Reboot) -> bool {
    // One of an earlier boot is replaced.
    world.intents.retain(|intent| intent.object != reboot.uid);
    world.memory.fresh.retain(|uid| *uid != reboot.uid);
    world.memory.reserved.take_if(|of| *of == reboot.uid);
    world.intents.push(Intent {
        object: reboot.uid,
        boot: world.boot_shown(),
        at: world.clock,
        paused: world.node.as_ref().is_some_and(|node| node.facts.paused),
    });
    world.memory.fresh.push(reboot.uid);
    world.did("janitor", "intend");
    true
}

fn send(setup: &Setup, world: &mut World, reboot: &Reboot, provider: Provider) -> bool {
    let sent = || Answer::Sent {
        request: format!("request-{}", reboot.uid),
    };
    let lost = || Answer::Lost("INTERNAL".to_owned());
    let (took, answer) = match provider {
        Provider::Honest => (1, sent()),
        Provider::Twice => (2, sent()),
        Provider::TakesAndLoses => (1, lost()),
        Provider::Loses => (0, lost()),
        Provider::Refuses => (0, Answer::Refused("no such instance".to_owned())),
        Provider::Lies => (0, sent()),
    };
    if setup.is_wrong(Wrong::SharesLock) {
        world.lock = Some(reboot.uid);
    }
    world.fail(promises::of_signal(setup, world, reboot));
    let intent = world.intents.iter().find(|i| i.object == reboot.uid);
    let at = intent.map_or(world.clock, |intent| intent.at);
    world.signals.push(super::Signal {
        object: reboot.uid,
        boot: world.boot_shown(),
        at,
        undone: provider == Provider::Refuses,
    });
    world.memory.fresh.retain(|uid| *uid != reboot.uid);
    world.taken += took;
    world.memory.call = Some(Kept::new(Call {
        object: reboot.uid,
        answer,
    }));
    world.did("janitor", "send");
    true
}

/// The answer to the call that is under way.
pub(super) fn answer(setup: &Setup, world: &mut World) -> bool {
    let Some(call) = world.memory.call.take() else {
        return false;
    };
    let mut answer = call.answer.clone();
    if let (Answer::Lost(why), true) = (&answer, setup.is_wrong(Wrong::LostIsRefused)) {
        answer = Answer::Refused(why.clone());
    }
    let name = match answer {
        Answer::Sent { .. } => "sent",
        Answer::Refused(_) => "refused",
        Answer::Lost(_) => "lost",
        Answer::Done | Answer::NotDone | Answer::NotAsked(_) => "asked",
    };
    world.did("janitor", name);
    let object = call.object;
    world.memory.answers.change(|answers| {
        answers.insert(object, (answer, None));
    });
    true
}

/// The answer to a signal comes once more, after later ones.
pub(super) fn answer_again(world: &mut World) -> bool {
    let known = world.reboots.iter().find_map(|reboot| {
        let (_, asked_at) = world.memory.answers.get(&reboot.uid)?;
        let Signal::Sent { request } = &reboot.body.signal else {
            return None;
        };
        let request = request.clone();
        Some((reboot.uid, Answer::Sent { request }, *asked_at))
    });
    let Some((object, answer, asked_at)) = known else {
        return false;
    };
    world.memory.answers.change(|answers| {
        answers.insert(object, (answer, asked_at));
    });
    true
}

fn ask(world: &mut World, reboot: &Reboot, provider: Provider) -> bool {
    let answer = match provider {
        Provider::Honest if world.taken == 0 && world.boot != world.boot_before(reboot.uid) => {
            Answer::Done
        }
        Provider::Honest => Answer::NotDone,
        Provider::Lies => Answer::Done,
        Provider::Loses => Answer::NotAsked("it is out of reach".to_owned()),
        Provider::Twice | Provider::TakesAndLoses | Provider::Refuses => return false,
    };
    let (uid, clock) = (reboot.uid, world.clock);
    world.memory.answers.change(|answers| {
        answers.insert(uid, (answer, Some(clock)));
    });
    world.did("janitor", "ask");
    true
}

/// Answers whether anything changed: the object may be gone.
fn write(world: &mut World, uid: u8, change: &StatusChange) -> bool {
    let Some(reboot) = world.reboot(uid).cloned() else {
        return false;
    };
    let end = change.completed_at.is_some();
    let why = change.node_ready.as_ref().map(|ready| ready.reason);
    if end {
        world.fail(promises::of_end(world, &reboot, change));
    }
    world.did("janitor", why.filter(|_| end).unwrap_or("status"));
    let undone = match why {
        Some("NoRebootObserved" | "Timeout" | "NodeNotFound") => end,
        Some(_) | None => false,
    };
    for signal in &mut world.signals {
        signal.undone |= undone && signal.object == uid;
    }
    // The answer to a write is taken in, however far the watch is.
    let shown = world.lag.iter_mut().flatten();
    for reboot in world.reboots.iter_mut().chain(shown) {
        if reboot.uid != uid {
            continue;
        }
        reboot.change(|reboot| {
            let body = &mut reboot.body;
            *body = written(body, change);
            if let Some(ready) = &change.node_ready {
                reboot.ready = (ready.status, ready.reason);
            }
        });
    }
    true
}

fn written(body: &RebootNode, change: &StatusChange) -> RebootNode {
    let signal = change.signal.as_ref().map(|signal| match signal.status {
        Some(true) => Signal::Sent {
            request: signal.message.clone(),
        },
        Some(false) => Signal::Failed,
        None => Signal::Unknown,
    });
    let ready = change.node_ready.as_ref();
    let end = ready.filter(|_| change.completed_at.is_some());
    let end = end.map(|ready| match ready.reason {
        "Failed" => End::Refused,
        NO_REBOOT_OBSERVED => End::NoReboot,
        _ => End::Other,
    });
    RebootNode {
        started_at: body.started_at.or(change.started_at),
        completed_at: body.completed_at.or(change.completed_at),
        signal: signal.unwrap_or_else(|| body.signal.clone()),
        says_manual: body.says_manual || change.manual,
        end: body.end.or(end),
        says_controller_here: change
            .node_ready
            .as_ref()
            .map_or(body.says_controller_here, |ready| {
                ready.reason == CONTROLLER_HERE
            }),
        ..body.clone()
    }
}

impl World {
    /// The boot that the node shows; the machine's, where there is no node.
    pub(super) fn boot_shown(&self) -> u8 {
        let shown = |boot: &u8| {
            let node = self.node.as_ref();
            node.is_some_and(|node| node.facts.boot == boot_id(0, *boot))
        };
        (0..=self.boot).find(shown).unwrap_or(self.boot)
    }

    fn boot_before(&self, object: u8) -> u8 {
        let mut signals = self.signals.iter();
        let signal = signals.find(|signal| signal.object == object);
        // Signals of an earlier boot are forgotten.
        signal.map_or(u8::MAX, |signal| signal.boot)
    }

    /// The object is gone: the API server takes its lock along, for the object owned it.
    pub(super) fn delete_reboot(&mut self, setup: &Setup, index: usize) {
        self.falls_behind(setup);
        let gone = self.reboots.remove(index);
        if self.lock == Some(gone.uid) {
            self.lock = None;
        }
        self.memory.forget(gone.uid);
    }
}
