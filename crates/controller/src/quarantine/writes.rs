//! Writing a decision to its node, and what is remembered of it.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use decide::quarantine::{NodeWrite, WriteFeedback, WriteKind};
use health_event::NodeName;
use jiff::Timestamp;
use tokio::time::Instant;

use super::apply::Blocked;
use super::said;
use super::work::{Module, Next, TurnError};
use crate::context::Context;
use crate::kubernetes::{CallError, jittered};
use crate::nodes;

/// Refused patches on an unchanged node until it is an error.
pub(super) const REFUSALS: u32 = 5;
/// First pause after a failed write; it doubles.
pub(super) const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause after failed writes, before its random part: how long a node waits when an outage
/// is over.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Longest time for a direct read of a node.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// What became of a node's last write.
#[derive(Debug, Clone, Default)]
pub(super) struct LastWrite {
    /// Version of the node that the accepted write made; 0 if none was accepted.
    version: u64,
    /// Version of the node on which patches were refused.
    refused_on: u64,
    /// How often in a row on that version.
    refusals: u32,
    /// Failures in a row, for the pause.
    failures: u32,
}

impl Module {
    /// Writes to the node, through the gate.
    pub(super) async fn write(
        &self,
        write: &NodeWrite,
        node: &Arc<nodes::NodeFacts>,
    ) -> Result<Next, TurnError> {
        if write.kind == WriteKind::State {
            let orders = &self.context.orders;
            if let Some(until) = orders.stand_back(&node.name, &self.workers, Timestamp::now()) {
                self.workers.wake_at(&node.name, until);
                return Ok(Next::Done);
            }
        }
        let deadline = match self.apply.gate(write, node) {
            Ok(deadline) => deadline,
            Err(blocked) => {
                said::blocked(&self.context.metrics, &node.name, blocked);
                return Ok(match blocked {
                    Blocked::NotLeading | Blocked::ReferenceUnknown => {
                        self.wake_in(&node.name, FIRST_PAUSE);
                        Next::Done
                    }
                    // Decided again, it is withheld.
                    Blocked::ReferenceRuns => Next::Again,
                    // A change of the node wakes; the mode lasts as long as the process.
                    Blocked::Mode(_) | Blocked::Paused => Next::Done,
                });
            }
        };
        let sent = self.apply.send(write, deadline).await;
        match &sent {
            Ok(_) | Err(CallError::NotFound { .. }) => self.context.refusals.over(&node.name),
            Err(error) => {
                let now = Timestamp::now();
                self.context.refusals.said(&node.name, error, now);
            }
        }
        match sent {
            Ok(version) => {
                self.set_write(
                    &node.name,
                    LastWrite {
                        version,
                        ..LastWrite::default()
                    },
                );
                Ok(Next::Done)
            }
            Err(CallError::Changed { message, .. }) => self.refused(node, message).await,
            Err(CallError::NotFound { .. }) => {
                self.wake_in(&node.name, FIRST_PAUSE);
                Ok(Next::Done)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// A test of the patch failed: the node is read again and decided about again.
    async fn refused(&self, node: &Arc<nodes::NodeFacts>, why: String) -> Result<Next, TurnError> {
        let name = &node.name;
        let mut last = self.last_write(name);
        last.refusals = if last.refused_on == node.resource_version {
            last.refusals + 1
        } else {
            1
        };
        last.refused_on = node.resource_version;
        let refusals = last.refusals;
        self.set_write(name, last);
        if refusals >= REFUSALS {
            return Err(TurnError::Refused {
                node: name.clone(),
                why,
            });
        }
        let deadline = Instant::now() + READ_TIMEOUT;
        let Context {
            kube, nodes, wakes, ..
        } = &self.context;
        nodes::watch::read(kube, nodes, name, deadline).await?;
        wakes.wake(name);
        Ok(Next::Again)
    }

    pub(super) fn feedback(
        &self,
        name: &NodeName,
        node: Option<&nodes::NodeFacts>,
    ) -> WriteFeedback {
        let mut writes = self.writes();
        let Some(last) = writes.get(name) else {
            return WriteFeedback::Idle;
        };
        if last.version == 0 {
            return WriteFeedback::Idle;
        }
        if node.is_some_and(|node| node.resource_version < last.version) {
            return WriteFeedback::Accepted;
        }
        writes.remove(name);
        WriteFeedback::Idle
    }

    fn last_write(&self, name: &NodeName) -> LastWrite {
        self.writes().get(name).cloned().unwrap_or_default()
    }

    fn set_write(&self, name: &NodeName, last: LastWrite) {
        self.writes().insert(name.clone(), last);
    }

    pub(super) fn pause_after_failure(&self, name: &NodeName) -> Duration {
        let mut last = self.last_write(name);
        last.failures = (last.failures + 1).min(10);
        let pause = (FIRST_PAUSE * 2_u32.pow(last.failures - 1)).min(LONGEST_PAUSE);
        self.set_write(name, last);
        jittered(pause)
    }

    /// A turn went well: the next failure is a first one.
    pub(super) fn forget_failures(&self, name: &NodeName) {
        let mut writes = self.writes();
        if let Some(last) = writes.get_mut(name) {
            last.failures = 0;
            if last.version == 0 && last.refusals == 0 {
                writes.remove(name);
            }
        }
    }

    fn writes(&self) -> MutexGuard<'_, std::collections::HashMap<NodeName, LastWrite>> {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
