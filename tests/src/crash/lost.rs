//! Events that never get to the store: one that the controller refuses, and those of a spool that is
//! damaged. Each is told, once; nothing else goes with them.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use rusqlite::{Connection, OpenFlags};
use serde_json::Value;
use testbed::wait_for;

use super::rare::died;
use super::sent::Sent;
use super::{Crash, DISTINCT, Lane, Outcome, Victim, When, out_and_back};
use crate::machine::SOON;
use crate::monitor::warning;
use crate::{KernelLog, Machine};

/// Bytes of a message that takes several pages.
const LONG: usize = 12_000;
/// Bytes of a page of the spool.
const PAGE: usize = 4_096;

impl Lane<'_> {
    /// The controller comes back, finds one bad event among those that the agent holds for it, and
    /// someone dies. The bad one is in `refused/` with one gap record; all others are stored.
    ///
    /// # Errors
    /// As [`Lane::run`].
    pub async fn run_refused(&mut self, crash: Crash) -> anyhow::Result<Outcome> {
        let mut machine = self.machine(KernelLog::Off).await?;
        self.controller.stop()?;
        let mut sent = Sent::new(machine.monitor.clone());
        sent.some().await?;
        machine.agent.stop()?;
        let bad = spoil(&machine.agent.state().join("spool.db"))?;
        let all = sent.list.len();
        sent.list.retain(|(_, message)| *message != bad);
        ensure!(sent.list.len() + 1 == all, "{bad:?} is no message of one");
        let started = Instant::now();
        let run = async {
            match (crash.victim, crash.when) {
                (Victim::Controller, When::At(point)) => {
                    self.arm(crash.victim, &mut machine, point).await?;
                }
                (Victim::Agent, When::At(point)) => {
                    let flags = vec!["--crash-at".to_owned(), point.to_owned()];
                    machine.agent.set_flags(flags);
                    self.controller.restart().await?;
                }
                (Victim::Controller | Victim::Agent, When::After(_)) => {
                    self.controller.restart().await?;
                }
            }
            machine.agent.spawn()?;
            self.die(crash, &mut machine).await?;
            // Whether the bad one was still on its way.
            let amid = refused(&machine)?.is_empty();
            self.start_again(crash.victim, &mut machine).await?;
            let client = self.testbed.admin();
            out_and_back(&client, &machine.name, &mut sent).await?;
            self.check(&machine, &sent).await?;
            let aside = refused(&machine)?;
            ensure!(
                aside.len() == 1 && aside[0].contains(&bad) && aside[0].contains("checkName"),
                "{bad:?} is to be put aside, and these are: {aside:#?}"
            );
            self.told_lost(&machine, "refused", 1).await?;
            anyhow::Ok(Outcome {
                acknowledged: sent.list.len(),
                retries: sent.retries,
                amid,
                took: started.elapsed(),
            })
        };
        let outcome = run.await;
        self.over(crash, &mut machine, outcome).await
    }

    /// The disk damages a spool full of events, and the agent dies at the point while it puts the
    /// file aside. All are told as lost, once, and what is sent from then on arrives.
    ///
    /// # Errors
    /// As [`Lane::run`].
    pub async fn run_damaged(&mut self, point: &str) -> anyhow::Result<()> {
        const EVENTS: u32 = 20;
        let mut machine = self.machine(KernelLog::Off).await?;
        self.controller.stop()?;
        let mut sent = Sent::new(machine.monitor.clone());
        for code in 0..EVENTS {
            let mut event = warning(DISTINCT, &code.to_string(), "0");
            event.message = "m".repeat(LONG);
            sent.send(event).await?;
        }
        sent.list.clear();
        machine.agent.kill();
        damage(&machine.agent.state().join("spool.db"))?;
        let flags = vec!["--crash-at".to_owned(), point.to_owned()];
        machine.agent.set_flags(flags);
        machine.agent.spawn()?;
        died(&mut machine, point).await?;
        machine.agent.set_flags(Vec::new());
        machine.agent.spawn()?;
        self.controller.restart().await?;
        machine.settled(&self.controller).await?;
        sent.some().await?;
        out_and_back(&self.testbed.admin(), &machine.name, &mut sent).await?;
        self.check(&machine, &sent).await?;
        self.told_lost(&machine, "spool", EVENTS.into()).await
    }

    /// The spool's files are removed while the agent runs, and it dies at the point while it writes
    /// anew what they held. With a copy that is whole nothing is lost, though the controller has
    /// nothing of it yet. Before that only what the controller has is left, and one gap record tells
    /// that there may have been more.
    ///
    /// # Errors
    /// As [`Lane::run`].
    pub async fn run_removed(&mut self, point: &str) -> anyhow::Result<()> {
        let is_whole = !point.ends_with("before");
        let mut machine = self.machine(KernelLog::Off).await?;
        machine.agent.stop()?;
        let flags = vec!["--crash-at".to_owned(), point.to_owned()];
        machine.agent.set_flags(flags);
        machine.agent.spawn()?;
        let mut sent = Sent::new(machine.monitor.clone());
        if is_whole {
            self.controller.stop()?;
        }
        sent.some().await?;
        let state = machine.agent.state();
        if !is_whole {
            empty(&state.join("spool.db")).await?;
        }
        for name in ["spool.db", "spool.db-wal", "spool.db-shm"] {
            fs::remove_file(state.join(name)).with_context(|| format!("removing {name}"))?;
        }
        let writer = tokio::spawn(async move {
            sent.some().await?;
            anyhow::Ok(sent)
        });
        died(&mut machine, point).await?;
        machine.agent.set_flags(Vec::new());
        machine.agent.spawn()?;
        let mut sent = writer.await.context("the client panicked")??;
        if is_whole {
            self.controller.restart().await?;
        }
        machine.settled(&self.controller).await?;
        out_and_back(&self.testbed.admin(), &machine.name, &mut sent).await?;
        self.check(&machine, &sent).await?;
        let want = usize::from(!is_whole);
        let told = wait_for("what may be lost to be told", SOON, || async {
            let gaps = self.gaps(&machine.name).await?;
            ensure!(gaps.len() >= want, "nothing is told");
            Ok(Some(gaps))
        });
        let told = told.await.with_context(|| machine.agent.log_tail())?;
        let unknown = |gap: &Value| {
            let message = gap["message"].as_str().unwrap_or_default();
            message.starts_with("An unknown number of events lost from the spool")
        };
        ensure!(told.len() == want && told.iter().all(unknown), "{told:#?}");
        Ok(())
    }

    /// One gap record of this source tells of so many, and there is no other.
    async fn told_lost(&self, machine: &Machine, source: &str, count: u64) -> anyhow::Result<()> {
        let node = &machine.name;
        let what = format!("{count} events lost from the {source} to be told");
        let told = wait_for(what, SOON, || async {
            let told = self.lost(node).await?;
            ensure!(told == count, "{told} are told as lost");
            let gaps = self.gaps(node).await?;
            ensure!(
                gaps.len() == 1 && gaps[0]["codes"] == serde_json::json!([source]),
                "{gaps:#?}"
            );
            Ok(Some(()))
        });
        told.await.with_context(|| machine.agent.log_tail())
    }
}

/// Waits until the controller has all that a spool held.
async fn empty(spool: &Path) -> anyhow::Result<()> {
    wait_for("the spool to be empty", SOON, || async {
        let disk = Connection::open_with_flags(spool, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        let left: u64 = disk.query_row("SELECT count(*) FROM events", [], |row| row.get(0))?;
        Ok((left == 0).then_some(()))
    })
    .await
}

/// Makes one event of the spool such that the controller refuses it: as if it were an older one, that
/// allows less than this agent. Answers its message.
fn spoil(spool: &Path) -> anyhow::Result<String> {
    let disk = Connection::open(spool)?;
    let rows: Vec<(i64, Vec<u8>)> = disk
        .prepare("SELECT number, body FROM events ORDER BY number")?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    let events = rows
        .into_iter()
        .filter_map(|(number, body)| Some((number, wire::decode_body(&body).ok()?)));
    let (number, mut event) = events
        .filter(|(_, event)| event.check_name == DISTINCT)
        .nth(5)
        .context("the spool holds no sixth distinct event")?;
    event.check_name.clear();
    let body = wire::encode_body(&event);
    let changed = disk.execute(
        "UPDATE events SET body = ?1 WHERE number = ?2",
        rusqlite::params![body, number],
    )?;
    ensure!(changed == 1, "event {number} is gone");
    Ok(event.message)
}

/// What the agent put aside, whole files.
fn refused(machine: &Machine) -> anyhow::Result<Vec<String>> {
    let folder = machine.agent.state().join("refused");
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let files = fs::read_dir(&folder)?;
    files
        .map(|file| Ok(fs::read_to_string(file?.path())?))
        .collect()
}

/// Overwrites the link to the next page in a page of nothing but message text.
fn damage(spool: &Path) -> anyhow::Result<()> {
    let mut bytes = fs::read(spool)?;
    let of_text = |page: &&mut [u8]| page[4..].iter().all(|byte| *byte == b'm');
    let page = bytes.chunks_exact_mut(PAGE).find(of_text);
    let page = page.context("no page of the spool holds text alone")?;
    page[..4].copy_from_slice(&[0xff; 4]);
    fs::write(spool, bytes).context("damaging the spool")
}
