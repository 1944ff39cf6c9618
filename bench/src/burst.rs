//! Many nodes at once, out of scheduling and back, against the raw rate of the same writes.

use std::time::{Duration, Instant};

use crate::cluster::{Cluster, DEADLINE};
use crate::fleet::{self, CHECK, Reporter};
use crate::raw::{Half, Recorded, Target, see};
use crate::report::Row;
use crate::seen::{What, last};
use crate::stats::{Samples, float, median, millis, number, rate};

/// Part of the raw rate that is to be reached.
const GOAL: f64 = 0.9;
/// A further fault in the middle of a burst.
const LATE_GOAL: Duration = Duration::from_secs(5);

/// What the bursts share.
pub(crate) struct Bursts<'a> {
    /// Where.
    pub cluster: &'a Cluster,
    /// The raw writes.
    pub recorded: &'a Recorded,
    /// Nodes that fall ill, with their agents.
    pub fleet: &'a [Reporter],
    /// The same nodes for the raw limit.
    pub raw: &'a [Target],
    /// The one that falls ill in the middle of a burst.
    pub late: &'a Reporter,
    /// Rounds.
    pub rounds: usize,
}

/// The figures of one round.
#[derive(Debug)]
struct Round {
    raw: Duration,
    warden: Duration,
    cordoned: Duration,
    late: Duration,
    raw_release: Duration,
    release: Duration,
}

impl Bursts<'_> {
    /// So many nodes at once, again and again, alternating with the raw writes.
    ///
    /// # Errors
    /// Something of Warden does not play along.
    pub(crate) async fn run(&self, nodes: usize, first: usize) -> anyhow::Result<Vec<Row>> {
        let fleet = &self.fleet[..nodes];
        let raw = &self.raw[..nodes];
        let mut rounds = Vec::new();
        for round in 0..self.rounds {
            rounds.push(self.round(fleet, raw, first + round).await?);
        }
        Ok(self.rows(nodes, &rounds))
    }

    async fn round(
        &self,
        fleet: &[Reporter],
        raw: &[Target],
        number: usize,
    ) -> anyhow::Result<Round> {
        let (recorded, cluster) = (self.recorded, self.cluster);
        let (raw_apply, raw_release) = cluster
            .without_warden(async {
                let apply = recorded.many(cluster, raw, Half::Apply).await?;
                let release = recorded.many(cluster, raw, Half::Release).await?;
                Ok((apply, release))
            })
            .await?;
        self.catch_up(number).await?;
        let names: Vec<String> = fleet.iter().map(|r| r.node.clone()).collect();
        let begin = Instant::now();
        let halfway = std::sync::Arc::new(tokio::sync::Notify::new());
        let injected = fleet::all(fleet, |reporter| reporter.fall_ill(number));
        let (cordoned, late, out, events, ()) = futures::try_join!(
            self.cordons(&names, &halfway),
            self.late(&halfway, number),
            self.seen(&names, Half::Apply),
            self.events(&names),
            injected
        )?;
        let warden = out.max(events) - begin;
        self.late.recover(number).await?;
        let begin_release = Instant::now();
        let recovered = fleet::all(fleet, |reporter| reporter.recover(number));
        let (released, ()) = futures::try_join!(self.seen(&names, Half::Release), recovered)?;
        Ok(Round {
            raw: raw_apply,
            warden,
            cordoned: cordoned - begin,
            late,
            raw_release,
            release: released - begin_release,
        })
    }

    /// Waits until the controller has read what it missed while it was held: it then acts at once
    /// on a further fault.
    async fn catch_up(&self, number: usize) -> anyhow::Result<()> {
        for healthy in [false, true] {
            let mut changes = self.cluster.seen.changes();
            self.late.send(vec![fleet::fault(healthy, number)]).await?;
            let seen = changes.cordon(&self.late.node, !healthy, DEADLINE).await;
            if let Err(error) = seen {
                return Err(self.cluster.explain(error, &self.late.node).await);
            }
        }
        Ok(())
    }

    async fn seen(&self, names: &[String], half: Half) -> anyhow::Result<Instant> {
        let mut changes = self.cluster.seen.changes();
        let status = self.recorded.has_status(half);
        see(&mut changes, names, half, status, CHECK).await
    }

    async fn cordons(
        &self,
        names: &[String],
        halfway: &tokio::sync::Notify,
    ) -> anyhow::Result<Instant> {
        let mut changes = self.cluster.seen.changes();
        let half = names.len() / 2;
        let cordoned = changes.all(
            names,
            "be cordoned",
            DEADLINE * 2,
            |change| change.cordoned() == Some(true),
            |count| {
                if count == half {
                    halfway.notify_one();
                }
            },
        );
        Ok(last(&cordoned.await?))
    }

    /// The moment when each node has its Event.
    async fn events(&self, names: &[String]) -> anyhow::Result<Instant> {
        if self.recorded.events(Half::Apply) == 0 {
            return Ok(Instant::now());
        }
        let mut changes = self.cluster.seen.changes();
        let is_event = |change: &crate::seen::Change| change.what == What::Event;
        let events = changes.all(names, "have an Event", DEADLINE * 2, is_event, |_| {});
        Ok(last(&events.await?))
    }

    async fn late(&self, halfway: &tokio::sync::Notify, number: usize) -> anyhow::Result<Duration> {
        let mut changes = self.cluster.seen.changes();
        halfway.notified().await;
        let begin = Instant::now();
        self.late.fall_ill(number).await?;
        match changes.cordon(&self.late.node, true, DEADLINE).await {
            Ok(at) => Ok(at - begin),
            Err(error) => Err(self.cluster.explain(error, &self.late.node).await),
        }
    }

    fn rows(&self, nodes: usize, rounds: &[Round]) -> Vec<Row> {
        let all = |of: fn(&Round) -> Duration| rounds.iter().map(of).collect::<Samples>();
        let rated = |what: String, raw: Samples, warden: Samples, half: Half, note: String| {
            let part = float(usize::from(raw.len() > 0)) * ratio(&raw, &warden);
            Row {
                what,
                raw: format!(
                    "{} s, {} nodes a second",
                    number(raw.median().as_secs_f64()),
                    number(rate(nodes, raw.median()))
                ),
                measured: format!(
                    "{} s, {} nodes a second: {:.0} % of raw",
                    number(warden.median().as_secs_f64()),
                    number(rate(nodes, warden.median())),
                    part * 1e2
                ),
                goal: format!("≥ {:.0} % of the raw rate", GOAL * 1e2),
                met: Some(part >= GOAL),
                note: format!(
                    "median of {} rounds; a node: {}; {note}",
                    rounds.len(),
                    self.recorded.text(half)
                ),
            }
        };
        let parts: Vec<f64> = rounds
            .iter()
            .map(|r| r.raw.as_secs_f64() / r.warden.as_secs_f64())
            .collect();
        let late = all(|r| r.late);
        let last = all(|r| r.cordoned);
        vec![
            rated(
                format!("{nodes} nodes at once, all cordoned, conditioned and told"),
                all(|r| r.raw),
                all(|r| r.warden),
                Half::Apply,
                format!(
                    "last cordon after {} s; a round against its neighbour {:.0} % at the median",
                    number(last.median().as_secs_f64()),
                    median(&parts).unwrap_or_default() * 1e2
                ),
            ),
            Row {
                what: format!("one more fault in the middle of {nodes} nodes at once"),
                raw: String::new(),
                measured: format!(
                    "{}, largest {}",
                    late.text(&[50]),
                    number(millis(late.max()))
                ),
                goal: format!("≤ {} s", LATE_GOAL.as_secs()),
                met: Some(late.max() <= LATE_GOAL),
                note: String::new(),
            },
            rated(
                format!("release of {nodes} at once"),
                all(|r| r.raw_release),
                all(|r| r.release),
                Half::Release,
                "no goal of its own in the design: that of the burst".to_owned(),
            ),
        ]
    }

    /// Release of one, beside the one PATCH that uncordons.
    ///
    /// # Errors
    /// Something of Warden does not play along.
    pub(crate) async fn release_one(&self, samples: usize) -> anyhow::Result<Row> {
        let (mut raw, mut warden) = (Vec::new(), Vec::new());
        for turn in 0..samples {
            let target = &self.raw[turn % self.raw.len()];
            self.recorded.one(self.cluster, target, Half::Apply).await?;
            let took = self.recorded.one(self.cluster, target, Half::Release).await;
            raw.push(took?);
            let reporter = self.late;
            let mut changes = self.cluster.seen.changes();
            reporter.send(vec![fleet::fault(false, turn)]).await?;
            changes.cordon(&reporter.node, true, DEADLINE).await?;
            let mut changes = self.cluster.seen.changes();
            let begin = Instant::now();
            reporter.send(vec![fleet::fault(true, turn)]).await?;
            let at = changes.cordon(&reporter.node, false, DEADLINE).await?;
            warden.push(at - begin);
        }
        let (raw, warden): (Samples, Samples) =
            (raw.into_iter().collect(), warden.into_iter().collect());
        let over = warden.median().saturating_sub(raw.median());
        let over_99 = warden.p99().saturating_sub(raw.p99());
        let (p50, p99) = (Duration::from_millis(4), Duration::from_millis(15));
        Ok(Row {
            what: "recovery → schedulable, one node".to_owned(),
            raw: raw.text(&[50, 99]),
            measured: format!(
                "{}: raw + {} / + {}",
                warden.text(&[50, 99]),
                number(millis(over)),
                number(millis(over_99))
            ),
            goal: "raw P50 + 4.00 / raw P99 + 15.0 ms".to_owned(),
            met: Some(over <= p50 && over_99 <= p99),
            note: "no goal of its own in the design: that of a socket event".to_owned(),
        })
    }
}

/// How much of the raw rate was reached, by the medians.
fn ratio(raw: &Samples, warden: &Samples) -> f64 {
    raw.median().as_secs_f64() / warden.median().as_secs_f64().max(1e-9)
}
