//! From a fault to a node out of scheduling, one at a time, beside the one PATCH that cordons.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use e2e::{Agent, KernelLog, ring};
use futures::{StreamExt as _, TryStreamExt as _};
use health_event::{HealthEvent, checks};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use wire::datamodels::HealthEvents;
use wire::datamodels::platform_connector_client::PlatformConnectorClient;

use crate::cluster::{Cluster, DEADLINE, Stored};
use crate::fleet::{self, Reporter};
use crate::kmsg::{self, xid_line};
use crate::raw::{Half, Recorded, Target};
use crate::report::Row;
use crate::stats::{Samples, millis, number, rate};

/// Between two lines.
const SECOND: Duration = Duration::from_secs(1);
/// Events a second of a storm.
const STORM: u32 = 1_000;
/// Calls of one node under way at a time.
const STORM_CALLS: usize = 16;
/// A storm that reached less than this part of its speed was none.
const STORM_REACHED: f64 = 0.9;
const STORM_GOAL: Duration = Duration::from_millis(100);

/// What a kind of latency may be above the raw one: at P50 and at P99.
#[derive(Debug, Clone, Copy)]
struct Above(Duration, Duration);

const LINE: Above = Above(Duration::from_millis(8), Duration::from_millis(20));
const LINE_IDLE: Above = Above(Duration::from_millis(15), Duration::from_millis(15));
const SOCKET: Above = Above(Duration::from_millis(4), Duration::from_millis(15));

/// Samples beside their raw neighbours.
#[derive(Debug, Default)]
struct Pairs {
    raw: Vec<Duration>,
    measured: Vec<Duration>,
}

impl Pairs {
    fn row(self, what: &str, above: Above, note: String) -> Row {
        let raw: Samples = self.raw.into_iter().collect();
        let measured: Samples = self.measured.into_iter().collect();
        let over = |percent| {
            let raw = raw.percentile(percent).unwrap_or_default();
            measured
                .percentile(percent)
                .unwrap_or(Duration::MAX)
                .saturating_sub(raw)
        };
        Row {
            what: what.to_owned(),
            raw: raw.text(&[50, 99]),
            measured: format!(
                "{}: raw + {} / + {}",
                measured.text(&[50, 99]),
                number(millis(over(50))),
                number(millis(over(99)))
            ),
            goal: format!(
                "raw P50 + {} / raw P99 + {} ms",
                number(millis(above.0)),
                number(millis(above.1))
            ),
            met: Some(over(50) <= above.0 && over(99) <= above.1),
            note,
        }
    }

    fn storm_row(self, what: &str, note: String) -> Row {
        let raw: Samples = self.raw.into_iter().collect();
        let measured: Samples = self.measured.into_iter().collect();
        Row {
            what: format!("{what} in a storm of {STORM} other events/s → unschedulable"),
            raw: raw.text(&[50, 99]),
            measured: measured.text(&[50, 99]),
            goal: format!("P99 ≤ {} ms", number(millis(STORM_GOAL))),
            met: Some(measured.p99() <= STORM_GOAL),
            note,
        }
    }
}

/// What the rows of this file share.
pub(crate) struct Latency<'a> {
    /// Where.
    pub cluster: &'a Cluster,
    /// The raw writes.
    pub recorded: &'a Recorded,
    /// Nodes for the raw PATCH, each used once and again.
    pub raw: &'a [Target],
}

impl Latency<'_> {
    /// The raw PATCH on the next of its nodes, which is then as it was before.
    async fn raw(&self, index: usize) -> anyhow::Result<Duration> {
        let node = &self.raw[index % self.raw.len()];
        let took = self.recorded.one(self.cluster, node, Half::Apply).await?;
        self.recorded.one(self.cluster, node, Half::Release).await?;
        Ok(took)
    }

    /// Kernel line → node unschedulable, once a second, each time another node with its agent.
    ///
    /// # Errors
    /// Not root, or something of Warden does not play along.
    pub(crate) async fn line(&self, nodes: &[String]) -> anyhow::Result<Row> {
        let pairs = self.lines(nodes, 0).await?;
        let note = "one agent at a time reads /dev/kmsg; the raw PATCH alternates with it";
        Ok(pairs.row("kernel line → unschedulable", LINE, note.to_owned()))
    }

    /// Lines with numbers from `first` on: the ring still holds those of other rows.
    async fn lines(&self, nodes: &[String], first: usize) -> anyhow::Result<Pairs> {
        let _ring = kmsg::take_ring().await?;
        let mut pairs = Pairs::default();
        let mut tick = tokio::time::interval(SECOND);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        for (index, node) in nodes.iter().enumerate() {
            let agent = self.settled_agent(node).await?;
            pairs.raw.push(self.raw(index).await?);
            tick.tick().await;
            pairs
                .measured
                .push(self.one_line(node, first + index).await?);
            drop(agent);
        }
        Ok(pairs)
    }

    /// The same after nothing happened for a while.
    ///
    /// # Errors
    /// As [`Latency::line`].
    pub(crate) async fn idle(&self, nodes: &[String], idle: Duration) -> anyhow::Result<Row> {
        let _ring = kmsg::take_ring().await?;
        let mut pairs = Pairs::default();
        for (index, node) in nodes.iter().enumerate() {
            let agent = self.settled_agent(node).await?;
            for turn in 0..5 {
                pairs.raw.push(self.raw(5 * index + turn).await?);
            }
            tokio::time::sleep(idle).await;
            // Numbers apart from those of the warm lines, which are in the same ring.
            pairs
                .measured
                .push(self.one_line(node, 4_000 + index).await?);
            drop(agent);
        }
        let note = format!(
            "idle for {idle:?} (the goal speaks of 10 min); the raw PATCH is \
             warm"
        );
        let mut row = pairs.row("kernel line → unschedulable after idle", LINE_IDLE, note);
        row.met = row.met.filter(|_| idle >= crate::GOAL_IDLE);
        Ok(row)
    }

    async fn settled_agent(&self, node: &str) -> anyhow::Result<Agent> {
        let log = KernelLog::Kmsg("end".to_owned());
        let mut agent = self.cluster.agent(node, log).await?;
        agent.spawn()?;
        self.cluster.wait_settled(&agent).await?;
        Ok(agent)
    }

    async fn one_line(&self, node: &str, number: usize) -> anyhow::Result<Duration> {
        let mut changes = self.cluster.seen.changes();
        let wrote = Instant::now();
        ring::write(&xid_line(number))?;
        let at = changes.cordon(node, true, DEADLINE).await;
        let at = at.map_err(|error| error.context(self.cluster.controller.log_tail()))?;
        Ok(at - wrote)
    }

    /// Socket event → node unschedulable, and that what was acknowledged is in the store.
    ///
    /// # Errors
    /// Something of Warden does not play along.
    pub(crate) async fn socket(&self, nodes: &[String], samples: usize) -> anyhow::Result<Row> {
        let mut agents = Vec::new();
        for node in nodes {
            let mut agent = self.cluster.agent(node, KernelLog::Off).await?;
            agent.spawn()?;
            self.cluster.wait_settled(&agent).await?;
            let monitor = Monitor::connect(agent.socket()).await?;
            agents.push((agent, monitor));
        }
        let before = self.cluster.last_seq().await?;
        let (mut pairs, mut acks) = (Pairs::default(), Vec::new());
        let mut acknowledged = Vec::new();
        for turn in 0..samples {
            let (agent, monitor) = &agents[turn % agents.len()];
            pairs.raw.push(self.raw(turn).await?);
            let mut changes = self.cluster.seen.changes();
            let sent = Instant::now();
            let ((message, acknowledged_after), at) = futures::try_join!(
                async {
                    let message = monitor.send(false, turn).await?;
                    anyhow::Ok((message, sent.elapsed()))
                },
                changes.cordon(&agent.node, true, DEADLINE)
            )?;
            acks.push(acknowledged_after);
            acknowledged.push((agent.node.clone(), false, message));
            pairs.measured.push(at - sent);
            let mut changes = self.cluster.seen.changes();
            let message = monitor.send(true, turn).await?;
            acknowledged.push((agent.node.clone(), true, message));
            changes.cordon(&agent.node, false, DEADLINE).await?;
        }
        let stored = self.cluster.stored_since(before).await?;
        let once = |event: &&Stored| stored.iter().filter(|s| s == event).count() == 1;
        let found = acknowledged.iter().filter(once).count();
        let acks: Samples = acks.into_iter().collect();
        let note = format!(
            "acknowledged after {}; of {} acknowledged, {found} are stored once, compared by \
             content",
            acks.text(&[50, 99]),
            acknowledged.len()
        );
        let mut row = pairs.row("socket event → unschedulable", SOCKET, note);
        row.goal.push_str(", none lost");
        let none_lost = found == acknowledged.len();
        row.met = row.met.map(|met| met && none_lost);
        Ok(row)
    }

    /// As [`Latency::line`], amid a thousand other events a second from other nodes.
    ///
    /// # Errors
    /// As [`Latency::line`], or the storm did not reach its speed.
    pub(crate) async fn line_in_a_storm(
        &self,
        nodes: &[String],
        stormy: &[Reporter],
    ) -> anyhow::Result<Row> {
        let lines = Box::pin(self.lines(nodes, 6_000));
        let (pairs, reached) = amid_a_storm(stormy, lines).await?;
        let note = storm_note(reached, stormy, "one agent at a time reads /dev/kmsg");
        Ok(pairs.storm_row("kernel line", note))
    }

    /// One fault at a time amid a thousand other events a second from other nodes.
    ///
    /// # Errors
    /// The storm did not reach its speed, or something of Warden does not play along.
    pub(crate) async fn storm(
        &self,
        ill: &[Reporter],
        stormy: &[Reporter],
        samples: usize,
    ) -> anyhow::Result<Row> {
        let faults = async {
            let mut pairs = Pairs::default();
            for turn in 0..samples {
                let reporter = &ill[turn % ill.len()];
                pairs.raw.push(self.raw(turn).await?);
                let mut changes = self.cluster.seen.changes();
                let sent = Instant::now();
                reporter.send(vec![fleet::fault(false, turn)]).await?;
                let at = changes.cordon(&reporter.node, true, DEADLINE).await?;
                pairs.measured.push(at - sent);
                let mut changes = self.cluster.seen.changes();
                reporter.send(vec![fleet::fault(true, turn)]).await?;
                changes.cordon(&reporter.node, false, DEADLINE).await?;
            }
            anyhow::Ok(pairs)
        };
        let (pairs, reached) = amid_a_storm(stormy, faults).await?;
        let note = storm_note(reached, stormy, "sent over TCP");
        Ok(pairs.storm_row("event", note))
    }
}

/// What `faults` measures while the storm blows, and the storm's events a second.
///
/// # Errors
/// Those of `faults`, or the storm did not reach its speed.
async fn amid_a_storm(
    stormy: &[Reporter],
    faults: impl Future<Output = anyhow::Result<Pairs>>,
) -> anyhow::Result<(Pairs, f64)> {
    let begin = Instant::now();
    let (done, ended) = tokio::sync::oneshot::channel();
    let storm = blow(stormy, ended);
    let faults = async {
        let pairs = faults.await;
        // The storm may have ended with an error of its own.
        done.send(()).ok();
        pairs
    };
    let (pairs, others) = futures::try_join!(faults, storm)?;
    let reached = rate(others, begin.elapsed());
    ensure!(
        reached >= f64::from(STORM) * STORM_REACHED,
        "the storm reached only {} events a second",
        number(reached)
    );
    Ok((pairs, reached))
}

fn storm_note(reached: f64, stormy: &[Reporter], fault: &str) -> String {
    format!(
        "{fault}; the storm: {} events a second over TCP from {} nodes, one a call, each stored",
        number(reached),
        stormy.len()
    )
}

/// Sends other events at the storm's speed until told; answers how many were acknowledged.
async fn blow(
    stormy: &[Reporter],
    ended: tokio::sync::oneshot::Receiver<()>,
) -> anyhow::Result<usize> {
    use futures::future::{Either, select};
    let each = Duration::from_secs(1) * u32::try_from(stormy.len())? / STORM;
    let sent = AtomicUsize::new(0);
    let senders = stormy.iter().map(|reporter| {
        let sent = &sent;
        // Calls overlap, so that the storm keeps its speed where an answer takes longer.
        futures::stream::unfold(
            (tokio::time::interval(each), 0),
            |(mut tick, turn)| async move {
                tick.tick().await;
                Some((turn, (tick, turn + 1)))
            },
        )
        .map(move |turn| async move {
            reporter.send(vec![fleet::other(turn)]).await?;
            sent.fetch_add(1, Ordering::Relaxed);
            anyhow::Ok(())
        })
        .buffer_unordered(STORM_CALLS)
        .try_collect::<()>()
    });
    let senders = std::pin::pin!(futures::future::try_join_all(senders));
    match select(senders, ended).await {
        Either::Left((failed, _)) => failed.map(drop).context("the storm")?,
        Either::Right(_) => {}
    }
    Ok(sent.load(Ordering::Relaxed))
}

/// A monitor on the agent's socket, as any program of the node may be one.
struct Monitor(PlatformConnectorClient<Channel>);

impl Monitor {
    async fn connect(socket: PathBuf) -> anyhow::Result<Self> {
        let connector = tower::service_fn(move |_: tonic::transport::Uri| {
            let socket = socket.clone();
            async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(socket).await?)) }
        });
        let channel = Endpoint::from_static("http://agent")
            .connect_with_connector(connector)
            .await
            .context("connecting to the agent's socket")?;
        Ok(Self(PlatformConnectorClient::new(channel)))
    }

    /// Sends one event and answers its message once it is acknowledged.
    async fn send(&self, healthy: bool, turn: usize) -> anyhow::Result<String> {
        let event = HealthEvent {
            // A monitor of its own: the kernel-log check belongs to the agent.
            agent: "gpu-health-monitor".to_owned(),
            check_name: "GpuNvlinkWatch".to_owned(),
            generated_at: Some(jiff::Timestamp::now()),
            ..fleet::fault(healthy, turn)
        };
        debug_assert_ne!(event.agent, checks::SYSLOG_AGENT);
        let message = event.message.clone();
        let batch = HealthEvents {
            version: 1,
            events: vec![event.into()],
        };
        let mut client = self.0.clone();
        client
            .health_event_occurred_v1(batch)
            .await
            .context("sending over the agent's socket")?;
        Ok(message)
    }
}
