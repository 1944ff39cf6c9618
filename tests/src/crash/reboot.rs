//! The story of a kernel line: it takes the node out, the machine reboots, and the node comes back
//! when the agent has settled without the fault.

use std::time::Instant;

use anyhow::{Context as _, ensure};
use health_event::checks;
use jiff::Timestamp;
use serde_json::Value;
use testbed::{Testbed, wait_for};
use tokio::sync::Mutex;

use super::act::{Cue, Person};
use super::sent::Sent;
use super::{Crash, FLICKERING, Lane, Moment, Outcome, check};
use crate::machine::{SOON, events};
use crate::{KernelLog, Machine, nodes};

const LINE: &str = "NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.";
/// What every kernel says after its start.
const OTHER_LINE: &str = "usb 1-1: new high-speed USB device number 2 using xhci_hcd";

impl Lane<'_> {
    /// One run of the story. Beside what [`Lane::run`] proves: the line is one fault, counted once,
    /// however often the agent reads the ring; and it ends by one healthy event of the new boot,
    /// before which nothing is released.
    ///
    /// # Errors
    /// As [`Lane::run`].
    pub async fn run_reboot(&mut self, crash: Crash, moment: Moment) -> anyhow::Result<Outcome> {
        let machine = [Mutex::new(self.machine(KernelLog::Pipe).await?)];
        let (cue, person, testbed) = (Cue::default(), Person::of(&self.controller), self.testbed);
        let started = Instant::now();
        let run = async {
            let story = Box::pin(tell(testbed, &machine[0], &cue, &person));
            let (sent, amid) = self
                .side_by_side(crash, moment, &machine, &cue, story)
                .await?;
            let machine = machine[0].lock().await;
            machine.settled(&self.controller).await?;
            self.check(&machine, &sent).await?;
            self.over_by_reboot(&machine.name).await?;
            anyhow::Ok(Outcome {
                acknowledged: sent.list.len(),
                retries: sent.retries,
                amid,
                took: started.elapsed(),
            })
        };
        let outcome = run.await;
        let mut machine = machine[0].lock().await;
        self.over(crash, &mut machine, outcome).await
    }

    /// What is stored of the line's fault.
    async fn over_by_reboot(&self, node: &str) -> anyhow::Result<()> {
        let all = events(&self.controller, node).await?;
        let said: Vec<&Value> = all.iter().filter(|e| e["check"] == checks::XID).collect();
        let healthy: Vec<bool> = said.iter().map(|event| event["healthy"] == true).collect();
        ensure!(
            healthy == [false, true],
            "of one line and one reboot there are {said:#?}"
        );
        ensure!(
            said[1]["message"] == "Not found again after a reboot",
            "another end: {:#}",
            said[1]
        );
        let path = format!("/api/v1/nodes/{node}/timeline");
        let steps = self.controller.json(&path).await?;
        let steps = steps.as_array().context("a timeline is a list")?;
        let release = steps.iter().find(|step| step["to"] == "Releasing");
        let release = release.context("it was never released")?;
        ensure!(
            moment(release, "at")? >= moment(said[1], "received_at")?,
            "released before the agent of the new boot had spoken: {steps:#?}"
        );
        Ok(())
    }
}

fn moment(of: &Value, field: &str) -> anyhow::Result<Timestamp> {
    let text = of[field].as_str().with_context(|| format!("no {field}"))?;
    Ok(text.parse()?)
}

async fn tell(
    testbed: &Testbed,
    machine: &Mutex<Machine>,
    cue: &Cue,
    person: &Person,
) -> anyhow::Result<Sent> {
    let (name, monitor) = {
        let machine = machine.lock().await;
        (machine.name.clone(), machine.monitor.clone())
    };
    let client = testbed.admin();
    let mut sent = Sent::new(monitor);
    sent.some().await?;
    machine.lock().await.agent.kernel_line(LINE)?;
    nodes::wait(&client, &name, "out", SOON, nodes::is_cordoned).await?;
    sent.some().await?;
    let told = || async { Ok(check::counts(&client, &name, FLICKERING).await?.pop()) };
    wait_for("the first flicker to be told", SOON, told).await?;
    let path = format!("/api/v1/nodes/{name}");
    wait_for("the line to be counted once", SOON, || async {
        let shown = person.json(&path).await?;
        let faults = shown["faults"].as_array().context("faults are a list")?;
        let mut of_line = faults.iter().filter(|fault| fault["check"] == checks::XID);
        let counts: Option<&Value> = of_line.next().map(|fault| &fault["count"]);
        ensure!(counts.is_some_and(|count| *count == 1), "{faults:#?}");
        Ok(Some(()))
    })
    .await?;
    cue.turn().await;
    {
        let mut machine = machine.lock().await;
        machine.agent.empty_ring()?;
        machine.restart(testbed).await?;
        machine.agent.kernel_line(OTHER_LINE)?;
    }
    nodes::wait(&client, &name, "back", SOON, |node| {
        !nodes::is_cordoned(node)
    })
    .await?;
    sent.some().await?;
    Ok(sent)
}
