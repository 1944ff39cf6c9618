//! Putting the module together.

use std::sync::Arc;
use std::time::Duration;

use decide::remediation::Mode;
use event_store::{ReadError, WriteError};
use health_event::NodeName;
use health_event::incident::Incident;
use jiff::Timestamp;

use super::work::Module;
use super::{MODULE, attempts, settings};
use crate::backlog::Backlog;
use crate::context::Context;
use crate::kubernetes::{Program, Reference};
use crate::lease::Leadership;
use crate::quarantine::is_lost_store;
use crate::workers::{WorkerEnded, Workers};

/// Since when the module may act, for the delay of the first repair.
const ACTS_SINCE: &str = "remediation/acts-since";
/// Where the turns of repairs are kept that waited for the first-action delay.
const BACKLOG: &str = "remediation/backlog";
/// Between sweeps of old attempts.
const SWEEP: Duration = Duration::from_hours(1);

/// Why the module ended.
#[derive(Debug, thiserror::Error)]
pub enum RemediationError {
    /// The store can't be read at start.
    #[error("remediation can't start: {0}")]
    Read(#[from] ReadError),
    /// The store can't be written at start.
    #[error("remediation can't start: {0}")]
    Write(#[from] WriteError),
    /// A worker panicked.
    #[error(transparent)]
    Worker(#[from] WorkerEnded),
}

impl RemediationError {
    /// Static name of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Read(error) => error.code(),
            Self::Write(error) => error.code(),
            Self::Worker(error) => error.code(),
        }
    }
}

/// Runs the module until the order to stop. Switched off it follows what is ordered to its end.
///
/// # Errors
/// [`RemediationError`]; the process then ends.
pub fn run(
    context: Context,
    leadership: Leadership,
) -> impl Future<Output = Result<(), RemediationError>> {
    let workers = Workers::new();
    let rests = rests(&context);
    if !rests {
        // Before anything is read: what is stored or seen from now on wakes, and waits in the queue.
        context.wakes.add(&workers);
    }
    async move {
        if rests {
            context.stop.requested().await;
            return Ok(());
        }
        serve(context, leadership, workers).await
    }
}

/// Whether there is nothing to do for as long as the process runs: it is switched off, and nothing
/// that was ordered is under way.
fn rests(context: &Context) -> bool {
    let under_way = |incident: &Incident| {
        let repair = incident.repair.as_ref();
        repair.is_some_and(|repair| repair.status.is_under_way())
    };
    let open = context.store.open_incidents();
    settings::mode(&context.config.remediation) == Mode::Off
        && open.is_ok_and(|open| !open.iter().any(under_way))
}

async fn serve(
    context: Context,
    leadership: Leadership,
    workers: Workers,
) -> Result<(), RemediationError> {
    let config = context.config.remediation.clone();
    let (stop, now) = (context.stop.clone(), Timestamp::now());
    tokio::select! {
        () = context.nodes.synced() => {}
        () = stop.requested() => return Ok(()),
    }
    let mode = settings::mode(&config);
    let until = first_action_until(&context, mode, now).await?;
    if let Some(until) = until.filter(|until| now < *until) {
        tracing::warn!(%until, "no repair is ordered until then: remediation was just switched on");
    }
    let policy = settings::policy(&context.config, until);
    let window = policy.window;
    let reference = Reference::new(Program::FaultRemediation);
    let turns = Backlog::load(
        &context.store,
        BACKLOG,
        &context.config.quarantine,
        &workers,
    )?;
    let module = Module::new(
        context.clone(),
        leadership,
        reference,
        workers.clone(),
        policy,
        turns,
    );
    let module = Arc::new(module);
    module.wake_all();
    let at_work = Arc::clone(&module);
    let work = move |node: NodeName| {
        let module = Arc::clone(&at_work);
        async move { module.work(&node).await }
    };
    tokio::select! {
        () = stop.requested() => Ok(()),
        ended = workers.run(config.workers, MODULE, work) => Err(ended.into()),
        () = module.watch_reference(), if mode == Mode::Enforce => Ok(()),
        () = sweep(&context, window) => Ok(()),
    }
}

/// Until when no repair is, or was, ordered: for a while after the module was switched on, so that a person
/// sees what would be repaired. None if the delay is off.
async fn first_action_until(
    context: &Context,
    mode: Mode,
    now: Timestamp,
) -> Result<Option<Timestamp>, RemediationError> {
    let Context { store, fencing, .. } = context;
    let known = store.state_get(ACTS_SINCE)?;
    if mode != Mode::Enforce {
        if known.is_some() {
            store.state_delete(ACTS_SINCE, *fencing).await?;
        }
        return Ok(None);
    }
    let known = known.and_then(|bytes| std::str::from_utf8(&bytes).ok()?.parse().ok());
    let since: Timestamp = if let Some(since) = known {
        since
    } else {
        // What the nodes of a lost store are out for was decided about long ago.
        let is_lost = is_lost_store(context);
        let since = if is_lost { Timestamp::UNIX_EPOCH } else { now };
        let text = since.to_string().into_bytes();
        store.state_put(ACTS_SINCE, text, *fencing).await?;
        since
    };
    let delay = settings::signed(context.config.remediation.first_action_delay);
    let until = since.checked_add(delay).unwrap_or(Timestamp::MAX);
    Ok((!delay.is_zero()).then_some(until))
}

async fn sweep(context: &Context, window: jiff::SignedDuration) {
    loop {
        let Context { store, fencing, .. } = context;
        let now = Timestamp::now();
        if let Err(error) = attempts::sweep(store, window, *fencing, now).await {
            tracing::warn!(%error, "attempts of machines that do not count any more are kept");
        }
        tokio::time::sleep(SWEEP).await;
    }
}
