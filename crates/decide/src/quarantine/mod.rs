//! The quarantine of one node.

mod annotation;
mod decision;
mod facts;

pub use annotation::{
    AppliedTaint, EVENTS_LIMIT, IncidentMark, parse_applied_taints, parse_events, render_events,
};
pub use decision::{
    Decision, NodeWrite, Note, PermitRequest, Preconditions, Reason, StrayMarks, Transition,
    WriteKind,
};
pub use facts::{
    AgentFacts, Annotation, Cooperator, CooperatorPolicy, FaultFacts, Label, MarkOrigin, Mode,
    NodeFacts, Policy, Request, RequestKind, TaintRead, View, WriteFeedback,
};

use health_event::HealthEvent;
use health_event::incident::{Hold, Incident};
use jiff::Timestamp;

/// Decides about one node.
pub fn decide(_view: &View<'_>, _now: Timestamp) -> Decision {
    Decision::default()
}

/// Rebuilds an incident from the node's own marks after the store was lost. `events` is the
/// annotation `quarantineHealthEvent`, already parsed. `None` if the marks are not ours, or name
/// another UID.
pub fn adopt(
    _node: &NodeFacts,
    _events: &[HealthEvent],
    _rules: &crate::rules::RuleSets,
    _now: Timestamp,
) -> Option<Incident> {
    None
}

/// The hold that a node with a record of a person's uncordon starts with after the store was
/// lost, for all that its first settled report asserts. `None` if there is no such record.
pub fn hold_after_store_loss(
    _node: &NodeFacts,
    _faults: &[FaultFacts],
    _policy: &Policy,
    _now: Timestamp,
) -> Option<Hold> {
    None
}
