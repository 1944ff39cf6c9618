//! A controller with an account of its own that may do exactly what a test lists, and what it asked
//! of the API server, by that server's own log.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use e2e::machine::SOON;
use e2e::{Controller, ControllerOptions};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use testbed::{AuditEvent, wait_for};

use crate::kit::Turn;
use crate::trust::{forget_authority, operator_token};

/// Group, resources, verbs.
pub(crate) type Rule<'a> = (&'a str, &'a [&'a str], &'a [&'a str]);

/// In its own namespace.
pub(crate) const LEASE: Rule<'_> = (
    "coordination.k8s.io",
    &["leases"],
    &["get", "create", "update"],
);
/// In its own namespace.
pub(crate) const AUTHORITY: Rule<'_> =
    ("", &["secrets", "configmaps"], &["get", "create", "update"]);
pub(crate) const NODES: Rule<'_> = ("", &["nodes"], &["get", "list", "watch"]);
pub(crate) const TOKENS: Rule<'_> = ("authentication.k8s.io", &["tokenreviews"], &["create"]);
pub(crate) const ACCESS: Rule<'_> = (
    "authorization.k8s.io",
    &["subjectaccessreviews"],
    &["create"],
);
pub(crate) const MARKS: Rule<'_> = ("", &["nodes"], &["patch"]);
pub(crate) const CONDITIONS: Rule<'_> = ("", &["nodes/status"], &["patch"]);
pub(crate) const EVENTS: Rule<'_> = ("", &["events"], &["get", "create", "patch"]);
/// Whether the reference's connector runs.
pub(crate) const CONNECTORS: Rule<'_> = ("apps", &["daemonsets"], &["list"]);
/// Whether the reference's quarantine runs.
pub(crate) const QUARANTINES: Rule<'_> = ("apps", &["deployments"], &["list"]);

fn policy((group, resources, verbs): &Rule<'_>) -> PolicyRule {
    let texts = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
    PolicyRule {
        api_groups: Some(vec![(*group).to_owned()]),
        resources: Some(texts(resources)),
        verbs: texts(verbs),
        ..PolicyRule::default()
    }
}

/// A running controller under an account of its own.
pub(crate) struct Limited {
    pub(crate) turn: Turn,
    pub(crate) controller: Controller,
    user: String,
}

impl Limited {
    /// `own` are the rules in its namespace, `cluster` those in all.
    pub(crate) async fn start(
        name: &str,
        own: &[Rule<'_>],
        cluster: &[Rule<'_>],
        options: ControllerOptions,
    ) -> Self {
        let turn = Turn::take().await;
        turn.testbed.ensure_namespace("warden").await.unwrap();
        forget_authority(&turn).await;
        // Made by the controller of an earlier turn.
        let leases: Api<Lease> = Api::namespaced(turn.testbed.admin(), "warden");
        let _ = leases
            .delete("warden-controller", &DeleteParams::default())
            .await;
        let account = format!("controller-{name}");
        let options = ControllerOptions {
            insecure: false,
            kubeconfig: Some(account_of(&turn, &account, own, cluster).await),
            ..options
        };
        let mut controller = turn.controller(&options).await;
        controller.set_api_token(operator_token(&turn).await);
        Self {
            turn,
            controller,
            user: format!("system:serviceaccount:warden:{account}"),
        }
    }

    /// Stops it; answers all that it asked for, none of which was refused.
    pub(crate) async fn ended(mut self, node: &str) -> Vec<AuditEvent> {
        // Stopped, it writes nothing more; its last word is that it gives the Lease back.
        self.controller.stop().unwrap();
        let testbed = self.turn.testbed;
        wait_for("the last write in the log", SOON, || async {
            // A write of ours comes into the log after all of its.
            let seen = json!({ "metadata": { "annotations": { "test/seen": self.user } } });
            Api::<Node>::all(testbed.admin())
                .patch(node, &PatchParams::default(), &Patch::Merge(&seen))
                .await?;
            let all = testbed.audit_events()?;
            let is_there = all.iter().any(|e| e.object.as_ref() == Some(&seen));
            Ok(is_there.then_some(()))
        })
        .await
        .unwrap();
        let all = testbed.audit_events().unwrap().into_iter();
        let asked: Vec<_> = all.filter(|event| event.user == self.user).collect();
        let refused: Vec<_> = asked.iter().filter(|event| event.code == 403).collect();
        assert!(
            refused.is_empty(),
            "it asks for more than it may: {refused:#?}"
        );
        asked
    }
}

/// A service account with these rules; answers its kubeconfig.
async fn account_of(turn: &Turn, name: &str, own: &[Rule<'_>], cluster: &[Rule<'_>]) -> PathBuf {
    let testbed = turn.testbed;
    testbed.service_account("warden", name).await.unwrap();
    let role: Role = serde_json::from_value(json!({
        "metadata": { "name": name }, "rules": own.iter().map(policy).collect::<Vec<_>>()
    }))
    .unwrap();
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name },
        "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": "warden" }],
    }))
    .unwrap();
    let post = PostParams::default();
    Api::<Role>::namespaced(testbed.admin(), "warden")
        .create(&post, &role)
        .await
        .unwrap();
    Api::<RoleBinding>::namespaced(testbed.admin(), "warden")
        .create(&post, &binding)
        .await
        .unwrap();
    testbed
        .bind_cluster_role("warden", name, cluster.iter().map(policy).collect())
        .await
        .unwrap();
    let hour = Duration::from_secs(3_600);
    let token = testbed.token("warden", name, &[], hour).await.unwrap();
    testbed.kubeconfig_for_token(name, &token).unwrap()
}

/// Verb, resource and place of each write; names where they say whose object it is.
pub(crate) fn writes(events: &[AuditEvent]) -> BTreeSet<String> {
    let writes = events.iter().filter(|event| event.is_write());
    writes
        .map(|event| {
            let AuditEvent {
                verb,
                resource,
                subresource,
                namespace,
                object,
                ..
            } = event;
            let named = object.as_ref().and_then(|o| o["metadata"]["name"].as_str());
            let name = if event.name.is_empty() {
                named.unwrap_or_default()
            } else {
                &event.name
            };
            match resource.as_str() {
                // Their names are not ours to choose, or not in the log.
                "events" | "tokenreviews" | "subjectaccessreviews" | "secrets" => {
                    format!("{verb} {resource} {namespace}")
                }
                _ => format!("{verb} {resource}/{subresource} {namespace}/{name}"),
            }
        })
        .collect()
}

/// Resources that are listed or watched.
pub(crate) fn watched(events: &[AuditEvent]) -> BTreeSet<&str> {
    let reads = events
        .iter()
        .filter(|event| event.verb == "list" || event.verb == "watch");
    reads.map(|event| event.resource.as_str()).collect()
}

/// What every profile writes: its Lease, its authority, and questions.
pub(crate) fn in_every_profile() -> BTreeSet<String> {
    let list = [
        "create configmaps/ warden/warden-ca-bundle",
        "create leases/ warden/warden-controller",
        "create secrets warden",
        "create subjectaccessreviews ",
        "create tokenreviews ",
        "update leases/ warden/warden-controller",
    ];
    list.map(str::to_owned).into()
}
