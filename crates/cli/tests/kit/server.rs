//! A server on loopback, in threads of its own, that ends with the test.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderValue, Response, header};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;

/// The controller's clock in all tests: 03:20:30 in Berlin.
pub(crate) const DATE: &str = "Sat, 12 Sep 2026 01:20:30 GMT";

/// A call that came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Called {
    pub(crate) line: String,
    pub(crate) authorization: Option<String>,
    pub(crate) body: String,
}

#[derive(Debug, Clone, Default)]
struct Answers {
    /// `GET /path?query`, status, body.
    known: Vec<(String, u16, String)>,
    called: Arc<Mutex<Vec<Called>>>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Server {
    scheme: &'static str,
    address: SocketAddr,
    answers: Answers,
    /// Its threads end when it is dropped.
    _runtime: Runtime,
}

impl Server {
    /// Knows these calls, and answers 404 without a body to all others.
    pub(crate) fn start(known: &[(&str, u16, String)]) -> Self {
        let (runtime, listener, answers) = prepared(known);
        let address = listener.local_addr().unwrap();
        let router = answers.router();
        runtime.spawn(async move { axum::serve(listener, router).await });
        Self {
            scheme: "http",
            address,
            answers,
            _runtime: runtime,
        }
    }

    pub(crate) fn url(&self) -> String {
        match self.scheme {
            // The certificate names the host.
            "https" => format!("https://localhost:{}", self.address.port()),
            scheme => format!("{scheme}://{}", self.address),
        }
    }

    pub(crate) fn called(&self) -> Vec<Called> {
        self.answers.called.lock().unwrap().clone()
    }
}

fn prepared(known: &[(&str, u16, String)]) -> (Runtime, TcpListener, Answers) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let known = known
        .iter()
        .map(|(line, status, body)| ((*line).to_owned(), *status, body.clone()));
    let answers = Answers {
        known: known.collect(),
        called: Arc::default(),
    };
    (runtime, listener, answers)
}

impl Answers {
    fn router(&self) -> Router {
        let answers = self.clone();
        Router::new().fallback(move |request: Request| answers.clone().answer(request))
    }

    async fn answer(self, request: Request) -> Response<Body> {
        let line = format!("{} {}", request.method(), request.uri());
        let authorization = request.headers().get(header::AUTHORIZATION);
        let authorization = authorization.map(|value| value.to_str().unwrap().to_owned());
        let body = to_bytes(request.into_body(), 1 << 20).await.unwrap();
        let body = String::from_utf8(body.to_vec()).unwrap();
        let found = self.known.iter().find(|(known, ..)| *known == line);
        let (status, text) = found.map_or((404, String::new()), |(_, s, text)| (*s, text.clone()));
        self.called.lock().unwrap().push(Called {
            line,
            authorization,
            body,
        });
        let mut response = Response::new(Body::from(text));
        *response.status_mut() = status.try_into().unwrap();
        response
            .headers_mut()
            .insert(header::DATE, HeaderValue::from_static(DATE));
        response
    }
}

/// The same over TLS; the certificate is for `localhost`, its authority's is written to `ca`.
pub(crate) fn tls_server(known: &[(&str, u16, String)], ca: &Path) -> Server {
    let authority = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    std::fs::write(ca, params.self_signed(&authority).unwrap().pem()).unwrap();
    let issuer = Issuer::new(params, authority);
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let leaf = leaf.signed_by(&key, &issuer).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let (runtime, listener, answers) = prepared(known);
    let address = listener.local_addr().unwrap();
    let router = answers.router();
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A client that does not believe the certificate goes away: its error is the test's.
            let Ok(stream) = acceptor.accept(stream).await else {
                continue;
            };
            let service = TowerToHyperService::new(router.clone());
            let serving = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            tokio::spawn(serving);
        }
    });
    Server {
        scheme: "https",
        address,
        answers,
        _runtime: runtime,
    }
}
