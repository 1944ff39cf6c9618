//! Pods of many nodes moved at once.

use std::time::Instant;

use super::limits::{evict_all, pace};
use super::{Ground, Janitor, LOAD, RAW_LOAD, catch_up, connect, load};
use crate::cluster::{Cluster, DEADLINE, names};
use crate::fleet::{self, Reporter};
use crate::report::Row;
use crate::seen::What;
use crate::stats::{median, number};

/// Part of the raw rate that is to be reached (DESIGN, *Numbers*).
const GOAL: f64 = 0.9;

/// The figures of one round, a second.
#[derive(Debug, Clone, Copy)]
struct Round {
    raw: f64,
    /// Once all nodes were cordoned.
    warden: f64,
    /// From the first pod to the last.
    all: f64,
}

/// So many nodes with so many pods each, in rounds that alternate with the raw limit on the same nodes.
///
/// # Errors
/// Something of Warden does not play along.
pub(crate) async fn run(
    (nodes, each): (usize, usize),
    rounds: usize,
    settings: &str,
) -> anyhow::Result<Vec<Row>> {
    let profile = ("drain", Janitor::Manual);
    let ground = Ground::start(nodes + 1, false, profile, settings).await?;
    let cluster = &ground.cluster;
    let names = names(0..nodes + 1);
    let (marker, ill) = (&names[nodes], &names[..nodes]);
    let fleet = connect(cluster, ill).await?;
    let mut all = Vec::new();
    for number in 0..rounds {
        let pods = load(cluster, RAW_LOAD, ill, each).await?;
        load(cluster, LOAD, ill, each).await?;
        let raw = cluster.without_warden(evict_all(cluster, &pods)).await?;
        catch_up(cluster, marker).await?;
        let (warden, whole) = round(cluster, &fleet, nodes * each, number).await?;
        all.push(Round {
            raw: pace(&raw),
            warden,
            all: whole,
        });
    }
    Ok(vec![row((nodes, each), &all)])
}

/// All nodes fall ill at once, and recover once their pods are gone.
async fn round(
    cluster: &Cluster,
    fleet: &[Reporter],
    pods: usize,
    number: usize,
) -> anyhow::Result<(f64, f64)> {
    let mut changes = cluster.seen.changes();
    let watched = async {
        let deadline = Instant::now() + DEADLINE * 2;
        let (mut gone, mut cordoned) = (Vec::new(), std::collections::BTreeMap::new());
        while gone.len() < pods {
            let what = format!("{} of {pods} pods to go", pods - gone.len());
            let change = changes.next(deadline, &what).await?;
            if change.what == (What::PodGone { raw: false }) {
                gone.push(change.at);
            } else if change.cordoned() == Some(true) {
                cordoned.entry(change.node).or_insert(change.at);
            }
        }
        Ok((gone, cordoned))
    };
    let ill = fleet::all(fleet, |reporter| reporter.fall_ill(number));
    let ((gone, cordoned), ()) = futures::try_join!(watched, ill)?;
    let last = cordoned.values().max().copied();
    let after = gone.iter().filter(|at| Some(**at) >= last).copied();
    let after: Vec<Instant> = after.collect();
    // A handful of nodes is cordoned before the first pod is gone, or after the last.
    let after = if after.len() < 2 { &gone } else { &after };
    let names: Vec<String> = fleet.iter().map(|r| r.node.clone()).collect();
    let mut changes = cluster.seen.changes();
    let back = changes.all(
        &names,
        "be given back",
        DEADLINE * 2,
        |change| change.cordoned() == Some(false),
        |_| {},
    );
    let recovered = fleet::all(fleet, |reporter| reporter.recover(number));
    futures::try_join!(back, recovered)?;
    Ok((pace(after), pace(&gone)))
}

fn row((nodes, each): (usize, usize), rounds: &[Round]) -> Row {
    let middle = |of: fn(&Round) -> f64| {
        let figures: Vec<f64> = rounds.iter().map(of).collect();
        median(&figures).unwrap_or_default()
    };
    let (raw, warden) = (middle(|r| r.raw), middle(|r| r.warden));
    let part = warden / raw.max(1e-9);
    Row {
        what: format!("evictions, {nodes} nodes × {each} pods"),
        raw: format!("{} a second", number(raw)),
        measured: format!("{} a second: {:.0} % of raw", number(warden), part * 1e2),
        goal: format!("≥ {:.0} % of the raw rate", GOAL * 1e2),
        met: Some(part >= GOAL),
        note: format!(
            "pods seen to be gone, once the last node is cordoned; of all pods, with the cordons, {} a \
             second; median of {} rounds; profile drain; beside its evictions Warden writes each \
             node's state; raw is the same eviction of as many pods of the same nodes, {} at a time as \
             the drain's, while the controller is held",
            number(middle(|r| r.all)),
            rounds.len(),
            super::limits::EVICTIONS_AT_ONCE
        ),
    }
}
