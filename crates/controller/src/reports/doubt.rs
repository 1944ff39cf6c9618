//! Agents whose word can't be taken for their node's: several report as it, or the one that does runs
//! on another machine than the node object names. Each is a fault of its own, so that people see it
//! wherever faults are shown; no rule set acts on it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use decide::gone::is_of_another;
use event_store::{NewEvent, ReadError, StoredFault};
use health_event::checks::{AGENT_CONFLICT, AGENT_MACHINE, WARDEN_AGENT};
use health_event::{NodeName, Subject};
use jiff::Timestamp;
use telemetry::ControllerMetrics;
use telemetry::events::AgentDoubtful;
use tracing::{info, warn};

use super::contest::is_contested;
use super::state::{AgentState, Reports};
use crate::ingest::own_event;
use crate::nodes::NodeFacts;

/// What is open: of which node, under which check.
type Key = (NodeName, &'static str);
/// What begins, with why, or is over.
type Change = (Key, Option<String>);
/// The nodes that there are.
type Uids<'a> = BTreeMap<&'a NodeName, &'a Arc<str>>;

/// Most events of one append.
const CHUNK: usize = 500;

/// The watch over them.
#[derive(Debug)]
pub(super) struct Doubts {
    reports: Reports,
    metrics: Arc<ControllerMetrics>,
    /// How long an agent may be of another machine: one that was exchanged under its node object
    /// reports before the kubelet has written the new id.
    settling: Duration,
    /// Open faults, and the UID of the object for which that was seen last.
    open: BTreeMap<Key, Option<Arc<str>>>,
    /// Since when an agent is of another machine.
    since: BTreeMap<NodeName, Timestamp>,
}

impl Doubts {
    /// With those of the `open` faults that are about agents.
    pub(super) fn new(
        open: &[StoredFault],
        reports: Reports,
        settling: Duration,
        metrics: Arc<ControllerMetrics>,
    ) -> Self {
        let known = |fault: &StoredFault| {
            let scope = &fault.id.scope;
            let checks = [AGENT_CONFLICT, AGENT_MACHINE].into_iter();
            let check = checks.into_iter().find(|c| *c == scope.check_name);
            match (&scope.subject, check) {
                (Subject::Node(node), Some(check)) if scope.agent == WARDEN_AGENT => {
                    Some(((node.clone(), check), None))
                }
                (Subject::Node(_) | Subject::Pool(_) | Subject::Cluster, _) => None,
            }
        };
        Self {
            reports,
            metrics,
            settling,
            open: open.iter().filter_map(known).collect(),
            since: BTreeMap::new(),
        }
    }

    /// Opens and closes the faults of these nodes, which are all that there are. What can't be
    /// stored is tried with the next look.
    ///
    /// # Errors
    /// The store can't be read.
    pub(super) async fn look(
        &mut self,
        nodes: &[Arc<NodeFacts>],
        now: Timestamp,
    ) -> Result<(), ReadError> {
        let mut present = BTreeMap::new();
        let mut of_another = BTreeSet::new();
        for node in nodes {
            let state = self.reports.agent(&node.name)?;
            if is_contested(&state, self.reports.patience(nodes.len()), now) {
                present.insert((node.name.clone(), AGENT_CONFLICT), conflict(&state));
            }
            if is_of_another(&state.machine, &node.system_uuid) {
                of_another.insert(node.name.clone());
                let since = *self.since.entry(node.name.clone()).or_insert(now);
                let long = Duration::try_from(now.duration_since(since));
                let key = (node.name.clone(), AGENT_MACHINE);
                if self.open.contains_key(&key) || long.is_ok_and(|long| long >= self.settling) {
                    present.insert(key, other_machine(&state, node));
                }
            }
        }
        self.since.retain(|node, _| of_another.contains(node));
        let uids: Uids<'_> = nodes.iter().map(|node| (&node.name, &node.uid)).collect();
        self.forget_gone(&uids)?;
        let count = |check| {
            let count = present.keys().filter(|(_, of)| *of == check).count();
            i64::try_from(count).unwrap_or(i64::MAX)
        };
        self.metrics.agents_conflicting.set(count(AGENT_CONFLICT));
        self.metrics.agents_other_machine.set(count(AGENT_MACHINE));
        // Who speaks is not known yet after a start.
        let early = now < self.reports.nobody_silent_before(nodes.len());
        let over = self
            .open
            .keys()
            .filter(|key| !early && uids.contains_key(&key.0) && !present.contains_key(key));
        let over = over.map(|key| (key.clone(), None)).collect::<Vec<_>>();
        let new = present
            .into_iter()
            .filter(|(key, _)| !self.open.contains_key(key));
        let new = new.map(|(key, why)| (key, Some(why)));
        let changes: Vec<Change> = new.chain(over).collect();
        self.tell(&changes, &uids, now).await;
        Ok(())
    }

    /// The fault of a node that is gone is closed by others: if the name comes back, it begins anew.
    fn forget_gone(&mut self, uids: &Uids<'_>) -> Result<(), ReadError> {
        let mut closed = Vec::new();
        for (key, uid) in &mut self.open {
            let (name, check) = key;
            let present = uids.get(name).map(|uid| Arc::clone(uid));
            if present.is_some() && present == *uid {
                continue;
            }
            let open = self.reports.store().open_faults(name)?;
            if open.iter().any(|f| f.id.scope.check_name == *check) {
                *uid = present;
            } else {
                closed.push(key.clone());
            }
        }
        for key in closed {
            self.open.remove(&key);
        }
        Ok(())
    }

    async fn tell(&mut self, changes: &[Change], uids: &Uids<'_>, now: Timestamp) {
        for chunk in changes.chunks(CHUNK) {
            let events = chunk.iter().map(|change| event(change, now)).collect();
            if let Err(error) = self.reports.store().append(events).await {
                warn!(code = error.code(), %error, "which agents can't be taken at their word is not stored");
                return;
            }
            for (key, why) in chunk {
                let (node, check) = (key.0.as_str(), key.1);
                if let Some(why) = why {
                    AgentDoubtful { node, check, why }.emit();
                    let uid = uids.get(&key.0).map(|uid| Arc::clone(uid));
                    self.open.insert(key.clone(), uid);
                } else {
                    info!(
                        node,
                        check, "the agent of a node can be taken at its word again"
                    );
                    self.open.remove(key);
                }
            }
        }
    }
}

fn event(((node, check), why): &Change, now: Timestamp) -> NewEvent {
    let message = match why {
        Some(why) => why.as_str(),
        None if *check == AGENT_CONFLICT => "one agent reports as this node",
        None => "the node's agent runs on the machine that the node object names",
    };
    let subject = Subject::Node(node.clone());
    own_event(subject, check, why.is_none(), message.to_owned(), now)
}

/// Who speaks, and what to do.
fn conflict(state: &AgentState) -> String {
    let one = |process: &str, version: &str, machine: &str| {
        format!("process {process} (version {version}, machine {machine})")
    };
    let others = state.others.iter();
    let mut all: Vec<String> = others
        .map(|other| one(&other.process_id, &other.version, &other.machine))
        .chain([one(&state.process_id, &state.version, &state.machine)])
        .collect();
    all.sort();
    format!(
        "several agents report as this node: {}. Until one is left, no fault closes because an agent \
         does not assert it. Look for a second installation of warden-agent on the node, and for \
         another machine with this host name",
        all.join(", ")
    )
}

fn other_machine(state: &AgentState, node: &NodeFacts) -> String {
    format!(
        "the node's agent runs on machine {}, the node object says {} \
         (status.nodeInfo.systemUUID): what the agent tells is stored and has no effect on the node. \
         Look for another machine with this host name, for machine_id in the agent's configuration, \
         and whether the agent, as root, reads /sys/class/dmi/id/product_uuid",
        state.machine, node.system_uuid
    )
}
