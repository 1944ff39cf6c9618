//! Service accounts, their permissions and their tokens.

use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::authentication::v1::{
    BoundObjectReference, TokenRequest, TokenRequestSpec, TokenReview, TokenReviewSpec,
    TokenReviewStatus,
};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, RoleRef, Subject};
use kube::Api;
use kube::api::{ObjectMeta, PostParams};

use crate::workloads::unless_there;
use crate::{Testbed, wait_for};

/// How long a new role binding or token may take to count.
const DEADLINE: Duration = Duration::from_secs(30);
/// Of a node-bound token; the API server issues none for less than 10 minutes.
const NODE_TOKEN_LIFETIME: Duration = Duration::from_hours(1);
/// The key of `status.user.extra` of a TokenReview under which a node-bound token names its node.
pub const NODE_NAME_EXTRA: &str = "authentication.kubernetes.io/node-name";

impl Testbed {
    /// Makes sure that namespace and service account exist.
    ///
    /// # Errors
    /// The API server refused one of them.
    pub async fn service_account(&self, namespace: &str, name: &str) -> anyhow::Result<()> {
        self.ensure_namespace(namespace).await?;
        let account = ServiceAccount {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            },
            ..ServiceAccount::default()
        };
        let created = Api::namespaced(self.admin(), namespace)
            .create(&PostParams::default(), &account)
            .await;
        unless_there(created)
            .with_context(|| format!("creating the service account {namespace}/{name}"))
    }

    /// Gives a service account `rules` in the whole cluster, on top of what it has, and waits until
    /// the API server lets the first of them pass.
    ///
    /// # Errors
    /// The API server refused role or binding, or did not act on them in 30 s.
    pub async fn bind_cluster_role(
        &self,
        namespace: &str,
        account: &str,
        rules: Vec<PolicyRule>,
    ) -> anyhow::Result<()> {
        let client = self.admin();
        let first = rules.first().map(access);
        let metadata = ObjectMeta {
            generate_name: Some(format!("{namespace}-{account}-")),
            ..ObjectMeta::default()
        };
        let role = ClusterRole {
            metadata: metadata.clone(),
            rules: Some(rules),
            ..ClusterRole::default()
        };
        let role = Api::<ClusterRole>::all(client.clone())
            .create(&PostParams::default(), &role)
            .await
            .with_context(|| format!("creating a cluster role for {namespace}/{account}"))?;
        let binding = ClusterRoleBinding {
            metadata,
            role_ref: RoleRef {
                api_group: "rbac.authorization.k8s.io".to_owned(),
                kind: "ClusterRole".to_owned(),
                name: role.metadata.name.unwrap_or_default(),
            },
            subjects: Some(vec![Subject {
                kind: "ServiceAccount".to_owned(),
                namespace: Some(namespace.to_owned()),
                name: account.to_owned(),
                ..Subject::default()
            }]),
        };
        Api::<ClusterRoleBinding>::all(client.clone())
            .create(&PostParams::default(), &binding)
            .await
            .with_context(|| format!("binding a cluster role to {namespace}/{account}"))?;
        let Some(spec) = first else { return Ok(()) };
        let question = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(format!("system:serviceaccount:{namespace}:{account}")),
                ..spec
            },
            ..SubjectAccessReview::default()
        };
        let reviews: Api<SubjectAccessReview> = Api::all(client);
        wait_for(
            format_args!("the API server to act on the new role of {namespace}/{account}"),
            DEADLINE,
            || async {
                let answer = reviews.create(&PostParams::default(), &question).await?;
                let allowed = answer.status.is_some_and(|status| status.allowed);
                Ok(allowed.then_some(()))
            },
        )
        .await
    }

    /// Issues a token for a service account. Without audiences it is one for the API server
    /// ([`crate::AUDIENCE`]); the API server issues none for less than 10 minutes.
    ///
    /// # Errors
    /// The API server refused it; is the service account there?
    pub async fn token(
        &self,
        namespace: &str,
        account: &str,
        audiences: &[&str],
        lifetime: Duration,
    ) -> anyhow::Result<String> {
        self.request_token(namespace, account, audiences, lifetime, None)
            .await
    }

    /// Issues a token of one hour for `audience`, bound to a running pod, and waits until a
    /// TokenReview says on which node the pod runs ([`NODE_NAME_EXTRA`]). This is the token that a
    /// projected volume gives to a pod of a DaemonSet.
    ///
    /// # Errors
    /// The pod does not exist or is on no node, the API server refused the token, or its reviews
    /// did not name the node within 30 s.
    pub async fn node_bound_token(
        &self,
        namespace: &str,
        account: &str,
        pod: &str,
        audience: &str,
    ) -> anyhow::Result<String> {
        let object = Api::<Pod>::namespaced(self.admin(), namespace)
            .get(pod)
            .await
            .with_context(|| format!("looking up the pod {namespace}/{pod} for its token"))?;
        let node = object.spec.and_then(|spec| spec.node_name);
        let node = node.with_context(|| format!("the pod {namespace}/{pod} is on no node yet"))?;
        let bound_to = BoundObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(pod.to_owned()),
            uid: object.metadata.uid,
        };
        let audiences = [audience];
        let token = self
            .request_token(
                namespace,
                account,
                &audiences,
                NODE_TOKEN_LIFETIME,
                Some(bound_to),
            )
            .await?;
        wait_for(
            format_args!("a TokenReview to name the node {node} of the pod {namespace}/{pod}"),
            DEADLINE,
            || async {
                let review = self.review_token(&token, audience).await?;
                Ok((node_of(&review) == Some(node.as_str())).then_some(()))
            },
        )
        .await?;
        Ok(token)
    }

    /// Asks the API server whose token this is, for one audience.
    ///
    /// # Errors
    /// The API server did not answer; a token it refuses is an answer (`authenticated` is not
    /// `Some(true)`).
    pub async fn review_token(
        &self,
        token: &str,
        audience: &str,
    ) -> anyhow::Result<TokenReviewStatus> {
        let review = TokenReview {
            spec: TokenReviewSpec {
                audiences: Some(vec![audience.to_owned()]),
                token: Some(token.to_owned()),
            },
            ..TokenReview::default()
        };
        let review = Api::<TokenReview>::all(self.admin())
            .create(&PostParams::default(), &review)
            .await
            .context("asking for a TokenReview")?;
        Ok(review.status.unwrap_or_default())
    }

    async fn request_token(
        &self,
        namespace: &str,
        account: &str,
        audiences: &[&str],
        lifetime: Duration,
        bound_to: Option<BoundObjectReference>,
    ) -> anyhow::Result<String> {
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: audiences.iter().map(ToString::to_string).collect(),
                bound_object_ref: bound_to,
                expiration_seconds: Some(i64::try_from(lifetime.as_secs())?),
            },
            ..TokenRequest::default()
        };
        let answer = Api::<ServiceAccount>::namespaced(self.admin(), namespace)
            .create_token_request(account, &PostParams::default(), &request)
            .await
            .with_context(|| format!("requesting a token of {namespace}/{account}"))?;
        let status = answer
            .status
            .context("the answer to a TokenRequest has no status")?;
        Ok(status.token)
    }
}

/// The node that a reviewed token is bound to.
pub fn node_of(review: &TokenReviewStatus) -> Option<&str> {
    let extra = review.user.as_ref()?.extra.as_ref()?;
    Some(extra.get(NODE_NAME_EXTRA)?.first()?)
}

/// The question whether the first thing that `rule` allows is allowed.
fn access(rule: &PolicyRule) -> SubjectAccessReviewSpec {
    let first = |list: Option<&Vec<String>>| list.and_then(|list| list.first()).cloned();
    let verb = rule.verbs.first().cloned();
    if let Some(path) = first(rule.non_resource_urls.as_ref()) {
        return SubjectAccessReviewSpec {
            non_resource_attributes: Some(NonResourceAttributes {
                path: Some(path),
                verb,
            }),
            ..SubjectAccessReviewSpec::default()
        };
    }
    let resource = first(rule.resources.as_ref()).unwrap_or_default();
    let (resource, subresource) = match resource.split_once('/') {
        Some((resource, subresource)) => (resource.to_owned(), Some(subresource.to_owned())),
        None => (resource, None),
    };
    SubjectAccessReviewSpec {
        resource_attributes: Some(ResourceAttributes {
            group: first(rule.api_groups.as_ref()),
            resource: Some(resource),
            subresource,
            name: first(rule.resource_names.as_ref()),
            verb,
            ..ResourceAttributes::default()
        }),
        ..SubjectAccessReviewSpec::default()
    }
}
