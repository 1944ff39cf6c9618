//! The certificate authority of one testbed, and the key pair that signs service-account tokens.
//! Everything is EC P-256; nothing outlives the testbed's folder.

use std::path::Path;

use anyhow::Context as _;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};

/// A certificate and its private key.
#[derive(Clone, Debug)]
pub struct KeyedCertificate {
    /// The certificate, PEM.
    pub certificate_pem: String,
    /// Its private key, PEM (PKCS #8).
    pub key_pem: String,
}

/// A certificate authority with its key in memory.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    /// Makes a new authority that calls itself `common_name`.
    pub(crate) fn new(common_name: &str) -> anyhow::Result<Self> {
        let mut params = named(&[], common_name, &[])?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)
            .with_context(|| format!("signing the authority {common_name}"))?;
        Ok(Self { issuer })
    }

    /// The authority's own certificate, PEM.
    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Issues a certificate with which a client is `user` in `groups`.
    pub(crate) fn client(&self, user: &str, groups: &[&str]) -> anyhow::Result<KeyedCertificate> {
        let params = named(&[], user, groups)?;
        self.issue(params, ExtendedKeyUsagePurpose::ClientAuth)
            .with_context(|| format!("issuing a client certificate for {user}"))
    }

    /// Issues a certificate for a server reached under `names` (DNS names or IP addresses).
    pub(crate) fn server(&self, names: &[&str]) -> anyhow::Result<KeyedCertificate> {
        let params = named(names, names.first().copied().unwrap_or("server"), &[])?;
        self.issue(params, ExtendedKeyUsagePurpose::ServerAuth)
            .with_context(|| format!("issuing a server certificate for {}", names.join(", ")))
    }

    fn issue(
        &self,
        mut params: CertificateParams,
        usage: ExtendedKeyUsagePurpose,
    ) -> anyhow::Result<KeyedCertificate> {
        let key = KeyPair::generate()?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(KeyedCertificate {
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
        })
    }
}

fn named(
    alternative_names: &[&str],
    common_name: &str,
    organizations: &[&str],
) -> anyhow::Result<CertificateParams> {
    let names: Vec<String> = alternative_names.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(names)?;
    // A fresh name has no common name; rcgen's default puts its own.
    params.distinguished_name = rcgen::DistinguishedName::new();
    for organization in organizations {
        params
            .distinguished_name
            .push(DnType::OrganizationName, *organization);
    }
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    Ok(params)
}

/// The file names, inside the testbed's `pki` folder, that the components' flags name.
pub(crate) mod files {
    /// The authority of servers and clients.
    pub(crate) const CA: &str = "ca.crt";
    /// The authority of the aggregation proxy, which no client uses here.
    pub(crate) const FRONT_PROXY_CA: &str = "front-proxy-ca.crt";
    /// Certificate of API server, controller manager and scheduler.
    pub(crate) const SERVER_CERTIFICATE: &str = "server.crt";
    /// Its key.
    pub(crate) const SERVER_KEY: &str = "server.key";
    /// Checks service-account tokens.
    pub(crate) const TOKEN_PUBLIC_KEY: &str = "service-account.pub";
    /// Signs service-account tokens.
    pub(crate) const TOKEN_KEY: &str = "service-account.key";
}

/// Writes everything the components read into `folder` and answers the authority.
pub(crate) fn write(folder: &Path) -> anyhow::Result<Authority> {
    let authority = Authority::new("kubernetes-ca")?;
    let server = authority.server(&[
        "127.0.0.1",
        "::1",
        "10.96.0.1",
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
    ])?;
    let tokens = KeyPair::generate()?;
    for (name, text) in [
        (files::CA, authority.pem()),
        (
            files::FRONT_PROXY_CA,
            Authority::new("front-proxy-ca")?.pem(),
        ),
        (files::SERVER_CERTIFICATE, server.certificate_pem),
        (files::SERVER_KEY, server.key_pem),
        (files::TOKEN_PUBLIC_KEY, tokens.public_key_pem()),
        (files::TOKEN_KEY, tokens.serialize_pem()),
    ] {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(authority)
}
