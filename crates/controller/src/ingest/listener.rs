//! Connections of senders: TCP, with TLS or without.
//!
//! A connection counts from its acceptance to its end. They are kept while there are fewer than the
//! limit; at the limit the one that has been idle for longest is closed for the next caller. While
//! none is idle one caller waits here and the others outside, in the kernel's queue. A handshake
//! that takes longer than ten seconds is ended.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rustls::ServerConfig;
use telemetry::ControllerMetrics;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;
use tracing::warn;

use super::idle::{CameBy, Known, Place};

/// Longest TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Pause after an accept that failed (out of file descriptors), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Between looks for an idle connection to close for a caller that waits.
const LOOK: Duration = Duration::from_millis(100);
/// How often the log tells that the bound is reached.
const WARN_EVERY: Duration = Duration::from_mins(1);
/// Connections between handshake and server.
const HANDED_OVER: usize = 64;

/// Why a port can't be served.
#[derive(Debug, thiserror::Error)]
#[error(
    "listening on {address}: {source}. Is another process there? See ingest.listen, api.listen"
)]
pub struct ListenError {
    address: SocketAddr,
    source: io::Error,
}

impl ListenError {
    /// Static name for metrics and messages.
    pub fn code(&self) -> &'static str {
        "listen"
    }
}

/// Takes a port.
///
/// # Errors
/// [`ListenError`].
pub async fn bind(address: SocketAddr) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| ListenError { address, source })
}

/// What all listeners of a process share.
#[derive(Debug, Clone)]
pub struct Connections {
    permits: Arc<Semaphore>,
    known: Known,
    metrics: Arc<ControllerMetrics>,
    told: Arc<Mutex<Option<Instant>>>,
}

impl Connections {
    /// At most this many.
    pub fn new(most: usize, metrics: Arc<ControllerMetrics>) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(most)),
            known: Known::default(),
            metrics,
            told: Arc::default(),
        }
    }

    /// A place for one more, for which an idle one goes if there is none; none at the end of the
    /// process.
    async fn place(&self) -> Option<OwnedSemaphorePermit> {
        loop {
            let permits = Arc::clone(&self.permits);
            if let Ok(permit) = tokio::time::timeout(LOOK, permits.acquire_owned()).await {
                return permit.ok();
            }
            self.tell_full();
            self.known.close_idle();
        }
    }

    fn tell_full(&self) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
            *told = Some(Instant::now());
            warn!(
                code = "ingest_full",
                "there are as many connections as ingest.max_connections allows; the one that was \
                 idle for longest is closed for each new one"
            );
        }
    }

    /// The connections of a listener, as tonic takes them, until the receiver is dropped.
    pub fn incoming(
        &self,
        listener: TcpListener,
        tls: Option<Arc<ServerConfig>>,
    ) -> mpsc::Receiver<io::Result<Connection>> {
        let (sender, receiver) = mpsc::channel(HANDED_OVER);
        let acceptor = tls.map(TlsAcceptor::from);
        tokio::spawn(accept(self.clone(), listener, acceptor, sender));
        receiver
    }
}

async fn accept(
    connections: Connections,
    listener: TcpListener,
    acceptor: Option<TlsAcceptor>,
    sender: mpsc::Sender<io::Result<Connection>>,
) {
    loop {
        let accepted = tokio::select! {
            () = sender.closed() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            // The next call fails the same way while the cause lasts; readiness of the port is
            // seen by its callers.
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let permit = tokio::select! {
            () = sender.closed() => return,
            permit = connections.place() => permit,
        };
        let Some(permit) = permit else {
            return;
        };
        let (acceptor, sender) = (acceptor.clone(), sender.clone());
        let counted = Counted::new(permit, &connections);
        tokio::spawn(async move {
            if let Some(connection) = prepare(stream, acceptor, counted).await {
                // An error means that the server is gone, and the connection with it.
                let _ = sender.send(Ok(connection)).await;
            }
        });
    }
}

/// A caller that does not speak TLS, or hangs, is nobody's business: it is dropped in silence.
async fn prepare(
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
    counted: Counted,
) -> Option<Connection> {
    stream.set_nodelay(true).ok()?;
    let transport = match acceptor {
        None => Transport::Plain(stream),
        Some(acceptor) => {
            let handshake = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await;
            Transport::Tls(Box::new(handshake.ok()?.ok()?))
        }
    };
    Some(Connection { transport, counted })
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    transport: Transport,
    counted: Counted,
}

#[derive(Debug)]
enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Counts a connection as long as it lives.
#[derive(Debug)]
struct Counted {
    metrics: Arc<ControllerMetrics>,
    place: Place,
    _permit: OwnedSemaphorePermit,
}

impl Counted {
    fn new(permit: OwnedSemaphorePermit, all: &Connections) -> Self {
        all.metrics.ingest_connections.inc();
        Self {
            metrics: Arc::clone(&all.metrics),
            place: all.known.add(),
            _permit: permit,
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.metrics.ingest_connections.dec();
    }
}

impl Connected for Connection {
    type ConnectInfo = CameBy;

    fn connect_info(&self) -> CameBy {
        CameBy(Arc::clone(&self.counted.place.activity))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.counted.place.activity.must_end(context) {
            // Nothing read is the end.
            return Poll::Ready(Ok(()));
        }
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Transport::Tls(stream) => Pin::new(stream.as_mut()).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Transport::Tls(stream) => Pin::new(stream.as_mut()).poll_write(context, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_flush(context),
            Transport::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Transport::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(context),
        }
    }
}
