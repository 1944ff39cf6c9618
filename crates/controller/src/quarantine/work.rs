//! One node's turn: observe, decide, store, apply.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use decide::breaker::{Ask, Cause, Permit};
use decide::quarantine::{
    AgentFacts, Annotation, CordonOwner, Decision, FaultFacts, MarkOrigin, Mode, NodeFacts, Note,
    PermitRequest, Policy, Reason, Request, View,
};
use decide::rules::RuleSets;
use event_store::{EventStore, IncidentFilter, Machine, ReadError, Transition, WriteError};
use health_event::incident::{Incident, IncidentFault, IncidentId, QuarantineStatus, Withheld};
use health_event::{FaultId, NodeName, Sender, keys};
use jiff::Timestamp;
use k8s_api::IncidentMark;
use serde_json::json;
use tokio::time::Instant;
use ulid::Ulid;

use super::apply::Apply;
use super::breaker::{Breaker, TakenRecord, TripRecord};
use super::reload::Rules;
use super::writes::{FIRST_PAUSE, LastWrite, READ_TIMEOUT, REFUSALS};
use super::{facts, said, settings};
use crate::context::Context;
use crate::crash;
use crate::janitor;
use crate::kubernetes::CallError;
use crate::nodes;
use crate::reports::AgentState;
use crate::workers::Workers;

/// Decisions in one turn: joining, taking out, seeing the write and one more. A turn that needs
/// more goes on in the next, so that no node holds a worker.
const PASSES: usize = 8;
/// Name of the module in the store.
pub(super) const MODULE: &str = "quarantine";

/// What all workers share.
pub(super) struct Module {
    pub(super) context: Context,
    pub(super) apply: Apply,
    pub(super) policy: Policy,
    /// The same while another fault-quarantine runs in the cluster.
    refused: Policy,
    pub(super) rules: Rules,
    /// Senders that may force a quarantine.
    pub(super) forcing: BTreeSet<Sender>,
    pub(super) breaker: Breaker,
    pub(super) workers: Workers,
    /// Requests of persons that wait, by node.
    pub(super) requests: Mutex<HashMap<NodeName, super::asked::Waiting>>,
    /// What became of the last write of nodes whose write is not seen yet, or failed.
    pub(super) writes: Mutex<HashMap<NodeName, LastWrite>>,
    /// Nodes that wait for their agents' word since the store was lost.
    pub(super) given_back: Mutex<super::startup::GivenBackNodes>,
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
pub(super) struct Observed {
    pub(super) node: Option<Arc<nodes::NodeFacts>>,
    pub(super) facts: Option<NodeFacts>,
    pub(super) incident: Option<Incident>,
    pub(super) faults: Vec<FaultFacts>,
    pub(super) rules: Arc<RuleSets>,
    machine: Arc<Machine>,
    pub(super) agent: AgentFacts,
    mark_origin: MarkOrigin,
    pub(super) request: Option<Request>,
}

/// Whether the turn goes on.
pub(super) enum Next {
    Again,
    Done,
}

impl Module {
    pub(super) fn new(
        context: Context,
        apply: Apply,
        policy: Policy,
        rules: RuleSets,
        breaker: Breaker,
        workers: Workers,
    ) -> Self {
        let refused = Policy {
            mode: Mode::Refused,
            ..policy.clone()
        };
        Self {
            forcing: settings::forcing(&context.config.ingest),
            context,
            apply,
            policy,
            refused,
            rules: Rules::new(rules),
            breaker,
            workers,
            requests: Mutex::default(),
            writes: Mutex::default(),
            given_back: Mutex::default(),
        }
    }

    /// With the nodes that wait for their agents' word since the store was lost.
    pub(super) fn with_given_back(mut self, nodes: super::startup::GivenBackNodes) -> Self {
        self.given_back = Mutex::new(nodes);
        self
    }

    /// What decisions are bound to now.
    pub(super) fn policy_now(&self) -> &Policy {
        let reference = &self.apply.reference;
        match self.policy.mode {
            // As long as nobody knows, it is decided as if there were none, and the gate waits.
            Mode::Enforce if reference.is_known() && reference.runs() => &self.refused,
            Mode::Enforce | Mode::Refused | Mode::DryRun | Mode::Off => &self.policy,
        }
    }

    /// One node's turn.
    pub(super) async fn work(&self, node: &NodeName) {
        let started = Instant::now();
        let turn = self.turn(node).await;
        if turn.is_ok() {
            self.forget_failures(node);
        }
        if let Err(error) = turn {
            said::failed(
                &self.context.metrics,
                node,
                error.code(),
                &error.to_string(),
            );
            let pause = self.pause_after_failure(node);
            let at = self.wake_in(node, pause);
            self.context.refusals.again_at(node, at);
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
            if self.waits_for_hold(node, &observed, now).await? {
                return Ok(());
            }
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
        let pool = incidents.first().map(|incident| incident.pool.as_str());
        self.context.nodes.keep_pool(name, pool);
        let node = self.context.nodes.get(name);
        if node.is_none() {
            if incidents.is_empty() {
                self.forget_counted(name);
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
            .iter()
            .min_by_key(|i| Some(i.node_uid.as_str()) == uid)
            .cloned();
        let machine_id = match (&node, &incident) {
            (Some(node), _) => node.machine().to_owned(),
            (None, Some(incident)) => incident.machine.clone(),
            (None, None) => String::new(),
        };
        let agent = self.context.reports.agent(name)?;
        let machine = self.machine(&machine_id, node.as_deref(), &agent)?;
        let rules = self.rules.now();
        let faults = match &node {
            Some(node) => self.faults(node, &rules)?,
            None => Vec::new(),
        };
        let facts = node.as_ref().map(|n| {
            let pool = self.context.nodes.pool_of(n);
            let ends = incident.as_ref().filter(|i| may_end(i, &faults));
            NodeFacts {
                repaired_by_others: ends.is_some_and(|ends| self.may_be_rebooted(name, ends)),
                ..facts::node_facts(n, pool, &self.policy, &self.context.config.quarantine)
            }
        });
        let mark_origin = mark_origin(store, facts.as_ref(), incident.as_ref())?;
        Ok(Some(Observed {
            agent: agent_facts(agent),
            request: self.request_of(name),
            node,
            facts,
            incident,
            faults,
            rules,
            machine,
            mark_origin,
        }))
    }

    /// Whether a reboot may still come that the incident does not wait for (any more): a person's, or
    /// one whose attempt was given up. As long as it can't be said, it may.
    fn may_be_rebooted(&self, name: &NodeName, incident: &Incident) -> bool {
        let reboots = &self.context.reboots;
        if reboots.is_followed() && !reboots.is_known() {
            self.wake_in(name, FIRST_PAUSE);
            return true;
        }
        let repair = incident.repair.as_ref();
        let under_way = repair.filter(|repair| repair.status.is_under_way());
        let own = under_way.and_then(|repair| repair.attempt.as_ref());
        let is_own = |object: &str| own.is_some_and(|own| own.object == object);
        let mut orders = reboots.of_node(name.as_str()).into_iter();
        let begun = orders.any(|order| {
            let begun = order.status.start_time.is_some();
            begun && !order.is_over() && !is_own(&order.metadata.name)
        });
        if begun {
            return true;
        }
        let Ok(intents) = janitor::intents(&self.context.store) else {
            self.wake_in(name, FIRST_PAUSE);
            return true;
        };
        let now = Timestamp::now();
        // An object that says to be over proves nothing: its janitor forgets the intent then.
        let machine = incident.machine.as_str();
        let of_node = intents.iter().filter(|i| i.is_of(name.as_str(), machine));
        let left = of_node.filter(|i| now < i.deadline && !is_own(&i.object));
        let until = left.map(|intent| intent.deadline).max();
        if let Some(until) = until {
            // Nothing else may happen until then.
            self.workers.wake_at(name, until);
        }
        until.is_some()
    }

    /// What is known of the machine, with the boot that the node's status shows noted: but not
    /// where an agent reports, which knows its boot at first hand while the cache may lag behind.
    fn machine(
        &self,
        id: &str,
        node: Option<&nodes::NodeFacts>,
        agent: &AgentState,
    ) -> Result<Arc<Machine>, TurnError> {
        let store = &self.context.store;
        let mut machine = store.machine(id)?.unwrap_or_default();
        let reports = agent.last_report_at.is_some() && !agent.boot.is_unknown();
        if let Some(node) = node.filter(|_| !reports) {
            let boot = health_event::BootId::new(&node.boot_id);
            if Arc::make_mut(&mut machine).boots.observe(&boot) {
                // Nobody waits for it: the write to the node must not stand behind this commit.
                drop(store.observe_boot(id, &boot, "", Timestamp::now()));
            }
        }
        Ok(machine)
    }

    fn faults(
        &self,
        node: &nodes::NodeFacts,
        rules: &RuleSets,
    ) -> Result<Vec<FaultFacts>, TurnError> {
        let stored = self.context.store.open_faults(&node.name)?;
        let mut faults = Vec::with_capacity(stored.len());
        for fault in stored.iter().cloned() {
            let (fault, errors) = facts::fault_facts(fault, rules, node, &self.forcing);
            said::evaluated(&self.context.metrics, rules, &fault.matched);
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
            policy: self.policy_now(),
            rules: &observed.rules,
            feedback: self.feedback(name, observed.node.as_deref()),
            mark_origin: observed.mark_origin,
            request: observed.request.as_ref(),
            permit: None,
            new_id: &new_id,
        };
        let mut decision = decide::quarantine::decide(&view, now);
        if observed.incident.is_none() && !decision.adopt {
            self.forget_counted(name);
        }
        self.context
            .stages
            .set_release_kept(name, release_kept(&decision));
        let stored = if let Some(ask) = decision.ask.take() {
            let (with_permit, stored) = self.ask_breaker(&ask, &mut view, observed, now);
            decision = with_permit;
            stored
        } else {
            self.let_others_pass(name, observed, now);
            let taken = TakenRecord::default();
            self.store(&decision, observed, &taken, Vec::new(), now)
        };
        if let Some(stored) = stored {
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
        } else {
            self.store_holds(&decision, observed, now).await?;
        }
        self.after_store(name, observed, decision, now).await
    }

    /// Asks the breaker and decides with its answer. Permit, decision and the order of the stored
    /// states belong together: the lock is held until the writes are queued, for microseconds.
    fn ask_breaker(
        &self,
        ask: &PermitRequest,
        view: &mut View<'_>,
        observed: &Observed,
        now: Timestamp,
    ) -> (Decision, Option<event_store::Reply<u64>>) {
        let mut state = self.breaker.lock();
        let before = Breaker::record(&state, &ask.pool);
        let was_tripped = Breaker::trip(&state, &ask.pool).is_some();
        let permit = state.take(
            &self.breaker.config,
            &Ask {
                pool: &ask.pool,
                pool_size: self.context.nodes.pool_size(&ask.pool),
                node: &ask.node,
                rule: &ask.rule,
                check: &ask.check,
                paced: ask.paced,
                opened_at: ask.opened_at,
            },
            now,
        );
        view.permit = Some(permit);
        let decision = decide::quarantine::decide(view, now);
        let after = Breaker::record(&state, &ask.pool);
        let changed = after.filter(|after| Some(after) != before.as_ref());
        let size = self.context.nodes.pool_size(&ask.pool);
        let config = &self.breaker.config;
        said::breaker(
            &self.context.metrics,
            &state,
            config,
            &ask.pool,
            size,
            was_tripped,
        );
        let taken = TakenRecord {
            taken: permit == Permit::Taken,
            pool: ask.pool.clone(),
            rule: ask.rule.clone(),
            check: ask.check.clone(),
            trip: Breaker::trip(&state, &ask.pool)
                .filter(|_| !was_tripped)
                .map(TripRecord::from),
        };
        self.breaker.changed.notify_one();
        let puts = changed.into_iter().collect();
        let stored = self.store(&decision, observed, &taken, puts, now);
        (decision, stored)
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
        self.note_withheld(name, observed, &decision);
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
            self.answer_request(name, observed.incident.as_ref(), &decision);
        }
        said::decision(
            &self.context.metrics,
            name,
            observed.incident.as_ref(),
            &decision,
            &|seq| self.generated_at(name, seq),
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

    /// A node that is withheld without having asked the breaker has its place in the queue too.
    fn note_withheld(&self, name: &NodeName, observed: &Observed, decision: &Decision) {
        let Some(incident) = &decision.incident else {
            return;
        };
        match &incident.quarantine {
            QuarantineStatus::Withheld(
                Withheld::FirstAction { .. } | Withheld::OtherQuarantine,
            ) => {
                let since = decide::quarantine::oldest_fault(incident, &observed.faults);
                let mut state = self.breaker.lock();
                state.withhold(&incident.pool, name, since);
                drop(state);
                self.breaker.changed.notify_one();
            }
            QuarantineStatus::Withheld(Withheld::Breaker(_) | Withheld::Pace)
            | QuarantineStatus::Observed
            | QuarantineStatus::Applying
            | QuarantineStatus::Quarantined
            | QuarantineStatus::Releasing(_)
            | QuarantineStatus::Closed(_) => {}
        }
    }

    /// A withheld node that does not ask, because a person paused it or its faults are held, must
    /// not hold up those behind it.
    /// Where nobody may go yet all keep their places, or the youngest could ask first when they may.
    fn let_others_pass(&self, name: &NodeName, observed: &Observed, now: Timestamp) {
        let policy = self.policy_now();
        let nobody_goes = policy.mode != Mode::Enforce
            || policy.first_action_until.is_some_and(|until| now < until);
        let Some(incident) = observed.incident.as_ref().filter(|_| !nobody_goes) else {
            return;
        };
        if self.breaker.lock().pass_over(&incident.pool, name) {
            self.breaker.changed.notify_one();
        }
    }

    /// Keeps the holds of a decision that changes no incident: what has closed once is new again.
    async fn store_holds(
        &self,
        decision: &Decision,
        observed: &Observed,
        now: Timestamp,
    ) -> Result<(), WriteError> {
        let (Some(holds), Some(node)) = (&decision.holds, &observed.node) else {
            return Ok(());
        };
        let Context { store, fencing, .. } = &self.context;
        let kept = store.holds_put(node.machine(), holds.clone(), *fencing, now);
        kept.await
    }

    /// When the event of a position was made; none if it is not stored any more.
    fn generated_at(&self, node: &NodeName, seq: u64) -> Option<Timestamp> {
        let before = seq.checked_sub(1)?;
        let events = self.context.store.events(Some(node), before, 1).ok()?;
        let event = events.into_iter().find(|event| event.seq == seq)?;
        Some(event.generated_at)
    }

    /// Puts the decision's transition into the store's queue. None if there is nothing to store.
    pub(super) fn store(
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
        // One that closed and joined again is another opening, of which the store knows no incident.
        let known = |fault: &IncidentFault| {
            let same = |f: &IncidentFault| f.id == fault.id && f.seq == fault.seq;
            before.is_some_and(|before| before.faults.iter().any(same))
        };
        let faults_joined = incident
            .faults
            .iter()
            .filter(|fault| !known(fault))
            .map(|fault| fault.id.clone())
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
        crash::point("quarantine.before-intent");
        Some(self.context.store.transition(transition))
    }

    pub(super) fn wake_in(&self, name: &NodeName, pause: Duration) -> Timestamp {
        let at = Timestamp::now()
            .checked_add(pause)
            .unwrap_or(Timestamp::MAX);
        self.workers.wake_at(name, at);
        at
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
}

fn agent_facts(state: AgentState) -> AgentFacts {
    AgentFacts {
        expected: state.expected,
        settled_for: state.settled_boot,
        started_at: state.process_changed_at,
        last_report_at: state.last_report_at,
    }
}

pub(super) fn new_incident_id() -> IncidentId {
    IncidentId::new(&Ulid::new().to_string()).expect("a ULID renders as 26 upper-case characters")
}

/// What the store knows of the incident that the node's mark names, or, where a cordon of ours has
/// no mark, of the last incident of the object.
pub(super) fn mark_origin(
    store: &EventStore,
    node: Option<&NodeFacts>,
    incident: Option<&Incident>,
) -> Result<MarkOrigin, ReadError> {
    let Some(node) = node else {
        return Ok(MarkOrigin::Unknown);
    };
    let mark = node.annotations.get(&Annotation::Incident);
    let known = match mark.map(|text| IncidentMark::parse(text)) {
        Some(Ok(mark)) if incident.is_some_and(|i| i.id == mark.incident) => None,
        Some(Ok(mark)) => store.incident(&mark.incident)?,
        None if incident.is_none() && node.cordon_owner == CordonOwner::Us => {
            let filter = IncidentFilter {
                node: Some(node.name.clone()),
                ..IncidentFilter::default()
            };
            let last = store.incidents(&filter, 1)?.into_iter().next();
            last.filter(|last| last.node_uid == node.uid)
        }
        Some(Err(_)) | None => None,
    };
    let closed = known.is_some_and(|known| known.quarantine.is_closed());
    Ok(if closed {
        MarkOrigin::Closed
    } else {
        MarkOrigin::Unknown
    })
}

/// Whether nothing but what is looked at for it keeps the incident from its end.
fn may_end(incident: &Incident, faults: &[FaultFacts]) -> bool {
    let is_open = |id: &FaultId| faults.iter().any(|fault| fault.id == *id);
    let mut open = incident.open_faults();
    let out = matches!(
        incident.quarantine,
        QuarantineStatus::Applying | QuarantineStatus::Quarantined
    );
    out && !open.any(|f| is_open(&f.id))
}

/// What keeps the node from being given back.
fn release_kept(decision: &Decision) -> Option<&'static str> {
    let mut notes = decision.notes.iter();
    notes.find_map(|note| match note {
        Note::Blocked { step, by } => (*step == "release").then_some(*by),
        Note::Suppressed(_)
        | Note::OtherMachineOrBoot(_)
        | Note::StrayMarks(_)
        | Note::CooperatorUncordon(_)
        | Note::RequestRefused(_) => None,
    })
}

/// Object of a repair that may still have its effect after the incident goes to its end.
fn repair_left<'a>(decision: &Decision, observed: &'a Observed) -> Option<&'a str> {
    let goes = decision.transition.as_ref().is_some_and(|t| match t.to {
        QuarantineStatus::Releasing(_) | QuarantineStatus::Closed(_) => true,
        QuarantineStatus::Withheld(_)
        | QuarantineStatus::Observed
        | QuarantineStatus::Applying
        | QuarantineStatus::Quarantined => false,
    });
    let repair = observed.incident.as_ref()?.repair.as_ref()?;
    let attempt = repair.attempt.as_ref()?;
    (goes && repair.status.is_under_way()).then_some(&attempt.object)
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
    let with = |key| {
        let faults = observed.faults.iter();
        faults
            .filter(|f| f.event.metadata.contains_key(key))
            .count()
    };
    for (name, key) in [("injected", keys::INJECTED), ("stand_ins", keys::ORIGIN)] {
        if let count @ 1.. = with(key) {
            cause[name] = json!(count);
        }
    }
    let held = observed.incident.as_ref().and_then(|i| i.held_by.as_ref());
    if let (Some(Reason::PersonHold(who)), Some(before)) = (reason, held)
        && who != before
    {
        cause["held_before"] = json!(before);
    }
    if let Some(object) = repair_left(decision, observed) {
        cause["repair_left"] = json!(object);
    }
    if !taken.pool.is_empty() {
        cause["pool"] = json!(taken.pool);
        cause["rule"] = json!(taken.rule);
        cause["check"] = json!(taken.check);
        cause["taken"] = json!(taken.taken);
        cause["trip"] = json!(taken.trip);
    }
    cause.to_string()
}
