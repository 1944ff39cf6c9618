//! The watches that feed the wanted nodes.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use health_event::NodeName;
use jiff::Timestamp;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};
use tracing::info;

use super::{FeedId, MOST_OWN_WATCHES, Pods};
use crate::kubernetes::{Change, Collection, Kube, follow, jittered, percent_encoded};
use crate::workers::Workers;

/// Below this many wanted nodes each has its own watch again: well below [`MOST_OWN_WATCHES`], so
/// that one node more or less does not list all pods anew each time.
const BACK_TO_OWN: usize = MOST_OWN_WATCHES * 3 / 4;
/// First pause before a watch that failed is begun anew; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Shortest time between two watches over all pods, each of which lists them all and makes old what was
/// known until it has. A thousand nodes are cordoned within 3 s or so: with this they are listed twice or
/// three times instead of 15 times, and meanwhile the pods of the nodes that are seen, those of
/// [`MOST_OWN_WATCHES`] and of the watch before, are more than the 500 that an API server evicts in that
/// time.
const ALL_AGAIN: Duration = Duration::from_secs(2);
const PATH: &str = "/api/v1/pods";

/// What feeds which nodes.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Number of the last watch begun.
    last: FeedId,
    own: BTreeMap<NodeName, FeedId>,
    /// The one over all pods.
    all: Option<FeedId>,
    /// When the last one of those began.
    all_since: Option<Instant>,
}

/// What is to be done so that each wanted node has its watch.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Steps {
    pub(super) end: Vec<FeedId>,
    pub(super) own: Vec<(NodeName, FeedId)>,
    pub(super) all: Option<FeedId>,
    /// Some wanted nodes have no watch yet: when to look again.
    pub(super) again_at: Option<Instant>,
}

impl Plan {
    /// Gives each wanted node that has no watch one, now or at [`Steps::again_at`]; ends what nobody needs.
    pub(super) fn follow(&mut self, pods: &Pods, now: Instant) -> Steps {
        let mut nodes = pods.lock();
        let mut steps = Steps::default();
        // One that was let go and is wanted again is another entry.
        let fed_now = |node: &NodeName| nodes.get(node).and_then(|entry| entry.feed);
        let gone = self
            .own
            .extract_if(.., |node, feed| fed_now(node) != Some(*feed));
        steps.end.extend(gone.map(|(_, feed)| feed));
        if self.all.is_some() && nodes.len() <= BACK_TO_OWN {
            steps.end.extend(self.all.take());
        }
        let is_fed = |(node, entry): &(&NodeName, &super::Entry)| {
            let all = self.all.is_some() && entry.feed == self.all;
            all || self.own.contains_key(*node)
        };
        let missing = nodes.iter().filter(|pair| !is_fed(pair));
        let mut missing: Vec<NodeName> = missing.map(|(node, _)| node.clone()).collect();
        let again_at = self.all_since.map(|since| since + ALL_AGAIN);
        let too_many = self.own.len() + missing.len() > MOST_OWN_WATCHES;
        if too_many && again_at.is_some_and(|at| now < at) {
            missing.truncate(MOST_OWN_WATCHES - self.own.len());
            steps.again_at = again_at;
        } else if too_many {
            self.all_since = Some(now);
            steps
                .end
                .extend(std::mem::take(&mut self.own).into_values());
            steps.end.extend(self.all.take());
            let feed = self.next();
            (self.all, steps.all) = (Some(feed), Some(feed));
            missing.clear();
            for entry in nodes.values_mut() {
                entry.fed_by(feed);
            }
        }
        for node in missing {
            let feed = self.next();
            if let Some(entry) = nodes.get_mut(&node) {
                entry.fed_by(feed);
            }
            self.own.insert(node.clone(), feed);
            steps.own.push((node, feed));
        }
        steps
    }

    fn next(&mut self) -> FeedId {
        self.last += 1;
        self.last
    }
}

impl super::Entry {
    /// What is known is old until the new watch has listed.
    fn fed_by(&mut self, feed: FeedId) {
        self.feed = Some(feed);
        self.listing = None;
        self.old_since.get_or_insert_with(Timestamp::now);
    }
}

impl Pods {
    /// Feeds the wanted nodes until the future is dropped; each change wakes its node.
    pub(crate) async fn run(&self, kube: &Kube, wakes: &Workers) -> Infallible {
        let mut plan = Plan::default();
        let mut tasks: JoinSet<()> = JoinSet::new();
        let mut running: BTreeMap<FeedId, AbortHandle> = BTreeMap::new();
        loop {
            let steps = plan.follow(self, Instant::now());
            let again_at = steps.again_at;
            for feed in steps.end {
                if let Some(task) = running.remove(&feed) {
                    task.abort();
                }
            }
            let all = steps.all.map(|feed| (of_all(), feed));
            let own = steps.own.into_iter();
            for (of, feed) in own.map(|(node, feed)| (of_node(&node), feed)).chain(all) {
                if of.selectors.is_empty() {
                    info!(nodes = self.wanted(), "one watch over all pods from now on");
                }
                let feeding = feed_from(self.clone(), kube.clone(), wakes.clone(), of, feed);
                running.insert(feed, tasks.spawn(feeding));
            }
            tokio::select! {
                () = self.0.changed.notified() => {}
                () = sleep_until(again_at.unwrap_or_else(Instant::now)), if again_at.is_some() => {}
                Some(ended) = tasks.join_next() => {
                    // Aborted ones end, the others never do.
                    if let Some(panic) = ended.err().and_then(|e| e.try_into_panic().ok()) {
                        std::panic::resume_unwind(panic);
                    }
                }
            }
        }
    }
}

fn of_node(node: &NodeName) -> Collection {
    Collection {
        what: format!("pods of node {node}"),
        path: PATH,
        selectors: format!(
            "&fieldSelector=spec.nodeName%3D{}",
            percent_encoded(node.as_str())
        ),
    }
}

fn of_all() -> Collection {
    Collection {
        what: "pods".to_owned(),
        path: PATH,
        selectors: String::new(),
    }
}

/// One watch. After a failure it begins anew with a list: where a watch goes on, the first line may
/// be one of many that were missed, and nothing says which is the last.
async fn feed_from(pods: Pods, kube: Kube, wakes: Workers, of: Collection, feed: FeedId) {
    let mut pause = FIRST_PAUSE;
    loop {
        let failed = Notify::new();
        let listed = Notify::new();
        let take = |change| {
            match &change {
                Change::Failed(_) => failed.notify_one(),
                Change::Listed => listed.notify_one(),
                Change::Listing | Change::Put(_) | Change::Gone(_) => {}
            }
            for node in pods.take(feed, change, Timestamp::now()) {
                wakes.wake(&node);
            }
        };
        let mut brought = false;
        let following = async { match follow(&kube, &of, take).await {} };
        tokio::pin!(following);
        loop {
            tokio::select! {
                () = &mut following => pending().await,
                () = listed.notified() => brought = true,
                () = failed.notified() => break,
            }
        }
        if brought {
            pause = FIRST_PAUSE;
        }
        tokio::time::sleep(jittered(pause)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Nodes with a watch of their own, for tests.
#[cfg(test)]
pub(super) fn own_of(plan: &Plan) -> std::collections::BTreeSet<&NodeName> {
    plan.own.keys().collect()
}
