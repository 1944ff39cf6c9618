//! One incident with pods and a reboot under the API server's audit log: what it asks for, by kind.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::ensure;
use k8s_api::names;
use serde_json::Value;
use testbed::{AuditEvent, wait_for};

use super::{Ground, Janitor, LOAD, connect, load};
use crate::cluster::{self, CONTROLLER_USER, Cluster, DEADLINE};
use crate::fleet::{Reporter, fault};
use crate::raw::AT_ONCE;
use crate::report::Row;
use crate::seen::Changes;

/// Calls of an incident from cordon to release with a reboot, beside one a pod (DESIGN, *Numbers*).
const GOAL: usize = 10;
/// Pods that are moved.
const PODS: usize = 3;
/// What the incident causes was written by then.
const QUIET: Duration = Duration::from_secs(1);
/// What is asked by a timer or about callers, whether there is an incident or not.
const BACKGROUND: [&str; 4] = [
    "deployments",
    "daemonsets",
    "tokenreviews",
    "subjectaccessreviews",
];

/// The calls of one incident.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counted {
    kinds: BTreeMap<String, usize>,
    background: BTreeMap<String, usize>,
}

/// Takes one node through the whole loop and counts, twice on two nodes: the first warms up.
///
/// # Errors
/// The control plane or Warden does not play along.
pub(crate) async fn count(settings: &str) -> anyhow::Result<Counted> {
    let ground = Ground::start(2, true, ("remediate", Janitor::Acts(AT_ONCE)), settings).await?;
    let cluster = &ground.cluster;
    let nodes = cluster::names(0..2);
    load(cluster, LOAD, &nodes, PODS).await?;
    let mut fleet = connect(cluster, &nodes).await?;
    let mut counted = Counted::default();
    for reporter in &mut fleet {
        let before = quiet(cluster, 0).await?;
        let mut changes = cluster.seen.changes();
        reporter.send(vec![fault(false, 0)]).await?;
        let boot = back(&mut changes, reporter).await?;
        reporter.boots(&boot).await?;
        reporter.send(vec![fault(true, 0)]).await?;
        reporter.report().await?;
        changes.cordon(&reporter.node, false, DEADLINE).await?;
        let after = quiet(cluster, before + 1).await?;
        counted = Counted::of(&calls(cluster)?[before..after]);
    }
    Ok(counted)
}

/// Waits until the node is back from its reboot; answers the boot that it is in.
async fn back(changes: &mut Changes, reporter: &Reporter) -> anyhow::Result<String> {
    let first = testbed::NodeSpec::new(&reporter.node).boot_id;
    let deadline = Instant::now() + DEADLINE;
    loop {
        let what = format!("the reboot of {}", reporter.node);
        let change = changes.next(deadline, &what).await?;
        let look = change.node_look().filter(|_| change.node == reporter.node);
        if let Some(look) = look
            && look.boot != first
            && look.holds.contains("Ready")
        {
            return Ok(look.boot.clone());
        }
    }
}

/// The controller's calls so far. A watch counts when it begins.
fn calls(cluster: &Cluster) -> anyhow::Result<Vec<AuditEvent>> {
    let mut events = cluster.testbed.audit_events()?;
    events.retain(|event| {
        let stage = if event.verb == "watch" {
            "ResponseStarted"
        } else {
            "ResponseComplete"
        };
        event.user == CONTROLLER_USER && event.stage == stage
    });
    Ok(events)
}

/// Waits until there were so many calls and then none for a second; answers how many.
async fn quiet(cluster: &Cluster, least: usize) -> anyhow::Result<usize> {
    let (mut count, mut since) = (0, Instant::now());
    wait_for("the controller's calls to end", DEADLINE, || {
        let looked = calls(cluster).map(|calls| {
            if calls.len() != count {
                (count, since) = (calls.len(), Instant::now());
            }
            (count >= least && since.elapsed() >= QUIET).then_some(count)
        });
        async move { looked }
    })
    .await
}

impl Counted {
    fn of(calls: &[AuditEvent]) -> Self {
        let mut counted = Self::default();
        for call in calls {
            let mut kind = format!("{} {}", call.verb, call.resource);
            if !call.subresource.is_empty() {
                kind = format!("{kind}/{}", call.subresource);
            }
            if let Some(what) = detail(call) {
                kind = format!("{kind} ({what})");
            }
            let background = BACKGROUND.contains(&call.resource.as_str());
            let kinds = if background {
                &mut counted.background
            } else {
                &mut counted.kinds
            };
            *kinds.entry(kind).or_default() += 1;
        }
        counted
    }

    /// How many of a kind, whatever they say: `patch nodes`.
    pub(super) fn of_kind(&self, kind: &str) -> usize {
        let is_of = |known: &str| known.split(" (").next() == Some(kind);
        let of_kind = self.kinds.iter().filter(|(known, _)| is_of(known));
        of_kind.map(|(_, count)| count).sum()
    }

    /// The row.
    ///
    /// # Errors
    /// Not every pod was evicted.
    pub(crate) fn row(&self) -> anyhow::Result<Row> {
        let evicted = self.of_kind("create pods/eviction");
        ensure!(evicted >= PODS, "{evicted} of {PODS} pods were evicted");
        let count: usize = self.kinds.values().sum();
        Ok(Row {
            what: format!("API calls an incident with {PODS} pods and a reboot, cordon to release"),
            raw: String::new(),
            measured: format!("{count}, {} beside its pods", count - PODS),
            goal: format!("≤ {GOAL} + 1 a pod"),
            met: Some(count <= GOAL + PODS),
            note: format!(
                "a watch counts once, when it begins: {}; by timers and about callers, in that time and not \
                 counted: {}; what each is for: docs/decisions/0020",
                list(&self.kinds),
                list(&self.background)
            ),
        })
    }
}

/// What a call says, so that it is known what it is for.
fn detail(call: &AuditEvent) -> Option<String> {
    if call.code >= 300 {
        return Some(call.code.to_string());
    }
    let body = call.object.as_ref()?;
    match call.resource.as_str() {
        "events" => body["reason"].as_str().map(str::to_owned),
        "nodes" => {
            let changes = body.as_array()?.iter().filter(|op| op["op"] != "test");
            let says: Vec<String> = changes.filter_map(said_of_node).collect();
            (!says.is_empty()).then(|| says.join(", "))
        }
        _ => None,
    }
}

/// The cordon, the state and the repair, of one change of a node.
fn said_of_node(change: &Value) -> Option<String> {
    let path = change["path"].as_str()?;
    let value = &change["value"];
    let state = names::STATE_LABEL.text.replace('/', "~1");
    if path == "/spec/unschedulable" {
        let is_cordon = value.as_bool().unwrap_or_default();
        return Some(if is_cordon { "cordon" } else { "uncordon" }.to_owned());
    }
    let of_map = value.get(names::STATE_LABEL.text).and_then(Value::as_str);
    let of_key = value.as_str().filter(|_| path.ends_with(&state));
    of_map.or(of_key).map(str::to_owned)
}

fn list(kinds: &BTreeMap<String, usize>) -> String {
    if kinds.is_empty() {
        return "none".to_owned();
    }
    let kinds = kinds
        .iter()
        .map(|(kind, count)| format!("{count} × {kind}"));
    kinds.collect::<Vec<_>>().join(", ")
}
