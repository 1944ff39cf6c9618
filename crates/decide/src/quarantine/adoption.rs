//! Nodes that carry our marks while the store knows nothing of them.

use std::collections::BTreeSet;

use health_event::fault::codes_of;
use health_event::incident::{Hold, Incident, IncidentFault, QuarantineStatus};
use health_event::{BootId, FaultId, FaultKey, HealthEvent, Scope, devices_of};
use jiff::Timestamp;
use k8s_api::names;

use super::facts::{AgentFacts, Annotation, FaultFacts, MarkOrigin, NodeFacts, Policy};
use super::joining::hold_open_faults;
use super::on_node::{MarkRead, OnNode};
use super::opening::blank_for;
use crate::later;
use crate::rules::{NodeValue, RuleSets};

/// Stands for the rule set of an adopted fault that matches none today: it asks for the marks
/// that the node carries. No rule set can have this name, since it has no letter or digit.
pub const ADOPTED: &str = "<adopted>";

/// How far the version of an adopted incident is beyond its mark: a write of the process that lost
/// the store may still arrive, and must not pass for one of this incident's.
const AHEAD: u64 = 16;

/// Rebuilds an incident from the node's own marks after the store was lost. `events` is the
/// annotation `quarantineHealthEvent`, parsed, of this very node; `None` if it is missing or can't
/// be read. Answers `None` if the marks are not ours, or name another UID.
///
/// The incident is Quarantined, with one fault for each device and code; its `seq` numbers are 0.
/// The caller stores it, and its faults as open, as they are. Where the annotation does not name
/// all that the node is out for, [`Incident::faults_unknown`] is set.
pub fn adopt(
    node: &NodeFacts,
    events: Option<&[HealthEvent]>,
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
    incident.version = mark.version + AHEAD;
    incident.quarantine = QuarantineStatus::Quarantined;
    incident.marks_observed = true;
    incident.marks = on.marks(BTreeSet::new());
    incident.held_by.clone_from(&mark.held_by);
    incident.faults_unknown = !names_all(events, incident.held_by.is_some());
    let faulty = events.unwrap_or_default().iter().filter(|e| !e.is_healthy);
    for event in faulty {
        let mut names = rules.evaluate(event, &node_value).names();
        if names.is_empty() {
            names.insert(ADOPTED.to_owned());
        }
        incident.marks.reasons.extend(names.iter().cloned());
        adopt_faults(&mut incident, event, &names, now);
    }
    Some(incident)
}

/// Whether a node without an open incident will be adopted when its turn comes. It is out: a new
/// process counts it for the breaker before it decides about any node, or the faults of others would
/// take its place in the bound meanwhile.
pub fn will_be_adopted(node: &NodeFacts, origin: MarkOrigin) -> bool {
    let on = OnNode::read(node);
    matches!(on.mark, MarkRead::Ours(_)) && origin == MarkOrigin::Unknown && !on.marks_nothing()
}

/// Whether the annotation names all that the node is out for. A node that is out names a fault, but
/// for one that a person holds; and where the oldest events were left out for their size, the first
/// that is there carries their number.
fn names_all(events: Option<&[HealthEvent]>, held: bool) -> bool {
    let Some(events) = events else { return false };
    let cut = |event: &HealthEvent| event.metadata.contains_key(names::LEFT_OUT.text);
    let names_one = events.iter().any(|event| !event.is_healthy);
    (names_one || held) && !events.iter().any(cut)
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

/// Where a node stands that a person had given back when the store was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GivenBack {
    /// Nothing is opened there before the agent's first settled report, or this time.
    Waits {
        /// End of the wait.
        until: Timestamp,
    },
    /// It starts with this hold, and what comes later is new.
    Held(Hold),
    /// Nothing is held, and what comes later is new.
    Over,
}

/// Whether a node, seen by a store that knows nothing of it, was given back by a person.
pub fn was_given_back(node: &NodeFacts) -> bool {
    let records = [
        Annotation::UncordonedManually,
        Annotation::UntaintedManually,
    ];
    let is_set = |key| node.annotations.get(key).is_some_and(|v| v == names::TRUE);
    let marked = matches!(OnNode::read(node).mark, MarkRead::Ours(_));
    records.iter().any(is_set) && !marked
}

/// What becomes of a node that a person had given back when the store was lost: it is held for all
/// that its first settled report asserts. Where none comes within `settle_timeout` of `since`, when
/// the empty store was first seen, it is held for what is open then: a node must not stay unwatched
/// for want of an agent. Once this was `Held` or `Over` it is not asked again.
pub fn given_back(
    node: &NodeFacts,
    incident: Option<&Incident>,
    faults: &[FaultFacts],
    agent: &AgentFacts,
    policy: &Policy,
    since: Timestamp,
    now: Timestamp,
) -> GivenBack {
    if incident.is_some() || !was_given_back(node) {
        return GivenBack::Over;
    }
    let until = later(since, policy.settle_timeout);
    if !agent.has_settled(node) && now < until {
        return GivenBack::Waits { until };
    }
    let end = later(now, policy.manual_uncordon_hold);
    if faults.is_empty() || end <= now {
        return GivenBack::Over;
    }
    GivenBack::Held(hold_open_faults(
        faults,
        "a person before the store was lost",
        end,
    ))
}
