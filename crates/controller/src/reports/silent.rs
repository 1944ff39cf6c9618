//! Agents that say nothing any more, or never did.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use decide::breaker::{SilentConfig, silent_share};
use event_store::{NewEvent, ReadError};
use health_event::checks::{AGENT_SILENT, POOL_SILENT};
use health_event::{NodeName, Subject};
use jiff::{SignedDuration, Timestamp};
use telemetry::ControllerMetrics;
use telemetry::events::{AgentSilent, AgentsMissing, PoolSilent};
use telemetry::metrics::PoolLabel;
use tracing::{info, warn};

use super::crowded::Crowded;
use super::doubt::Doubts;
use super::state::{Reports, Standing};
use crate::config::ReportsConfig;
use crate::ingest::own_event;
use crate::nodes::{ConditionStatus, NodeCache, NodeFacts};

/// Nodes that a message names.
const NAMED: usize = 5;
/// Most events of one append.
const CHUNK: usize = 500;
/// Nodes that fall silent within this do so together.
const TOGETHER: SignedDuration = SignedDuration::from_mins(5);
/// Fewer nodes are never a fault of the pool.
const TOGETHER_MIN: usize = 3;

/// The watch over silence.
#[derive(Debug)]
pub struct Silence {
    reports: Reports,
    nodes: NodeCache,
    config: ReportsConfig,
    metrics: Arc<ControllerMetrics>,
    /// Nodes with an open `AgentSilent`, and the UID of the object for which that was seen last.
    silent: BTreeMap<NodeName, Option<Arc<str>>>,
    /// Nodes whose agents were silent before this process began, nobody knows since when, and are
    /// still.
    silent_before: BTreeSet<NodeName>,
    /// Nodes of each pool that are silent or NotReady, and since when.
    since: BTreeMap<String, BTreeMap<NodeName, Timestamp>>,
    /// Pools with an open `PoolSilent`.
    pools: BTreeSet<String>,
    missing_told: bool,
    doubts: Doubts,
    crowded: Crowded,
}

/// What one look found about a node.
struct Seen {
    name: NodeName,
    uid: Arc<str>,
    /// Whether `AgentSilent` should be open.
    is_silent: bool,
    never_reported: bool,
}

impl Silence {
    /// With what the store has open.
    ///
    /// # Errors
    /// The store can't be read.
    pub fn load(
        reports: Reports,
        nodes: NodeCache,
        config: ReportsConfig,
        metrics: Arc<ControllerMetrics>,
    ) -> Result<Self, ReadError> {
        let (mut silent, mut pools) = (BTreeMap::new(), BTreeSet::new());
        let open = reports.store().open_faults_all()?;
        let doubts = Doubts::new(&open, reports.clone(), config.interval, metrics.clone());
        for fault in open {
            match (fault.id.scope.check_name.as_str(), fault.id.scope.subject) {
                (AGENT_SILENT, Subject::Node(node)) => drop(silent.insert(node, None)),
                (POOL_SILENT, Subject::Pool(pool)) => drop(pools.insert(pool)),
                (_, Subject::Node(_) | Subject::Pool(_) | Subject::Cluster) => {}
            }
        }
        Ok(Self {
            reports,
            nodes,
            config,
            metrics,
            silent_before: silent.keys().cloned().collect(),
            silent,
            since: BTreeMap::new(),
            pools,
            missing_told: false,
            doubts,
            crowded: Crowded::new(),
        })
    }

    /// Raises and closes `AgentSilent`, and says when a pool is silent, until the future is
    /// dropped. Only nodes of the cluster count.
    ///
    /// # Errors
    /// The store can't be read.
    pub async fn run(mut self) -> Result<Infallible, ReadError> {
        self.nodes.synced().await;
        let step = self.config.interval / 2;
        let step = step.clamp(Duration::from_millis(100), Duration::from_secs(30));
        let mut ticks = tokio::time::interval(step);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.look(Timestamp::now()).await?;
        }
    }

    async fn look(&mut self, now: Timestamp) -> Result<(), ReadError> {
        self.forget_gone()?;
        let mut seen = Vec::new();
        let mut out_of_reach: BTreeMap<String, BTreeMap<NodeName, Timestamp>> = BTreeMap::new();
        let nodes = self.nodes.all();
        self.doubts.look(&nodes, now).await?;
        let store = self.reports.store();
        self.crowded
            .look(store, &self.nodes, &self.metrics, now)
            .await?;
        for node in nodes {
            let (found, quiet) = self.look_at(&node, now)?;
            if !quiet {
                self.silent_before.remove(&node.name);
            }
            let pool = self.nodes.pool_of(&node).to_owned();
            // A pool that was silent before stays so with the same nodes.
            let long = self.silent_before.contains(&node.name) && !self.pools.contains(&pool);
            if let Some(since) = out_since(&node, quiet && !long, now) {
                let pool = out_of_reach.entry(pool).or_default();
                pool.insert(node.name.clone(), since);
            }
            seen.push(found);
        }
        self.count(&seen, now);
        self.look_at_pools(out_of_reach, now).await;
        self.tell(seen, now).await;
        Ok(())
    }

    /// The fault of a node that is gone is closed by others: if the name comes back, it begins anew.
    fn forget_gone(&mut self) -> Result<(), ReadError> {
        let (nodes, store) = (&self.nodes, self.reports.store());
        let mut closed = Vec::new();
        for (name, uid) in &mut self.silent {
            let present = nodes.get(name).map(|node| Arc::clone(&node.uid));
            if present.is_some() && present == *uid {
                continue;
            }
            let open = store.open_faults(name)?;
            if open.iter().any(|f| f.id.scope.check_name == AGENT_SILENT) {
                *uid = present;
            } else {
                closed.push(name.clone());
            }
        }
        for name in closed {
            self.silent.remove(&name);
        }
        self.silent_before.retain(|name| nodes.get(name).is_some());
        Ok(())
    }

    fn look_at(&self, node: &NodeFacts, now: Timestamp) -> Result<(Seen, bool), ReadError> {
        let state = self.reports.agent(&node.name)?;
        let nodes = self.nodes.len();
        let standing = self.reports.standing(&state, nodes, node.created_at, now);
        let should_report = state.expected || self.config.expect_everywhere;
        // Not heard of yet after the start is no word that it reports again.
        let stays = state.last_report_at.is_none() && self.silent.contains_key(&node.name);
        let is_silent = should_report && (standing != Standing::Present || stays);
        if let Standing::Silent(quiet) = standing
            && is_silent
            && state.expected
            && !self.silent.contains_key(&node.name)
        {
            AgentSilent {
                node: node.name.as_str(),
                silent_seconds: quiet.as_secs(),
            }
            .emit();
        }
        let seen = Seen {
            name: node.name.clone(),
            uid: Arc::clone(&node.uid),
            is_silent,
            never_reported: !state.expected,
        };
        let quiet = state.expected && is_silent;
        Ok((seen, quiet))
    }

    fn count(&mut self, seen: &[Seen], now: Timestamp) {
        let of = |never: bool| {
            let count = seen
                .iter()
                .filter(|s| s.is_silent && s.never_reported == never)
                .count();
            i64::try_from(count).unwrap_or(i64::MAX)
        };
        self.metrics.agents_silent.set(of(false));
        let missing = seen.iter().filter(|s| s.never_reported).count();
        self.metrics
            .agents_missing
            .set(i64::try_from(missing).unwrap_or(i64::MAX));
        // One alarm for the cluster, again only after all had one.
        let early = now < self.reports.nobody_silent_before(self.nodes.len());
        let alarm = of(true) > 0 && !early;
        if alarm && !self.missing_told {
            AgentsMissing { nodes: missing }.emit();
        }
        self.missing_told = alarm;
    }

    /// Opens and closes the faults of pools. While nobody counts as silent yet, what was open
    /// before the start stays open.
    async fn look_at_pools(
        &mut self,
        mut out_of_reach: BTreeMap<String, BTreeMap<NodeName, Timestamp>>,
        now: Timestamp,
    ) {
        let config = SilentConfig {
            share_percent: self.config.silent_share,
            min_nodes: TOGETHER_MIN,
            window: TOGETHER,
            not_before: self.reports.nobody_silent_before(self.nodes.len()),
        };
        let settled = now >= config.not_before;
        let pools: BTreeSet<String> = self.nodes.pool_names().map(str::to_owned).collect();
        let gone: Vec<String> = self.pools.difference(&pools).cloned().collect();
        for pool in gone {
            self.close(&pool, now).await;
        }
        for pool in pools {
            let present = out_of_reach.remove(&pool).unwrap_or_default();
            let since = self.since.entry(pool.clone()).or_default();
            since.retain(|node, _| present.contains_key(node));
            for (node, at) in present {
                since.entry(node).or_insert(at);
            }
            let size = self.nodes.pool_size(&pool);
            let together = silent_share(&config, size, since, now);
            match together {
                Some(silent) if !self.pools.contains(&pool) => {
                    self.open(&pool, &silent, size, now).await;
                }
                None if settled && self.pools.contains(&pool) => self.close(&pool, now).await,
                Some(_) | None => {}
            }
            let is_silent = i64::from(self.pools.contains(&pool));
            let label = PoolLabel { pool };
            self.metrics
                .pool_silent
                .get_or_create(&label)
                .set(is_silent);
        }
    }

    /// What can't be stored is tried with the next look.
    async fn open(&mut self, pool: &str, silent: &[NodeName], size: usize, now: Timestamp) {
        let named: Vec<&str> = silent.iter().take(NAMED).map(NodeName::as_str).collect();
        let more = if silent.len() > NAMED { ", …" } else { "" };
        let message = format!(
            "{} of {size} nodes fell silent or NotReady within 5 min: {}{more}. No node is acted \
             on for it; look at what they share: network, power, a rollout of the agent",
            silent.len(),
            named.join(", ")
        );
        if self.append_of_pool(pool, false, message, now).await {
            PoolSilent {
                pool,
                silent: silent.len(),
                nodes: size,
            }
            .emit();
            self.pools.insert(pool.to_owned());
        }
    }

    async fn close(&mut self, pool: &str, now: Timestamp) {
        let message = "fewer of its nodes than that are silent or NotReady".to_owned();
        if self.append_of_pool(pool, true, message, now).await {
            info!(pool, "the pool's nodes are no longer silent together");
            self.pools.remove(pool);
        }
    }

    async fn append_of_pool(
        &self,
        pool: &str,
        healthy: bool,
        message: String,
        now: Timestamp,
    ) -> bool {
        let subject = Subject::Pool(pool.to_owned());
        let event = own_event(subject, POOL_SILENT, healthy, message, now);
        let stored = self.reports.store().append(vec![event]).await;
        if let Err(error) = &stored {
            warn!(pool, code = error.code(), %error, "the pool's silence could not be stored");
        }
        stored.is_ok()
    }

    /// Appends what changed; what could not be stored is tried with the next look.
    async fn tell(&mut self, seen: Vec<Seen>, now: Timestamp) {
        let known = &self.silent;
        let changed: Vec<Seen> = seen
            .into_iter()
            .filter(|s| s.is_silent != known.contains_key(&s.name))
            .collect();
        for chunk in changed.chunks(CHUNK) {
            let told = chunk
                .iter()
                .filter(|s| self.config.agent_silent || !s.is_silent);
            let events: Vec<NewEvent> = told.map(|s| event(s, now)).collect();
            if !events.is_empty() && self.reports.store().append(events).await.is_err() {
                return;
            }
            for seen in chunk {
                if seen.is_silent {
                    let uid = Some(Arc::clone(&seen.uid));
                    self.silent.insert(seen.name.clone(), uid);
                } else {
                    self.silent.remove(&seen.name);
                }
            }
        }
    }
}

/// Since when a node is silent or NotReady; none if it is neither. One that never said whether it
/// is Ready is not NotReady.
fn out_since(node: &NodeFacts, quiet: bool, now: Timestamp) -> Option<Timestamp> {
    match node.ready {
        Some(ConditionStatus::False | ConditionStatus::Unknown) => {
            Some(node.ready_since.unwrap_or(now).min(now))
        }
        Some(ConditionStatus::True) | None => quiet.then_some(now),
    }
}

fn event(seen: &Seen, now: Timestamp) -> NewEvent {
    let message = match (seen.is_silent, seen.never_reported) {
        (true, true) => "no warden-agent ever reported from this node: its faults are not known",
        (true, false) => {
            "the node's warden-agent has not reported for three intervals: its faults are not known"
        }
        (false, _) => "the node's warden-agent reports",
    };
    own_event(
        Subject::Node(seen.name.clone()),
        AGENT_SILENT,
        !seen.is_silent,
        message.to_owned(),
        now,
    )
}

#[cfg(test)]
#[path = "silent_tests.rs"]
mod tests;
