//! What the store stands on, looked at while nobody writes too.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use event_store::{EventStore, WriteError};
use telemetry::{ControllerMetrics, Subsystem};
use tracing::{info, warn};

use super::tasks::Tasks;
use crate::stop::Stop;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// Shows that the store takes events in, or why it does not. A store that takes nothing any more
/// ends the process: started anew it opens what lies there then.
pub(super) fn watch(
    store: &EventStore,
    shown: Subsystem,
    metrics: &Arc<ControllerMetrics>,
    stop: &Stop,
    tasks: &mut Tasks,
) {
    let (store, metrics) = (store.clone(), Arc::clone(metrics));
    let mut refuses = None;
    show(Ok(()), &mut refuses, &shown, &metrics);
    tasks.spawn_endless("store", stop, async move {
        loop {
            let asked = store.clone();
            // A disk may hang: that stops these looks, and no thread that serves.
            let footing = tokio::task::spawn_blocking(move || asked.footing()).await;
            let footing = footing.context("looking at the store")?;
            if let Err(over) = footing.as_ref()
                && over.is_final()
            {
                shown.not_ready(over.to_string());
                return Err(over.clone().into());
            }
            show(footing, &mut refuses, &shown, &metrics);
            tokio::time::sleep(LOOK).await;
        }
    });
}

/// `refuses`: the code of what was told last.
fn show(
    footing: Result<(), WriteError>,
    refuses: &mut Option<&'static str>,
    shown: &Subsystem,
    metrics: &ControllerMetrics,
) {
    metrics.store_refuses.set(footing.is_err().into());
    match footing {
        Ok(()) => {
            shown.ready();
            if refuses.take().is_some() {
                info!(
                    code = "store_takes_events",
                    "the store takes events in again"
                );
            }
        }
        Err(error) => {
            // Reports, incidents and writes to nodes go on.
            shown.limited(error.to_string());
            if refuses.replace(error.code()) != Some(error.code()) {
                warn!(code = error.code(), %error, "the store takes no events in: agents keep theirs");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use telemetry::Readiness;

    use super::*;

    #[test]
    fn what_is_refused_is_shown_until_it_is_over() {
        let (all, metrics) = (Readiness::default(), ControllerMetrics::new());
        let (shown, mut refuses) = (all.subsystem("store"), None);
        let full = |free| WriteError::DiskFull { free, reserve: 9 };
        let failed = WriteError::Storage("disk I/O error".to_owned());
        let steps = [
            (Ok(()), None, "ready"),
            (
                Err(full(3)),
                Some("store_disk_full"),
                "3 bytes free, 9 are kept",
            ),
            (Err(full(2)), Some("store_disk_full"), "2 bytes free"),
            (Err(failed), Some("store_failed"), "disk I/O error"),
            (Ok(()), None, "ready"),
        ];
        for (footing, code, text) in steps {
            let is_refused = footing.is_err();
            show(footing, &mut refuses, &shown, &metrics);
            let (ready, report) = all.report();
            assert!(ready && report.contains(text), "{report}");
            assert_eq!(refuses, code);
            assert_eq!(metrics.store_refuses.get(), i64::from(is_refused));
        }
    }
}
