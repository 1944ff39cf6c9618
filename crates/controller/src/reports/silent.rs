//! Agents that say nothing any more, or never did.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use decide::breaker::{SilentConfig, silent_share};
use event_store::{NewEvent, ReadError};
use health_event::{NodeName, Subject};
use jiff::{SignedDuration, Timestamp};
use telemetry::ControllerMetrics;
use telemetry::events::{AgentSilent, AgentsMissing, PoolSilent};
use telemetry::metrics::PoolLabel;

use super::state::{Reports, Standing};
use crate::config::ReportsConfig;
use crate::ingest::own_event;
use crate::nodes::{ConditionStatus, NodeCache, NodeFacts};

/// The check's name.
const AGENT_SILENT: &str = "AgentSilent";
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
    /// Nodes with an open `AgentSilent`.
    silent: BTreeSet<NodeName>,
    /// Nodes of each pool that are silent or NotReady, and since when as seen from here.
    since: BTreeMap<String, BTreeMap<NodeName, Timestamp>>,
    /// Pools that were told of.
    pools: BTreeSet<String>,
    missing_told: bool,
}

/// What one look found about a node.
struct Seen {
    name: NodeName,
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
        let open = reports.store().open_faults_all()?.into_iter();
        let silent = open
            .filter(|fault| fault.id.scope.check_name == AGENT_SILENT)
            .filter_map(|fault| match fault.id.scope.subject {
                Subject::Node(node) => Some(node),
                Subject::Pool(_) | Subject::Cluster => None,
            })
            .collect();
        Ok(Self {
            reports,
            nodes,
            config,
            metrics,
            silent,
            since: BTreeMap::new(),
            pools: BTreeSet::new(),
            missing_told: false,
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
        let mut seen = Vec::new();
        let mut out_of_reach: BTreeMap<String, BTreeSet<NodeName>> = BTreeMap::new();
        for node in self.nodes.all() {
            let (found, quiet) = self.look_at(&node, now)?;
            if quiet || node.ready != Some(ConditionStatus::True) {
                let pool = self.nodes.pool_of(&node).to_owned();
                out_of_reach
                    .entry(pool)
                    .or_default()
                    .insert(node.name.clone());
            }
            seen.push(found);
        }
        self.count(&seen, now);
        self.look_at_pools(out_of_reach, now);
        self.tell(seen, now).await;
        Ok(())
    }

    fn look_at(&self, node: &NodeFacts, now: Timestamp) -> Result<(Seen, bool), ReadError> {
        let state = self.reports.agent(&node.name)?;
        let standing = self.reports.standing(&state, node.created_at, now);
        let should_report = state.expected || self.config.expect_everywhere;
        let is_silent = should_report && standing != Standing::Present;
        if let Standing::Silent(quiet) = standing
            && is_silent
            && state.expected
            && !self.silent.contains(&node.name)
        {
            AgentSilent {
                node: node.name.as_str(),
                silent_seconds: quiet.as_secs(),
            }
            .emit();
        }
        let seen = Seen {
            name: node.name.clone(),
            is_silent,
            never_reported: !state.expected,
        };
        let quiet = state.expected && standing != Standing::Present;
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
        let alarm = of(true) > 0 && now >= self.reports.nobody_silent_before();
        if alarm && !self.missing_told {
            AgentsMissing { nodes: missing }.emit();
        }
        self.missing_told = alarm;
    }

    fn look_at_pools(
        &mut self,
        mut out_of_reach: BTreeMap<String, BTreeSet<NodeName>>,
        now: Timestamp,
    ) {
        let config = SilentConfig {
            share_percent: self.config.silent_share,
            min_nodes: TOGETHER_MIN,
            window: TOGETHER,
            not_before: self.reports.nobody_silent_before(),
        };
        let pools: Vec<String> = self.nodes.pool_names().map(str::to_owned).collect();
        for pool in pools {
            let present = out_of_reach.remove(&pool).unwrap_or_default();
            let since = self.since.entry(pool.clone()).or_default();
            since.retain(|node, _| present.contains(node));
            for node in present {
                since.entry(node).or_insert(now);
            }
            let size = self.nodes.pool_size(&pool);
            let together = silent_share(&config, size, since, now);
            let label = PoolLabel { pool: pool.clone() };
            let is_silent = together.is_some();
            self.metrics
                .pool_silent
                .get_or_create(&label)
                .set(i64::from(is_silent));
            match together {
                None => {
                    self.pools.remove(&pool);
                }
                Some(silent) if self.pools.insert(pool.clone()) => PoolSilent {
                    pool: &pool,
                    silent: silent.len(),
                    nodes: size,
                }
                .emit(),
                Some(_) => {}
            }
        }
    }

    /// Appends what changed; what could not be stored is tried with the next look.
    async fn tell(&mut self, seen: Vec<Seen>, now: Timestamp) {
        let known = &self.silent;
        let changed: Vec<Seen> = seen
            .into_iter()
            .filter(|s| s.is_silent != known.contains(&s.name))
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
                    self.silent.insert(seen.name.clone());
                } else {
                    self.silent.remove(&seen.name);
                }
            }
        }
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
        seen.name.clone(),
        AGENT_SILENT,
        !seen.is_silent,
        message.to_owned(),
        now,
    )
}
