//! Many silent nodes at once.

use std::collections::BTreeMap;

use health_event::NodeName;
use jiff::{SignedDuration, Timestamp};

/// When many nodes of a pool fall silent at once, that is one fault of the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SilentConfig {
    /// Share of the pool, in percent, 1 to 100. Default 20.
    pub share_percent: u32,
    /// Fewer nodes than this are never a fault of the pool. Default 3.
    pub min_nodes: usize,
    /// Time within which they fell silent. Default 5 min.
    pub window: SignedDuration,
    /// Nobody counts as silent until this time (three intervals after the controller's start).
    pub not_before: Timestamp,
}

/// The nodes that fell silent together, if they are so many that it is a fault of the pool.
/// `silent_since` has the nodes of the pool that are silent or NotReady, and since when.
pub fn silent_share(
    config: &SilentConfig,
    pool_size: usize,
    silent_since: &BTreeMap<NodeName, Timestamp>,
    now: Timestamp,
) -> Option<Vec<NodeName>> {
    if now < config.not_before {
        return None;
    }
    let percent = usize::try_from(config.share_percent).unwrap_or(usize::MAX);
    let share = pool_size.saturating_mul(percent).div_ceil(100);
    let needed = share.max(config.min_nodes).max(1);
    let mut since: Vec<(Timestamp, &NodeName)> =
        silent_since.iter().map(|(node, at)| (*at, node)).collect();
    since.sort();
    // The newest stretch of the window's length that is crowded enough.
    let crowded = since.windows(needed).rev().find(|together| {
        let (first, last) = (together[0].0, together[needed - 1].0);
        last.duration_since(first) <= config.window
    })?;
    let (from, to) = (crowded[0].0, crowded[needed - 1].0);
    let in_it =
        |at: &Timestamp| from <= *at && at.duration_since(from) <= config.window || *at == to;
    let nodes = silent_since.iter().filter(|(_, at)| in_it(at));
    Some(nodes.map(|(node, _)| node.clone()).collect())
}
