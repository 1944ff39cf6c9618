//! What a quarantine decision answers.

use std::collections::BTreeMap;
use std::fmt;

use health_event::incident::{Bound, Hold, Incident, QuarantineStatus};
use health_event::{HealthEvent, NodeName};
use jiff::Timestamp;

use super::facts::{Annotation, Label, TaintRead};

/// One decision. The shell stores `incident`, `transition` and `holds` in one transaction first;
/// only then does it write to the node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an instruction of its own"
)]
pub struct Decision {
    /// The incident as it shall be stored, one version later; `None`: unchanged.
    pub incident: Option<Incident>,
    /// The change of state that this is.
    pub transition: Option<Transition>,
    /// The write to the node. Without a transition: a repetition of the one under way, or
    /// (no incident) the removal of stray marks.
    pub write: Option<NodeWrite>,
    /// Ask the breaker, then decide again with its answer in [`super::View::permit`]. Nothing
    /// else is set then.
    pub ask: Option<PermitRequest>,
    /// The node is taken out without a permit, by a person: tell the breaker to count it.
    pub count_out: bool,
    /// The node is not out any more, nor waiting to be: tell the breaker.
    pub give_back: bool,
    /// The holds as they shall be stored; `None`: unchanged.
    pub holds: Option<Vec<Hold>>,
    /// The node carries marks of an incident that the store does not know: call
    /// [`super::adopt`].
    pub adopt: bool,
    /// Whether the person's request was taken in.
    pub request_done: bool,
    /// When to decide again, whatever happens or not.
    pub wake_at: Option<Timestamp>,
    /// For the audit, `explain` and metrics: what was noticed or left undone, and why.
    pub notes: Vec<Note>,
}

/// A permit of the breaker that a decision wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PermitRequest {
    /// Pool.
    pub pool: String,
    /// Node.
    pub node: NodeName,
    /// Rule set with the greatest part in it; `forced` if none.
    pub rule: String,
    /// Check of the oldest fault.
    pub check: String,
    /// Whether it queues with those that a delay or a reset held back.
    pub paced: bool,
    /// When its oldest open fault opened: the place in that queue.
    pub opened_at: Timestamp,
}

/// A change of state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transition {
    /// State before; `None` when the incident opens.
    pub from: Option<QuarantineStatus>,
    /// State after.
    pub to: QuarantineStatus,
    /// Why.
    pub reason: Reason,
}

/// Why a transition happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// A fault matched a rule, or was forced.
    FaultMatched {
        /// Rule sets.
        rules: Vec<String>,
        /// Position of the event.
        seq: u64,
    },
    /// A person asked to hold the node.
    PersonHold(String),
    /// A person ended the incident.
    PersonCancel(String),
    /// A person released the hold; faults may keep the node out.
    HoldReleased(String),
    /// A person dropped a withheld incident.
    PersonDrop(String),
    /// Dry run.
    DryRun,
    /// The node is protected.
    Protected,
    /// The module is switched off.
    Off,
    /// Another program that takes nodes out runs in the cluster.
    OtherQuarantine,
    /// The breaker withholds.
    BreakerWithholds(Bound),
    /// The first-action delay runs.
    FirstActionDelay,
    /// It is another node's turn.
    Paced,
    /// The breaker permits it now.
    Permitted,
    /// Faults joined or closed, so the marks differ.
    MarksChange,
    /// The node changed between reading and writing.
    ReplannedWrite,
    /// Our marks of a person's tampering were gone; written again.
    MarksRestored,
    /// The node shows the write.
    WriteSeen,
    /// All faults are closed.
    Recovered,
    /// The rule sets that its open faults matched are gone from the configuration, and no mark is on
    /// the node.
    RulesGone,
    /// A person uncordoned the node.
    ManualUncordon,
    /// A person removed a taint of ours.
    ManualUntaint,
    /// The node is gone.
    NodeGone,
    /// Another object has its name.
    NodeReplaced,
    /// A fault joined or left, without a change of the marks.
    FaultsChange,
    /// A cooperating controller uncordoned the node; a taint takes the cordon's place, or nothing
    /// does until it has finished.
    CooperatorUncordon(String),
    /// A person is needed.
    NeedsOperator,
}

impl Reason {
    /// Static name, for metrics and the store.
    pub fn code(&self) -> &'static str {
        match self {
            Self::FaultMatched { .. } => "fault_matched",
            Self::PersonHold(_) => "person_hold",
            Self::PersonCancel(_) => "person_cancel",
            Self::HoldReleased(_) => "hold_released",
            Self::PersonDrop(_) => "person_drop",
            Self::DryRun => "dry_run",
            Self::Protected => "protected_node",
            Self::Off => "off",
            Self::OtherQuarantine => "other_quarantine",
            Self::BreakerWithholds(_) => "breaker_withholds",
            Self::FirstActionDelay => "first_action_delay",
            Self::Paced => "paced",
            Self::Permitted => "permitted",
            Self::MarksChange => "marks_change",
            Self::ReplannedWrite => "replanned_write",
            Self::MarksRestored => "marks_restored",
            Self::WriteSeen => "write_seen",
            Self::Recovered => "recovered",
            Self::RulesGone => "rules_gone",
            Self::ManualUncordon => "manual_uncordon",
            Self::ManualUntaint => "manual_untaint",
            Self::NodeGone => "node_gone",
            Self::NodeReplaced => "node_replaced",
            Self::FaultsChange => "faults_change",
            Self::CooperatorUncordon(_) => "cooperator_uncordon",
            Self::NeedsOperator => "needs_operator",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FaultMatched { rules, seq } if rules.is_empty() => {
                write!(f, "event {seq} is forced by an allowed sender")
            }
            Self::FaultMatched { rules, seq } => {
                write!(f, "event {seq} matches {}", rules.join(", "))
            }
            Self::PersonHold(who) => match who.split_once(": ") {
                Some((who, why)) => write!(f, "{who} holds the node out: {why}"),
                None => write!(f, "{who} holds the node out"),
            },
            Self::PersonCancel(who) => write!(f, "{who} ended the incident"),
            Self::HoldReleased(who) => write!(
                f,
                "{who} released the hold; whether the node stays out is up to its open faults"
            ),
            Self::PersonDrop(who) => write!(f, "{who} dropped the withheld cordon"),
            Self::DryRun => f.write_str("dry run: nothing is written"),
            Self::Protected => f.write_str("the node is protected: it is only observed"),
            Self::Off => f.write_str("quarantine is switched off: nothing is written"),
            Self::OtherQuarantine => f.write_str(
                "another fault-quarantine runs in the cluster: nothing is written while it does",
            ),
            Self::BreakerWithholds(bound) => {
                write!(f, "the breaker's {} bound is reached", bound.as_str())
            }
            Self::FirstActionDelay => f.write_str("quarantine was switched on a moment ago"),
            Self::Paced => f.write_str("withheld nodes are taken one after the other"),
            Self::Permitted => f.write_str("the breaker lets it through"),
            Self::MarksChange => f.write_str(
                "what the node is out for changed (its faults, or a person's hold), and the marks follow",
            ),
            Self::ReplannedWrite => f.write_str("the node changed before it was written"),
            Self::MarksRestored => f.write_str("our annotations were gone and are written again"),
            Self::WriteSeen => f.write_str("the node shows our write"),
            Self::Recovered => f.write_str("no fault of the incident is open"),
            Self::RulesGone => f.write_str(
                "the rule sets that its faults matched are gone from the configuration, and no mark is on the node",
            ),
            Self::ManualUncordon => f.write_str("a person uncordoned the node"),
            Self::ManualUntaint => f.write_str("a person removed a taint of ours"),
            Self::NodeGone => f.write_str("the node object is gone"),
            Self::NodeReplaced => f.write_str("another node object has this name"),
            Self::FaultsChange => f.write_str("faults joined or closed"),
            Self::CooperatorUncordon(key) => {
                write!(
                    f,
                    "{key} is at work and uncordoned the node; our cordon stands back until it has finished"
                )
            }
            Self::NeedsOperator => f.write_str("a person is needed"),
        }
    }
}

/// Something noticed or left undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// A mode, pause, opt-out or other owner kept a step from being taken.
    Blocked {
        /// Static name of the step: `open`, `release`, `write`, `clean_up`.
        step: &'static str,
        /// Static name of what blocks: `dry_run`, `off`, `other_quarantine`, `paused`, `opted_out`,
        /// `external_owner`, `repair_under_way`, `validation`, `agent_not_settled`, `faults_unknown` (adopted, and only the agent could tell what
        /// the node is out for), `held`; `owner_unknown` (marks like ours stay on
        /// the node, and nothing tells whose they are), `incident_unknown` (a cordon of ours of
        /// which the store knows nothing).
        by: &'static str,
    },
    /// Faults that match but are suppressed by a hold: how many.
    Suppressed(usize),
    /// Faults of another machine or an earlier boot: how many.
    OtherMachineOrBoot(usize),
    /// Marks of ours without an incident are taken off; why they contradict.
    StrayMarks(StrayMarks),
    /// A cooperating controller uncordoned the node.
    CooperatorUncordon(String),
    /// The request makes no sense here; what would.
    RequestRefused(&'static str),
}

/// Why marks of ours do not belong to anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StrayMarks {
    /// The mark can't be read.
    Unreadable,
    /// The mark names another node UID.
    OtherUid,
    /// The incident is over.
    IncidentClosed,
    /// There is a mark but nothing marked.
    NothingMarked,
    /// There is a cordon of ours, and no mark: somebody took it off.
    CordonAlone,
}

/// What kind of write it is, for metrics and the audit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteKind {
    /// Takes the node out.
    Apply,
    /// Brings the marks in line with the faults.
    Update,
    /// Gives the node back.
    Release,
    /// Takes our marks off after a person acted.
    StepBack,
    /// Removes marks without an incident.
    CleanUp,
    /// Says how far drain and repair are.
    State,
}

/// What must still be as read, or the write must fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preconditions {
    /// `metadata.uid`.
    pub uid: String,
    /// Annotation `warden.dev/incident` as read; `None`: absent.
    pub incident: Option<String>,
    /// `spec.unschedulable` as read, where the write changes it, or takes the annotations off a
    /// cordon that was ours; the inner `None`: absent.
    pub unschedulable: Option<Option<bool>>,
    /// The whole `spec.taints` as read, where the write changes it, or takes the annotations off
    /// taints that were ours; the inner `None`: absent.
    pub taints: Option<Option<Vec<TaintRead>>>,
    /// `metadata.annotations` was absent as a whole.
    pub annotations_absent: bool,
    /// `metadata.labels` was absent as a whole.
    pub labels_absent: bool,
}

/// One patch of a node, as data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeWrite {
    /// Node.
    pub node: NodeName,
    /// What it is for.
    pub kind: WriteKind,
    /// What it tests.
    pub test: Preconditions,
    /// New `spec.unschedulable`; `None`: leave it. `false` removes the field.
    pub unschedulable: Option<bool>,
    /// New whole `spec.taints`; `None`: leave it. An empty list removes the field.
    pub taints: Option<Vec<TaintRead>>,
    /// To set (`Some`) or to remove (`None`); only keys that were there are removed.
    pub annotations: BTreeMap<Annotation, Option<String>>,
    /// To set (`Some`) or to remove (`None`); only keys that were there are removed.
    pub labels: BTreeMap<Label, Option<String>>,
    /// New content of annotation `quarantineHealthEvent`, oldest event first; the shell writes it
    /// as JSON and keeps it below 32 KiB. `None`: leave it, unless `annotations` removes it.
    pub health_events: Option<Vec<HealthEvent>>,
}
