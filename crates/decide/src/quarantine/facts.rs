//! What a quarantine decision looks at.

use std::collections::{BTreeMap, BTreeSet};

use health_event::incident::{Hold, Incident, IncidentId, Taint};
use health_event::{BootId, Boots, Device, FaultId, HealthEvent, NodeName};
use jiff::{SignedDuration, Timestamp};

use crate::breaker::Permit;
use crate::rules::RuleSets;

/// Annotations of a node that the quarantine reads and writes. Their names are in the shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Annotation {
    /// `warden.dev/incident`: [`k8s_api::IncidentMark`].
    Incident,
    /// `quarantineHealthEvent`: the open faults' events.
    HealthEvents,
    /// `quarantineHealthEventAppliedTaints`.
    AppliedTaints,
    /// `quarantineHealthEventIsCordoned`: `True`.
    IsCordoned,
    /// `quarantineHealthEventCordonPreExisting`: `True`.
    CordonPreExisting,
    /// `quarantinedNodeUncordonedManually`: `True`; a record that stays after the end.
    UncordonedManually,
    /// `quarantinedNodeUntaintedManually`: `True`; a record that stays after the end.
    UntaintedManually,
    /// `latestFaultRemediationState`: which object repairs the node.
    RemediationState,
}

/// Labels of a node that the quarantine reads and writes; the shell adds the label prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Label {
    /// `cordon-by`.
    CordonBy,
    /// `cordon-reason`.
    CordonReason,
    /// `cordon-timestamp`.
    CordonTimestamp,
    /// `uncordon-by`; a record that stays.
    UncordonBy,
    /// `uncordon-reason`; a record that stays.
    UncordonReason,
    /// `uncordon-timestamp`; a record that stays.
    UncordonTimestamp,
    /// `dgxc.nvidia.com/nvsentinel-state`.
    State,
}

/// A taint exactly as the API server showed it, so that the list can be tested for change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaintRead {
    /// Key, value and effect.
    pub taint: Taint,
    /// `timeAdded`, as text.
    pub time_added: Option<String>,
}

/// Whose the cordon is that stands on a node, by the API server's own record of who last changed
/// the field (`metadata.managedFields`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CordonOwner {
    /// Not told: there is no record, or it was folded together with others'. Our annotations and
    /// the incident's record then decide.
    #[default]
    Unknown,
    /// Ours alone.
    Us,
    /// Somebody else's, or theirs too.
    Others,
}

/// The node object, reduced to what decides, exactly as read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own, as read"
)]
pub struct NodeFacts {
    /// Name.
    pub name: NodeName,
    /// UID of the object.
    pub uid: String,
    /// When the object was created.
    pub created_at: Timestamp,
    /// System UUID; empty if unknown.
    pub machine_id: String,
    /// What holds are kept by: the system UUID, else the provider id, else the UID.
    pub machine: String,
    /// Boot id of the node's status.
    pub boot: BootId,
    /// Whether the condition Ready is True.
    pub ready: bool,
    /// `spec.unschedulable` as read; `None` where the field is absent.
    pub unschedulable: Option<bool>,
    /// Whose cordon that is; says nothing while the node is not cordoned.
    pub cordon_owner: CordonOwner,
    /// `spec.taints` as read and in order; `None` where the field is absent.
    pub taints: Option<Vec<TaintRead>>,
    /// Whether `metadata.annotations` is absent as a whole.
    pub annotations_absent: bool,
    /// Whether `metadata.labels` is absent as a whole.
    pub labels_absent: bool,
    /// Ours, as read.
    pub annotations: BTreeMap<Annotation, String>,
    /// Ours, as read.
    pub labels: BTreeMap<Label, String>,
    /// Labels and annotations of the policy's cooperators that stand on the node.
    pub cooperator_values: BTreeMap<String, String>,
    /// Who else repairs this node at the moment (taint, label or key of an external owner).
    pub external_owner: Option<String>,
    /// A repair of the node that a person ordered, or an incident that is over, is under way.
    pub repaired_by_others: bool,
    /// Pool that the breaker counts it in.
    pub pool: String,
    /// Whether it is a control-plane node.
    pub control_plane: bool,
    /// Label `k8saas.nvidia.com/ManagedByNVSentinel=false`.
    pub opted_out: bool,
    /// Annotation `warden.dev/pause` stands.
    pub paused: bool,
}

/// One open fault of the node in the space of EXECUTE_REMEDIATION.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultFacts {
    /// Which.
    pub id: FaultId,
    /// All that is known of the device.
    pub device: Device,
    /// The newest event that raised it, with severity and action as the fault has them now.
    pub event: HealthEvent,
    /// Position of the event that opened it: another one after it had closed in between.
    pub seq: u64,
    /// Whether it came through the node's agent.
    pub through_agent: bool,
    /// Machine of that event; empty if unknown.
    pub machine_id: String,
    /// Boot of that event; unknown if the sender has none.
    pub boot: BootId,
    /// When the fault opened.
    pub first_at: Timestamp,
    /// When it was last said.
    pub last_at: Timestamp,
    /// Names of the enabled rule sets that match now ([`RuleSets::evaluate`]).
    pub matched: BTreeSet<String>,
    /// Whether its sender may force a quarantine; without it `force` has no effect.
    pub may_force: bool,
}

/// The node's agent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AgentFacts {
    /// Whether one should run there.
    pub expected: bool,
    /// Boot for which its present process has reported that all detectors are settled.
    pub settled_for: Option<BootId>,
    /// When its present process first reported; a process that started after an incident opened
    /// must settle before release.
    pub started_at: Option<Timestamp>,
    /// Last report.
    pub last_report_at: Option<Timestamp>,
}

impl AgentFacts {
    /// Whether its present process has settled for the boot that the node shows.
    pub(super) fn has_settled(&self, node: &NodeFacts) -> bool {
        let settled = self.settled_for.as_ref();
        settled.is_some_and(|boot| *boot == node.boot || node.boot.is_unknown())
    }
}

/// How far the module may act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Acts.
    Enforce,
    /// Another program that takes nodes out runs in the cluster: records what it would do, and
    /// writes nothing. Its marks have the same names, so that taking ours off could give back a
    /// node which it keeps out.
    Refused,
    /// Decides and records; writes nothing.
    DryRun,
    /// Switched off: records how writes that were under way ended, and does nothing else.
    Off,
}

impl Mode {
    /// Static name of what keeps it from writing to nodes; none if it writes.
    pub fn blocks(self) -> Option<&'static str> {
        match self {
            Self::Enforce => None,
            Self::Refused => Some("other_quarantine"),
            Self::DryRun => Some("dry_run"),
            Self::Off => Some("off"),
        }
    }
}

/// What happens when a known controller uncordons a node of ours while it works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CooperatorPolicy {
    /// Keep a NoSchedule taint of ours.
    #[default]
    Taint,
    /// Cordon again, at most [`health_event::incident::REASSERTS`] times an hour, then as
    /// [`Self::Taint`].
    Reassert,
    /// Let it be until the controller has finished; then the cordon comes back.
    Yield,
}

/// A controller that may uncordon nodes as part of its own work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cooperator {
    /// Its label or annotation key.
    pub key: String,
    /// Values that mean that it is at work; empty: any value.
    pub working: BTreeSet<String>,
}

/// Settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// How far the module may act.
    pub mode: Mode,
    /// Until then each match is withheld (first start, or a step up of the profile).
    pub first_action_until: Option<Timestamp>,
    /// How long a person's uncordon suppresses the faults open at that moment. Default 24 h;
    /// zero suppresses nothing.
    pub manual_uncordon_hold: SignedDuration,
    /// How long an agent may take to settle before a person is called. Default 10 min.
    pub settle_timeout: SignedDuration,
    /// Controllers that uncordon nodes too.
    pub cooperators: Vec<Cooperator>,
    /// What to do about their uncordons.
    pub cooperator_policy: CooperatorPolicy,
    /// Taint that holds the node while a cooperator works (policy `taint`).
    pub cooperator_taint: Taint,
    /// Nodes that are only observed, beside the control plane's.
    pub protected_nodes: BTreeSet<NodeName>,
    /// Whether protected nodes may be acted on.
    pub allow_protected: bool,
    /// Value of label `cordon-by`. Default `Warden`.
    pub cordon_by: String,
    /// Whether a drain follows each cordon at once, as far as the settings tell.
    pub drains: bool,
    /// Group under which a repair for an action stands in annotation `latestFaultRemediationState`; an
    /// action that is not listed is a group of its own.
    pub repair_groups: BTreeMap<String, String>,
}

/// What became of the write that the last decision asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WriteFeedback {
    /// None is under way: never begun, refused, or its outcome was lost with a restart.
    #[default]
    Idle,
    /// Sent; no answer yet.
    InFlight,
    /// The API server accepted it, and the watch has not shown it yet.
    Accepted,
}

/// What the store knows of the incident that the node's mark names; where the mark is gone from a
/// cordon of ours, of the last incident of this node object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MarkOrigin {
    /// Nothing: the store was lost, or the mark is another installation's.
    #[default]
    Unknown,
    /// It is over.
    Closed,
}

/// What a person asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// What.
    pub kind: RequestKind,
    /// Who.
    pub actor: String,
}

/// See [`Request`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// Take the node out and keep it out until it is released; needs no fault and no permit.
    Hold,
    /// End a hold; the node comes back once no fault keeps it.
    Release,
    /// End the incident now and suppress the faults open at this moment.
    Cancel,
    /// Make a withheld incident an observed one.
    DropWithheld,
}

/// Everything that one decision about one node looks at.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The node; `None` only if a direct read said that it does not exist.
    pub node: Option<&'a NodeFacts>,
    /// The open incident under this node name, whatever its UID.
    pub incident: Option<&'a Incident>,
    /// All open faults of the node.
    pub faults: &'a [FaultFacts],
    /// Holds of this machine.
    pub holds: &'a [Hold],
    /// The agent.
    pub agent: &'a AgentFacts,
    /// Boots of the machine.
    pub boots: &'a Boots,
    /// Settings.
    pub policy: &'a Policy,
    /// Rule sets.
    pub rules: &'a RuleSets,
    /// What became of the last write.
    pub feedback: WriteFeedback,
    /// What is known of the incident that the node's mark names, where it is not `incident`.
    pub mark_origin: MarkOrigin,
    /// A person's request, if one waits.
    pub request: Option<&'a Request>,
    /// The breaker's answer, if the decision before asked for it.
    pub permit: Option<Permit>,
    /// Id for an incident, should one open.
    pub new_id: &'a IncidentId,
}
