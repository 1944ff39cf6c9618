//! TLS to the controller, and why it failed in plain words.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::api::ApiError;

/// One server, and what it must show.
pub(crate) struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tls({:?})", self.name)
    }
}

/// With the authorities of a file, else the system's.
///
/// # Errors
/// [`ApiError`] if there are none, or the host's name is none.
pub(crate) fn client(ca_file: Option<&Path>, host: &str) -> Result<Tls, ApiError> {
    let name = ServerName::try_from(host.to_owned()).map_err(|_| ApiError::Server {
        server: host.to_owned(),
        why: "want a DNS name or an IP address as host",
    })?;
    let roots = match ca_file {
        Some(path) => of_file(path)?,
        None => of_system()?,
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring has the suites of TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Tls {
        connector: TlsConnector::from(Arc::new(config)),
        name,
    })
}

fn of_file(path: &Path) -> Result<RootCertStore, ApiError> {
    let error = |why: String| ApiError::CaFile {
        path: path.to_owned(),
        why,
    };
    let pem = std::fs::read(path).map_err(|e| error(e.to_string()))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|e| error(format!("it is no PEM: {e}")))?;
        roots
            .add(certificate)
            .map_err(|e| error(format!("a certificate in it can't be used: {e}")))?;
    }
    if roots.is_empty() {
        return Err(error("it holds no certificate".to_owned()));
    }
    Ok(roots)
}

fn of_system() -> Result<RootCertStore, ApiError> {
    let mut roots = RootCertStore::empty();
    // A system's bundle may hold certificates that rustls can't use: the others count.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(ApiError::CaFile {
            path: "(the system's)".into(),
            why: "this machine has no certificate authorities; give --ca-file".to_owned(),
        });
    }
    Ok(roots)
}

impl Tls {
    pub(crate) async fn connect(&self, stream: TcpStream) -> Result<TlsStream<TcpStream>, String> {
        let connecting = self.connector.connect(self.name.clone(), stream);
        connecting.await.map_err(|error| error.to_string())
    }
}
