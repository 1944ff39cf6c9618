//! Every node in a line.

use std::collections::HashMap;

use event_store::{ReadError, StoredFault};
use health_event::checks::{AGENT_CONFLICT, AGENT_MACHINE};
use health_event::incident::Incident;
use health_event::{NodeName, Subject};
use jiff::Timestamp;

use super::faults::is_doubt;
use super::incidents::{is_given_back, is_out, is_withheld, marks_removed};
use super::{agent_word, blocked_by, boots, mode_word, ready, stages};
use crate::api::types;
use crate::context::Context;
use crate::nodes::NodeFacts;

pub(in crate::api) fn node_lines(
    context: &Context,
    now: Timestamp,
) -> Result<Vec<types::NodeLine>, ReadError> {
    let mut faults: HashMap<NodeName, usize> = HashMap::new();
    let mut doubts: HashMap<NodeName, &str> = HashMap::new();
    let all = context.store.open_faults_all()?;
    let fatal = fatal_by_node(&all);
    for fault in all {
        let doubt = [
            (AGENT_CONFLICT, "conflict"),
            (AGENT_MACHINE, "other machine"),
        ];
        let doubt = doubt.iter().find(|(check, _)| is_doubt(&fault.id, check));
        if let Subject::Node(node) = fault.id.scope.subject {
            if let Some((_, word)) = doubt {
                doubts.insert(node.clone(), word);
            }
            *faults.entry(node).or_default() += 1;
        }
    }
    let open = context.store.open_incidents()?;
    let incidents = by_node(&open);
    let mut lines = Vec::new();
    for node in context.nodes.all() {
        let (state, word) = agent_word(context, &node.name, Some(&node), now)?;
        let differ = boots::differ(context, &node, &state, now);
        let agent = match doubts.get(&node.name) {
            Some(doubt) => doubt,
            None if differ.is_some_and(|differ| differ.late) => "other boot",
            None => word,
        };
        let incident = incidents.get(&node.name).copied();
        let fatal = fatal.get(&node.name).copied().unwrap_or_default();
        let kept_by = if fatal > 0 && is_in_service(context, incident) {
            kept_by(context, &node)?
        } else {
            Vec::new()
        };
        lines.push(types::NodeLine {
            name: node.name.to_string(),
            pool: context.nodes.pool_of(&node).to_owned(),
            cordoned: node.is_cordoned(),
            ready: ready(&node),
            open_faults: faults.get(&node.name).copied().unwrap_or_default(),
            state: incident.map(|i| i.quarantine.as_str().to_owned()),
            agent: agent.to_owned(),
            fatal_faults: fatal,
            kept_by,
            given_back: incident.is_some_and(|i| is_given_back(context, i)),
            marks_removed: incident.map_or(0, |i| marks_removed(i, now)),
            drain: incident.and_then(|i| Some(i.drain.as_ref()?.status.as_str().to_owned())),
            repair: incident.and_then(|i| Some(i.repair.as_ref()?.status.as_str().to_owned())),
            needs_person: incident.is_some_and(|i| stages::needs_person(context, i)),
        });
    }
    lines.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(lines)
}

/// Open fatal faults that may have effects, by node.
pub(super) fn fatal_by_node(faults: &[StoredFault]) -> HashMap<NodeName, usize> {
    let mut count = HashMap::new();
    for fault in faults.iter().filter(|fault| fault.fatal) {
        if let Subject::Node(node) = &fault.id.scope.subject {
            *count.entry(node.clone()).or_default() += 1;
        }
    }
    count
}

pub(super) fn by_node(open: &[Incident]) -> HashMap<&NodeName, &Incident> {
    open.iter().map(|i| (&i.node, i)).collect()
}

/// Whether a node is neither out by us nor to be out as soon as its turn comes.
pub(super) fn is_in_service(context: &Context, incident: Option<&Incident>) -> bool {
    !incident.is_some_and(|i| is_out(context, i) || is_withheld(&i.quarantine))
}

/// What keeps Warden from acting on a fault of a node that is in service, as
/// [`types::NodeLine::kept_by`] says it.
fn kept_by(context: &Context, node: &NodeFacts) -> Result<Vec<String>, ReadError> {
    let config = &context.config.quarantine;
    let mut list = blocked_by(context, node, None)?;
    let machine = context.store.machine(node.machine())?;
    if machine.is_some_and(|machine| !machine.holds.is_empty()) {
        list.push("held".to_owned());
    }
    match mode_word(config.enabled, config.dry_run) {
        "enforce" => {}
        word => list.push(word.to_owned()),
    }
    Ok(list)
}
