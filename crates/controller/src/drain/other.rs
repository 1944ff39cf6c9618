//! Another node-drainer in the cluster: whether one runs, and what follows.

use tracing::{error, info};

use super::work::Module;

/// Looks again and again. When one appears or goes, every node with an incident is decided about anew.
pub(super) async fn watch(module: &Module) {
    let kube = &module.context.kube;
    let reference = &module.apply.reference;
    reference.watch(kube, |found| tell(module, found)).await;
}

fn tell(module: &Module, found: Option<String>) {
    let metrics = &module.context.metrics;
    metrics.other_drainer.set(i64::from(found.is_some()));
    if let Some(what) = found {
        error!(
            code = "other_drainer",
            what,
            "another node-drainer runs in the cluster: no pod is asked to go by us while it does, \
             since both would move the same pods. Remove it, or scale it to 0 replicas"
        );
    } else {
        info!("no other node-drainer runs in the cluster");
    }
    module.wake_all();
}
