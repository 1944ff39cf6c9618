//! The connection to the controller: TLS or loopback plaintext, the bearer token, and the news
//! that the connection ended.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use health_event::text::{chain, harmless};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Uri};

use crate::config::Controller;

/// Connecting, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A dead peer that sends no reset is noticed after this plus [`KEEP_ALIVE_TIMEOUT`].
const KEEP_ALIVE: Duration = Duration::from_mins(1);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Why there is no connection, or no token.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The CA bundle is not there (yet).
    #[error("CA bundle {path} can't be read: {source}; connecting waits for it")]
    CaFile {
        /// File.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The token is not there or no token.
    #[error("token {path} can't be used: {why}; sending waits for it")]
    Token {
        /// File.
        path: PathBuf,
        /// Why; never the content.
        why: String,
    },
    /// TLS settings do not fit.
    #[error("TLS to {url} can't be set up: {source}; check the CA bundle")]
    Tls {
        /// Controller.
        url: String,
        /// Why.
        source: tonic::transport::Error,
    },
    /// No connection.
    #[error("controller {url} can't be reached: {why}")]
    Connect {
        /// Controller.
        url: String,
        /// The chain of reasons.
        why: String,
    },
}

impl LinkError {
    /// Static name.
    pub fn code(&self) -> &'static str {
        match self {
            Self::CaFile { .. } => "ca_file",
            Self::Token { .. } => "token_file",
            Self::Tls { .. } => "tls",
            Self::Connect { .. } => "connect",
        }
    }
}

/// How the controller is reached.
#[derive(Debug)]
pub struct Link {
    config: Controller,
    token: Mutex<Option<Token>>,
}

#[derive(Debug)]
struct Token {
    changed: (SystemTime, u64),
    header: MetadataValue<Ascii>,
}

impl Link {
    /// Nothing is read or connected yet.
    pub fn new(config: Controller) -> Self {
        Self {
            config,
            token: Mutex::new(None),
        }
    }

    /// Connects. `ended` is notified when the connection ends.
    ///
    /// # Errors
    /// [`LinkError`] if the CA bundle is missing or the controller can't be reached.
    pub async fn connect(&self, ended: Arc<Notify>) -> Result<Channel, LinkError> {
        let url = self.config.url.to_string();
        let mut endpoint = Endpoint::from(self.config.url.clone())
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .keep_alive_while_idle(true);
        if self.config.url.scheme_str() == Some("https") {
            let tls = self.tls().await?;
            let error = |source| LinkError::Tls {
                url: url.clone(),
                source,
            };
            endpoint = endpoint.tls_config(tls).map_err(error)?;
        }
        let connector = tower::service_fn(move |uri: Uri| {
            let ended = Arc::clone(&ended);
            async move {
                let stream = dial(&uri).await?;
                Ok::<_, io::Error>(TokioIo::new(Watched { stream, ended }))
            }
        });
        let connected = endpoint.connect_with_connector(connector);
        // The endpoint's own timeout is only a part of it (TLS, HTTP/2 come on top).
        let why = match tokio::time::timeout(2 * CONNECT_TIMEOUT, connected).await {
            Ok(Ok(channel)) => return Ok(channel),
            Ok(Err(error)) => shown(&chain(&error)),
            Err(_) => "timed out".to_owned(),
        };
        Err(LinkError::Connect { url, why })
    }

    /// The authorisation header, read anew if the token's file changed. None without a file.
    ///
    /// # Errors
    /// [`LinkError::Token`] if the file can't be read or holds no token.
    pub fn authorization(&self) -> Result<Option<MetadataValue<Ascii>>, LinkError> {
        let Some(path) = &self.config.token_file else {
            return Ok(None);
        };
        let error = |why: String| LinkError::Token {
            path: path.clone(),
            why,
        };
        let about = std::fs::metadata(path).map_err(|e| error(e.to_string()))?;
        let modified = about.modified().map_err(|e| error(e.to_string()))?;
        let changed = (modified, inode(&about));
        let mut known = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(token) = known.as_ref().filter(|token| token.changed == changed) {
            return Ok(Some(token.header.clone()));
        }
        let text = read_small(path).map_err(|e| error(e.to_string()))?;
        let mut header = format!("Bearer {}", text.trim())
            .parse::<MetadataValue<Ascii>>()
            .map_err(|_| error("it holds characters that no token has".into()))?;
        header.set_sensitive(true);
        *known = Some(Token {
            changed,
            header: header.clone(),
        });
        Ok(Some(header))
    }

    async fn tls(&self) -> Result<ClientTlsConfig, LinkError> {
        let mut tls = ClientTlsConfig::new();
        if let Some(path) = &self.config.ca_file {
            let pem = tokio::fs::read(path)
                .await
                .map_err(|source| LinkError::CaFile {
                    path: path.clone(),
                    source,
                })?;
            tls = tls.ca_certificate(Certificate::from_pem(pem));
        }
        if let Some(name) = &self.config.server_name {
            tls = tls.domain_name(name);
        }
        Ok(tls)
    }
}

fn inode(about: &std::fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(about)
}

/// A token is a few KiB; a larger file is not read.
fn read_small(path: &Path) -> io::Result<String> {
    use io::Read as _;
    let mut text = String::new();
    std::fs::File::open(path)?
        .take(64 * 1024)
        .read_to_string(&mut text)?;
    if text.trim().is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is empty"));
    }
    Ok(text)
}

async fn dial(uri: &Uri) -> io::Result<TcpStream> {
    let host = uri.host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let default = if uri.scheme_str() == Some("https") {
        443
    } else {
        80
    };
    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(default))).await?;
    // Two small writes in a row would else wait for a delayed acknowledgement of 40 ms.
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// What a peer answered.
pub fn said(error: &tonic::Status) -> String {
    shown(error.message())
}

/// A text of others, cut to 1,024 characters and without what would steer a terminal.
fn shown(text: &str) -> String {
    let cut: String = text.chars().take(1_024).collect();
    harmless(&cut).into_owned()
}

/// A TCP stream that tells when it is let go of: the library drops it as soon as the peer ends
/// the connection, also while nothing is being sent.
struct Watched {
    stream: TcpStream,
    ended: Arc<Notify>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.ended.notify_one();
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
