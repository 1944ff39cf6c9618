//! What the controller's API says, as JSON. Fields are only ever added, so that an older `warden`
//! reads a newer controller; times are RFC 3339, UTC.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// `GET /api/v1/status`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the controller.
    pub version: String,
    /// Profile in effect.
    pub profile: String,
    /// Whether quarantine only decides and shows.
    pub dry_run: bool,
    /// What quarantine does: `enforce`, `dry_run` or `off`; empty = the controller does not tell.
    #[serde(default)]
    pub quarantine: String,
    /// What else takes nodes out in this cluster, so that quarantine writes nothing:
    /// `Deployment NAMESPACE/NAME`, or why that is not known.
    #[serde(default)]
    pub other_quarantine: Option<String>,
    /// When the cluster was last asked whether another one runs; none = not yet, or quarantine does
    /// not write and does not ask.
    #[serde(default)]
    pub other_quarantine_looked_at: Option<Timestamp>,
    /// What the drain does: `enforce`, `dry_run` or `off`; empty = the controller does not tell.
    #[serde(default)]
    pub drain: String,
    /// What the remediation does: `enforce`, `dry_run` or `off`; empty = the controller does not tell.
    #[serde(default)]
    pub remediation: String,
    /// What the janitor does with orders of reboots: `enforce`, `manual` (a person sends the signals) or
    /// `off`; empty = the controller does not tell.
    #[serde(default)]
    pub janitor: String,
    /// Whether the whole process is ready.
    pub ready: bool,
    /// One line a part: `store: ready`.
    pub parts: Vec<String>,
    /// Nodes of the cluster.
    pub nodes: usize,
    /// Nodes with an open incident that are out by us, or may be.
    pub out: usize,
    /// Nodes withheld.
    pub withheld: usize,
    /// Nodes whose drain waits or runs.
    #[serde(default)]
    pub draining: usize,
    /// Nodes whose repair is planned or under way.
    #[serde(default)]
    pub repairing: usize,
    /// Nodes that need a person (see [`NodeLine::needs_person`]).
    #[serde(default)]
    pub need_person: usize,
    /// Open faults that may have effects.
    pub open_faults: u64,
    /// Open faults that are only observed.
    pub observed_faults: u64,
    /// Open faults that were read back from their nodes because the store had been lost, and whose
    /// senders have not spoken since: they stay until these do, or a person closes them.
    #[serde(default)]
    pub restored_faults: usize,
    /// Nodes with marks of NVSentinel that are none of Warden's (see [`NodeObject::foreign_marks`]).
    #[serde(default)]
    pub foreign_marked: usize,
    /// Nodes whose agent is silent.
    pub agents_silent: usize,
    /// Nodes on which no agent ever reported.
    pub agents_missing: usize,
    /// Nodes as which several agents report.
    #[serde(default)]
    pub agents_conflicting: usize,
    /// Nodes whose agent runs on another machine than the node object names.
    #[serde(default)]
    pub agents_other_machine: usize,
    /// Nodes whose agent reports another boot than the node object shows, for longer than a reboot explains
    /// (see [`BootsDiffer::late`]).
    #[serde(default)]
    pub agents_other_boot: usize,
    /// Nodes in service, neither out nor withheld, of which a fatal fault is open (see
    /// [`NodeLine::kept_by`]).
    #[serde(default)]
    pub fatal_in_service: usize,
    /// Open faults of pools and of the cluster: no node is acted on for them.
    #[serde(default)]
    pub pool_faults: Vec<PoolFault>,
    /// Rights that the API server said the controller lacks.
    #[serde(default)]
    pub missing_rights: Vec<MissingRight>,
    /// How the configuration file differs from what runs.
    #[serde(default)]
    pub config: ConfigState,
    /// The store.
    pub store: Store,
}

/// A right that the controller lacks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MissingRight {
    /// As in a role: `list`.
    pub verb: String,
    /// As in a role, with its group: `leases.coordination.k8s.io`.
    pub resource: String,
    /// What does not happen without it, for people.
    pub missed: String,
    /// When the API server first said so.
    pub since: Timestamp,
}

/// How the configuration file differs from what runs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ConfigState {
    /// Why the file's rule sets are not those that run; none: they are.
    #[serde(default)]
    pub problem: Option<ConfigProblem>,
    /// Keys that differ, and take effect at the next start.
    #[serde(default)]
    pub needs_restart: Vec<String>,
}

/// See [`ConfigState::problem`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConfigProblem {
    /// `config_unreadable`, `config_bad` or `rules_beyond_breaker`.
    pub code: String,
    /// What is wrong, and what to do.
    pub why: String,
    /// Since when.
    pub since: Timestamp,
}

/// A fault of many nodes together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PoolFault {
    /// `pool/NAME` or `cluster`.
    pub subject: String,
    /// Check.
    pub check: String,
    /// What is wrong, and what to look at.
    pub message: String,
    /// When it opened.
    pub since: Option<Timestamp>,
}

/// Sizes of the store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Store {
    /// Id that it got when it was made.
    pub id: String,
    /// Last position.
    pub last_seq: u64,
    /// First position still kept; 0 = none.
    pub first_seq: u64,
    /// Bytes of content.
    pub live_bytes: u64,
    /// Bytes free on its file system.
    pub free_bytes: u64,
    /// What of the events went before its time, the newest first; at most 20 of each kind.
    #[serde(default)]
    pub gaps: Vec<Gap>,
}

/// Events that went for the store's size, before a consumer saw them or before they were old.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gap {
    /// `consumer NAME`: it did not see them. `sender NAME`: its own oldest, for it had more than its
    /// share of the store.
    pub of: String,
    /// First position.
    pub from: u64,
    /// Last position.
    pub to: u64,
    /// How many; of a consumer at most so many.
    pub count: u64,
    /// When the last of them went.
    pub at: Timestamp,
}

/// One line of `GET /api/v1/nodes`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeLine {
    /// Name.
    pub name: String,
    /// Pool of the breaker.
    pub pool: String,
    /// Whether the scheduler passes it by, whoever did that.
    pub cordoned: bool,
    /// `True`, `False` or `Unknown`.
    pub ready: String,
    /// Open faults that may have effects.
    pub open_faults: usize,
    /// State of the open incident; none = no incident.
    pub state: Option<String>,
    /// `settled`, `starting`, `silent` or `none`; `conflict` where several report as this node,
    /// `other machine` where it runs on another one than the node object names, and `other boot` where it
    /// reports another one for longer than a reboot explains.
    pub agent: String,
    /// Those of the open faults that are fatal.
    #[serde(default)]
    pub fatal_faults: usize,
    /// Of a node that is in service with a fatal fault open: what keeps Warden from acting, as
    /// [`NodeObject::blocked_by`] has it, `held` (a person gave it back while the fault was open) and
    /// `dry_run` or `off` (of quarantine); nothing = no rule set acts on the fault.
    #[serde(default)]
    pub kept_by: Vec<String>,
    /// Somebody took Warden's marks off, and the incident is still open: the node is not out.
    #[serde(default)]
    pub given_back: bool,
    /// As [`Incident::marks_removed`].
    #[serde(default)]
    pub marks_removed: usize,
    /// State of its drain; none = nothing asked for one.
    #[serde(default)]
    pub drain: Option<String>,
    /// State of its repair; none = none was thought of.
    #[serde(default)]
    pub repair: Option<String>,
    /// Nothing goes on by itself: its drain failed, no repair is left, or the release waits for a
    /// person.
    #[serde(default)]
    pub needs_person: bool,
}

/// `GET /api/v1/nodes/NAME`: everything that `warden explain` shows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Name.
    pub name: String,
    /// The node object, if the cluster has it.
    pub object: Option<NodeObject>,
    /// Its agent.
    pub agent: Agent,
    /// Open faults that may have effects, oldest first.
    pub faults: Vec<Fault>,
    /// Open faults that are only observed.
    pub observed: Vec<Fault>,
    /// Incidents, newest first; at most 20.
    pub incidents: Vec<Incident>,
    /// Holds that a person's uncordon left on the machine.
    pub holds: Vec<Hold>,
    /// Faults that closed and are remembered (`store.fault_memory`), newest first; at most 20.
    #[serde(default)]
    pub closed: Vec<ClosedFault>,
    /// Reboots of the node or its machine that may still come, whoever ordered them.
    #[serde(default)]
    pub reboots: Vec<PendingReboot>,
    /// The agent reports another boot than the node object shows; none = the same, or one is not known.
    #[serde(default)]
    pub boots_differ: Option<BootsDiffer>,
}

/// An agent in another boot than its node object shows. After a reboot it is so until both have told of the
/// new one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BootsDiffer {
    /// Boot of the agent's last report.
    pub agent: String,
    /// Since when the agent's process is known, which runs in that boot; none = not known.
    pub agent_since: Option<Timestamp>,
    /// Boot of the node object's status (`status.nodeInfo.bootID`).
    pub node: String,
    /// Since when the node is Ready, or is not; none = not known.
    pub node_since: Option<Timestamp>,
    /// Warden takes the agent's boot for an earlier one: what was said in it is covered by the boot that
    /// the node shows, and no repair is ordered for it.
    pub repair_kept: bool,
    /// It is so for longer than `quarantine.settle_timeout`, which no reboot explains.
    pub late: bool,
}

impl BootsDiffer {
    /// Since when both boots are told, as far as that is known.
    pub fn since(&self) -> Option<Timestamp> {
        self.agent_since.max(self.node_since)
    }
}

/// A reboot that may still come.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PendingReboot {
    /// Name of its `RebootNode`, which may be gone.
    pub object: String,
    /// Since when its signal may be out; none = it was not sent, and waits.
    pub since: Option<Timestamp>,
    /// It does not come after this time; none = not known.
    pub until: Option<Timestamp>,
    /// What it waits for, for people, where nothing was sent; none = not known.
    #[serde(default)]
    pub waits_for: Option<String>,
}

/// A fault that is over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClosedFault {
    /// As it was last.
    #[serde(flatten)]
    pub fault: Fault,
    /// When it closed.
    pub closed_at: Timestamp,
    /// Why: `recovered`, `reboot`, `no longer asserted`, `person`, `retired check`,
    /// `node deleted`, `node replaced`.
    pub cause: String,
}

/// What the node object says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeObject {
    /// UID.
    pub uid: String,
    /// Pool of the breaker.
    pub pool: String,
    /// Whether the scheduler passes it by.
    pub cordoned: bool,
    /// Taints, as `key=value:effect`.
    pub taints: Vec<String>,
    /// `True`, `False` or `Unknown`.
    pub ready: String,
    /// Boot id.
    pub boot_id: String,
    /// System UUID.
    pub system_uuid: String,
    /// What on the node or in the cluster keeps Warden from acting or from giving the node back:
    /// `paused`, `opted_out`, `control_plane` and `protected` (unless
    /// `quarantine.allow_protected`), `external_owner KEY=VALUE`, `given_back` (the store was lost
    /// after a person had, and the agent has not told what is wrong), `other_quarantine WHAT` (see
    /// [`Status::other_quarantine`]), `write_refused WHY` (what the API server said last against the
    /// write that is under way).
    #[serde(default)]
    pub blocked_by: Vec<String>,
    /// Annotations by which NVSentinel marks a node that it took out, on a node that Warden did not
    /// take out: Warden leaves them alone, and the cordon and taints that belong to them too.
    #[serde(default)]
    pub foreign_marks: Vec<String>,
    /// Conditions of ours that say that something is wrong, and of whose check nothing is known: an
    /// earlier store was lost, and nobody has spoken of it since.
    #[serde(default)]
    pub unconfirmed: Vec<String>,
    /// The write that is under way, where the API server said no to it.
    #[serde(default)]
    pub write_refused: Option<WriteRefused>,
}

/// What the API server says against a write that is tried again and again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WriteRefused {
    /// `changed` (an admission policy, or a value that is not valid), `forbidden`, `refused` or
    /// `unavailable`.
    pub code: String,
    /// What was tried on which object, and the server's words, as of the last time.
    pub message: String,
    /// The first time in a row.
    pub since: Timestamp,
    /// The last time.
    pub last_at: Timestamp,
    /// How often in a row.
    pub times: u32,
    /// When it is tried again; none = at once.
    pub next_at: Option<Timestamp>,
}

/// What is known of a node's agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Agent {
    /// `settled`, `starting`, `silent` or `none`.
    pub state: String,
    /// Version.
    pub version: String,
    /// When it last reported, to this process of the controller.
    pub last_report_at: Option<Timestamp>,
    /// Since when its present process is known.
    pub process_since: Option<Timestamp>,
    /// Boot of its last report.
    pub boot_id: String,
    /// Machine of its last report; empty if unknown.
    #[serde(default)]
    pub machine_id: String,
    /// Detectors that are not settled, with why.
    pub unsettled: Vec<String>,
}

/// A fault.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a key of its own on the wire"
)]
pub struct Fault {
    /// For `warden close`: unique among the node's faults.
    pub id: String,
    /// Agent that speaks.
    pub agent: String,
    /// Class.
    pub component_class: String,
    /// Check.
    pub check: String,
    /// Device, as `PCI=0000:17:00`; empty = the whole check.
    pub device: String,
    /// Code; empty = none.
    pub code: String,
    /// Whether it is fatal.
    pub fatal: bool,
    /// Action asked for.
    pub action: String,
    /// Name of the action where that is `CUSTOM`; else empty.
    #[serde(default)]
    pub custom_action: String,
    /// It was said of another machine under the node's name, or in an earlier boot: no rule set acts
    /// on it.
    #[serde(default)]
    pub elsewhere: bool,
    /// Message of the last event.
    pub message: String,
    /// Since when.
    pub since: Option<Timestamp>,
    /// Last event.
    pub last_at: Timestamp,
    /// How often it was said.
    pub count: u64,
    /// Sender of the newest event.
    pub sender: String,
    /// Incident that it belongs to.
    pub incident: Option<String>,
    /// Boot of the newest event; empty = its sender does not tell.
    #[serde(default)]
    pub boot_id: String,
    /// It was read back from the node because the store had been lost, and its sender has not spoken
    /// since.
    #[serde(default)]
    pub restored: bool,
    /// A person injected it (`warden inject`).
    #[serde(default)]
    pub injected: bool,
    /// What an override of the controller changed about its last event, and what was said:
    /// `RULE: isFatal was true`; empty = nothing.
    #[serde(default)]
    pub overridden: String,
    /// What of it was no real part: `user` (a line that a program wrote into the kernel log), and
    /// each option of the agent that stands in for one, parted by `, `; empty = all was real.
    #[serde(default)]
    pub origin: String,
}

/// An incident.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Incident {
    /// Id (ULID).
    pub id: String,
    /// Node.
    pub node: String,
    /// UID of the node object.
    pub node_uid: String,
    /// Version.
    pub version: u64,
    /// State.
    pub state: String,
    /// What the state waits for, or how it ended; empty = nothing to add.
    pub detail: String,
    /// What withholds it: `breaker`, `first_action`, `pace` or `other_quarantine`; none = it is not
    /// withheld.
    #[serde(default)]
    pub withheld_by: Option<String>,
    /// Nothing is done before this time.
    #[serde(default)]
    pub not_before: Option<Timestamp>,
    /// Since when the state holds.
    pub since: Timestamp,
    /// When it opened.
    pub opened_at: Timestamp,
    /// When it closed.
    pub closed_at: Option<Timestamp>,
    /// Pool.
    pub pool: String,
    /// Whether a cordon is asked for.
    pub cordon: bool,
    /// Whether somebody else had cordoned before.
    pub cordon_pre_existing: bool,
    /// Taints asked for, as `key=value:effect`.
    pub taints: Vec<String>,
    /// Its faults.
    pub faults: Vec<IncidentFault>,
    /// Why a person is needed.
    pub needs_operator: Option<String>,
    /// Who holds it.
    pub held_by: Option<String>,
    /// It was rebuilt from a node that does not name all that it is out for.
    #[serde(default)]
    pub faults_unknown: bool,
    /// How often in the last hour marks were put back that something had taken off, where that is more often than
    /// it may happen at once: then they are put back more and more rarely; 0 = nothing to tell.
    #[serde(default)]
    pub marks_removed: usize,
    /// What keeps the node from being given back although no fault is open: `repair_under_way`,
    /// `validation`, `external_owner`, `faults_unknown`, `agent_not_settled`, `settling`, or a mode; none =
    /// nothing, or a fault is open.
    #[serde(default)]
    pub release_kept_by: Option<String>,
    /// The check of the node after its repair: `Running`, `Passed`, or `Failed: ` and what was found; none =
    /// none was asked for.
    #[serde(default)]
    pub validation: Option<String>,
    /// The drain of the node; none = nothing asked for one yet.
    #[serde(default)]
    pub drain: Option<Drain>,
    /// The repair of the node; none = none was thought of yet.
    #[serde(default)]
    pub repair: Option<Repair>,
}

/// Moving the work off the node of an incident.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Drain {
    /// `Waiting`, `Draining`, `Drained`, `Failed` or `Cancelled`.
    pub state: String,
    /// What it waits for (`paused`, `first_action`, `dry_run`, `other_drainer`, `own_node`), or how it
    /// failed (`immediate`, `deleted`, `completion`); empty = nothing to add.
    pub detail: String,
    /// Since when the state holds.
    pub since: Timestamp,
    /// It does not begin before this time.
    #[serde(default)]
    pub not_before: Option<Timestamp>,
    /// Evicted pods are gone by then, while it drains.
    #[serde(default)]
    pub immediate_deadline: Option<Timestamp>,
    /// Pods of `DeleteAfterTimeout` are deleted then, while it drains.
    #[serde(default)]
    pub delete_at: Option<Timestamp>,
    /// Pods of `AllowCompletion` have finished by then, while it drains; none = they may run for ever.
    #[serde(default)]
    pub completion_deadline: Option<Timestamp>,
    /// What happens to pods that are left at a deadline: `fail` or `delete` (`drain.at_deadline`); empty =
    /// the controller does not tell.
    #[serde(default)]
    pub at_deadline: String,
    /// Pods that it waits for, as last seen.
    #[serde(default)]
    pub blockers: Vec<Blocker>,
    /// Pods that it does not wait for because the repair makes them harmless, as `namespace/name`.
    #[serde(default)]
    pub passed_over: Vec<String>,
}

/// A pod that a drain waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Blocker {
    /// `namespace/name`.
    pub pod: String,
    /// `asked`, `terminating`, `budget`, `failed`, `completion`, `timeout`, or `came` (during the drain).
    pub why: String,
    /// The API server's words, for `budget` and `failed`; else empty.
    #[serde(default)]
    pub detail: String,
    /// When that ends at the latest; none = nothing ends it.
    #[serde(default)]
    pub until: Option<Timestamp>,
}

/// The repair of the node of an incident.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Repair {
    /// `Planned`, `Requested`, `Running`, `Unknown`, `Succeeded`, `Failed`, `NeedsOperator` or
    /// `Cancelled`.
    pub state: String,
    /// Which rung is planned (`reset`, `reboot`, `hand-over`, `terminate`); else how it failed
    /// (`no_reboot_observed`, `refused`, `object`, `deadline`, `not_begun`, `provider_refused`), or why a person
    /// is needed (`unsupported`, `exhausted`, `still_open`, `not_begun`, `provider_refused`, `called_off`);
    /// empty = nothing to add.
    pub detail: String,
    /// What goes with it: the words of API server, provider or object, the action that has no repair, the rung
    /// that is used up; else empty.
    #[serde(default)]
    pub words: String,
    /// Since when the state holds.
    pub since: Timestamp,
    /// Of `exhausted`: when the next is ordered by itself, because the machine has used its attempts up for a
    /// time and the incident has not; none = not in this incident. Of `provider_refused`: when the provider is
    /// asked again.
    #[serde(default)]
    pub again_at: Option<Timestamp>,
    /// What keeps a planned repair from being ordered: `dry_run`, `other_remediation`, `paused`,
    /// `external_owner`, `first_action`, `not_drained`, `other_repair`, `own_node`, `objects_unknown` (the
    /// RebootNode objects can't be read), `no_definition` (the API server knows none), `api_error` (the API server refuses or does not answer a call that
    /// it needs) or `starting` (the controller has just begun to lead); what keeps
    /// one that is ordered from being begun: `queued`, or `own_node` (the controller's own goes last and
    /// alone), and from being made: `order_refused`; none = nothing.
    #[serde(default)]
    pub blocked_by: Option<String>,
    /// The present attempt, or the last one.
    #[serde(default)]
    pub attempt: Option<RepairAttempt>,
}

/// One attempt to repair.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RepairAttempt {
    /// Counts from 1 in an incident.
    pub number: u32,
    /// `reset`, `reboot`, `hand-over` or `terminate`.
    pub rung: String,
    /// Action that it is done for.
    pub action: String,
    /// Name of the object that orders it.
    pub object: String,
    /// Whether it asks for force.
    pub force: bool,
    /// Boot of the node when it was ordered; empty = unknown.
    pub boot_before: String,
    /// When it was ordered; that it was begun later changes nothing here.
    pub requested_at: Timestamp,
    /// Its effect is seen by then, or it failed. Of one that waits to be begun (`queued`) it may be over: its
    /// time counts from its beginning.
    pub deadline: Timestamp,
    /// `pending`, `seen`, `not_seen`, `not_begun`, `provider_refused` or `failed`.
    pub effect: String,
}

/// A fault of an incident.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IncidentFault {
    /// The fault, for people.
    pub fault: String,
    /// Rule sets that matched.
    pub rules: Vec<String>,
    /// Action asked for.
    pub action: String,
    /// Name of the action where that is `CUSTOM`, as long as the fault is remembered; else empty.
    #[serde(default)]
    pub custom_action: String,
    /// When it joined.
    pub joined_at: Timestamp,
    /// When it closed.
    pub closed_at: Option<Timestamp>,
    /// Position of the event that brought it in.
    pub seq: u64,
}

/// `GET /api/v1/incidents/ID`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IncidentDetail {
    /// The incident.
    pub incident: Incident,
    /// What happened, oldest first.
    pub timeline: Vec<Step>,
}

/// One step of an incident.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Position in the audit trail.
    pub seq: u64,
    /// Incident.
    pub incident: String,
    /// Node.
    pub node: String,
    /// When.
    pub at: Timestamp,
    /// Module that decided.
    pub module: String,
    /// State before.
    pub from: String,
    /// State after.
    pub to: String,
    /// The facts that decided.
    pub cause: serde_json::Value,
}

/// A hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hold {
    /// Whose uncordon it was.
    pub actor: String,
    /// Until when.
    pub until: Timestamp,
    /// Faults that it suppresses.
    pub faults: Vec<String>,
}

/// One line of `GET /api/v1/events`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Position.
    pub seq: u64,
    /// Sender.
    pub sender: String,
    /// Id.
    pub id: String,
    /// Node.
    pub node: String,
    /// Time that counts.
    pub generated_at: Timestamp,
    /// Receipt.
    pub received_at: Timestamp,
    /// Strategy.
    pub strategy: String,
    /// Whether all is well.
    pub healthy: bool,
    /// Whether it is fatal.
    pub fatal: bool,
    /// Agent.
    pub agent: String,
    /// Class.
    pub component_class: String,
    /// Check.
    pub check: String,
    /// Codes.
    pub codes: Vec<String>,
    /// Entities, as `TYPE VALUE`.
    pub entities: Vec<String>,
    /// Message.
    pub message: String,
    /// See [`Fault::injected`].
    #[serde(default)]
    pub injected: bool,
    /// See [`Fault::origin`].
    #[serde(default)]
    pub origin: String,
}

/// `GET /api/v1/breaker`: one element a pool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BreakerPool {
    /// Pool.
    pub pool: String,
    /// Nodes in it now.
    pub nodes: usize,
    /// Nodes out by us, or maybe out.
    pub out: usize,
    /// Nodes withheld.
    pub withheld: Vec<String>,
    /// Whether it is tripped.
    pub tripped: bool,
    /// Whether the breaker is switched off: nothing is bounded.
    #[serde(default)]
    pub off: bool,
    /// Nodes that may be out at one time; none = nothing bounds it.
    #[serde(default)]
    pub level_bound: Option<usize>,
    /// Nodes that may be newly taken out in the window; none = nothing bounds it.
    #[serde(default)]
    pub rate_bound: Option<usize>,
    /// The window, in seconds.
    #[serde(default)]
    pub window_seconds: Option<u64>,
    /// The bound that tripped it, with the rule and check of the largest share; absent = closed.
    pub trip: Option<serde_json::Value>,
}

/// Body of `POST /api/v1/breaker/reset`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BreakerReset {
    /// Which pool; absent = all.
    pub pool: Option<String>,
    /// Whether withheld nodes are dropped instead of taken out.
    pub drop_withheld: bool,
}

/// Body of `POST /api/v1/nodes/NAME/hold`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HoldRequest {
    /// Why, for people.
    pub reason: String,
}

/// Body of `POST /api/v1/nodes/NAME/release` and of `…/cancel`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReleaseRequest {
    /// Why, for people; empty = not said.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// Body of `POST /api/v1/nodes/NAME/close`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CloseRequest {
    /// [`Fault::id`].
    pub fault: String,
}

/// Answer to what a person asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// What was done.
    pub done: String,
    /// It was recorded, and nothing is written to the node for it: `done` says why, and what a person
    /// can do.
    #[serde(default)]
    pub only_recorded: bool,
}

/// Every answer that is no success.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Problem {
    /// What was tried, why it failed, what to do next.
    pub error: String,
    /// Static name.
    pub code: String,
}
