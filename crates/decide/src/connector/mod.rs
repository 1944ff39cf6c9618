//! What node conditions and Events say.
//!
//! A fatal fault makes the condition named like its check True; all that is well makes it False;
//! an unhealthy event that is not fatal makes a core/v1 Event. Only the space of
//! EXECUTE_REMEDIATION counts. The message is rendered from the open faults each time, never from
//! the message that stands on the node.
//!
//! # Invariants (`tests`)
//! - A check of which nothing is known is not written: the first write is what is known. What says
//!   that something is wrong stays until somebody knows better: a store that was lost knows nothing
//!   of senders that have not spoken since.
//! - Kubernetes' own condition types, and types on the node that neither we nor the reference
//!   write, are never touched. The reference's are left alone while it runs.
//! - At most [`OWN_CONDITIONS`] conditions, and [`OWN_CONDITION_BYTES`] of their names, are of checks
//!   that only their senders know; of more, one condition tells. The checks that we know have theirs
//!   whatever else there is.
//! - A message has at most [`Limits::message`] bytes, and a second decision on its own outcome
//!   writes nothing.

mod message;
mod pods;
mod steps;

pub use pods::drain_posts;
pub use steps::{RepairStep, Step, StepOf, Trip, controller_here_post, step_posts};

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use health_event::checks::CHECKS;
use health_event::{Device, HealthEvent, ProcessingStrategy, RecommendedAction};
use jiff::Timestamp;
use k8s_api::names::{
    FOREIGN_CONDITIONS, HEALTHY_SUFFIX, MORE_FAULTS, NO_HEALTH_FAILURES, NOT_HEALTHY_SUFFIX,
    OTHER_QUARANTINE,
};

/// Greatest length of a condition's message, in bytes (the reference's default).
pub const MESSAGE_LIMIT: usize = 1024;
/// Length to which an entry is cut when the message is too long, in bytes.
pub const COMPACT_LIMIT: usize = 72;

/// Greatest number of conditions of checks that only their senders know, on one node. Each event of
/// one sender may name another check, and a node object has room for few.
pub const OWN_CONDITIONS: usize = 64;
/// Greatest length of the names of these checks together, in bytes: the API server takes 256 KiB of
/// annotations on an object, everybody's together.
pub const OWN_CONDITION_BYTES: usize = 16 * 1024;

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
    /// Checks of which the store knows a fault on this node, open or closed, or that are retired: it
    /// is known why no fatal one is open.
    pub known: &'a BTreeSet<String>,
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
pub fn decide(view: &View<'_>, limits: Limits, now: Timestamp) -> StatusWrite {
    let mut fatal: BTreeMap<&str, Vec<&FaultEntry>> = BTreeMap::new();
    for fault in view.faults.iter().filter(|f| f.fatal) {
        fatal.entry(&fault.check).or_default().push(fault);
    }
    let mut kinds: BTreeSet<&str> = fatal.keys().copied().collect();
    kinds.extend(view.healthy.keys().map(String::as_str));
    kinds.extend(view.listed.iter().map(String::as_str));
    let others = view.conditions.keys().map(String::as_str);
    kinds.extend(others.filter(|kind| is_left_behind(view, kind)));
    let mut write = StatusWrite::default();
    let mut listed = view.listed.clone();
    let mut all: BTreeMap<&str, Wanted> = kinds
        .into_iter()
        .map(|kind| match fatal.get(kind) {
            Some(faults) => (kind, Wanted::Set(unhealthy(kind, faults, limits))),
            None => (kind, without_fault(view, kind, now)),
        })
        .collect();
    keep_bounded(view, &fatal, &mut all);
    for (kind, wanted) in all {
        match wanted {
            Wanted::Remove => {
                listed.remove(kind);
                if view.conditions.contains_key(kind) {
                    write.remove.insert(kind.to_owned());
                }
            }
            Wanted::Set(condition) if may_write(view, kind, condition.is_true) => {
                listed.insert(kind.to_owned());
                write.set.extend(difference(view, condition));
            }
            Wanted::Set(_) | Wanted::Nothing => {}
        }
    }
    if listed != *view.listed {
        write.listed = Some(listed);
    }
    write
}

enum Wanted {
    Nothing,
    Remove,
    Set(Condition),
}

/// Leaves out the conditions for which a node has no room. The oldest fatal ones go first, then those
/// that stand there.
fn keep_bounded(
    view: &View<'_>,
    fatal: &BTreeMap<&str, Vec<&FaultEntry>>,
    all: &mut BTreeMap<&str, Wanted>,
) {
    let is_known = |kind: &str| kind == OTHER_QUARANTINE || CHECKS.iter().any(|c| c.name == kind);
    let takes_room = |kind: &str, wanted: &Wanted| match wanted {
        Wanted::Set(condition) => !is_known(kind) && may_write(view, kind, condition.is_true),
        Wanted::Remove | Wanted::Nothing => false,
    };
    let opened = |kind: &str| fatal.get(kind)?.iter().map(|f| f.seq).min();
    let mut own: Vec<_> = all
        .iter()
        .filter(|(kind, wanted)| takes_room(kind, wanted))
        .map(|(kind, _)| {
            let fresh = !view.listed.contains(*kind);
            (opened(kind).unwrap_or(u64::MAX), fresh, *kind)
        })
        .collect();
    own.sort_unstable();
    let (mut kept, mut bytes) = (0, 0);
    let mut more: Vec<&FaultEntry> = Vec::new();
    for (_, fresh, kind) in own {
        if kept < OWN_CONDITIONS && bytes + kind.len() <= OWN_CONDITION_BYTES {
            kept += 1;
            bytes += kind.len();
            continue;
        }
        more.extend(fatal.get(kind).into_iter().flatten());
        let left_out = if fresh {
            Wanted::Nothing
        } else {
            Wanted::Remove
        };
        all.insert(kind, left_out);
    }
    if let Some(at) = more.iter().map(|f| f.last_at).max() {
        all.insert(MORE_FAULTS, Wanted::Set(more_faults(at)));
    }
}

/// Says no number: each further check would be a write of the node.
fn more_faults(at: Timestamp) -> Condition {
    Condition {
        kind: MORE_FAULTS.to_owned(),
        is_true: true,
        reason: format!("{MORE_FAULTS}{NOT_HEALTHY_SUFFIX}"),
        message: format!(
            "more fatal checks than the {OWN_CONDITIONS} of senders' own that have conditions here; \
             `warden explain --format json` lists all"
        ),
        heartbeat_at: at,
        transition_at: Some(at),
    }
}

fn without_fault(view: &View<'_>, kind: &str, now: Timestamp) -> Wanted {
    let is_listed = view.listed.contains(kind);
    if is_listed && may_hold(view, kind) {
        return Wanted::Nothing;
    }
    if !view.configured.contains(kind) {
        return if is_listed {
            Wanted::Remove
        } else {
            Wanted::Nothing
        };
    }
    let said = view.healthy.get(kind).copied();
    // Nothing healthy was said, but what we wrote stands there and its fault has closed; or what the
    // reference left, and our detector has looked and does not confirm it.
    let is_ours = is_listed || is_left_behind(view, kind);
    let stands = is_ours && view.conditions.get(kind).is_some_and(|c| c.is_true);
    match said {
        Some(at) => Wanted::Set(healthy(kind, at)),
        None if stands => Wanted::Set(healthy(kind, now)),
        None => Wanted::Nothing,
    }
}

/// Whether what we once wrote says that something is wrong, and nobody knows better: neither a healthy
/// word, nor a detector that has looked, nor the end of a fault.
fn may_hold(view: &View<'_>, kind: &str) -> bool {
    let own = kind == MORE_FAULTS || kind == OTHER_QUARANTINE;
    let says = view.conditions.get(kind).is_some_and(|c| c.is_true);
    let is_known = view.known.contains(kind) || view.settled.contains(kind);
    says && !own && !is_known && !view.healthy.contains_key(kind)
}

/// Whether a condition of this type, if it is there, is the reference's, which is gone, and our own
/// detector for it has settled on the node.
fn is_left_behind(view: &View<'_>, kind: &str) -> bool {
    view.reference_types.contains(kind) && !view.reference_runs && view.settled.contains(kind)
}

/// Whether a condition of this type is ours to write on this node.
fn may_write(view: &View<'_>, kind: &str, is_true: bool) -> bool {
    if FOREIGN_CONDITIONS.contains(&kind) {
        return false;
    }
    if view.listed.contains(kind) || !view.conditions.contains_key(kind) {
        return true;
    }
    let may_take_over = view.reference_types.contains(kind) && !view.reference_runs;
    may_take_over && (is_true || view.settled.contains(kind))
}

/// The condition, if it says something else than the node's.
fn difference(view: &View<'_>, mut condition: Condition) -> Option<Condition> {
    let read = view.conditions.get(&condition.kind);
    let same = read.is_some_and(|r| {
        r.is_true == condition.is_true
            && r.reason == condition.reason
            && r.message == condition.message
    });
    if same {
        return None;
    }
    if read.is_some_and(|r| r.is_true == condition.is_true) {
        condition.transition_at = None;
    }
    Some(condition)
}

fn unhealthy(kind: &str, faults: &[&FaultEntry], limits: Limits) -> Condition {
    let at = faults.iter().map(|f| f.last_at).max().unwrap_or_default();
    Condition {
        kind: kind.to_owned(),
        is_true: true,
        reason: format!("{kind}{NOT_HEALTHY_SUFFIX}"),
        message: message::message(&message::entries(faults), limits),
        heartbeat_at: at,
        transition_at: Some(at),
    }
}

fn healthy(kind: &str, at: Timestamp) -> Condition {
    Condition {
        kind: kind.to_owned(),
        is_true: false,
        reason: format!("{kind}{HEALTHY_SUFFIX}"),
        message: NO_HEALTH_FAILURES.to_owned(),
        heartbeat_at: at,
        transition_at: Some(at),
    }
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
pub fn event_post(event: &HealthEvent, limits: Limits, now: Timestamp) -> Option<EventPost> {
    let acts = event.strategy == ProcessingStrategy::ExecuteRemediation;
    if !acts || event.is_healthy || event.is_fatal {
        return None;
    }
    Some(EventPost {
        node: event.node_name.clone(),
        kind: event.check_name.clone(),
        reason: format!("{}{NOT_HEALTHY_SUFFIX}", event.check_name),
        message: message::message(&[message::Entry::of_event(event)], limits),
        component: event.agent.clone(),
        at: event.generated_at.unwrap_or(now),
    })
}
