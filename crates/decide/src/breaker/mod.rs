//! How many nodes of a pool may be out.

use std::collections::{BTreeMap, VecDeque};

use health_event::NodeName;
use health_event::incident::Bound;
use jiff::{SignedDuration, Timestamp};

/// Settings of one pool; checked by [`Config::check`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Off: everything is permitted, and nothing is counted.
    pub enabled: bool,
    /// Percentage of the pool that may be out at one time, 1 to 100. Default 50.
    pub level_percent: u32,
    /// Number of nodes that may be out at one time, if smaller.
    pub level_nodes: Option<u32>,
    /// Percentage of the pool that may be newly taken out in the window, 1 to 100. Default 50.
    pub rate_percent: u32,
    /// Number of nodes newly taken out in the window, if smaller.
    pub rate_nodes: Option<u32>,
    /// Nodes that may always be out, however small the pool. Default 1.
    pub min_nodes: u32,
    /// Length of the window, 1 s to 24 h. Default 5 min.
    pub window: SignedDuration,
    /// Whether a tripped pool goes on by itself once no bound is reached. Default off.
    pub auto_resume: bool,
}

/// A setting that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("breaker.{key} = {value} is not usable: want {want}")]
pub struct ConfigError {
    /// Key.
    pub key: &'static str,
    /// Value given.
    pub value: String,
    /// Allowed form.
    pub want: &'static str,
}

/// Everything that the breaker knows; a value for the store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BreakerState {
    /// Per pool.
    pub pools: BTreeMap<String, PoolState>,
}

/// One pool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PoolState {
    /// Set while the pool is tripped.
    pub tripped: Option<Trip>,
    /// Nodes out by us now.
    pub out: BTreeMap<NodeName, Cause>,
    /// Nodes newly taken out in the window, oldest first.
    pub window: VecDeque<TakenOut>,
    /// Nodes that wait for a permit.
    pub waiting: BTreeMap<NodeName, Waiting>,
    /// Times at which waiting nodes were let through by turn, oldest first; within the window.
    pub paced: VecDeque<Timestamp>,
}

/// What took a node out.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cause {
    /// Rule set.
    pub rule: String,
    /// Check.
    pub check: String,
}

/// One entry of the window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenOut {
    /// Node.
    pub node: NodeName,
    /// When.
    pub at: Timestamp,
    /// By what.
    pub cause: Cause,
}

/// A node that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Since when its incident is open: the place in the queue.
    pub since: Timestamp,
    /// Whether it goes by turn: after a delay or a reset.
    pub paced: bool,
}

/// A pool's trip.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trip {
    /// When.
    pub since: Timestamp,
    /// By which bound.
    pub bound: Bound,
    /// Rule set and check with the largest share of the nodes out or in the window.
    pub largest: Cause,
    /// How many of the nodes counted that is.
    pub share: usize,
    /// Nodes counted when it tripped.
    pub counted: usize,
}

/// A node that would be taken out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask<'a> {
    /// Pool.
    pub pool: &'a str,
    /// Nodes of the pool now, including those out.
    pub pool_size: usize,
    /// Node.
    pub node: &'a NodeName,
    /// Rule set.
    pub rule: &'a str,
    /// Check.
    pub check: &'a str,
    /// Goes by turn.
    pub paced: bool,
    /// When the incident opened.
    pub opened_at: Timestamp,
}

/// The answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permit {
    /// Counted; go on.
    Taken,
    /// The pool is tripped, by this bound.
    Withheld(Bound),
    /// Not its turn; the breaker says again when ([`BreakerState::due`]).
    Pace,
}

impl BreakerState {
    /// Asks for a permit. A node that is out already gets it and is not counted again.
    pub fn take(&mut self, _config: &Config, _ask: &Ask<'_>, _now: Timestamp) -> Permit {
        Permit::Taken
    }

    /// Counts a node that is out without having asked: a person's hold, or one found after the
    /// store was lost. It counts for the level only.
    pub fn count(&mut self, _pool: &str, _node: &NodeName, _cause: Cause) {}

    /// The node is not out any more, nor waiting. The rate is not given back.
    pub fn release(&mut self, _pool: &str, _node: &NodeName) {}

    /// A person's reset: the pool is no longer tripped, and the waiting nodes go by turn.
    /// Answers the nodes that waited, oldest first.
    pub fn reset(&mut self, _pool: &str) -> Vec<NodeName> {
        Vec::new()
    }

    /// With `auto_resume`: ends the trip of a pool that no bound holds any more. Answers whether.
    pub fn auto_resume(
        &mut self,
        _config: &Config,
        _pool: &str,
        _size: usize,
        _now: Timestamp,
    ) -> bool {
        false
    }

    /// The waiting node whose turn it is now, per pool that is not tripped; and when to ask again.
    pub fn due(&mut self, _config: &Config, _pool: &str, _size: usize, _now: Timestamp) -> Due {
        Due::default()
    }
}

/// Whose turn it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Due {
    /// The waiting node to decide about now.
    pub node: Option<NodeName>,
    /// When to ask again.
    pub again_at: Option<Timestamp>,
}

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
    _config: &SilentConfig,
    _pool_size: usize,
    _silent_since: &BTreeMap<NodeName, Timestamp>,
    _now: Timestamp,
) -> Option<Vec<NodeName>> {
    None
}
