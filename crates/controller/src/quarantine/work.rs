//! One node's turn: observe, decide, store, apply.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use decide::breaker::{Ask, Cause, Permit};
use decide::quarantine::{
    AgentFacts, Annotation, Decision, FaultFacts, MarkOrigin, NodeFacts, NodeWrite, Policy,
    Request, View, WriteFeedback,
};
use decide::rules::RuleSets;
use event_store::{EventStore, Machine, ReadError, Transition, WriteError};
use health_event::incident::{Incident, IncidentId};
use health_event::{FaultId, NodeName};
use jiff::Timestamp;
use k8s_api::health_events;
use serde_json::json;
use tokio::time::Instant;
use ulid::Ulid;

use super::apply::{Apply, Blocked};
use super::breaker::{Breaker, TakenRecord};
use super::{facts, said};
use crate::context::Context;
use crate::crash;
use crate::kubernetes::CallError;
use crate::nodes::{self, Wanted};
use crate::reports::AgentState;
use crate::workers::Workers;

/// Decisions in one turn: joining, taking out, seeing the write and one more. A turn that needs
/// more goes on in the next, so that no node holds a worker.
const PASSES: usize = 8;
/// Refused patches on an unchanged node until it is an error.
const REFUSALS: u32 = 5;
/// First pause after a failed write; it doubles.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause after failed writes.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Longest time for a direct read of a node.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Name of the module in the store.
pub(super) const MODULE: &str = "quarantine";

/// What all workers share.
pub(super) struct Module {
    pub(super) context: Context,
    pub(super) apply: Apply,
    pub(super) policy: Policy,
    pub(super) rules: RuleSets,
    pub(super) wanted: Wanted,
    pub(super) breaker: Breaker,
    pub(super) workers: Workers,
    /// Requests of persons that wait, by node.
    pub(super) requests: Mutex<HashMap<NodeName, super::asked::Waiting>>,
    /// What became of the last write of nodes whose write is not seen yet, or failed.
    writes: Mutex<HashMap<NodeName, LastWrite>>,
}

/// What became of a node's last write.
#[derive(Debug, Clone, Default)]
struct LastWrite {
    /// Version of the node that the accepted write made; 0 if none was accepted.
    version: u64,
    /// Version of the node on which patches were refused.
    refused_on: u64,
    /// How often in a row on that version.
    refusals: u32,
    /// Failures in a row, for the pause.
    failures: u32,
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
    #[error(
        "node {node} refuses the write {REFUSALS} times although it does not change: {why}. Check \
         the taints of the rule sets and admission webhooks on nodes"
    )]
    Refused { node: NodeName, why: String },
}

impl TurnError {
    pub(super) fn code(&self) -> &'static str {
        match self {
            Self::Read(_) => "store_unreadable",
            Self::Write(error) => error.code(),
            Self::Call(error) => error.code(),
            Self::Refused { .. } => "write_refused",
        }
    }
}

/// What a pass saw.
struct Observed {
    node: Option<Arc<nodes::NodeFacts>>,
    facts: Option<NodeFacts>,
    incident: Option<Incident>,
    faults: Vec<FaultFacts>,
    machine: Machine,
    agent: AgentFacts,
    mark_origin: MarkOrigin,
    request: Option<Request>,
}

/// Whether the turn goes on.
enum Next {
    Again,
    Done,
}

impl Module {
    pub(super) fn new(
        context: Context,
        apply: Apply,
        policy: Policy,
        rules: RuleSets,
        wanted: Wanted,
        breaker: Breaker,
        workers: Workers,
    ) -> Self {
        Self {
            context,
            apply,
            policy,
            rules,
            wanted,
            breaker,
            workers,
            requests: Mutex::default(),
            writes: Mutex::default(),
        }
    }

    /// One node's turn.
    pub(super) async fn work(&self, node: &NodeName) {
        let started = Instant::now();
        if let Err(error) = self.turn(node).await {
            said::failed(
                &self.context.metrics,
                node,
                error.code(),
                &error.to_string(),
            );
            let pause = self.pause_after_failure(node);
            self.wake_in(node, pause);
        }
        let seconds = started.elapsed().as_secs_f64();
        self.context.metrics.event_handling_seconds.observe(seconds);
    }

    async fn turn(&self, node: &NodeName) -> Result<(), TurnError> {
        for _ in 0..PASSES {
            let now = Timestamp::now();
            let Some(observed) = self.observe(node).await? else {
                return Ok(());
            };
            match self.pass(node, &observed, now).await? {
                Next::Again => {}
                Next::Done => return Ok(()),
            }
        }
        self.workers.wake(node);
        Ok(())
    }

    /// Everything that one decision looks at; none if there is nothing to decide.
    async fn observe(&self, name: &NodeName) -> Result<Option<Observed>, TurnError> {
        let store = &self.context.store;
        let incidents = store.open_incidents_of(name)?;
        let node = self.context.nodes.get(name);
        if node.is_none() {
            if incidents.is_empty() {
                return Ok(None);
            }
            // The cache lost it: only a direct read says that it is gone.
            let deadline = Instant::now() + READ_TIMEOUT;
            if self.context.kube.node_uid(name, deadline).await?.is_some() {
                self.wake_in(name, FIRST_PAUSE);
                return Ok(None);
            }
        }
        let uid = node.as_ref().map(|n| &*n.uid);
        // The incident of another object under this name ends first.
        let incident = incidents
            .into_iter()
            .min_by_key(|i| Some(i.node_uid.as_str()) == uid);
        let machine_id = match (&node, &incident) {
            (Some(node), _) => node.machine().to_owned(),
            (None, Some(incident)) => incident.machine.clone(),
            (None, None) => String::new(),
        };
        let machine = self.machine(&machine_id, node.as_deref()).await?;
        let facts = node.as_ref().map(|n| {
            let pool = self.context.nodes.pool_of(n);
            facts::node_facts(n, pool, &self.policy, &self.apply.label_prefix)
        });
        let faults = match &node {
            Some(node) => self.faults(node)?,
            None => Vec::new(),
        };
        let mark_origin = mark_origin(store, facts.as_ref(), incident.as_ref())?;
        Ok(Some(Observed {
            agent: agent_facts(self.context.reports.agent(name)?),
            request: self.request_of(name),
            node,
            facts,
            incident,
            faults,
            machine,
            mark_origin,
        }))
    }

    /// What is known of the machine, with the boot that the node's status shows noted.
    async fn machine(
        &self,
        id: &str,
        node: Option<&nodes::NodeFacts>,
    ) -> Result<Machine, TurnError> {
        let store = &self.context.store;
        let mut machine = store.machine(id)?.unwrap_or_default();
        if let Some(node) = node {
            let boot = health_event::BootId::new(&node.boot_id);
            if machine.boots.observe(&boot) {
                store.observe_boot(id, &boot, "", Timestamp::now()).await?;
            }
        }
        Ok(machine)
    }

    fn faults(&self, node: &nodes::NodeFacts) -> Result<Vec<FaultFacts>, TurnError> {
        let stored = self.context.store.open_faults(&node.name)?;
        let mut faults = Vec::with_capacity(stored.len());
        for fault in stored {
            let (fault, errors) = facts::fault_facts(fault, &self.rules, node);
            said::rule_errors(&self.context.metrics, &errors);
            faults.push(fault);
        }
        Ok(faults)
    }

    async fn pass(
        &self,
        name: &NodeName,
        observed: &Observed,
        now: Timestamp,
    ) -> Result<Next, TurnError> {
        let new_id = new_incident_id();
        let mut view = View {
            node: observed.facts.as_ref(),
            incident: observed.incident.as_ref(),
            faults: &observed.faults,
            holds: &observed.machine.holds,
            agent: &observed.agent,
            boots: &observed.machine.boots,
            policy: &self.policy,
            rules: &self.rules,
            feedback: self.feedback(name, observed.node.as_deref()),
            mark_origin: observed.mark_origin,
            request: observed.request.as_ref(),
            permit: None,
            new_id: &new_id,
        };
        let mut decision = decide::quarantine::decide(&view, now);
        let stored = if let Some(ask) = decision.ask.take() {
            // Permit, decision and the order of the stored states belong together: the lock is held
            // until the writes are queued, for a few microseconds.
            let mut state = self.breaker.lock();
            let before = Breaker::record(&state, &ask.pool);
            let permit = state.take(
                &self.breaker.config,
                &Ask {
                    pool: &ask.pool,
                    pool_size: self.context.nodes.pool_size(&ask.pool),
                    node: name,
                    rule: &ask.rule,
                    check: &ask.check,
                    paced: ask.paced,
                    opened_at: ask.opened_at,
                },
                now,
            );
            view.permit = Some(permit);
            decision = decide::quarantine::decide(&view, now);
            let after = Breaker::record(&state, &ask.pool);
            let puts = after
                .filter(|after| Some(after) != before.as_ref())
                .into_iter()
                .collect();
            said::breaker(
                &self.context.metrics,
                &state,
                &ask.pool,
                before != None,
                permit,
            );
            let taken = TakenRecord {
                taken: permit == Permit::Taken,
                pool: ask.pool,
                rule: ask.rule,
                check: ask.check,
            };
            self.breaker.changed.notify_one();
            self.store(&decision, observed, &taken, puts, now)
        } else {
            self.store(
                &decision,
                observed,
                &TakenRecord::default(),
                Vec::new(),
                now,
            )
        };
        if let Some(stored) = stored {
            crash::point("quarantine.before-intent");
            let stored = stored.await;
            crash::point("quarantine.after-intent");
            match stored {
                Ok(_) => {}
                // The plan was made for another moment: look again.
                Err(WriteError::Stale { .. } | WriteError::AnotherOpen { .. }) => {
                    self.give_back(name, observed);
                    return Ok(Next::Again);
                }
                Err(error) => {
                    self.give_back(name, observed);
                    return Err(error.into());
                }
            }
        }
        self.after_store(name, observed, decision, now).await
    }

    async fn after_store(
        &self,
        name: &NodeName,
        observed: &Observed,
        decision: Decision,
        now: Timestamp,
    ) -> Result<Next, TurnError> {
        if decision.give_back {
            self.give_back(name, observed);
        }
        if decision.count_out
            && let Some(incident) = &decision.incident
        {
            let cause = Cause {
                rule: "hold".to_owned(),
                check: String::new(),
            };
            self.breaker.lock().count(&incident.pool, name, cause);
        }
        if decision.request_done {
            self.answer_request(name, &decision.notes);
        }
        said::decision(
            &self.context.metrics,
            name,
            observed.incident.as_ref(),
            &decision,
            now,
        );
        if let Some(at) = decision.wake_at {
            self.workers.wake_at(name, at);
        }
        if decision.adopt {
            return self.adopt(name, observed, now).await;
        }
        if let (Some(write), Some(node)) = (&decision.write, &observed.node) {
            return self.write(write, node).await;
        }
        let changed = decision.incident.is_some() || decision.transition.is_some();
        Ok(if changed { Next::Again } else { Next::Done })
    }

    /// Puts the decision's transition into the store's queue. None if there is nothing to store.
    fn store(
        &self,
        decision: &Decision,
        observed: &Observed,
        taken: &TakenRecord,
        state_puts: Vec<(String, Vec<u8>)>,
        now: Timestamp,
    ) -> Option<event_store::Reply<u64>> {
        let incident = decision.incident.clone()?;
        let before = observed
            .incident
            .as_ref()
            .filter(|before| before.id == incident.id);
        let known = |id: &FaultId| before.is_some_and(|b| b.faults.iter().any(|f| f.id == *id));
        let faults_joined = incident
            .faults
            .iter()
            .map(|f| f.id.clone())
            .filter(|id| !known(id))
            .collect();
        let from = before.map_or("", |b| b.quarantine.as_str()).to_owned();
        let transition = Transition {
            expected_version: before.map(|b| b.version),
            fencing: self.context.fencing,
            module: MODULE.to_owned(),
            from,
            to: incident.quarantine.as_str().to_owned(),
            cause: cause(decision, observed, taken),
            at: now,
            state_puts,
            faults_joined,
            holds: decision.holds.clone(),
            incident,
        };
        Some(self.context.store.transition(transition))
    }

    /// Writes to the node, through the gate.
    async fn write(
        &self,
        write: &NodeWrite,
        node: &Arc<nodes::NodeFacts>,
    ) -> Result<Next, TurnError> {
        let deadline = match self.apply.gate(write, node) {
            Ok(deadline) => deadline,
            Err(blocked) => {
                said::blocked(&self.context.metrics, &node.name, blocked);
                if blocked == Blocked::NotLeading {
                    self.wake_in(&node.name, FIRST_PAUSE);
                }
                return Ok(Next::Done);
            }
        };
        match self.apply.send(write, deadline).await {
            Ok(version) => {
                self.set_write(
                    &node.name,
                    LastWrite {
                        version,
                        ..LastWrite::default()
                    },
                );
                Ok(Next::Done)
            }
            Err(CallError::Changed { message, .. }) => self.refused(node, message).await,
            Err(CallError::NotFound { .. }) => {
                self.wake_in(&node.name, FIRST_PAUSE);
                Ok(Next::Done)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// A test of the patch failed: the node is read again and decided about again.
    async fn refused(&self, node: &Arc<nodes::NodeFacts>, why: String) -> Result<Next, TurnError> {
        let name = &node.name;
        let mut last = self.last_write(name);
        last.refusals = if last.refused_on == node.resource_version {
            last.refusals + 1
        } else {
            1
        };
        last.refused_on = node.resource_version;
        let refusals = last.refusals;
        self.set_write(name, last);
        if refusals >= REFUSALS {
            return Err(TurnError::Refused {
                node: name.clone(),
                why,
            });
        }
        let deadline = Instant::now() + READ_TIMEOUT;
        let Context {
            kube, nodes, wakes, ..
        } = &self.context;
        nodes::watch::read(kube, nodes, &self.wanted, name, deadline).await?;
        wakes.wake(name);
        Ok(Next::Again)
    }

    fn feedback(&self, name: &NodeName, node: Option<&nodes::NodeFacts>) -> WriteFeedback {
        let mut writes = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(last) = writes.get(name) else {
            return WriteFeedback::Idle;
        };
        if last.version == 0 {
            return WriteFeedback::Idle;
        }
        if node.is_some_and(|node| node.resource_version < last.version) {
            return WriteFeedback::Accepted;
        }
        writes.remove(name);
        WriteFeedback::Idle
    }

    fn last_write(&self, name: &NodeName) -> LastWrite {
        let writes = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
        writes.get(name).cloned().unwrap_or_default()
    }

    fn set_write(&self, name: &NodeName, last: LastWrite) {
        self.writes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(name.clone(), last);
    }

    fn pause_after_failure(&self, name: &NodeName) -> Duration {
        let mut last = self.last_write(name);
        last.failures = (last.failures + 1).min(10);
        let pause = (FIRST_PAUSE * 2_u32.pow(last.failures - 1)).min(LONGEST_PAUSE);
        self.set_write(name, last);
        crate::kubernetes::jittered(pause)
    }

    pub(super) fn wake_in(&self, name: &NodeName, pause: Duration) {
        let at = Timestamp::now()
            .checked_add(pause)
            .unwrap_or(Timestamp::MAX);
        self.workers.wake_at(name, at);
    }

    fn give_back(&self, name: &NodeName, observed: &Observed) {
        let pool = observed
            .incident
            .as_ref()
            .map(|incident| incident.pool.as_str())
            .or_else(|| observed.facts.as_ref().map(|node| node.pool.as_str()));
        if let Some(pool) = pool {
            self.breaker.lock().release(pool, name);
            self.breaker.changed.notify_one();
        }
    }

    /// The node carries marks of an incident that the store does not know: it is rebuilt.
    async fn adopt(
        &self,
        name: &NodeName,
        observed: &Observed,
        now: Timestamp,
    ) -> Result<Next, TurnError> {
        let Some(node) = &observed.facts else {
            return Ok(Next::Done);
        };
        let text = node.annotations.get(&Annotation::HealthEvents);
        // What can't be read names no fault: the incident is adopted without, and ends as recovered.
        let events = text
            .and_then(|text| health_events::parse(text).ok())
            .unwrap_or_default();
        let Some(seen) = &observed.node else {
            return Ok(Next::Done);
        };
        let value = || facts::node_value(seen);
        let adopted = decide::quarantine::adopt(node, &events, &self.rules, value, now);
        let Some(incident) = adopted else {
            return Ok(Next::Done);
        };
        super::startup::restore_faults(&self.context.store, node, &events, now).await?;
        let cause = Cause {
            rule: "adopted".to_owned(),
            check: String::new(),
        };
        self.breaker.lock().count(&incident.pool, name, cause);
        let decision = Decision {
            incident: Some(incident),
            ..Decision::default()
        };
        let taken = TakenRecord::default();
        let stored = self.store(&decision, observed, &taken, Vec::new(), now);
        if let Some(stored) = stored {
            match stored.await {
                Ok(_) | Err(WriteError::Stale { .. } | WriteError::AnotherOpen { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        said::adopted(name);
        Ok(Next::Again)
    }
}

fn agent_facts(state: AgentState) -> AgentFacts {
    AgentFacts {
        expected: state.expected,
        settled_for: state.settled_boot,
        started_at: state.process_changed_at,
        last_report_at: state.last_report_at,
    }
}

fn new_incident_id() -> IncidentId {
    IncidentId::new(&Ulid::new().to_string()).expect("a ULID renders as 26 upper-case characters")
}

/// What the store knows of the incident that the node's mark names.
fn mark_origin(
    store: &EventStore,
    node: Option<&NodeFacts>,
    incident: Option<&Incident>,
) -> Result<MarkOrigin, ReadError> {
    let text = node.and_then(|node| node.annotations.get(&Annotation::Incident));
    let Some(mark) = text.and_then(|text| decide::quarantine::IncidentMark::parse(text)) else {
        return Ok(MarkOrigin::Unknown);
    };
    if incident.is_some_and(|incident| incident.id == mark.id) {
        return Ok(MarkOrigin::Unknown);
    }
    let known = store.incident(&mark.id)?;
    let closed = known.is_some_and(|known| known.quarantine.is_closed());
    Ok(if closed {
        MarkOrigin::Closed
    } else {
        MarkOrigin::Unknown
    })
}

/// The facts that decided, for the audit trail.
fn cause(decision: &Decision, observed: &Observed, taken: &TakenRecord) -> String {
    let reason = decision.transition.as_ref().map(|t| &t.reason);
    let mut cause = json!({
        "reason": reason.map_or("adopted", |r| r.code()),
        "text": reason.map_or_else(|| "found on the node".to_owned(), ToString::to_string),
        "node_version": observed.node.as_ref().map(|n| n.resource_version),
        "unschedulable": observed.node.as_ref().and_then(|n| n.unschedulable),
        "open_faults": observed.faults.len(),
        "notes": decision.notes.iter().map(|note| format!("{note:?}")).collect::<Vec<_>>(),
    });
    if !taken.pool.is_empty() {
        cause["pool"] = json!(taken.pool);
        cause["rule"] = json!(taken.rule);
        cause["check"] = json!(taken.check);
        cause["taken"] = json!(taken.taken);
    }
    cause.to_string()
}
