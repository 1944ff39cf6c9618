//! Many nodes that are empty, and all orders of their reboots at once: they wait because the
//! reference's fault-remediation is there, until it goes.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use k8s_api::names::STATE_DRAIN_SUCCEEDED;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use testbed::{Behaviour, Testbed};

use super::limits::{orders_of, pace};
use super::{Ground, Janitor, catch_up, connect};
use crate::cluster::{Cluster, DEADLINE, names};
use crate::fleet;
use crate::process::Usage;
use crate::raw::targets;
use crate::report::Row;
use crate::seen::What;
use crate::stats::number;

/// Part of the raw rate that is to be reached (DESIGN, *Numbers*).
const GOAL: f64 = 0.8;
/// The reference's namespace and program.
const OTHER: (&str, &str) = ("nvsentinel", "fault-remediation");
/// Reboots at a time: the janitor's default.
const REBOOTS: usize = 10;
/// How long a reboot takes, a machine's being minutes: the first ones last until all are ordered, so that no
/// writes of later stages are in the measured time.
const DOWN_FOR: Duration = Duration::from_mins(1);

/// Installs what looks like the reference's program.
async fn install_other(testbed: &Testbed) -> anyhow::Result<()> {
    let (namespace, name) = OTHER;
    testbed.ensure_namespace(namespace).await?;
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
    deployments(testbed.admin())
        .create(&PostParams::default(), &deployment)
        .await
        .context("creating the other fault-remediation")?;
    Ok(())
}

fn deployments(client: Client) -> Api<Deployment> {
    Api::namespaced(client, OTHER.0)
}

/// The rate at which the orders of so many nodes are seen, once the other program was noticed to be gone.
///
/// # Errors
/// Something of Warden does not play along.
pub(crate) async fn run(nodes: usize, settings: &str) -> anyhow::Result<Vec<Row>> {
    let testbed = Cluster::testbed(nodes + 1, false).await?;
    install_other(&testbed).await?;
    let profile = ("remediate", Janitor::Acts(REBOOTS));
    let ground = Box::pin(Ground::on(testbed, profile, settings)).await?;
    ground.provider.behave(Behaviour {
        down_for: DOWN_FOR,
        ..Behaviour::default()
    });
    let cluster = &ground.cluster;
    let all = names(0..nodes + 1);
    let (ill, marker) = (&all[..nodes], &all[nodes]);
    let fleet = connect(cluster, ill).await?;
    let mut changes = cluster.seen.changes();
    let drained = changes.all(
        ill,
        "be drained",
        DEADLINE * 2,
        |change| {
            let look = change.node_look();
            look.is_some_and(|look| look.cordoned && look.state == STATE_DRAIN_SUCCEEDED)
        },
        |_| {},
    );
    futures::try_join!(drained, fleet::all(&fleet, |reporter| reporter.fall_ill(0)))?;
    let raw = targets(cluster, ill).await?;
    let (_, raw) = cluster
        .without_warden(orders_of(cluster, &raw, nodes))
        .await?;
    catch_up(cluster, marker).await?;
    let mut changes = cluster.seen.changes();
    let before = Usage::of(cluster.controller.id())?;
    let begin = Instant::now();
    deployments(cluster.client.clone())
        .delete(OTHER.1, &DeleteParams::default())
        .await?;
    let ordered = changes.all(
        ill,
        "have their reboot ordered",
        DEADLINE * 2,
        |change| matches!(change.what, What::Order { .. }),
        |_| {},
    );
    let times: Vec<Instant> = ordered.await?.into_values().collect();
    let cpu = Usage::of(cluster.controller.id())?.cpu_since(&before);
    let first = times.iter().min().copied().unwrap_or(begin);
    let rate = pace(&times);
    let part = rate / raw.max(1e-9);
    Ok(vec![Row {
        what: format!("{nodes} nodes drained → RebootNode at once"),
        raw: format!("{} POSTs a second", number(raw)),
        measured: format!("{} a second: {:.0} % of raw", number(rate), part * 1e2),
        goal: format!("≥ {:.0} % of the raw rate", GOAL * 1e2),
        met: Some(part >= GOAL),
        note: format!(
            "from the first to the last object that is seen; they had waited for another \
             fault-remediation, whose end was noticed after {} s; the controller used {cpu} of CPU since; \
             the janitor begins with them, {REBOOTS} reboots at a time as by default, each of {} s; raw is the POST of \
             the same object for the same nodes, as many at a time as nodes are written, while the \
             controller is held",
            number((first - begin).as_secs_f64()),
            DOWN_FOR.as_secs()
        ),
    }])
}
