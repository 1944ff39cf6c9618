//! The reference's janitor in the cluster: whether it runs, and what follows.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{error, info, warn};

use super::adopt;
use super::work::{Module, TurnError};

/// How long a program that is scaled down may still go on with what it is in the middle of: the grace of
/// its pods by default.
const GRACE: Duration = Duration::from_secs(30);
/// Between tries to take over.
const AGAIN: Duration = Duration::from_secs(1);

/// Looks again and again. While it runs nothing is begun; once it is gone, what it may have begun is taken
/// over, before anything else is.
pub(super) async fn watch(module: &Module) {
    let reference = &module.reference;
    loop {
        let known = reference.is_known();
        if reference.look(&module.context.kube).await {
            let found = reference.found();
            tell(module, found.as_deref());
            if found.is_some() {
                module.taken_over.store(false, Ordering::Release);
                while let Err(error) = adopt::forget(module).await {
                    again(&error).await;
                }
            } else {
                if known && !module.taken_over.load(Ordering::Acquire) {
                    *module.other_left() = Some(Instant::now());
                }
                while let Err(error) = take_over(module).await {
                    again(&error).await;
                }
                module.taken_over.store(true, Ordering::Release);
            }
            module.wake_all();
        }
        tokio::time::sleep(reference.pause()).await;
    }
}

impl Module {
    /// Whether another janitor went so lately that it may still be in the middle of something: whatever it
    /// then sends it sends under a lock.
    pub(super) fn other_left_lately(&self) -> bool {
        self.other_left().is_some_and(|at| at.elapsed() < GRACE)
    }
}

async fn take_over(module: &Module) -> Result<(), TurnError> {
    module.locks.load(&module.context.kube).await?;
    adopt::adopt(module).await?;
    module.count_under_way();
    Ok(())
}

async fn again(error: &TurnError) {
    warn!(
        code = error.code(),
        why = %error,
        "what another janitor may have begun can't be taken over: no node is rebooted before; tried again"
    );
    tokio::time::sleep(AGAIN).await;
}

fn tell(module: &Module, found: Option<&str>) {
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
}
