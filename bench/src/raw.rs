//! The raw limit: the very writes that Warden makes for an incident, as the API server's audit log
//! recorded them, made by a loop with nothing of Warden in it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use kube::Client;
use serde::de::IgnoredAny;
use serde_json::Value;
use testbed::AuditEvent;

use crate::cluster::{CONTROLLER_USER, Cluster, DEADLINE};
use crate::fleet::CHECK;
use crate::seen::{Changes, last};

/// Nodes written at a time by each of quarantine and connector: the default of `workers`.
pub(crate) const AT_ONCE: usize = 64;

/// Other names for what Warden would take for its own, of the same length.
const RENAMED: [(&str, &str); 4] = [
    ("warden.dev", "rawlim.dev"),
    ("nvidia.com", "rawlim.com"),
    ("quarantine", "rawlimited"),
    (CHECK, CONDITION),
];
/// The condition that stands in for the check's.
pub(crate) const CONDITION: &str = "RawLogsXIDError";

/// One write as recorded.
#[derive(Debug, Clone)]
struct Write {
    verb: String,
    path: String,
    body: String,
    patches_node: bool,
}

/// The writes of one incident.
#[derive(Debug, Clone)]
pub(crate) struct Recorded {
    node: String,
    uid: String,
    apply: Vec<Write>,
    release: Vec<Write>,
}

/// Which half of the incident.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Half {
    /// Out of scheduling.
    Apply,
    /// Back again.
    Release,
}

impl Recorded {
    /// From the audit log: `apply` and `release` are the controller's writes of each half.
    ///
    /// # Errors
    /// One of them is no write to a node or of an Event, or there is no cordon among them.
    pub(crate) fn new(
        node: &str,
        uid: &str,
        apply: &[AuditEvent],
        release: &[AuditEvent],
    ) -> anyhow::Result<Self> {
        let writes = |events: &[AuditEvent]| -> anyhow::Result<Vec<Write>> {
            let writes = events.iter().filter(|e| is_about_nodes(e)).map(Write::new);
            writes.collect()
        };
        let recorded = Self {
            node: node.to_owned(),
            uid: uid.to_owned(),
            apply: writes(apply)?,
            release: writes(release)?,
        };
        for half in [&recorded.apply, &recorded.release] {
            ensure!(
                half.iter().any(|write| write.patches_node),
                "the audit log shows no patch of the node {node} by {CONTROLLER_USER}"
            );
        }
        Ok(recorded)
    }

    /// `cordon + condition + Event`, for a note.
    pub(crate) fn text(&self, half: Half) -> String {
        let writes = self.half(half).iter().map(|write| {
            let path = write.path.trim_start_matches("/api/v1/");
            let path = path.replace(&self.node, "NODE");
            format!("{} {path}", write.verb)
        });
        writes.collect::<Vec<_>>().join(", ")
    }

    /// How many Events one node's half creates.
    pub(crate) fn events(&self, half: Half) -> usize {
        let creates = |w: &&Write| w.verb == "create" && w.path.contains("/events");
        self.half(half).iter().filter(creates).count()
    }

    /// Whether a half changes the node's conditions.
    pub(crate) fn has_status(&self, half: Half) -> bool {
        let status = |w: &Write| w.path.ends_with("/status");
        self.half(half).iter().any(status)
    }

    fn half(&self, half: Half) -> &[Write] {
        match half {
            Half::Apply => &self.apply,
            Half::Release => &self.release,
        }
    }

    /// The one patch that cordons or uncordons, for one node: answers how long until it was seen.
    ///
    /// # Errors
    /// The API server refuses it, or the change is not seen.
    pub(crate) async fn one(
        &self,
        cluster: &Cluster,
        node: &Target,
        half: Half,
    ) -> anyhow::Result<Duration> {
        let write = self.half(half).iter().find(|write| write.patches_node);
        let write = write.context("no patch of a node was recorded")?;
        let mut changes = cluster.seen.changes();
        let begin = Instant::now();
        self.send(&cluster.client, write, node).await?;
        let at = changes
            .cordon(&node.name, half == Half::Apply, DEADLINE)
            .await?;
        Ok(at - begin)
    }

    /// All writes of a half for all nodes, quarantine's and connector's side by side, each 64
    /// nodes at a time. Answers how long until the last was answered and seen.
    ///
    /// # Errors
    /// The API server refuses one, or a change is not seen.
    pub(crate) async fn many(
        &self,
        cluster: &Cluster,
        nodes: &[Target],
        half: Half,
    ) -> anyhow::Result<Duration> {
        let mut changes = cluster.seen.changes();
        let names: Vec<String> = nodes.iter().map(|node| node.name.clone()).collect();
        let begin = Instant::now();
        let lane = |patches: bool| {
            futures::stream::iter(nodes)
                .map(move |node| async move {
                    for write in self.half(half).iter().filter(|w| w.patches_node == patches) {
                        self.send(&cluster.client, write, node).await?;
                    }
                    anyhow::Ok(())
                })
                .buffer_unordered(AT_ONCE)
                .try_collect::<()>()
        };
        let seen = see(&mut changes, &names, half, self.has_status(half), CONDITION);
        let (seen, (), ()) = futures::try_join!(seen, lane(true), lane(false))?;
        // What is not seen on the nodes (the Events) was answered by now.
        Ok(begin.elapsed().max(seen - begin))
    }

    async fn send(&self, client: &Client, write: &Write, node: &Target) -> anyhow::Result<()> {
        let mut body = write.body.clone();
        for (from, to) in RENAMED {
            body = body.replace(from, to);
        }
        body = body.replace(&self.uid, &node.uid);
        body = body.replace(&self.node, &node.name);
        let mut request = http::Request::builder();
        let path = write.path.replace(&self.node, &node.name);
        match write.verb.as_str() {
            "create" => {
                let mut object: Value = serde_json::from_str(&body)?;
                // Its name is a hash over what it says; any other will do.
                object["metadata"]["name"] = ulid::Ulid::new().to_string().to_lowercase().into();
                body = object.to_string();
                request = request
                    .method("POST")
                    .header("content-type", "application/json");
            }
            "patch" => {
                let kind = if body.starts_with('[') {
                    "application/json-patch+json"
                } else {
                    "application/strategic-merge-patch+json"
                };
                request = request.method("PATCH").header("content-type", kind);
            }
            other => bail!("no raw form of the verb {other}"),
        }
        let request = request.uri(path).body(body.into_bytes())?;
        client
            .request::<IgnoredAny>(request)
            .await
            .with_context(|| format!("{} {} for {}", write.verb, write.path, node.name))?;
        Ok(())
    }
}

/// A node that the raw limit is measured on.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
}

/// Names and UIDs.
///
/// # Errors
/// A node is not there.
pub(crate) async fn targets(cluster: &Cluster, names: &[String]) -> anyhow::Result<Vec<Target>> {
    futures::stream::iter(names)
        .map(|name| async move {
            Ok(Target {
                name: name.clone(),
                uid: cluster.uid(name).await?,
            })
        })
        .buffered(AT_ONCE)
        .try_collect()
        .await
}

/// Waits until all nodes have cordon and condition of the half; answers when the last was seen.
///
/// # Errors
/// They have not, in time.
pub(crate) async fn see(
    changes: &mut Changes,
    names: &[String],
    half: Half,
    with_status: bool,
    condition: &str,
) -> anyhow::Result<Instant> {
    let out = half == Half::Apply;
    let what = "have cordon and condition";
    let holds = |change: &crate::seen::Change| {
        change.cordoned() == Some(out) && (!with_status || change.condition(condition) == Some(out))
    };
    let times = changes
        .all(names, what, DEADLINE * 2, holds, |_| {})
        .await?;
    Ok(last(&times))
}

impl Write {
    fn new(event: &AuditEvent) -> anyhow::Result<Self> {
        let body = event.object.as_ref();
        let body = body.with_context(|| format!("a recorded {} has no body", event.verb))?;
        let mut parts = vec!["/api/v1"];
        if !event.namespace.is_empty() {
            parts.extend(["namespaces", &event.namespace]);
        }
        parts.push(&event.resource);
        if event.verb != "create" {
            parts.push(&event.name);
        }
        if !event.subresource.is_empty() {
            parts.push(&event.subresource);
        }
        let path = parts.join("/");
        Ok(Self {
            verb: event.verb.clone(),
            path,
            body: body.to_string(),
            patches_node: event.resource == "nodes" && event.subresource.is_empty(),
        })
    }
}

/// Writes to nodes and of Events; leases and reviews are no part of an incident's burst.
fn is_about_nodes(event: &AuditEvent) -> bool {
    event.is_write()
        && event.stage == "ResponseComplete"
        && event.code < 300
        && matches!(event.resource.as_str(), "nodes" | "events")
}
