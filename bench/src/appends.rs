//! The event store alone: how many events it makes durable, and how soon it answers.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use event_store::{EventStore, Fingerprint, NewEvent, Options, Outcome};
use health_event::{Entity, HealthEvent, NodeName, RecommendedAction, Sender, checks};
use jiff::Timestamp;

use crate::facts::{fsync, fsync_note};
use crate::report::Row;
use crate::stats::{Samples, millis, number, rate};

/// Senders whose events are appended.
const NODES: usize = 1_000;
const GOAL_ONE: f64 = 8_000.0;
const GOAL_HUNDRED: f64 = 25_000.0;
const GOAL_P50: Duration = Duration::from_millis(1);
const GOAL_P99: Duration = Duration::from_millis(8);

/// Appends with 64 callers, in batches of 100, and paced at 1,000 a second; a fresh store each.
///
/// # Errors
/// The store can't be opened in `scratch`, or refuses an event.
pub(crate) async fn run(scratch: &Path, quick: bool) -> anyhow::Result<Vec<Row>> {
    let time = if quick {
        Duration::from_millis(500)
    } else {
        Duration::from_secs(10)
    };
    let one = load(scratch, "one", 64, 1, time).await?;
    let hundred = load(scratch, "hundred", 8, 100, time).await?;
    let note = fsync_note(&fsync(scratch)?);
    let row = |batch: usize, callers: usize, (rate, acks): (f64, Samples), goal: f64| Row {
        what: format!("store appends, durable, batch {batch}, {callers} callers"),
        raw: String::new(),
        measured: format!("{} a second", number(rate)),
        goal: format!("≥ {} a second", number(goal)),
        met: Some(rate >= goal),
        note: format!("ack {}; {note}", acks.text(&[50, 99, 100])),
    };
    let paced = paced(scratch, time).await?;
    Ok(vec![
        row(1, 64, one, GOAL_ONE),
        row(100, 8, hundred, GOAL_HUNDRED),
        Row {
            what: "store appends, ack at 1,000 a second".to_owned(),
            raw: String::new(),
            measured: paced.text(&[50, 99]),
            goal: format!(
                "P50 ≤ {}, P99 ≤ {} ms",
                number(millis(GOAL_P50)),
                number(millis(GOAL_P99))
            ),
            met: Some(paced.median() <= GOAL_P50 && paced.p99() <= GOAL_P99),
            note: format!("largest {} ms; {note}", number(millis(paced.max()))),
        },
    ])
}

/// Opens a fresh store and has `callers` append batches one after the other for `time`.
async fn load(
    scratch: &Path,
    name: &str,
    callers: usize,
    batch: usize,
    time: Duration,
) -> anyhow::Result<(f64, Samples)> {
    let folder = scratch.join(name);
    let store = EventStore::open(&folder, Options::default()).context("opening a fresh store")?;
    let end = Instant::now() + time;
    let begin = Instant::now();
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let store = store.clone();
            tokio::spawn(async move {
                // Each caller has nodes of its own, so that their events stay in order.
                let own = NODES / callers;
                let mut acks = Vec::new();
                let mut turns = 0..;
                while Instant::now() < end {
                    let turns = turns.by_ref().take(batch);
                    let events = turns
                        .map(|turn| event(caller + callers * (turn % own), turn / own))
                        .collect();
                    let asked = Instant::now();
                    append(&store, events).await?;
                    acks.push(asked.elapsed());
                }
                anyhow::Ok(acks)
            })
        })
        .collect();
    let mut acks = Vec::new();
    for task in tasks {
        acks.extend(task.await??);
    }
    let took = begin.elapsed();
    store.close();
    std::fs::remove_dir_all(&folder).ok();
    let rate = rate(acks.len() * batch, took);
    Ok((rate, acks.into_iter().collect()))
}

/// One event each millisecond, whether the one before was answered or not.
async fn paced(scratch: &Path, time: Duration) -> anyhow::Result<Samples> {
    let folder = scratch.join("paced");
    let store = EventStore::open(&folder, Options::default()).context("opening a fresh store")?;
    let mut tick = tokio::time::interval(Duration::from_millis(1));
    let mut tasks = tokio::task::JoinSet::new();
    let begin = Instant::now();
    for turn in 0.. {
        let turn: usize = turn;
        if begin.elapsed() >= time {
            break;
        }
        tick.tick().await;
        let store = store.clone();
        tasks.spawn(async move {
            let asked = Instant::now();
            append(&store, vec![event(turn % NODES, turn / NODES)]).await?;
            anyhow::Ok(asked.elapsed())
        });
    }
    let mut acks = Vec::new();
    while let Some(done) = tasks.join_next().await {
        acks.push(done??);
    }
    store.close();
    std::fs::remove_dir_all(&folder).ok();
    Ok(acks.into_iter().collect())
}

async fn append(store: &EventStore, events: Vec<NewEvent>) -> anyhow::Result<()> {
    let appended = store.append(events).await?;
    let stored = |a: &event_store::Appended| matches!(a.outcome, Outcome::Stored(_));
    ensure!(
        appended.iter().all(stored),
        "an event was not stored: {appended:?}"
    );
    Ok(())
}

/// The event of one node in one round: its GPU falls ill and recovers in turn, so that each event
/// is stored and changes a fault.
fn event(index: usize, round: usize) -> NewEvent {
    let node = NodeName::new(&format!("gpu-{index:05}")).expect("a DNS label");
    let now = Timestamp::now();
    let event = HealthEvent {
        id: format!("{index:013}{round:013}"),
        version: 1,
        agent: checks::SYSLOG_AGENT.to_owned(),
        component_class: "GPU".to_owned(),
        check_name: checks::XID.to_owned(),
        is_fatal: round.is_multiple_of(2),
        is_healthy: !round.is_multiple_of(2),
        message: "NVRM: Xid (PCI:0000:17:00): 79, pid=4242, name=train.py, GPU has fallen off \
                  the bus."
            .to_owned(),
        recommended_action: RecommendedAction::RestartBm,
        error_codes: vec!["79".to_owned()],
        entities: vec![Entity::new("PCI", "0000:17:00")],
        generated_at: Some(now),
        node_name: node.to_string(),
        ..HealthEvent::default()
    };
    let body = wire::encode_body(&event);
    NewEvent {
        sender: Sender::agent(node.as_str()),
        fingerprint: Fingerprint::of(&body),
        subject: health_event::Subject::Node(node),
        machine: format!("machine-{index}"),
        order: Some(order(index, round)),
        received_at: now,
        body,
        asserted_by_agent: round.is_multiple_of(2),
        newest_counts: false,
        inclusive: false,
        out_of_turn: false,
        standing: event_store::Standing::Counts,
        event,
    }
}

fn order(index: usize, round: usize) -> health_event::Order {
    let text = format!("boot-{index}/spool-{index}/{}", round + 1);
    text.parse().expect("boot, spool and number")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_event_is_stored() {
        let folder = tempfile::tempdir().unwrap();
        let time = Duration::from_millis(50);
        let (_, acks) = load(folder.path(), "one", 4, 1, time).await.unwrap();
        assert!(acks.len() > 1);
        let (_, acks) = load(folder.path(), "hundred", 2, 100, time).await.unwrap();
        assert!(acks.len() > 0);
    }
}
