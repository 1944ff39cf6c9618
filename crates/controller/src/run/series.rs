//! The series of `/metrics` of nodes that are gone.
//!
//! They go at the second look in a row at which the node is neither there nor has an open incident:
//! a scraper sees once more how it ended. What is counted of it later goes the same way.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use event_store::ReadError;
use health_event::NodeName;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::context::Context;

/// Between two looks: as long as scrapers commonly take from one page to the next.
const LOOK: Duration = Duration::from_secs(15);

/// Runs until the future is dropped.
///
/// # Errors
/// The store can't be read; the process then ends.
pub(super) async fn forget_gone(context: Context) -> Result<Infallible, ReadError> {
    context.nodes.synced().await;
    let mut looks = interval_at(Instant::now() + LOOK, LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut gone = BTreeSet::new();
    loop {
        looks.tick().await;
        gone = look(&context, &gone)?;
    }
}

/// Takes away the series of nodes that were gone at the last look, and are still; answers with all
/// that are gone now.
fn look(context: &Context, gone_before: &BTreeSet<String>) -> Result<BTreeSet<String>, ReadError> {
    let mut gone = BTreeSet::new();
    for node in context.metrics.nodes() {
        // The empty name is of objects that name no node.
        let Ok(name) = NodeName::new(&node) else {
            continue;
        };
        if context.nodes.get(&name).is_some() || !context.store.open_incidents_of(&name)?.is_empty()
        {
            continue;
        }
        if gone_before.contains(&node) {
            context.metrics.forget(&node);
        } else {
            gone.insert(node);
        }
    }
    Ok(gone)
}
