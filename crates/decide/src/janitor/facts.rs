//! What a decision about a `RebootNode` looks at, and what it answers.

use health_event::BootId;
use jiff::{SignedDuration, Timestamp};

/// Settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// From the start to the effect. Default 25 min, that of the reference's chart.
    pub timeout: SignedDuration,
    /// An object that could not start for this long ends. Default 6 h.
    pub queue_timeout: SignedDuration,
    /// Where the provider says that it is done, the node may stay in its boot for this long after
    /// the signal. Default 10 min.
    pub no_reboot_after: SignedDuration,
    /// Between questions to the provider. Default 15 s.
    pub ask_interval: SignedDuration,
    /// A person sends the signal, and says so in the object's status.
    pub manual: bool,
}

/// Whether the signal was sent, as the object's condition `SignalSent` says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Signal {
    /// The condition is absent, or Unknown.
    #[default]
    Unknown,
    /// True; its message is the provider's id of the request.
    Sent {
        /// The id, maybe empty.
        request: String,
    },
    /// False.
    Failed,
}

/// The object, reduced to what decides.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct RebootNode {
    /// When it was made.
    pub created_at: Timestamp,
    /// It asks for force.
    pub force: bool,
    /// It is being deleted.
    pub deleting: bool,
    /// `status.startTime`.
    pub started_at: Option<Timestamp>,
    /// `status.completionTime`: it is at its end.
    pub completed_at: Option<Timestamp>,
    /// Condition `SignalSent`.
    pub signal: Signal,
    /// Whether condition `ManualMode` stands.
    pub says_manual: bool,
    /// Whether condition `NodeReady` says that the controller runs on the node, and has to run elsewhere
    /// first.
    pub says_controller_here: bool,
    /// How condition `NodeReady` says that it ended.
    pub end: Option<End>,
}

/// How an object says that it ended. It proves nothing alone: anyone may write one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The signal was refused before anything began.
    Refused,
    /// The provider said that it is done, and the node stayed in its boot.
    NoReboot,
    /// In any other word.
    Other,
}

/// The node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// Not seen yet.
    NotKnown,
    /// A direct read said that it does not exist.
    Missing,
    /// As it is.
    Seen {
        /// Boot.
        boot: BootId,
        /// Whether the condition Ready is True.
        ready: bool,
    },
}

/// The lock of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// Not asked for yet, or it could not be said.
    NotKnown,
    /// This object holds it.
    Ours,
    /// Another object holds it.
    Others,
}

/// That a signal is sent, stored before it is; where a person sends it, that it is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intent {
    /// Boot of the node before.
    pub boot_before: BootId,
    /// When.
    pub at: Timestamp,
    /// Its effect may come until then, as it was stored.
    pub deadline: Timestamp,
    /// Whether this process stored it and has not called yet: else the call may have been made.
    pub fresh: bool,
    /// Whether a person is to send it.
    pub manual: bool,
}

/// What the provider answered to the last call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The signal is taken.
    Sent {
        /// Id of the request.
        request: String,
    },
    /// The signal is refused by what proves that nothing was begun.
    Refused(String),
    /// Nobody knows whether the signal was taken.
    Lost(String),
    /// The provider says that the request is done.
    Done,
    /// The provider says that the request is not done.
    NotDone,
    /// It could not be asked.
    NotAsked(String),
}

/// Whether another reboot may run now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It may.
    Free,
    /// As many run as may at once.
    Full,
    /// The controller runs on this node, and would go down with it: it has to run elsewhere first.
    ControllerHere,
    /// A person paused the node: nothing is started on it.
    Paused,
    /// Work came to the node since it was empty, and is moved off first.
    NotEmpty,
    /// The marks of the node name the object's incident, which the store does not know yet.
    NotAdopted,
}

/// Why a reboot is not wanted (any more).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unwanted {
    /// What it was made for is over, or has happened.
    Over,
    /// The incident that ordered it is not known: its store was lost, and its node's marks are gone.
    IncidentUnknown,
}

/// Everything that one decision about one object looks at.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The object.
    pub object: &'a RebootNode,
    /// Its node.
    pub node: &'a Node,
    /// The node's lock.
    pub lock: Lock,
    /// The stored intent.
    pub intent: Option<&'a Intent>,
    /// The last answer.
    pub answer: Option<&'a Answer>,
    /// When the provider was last asked.
    pub asked_at: Option<Timestamp>,
    /// Whether another reboot may run now.
    pub place: Place,
    /// Whether the node is excluded from repairs.
    pub excluded: bool,
    /// Why it is not wanted (any more), if so.
    pub recalled: Option<Unwanted>,
    /// An earlier signal to the node in the same boot came to the end of its time, and its effect was not seen:
    /// another boot may be that one's.
    pub earlier_signal: bool,
    /// Nothing is begun before then: the provider could not be reached, so that nothing was sent.
    pub not_before: Option<Timestamp>,
    /// Settings.
    pub policy: &'a Policy,
}

/// A condition as it shall be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// `True`, `False`; `None`: `Unknown`.
    pub status: Option<bool>,
    /// Reason.
    pub reason: &'static str,
    /// Message.
    pub message: String,
}

/// A change of the object's status, in one write.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StatusChange {
    /// Sets `startTime`.
    pub started_at: Option<Timestamp>,
    /// Sets `completionTime`.
    pub completed_at: Option<Timestamp>,
    /// Condition `SignalSent`.
    pub signal: Option<Condition>,
    /// Condition `NodeReady`.
    pub node_ready: Option<Condition>,
    /// Condition `ManualMode`, True.
    pub manual: bool,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing to do before this time, unless something changes.
    Wait(Option<Timestamp>),
    /// Take the node's lock.
    Lock,
    /// Give the node's lock back, and forget the intent.
    Unlock,
    /// Store that the signal is sent now, in this boot.
    Intend(BootId),
    /// Send the signal.
    Send {
        /// By force.
        force: bool,
    },
    /// Ask the provider whether the request is done.
    Ask {
        /// Its id.
        request: String,
    },
    /// Write the status.
    Write(StatusChange),
}
