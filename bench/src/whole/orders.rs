//! Many nodes that are empty, and all orders of their reboots at once: they wait because the
//! reference's fault-remediation is there, until it goes.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use k8s_api::names;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use testbed::wait_for;

use super::limits::pace;
use crate::cluster::{Cluster, DEADLINE};
use crate::fleet::{self, Reporter};
use crate::report::Row;
use crate::seen::What;
use crate::stats::number;

/// Part of the raw rate that is to be reached (DESIGN, *Numbers*).
const GOAL: f64 = 0.8;
/// The reference's namespace and program.
const OTHER: (&str, &str) = ("nvsentinel", "fault-remediation");
/// The controller looks for it once a minute.
const NOTICED: Duration = Duration::from_secs(90);

/// Installs what looks like the reference's program.
///
/// # Errors
/// The API server refuses it.
pub(super) async fn install_other(cluster: &Cluster) -> anyhow::Result<()> {
    let (namespace, name) = OTHER;
    cluster.testbed.ensure_namespace(namespace).await?;
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": {
            "replicas": 1,
            "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "containers": [{ "name": "main", "image": "pause" }] },
            },
        },
    }))?;
    deployments(cluster)
        .create(&PostParams::default(), &deployment)
        .await
        .context("creating the other fault-remediation")?;
    Ok(())
}

fn deployments(cluster: &Cluster) -> Api<Deployment> {
    Api::namespaced(cluster.client.clone(), OTHER.0)
}

/// The rate at which all nodes' orders are seen, once the other program was noticed to be gone.
///
/// # Errors
/// Something of Warden does not play along.
pub(super) async fn run(cluster: &Cluster, fleet: &[Reporter], raw: f64) -> anyhow::Result<Row> {
    wait_for(
        "the other fault-remediation to be noticed",
        NOTICED,
        || async {
            let noticed = cluster.metric("warden_other_remediation ").await? > 0.5;
            Ok(noticed.then_some(()))
        },
    )
    .await?;
    let names: Vec<String> = fleet.iter().map(|r| r.node.clone()).collect();
    let mut changes = cluster.seen.changes();
    let drained = changes.all(
        &names,
        "be drained",
        DEADLINE * 2,
        |change| {
            let look = change.node_look();
            look.is_some_and(|look| look.cordoned && look.state == names::STATE_DRAIN_SUCCEEDED)
        },
        |_| {},
    );
    // Another turn than those before: an Event's fault of each turn has a device of its own.
    let ill = fleet::all(fleet, |reporter| reporter.fall_ill(1));
    futures::try_join!(drained, ill)?;
    let mut changes = cluster.seen.changes();
    let begin = Instant::now();
    deployments(cluster)
        .delete(OTHER.1, &DeleteParams::default())
        .await?;
    let ordered = changes.all(
        &names,
        "have their reboot ordered",
        DEADLINE * 2,
        |change| matches!(change.what, What::Order { over: false, .. }),
        |_| {},
    );
    let times: Vec<Instant> = ordered.await?.into_values().collect();
    let first = times.iter().min().copied().unwrap_or(begin);
    let rate = pace(&times);
    let part = rate / raw.max(1e-9);
    Ok(Row {
        what: format!("{} nodes drained → RebootNode at once", names.len()),
        raw: format!("{} a second", number(raw)),
        measured: format!("{} a second: {:.0} % of raw", number(rate), part * 1e2),
        goal: format!("≥ {:.0} % of the raw rate", GOAL * 1e2),
        met: Some(part >= GOAL),
        note: format!(
            "from the first to the last object that is seen; they had waited for another \
             fault-remediation, whose end was noticed after {} s; raw is the POST of the same object, \
             as many at a time as nodes are written",
            number((first - begin).as_secs_f64())
        ),
    })
}
