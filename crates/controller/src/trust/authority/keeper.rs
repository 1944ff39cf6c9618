//! Where the authorities are kept: Secret and ConfigMap, each made with create-only.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::ObjectMeta;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::info;

use super::plan::Authorities;
use super::{AuthorityError, CA_BUNDLE, CA_SECRET};
use crate::kubernetes::{Call, CallError, Kube, Write};

const BUNDLE_KEY: &str = "ca.crt";
/// Longest time for one call to the API server.
const CALL: Duration = Duration::from_secs(10);
/// Attempts against another controller that changes the same objects.
const ATTEMPTS: usize = 5;

/// The two objects of one namespace.
pub(super) struct Keeper {
    kube: Kube,
    namespace: String,
}

impl Keeper {
    pub(super) fn new(kube: Kube, namespace: &str) -> Self {
        Self {
            kube,
            namespace: namespace.to_owned(),
        }
    }

    /// The authorities as they shall be now, stored and published.
    pub(super) async fn current(&self, now: Timestamp) -> Result<Authorities, AuthorityError> {
        for _ in 0..ATTEMPTS {
            let Some(secret) = self.read::<Secret>("secrets", CA_SECRET).await? else {
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
            let bundle = self.read::<ConfigMap>("configmaps", CA_BUNDLE).await?;
            let published = bundle
                .as_ref()
                .and_then(|b| b.data.as_ref()?.get(BUNDLE_KEY));
            let published = published.map(String::as_str).unwrap_or_default();
            let wanted = stored.advance(now, published)?;
            if wanted != stored && !self.replace_secret(secret, &wanted).await? {
                continue;
            }
            if self.publish(bundle, &wanted).await? {
                return Ok(wanted);
            }
        }
        Err(AuthorityError::Contended(self.namespace.clone()))
    }

    /// Create-only; another's is as good.
    async fn create_secret(&self, authorities: &Authorities) -> Result<(), AuthorityError> {
        let secret = Secret {
            metadata: self.metadata(CA_SECRET),
            type_: Some("Opaque".to_owned()),
            data: Some(authorities.to_data()),
            ..Secret::default()
        };
        let path = self.path("secrets");
        if self
            .write(Write::Authority, "creation", path, CA_SECRET, json!(secret))
            .await?
        {
            info!(
                namespace = self.namespace,
                name = CA_SECRET,
                "certificate authority made"
            );
        }
        Ok(())
    }

    /// Answers whether ours was written.
    async fn replace_secret(
        &self,
        mut secret: Secret,
        authorities: &Authorities,
    ) -> Result<bool, AuthorityError> {
        secret.data = Some(authorities.to_data());
        let path = format!("{}/{CA_SECRET}", self.path("secrets"));
        let written = self
            .write(
                Write::AuthorityChange,
                "update",
                path,
                CA_SECRET,
                json!(secret),
            )
            .await?;
        if written {
            info!(
                namespace = self.namespace,
                "certificate authorities moved on"
            );
        }
        Ok(written)
    }

    /// Answers whether the bundle is what it shall be.
    async fn publish(
        &self,
        bundle: Option<ConfigMap>,
        authorities: &Authorities,
    ) -> Result<bool, AuthorityError> {
        let data = BTreeMap::from([(BUNDLE_KEY.to_owned(), authorities.bundle())]);
        let path = self.path("configmaps");
        match bundle {
            Some(bundle) if bundle.data.as_ref() == Some(&data) => Ok(true),
            Some(mut bundle) => {
                bundle.data = Some(data);
                let path = format!("{path}/{CA_BUNDLE}");
                self.write(
                    Write::BundleChange,
                    "update",
                    path,
                    CA_BUNDLE,
                    json!(bundle),
                )
                .await
            }
            None => {
                let bundle = ConfigMap {
                    metadata: self.metadata(CA_BUNDLE),
                    data: Some(data),
                    ..ConfigMap::default()
                };
                self.write(Write::Bundle, "creation", path, CA_BUNDLE, json!(bundle))
                    .await
            }
        }
    }

    async fn read<T: DeserializeOwned>(
        &self,
        resource: &str,
        name: &str,
    ) -> Result<Option<T>, AuthorityError> {
        let call = Call {
            act: self.act("reading", name),
            path: format!("{}/{name}", self.path(resource)),
            write: None,
            accept: "application/json",
        };
        let body = match self.kube.call(&call, Instant::now() + CALL).await {
            Ok(body) => body,
            Err(CallError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // What does not parse may hold a key: the reason tells where, never what.
        let object = serde_json::from_slice(&body).map_err(|error| CallError::Unavailable {
            act: call.act,
            message: format!("the answer is no such object, at column {}", error.column()),
        })?;
        Ok(Some(object))
    }

    /// Answers whether it was written; not if another one was faster.
    async fn write(
        &self,
        write: Write,
        act: &str,
        path: String,
        name: &str,
        body: Value,
    ) -> Result<bool, AuthorityError> {
        let call = Call {
            act: self.act(act, name),
            path,
            write: Some((write, &body)),
            accept: "application/json",
        };
        match self.kube.call(&call, Instant::now() + CALL).await {
            Ok(_) => Ok(true),
            Err(CallError::Changed { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn act(&self, act: &str, name: &str) -> String {
        format!("{act} of {}/{name}", self.namespace)
    }

    fn path(&self, resource: &str) -> String {
        format!("/api/v1/namespaces/{}/{resource}", self.namespace)
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
}
