//! The reference's janitor in the cluster: whether it runs, and what follows.

use tracing::{error, info};

use super::work::Module;

/// Looks again and again. When it appears or goes, every node with an object is looked at anew.
pub(super) async fn watch(module: &Module) {
    loop {
        look(module).await;
        tokio::time::sleep(module.reference.pause()).await;
    }
}

async fn look(module: &Module) {
    let reference = &module.reference;
    if !reference.look(&module.context.kube).await {
        return;
    }
    let found = reference.found();
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
