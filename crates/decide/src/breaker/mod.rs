//! How many nodes of a pool may be out, and how many may be taken out in a while.
//!
//! # States of a pool
//! - *Closed*: permits while neither bound is reached.
//! - *Tripped{bound}*: the first ask that a bound stops trips the pool; nothing is permitted until
//!   a person's reset, or, with `auto_resume`, until no bound is reached. Releases always pass.
//!
//! A node that is not let through waits. After a reset (or the first-action delay) the waiting
//! nodes go by turn: the oldest at once, then max(1, a tenth of the rate bound) a window. A turn
//! that a bound stops waits on; it does not trip the pool again.
//!
//! # Invariants (`tests`)
//! - Permitted nodes out at one time never exceed the level bound, and nodes newly taken out in
//!   any window never exceed the rate bound, resets included. Nodes that did not ask
//!   ([`BreakerState::count`]) are counted, not bounded.
//! - Bound = max(`min_nodes`, min(ceil(percentage of the pool), number)); the bound-th node is
//!   still taken.
//! - Nothing is ever withheld on release; a withheld node waits until it is taken or released.
//! - Each call costs O(log n) amortised; only a trip looks at all nodes once.

mod config;
mod silent;

#[cfg(test)]
mod tests;

pub use config::{Config, ConfigError};
pub use silent::{SilentConfig, silent_share};

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use health_event::NodeName;
use health_event::incident::{Bound, Withheld};
use jiff::Timestamp;

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
    /// Nodes newly taken out in the window, oldest first. A node that was taken out again has
    /// two entries, of which only the newer counts.
    pub window: VecDeque<TakenOut>,
    /// The nodes that the window counts, and when each was taken out.
    pub newly: BTreeMap<NodeName, Timestamp>,
    /// Nodes that wait for a permit.
    pub waiting: BTreeMap<NodeName, Waiting>,
    /// Those of them that go by turn, in order.
    pub queue: BTreeSet<(Timestamp, NodeName)>,
    /// Those of the waiting that are passed over until they ask again.
    pub passed_over: BTreeSet<NodeName>,
    /// Times at which waiting nodes were let through by turn, oldest first; within the window.
    pub paced: VecDeque<Timestamp>,
    /// When the first of the present queue went: it goes alone, for a window.
    pub first_turn: Option<Timestamp>,
}

/// What took a node out.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
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
    /// When its oldest open fault opened: the place in the queue.
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
    /// When its oldest open fault opened: the place in the queue.
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
    pub fn take(&mut self, config: &Config, ask: &Ask<'_>, now: Timestamp) -> Permit {
        if !config.enabled {
            if let Some(pool) = self.pools.get_mut(ask.pool) {
                pool.leave(ask.node);
            }
            return Permit::Taken;
        }
        self.auto_resume(config, ask.pool, ask.pool_size, now);
        let pool = self.pools.entry(ask.pool.to_owned()).or_default();
        pool.expire(config, now);
        if pool.out.contains_key(ask.node) {
            pool.leave(ask.node);
            return Permit::Taken;
        }
        let paced = ask.paced || pool.waiting.get(ask.node).is_some_and(|w| w.paced);
        if let Some(trip) = &pool.tripped {
            let bound = trip.bound;
            pool.wait(ask, paced);
            return Permit::Withheld(bound);
        }
        // A node that the window counts already raises the rate no further.
        let counted = pool.newly.contains_key(ask.node);
        let reached = pool
            .reached(config, ask.pool_size)
            .filter(|bound| !counted || *bound == Bound::Level);
        if paced {
            pool.wait(ask, true);
            let first = pool.first_paced() == Some(ask.node);
            if reached.is_some() || !first || pool.room(config, ask.pool_size, now) == 0 {
                return Permit::Pace;
            }
            pool.paced.push_back(now);
            pool.first_turn.get_or_insert(now);
        } else if let Some(bound) = reached {
            pool.tripped = Some(pool.trip(bound, now));
            pool.wait(ask, false);
            return Permit::Withheld(bound);
        }
        pool.let_through(ask, now);
        Permit::Taken
    }

    /// How many nodes of a pool may be taken out now before a bound withholds the next.
    pub fn free(&mut self, config: &Config, pool: &str, pool_size: usize, now: Timestamp) -> usize {
        if !config.enabled {
            return usize::MAX;
        }
        let pool = self.pools.entry(pool.to_owned()).or_default();
        pool.expire(config, now);
        if pool.tripped.is_some() {
            return 0;
        }
        let level = config.level_bound(pool_size).saturating_sub(pool.out.len());
        let rate = config
            .rate_bound(pool_size)
            .saturating_sub(pool.newly.len());
        level.min(rate)
    }

    /// A node is withheld without having asked: a delay runs, or another program takes nodes out.
    /// It goes by turn once it asks; `since` is when its oldest open fault opened.
    pub fn withhold(&mut self, pool: &str, node: &NodeName, since: Timestamp) {
        let pool = self.pools.entry(pool.to_owned()).or_default();
        pool.put(node, since, true);
    }

    /// A withheld node of which a new process reads in the store. What a breaker withholds while
    /// it is not tripped was there at a reset, and goes by turn like all others; at the next reset
    /// all do.
    pub fn wait_again(&mut self, pool: &str, node: &NodeName, since: Timestamp, why: &Withheld) {
        let pool = self.pools.entry(pool.to_owned()).or_default();
        let paced = pool.tripped.is_none() || !matches!(why, Withheld::Breaker(_));
        pool.put(node, since, paced);
    }

    /// Counts a node that is out without having asked: a person's hold, or one found after the
    /// store was lost. It counts for the level only.
    pub fn count(&mut self, pool: &str, node: &NodeName, cause: Cause) {
        let pool = self.pools.entry(pool.to_owned()).or_default();
        pool.leave(node);
        pool.out.entry(node.clone()).or_insert(cause);
    }

    /// The node is not out any more, nor waiting. The rate is not given back.
    pub fn release(&mut self, pool: &str, node: &NodeName) {
        if let Some(pool) = self.pools.get_mut(pool) {
            pool.out.remove(node);
            pool.leave(node);
        }
    }

    /// A node that was counted ([`BreakerState::count`]) before its incident was known, and has none
    /// after all: its marks went before they were adopted. Answers whether it was out.
    pub fn forget_counted(&mut self, node: &NodeName) -> bool {
        let mut pools = self.pools.values_mut();
        pools.any(|pool| pool.out.remove(node).is_some())
    }

    /// A waiting node does not want its turn now (it is paused): those behind it go first. It
    /// keeps its place, and has it again once it asks. Answers whether that is new.
    pub fn pass_over(&mut self, pool: &str, node: &NodeName) -> bool {
        let pool = self.pools.get_mut(pool);
        let pool = pool.filter(|pool| pool.waiting.contains_key(node));
        pool.is_some_and(|pool| pool.passed_over.insert(node.clone()))
    }

    /// A person's reset: the pool is no longer tripped, and the waiting nodes go by turn. To drop
    /// them instead, ask [`crate::quarantine::RequestKind::DropWithheld`] for each. Answers the
    /// nodes that wait, oldest first.
    pub fn reset(&mut self, pool: &str) -> Vec<NodeName> {
        let Some(pool) = self.pools.get_mut(pool) else {
            return Vec::new();
        };
        pool.resume();
        let mut waiting: Vec<_> = pool.waiting.iter().map(|(n, w)| (w.since, n)).collect();
        waiting.sort();
        waiting.into_iter().map(|(_, n)| n.clone()).collect()
    }

    /// With `auto_resume`: ends the trip of a pool that no bound holds any more. Answers whether.
    pub fn auto_resume(
        &mut self,
        config: &Config,
        pool: &str,
        pool_size: usize,
        now: Timestamp,
    ) -> bool {
        let Some(pool) = self.pools.get_mut(pool) else {
            return false;
        };
        pool.expire(config, now);
        let over = config.auto_resume
            && pool.tripped.is_some()
            && pool.reached(config, pool_size).is_none();
        if over {
            pool.resume();
        }
        over
    }

    /// The waiting node whose turn it is now, and when to ask again. Nobody's turn comes while
    /// the pool is tripped.
    pub fn due(&mut self, config: &Config, pool: &str, pool_size: usize, now: Timestamp) -> Due {
        self.auto_resume(config, pool, pool_size, now);
        let Some(pool) = self.pools.get_mut(pool) else {
            return Due::default();
        };
        pool.expire(config, now);
        let after = |at: Timestamp| at.checked_add(config.window).ok();
        if pool.tripped.is_some() {
            let oldest = pool.window.front().map(|t| t.at);
            let again_at = oldest.and_then(after).filter(|_| config.auto_resume);
            return Due {
                node: None,
                again_at,
            };
        }
        let Some(node) = pool.first_paced().cloned() else {
            return Due::default();
        };
        let blocked = match pool.reached(config, pool_size) {
            Some(Bound::Rate) => pool.window.front().map(|t| t.at),
            // A release ends it, and the shell asks after each release.
            Some(Bound::Level) => return Due::default(),
            None if pool.room(config, pool_size, now) == 0 => pool.paced.front().copied(),
            None => {
                return Due {
                    node: Some(node),
                    again_at: None,
                };
            }
        };
        Due {
            node: None,
            again_at: blocked.and_then(after),
        }
    }
}

impl PoolState {
    /// What a new process begins with: the trip and the turns as they were stored, and the nodes
    /// that were taken out within the window, oldest first.
    pub fn restored(
        tripped: Option<Trip>,
        paced: VecDeque<Timestamp>,
        taken: impl IntoIterator<Item = TakenOut>,
    ) -> Self {
        let mut pool = Self {
            tripped,
            paced,
            ..Self::default()
        };
        for taken in taken {
            pool.newly.insert(taken.node.clone(), taken.at);
            pool.window.push_back(taken);
        }
        pool
    }

    fn expire(&mut self, config: &Config, now: Timestamp) {
        let start = now.checked_sub(config.window).unwrap_or(Timestamp::MIN);
        while let Some(taken) = self.window.pop_front_if(|t| t.at <= start) {
            if self.newly.get(&taken.node) == Some(&taken.at) {
                self.newly.remove(&taken.node);
            }
        }
        while self.paced.front().is_some_and(|at| *at <= start) {
            self.paced.pop_front();
        }
        if self.paced.is_empty() && self.queue.is_empty() {
            self.first_turn = None;
        }
    }

    /// The bound that leaves no room for one more node.
    fn reached(&self, config: &Config, pool_size: usize) -> Option<Bound> {
        if self.out.len() >= config.level_bound(pool_size) {
            Some(Bound::Level)
        } else if self.newly.len() >= config.rate_bound(pool_size) {
            Some(Bound::Rate)
        } else {
            None
        }
    }

    /// How many turns are left in the window.
    fn room(&self, config: &Config, pool_size: usize, now: Timestamp) -> usize {
        let alone = |first: Timestamp| now.duration_since(first) < config.window;
        let a_window = match self.first_turn {
            None => 1,
            Some(first) if alone(first) => 1,
            Some(_) => (config.rate_bound(pool_size) / 10).max(1),
        };
        a_window.saturating_sub(self.paced.len())
    }

    fn first_paced(&self) -> Option<&NodeName> {
        let mut queue = self.queue.iter().map(|(_, node)| node);
        queue.find(|node| !self.passed_over.contains(*node))
    }

    fn wait(&mut self, ask: &Ask<'_>, paced: bool) {
        self.put(ask.node, ask.opened_at, paced);
    }

    fn put(&mut self, node: &NodeName, since: Timestamp, paced: bool) {
        self.leave(node);
        if paced {
            self.queue.insert((since, node.clone()));
        }
        self.waiting.insert(node.clone(), Waiting { since, paced });
    }

    fn leave(&mut self, node: &NodeName) {
        if let Some(waiting) = self.waiting.remove(node) {
            self.queue.remove(&(waiting.since, node.clone()));
            self.passed_over.remove(node);
        }
    }

    fn let_through(&mut self, ask: &Ask<'_>, now: Timestamp) {
        let cause = Cause {
            rule: ask.rule.to_owned(),
            check: ask.check.to_owned(),
        };
        self.leave(ask.node);
        self.out.insert(ask.node.clone(), cause.clone());
        self.newly.insert(ask.node.clone(), now);
        self.window.push_back(TakenOut {
            node: ask.node.clone(),
            at: now,
            cause,
        });
    }

    fn resume(&mut self) {
        self.tripped = None;
        for (node, waiting) in &mut self.waiting {
            waiting.paced = true;
            self.queue.insert((waiting.since, node.clone()));
        }
    }

    fn trip(&self, bound: Bound, now: Timestamp) -> Trip {
        let mut shares: BTreeMap<&Cause, usize> = BTreeMap::new();
        let counted: Vec<&Cause> = match bound {
            Bound::Level => self.out.values().collect(),
            Bound::Rate => {
                let counts = |t: &&TakenOut| self.newly.get(&t.node) == Some(&t.at);
                self.window
                    .iter()
                    .filter(counts)
                    .map(|t| &t.cause)
                    .collect()
            }
        };
        for cause in &counted {
            *shares.entry(cause).or_default() += 1;
        }
        let largest = shares
            .into_iter()
            .max_by_key(|(cause, n)| (*n, std::cmp::Reverse(*cause)));
        let (largest, share) = largest.map_or_else(
            || (Cause::default(), 0),
            |(cause, share)| (cause.clone(), share),
        );
        Trip {
            since: now,
            bound,
            largest,
            share,
            counted: counted.len(),
        }
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
