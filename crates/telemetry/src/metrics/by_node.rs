//! Series of nodes, which go with their node: else every node that ever was would stay on the page.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::{MetricType, TypedMetric};

use super::labels::{LabelNames, OfNode};

/// A metric with series of nodes. Cheap to clone; all clones are one.
#[derive(Debug)]
pub struct ByNode<L, M>(Arc<RwLock<Nodes<L, M>>>);

/// The series of each node, by its name; a node without one is not in it.
type Nodes<L, M> = HashMap<String, HashMap<L, M>>;

impl<L, M> Default for ByNode<L, M> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<L, M> Clone for ByNode<L, M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<L: OfNode, M: Clone + Default> ByNode<L, M> {
    /// The series of these labels, which is there from then on.
    pub fn get_or_create(&self, labels: &L) -> M {
        if let Some(series) = self.read().get(labels.node()).and_then(|of| of.get(labels)) {
            return series.clone();
        }
        let mut nodes = self.write();
        let of_node = nodes.entry(labels.node().to_owned()).or_default();
        of_node.entry(labels.clone()).or_default().clone()
    }

    /// Takes the series of these labels away; answers whether there was one.
    pub fn remove(&self, labels: &L) -> bool {
        let mut nodes = self.write();
        let Some(of_node) = nodes.get_mut(labels.node()) else {
            return false;
        };
        let was_there = of_node.remove(labels).is_some();
        if of_node.is_empty() {
            nodes.remove(labels.node());
        }
        was_there
    }
}

impl<L, M> ByNode<L, M> {
    fn read(&self) -> RwLockReadGuard<'_, Nodes<L, M>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Nodes<L, M>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<L, M> EncodeMetric for ByNode<L, M>
where
    L: Clone + Eq + Hash + EncodeLabelSet,
    M: EncodeMetric + TypedMetric,
{
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (labels, series) in self.read().values().flatten() {
            series.encode(encoder.encode_family(labels)?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }

    fn is_empty(&self) -> bool {
        self.read().is_empty()
    }
}

impl<L: LabelNames, M> LabelNames for ByNode<L, M> {
    const NAMES: &'static [&'static str] = L::NAMES;
}

/// Metrics of which the series of a node can be taken away.
pub(super) trait Forgets: fmt::Debug + Send + Sync {
    /// Adds the names of all nodes that have a series.
    fn add_nodes(&self, to: &mut BTreeSet<String>);
    /// Takes all series of a node away.
    fn forget(&self, node: &str);
}

impl<L, M> Forgets for ByNode<L, M>
where
    L: fmt::Debug + Send + Sync,
    M: fmt::Debug + Send + Sync,
{
    fn add_nodes(&self, to: &mut BTreeSet<String>) {
        to.extend(self.read().keys().cloned());
    }

    fn forget(&self, node: &str) {
        self.write().remove(node);
    }
}
