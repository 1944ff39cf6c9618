//! Putting the module together.

use std::sync::Arc;
use std::time::Duration;

use health_event::NodeName;
use tracing::warn;

use super::work::{MODULE, Module};
use super::{intents, other};
use crate::context::Context;
use crate::lease::Leadership;
use crate::workers::{WorkerEnded, Workers};

/// Between tries to read the locks at the start.
const AGAIN: Duration = Duration::from_secs(1);

/// Why the module ended.
#[derive(Debug, thiserror::Error)]
pub enum JanitorError {
    /// The store can't be read or written at start.
    #[error("janitor can't start: {0}")]
    Start(String),
    /// A worker panicked.
    #[error(transparent)]
    Worker(#[from] WorkerEnded),
}

impl JanitorError {
    /// Static name of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Start(_) => "janitor_start",
            Self::Worker(error) => error.code(),
        }
    }
}

/// Runs the module until the order to stop; switched off it only follows what was sent to its end.
///
/// # Errors
/// [`JanitorError`]; the process then ends.
pub async fn run(context: Context, leadership: Leadership) -> Result<(), JanitorError> {
    // Before anything is read: what is seen from now on wakes, and waits in the queue.
    let workers = Workers::new();
    context.wakes.add(&workers);
    let stop = context.stop.clone();
    let start = |error: &dyn std::fmt::Display| JanitorError::Start(error.to_string());
    let stored = intents::intents(&context.store).map_err(|error| start(&error))?;
    let module = Arc::new(Module::new(context, leadership, workers.clone(), stored));
    tokio::select! {
        () = stop.requested() => return Ok(()),
        () = prepare(&module) => {}
    }
    module.wake_all();
    let at_work = Arc::clone(&module);
    let work = move |node: NodeName| {
        let module = Arc::clone(&at_work);
        async move { module.work(&node).await }
    };
    // One each for the calls to a provider that does not answer, so that no other node waits for it.
    let config = &module.context.config.janitor;
    let count = config.workers + config.max_parallel;
    tokio::select! {
        () = stop.requested() => Ok(()),
        ended = workers.run(count, MODULE, work) => Err(ended.into()),
        () = other::watch(&module) => Ok(()),
        () = module.watch_places() => Ok(()),
    }
}

/// Waits until everything that decides was read.
async fn prepare(module: &Module) {
    let context = &module.context;
    context.nodes.synced().await;
    context.reboots.known().await;
    while let Err(error) = module.locks.load(&context.kube).await {
        warn!(
            code = error.code(),
            why = %error,
            "node locks can't be read: no node is rebooted before; tried again"
        );
        tokio::time::sleep(AGAIN).await;
    }
    module.count_under_way();
}

/// Whether there is anything to do: the module is on, or what it sent has not come to its end.
pub fn is_needed(context: &Context) -> bool {
    // Where they can't be read the module says so at its start.
    let has_sent = intents::intents(&context.store).map_or(true, |found| !found.is_empty());
    context.config.janitor.enabled || has_sent
}
