//! Our own certificate authority: in Secret `warden-ca` with its key, in ConfigMap
//! `warden-ca-bundle` for the agents.
//!
//! # Guarantees
//! - Both are made with create-only: of two controllers one wins, the other takes the winner's.
//! - The bundle holds the present authority, the next one from 24 h before it signs, and the last
//!   one as long as a certificate of it can be out there. The 24 h count from when the bundle was
//!   seen to hold it: one that could not be published does not sign.
//! - A serving certificate lives 30 days at most, never longer than its authority, and is renewed
//!   at two thirds of its life.
//!
//! Reading order: `plan` which authorities there are when, `keeper` where they are kept.

mod keeper;
mod plan;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use telemetry::ControllerMetrics;
use tracing::{info, warn};

use self::keeper::Keeper;
use self::plan::Leaf;
use super::certificates::{CertificateError, Certificates};
use crate::kubernetes::{CallError, Kube};

/// Secret with the authority's certificate and key.
pub const CA_SECRET: &str = "warden-ca";
/// ConfigMap with the bundle that agents trust, key `ca.crt`.
pub const CA_BUNDLE: &str = "warden-ca-bundle";

/// Why there is no certificate of our own.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The API server refused or did not answer.
    #[error(
        "{0}. The controller needs get, create and update on Secret {CA_SECRET} and ConfigMap \
         {CA_BUNDLE} in its own namespace; or give ingest.tls.certificate_file and key_file"
    )]
    Api(#[from] CallError),
    /// Somebody else changed the objects again and again.
    #[error(
        "{CA_SECRET} in {0} changes each time that we write it; is another controller running?"
    )]
    Contended(String),
    /// What the Secret holds is no authority.
    #[error(
        "Secret {namespace}/{CA_SECRET} holds no authority ({why}); delete it to have a new one \
         made, and restart the agents"
    )]
    Broken {
        /// Where.
        namespace: String,
        /// Why; never holds key material.
        why: String,
    },
    /// The library refused.
    #[error("making a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// What was made can't be used.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
}

impl AuthorityError {
    /// Static name for metrics and messages.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Api(_) => "ca_api",
            Self::Contended(_) => "ca_contended",
            Self::Broken { .. } => "ca_broken",
            Self::Make(_) => "ca_make",
            Self::Certificate(error) => error.code(),
        }
    }
}

/// Makes or finds the authority, and a certificate of it for these names; the returned future looks
/// `every` so often whether one of them is due, and renews it, until it is dropped.
///
/// # Errors
/// [`AuthorityError`] of the first certificate. Later failures are logged and tried again: the
/// present certificate has a third of its life left then.
pub async fn maintain(
    kube: Kube,
    namespace: &str,
    names: Vec<String>,
    every: Duration,
    metrics: Arc<ControllerMetrics>,
) -> Result<(Arc<Certificates>, impl Future<Output = ()> + Send + use<>), AuthorityError> {
    let keeper = Keeper::new(kube, namespace);
    let now = Timestamp::now();
    let leaf = keeper.current(now).await?.present.issue(&names, now)?;
    let certificates = Certificates::new("our own certificate", &leaf.certificate, &leaf.key)?;
    metrics
        .certificate_not_after
        .set(leaf.not_after.as_second());
    let shown = Arc::clone(&certificates);
    let renewal = async move { renew(keeper, leaf, &names, &shown, every, &metrics).await };
    Ok((certificates, renewal))
}

async fn renew(
    keeper: Keeper,
    mut leaf: Leaf,
    names: &[String],
    shown: &Certificates,
    every: Duration,
    metrics: &ControllerMetrics,
) {
    loop {
        tokio::time::sleep(every).await;
        let now = Timestamp::now();
        match renewed(&keeper, &leaf, names, shown, now).await {
            Ok(Some(new)) => {
                info!(not_after = %new.not_after, "serving certificate renewed");
                metrics.certificate_not_after.set(new.not_after.as_second());
                leaf = new;
            }
            Ok(None) => {}
            Err(error) => {
                warn!(code = error.code(), %error, "certificate not renewed; trying again");
            }
        }
    }
}

async fn renewed(
    keeper: &Keeper,
    leaf: &Leaf,
    names: &[String],
    shown: &Certificates,
    now: Timestamp,
) -> Result<Option<Leaf>, AuthorityError> {
    let authorities = keeper.current(now).await?;
    if !leaf.is_due(&authorities, now) {
        return Ok(None);
    }
    let new = authorities.present.issue(names, now)?;
    shown.replace("our own certificate", &new.certificate, &new.key)?;
    Ok(Some(new))
}
