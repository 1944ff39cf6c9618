//! Putting the module together.

use std::sync::Arc;

use decide::quarantine::Mode;
use health_event::NodeName;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::apply::Apply;
use super::breaker::Breaker;
use super::work::Module;
use super::{asked, marked, other, reload, said, settings, startup};
use crate::context::Context;
use crate::kubernetes::{Program, Reference, WARM};
use crate::lease::Leadership;
use crate::requests::Asked;
use crate::workers::{WorkerEnded, Workers};

/// Nodes are asked for their turn at least this often while some wait.
const LONGEST_WAIT: SignedDuration = SignedDuration::from_secs(30);

/// Between counts of the waiting nodes.
const BACKLOG: std::time::Duration = std::time::Duration::from_secs(30);

/// Why the module ended.
#[derive(Debug, thiserror::Error)]
pub enum QuarantineError {
    /// The rule sets can't be used.
    #[error("the rule sets of quarantine can't be used:\n{0}")]
    Rules(String),
    /// The store can't be read at start.
    #[error("quarantine can't start: {0}")]
    Start(String),
    /// A worker panicked.
    #[error(transparent)]
    Worker(#[from] WorkerEnded),
}

impl QuarantineError {
    /// Static name of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Rules(_) => "bad_rules",
            Self::Start(_) => "quarantine_start",
            Self::Worker(error) => error.code(),
        }
    }
}

/// Runs the module until the order to stop.
///
/// # Errors
/// [`QuarantineError`]; the process then ends.
pub fn run(
    context: Context,
    leadership: Leadership,
    requests: mpsc::Receiver<Asked>,
) -> impl Future<Output = Result<(), QuarantineError>> {
    // Before anything is read, and before the future is polled: what is stored or seen from now on
    // wakes, waits in the queue, and is counted.
    let workers = Workers::new();
    context.wakes.add(&workers);
    let metrics = Arc::clone(&context.metrics);
    context.store.on_commit(Box::new(move |commit| {
        let events = (commit.last_seq + 1).saturating_sub(commit.first_seq);
        metrics.quarantine_events_received.inc_by(events);
    }));
    serve(context, leadership, requests, workers)
}

async fn serve(
    context: Context,
    leadership: Leadership,
    requests: mpsc::Receiver<Asked>,
    workers: Workers,
) -> Result<(), QuarantineError> {
    let config = context.config.quarantine.clone();
    let rules = settings::rule_sets(&config).map_err(|errors| {
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        QuarantineError::Rules(lines.join("\n"))
    })?;
    let stop = context.stop.clone();
    context.nodes.count_restarts(&context.metrics);
    tokio::select! {
        () = context.nodes.synced() => {}
        () = stop.requested() => return Ok(()),
    }
    let now = Timestamp::now();
    let start = |error: &dyn std::fmt::Display| QuarantineError::Start(error.to_string());
    let given_back = startup::given_back(&context, now)
        .await
        .map_err(|e| start(&e))?;
    let until = startup::first_action_until(&context, now)
        .await
        .map_err(|e| start(&e))?;
    if let Some(until) = until {
        tracing::warn!(%until, "matches are withheld until then: quarantine was just switched on");
    }
    let pools: Vec<String> = context.nodes.pool_names().map(str::to_owned).collect();
    let breaker = Breaker::load(&context.store, settings::bounds(&config), &pools, now)
        .map_err(|e| start(&e))?;
    let open = context.store.open_incidents().map_err(|e| start(&e))?;
    said::out_at_start(&context.metrics, &open);
    let first = startup::nodes_to_look_at(&context).map_err(|e| start(&e))?;
    let reference = Reference::new(Program::FaultQuarantine);
    let mode = settings::mode(&config);
    if mode == Mode::Enforce {
        tokio::select! {
            () = other::look(&reference, &context) => {}
            () = stop.requested() => return Ok(()),
        }
    } else {
        other::forget(&context).await.map_err(|e| start(&e))?;
    }
    let apply = Apply {
        kube: context.kube.clone(),
        leadership,
        label_prefix: config.label_prefix.clone(),
        mode,
        reference,
    };
    let policy = settings::policy(&context.config, until);
    marked::count(&context, &breaker, &policy, &first).map_err(|e| start(&e))?;
    let rules = reload::begin(&context, &policy, &breaker, rules)
        .await
        .map_err(|e| start(&e))?;
    let module = Module::new(
        context.clone(),
        apply,
        policy,
        rules,
        breaker,
        workers.clone(),
    );
    let module = Arc::new(module.with_given_back(given_back));
    for node in &first {
        workers.wake(node);
    }
    let at_work = Arc::clone(&module);
    let work = move |node: NodeName| {
        let module = Arc::clone(&at_work);
        async move { module.work(&node).await }
    };
    let asked = async {
        asked::take_in(&module, requests).await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = stop.requested() => Ok(()),
        ended = workers.run(config.workers, super::work::MODULE, work) => Err(ended.into()),
        () = asked => Ok(()),
        () = call_by_turn(&module, &pools) => Ok(()),
        () = keep_warm(&module) => Ok(()),
        () = count_waiting(&module) => Ok(()),
        () = reload::follow(&module) => Ok(()),
        () = other::watch(&module), if mode == Mode::Enforce => Ok(()),
    }
}

/// Keeps a connection open, so that the first fault after a quiet hour needs no handshake.
async fn keep_warm(module: &Module) {
    loop {
        let deadline = Instant::now() + WARM;
        // What fails here fails for the next write too, which says so.
        drop(module.context.kube.keep_warm(deadline).await);
        tokio::time::sleep(WARM).await;
    }
}

/// Counts the nodes that wait for a decision, as often as the reference counts its events.
async fn count_waiting(module: &Module) {
    loop {
        let waiting = i64::try_from(module.workers.backlog()).unwrap_or(i64::MAX);
        module.context.metrics.event_backlog.set(waiting);
        tokio::time::sleep(BACKLOG).await;
    }
}

/// Wakes the waiting nodes whose turn it is.
async fn call_by_turn(module: &Module, pools: &[String]) {
    loop {
        let now = Timestamp::now();
        let mut again = now + LONGEST_WAIT;
        for pool in pools {
            let size = module.context.nodes.pool_size(pool);
            let due = module
                .breaker
                .lock()
                .due(&module.breaker.config, pool, size, now);
            if let Some(node) = due.node {
                module.workers.wake(&node);
            }
            again = again.min(due.again_at.unwrap_or(again));
        }
        module.say_levels(pools);
        let sleep = std::time::Duration::try_from(again.duration_since(Timestamp::now()));
        tokio::select! {
            () = module.breaker.changed.notified() => {}
            () = tokio::time::sleep(sleep.unwrap_or_default()) => {}
        }
    }
}
