//! Agents in another boot than their node objects show.

use std::time::Duration;

use decide::gone::is_of_another;
use decide::remediation::boots_seen;
use event_store::{Machine, ReadError};
use health_event::BootId;
use jiff::Timestamp;

use crate::api::types;
use crate::context::Context;
use crate::nodes::NodeFacts;
use crate::reports::{AgentState, Standing};

/// None where the boots are one, or one of them is not known; nor of an agent that does not report or runs on
/// another machine, of which that is told.
pub(super) fn differ(
    context: &Context,
    node: &NodeFacts,
    agent: &AgentState,
    now: Timestamp,
) -> Option<types::BootsDiffer> {
    let of_node = BootId::new(&node.boot_id);
    let unknown = agent.boot.is_unknown() || of_node.is_unknown();
    if unknown || agent.boot == of_node || is_of_another(&agent.machine, &node.system_uuid) {
        return None;
    }
    let standing = context
        .reports
        .standing(agent, context.nodes.len(), node.created_at, now);
    if !agent.expected || matches!(standing, Standing::Silent(_)) {
        return None;
    }
    let mut differ = types::BootsDiffer {
        agent: agent.boot.to_string(),
        agent_since: agent.process_changed_at,
        node: of_node.to_string(),
        node_since: node.ready_since,
        repair_kept: repair_is_kept(context, node, agent, &of_node).unwrap_or_default(),
        late: false,
    };
    let lasts = differ.since().map(|since| now.duration_since(since));
    let lasts = lasts.and_then(|lasts| Duration::try_from(lasts).ok());
    differ.late = lasts.is_some_and(|lasts| lasts > context.config.quarantine.settle_timeout);
    Some(differ)
}

/// Whether a plan of repair takes the agent's boot for an earlier one.
fn repair_is_kept(
    context: &Context,
    node: &NodeFacts,
    agent: &AgentState,
    of_node: &BootId,
) -> Result<bool, ReadError> {
    let machine = context.store.machine(node.machine())?;
    let open = context.store.open_incidents_of(&node.name)?;
    let mut attempts = open
        .iter()
        .filter_map(|i| i.repair.as_ref()?.attempt.as_ref());
    let new = Machine::default();
    let known = &machine.as_deref().unwrap_or(&new).boots;
    let seen = boots_seen(known, of_node, attempts.next());
    Ok(seen.is_past(&agent.boot))
}
