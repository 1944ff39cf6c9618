//! One node's turn: observe, decide, store, ask.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use decide::drain::{BlockedBy, Decision, Mode, Policy, View, at_work_until, is_draining};
use event_store::{ReadError, Transition, WriteError};
use health_event::incident::{DrainStatus, DrainWait, Incident, RepairStatus};
use health_event::{NodeName, Sender};
use jiff::Timestamp;
use k8s_api::names;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::apply::{Apply, Blocked, Order};
use super::asked::{Memory, Outcome};
use super::{facts, said, settings};
use crate::backlog::Backlog;
use crate::context::Context;
use crate::crash;
use crate::janitor::{self, IntentsError};
use crate::kubernetes::jittered;
use crate::nodes::NodeFacts;
use crate::stages::PodLook;
use crate::workers::Workers;

/// Decisions in one turn: beginning, asking, and two more where something changed in between. A turn
/// that needs more goes on in the next, so that no node holds a worker.
const PASSES: usize = 4;
/// Pause before a turn that failed is tried again, and before what the gate stopped for a time.
const PAUSE: Duration = Duration::from_secs(1);
/// Name of the module in the store.
pub(super) const MODULE: &str = "drain";

/// What all workers share.
pub(super) struct Module {
    pub(super) context: Context,
    pub(super) apply: Apply,
    pub(super) workers: Workers,
    policy: Policy,
    /// The same while another node-drainer runs in the cluster.
    refused: Policy,
    /// Senders that may force a drain.
    forcing: BTreeSet<Sender>,
    memory: Memory,
    orders: mpsc::UnboundedSender<Order>,
    /// The drains that waited for the first-action delay.
    backlog: Backlog,
}

/// Why a turn ended early. Both are tried again.
#[derive(Debug, thiserror::Error)]
enum TurnError {
    #[error("the event store can't be read: {0}")]
    Read(#[from] ReadError),
    #[error("the decision can't be stored: {0}")]
    Write(#[from] WriteError),
    #[error(transparent)]
    Intents(#[from] IntentsError),
}

impl TurnError {
    fn code(&self) -> &'static str {
        match self {
            Self::Read(_) => "store_unreadable",
            Self::Write(error) => error.code(),
            Self::Intents(error) => error.code(),
        }
    }
}

/// Whether the turn goes on.
enum Next {
    Again,
    Done,
}

impl Module {
    /// What is to be called comes out of the queue, which holds a pod once at most.
    pub(super) fn new(
        context: Context,
        apply: Apply,
        policy: Policy,
        workers: Workers,
        backlog: Backlog,
    ) -> (Self, mpsc::UnboundedReceiver<Order>) {
        let (orders, queue) = mpsc::unbounded_channel();
        let refused = Policy {
            mode: Mode::Refused,
            ..policy.clone()
        };
        let module = Self {
            forcing: settings::forcing(&context.config.ingest),
            context,
            apply,
            workers,
            policy,
            refused,
            memory: Memory::default(),
            orders,
            backlog,
        };
        (module, queue)
    }

    /// Wakes all nodes with an incident, those with the oldest first.
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
            Err(error) => {
                tracing::warn!(code = error.code(), %error, "nodes are decided about as they change");
            }
        }
    }

    /// What decisions are bound to now; none while it is not known whether another drains.
    fn policy_now(&self) -> Option<&Policy> {
        let reference = &self.apply.reference;
        match self.policy.mode {
            Mode::Enforce if !reference.is_known() => None,
            Mode::Enforce if reference.runs() => Some(&self.refused),
            Mode::Enforce | Mode::Refused | Mode::DryRun | Mode::Off => Some(&self.policy),
        }
    }

    /// One node's turn.
    pub(super) async fn work(&self, node: &NodeName) {
        let started = Instant::now();
        if let Err(error) = self.turn(node).await {
            let metrics = &self.context.metrics;
            said::failed(metrics, node, error.code(), &error.to_string());
            self.wake_in(node, jittered(PAUSE));
        }
        let seconds = started.elapsed().as_secs_f64();
        self.context.metrics.drain_handling_seconds.observe(seconds);
        let waiting = i64::try_from(self.workers.backlog()).unwrap_or(i64::MAX);
        self.context.metrics.drain_queue.set(waiting);
    }

    async fn turn(&self, name: &NodeName) -> Result<(), TurnError> {
        for _ in 0..PASSES {
            let now = Timestamp::now();
            let open = self.context.store.open_incidents_of(name)?;
            let node = self.context.nodes.get(name);
            let Some(incident) = of_node(&open, node.as_deref(), self.policy.mode) else {
                // Gone from the cache alone is not gone: quarantine says so, by ending the incident.
                if open.is_empty() || node.is_some() {
                    self.forget(name);
                }
                return Ok(());
            };
            match self.pass(incident, node.as_deref(), now).await? {
                Next::Again => {}
                Next::Done => return Ok(()),
            }
        }
        self.workers.wake(name);
        Ok(())
    }

    async fn pass(
        &self,
        incident: &Incident,
        node: Option<&NodeFacts>,
        now: Timestamp,
    ) -> Result<Next, TurnError> {
        let Some(policy) = self.policy_now() else {
            return Ok(Next::Done);
        };
        let name = &incident.node;
        let faults = self.context.store.open_faults(name)?;
        let overrides = facts::overrides(&faults, &self.forcing);
        let mut view = View {
            incident,
            overrides: &overrides,
            ends_processes: facts::ends_processes(incident),
            repair_under_way: facts::repair_under_way(incident) && self.is_begun(incident)?,
            kubelet_silent_since: node.and_then(facts::kubelet_silent_since),
            paused: node.is_some_and(|n| n.annotation(names::PAUSE.text).is_some()),
            waits_as_own_node: self.waits_as_own_node(incident, now)?,
            waits_for_turn: false,
            pods: None,
            asked: &self.memory.of(name),
            policy,
        };
        view.waits_for_turn = self.waits_for_turn(incident, &view, now);
        let needs_pods = decide::drain::needs_pods(&view, now);
        let pods = self.pods(name, needs_pods);
        view.pods = pods.as_deref();
        let decision = decide::drain::decide(&view, now);
        self.show(incident, &decision, pods.is_some());
        if let (Some(next), Some(transition)) = (&decision.incident, &decision.transition) {
            if !self
                .store(incident, next, &decision, transition, now)
                .await?
            {
                return Ok(Next::Again);
            }
            let metrics = &self.context.metrics;
            said::moved(metrics, incident, &decision, transition, now);
            return Ok(Next::Again);
        }
        self.ask(incident, &decision);
        if let Some(at) = decision.wake_at {
            self.workers.wake_at(name, by_age(incident, policy, at));
        }
        Ok(Next::Done)
    }

    /// Whether the repair that is under way may have its effect: one that waits in a queue may wait until
    /// pods that came are gone.
    fn is_begun(&self, incident: &Incident) -> Result<bool, TurnError> {
        let repair = incident.repair.as_ref();
        let Some(attempt) = repair.and_then(|repair| repair.attempt.as_ref()) else {
            return Ok(true);
        };
        let Some(object) = self.context.reboots.get(&attempt.object) else {
            return Ok(repair.is_none_or(|r| r.status != RepairStatus::Requested));
        };
        let intent = janitor::intent(&self.context.store, &object.metadata.uid)?;
        Ok(intent.is_some() || object.may_have_begun())
    }

    /// The pods as far as they are needed and known; from now on they are followed, or not.
    fn pods(&self, name: &NodeName, needed: bool) -> Option<Arc<[decide::drain::PodFacts]>> {
        let pods = &self.context.pods;
        if !needed {
            pods.release(name);
            return None;
        }
        pods.want(name);
        let known = pods.of_node(name)?;
        // What may have changed unseen is waited for: the list of the next watch wakes.
        let pods = known.pods;
        known.old_since.is_none().then(|| {
            self.memory.keep(name, &pods);
            pods
        })
    }

    /// Whether the controller runs on this node, and others are drained or repaired. What has begun
    /// waits no more.
    fn waits_as_own_node(&self, incident: &Incident, now: Timestamp) -> Result<bool, ReadError> {
        let config = &self.context.config;
        let own = config.kubernetes.node_name.as_ref();
        if own != Some(&incident.node) || is_draining(incident) {
            return Ok(false);
        }
        let repairs = config.remediation.enabled && !config.remediation.dry_run;
        let open = self.context.store.open_incidents()?;
        let others = open.iter().filter(|other| other.id != incident.id);
        let until = others
            .filter_map(|other| at_work_until(other, &self.policy, repairs))
            .max()
            .filter(|until| now < *until);
        // Only a change of another incident would wake it else.
        if let Some(until) = until.filter(|until| *until < Timestamp::MAX) {
            self.workers.wake_at(&incident.node, until);
        }
        Ok(until.is_some())
    }

    /// Whether its drain waited for the end of the first-action delay, and has not begun since.
    fn is_of_backlog(&self, incident: &Incident) -> bool {
        let until = self.policy.first_action_until;
        let drain = incident.drain.as_ref();
        drain.is_some_and(|drain| {
            matches!(drain.status, DrainStatus::Waiting(_)) && Some(drain.since) <= until
        })
    }

    fn waits_for_turn(&self, incident: &Incident, view: &View<'_>, now: Timestamp) -> bool {
        let (backlog, nodes) = (&self.backlog, &self.context.nodes);
        if !self.is_of_backlog(incident) {
            backlog.leave(&incident.node);
            false
        } else if view
            .policy
            .first_action_until
            .is_some_and(|until| now < until)
        {
            backlog.join(incident);
            false
        } else if decide::drain::may_begin(view, now) {
            !backlog.may_go(incident, nodes, now)
        } else {
            backlog.pass_over(incident, nodes, now);
            false
        }
    }

    /// What it waits for, for the API and metrics; what was seen last stays while pods are not known.
    fn show(&self, incident: &Incident, decision: &Decision, pods_known: bool) {
        let (context, node) = (&self.context, &incident.node);
        let status = incident.drain.as_ref().map(|drain| &drain.status);
        match status {
            Some(DrainStatus::Draining(_)) => {
                let checks = incident.open_faults();
                let checks = checks.map(|f| f.id.scope.check_name.clone()).collect();
                self.memory.draining(node, checks);
            }
            Some(DrainStatus::Failed(_)) => self.memory.failed(node),
            Some(DrainStatus::Drained) => {
                self.memory.forget(node);
                said::waits_for_timeout(&context.metrics, node, None);
            }
            Some(DrainStatus::Cancelled) => self.over(node),
            Some(DrainStatus::Waiting(_)) | None => {}
        }
        let waits = matches!(
            status,
            Some(DrainStatus::Waiting(_) | DrainStatus::Draining(_) | DrainStatus::Failed(_))
        );
        if !waits {
            context.stages.set_pods(node, None);
        } else if pods_known {
            let by_time = |blocker: &decide::drain::Blocker| blocker.why == BlockedBy::Timeout;
            let waits = decision.blockers.iter().any(by_time);
            if is_draining(incident) {
                said::waits_for_timeout(&context.metrics, node, Some(waits));
            }
            let look = PodLook {
                blockers: decision.blockers.clone(),
                passed_over: decision.passed_over.clone(),
            };
            context.stages.set_pods(node, Some(look));
        }
    }

    /// Stores the transition; answers whether it was still the plan for this incident.
    async fn store(
        &self,
        before: &Incident,
        next: &Incident,
        decision: &Decision,
        moved: &decide::drain::Transition,
        now: Timestamp,
    ) -> Result<bool, WriteError> {
        let other = self.apply.reference.found();
        let transition = Transition {
            incident: next.clone(),
            expected_version: Some(before.version),
            fencing: self.context.fencing,
            module: MODULE.to_owned(),
            from: moved
                .from
                .as_ref()
                .map_or("", DrainStatus::as_str)
                .to_owned(),
            to: moved.to.as_str().to_owned(),
            cause: said::cause(decision, moved, other.as_deref()),
            at: now,
            state_puts: self
                .is_of_backlog(before)
                .then(|| self.backlog.record())
                .into_iter()
                .collect(),
            faults_joined: Vec::new(),
            holds: None,
        };
        crash::point("drain.before-transition");
        match self.context.store.transition(transition).await {
            Ok(_) => {
                crash::point("drain.after-transition");
                Ok(true)
            }
            Err(WriteError::Stale { .. } | WriteError::AnotherOpen { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Puts the calls into the queue.
    fn ask(&self, incident: &Incident, decision: &Decision) {
        for ask in &decision.asks {
            self.memory.ask(&incident.node, &ask.pod.uid);
            let order = Order {
                node: incident.node.clone(),
                incident: incident.id.clone(),
                version: incident.version,
                ask: ask.clone(),
            };
            if self.orders.send(order).is_err() {
                // The module ends.
                return;
            }
        }
    }

    /// Makes one call of the queue, and wakes its node with what came of it.
    pub(super) async fn carry_out(&self, order: Order) {
        let (node, uid) = (&order.node, &order.ask.pod.uid);
        let tell = |outcome| self.memory.tell(node, uid, outcome, Timestamp::now());
        match self.apply.gate(&order) {
            Ok(deadline) => {
                let (outcome, code) = self.apply.send(&order.ask, deadline).await;
                said::called(&self.context.metrics, &order, &outcome, code);
                tell(outcome);
                self.workers.wake(node);
            }
            Err(by) => {
                tell(Outcome::NotMade);
                match by {
                    // Decided again, it is another call or none.
                    Blocked::Stale | Blocked::ReferenceRuns | Blocked::Mode => {
                        self.workers.wake(node);
                    }
                    Blocked::NotLeading | Blocked::ReferenceUnknown | Blocked::Unreadable => {
                        said::blocked(node, by);
                        self.wake_in(node, PAUSE);
                    }
                }
            }
        }
    }

    /// Nothing is drained there.
    fn forget(&self, node: &NodeName) {
        self.context.pods.release(node);
        self.context.stages.set_pods(node, None);
        self.backlog.leave(node);
        self.over(node);
    }

    fn over(&self, node: &NodeName) {
        let metrics = &self.context.metrics;
        if let Some(checks) = self.memory.forget(node) {
            said::cancelled(metrics, node, &checks);
        }
        said::waits_for_timeout(metrics, node, None);
    }

    fn wake_in(&self, node: &NodeName, pause: Duration) {
        let at = Timestamp::now().checked_add(pause);
        self.workers.wake_at(node, at.unwrap_or(Timestamp::MAX));
    }
}

/// When to look again: at the end of the first-action delay the nodes are woken by the age of their
/// incidents (`run`), and each by itself only where that did not come to pass.
fn by_age(incident: &Incident, policy: &Policy, at: Timestamp) -> Timestamp {
    let waits = incident.drain.as_ref().is_some_and(|drain| {
        let wait = DrainWait::FirstAction { until: at };
        drain.status == DrainStatus::Waiting(wait) && policy.first_action_until == Some(at)
    });
    let pause = if waits { PAUSE } else { Duration::ZERO };
    at.checked_add(pause).unwrap_or(Timestamp::MAX)
}

/// The incident of the node object that is there. A module that is off only ends what runs, for which
/// it needs no node.
fn of_node<'a>(open: &'a [Incident], node: Option<&NodeFacts>, mode: Mode) -> Option<&'a Incident> {
    match mode {
        Mode::Off => open.first(),
        Mode::Enforce | Mode::DryRun | Mode::Refused => {
            let uid = &*node?.uid;
            open.iter().find(|incident| incident.node_uid == uid)
        }
    }
}
