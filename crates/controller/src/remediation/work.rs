//! One node's turn: observe, decide, store, apply.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use decide::remediation::{Decision, Mode, Policy, Reason, View, adopted, decide};
use event_store::{ReadError, Transition, WriteError};
use health_event::NodeName;
use health_event::incident::{Incident, RepairStatus};
use jiff::Timestamp;
use serde_json::json;
use tokio::time::Instant;

use super::left::Left;
use super::observe::{Observed, is_under_way};
use super::order::{Fate, Tried};
use super::{MODULE, facts, said, settings};
use crate::backlog::Backlog;
use crate::context::Context;
use crate::crash;
use crate::janitor::IntentsError;
use crate::kubernetes::{CallError, Reference, jittered};
use crate::lease::Leadership;
use crate::orders::OnItsWay;
use crate::workers::Workers;

/// Decisions in one turn: planned, ordered, seen, and one more. A turn that needs more goes on in the
/// next, so that no node holds a worker.
const PASSES: usize = 8;
/// First pause after a failure; it doubles.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause, before its random part.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// What keeps a planned repair where another's object is past its time, and nobody ends it.
const LEFT_REPAIR: &str = "left_repair";
/// Between looks at a signal of another order that may still have its effect.
const SIGNAL_LOOK: Duration = Duration::from_secs(10);

/// What all workers share.
pub(super) struct Module {
    pub(super) context: Context,
    pub(super) leadership: Leadership,
    pub(super) reference: Reference,
    pub(super) workers: Workers,
    pub(super) policy: Policy,
    /// The same while another fault-remediation runs in the cluster.
    refused: Policy,
    /// Whether what wants the node empty waits for the drain.
    pub(super) drain_counts: bool,
    /// What became of the calls for a node's present object.
    tried: Mutex<HashMap<NodeName, Tried>>,
    /// Failures of a node in a row.
    failures: Mutex<HashMap<NodeName, u32>>,
    /// The objects that were said to be left.
    pub(super) left: Left,
    /// The repairs that waited for the first-action delay.
    backlog: Backlog,
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
        backlog: Backlog,
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
            left: Left::default(),
            backlog,
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
            Ok(open) => {
                // All of them first, so that none overtakes an older one.
                for one in open.iter().filter(|one| self.is_of_backlog(one)) {
                    self.backlog.join(one);
                }
                for one in &open {
                    self.workers.wake(&one.node);
                }
            }
            Err(error) => tracing::warn!(code = error.code(), %error, "nodes are not woken"),
        }
    }

    /// One node's turn.
    pub(super) async fn work(&self, node: &NodeName) {
        let started = Instant::now();
        if let Err(error) = self.turn(node).await {
            let metrics = &self.context.metrics;
            said::failed(metrics, node, error.code(), &error.to_string());
            if let TurnError::Call(_) = error {
                let blocked = Some("api_error");
                self.context.stages.set_repair_blocked(node, blocked);
            }
            self.wake_after_failure(node);
        } else if !self.is_refused(node) {
            self.failures().remove(node);
        }
        let seconds = started.elapsed().as_secs_f64();
        self.context.metrics.remediation.handling.observe(seconds);
    }

    async fn turn(&self, node: &NodeName) -> Result<(), TurnError> {
        self.recall(node).await?;
        let mut order = None;
        for _ in 0..PASSES {
            let Some(incident) = self.incident(node)? else {
                self.forget(node);
                return Ok(());
            };
            let Some(observed) = self.observe(&incident).await? else {
                return Ok(());
            };
            match self.pass(&incident, &observed, &mut order).await? {
                Next::Again => {}
                Next::Done => return Ok(()),
            }
        }
        self.workers.wake(node);
        Ok(())
    }

    /// One decision; `on_its_way` tells of the order from before it is stored until it is answered.
    async fn pass(
        &self,
        incident: &Incident,
        observed: &Observed,
        on_its_way: &mut Option<OnItsWay>,
    ) -> Result<Next, TurnError> {
        let now = Timestamp::now();
        let name = &incident.node;
        let past = observed.attempts.past(incident);
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
        let decision = match self.found(incident, observed, view.policy, now) {
            Some(adopted) => adopted,
            None => decide(&view, now),
        };
        let mut blocked = decision.blocked;
        if let (Some("other_repair"), Some(until)) = (blocked, observed.others_until) {
            if until <= now {
                blocked = Some(LEFT_REPAIR);
            } else {
                self.workers.wake_at(name, until);
            }
        }
        let may = if orders(&decision) {
            Some(self.may_order(incident, observed)?)
        } else {
            None
        };
        let is_free = matches!(may, Some(May::Order));
        if !self.has_turn(incident, blocked, is_free, now) {
            blocked = Some("turn");
        } else if let Some(may) = may {
            match may {
                May::Order => *on_its_way = Some(self.context.orders.begin()),
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
            on_its_way.get_or_insert_with(|| self.context.orders.begin());
            let next = self.order(observed, incident, attempt).await;
            *on_its_way = None;
            return next;
        }
        self.store(incident, observed, decision, now).await
    }

    /// Whether its repair waited for the end of the first-action delay, and was not ordered since.
    fn is_of_backlog(&self, incident: &Incident) -> bool {
        let until = self.policy.first_action_until;
        let repair = incident.repair.as_ref();
        repair.is_some_and(|repair| {
            matches!(repair.status, RepairStatus::Planned { .. }) && Some(repair.since) <= until
        })
    }

    /// Whether nothing but its turn keeps a repair; `is_free`: it would be ordered now.
    fn has_turn(
        &self,
        incident: &Incident,
        blocked: Option<&str>,
        is_free: bool,
        now: Timestamp,
    ) -> bool {
        let (backlog, nodes) = (&self.backlog, &self.context.nodes);
        if !self.is_of_backlog(incident) {
            backlog.leave(&incident.node);
        } else if blocked == Some("first_action") {
            backlog.join(incident);
        } else if is_free {
            return backlog.may_go(incident, nodes, now);
        } else {
            backlog.pass_over(incident, nodes, now);
        }
        true
    }

    /// The repair of an incident that was rebuilt after the store was lost.
    fn found(
        &self,
        incident: &Incident,
        observed: &Observed,
        policy: &Policy,
        now: Timestamp,
    ) -> Option<Decision> {
        if said::attempt_of(incident).is_some() || !self.context.reboots.is_known() {
            return None;
        }
        let objects = self.context.reboots.of_node(incident.node.as_str());
        let of_incident = objects
            .iter()
            .filter(|object| facts::is_ordered_by(object, incident));
        let mut found: Vec<_> = of_incident
            .filter_map(|object| facts::found(object))
            .collect();
        if let (Some(node), Some(look)) = (&observed.node, &observed.look) {
            found.extend(facts::noted(node, incident, &look.boot, now));
        }
        adopted(incident, &found, policy, now)
    }

    /// What only a look at the moment of the order tells.
    /// Not the node's lock: whoever carries the repair out takes it first, and an order waits for it in
    /// that one's queue.
    fn may_order(&self, incident: &Incident, observed: &Observed) -> Result<May, TurnError> {
        if !self.context.reboots.is_known() {
            return Ok(May::Not("objects_unknown", FIRST_PAUSE));
        }
        if !self.context.reboots.are_defined() {
            // Once they are, that wakes.
            return Ok(May::Not("no_definition", LONGEST_PAUSE));
        }
        if self.gate(observed).is_err() {
            return Ok(May::Not("starting", FIRST_PAUSE));
        }
        if self.is_signal_pending(&incident.node, &incident.machine)? {
            return Ok(May::Not("other_repair", SIGNAL_LOOK));
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
            Some(attempt)
                if transition.to == RepairStatus::Requested
                    || transition.reason == Reason::Found =>
            {
                let window = self.policy.window;
                let attempts = observed.attempts.clone();
                let put = attempts.put(&incident, attempt, window);
                let turn = self.is_of_backlog(before).then(|| self.backlog.record());
                std::iter::once(put).chain(turn).collect()
            }
            // One that is begun all the same is counted by its object.
            Some(attempt) if attempt.effect.is_unsent() => {
                let mut attempts = observed.attempts.clone();
                let counted = attempts.take_back(&attempt.object);
                let stored = counted.then(|| attempts.stored(&incident.machine));
                stored.into_iter().collect()
            }
            Some(_) | None => Vec::new(),
        };
        crash::point("remediation.before-transition");
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
            Ok(_) => crash::point("remediation.after-transition"),
            // The plan was made for another moment: look again.
            Err(WriteError::Stale { .. }) => return Ok(Next::Again),
            Err(error) => return Err(error.into()),
        }
        said::moved(&self.context.metrics, &incident, &transition);
        if !is_under_way(&incident) {
            self.tried().remove(&incident.node);
        }
        Ok(Next::Again)
    }

    /// Nothing is known of a node that is not out.
    fn forget(&self, node: &NodeName) {
        self.context.stages.set_repair_blocked(node, None);
        self.backlog.leave(node);
        self.tried().remove(node);
        self.failures().remove(node);
    }

    /// Whether the node's order was refused for a reason that a person may mend.
    fn is_refused(&self, node: &NodeName) -> bool {
        let tried = self.tried();
        let tried = tried.get(node);
        tried.is_some_and(|tried| matches!(tried.fate, Fate::NotYet(_)))
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

/// Whether the decision is to store an order: one whose object went is stored already.
fn orders(decision: &Decision) -> bool {
    let transition = decision.transition.as_ref();
    transition.is_some_and(|transition| {
        transition.to == RepairStatus::Requested && transition.reason != Reason::ObjectGone
    })
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
