//! Agents that say nothing any more.

use std::collections::BTreeSet;
use std::time::Duration;

use event_store::NewEvent;
use health_event::{NodeName, Subject};
use jiff::Timestamp;
use telemetry::ControllerMetrics;
use telemetry::events::AgentSilent;

use super::state::{Reports, Standing};
use crate::ingest::own_event;
use crate::nodes::NodeCache;

/// The check's name.
const AGENT_SILENT: &str = "AgentSilent";
/// Most events of one append.
const CHUNK: usize = 500;

/// Raises and closes `AgentSilent` until the future is dropped. Only nodes of the cluster count,
/// and only those whose agent reported at least once or that are expected to have one.
///
/// # Errors
/// The store can't be read at the start.
pub async fn watch_silence(
    reports: Reports,
    nodes: NodeCache,
    raise: bool,
    metrics: &ControllerMetrics,
) -> Result<std::convert::Infallible, event_store::ReadError> {
    nodes.synced().await;
    let mut silent = open_here(&reports)?;
    let step = (reports.interval() / 2).clamp(Duration::from_millis(100), Duration::from_secs(30));
    let mut ticks = tokio::time::interval(step);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let now = Timestamp::now();
        let mut changes = Vec::new();
        let mut count = 0_i64;
        for node in nodes.all() {
            let state = reports.agent(&node.name)?;
            let standing = reports.standing(&state, node.created_at, now);
            let is_silent = state.expected && standing != Standing::Present;
            count += i64::from(is_silent);
            if is_silent == silent.contains(&node.name) {
                continue;
            }
            if let Standing::Silent(quiet) = standing
                && is_silent
            {
                AgentSilent {
                    node: node.name.as_str(),
                    silent_seconds: quiet.as_secs(),
                }
                .emit();
            }
            changes.push((node.name.clone(), is_silent));
        }
        metrics.agents_silent.set(count);
        tell(&reports, raise, changes, &mut silent, now).await;
    }
}

/// Appends the changes; what could not be stored is tried with the next tick.
async fn tell(
    reports: &Reports,
    raise: bool,
    changes: Vec<(NodeName, bool)>,
    silent: &mut BTreeSet<NodeName>,
    now: Timestamp,
) {
    for chunk in changes.chunks(CHUNK) {
        let told = chunk.iter().filter(|(_, is_silent)| raise || !is_silent);
        let events: Vec<NewEvent> = told
            .map(|(node, is_silent)| event(node.clone(), *is_silent, now))
            .collect();
        if !events.is_empty() && reports.store().append(events).await.is_err() {
            return;
        }
        for (node, is_silent) in chunk {
            if *is_silent {
                silent.insert(node.clone());
            } else {
                silent.remove(node);
            }
        }
    }
}

fn event(node: NodeName, is_silent: bool, now: Timestamp) -> NewEvent {
    let message = if is_silent {
        "the node's warden-agent has not reported for three intervals: its faults are not known"
    } else {
        "the node's warden-agent reports again"
    };
    own_event(node, AGENT_SILENT, !is_silent, message.to_owned(), now)
}

/// Nodes whose fault is open in the store.
fn open_here(reports: &Reports) -> Result<BTreeSet<NodeName>, event_store::ReadError> {
    let open = reports.store().open_faults_all()?.into_iter();
    Ok(open
        .filter(|fault| fault.id.scope.check_name == AGENT_SILENT)
        .filter_map(|fault| match fault.id.scope.subject {
            Subject::Node(node) => Some(node),
            Subject::Pool(_) | Subject::Cluster => None,
        })
        .collect())
}
