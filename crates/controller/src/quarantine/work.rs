//! One node's turn: observe, decide, store, apply.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Mutex;
use std::time::Duration;

use decide::breaker::{Ask, Cause, Permit};
use decide::quarantine::{Decision, Mode, Note, PermitRequest, Policy, View};
use decide::rules::RuleSets;
use event_store::{ReadError, Transition, WriteError};
use health_event::incident::{IncidentFault, IncidentId, QuarantineStatus, Withheld};
use health_event::{NodeName, Sender};
use jiff::Timestamp;
use tokio::time::Instant;
use ulid::Ulid;

use super::apply::Apply;
use super::breaker::{Breaker, TakenRecord, TripRecord};
use super::cause::cause;
use super::observe::Observed;
use super::reload::Rules;
use super::writes::{LastWrite, REFUSALS};
use super::{said, settings};
use crate::context::Context;
use crate::crash;
use crate::kubernetes::CallError;
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
        let before_them = before.into_iter().flat_map(|before| &before.faults);
        let before_them: HashSet<_> = before_them.map(|f| (&f.id, f.seq)).collect();
        let known = |fault: &IncidentFault| before_them.contains(&(&fault.id, fault.seq));
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

pub(super) fn new_incident_id() -> IncidentId {
    IncidentId::new(&Ulid::new().to_string()).expect("a ULID renders as 26 upper-case characters")
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
