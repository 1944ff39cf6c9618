//! What another process began, where our store does not know it: the reference's janitor, or ours before
//! the store was lost. Whether its signal was sent nobody knows, so it is never sent again.

use event_store::WriteError;
use jiff::Timestamp;
use k8s_api::names;
use k8s_api::reboot_node::RebootNode;
use tracing::warn;

use super::facts;
use super::intents::StoredIntent;
use super::work::{Module, TurnError};

/// Where it is kept since when the store knows of every signal.
const SINCE: &str = "janitor/since";

/// Takes over what was begun; in a new store also what holds a lock, for which a signal may have been sent.
pub(super) async fn adopt(module: &Module) -> Result<(), TurnError> {
    let context = &module.context;
    let is_new = context.store.state_get(SINCE)?.is_none();
    take_over(module, |object| {
        let held = is_new && module.locks.is_held_by(&object.metadata.uid);
        held || facts::has_begun(object)
    })
    .await?;
    if is_new {
        let value = Timestamp::now().to_string().into_bytes();
        let fencing = context.fencing;
        context.store.state_put(SINCE, value, fencing).await?;
    }
    Ok(())
}

/// Takes over what another janitor has begun and left.
pub(super) async fn adopt_begun(module: &Module) -> Result<(), TurnError> {
    take_over(module, facts::has_begun).await
}

async fn take_over(
    module: &Module,
    is_begun: impl Fn(&RebootNode) -> bool,
) -> Result<(), TurnError> {
    let now = Timestamp::now();
    for object in module.context.reboots.all() {
        let uid = &object.metadata.uid;
        if object.is_over() || !is_begun(&object) || module.intent(uid).is_some() {
            continue;
        }
        let at = object.status.start_time.unwrap_or(now);
        let boot_before = object.metadata.annotations.get(names::BOOT_BEFORE.text);
        let intent = StoredIntent {
            uid: uid.clone(),
            object: object.metadata.name.clone(),
            node: object.spec.node_name.clone(),
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
        store(module, intent).await?;
    }
    Ok(())
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
