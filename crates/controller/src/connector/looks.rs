//! Follows what drains wait for, and reboots of the controller's own node: core/v1 Events on their nodes, written as those of health events are.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use decide::connector::{controller_here_post, drain_posts};
use health_event::NodeName;
use health_event::incident::DrainStatus;
use jiff::Timestamp;
use tokio::time::Instant;
use tracing::warn;

use super::events::{FIRST_PAUSE, Follower, Said};
use crate::kubernetes::jittered;

/// Between two Events about the same node's pods, where what it waits for changes fast.
const BETWEEN: Duration = Duration::from_secs(15);

impl Follower {
    /// Follows until the future is dropped.
    pub(super) async fn run_looks(&self) {
        let mut told: HashMap<NodeName, Instant> = HashMap::new();
        let mut waiting = BTreeSet::new();
        loop {
            let due_at = |node: &NodeName| told.get(node).map(|at| *at + BETWEEN);
            let next = waiting.iter().filter_map(due_at).min();
            let sleep = tokio::time::sleep_until(next.unwrap_or_else(Instant::now));
            tokio::select! {
                changed = self.context.stages.pods_changed() => waiting.extend(changed),
                () = sleep, if next.is_some() => {}
            }
            let now = Instant::now();
            told.retain(|_, at| *at + BETWEEN > now);
            let due = waiting.extract_if(.., |node| !told.contains_key(node));
            let due: Vec<NodeName> = due.collect();
            let mut said = BTreeMap::new();
            for node in &due {
                let reboots = self.say_of_reboot(node, &mut said);
                if self.say_of_pods(node, &mut said) || reboots {
                    told.insert(node.clone(), now);
                }
            }
            if let Err(why) = self.write_all(said).await {
                warn!(why, "Events of drains are not written; tried again");
                told.retain(|node, _| !due.contains(node));
                waiting.extend(due);
                tokio::time::sleep(jittered(FIRST_PAUSE)).await;
            } else {
                for node in &due {
                    self.context.stages.told_controller_here(node);
                }
            }
        }
    }

    /// Answers whether there is anything to say.
    fn say_of_reboot(
        &self,
        node: &NodeName,
        said: &mut BTreeMap<decide::connector::AggregationKey, Said>,
    ) -> bool {
        let Some(object) = self.context.stages.controller_here(node) else {
            return false;
        };
        let at = Timestamp::now();
        Said::add(
            said,
            controller_here_post(node.as_str(), &object, at),
            seq(at),
        );
        true
    }

    /// Answers whether there is anything to say.
    fn say_of_pods(
        &self,
        node: &NodeName,
        said: &mut BTreeMap<decide::connector::AggregationKey, Said>,
    ) -> bool {
        // In dry run nobody waits.
        let open = self.context.store.open_incidents_of(node);
        let drains = open.is_ok_and(|open| {
            let mut drains = open.iter().filter_map(|one| one.drain.as_ref());
            drains.any(|drain| matches!(drain.status, DrainStatus::Draining(_)))
        });
        let Some(look) = self.context.stages.pods(node).filter(|_| drains) else {
            return false;
        };
        let at = Timestamp::now();
        let posts = drain_posts(node.as_str(), &look.blockers, at);
        let says = !posts.is_empty();
        for post in posts {
            Said::add(said, post, seq(at));
        }
        says
    }
}

/// Rising, also over a restart.
fn seq(at: Timestamp) -> u64 {
    u64::try_from(at.as_millisecond()).unwrap_or_default()
}
