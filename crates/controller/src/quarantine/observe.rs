//! What one decision about a node looks at: from cache and store, and where these do not tell, from the API
//! server itself.

use std::collections::HashSet;
use std::sync::Arc;

use decide::quarantine::{
    AgentFacts, Annotation, CordonOwner, FaultFacts, MarkOrigin, NodeFacts, Request,
};
use decide::rules::RuleSets;
use event_store::{EventStore, IncidentFilter, Machine, ReadError};
use health_event::incident::{Incident, QuarantineStatus};
use health_event::{FaultId, NodeName};
use jiff::Timestamp;
use k8s_api::IncidentMark;
use tokio::time::Instant;

use super::work::{Module, TurnError};
use super::writes::{FIRST_PAUSE, READ_TIMEOUT};
use super::{facts, said};
use crate::janitor;
use crate::nodes;
use crate::reports::AgentState;

/// What a pass saw.
pub(super) struct Observed {
    pub(super) node: Option<Arc<nodes::NodeFacts>>,
    pub(super) facts: Option<NodeFacts>,
    pub(super) incident: Option<Incident>,
    pub(super) faults: Vec<FaultFacts>,
    pub(super) rules: Arc<RuleSets>,
    pub(super) machine: Arc<Machine>,
    pub(super) agent: AgentFacts,
    pub(super) mark_origin: MarkOrigin,
    pub(super) request: Option<Request>,
}

impl Module {
    /// Everything that one decision looks at; none if there is nothing to decide.
    pub(super) async fn observe(&self, name: &NodeName) -> Result<Option<Observed>, TurnError> {
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
        let now = Timestamp::now();
        let orders = reboots.of_node(name.as_str()).into_iter().filter(|order| {
            let begun = order.status.start_time.is_some();
            begun && !order.is_over() && !is_own(&order.metadata.name)
        });
        // Where its janitor is gone nobody says that it is over.
        let until = orders.map(|order| janitor::left_until(&order, &self.context.config.janitor));
        if let Some(until) = until.max().filter(|until| now < *until) {
            self.workers.wake_at(name, until);
            return true;
        }
        let Ok(intents) = janitor::intents(&self.context.store) else {
            self.wake_in(name, FIRST_PAUSE);
            return true;
        };
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
}

fn agent_facts(state: AgentState) -> AgentFacts {
    AgentFacts {
        expected: state.expected,
        settled_for: state.settled_boot,
        started_at: state.process_changed_at,
        last_report_at: state.last_report_at,
    }
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
    let known: HashSet<&FaultId> = faults.iter().map(|fault| &fault.id).collect();
    let mut open = incident.open_faults();
    let out = matches!(
        incident.quarantine,
        QuarantineStatus::Applying | QuarantineStatus::Quarantined
    );
    out && !open.any(|f| known.contains(&f.id))
}
