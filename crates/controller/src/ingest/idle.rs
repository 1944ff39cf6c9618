//! Which connections are idle, and who goes when there are too many.
//!
//! A connection is idle while none of its calls runs; pings don't count. It is closed by reading its
//! end: HTTP/2 then ends it, and its caller comes again with the next call. One that has a call, or
//! had one a moment ago, whose answer may not be out yet, is never closed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::task::AtomicWaker;
use http::Request;
use tokio::time::Instant;
use tonic::body::Body;
use tower::{Layer, Service};

/// A connection that had a call later than this is not idle: its answer must get out, and one that
/// was just made must get to its first call.
const QUIET: Duration = Duration::from_secs(1);

/// What is known of one connection.
#[derive(Debug)]
pub struct Activity {
    calls: Mutex<Calls>,
    closing: AtomicBool,
    reader: AtomicWaker,
}

#[derive(Debug)]
struct Calls {
    running: u32,
    since: Instant,
}

/// The connection that a call came by, among the request's extensions.
#[derive(Debug, Clone)]
pub struct CameBy(pub Arc<Activity>);

impl Activity {
    fn new() -> Self {
        Self {
            calls: Mutex::new(Calls {
                running: 0,
                since: Instant::now(),
            }),
            closing: AtomicBool::new(false),
            reader: AtomicWaker::new(),
        }
    }

    /// Whether the reader must see the end of the connection; else it is woken when it must.
    pub(super) fn must_end(&self, context: &Context<'_>) -> bool {
        self.reader.register(context.waker());
        self.closing.load(Ordering::Acquire)
    }

    fn calls(&self) -> std::sync::MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Since when nothing runs, if for long enough.
    fn idle_since(&self, now: Instant) -> Option<Instant> {
        let calls = self.calls();
        let idle = calls.running == 0
            && now.duration_since(calls.since) >= QUIET
            && !self.closing.load(Ordering::Acquire);
        idle.then_some(calls.since)
    }

    fn begin(self: &Arc<Self>) -> Running {
        self.calls().running += 1;
        Running(Arc::clone(self))
    }

    /// Ends the connection, unless a call began meanwhile.
    fn close(&self) -> bool {
        let calls = self.calls();
        if calls.running > 0 {
            return false;
        }
        self.closing.store(true, Ordering::Release);
        drop(calls);
        self.reader.wake();
        true
    }
}

/// A call that runs.
#[derive(Debug)]
struct Running(Arc<Activity>);

impl Drop for Running {
    fn drop(&mut self) {
        let mut calls = self.0.calls();
        calls.running -= 1;
        calls.since = Instant::now();
    }
}

/// All connections that there are: at most as many as are allowed.
#[derive(Debug, Clone, Default)]
pub(super) struct Known(Arc<Mutex<HashMap<u64, Arc<Activity>>>>);

/// A connection's place among them, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    number: u64,
    known: Known,
    pub(super) activity: Arc<Activity>,
}

impl Known {
    pub(super) fn add(&self) -> Place {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let activity = Arc::new(Activity::new());
        self.lock().insert(number, Arc::clone(&activity));
        Place {
            number,
            known: self.clone(),
            activity,
        }
    }

    /// Closes the connection that has been idle for longest. Answers whether there was one.
    pub(super) fn close_idle(&self) -> bool {
        let now = Instant::now();
        let known = self.lock();
        let mut idle: Vec<(Instant, &Arc<Activity>)> = known
            .values()
            .filter_map(|activity| Some((activity.idle_since(now)?, activity)))
            .collect();
        idle.sort_unstable_by_key(|(since, _)| *since);
        idle.into_iter().any(|(_, activity)| activity.close())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Arc<Activity>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.known.lock().remove(&self.number);
    }
}

/// Notes which connections have calls.
#[derive(Debug, Clone, Copy)]
pub struct NoteCalls;

impl<S> Layer<S> for NoteCalls {
    type Service = NotesCalls<S>;

    fn layer(&self, inner: S) -> NotesCalls<S> {
        NotesCalls(inner)
    }
}

/// The service around the services.
#[derive(Debug, Clone)]
pub struct NotesCalls<S>(S);

impl<S> Service<Request<Body>> for NotesCalls<S>
where
    S: Service<Request<Body>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let by = request.extensions().get::<CameBy>();
        let running = by.map(|CameBy(activity)| activity.begin());
        let call = self.0.call(request);
        Box::pin(async move {
            let answer = call.await;
            drop(running);
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_one_goes_and_none_with_a_call_now_or_just_before() {
        let known = Known::default();
        let (first, second, third) = (known.add(), known.add(), known.add());
        assert!(!known.close_idle(), "all are new");
        tokio::time::advance(QUIET).await;
        let running = first.activity.begin();
        drop(second.activity.begin());
        let closed = |place: &Place| place.activity.closing.load(Ordering::Acquire);
        assert!(known.close_idle());
        assert!(closed(&third) && !closed(&first) && !closed(&second));
        assert!(!known.close_idle(), "one runs, one answered a moment ago");
        tokio::time::advance(QUIET).await;
        assert!(known.close_idle() && closed(&second));
        drop(running);
        drop((second, third));
        assert_eq!(known.lock().len(), 1);
    }
}
