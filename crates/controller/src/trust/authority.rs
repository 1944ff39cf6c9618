//! Our own certificate authority: in Secret `warden-ca` with its key, in ConfigMap
//! `warden-ca-bundle` for the agents.
//!
//! # Guarantees
//! - Both are made with create-only: of two controllers one wins, the other takes the winner's.
//! - The bundle holds the present authority, the next one from 24 h before it signs, and the last
//!   one as long as a certificate of it can be out there.
//! - A serving certificate lives 30 days at most, never longer than its authority, and is renewed
//!   at two thirds of its life.
//!
//! The decisions ([`Authorities::advance`], [`renew_at`]) are pure; keys are never logged (no type
//! here that holds one shows it).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use telemetry::ControllerMetrics;
use time::OffsetDateTime;
use tracing::{info, warn};

use super::certificates::{CertificateError, Certificates};

/// Secret with the authority's certificate and key.
pub const CA_SECRET: &str = "warden-ca";
/// ConfigMap with the bundle that agents trust, key `ca.crt`.
pub const CA_BUNDLE: &str = "warden-ca-bundle";

const BUNDLE_KEY: &str = "ca.crt";
const DAY: SignedDuration = SignedDuration::from_hours(24);
/// Life of an authority: a year, so that the change of it is practised.
const CA_LIFE: SignedDuration = SignedDuration::from_hours(24 * 365);
/// Life of a serving certificate.
const LEAF_LIFE: SignedDuration = SignedDuration::from_hours(24 * 30);
/// An authority with less life than this gets a successor: two lives of a leaf.
const SUCCESSOR_AT: SignedDuration = SignedDuration::from_hours(24 * 60);
/// How long a successor is published before it signs.
const PUBLISHED_FIRST: SignedDuration = DAY;
/// Clocks of nodes may be behind by this.
const BACKDATED: SignedDuration = SignedDuration::from_hours(1);
/// Longest time for one call to the API server.
const CALL: Duration = Duration::from_secs(10);
/// How often the plan is looked at; renewals have days.
const LOOK: Duration = Duration::from_mins(10);
/// Attempts against another controller that changes the same objects.
const ATTEMPTS: usize = 5;

/// Why there is no certificate of our own.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The API server refused or did not answer.
    #[error(
        "{act} {kind} {namespace}/{name}: {why}. The controller needs get, create and update on it \
         in its own namespace; or give ingest.tls.certificate_file and key_file"
    )]
    Api {
        /// What was tried.
        act: &'static str,
        /// On what.
        kind: &'static str,
        /// Where.
        namespace: String,
        /// Name.
        name: &'static str,
        /// Why it failed.
        why: String,
    },
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
            Self::Api { .. } => "ca_api",
            Self::Contended(_) => "ca_contended",
            Self::Broken { .. } => "ca_broken",
            Self::Make(_) => "ca_make",
            Self::Certificate(error) => error.code(),
        }
    }
}

/// One authority.
#[derive(Clone, PartialEq, Eq)]
struct Authority {
    certificate: String,
    key: String,
    not_after: Timestamp,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let not_after = &self.not_after;
        f.debug_struct("Authority")
            .field("not_after", not_after)
            .finish_non_exhaustive()
    }
}

/// The authorities at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Authorities {
    present: Authority,
    next: Option<Next>,
    /// Certificate and end of the one before.
    last: Option<(String, Timestamp)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Next {
    authority: Authority,
    published_at: Timestamp,
}

impl Authorities {
    fn new(now: Timestamp) -> Result<Self, rcgen::Error> {
        Ok(Self {
            present: Authority::new(now)?,
            next: None,
            last: None,
        })
    }

    /// What they shall be now. Equal to what they are if nothing is due.
    fn advance(&self, now: Timestamp) -> Result<Self, rcgen::Error> {
        let mut after = self.clone();
        if after
            .last
            .as_ref()
            .is_some_and(|(_, not_after)| *not_after <= now)
        {
            after.last = None;
        }
        let left = after.present.not_after.duration_since(now);
        match after.next.take() {
            None if left < SUCCESSOR_AT => {
                after.next = Some(Next {
                    authority: Authority::new(now)?,
                    published_at: now,
                });
            }
            None => {}
            Some(next) if now.duration_since(next.published_at) < PUBLISHED_FIRST => {
                after.next = Some(next);
            }
            Some(next) => {
                let old = std::mem::replace(&mut after.present, next.authority);
                after.last = Some((old.certificate, old.not_after));
            }
        }
        Ok(after)
    }

    /// What agents trust.
    fn bundle(&self) -> String {
        let next = self
            .next
            .as_ref()
            .map(|next| next.authority.certificate.as_str());
        let last = self
            .last
            .as_ref()
            .map(|(certificate, _)| certificate.as_str());
        [Some(self.present.certificate.as_str()), next, last]
            .into_iter()
            .flatten()
            .collect()
    }

    fn to_data(&self) -> BTreeMap<String, ByteString> {
        let mut data = BTreeMap::new();
        let mut put = |key: &str, text: String| {
            data.insert(key.to_owned(), ByteString(text.into_bytes()));
        };
        put("ca.crt", self.present.certificate.clone());
        put("ca.key", self.present.key.clone());
        put("ca.not-after", self.present.not_after.to_string());
        if let Some(next) = &self.next {
            put("next.crt", next.authority.certificate.clone());
            put("next.key", next.authority.key.clone());
            put("next.not-after", next.authority.not_after.to_string());
            put("next.published-at", next.published_at.to_string());
        }
        if let Some((certificate, not_after)) = &self.last {
            put("last.crt", certificate.clone());
            put("last.not-after", not_after.to_string());
        }
        data
    }

    fn from_data(data: &BTreeMap<String, ByteString>) -> Result<Self, String> {
        let text = |key: &str| {
            let bytes = data.get(key).ok_or_else(|| format!("no key {key}"))?;
            String::from_utf8(bytes.0.clone()).map_err(|_| format!("{key} is no text"))
        };
        let time = |key: &str| {
            text(key)?
                .parse::<Timestamp>()
                .map_err(|_| format!("{key} is no time"))
        };
        let authority = |name: &str| {
            Ok::<_, String>(Authority {
                certificate: text(&format!("{name}.crt"))?,
                key: text(&format!("{name}.key"))?,
                not_after: time(&format!("{name}.not-after"))?,
            })
        };
        let next = || {
            Ok::<_, String>(Next {
                authority: authority("next")?,
                published_at: time("next.published-at")?,
            })
        };
        let last = || Ok::<_, String>((text("last.crt")?, time("last.not-after")?));
        Ok(Self {
            present: authority("ca")?,
            next: data.contains_key("next.crt").then(next).transpose()?,
            last: data.contains_key("last.crt").then(last).transpose()?,
        })
    }
}

impl Authority {
    fn new(now: Timestamp) -> Result<Self, rcgen::Error> {
        let not_after = now + CA_LIFE;
        let mut params = CertificateParams::default();
        params.distinguished_name = named("Warden CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.not_before = to_time(now - BACKDATED);
        params.not_after = to_time(not_after);
        let key = KeyPair::generate()?;
        Ok(Self {
            certificate: params.self_signed(&key)?.pem(),
            key: key.serialize_pem(),
            not_after,
        })
    }

    fn issue(&self, names: &[String], now: Timestamp) -> Result<Leaf, rcgen::Error> {
        let not_after = (now + LEAF_LIFE).min(self.not_after);
        let mut params = CertificateParams::new(names.to_vec())?;
        params.distinguished_name = named("warden-controller");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        params.not_before = to_time(now - BACKDATED);
        params.not_after = to_time(not_after);
        let issuer = Issuer::from_ca_cert_pem(&self.certificate, KeyPair::from_pem(&self.key)?)?;
        let key = KeyPair::generate()?;
        Ok(Leaf {
            certificate: params.signed_by(&key, &issuer)?.pem(),
            key: key.serialize_pem(),
            issued_at: now,
            not_after,
            authority: self.certificate.clone(),
        })
    }
}

/// A serving certificate.
struct Leaf {
    certificate: String,
    key: String,
    issued_at: Timestamp,
    not_after: Timestamp,
    authority: String,
}

impl Leaf {
    /// Whether another one is due: at two thirds of its life, or when its authority no longer
    /// signs.
    fn is_due(&self, authorities: &Authorities, now: Timestamp) -> bool {
        self.authority != authorities.present.certificate
            || now >= renew_at(self.issued_at, self.not_after)
    }
}

/// Two thirds of a life.
fn renew_at(issued_at: Timestamp, not_after: Timestamp) -> Timestamp {
    issued_at + not_after.duration_since(issued_at) * 2 / 3
}

fn named(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

fn to_time(at: Timestamp) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(at.as_second()).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// Where the authorities are kept.
struct Keeper {
    secrets: Api<Secret>,
    bundles: Api<ConfigMap>,
    namespace: String,
}

impl Keeper {
    fn new(client: Client, namespace: &str) -> Self {
        Self {
            secrets: Api::namespaced(client.clone(), namespace),
            bundles: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
        }
    }

    /// The authorities as they shall be now, stored and published.
    async fn current(&self, now: Timestamp) -> Result<Authorities, AuthorityError> {
        for _ in 0..ATTEMPTS {
            let Some(secret) = self.get_secret().await? else {
                let made = Authorities::new(now)?;
                // Whether we won or another did: the next turn reads the winner's.
                self.create_secret(&made).await?;
                continue;
            };
            let data = secret.data.clone().unwrap_or_default();
            let stored = Authorities::from_data(&data).map_err(|why| AuthorityError::Broken {
                namespace: self.namespace.clone(),
                why,
            })?;
            let wanted = stored.advance(now)?;
            if wanted != stored && !self.replace_secret(secret, &wanted).await? {
                continue;
            }
            if self.publish(&wanted).await? {
                return Ok(wanted);
            }
        }
        Err(AuthorityError::Contended(self.namespace.clone()))
    }

    async fn get_secret(&self) -> Result<Option<Secret>, AuthorityError> {
        let answer = in_time(self.secrets.get_opt(CA_SECRET)).await;
        answer.map_err(|why| self.error("reading", "Secret", CA_SECRET, why.text))
    }

    /// Create-only; another's is as good.
    async fn create_secret(&self, authorities: &Authorities) -> Result<(), AuthorityError> {
        let secret = Secret {
            metadata: self.metadata(CA_SECRET),
            type_: Some("Opaque".to_owned()),
            data: Some(authorities.to_data()),
            ..Secret::default()
        };
        match in_time(self.secrets.create(&PostParams::default(), &secret)).await {
            Ok(_) => {
                info!(
                    namespace = self.namespace,
                    name = CA_SECRET,
                    "certificate authority made"
                );
                Ok(())
            }
            Err(why) if why.is_conflict => Ok(()),
            Err(why) => Err(self.error("creating", "Secret", CA_SECRET, why.text)),
        }
    }

    /// Answers whether ours was written.
    async fn replace_secret(
        &self,
        mut secret: Secret,
        authorities: &Authorities,
    ) -> Result<bool, AuthorityError> {
        secret.data = Some(authorities.to_data());
        match in_time(
            self.secrets
                .replace(CA_SECRET, &PostParams::default(), &secret),
        )
        .await
        {
            Ok(_) => {
                info!(
                    namespace = self.namespace,
                    "certificate authorities moved on"
                );
                Ok(true)
            }
            Err(why) if why.is_conflict => Ok(false),
            Err(why) => Err(self.error("updating", "Secret", CA_SECRET, why.text)),
        }
    }

    /// Answers whether the bundle is what it shall be.
    async fn publish(&self, authorities: &Authorities) -> Result<bool, AuthorityError> {
        let data = BTreeMap::from([(BUNDLE_KEY.to_owned(), authorities.bundle())]);
        let found = in_time(self.bundles.get_opt(CA_BUNDLE)).await;
        let found = found.map_err(|why| self.error("reading", "ConfigMap", CA_BUNDLE, why.text))?;
        let (act, written) = match found {
            Some(bundle) if bundle.data.as_ref() == Some(&data) => return Ok(true),
            Some(mut bundle) => {
                bundle.data = Some(data);
                let post = PostParams::default();
                (
                    "updating",
                    in_time(self.bundles.replace(CA_BUNDLE, &post, &bundle)).await,
                )
            }
            None => {
                let bundle = ConfigMap {
                    metadata: self.metadata(CA_BUNDLE),
                    data: Some(data),
                    ..ConfigMap::default()
                };
                (
                    "creating",
                    in_time(self.bundles.create(&PostParams::default(), &bundle)).await,
                )
            }
        };
        match written {
            Ok(_) => Ok(true),
            Err(why) if why.is_conflict => Ok(false),
            Err(why) => Err(self.error(act, "ConfigMap", CA_BUNDLE, why.text)),
        }
    }

    fn metadata(&self, name: &str) -> ObjectMeta {
        let label = (
            "app.kubernetes.io/managed-by".to_owned(),
            "warden-controller".to_owned(),
        );
        ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(self.namespace.clone()),
            labels: Some(BTreeMap::from([label])),
            ..ObjectMeta::default()
        }
    }

    fn error(
        &self,
        act: &'static str,
        kind: &'static str,
        name: &'static str,
        why: String,
    ) -> AuthorityError {
        AuthorityError::Api {
            act,
            kind,
            namespace: self.namespace.clone(),
            name,
            why,
        }
    }
}

struct CallFailed {
    is_conflict: bool,
    text: String,
}

async fn in_time<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, CallFailed> {
    match tokio::time::timeout(CALL, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(CallFailed {
            is_conflict: matches!(&error, kube::Error::Api(status) if status.code == 409),
            text: error.to_string(),
        }),
        Err(_) => Err(CallFailed {
            is_conflict: false,
            text: "no answer in 10 s".to_owned(),
        }),
    }
}

/// Makes or finds the authority, and a certificate of it for these names; the returned future
/// renews both until it is dropped.
///
/// # Errors
/// [`AuthorityError`] of the first certificate. Later failures are logged and tried again: the
/// present certificate has a third of its life left then.
pub async fn maintain(
    client: Client,
    namespace: &str,
    names: Vec<String>,
    metrics: Arc<ControllerMetrics>,
) -> Result<(Arc<Certificates>, impl Future<Output = ()> + Send + use<>), AuthorityError> {
    let keeper = Keeper::new(client, namespace);
    let now = Timestamp::now();
    let leaf = keeper.current(now).await?.present.issue(&names, now)?;
    let certificates = Certificates::new("our own certificate", &leaf.certificate, &leaf.key)?;
    metrics
        .certificate_not_after
        .set(leaf.not_after.as_second());
    let shown = Arc::clone(&certificates);
    let renewal = async move { renew(keeper, leaf, &names, &shown, &metrics).await };
    Ok((certificates, renewal))
}

async fn renew(
    keeper: Keeper,
    mut leaf: Leaf,
    names: &[String],
    shown: &Certificates,
    metrics: &ControllerMetrics,
) {
    loop {
        tokio::time::sleep(LOOK).await;
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

#[cfg(test)]
#[path = "authority_tests.rs"]
mod tests;
