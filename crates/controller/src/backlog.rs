//! What waited for a first-action delay: it goes by turn, oldest incident first.
//!
//! # Guarantees
//! - One at once, then max(1, a tenth of the breaker's rate bound) a window and pool: the same turns as those of
//!   nodes that quarantine withheld ([`decide::breaker`]).
//! - A node that does not want its turn now (it is paused, or not empty) keeps none behind it.
//! - The turns that were had are stored together with what they were had for.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use decide::breaker::{Ask, BreakerState, Config, Permit, PoolState};
use event_store::{EventStore, ReadError};
use health_event::NodeName;
use health_event::incident::Incident;
use jiff::Timestamp;

use crate::config::QuarantineConfig;
use crate::nodes::NodeCache;
use crate::quarantine::bounds;
use crate::workers::Workers;

/// The nodes that wait, and the turns that were had.
#[derive(Debug)]
pub struct Backlog {
    /// Where the turns are stored.
    key: &'static str,
    config: Config,
    state: Mutex<BreakerState>,
    workers: Workers,
}

impl Backlog {
    /// Nobody waits yet; turns of the last window are read from under this key.
    ///
    /// # Errors
    /// The store can't be read.
    pub fn load(
        store: &EventStore,
        key: &'static str,
        config: &QuarantineConfig,
        workers: &Workers,
    ) -> Result<Self, ReadError> {
        let bytes = store.state_get(key)?.unwrap_or_default();
        // What can't be read was not written by this version: then the first goes at once.
        let had: BTreeMap<String, VecDeque<Timestamp>> =
            serde_json::from_slice(&bytes).unwrap_or_default();
        let pools = had
            .into_iter()
            .map(|(pool, had)| (pool, PoolState::restored(None, had, [])));
        Ok(Self {
            key,
            // Whether the breaker is on, and how many may be out: all of these are out.
            config: Config {
                enabled: true,
                level_percent: 100,
                level_nodes: None,
                ..bounds(config)
            },
            state: Mutex::new(BreakerState {
                pools: pools.collect(),
            }),
            workers: workers.clone(),
        })
    }

    /// Its node waits for the end of the delay.
    pub fn join(&self, incident: &Incident) {
        let mut state = self.lock();
        state.withhold(&incident.pool, &incident.node, incident.opened_at);
    }

    /// Its node could not use its turn now.
    pub fn pass_over(&self, incident: &Incident, nodes: &NodeCache, now: Timestamp) {
        let mut state = self.lock();
        if state.pass_over(&incident.pool, &incident.node) {
            self.wake_due(&mut state, incident, nodes, now);
        }
    }

    /// The node waits no more, nor counts.
    pub fn leave(&self, node: &NodeName) {
        let mut state = self.lock();
        let known =
            |pool: &PoolState| pool.out.contains_key(node) || pool.waiting.contains_key(node);
        let pools = state.pools.iter();
        let pools: Vec<String> = pools
            .filter(|(_, pool)| known(pool))
            .map(|(name, _)| name.clone())
            .collect();
        for pool in pools {
            state.release(&pool, node);
        }
    }

    /// Whether it is its node's turn, which then has had it; else the node is woken for it.
    pub fn may_go(&self, incident: &Incident, nodes: &NodeCache, now: Timestamp) -> bool {
        let mut state = self.lock();
        let ask = Ask {
            pool: &incident.pool,
            pool_size: pool_size(&state, incident, nodes),
            node: &incident.node,
            rule: "",
            check: "",
            paced: true,
            opened_at: incident.opened_at,
        };
        match state.take(&self.config, &ask, now) {
            Permit::Taken => true,
            Permit::Pace | Permit::Withheld(_) => {
                self.wake_due(&mut state, incident, nodes, now);
                false
            }
        }
    }

    /// Wakes the node whose turn it is, and this one when the next may come.
    fn wake_due(
        &self,
        state: &mut BreakerState,
        incident: &Incident,
        nodes: &NodeCache,
        now: Timestamp,
    ) {
        let size = pool_size(state, incident, nodes);
        let due = state.due(&self.config, &incident.pool, size, now);
        if let Some(node) = due.node.filter(|node| *node != incident.node) {
            self.workers.wake(&node);
        }
        let window = now.checked_add(self.config.window).ok();
        let at = due.again_at.or(window).unwrap_or(Timestamp::MAX);
        self.workers.wake_at(&incident.node, at);
    }

    /// The turns that were had, for the store.
    pub fn record(&self) -> (String, Vec<u8>) {
        let state = self.lock();
        let had: BTreeMap<&String, &VecDeque<Timestamp>> = state
            .pools
            .iter()
            .map(|(name, pool)| (name, &pool.paced))
            .collect();
        let bytes = serde_json::to_vec(&had).unwrap_or_default();
        (self.key.to_owned(), bytes)
    }

    fn lock(&self) -> MutexGuard<'_, BreakerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All that had their turn are out, so that their number alone never keeps one.
fn pool_size(state: &BreakerState, incident: &Incident, nodes: &NodeCache) -> usize {
    let out = state
        .pools
        .get(&incident.pool)
        .map_or(0, |pool| pool.out.len());
    nodes.pool_size(&incident.pool).max(out + 1)
}
