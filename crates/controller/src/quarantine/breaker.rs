//! The breaker's state, shared by all workers.
//!
//! What is stored is small whatever the number of nodes: per pool the trip and the times of those
//! let through by turn. Who is out, who waits and who was taken out in the window follows from the
//! incidents and the transitions, and is counted anew at start.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use decide::breaker::{BreakerState, Cause, Config, PoolState, TakenOut, Trip};
use decide::quarantine::ADOPTED;
use event_store::{EventStore, ReadError, StoredTransition, TransitionsOf};
use health_event::NodeName;
use health_event::incident::{Bound, Incident, QuarantineStatus};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::said;
use super::work::Module;

/// Transitions read at a time.
const PAGE: usize = 1_000;

/// The breaker of all pools.
#[derive(Debug)]
pub(super) struct Breaker {
    pub(super) config: Config,
    state: Mutex<BreakerState>,
    /// Something changed whose turn may come.
    pub(super) changed: Notify,
}

/// What is stored of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
struct PoolRecord {
    trip: Option<TripRecord>,
    paced: VecDeque<Timestamp>,
}

/// A trip, as it is stored and as the transition that tripped names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TripRecord {
    since: Timestamp,
    bound: String,
    rule: String,
    check: String,
    share: usize,
    counted: usize,
}

impl From<&Trip> for TripRecord {
    fn from(trip: &Trip) -> Self {
        Self {
            since: trip.since,
            bound: trip.bound.as_str().to_owned(),
            rule: trip.largest.rule.clone(),
            check: trip.largest.check.clone(),
            share: trip.share,
            counted: trip.counted,
        }
    }
}

impl PoolRecord {
    fn of(pool: &PoolState) -> Self {
        Self {
            trip: pool.tripped.as_ref().map(TripRecord::from),
            paced: pool.paced.clone(),
        }
    }

    fn restored(self, taken: Vec<TakenOut>) -> PoolState {
        let tripped = self.trip.map(|trip| Trip {
            since: trip.since,
            bound: if trip.bound == Bound::Level.as_str() {
                Bound::Level
            } else {
                Bound::Rate
            },
            largest: Cause {
                rule: trip.rule,
                check: trip.check,
            },
            share: trip.share,
            counted: trip.counted,
        });
        PoolState::restored(tripped, self.paced, taken)
    }
}

/// What the breaker must know of a transition, inside its cause.
#[derive(Debug, Clone, Serialize, Deserialize, Default)]
pub(super) struct TakenRecord {
    /// Pool.
    #[serde(default)]
    pub(super) pool: String,
    /// Rule set.
    #[serde(default)]
    pub(super) rule: String,
    /// Check.
    #[serde(default)]
    pub(super) check: String,
    /// Whether a permit was taken with it: the node counts for the rate.
    #[serde(default)]
    pub(super) taken: bool,
    /// The pool's breaker tripped with it.
    #[serde(default)]
    pub(super) trip: Option<TripRecord>,
}

fn key(pool: &str) -> String {
    format!("breaker/{pool}")
}

impl Breaker {
    /// As it stood when the last controller stopped.
    pub(super) fn load(
        store: &EventStore,
        config: Config,
        pools: &[String],
        now: Timestamp,
    ) -> Result<Self, ReadError> {
        let mut taken: BTreeMap<String, Vec<TakenOut>> = BTreeMap::new();
        for (out, pool) in taken_since(store, now - config.window)? {
            taken.entry(pool).or_default().push(out);
        }
        let mut state = BreakerState::default();
        let names: BTreeSet<String> = pools.iter().chain(taken.keys()).cloned().collect();
        for name in names {
            let bytes = store.state_get(&key(&name))?.unwrap_or_default();
            // A record that can't be read would be ours of another version: closed is what the counts
            // below then trip again.
            let record: PoolRecord = serde_json::from_slice(&bytes).unwrap_or_default();
            let taken = taken.remove(&name).unwrap_or_default();
            state.pools.insert(name, record.restored(taken));
        }
        for incident in store.open_incidents()? {
            count(&mut state, &incident, oldest_fault(store, &incident)?);
        }
        Ok(Self {
            config,
            state: Mutex::new(state),
            changed: Notify::new(),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, BreakerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn trip<'a>(state: &'a BreakerState, pool: &str) -> Option<&'a Trip> {
        state.pools.get(pool)?.tripped.as_ref()
    }

    /// What is stored of a pool now.
    pub(super) fn record(state: &BreakerState, pool: &str) -> Option<(String, Vec<u8>)> {
        let record = PoolRecord::of(state.pools.get(pool)?);
        let bytes = serde_json::to_vec(&record).expect("times and texts always render");
        Some((key(pool), bytes))
    }
}

impl Module {
    /// Sets the breaker's numbers of all pools.
    pub(super) fn say_levels(&self, pools: &[String]) {
        let nodes = &self.context.nodes;
        let sizes: Vec<(&str, usize)> = pools
            .iter()
            .map(|pool| (pool.as_str(), nodes.pool_size(pool)))
            .collect();
        let state = self.breaker.lock();
        said::breaker_levels(&self.context.metrics, &state, &self.breaker.config, &sizes);
    }
}

/// When the oldest fault of an incident opened that is open still; where none is, the incident.
fn oldest_fault(store: &EventStore, incident: &Incident) -> Result<Timestamp, ReadError> {
    let faults = store.open_faults(&incident.node)?;
    let of_it = faults
        .iter()
        .filter(|f| f.incident.as_ref() == Some(&incident.id));
    let oldest = of_it.map(|f| f.opened_at.unwrap_or(f.first_at)).min();
    Ok(oldest.unwrap_or(incident.opened_at))
}

fn count(state: &mut BreakerState, incident: &Incident, since: Timestamp) {
    let pool = &incident.pool;
    if incident.quarantine.is_out() {
        state.count(pool, &incident.node, cause_of(incident));
        return;
    }
    match &incident.quarantine {
        QuarantineStatus::Withheld(why) => state.wait_again(pool, &incident.node, since, why),
        QuarantineStatus::Observed
        | QuarantineStatus::Applying
        | QuarantineStatus::Quarantined
        | QuarantineStatus::Releasing(_)
        | QuarantineStatus::Closed(_) => {}
    }
}

fn cause_of(incident: &Incident) -> Cause {
    let first = incident.faults.iter().min_by_key(|fault| fault.seq);
    // Out without a fault that is known: by a person, or found so when the store was lost.
    let without = if incident.held_by.is_some() {
        "hold"
    } else {
        ADOPTED
    };
    Cause {
        rule: first
            .map_or(without, |fault| {
                fault.rules.first().map_or("forced", String::as_str)
            })
            .to_owned(),
        check: first
            .map(|fault| fault.id.scope.check_name.clone())
            .unwrap_or_default(),
    }
}

/// Nodes taken out since then, oldest first.
fn taken_since(store: &EventStore, since: Timestamp) -> Result<Vec<(TakenOut, String)>, ReadError> {
    let last = store.stats()?.last_transition;
    let page = u64::try_from(PAGE).unwrap_or(u64::MAX);
    let mut start = last.saturating_sub(page);
    while start > 0 {
        let first = store.transitions(TransitionsOf::All, start, 1)?;
        if first.first().is_none_or(|t| t.at < since) {
            break;
        }
        start = start.saturating_sub(page);
    }
    let mut taken: BTreeMap<NodeName, (TakenOut, String)> = BTreeMap::new();
    loop {
        let transitions = store.transitions(TransitionsOf::All, start, PAGE)?;
        let Some(newest) = transitions.last() else {
            break;
        };
        start = newest.seq;
        for transition in &transitions {
            if let Some((out, pool)) = taken_by(transition, since) {
                taken.insert(out.node.clone(), (out, pool));
            }
        }
    }
    let mut taken: Vec<(TakenOut, String)> = taken.into_values().collect();
    taken.sort_by_key(|(out, _)| out.at);
    Ok(taken)
}

fn taken_by(transition: &StoredTransition, since: Timestamp) -> Option<(TakenOut, String)> {
    let record: TakenRecord = serde_json::from_str(&transition.cause).ok()?;
    (record.taken && transition.at >= since).then(|| {
        let cause = Cause {
            rule: record.rule,
            check: record.check,
        };
        (
            TakenOut {
                node: transition.node.clone(),
                at: transition.at,
                cause,
            },
            record.pool,
        )
    })
}
