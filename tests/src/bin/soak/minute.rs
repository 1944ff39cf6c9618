//! The controller is away for a minute while 1,000 events arrive at an agent, whose process dies
//! in the middle and once more while it delivers: all arrive once, and in order.

use std::time::{Duration, Instant};

use anyhow::ensure;
use e2e::machine::events;
use e2e::monitor::{GPU_MONITOR, warning};
use e2e::{Controller, ControllerOptions, KernelLog, Machine};
use testbed::{Options, Testbed, wait_for};

use crate::say;

const AWAY: Duration = Duration::from_mins(1);
const EVENTS: u32 = 1_000;
/// How long one event may take to be acknowledged: the agent is started again in between.
const SEND: Duration = Duration::from_secs(30);
/// How long the delivery may take.
const ARRIVE: Duration = Duration::from_mins(2);

/// One run; answers a summary.
///
/// # Errors
/// Something is missing, twice, or in another order.
pub(crate) async fn run() -> anyhow::Result<String> {
    say("a minute without the controller");
    let testbed = Testbed::start(Options::default()).await?;
    let folder = testbed.folder().join("controller");
    let options = ControllerOptions {
        extra: "[lease]\nduration = \"15s\"\n".to_owned(),
        ..ControllerOptions::default()
    };
    let mut controller = Controller::start(&testbed, &folder, &options).await?;
    let mut machine = Machine::join(&testbed, &controller, "minute", KernelLog::Off).await?;
    controller.kill();
    let started = tokio::time::Instant::now();
    let mut sent = Vec::new();
    for number in 0..EVENTS {
        let mut event = warning("GpuMinuteWatch", &number.to_string(), "0");
        event.message = format!("event {number}");
        sent.push(event.message.clone());
        if number == EVENTS / 2 {
            machine.agent.kill();
            machine.agent.spawn()?;
        }
        machine.monitor.send(vec![event], SEND).await?;
        tokio::time::sleep_until(started + AWAY / EVENTS * number).await;
    }
    controller.restart().await?;
    let back = Instant::now();
    // Dies again once the first have arrived.
    let arrived = loop {
        let arrived = events(&controller, "minute").await?.len();
        if arrived > 0 {
            break arrived;
        }
        ensure!(back.elapsed() < ARRIVE, "nothing arrives");
        tokio::time::sleep(Duration::from_millis(2)).await;
    };
    machine.agent.kill();
    machine.agent.spawn()?;
    let stored = wait_for("all events in the store", ARRIVE, || async {
        let stored: Vec<String> = events(&controller, "minute")
            .await?
            .iter()
            .filter(|event| event["agent"] == GPU_MONITOR)
            .map(|event| event["message"].as_str().unwrap_or_default().to_owned())
            .collect();
        ensure!(stored.len() >= sent.len(), "{} are there", stored.len());
        Ok(Some(stored))
    })
    .await?;
    ensure!(
        stored == sent,
        "{} were sent, and {} are stored, some twice or in another order",
        sent.len(),
        stored.len()
    );
    Ok(format!(
        "## A minute without the controller\n\n{EVENTS} events arrived at the agent meanwhile, \
         which was killed in the middle and again when {arrived} had arrived: all are stored once \
         and in order, {:.1} s after the controller was back.\n",
        back.elapsed().as_secs_f64()
    ))
}
