//! One node's turn: observe, decide, store, apply.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use decide::remediation::{
    Decision, FaultFacts, Mode, NodeLook, Object, Policy, View, adopted, boots_seen, decide,
};
use event_store::{ReadError, Transition, WriteError};
use health_event::incident::{Attempt, Incident, RepairStatus};
use health_event::{BootId, Boots, NodeName};
use jiff::Timestamp;
use k8s_api::names;
use serde_json::json;
use tokio::time::Instant;

use super::attempts::Attempts;
use super::order::{Fate, READ_TIMEOUT, Tried};
use super::{MODULE, facts, said, settings};
use crate::context::Context;
use crate::janitor::IntentsError;
use crate::kubernetes::{CallError, Reference, jittered};
use crate::lease::Leadership;
use crate::nodes;
use crate::workers::Workers;

/// Decisions in one turn: planned, ordered, seen, and one more. A turn that needs more goes on in the
/// next, so that no node holds a worker.
const PASSES: usize = 8;
/// First pause after a failure; it doubles.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause, before its random part.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// Between looks at a lock that another one holds.
const LOCK_LOOK: Duration = Duration::from_secs(10);

/// What all workers share.
pub(super) struct Module {
    pub(super) context: Context,
    pub(super) leadership: Leadership,
    pub(super) reference: Reference,
    pub(super) workers: Workers,
    policy: Policy,
    /// The same while another fault-remediation runs in the cluster.
    refused: Policy,
    /// Whether what wants the node empty waits for the drain.
    drain_counts: bool,
    /// What became of the calls for a node's present object.
    tried: Mutex<HashMap<NodeName, Tried>>,
    /// Failures of a node in a row.
    failures: Mutex<HashMap<NodeName, u32>>,
    /// The object of a node that was last said to be left.
    left: Mutex<HashMap<NodeName, String>>,
}

/// Why a turn ended early. All are tried again.
#[derive(Debug, thiserror::Error)]
pub(super) enum TurnError {
    #[error("the event store can't be read: {0}")]
    Read(#[from] ReadError),
    #[error("the decision can't be stored: {0}")]
    Write(#[from] WriteError),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Intents(#[from] IntentsError),
}

impl TurnError {
    fn code(&self) -> &'static str {
        match self {
            Self::Read(_) => "store_unreadable",
            Self::Write(error) => error.code(),
            Self::Call(error) => error.code(),
            Self::Intents(error) => error.code(),
        }
    }
}

/// What a pass saw.
pub(super) struct Observed {
    pub(super) node: Option<Arc<nodes::NodeFacts>>,
    pub(super) look: Option<NodeLook>,
    faults: Vec<FaultFacts>,
    wants_drain: bool,
    boots: Boots,
    attempts: Attempts,
    object: Object,
    other_repair: bool,
}

/// Whether the turn goes on.
pub(super) enum Next {
    Again,
    Done,
}

impl Module {
    pub(super) fn new(
        context: Context,
        leadership: Leadership,
        reference: Reference,
        workers: Workers,
        policy: Policy,
    ) -> Self {
        let refused = Policy {
            mode: Mode::Refused,
            ..policy.clone()
        };
        Self {
            drain_counts: settings::drain_counts(&context.config),
            context,
            leadership,
            reference,
            workers,
            policy,
            refused,
            tried: Mutex::default(),
            failures: Mutex::default(),
            left: Mutex::default(),
        }
    }

    /// What decisions are bound to now.
    pub(super) fn policy_now(&self) -> &Policy {
        match self.policy.mode {
            // As long as nobody knows, it is decided as if there were none, and the gate waits.
            Mode::Enforce if self.reference.is_known() && self.reference.runs() => &self.refused,
            Mode::Enforce | Mode::Refused | Mode::DryRun | Mode::Off => &self.policy,
        }
    }

    /// Wakes every node with an open incident.
    pub(super) fn wake_all(&self) {
        match self.context.store.open_incidents() {
            Ok(open) => open
                .iter()
                .for_each(|incident| self.workers.wake(&incident.node)),
            Err(error) => tracing::warn!(code = error.code(), %error, "nodes are not woken"),
        }
    }

    /// One node's turn.
    pub(super) async fn work(&self, node: &NodeName) {
        let started = Instant::now();
        match self.turn(node).await {
            Ok(()) => {}
            Err(error) => {
                let metrics = &self.context.metrics;
                said::failed(metrics, node, error.code(), &error.to_string());
                self.wake_after_failure(node);
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        self.context.metrics.remediation.handling.observe(seconds);
    }

    async fn turn(&self, node: &NodeName) -> Result<(), TurnError> {
        self.recall(node).await?;
        for _ in 0..PASSES {
            let Some(incident) = self.incident(node)? else {
                self.forget(node);
                return Ok(());
            };
            let Some(observed) = self.observe(&incident).await? else {
                return Ok(());
            };
            match self.pass(&incident, &observed, Timestamp::now()).await? {
                Next::Again => {}
                Next::Done => return Ok(()),
            }
        }
        self.workers.wake(node);
        Ok(())
    }

    /// The incident of the node object that is there now, else of one that may be gone.
    fn incident(&self, name: &NodeName) -> Result<Option<Incident>, TurnError> {
        let open = self.context.store.open_incidents_of(name)?;
        let node = self.context.nodes.get(name);
        let of_node = open.iter().find(|incident| match &node {
            Some(node) => incident.node_uid == *node.uid,
            None => true,
        });
        Ok(of_node.cloned())
    }

    /// Everything that one decision looks at; none if nothing can be decided now.
    async fn observe(&self, incident: &Incident) -> Result<Option<Observed>, TurnError> {
        let name = &incident.node;
        let store = &self.context.store;
        let node = self.context.nodes.get(name);
        let under_way = is_under_way(incident);
        if node.is_none() {
            if !under_way {
                return Ok(None);
            }
            // The cache lost it: only a direct read says that it is gone.
            let deadline = Instant::now() + READ_TIMEOUT;
            if self.context.kube.node_uid(name, deadline).await?.is_some() {
                self.wake_soon(name);
                return Ok(None);
            }
        }
        let machine = store.machine(&incident.machine)?.unwrap_or_default();
        let of_status = node.as_ref().map(|node| BootId::new(&node.boot_id));
        let boots = boots_seen(
            &machine.boots,
            &of_status.unwrap_or_default(),
            said::attempt_of(incident),
        );
        let owners = &self.context.config.quarantine.external_owners;
        let look = node
            .as_ref()
            .map(|node| facts::node_look(node, &boots, owners));
        let stored = store.open_faults(name)?;
        let open = facts::open_faults(incident, &stored);
        let wants_drain = open.iter().any(|fault| facts::wants_drain(fault));
        let object = self.object(incident, look.as_ref()).await?;
        Ok(Some(Observed {
            faults: open.into_iter().map(facts::fault_facts).collect(),
            wants_drain: wants_drain && self.drain_counts,
            attempts: self.attempts(incident)?,
            other_repair: self.other_repair(incident),
            node,
            look,
            boots,
            object,
        }))
    }

    /// What is known of the object of the attempt that is under way.
    async fn object(
        &self,
        incident: &Incident,
        look: Option<&NodeLook>,
    ) -> Result<Object, TurnError> {
        let Some(attempt) = said::attempt_of(incident).filter(|_| is_under_way(incident)) else {
            return Ok(Object::NotKnown);
        };
        let reboots = &self.context.reboots;
        if let Some(object) = reboots.get(&attempt.object) {
            // From now on the watch tells, also that it is gone.
            self.tried().remove(&incident.node);
            return Ok(facts::object(&object, &incident.id));
        }
        let tried = self.tried().get(&incident.node).cloned();
        let tried = tried.filter(|tried| tried.object == attempt.object);
        if let Some(object) = tried.and_then(|tried| self.told(tried.fate, attempt, incident)) {
            return Ok(object);
        }
        if !reboots.is_known() {
            if self.policy.mode != Mode::Off {
                self.wake_in(&incident.node, FIRST_PAUSE);
            }
            return Ok(Object::NotKnown);
        }
        let requested = is_at(incident, &RepairStatus::Requested);
        let booted = look.is_some_and(|look| look.boot != attempt.boot_before);
        if requested && !booted {
            // Ordered under its name it is made, or found.
            return Ok(Object::NotKnown);
        }
        Ok(match self.read(&attempt.object).await? {
            Some(object) => facts::object(&object, &incident.id),
            None => Object::Absent,
        })
    }

    /// What the calls for the object told, where the watch does not show it.
    fn told(&self, fate: Fate, attempt: &Attempt, incident: &Incident) -> Option<Object> {
        let now = Timestamp::now();
        match fate {
            Fate::There(until) if now < until => {
                self.workers.wake_at(&incident.node, until);
                Some(Object::Running)
            }
            Fate::Refused(words) => Some(Object::Refused(words)),
            // Its time is over without it: the last refusal is why.
            Fate::NotYet(words) if attempt.deadline <= now => Some(Object::Refused(words)),
            Fate::There(_) | Fate::NotYet(_) => None,
        }
    }

    /// Attempts on the incident's machine: those stored, and those that only objects know.
    fn attempts(&self, incident: &Incident) -> Result<Attempts, TurnError> {
        let mut attempts = Attempts::load(&self.context.store, &incident.machine)?;
        for object in self.context.reboots.of_node(incident.node.as_str()) {
            let label = object.metadata.labels.get(names::OBJECT_MANAGED_BY.text);
            let ours = label.is_some_and(|by| by == names::OBJECT_MANAGED_BY_VALUE);
            if let Some(found) = facts::found(&object).filter(|_| ours) {
                attempts.add_found(found.rung, found.made_at, &found.object);
            }
        }
        Ok(attempts)
    }

    /// Whether another repair object of the node is not at its end.
    fn other_repair(&self, incident: &Incident) -> bool {
        let mine = said::attempt_of(incident).filter(|_| is_under_way(incident));
        let objects = self.context.reboots.of_node(incident.node.as_str());
        objects.iter().any(|object| {
            !object.is_over() && mine.is_none_or(|mine| mine.object != object.metadata.name)
        })
    }

    async fn pass(
        &self,
        incident: &Incident,
        observed: &Observed,
        now: Timestamp,
    ) -> Result<Next, TurnError> {
        let name = &incident.node;
        let past = observed.attempts.past();
        let own = self.context.config.kubernetes.node_name.as_ref();
        let view = View {
            incident,
            node: observed.look.as_ref(),
            faults: &observed.faults,
            wants_drain: observed.wants_drain,
            boots: &observed.boots,
            past: &past,
            object: &observed.object,
            other_repair: observed.other_repair,
            // As long as the controller runs there, it is not its turn.
            waits_as_own_node: own == Some(name),
            policy: self.policy_now(),
        };
        let decision = match self.found(incident, view.policy, now) {
            Some(adopted) => adopted,
            None => decide(&view, now),
        };
        let mut blocked = decision.blocked;
        if orders(&decision) {
            match self.may_order(incident, observed).await? {
                May::Order => {}
                May::Not(by, pause) => {
                    blocked = Some(by);
                    self.wake_in(name, pause);
                }
            }
        }
        self.context.stages.set_repair_blocked(name, blocked);
        if blocked.is_some() && orders(&decision) {
            return Ok(Next::Done);
        }
        if let Some(at) = decision.wake_at {
            self.workers.wake_at(name, at);
        }
        if let Some(attempt) = &decision.order {
            return self.order(observed, incident, attempt).await;
        }
        self.store(incident, observed, decision, now).await
    }

    /// The repair of an incident that was rebuilt after the store was lost.
    fn found(&self, incident: &Incident, policy: &Policy, now: Timestamp) -> Option<Decision> {
        if said::attempt_of(incident).is_some() || !self.context.reboots.is_known() {
            return None;
        }
        let objects = self.context.reboots.of_node(incident.node.as_str());
        let of_incident = objects
            .iter()
            .filter(|object| facts::incident_of(object).as_ref() == Some(&incident.id));
        let found: Vec<_> = of_incident
            .filter_map(|object| facts::found(object))
            .collect();
        adopted(incident, &found, policy, now)
    }

    /// What only a look at the moment of the order tells.
    async fn may_order(&self, incident: &Incident, observed: &Observed) -> Result<May, TurnError> {
        if !self.context.reboots.is_known() {
            return Ok(May::Not("objects_unknown", FIRST_PAUSE));
        }
        if self.gate(observed).is_err() {
            return Ok(May::Not("starting", FIRST_PAUSE));
        }
        if self.is_signal_pending(&incident.node)? {
            return Ok(May::Not("other_repair", LOCK_LOOK));
        }
        // Without janitor here, locks are in the namespace of whatever carries repairs out.
        let locks = self.context.config.janitor.enabled;
        if locks && self.is_locked(&incident.node).await? {
            return Ok(May::Not("other_repair", LOCK_LOOK));
        }
        Ok(May::Order)
    }

    async fn store(
        &self,
        before: &Incident,
        observed: &Observed,
        decision: Decision,
        now: Timestamp,
    ) -> Result<Next, TurnError> {
        let (Some(incident), Some(transition)) = (decision.incident, decision.transition) else {
            return Ok(Next::Done);
        };
        let attempt = said::attempt_of(&incident);
        let state_puts = match attempt {
            Some(attempt) if transition.to == RepairStatus::Requested => {
                let window = self.policy.window;
                let attempts = observed.attempts.clone();
                vec![attempts.put(&incident.machine, attempt, window)]
            }
            Some(_) | None => Vec::new(),
        };
        let stored = self.context.store.transition(Transition {
            expected_version: Some(before.version),
            fencing: self.context.fencing,
            module: MODULE.to_owned(),
            from: transition
                .from
                .as_ref()
                .map_or("", RepairStatus::as_str)
                .to_owned(),
            to: transition.to.as_str().to_owned(),
            cause: cause(&incident, observed, &transition),
            at: now,
            state_puts,
            faults_joined: Vec::new(),
            holds: None,
            incident: incident.clone(),
        });
        match stored.await {
            Ok(_) => {}
            // The plan was made for another moment: look again.
            Err(WriteError::Stale { .. }) => return Ok(Next::Again),
            Err(error) => return Err(error.into()),
        }
        said::moved(&self.context.metrics, &incident, &transition);
        self.failures().remove(&incident.node);
        if !is_under_way(&incident) {
            self.tried().remove(&incident.node);
        }
        Ok(Next::Again)
    }

    /// Nothing is known of a node that is not out.
    fn forget(&self, node: &NodeName) {
        self.context.stages.set_repair_blocked(node, None);
        self.tried().remove(node);
        self.failures().remove(node);
    }

    /// Says once of each object that it is left.
    pub(super) fn tell_left(&self, node: &NodeName, object: &str) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if left.get(node).is_none_or(|told| told != object) {
            left.insert(node.clone(), object.to_owned());
            said::left(node, object);
        }
    }

    pub(super) fn wake_soon(&self, node: &NodeName) {
        self.wake_in(node, FIRST_PAUSE);
    }

    pub(super) fn wake_after_failure(&self, node: &NodeName) {
        let mut failures = self.failures();
        let count = failures.entry(node.clone()).or_default();
        let pause = (FIRST_PAUSE * 2_u32.pow(*count)).min(LONGEST_PAUSE);
        *count = (*count + 1).min(10);
        self.wake_in(node, jittered(pause));
    }

    fn wake_in(&self, node: &NodeName, pause: Duration) {
        let at = Timestamp::now().checked_add(pause);
        self.workers.wake_at(node, at.unwrap_or(Timestamp::MAX));
    }

    pub(super) fn tried(&self) -> MutexGuard<'_, HashMap<NodeName, Tried>> {
        self.tried.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failures(&self) -> MutexGuard<'_, HashMap<NodeName, u32>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an order may be stored now.
enum May {
    Order,
    /// Not now: what keeps it, and when to look again.
    Not(&'static str, Duration),
}

/// Whether the decision is to store an order.
fn orders(decision: &Decision) -> bool {
    let transition = decision.transition.as_ref();
    transition.is_some_and(|transition| transition.to == RepairStatus::Requested)
}

fn is_under_way(incident: &Incident) -> bool {
    let repair = incident.repair.as_ref();
    repair.is_some_and(|repair| repair.status.is_under_way())
}

fn is_at(incident: &Incident, status: &RepairStatus) -> bool {
    incident.repair.as_ref().map(|repair| &repair.status) == Some(status)
}

/// The facts that decided, for the audit trail.
fn cause(
    incident: &Incident,
    observed: &Observed,
    transition: &decide::remediation::Transition,
) -> String {
    let attempt = said::attempt_of(incident);
    let look = observed.look.as_ref();
    json!({
        "reason": transition.reason.code(),
        "text": said::text(transition, attempt),
        "open_faults": observed.faults.len(),
        "boot": look.map(|look| look.boot.as_str()),
        "ready": look.map(|look| look.ready),
        "attempt": attempt.map(|attempt| attempt.number),
        "object": attempt.map(|attempt| attempt.object.as_str()),
        "force": attempt.map(|attempt| attempt.force),
        "boot_before": attempt.map(|attempt| attempt.boot_before.as_str()),
    })
    .to_string()
}
