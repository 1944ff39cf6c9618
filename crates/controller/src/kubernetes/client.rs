//! Building a client by hand.

use std::path::Path;
use std::time::Duration;

use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tower::{BoxError, ServiceBuilder, ServiceExt as _};

/// Longest wait for a connection: two lost SYNs of a healthy network (1 s + 2 s) fit in.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for the head of any answer, a watch's too. Calls have shorter deadlines of their
/// own; this one ends requests that nobody waits for any more.
const HEAD_TIMEOUT: Duration = Duration::from_mins(1);
/// Idle connections, of some 30 KiB each, are kept this long. The API server closes its idle ones
/// after 90 s, so that no request meets a connection that is being closed.
const POOL_IDLE: Duration = Duration::from_secs(30);
/// Between requests that keep a connection open: well within the time that an idle one is kept.
pub const WARM: Duration = Duration::from_secs(10);
const _: () = assert!(2 * WARM.as_secs() < POOL_IDLE.as_secs());

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The kubeconfig file can't be used.
    #[error("kubeconfig {path} can't be used: {source}. Check --kubeconfig")]
    Kubeconfig {
        /// The file.
        path: String,
        /// Why.
        source: kube::config::KubeconfigError,
    },
    /// There is neither a kubeconfig nor a service account.
    #[error(
        "no way to the API server was found: {0}. Give --kubeconfig, or run in a pod with a \
         service account"
    )]
    Infer(#[from] kube::config::InferConfigError),
    /// Certificates or credentials are unusable.
    #[error("the settings for the API server can't be used: {0}")]
    Settings(#[from] kube::Error),
}

impl ClientError {
    /// Static name of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Kubeconfig { .. } => "bad_kubeconfig",
            Self::Infer(_) => "no_api_server",
            Self::Settings(_) => "bad_api_server_settings",
        }
    }
}

/// The settings of a kubeconfig file, or where none is given those of the environment
/// (`KUBECONFIG`, then the pod's service account).
///
/// # Errors
/// [`ClientError`].
pub async fn config(kubeconfig: Option<&Path>) -> Result<Config, ClientError> {
    let Some(path) = kubeconfig else {
        return Ok(Config::infer().await?);
    };
    let error = |source| ClientError::Kubeconfig {
        path: path.display().to_string(),
        source,
    };
    let file = Kubeconfig::read_from(path).map_err(error)?;
    Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .map_err(error)
}

/// A client with connections of its own, for the runtime that asks. Nothing is retried inside.
///
/// # Errors
/// [`ClientError::Settings`].
pub fn client(config: &Config) -> Result<Client, ClientError> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT_TIMEOUT));
    // A peer that vanished (node lost, NAT forgot us) is noticed by the kernel, also on watches.
    http.set_keepalive(Some(Duration::from_secs(30)));
    http.set_keepalive_interval(Some(Duration::from_secs(10)));
    http.set_keepalive_retries(Some(3));
    let https = config.rustls_https_connector_with_connector(http)?;
    let sender = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(POOL_IDLE)
        .build::<_, Body>(https);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .map_err(BoxError::from)
        .service(sender)
        .map_future(in_time);
    Ok(ClientBuilder::new(service, config.default_namespace.clone()).build())
}

async fn in_time<T>(answer: impl Future<Output = Result<T, BoxError>>) -> Result<T, BoxError> {
    tokio::time::timeout(HEAD_TIMEOUT, answer).await?
}
