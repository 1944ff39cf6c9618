//! The ports: health pages, API, events and reports.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use kube::Client;
use rustls::ServerConfig;
use telemetry::Admin;
use tokio::net::TcpListener;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tower::ServiceExt as _;
use tower::layer::util::{Identity, Stack};
use tracing::{info, warn};
use wire::AnswersLayer;
use wire::datamodels::platform_connector_server::PlatformConnectorServer;
use wire::validate::RECEIVE_LIMIT;
use wire::warden::v1::agent_server::AgentServer;

use super::tasks::Tasks;
use crate::api::{self, ApiAuth, ApiState, Watches};
use crate::config::{ApiConfig, Config, TrustMode};
use crate::context::Context;
use crate::ingest::idle::NoteCalls;
use crate::ingest::limits::Limits;
use crate::ingest::listener::{Connections, bind};
use crate::ingest::{ClockSkews, EventService, Transformers};
use crate::reports::ReportService;
use crate::requests::Requests;
use crate::stop::Stop;
use crate::trust::{self, Certificates, Gate, TokenReviewer};

/// Calls of one connection at a time: an agent has two.
const CALLS_A_CONNECTION: u32 = 16;
/// Longest call, holding included.
const LONGEST_CALL: Duration = Duration::from_secs(30);
/// A peer that vanished is noticed after these.
const PING: Duration = Duration::from_secs(30);
const PONG: Duration = Duration::from_secs(20);
/// How often given certificate files are looked at.
const LOOK_AT_FILES: Duration = Duration::from_secs(30);

/// The two services behind the layer that answers for them.
type Services = Router<Stack<NoteCalls, Stack<AnswersLayer, Identity>>>;

/// Where the API appears once the process leads.
pub(super) type LatePages = Arc<OnceLock<axum::Router>>;

/// Serves the health pages at once, and the API once it is there.
pub(super) async fn pages(
    config: &ApiConfig,
    admin: Admin,
    stop: &Stop,
    tasks: &mut Tasks,
) -> anyhow::Result<LatePages> {
    let late: LatePages = Arc::default();
    let Some(address) = config.listen else {
        return Ok(late);
    };
    if !config.enabled {
        let off = axum::Router::new().fallback(|| async { api::switched_off() });
        // Just made: nothing is set yet.
        let _ = late.set(off);
    }
    let listener = bind(address).await?;
    say_where("api", listener.local_addr()?);
    let pages = Arc::clone(&late);
    let router = admin
        .router()
        .fallback(move |request| late_page(Arc::clone(&pages), request));
    let stop = stop.clone();
    tasks.spawn("api", async move {
        let stopped = async move { stop.requested().await };
        api::serve(listener, router, stopped).await;
        Ok(())
    });
    Ok(late)
}

/// Tests and people find the port here, also where it was 0.
fn say_where(what: &'static str, address: SocketAddr) {
    info!(what, %address, "listening");
}

async fn late_page(late: LatePages, request: Request) -> Response {
    match late.get() {
        Some(router) => match router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        },
        None => api::not_leading().into_response(),
    }
}

/// Puts the API behind the pages.
pub(super) fn api(
    context: &Context,
    client: &Client,
    requests: Requests,
    insecure_local: bool,
    late: &LatePages,
) -> anyhow::Result<()> {
    if !context.config.api.enabled || context.config.api.listen.is_none() {
        return Ok(());
    }
    let auth = if insecure_local {
        ApiAuth::local(&context.config.store.path)?
    } else {
        // Persons' tokens are for the API server's own audience.
        let metrics = Arc::clone(&context.metrics);
        let reviewer = TokenReviewer::new(client.clone(), Vec::new(), metrics);
        ApiAuth::cluster(reviewer, client.clone())
    };
    let state = ApiState {
        context: context.clone(),
        requests,
        auth,
        watches: Watches::of(&context.store),
    };
    late.set(api::router(state))
        .map_err(|_| anyhow::anyhow!("the API was set up twice"))
}

/// Serves events and reports.
pub(super) async fn ingest(
    context: &Context,
    client: &Client,
    skews: &Arc<ClockSkews>,
    insecure_local: bool,
    tasks: &mut Tasks,
) -> anyhow::Result<()> {
    let config = &context.config.ingest;
    if !config.enabled {
        return Ok(());
    }
    let ready = context.readiness.subsystem("ingest");
    let gate = Arc::new(gate(context, client));
    let most = usize::try_from(config.max_connections).unwrap_or(usize::MAX);
    let connections = Connections::new(most, Arc::clone(&context.metrics));
    let parts = Parts::new(context, &gate, skews)?;
    if let Some(address) = config.listen {
        let tls = if insecure_local || config.mode == TrustMode::Off {
            warn!(%address, "events are taken in without TLS and tokens");
            None
        } else {
            Some(tls(context, tasks).await?)
        };
        let listener = bind(address).await?;
        serve(
            "ingest",
            listener,
            tls,
            &connections,
            services(&parts),
            &context.stop,
            tasks,
        )?;
    }
    if let Some(address) = config.plaintext_listen {
        warn!(%address, "ingest.plaintext_listen: tokens and events cross the network unencrypted");
        let listener = bind(address).await?;
        let services = services(&parts);
        serve(
            "ingest_plaintext",
            listener,
            None,
            &connections,
            services,
            &context.stop,
            tasks,
        )?;
    }
    ready.ready();
    Ok(())
}

fn gate(context: &Context, client: &Client) -> Gate {
    let config = &context.config.ingest;
    let metrics = || Arc::clone(&context.metrics);
    if config.mode == TrustMode::Off {
        return Gate::unchecked(metrics());
    }
    let reviewer = TokenReviewer::new(client.clone(), config.audiences.clone(), metrics());
    Gate::new(config, Arc::new(reviewer), context.nodes.clone(), metrics())
}

/// The two services, to be served on one port or two.
struct Parts {
    events: EventService,
    reports: ReportService,
}

impl Parts {
    fn new(context: &Context, gate: &Arc<Gate>, skews: &Arc<ClockSkews>) -> anyhow::Result<Self> {
        let metrics = || Arc::clone(&context.metrics);
        let limits = Arc::new(Limits::new(&context.config.ingest, &context.config.store));
        let skews = Arc::clone(skews);
        let store = context.store.clone();
        let (reports, nodes) = (context.reports.clone(), context.nodes.clone());
        let known = nodes.clone();
        let transformers = Transformers::new(&context.config.ingest, nodes.clone(), metrics());
        let transformers = transformers.map_err(|errors| {
            let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
            anyhow::anyhow!("ingest.overrides: {}", errors.join("; "))
        })?;
        let events = EventService::new(
            Arc::clone(gate),
            store,
            limits,
            skews,
            known,
            transformers.clone(),
            metrics(),
        );
        let clears = &context.config.ingest.reboot_clears;
        let reports = ReportService::new(
            Arc::clone(gate),
            reports,
            nodes,
            clears,
            transformers,
            metrics(),
        );
        Ok(Self { events, reports })
    }
}

fn services(parts: &Parts) -> Services {
    let events =
        PlatformConnectorServer::new(parts.events.clone()).max_decoding_message_size(RECEIVE_LIMIT);
    let reports = AgentServer::new(parts.reports.clone()).max_decoding_message_size(RECEIVE_LIMIT);
    Server::builder()
        .layer(AnswersLayer::new(LONGEST_CALL))
        .layer(NoteCalls)
        .max_concurrent_streams(CALLS_A_CONNECTION)
        .http2_keepalive_interval(Some(PING))
        .http2_keepalive_timeout(Some(PONG))
        .add_service(events)
        .add_service(reports)
}

fn serve(
    name: &'static str,
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    connections: &Connections,
    services: Services,
    stop: &Stop,
    tasks: &mut Tasks,
) -> anyhow::Result<()> {
    say_where(name, listener.local_addr()?);
    let incoming = ReceiverStream::new(connections.incoming(listener, tls));
    let stop = stop.clone();
    tasks.spawn(name, async move {
        let stopped = async move { stop.requested().await };
        Ok(services
            .serve_with_incoming_shutdown(incoming, stopped)
            .await?)
    });
    Ok(())
}

/// Our own authority's certificate, or the given one.
async fn tls(context: &Context, tasks: &mut Tasks) -> anyhow::Result<Arc<ServerConfig>> {
    let config = &context.config.ingest.tls;
    if let (Some(chain), Some(key)) = (config.certificate_file.clone(), config.key_file.clone()) {
        let certificates = Certificates::from_files(&chain, &key).await?;
        let shown = Arc::clone(&certificates);
        tasks.spawn_endless("certificate files", &context.stop, async move {
            shown.follow_files(&chain, &key, LOOK_AT_FILES).await;
            Ok(())
        });
        return Ok(certificates.server_config());
    }
    let names = server_names(&context.config, &context.namespace);
    let (metrics, every) = (
        Arc::clone(&context.metrics),
        context.config.ingest.tls.look_every,
    );
    let kube = context.kube.clone();
    let maintained = trust::maintain(kube, &context.namespace, names, every, metrics).await?;
    let (certificates, renewal) = maintained;
    tasks.spawn_endless("certificate renewal", &context.stop, async move {
        renewal.await;
        Ok(())
    });
    Ok(certificates.server_config())
}

/// Names under which agents call.
fn server_names(config: &Config, namespace: &str) -> Vec<String> {
    let tls = &config.ingest.tls;
    let service = format!("{}.{namespace}.svc", tls.service);
    let mut names = vec![format!("{service}.{}", tls.cluster_domain), service];
    names.extend(tls.extra_names.iter().cloned());
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_certificate_names_the_service() {
        let config = Config::parse("[ingest.tls]\nextra_names = ['127.0.0.1']").unwrap();
        assert_eq!(
            server_names(&config, "warden"),
            [
                "warden-controller.warden.svc.cluster.local",
                "warden-controller.warden.svc",
                "127.0.0.1"
            ]
        );
    }
}
