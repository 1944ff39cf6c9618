//! A proxy between the controller and the API server that can hold one request back: before the
//! API server gets it, or with its answer. So a test does something exactly between our read and
//! our write, or between the write and its answer. It can also answer one request itself, as an API
//! server that has too much to do.
//!
//! It speaks plain HTTP on loopback and passes requests on as the administrator.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ::http::{HeaderName, Method, Request, Response, StatusCode, header};
use anyhow::Context as _;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::client::Body;
use serde_json::json;
use testbed::Testbed;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// More than any request of the controller has.
const BODY_LIMIT: usize = 4 << 20;
/// A request that was to be held and did not come by then never does.
const PATIENCE: Duration = Duration::from_mins(1);
/// Headers that speak of one connection, or of the caller.
const NOT_PASSED_ON: [HeaderName; 5] = [
    header::HOST,
    header::AUTHORIZATION,
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::CONTENT_LENGTH,
];

/// A running proxy; it ends when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    wanted: Arc<Mutex<Vec<Wanted>>>,
    listening: JoinHandle<()>,
}

/// Where a request is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Before the API server gets it.
    Request,
    /// After the API server did it, before the caller hears of it.
    Answer,
}

#[derive(Debug)]
struct Wanted {
    method: Method,
    path: String,
    act: Act,
    arrived: oneshot::Sender<Instant>,
}

/// What becomes of a wanted request.
#[derive(Debug)]
enum Act {
    Hold(Place, oneshot::Receiver<()>),
    /// Answered with 429 and so many seconds of `Retry-After`.
    TurnAway(u64),
}

/// The next such request. Dropped, it is not held any more.
#[derive(Debug)]
pub struct Held {
    arrived: oneshot::Receiver<Instant>,
    go: oneshot::Sender<()>,
}

/// The next such request, which is turned away.
#[derive(Debug)]
pub struct TurnedAway(oneshot::Receiver<Instant>);

impl TurnedAway {
    /// Waits until it came; answers when that was, which is before its answer.
    ///
    /// # Errors
    /// It does not come within a minute.
    pub async fn arrived(self) -> anyhow::Result<Instant> {
        let arrived = tokio::time::timeout(PATIENCE, self.0).await;
        Ok(arrived.context("the request to be turned away does not come")??)
    }
}

impl Held {
    /// Waits until it is held; answers since when.
    ///
    /// # Errors
    /// It does not come within a minute.
    pub async fn arrived(&mut self) -> anyhow::Result<Instant> {
        let arrived = tokio::time::timeout(PATIENCE, &mut self.arrived).await;
        Ok(arrived.context("the request to be held does not come")??)
    }

    /// Whether its caller is still there.
    pub fn is_waited_for(&self) -> bool {
        !self.go.is_closed()
    }

    /// Lets it go on. One whose caller has died meanwhile goes nowhere.
    pub fn go(self) {
        self.go.send(()).ok();
    }
}

impl Proxy {
    /// Starts one before the testbed's API server.
    ///
    /// # Errors
    /// No port is free.
    pub async fn start(testbed: &Testbed) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let wanted: Arc<Mutex<Vec<Wanted>>> = Arc::default();
        let listening = tokio::spawn(listen(listener, testbed.admin(), Arc::clone(&wanted)));
        Ok(Self {
            address,
            wanted,
            listening,
        })
    }

    /// Writes a kubeconfig that leads here.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn kubeconfig(&self, testbed: &Testbed) -> anyhow::Result<PathBuf> {
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "proxy",
            "clusters": [{
                "name": "proxy",
                "cluster": { "server": format!("http://{}", self.address) },
            }],
            "contexts": [{ "name": "proxy", "context": { "cluster": "proxy", "user": "proxy" } }],
            "users": [{ "name": "proxy", "user": {} }],
        });
        let name = format!("proxy-{}.kubeconfig", self.address.port());
        let path = testbed.folder().join(name);
        std::fs::write(&path, kubeconfig.to_string())
            .with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    /// Holds the next change of the node's object (not of its status).
    pub fn hold_patch(&self, node: &str, place: Place) -> Held {
        self.hold(Method::PATCH, &node_path(node), place)
    }

    /// Holds the next request of this method and path.
    pub fn hold(&self, method: Method, path: &str, place: Place) -> Held {
        let (go, gone) = oneshot::channel();
        let arrived = self.want(method, path, Act::Hold(place, gone));
        Held { arrived, go }
    }

    /// Answers the next change of the node's object with 429 and so many seconds of `Retry-After`;
    /// the API server hears nothing of it.
    pub fn turn_away_patch(&self, node: &str, retry_after: u64) -> TurnedAway {
        TurnedAway(self.want(Method::PATCH, &node_path(node), Act::TurnAway(retry_after)))
    }

    fn want(&self, method: Method, path: &str, act: Act) -> oneshot::Receiver<Instant> {
        let (arrived, told) = oneshot::channel();
        self.wanted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Wanted {
                method,
                path: path.to_owned(),
                act,
                arrived,
            });
        told
    }
}

fn node_path(node: &str) -> String {
    format!("/api/v1/nodes/{node}")
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

async fn listen(listener: TcpListener, client: Client, wanted: Arc<Mutex<Vec<Wanted>>>) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(connection(stream, client.clone(), Arc::clone(&wanted)));
    }
}

async fn connection(stream: TcpStream, client: Client, wanted: Arc<Mutex<Vec<Wanted>>>) {
    let service = hyper::service::service_fn(|request| {
        let (client, wanted) = (client.clone(), Arc::clone(&wanted));
        async move {
            let answer = pass(request, client, &wanted).await;
            Ok::<_, Infallible>(answer.unwrap_or_else(|error| {
                let mut answer = Response::new(Body::from(format!("{error:#}").into_bytes()));
                *answer.status_mut() = StatusCode::BAD_GATEWAY;
                answer
            }))
        }
    });
    // A caller that goes away ends its requests here, the held ones too.
    hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await
        .ok();
}

async fn pass(
    request: Request<Incoming>,
    client: Client,
    wanted: &Mutex<Vec<Wanted>>,
) -> anyhow::Result<Response<Body>> {
    let held = {
        let mut wanted = wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let (method, path) = (request.method(), request.uri().path());
        let found = wanted
            .iter()
            .position(|w| w.method == method && w.path == path);
        found.map(|found| wanted.remove(found))
    };
    let (mut parts, body) = request.into_parts();
    for name in NOT_PASSED_ON {
        parts.headers.remove(name);
    }
    let body = Limited::new(body, BODY_LIMIT).collect().await;
    let body = body.map_err(|error| anyhow::anyhow!(error))?.to_bytes();
    let request = Request::from_parts(parts, Body::from(body));
    let answer = match held.map(|held| (held.act, held.arrived)) {
        None => client.send(request).await?,
        Some((Act::Hold(Place::Request, go), arrived)) => {
            arrived.send(Instant::now()).ok();
            go.await.ok();
            client.send(request).await?
        }
        Some((Act::Hold(Place::Answer, go), arrived)) => {
            let answer = client.send(request).await?;
            arrived.send(Instant::now()).ok();
            go.await.ok();
            answer
        }
        Some((Act::TurnAway(seconds), arrived)) => {
            arrived.send(Instant::now()).ok();
            turned_away(seconds)?
        }
    };
    let (mut parts, body) = answer.into_parts();
    for name in NOT_PASSED_ON {
        parts.headers.remove(name);
    }
    Ok(Response::from_parts(parts, body))
}

/// What an API server answers while it has too much to do.
fn turned_away(retry_after: u64) -> anyhow::Result<Response<Body>> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "too many requests, please try again later",
        "reason": "TooManyRequests", "code": 429,
        "details": { "retryAfterSeconds": retry_after },
    });
    let answer = Response::builder()
        .status(StatusCode::TOO_MANY_REQUESTS)
        .header(header::RETRY_AFTER, retry_after)
        .header(header::CONTENT_TYPE, "application/json");
    Ok(answer.body(Body::from(status.to_string().into_bytes()))?)
}
