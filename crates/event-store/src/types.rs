//! What goes into the store and what comes out of it.

use std::fmt;

use health_event::incident::{Hold, Incident, IncidentId};
use health_event::{
    BootId, Boots, Change, CloseCause, Device, FaultId, HealthEvent, NodeName, Order,
    ProcessingStrategy, RecommendedAction, Sender, SentIdentity, Subject,
};
use jiff::Timestamp;
use sha2::{Digest, Sha256};

/// Sixteen bytes over an event *as it was received*, before anything changed it: with sender and
/// id the idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 16]);

impl Fingerprint {
    /// SHA-256 over the received bytes, cut.
    pub fn of(bytes: &[u8]) -> Self {
        let mut cut = [0; 16];
        cut.copy_from_slice(&Sha256::digest(bytes)[..16]);
        Self(cut)
    }
}

/// One event to be stored.
#[derive(Debug, Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts about one event, each from another part of ingest"
)]
pub struct NewEvent {
    /// Who was authenticated as its sender.
    pub sender: Sender,
    /// The event after all transformers. An empty id means: the fingerprint is the id.
    pub event: HealthEvent,
    /// What it is about: a node for all senders; only the controller speaks of pools.
    pub subject: Subject,
    /// Machine id that the event came with; empty if none did.
    pub machine: String,
    /// Its place among all events of the node's agent.
    pub order: Option<Order>,
    /// When it arrived.
    pub received_at: Timestamp,
    /// The event as protobuf; kept as it is.
    pub body: Vec<u8>,
    /// Hash over the event as it was received.
    pub fingerprint: Fingerprint,
    /// A detector inside the node's agent said that something is wrong. Set also where a
    /// transformer then made the event healthy: the report compares what the agent asserts.
    pub asserted_by_agent: bool,
    /// The newest statement alone decides severity and action (XID 154).
    pub newest_counts: bool,
    /// A closing that the controller makes itself, with the order of what it closes.
    pub inclusive: bool,
    /// Sent in answer to a request for the list of faults, ahead of the spool: its number does not
    /// prove that all before it is stored.
    pub out_of_turn: bool,
    /// Whether it counts for faults now.
    pub standing: Standing,
}

/// Whether an event counts for faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It does.
    Counts,
    /// It came from another machine than the node is: it is stored, and has no effect until the node is
    /// that machine.
    Held,
    /// One that was held, by its position: the node is its machine now.
    Released(u64),
}

/// Events that are stored or refused together.
pub type Batch = Vec<NewEvent>;

/// What became of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Stored at this position.
    Stored(u64),
    /// Equal to what its faults said last: counted, not stored.
    Repeated,
    /// Was taken in before; changed nothing.
    Duplicate,
}

/// Answer for one event. It is durable when it arrives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Appended {
    /// What became of it.
    pub outcome: Outcome,
    /// The id under which it is kept; a fresh one if the sender used its id for other content.
    pub id: String,
    /// What it did to the faults of its check.
    pub changes: Vec<Change>,
}

/// What was committed, told in the writer's thread before the callers get their replies.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Commit {
    /// First position of the events stored; with `last_seq` empty if first > last.
    pub first_seq: u64,
    /// Last position in the store.
    pub last_seq: u64,
    /// Nodes whose events, faults or incidents were touched, sorted, each once.
    pub nodes: Vec<NodeName>,
    /// Machines whose boots, spool or holds were touched, sorted, each once.
    pub machines: Vec<String>,
    /// Whether transitions are among it.
    pub transitions: bool,
}

/// One fault as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredFault {
    /// Identity.
    pub id: FaultId,
    /// Machine that the last event came from; empty if unknown.
    pub machine: String,
    /// All that is known of the device.
    pub device: Device,
    /// Whether it is open.
    pub open: bool,
    /// Severity while open.
    pub fatal: bool,
    /// Action while open.
    pub action: RecommendedAction,
    /// First stored event that named it.
    pub first_seq: u64,
    /// Last stored event that named it.
    pub last_seq: u64,
    /// Event that opened it (the last time, if it opened more than once); 0 if it never opened.
    pub opened_seq: u64,
    /// When it opened, by the controller's clock.
    pub opened_at: Option<Timestamp>,
    /// Unhealthy events that named it, each delivery of an event once.
    pub count: u64,
    /// How many of these are not stored, because they were repeats.
    pub repeats: u64,
    /// Receipt of the first event.
    pub first_at: Timestamp,
    /// Receipt of the last event, closing ones included.
    pub last_at: Timestamp,
    /// Boot of the newest event; unknown if it had no order.
    pub boot: BootId,
    /// Whether the node's agent asserts it, as far as it told: closed by a person or an override
    /// or not.
    pub asserted_by_agent: bool,
    /// The fault as its sender named it.
    pub sent: SentIdentity,
    /// Sender of the newest event.
    pub sender: Sender,
    /// Order of the newest event.
    pub order: Option<Order>,
    /// The newest event that is no mere repeat. Where one event names so many faults that copies
    /// of it would take more than [`crate::COPIES_MAX`] bytes, its message is cut.
    pub event: HealthEvent,
    /// The same as protobuf; empty where the message had to be cut.
    pub body: Vec<u8>,
    /// The open incident that it belongs to.
    pub incident: Option<IncidentId>,
    /// When it closed.
    pub closed_at: Option<Timestamp>,
    /// Why it closed.
    pub cause: Option<CloseCause>,
    /// It is healthy but flaps: it closes then.
    pub held_until: Option<Timestamp>,
}

/// What the reconciliation of a report needs of a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssertedFault {
    /// The fault as the agent named it.
    pub sent: SentIdentity,
    /// Identity here.
    pub id: FaultId,
    /// Order of its newest event.
    pub order: Option<Order>,
    /// Whether it is open here.
    pub open: bool,
}

/// One event as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEvent {
    /// Position: gapless, rising.
    pub seq: u64,
    /// Sender.
    pub sender: Sender,
    /// Id under which it is kept.
    pub id: String,
    /// What it is about.
    pub subject: Subject,
    /// Machine id; empty if unknown.
    pub machine: String,
    /// Boot; unknown if it had no order.
    pub boot: BootId,
    /// Time that counts: the claimed one, or that of receipt.
    pub generated_at: Timestamp,
    /// Receipt.
    pub received_at: Timestamp,
    /// Strategy.
    pub strategy: ProcessingStrategy,
    /// Whether it says that all is well.
    pub healthy: bool,
    /// Severity.
    pub fatal: bool,
    /// Agent as sent.
    pub agent: String,
    /// Check as sent.
    pub check_name: String,
    /// Class as sent.
    pub component_class: String,
    /// The event as protobuf.
    pub body: Vec<u8>,
}

/// One change of an incident: a compare-and-set with its cause.
#[derive(Debug, Clone)]
pub struct Transition {
    /// The incident as it shall be; its version is higher than the expected one.
    pub incident: Incident,
    /// The version that the plan was made for; `None`: the incident must not exist yet.
    pub expected_version: Option<u64>,
    /// Number of the leadership under which the plan was made.
    pub fencing: u64,
    /// Module that decided.
    pub module: String,
    /// State before, by name.
    pub from: String,
    /// State after, by name.
    pub to: String,
    /// JSON: the facts that decided.
    pub cause: String,
    /// When.
    pub at: Timestamp,
    /// Module states that change in the same transaction.
    pub state_puts: Vec<(String, Vec<u8>)>,
    /// Faults that belong to the incident from now on.
    pub faults_joined: Vec<FaultId>,
    /// New holds of the incident's machine.
    pub holds: Option<Vec<Hold>>,
}

/// One line of the audit trail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTransition {
    /// Position: gapless, rising; a row of numbers apart from that of the events.
    pub seq: u64,
    /// Incident.
    pub incident: IncidentId,
    /// Node.
    pub node: NodeName,
    /// Version of the incident after it.
    pub version: u64,
    /// When.
    pub at: Timestamp,
    /// Module that decided.
    pub module: String,
    /// State before.
    pub from: String,
    /// State after.
    pub to: String,
    /// JSON: the facts that decided.
    pub cause: String,
}

/// What is known of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Machine {
    /// Its last boots in the order seen.
    pub boots: Boots,
    /// Spool of the agent that reported last; empty if none did.
    pub spool: String,
    /// Holds that a person's uncordon left.
    pub holds: Vec<Hold>,
}

/// Which incidents to list, newest first.
#[derive(Debug, Clone, Default)]
pub struct IncidentFilter {
    /// Of this node only.
    pub node: Option<NodeName>,
    /// Only open (true) or only closed (false) ones.
    pub open: Option<bool>,
    /// Older than this id, for the next page.
    pub before: Option<IncidentId>,
}

/// Whose transitions to list.
#[derive(Debug, Clone, Copy)]
pub enum TransitionsOf<'a> {
    /// Everyone's: the change feed.
    All,
    /// Of one incident.
    Incident(&'a IncidentId),
    /// Of one node.
    Node(&'a NodeName),
}

/// Where a consumer of the events stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Consumer {
    /// Name.
    pub name: String,
    /// Lowest completed position.
    pub seq: u64,
    /// When it moved last.
    pub moved_at: Timestamp,
    /// Whether retention waits for it.
    pub enabled: bool,
    /// What retention took before the consumer saw it. Ends when the consumer advances past it.
    pub gap: Option<Gap>,
}

/// Events that a consumer has not seen and that went. Where they went for one sender's share only,
/// others between them are still there: the numbers of the stored events tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// First.
    pub from: u64,
    /// Last.
    pub to: u64,
    /// How many positions that are.
    pub count: u64,
    /// When the last of them went.
    pub at: Timestamp,
}

/// What one step of [`crate::EventStore::prune`] removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pruned {
    /// Events.
    pub events: u64,
    /// Events of senders that had more than their shares of the store.
    pub shed: u64,
    /// Ids of repeats, transitions, closed incidents, old gaps and spools.
    pub other_rows: u64,
    /// Remembered healthy statements and closed faults.
    pub forgotten: u64,
    /// There is more to remove: call again.
    pub more: bool,
}

/// What went of a sender that had more than its share of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shed {
    /// Whose.
    pub sender: Sender,
    /// How many events.
    pub events: u64,
    /// Position of the first.
    pub from: u64,
    /// Position of the last.
    pub to: u64,
    /// When the last of them went.
    pub at: Timestamp,
}

/// Events of a node that opened nothing, or not all that they named, because the node had as many
/// open faults as a node may have ([`crate::bounds`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unopened {
    /// The node.
    pub node: NodeName,
    /// Whose the last of them was.
    pub agent: String,
    /// Its check.
    pub check_name: String,
    /// How many events.
    pub events: u64,
    /// Receipt of the first of them.
    pub since: Timestamp,
    /// Receipt of the last.
    pub at: Timestamp,
}

/// The last event of an agent's spool that is stored, all before it included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastOrder {
    /// Boot.
    pub boot: BootId,
    /// Spool.
    pub spool: String,
    /// Number.
    pub number: u64,
}

/// Sizes and counts, for metrics and `warden status`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stats {
    /// Bytes of the database file that hold content.
    pub live_bytes: u64,
    /// Bytes of the database file.
    pub file_bytes: u64,
    /// Bytes of the write-ahead log.
    pub wal_bytes: u64,
    /// Bytes free for us on the file system.
    pub free_bytes: u64,
    /// First event still stored; 0 if none.
    pub first_seq: u64,
    /// Last event ever stored.
    pub last_seq: u64,
    /// Receipt of the first event still stored.
    pub oldest_event: Option<Timestamp>,
    /// Open faults that may have effects.
    pub open_faults: u64,
    /// Open faults that are only observed.
    pub observed_faults: u64,
    /// Open incidents.
    pub open_incidents: u64,
    /// Last transition ever stored.
    pub last_transition: u64,
    /// Consumers and, by `last_seq - seq`, their lag.
    pub consumers: Vec<Consumer>,
    /// What consumers did not see, with their names, the newest first; at most [`Stats::SHED`].
    pub gaps: Vec<(String, Gap)>,
    /// Senders of which events went because they had more than their shares of the store, the
    /// newest first; at most [`Stats::SHED`].
    pub shed: Vec<Shed>,
    /// Since the store was opened.
    pub counters: Counters,
}

impl Stats {
    /// Elements that [`Stats::shed`] and [`Stats::gaps`] have at most.
    pub const SHED: usize = 20;
}

/// Counted since the store was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Events that had been taken in before.
    pub duplicates: u64,
    /// Events whose id had been used for other content.
    pub id_conflicts: u64,
    /// Repeats that were counted, not stored.
    pub repeats: u64,
    /// Remembered healthy statements that went because a check and node had too many.
    pub clears_dropped: u64,
    /// Events that named more faults than may be open of a check, an agent or a node: stored, and what
    /// found no room opened nothing.
    pub over_limit: u64,
    /// Events that went because their senders had more than their shares of the store.
    pub shed: u64,
    /// Groups of writes committed.
    pub commits: u64,
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
