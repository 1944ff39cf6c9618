//! One incident under the API server's audit log: how many calls it costs, and which writes the
//! raw limits repeat.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::ensure;
use testbed::{AuditEvent, wait_for};

use crate::cluster::{CONTROLLER_USER, Cluster, DEADLINE, names};
use crate::fleet::{self, CHECK};
use crate::raw::{Half, Recorded, see};
use crate::report::Row;

/// Calls of one incident with cordon, condition, release; the goal for one with a reboot, which
/// this version has not, is the same.
const GOAL: usize = 10;
/// A quiet second: what the incident causes was written by then.
const QUIET: Duration = Duration::from_secs(1);
/// Writes that an incident makes at least: the cordon.
const LEAST: usize = 1;

/// What one incident showed.
#[derive(Debug, Clone)]
pub(crate) struct Incident {
    /// Its writes.
    pub recorded: Recorded,
    calls: Vec<AuditEvent>,
}

/// Takes one node out and back again, twice on two nodes: the first warms up.
///
/// # Errors
/// The control plane or Warden does not play along.
pub(crate) async fn observe(settings: &str) -> anyhow::Result<Incident> {
    let cluster = Cluster::start(2, true, settings).await?;
    let nodes = names(0..2);
    let fleet = fleet::connect(&cluster, &nodes).await?;
    let mut found = None;
    for (node, reporter) in nodes.iter().zip(&fleet) {
        let mut changes = cluster.seen.changes();
        let before = calls(&cluster)?.len();
        reporter.fall_ill(0).await?;
        let one = std::slice::from_ref(node);
        see(&mut changes, one, Half::Apply, false, CHECK).await?;
        let applied = quiet(&cluster, before + LEAST).await?;
        reporter.recover(0).await?;
        see(&mut changes, one, Half::Release, false, CHECK).await?;
        let all = quiet(&cluster, applied + 1).await?;
        let calls = calls(&cluster)?;
        let (apply, release) = (&calls[before..applied], &calls[applied..all]);
        found = Some(Incident {
            recorded: Recorded::new(node, &cluster.uid(node).await?, apply, release)?,
            calls: calls[before..all].to_vec(),
        });
    }
    found.ok_or_else(|| anyhow::anyhow!("no incident was looked at"))
}

/// The controller's calls so far, without its lease's.
fn calls(cluster: &Cluster) -> anyhow::Result<Vec<AuditEvent>> {
    let mut events = cluster.testbed.audit_events()?;
    // A watch is answered when it begins and counted when it ends, which is no call.
    events.retain(|event| {
        event.user == CONTROLLER_USER
            && event.stage == "ResponseComplete"
            && event.verb != "watch"
            && event.resource != "leases"
    });
    Ok(events)
}

/// Waits until there were so many calls and then none for a second; answers how many.
async fn quiet(cluster: &Cluster, least: usize) -> anyhow::Result<usize> {
    let (mut count, mut since) = (0, Instant::now());
    wait_for("the controller's calls to end", DEADLINE, || {
        let looked = calls(cluster).map(|calls| {
            if calls.len() != count {
                (count, since) = (calls.len(), Instant::now());
            }
            (count >= least && since.elapsed() >= QUIET).then_some(count)
        });
        async move { looked }
    })
    .await
}

/// The row of an incident.
///
/// # Errors
/// The audit log shows no calls.
pub(crate) fn row(incident: &Incident) -> anyhow::Result<Row> {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for call in &incident.calls {
        let subresource = if call.subresource.is_empty() {
            String::new()
        } else {
            format!("/{}", call.subresource)
        };
        let kind = format!("{} {}{subresource}", call.verb, call.resource);
        *kinds.entry(kind).or_default() += 1;
    }
    let count = incident.calls.len();
    ensure!(
        count > 0,
        "the audit log shows no call of {CONTROLLER_USER}"
    );
    let kinds: Vec<String> = kinds
        .iter()
        .map(|(kind, count)| format!("{count} × {kind}"))
        .collect();
    Ok(Row {
        what: "API calls an incident, cordon to release".to_owned(),
        raw: String::new(),
        measured: count.to_string(),
        goal: format!("≤ {GOAL} + 1 a pod"),
        met: Some(count <= GOAL),
        note: format!(
            "without drain and reboot, with one Event beside the fault: {}",
            kinds.join(", ")
        ),
    })
}
