//! A fleet through all stages at once.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::sync::oneshot;

use super::calls::Counted;
use super::limits::{self, Limits};
use super::stages::{Following, Mark, Marks, complete, spans};
use super::{Clock, Ground, Janitor, LOAD, RAW_LOAD, catch_up, connect, load};
use crate::cluster::names;
use crate::fleet::Reporter;
use crate::process::Usage;
use crate::raw::{AT_ONCE, Recorded, targets};
use crate::report::Row;
use crate::say;
use crate::stats::{Samples, float, number, rate};

/// The raw limit is measured on a part of as many nodes: it is a rate.
const RAW_PART: usize = 4;
/// From the first fault to the last release: ten times what it takes on two cores.
const TIME: Duration = Duration::from_mins(10);
/// Pods of a node.
const PODS: usize = 1;

/// So many nodes through all stages at once.
///
/// # Errors
/// Something of Warden does not play along.
pub(crate) async fn run(
    nodes: usize,
    recorded: &Recorded,
    counted: &Counted,
    settings: &str,
) -> anyhow::Result<Vec<Row>> {
    let raw_nodes = nodes.div_ceil(RAW_PART).max(2);
    let profile = ("remediate", Janitor::Acts(AT_ONCE));
    let all = nodes + raw_nodes + 1;
    let ground = Ground::start(all, false, profile, settings).await?;
    let cluster = &ground.cluster;
    let ill = names(0..nodes);
    let others = names(nodes..all - 1);
    let marker = names(all - 1..all).remove(0);
    let raw_pods = load(cluster, RAW_LOAD, &others, PODS).await?;
    let raw = targets(cluster, &others).await?;
    let measured = limits::measure(
        cluster,
        &ground.provider,
        recorded,
        (&raw, &raw_pods, nodes),
    );
    let limits = cluster.without_warden(measured).await?;
    say(&format!("  raw limits, a second: {limits:?}"));
    catch_up(cluster, &marker).await?;
    load(cluster, LOAD, &ill, PODS).await?;
    let mut fleet = connect(cluster, &ill).await?;
    say(&format!("  {nodes} agents and pods are there"));
    let before = Usage::of(cluster.controller.id())?;
    let marks = through(&ground, &mut fleet).await?;
    let cpu = Usage::of(cluster.controller.id())?.cpu_since(&before);
    let mut rows = vec![whole(&marks, &limits, counted, &cpu)];
    rows.extend(stages(&marks, &limits));
    Ok(rows)
}

/// All fall ill at once, and are followed until the last is given back.
async fn through(ground: &Ground, fleet: &mut [Reporter]) -> anyhow::Result<Vec<Marks>> {
    let nodes: Vec<String> = fleet.iter().map(|r| r.node.clone()).collect();
    let mut changes = ground.cluster.seen.changes();
    let clock = Clock::now();
    let (following, told) = Following::new(&nodes, PODS);
    let agents = fleet.iter_mut().zip(told);
    let agents = futures::future::try_join_all(agents.map(|(agent, boot)| play(agent, boot)));
    let run = following.run(&mut changes, TIME);
    let (mut marks, played) = futures::try_join!(run, agents)?;
    for (marks, (ill, settled)) in marks.iter_mut().zip(played) {
        marks.insert(Mark::Ill, ill);
        marks.insert(Mark::Settled, settled);
    }
    let cluster = &ground.cluster;
    complete(cluster, &ground.provider, clock, (&nodes, &mut marks)).await?;
    Ok(marks)
}

/// An agent whose machine falls ill and is rebooted; answers when it sent the fault, and when it was
/// settled again.
async fn play(
    agent: &mut Reporter,
    boot: oneshot::Receiver<String>,
) -> anyhow::Result<(Instant, Instant)> {
    let ill = Instant::now();
    agent.fall_ill(0).await?;
    let boot = boot.await;
    let boot = boot.with_context(|| format!("{} was not seen in another boot", agent.node))?;
    agent.boots(&boot).await?;
    agent.recover(0).await?;
    agent.report().await?;
    Ok((ill, Instant::now()))
}

/// From the first fault to the last release, beside the sum of what each stage takes by itself.
fn whole(marks: &[Marks], limits: &Limits, counted: &Counted, cpu: &str) -> Row {
    let nodes = marks.len();
    let at = |mark| marks.iter().filter_map(move |m| m.get(&mark)).copied();
    let begin = at(Mark::Ill).min().unwrap_or_else(Instant::now);
    let end = at(Mark::Released).max().unwrap_or(begin);
    let took = end - begin;
    // Beside those of cordon and release.
    let labels = counted.of_kind("patch nodes").saturating_sub(2);
    let told = counted.of_kind("patch rebootnodes/status");
    let seconds = [
        (1, limits.cordon),
        (PODS, limits.eviction),
        (labels, limits.label),
        (1, limits.order),
        (1, limits.lock),
        (1, limits.reboot),
        (told, limits.status),
        (1, limits.release),
    ];
    let seconds = seconds.map(|(count, rate)| float(count * nodes) / rate.max(1e-9));
    let raw: f64 = seconds.iter().sum();
    let samples: Samples = spans(marks, Mark::Ill, Mark::Released).collect();
    Row {
        what: format!("{nodes} nodes with {PODS} pod each through all stages at once"),
        raw: format!(
            "{} s, {} nodes a second",
            number(raw),
            number(float(nodes) / raw.max(1e-9))
        ),
        measured: format!(
            "{} s, {} nodes a second: {:.0} % of raw; a node {}",
            number(took.as_secs_f64()),
            number(rate(nodes, took)),
            raw / took.as_secs_f64().max(1e-9) * 1e2,
            samples.text(&[50, 90, 99])
        ),
        goal: String::new(),
        met: None,
        note: format!(
            "fault sent → given back; the controller used {cpu} of CPU; {AT_ONCE} reboots at a time; raw is the sum of what the stages take \
             one after the other without Warden, by the rates below, with {labels} labels and {told} \
             writes of the order's status a node as an incident has"
        ),
    }
}

/// A row a stage.
fn stages(marks: &[Marks], limits: &Limits) -> Vec<Row> {
    use Mark::{
        Back, Cordoned, Drained, Emptied, Ill, Ordered, Over, Released, Settled, Signalled,
    };
    let raw = |rate: f64, what: &str| format!("{} {what} a second", number(rate));
    let table = [
        (
            "fault → cordoned",
            Ill,
            Cordoned,
            raw(limits.cordon, "cordons with condition and Event"),
        ),
        (
            "cordoned → last pod gone",
            Cordoned,
            Emptied,
            raw(limits.eviction, "evictions"),
        ),
        ("last pod gone → drained", Emptied, Drained, String::new()),
        (
            "drained → RebootNode",
            Drained,
            Ordered,
            raw(limits.order, "POSTs"),
        ),
        (
            "RebootNode → its place, lock and signal",
            Ordered,
            Signalled,
            raw(limits.lock, "locks, each taken and given back"),
        ),
        (
            "signal → Ready in another boot",
            Signalled,
            Back,
            raw(limits.reboot, "reboots"),
        ),
        (
            "Ready → the order is over",
            Back,
            Over,
            raw(limits.status, "PATCHes of a status"),
        ),
        (
            "agent settled → given back",
            Settled,
            Released,
            raw(limits.release, "releases with condition"),
        ),
    ];
    table
        .into_iter()
        .map(|(what, from, to, raw)| {
            let samples: Samples = spans(marks, from, to).collect();
            let last = marks.iter().filter_map(|m| m.get(&to)).max();
            let first = marks.iter().filter_map(|m| m.get(&from)).min();
            let took = last
                .zip(first)
                .map(|(last, first)| last.saturating_duration_since(*first));
            let took = took.unwrap_or_default();
            Row {
                what: format!("{} nodes at once: {what}", marks.len()),
                raw,
                measured: format!(
                    "{}, {} a second",
                    samples.text(&[50, 90, 99]),
                    number(rate(samples.len(), took))
                ),
                goal: String::new(),
                met: None,
                note: String::new(),
            }
        })
        .collect()
}
