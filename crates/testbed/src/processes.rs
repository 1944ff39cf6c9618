//! The running components of one testbed.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::component::Component;
use crate::process::Process;
use crate::wait_for;

/// A cold start on a busy machine; usually it is 3 s.
const HEALTHY_DEADLINE: Duration = Duration::from_secs(90);
/// What a component gets to end by itself.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// A component found its port taken: starting again with other ports helps.
#[derive(Debug)]
pub(crate) struct PortTaken;

impl fmt::Display for PortTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a port on 127.0.0.1 was taken by another program in the meantime")
    }
}

impl std::error::Error for PortTaken {}

/// What runs, by component. Dropping it kills all.
#[derive(Debug, Default)]
pub(crate) struct Processes(Mutex<BTreeMap<Component, Process>>);

impl Processes {
    /// Starts `component` unless it runs.
    pub(crate) fn start(
        &self,
        component: Component,
        program: &Path,
        flags: &[String],
        folder: &Path,
    ) -> anyhow::Result<()> {
        let mut running = self.lock();
        if running.get_mut(&component).is_some_and(Process::is_running) {
            return Ok(());
        }
        let log = folder.join("log").join(format!("{component}.log"));
        running.insert(component, Process::start(program, flags, folder, &log)?);
        Ok(())
    }

    /// Waits until `check` passes; a process that ends before is an error at once.
    pub(crate) async fn wait_healthy<F, Fut>(
        &self,
        component: Component,
        mut check: F,
    ) -> anyhow::Result<()>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = anyhow::Result<()>>,
    {
        let outcome = wait_for(
            format_args!("{component} to be healthy"),
            HEALTHY_DEADLINE,
            || {
                let look = check();
                async {
                    if let Some(error) = self.error_if_ended(component) {
                        return Ok(Some(Err(error)));
                    }
                    look.await?;
                    Ok(Some(Ok(())))
                }
            },
        )
        .await;
        match outcome {
            Ok(outcome) => outcome,
            Err(error) => Err(match self.lock().get(&component) {
                Some(process) => error.context(format!(
                    "{component} runs but is not healthy; {}",
                    process.log_tail()
                )),
                None => error,
            }),
        }
    }

    fn error_if_ended(&self, component: Component) -> Option<anyhow::Error> {
        let mut running = self.lock();
        let Some(process) = running.get_mut(&component) else {
            return Some(anyhow::anyhow!("{component} was stopped while it started"));
        };
        if process.is_running() {
            return None;
        }
        let log = process.log_tail();
        let text = format!("{component} ended instead of becoming healthy; {log}");
        Some(if log.contains("address already in use") {
            anyhow::Error::new(PortTaken).context(text)
        } else {
            anyhow::anyhow!(text)
        })
    }

    pub(crate) async fn stop(&self, component: Component) {
        let Some(mut process) = self.lock().remove(&component) else {
            return;
        };
        let stopped = tokio::task::spawn_blocking(move || {
            process.terminate();
            process.ended_by(Instant::now() + STOP_DEADLINE);
            // What still runs is killed by the drop of `process` here.
        });
        stopped.await.expect("stopping a process does not panic");
    }

    pub(crate) fn kill(&self, component: Component) {
        let killed = self.lock().remove(&component);
        drop(killed);
    }

    pub(crate) fn id(&self, component: Component) -> Option<u32> {
        self.lock().get(&component).map(Process::id)
    }

    /// A panic elsewhere while it was held leaves the map whole.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Component, Process>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        // All at once, so that none has time to complain about another; then each drop reaps.
        for process in self.lock().values_mut() {
            process.kill();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts a shell in the place of etcd and waits until it is healthy, which it never is.
    async fn start_error(script: &str) -> anyhow::Error {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("log")).unwrap();
        let processes = Processes::default();
        let flags = ["-c".to_owned(), script.to_owned()];
        processes
            .start(Component::Etcd, Path::new("/bin/sh"), &flags, folder.path())
            .unwrap();
        processes
            .wait_healthy(Component::Etcd, || async { anyhow::bail!("not yet") })
            .await
            .unwrap_err()
    }

    #[tokio::test]
    async fn program_that_ends_at_the_start_is_an_error_with_its_last_words() {
        let error = start_error("echo no disk >&2").await;
        assert!(!error.is::<PortTaken>());
        let text = error.to_string();
        assert!(text.starts_with("etcd ended"), "{text}");
        assert!(text.ends_with("no disk"), "{text}");
    }

    #[tokio::test]
    async fn program_that_found_its_port_taken_says_so_in_a_way_that_a_retry_sees() {
        let error = start_error("echo bind: address already in use >&2").await;
        assert!(error.is::<PortTaken>(), "{error:#}");
    }
}
