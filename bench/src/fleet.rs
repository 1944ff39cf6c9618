//! Played agents of the measured cluster.

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _};

pub(crate) use e2e::fleet::{CHECK, Reporter, all, fault, other};

use crate::cluster::Cluster;

/// Connections, pods and tokens made at a time.
const AT_ONCE: usize = 32;

/// Connects agents for these nodes and has each report that it is settled.
///
/// # Errors
/// One can't: no token, no connection, or the report is refused.
pub(crate) async fn connect(cluster: &Cluster, nodes: &[String]) -> anyhow::Result<Vec<Reporter>> {
    futures::stream::iter(nodes)
        .map(|node| async move {
            let token = cluster.agent_token(node).await?;
            let ingest = cluster.controller.ingest;
            let reporter = Reporter::connect(ingest, cluster.ca(), &token, node).await;
            reporter.with_context(|| format!("playing the agent of {node}"))
        })
        .buffered(AT_ONCE)
        .try_collect()
        .await
}
