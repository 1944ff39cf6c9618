//! The moments of each node on its way through all stages.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use anyhow::bail;
use futures::{StreamExt as _, TryStreamExt as _};
use testbed::{NodeSpec, Rpc, SimProvider};
use tokio::sync::oneshot;

use super::{Clock, stored_at};
use crate::cluster::Cluster;
use crate::raw::AT_ONCE;
use crate::seen::{Change, Changes, What};

/// A moment on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mark {
    /// Its agent sent the fault.
    Ill,
    /// Out of scheduling.
    Cordoned,
    /// Its last pod is gone.
    Emptied,
    /// The drain is over, as stored.
    Drained,
    /// The order of its reboot is there.
    Ordered,
    /// The provider got the signal.
    Signalled,
    /// Ready in another boot.
    Back,
    /// The order says that it is over.
    Over,
    /// Its agent said that it is settled in that boot, and that the fault is gone.
    Settled,
    /// In scheduling again.
    Released,
}

/// The marks of one node.
pub(super) type Marks = BTreeMap<Mark, Instant>;

/// What is followed: the nodes by name, each with its pods and its place.
pub(super) struct Following {
    nodes: HashMap<String, usize>,
    marks: Vec<Marks>,
    pods: Vec<usize>,
    /// Tells the agent of a node in which boot it is.
    tell: Vec<Option<oneshot::Sender<String>>>,
    released: BTreeSet<usize>,
}

impl Following {
    /// Of nodes that were not rebooted before, with so many pods each; and what tells their agents.
    pub(super) fn new(nodes: &[String], pods: usize) -> (Self, Vec<oneshot::Receiver<String>>) {
        let (tell, told): (Vec<_>, Vec<_>) = nodes
            .iter()
            .map(|_| oneshot::channel())
            .map(|(tell, told)| (Some(tell), told))
            .unzip();
        let numbered = nodes.iter().cloned().enumerate();
        let following = Self {
            nodes: numbered.map(|(place, node)| (node, place)).collect(),
            marks: vec![Marks::new(); nodes.len()],
            pods: vec![pods; nodes.len()],
            tell,
            released: BTreeSet::new(),
        };
        (following, told)
    }

    /// Follows all of them until the last is released.
    ///
    /// # Errors
    /// They are not, in time: the text says how many came how far.
    pub(super) async fn run(
        mut self,
        changes: &mut Changes,
        time: Duration,
    ) -> anyhow::Result<Vec<Marks>> {
        let deadline = Instant::now() + time;
        while self.released.len() < self.marks.len() {
            match changes.next(deadline, "all nodes to be released").await {
                Ok(change) => self.take(change),
                Err(error) => bail!("{error:#}; {}", self.so_far()),
            }
        }
        Ok(self.marks)
    }

    fn take(&mut self, change: Change) {
        let Some(place) = self.nodes.get(&change.node).copied() else {
            return;
        };
        let marks = &mut self.marks[place];
        let at = change.at;
        let set = |marks: &mut Marks, mark| {
            marks.entry(mark).or_insert(at);
        };
        match change.what {
            What::PodGone { raw: false } => {
                let left = &mut self.pods[place];
                *left = left.saturating_sub(1);
                if *left == 0 {
                    set(marks, Mark::Emptied);
                }
            }
            What::Order { over, .. } => {
                set(marks, Mark::Ordered);
                if over {
                    set(marks, Mark::Over);
                }
            }
            What::Node(look) if look.cordoned => {
                set(marks, Mark::Cordoned);
                let first = NodeSpec::new(&*change.node).boot_id;
                if look.boot != first && look.holds.contains("Ready") {
                    set(marks, Mark::Back);
                    if let Some(tell) = self.tell[place].take() {
                        // The agent may have ended with an error of its own.
                        tell.send(look.boot).ok();
                    }
                }
            }
            What::Node(_) if marks.contains_key(&Mark::Back) => {
                set(marks, Mark::Released);
                self.released.insert(place);
            }
            What::Node(_) | What::Event | What::PodGone { raw: true } => {}
        }
    }

    /// How many nodes came how far.
    fn so_far(&self) -> String {
        let mut counts: BTreeMap<Mark, usize> = BTreeMap::new();
        for mark in self.marks.iter().flat_map(BTreeMap::keys) {
            *counts.entry(*mark).or_default() += 1;
        }
        format!("of {} nodes: {counts:?}", self.marks.len())
    }
}

/// Adds what the watches don't show: when each drain was stored, and when the provider got each signal.
///
/// # Errors
/// The controller's API does not tell.
pub(super) async fn complete(
    cluster: &Cluster,
    provider: &SimProvider,
    clock: Clock,
    (nodes, marks): (&[String], &mut [Marks]),
) -> anyhow::Result<()> {
    let stored: Vec<Instant> = futures::stream::iter(nodes)
        .map(async |node| {
            let at = stored_at(cluster, node, ("drain", "Drained")).await?;
            anyhow::Ok(clock.instant_of(at))
        })
        .buffered(AT_ONCE)
        .try_collect()
        .await?;
    let mut signals: HashMap<String, Instant> = HashMap::new();
    for call in provider.calls() {
        let at = clock.instant_of(call.at);
        if call.rpc == Rpc::Reboot && at >= clock.instant {
            signals.entry(call.node).or_insert(at);
        }
    }
    for ((node, marks), stored) in nodes.iter().zip(marks).zip(stored) {
        marks.insert(Mark::Drained, stored);
        if let Some(at) = signals.get(node) {
            marks.insert(Mark::Signalled, *at);
        }
    }
    Ok(())
}

/// From one mark to another of each node that has both; zero where the later clock is behind.
pub(super) fn spans(all: &[Marks], from: Mark, to: Mark) -> impl Iterator<Item = Duration> {
    all.iter().filter_map(move |marks| {
        let (from, to) = (marks.get(&from)?, marks.get(&to)?);
        Some(to.saturating_duration_since(*from))
    })
}
