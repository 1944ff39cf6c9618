//! What node conditions and Events say.

use std::collections::{BTreeMap, BTreeSet};

use health_event::{Device, HealthEvent, RecommendedAction};
use jiff::Timestamp;

/// Greatest length of a condition's message, in bytes (the reference's default).
pub const MESSAGE_LIMIT: usize = 1024;
/// Length to which an entry is cut when the message is too long, in bytes.
pub const COMPACT_LIMIT: usize = 72;

/// Sizes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Of the whole message, in bytes, at least 64.
    pub message: usize,
    /// Of a compacted entry before its action, in bytes.
    pub compact: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message: MESSAGE_LIMIT,
            compact: COMPACT_LIMIT,
        }
    }
}

/// A condition as read from the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionRead {
    /// Status is `True`.
    pub is_true: bool,
    /// Reason.
    pub reason: String,
    /// Message.
    pub message: String,
}

/// An open fault, as far as a message needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultEntry {
    /// Check: the condition's type.
    pub check: String,
    /// Position of the event that opened it: faults of one event make one entry.
    pub seq: u64,
    /// Device.
    pub device: Device,
    /// Code; empty if none.
    pub code: String,
    /// Whether it is fatal: only fatal ones make a condition.
    pub fatal: bool,
    /// Text of its event.
    pub message: String,
    /// Action.
    pub action: RecommendedAction,
    /// When it was last said.
    pub last_at: Timestamp,
}

/// Everything that one decision about one node's conditions looks at.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// Conditions of the node, by type.
    pub conditions: &'a BTreeMap<String, ConditionRead>,
    /// Types that we ever wrote here: annotation `warden.dev/conditions`.
    pub listed: &'a BTreeSet<String>,
    /// Open faults of the node in the space of EXECUTE_REMEDIATION.
    pub faults: &'a [FaultEntry],
    /// Checks of which something healthy is known, and when it was last said. A check that is
    /// neither here nor in `faults` is unknown: nothing is written about it.
    pub healthy: &'a BTreeMap<String, Timestamp>,
    /// Checks that exist (an enabled detector, or a sender that still speaks): listed types
    /// without an open fault that are not among them go.
    pub configured: &'a BTreeSet<String>,
    /// Condition types that the reference writes too.
    pub reference_types: &'a BTreeSet<String>,
    /// Whether a platform-connector of the reference runs in the cluster.
    pub reference_runs: bool,
    /// Checks whose own detector has settled on this node.
    pub settled: &'a BTreeSet<String>,
}

/// A condition to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Type.
    pub kind: String,
    /// Status `True` (bad) or `False`.
    pub is_true: bool,
    /// Reason.
    pub reason: String,
    /// Message.
    pub message: String,
    /// `lastHeartbeatTime`.
    pub heartbeat_at: Timestamp,
    /// `lastTransitionTime`, where status changes or the condition is new.
    pub transition_at: Option<Timestamp>,
}

/// One patch of the node's status.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StatusWrite {
    /// To write.
    pub set: Vec<Condition>,
    /// Types to remove.
    pub remove: BTreeSet<String>,
    /// New content of annotation `warden.dev/conditions`; `None`: unchanged.
    pub listed: Option<BTreeSet<String>>,
}

impl StatusWrite {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.remove.is_empty() && self.listed.is_none()
    }
}

/// Decides about one node's conditions.
pub fn decide(_view: &View<'_>, _limits: Limits, _now: Timestamp) -> StatusWrite {
    StatusWrite::default()
}

/// A core/v1 Event in namespace `default` about a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventPost {
    /// Node: involvedObject's name and UID, reporting instance, host.
    pub node: String,
    /// Type: the check.
    pub kind: String,
    /// `<check>IsNotHealthy`.
    pub reason: String,
    /// The entry and `;`.
    pub message: String,
    /// Reporting controller and source component: the agent.
    pub component: String,
    /// First and last time.
    pub at: Timestamp,
}

/// What makes two posts the same Event, counted rather than created.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AggregationKey {
    /// Node.
    pub node: String,
    /// Type.
    pub kind: String,
    /// Reason.
    pub reason: String,
    /// Message.
    pub message: String,
}

impl EventPost {
    /// Its key.
    pub fn key(&self) -> AggregationKey {
        AggregationKey {
            node: self.node.clone(),
            kind: self.kind.clone(),
            reason: self.reason.clone(),
            message: self.message.clone(),
        }
    }
}

/// The Event that a stored health event makes: only unhealthy, non-fatal ones that may act.
pub fn event_post(_event: &HealthEvent, _now: Timestamp) -> Option<EventPost> {
    None
}
