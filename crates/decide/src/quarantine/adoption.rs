//! Nodes that carry our marks while the store knows nothing of them.

use std::collections::BTreeSet;

use health_event::fault::codes_of;
use health_event::incident::{Hold, Incident, IncidentFault, QuarantineStatus};
use health_event::{BootId, FaultId, FaultKey, HealthEvent, Scope, devices_of};
use jiff::Timestamp;
use k8s_api::names;

use super::facts::{Annotation, FaultFacts, NodeFacts, Policy};
use super::joining::hold_open_faults;
use super::later;
use super::on_node::{MarkRead, OnNode};
use super::opening::blank_for;
use crate::rules::{NodeValue, RuleSets};

/// Stands for the rule set of an adopted fault that matches none today: it asks for the marks
/// that the node carries. No rule set can have this name, since it has no letter or digit.
pub const ADOPTED: &str = "<adopted>";

/// Rebuilds an incident from the node's own marks after the store was lost. `events` is the
/// annotation `quarantineHealthEvent`, parsed, of this very node. `None` if the marks are not
/// ours, or name another UID.
///
/// The incident is Quarantined, with one fault for each device and code; its `seq` numbers are 0.
/// The caller stores it, and its faults as open, as they are.
pub fn adopt(
    node: &NodeFacts,
    events: &[HealthEvent],
    rules: &RuleSets,
    node_value: impl Fn() -> NodeValue,
    now: Timestamp,
) -> Option<Incident> {
    let on = OnNode::read(node);
    let MarkRead::Ours(mark) = &on.mark else {
        return None;
    };
    // In which boot it opened is not known any more: release waits for the agent's word.
    let mut incident = blank_for(mark.incident.clone(), node, BootId::default(), now);
    incident.version = mark.version + 1;
    incident.quarantine = QuarantineStatus::Quarantined;
    incident.marks_observed = true;
    incident.marks = on.marks(BTreeSet::new());
    for event in events.iter().filter(|e| !e.is_healthy) {
        let mut names = rules.evaluate(event, &node_value).names();
        if names.is_empty() {
            names.insert(ADOPTED.to_owned());
        }
        incident.marks.reasons.extend(names.iter().cloned());
        adopt_faults(&mut incident, event, &names, now);
    }
    Some(incident)
}

fn adopt_faults(
    incident: &mut Incident,
    event: &HealthEvent,
    rules: &BTreeSet<String>,
    now: Timestamp,
) {
    let scope = Scope::of(event, incident.node.clone());
    let through_agent = event.metadata.contains_key(health_event::keys::ORDER);
    for device in devices_of(&event.entities) {
        for code in codes_of(event) {
            let id = FaultId {
                scope: scope.clone(),
                key: FaultKey {
                    space: event.strategy,
                    device: device.key(),
                    code: code.to_owned(),
                },
            };
            if incident.faults.iter().any(|f| f.id == id) {
                continue;
            }
            incident.faults.push(IncidentFault {
                id,
                rules: rules.clone(),
                forced_by: None,
                action: event.recommended_action,
                seq: 0,
                joined_at: now,
                closed_at: None,
                through_agent,
            });
        }
    }
}

/// The hold that a node with a record of a person's uncordon starts with after the store was
/// lost, for all that its first settled report asserts. `None` if there is no such record, or
/// nothing is open.
pub fn hold_after_store_loss(
    node: &NodeFacts,
    faults: &[FaultFacts],
    policy: &Policy,
    now: Timestamp,
) -> Option<Hold> {
    let records = [
        Annotation::UncordonedManually,
        Annotation::UntaintedManually,
    ];
    let recorded = records
        .iter()
        .any(|key| node.annotations.get(key).is_some_and(|v| v == names::TRUE));
    let until = later(now, policy.manual_uncordon_hold);
    (recorded && !faults.is_empty() && now < until)
        .then(|| hold_open_faults(faults, "a person before the store was lost", until))
}
