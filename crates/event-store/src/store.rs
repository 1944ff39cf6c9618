//! The handle.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use health_event::incident::{Hold, Incident};
use health_event::{BootId, CloseCause, FaultId, NodeName};
use jiff::Timestamp;

use crate::checkpoint::Checkpointer;
use crate::error::{OpenError, WriteError};
use crate::footing::Footing;
use crate::options::Options;
use crate::queue::{Job, Queue};
use crate::read::Readers;
use crate::recent::Recent;
use crate::reply::Reply;
use crate::startup::{self, Opened};
use crate::types::{Appended, Batch, Commit, Counters, Machine, Pruned, StoredFault, Transition};
use crate::writer::Writer;

/// Told of each commit.
pub type CommitListener = Box<dyn Fn(&Commit) + Send + Sync>;

/// What handle and writer share.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) listeners: Mutex<Vec<CommitListener>>,
    pub(crate) counters: Mutex<Counters>,
    /// Whether there may be held events.
    pub(crate) holds: AtomicBool,
    /// Open faults that may have effects, by node.
    pub(crate) open_faults: Recent<NodeName, Arc<[StoredFault]>>,
    /// Open incidents, by node.
    pub(crate) open_incidents: Recent<NodeName, Arc<[Incident]>>,
    /// What is known of machines.
    pub(crate) machines: Recent<String, Option<Arc<Machine>>>,
}

impl Shared {
    /// Forgets what a commit touched.
    fn forget(&self, commit: &Commit) {
        self.open_faults.forget(&commit.nodes);
        self.open_incidents.forget(&commit.nodes);
        self.machines.forget(&commit.machines);
    }

    /// Keeps no answer longer than a turn.
    pub(crate) fn turn(&self) {
        self.open_faults.clear();
        self.open_incidents.clear();
        self.machines.clear();
    }

    /// Tells of a commit: whoever looks from now on sees it.
    pub(crate) fn publish(&self, commit: &Commit, counters: Counters, holds: bool) {
        self.forget(commit);
        self.holds.store(holds, Ordering::Release);
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner) = counters;
        let listeners = self.listeners.lock();
        for listener in listeners.unwrap_or_else(PoisonError::into_inner).iter() {
            listener(commit);
        }
    }
}

/// A store of events, faults, incidents and transitions. Clones share one store; it is closed when
/// the last one goes, or by [`EventStore::close`].
///
/// Writes go to one thread and answer once they are durable; reads use connections of their own
/// and block only for the time of the query (tens of microseconds for one node).
#[derive(Clone)]
pub struct EventStore {
    inner: Arc<Inner>,
}

struct Inner {
    dir: PathBuf,
    id: String,
    is_new: bool,
    queue: Arc<Queue>,
    shared: Arc<Shared>,
    readers: Readers,
    footing: Arc<Footing>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl EventStore {
    /// Opens the store in a folder, which is created if it does not exist, and starts its writer.
    ///
    /// # Errors
    /// [`OpenError`]: another process has it open, a network file system, a damaged file, a newer
    /// schema, or the folder can't be used.
    pub fn open(dir: &Path, options: Options) -> Result<Self, OpenError> {
        Self::start(startup::open(dir, &options, None)?, options, dir)
    }

    /// Starts the writer of a store that passed the checks.
    fn start(opened: Opened, options: Options, dir: &Path) -> Result<Self, OpenError> {
        let queue = Arc::new(Queue::default());
        let shared = Arc::new(Shared::default());
        let checkpointer = Checkpointer::start(&opened.path, opened.wal)?;
        let (id, is_new, path) = (opened.store_id.clone(), opened.is_new, opened.path.clone());
        let reserve_dir = dir.to_owned();
        let writer = Writer::new(
            opened,
            options,
            reserve_dir,
            Arc::clone(&shared),
            checkpointer,
        )?;
        let footing = writer.footing();
        let jobs = Arc::clone(&queue);
        let thread = std::thread::Builder::new()
            .name("event-store".to_owned())
            .spawn(move || writer.run(&jobs))
            .map_err(|source| OpenError::Io {
                act: "start the writer for",
                path: dir.to_owned(),
                source,
            })?;
        Ok(Self {
            inner: Arc::new(Inner {
                dir: dir.to_owned(),
                id,
                is_new,
                queue,
                shared,
                readers: Readers::new(path),
                footing,
                writer: Mutex::new(Some(thread)),
            }),
        })
    }

    /// Writes what waits, then closes; later writes answer [`crate::WriteError::Closed`].
    pub fn close(&self) {
        self.inner.close();
    }

    /// Whether an event would be taken in now. Looks at the files and their disk, so that it may
    /// block as they do; for a timer of the owner, who hears of it without a write then.
    ///
    /// # Errors
    /// [`WriteError::DiskFull`] and [`WriteError::Storage`] until that is over; what
    /// [`WriteError::is_final`] for good.
    pub fn footing(&self) -> Result<(), WriteError> {
        let footing = &self.inner.footing;
        footing.look()?;
        let why = footing.shortage().or_else(|| footing.failing());
        why.map_or(Ok(()), Err)
    }

    /// Id that the store got when it was made: another id means that the store was lost.
    pub fn store_id(&self) -> &str {
        &self.inner.id
    }

    /// Whether this opening made the store.
    pub fn is_new(&self) -> bool {
        self.inner.is_new
    }

    /// Adds a listener that is called in the writer's thread right after each commit, before the
    /// callers get their replies. It must not block and must not wait for a write.
    pub fn on_commit(&self, listener: CommitListener) {
        self.inner
            .shared
            .listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(listener);
    }

    /// Stores events. The reply comes once they are durable, one answer an event; either all are
    /// stored or none.
    pub fn append(&self, batch: Batch) -> Reply<Vec<Appended>> {
        let (answer, reply) = Reply::new();
        self.inner.queue.push_events(batch, answer);
        reply
    }

    /// Changes an incident, if it still has the expected version and the leadership still holds.
    /// Answers the position of the transition.
    pub fn transition(&self, transition: Transition) -> Reply<u64> {
        self.push(|answer| Job::Transition(Box::new(transition), answer))
    }

    /// Sets a module's state.
    pub fn state_put(&self, key: &str, value: Vec<u8>, fencing: u64) -> Reply<()> {
        let key = key.to_owned();
        self.push(|answer| Job::StatePut {
            key,
            value,
            fencing,
            answer,
        })
    }

    /// Removes a module's state.
    pub fn state_delete(&self, key: &str, fencing: u64) -> Reply<()> {
        let keys = vec![key.to_owned()];
        self.push(|answer| Job::Forget {
            node: None,
            keys,
            fencing,
            answer,
        })
    }

    /// Sets a machine's holds where no incident changes with them.
    pub fn holds_put(
        &self,
        machine: &str,
        holds: Vec<Hold>,
        fencing: u64,
        at: Timestamp,
    ) -> Reply<()> {
        let machine = machine.to_owned();
        self.push(|answer| Job::HoldsPut {
            machine,
            holds,
            fencing,
            at,
            answer,
        })
    }

    /// Closes a fault without a healthy event. It takes the order of the newest event of each
    /// sender, so that any later event opens it again. Answers whether it was open.
    ///
    /// With [`CloseCause::NoLongerAsserted`], and where the node is gone, it is not asserted by the
    /// agent from then on either, also where it was closed already; any other cause leaves that as
    /// the agent said it.
    pub fn close_fault(&self, id: &FaultId, cause: CloseCause, at: Timestamp) -> Reply<bool> {
        let id = Box::new(id.clone());
        self.push(|answer| Job::CloseFault {
            id,
            cause,
            at,
            answer,
        })
    }

    /// Closes faults of a node that is gone, or of a machine that it no longer is, as
    /// [`Self::close_fault`] does: each only if it still has this [`StoredFault::count`], so that
    /// what was said in the meantime stays. One transaction: give a few hundred at most. Answers
    /// how many closed.
    ///
    /// An agent that answers a request for its list with one of them opens it again.
    pub fn close_gone(
        &self,
        faults: Vec<(FaultId, u64)>,
        cause: CloseCause,
        fencing: u64,
        at: Timestamp,
    ) -> Reply<usize> {
        self.push(|answer| Job::CloseGone {
            faults,
            cause,
            fencing,
            at,
            answer,
        })
    }

    /// Removes what is kept of a node by its name alone: where its agents' spools stand, and the
    /// module states of these keys.
    pub fn forget_node(&self, node: &NodeName, keys: Vec<String>, fencing: u64) -> Reply<()> {
        let node = Some(node.clone());
        self.push(|answer| Job::Forget {
            node,
            keys,
            fencing,
            answer,
        })
    }

    /// Raises the number of the leadership; a lower one than the stored is refused.
    pub fn set_fencing(&self, number: u64) -> Reply<()> {
        self.push(|answer| Job::SetFencing(number, answer))
    }

    /// Notes that a consumer has completed all events up to `seq`, and enables it. Never goes back.
    pub fn consumer_advance(&self, name: &str, seq: u64, at: Timestamp) -> Reply<()> {
        let name = name.to_owned();
        self.push(|answer| Job::ConsumerAdvance {
            name,
            seq,
            at,
            answer,
        })
    }

    /// Says whether retention by age waits for a consumer.
    pub fn consumer_enable(&self, name: &str, enabled: bool, at: Timestamp) -> Reply<()> {
        let name = name.to_owned();
        self.push(|answer| Job::ConsumerEnable {
            name,
            enabled,
            at,
            answer,
        })
    }

    /// Notes a boot that the agent's report or the node's status brought in, and the agent's spool
    /// (empty: leave as it is). An empty machine id is nothing to keep. With a spool
    /// it is the agent's own word, which makes the boot the present one also where it was known.
    /// Answers whether anything changed.
    pub fn observe_boot(
        &self,
        machine: &str,
        boot: &BootId,
        spool: &str,
        at: Timestamp,
    ) -> Reply<bool> {
        let (machine, boot, spool) = (machine.to_owned(), boot.clone(), spool.to_owned());
        self.push(|answer| Job::ObserveBoot {
            machine,
            boot,
            spool,
            at,
            answer,
        })
    }

    /// Closes flapping faults that were healthy long enough; for a timer of the owner (every few
    /// seconds). Answers how many.
    pub fn release_flapping(&self, now: Timestamp) -> Reply<usize> {
        self.push(|answer| Job::ReleaseFlapping(now, answer))
    }

    /// One step of retention, small enough not to hold up other writes; for a timer of the owner
    /// (every minute), again at once while [`Pruned::more`].
    pub fn prune(&self, now: Timestamp) -> Reply<Pruned> {
        self.push(|answer| Job::Prune(now, answer))
    }

    /// Counted since the store was opened.
    pub fn counters(&self) -> Counters {
        *self
            .inner
            .shared
            .counters
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.inner.shared
    }

    pub(crate) fn readers(&self) -> &Readers {
        &self.inner.readers
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.inner.dir
    }

    fn push<T>(&self, job: impl FnOnce(crate::reply::Answer<T>) -> Job) -> Reply<T> {
        let (answer, reply) = Reply::new();
        self.inner.queue.push(job(answer));
        reply
    }
}

impl Inner {
    fn close(&self) {
        self.queue.close();
        let thread = self
            .writer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        // A listener that holds the last handle drops it in the writer's own thread, which can't
        // wait for itself.
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!(dir = %self.dir.display(), "the writer of the event store panicked");
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for EventStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventStore")
            .field("dir", &self.inner.dir)
            .field("id", &self.inner.id)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use health_event::{HealthEvent, Sender, Subject};

    use super::*;
    use crate::types::{Fingerprint, NewEvent};

    fn event() -> NewEvent {
        NewEvent {
            sender: Sender::controller(),
            event: HealthEvent::default(),
            subject: Subject::Cluster,
            machine: String::new(),
            order: None,
            received_at: Timestamp::UNIX_EPOCH,
            body: Vec::new(),
            fingerprint: Fingerprint([0; 16]),
            asserted_by_agent: false,
            newest_counts: false,
            inclusive: false,
            out_of_turn: false,
            standing: crate::Standing::Counts,
        }
    }

    /// As on a network file system, where another host doesn't see the lock.
    #[test]
    fn an_instance_whose_mark_was_taken_writes_nothing_more() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            allow_network_fs: true,
            ..Options::default()
        };
        let beat = Duration::from_millis(20);
        let opened = startup::open_with(dir.path(), &options, Some("NFS"), beat).unwrap();
        let store = EventStore::start(opened, options, dir.path()).unwrap();
        let fencing = store.fencing().unwrap();
        let put = |key: &str| store.state_put(key, Vec::new(), fencing).wait();
        put("before").unwrap();
        store.append(vec![event()]).wait().unwrap();
        let mark = dir.path().join("store.instance");
        let others = "another 7\n";
        std::fs::write(&mark, others).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while put("meanwhile").is_ok() {
            assert!(Instant::now() < deadline, "it still writes");
        }
        let kept = std::fs::read(dir.path().join("store.db")).unwrap();
        let over = WriteError::TakenOver {
            dir: dir.path().to_owned(),
        };
        assert_eq!(put("after"), Err(over.clone()));
        assert_eq!(store.append(vec![event()]).wait(), Err(over.clone()));
        assert_eq!(store.set_fencing(fencing + 1).wait(), Err(over.clone()));
        assert_eq!(store.footing(), Err(over));
        assert_eq!(store.state_get("before").unwrap(), Some(Vec::new()));
        assert_eq!(store.state_get("after").unwrap(), None);
        store.close();
        assert_eq!(std::fs::read_to_string(&mark).unwrap(), others);
        assert_eq!(std::fs::read(dir.path().join("store.db")).unwrap(), kept);
    }
}
