//! Putting the module together.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use decide::drain::Mode;
use health_event::NodeName;
use health_event::incident::{DrainStatus, Incident};
use jiff::Timestamp;
use tokio::sync::mpsc;

use super::apply::{Apply, Order};
use super::work::{MODULE, Module};
use super::{lanes, other, settings, startup};
use crate::backlog::Backlog;
use crate::context::Context;
use crate::kubernetes::{Program, Reference};
use crate::lease::Leadership;
use crate::workers::{WorkerEnded, Workers};

/// Where the turns of drains are kept that waited for the first-action delay.
const BACKLOG: &str = "drain/backlog";
/// Between two looks at drains that a module which is off has still to end.
const SETTLE: Duration = Duration::from_secs(1);

/// Why the module ended.
#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    /// The store can't be read or written at start.
    #[error("drain can't start: {0}")]
    Start(String),
    /// A worker panicked.
    #[error(transparent)]
    Worker(#[from] WorkerEnded),
}

impl DrainError {
    /// Static name of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Start(_) => "drain_start",
            Self::Worker(error) => error.code(),
        }
    }
}

/// Runs the module until the order to stop.
///
/// # Errors
/// [`DrainError`]; the process then ends.
pub async fn run(context: Context, leadership: Leadership) -> Result<(), DrainError> {
    let workers = Workers::new();
    let mode = settings::mode(&context.config.drain);
    if mode != Mode::Off {
        // Before anything is read: what is stored or seen from now on wakes, and waits in the queue.
        context.wakes.add(&workers);
        wake_own_node(&context, &workers);
    }
    if mode != Mode::Off {
        // Their marks tell whether the store was lost.
        tokio::select! {
            () = context.nodes.synced() => {}
            () = context.stop.requested() => return Ok(()),
        }
    }
    let until = startup::first_action_until(&context, Timestamp::now())
        .await
        .map_err(|error| DrainError::Start(error.to_string()))?;
    let apply = Apply {
        kube: context.kube.clone(),
        store: context.store.clone(),
        leadership,
        mode,
        reference: Reference::new(Program::NodeDrainer),
    };
    let policy = settings::policy(&context.config.drain, until);
    let turns = Backlog::load(
        &context.store,
        BACKLOG,
        &context.config.quarantine,
        &workers,
    )
    .map_err(|error| DrainError::Start(error.to_string()))?;
    let (module, orders) = Module::new(context.clone(), apply, policy, workers, turns);
    let module = Arc::new(module);
    let stop = context.stop.clone();
    tokio::select! {
        () = stop.requested() => Ok(()),
        ended = act(&module, orders, until), if mode != Mode::Off => Err(ended.into()),
        () = settle(&module), if mode == Mode::Off => Ok(()),
    }
}

async fn act(
    module: &Arc<Module>,
    orders: mpsc::UnboundedReceiver<Order>,
    until: Option<Timestamp>,
) -> WorkerEnded {
    let Context { config, .. } = &module.context;
    if let Some(until) = until.filter(|until| Timestamp::now() < *until) {
        tracing::warn!(%until, "no drain begins before: drains were just switched on");
    }
    module.wake_all();
    let at_work = Arc::clone(module);
    let work = move |node: NodeName| {
        let module = Arc::clone(&at_work);
        async move { module.work(&node).await }
    };
    let caller = Arc::clone(module);
    let calls = lanes::run(orders, move |order| {
        let module = Arc::clone(&caller);
        async move { module.carry_out(order).await }
    });
    let enforces = settings::mode(&config.drain) == Mode::Enforce;
    let endless = async {
        tokio::select! {
            // Each ends only with the module.
            () = calls => {}
            never = module.context.pods.run(&module.context.kube, &module.workers) => match never {},
            () = other::watch(module), if enforces => {}
            () = begin_by_age(module, until) => {}
        }
        std::future::pending::<Infallible>().await
    };
    tokio::select! {
        ended = module.workers.run(config.drain.workers, MODULE, work) => ended,
        never = endless => match never {},
    }
}

/// At the end of the first-action delay the nodes with the oldest incidents go first.
async fn begin_by_age(module: &Module, until: Option<Timestamp>) {
    if let Some(until) = until {
        let left = Duration::try_from(until.duration_since(Timestamp::now()));
        tokio::time::sleep(left.unwrap_or_default()).await;
        module.wake_all();
    }
    std::future::pending::<()>().await;
}

/// The controller's own node waits for all others: whenever an incident changed, it looks again.
fn wake_own_node(context: &Context, workers: &Workers) {
    let Some(own) = context.config.kubernetes.node_name.clone() else {
        return;
    };
    let workers = workers.clone();
    context.store.on_commit(Box::new(move |commit| {
        if commit.transitions && !commit.nodes.contains(&own) {
            workers.wake(&own);
        }
    }));
}

/// The module is off: what runs is ended, once the quarantine is at rest.
async fn settle(module: &Module) {
    loop {
        let open = module.context.store.open_incidents().unwrap_or_default();
        let left = open.into_iter().filter(is_unfinished);
        let left: Vec<NodeName> = left.map(|incident| incident.node).collect();
        if left.is_empty() {
            return std::future::pending().await;
        }
        for node in &left {
            module.work(node).await;
        }
        tokio::time::sleep(SETTLE).await;
    }
}

fn is_unfinished(incident: &Incident) -> bool {
    let drain = incident.drain.as_ref().map(|drain| &drain.status);
    matches!(
        drain,
        Some(DrainStatus::Waiting(_) | DrainStatus::Draining(_) | DrainStatus::Failed(_))
    )
}
