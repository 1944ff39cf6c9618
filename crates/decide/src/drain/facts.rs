//! What a drain decision looks at.

use std::collections::BTreeMap;

use health_event::FaultId;
use health_event::incident::Incident;
use jiff::{SignedDuration, Timestamp};

use super::namespaces::Namespaces;

/// Where a pod stands in its life, as its status says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Not all its containers have started.
    Pending,
    /// It runs, or says nothing that is known here.
    Running,
    /// It is over, well or not.
    Finished,
}

/// Namespace, name and UID of a pod: what an eviction names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodRef {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID of the object: another one under the name is another pod.
    pub uid: String,
}

/// One pod that is bound to the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFacts {
    /// Which.
    pub pod: PodRef,
    /// Phase.
    pub phase: Phase,
    /// Whether a DaemonSet owns it: it would come back at once.
    pub of_daemon_set: bool,
    /// Whether the kubelet runs it by itself (annotation `kubernetes.io/config.mirror`): the API
    /// server only shows it.
    pub is_mirror: bool,
    /// Whether it has GPUs, by the device annotation or its limits.
    pub has_devices: bool,
    /// `metadata.creationTimestamp`.
    pub created_at: Option<Timestamp>,
    /// `metadata.deletionTimestamp`: the end of its grace period.
    pub deleted_by: Option<Timestamp>,
    /// Since when its condition Ready is False.
    pub not_ready_since: Option<Timestamp>,
}

/// What a drain may do about pods that are left at a deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AtDeadline {
    /// The drain fails, and a person is needed.
    #[default]
    Fail,
    /// They are deleted without grace, past any disruption budget.
    Delete,
}

/// How far the module may act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Acts.
    Enforce,
    /// Shows what it would do.
    DryRun,
    /// Another program that drains nodes runs in the cluster.
    Refused,
    /// Switched off: what runs is ended, nothing begins.
    Off,
}

/// Settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// How far the module may act.
    pub mode: Mode,
    /// Which namespaces are drained, and how.
    pub namespaces: Namespaces,
    /// Grace that an eviction asks for; `None`: the pod's own.
    pub grace: Option<SignedDuration>,
    /// Evicted pods are gone after this long. Default 1 h.
    pub immediate_deadline: SignedDuration,
    /// Pods of `DeleteAfterTimeout` are deleted after this long. Default 1 h, the reference's.
    pub delete_after: SignedDuration,
    /// Pods of `AllowCompletion` have finished after this long; `None`: they may run for ever.
    pub completion_deadline: Option<SignedDuration>,
    /// What happens to pods that are left at a deadline.
    pub at_deadline: AtDeadline,
    /// A pod that should be gone for this long, or is not Ready for [`Self::not_ready_timeout`] and
    /// this long, is passed over if the repair makes it harmless. Default 5 min.
    pub stuck_timeout: SignedDuration,
    /// How long a pod may be not Ready. Default 5 min, the reference's.
    pub not_ready_timeout: SignedDuration,
    /// Pods of a node whose kubelet has been silent for this long are as good as gone if the repair
    /// makes them harmless. Default 10 min.
    pub dead_kubelet_timeout: SignedDuration,
    /// Whether only pods with GPUs are drained.
    pub gpu_pods_only: bool,
    /// Until then no drain begins (the module was switched on).
    pub first_action_until: Option<Timestamp>,
}

/// What the newest events of an open fault say about drains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Overrides {
    /// All pods that are drained at all go at once; from allowed senders only.
    pub force: bool,
    /// The fault needs no drain.
    pub skip: bool,
}

/// What became of asking a pod to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// Sent; no answer yet.
    InFlight,
    /// Taken; the watch has not shown it yet.
    Accepted,
    /// A disruption budget does not allow it now (429): the server's words.
    Budget {
        /// Why.
        why: String,
        /// When it is asked again.
        again_at: Timestamp,
    },
    /// It failed, or the API server refuses it.
    Failed {
        /// Why.
        why: String,
        /// When it is asked again.
        again_at: Timestamp,
    },
}

/// Everything that one decision about one node looks at.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct View<'a> {
    /// The open incident.
    pub incident: &'a Incident,
    /// What the open faults say about drains; one that is not listed says nothing.
    pub overrides: &'a BTreeMap<FaultId, Overrides>,
    /// Whether the repair that the open faults ask for makes pods harmless that are still on the
    /// node: a reboot or the end of the machine.
    pub ends_processes: bool,
    /// A repair of the node is ordered or runs: pods that come now are none of the drain's.
    pub repair_under_way: bool,
    /// Since when the node's kubelet is silent; `None`: it speaks.
    pub kubelet_silent_since: Option<Timestamp>,
    /// Annotation `warden.dev/pause` stands.
    pub paused: bool,
    /// The controller runs on this node and it is not its turn yet.
    pub waits_as_own_node: bool,
    /// It waited for the end of the first-action delay, and it is not its turn yet.
    pub waits_for_turn: bool,
    /// The pods that are bound to the node; `None` while they are not known.
    pub pods: Option<&'a [PodFacts]>,
    /// What became of what earlier decisions asked for, by UID.
    pub asked: &'a BTreeMap<String, Asked>,
    /// Settings.
    pub policy: &'a Policy,
}

/// How a pod is asked to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
    /// By an eviction, which disruption budgets may refuse, with this grace in seconds.
    Evict(Option<i64>),
    /// By a deletion without grace.
    Delete,
}

/// One call.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ask {
    /// Which pod; its UID is a precondition.
    pub pod: PodRef,
    /// How.
    pub how: How,
}

/// A pod that the drain waits for, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocker {
    /// Which.
    pub pod: PodRef,
    /// Why it is still there.
    pub why: BlockedBy,
    /// When that ends at the latest, if anything ends it.
    pub until: Option<Timestamp>,
}

/// See [`Blocker`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockedBy {
    /// It is asked to go.
    Asked,
    /// It is going.
    Terminating,
    /// A disruption budget does not allow it now: the server's words.
    Budget(String),
    /// Asking it failed.
    Failed(String),
    /// It may finish by itself.
    Completion,
    /// It may finish by itself until it is deleted.
    Timeout,
    /// It came while the node was drained already, and is asked to go later: something puts pods there in
    /// spite of the cordon.
    Came,
}

impl BlockedBy {
    /// Name for metrics and the API.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::Terminating => "terminating",
            Self::Budget(_) => "budget",
            Self::Failed(_) => "failed",
            Self::Completion => "completion",
            Self::Timeout => "timeout",
            Self::Came => "came",
        }
    }
}
