//! Another fault-quarantine in the cluster: whether one runs, and what follows.

use std::time::Duration;

use event_store::{EventStore, ReadError};
use tokio::time::Instant;
use tracing::{error, info, warn};

use super::startup;
use super::work::Module;
use crate::context::Context;
use crate::kubernetes::Reference;

/// Where it is kept what else takes nodes out: text for people, empty while nothing does.
const OTHER: &str = "quarantine/other";
/// Between two looks for the sake of nodes: a person who copies marks about is no reason for more.
const BETWEEN_HINTS: Duration = Duration::from_secs(1);

/// What else takes nodes out in this cluster, so that the module refuses to act; by the store, for
/// other modules.
///
/// # Errors
/// The store can't be read.
pub fn other(store: &EventStore) -> Result<Option<String>, ReadError> {
    let bytes = store.state_get(OTHER)?.unwrap_or_default();
    let what = String::from_utf8_lossy(&bytes).into_owned();
    Ok((!what.is_empty()).then_some(what))
}

/// The first look. Without an answer nothing is written, and [`watch`] looks again.
pub(super) async fn look(reference: &Reference, context: &Context) {
    if reference.look(&context.kube).await {
        note(reference, context).await;
    }
    looked(reference, context);
}

fn looked(reference: &Reference, context: &Context) {
    let second = reference.looked_at().map_or(0, jiff::Timestamp::as_second);
    context.metrics.other_quarantine_looked_at.set(second);
}

/// Whether one runs does not matter to a module that writes nothing: what was noted is not shown
/// any more.
pub(super) async fn forget(context: &Context) -> Result<(), String> {
    let known = other(&context.store).map_err(|error| error.to_string())?;
    if known.is_some() {
        let put = context.store.state_put(OTHER, Vec::new(), context.fencing);
        put.await.map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Looks again and again, and at once when a node comes to carry the reference's marks, which is what
/// a quarantine that has just begun does first. When one appears or goes, every node is decided about anew.
pub(super) async fn watch(module: &Module) {
    let Module { context, apply, .. } = module;
    let mut to_tell = false;
    let mut hints_from = Instant::now();
    loop {
        let hint = async {
            tokio::time::sleep_until(hints_from).await;
            context.nodes.marked_by_others().await;
        };
        tokio::select! {
            () = tokio::time::sleep(apply.reference.pause()) => {}
            // Somebody took a node out under the reference's names: that it runs is known already,
            // or is looked at now.
            () = hint, if !apply.reference.runs() => {}
        }
        hints_from = Instant::now() + BETWEEN_HINTS;
        to_tell |= apply.reference.look(&context.kube).await;
        looked(&apply.reference, context);
        if !to_tell {
            continue;
        }
        note(&apply.reference, context).await;
        match startup::nodes_to_look_at(context) {
            Ok(nodes) => {
                for node in &nodes {
                    context.wakes.wake(node);
                }
                to_tell = false;
            }
            Err(why) => warn!(%why, "nodes are not decided about anew yet; it is tried again"),
        }
    }
}

/// Tells people: by the API, a metric and the log.
async fn note(reference: &Reference, context: &Context) {
    let what = reference.found().unwrap_or_default();
    context
        .metrics
        .other_quarantine
        .set(i64::from(!what.is_empty()));
    if what.is_empty() {
        info!("no other fault-quarantine runs in the cluster");
    } else {
        error!(
            code = "other_quarantine",
            what,
            "another fault-quarantine runs in the cluster: nodes are neither taken out nor given \
             back by us while it does, since both would write the same marks. Remove it, or scale \
             it to 0 replicas"
        );
    }
    let stored = context
        .store
        .state_put(OTHER, what.into_bytes(), context.fencing);
    if let Err(error) = stored.await {
        warn!(code = error.code(), %error, "what else takes nodes out is not shown by the API");
    }
}
