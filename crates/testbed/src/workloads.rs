//! Namespaces, pods and deployments; kwok makes the pods run.

use std::time::Duration;

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::Api;
use kube::api::{ListParams, ObjectMeta, PostParams};
use serde_json::json;

use crate::{PARALLEL_WRITES, Testbed, wait_for};

/// How long a namespace may take to get its default service account.
const NAMESPACE_DEADLINE: Duration = Duration::from_secs(30);
/// How long a pod bound to a node may take to run, however many there are.
const POD_DEADLINE: Duration = Duration::from_mins(1);

/// Nothing is pulled: kwok only says that containers run.
const IMAGE: &str = "pause";

/// Ignores that the object is there already.
pub(crate) fn unless_there<T>(created: kube::Result<T>) -> kube::Result<()> {
    match created {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether the pod runs.
pub fn is_running(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_ref());
    phase.is_some_and(|phase| phase == "Running")
}

impl Testbed {
    /// Makes sure that the namespace exists and that pods can be created in it.
    ///
    /// # Errors
    /// The API server refused it, or the controller manager gave it no service account in 30 s.
    pub async fn ensure_namespace(&self, namespace: &str) -> anyhow::Result<()> {
        let client = self.admin();
        let object = Namespace {
            metadata: ObjectMeta {
                name: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        };
        let created = Api::all(client.clone())
            .create(&PostParams::default(), &object)
            .await;
        unless_there(created).with_context(|| format!("creating the namespace {namespace}"))?;
        let accounts: Api<ServiceAccount> = Api::namespaced(client, namespace);
        wait_for(
            format_args!("the default service account of {namespace}"),
            NAMESPACE_DEADLINE,
            || async { Ok(accounts.get_opt("default").await?.map(drop)) },
        )
        .await
    }

    /// Creates the pod `name` under a service account, bound to `node`, waits until it runs and
    /// answers it. The binding goes round the scheduler, so a cordoned node takes it too.
    ///
    /// # Errors
    /// The API server refused it (is the service account there?), or it did not run in 60 s.
    pub async fn pod_on_node(
        &self,
        namespace: &str,
        name: &str,
        service_account: &str,
        node: &str,
    ) -> anyhow::Result<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.admin(), namespace);
        let pod = pod(&json!({ "name": name }), service_account, node)?;
        pods.create(&PostParams::default(), &pod)
            .await
            .with_context(|| format!("creating the pod {namespace}/{name} on {node}"))?;
        wait_for(
            format_args!("the pod {namespace}/{name} to run on {node}"),
            POD_DEADLINE,
            || async { Ok(Some(pods.get(name).await?).filter(is_running)) },
        )
        .await
    }

    /// Creates `count` pods in `namespace` bound to `node`, 16 at a time, waits until they run and
    /// answers their names. They have no owner: evicted, they are gone.
    ///
    /// # Errors
    /// The API server refused one, or they did not all run in 60 s.
    pub async fn create_pods_on(
        &self,
        node: &str,
        namespace: &str,
        count: usize,
    ) -> anyhow::Result<Vec<String>> {
        self.ensure_namespace(namespace).await?;
        let pods: Api<Pod> = Api::namespaced(self.admin(), namespace);
        let template = pod(&json!({ "generateName": "load-" }), "default", node)?;
        let names: Vec<String> = futures::stream::iter(0..count)
            .map(|_| async {
                let created = pods.create(&PostParams::default(), &template).await?;
                anyhow::Ok(created.metadata.name.unwrap_or_default())
            })
            .buffer_unordered(PARALLEL_WRITES)
            .try_collect()
            .await
            .with_context(|| format!("creating {count} pods in {namespace} on {node}"))?;
        let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
        wait_for(
            format_args!("{count} pods in {namespace} to run on {node}"),
            POD_DEADLINE,
            || async {
                let running = pods.list(&on_node).await?.items.into_iter().filter(|pod| {
                    is_running(pod)
                        && pod
                            .metadata
                            .name
                            .as_ref()
                            .is_some_and(|n| names.contains(n))
                });
                Ok((running.count() == count).then_some(()))
            },
        )
        .await?;
        Ok(names)
    }

    /// Creates a deployment whose pods take one GPU each and spread evenly over the nodes, and
    /// waits until all of them are ready.
    ///
    /// # Errors
    /// The API server refused it, or its pods were not ready by the deadline.
    pub async fn deploy(
        &self,
        namespace: &str,
        name: &str,
        replicas: usize,
        deadline: Duration,
    ) -> anyhow::Result<()> {
        self.ensure_namespace(namespace).await?;
        let deployments: Api<Deployment> = Api::namespaced(self.admin(), namespace);
        let deployment: Deployment = serde_json::from_value(json!({
            "metadata": { "name": name },
            "spec": {
                "replicas": replicas,
                "selector": { "matchLabels": { "app": name } },
                "template": {
                    "metadata": { "labels": { "app": name } },
                    "spec": {
                        "containers": [{
                            "name": "main",
                            "image": IMAGE,
                            "resources": { "limits": { "nvidia.com/gpu": "1" } },
                        }],
                        "topologySpreadConstraints": [{
                            "maxSkew": 1,
                            "topologyKey": "kubernetes.io/hostname",
                            "whenUnsatisfiable": "ScheduleAnyway",
                            "labelSelector": { "matchLabels": { "app": name } },
                        }],
                    },
                },
            },
        }))?;
        deployments
            .create(&PostParams::default(), &deployment)
            .await
            .with_context(|| format!("creating the deployment {namespace}/{name}"))?;
        wait_for(
            format_args!("{replicas} ready pods of the deployment {namespace}/{name}"),
            deadline,
            || async {
                let status = deployments.get(name).await?.status.unwrap_or_default();
                let ready = usize::try_from(status.ready_replicas.unwrap_or_default())?;
                Ok((ready == replicas).then_some(()))
            },
        )
        .await
    }
}

fn pod(metadata: &serde_json::Value, account: &str, node: &str) -> anyhow::Result<Pod> {
    let pod = json!({
        "metadata": metadata,
        "spec": {
            "serviceAccountName": account,
            "nodeName": node,
            "containers": [{ "name": "main", "image": IMAGE }],
        },
    });
    Ok(serde_json::from_value(pod)?)
}
