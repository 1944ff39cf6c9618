//! Memory and CPU of agent and controller while nothing happens.

use std::time::Duration;

use anyhow::Context as _;
use e2e::KernelLog;

use crate::cluster::Cluster;
use crate::process::{Usage, mib};
use crate::report::Row;
use crate::stats::number;

/// Of the agent without GPU checks: MiB, of which anonymous, millicores.
const AGENT: (f64, f64, f64) = (12.0, 4.0, 0.05);
/// Of the controller at 1,000 nodes, MiB.
const CONTROLLER: f64 = 64.0;

/// What a start leaves to be done is over by then.
const SETTLE: Duration = Duration::from_secs(5);

/// An agent that reads the kernel's log and has a controller, and nothing happens.
///
/// # Errors
/// Something of Warden does not play along.
pub(crate) async fn agent(cluster: &Cluster, node: &str, time: Duration) -> anyhow::Result<Row> {
    let log = KernelLog::Kmsg("end".to_owned());
    let mut agent = cluster.agent(node, log).await?;
    agent.spawn()?;
    cluster.wait_settled(&agent).await?;
    let pid = agent.id().context("the agent does not run")?;
    let (before, after) = over(pid, time).await?;
    let (rss, anonymous, millicores) = AGENT;
    let cpu = after.millicores(&before);
    let within = mib(after.resident_kib()) <= rss && mib(after.anonymous_kib()) <= anonymous;
    Ok(Row {
        what: "agent idle: RSS (anonymous), CPU".to_owned(),
        raw: String::new(),
        measured: format!("{}, {} millicores", after.memory(), number(cpu)),
        goal: format!(
            "≤ {} ({}) MiB, ≤ {} millicores",
            number(rss),
            number(anonymous),
            number(millicores)
        ),
        met: Some(within && cpu <= millicores),
        note: format!(
            "over {time:?}, connected with TLS and token; the kernel may drop file pages of an \
             idle program, so look at the anonymous part too"
        ),
    })
}

/// A controller and so many nodes, and nothing happens.
///
/// # Errors
/// The controller is gone.
pub(crate) async fn controller(
    cluster: &Cluster,
    what: &str,
    time: Duration,
    with_goal: bool,
) -> anyhow::Result<Row> {
    let (before, after) = over(cluster.controller.id(), time).await?;
    let goal = if with_goal {
        format!("≤ {} MiB", number(CONTROLLER))
    } else {
        String::new()
    };
    Ok(Row {
        what: format!("controller idle, {what}: RSS (anonymous), CPU"),
        raw: String::new(),
        measured: format!(
            "{}, {} millicores",
            after.memory(),
            number(after.millicores(&before))
        ),
        goal,
        met: with_goal.then(|| mib(after.resident_kib()) <= CONTROLLER),
        note: format!("over {time:?}"),
    })
}

async fn over(pid: u32, time: Duration) -> anyhow::Result<(Usage, Usage)> {
    tokio::time::sleep(SETTLE.min(time)).await;
    let before = Usage::of(pid)?;
    tokio::time::sleep(time).await;
    Ok((before, Usage::of(pid)?))
}
