//! Nodes with as many open faults as a node may have: a fault of its own, so that people see it
//! wherever faults are shown; no rule set acts on it.

use std::collections::BTreeMap;

use event_store::bounds::{AGENT, NODE};
use event_store::{EventStore, NewEvent, ReadError, Unopened};
use health_event::checks::{TOO_MANY_FAULTS, WARDEN_AGENT};
use health_event::{NodeName, Subject};
use jiff::{SignedDuration, Timestamp};
use telemetry::ControllerMetrics;
use telemetry::events::FaultsUnopened;
use tracing::warn;

use crate::ingest::own_event;
use crate::nodes::NodeCache;

/// Nodes that are looked at: one bad monitor is usual, a bad image on all nodes is not.
const NODES: usize = 1_000;
/// The fault ends when nothing was left unopened for this long.
const OVER_AFTER: SignedDuration = SignedDuration::from_mins(10);

/// The watch over them.
#[derive(Debug)]
pub(super) struct Crowded {
    /// Whether there may be open faults of this kind.
    any: bool,
}

impl Crowded {
    pub(super) fn new() -> Self {
        Self { any: true }
    }

    /// Opens and closes the faults of the nodes that there are. What can't be stored is tried with the
    /// next look.
    ///
    /// # Errors
    /// The store can't be read.
    pub(super) async fn look(
        &mut self,
        store: &EventStore,
        nodes: &NodeCache,
        metrics: &ControllerMetrics,
        now: Timestamp,
    ) -> Result<(), ReadError> {
        let mut crowded = store.unopened(NODES)?;
        crowded.retain(|one| {
            now.duration_since(one.at) < OVER_AFTER && nodes.get(&one.node).is_some()
        });
        let count = i64::try_from(crowded.len()).unwrap_or(i64::MAX);
        metrics.nodes_with_too_many_faults.set(count);
        if crowded.is_empty() && !self.any {
            return Ok(());
        }
        let open = store.open_faults_of_check(WARDEN_AGENT, TOO_MANY_FAULTS)?;
        let open: BTreeMap<NodeName, Timestamp> = open
            .into_iter()
            .filter_map(|fault| match fault.id.scope.subject {
                Subject::Node(node) => Some((node, fault.last_at)),
                Subject::Pool(_) | Subject::Cluster => None,
            })
            .collect();
        let events = changes(&crowded, &open, now);
        self.any = !open.is_empty() || !events.is_empty();
        if events.is_empty() {
            return Ok(());
        }
        if let Err(error) = store.append(events).await {
            warn!(code = error.code(), %error, "which nodes have too many faults is not stored");
            return Ok(());
        }
        for one in crowded.iter().filter(|one| !open.contains_key(&one.node)) {
            FaultsUnopened {
                node: one.node.as_str(),
                agent: &one.agent,
                check: &one.check_name,
                events: one.events,
            }
            .emit();
        }
        Ok(())
    }
}

/// What opens, is told anew for its count, or is over. `open`: when each was told last.
fn changes(
    crowded: &[Unopened],
    open: &BTreeMap<NodeName, Timestamp>,
    now: Timestamp,
) -> Vec<NewEvent> {
    let event = |node: &NodeName, healthy, message| {
        own_event(
            Subject::Node(node.clone()),
            TOO_MANY_FAULTS,
            healthy,
            message,
            now,
        )
    };
    let is_told = |one: &&Unopened| {
        let told = open.get(&one.node);
        !told.is_some_and(|at| one.at <= *at || now.duration_since(*at) < OVER_AFTER)
    };
    let told = crowded.iter().filter(is_told);
    let told = told.map(|one| event(&one.node, false, message(one)));
    let over = open
        .keys()
        .filter(|node| crowded.iter().all(|one| one.node != **node));
    let over = over.map(|node| {
        let text = "no event was left without a fault for 10 min";
        event(node, true, text.to_owned())
    });
    told.chain(over).collect()
}

fn message(one: &Unopened) -> String {
    format!(
        "{} events of this node since {} are stored and opened no fault, or not all that they named, \
         the last of {}, check {}: {AGENT} faults of one agent and {NODE} of a node may be open, a \
         quarter of them fatal ones only. Look for a monitor that makes up codes, devices or checks; \
         when its faults are closed, what it says then opens again",
        one.events, one.since, one.agent, one.check_name
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    fn unopened(node: &str, last: i64) -> Unopened {
        Unopened {
            node: NodeName::new(node).unwrap(),
            agent: "bad".into(),
            check_name: "Flood".into(),
            events: 7,
            since: at(0),
            at: at(last),
        }
    }

    #[test]
    fn a_crowded_node_is_told_once_again_while_it_goes_on_and_when_it_is_over() {
        let name = |node: &str| NodeName::new(node).unwrap();
        let crowded = [unopened("a", 700), unopened("b", 700), unopened("c", 50)];
        // b was told a moment ago, c after its last, d is over.
        let open = [("b", 650), ("c", 60), ("d", 1)];
        let open = open.map(|(node, told)| (name(node), at(told))).into();
        let said: Vec<(String, bool)> = changes(&crowded, &open, at(701))
            .into_iter()
            .map(|new| (new.event.node_name, new.event.is_healthy))
            .collect();
        assert_eq!(said, [("a".to_owned(), false), ("d".to_owned(), true)]);
        let later = changes(&crowded, &open, at(1_250));
        assert!(later.iter().any(|new| new.event.node_name == "b"));
        let text = &later[0].event.message;
        assert!(
            text.contains("7 events") && text.contains("bad, check Flood"),
            "{text}"
        );
    }
}
