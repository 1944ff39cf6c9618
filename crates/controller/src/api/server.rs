//! The port's connections: bounded in number, and in how long each may keep its place for nothing.
//!
//! # Guarantees
//! - A head that is not whole within [`HEAD`] ends its connection, and so does nothing read or written
//!   for [`IDLE`] (a watch says something more often).
//! - There are [`MOST`] connections at most. At the bound the one that was silent for longest and has no
//!   call goes for the next caller, so that probes are answered whoever holds the others. A watch stays.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tower::ServiceExt as _;
use tracing::warn;

/// Connections at a time: the watches, and as many short calls as a fleet of dashboards makes.
pub(crate) const MOST: usize = 256;
/// Longest time for a request's head, from its connection's first moment or its last answer.
pub(crate) const HEAD: Duration = Duration::from_secs(10);
/// Longest silence.
const IDLE: Duration = Duration::from_mins(1);
/// Who was heard of later than this is not silent: its answer may still be on its way.
const QUIET: Duration = Duration::from_secs(1);
/// Between looks for a silent connection to end for a caller that waits.
const LOOK: Duration = Duration::from_millis(100);
/// Pause after an accept that failed (out of file descriptors), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// What calls under way have at the end of the process.
const FAREWELL: Duration = Duration::from_secs(5);
/// How often the log tells that the bound is reached.
const WARN_EVERY: Duration = Duration::from_mins(1);

/// Serves until `stopped`.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    stopped: impl Future<Output = ()>,
) {
    let lines = Lines::new(MOST);
    let mut tasks = JoinSet::new();
    tokio::select! {
        () = stopped => {}
        never = accept(&lines, &listener, &router, &mut tasks) => match never {},
    }
    drop(listener);
    lines.stop();
    let _ = timeout(FAREWELL, async {
        while tasks.join_next().await.is_some() {}
    })
    .await;
}

async fn accept(
    lines: &Lines,
    listener: &TcpListener,
    router: &Router,
    tasks: &mut JoinSet<()>,
) -> Infallible {
    loop {
        // First the place: who has none waits outside, in the kernel's queue.
        let permit = lines.place().await;
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        while tasks.try_join_next().is_some() {}
        let line = lines.enter(permit);
        tasks.spawn(converse(stream, line, router.clone()));
    }
}

/// One connection from its first byte to its end.
async fn converse(stream: TcpStream, place: Place, router: Router) {
    // An answer is small, or written in large pieces.
    let _ = stream.set_nodelay(true);
    let line = Arc::clone(&place.line);
    let heard = Heard {
        stream,
        line: Arc::clone(&line),
    };
    let of_call = Arc::clone(&line);
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let (router, line) = (router.clone(), Arc::clone(&of_call));
        async move {
            let running = Running::new(&line);
            let answer: Result<Response, Infallible> = router.oneshot(request).await;
            drop(running);
            if let Ok(answer) = &answer
                && is_watch(answer)
            {
                line.watches.store(true, Ordering::Release);
            }
            answer
        }
    });
    let mut connection = std::pin::pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .serve_connection(TokioIo::new(heard), service)
    );
    loop {
        tokio::select! {
            // However it ended: its caller is gone.
            _ = connection.as_mut() => return,
            () = line.end.notified() => return,
            () = line.stop.notified() => connection.as_mut().graceful_shutdown(),
            () = sleep_until(line.heard_at() + IDLE) => {
                let silent = line.heard_at() + IDLE <= Instant::now();
                if silent && line.running.load(Ordering::Acquire) == 0 {
                    return;
                }
                if silent {
                    line.note_heard();
                }
            }
        }
    }
}

fn is_watch(answer: &Response) -> bool {
    let kind = answer.headers().get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// All connections.
#[derive(Debug, Clone)]
struct Lines {
    room: Arc<Semaphore>,
    known: Arc<Mutex<HashMap<u64, Arc<Line>>>>,
    began: Instant,
    /// When the log told last that the bound is reached.
    told: Arc<Mutex<Option<Instant>>>,
}

/// What is known of one.
#[derive(Debug)]
struct Line {
    began: Instant,
    /// When something was read or written last, milliseconds after `began`.
    heard: AtomicU64,
    running: AtomicU32,
    watches: AtomicBool,
    end: Notify,
    stop: Notify,
}

/// A connection's place, until it is dropped.
#[derive(Debug)]
struct Place {
    number: u64,
    line: Arc<Line>,
    lines: Lines,
    _permit: OwnedSemaphorePermit,
}

impl Lines {
    fn new(most: usize) -> Self {
        Self {
            room: Arc::new(Semaphore::new(most)),
            known: Arc::default(),
            began: Instant::now(),
            told: Arc::default(),
        }
    }

    /// A place for one more, for which a silent one goes if there is none.
    async fn place(&self) -> OwnedSemaphorePermit {
        loop {
            let room = Arc::clone(&self.room);
            if let Ok(Ok(permit)) = timeout(LOOK, room.acquire_owned()).await {
                return permit;
            }
            self.tell_full();
            self.end_silent();
        }
    }

    fn tell_full(&self) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
            *told = Some(Instant::now());
            warn!(
                code = "api_full",
                most = MOST,
                "api.listen has as many connections as it may have; the one that was silent for \
                 longest is ended for each new one"
            );
        }
    }

    fn enter(&self, permit: OwnedSemaphorePermit) -> Place {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let line = Arc::new(Line {
            began: self.began,
            heard: AtomicU64::new(0),
            running: AtomicU32::new(0),
            watches: AtomicBool::new(false),
            end: Notify::new(),
            stop: Notify::new(),
        });
        line.note_heard();
        self.lock().insert(number, Arc::clone(&line));
        Place {
            number,
            line,
            lines: self.clone(),
            _permit: permit,
        }
    }

    /// Ends the connection that was silent for longest, if there is one without a call.
    fn end_silent(&self) {
        let now = Instant::now();
        let known = self.lock();
        let silent = known.values().filter(|line| {
            line.running.load(Ordering::Acquire) == 0
                && !line.watches.load(Ordering::Acquire)
                && now.duration_since(line.heard_at()) >= QUIET
        });
        if let Some(line) = silent.min_by_key(|line| line.heard_at()) {
            line.end.notify_one();
        }
    }

    fn stop(&self) {
        for line in self.lock().values() {
            line.stop.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Line>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.lines.lock().remove(&self.number);
    }
}

impl Line {
    fn note_heard(&self) {
        let since = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.heard.store(since, Ordering::Release);
    }

    fn heard_at(&self) -> Instant {
        self.began + Duration::from_millis(self.heard.load(Ordering::Acquire))
    }
}

/// A call that runs.
#[derive(Debug)]
struct Running(Arc<Line>);

impl Running {
    fn new(line: &Arc<Line>) -> Self {
        line.running.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(line))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.note_heard();
        self.0.running.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A stream that notes when something went through it.
#[derive(Debug)]
struct Heard {
    stream: TcpStream,
    line: Arc<Line>,
}

impl AsyncRead for Heard {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.line.note_heard();
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Heard {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.line.note_heard();
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const ASKED: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";

    /// Real sockets, all that a test waits for within a minute.
    async fn within<T>(what: impl Future<Output = T>) -> T {
        timeout(Duration::from_mins(1), what).await.unwrap()
    }

    async fn served() -> (
        std::net::SocketAddr,
        tokio::task::JoinHandle<()>,
        Arc<Notify>,
    ) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/healthz", get(|| async { "ok\n" }));
        let stop = Arc::new(Notify::new());
        let stopped = Arc::clone(&stop);
        let server = tokio::spawn(async move {
            serve(listener, router, async move { stopped.notified().await }).await;
        });
        (address, server, stop)
    }

    async fn ask(stream: &mut TcpStream) -> String {
        stream.write_all(ASKED).await.unwrap();
        let mut answer = vec![0; 4_096];
        let read = within(stream.read(&mut answer)).await.unwrap();
        String::from_utf8_lossy(&answer[..read]).into_owned()
    }

    /// How long it takes until the other side ends the connection.
    async fn ended(stream: &mut TcpStream) -> Duration {
        let since = Instant::now();
        let mut rest = Vec::new();
        // A reset is an end too.
        let _ = within(stream.read_to_end(&mut rest)).await;
        since.elapsed()
    }

    #[tokio::test]
    async fn what_says_nothing_or_half_a_request_is_ended_and_a_probe_answered_meanwhile() {
        let (address, server, stop) = served().await;
        let connect = || TcpStream::connect(address);
        let mut idle = connect().await.unwrap();
        let mut half = connect().await.unwrap();
        half.write_all(&ASKED[..20]).await.unwrap();
        let mut kept = connect().await.unwrap();
        assert!(ask(&mut kept).await.contains("200 OK"));
        let took = tokio::join!(ended(&mut idle), ended(&mut half), ended(&mut kept));
        for took in [took.0, took.1, took.2] {
            assert!(took < HEAD * 3, "{took:?}");
        }
        let mut probe = connect().await.unwrap();
        assert!(ask(&mut probe).await.contains("200 OK"));
        stop.notify_one();
        within(server).await.unwrap();
    }

    #[tokio::test]
    async fn beyond_the_bound_the_longest_silent_one_goes_for_the_next() {
        let (address, server, stop) = served().await;
        let mut held = Vec::new();
        for _ in 0..MOST + 20 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(&ASKED[..20]).await.unwrap();
            held.push(stream);
        }
        let since = Instant::now();
        let mut probe = TcpStream::connect(address).await.unwrap();
        assert!(ask(&mut probe).await.contains("200 OK"));
        assert!(
            since.elapsed() < HEAD,
            "before any ended by itself: {:?}",
            since.elapsed()
        );
        // The first one had to go.
        assert!(ended(&mut held[0]).await < HEAD);
        stop.notify_one();
        within(server).await.unwrap();
    }
}
