//! The last report of each node.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use event_store::{EventStore, ReadError};
use health_event::{BootId, NodeName};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::asked::Asked;
use super::contest::Other;
use crate::workers::WakeAll;

/// Nodes that are remembered at most: ten times the largest cluster, so that made-up names (mode
/// off) end somewhere.
const MOST_NODES: usize = 1_000_000;

/// What is known of a node's agent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AgentState {
    /// Whether an agent is expected on the node: it reported at least once.
    pub expected: bool,
    /// The boot for which its present process reported all detectors settled.
    pub settled_boot: Option<BootId>,
    /// The present process (ULID); empty if none ever reported.
    pub process_id: String,
    /// When that process was first heard of.
    pub process_changed_at: Option<Timestamp>,
    /// When it last reported to this controller process; none = not since the start.
    pub last_report_at: Option<Timestamp>,
    /// Boot of the last report.
    pub boot: BootId,
    /// Machine id of the last report; empty if unknown.
    pub machine: String,
    /// Version of the agent.
    pub version: String,
    /// Spool (ULID).
    pub spool: String,
    /// Detectors that are not settled, for people: `kernel-log: blind (why)`.
    pub unsettled: Vec<String>,
    /// Other processes that reported lately as this node, newest first: of an agent that was
    /// restarted its former process.
    pub(super) others: Vec<Other>,
    /// When a process spoke last after another one had: several report as this node.
    pub(super) contested_at: Option<Timestamp>,
}

/// The part that is kept in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    settled_boot: Option<String>,
    process_id: String,
    process_changed_at: Option<Timestamp>,
    boot: String,
    machine: String,
    version: String,
    spool: String,
    #[serde(default)]
    contested_at: Option<Timestamp>,
}

impl From<&AgentState> for Kept {
    fn from(state: &AgentState) -> Self {
        Self {
            settled_boot: state.settled_boot.as_ref().map(ToString::to_string),
            process_id: state.process_id.clone(),
            process_changed_at: state.process_changed_at,
            boot: state.boot.to_string(),
            machine: state.machine.clone(),
            version: state.version.clone(),
            spool: state.spool.clone(),
            contested_at: state.contested_at,
        }
    }
}

impl From<Kept> for AgentState {
    fn from(kept: Kept) -> Self {
        Self {
            expected: true,
            settled_boot: kept.settled_boot.as_deref().map(BootId::new),
            process_id: kept.process_id,
            process_changed_at: kept.process_changed_at,
            last_report_at: None,
            boot: BootId::new(&kept.boot),
            machine: kept.machine,
            version: kept.version,
            spool: kept.spool,
            unsettled: Vec::new(),
            others: Vec::new(),
            contested_at: kept.contested_at,
        }
    }
}

/// All nodes' agents. Cheap to clone; all clones are one.
#[derive(Debug, Clone)]
pub struct Reports(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    store: EventStore,
    fencing: u64,
    wakes: WakeAll,
    interval: Duration,
    started_at: Timestamp,
    agents: Mutex<HashMap<NodeName, AgentState>>,
    asked: Mutex<Asked>,
}

/// How long ago an agent was heard of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Within three intervals, or the controller runs for less than that.
    Present,
    /// Not for this long.
    Silent(jiff::SignedDuration),
}

impl Reports {
    /// Over a store; `wakes` are woken when something about a node's agent changes.
    pub fn new(store: EventStore, fencing: u64, wakes: WakeAll, interval: Duration) -> Self {
        Self(Arc::new(Shared {
            store,
            fencing,
            wakes,
            interval,
            started_at: Timestamp::now(),
            agents: Mutex::default(),
            asked: Mutex::default(),
        }))
    }

    /// What is known of a node's agent. Reads the store once a node, then memory.
    ///
    /// # Errors
    /// The store can't be read.
    pub fn agent(&self, node: &NodeName) -> Result<AgentState, ReadError> {
        if let Some(state) = self.known(node) {
            return Ok(state);
        }
        let kept = self.0.store.state_get(&state_key(node))?;
        let kept = kept.and_then(|bytes| serde_json::from_slice::<Kept>(&bytes).ok());
        let state = kept.map(AgentState::from).unwrap_or_default();
        let mut agents = self.lock();
        if agents.len() < MOST_NODES {
            return Ok(agents.entry(node.clone()).or_insert(state).clone());
        }
        Ok(state)
    }

    fn known(&self, node: &NodeName) -> Option<AgentState> {
        self.lock().get(node).cloned()
    }

    /// Takes a new state in; answers once what must survive is durable. Wakes the node's work if
    /// anything but the time of the report changed.
    ///
    /// # Errors
    /// The store can't be written; then nothing is taken in.
    pub(super) async fn put(
        &self,
        node: &NodeName,
        state: AgentState,
    ) -> Result<(), event_store::WriteError> {
        let before = self.known(node).unwrap_or_default();
        if !before.expected || Kept::from(&before) != Kept::from(&state) {
            let bytes = serde_json::to_vec(&Kept::from(&state)).unwrap_or_default();
            self.0
                .store
                .state_put(&state_key(node), bytes, self.0.fencing)
                .await?;
        }
        let mut told = before;
        let first = told.last_report_at.is_none();
        told.last_report_at = state.last_report_at;
        let changed = first || told != state;
        {
            let mut agents = self.lock();
            if agents.len() < MOST_NODES || agents.contains_key(node) {
                agents.insert(node.clone(), state);
            }
        }
        if changed {
            self.0.wakes.wake(node);
        }
        Ok(())
    }

    /// How long ago the agent of a node was heard of; a node that appeared at `since` is given
    /// three intervals too. The interval is the one that agents of a cluster of this many `nodes`
    /// are told.
    pub fn standing(
        &self,
        state: &AgentState,
        nodes: usize,
        since: Timestamp,
        now: Timestamp,
    ) -> Standing {
        let heard = state.last_report_at.unwrap_or(self.0.started_at).max(since);
        let quiet = now.duration_since(heard);
        match Duration::try_from(quiet) {
            Ok(long) if long > self.patience(nodes) => Standing::Silent(quiet),
            Ok(_) | Err(_) => Standing::Present,
        }
    }

    /// Three intervals after the start: before that nobody counts as silent.
    pub(crate) fn nobody_silent_before(&self, nodes: usize) -> Timestamp {
        self.0
            .started_at
            .saturating_add(self.patience(nodes))
            .unwrap_or(Timestamp::MAX)
    }

    /// Three intervals: an agent that lives was heard of by then.
    pub(super) fn patience(&self, nodes: usize) -> Duration {
        self.next_interval(nodes).saturating_mul(3)
    }

    /// Time between two heartbeats for a cluster of this many nodes: as configured up to 10,000,
    /// five times that at 100,000.
    pub fn next_interval(&self, nodes: usize) -> Duration {
        let tenths = u32::try_from(nodes / 2_000)
            .unwrap_or(u32::MAX)
            .clamp(10, 50);
        self.0.interval.saturating_mul(tenths) / 10
    }

    /// Forgets a node that is gone: the caller took its state out of the store.
    pub(crate) fn forget(&self, node: &NodeName) {
        self.lock().remove(node);
        self.asked().forget(node);
    }

    /// Faults of the node were closed without its agent: what it asserts is asked for at once.
    pub(crate) fn ask_again(&self, node: &NodeName) {
        self.asked().forget(node);
    }

    /// Which lists were asked for.
    pub(super) fn asked(&self) -> std::sync::MutexGuard<'_, Asked> {
        self.0.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn store(&self) -> &EventStore {
        &self.0.store
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<NodeName, AgentState>> {
        self.0.agents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Before a node's name: the key of what is kept of its agent.
pub(crate) const STATE_PREFIX: &str = "report/";

/// Key of what is kept of a node's agent.
pub(crate) fn state_key(node: &NodeName) -> String {
    format!("{STATE_PREFIX}{node}")
}
