//! The nodes by name, and how many each pool has.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use health_event::NodeName;
use telemetry::ControllerMetrics;
use tokio::sync::{Notify, watch};

use super::{NodeFacts, Wanted};

/// Name of the pool of all nodes that no selector takes.
pub const OTHER_POOL: &str = "other";

/// A pool of the breaker: the nodes with this label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Name in the store, in metrics and for people.
    pub name: String,
    /// Key of the label.
    pub label: String,
    /// Its value.
    pub value: String,
}

/// What is kept of a node, and how many times that grew.
#[derive(Debug, Clone)]
pub(super) struct Wants {
    pub(super) number: u64,
    pub(super) wanted: Arc<Wanted>,
}

/// All nodes. Cheap to clone; all clones are one cache.
#[derive(Debug, Clone)]
pub struct NodeCache(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    pools: Vec<Pool>,
    nodes: RwLock<Nodes>,
    wants: watch::Sender<Wants>,
    /// Number of the wants that the last complete list was read with; 0 before the first.
    synced: watch::Sender<u64>,
    /// One permit: a node came to carry the reference's marks.
    marked_by_others: Notify,
    /// Where watches that ended and were resumed are counted.
    metrics: OnceLock<Arc<ControllerMetrics>>,
}

#[derive(Debug)]
struct Nodes {
    by_name: HashMap<NodeName, Arc<NodeFacts>>,
    /// Nodes by pool, in the order of the pools; the last is [`OTHER_POOL`].
    counts: Vec<usize>,
    /// Pools, by their place in `counts`, of nodes that have an open incident there.
    kept: HashMap<NodeName, usize>,
}

impl NodeCache {
    /// An empty cache that keeps `wanted` of each node; [`super::watch::run`] fills it. The first of
    /// `pools` whose label a node has is its pool.
    pub fn new(pools: Vec<Pool>, wanted: Wanted) -> Self {
        let counts = vec![0; pools.len() + 1];
        Self(Arc::new(Shared {
            pools,
            nodes: RwLock::new(Nodes {
                by_name: HashMap::new(),
                counts,
                kept: HashMap::new(),
            }),
            wants: watch::Sender::new(Wants {
                number: 1,
                wanted: Arc::new(wanted),
            }),
            synced: watch::Sender::new(0),
            marked_by_others: Notify::new(),
            metrics: OnceLock::new(),
        }))
    }

    /// The pool of a node by its labels.
    pub fn pool_of(&self, node: &NodeFacts) -> &str {
        self.0
            .pools
            .get(self.pool_index(node))
            .map_or(OTHER_POOL, |pool| &pool.name)
    }

    /// Nodes in the pool of this name now; none in one that does not exist. One with an open
    /// incident is in that incident's pool, see [`NodeCache::keep_pool`].
    pub fn pool_size(&self, pool: &str) -> usize {
        let index = self.index_of(pool);
        index
            .and_then(|index| self.read().counts.get(index).copied())
            .unwrap_or_default()
    }

    /// Counts a node in the pool of its open incident, whatever its labels become; without one, by
    /// its labels again. A pool that is not configured any more holds nobody.
    pub fn keep_pool(&self, node: &NodeName, pool: Option<&str>) {
        let pool = pool.and_then(|pool| self.index_of(pool));
        if self.read().kept.get(node).copied() == pool {
            return;
        }
        let mut nodes = self.write();
        let before = nodes.kept.get(node).copied();
        let labelled = nodes.by_name.get(node).map(|node| self.pool_index(node));
        if let Some(labelled) = labelled {
            nodes.counts[before.unwrap_or(labelled)] -= 1;
            nodes.counts[pool.unwrap_or(labelled)] += 1;
        }
        match pool {
            Some(pool) => nodes.kept.insert(node.clone(), pool),
            None => nodes.kept.remove(node),
        };
    }

    fn index_of(&self, pool: &str) -> Option<usize> {
        let index = self.0.pools.iter().position(|p| p.name == pool);
        index.or_else(|| (pool == OTHER_POOL).then_some(self.0.pools.len()))
    }

    /// The names of all pools.
    pub fn pool_names(&self) -> impl Iterator<Item = &str> {
        self.0
            .pools
            .iter()
            .map(|pool| pool.name.as_str())
            .chain([OTHER_POOL])
    }

    fn pool_index(&self, node: &NodeFacts) -> usize {
        let has = |pool: &Pool| node.label(&pool.label) == Some(&pool.value);
        self.0
            .pools
            .iter()
            .position(has)
            .unwrap_or(self.0.pools.len())
    }

    /// The node of this name, as last seen.
    pub fn get(&self, name: &NodeName) -> Option<Arc<NodeFacts>> {
        self.read().by_name.get(name).cloned()
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.read().by_name.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The names of all nodes.
    pub fn names(&self) -> Vec<NodeName> {
        self.read().by_name.keys().cloned().collect()
    }

    /// All nodes, as last seen.
    pub fn all(&self) -> Vec<Arc<NodeFacts>> {
        self.read().by_name.values().cloned().collect()
    }

    /// Whether all nodes of the API server were seen once.
    pub fn is_synced(&self) -> bool {
        *self.0.synced.borrow() > 0
    }

    /// Waits until all nodes of the API server were seen once.
    pub async fn synced(&self) {
        // The sender lives in self, so that waiting can't fail.
        drop(
            self.0
                .synced
                .subscribe()
                .wait_for(|synced| *synced > 0)
                .await,
        );
    }

    /// Keeps this too from now on, and waits until all nodes were read with it. What was kept before
    /// stays kept.
    pub async fn want(&self, more: &Wanted) {
        let mut number = 0;
        self.0.wants.send_if_modified(|wants| {
            let both = wants.wanted.with(more);
            let grows = both != *wants.wanted;
            if grows {
                wants.number += 1;
                wants.wanted = Arc::new(both);
            }
            number = wants.number;
            grows
        });
        let mut synced = self.0.synced.subscribe();
        // The sender lives in self, so that waiting can't fail.
        drop(synced.wait_for(|synced| *synced >= number).await);
    }

    /// What is kept of each node.
    pub(super) fn wants(&self) -> watch::Receiver<Wants> {
        self.0.wants.subscribe()
    }

    /// Waits until a node came to carry the reference's marks and not ours: once for all that did
    /// since the last wait. For one waiter.
    pub(crate) async fn marked_by_others(&self) {
        self.0.marked_by_others.notified().await;
    }

    /// Counts the watches that ended and were resumed there; the first one named stays.
    pub fn count_restarts(&self, metrics: &Arc<ControllerMetrics>) {
        // A second module names the same one.
        let _ = self.0.metrics.set(Arc::clone(metrics));
    }

    pub(super) fn restarted(&self) {
        if let Some(metrics) = self.0.metrics.get() {
            metrics.watch_restarts.inc();
        }
    }

    /// Takes a node in; answers whether anything about it is new. An older version than the known
    /// one counts only from a list: a direct read may be ahead of the watch, and an API server
    /// that was restored from a backup is behind.
    pub(super) fn put(&self, mut node: NodeFacts, from_list: bool) -> bool {
        let mut nodes = self.write();
        let known = nodes.by_name.get(&node.name);
        if !from_list
            && known.is_some_and(|known| {
                known.uid == node.uid && known.resource_version > node.resource_version
            })
        {
            return false;
        }
        let is_new = known.is_none_or(|known| {
            // Every heart-beat makes a version; alone it is nothing new.
            let version = std::mem::replace(&mut node.resource_version, known.resource_version);
            let differs = node != **known;
            node.resource_version = version;
            differs
        });
        let marked = |node: &NodeFacts| node.foreign_marks().next().is_some();
        if is_new && marked(&node) && !known.is_some_and(|known| marked(known)) {
            self.0.marked_by_others.notify_one();
        }
        let kept = nodes.kept.get(&node.name).copied();
        let counted = |node: &NodeFacts| kept.unwrap_or_else(|| self.pool_index(node));
        let (before, after) = (known.map(|n| counted(n)), counted(&node));
        if let Some(before) = before {
            nodes.counts[before] -= 1;
        }
        nodes.counts[after] += 1;
        nodes.by_name.insert(node.name.clone(), Arc::new(node));
        is_new
    }

    /// Takes a node in that was read beside the watch, unless the watch is ahead.
    pub(super) fn put_if_newer(&self, node: NodeFacts) {
        let newer = |known: Arc<NodeFacts>| known.resource_version < node.resource_version;
        // One that the cache does not have may be deleted already: the watch says.
        if self.get(&node.name).is_some_and(newer) {
            self.put(node, false);
        }
    }

    pub(super) fn remove(&self, name: &NodeName) -> bool {
        let mut nodes = self.write();
        let Some(node) = nodes.by_name.remove(name) else {
            return false;
        };
        let kept = nodes.kept.get(name).copied();
        nodes.counts[kept.unwrap_or_else(|| self.pool_index(&node))] -= 1;
        true
    }

    /// After a complete list, read with the wants of this number: what it did not name goes. Answers
    /// those names.
    pub(super) fn complete(&self, seen: &BTreeSet<NodeName>, wants: u64) -> Vec<NodeName> {
        let gone: Vec<NodeName> = self
            .read()
            .by_name
            .keys()
            .filter(|name| !seen.contains(*name))
            .cloned()
            .collect();
        for name in &gone {
            self.remove(name);
        }
        self.0.synced.send_replace(wants);
        gone
    }

    fn read(&self) -> RwLockReadGuard<'_, Nodes> {
        self.0.nodes.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Nodes> {
        self.0.nodes.write().unwrap_or_else(PoisonError::into_inner)
    }
}
