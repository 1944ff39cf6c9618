//! One node at a time: from its last pod to the order of its reboot.

use std::time::{Duration, Instant};

use super::limits::{label, order};
use super::{Clock, DRAINING, Ground, Janitor, LOAD, connect, load, stored_at};
use crate::cluster::{Cluster, DEADLINE, names};
use crate::fleet::Reporter;
use crate::raw::{Target, targets};
use crate::report::Row;
use crate::seen::What;
use crate::stats::{Samples, millis, number};

/// Beside one raw PATCH, until a drain is done and shown (DESIGN, *Numbers*).
const DRAINED: Duration = Duration::from_millis(50);
/// Beside one raw POST, until a repair is ordered (the same).
const ORDERED: Duration = Duration::from_millis(20);
/// Pods of a node.
const PODS: usize = 2;

/// What was seen of one node, or of one turn of the raw limit.
#[derive(Debug, Default)]
struct Seen {
    drained: Vec<Duration>,
    ordered: Vec<Duration>,
    from_last_pod: Vec<Duration>,
}

/// So many nodes, each after the other, alternating with the raw limit.
///
/// # Errors
/// Something of Warden does not play along.
pub(crate) async fn run(samples: usize, settings: &str) -> anyhow::Result<Vec<Row>> {
    // The first of each warms up.
    let samples = samples + 1;
    let nodes = samples + 1;
    let ground = Ground::start(nodes, false, ("remediate", Janitor::Manual), settings).await?;
    let cluster = &ground.cluster;
    let names = names(0..nodes);
    let target = targets(cluster, &names[samples..]).await?.remove(0);
    load(cluster, LOAD, &names[..samples], PODS).await?;
    let fleet = connect(cluster, &names[..samples]).await?;
    let (mut raw, mut warden) = (Seen::default(), Seen::default());
    for (turn, reporter) in fleet.iter().enumerate() {
        raw_turn(cluster, &target, turn, &mut raw).await?;
        warden_turn(cluster, reporter, turn, &mut warden).await?;
        if turn == 0 {
            (raw, warden) = (Seen::default(), Seen::default());
        }
    }
    Ok(rows(raw, warden))
}

async fn raw_turn(
    cluster: &Cluster,
    node: &Target,
    turn: usize,
    seen: &mut Seen,
) -> anyhow::Result<()> {
    let value = format!("turn-{turn}");
    let mut changes = cluster.seen.changes();
    let deadline = Instant::now() + DEADLINE;
    let begin = Instant::now();
    label(&cluster.client, node, &value).await?;
    let labelled = loop {
        let change = changes.next(deadline, "the label of the raw limit").await?;
        if change
            .node_look()
            .is_some_and(|look| look.raw_state == value)
        {
            break change.at;
        }
    };
    seen.drained.push(labelled - begin);
    let begin = Instant::now();
    order(&cluster.client, &format!("raw-{turn}"), node).await?;
    let ordered = loop {
        let change = changes.next(deadline, "the order of the raw limit").await?;
        if change.node == node.name && matches!(change.what, What::Order { .. }) {
            break change.at;
        }
    };
    seen.ordered.push(ordered - begin);
    Ok(())
}

async fn warden_turn(
    cluster: &Cluster,
    reporter: &Reporter,
    turn: usize,
    seen: &mut Seen,
) -> anyhow::Result<()> {
    let node = &reporter.node;
    let mut changes = cluster.seen.changes();
    let clock = Clock::now();
    let deadline = Instant::now() + DEADLINE;
    reporter.fall_ill(turn).await?;
    let (mut left, mut emptied, mut drained, mut ordered) = (PODS, None, None, None);
    // Until the janitor has said its first word about the order, which is the last write.
    loop {
        let what = format!("{node} to be drained and its reboot ordered");
        let next = changes.next(deadline, &what).await;
        let change = match next {
            Ok(change) => change,
            Err(error) => return Err(cluster.explain(error, node).await),
        };
        if change.node != *node {
            continue;
        }
        match &change.what {
            What::PodGone { raw: false } => {
                left = left.saturating_sub(1);
                emptied = (left == 0).then_some(change.at);
            }
            What::Node(look) => {
                let said = emptied.is_some() && look.state != DRAINING;
                if said && drained.is_none() {
                    drained = Some(change.at);
                }
            }
            What::Order { told, .. } => {
                ordered = ordered.or(Some(change.at));
                if *told && drained.is_some() {
                    break;
                }
            }
            What::Event | What::PodGone { raw: true } => {}
        }
        if let (Some(_), Some(_), What::Node(look)) = (drained, ordered, &change.what)
            && look.state == k8s_api::names::STATE_REMEDIATING
        {
            break;
        }
    }
    let (Some(emptied), Some(drained), Some(ordered)) = (emptied, drained, ordered) else {
        anyhow::bail!("the reboot of {node} was ordered before its pods were gone");
    };
    let stored = stored_at(cluster, node, ("drain", "Drained")).await?;
    let stored = clock.instant_of(stored);
    seen.drained
        .push(drained.saturating_duration_since(emptied));
    seen.ordered.push(ordered.saturating_duration_since(stored));
    let all = ordered.saturating_duration_since(emptied);
    seen.from_last_pod.push(all);
    Ok(())
}

fn rows(raw: Seen, warden: Seen) -> Vec<Row> {
    let samples = |times: Vec<Duration>| times.into_iter().collect::<Samples>();
    let row = |what: &str, raw: &Samples, warden: &Samples, goal: Duration, note: String| {
        let over = warden.median().saturating_sub(raw.median());
        Row {
            what: what.to_owned(),
            raw: raw.text(&[50, 90, 99]),
            measured: format!(
                "{}: raw + {}",
                warden.text(&[50, 90, 99]),
                number(millis(over))
            ),
            goal: format!("raw P50 + {} ms", number(millis(goal))),
            met: Some(over <= goal),
            note,
        }
    };
    let from_last = samples(warden.from_last_pod);
    vec![
        row(
            "last pod gone → drained, as the node says",
            &samples(raw.drained),
            &samples(warden.drained),
            DRAINED,
            format!(
                "{PODS} pods a node; raw is a PATCH of one label of a node with a test of its UID, seen \
                 by the same watch"
            ),
        ),
        row(
            "drained → RebootNode",
            &samples(raw.ordered),
            &samples(warden.ordered),
            ORDERED,
            format!(
                "from the decision that is stored as Drained, with both commits; raw is the POST of the \
                 same object; from the last pod on {}",
                from_last.text(&[50, 90, 99])
            ),
        ),
    ]
}
