//! Puts the parts together and takes them down again.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::unbounded_channel;

use crate::config::{Config, Source};
use crate::core::Core;
use crate::detectors::Detectors;
use crate::ids::Identity;
use crate::link::Link;
use crate::socket::Socket;
use crate::spool::{Spool, SpoolError};
use crate::status::Status;
use crate::{admin, delivery, kernel_log};

/// How long a stop waits for events on their way to the controller; what is left is on disk.
const STOP: Duration = Duration::from_secs(2);

/// Why the agent can't run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The spool.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// Signals.
    #[error("signals can't be waited for: {0}")]
    Signal(std::io::Error),
    /// A long-lived part ended, which none does by itself.
    #[error("{0} ended by itself; the log says why. The agent has to be started anew")]
    Ended(&'static str),
}

impl RunError {
    /// Static name.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Spool(error) => error.code(),
            Self::Signal(_) => "signal",
            Self::Ended(_) => "part_ended",
        }
    }
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// [`RunError`] if the agent can't start, or a part of it ends.
pub async fn run(config: Config) -> Result<(), RunError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(RunError::Signal)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(RunError::Signal)?;
    let identity = Identity::observe(&config);
    let (done, mut outcomes) = unbounded_channel();
    let (spool, thread, stored) = Spool::open(&config.state_dir, config.spool_bytes, done)?;
    let detectors = Detectors::new(config.kernel_log.source != Source::Off);
    tracing::info!(node = %identity.node, boot = %identity.boot, machine = identity.machine,
        spool = stored.id, fresh = stored.fresh, faults = stored.faults.len(),
        stand_ins = ?config.stand_ins(), "agent starts");
    let untold = stored.untold.clone();
    let core = Arc::new(Core::new(identity, spool, stored, detectors));
    for (id, gap) in untold {
        core.tell_gap(Some(id), &gap);
    }
    let status = Arc::new(Status::default());

    let mut tasks = tokio::task::JoinSet::new();
    let settle = Arc::clone(&core);
    tasks.spawn(async move {
        while let Some(outcome) = outcomes.recv().await {
            settle.done(outcome);
        }
        "the spool's thread"
    });
    let retries = Arc::clone(&core);
    tasks.spawn(async move {
        retries.run_retries().await;
        "the spool's repeats"
    });
    if config.kernel_log.source == Source::Off {
        core.pass_done();
    } else {
        let reader = kernel_log::run(
            Arc::clone(&core),
            config.kernel_log.clone(),
            config.stand_ins(),
        );
        tasks.spawn(async move {
            reader.await;
            "the kernel log's reader"
        });
    }
    let (stop_socket, stopped) = tokio::sync::oneshot::channel::<()>();
    if let Some(path) = config.socket.clone() {
        let socket = Socket::new(
            Arc::clone(&core),
            Arc::clone(&status),
            config.socket_uids.clone(),
            config.kernel_log.source != Source::Off,
        );
        tasks.spawn(async move {
            // Told to stop, or the sender is gone: the same.
            let stop = async { drop(stopped.await) };
            if let Err(error) = socket.serve(&path, stop).await {
                tracing::error!(%error, code = error.code(), "socket not served");
            }
            "the socket"
        });
    }
    if let Some(address) = config.admin {
        let page = admin::run(
            address,
            Arc::clone(&core),
            Arc::clone(&status),
            config.stand_ins(),
        );
        tasks.spawn(async move {
            if let Err(error) = page.await {
                tracing::error!(%error, %address, "admin page not served");
            }
            "the admin page"
        });
    }
    if let Some(controller) = config.controller.clone() {
        let link = Arc::new(Link::new(controller));
        let sender = delivery::run(Arc::clone(&core), link, Arc::clone(&status));
        tasks.spawn(async move {
            sender.await;
            "delivery"
        });
    }

    let ended = tokio::select! {
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
        ended = tasks.join_next() => Some(ended.and_then(Result::ok).unwrap_or("a part")),
    };
    // The socket first: what it took is then flushed with the rest.
    drop(stop_socket);
    stop(&core, &status, ended.is_none()).await;
    tasks.shutdown().await;
    thread.close();
    ended.map_or(Ok(()), |part| Err(RunError::Ended(part)))
}

/// Lets what is under way arrive, and saves the position.
async fn stop(core: &Core, status: &Status, graceful: bool) {
    core.flush();
    if !graceful || !status.shown().connected {
        return;
    }
    tracing::info!("agent stops");
    if tokio::time::timeout(STOP, core.delivered()).await.is_err() {
        tracing::info!("events that the controller did not take yet stay on disk");
    }
}
