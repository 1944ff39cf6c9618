use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use health_event::fault::codes_of;
use health_event::incident::{Hold, Incident, IncidentId, QuarantineStatus, Taint};
use health_event::{
    BehaviourOverrides, BootId, Boots, Entity, FaultId, HealthEvent, NodeName, Order, Scope,
    ScopeState, Sender, Stamp, Statement, devices_of,
};
use jiff::{SignedDuration, Timestamp};
use k8s_api::IncidentMark;

use crate::breaker::{Ask, BreakerState, Cause, Config};
use crate::quarantine::{
    AgentFacts, Annotation, CooperatorPolicy, CordonOwner, Decision, FaultFacts, MarkOrigin, Mode,
    NodeFacts, NodeWrite, Note, Policy, Request, RequestKind, TaintRead, Transition, View,
    WriteFeedback, decide,
};
use crate::rules::{NodeValue, RuleConfig, RuleSetConfig, RuleSets};

pub(super) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

pub(super) fn taint(key: &str, value: &str, effect: &str) -> Taint {
    Taint {
        key: key.into(),
        value: value.into(),
        effect: effect.into(),
    }
}

pub(super) fn xid_taint() -> Taint {
    taint("nvidia.com/gpu-xid-error", "true", "NoSchedule")
}

/// A rule set that matches an expression.
pub(super) fn rule_set(
    name: &str,
    expression: &str,
    cordon: bool,
    taint: Option<Taint>,
) -> RuleSetConfig {
    RuleSetConfig {
        name: name.into(),
        enabled: true,
        any: vec![RuleConfig {
            kind: "HealthEvent".into(),
            expression: expression.into(),
        }],
        cordon,
        taint,
        ..RuleSetConfig::default()
    }
}

/// The "XID rule" of the acceptance list.
pub(super) fn xid_rule() -> RuleSetConfig {
    let expression = "event.checkName == 'GpuXidError' && event.isFatal == true";
    rule_set("XID rule", expression, true, Some(xid_taint()))
}

/// The default event of the acceptance list, about entities like `GPU 0, GPU 1`.
pub(super) fn event(check: &str, entities: &str, codes: &str) -> HealthEvent {
    HealthEvent {
        version: 1,
        agent: "gpu-health-monitor".into(),
        component_class: "GPU".into(),
        check_name: check.into(),
        is_fatal: true,
        message: format!("{check} occurred"),
        entities: entities
            .split(", ")
            .filter_map(|part| part.split_once(' '))
            .map(|(kind, value)| Entity::new(kind, value))
            .collect(),
        error_codes: codes
            .split(',')
            .filter(|c| !c.is_empty())
            .map(str::to_owned)
            .collect(),
        node_name: "n1".into(),
        ..HealthEvent::default()
    }
}

pub(super) fn healthy(check: &str, entities: &str, codes: &str) -> HealthEvent {
    HealthEvent {
        is_fatal: false,
        is_healthy: true,
        message: String::new(),
        ..event(check, entities, codes)
    }
}

pub(super) fn forced(mut event: HealthEvent, creator: &str) -> HealthEvent {
    event.quarantine_overrides = Some(BehaviourOverrides {
        force: true,
        skip: false,
    });
    if !creator.is_empty() {
        event.metadata.insert("creator_id".into(), creator.into());
    }
    event
}

pub(super) fn clean_node() -> NodeFacts {
    NodeFacts {
        name: NodeName::new("n1").unwrap(),
        uid: "uid-1".into(),
        created_at: at(-1000),
        machine_id: "machine-1".into(),
        machine: "machine-1".into(),
        boot: BootId::new("boot-1"),
        ready: true,
        unschedulable: None,
        cordon_owner: CordonOwner::Unknown,
        taints: None,
        annotations_absent: true,
        labels_absent: false,
        annotations: BTreeMap::new(),
        labels: BTreeMap::new(),
        cooperator_values: BTreeMap::new(),
        external_owner: None,
        repaired_by_others: false,
        pool: "gpu".into(),
        control_plane: false,
        opted_out: false,
        paused: false,
    }
}

/// All that one node's decisions look at and change.
#[derive(Debug, Clone)]
pub(super) struct World {
    pub(super) node: Option<NodeFacts>,
    pub(super) incident: Option<Incident>,
    pub(super) over: Vec<Incident>,
    pub(super) scopes: BTreeMap<Scope, ScopeState>,
    pub(super) last: BTreeMap<FaultId, FaultFacts>,
    pub(super) holds: Vec<Hold>,
    pub(super) agent: AgentFacts,
    pub(super) boots: Boots,
    pub(super) policy: Policy,
    pub(super) configs: Vec<RuleSetConfig>,
    compiled: (Vec<RuleSetConfig>, Arc<RuleSets>),
    pub(super) feedback: WriteFeedback,
    pub(super) request: Option<Request>,
    pub(super) now: Timestamp,
    pub(super) breaker: BreakerState,
    pub(super) breaker_config: Config,
    pub(super) pool_size: usize,
    pub(super) may_force: bool,
    pub(super) through_agent: bool,
    pub(super) machine_id: String,
    pub(super) boot: BootId,
    pub(super) seq: u64,
    pub(super) writes: Vec<NodeWrite>,
    /// For each of them the incident that is open in the store as it goes out.
    pub(super) open_at_write: Vec<Option<Incident>>,
    pub(super) transitions: Vec<Transition>,
    pub(super) notes: Vec<Note>,
    pub(super) wake_at: Option<Timestamp>,
    /// Content of annotation `quarantineHealthEvent`.
    pub(super) annotated: Vec<HealthEvent>,
    /// The next writes are lost: never sent.
    pub(super) lose_writes: bool,
}

impl World {
    pub(super) fn new(configs: Vec<RuleSetConfig>) -> Self {
        Self {
            node: Some(clean_node()),
            incident: None,
            over: Vec::new(),
            scopes: BTreeMap::new(),
            last: BTreeMap::new(),
            holds: Vec::new(),
            agent: AgentFacts::default(),
            boots: Boots::new(vec![BootId::new("boot-1")]),
            policy: policy(),
            compiled: (
                configs.clone(),
                Arc::new(RuleSets::compile(&configs).unwrap()),
            ),
            configs,
            feedback: WriteFeedback::Idle,
            request: None,
            now: at(0),
            breaker: BreakerState::default(),
            breaker_config: Config::default(),
            pool_size: 10,
            may_force: true,
            through_agent: false,
            machine_id: "machine-1".into(),
            boot: BootId::new("boot-1"),
            seq: 0,
            writes: Vec::new(),
            open_at_write: Vec::new(),
            transitions: Vec::new(),
            notes: Vec::new(),
            wake_at: None,
            annotated: Vec::new(),
            lose_writes: false,
        }
    }

    pub(super) fn xid() -> Self {
        Self::new(vec![xid_rule()])
    }

    pub(super) fn node(&self) -> &NodeFacts {
        self.node.as_ref().unwrap()
    }

    pub(super) fn node_mut(&mut self) -> &mut NodeFacts {
        self.node.as_mut().unwrap()
    }

    /// An event is stored; nothing is decided yet.
    pub(super) fn store(&mut self, event: &HealthEvent) {
        self.seq += 1;
        let scope = Scope::of(event, NodeName::new("n1").unwrap());
        let statement = Statement {
            sender: Sender::agent("n1"),
            stamp: Stamp {
                order: Some(Order {
                    boot: self.boot.clone(),
                    spool: "s".into(),
                    number: self.seq,
                }),
                at: self.now,
            },
            space: event.strategy,
            devices: devices_of(&event.entities),
            codes: codes_of(event).into_iter().map(str::to_owned).collect(),
            healthy: event.is_healthy,
            fatal: event.is_fatal,
            action: event.recommended_action,
            newest_counts: false,
            inclusive: false,
        };
        let state = self.scopes.entry(scope.clone()).or_default();
        state.apply(&statement, &self.boots, self.now);
        self.read_faults(&scope, event);
    }

    fn read_faults(&mut self, scope: &Scope, event: &HealthEvent) {
        let state = &self.scopes[scope];
        let open = state.faults.iter().filter(|f| f.open);
        let open: BTreeMap<FaultId, _> = open
            .map(|f| {
                let id = FaultId {
                    scope: scope.clone(),
                    key: f.key(),
                };
                (id, f.device.clone())
            })
            .collect();
        self.last
            .retain(|id, _| id.scope != *scope || open.contains_key(id));
        for (id, device) in open {
            let named = !event.is_healthy
                && codes_of(event).contains(&id.key.code.as_str())
                && devices_of(&event.entities)
                    .iter()
                    .any(|d| d.key() == id.key.device);
            if self.last.contains_key(&id) && !named {
                continue;
            }
            let known = self.last.get(&id);
            let (first_at, seq) = known.map_or((self.now, self.seq), |f| (f.first_at, f.seq));
            let facts = FaultFacts {
                id: id.clone(),
                device,
                event: event.clone(),
                seq,
                through_agent: self.through_agent,
                machine_id: self.machine_id.clone(),
                boot: self.boot.clone(),
                first_at,
                last_at: self.now,
                matched: BTreeSet::new(),
                may_force: self.may_force,
            };
            self.last.insert(id, facts);
        }
    }

    pub(super) fn faults(&self, rules: &RuleSets) -> Vec<FaultFacts> {
        let node = || NodeValue::Map(BTreeMap::new());
        self.last
            .values()
            .map(|fault| FaultFacts {
                matched: rules.evaluate(&fault.event, node).names(),
                ..fault.clone()
            })
            .collect()
    }

    pub(super) fn decide(&mut self) -> Decision {
        if self.compiled.0 != self.configs {
            let rules = RuleSets::compile(&self.configs).unwrap();
            self.compiled = (self.configs.clone(), Arc::new(rules));
        }
        let rules = Arc::clone(&self.compiled.1);
        let faults = self.faults(&rules);
        let id = format!("01ARZ3NDEKTSV4RRFFQ69G{:04}", self.over.len());
        let new_id = IncidentId::new(&id).unwrap();
        let mark = self
            .node
            .as_ref()
            .and_then(|n| n.annotations.get(&Annotation::Incident));
        let mark = mark.and_then(|text| IncidentMark::parse(text).ok());
        let last = || self.over.last().filter(|_| self.incident.is_none());
        let named = match mark {
            Some(mark) => Some(mark.incident),
            None => last().map(|incident| incident.id.clone()),
        };
        let known = named.is_some_and(|id| self.over.iter().any(|i| i.id == id));
        let mut view = View {
            node: self.node.as_ref(),
            incident: self.incident.as_ref(),
            faults: &faults,
            holds: &self.holds,
            agent: &self.agent,
            boots: &self.boots,
            policy: &self.policy,
            rules: &rules,
            feedback: self.feedback,
            mark_origin: if known {
                MarkOrigin::Closed
            } else {
                MarkOrigin::Unknown
            },
            request: self.request.as_ref(),
            permit: None,
            new_id: &new_id,
        };
        let decision = decide(&view, self.now);
        assert_eq!(
            decision,
            decide(&view, self.now),
            "a decision is a function"
        );
        let Some(wanted) = &decision.ask else {
            return decision;
        };
        let ask = Ask {
            pool: &wanted.pool,
            pool_size: self.pool_size,
            node: &wanted.node,
            rule: &wanted.rule,
            check: &wanted.check,
            paced: wanted.paced,
            opened_at: wanted.opened_at,
        };
        view.permit = Some(self.breaker.take(&self.breaker_config, &ask, self.now));
        let decision = decide(&view, self.now);
        assert_eq!(decision.ask, None, "an answered ask is not repeated");
        decision
    }

    /// One round of the shell: decide, store, write. Answers whether anything happened.
    pub(super) fn step(&mut self) -> bool {
        let name = NodeName::new("n1").unwrap();
        let decision = self.decide();
        self.notes.clone_from(&decision.notes);
        self.wake_at = decision.wake_at;
        let mut moved = decision.request_done;
        let pool = self
            .incident
            .as_ref()
            .map_or_else(|| "gpu".to_owned(), |i| i.pool.clone());
        if let Some(next) = decision.incident {
            let from = self.incident.as_ref().map(|i| i.version);
            assert_eq!(
                next.version,
                from.map_or(1, |v| v + 1),
                "the version rises by one"
            );
            moved = true;
            if matches!(next.quarantine, QuarantineStatus::Closed(_)) {
                self.over.push(next);
                self.incident = None;
            } else {
                self.incident = Some(next);
            }
        }
        if decision.give_back {
            self.breaker.release(&pool, &name);
        }
        if decision.count_out {
            self.breaker.count(&pool, &name, Cause::default());
        }
        self.transitions.extend(decision.transition);
        if let Some(holds) = decision.holds {
            self.holds = holds;
            moved = true;
        }
        if decision.request_done {
            self.request = None;
        }
        if let Some(write) = decision.write
            && !self.lose_writes
        {
            self.write(write);
            moved = true;
        }
        moved
    }

    /// Steps until nothing happens.
    pub(super) fn settle(&mut self) {
        for _ in 0..20 {
            if !self.step() {
                return;
            }
        }
        panic!("it never comes to rest: {:?}", self.transitions);
    }

    /// An event arrives and everything that follows happens.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "an event is made where it is said"
    )]
    pub(super) fn say(&mut self, event: HealthEvent) {
        self.store(&event);
        self.settle();
    }

    pub(super) fn ask(&mut self, kind: RequestKind) {
        self.request = Some(Request {
            kind,
            actor: "alice".into(),
        });
        self.settle();
    }

    pub(super) fn write(&mut self, write: NodeWrite) {
        let node = self.node.as_mut().unwrap();
        if accept(node, &write) {
            if let Some(events) = &write.health_events {
                self.annotated.clone_from(events);
            }
            if !node.annotations.contains_key(&Annotation::Incident) {
                self.annotated.clear();
            }
        }
        self.writes.push(write);
        self.open_at_write.push(self.incident.clone());
    }

    pub(super) fn status(&self) -> &'static str {
        self.incident
            .as_ref()
            .map_or("none", |i| i.quarantine.as_str())
    }

    pub(super) fn is_cordoned(&self) -> bool {
        self.node().unschedulable == Some(true)
    }

    pub(super) fn has_taint(&self, taint: &Taint) -> bool {
        self.node()
            .taints
            .iter()
            .flatten()
            .any(|t| t.taint == *taint)
    }

    pub(super) fn has(&self, annotation: Annotation) -> bool {
        self.node().annotations.contains_key(&annotation)
    }

    /// Keys of the tracked faults, as `check entity code`.
    pub(super) fn keys(&self) -> Vec<String> {
        let open = self.incident.iter().flat_map(Incident::open_faults);
        let mut keys: Vec<String> = open
            .map(|f| {
                let (device, code) = (f.id.key.device.as_str(), f.id.key.code.as_str());
                format!("{} {device} {code}", f.id.scope.check_name)
                    .trim()
                    .to_owned()
            })
            .collect();
        keys.sort();
        keys
    }

    pub(super) fn uncordon_by_hand(&mut self) {
        set_unschedulable(self.node_mut(), false, CordonOwner::Others);
    }

    pub(super) fn cordon_by_hand(&mut self) {
        set_unschedulable(self.node_mut(), true, CordonOwner::Others);
    }

    pub(super) fn untaint_by_hand(&mut self, taint: &Taint) {
        let node = self.node_mut();
        if let Some(taints) = &mut node.taints {
            taints.retain(|t| t.taint != *taint);
        }
    }

    pub(super) fn taint_by_hand(&mut self, taint: Taint) {
        let read = TaintRead {
            taint,
            time_added: Some("2026-01-01T00:00:00Z".into()),
        };
        self.node_mut().taints.get_or_insert_default().push(read);
    }
}

pub(super) fn policy() -> Policy {
    Policy {
        mode: Mode::Enforce,
        first_action_until: None,
        manual_uncordon_hold: SignedDuration::from_hours(24),
        settle_timeout: SignedDuration::from_mins(10),
        cooperators: Vec::new(),
        cooperator_policy: CooperatorPolicy::Taint,
        cooperator_taint: taint("warden.dev/out", "", "NoSchedule"),
        protected_nodes: BTreeSet::new(),
        allow_protected: false,
        cordon_by: "Warden".into(),
        drains: false,
        repair_groups: [("RESTART_BM", "restart")]
            .map(|(action, group)| (action.to_owned(), group.to_owned()))
            .into(),
    }
}

/// The node controller's own taint, which follows the cordon.
fn set_unschedulable(node: &mut NodeFacts, cordoned: bool, by: CordonOwner) {
    let own = taint("node.kubernetes.io/unschedulable", "", "NoSchedule");
    if cordoned && node.unschedulable != Some(true) {
        node.cordon_owner = by;
    }
    node.unschedulable = cordoned.then_some(true);
    let taints = node.taints.get_or_insert_default();
    taints.retain(|t| t.taint != own);
    if cordoned {
        taints.push(TaintRead {
            taint: own,
            time_added: Some("2026-01-01T00:00:00Z".into()),
        });
    }
    if taints.is_empty() {
        node.taints = None;
    }
}

/// What the API server does with a write; nothing if a test of it fails. Answers whether it did.
fn accept(node: &mut NodeFacts, write: &NodeWrite) -> bool {
    let test = &write.test;
    let as_read = test.uid == node.uid
        && test.incident.as_ref() == node.annotations.get(&Annotation::Incident)
        && test
            .unschedulable
            .is_none_or(|read| read == node.unschedulable)
        && test.taints.as_ref().is_none_or(|read| *read == node.taints)
        && (!test.annotations_absent || node.annotations_absent)
        && (!test.labels_absent || node.labels_absent);
    let gone = |removed: bool, there: bool| removed && !there;
    let missing = write
        .annotations
        .iter()
        .any(|(k, v)| gone(v.is_none(), node.annotations.contains_key(k)))
        || write
            .labels
            .iter()
            .any(|(k, v)| gone(v.is_none(), node.labels.contains_key(k)));
    if !as_read || missing {
        return false;
    }
    assert!(write.unschedulable.is_none() || test.unschedulable.is_some());
    assert!(write.taints.is_none() || test.taints.is_some());
    for (key, value) in &write.annotations {
        match value {
            Some(value) => node.annotations.insert(*key, value.clone()),
            None => node.annotations.remove(key),
        };
    }
    if let Some(events) = &write.health_events {
        let rendered = format!("[{} events]", events.len());
        node.annotations.insert(Annotation::HealthEvents, rendered);
    }
    for (key, value) in &write.labels {
        match value {
            Some(value) => node.labels.insert(*key, value.clone()),
            None => node.labels.remove(key),
        };
    }
    node.annotations_absent = false;
    node.labels_absent = false;
    if let Some(taints) = &write.taints {
        node.taints = (!taints.is_empty()).then(|| taints.clone());
    }
    if let Some(cordoned) = write.unschedulable {
        set_unschedulable(node, cordoned, CordonOwner::Us);
    }
    true
}
