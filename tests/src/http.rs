//! The smallest client for the controller's API on loopback.

use std::net::SocketAddr;
use std::time::Duration;

use ::http::{Method, Request};
use anyhow::Context as _;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

/// A call on loopback that takes longer is stuck.
const TIMEOUT: Duration = Duration::from_secs(10);
/// More than any answer has.
const BODY_LIMIT: usize = 64 << 20;

/// `GET`: the status and the body.
///
/// # Errors
/// No answer in time, or one that breaks off.
pub async fn get(
    address: SocketAddr,
    path: &str,
    token: Option<&str>,
) -> anyhow::Result<(u16, String)> {
    call(Method::GET, address, path, token, String::new()).await
}

/// `GET` of a JSON document.
///
/// # Errors
/// No answer in time, another status than 200, or no JSON.
pub async fn get_json(address: SocketAddr, path: &str, token: &str) -> anyhow::Result<Value> {
    let (status, body) = get(address, path, Some(token)).await?;
    anyhow::ensure!(status == 200, "GET {path} answered {status}: {body}");
    serde_json::from_str(&body).with_context(|| format!("reading the answer of GET {path}"))
}

/// `POST` of a JSON document: the status and the body.
///
/// # Errors
/// No answer in time, or one that breaks off.
pub async fn post(
    address: SocketAddr,
    path: &str,
    token: &str,
    body: &Value,
) -> anyhow::Result<(u16, String)> {
    call(Method::POST, address, path, Some(token), body.to_string()).await
}

async fn call(
    method: Method,
    address: SocketAddr,
    path: &str,
    token: Option<&str>,
    body: String,
) -> anyhow::Result<(u16, String)> {
    let what = format!("{method} http://{address}{path}");
    let mut request = Request::builder()
        .method(method)
        .uri(format!("http://{address}{path}"))
        .header("content-type", "application/json");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let request = request.body(Full::new(Bytes::from(body)))?;
    let client = Client::builder(TokioExecutor::new()).build_http();
    let exchange = async {
        let response = client.request(request).await?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), BODY_LIMIT)
            .collect()
            .await;
        let body = body.map_err(|error| anyhow::anyhow!(error))?.to_bytes();
        anyhow::Ok((status, String::from_utf8_lossy(&body).into_owned()))
    };
    tokio::time::timeout(TIMEOUT, exchange)
        .await
        .with_context(|| format!("{what}: no answer within {TIMEOUT:?}"))?
        .with_context(|| what)
}
