//! Nodes that carry our marks and whose incident the store does not know: out, and counted as such
//! from the start of a process on, before their turn to be adopted comes.

use decide::breaker::Cause;
use decide::quarantine::{ADOPTED, Policy};
use event_store::ReadError;
use health_event::NodeName;

use super::breaker::Breaker;
use super::facts;
use super::observe::mark_origin;
use super::work::Module;
use crate::context::Context;

/// Counts those among `nodes` for the breaker. Before any turn: else faults of other nodes would take
/// their places in the bound.
pub(super) fn count(
    context: &Context,
    breaker: &Breaker,
    policy: &Policy,
    nodes: &[NodeName],
) -> Result<(), ReadError> {
    let store = &context.store;
    for node in nodes.iter().filter_map(|name| context.nodes.get(name)) {
        if !store.open_incidents_of(&node.name)?.is_empty() {
            continue;
        }
        let pool = context.nodes.pool_of(&node);
        let facts = facts::node_facts(&node, pool, policy, &context.config.quarantine);
        let origin = mark_origin(store, Some(&facts), None)?;
        if decide::quarantine::will_be_adopted(&facts, origin) {
            let cause = Cause {
                rule: ADOPTED.to_owned(),
                check: String::new(),
            };
            breaker.lock().count(pool, &node.name, cause);
        }
    }
    Ok(())
}

impl Module {
    /// A node without an incident that is not adopted is not out, whatever was counted at start.
    pub(super) fn forget_counted(&self, name: &NodeName) {
        if self.breaker.lock().forget_counted(name) {
            self.breaker.changed.notify_one();
        }
    }
}
