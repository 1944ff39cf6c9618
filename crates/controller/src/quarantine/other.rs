//! Another fault-quarantine in the cluster: whether one runs, and what follows.

use event_store::{EventStore, ReadError};
use tracing::{error, info, warn};

use super::startup;
use super::work::Module;
use crate::context::Context;
use crate::kubernetes::Reference;

/// Where it is kept what else takes nodes out: text for people, empty while nothing does.
const OTHER: &str = "quarantine/other";

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

/// Looks again and again. When one appears or goes, every node is decided about anew.
pub(super) async fn watch(module: &Module) {
    let Module { context, apply, .. } = module;
    let mut to_tell = false;
    loop {
        tokio::time::sleep(apply.reference.pause()).await;
        to_tell |= apply.reference.look(&context.kube).await;
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
