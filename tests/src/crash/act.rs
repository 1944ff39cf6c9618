//! A story and a crash side by side.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use testbed::wait_for;
use tokio::sync::{Mutex, Notify};

use super::{Crash, Lane, Moment, Victim, When};
use crate::machine::SOON;
use crate::{Controller, Machine, http};

/// Between two looks at the victim.
const LOOK: Duration = Duration::from_millis(10);

/// Where a story and its crash meet.
#[derive(Debug, Default)]
pub(super) struct Cue {
    turn: Notify,
    armed: Notify,
    over: AtomicBool,
}

impl Cue {
    /// The story has come to its turn; goes on when whoever dies there is armed.
    pub(super) async fn turn(&self) {
        self.turn.notify_one();
        self.armed.notified().await;
    }
}

/// A person at the controller's API, who tries again while it is away.
#[derive(Debug, Clone)]
pub(super) struct Person {
    api: SocketAddr,
    token: PathBuf,
}

impl Person {
    pub(super) fn of(controller: &Controller) -> Self {
        Self {
            api: controller.api,
            token: controller.store().join("api-token"),
        }
    }

    fn token(&self) -> anyhow::Result<String> {
        let text = std::fs::read_to_string(&self.token);
        let text = text.with_context(|| format!("reading {}", self.token.display()))?;
        Ok(text.trim().to_owned())
    }

    pub(super) async fn json(&self, path: &str) -> anyhow::Result<Value> {
        http::get_json(self.api, path, &self.token()?).await
    }

    /// The newest incident's state; empty if there was none.
    async fn state(&self, node: &str) -> anyhow::Result<String> {
        let shown = self.json(&format!("/api/v1/nodes/{node}")).await?;
        let state = shown["incidents"][0]["state"].as_str();
        Ok(state.unwrap_or_default().to_owned())
    }

    /// Waits until the newest incident is in this state.
    pub(super) async fn sees(&self, node: &str, state: &str) -> anyhow::Result<()> {
        let what = format!("node {node} to be {state}");
        wait_for(what, SOON, || async {
            let is = self.state(node).await?;
            ensure!(is == state, "it is {is:?}");
            Ok(Some(()))
        })
        .await
    }

    /// Asks, again and again while the newest incident is in state `from`, until it is in state
    /// `to`.
    pub(super) async fn asks(
        &self,
        path: &str,
        node: &str,
        from: &str,
        to: &str,
    ) -> anyhow::Result<()> {
        let what = format!("node {node} to be {to} after {path}");
        wait_for(what, SOON, || async {
            let is = self.state(node).await?;
            if is == to {
                return Ok(Some(()));
            }
            if is == from {
                let body = if path.ends_with("/hold") {
                    serde_json::json!({ "reason": "a person of the crash run" })
                } else {
                    serde_json::json!({})
                };
                let (status, answer) = http::post(self.api, path, &self.token()?, &body).await?;
                anyhow::bail!("{status} {answer}");
            }
            anyhow::bail!("it is {is:?}")
        })
        .await
    }
}

impl Lane<'_> {
    /// Lets `story` and the crash happen side by side. `machines` are those of the story; the first
    /// has the agent that dies. Answers what the story does, and whether it was under way when the
    /// victim died.
    pub(super) async fn side_by_side<T>(
        &mut self,
        crash: Crash,
        moment: Moment,
        machines: &[Mutex<Machine>],
        cue: &Cue,
        story: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<(T, bool)> {
        let story = async {
            let told = story.await;
            cue.over.store(true, Ordering::SeqCst);
            told
        };
        let strike = async {
            match crash.when {
                When::After(time) => {
                    cue.armed.notify_one();
                    tokio::time::sleep(time).await;
                    match crash.victim {
                        Victim::Agent => machines[0].lock().await.agent.kill(),
                        Victim::Controller => self.controller.kill(),
                    }
                }
                When::At(point) => {
                    if moment == Moment::Turn {
                        cue.turn.notified().await;
                    }
                    self.arm(crash.victim, &mut *machines[0].lock().await, point)
                        .await?;
                    cue.armed.notify_one();
                    self.until_dead(crash.victim, &machines[0], cue).await?;
                }
            }
            let amid = !cue.over.load(Ordering::SeqCst);
            match crash.victim {
                Victim::Agent => {
                    let mut machine = machines[0].lock().await;
                    machine.agent.set_flags(Vec::new());
                    machine.agent.revive()?;
                }
                Victim::Controller => self.controller.restart().await?,
            }
            anyhow::Ok(amid)
        };
        let (told, amid) = tokio::try_join!(story, strike)?;
        Ok((told, amid))
    }

    async fn until_dead(
        &mut self,
        victim: Victim,
        machine: &Mutex<Machine>,
        cue: &Cue,
    ) -> anyhow::Result<()> {
        loop {
            // Looked at before the process: what the story's end brings about may be its death.
            let over = cue.over.load(Ordering::SeqCst);
            let runs = match victim {
                // A reboot has the lock meanwhile, and is no crash.
                Victim::Agent => machine.lock().await.agent.is_running(),
                Victim::Controller => self.controller.is_running(),
            };
            if !runs {
                return Ok(());
            }
            ensure!(!over, "it never came to this point");
            tokio::time::sleep(LOOK).await;
        }
    }
}
