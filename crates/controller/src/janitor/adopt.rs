//! What another process began, where our store does not know it: the reference's janitor, or ours before
//! the store was lost. Whether its signal was sent nobody knows, so it is never sent again.

use event_store::{EventStore, WriteError};
use jiff::Timestamp;
use k8s_api::names;
use k8s_api::reboot_node::RebootNode;
use tracing::warn;

use super::facts;
use super::intents::StoredIntent;
use super::work::{Module, TurnError};

/// Where it is kept since when the store knows of every signal: not there in a new store, while another
/// janitor runs, and where others led with another store.
const SINCE: &str = "janitor/since";

/// Another janitor runs: from now on the store does not know of every signal.
pub(super) async fn forget(module: &Module) -> Result<(), TurnError> {
    let context = &module.context;
    Ok(knows_no_signal(&context.store, context.fencing).await?)
}

/// Notes that the store does not know of every signal.
///
/// # Errors
/// It can't be stored.
pub async fn knows_no_signal(store: &EventStore, fencing: u64) -> Result<(), WriteError> {
    store.state_delete(SINCE, fencing).await
}

/// Takes over what was begun; where the store does not know of every signal also what holds a lock: its
/// signal may be out although nothing says so yet.
pub(super) async fn adopt(module: &Module) -> Result<(), TurnError> {
    let context = &module.context;
    let is_new = context.store.state_get(SINCE)?.is_none();
    let now = Timestamp::now();
    for object in context.reboots.all() {
        let held = is_new && module.locks.is_held_by(&object.metadata.uid);
        let begun = held || facts::has_begun(&object);
        let uid = &object.metadata.uid;
        if object.is_over() || !begun || module.intent(uid).is_some() {
            continue;
        }
        take_over(module, &object, now).await?;
    }
    if is_new {
        let value = now.to_string().into_bytes();
        let fencing = context.fencing;
        context.store.state_put(SINCE, value, fencing).await?;
    }
    Ok(())
}

/// What may have been sent for an object is only watched from now on.
pub(super) async fn take_over(
    module: &Module,
    object: &RebootNode,
    now: Timestamp,
) -> Result<(), WriteError> {
    let at = object.status.start_time.unwrap_or(now);
    let boot_before = object.metadata.annotations.get(names::BOOT_BEFORE.text);
    let intent = StoredIntent {
        uid: object.metadata.uid.clone(),
        object: object.metadata.name.clone(),
        node: object.spec.node_name.clone(),
        machine: module.machine_of(&object.spec.node_name),
        manual: false,
        // Remediation's objects tell it; for others only their deadline is left.
        boot_before: boot_before.cloned().unwrap_or_default(),
        at,
        deadline: decide::janitor::deadline_of(at, &module.policy),
    };
    warn!(
        code = "reboot_adopted",
        object = object.metadata.name,
        node = object.spec.node_name,
        "a RebootNode was begun by another janitor, or before the store was lost: its signal may \
         have been sent, so it is not sent by us; it ends at its deadline unless its provider and \
         node say more"
    );
    store(module, intent).await
}

async fn store(module: &Module, intent: StoredIntent) -> Result<(), WriteError> {
    let context = &module.context;
    let put = context
        .store
        .state_put(&intent.key(), intent.render(), context.fencing);
    put.await?;
    module.intents().insert(intent.uid.clone(), intent);
    Ok(())
}
