//! The agent with a stand-in for the controller: how soon a line of the kernel log is decoded, and
//! what a flood of lines does to it.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use e2e::{Agent, KernelLog, ring};
use jiff::Timestamp;

use crate::kmsg::{self, DOMAIN, Unlimited, xid_line};
use crate::process::Usage;
use crate::report::Row;
use crate::standin::{Came, StandIn};
use crate::stats::{Samples, millis, number, rate};

const NODE: &str = "bench-node";
const DEADLINE: Duration = Duration::from_mins(1);
/// Between two lines: longer than a tick of the slowest kernel, and no divisor of it.
const PAUSE: Duration = Duration::from_millis(53);
/// What decoding may take beyond a blocked reader.
const GOAL: Duration = Duration::from_micros(500);
/// Lines of a flood, one in a thousand of which is a fault.
const LINES: usize = 200_000;
const FAULT_EVERY: usize = 1_000;
/// Up to this speed nothing may be lost.
const LOSSLESS: f64 = 100_000.0;
/// How much the resident memory may differ between before and after a flood to be called flat.
const FLAT_KIB: u64 = 1_024;
/// Lines before a flood that touch what a flood touches: those pages are no growth.
const WARM_UP: std::ops::Range<usize> = 1_000_000..1_001_000;
/// Quiet time after which what a flood caused has come.
const QUIET: Duration = Duration::from_secs(2);

async fn start(folder: &Path, log: KernelLog, server: &mut StandIn) -> anyhow::Result<Agent> {
    let agent = Agent::start(folder, NODE, "bench", "boot-1", log, server.address)?;
    let settled = server.settled(DEADLINE).await;
    settled.map_err(|error| error.context(agent.log_tail()))?;
    Ok(agent)
}

/// Line written → decoded, as the agent's own log says, beside a blocked reader of the same lines.
///
/// # Errors
/// Not root, or the agent does not play along.
pub(crate) async fn decoded(scratch: &Path, samples: usize) -> anyhow::Result<Row> {
    let _ring = kmsg::take_ring().await?;
    let mut server = StandIn::start().await?;
    let log = KernelLog::Kmsg("end".to_owned());
    let agent = start(&scratch.join("decoded"), log, &mut server).await?;
    let reader = kmsg::blocked_reader(DOMAIN)?;
    let (mut floor, mut decoded, mut came) = (Vec::new(), Vec::new(), Vec::new());
    for index in 0..samples {
        tokio::time::sleep(PAUSE).await;
        let line = xid_line(index);
        let (wrote, wrote_at) = (Instant::now(), Timestamp::now());
        ring::write(&line)?;
        let at = event_of(&mut server, &format!("bench-{index},")).await?;
        came.push(at - wrote);
        let at = decoded_at(&agent, &kmsg::pci(index)).await?;
        let took = Duration::try_from(at.duration_since(wrote_at));
        decoded.push(took.context("the agent decoded a line before it was written")?);
        let (at, _) = reader
            .recv_timeout(DEADLINE)
            .context("the blocked reader of /dev/kmsg saw nothing")?;
        floor.push(at - wrote);
    }
    drop(agent);
    let samples = |times: Vec<Duration>| times.into_iter().collect::<Samples>();
    let (floor, decoded, came) = (samples(floor), samples(decoded), samples(came));
    let over = |percent| {
        let (floor, decoded) = (floor.percentile(percent), decoded.percentile(percent));
        decoded
            .unwrap_or_default()
            .saturating_sub(floor.unwrap_or_default())
    };
    Ok(Row {
        what: "kernel line → decoded".to_owned(),
        raw: floor.text(&[50, 90, 99]),
        measured: decoded.text(&[50, 90, 99]),
        goal: format!("raw + {} ms at P50, P90", number(millis(GOAL))),
        met: Some(over(50) <= GOAL && over(90) <= GOAL),
        note: format!(
            "raw is a blocked reader of /dev/kmsg in this process; the agent's time is the one \
             that its log gives; received by a stand-in controller over loopback after {}",
            came.text(&[50, 90, 99])
        ),
    })
}

/// When the agent decoded the line about this GPU.
async fn decoded_at(agent: &Agent, pci: &str) -> anyhow::Result<Timestamp> {
    testbed::wait_for("the agent's log to tell of the line", DEADLINE, || async {
        let log = agent.log_tail();
        let told = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            let is_it = line["entities"].as_str()?.contains(pci);
            is_it.then(|| line["decoded_at"].as_str()?.parse().ok())?
        };
        Ok(log.lines().rev().find_map(told))
    })
    .await
}

async fn event_of(server: &mut StandIn, mark: &str) -> anyhow::Result<Instant> {
    loop {
        let came = server.next(DEADLINE, "the event of a line").await?;
        if let Came::Event(at, event) = came
            && event.message.contains(mark)
        {
            return Ok(at);
        }
    }
}

/// What arrived of a flood.
#[derive(Debug, Default)]
struct Arrived {
    faults: usize,
    lost: u64,
}

/// Until nothing came for a while.
async fn arrived(server: &mut StandIn) -> Arrived {
    let mut arrived = Arrived::default();
    while let Ok(came) = server.next(QUIET, "more events").await {
        let Came::Event(_, event) = came else {
            continue;
        };
        if event.message.contains("name=bench-") {
            arrived.faults += 1;
        } else if event.check_name == "EventsLost" {
            let count = event
                .metadata
                .get("count")
                .and_then(|n| n.parse::<u64>().ok());
            arrived.lost += count.unwrap_or_default();
        }
    }
    arrived
}

/// The text of a line of the flood, without its number in the log.
fn flood_line(index: usize) -> String {
    if index.is_multiple_of(FAULT_EVERY) {
        xid_line(index / FAULT_EVERY)
    } else {
        format!("usb 3-2: bench line {index} of a device that was told to reset, again and again")
    }
}

/// A flood through a FIFO, which loses nothing.
///
/// # Errors
/// The agent does not play along.
pub(crate) async fn pipe_flood(scratch: &Path, quick: bool) -> anyhow::Result<Row> {
    let lines = if quick { LINES / 20 } else { LINES };
    let mut server = StandIn::start().await?;
    let agent = start(&scratch.join("pipe"), KernelLog::Pipe, &mut server).await?;
    let began = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let micros = began.tv_sec * 1_000_000 + began.tv_nsec / 1_000;
    let mut pipe = OpenOptions::new().write(true).open(agent.pipe())?;
    let mut sequence = 0;
    let mut write = move |index| {
        sequence += 1;
        let record = format!("3,{sequence},{micros},-;{}\n", flood_line(index));
        Ok(pipe.write_all(record.as_bytes())?)
    };
    WARM_UP.into_iter().try_for_each(&mut write)?;
    self::arrived(&mut server).await;
    let before = Usage::of(agent.id().unwrap_or_default())?;
    let written = tokio::task::spawn_blocking(move || kmsg::flood(lines, None, write));
    let (took, arrived) = futures::join!(written, arrived(&mut server));
    let (took, after) = (took??, Usage::of(agent.id().unwrap_or_default())?);
    let faults = lines.div_ceil(FAULT_EVERY);
    let flat = after.resident_kib().abs_diff(before.resident_kib()) <= FLAT_KIB;
    Ok(Row {
        what: format!(
            "flood of {} lines by a pipe",
            number(crate::stats::float(lines))
        ),
        raw: String::new(),
        measured: format!(
            "{} of {faults} faults, {} lost, RSS {} → {}",
            arrived.faults,
            arrived.lost,
            before.memory(),
            after.memory()
        ),
        goal: "all, none lost, RSS flat".to_owned(),
        met: Some(arrived.faults == faults && arrived.lost == 0 && flat),
        note: format!(
            "{} lines a second, {} of CPU",
            number(rate(lines, took)),
            after.cpu_since(&before)
        ),
    })
}

/// Floods of the kernel's own log: one at the speed up to which nothing may be lost, one as fast
/// as it goes.
///
/// # Errors
/// Not root, or the agent does not play along.
pub(crate) async fn kmsg_floods(scratch: &Path, quick: bool) -> anyhow::Result<Vec<Row>> {
    let _ring = kmsg::take_ring().await?;
    let lines = if quick { LINES / 20 } else { LINES };
    let mut rows = Vec::new();
    for (name, speed) in [("paced", Some(LOSSLESS)), ("full", None)] {
        rows.push(kmsg_flood(&scratch.join(name), lines, speed).await?);
    }
    Ok(rows)
}

async fn kmsg_flood(folder: &Path, lines: usize, speed: Option<f64>) -> anyhow::Result<Row> {
    let mut server = StandIn::start().await?;
    let address = free_address()?;
    let log = KernelLog::Kmsg("end".to_owned());
    let mut agent = Agent::prepare(folder, NODE, "bench", "boot-1", log, server.address)?;
    agent.set_flags(vec!["--admin-listen".to_owned(), address.to_string()]);
    agent.spawn()?;
    server
        .settled(DEADLINE)
        .await
        .map_err(|error| error.context(agent.log_tail()))?;
    let mut log = Unlimited::open()?;
    for index in WARM_UP {
        log.write(&flood_line(index))?;
    }
    self::arrived(&mut server).await;
    let before = Usage::of(agent.id().unwrap_or_default())?;
    let counted = records_read(address).await?;
    let first = ring::next_sequence()?;
    let written = tokio::task::spawn_blocking(move || {
        kmsg::flood(lines, speed, |index| log.write(&flood_line(index)))
    });
    let (took, arrived) = futures::join!(written, arrived(&mut server));
    let (took, after) = (took??, Usage::of(agent.id().unwrap_or_default())?);
    let written = ring::next_sequence()? - first;
    let read = records_read(address).await? - counted;
    let speed_reached = rate(lines, took);
    let whole = read + arrived.lost == written;
    let may_lose = speed.is_none();
    let flat = after.resident_kib().abs_diff(before.resident_kib()) <= FLAT_KIB;
    ensure!(
        written >= u64::try_from(lines)?,
        "only {written} of {lines} lines are in the kernel's log"
    );
    Ok(Row {
        what: format!(
            "flood of {} lines by /dev/kmsg, {} lines a second",
            number(crate::stats::float(lines)),
            number(speed_reached)
        ),
        raw: String::new(),
        measured: format!(
            "{read} read + {} in gaps of {written} written, RSS {} → {}",
            arrived.lost,
            before.memory(),
            after.memory()
        ),
        goal: if may_lose {
            "read + gaps = written, RSS flat".to_owned()
        } else {
            "none lost, RSS flat".to_owned()
        },
        met: Some(whole && flat && (may_lose || arrived.lost == 0)),
        note: format!(
            "{} faults arrived, {} of CPU",
            arrived.faults,
            after.cpu_since(&before)
        ),
    })
}

/// How many records of the kernel log the agent says that it has read.
async fn records_read(address: std::net::SocketAddr) -> anyhow::Result<u64> {
    const NAME: &str = "kernel_log_records_total";
    let (status, text) = e2e::http::get(address, "/metrics", None).await?;
    ensure!(status == 200, "the agent's /metrics answered {status}");
    let line = text
        .lines()
        .find(|line| !line.starts_with('#') && line.contains(NAME));
    let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    value.with_context(|| format!("the agent's /metrics has no {NAME}"))
}

fn free_address() -> anyhow::Result<std::net::SocketAddr> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    Ok(listener.local_addr()?)
}
