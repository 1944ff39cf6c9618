//! The controller's API: where it is, who asks, one call at a time.
//!
//! # Guarantees
//! - The token is sent over TLS, or to a loopback address; never in clear over a network.
//! - Every call ends within [`PATIENCE`] and its answer is at most [`LARGEST_ANSWER`] bytes.
//! - Every error names the address, what was tried, why it failed and what to do next.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use http::{Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::rt::{Read, Write};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use wire::api::Problem;

use crate::output::chain;
use crate::tls;

mod error;

pub use error::ApiError;

/// Where `kubectl port-forward` puts it.
const DEFAULT_SERVER: &str = "http://127.0.0.1:9441";
/// Longest time for one call.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Longest time until a connection stands.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of an answer at most: the list of 100,000 nodes takes 20 MB.
pub const LARGEST_ANSWER: usize = 64 * 1024 * 1024;
/// Characters of an answer that is no JSON in a message.
const SHOWN: usize = 200;

/// Ids of the flags of [`Connection`].
pub const FLAGS: [&str; 3] = ["server", "token_file", "ca_file"];

/// How the controller is reached.
#[derive(Debug, Clone, clap::Args)]
pub struct Connection {
    /// The controller's API: https://HOST:PORT, or http:// to a loopback address, where `kubectl -n
    /// warden port-forward deployment/warden-controller 9441` puts it.
    #[arg(
        long,
        value_name = "URL",
        env = "WARDEN_SERVER",
        hide_env_values = true,
        default_value = DEFAULT_SERVER,
        global = true,
        help_heading = HEADING
    )]
    server: String,
    /// File with the bearer token, as `kubectl create token SERVICEACCOUNT` prints it.
    #[arg(
        long,
        value_name = "FILE",
        env = "WARDEN_TOKEN_FILE",
        hide_env_values = true,
        global = true,
        help_heading = HEADING
    )]
    token_file: Option<PathBuf>,
    /// Certificate authorities (PEM), one of which must have signed the server's certificate; without it the
    /// system's.
    #[arg(
        long,
        value_name = "FILE",
        env = "WARDEN_CA_FILE",
        hide_env_values = true,
        global = true,
        help_heading = HEADING
    )]
    ca_file: Option<PathBuf>,
}

const HEADING: &str = "How to reach the controller (a variable that is empty counts as not set)";

/// What the controller said.
#[derive(Debug)]
pub struct Answer<T> {
    /// As a value.
    pub value: T,
    /// As it came, on one line.
    pub json: String,
    /// The controller's clock: ages are right also where ours is wrong.
    pub at: Timestamp,
}

/// A controller that can be asked.
#[derive(Debug)]
pub struct Api {
    server: String,
    host: String,
    port: u16,
    tls: Option<tls::Tls>,
    token: Option<String>,
    runtime: tokio::runtime::Runtime,
}

impl Connection {
    /// Reads token and certificates; connects with the first call.
    ///
    /// # Errors
    /// [`ApiError`] if the URL or a file can't be used.
    pub fn open(&self) -> Result<Api, ApiError> {
        let bad = |why| ApiError::Server {
            server: self.server.clone(),
            why,
        };
        let uri: Uri = self
            .server
            .parse()
            .map_err(|_| bad("want https://HOST:PORT"))?;
        let host = uri.host().ok_or_else(|| bad("want https://HOST:PORT"))?;
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(bad("want no path behind HOST:PORT"));
        }
        let host = host.trim_matches(['[', ']']).to_owned();
        let (tls, port) = match uri.scheme_str() {
            Some("https") => (Some(tls::client(self.ca_file.as_deref(), &host)?), 443),
            Some("http") if is_loopback(&host) => (None, 80),
            Some("http") => {
                return Err(bad(
                    "the token would cross the network in clear; want https://, or \
                     http:// to a loopback address behind `kubectl port-forward`",
                ));
            }
            _ => return Err(bad("want https://HOST:PORT")),
        };
        Ok(Api {
            server: self.server.trim_end_matches('/').to_owned(),
            port: uri.port_u16().unwrap_or(port),
            host,
            tls,
            token: self.token_file.as_deref().map(token).transpose()?,
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(ApiError::Runtime)?,
        })
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn token(path: &Path) -> Result<String, ApiError> {
    let error = |why: String| ApiError::TokenFile {
        path: path.to_owned(),
        why,
    };
    let text = std::fs::read_to_string(path).map_err(|e| error(e.to_string()))?;
    let token = text.trim();
    let usable = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    if usable {
        Ok(token.to_owned())
    } else {
        Err(error("it holds no token (one line of text)".to_owned()))
    }
}

impl Api {
    /// Reads something.
    ///
    /// # Errors
    /// [`ApiError`].
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<Answer<T>, ApiError> {
        self.call(&Method::GET, path, Bytes::new())
    }

    /// Asks for something to be done.
    ///
    /// # Errors
    /// [`ApiError`].
    pub fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<Answer<T>, ApiError> {
        let body = serde_json::to_vec(body).map_err(|error| self.odd("POST", path, &error))?;
        self.call(&Method::POST, path, Bytes::from(body))
    }

    fn call<T: DeserializeOwned>(
        &self,
        method: &Method,
        path: &str,
        body: Bytes,
    ) -> Result<Answer<T>, ApiError> {
        let call = format!("{method} {path}");
        let late = || ApiError::NoAnswer {
            call: call.clone(),
            server: self.server.clone(),
            why: format!("nothing within {} s", PATIENCE.as_secs()),
        };
        let (status, date, bytes) = self.runtime.block_on(async {
            tokio::time::timeout(PATIENCE, self.send(method, path, body))
                .await
                .map_err(|_| late())?
        })?;
        if !status.is_success() {
            return Err(self.refused(call, status, &bytes));
        }
        let odd = |error: &dyn std::fmt::Display| self.odd(method.as_str(), path, error);
        let value = serde_json::from_slice(&bytes).map_err(|error| odd(&error))?;
        let json = String::from_utf8(bytes.into()).map_err(|error| odd(&error))?;
        let at = date
            .and_then(|date| {
                jiff::fmt::rfc2822::DateTimeParser::new()
                    .parse_timestamp(&date)
                    .ok()
            })
            .unwrap_or_else(Timestamp::now);
        Ok(Answer { value, json, at })
    }

    async fn send(
        &self,
        method: &Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Option<String>, Bytes), ApiError> {
        let no_answer = |error: &dyn std::error::Error| ApiError::NoAnswer {
            call: format!("{method} {path}"),
            server: self.server.clone(),
            why: chain(error),
        };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, format!("{}:{}", self.host, self.port))
            .header(
                header::USER_AGENT,
                concat!("warden/", env!("CARGO_PKG_VERSION")),
            )
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request
            .body(Full::new(body))
            .map_err(|error| no_answer(&error))?;
        let stream = self.connect().await?;
        let (mut sender, connection) = match &self.tls {
            None => handshake(TokioIo::new(stream)).await,
            Some(tls) => {
                let stream = tls.connect(stream).await.map_err(|why| ApiError::Tls {
                    server: self.server.clone(),
                    why,
                })?;
                handshake(TokioIo::new(stream)).await
            }
        }
        .map_err(|error| no_answer(&error))?;
        let driver = tokio::spawn(connection);
        let answer = async {
            let response = sender.send_request(request).await?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, LARGEST_ANSWER).collect().await?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>((head, body.to_bytes()))
        }
        .await;
        driver.abort();
        let (head, body) = answer.map_err(|error| no_answer(&*error))?;
        let date = head.headers.get(header::DATE);
        let date = date.and_then(|date| date.to_str().ok()).map(str::to_owned);
        Ok((head.status, date, body))
    }

    async fn connect(&self) -> Result<TcpStream, ApiError> {
        let unreachable = |why: String| ApiError::Unreachable {
            server: self.server.clone(),
            why,
        };
        let connecting = TcpStream::connect((self.host.as_str(), self.port));
        tokio::time::timeout(CONNECT_PATIENCE, connecting)
            .await
            .map_err(|_| unreachable(format!("no answer in {} s", CONNECT_PATIENCE.as_secs())))?
            .map_err(|error| unreachable(error.to_string()))
    }

    fn odd(&self, method: &str, path: &str, why: &dyn std::fmt::Display) -> ApiError {
        ApiError::Odd {
            call: format!("{method} {path}"),
            server: self.server.clone(),
            why: why.to_string(),
        }
    }

    fn refused(&self, call: String, status: StatusCode, body: &[u8]) -> ApiError {
        let problem = serde_json::from_slice(body).unwrap_or_else(|_| {
            let text: String = String::from_utf8_lossy(body)
                .trim()
                .chars()
                .take(SHOWN)
                .collect();
            let said = if text.is_empty() {
                String::new()
            } else {
                format!(": {text}")
            };
            Problem {
                error: format!("{status}{said}"),
                code: format!("http_{}", status.as_u16()),
            }
        });
        // Where the controller speaks for itself it also says what to do.
        let by_proxy = problem.code.starts_with("http_");
        let next = match status {
            StatusCode::UNAUTHORIZED => {
                ". Give a token with --token-file FILE: `kubectl create token SERVICEACCOUNT > \
                 FILE`; a controller with --insecure-local writes one to the file api-token in the \
                 store's folder"
            }
            StatusCode::FORBIDDEN if by_proxy => ". The token's user may not do this",
            StatusCode::NOT_FOUND if by_proxy => {
                ". This server has no such page: check the port, or the controller's version"
            }
            StatusCode::SERVICE_UNAVAILABLE if by_proxy => {
                ". The controller starts or another one leads: ask again in a moment; /readyz \
                 there tells what it waits for"
            }
            _ => "",
        };
        ApiError::Refused {
            call,
            server: self.server.clone(),
            status,
            why: problem.error,
            code: problem.code,
            next,
        }
    }
}

/// What drives a connection until it is closed.
type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

async fn handshake(
    io: impl Read + Write + Unpin + Send + 'static,
) -> hyper::Result<(SendRequest<Full<Bytes>>, Driver)> {
    let (sender, connection) = http1::handshake(io).await?;
    // What goes wrong on the way is told by the request that waits for its answer.
    let driver = async { connection.await.unwrap_or_default() };
    Ok((sender, Box::pin(driver)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(server: &str) -> Result<Api, ApiError> {
        let connection = Connection {
            server: server.to_owned(),
            token_file: None,
            ca_file: None,
        };
        connection.open()
    }

    #[test]
    fn a_token_never_crosses_a_network_in_clear() {
        for good in [
            "http://127.0.0.1:9441",
            "http://[::1]:1/",
            "http://localhost",
            "https://a.b",
        ] {
            assert!(open(good).is_ok(), "{good} was refused");
        }
        let bad = [
            "http://10.0.0.1:9441",
            "http://localhost.evil:9441",
            "127.0.0.1:9441",
            "ftp://127.0.0.1",
            "https://a.b/path",
            "https://a.b/?q",
            "",
            "http://",
        ];
        for bad in bad {
            assert_eq!(open(bad).unwrap_err().code(), "bad_server", "{bad:?}");
        }
    }

    #[test]
    fn a_file_without_one_word_is_no_token() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        for (text, want) in [
            ("abc.def\n", Some("abc.def")),
            ("", None),
            ("a b", None),
            ("a\nb", None),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(token(&path).ok().as_deref(), want, "{text:?}");
        }
    }
}
