//! One node's turn: observe, decide, apply, object by object.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use decide::janitor::{
    self as decided, Answer, Intent, Lock, Node, Place, Policy, Step, Unwanted, View,
};
use event_store::{ReadError, WriteError};
use health_event::NodeName;
use jiff::{SignedDuration, Timestamp};
use k8s_api::names;
use k8s_api::reboot_node::RebootNode;
use tokio::time::Instant;
use tracing::warn;

use super::facts;
use super::intents::StoredIntent;
use super::locks::Locks;
use super::memory::{Known, Memory};
use super::provider::Provider;
use super::ttl;
use crate::context::Context;
use crate::kubernetes::{CallError, Program, Reference};
use crate::lease::Leadership;
use crate::workers::Workers;

/// Name of the module.
pub(super) const MODULE: &str = "janitor";
/// Steps in one turn: lock, intent, signal, status, question and their looks. A turn that needs more
/// goes on in the next, so that no node holds a worker.
const PASSES: usize = 16;
/// Longest time for one call to the API server with its repetitions.
pub(super) const CALL: Duration = Duration::from_secs(10);
/// First pause after a turn that failed; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Between looks at a node that the watch lost and the API server has.
const NODE_LOOK: SignedDuration = SignedDuration::from_secs(1);

/// What all workers share.
pub(super) struct Module {
    pub(super) context: Context,
    pub(super) leadership: Leadership,
    pub(super) policy: Policy,
    pub(super) provider: Provider,
    pub(super) locks: Locks,
    pub(super) reference: Reference,
    pub(super) workers: Workers,
    /// Whether what another janitor may have begun was taken over: nothing is done before.
    pub(super) taken_over: AtomicBool,
    /// When another janitor was seen to be gone that had run.
    other_left: Mutex<Option<Instant>>,
    /// What the store holds, by the object's UID; each has a place.
    intents: Mutex<BTreeMap<String, StoredIntent>>,
    /// The node of each object that has a place in its turn and no intent yet, by the object's UID.
    reserved: Mutex<BTreeMap<String, String>>,
    /// What this process knows of objects that are not over.
    pub(super) memory: Memory,
    /// Turns that failed in a row.
    failures: Mutex<HashMap<NodeName, u32>>,
    /// Since when, and until when, a provider is out of reach: the usual one, and that of force.
    pub(super) down: Mutex<[Option<Down>; 2]>,
}

/// A provider that could not be reached.
#[derive(Debug, Clone, Copy)]
pub(super) struct Down {
    /// It is tried again then.
    pub(super) until: Timestamp,
    /// The pause before.
    pub(super) pause: Duration,
}

/// Why a turn ended early. All are tried again.
#[derive(Debug, thiserror::Error)]
pub(super) enum TurnError {
    #[error("the event store can't be read: {0}")]
    Read(#[from] ReadError),
    #[error("the intent can't be stored: {0}")]
    Write(#[from] WriteError),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("this process does not lead (any more)")]
    NotLeading,
}

impl TurnError {
    pub(super) fn code(&self) -> &'static str {
        match self {
            Self::Read(_) => "store_unreadable",
            Self::Write(error) => error.code(),
            Self::Call(error) => error.code(),
            Self::NotLeading => "not_leading",
        }
    }
}

/// What a look at one object saw.
struct Observed {
    object: decided::RebootNode,
    node: Node,
    lock: Lock,
    intent: Option<Intent>,
    known: Known,
    place: Place,
    excluded: bool,
    recalled: Option<Unwanted>,
    earlier_signal: bool,
    not_before: Option<Timestamp>,
}

/// Whether the object is looked at again in this turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    Again,
    Done,
}

impl Module {
    pub(super) fn new(
        context: Context,
        leadership: Leadership,
        workers: Workers,
        stored: Vec<StoredIntent>,
    ) -> Self {
        let config = &context.config.janitor;
        Self {
            policy: facts::policy(config),
            provider: Provider(config.provider.clone()),
            locks: Locks::new(super::lock_namespace(&context)),
            reference: Reference::new(Program::Janitor),
            taken_over: AtomicBool::new(false),
            other_left: Mutex::default(),
            intents: Mutex::new(stored.into_iter().map(|i| (i.uid.clone(), i)).collect()),
            reserved: Mutex::default(),
            memory: Memory::default(),
            failures: Mutex::default(),
            down: Mutex::default(),
            context,
            leadership,
            workers,
        }
    }

    pub(super) fn intents(&self) -> MutexGuard<'_, BTreeMap<String, StoredIntent>> {
        self.intents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn reserved(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn other_left(&self) -> MutexGuard<'_, Option<Instant>> {
        self.other_left
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn intent(&self, uid: &str) -> Option<StoredIntent> {
        self.intents().get(uid).cloned()
    }

    pub(super) fn down(&self) -> MutexGuard<'_, [Option<Down>; 2]> {
        self.down.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anything new is begun.
    fn is_on(&self) -> bool {
        self.context.config.janitor.enabled
    }

    /// Until when a write that starts now may run.
    pub(super) fn deadline(&self) -> Result<Instant, TurnError> {
        let deadline = self.leadership.write_deadline(CALL);
        deadline.ok_or(TurnError::NotLeading)
    }

    /// Every node with an object, or with a reboot that may still come.
    pub(super) fn wake_all(&self) {
        let objects = self.context.reboots.all();
        let names = objects.iter().map(|o| o.spec.node_name.as_str());
        // Those that name no node are the work of their own name.
        let names = names.chain(objects.iter().map(|o| o.metadata.name.as_str()));
        for name in names {
            self.wake(name);
        }
        let of_intents: Vec<String> = self.intents().values().map(|i| i.node.clone()).collect();
        for node in &of_intents {
            self.wake(node);
        }
    }

    pub(super) fn wake(&self, name: &str) {
        if let Ok(name) = NodeName::new(name) {
            self.workers.wake(&name);
        }
    }

    /// One node's turn.
    pub(super) async fn work(&self, node: &NodeName) {
        let turn = self.turn(node).await;
        self.give_up_places(node);
        let failed = match turn {
            Ok(()) => {
                self.failures().remove(node);
                return;
            }
            Err(error) => error,
        };
        let count = {
            let mut failures = self.failures();
            let count = failures.entry(node.clone()).or_default();
            *count += 1;
            *count
        };
        let pause = FIRST_PAUSE * 2_u32.saturating_pow(count.min(8) - 1);
        let pause = facts::signed(pause.min(LONGEST_PAUSE));
        warn!(
            code = failed.code(),
            %node,
            why = %failed,
            "the reboots of a node were not looked at; tried again"
        );
        self.workers.wake_at(node, later(Timestamp::now(), pause));
    }

    fn failures(&self) -> MutexGuard<'_, HashMap<NodeName, u32>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn turn(&self, key: &NodeName) -> Result<(), TurnError> {
        let runs = !self.reference.is_known() || self.reference.runs();
        if runs || !self.taken_over.load(Ordering::Acquire) {
            return Ok(());
        }
        for _ in 0..PASSES {
            let now = Timestamp::now();
            let mut objects = self.context.reboots.of_key(key.as_str());
            objects.sort_by_key(|object| facts::created_at(object, now));
            let mut is_taken = self.follow_orphans(key, &objects, now).await?;
            self.memory.keep(key, |uid| {
                let is_there = objects.iter().any(|object| object.metadata.uid == uid);
                is_there || self.intents().contains_key(uid)
            });
            self.context.stages.keep_reboot_waits(key, |name| {
                objects.iter().any(|object| object.metadata.name == name)
            });
            let mut next = Next::Done;
            for object in &objects {
                // Switched off it follows what was sent to its end, and touches nothing else.
                if !self.is_on() && self.intent(&object.metadata.uid).is_none() {
                    continue;
                }
                if self.look(key, object, is_taken, now).await? == Next::Again {
                    next = Next::Again;
                }
                is_taken |= !object.is_over();
            }
            if next == Next::Done {
                return Ok(());
            }
        }
        self.workers.wake(key);
        Ok(())
    }

    /// Looks at one object and does one step; `is_taken`: another reboot of the node comes first.
    async fn look(
        &self,
        key: &NodeName,
        object: &RebootNode,
        is_taken: bool,
        now: Timestamp,
    ) -> Result<Next, TurnError> {
        let observed = self.observe(key, object, is_taken, now).await?;
        let view = View {
            object: &observed.object,
            node: &observed.node,
            lock: observed.lock,
            intent: observed.intent.as_ref(),
            answer: observed.known.answer.as_ref(),
            asked_at: observed.known.asked_at,
            place: observed.place,
            excluded: observed.excluded,
            recalled: observed.recalled,
            earlier_signal: observed.earlier_signal,
            not_before: observed.not_before,
            policy: &self.policy,
        };
        let step = decided::decide(&view, now);
        let waits = match &step {
            Step::Wait(Some(_)) => self.waits_for(object, &observed, is_taken, now),
            Step::Wait(None)
            | Step::Lock
            | Step::Unlock
            | Step::Intend(_)
            | Step::Send { .. }
            | Step::Ask { .. }
            | Step::Write(_) => None,
        };
        let stages = &self.context.stages;
        stages.set_reboot_wait(key, &object.metadata.name, waits);
        match step {
            Step::Wait(None) => self.forget(key, object).await?,
            Step::Wait(Some(at)) => self.workers.wake_at(key, at),
            step @ (Step::Lock
            | Step::Unlock
            | Step::Intend(_)
            | Step::Send { .. }
            | Step::Ask { .. }
            | Step::Write(_)) => {
                if observed.place == Place::ControllerHere && !observed.object.says_controller_here
                {
                    let name = &object.metadata.name;
                    self.context.stages.set_controller_here(key, name);
                }
                return self.apply(key, object, step, now).await;
            }
        }
        if let Some(at) = ttl::keep(self, object, now).await? {
            self.workers.wake_at(key, at);
        }
        Ok(Next::Done)
    }

    /// What an object waits for of which nothing was sent, for people.
    fn waits_for(
        &self,
        object: &RebootNode,
        observed: &Observed,
        is_taken: bool,
        now: Timestamp,
    ) -> Option<String> {
        if object.is_over() || object.may_have_begun() || observed.intent.is_some() {
            return None;
        }
        let node = &object.spec.node_name;
        let config = &self.context.config;
        let own_lease = config.lease.enabled
            && config.lease.name == *node
            && super::lock_namespace(&self.context) == self.context.namespace;
        if own_lease {
            return Some(format!(
                "the Lease that would lock the node is the controller's own (lease.name = {node:?}): choose \
                 another lease.name or janitor.lock_namespace, or the node is never rebooted by Warden"
            ));
        }
        let why = match observed.place {
            Place::Full => "as many reboots run as may at once (janitor.max_parallel)".to_owned(),
            // It has an Event and a condition of its own.
            Place::ControllerHere => return None,
            Place::Paused => format!("the node is paused (annotation {})", names::PAUSE.text),
            Place::NotEmpty => "work came to the node and is moved off first".to_owned(),
            Place::NotAdopted => {
                "the incident of the node's marks is not known to the store yet".to_owned()
            }
            Place::Free if observed.lock == Lock::Others && is_taken => {
                "another RebootNode of this node comes first".to_owned()
            }
            Place::Free if observed.lock == Lock::Others => format!(
                "Lease {node} in namespace {} is held by another repair of the node, or a signal of one may be out",
                super::lock_namespace(&self.context)
            ),
            Place::Free if observed.not_before.is_some_and(|at| now < at) => {
                "the provider can't be reached; it is tried again".to_owned()
            }
            Place::Free => "the node's boot is not known yet".to_owned(),
        };
        Some(why)
    }

    async fn observe(
        &self,
        key: &NodeName,
        object: &RebootNode,
        is_taken: bool,
        now: Timestamp,
    ) -> Result<Observed, TurnError> {
        let name = object.spec.node_name.as_str();
        let uid = object.metadata.uid.as_str();
        let context = &self.context;
        let facts = (key.as_str() == name)
            .then(|| context.nodes.get(key))
            .flatten();
        let node = match &facts {
            Some(facts) => facts::node(facts, &context.store, &context.reports)?,
            None if object.is_over() => Node::NotKnown,
            None if key.as_str() != name => Node::Missing,
            None => self.missing(key, now).await?,
        };
        let mut known = self.memory.of(key, uid);
        let stored = self.intent(uid);
        // Its node was changed after its signal: the intent is the other node's, where it is followed.
        let is_moved = stored.as_ref().is_some_and(|stored| stored.node != name);
        let intent = stored.filter(|_| !is_moved).map(|stored| Intent {
            boot_before: stored.boot(),
            at: stored.at,
            deadline: stored.deadline,
            fresh: known.unsent.is_some(),
            manual: stored.manual,
        });
        let is_lost = intent.as_ref().is_some_and(|intent| !intent.fresh);
        let manual = intent.as_ref().is_some_and(|intent| intent.manual);
        if is_lost && known.answer.is_none() && !manual {
            let why = "the controller ended around the call, or its store was lost".to_owned();
            known.answer = Some(Answer::Lost(why));
        }
        let lock = match self.locks.of(object, now) {
            Lock::NotKnown if is_taken => Lock::Others,
            // Whoever holds the Lease: a signal of another object is out.
            Lock::NotKnown | Lock::Ours
                if intent.is_none() && !object.is_over() && self.is_signalled(object) =>
            {
                Lock::Others
            }
            lock @ (Lock::NotKnown | Lock::Ours | Lock::Others) => lock,
        };
        if let (Lock::Others, false, Some(at)) = (lock, is_taken, self.locks.look_at(name)) {
            self.workers.wake_at(key, at);
        }
        let labels = |key: &str| facts.as_ref().and_then(|facts| facts.label(key));
        let exclusions = &context.config.janitor.exclusions;
        let paused = facts
            .as_ref()
            .is_some_and(|facts| facts.annotation(names::PAUSE.text).is_some());
        let asked = facts::asked(object, &context.store, &node, facts.as_deref())?;
        let place = if is_moved {
            Place::Full
        } else if paused {
            Place::Paused
        } else if asked.draining {
            Place::NotEmpty
        } else if asked.not_adopted {
            Place::NotAdopted
        } else {
            self.place(object)
        };
        let excluded = facts.is_some() && exclusions.iter().any(|s| s.matches(labels));
        let kept = excluded || lock == Lock::Others || !matches!(place, Place::Free | Place::Full);
        if !object.is_over() {
            self.memory.change(key, uid, |known| known.kept = kept);
        }
        Ok(Observed {
            place,
            excluded,
            recalled: asked.recalled,
            earlier_signal: self.earlier_signal(key, object),
            not_before: self.down()[usize::from(object.spec.force)].map(|down| down.until),
            object: facts::object(object, now),
            node,
            lock,
            intent,
            known,
        })
    }

    /// Whether a signal of another object for the node, in the same boot, came to the end of its time without
    /// its effect. Objects that don't say their boot count for as long as an order may wait.
    fn earlier_signal(&self, key: &NodeName, object: &RebootNode) -> bool {
        let Some(intent) = self.intent(&object.metadata.uid) else {
            return false;
        };
        let others = self.context.reboots.of_key(key.as_str());
        others.iter().any(|other| {
            let boot = other.metadata.annotations.get(names::BOOT_BEFORE.text);
            let same_boot = match (boot, other.status.completion_time) {
                (Some(boot), _) => *boot == intent.boot_before,
                (None, Some(over)) => intent.at < later(over, self.policy.queue_timeout),
                (None, None) => false,
            };
            same_boot && other.metadata.uid != object.metadata.uid && facts::ended_late(other)
        })
    }

    /// A node that the cache does not have: only a direct read says that it does not exist.
    async fn missing(&self, node: &NodeName, now: Timestamp) -> Result<Node, TurnError> {
        let deadline = Instant::now() + CALL;
        if self.context.kube.node_uid(node, deadline).await?.is_none() {
            return Ok(Node::Missing);
        }
        self.workers.wake_at(node, later(now, NODE_LOOK));
        Ok(Node::NotKnown)
    }

    /// The machine that a node is, as far as the node tells.
    pub(super) fn machine_of(&self, node: &str) -> String {
        let node = NodeName::new(node).ok();
        let facts = node.and_then(|node| self.context.nodes.get(&node));
        facts.map_or_else(String::new, |facts| facts.machine().to_owned())
    }

    /// Whether a signal of another object may be out for the node, or for its machine.
    fn is_signalled(&self, object: &RebootNode) -> bool {
        let node = object.spec.node_name.as_str();
        let machine = self.machine_of(node);
        let intents = self.intents();
        let mut others = intents.values().filter(|i| i.uid != object.metadata.uid);
        others.any(|other| other.is_of(node, &machine))
    }

    /// Intents of this node whose object is gone: a reboot may still come. Answers whether one may.
    async fn follow_orphans(
        &self,
        node: &NodeName,
        objects: &[Arc<RebootNode>],
        now: Timestamp,
    ) -> Result<bool, TurnError> {
        let is_there = |uid: &str| objects.iter().any(|object| object.metadata.uid == uid);
        let orphans: Vec<StoredIntent> = {
            let intents = self.intents();
            let of_node = intents.values().filter(|i| i.node == node.as_str());
            of_node.filter(|i| !is_there(&i.uid)).cloned().collect()
        };
        let shown = match self.context.nodes.get(node).filter(|_| !orphans.is_empty()) {
            Some(facts) => facts::boot(&facts, &self.context.store, &self.context.reports)?.into(),
            None => None,
        };
        let mut may_come = false;
        for orphan in orphans {
            let never_sent = self.memory.of(node, &orphan.uid).unsent.is_some();
            let intent = Intent {
                boot_before: orphan.boot(),
                at: orphan.at,
                deadline: orphan.deadline,
                fresh: false,
                manual: orphan.manual,
            };
            let runs = decided::runs_without_object(&intent, shown.as_ref(), &self.policy, now);
            if never_sent || !runs {
                self.forget_intent(node, &orphan.uid).await?;
            } else {
                may_come = true;
                self.workers
                    .wake_at(node, decided::until(&intent, &self.policy));
            }
        }
        let left_by = self.locks.left_by(node.as_str(), is_there);
        if let (false, Some(uid)) = (may_come, left_by) {
            let kube = &self.context.kube;
            let deadline = self.deadline()?;
            self.locks
                .give_back(kube, node.as_str(), &uid, deadline)
                .await?;
        }
        Ok(may_come)
    }
}

/// The end of time where it would lie beyond.
pub(super) fn later(at: Timestamp, span: SignedDuration) -> Timestamp {
    at.checked_add(span).unwrap_or(Timestamp::MAX)
}
