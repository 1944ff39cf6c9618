//! Quarantine's decision whether an event takes a node out, for events that don't.

use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use decide::quarantine::{
    AgentFacts, CooperatorPolicy, CordonOwner, Decision, FaultFacts, MarkOrigin, Mode, NodeFacts,
    Policy, View, WriteFeedback,
};
use decide::rules::{NodeValue, RuleSets, shipped};
use health_event::fault::codes_of;
use health_event::incident::{IncidentId, Taint};
use health_event::{
    BootId, Boots, Device, Entity, FaultId, FaultKey, HealthEvent, NodeName, RecommendedAction,
    Scope, checks, devices_of,
};
use jiff::{SignedDuration, Timestamp};

use crate::report::Row;
use crate::stats::{number, rate};

/// Decisions between two looks at the clock.
const CHUNK: usize = 1_000;
const GOAL: f64 = 50_000.0;

/// For events that match none of the shipped rule sets: the rules are evaluated and the node's
/// decision is made, with the event's faults open on a healthy node.
///
/// # Errors
/// A rule set does not compile, or one of the events has an effect.
pub(crate) fn run(time: Duration) -> anyhow::Result<Row> {
    let sets = RuleSets::compile(&shipped());
    let sets = sets.map_err(|errors| anyhow::anyhow!("{errors:?}"))?;
    let enabled = sets.sets().iter().filter(|set| set.config.enabled).count();
    let events = events();
    let place = Place::new()?;
    for event in &events {
        let decision = place.decide(&sets, event)?;
        ensure!(
            decision == Decision::default(),
            "{} was to have no effect: {decision:?}",
            event.check_name,
        );
    }
    let mut decided = 0;
    let begin = Instant::now();
    while begin.elapsed() < time {
        for event in events.iter().cycle().take(CHUNK) {
            black_box(place.decide(&sets, black_box(event))?);
        }
        decided += CHUNK;
    }
    let a_second = rate(decided, begin.elapsed());
    Ok(Row {
        what: "quarantine decisions, non-matching".to_owned(),
        raw: String::new(),
        measured: format!("{} a second", number(a_second)),
        goal: format!("≥ {} a second", number(GOAL)),
        met: Some(a_second >= GOAL),
        note: format!(
            "one thread; rules and decision, from the event on: the {enabled} rule sets that ship \
             switched on, {} kinds of events",
            events.len()
        ),
    })
}

/// The node of the decisions, and what else a decision looks at.
struct Place {
    node: NodeFacts,
    agent: AgentFacts,
    boots: Boots,
    policy: Policy,
    id: IncidentId,
}

impl Place {
    fn new() -> anyhow::Result<Self> {
        let boot = BootId::new("8a4b6c1e-0000-4000-8000-000000000001");
        let machine = "8a4b6c1e-0000-4000-8000-00000000000a".to_owned();
        let node = NodeFacts {
            name: NodeName::new("gpu-00001")?,
            uid: "8a4b6c1e-0000-4000-8000-00000000000b".to_owned(),
            created_at: Timestamp::UNIX_EPOCH,
            machine_id: machine.clone(),
            machine,
            boot: boot.clone(),
            ready: true,
            unschedulable: None,
            cordon_owner: CordonOwner::Unknown,
            taints: None,
            annotations_absent: false,
            labels_absent: false,
            annotations: BTreeMap::new(),
            labels: BTreeMap::new(),
            cooperator_values: BTreeMap::new(),
            external_owner: None,
            repaired_by_others: false,
            pool: "gpu".to_owned(),
            control_plane: false,
            opted_out: false,
            paused: false,
        };
        let policy = Policy {
            mode: Mode::Enforce,
            first_action_until: None,
            manual_uncordon_hold: SignedDuration::from_hours(24),
            settle_timeout: SignedDuration::from_mins(10),
            cooperators: Vec::new(),
            cooperator_policy: CooperatorPolicy::Taint,
            cooperator_taint: Taint {
                key: "warden.dev/quarantine".to_owned(),
                value: "true".to_owned(),
                effect: "NoSchedule".to_owned(),
            },
            protected_nodes: BTreeSet::new(),
            allow_protected: false,
            cordon_by: "Warden".to_owned(),
            drains: false,
            repair_groups: std::collections::BTreeMap::new(),
        };
        Ok(Self {
            agent: AgentFacts {
                expected: true,
                settled_for: Some(boot.clone()),
                started_at: Some(Timestamp::UNIX_EPOCH),
                last_report_at: Some(Timestamp::UNIX_EPOCH),
            },
            boots: Boots::new(vec![boot]),
            node,
            policy,
            id: IncidentId::new("01ARZ3NDEKTSV4RRFFQ69G5FAV").context("an incident's id")?,
        })
    }

    fn decide(&self, sets: &RuleSets, event: &HealthEvent) -> anyhow::Result<Decision> {
        let verdict = sets.evaluate(event, node);
        ensure!(verdict.errors.is_empty(), "{:?}", verdict.errors);
        let faults = self.faults(event, &verdict.names());
        let view = View {
            node: Some(&self.node),
            incident: None,
            faults: &faults,
            holds: &[],
            agent: &self.agent,
            boots: &self.boots,
            policy: &self.policy,
            rules: sets,
            feedback: WriteFeedback::Idle,
            mark_origin: MarkOrigin::Unknown,
            request: None,
            permit: None,
            new_id: &self.id,
        };
        Ok(decide::quarantine::decide(&view, Timestamp::UNIX_EPOCH))
    }

    /// What the event left open.
    fn faults(&self, event: &HealthEvent, matched: &BTreeSet<String>) -> Vec<FaultFacts> {
        if event.is_healthy {
            return Vec::new();
        }
        let scope = Scope::of(event, self.node.name.clone());
        let devices = devices_of(&event.entities);
        let codes = codes_of(event);
        let fault = |device: &Device, code: &str| FaultFacts {
            id: FaultId {
                scope: scope.clone(),
                key: FaultKey {
                    space: event.strategy,
                    device: device.key(),
                    code: code.to_owned(),
                },
            },
            device: device.clone(),
            event: event.clone(),
            seq: 1,
            through_agent: true,
            machine_id: self.node.machine_id.clone(),
            boot: self.node.boot.clone(),
            first_at: Timestamp::UNIX_EPOCH,
            last_at: Timestamp::UNIX_EPOCH,
            matched: matched.clone(),
            may_force: false,
        };
        let each = devices
            .iter()
            .flat_map(|device| codes.iter().map(|code| fault(device, code)));
        each.collect()
    }
}

/// A node with the labels that rules look at.
fn node() -> NodeValue {
    let labels = [
        ("kubernetes.io/arch", "amd64"),
        ("kubernetes.io/hostname", "gpu-00001"),
        ("nvidia.com/gpu.present", "true"),
        ("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"),
        ("topology.kubernetes.io/zone", "zone-1"),
    ];
    let labels = labels
        .map(|(key, value)| (key.to_owned(), NodeValue::Text(value.to_owned())))
        .into();
    let map = |key: &str, value| NodeValue::Map(BTreeMap::from([(key.to_owned(), value)]));
    map("metadata", map("labels", NodeValue::Map(labels)))
}

/// One that fails at the first word of every rule, one at the last, one that is healthy, one with
/// much in it.
fn events() -> [HealthEvent; 4] {
    let base = HealthEvent {
        id: "01ARZ3NDEKTSV4RRFFQ69G5FAV".to_owned(),
        version: 1,
        agent: "rack-monitor".to_owned(),
        component_class: "Rack".to_owned(),
        check_name: "RackTemperature".to_owned(),
        is_fatal: true,
        message: "inlet temperature 41 C is above 40 C".to_owned(),
        recommended_action: RecommendedAction::ContactSupport,
        generated_at: Some(Timestamp::UNIX_EPOCH),
        node_name: "gpu-00001".to_owned(),
        ..HealthEvent::default()
    };
    let xid = HealthEvent {
        agent: checks::SYSLOG_AGENT.to_owned(),
        component_class: "GPU".to_owned(),
        check_name: checks::XID.to_owned(),
        is_fatal: false,
        error_codes: vec!["31".to_owned()],
        entities: vec![Entity::new("PCI", "0000:17:00")],
        ..base.clone()
    };
    let healthy = HealthEvent {
        agent: "gpu-health-monitor".to_owned(),
        check_name: "GpuMemWatch".to_owned(),
        is_healthy: true,
        ..xid.clone()
    };
    let large = HealthEvent {
        message: "x".repeat(4096),
        entities: (0..8)
            .flat_map(|gpu| {
                let pci = format!("0000:{gpu:02x}:00");
                [
                    Entity::new("GPU", &gpu.to_string()),
                    Entity::new("PCI", &pci),
                ]
            })
            .collect(),
        metadata: (0..16)
            .map(|key| (format!("key-{key}"), "value".to_owned()))
            .collect(),
        ..xid.clone()
    };
    [base, xid, healthy, large]
}

/// The shortest time that gives a steady figure.
pub(crate) fn time(quick: bool) -> Duration {
    if quick {
        Duration::from_millis(200)
    } else {
        Duration::from_secs(3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_events_match_nothing() {
        let row = run(Duration::from_millis(1)).unwrap();
        assert!(row.measured.ends_with("a second"));
    }
}
