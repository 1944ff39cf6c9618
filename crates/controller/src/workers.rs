//! Waking the work of a node: per node in order, across nodes in parallel.
//!
//! A [`Workers`] is a queue of node names without repeats, so its length is bounded by the number
//! of nodes. N tasks take from it; no two of them ever hold the same node, and a node that is woken
//! while its work runs is worked on again afterwards. A wake-up is a hint: the work looks at the
//! whole state of its node, whatever woke it.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use health_event::NodeName;
use jiff::Timestamp;
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// The longest sleep before the timers are looked at again: a wall clock that was set back or
/// forward delays a wake-up by no more than this.
const LONGEST_SLEEP: Duration = Duration::from_mins(1);

/// Wakes the work of nodes. Cheap to clone; all clones are one queue.
#[derive(Debug, Clone, Default)]
pub struct Workers(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// One permit: something is ready.
    ready: Notify,
    /// The earliest timer changed.
    timer: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    ready: VecDeque<NodeName>,
    /// What is in `ready`.
    queued: HashSet<NodeName>,
    running: HashSet<NodeName>,
    /// Woken while it ran.
    again: HashSet<NodeName>,
    timers: BTreeSet<(Timestamp, NodeName)>,
    /// The one timer of each node.
    due: HashMap<NodeName, Timestamp>,
}

/// The workers of all modules. Cheap to clone; all clones are one list.
#[derive(Debug, Clone, Default)]
pub struct WakeAll(Arc<Mutex<Vec<Workers>>>);

impl WakeAll {
    /// Adds a module's workers.
    pub fn add(&self, workers: &Workers) {
        self.lock().push(workers.clone());
    }

    /// Wakes every module's work of the node; does not block.
    pub fn wake(&self, node: &NodeName) {
        for workers in self.lock().iter() {
            workers.wake(node);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Workers>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A task that never ends by itself ended: its work panicked.
#[derive(Debug, thiserror::Error)]
#[error("a worker of {module} ended: {why}. This is a bug of Warden; please report it")]
pub struct WorkerEnded {
    module: &'static str,
    why: String,
}

impl WorkerEnded {
    /// Static name for metrics and messages.
    pub fn code(&self) -> &'static str {
        "worker_ended"
    }
}

impl Workers {
    /// An empty queue. Nodes can be woken before [`Workers::run`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts the workers in the background; the task ends only with an error. Stopping it by
    /// dropping the returned set stops the workers.
    pub fn spawn<F, Fut>(
        count: usize,
        module: &'static str,
        work: F,
    ) -> (Self, JoinSet<WorkerEnded>)
    where
        F: Fn(NodeName) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let workers = Self::new();
        let mut tasks = JoinSet::new();
        let running = workers.clone();
        tasks.spawn(async move { running.run(count, module, work).await });
        (workers, tasks)
    }

    /// Has the node's work run soon: at once if a worker is free, once for all wake-ups since it
    /// last began.
    pub fn wake(&self, node: &NodeName) {
        if self.0.lock().wake(node) {
            self.0.ready.notify_one();
        }
    }

    /// Has the node's work run at `at`, or earlier if an earlier time was asked for. A node has one
    /// timer: it is gone when its work begins, which asks anew.
    pub fn wake_at(&self, node: &NodeName, at: Timestamp) {
        if self.0.lock().set_timer(node, at) {
            self.0.timer.notify_one();
        }
    }

    /// Nodes that wait.
    pub fn backlog(&self) -> usize {
        let queue = self.0.lock();
        queue.ready.len() + queue.again.len()
    }

    /// Runs `count` workers and the timers until one ends, which only a panic does. Dropping the
    /// future stops them all.
    pub async fn run<F, Fut>(&self, count: usize, module: &'static str, work: F) -> WorkerEnded
    where
        F: Fn(NodeName) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let mut tasks = JoinSet::new();
        for _ in 0..count.max(1) {
            tasks.spawn(worker(Arc::clone(&self.0), work.clone()));
        }
        tasks.spawn(run_timers(self.clone()));
        let why = match tasks.join_next().await {
            Some(Err(error)) => error.to_string(),
            Some(Ok(())) | None => "it returned".to_owned(),
        };
        WorkerEnded { module, why }
    }
}

async fn worker<F, Fut>(shared: Arc<Shared>, work: F)
where
    F: Fn(NodeName) -> Fut,
    Fut: Future<Output = ()>,
{
    loop {
        let node = shared.next().await;
        work(node.clone()).await;
        if shared.lock().finish(&node) {
            shared.ready.notify_one();
        }
    }
}

async fn run_timers(workers: Workers) {
    loop {
        let earliest = workers.0.lock().timers.first().map(|(at, _)| *at);
        let sleep = earliest.map_or(LONGEST_SLEEP, until);
        tokio::select! {
            () = tokio::time::sleep(sleep) => {}
            () = workers.0.timer.notified() => {}
        }
        let due = workers.0.lock().take_due(Timestamp::now());
        for node in due {
            workers.wake(&node);
        }
    }
}

/// From now until then, not negative, not longer than [`LONGEST_SLEEP`].
fn until(at: Timestamp) -> Duration {
    let left = at.duration_since(Timestamp::now());
    Duration::try_from(left).map_or(Duration::ZERO, |left| left.min(LONGEST_SLEEP))
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn next(&self) -> NodeName {
        loop {
            {
                let mut queue = self.lock();
                if let Some(node) = queue.take() {
                    // One permit can stand for several wake-ups: pass it on.
                    if !queue.ready.is_empty() {
                        self.ready.notify_one();
                    }
                    return node;
                }
            }
            self.ready.notified().await;
        }
    }
}

impl Queue {
    /// Answers whether a worker has something to take.
    fn wake(&mut self, node: &NodeName) -> bool {
        if self.running.contains(node) {
            self.again.insert(node.clone());
            return false;
        }
        if !self.queued.insert(node.clone()) {
            return false;
        }
        self.ready.push_back(node.clone());
        true
    }

    fn take(&mut self) -> Option<NodeName> {
        let node = self.ready.pop_front()?;
        self.queued.remove(&node);
        self.running.insert(node.clone());
        if let Some(at) = self.due.remove(&node) {
            self.timers.remove(&(at, node.clone()));
        }
        Some(node)
    }

    fn finish(&mut self, node: &NodeName) -> bool {
        self.running.remove(node);
        self.again.remove(node) && self.wake(node)
    }

    /// Answers whether the node's timer moved.
    fn set_timer(&mut self, node: &NodeName, at: Timestamp) -> bool {
        match self.due.get(node) {
            Some(known) if *known <= at => return false,
            Some(known) => {
                self.timers.remove(&(*known, node.clone()));
            }
            None => {}
        }
        self.due.insert(node.clone(), at);
        self.timers.insert((at, node.clone()));
        true
    }

    fn take_due(&mut self, now: Timestamp) -> Vec<NodeName> {
        let mut due = Vec::new();
        while let Some((at, _)) = self.timers.first() {
            if *at > now {
                break;
            }
            if let Some((_, node)) = self.timers.pop_first() {
                self.due.remove(&node);
                due.push(node);
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use jiff::SignedDuration;
    use tokio::sync::{Semaphore, mpsc};

    use super::*;

    fn name(text: &str) -> NodeName {
        NodeName::new(text).unwrap()
    }

    async fn within<T>(work: impl Future<Output = T>) -> T {
        tokio::time::timeout(Duration::from_secs(10), work)
            .await
            .expect("within ten seconds")
    }

    #[tokio::test]
    async fn wake_ups_of_one_node_fold_into_one_run_and_one_more_after_a_running_one() {
        let (began, mut begins) = mpsc::unbounded_channel();
        let gate = Arc::new(Semaphore::new(0));
        let held = Arc::clone(&gate);
        let (workers, _tasks) = Workers::spawn(4, "test", move |node| {
            let (began, gate) = (began.clone(), Arc::clone(&held));
            async move {
                began.send(node).unwrap();
                gate.acquire().await.unwrap().forget();
            }
        });
        workers.wake(&name("a"));
        assert_eq!(within(begins.recv()).await, Some(name("a")));
        for _ in 0..5 {
            workers.wake(&name("a"));
        }
        assert_eq!(workers.backlog(), 1);
        workers.wake(&name("b"));
        assert_eq!(
            within(begins.recv()).await,
            Some(name("b")),
            "another node is not held up"
        );
        gate.add_permits(2);
        assert_eq!(within(begins.recv()).await, Some(name("a")));
        gate.add_permits(1);
        within(async {
            while workers.backlog() > 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert!(begins.try_recv().is_err(), "five wake-ups are one run");
    }

    #[tokio::test]
    async fn no_node_is_held_by_two_workers_and_all_are_served() {
        let running: Arc<Mutex<HashSet<NodeName>>> = Arc::default();
        let done = Arc::new(AtomicUsize::new(0));
        let (seen, count) = (Arc::clone(&running), Arc::clone(&done));
        let (workers, _tasks) = Workers::spawn(8, "test", move |node| {
            let (seen, count) = (Arc::clone(&seen), Arc::clone(&count));
            async move {
                assert!(
                    seen.lock().unwrap().insert(node.clone()),
                    "{node} held twice"
                );
                tokio::task::yield_now().await;
                seen.lock().unwrap().remove(&node);
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        for round in 0..50 {
            for n in 0..20 {
                workers.wake(&name(&format!("n{n}")));
            }
            if round % 7 == 0 {
                tokio::task::yield_now().await;
            }
        }
        within(async {
            while done.load(Ordering::Relaxed) < 20 || workers.backlog() > 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    #[tokio::test]
    async fn the_earliest_time_asked_for_counts() {
        let (began, mut begins) = mpsc::unbounded_channel();
        let (workers, _tasks) = Workers::spawn(1, "test", move |node| {
            let began = began.clone();
            async move {
                began.send(node).unwrap();
            }
        });
        let now = Timestamp::now();
        workers.wake_at(&name("a"), now + SignedDuration::from_hours(1));
        workers.wake_at(&name("a"), now + SignedDuration::from_millis(20));
        workers.wake_at(&name("a"), now + SignedDuration::from_hours(2));
        assert_eq!(within(begins.recv()).await, Some(name("a")));
        assert!(Timestamp::now() >= now + SignedDuration::from_millis(20));
        assert!(workers.0.lock().timers.is_empty(), "a node has one timer");
    }

    #[tokio::test]
    async fn a_panic_in_the_work_ends_the_run_with_its_name() {
        let workers = Workers::new();
        workers.wake(&name("a"));
        let ended = within(workers.run(2, "quarantine", |_| async { panic!("oops") })).await;
        assert_eq!(ended.code(), "worker_ended");
        assert!(
            ended
                .to_string()
                .starts_with("a worker of quarantine ended"),
            "{ended}"
        );
    }
}
