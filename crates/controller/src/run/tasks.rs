//! The long-lived tasks.

use std::time::Duration;

use tokio::task::JoinSet;
use tracing::{debug, error, warn};

use crate::stop::Stop;

/// How long tasks may take to stop in order: below the 30 s that Kubernetes gives a pod.
const PATIENCE: Duration = Duration::from_secs(15);

/// The long-lived tasks of the process.
#[derive(Debug, Default)]
pub(super) struct Tasks(JoinSet<(&'static str, anyhow::Result<()>)>);

impl Tasks {
    /// Starts one.
    pub(super) fn spawn(
        &mut self,
        name: &'static str,
        task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        self.0.spawn(async move { (name, task.await) });
    }

    /// Starts one that has nothing to finish: it is dropped at the order to stop.
    pub(super) fn spawn_endless(
        &mut self,
        name: &'static str,
        stop: &Stop,
        task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        let stop = stop.clone();
        self.spawn(name, async move {
            tokio::select! {
                ended = task => ended,
                () = stop.requested() => Ok(()),
            }
        });
    }

    /// Waits for the first one that ends, which none should.
    pub(super) async fn first_end(&mut self) -> anyhow::Result<()> {
        match self.0.join_next().await {
            None => std::future::pending().await,
            Some(Ok((name, Ok(())))) => Err(anyhow::anyhow!("{name} ended; it never should")),
            Some(Ok((name, Err(cause)))) => Err(cause.context(format!("{name} ended"))),
            Some(Err(panic)) => Err(anyhow::anyhow!("a task panicked: {panic}; this is a bug")),
        }
    }

    /// After the order to stop: waits for those that end by it, then drops the rest.
    pub(super) async fn finish(mut self) {
        let finish = async {
            while let Some(ended) = self.0.join_next().await {
                match ended {
                    Ok((name, Ok(()))) => debug!(task = name, "stopped"),
                    Ok((name, Err(cause))) => error!(task = name, "{cause:#}"),
                    Err(panic) => error!(%panic, "a task panicked"),
                }
            }
        };
        if tokio::time::timeout(PATIENCE, finish).await.is_err() {
            warn!("some tasks did not stop in time; they are dropped");
        }
    }
}
