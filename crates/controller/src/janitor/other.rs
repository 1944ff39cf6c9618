//! The reference's janitor in the cluster: whether it runs, and what follows.

use tracing::{error, info, warn};

use super::adopt;
use super::work::Module;

/// Looks again and again. When it appears or goes, every node with an object is looked at anew; what it
/// left begun is taken over.
pub(super) async fn watch(module: &Module) {
    let reference = &module.reference;
    loop {
        if reference.look(&module.context.kube).await {
            let found = reference.found();
            if let (None, Err(error)) = (&found, adopt::adopt_begun(module).await) {
                // Without it, it is not sent by us either; its success alone is not seen.
                warn!(
                    code = error.code(),
                    why = %error,
                    "reboots that another janitor has begun are not followed; they end at their deadlines"
                );
            }
            tell(module, found);
        }
        tokio::time::sleep(reference.pause()).await;
    }
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
