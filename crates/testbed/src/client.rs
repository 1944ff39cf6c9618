//! Kubeconfigs and clients for the testbed's API server.

use std::time::Duration;

use anyhow::Context as _;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use k8s_openapi::ByteString;
use kube::Client;
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tower::{BoxError, ServiceBuilder, ServiceExt as _};

use crate::certificates::KeyedCertificate;

/// From a request to the head of its answer; the body of a watch takes as long as it takes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How a client shows who it is.
pub(crate) enum Credential<'a> {
    Certificate(&'a KeyedCertificate),
    Token(&'a str),
}

/// A kubeconfig for `server` as JSON, which every reader of YAML reads too.
pub(crate) fn kubeconfig(server: &str, ca_pem: &str, credential: &Credential<'_>) -> Value {
    let base64 = |pem: &str| ByteString(pem.as_bytes().to_vec());
    let user = match credential {
        Credential::Certificate(certificate) => json!({
            "client-certificate-data": base64(&certificate.certificate_pem),
            "client-key-data": base64(&certificate.key_pem),
        }),
        Credential::Token(token) => json!({ "token": token }),
    };
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "testbed",
        "clusters": [{
            "name": "testbed",
            "cluster": { "server": server, "certificate-authority-data": base64(ca_pem) },
        }],
        "contexts": [{ "name": "testbed", "context": { "cluster": "testbed", "user": "testbed" } }],
        "users": [{ "name": "testbed", "user": user }],
    })
}

/// Reads a kubeconfig into the settings of a client.
pub(crate) async fn config(kubeconfig: Value) -> anyhow::Result<Config> {
    let kubeconfig: Kubeconfig =
        serde_json::from_value(kubeconfig).context("reading the kubeconfig just made")?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .context("making client settings from the kubeconfig just made")
}

/// Builds a client that sends small writes at once (TCP_NODELAY) and repeats nothing by itself.
///
/// kube's own constructor leaves Nagle's algorithm on, which costs 40 ms at the first request of a
/// connection, and retries 429 and 503 for minutes, which hides a refused eviction from a test.
/// The client belongs to the runtime it is built on.
pub(crate) fn client(config: &Config) -> anyhow::Result<Client> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let https = config
        .rustls_https_connector_with_connector(http)
        .context("setting up TLS for a client of the testbed")?;
    let sender =
        hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build::<_, Body>(https);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .map_err(BoxError::from)
        .service(sender)
        .map_future(in_time);
    Ok(ClientBuilder::new(service, config.default_namespace.clone()).build())
}

async fn in_time<T>(answer: impl Future<Output = Result<T, BoxError>>) -> Result<T, BoxError> {
    tokio::time::timeout(ANSWER_TIMEOUT, answer).await?
}

/// Asks `base` (`https://host:port`) for `path`; an error unless the answer is a success.
pub(crate) async fn check_health(config: &Config, base: &str, path: &str) -> anyhow::Result<()> {
    let mut config = config.clone();
    config.cluster_url = base.parse()?;
    client(&config)?
        .request_text(http::Request::get(path).body(Vec::new())?)
        .await?;
    Ok(())
}
