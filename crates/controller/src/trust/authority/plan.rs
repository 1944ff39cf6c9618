//! Which authorities there are, and when which of them signs: pure. Keys are never logged: no type
//! here that holds one shows it.

use std::collections::BTreeMap;
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use time::OffsetDateTime;

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

/// One authority.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Authority {
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
    pub(super) present: Authority,
    next: Option<Next>,
    /// Certificate and end of the one before.
    last: Option<(String, Timestamp)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Next {
    authority: Authority,
    published_at: Timestamp,
}

impl Authorities {
    pub(super) fn new(now: Timestamp) -> Result<Self, rcgen::Error> {
        Ok(Self {
            present: Authority::new(now)?,
            next: None,
            last: None,
        })
    }

    /// What they shall be now. Equal to what they are if nothing is due. `bundle` is what agents are
    /// given at the moment: who is not in it does not sign.
    pub(super) fn advance(&self, now: Timestamp, bundle: &str) -> Result<Self, rcgen::Error> {
        let mut after = self.clone();
        if after
            .last
            .as_ref()
            .is_some_and(|(_, not_after)| *not_after <= now)
        {
            after.last = None;
        }
        let left = after.present.not_after.duration_since(now);
        // Nobody believes it any more: there is nothing to wait for.
        let is_over = left <= SignedDuration::ZERO;
        match after.next.take() {
            None if is_over => after.present = Authority::new(now)?,
            None if left < SUCCESSOR_AT => {
                after.next = Some(Next {
                    authority: Authority::new(now)?,
                    published_at: now,
                });
            }
            None => {}
            Some(next) if !is_over && !bundle.contains(&next.authority.certificate) => {
                after.next = Some(Next {
                    published_at: now,
                    ..next
                });
            }
            Some(next) if !is_over && now.duration_since(next.published_at) < PUBLISHED_FIRST => {
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
    pub(super) fn bundle(&self) -> String {
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

    pub(super) fn to_data(&self) -> BTreeMap<String, ByteString> {
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

    pub(super) fn from_data(data: &BTreeMap<String, ByteString>) -> Result<Self, String> {
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
    pub(super) fn new(now: Timestamp) -> Result<Self, rcgen::Error> {
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

    pub(super) fn issue(&self, names: &[String], now: Timestamp) -> Result<Leaf, rcgen::Error> {
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
pub(super) struct Leaf {
    pub(super) certificate: String,
    pub(super) key: String,
    issued_at: Timestamp,
    pub(super) not_after: Timestamp,
    authority: String,
}

impl Leaf {
    /// Whether another one is due: at two thirds of its life, or when its authority no longer
    /// signs.
    pub(super) fn is_due(&self, authorities: &Authorities, now: Timestamp) -> bool {
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

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
