//! The certificate that senders see, replaced without dropping a connection.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, version};
use sha2::{Digest, Sha256};
use tracing::{info, warn};

/// Why a certificate can't be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The file can't be read.
    #[error("reading {path}: {source}. Check ingest.tls and the volume that it names")]
    Read {
        /// File.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// It is no PEM of the kind.
    #[error("{what} can't be used: {why}. Want a PEM certificate chain and its PEM private key")]
    Unusable {
        /// Which: a file, or our own.
        what: String,
        /// Why; never holds key material.
        why: String,
    },
}

impl CertificateError {
    /// Static name for metrics and messages.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Read { .. } => "certificate_read",
            Self::Unusable { .. } => "certificate_unusable",
        }
    }
}

/// The present certificate. New handshakes see the newest; open connections stay.
#[derive(Debug)]
pub struct Certificates(RwLock<Arc<CertifiedKey>>);

impl Certificates {
    /// Beginning with this one.
    ///
    /// # Errors
    /// [`CertificateError::Unusable`].
    pub fn new(what: &str, chain_pem: &str, key_pem: &str) -> Result<Arc<Self>, CertificateError> {
        let key = certified(what, chain_pem, key_pem)?;
        Ok(Arc::new(Self(RwLock::new(Arc::new(key)))))
    }

    /// From files.
    ///
    /// # Errors
    /// [`CertificateError`].
    pub async fn from_files(chain: &Path, key: &Path) -> Result<Arc<Self>, CertificateError> {
        let (chain_pem, key_pem) = (read(chain).await?, read(key).await?);
        Self::new(&chain.display().to_string(), &chain_pem, &key_pem)
    }

    /// Shows another one from now on.
    ///
    /// # Errors
    /// [`CertificateError::Unusable`]; then the present one stays.
    pub fn replace(
        &self,
        what: &str,
        chain_pem: &str,
        key_pem: &str,
    ) -> Result<(), CertificateError> {
        let key = Arc::new(certified(what, chain_pem, key_pem)?);
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = key;
        Ok(())
    }

    /// Shows what the files hold whenever that changes, until the future is dropped. Files that
    /// can't be used leave the present certificate; they are often half written for a moment.
    pub async fn follow_files(&self, chain: &Path, key: &Path, every: Duration) {
        let mut shown = None;
        loop {
            tokio::time::sleep(every).await;
            let texts = match (read(chain).await, read(key).await) {
                (Ok(chain), Ok(key)) => (chain, key),
                (Err(error), _) | (_, Err(error)) => {
                    warn!(code = error.code(), %error, "the present certificate stays");
                    continue;
                }
            };
            let hash: [u8; 32] = Sha256::digest(texts.0.as_bytes()).into();
            if shown == Some(hash) {
                continue;
            }
            match self.replace(&chain.display().to_string(), &texts.0, &texts.1) {
                Ok(()) => {
                    if shown.is_some() {
                        info!(file = %chain.display(), "serving certificate replaced");
                    }
                    shown = Some(hash);
                }
                Err(error) => warn!(code = error.code(), %error, "the present certificate stays"),
            }
        }
    }

    /// The settings of a TLS server that shows it: TLS 1.2 and 1.3, HTTP/2.
    ///
    /// # Panics
    /// Never: ring knows both versions.
    pub fn server_config(self: &Arc<Self>) -> Arc<ServerConfig> {
        let provider = Arc::new(ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13, &version::TLS12])
            .expect("ring knows both versions")
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(self) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"h2".to_vec()];
        Arc::new(config)
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(
            &self.0.read().unwrap_or_else(PoisonError::into_inner),
        ))
    }
}

/// Reads a PEM file.
pub(super) async fn read(path: &Path) -> Result<String, CertificateError> {
    let text = tokio::fs::read_to_string(path).await;
    text.map_err(|source| CertificateError::Read {
        path: path.display().to_string(),
        source,
    })
}

fn certified(what: &str, chain_pem: &str, key_pem: &str) -> Result<CertifiedKey, CertificateError> {
    let unusable = |why: String| CertificateError::Unusable {
        what: what.to_owned(),
        why,
    };
    let chain = CertificateDer::pem_slice_iter(chain_pem.as_bytes()).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|error| unusable(error.to_string()))?;
    if chain.is_empty() {
        return Err(unusable("it holds no certificate".to_owned()));
    }
    // The error of a key's parser says what it missed, not what it found.
    let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes())
        .map_err(|_| unusable("its key is no PEM private key".to_owned()))?;
    CertifiedKey::from_der(chain, key, &ring::default_provider())
        .map_err(|error| unusable(error.to_string()))
}
