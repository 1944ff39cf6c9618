//! An incident: one node's stay out of service, from the first quarantining fault to release.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;

use crate::event::RecommendedAction;
use crate::fault::FaultId;
use crate::node::NodeName;
use crate::order::BootId;

/// Id of an incident: a ULID as text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IncidentId(Arc<str>);

impl IncidentId {
    /// From a ULID's text (26 characters of Crockford's base 32, upper case).
    pub fn new(text: &str) -> Option<Self> {
        let ok = text.len() == 26
            && text
                .bytes()
                .all(|b| b.is_ascii_digit() || b.is_ascii_uppercase());
        ok.then(|| Self(Arc::from(text)))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for IncidentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for IncidentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A taint, as the API server compares it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Taint {
    /// Key.
    pub key: String,
    /// Value, maybe empty.
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// Where the quarantine of an incident stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuarantineStatus {
    /// The node should be taken out but is not, for a reason that ends.
    Withheld(Withheld),
    /// Dry run, or withheld and then dropped by a person: nothing is written.
    Observed,
    /// The write that takes the node out is under way, outcome unknown.
    Applying,
    /// The node carries our marks.
    Quarantined,
    /// The write that gives the node back is under way, outcome unknown.
    Releasing(CloseReason),
    /// Over.
    Closed(CloseReason),
}

/// Why a node that should be taken out is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Withheld {
    /// The pool's breaker is tripped, by this bound.
    Breaker(Bound),
    /// Quarantine was switched on less than the first-action delay ago.
    FirstAction {
        /// End of the delay.
        until: Timestamp,
    },
    /// After the delay or a reset, nodes go one after the other.
    Pace,
    /// Another program that takes nodes out runs in the cluster; two must not act on one node.
    OtherQuarantine,
}

impl Withheld {
    /// Name for people, metrics and the API.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Breaker(_) => "breaker",
            Self::FirstAction { .. } => "first_action",
            Self::Pace => "pace",
            Self::OtherQuarantine => "other_quarantine",
        }
    }
}

/// A bound of the breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bound {
    /// Nodes out at one time.
    Level,
    /// Nodes newly taken out in the window.
    Rate,
}

impl Bound {
    /// Name for people, metrics and the store.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Level => "level",
            Self::Rate => "rate",
        }
    }
}

/// How an incident ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CloseReason {
    /// All its faults are closed.
    Recovered,
    /// A person uncordoned the node.
    ManualUncordon,
    /// A person removed a taint of ours.
    ManualUntaint,
    /// The node object is gone, or another machine has its name.
    NodeDeleted,
    /// A person ended it.
    CancelledByPerson,
}

impl CloseReason {
    const NAMED: [(Self, &'static str); 5] = [
        (Self::Recovered, "Recovered"),
        (Self::ManualUncordon, "ManualUncordon"),
        (Self::ManualUntaint, "ManualUntaint"),
        (Self::NodeDeleted, "NodeDeleted"),
        (Self::CancelledByPerson, "CancelledByPerson"),
    ];

    /// The name in the store and for people.
    pub fn as_str(self) -> &'static str {
        Self::NAMED
            .iter()
            .find(|(r, _)| *r == self)
            .map_or("Recovered", |(_, name)| name)
    }

    /// From the stored name.
    pub fn from_stored(name: &str) -> Option<Self> {
        Self::NAMED
            .iter()
            .find(|(_, n)| *n == name)
            .map(|(reason, _)| *reason)
    }
}

impl QuarantineStatus {
    /// Static name, for metrics, the store and the timeline.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Withheld(_) => "Withheld",
            Self::Observed => "Observed",
            Self::Applying => "Applying",
            Self::Quarantined => "Quarantined",
            Self::Releasing(_) => "Releasing",
            Self::Closed(_) => "Closed",
        }
    }

    /// Whether the incident is over.
    pub fn is_closed(&self) -> bool {
        matches!(self, Self::Closed(_))
    }

    /// Whether the node is out by us, or may be: what the breaker counts.
    pub fn is_out(&self) -> bool {
        matches!(
            self,
            Self::Applying | Self::Quarantined | Self::Releasing(_)
        )
    }
}

/// Moving the work off the node of an incident.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drain {
    /// Where it stands.
    pub status: DrainStatus,
    /// Since when.
    pub since: Timestamp,
}

/// Where a drain stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DrainStatus {
    /// It is wanted and has not begun.
    Waiting(DrainWait),
    /// Pods are asked to go, or waited for.
    Draining(DrainDeadlines),
    /// No pod that counts is left.
    Drained,
    /// A deadline is over and pods are left: a person is needed for these.
    Failed(DrainFailed),
    /// Ended before it was done: the incident is over, or nothing asks for it any more.
    Cancelled,
}

/// Why a drain has not begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DrainWait {
    /// A person paused the node.
    Paused,
    /// Drains were switched on less than the first-action delay ago.
    FirstAction {
        /// End of the delay.
        until: Timestamp,
    },
    /// Dry run: it is shown what would be asked to go.
    DryRun,
    /// Another program that drains nodes runs in the cluster.
    OtherDrainer,
    /// The controller runs on this node, which goes last and alone.
    OwnNode,
}

/// Until when pods of each mode may stay. Counted from the beginning of the drain, so that a
/// backlog does not eat the time that work was promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainDeadlines {
    /// Evicted pods are gone by then.
    pub immediate: Timestamp,
    /// Pods of `DeleteAfterTimeout` are deleted then.
    pub delete: Timestamp,
    /// Pods of `AllowCompletion` are done by then; `None`: they may run for ever.
    pub completion: Option<Timestamp>,
}

/// A drain of which pods are left that had to be gone. What has its own time still is asked to go, or
/// waited for, as before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainFailed {
    /// Why.
    pub why: DrainFailure,
    /// Until when pods of each mode may stay, counted as before.
    pub deadlines: DrainDeadlines,
}

/// Why a drain failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DrainFailure {
    /// Pods that were to go at once are left.
    Immediate,
    /// Pods that were deleted are left.
    Deleted,
    /// Pods that were to finish by themselves have not.
    Completion,
}

impl DrainFailure {
    const NAMED: [(Self, &'static str); 3] = [
        (Self::Immediate, "immediate"),
        (Self::Deleted, "deleted"),
        (Self::Completion, "completion"),
    ];

    /// The name in the store, in metrics and for people.
    pub fn as_str(self) -> &'static str {
        Self::NAMED
            .iter()
            .find(|(why, _)| *why == self)
            .map_or("immediate", |(_, name)| name)
    }

    /// From the stored name.
    pub fn from_stored(name: &str) -> Option<Self> {
        Self::NAMED
            .iter()
            .find(|(_, n)| *n == name)
            .map(|(why, _)| *why)
    }
}

impl DrainStatus {
    /// Static name, for metrics, the store and the timeline.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Waiting(_) => "Waiting",
            Self::Draining(_) => "Draining",
            Self::Drained => "Drained",
            Self::Failed(_) => "Failed",
            Self::Cancelled => "Cancelled",
        }
    }
}

/// The repair of the node of an incident.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repair {
    /// Where it stands.
    pub status: RepairStatus,
    /// Since when.
    pub since: Timestamp,
    /// The present attempt, or the last one; `None` before the first.
    pub attempt: Option<Attempt>,
}

/// Where a repair stands. From [`RepairStatus::Requested`] to its end an attempt may have its effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RepairStatus {
    /// It is known what will be ordered, and waits for the node to be empty.
    Planned {
        /// How strong it will be.
        rung: Rung,
    },
    /// The order is stored; whether the object is there is unknown.
    Requested,
    /// The object was seen.
    Running,
    /// The object is gone before its end was seen: only the node can tell what became of it.
    Unknown,
    /// The effect was seen.
    Succeeded,
    /// The attempt is used up.
    Failed(RepairFailure),
    /// Nothing that may be done by itself is left.
    NeedsOperator(OperatorReason),
    /// The incident ended before.
    Cancelled,
}

/// The check of a node before it is given back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Validation {
    /// Where it stands.
    pub status: ValidationStatus,
    /// Since when.
    pub since: Timestamp,
}

/// Where a validation stands. The node is given back only once it passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValidationStatus {
    /// It runs.
    Running,
    /// The node is well.
    Passed,
    /// The node is not: what was found, in words.
    Failed(String),
}

/// Steps of the ladder of repairs, from weak to strong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rung {
    /// Reset of devices.
    Reset,
    /// Reboot of the machine.
    Reboot,
    /// Another program or a person repairs it on our order.
    HandOver,
    /// End of the machine.
    Terminate,
}

impl Rung {
    const NAMED: [(Self, &'static str); 4] = [
        (Self::Reset, "reset"),
        (Self::Reboot, "reboot"),
        (Self::HandOver, "hand-over"),
        (Self::Terminate, "terminate"),
    ];

    /// Name in the configuration, in the store and for people.
    pub fn as_str(self) -> &'static str {
        Self::NAMED
            .iter()
            .find(|(rung, _)| *rung == self)
            .map_or("reset", |(_, name)| name)
    }

    /// From its name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMED
            .iter()
            .find(|(_, n)| *n == name)
            .map(|(rung, _)| *rung)
    }
}

/// One attempt to repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Counts from 1 in an incident.
    pub number: u32,
    /// How strong.
    pub rung: Rung,
    /// The action that it is done for, by its name in the configuration.
    pub action: String,
    /// Name of the object that orders it.
    pub object: String,
    /// Whether it asks for force: the one before was not seen to have happened.
    pub force: bool,
    /// Boot of the node when it was ordered.
    pub boot_before: BootId,
    /// When it was ordered.
    pub requested_at: Timestamp,
    /// Its effect is seen by then, or it failed. Of one that waits to be begun it may be over: its time
    /// counts from its beginning.
    pub deadline: Timestamp,
    /// Orders in a row before this one that nobody began.
    pub not_begun_before: u32,
    /// When the effect of an attempt before this one in the incident was last seen, if one was.
    pub seen_before: Option<Timestamp>,
    /// What came of it.
    pub effect: Effect,
}

/// What came of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It is under way.
    Pending,
    /// The node shows it, or where a node can't show it the object says so.
    Seen {
        /// Since when.
        at: Timestamp,
    },
    /// It is said to be done, and the node shows that it is not.
    NotSeen,
    /// Nobody began it, and nothing was sent.
    NotBegun,
    /// The provider refused it before it took anything on: nothing happens, and whoever mends what it refuses
    /// needs some time.
    ProviderRefused {
        /// The next attempt is ordered then, and not before.
        again_at: Timestamp,
    },
    /// It failed, or nobody can tell.
    Failed,
}

impl Effect {
    /// Whether nothing was sent that could have an effect: it is no attempt on the machine.
    pub fn is_unsent(self) -> bool {
        match self {
            Self::NotBegun | Self::ProviderRefused { .. } => true,
            Self::Pending | Self::Seen { .. } | Self::NotSeen | Self::Failed => false,
        }
    }
}

/// Why an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RepairFailure {
    /// The object says that it is done and the node runs in the same boot as before.
    NoRebootObserved,
    /// The API server does not take the object: its words.
    Refused(String),
    /// The object says that it failed: its words.
    Object(String),
    /// Its effect was not seen in time.
    Deadline,
    /// Nobody began it in time, so that nothing was sent: why, in words. It is no attempt on the
    /// machine.
    NotBegun(String),
    /// The provider refused it before it took anything on: its words. It is no attempt on the machine.
    ProviderRefused(String),
}

/// Why a person is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OperatorReason {
    /// No repair is configured for the action.
    Unsupported {
        /// Name of the action.
        action: String,
    },
    /// All attempts are used up.
    Exhausted {
        /// The last rung tried.
        rung: Rung,
        /// When the next is made by itself: the machine has used its own up for a time, the incident has
        /// not; none = not in this incident.
        again_at: Option<Timestamp>,
    },
    /// It was repaired, or its machine has booted by itself or by a person's hand, and its faults are
    /// neither said again nor closed.
    StillOpen,
    /// Order after order was begun by nobody.
    NotBegun,
    /// The provider refused order after order.
    ProviderRefuses {
        /// Its words about the last one.
        words: String,
        /// When it is asked again.
        again_at: Timestamp,
    },
    /// A person took the order back before anything was sent.
    CalledOff,
}

impl RepairStatus {
    /// Static name, for metrics, the store and the timeline.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Planned { .. } => "Planned",
            Self::Requested => "Requested",
            Self::Running => "Running",
            Self::Unknown => "Unknown",
            Self::Succeeded => "Succeeded",
            Self::Failed(_) => "Failed",
            Self::NeedsOperator(_) => "NeedsOperator",
            Self::Cancelled => "Cancelled",
        }
    }

    /// Whether an attempt may still have its effect: then the node is not given back.
    pub fn is_under_way(&self) -> bool {
        match self {
            Self::Requested | Self::Running | Self::Unknown => true,
            Self::Planned { .. }
            | Self::Succeeded
            | Self::Failed(_)
            | Self::NeedsOperator(_)
            | Self::Cancelled => false,
        }
    }
}

/// What we put on a node and must take off again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Marks {
    /// Whether a rule asks for a cordon.
    pub cordon: bool,
    /// Whether the node was cordoned by someone else before us: then release leaves the cordon.
    pub cordon_pre_existing: bool,
    /// Our taints.
    pub taints: BTreeSet<Taint>,
    /// Those of our taints that stood there before us: release leaves them.
    pub taints_pre_existing: BTreeSet<Taint>,
    /// Names of the rule sets, sorted, for `cordon-reason`.
    pub reasons: BTreeSet<String>,
}

impl Marks {
    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        !self.cordon && self.taints.is_empty()
    }
}

/// One fault of an incident.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncidentFault {
    /// Which.
    pub id: FaultId,
    /// Names of the rule sets that matched; once matched, always matched. Empty only if forced.
    pub rules: BTreeSet<String>,
    /// `AGENT-CREATOR` if an allowed sender forced it.
    pub forced_by: Option<String>,
    /// Action asked for.
    pub action: RecommendedAction,
    /// Position of the event that opened it; 0 if unknown (adopted from a node's annotation).
    pub seq: u64,
    /// When it joined.
    pub joined_at: Timestamp,
    /// When it closed; closed faults stay for the record while the incident is open.
    pub closed_at: Option<Timestamp>,
    /// Whether it came through the node's agent, so that release waits for the agent's word.
    pub through_agent: bool,
}

/// One node's stay out of service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incident {
    /// Id.
    pub id: IncidentId,
    /// Node.
    pub node: NodeName,
    /// UID of the node object; an incident never outlives it.
    pub node_uid: String,
    /// Machine id (system UUID), or the UID where none is known.
    pub machine: String,
    /// Rises with each change; the store refuses a plan made for another version.
    pub version: u64,
    /// Position of the event that opened it.
    pub opened_seq: u64,
    /// When it opened.
    pub opened_at: Timestamp,
    /// Boot of the node at that time.
    pub opened_boot: BootId,
    /// When it closed.
    pub closed_at: Option<Timestamp>,
    /// Where the quarantine stands.
    pub quarantine: QuarantineStatus,
    /// Since when.
    pub since: Timestamp,
    /// Its faults.
    pub faults: Vec<IncidentFault>,
    /// What is on the node (Quarantined), or is being put there (Applying).
    pub marks: Marks,
    /// Pool that the breaker counts it in; fixed while the incident is open.
    pub pool: String,
    /// Whether marks of ours were seen on the node: only then can their absence be a person's
    /// doing.
    pub marks_observed: bool,
    /// What the node was last seen to carry, while a change of it is under way (Applying) and
    /// until that is seen; `None`: [`Self::marks`].
    pub marks_before: Option<Marks>,
    /// The drain of the node; `None` where none was asked for yet.
    pub drain: Option<Drain>,
    /// The repair of the node; `None` where none was thought of yet.
    pub repair: Option<Repair>,
    /// The check of the node after its repair; `None` where none was asked for: then nothing waits for
    /// one.
    pub validation: Option<Validation>,
    /// Why a person is needed, if one is.
    pub needs_operator: Option<String>,
    /// Opened by a person (`warden hold`): it stays until a person ends it.
    pub held_by: Option<String>,
    /// Rebuilt from a node whose annotation does not name all that it is out for (the store was
    /// lost): release waits for the agent's settled report.
    pub faults_unknown: bool,
    /// When the uncordon of a co-operating controller was answered, newest last, one more than
    /// [`REASSERTS`] at most: only under policy `reassert`.
    pub reasserted: Vec<Timestamp>,
    /// When marks of ours that somebody had taken off were put back in the last hour, newest last.
    pub put_back: Vec<Timestamp>,
}

/// How often in an hour our marks are put back at once; whoever takes them off more often is no accident.
pub const PUT_BACKS: usize = 3;

/// How often in an hour a cordon is put back that a co-operating controller took off.
pub const REASSERTS: usize = 3;

impl Incident {
    /// Faults that are still open.
    pub fn open_faults(&self) -> impl Iterator<Item = &IncidentFault> {
        self.faults.iter().filter(|f| f.closed_at.is_none())
    }
}

/// Faults that a person's uncordon keeps from taking the node out again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// Whose uncordon it was, if known.
    pub actor: String,
    /// End of the hold.
    pub until: Timestamp,
    /// Exactly the faults open at that moment; each leaves the list once it has closed.
    pub faults: Vec<HeldFault>,
}

/// A fault under a hold: until it closes. Open again it is another opening, and not held.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeldFault {
    /// Which.
    pub id: FaultId,
    /// Position of the event that opened it.
    pub opened_seq: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for (reason, name) in CloseReason::NAMED {
            assert_eq!(CloseReason::from_stored(name), Some(reason));
            assert_eq!(reason.as_str(), name);
        }
        for (rung, name) in Rung::NAMED {
            assert_eq!(Rung::from_name(name), Some(rung));
            assert_eq!(rung.as_str(), name);
        }
        for (why, name) in DrainFailure::NAMED {
            assert_eq!(DrainFailure::from_stored(name), Some(why));
            assert_eq!(why.as_str(), name);
        }
    }

    #[test]
    fn an_incident_id_is_a_ulid() {
        assert!(IncidentId::new("01ARZ3NDEKTSV4RRFFQ69G5FAV").is_some());
        for bad in [
            "",
            "01arz3ndektsv4rrffq69g5fav",
            "01ARZ3NDEKTSV4RRFFQ69G5FA",
        ] {
            assert!(IncidentId::new(bad).is_none(), "{bad:?} was accepted");
        }
    }
}
