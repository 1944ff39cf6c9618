//! One node's turn: its conditions, in one patch of its status.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use decide::connector::{Condition, FaultEntry, Limits, StatusWrite, View};
use event_store::ReadError;
use health_event::NodeName;
use health_event::incident::{Incident, QuarantineStatus, Withheld};
use jiff::Timestamp;
use k8s_api::{ConditionList, names};
use serde_json::{Value, json};
use telemetry::metrics::StatusLabel;
use tracing::warn;

use super::facts;
use super::healthy::Healthy;
use crate::context::Context;
use crate::kubernetes::{CallError, Reference, jittered};
use crate::lease::Leadership;
use crate::nodes::NodeFacts;
use crate::quarantine;
use crate::workers::Workers;

/// Longest time for one write with its repetitions.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// First pause after a failure; it doubles.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// How long a write stands back for the quarantine's. Two writes of one node at once cost the API
/// server a repetition of the loser, and a cordon must not be the loser: it was 6 ms late. A cordon
/// is answered within 15 ms in nine of ten cases.
const STAND_BACK: Duration = Duration::from_millis(20);
/// Name of the module.
pub(super) const MODULE: &str = "connector";

/// What all workers share.
pub(super) struct Conditions {
    pub(super) context: Context,
    pub(super) leadership: Leadership,
    pub(super) limits: Limits,
    pub(super) healthy: Healthy,
    pub(super) reference: Reference,
    pub(super) reference_types: BTreeSet<String>,
    pub(super) workers: Workers,
    /// Nodes whose write is not seen yet, or failed.
    pub(super) writes: Mutex<HashMap<NodeName, LastWrite>>,
    /// Nodes whose write stands back for the quarantine's, and since when.
    pub(super) standing_back: Mutex<HashMap<NodeName, Timestamp>>,
}

/// What became of a node's last write.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LastWrite {
    /// Version of the node that it made; 0 if it failed.
    version: u64,
    /// Failures in a row.
    failures: u32,
}

#[derive(Debug, thiserror::Error)]
enum TurnError {
    #[error("the event store can't be read: {0}")]
    Read(#[from] ReadError),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("this controller does not lead")]
    NotLeading,
}

impl TurnError {
    fn code(&self) -> &'static str {
        match self {
            Self::Read(_) => "store_unreadable",
            Self::Call(error) => error.code(),
            Self::NotLeading => "not_leading",
        }
    }
}

impl Conditions {
    /// One node's turn.
    pub(super) async fn work(&self, name: &NodeName) {
        if let Err(error) = self.turn(name).await {
            let pause = self.pause_after_failure(name);
            warn!(
                node = name.as_str(),
                code = error.code(),
                why = %error,
                "the conditions of a node are not written; they are decided anew"
            );
            let at = Timestamp::now()
                .checked_add(pause)
                .unwrap_or(Timestamp::MAX);
            self.workers.wake_at(name, at);
        }
    }

    async fn turn(&self, name: &NodeName) -> Result<(), TurnError> {
        let Some(node) = self.context.nodes.get(name) else {
            self.healthy.forget(name);
            self.lock().remove(name);
            self.standing_back().remove(name);
            return Ok(());
        };
        if self.waits_for_watch(&node) {
            return Ok(());
        }
        let stood_back = self.standing_back().contains_key(name);
        if stood_back && self.stands_back(name)? {
            return Ok(());
        }
        let write = self.decide(&node)?;
        if write.is_empty() {
            self.standing_back().remove(name);
            return Ok(());
        }
        if !stood_back && self.stands_back(name)? {
            return Ok(());
        }
        let deadline = self
            .leadership
            .write_deadline(WRITE_TIMEOUT)
            .ok_or(TurnError::NotLeading)?;
        let started = tokio::time::Instant::now();
        let patch = status_patch(&node, &write);
        let sent = self
            .context
            .kube
            .patch_node_status(name, &patch, deadline)
            .await;
        self.count(sent.is_ok(), started.elapsed());
        match sent {
            Ok(metadata) => {
                let version = metadata.resource_version.parse().unwrap_or_default();
                self.lock().insert(
                    name.clone(),
                    LastWrite {
                        version,
                        failures: 0,
                    },
                );
                // The watch may have been faster than the answer.
                if self
                    .context
                    .nodes
                    .get(name)
                    .is_some_and(|n| n.resource_version >= version)
                {
                    self.workers.wake(name);
                }
                Ok(())
            }
            // Another object has the name now: the watch brings it.
            Err(CallError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn decide(&self, node: &NodeFacts) -> Result<StatusWrite, TurnError> {
        let stored = self.context.store.open_faults(&node.name)?;
        let ours = stored.iter().filter(|fault| facts::is_of(fault, node));
        let mut faults: Vec<_> = ours.cloned().map(facts::fault_entry).collect();
        faults.extend(self.refusal(node)?);
        let agent = self.context.reports.agent(&node.name)?;
        let (conditions, listed) = (facts::conditions(node), facts::listed(node));
        let mut known: BTreeSet<String> = self.healthy.retired();
        known.extend(stored.iter().map(|fault| fault.id.scope.check_name.clone()));
        // Only where something stands that no open fault explains: it is seldom asked for.
        let stands = |kind: &String| conditions.get(kind).is_some_and(|c| c.is_true);
        if listed
            .iter()
            .any(|kind| stands(kind) && !known.contains(kind))
        {
            let closed = self
                .context
                .store
                .closed_faults(&node.name, facts::CLOSED)?;
            known.extend(closed.into_iter().map(|fault| fault.id.scope.check_name));
        }
        let view = View {
            conditions: &conditions,
            listed: &listed,
            faults: &faults,
            healthy: &self.healthy.about(&node.name),
            known: &known,
            configured: &self.healthy.configured(),
            reference_types: &self.reference_types,
            reference_runs: self.reference.runs(),
            settled: &facts::settled(node, &agent),
        };
        Ok(decide::connector::decide(
            &view,
            self.limits,
            Timestamp::now(),
        ))
    }

    /// What the quarantine does not do with this node because another one runs in the cluster.
    fn refusal(&self, node: &NodeFacts) -> Result<Option<FaultEntry>, ReadError> {
        let store = &self.context.store;
        let refused = |incident: &&Incident| match &incident.quarantine {
            QuarantineStatus::Withheld(why) => why == &Withheld::OtherQuarantine,
            // All that it was out for is over.
            QuarantineStatus::Quarantined | QuarantineStatus::Releasing(_) => {
                incident.held_by.is_none() && incident.open_faults().next().is_none()
            }
            QuarantineStatus::Applying
            | QuarantineStatus::Observed
            | QuarantineStatus::Closed(_) => false,
        };
        let incidents = store.open_incidents_of(&node.name)?;
        let mut ours = incidents.iter().filter(|i| i.node_uid == *node.uid);
        let Some(incident) = ours.find(refused) else {
            return Ok(None);
        };
        let other = quarantine::other(store)?;
        Ok(other.map(|_| facts::refusal(incident.since)))
    }

    /// Whether the write stands back, and then asks for another turn. It may go once the quarantine
    /// has moved and come to rest, and at the latest after [`STAND_BACK`].
    fn stands_back(&self, name: &NodeName) -> Result<bool, ReadError> {
        let quarantine = &self.context.config.quarantine;
        if !quarantine.enabled || quarantine.dry_run {
            return Ok(false);
        }
        let now = Timestamp::now();
        let incidents = self.context.store.open_incidents_of(name)?;
        let mut standing_back = self.standing_back();
        let since = *standing_back.entry(name.clone()).or_insert(now);
        let until = since.saturating_add(STAND_BACK).unwrap_or(Timestamp::MAX);
        let rests = |incident: &Incident| match incident.quarantine {
            QuarantineStatus::Applying | QuarantineStatus::Releasing(_) => false,
            QuarantineStatus::Withheld(_)
            | QuarantineStatus::Observed
            | QuarantineStatus::Quarantined
            | QuarantineStatus::Closed(_) => incident.since >= since,
        };
        let stands_back = now < until && !incidents.iter().any(rests);
        if stands_back {
            self.workers.wake_at(name, until);
        } else {
            standing_back.remove(name);
        }
        Ok(stands_back)
    }

    fn standing_back(&self) -> MutexGuard<'_, HashMap<NodeName, Timestamp>> {
        self.standing_back
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the watch has not shown our last write yet: what it shows is older.
    fn waits_for_watch(&self, node: &NodeFacts) -> bool {
        let mut writes = self.lock();
        let Some(last) = writes.get(&node.name) else {
            return false;
        };
        if node.resource_version < last.version {
            return true;
        }
        if last.version > 0 {
            writes.remove(&node.name);
        }
        false
    }

    fn pause_after_failure(&self, name: &NodeName) -> Duration {
        let mut writes = self.lock();
        let last = writes.entry(name.clone()).or_default();
        last.failures = (last.failures + 1).min(10);
        last.version = 0;
        jittered((FIRST_PAUSE * 2_u32.pow(last.failures - 1)).min(LONGEST_PAUSE))
    }

    fn count(&self, done: bool, took: Duration) {
        let status = if done { "success" } else { "failed" };
        let metrics = &self.context.metrics;
        let label = StatusLabel {
            status: status.into(),
        };
        metrics.node_condition_updates.get_or_create(&label).inc();
        metrics
            .node_condition_update_ms
            .observe(took.as_secs_f64() * 1_000.0);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeName, LastWrite>> {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The strategic-merge patch: conditions merge by type, and what is not named stays.
fn status_patch(node: &NodeFacts, write: &StatusWrite) -> Value {
    // Another object under the name is refused as a conflict.
    let mut metadata = json!({ "uid": &*node.uid });
    if let Some(listed) = &write.listed {
        let list = ConditionList(listed.clone()).render();
        metadata["annotations"] = json!({ names::CONDITIONS.text: list });
    }
    let set = write.set.iter().map(condition);
    let remove = write
        .remove
        .iter()
        .map(|kind| json!({ "$patch": "delete", "type": kind }));
    let conditions: Vec<Value> = set.chain(remove).collect();
    json!({ "metadata": metadata, "status": { "conditions": conditions } })
}

fn condition(condition: &Condition) -> Value {
    let mut value = json!({
        "type": condition.kind,
        "status": if condition.is_true { "True" } else { "False" },
        "reason": condition.reason,
        "message": condition.message,
        "lastHeartbeatTime": seconds(condition.heartbeat_at),
    });
    if let Some(at) = condition.transition_at {
        value["lastTransitionTime"] = json!(seconds(at));
    }
    value
}

/// Kubernetes' `Time` has whole seconds.
pub(super) fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
#[path = "conditions_tests.rs"]
mod tests;
