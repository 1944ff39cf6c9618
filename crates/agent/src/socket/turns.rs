//! How many calls run at once. Each may hold a batch of 5 MiB, so they are bounded before a byte of
//! it is read; and nobody's calls that hang may hold up those of others.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::Semaphore;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tower::{Layer, Service, ServiceExt as _};

use super::listen::Peer;
use super::places::is_root;

/// Calls of root at once, and of all other users together.
const POOL: usize = 8;
/// Calls of one user other than root at once.
const A_USER: usize = 4;
/// How long the batch of a call may take to arrive once it is the call's turn. On a unix socket that
/// takes some milliseconds; a caller that hangs in the middle of it must not keep the turn.
const ARRIVAL: Duration = Duration::from_secs(5);
/// Calls of one connection at once. A monitor sends one batch after the other, or a few.
const A_CONNECTION: usize = 4;

/// The pools that all connections share.
#[derive(Debug, Clone)]
pub(super) struct Pools {
    root: Arc<Semaphore>,
    others: Arc<Semaphore>,
}

impl Default for Pools {
    fn default() -> Self {
        let pool = || Arc::new(Semaphore::new(POOL));
        let (root, others) = (pool(), pool());
        Self { root, others }
    }
}

/// What a call of one connection needs a permit of each of, the narrowest first.
#[derive(Debug, Clone)]
pub(super) struct Turns {
    connection: Arc<Semaphore>,
    user: Arc<Semaphore>,
    pool: Arc<Semaphore>,
}

impl Turns {
    /// Of a new connection; `other` is one of the same user, if it has any.
    pub(super) fn new(pools: &Pools, uid: u32, other: Option<&Self>) -> Self {
        let (pool, share) = if is_root(uid) {
            (&pools.root, POOL)
        } else {
            (&pools.others, A_USER)
        };
        let user = other.map(|other| Arc::clone(&other.user));
        Self {
            connection: Arc::new(Semaphore::new(A_CONNECTION)),
            user: user.unwrap_or_else(|| Arc::new(Semaphore::new(share))),
            pool: Arc::clone(pool),
        }
    }
}

/// Whether the batch of a call is here; set by the handler.
#[derive(Debug, Clone, Default)]
pub(super) struct Arrived(Arc<AtomicBool>);

impl Arrived {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Lets calls wait for their turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct TurnsLayer;

impl<S> Layer<S> for TurnsLayer {
    type Service = InTurn<S>;

    fn layer(&self, inner: S) -> InTurn<S> {
        InTurn(inner)
    }
}

/// The service behind.
#[derive(Debug, Clone)]
pub(super) struct InTurn<S>(S);

impl<S> Service<Request<Body>> for InTurn<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let peer = request.extensions().get::<Peer>().cloned();
        let inner = self.0.clone();
        Box::pin(async move {
            // Every connection of the listener has one.
            let Some(peer) = peer else {
                return inner.oneshot(request).await;
            };
            let running = peer.begin();
            let Turns {
                connection,
                user,
                pool,
            } = peer.turns();
            // They are never closed, so each gets its permit.
            let _turn = (
                connection.acquire().await,
                user.acquire().await,
                pool.acquire().await,
            );
            let arrived = Arrived::default();
            request.extensions_mut().insert(arrived.clone());
            let mut call = Box::pin(inner.oneshot(request));
            let answer = match tokio::time::timeout(ARRIVAL, &mut call).await {
                Ok(answer) => answer,
                Err(_) if arrived.is_set() => call.await,
                Err(_) => {
                    let why = format!("the batch did not arrive within {ARRIVAL:?}");
                    return Ok(super::unavailable(&why).into_http());
                }
            };
            running.answered();
            answer
        })
    }
}
