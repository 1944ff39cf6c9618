//! The breaker that several nodes share, as one of them asks it.

use decide::breaker::{Ask, BreakerState, Cause, Config, Permit, PoolState};
use decide::quarantine::{Decision, PermitRequest};
use health_event::NodeName;
use health_event::incident::{Incident, QuarantineStatus};
use jiff::Timestamp;

use super::{Setup, World, Wrong};
use crate::world::Kept;

/// What a node's decision needs of it.
#[derive(Debug, Clone)]
pub struct Breaker {
    /// The node's name there: each is alone in its world, and all have one name.
    pub node: NodeName,
    /// Nodes of the pool.
    pub pool_size: usize,
    /// Settings.
    pub config: Config,
    /// What it knows, of all nodes.
    pub state: Kept<BreakerState>,
}

/// A breaker that lets this many nodes be out at one time; `resumes`: by itself, once it may.
pub(super) fn config(level: u32, resumes: bool) -> Config {
    Config {
        enabled: true,
        level_percent: 100,
        level_nodes: Some(level),
        rate_percent: 100,
        auto_resume: resumes,
        ..Config::default()
    }
}

/// The breaker's answer, and what it knows after it; where there is none, everything is permitted.
pub(super) fn ask(
    setup: &Setup,
    world: &World,
    wanted: &PermitRequest,
    now: Timestamp,
) -> (Permit, Option<BreakerState>) {
    let breaker = world.breaker.0.as_ref();
    let Some(breaker) = breaker.filter(|_| !setup.is_wrong(Wrong::IgnoresBreaker)) else {
        return (Permit::Taken, None);
    };
    let mut state = (*breaker.state).clone();
    let ask = Ask {
        pool: &wanted.pool,
        pool_size: breaker.pool_size,
        node: &breaker.node,
        rule: &wanted.rule,
        check: &wanted.check,
        paced: wanted.paced,
        opened_at: wanted.opened_at,
    };
    let permit = state.take(&breaker.config, &ask, now);
    (permit, Some(state))
}

/// What it is told of a decision that is stored; `before`: the incident before it.
pub(super) fn tell(setup: &Setup, world: &mut World, before: Option<&Incident>, made: &Decision) {
    let Some(breaker) = &mut world.breaker.0 else {
        return;
    };
    let pool = before.or(made.incident.as_ref());
    let pool = pool.map_or("gpu", |incident| &incident.pool);
    let node = breaker.node.clone();
    if made.give_back && !setup.is_wrong(Wrong::KeepsLevel) {
        breaker.state.change(|state| state.release(pool, &node));
    }
    if made.count_out {
        let cause = Cause::default();
        breaker
            .state
            .change(|state| state.count(pool, &node, cause));
    }
}

/// What a new process begins with: trip, turns and window are stored; who is out and who waits follows
/// from the incidents.
pub(super) fn restored<'a>(
    state: &BreakerState,
    open: impl Iterator<Item = (NodeName, &'a Incident)>,
) -> BreakerState {
    let mut restored = BreakerState::default();
    for (name, pool) in &state.pools {
        let (tripped, paced) = (pool.tripped.clone(), pool.paced.clone());
        let kept = PoolState::restored(tripped, paced, pool.window.iter().cloned());
        restored.pools.insert(name.clone(), kept);
    }
    for (node, incident) in open {
        let pool = &incident.pool;
        match &incident.quarantine {
            QuarantineStatus::Withheld(why) => {
                restored.wait_again(pool, &node, incident.opened_at, why);
            }
            status if status.is_out() => restored.count(pool, &node, Cause::default()),
            QuarantineStatus::Observed
            | QuarantineStatus::Applying
            | QuarantineStatus::Quarantined
            | QuarantineStatus::Releasing(_)
            | QuarantineStatus::Closed(_) => {}
        }
    }
    restored
}
