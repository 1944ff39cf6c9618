//! The reference's janitor in the cluster: whether it runs, and what follows.

use tracing::{error, info};

use super::work::Module;

/// Looks again and again. When it appears or goes, every node with an object is looked at anew.
pub(super) async fn watch(module: &Module) {
    let kube = &module.context.kube;
    module
        .reference
        .watch(kube, |found| tell(module, found))
        .await;
}

fn tell(module: &Module, found: Option<String>) {
    let other = &module.context.metrics.janitor.other;
    other.set(i64::from(found.is_some()));
    if let Some(what) = found {
        error!(
            code = "other_janitor",
            what,
            "another janitor runs in the cluster: no node is rebooted by us while it does, since both \
             would act on the same objects. Remove it, or scale it to 0 replicas"
        );
    } else {
        info!("no other janitor runs in the cluster");
    }
    module.wake_all();
}
