//! Nodes that are gone, and nodes that are another machine now: their faults end, and what is kept
//! by their names goes (`decide::gone` says when).
//!
//! # Guarantees
//! - Nothing closes before the cache of nodes was complete once, nor without a direct read of the
//!   API server: no answer is neither gone nor replaced.
//! - The same after a restart: since when a node is gone is kept in the store. A time during which
//!   no controller ran does not end the wait of a node that is back.
//! - A closing takes the place of the newest event, so that any later one opens the fault again; an
//!   event that comes while it is decided keeps it open.
//! - What an agent of such a node asserts again opens again, by its list.
//!
//! # Bounds
//! One read of the API server for each look at a node that is gone or replaced, [`AT_ONCE`] at a
//! time; [`CHUNK`] closings a commit; one time a gone node in memory until it is forgotten. Nodes
//! that exist cost a look at their own faults when their object changes, and two minutes after what
//! is said of them.

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use decide::gone::{Decision, LastingFault, Place, SETTLING, View, decide, is_of_another};
use event_store::{ReadError, StoredFault, WriteError};
use health_event::incident::Incident;
use health_event::{CloseCause, NodeName};
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::context::Context;
use crate::ingest::{ClockSkews, released};
use crate::kubernetes::{CallError, jittered};
use crate::nodes::{NodeFacts, watch};
use crate::reports::{STATE_PREFIX, Standing, state_key};
use crate::workers::{WorkerEnded, Workers};

/// Nodes looked at at a time.
const AT_ONCE: usize = 4;
/// Faults that one commit closes: some 10 ms of the writer's time.
const CHUNK: usize = 200;
/// Longest time for one read.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failure.
const PAUSE: Duration = Duration::from_secs(5);
/// How often all that is remembered is gone through, for what no change told of: an agent that
/// reports about a node that does not exist.
const SWEEP: Duration = Duration::from_hours(1);
/// Before a node's name: since when it is gone.
const GONE: &str = "gone/";

/// Looks after nodes that are gone. Cheap to clone; all clones are one.
#[derive(Debug, Clone)]
pub struct Gone(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    context: Context,
    skews: Arc<ClockSkews>,
    workers: Workers,
    memory: SignedDuration,
    /// [`SETTLING`], but no longer than what is remembered.
    settling: SignedDuration,
    /// Since when nodes are gone, as it stands in the store.
    since: Mutex<HashMap<NodeName, Timestamp>>,
}

/// Why it ended, or a look failed.
#[derive(Debug, thiserror::Error)]
pub enum GoneError {
    /// A worker panicked.
    #[error(transparent)]
    Worker(#[from] WorkerEnded),
    /// The store can't be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The store can't be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The API server does not say whether the node exists.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl GoneError {
    /// Static name of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Worker(error) => error.code(),
            Self::Read(error) => error.code(),
            Self::Write(error) => error.code(),
            Self::Call(error) => error.code(),
        }
    }
}

impl Gone {
    /// With what the store knows of nodes that are gone.
    ///
    /// # Errors
    /// The store can't be read.
    pub fn load(context: Context, skews: Arc<ClockSkews>) -> Result<Self, ReadError> {
        let mut since = HashMap::new();
        for key in context.store.state_keys(GONE)? {
            let name = key.strip_prefix(GONE).and_then(|n| NodeName::new(n).ok());
            let value = context.store.state_get(&key)?;
            let at = value.and_then(|value| std::str::from_utf8(&value).ok()?.parse().ok());
            if let Some(name) = name {
                since.insert(name, at.unwrap_or_else(Timestamp::now));
            }
        }
        let memory = context.config.store.fault_memory;
        let memory = SignedDuration::try_from(memory).unwrap_or(SignedDuration::MAX);
        let (workers, settling) = (Workers::new(), SETTLING.min(memory));
        // What was said of another machine, or of no node at all, is looked at once it may count
        // as such. The timer of a node is set once. The listener holds no handle of the store,
        // which would keep it open.
        let timers = workers.clone();
        context.store.on_commit(Box::new(move |commit| {
            let at = later(Timestamp::now(), settling);
            for node in &commit.nodes {
                timers.wake_at(node, at);
            }
        }));
        Ok(Self(Arc::new(Inner {
            context,
            skews,
            workers,
            memory,
            settling,
            since: Mutex::new(since),
        })))
    }

    /// The node's object changed, came or went.
    pub fn wake(&self, node: &NodeName) {
        self.0.workers.wake(node);
    }

    /// Runs until the future is dropped.
    ///
    /// # Errors
    /// [`GoneError`]; the process then ends.
    pub async fn run(self) -> Result<Infallible, GoneError> {
        self.0.context.nodes.synced().await;
        let inner = Arc::clone(&self.0);
        let work = move |node: NodeName| {
            let inner = Arc::clone(&inner);
            async move { inner.work(&node).await }
        };
        tokio::select! {
            ended = self.0.workers.run(AT_ONCE, "gone nodes", work) => Err(ended.into()),
            swept = self.0.sweep() => Ok(swept?),
        }
    }
}

impl Inner {
    /// Wakes, at start and each hour, what something is kept of and has no node, and what may be
    /// another machine's.
    async fn sweep(&self) -> Result<Infallible, ReadError> {
        let mut ticks = tokio::time::interval(SWEEP);
        loop {
            ticks.tick().await;
            let store = &self.context.store;
            let mut names: BTreeSet<NodeName> = store.lasting_nodes()?.into_iter().collect();
            for prefix in [GONE, STATE_PREFIX] {
                let keys = store.state_keys(prefix)?;
                let without = keys.iter().filter_map(|key| key.strip_prefix(prefix));
                names.extend(without.filter_map(|name| NodeName::new(name).ok()));
            }
            for name in names {
                self.workers.wake(&name);
            }
        }
    }

    async fn work(&self, name: &NodeName) {
        match self.turn(name).await {
            Ok(None) => {}
            Ok(Some(at)) => self.workers.wake_at(name, at),
            Err(error) => {
                warn!(
                    node = %name,
                    code = error.code(),
                    why = %error,
                    "whether the node is gone is not known: its faults stay, and it is asked again"
                );
                let pause = SignedDuration::try_from(jittered(PAUSE));
                let pause = pause.unwrap_or(SignedDuration::ZERO);
                self.workers.wake_at(name, later(Timestamp::now(), pause));
            }
        }
    }

    /// One look at a node; answers when to look again.
    async fn turn(&self, name: &NodeName) -> Result<Option<Timestamp>, GoneError> {
        self.release_held(name).await?;
        let stored = self.context.store.lasting_faults(name)?;
        if !self.is_concerned(name, &stored)? {
            return Ok(None);
        }
        let (kube, nodes) = (&self.context.kube, &self.context.nodes);
        let deadline = Instant::now() + READ_TIMEOUT;
        let read = watch::read(kube, nodes, name, deadline).await?;
        let now = Timestamp::now();
        let place = match &read {
            Some(node) => {
                self.came_back(name).await?;
                self.present(node, now)?
            }
            None => Place::Gone {
                since: self.gone_since(name, now).await?,
            },
        };
        let faults = self.facts(name, read.as_deref(), &stored)?;
        let view = View {
            place: &place,
            faults: &faults,
            heard_at: self.context.reports.agent(name)?.last_report_at,
            agents_by: self.context.reports.nobody_silent_before(nodes.len()),
            memory: self.memory,
            settling: self.settling,
        };
        let decision = decide(&view, now);
        self.apply(name, &stored, &decision, now).await?;
        Ok(decision.wake_at)
    }

    /// What came from this machine before the node was it counts from now on, in its order.
    async fn release_held(&self, name: &NodeName) -> Result<(), GoneError> {
        let store = &self.context.store;
        let Some(node) = self.context.nodes.get(name) else {
            return Ok(());
        };
        let mut after = 0;
        loop {
            let held = store.held(name, &node.system_uuid, after, CHUNK)?;
            let Some(last) = held.last() else {
                return Ok(());
            };
            after = last.seq;
            let events: Vec<_> = held.iter().filter_map(|h| released(name, h)).collect();
            let count = events.len();
            store.append(events).await?;
            info!(node = %name, count, "events of the machine that the node is now count from here on");
        }
    }

    /// Whether there may be something to end: without asking the API server.
    fn is_concerned(&self, name: &NodeName, stored: &[StoredFault]) -> Result<bool, ReadError> {
        if self.lock().contains_key(name) {
            return Ok(true);
        }
        if let Some(node) = self.context.nodes.get(name) {
            let other = |fault: &StoredFault| is_of_another(&fault.machine, &node.system_uuid);
            return Ok(stored.iter().any(other));
        }
        let store = &self.context.store;
        let report = state_key(name);
        Ok(!stored.is_empty()
            || store.last_order(name)?.is_some()
            || store.state_get(&report)?.is_some())
    }

    fn present(&self, node: &NodeFacts, now: Timestamp) -> Result<Place, ReadError> {
        let (reports, nodes) = (&self.context.reports, self.context.nodes.len());
        let agent = reports.agent(&node.name)?;
        let standing = reports.standing(&agent, nodes, node.created_at, now);
        let made_by = later(node.created_at, SignedDuration::from_secs(1));
        let since = agent.last_report_at.is_some_and(|at| at >= made_by);
        let reported = if since && standing == Standing::Present {
            agent.machine
        } else {
            String::new()
        };
        Ok(Place::Present {
            machine: node.system_uuid.to_string(),
            made_by,
            reported,
        })
    }

    fn facts(
        &self,
        name: &NodeName,
        node: Option<&NodeFacts>,
        stored: &[StoredFault],
    ) -> Result<Vec<LastingFault>, ReadError> {
        let incidents = self.context.store.open_incidents_of(name)?;
        let of_this_object = |uid: &str| node.is_some_and(|node: &NodeFacts| *node.uid == *uid);
        let holds = |fault: &StoredFault| {
            let here = incidents.iter().filter(|i| of_this_object(&i.node_uid));
            here.flat_map(Incident::open_faults)
                .any(|f| f.id == fault.id)
        };
        let fact = |fault: &StoredFault| LastingFault {
            id: fault.id.clone(),
            machine: fault.machine.clone(),
            last_at: fault.last_at,
            asserted: fault.asserted_by_agent,
            held: holds(fault),
        };
        Ok(stored.iter().map(fact).collect())
    }

    async fn apply(
        &self,
        name: &NodeName,
        stored: &[StoredFault],
        decision: &Decision,
        now: Timestamp,
    ) -> Result<(), GoneError> {
        let (store, fencing) = (&self.context.store, self.context.fencing);
        for cause in [CloseCause::NodeDeleted, CloseCause::NodeReplaced] {
            let of_cause = decision.close.iter().filter(|(_, why)| *why == cause);
            let faults = of_cause.filter_map(|(index, _)| stored.get(*index));
            let faults: Vec<_> = faults.map(|f| (f.id.clone(), f.count)).collect();
            for chunk in faults.chunks(CHUNK) {
                let closing = store.close_gone(chunk.to_vec(), cause, fencing, now);
                let closed = closing.await?;
                info!(node = %name, closed, cause = cause.as_str(), "faults closed");
            }
        }
        if !decision.close.is_empty() {
            self.skews.forget_unless_open(name, store)?;
            self.context.reports.ask_again(name);
        }
        if decision.forget {
            let keys = vec![format!("{GONE}{name}"), state_key(name)];
            store.forget_node(name, keys, fencing).await?;
            self.context.reports.forget(name);
            self.lock().remove(name);
            info!(node = %name, "the node is gone for store.fault_memory: forgotten");
        }
        Ok(())
    }

    /// Since when the node is gone: kept before anything follows from it.
    async fn gone_since(&self, name: &NodeName, now: Timestamp) -> Result<Timestamp, WriteError> {
        let known = self.lock().get(name).copied();
        if let Some(known) = known {
            return Ok(known);
        }
        let (key, value) = (format!("{GONE}{name}"), now.to_string().into_bytes());
        let kept = self
            .context
            .store
            .state_put(&key, value, self.context.fencing);
        kept.await?;
        self.lock().insert(name.clone(), now);
        Ok(now)
    }

    async fn came_back(&self, name: &NodeName) -> Result<(), WriteError> {
        if self.lock().contains_key(name) {
            let key = format!("{GONE}{name}");
            let fencing = self.context.fencing;
            self.context.store.state_delete(&key, fencing).await?;
            self.lock().remove(name);
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeName, Timestamp>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn later(at: Timestamp, span: SignedDuration) -> Timestamp {
    at.saturating_add(span).unwrap_or(Timestamp::MAX)
}
