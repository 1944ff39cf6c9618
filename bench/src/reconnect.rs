//! A controller that is killed and started again, and all its agents coming back at once.

use std::time::{Duration, Instant};

use agent::backoff::Backoff;
use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _};
use testbed::{Component, NodeSpec};

use crate::cluster::{Cluster, names};
use crate::fleet::Reporter;
use crate::report::Row;
use crate::say;
use crate::stats::{Samples, number};

/// All are back by then (DESIGN, *Numbers*).
const GOAL: Duration = Duration::from_secs(20);
/// TokenReviews a second at most (the same).
const REVIEWS: f64 = 500.0;
/// As an agent waits between two tries, see `agent::delivery`.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(15);
/// One that is not back by then does not come back.
const LOST: Duration = Duration::from_mins(3);
/// Tokens and connections made at a time while all is prepared.
const AT_ONCE: usize = 64;

/// How long it takes until so many agents are connected again and have reported that they are
/// settled. Nodes and pods are objects that nobody plays: what is measured does not look at them.
///
/// # Errors
/// Something does not start, or an agent does not come back.
pub(crate) async fn run(agents: usize, settings: &str) -> anyhow::Result<Vec<Row>> {
    let mut cluster = Cluster::start(0, false, settings).await?;
    let names = names(0..agents);
    let specs: Vec<NodeSpec> = names.iter().map(NodeSpec::new).collect();
    // Whoever plays or watches over so many nodes would take the cores from what is measured.
    cluster.testbed.stop(Component::Kwok).await;
    cluster.testbed.stop(Component::ControllerManager).await;
    cluster.testbed.stop(Component::Scheduler).await;
    cluster.testbed.add_nodes(&specs).await?;
    say(&format!("  {agents} nodes made"));
    let prepared = async |node: &String| {
        let token = cluster.idle_agent_token(node).await?;
        anyhow::Ok((node.clone(), token))
    };
    let tokens: Vec<(String, String)> = futures::stream::iter(&names)
        .map(prepared)
        .buffered(AT_ONCE)
        .try_collect()
        .await?;
    say("  their pods and tokens made");
    let (ingest, ca) = (cluster.controller.ingest, cluster.ca().to_owned());
    let connect = async |(node, token): &(String, String)| {
        let connected = Reporter::connect(ingest, &ca, token, node).await;
        connected.with_context(|| format!("playing the agent of {node}"))
    };
    let fleet: Vec<Reporter> = futures::stream::iter(&tokens)
        .map(connect)
        .buffered(AT_ONCE)
        .try_collect()
        .await?;
    say("  all connected");

    cluster.controller.kill();
    let begin = Instant::now();
    cluster.controller.spawn_again()?;
    // Each notices at once that its connection is gone, and waits as an agent does.
    let back = async |agent: &Reporter| {
        let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
        loop {
            tokio::time::sleep(backoff.wait()).await;
            if let Ok(channel) = agent.again(ingest, &ca).await {
                return anyhow::Ok((begin.elapsed(), channel));
            }
        }
    };
    let all = futures::future::try_join_all(fleet.iter().map(back));
    let ready = async {
        cluster.controller.wait_ready().await?;
        anyhow::Ok(begin.elapsed())
    };
    let both = async { futures::try_join!(all, ready) };
    let (all, ready) = tokio::time::timeout(LOST, both)
        .await
        .context("some agents did not come back")??;
    let reviews = cluster.token_reviews().await?;
    let samples: Samples = all.iter().map(|(after, _)| *after).collect();
    let last = samples.max();
    let rate = reviews / last.as_secs_f64();
    Ok(vec![Row {
        what: format!("reconnect of {agents} agents after a kill of the controller"),
        raw: String::new(),
        measured: format!(
            "all after {:.1} s (P50 {:.1}, P99 {:.1}), {} TokenReviews a second",
            last.as_secs_f64(),
            samples.median().as_secs_f64(),
            samples.p99().as_secs_f64(),
            number(rate)
        ),
        goal: format!(
            "≤ {} s, ≤ {} TokenReviews a second",
            GOAL.as_secs(),
            number(REVIEWS)
        ),
        met: Some(last <= GOAL && rate <= REVIEWS),
        note: format!(
            "from its start; it was ready after {:.1} s. Agents are played, each with a TLS connection, \
             a token of its own and an agent's waits; they, the API server and the controller share \
             these cores",
            ready.as_secs_f64()
        ),
    }])
}
