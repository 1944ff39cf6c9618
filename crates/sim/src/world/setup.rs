//! What is fixed in one configuration of the world.

use std::collections::{BTreeMap, BTreeSet};

use decide::breaker;
use decide::quarantine::{
    Cooperator, CooperatorPolicy, CordonOwner, FaultFacts, Mode, NodeFacts, Policy, Request,
    RequestKind,
};
use decide::rules::{NodeValue, RuleConfig, RuleSetConfig, RuleSets};
use health_event::incident::Taint;
use health_event::{
    BootId, Entity, FaultId, FaultKey, HealthEvent, NodeName, RecommendedAction, Scope, Space,
    devices_of,
};
use jiff::{SignedDuration, Timestamp};

use super::broken_rule::BrokenRule;
use super::cluster::OURS;
use super::step::What;

/// The cooperating controller's key.
pub(super) const COOPERATOR: &str = "example.com/upgrade";
const HOLD: SignedDuration = SignedDuration::from_hours(24);
/// One move of the clock: longer than every span of the settings.
pub(super) const TICK: SignedDuration = SignedDuration::from_hours(25);

/// One configuration: bounds, settings, and how often what may happen.
#[derive(Debug)]
pub struct Setup {
    /// Nodes.
    pub nodes: usize,
    /// Fault identities of a node, 1 or 2. The first cordons, the second taints.
    pub faults: usize,
    /// How often each budgeted thing may happen.
    pub limits: BTreeMap<What, u8>,
    /// Breaker.
    pub breaker: breaker::Config,
    /// Settings, but for the mode, which may be switched.
    pub policy: Policy,
    /// Modes: the first at the start; each [`What::SwitchMode`] goes to the next.
    pub modes: Vec<Mode>,
    /// Rule sets.
    pub rules: RuleSets,
    /// Whether the node object has neither annotations nor labels at first.
    pub bare: bool,
    /// Whether the API server tells who made a cordon.
    pub tells_owner: bool,
    /// Whether a reboot ends the faults of the machine.
    pub reboot_heals: bool,
    /// Which of our annotations may be taken off alone: so many, `quarantineHealthEvent` first.
    pub strips: usize,
    /// The rule that decisions break on purpose.
    pub broken_rule: Option<BrokenRule>,
    templates: Vec<Vec<FaultFacts>>,
}

impl Setup {
    /// A configuration in which nothing happens yet.
    pub fn new(nodes: usize, faults: usize, limits: &[(What, u8)]) -> Self {
        let rules = rules();
        let template = |node| {
            (0..2)
                .map(|fault| fault_facts(node, fault, &rules))
                .collect()
        };
        Self {
            nodes,
            faults,
            limits: limits.iter().copied().collect(),
            breaker: breaker::Config {
                enabled: false,
                ..breaker::Config::default()
            },
            policy: policy(),
            modes: vec![Mode::Enforce],
            templates: (0..nodes).map(template).collect(),
            rules,
            bare: false,
            tells_owner: true,
            reboot_heals: true,
            strips: OURS.len(),
            broken_rule: None,
        }
    }

    /// A breaker that lets this many nodes be out at one time.
    #[must_use]
    pub fn with_level(mut self, level: u32) -> Self {
        self.breaker = breaker::Config {
            enabled: true,
            level_percent: 100,
            level_nodes: Some(level),
            rate_percent: 100,
            ..breaker::Config::default()
        };
        self
    }

    /// Node objects with neither annotations nor labels at first.
    #[must_use]
    pub fn with_bare_nodes(mut self) -> Self {
        self.bare = true;
        self
    }

    /// An API server that does not tell who made a cordon.
    #[must_use]
    pub fn without_owners(mut self) -> Self {
        self.tells_owner = false;
        self
    }

    /// Decisions that break a rule on purpose.
    #[must_use]
    pub fn breaking(mut self, rule: BrokenRule) -> Self {
        self.broken_rule = Some(rule);
        self
    }

    /// Modes: the first at the start, then the next at each [`What::SwitchMode`].
    #[must_use]
    pub fn with_modes(mut self, modes: Vec<Mode>) -> Self {
        self.modes = modes;
        self
    }

    /// Whether a late write may bring a node beyond the breaker's level: where the store may be lost.
    pub(super) fn may_exceed_level(&self) -> bool {
        let losses = self.limits.get(&What::LoseStore);
        self.breaker.enabled && losses.is_some_and(|losses| *losses > 0)
    }

    /// The time after so many moves of the clock.
    pub fn now(&self, clock: u8) -> Timestamp {
        Timestamp::UNIX_EPOCH + TICK * i32::from(clock)
    }

    /// What a fault of a node looks like.
    pub fn template(&self, node: usize, fault: usize) -> &FaultFacts {
        &self.templates[node][fault]
    }

    /// Taint of the second fault's rule set.
    pub fn taint(&self) -> Taint {
        taint_of("example.com/ours")
    }

    /// Another controller's taint.
    pub fn foreign_taint(&self) -> Taint {
        taint_of("example.com/foreign")
    }
}

/// A person's request.
pub(crate) fn request(kind: RequestKind) -> Request {
    Request {
        kind,
        actor: "ada".to_owned(),
    }
}

/// Id of a machine.
pub(crate) fn machine_id(machine: usize) -> String {
    format!("machine-{machine}")
}

/// A boot of a machine.
pub(crate) fn boot_id(machine: usize, boot: u8) -> BootId {
    BootId::new(&format!("boot-{machine}-{boot}"))
}

/// Name of a node.
pub(crate) fn node_name(node: usize) -> NodeName {
    NodeName::new(&format!("gpu-{node}")).expect("letters, a dash and a number are a name")
}

fn taint_of(key: &str) -> Taint {
    Taint {
        key: key.to_owned(),
        value: "true".to_owned(),
        effect: "NoSchedule".to_owned(),
    }
}

/// A node object that was just registered.
pub(crate) fn registered(
    setup: &Setup,
    node: usize,
    uid: u8,
    machine: usize,
    boot: u8,
) -> NodeFacts {
    NodeFacts {
        name: node_name(node),
        uid: format!("uid-{node}-{uid}"),
        created_at: Timestamp::UNIX_EPOCH,
        machine_id: machine_id(machine),
        machine: machine_id(machine),
        boot: boot_id(machine, boot),
        ready: true,
        unschedulable: None,
        cordon_owner: CordonOwner::Unknown,
        taints: None,
        annotations_absent: setup.bare,
        labels_absent: setup.bare,
        annotations: BTreeMap::new(),
        labels: BTreeMap::new(),
        cooperator_values: BTreeMap::new(),
        external_owner: None,
        repaired_by_others: false,
        pool: "gpu".to_owned(),
        control_plane: false,
        opted_out: false,
        paused: false,
    }
}

/// The node object as Node rules see it; the rule sets here have none.
pub(crate) fn node_value() -> NodeValue {
    NodeValue::Map(BTreeMap::new())
}

fn policy() -> Policy {
    Policy {
        mode: Mode::Enforce,
        first_action_until: None,
        manual_uncordon_hold: HOLD,
        settle_timeout: SignedDuration::from_mins(10),
        cooperators: vec![Cooperator {
            key: COOPERATOR.to_owned(),
            working: BTreeSet::new(),
        }],
        cooperator_policy: CooperatorPolicy::Taint,
        cooperator_taint: taint_of("example.com/aside"),
        protected_nodes: BTreeSet::new(),
        allow_protected: false,
        cordon_by: "Warden".to_owned(),
        drains: false,
        repair_groups: std::collections::BTreeMap::new(),
    }
}

const CHECKS: [&str; 2] = ["CheckCordons", "CheckTaints"];

fn rules() -> RuleSets {
    let set = |index: usize, name: &str, taint: Option<Taint>| RuleSetConfig {
        name: name.to_owned(),
        version: "1".to_owned(),
        enabled: true,
        priority: 0,
        all: vec![RuleConfig {
            kind: "HealthEvent".to_owned(),
            expression: format!("event.checkName == '{}'", CHECKS[index]),
        }],
        any: Vec::new(),
        cordon: taint.is_none(),
        taint,
    };
    let sets = [
        set(0, "cordons", None),
        set(1, "taints", Some(taint_of("example.com/ours"))),
    ];
    RuleSets::compile(&sets).expect("both expressions are within the fence")
}

fn fault_facts(node: usize, fault: usize, rules: &RuleSets) -> FaultFacts {
    let name = node_name(node);
    let event = HealthEvent {
        agent: "model".to_owned(),
        component_class: "GPU".to_owned(),
        check_name: CHECKS[fault].to_owned(),
        is_fatal: true,
        recommended_action: RecommendedAction::RestartBm,
        error_codes: vec!["79".to_owned()],
        entities: vec![Entity::new("PCI", "0000:17:00")],
        node_name: name.as_str().to_owned(),
        ..HealthEvent::default()
    };
    let device = devices_of(&event.entities).remove(0);
    let matched = rules.evaluate(&event, node_value).names();
    assert_eq!(matched.len(), 1, "each fault matches its rule set");
    FaultFacts {
        id: FaultId {
            scope: Scope::of(&event, name),
            key: FaultKey {
                space: Space::ExecuteRemediation,
                device: device.key(),
                code: "79".to_owned(),
            },
        },
        device,
        event,
        seq: u64::try_from(fault).unwrap_or_default(),
        through_agent: true,
        machine_id: String::new(),
        boot: BootId::default(),
        first_at: Timestamp::UNIX_EPOCH,
        last_at: Timestamp::UNIX_EPOCH,
        matched,
        may_force: false,
    }
}
