//! Putting the module together.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use decide::connector::Limits;
use health_event::NodeName;
use tokio::sync::Notify;

use super::conditions::{Conditions, MODULE};
use super::events::Follower;
use super::facts;
use super::healthy::Healthy;
use crate::context::Context;
use crate::kubernetes::{Program, Reference};
use crate::lease::Leadership;
use crate::workers::{WorkerEnded, Workers};

/// Why the module ended.
#[derive(Debug, thiserror::Error)]
pub enum ConnectorError {
    /// A worker panicked.
    #[error(transparent)]
    Worker(#[from] WorkerEnded),
    /// The store can't be read at start.
    #[error("the connector can't start: {0}")]
    Read(#[from] event_store::ReadError),
}

impl ConnectorError {
    /// Static name of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Worker(error) => error.code(),
            Self::Read(error) => error.code(),
        }
    }
}

/// Runs the module until the order to stop.
///
/// # Errors
/// [`ConnectorError`]; the process then ends.
pub async fn run(context: Context, leadership: Leadership) -> Result<(), ConnectorError> {
    let config = context.config.connector.clone();
    // Before anything is read: what is stored or seen from now on wakes, and waits in the queue.
    let workers = Workers::new();
    if config.conditions {
        context.wakes.add(&workers);
    }
    let stop = context.stop.clone();
    context.nodes.count_restarts(&context.metrics);
    tokio::select! {
        () = context.nodes.synced() => {}
        () = stop.requested() => return Ok(()),
    }
    let reference = Reference::new(Program::PlatformConnectors);
    reference.look(&context.kube).await;
    let limits = Limits {
        message: config.max_condition_message_length,
        compact: config.compacted_message_length,
    };
    let healthy = Healthy::of(&context.store, &context.config.ingest.retired_checks)?;
    let more = Arc::new(Notify::new());
    let told = Arc::clone(&more);
    context.store.on_commit(Box::new(move |commit| {
        if commit.first_seq <= commit.last_seq {
            told.notify_one();
        }
    }));
    let follower = Follower::new(
        context.clone(),
        leadership.clone(),
        limits,
        healthy.clone(),
        workers.clone(),
        more,
    );
    let steps = Arc::clone(&follower.more_steps);
    context.store.on_commit(Box::new(move |commit| {
        if commit.transitions {
            steps.notify_one();
        }
    }));
    let conditions = Arc::new(Conditions {
        context: context.clone(),
        leadership,
        limits,
        healthy,
        reference: reference.clone(),
        reference_types: facts::reference_types(),
        workers: workers.clone(),
        writes: Mutex::new(HashMap::new()),
        standing_back: Mutex::new(HashMap::new()),
    });
    if config.conditions {
        for node in context.nodes.names() {
            workers.wake(&node);
        }
    }
    let work = move |node: NodeName| {
        let conditions = Arc::clone(&conditions);
        async move { conditions.work(&node).await }
    };
    tokio::select! {
        () = stop.requested() => Ok(()),
        ended = workers.run(config.workers, MODULE, work) => Err(ended.into()),
        () = follower.run() => Ok(()),
        () = follower.run_steps(), if config.events => Ok(()),
        () = follower.run_looks(), if config.events => Ok(()),
        () = follow(&reference, &context, &workers) => Ok(()),
    }
}

/// Looks again and again; what of it is ours to write is decided anew whenever the reference comes or
/// goes.
async fn follow(reference: &Reference, context: &Context, workers: &Workers) {
    loop {
        tokio::time::sleep(reference.pause()).await;
        if reference.look(&context.kube).await && context.config.connector.conditions {
            for node in context.nodes.names() {
                workers.wake(&node);
            }
        }
    }
}
