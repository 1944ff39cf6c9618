//! Compares what was acknowledged with what is stored, counted, told and left on the node.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::{Api, Client};
use serde_json::Value;
use testbed::wait_for;

use super::sent::Sent;
use super::{DISTINCT, FLICKERING, Lane, REPEATED};
use crate::machine::{Machine, SOON, events};
use crate::monitor::GPU_MONITOR;
use crate::nodes;

impl Lane<'_> {
    /// Compares what was acknowledged with what is stored, and looks at the node.
    pub(super) async fn check(&self, machine: &Machine, sent: &Sent) -> anyhow::Result<()> {
        let node = &machine.name;
        let client = self.testbed.admin();
        let released = |node: &_| !nodes::is_cordoned(node) && nodes::marks(node).is_empty();
        nodes::wait(&client, node, "released", SOON, released)
            .await
            .with_context(|| self.controller.log_tail())?;
        let repeats = sent.of(REPEATED);
        let what = format_args!("all that {node} acknowledged to be stored").to_string();
        let looked = wait_for(what, SOON, || async {
            let count = self.count_of(node, REPEATED).await?;
            let stored = self.messages(node).await?;
            let missing: Vec<&str> = sent
                .contents()
                .filter(|m| !stored.contains_key(*m))
                .collect();
            ensure!(
                missing.is_empty() && count >= repeats,
                "{} of {} acknowledged contents are missing, as {:?}; of {repeats} repeats {count} \
                 are counted",
                missing.len(),
                sent.contents().count(),
                missing.first()
            );
            Ok(Some((count, stored)))
        })
        .await;
        let (count, stored) = looked.with_context(|| machine.agent.log_tail())?;
        ensure!(
            count == repeats,
            "{repeats} repeats were acknowledged, and {count} are counted"
        );
        let (distinct, count) = (sent.of(DISTINCT), self.count_of(node, DISTINCT).await?);
        ensure!(
            count == distinct,
            "{distinct} distinct events were acknowledged, and {count} are counted"
        );
        for (message, seqs) in &stored {
            ensure!(
                seqs.len() == 1,
                "{message:?} is stored {} times",
                seqs.len()
            );
        }
        let order: Vec<u64> = sent.contents().map(|message| stored[message][0]).collect();
        ensure!(
            order.is_sorted(),
            "stored in another order than sent: {order:?}"
        );
        self.told(node, sent).await?;
        self.once(node).await
    }

    /// What people read of it in Kubernetes' own Events: each telling that was stored counts once.
    async fn told(&self, node: &str, sent: &Sent) -> anyhow::Result<()> {
        let (distinct, flickers) = (sent.of(DISTINCT), sent.flickers);
        let client = self.testbed.admin();
        wait_for("what was stored to be told once", SOON, || async {
            let of_distinct = counts(&client, node, DISTINCT).await?;
            ensure!(
                of_distinct.len() as u64 == distinct && of_distinct.iter().all(|count| *count == 1),
                "of {distinct} distinct warnings there are Events with counts {of_distinct:?}"
            );
            let of_flicker = counts(&client, node, FLICKERING).await?;
            ensure!(
                of_flicker == [flickers],
                "of a warning given {flickers} times there are Events with counts {of_flicker:?}"
            );
            Ok(Some(()))
        })
        .await
        .with_context(|| self.controller.log_tail())
    }

    /// The stored events of our checks: message and positions.
    async fn messages(&self, node: &str) -> anyhow::Result<BTreeMap<String, Vec<u64>>> {
        let mut messages: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for event in events(&self.controller, node).await? {
            let is_ours = event["agent"] == GPU_MONITOR;
            if is_ours && event["check"] != FLICKERING {
                let message = event["message"].as_str().unwrap_or_default().to_owned();
                messages.entry(message).or_default().push(seq(&event));
            }
        }
        Ok(messages)
    }

    pub(super) async fn count_of(&self, node: &str, check: &str) -> anyhow::Result<u64> {
        let shown = self
            .controller
            .json(&format!("/api/v1/nodes/{node}"))
            .await?;
        let faults = shown["faults"].as_array().context("faults are a list")?;
        let counts = faults.iter().filter(|fault| fault["check"] == check);
        Ok(counts.filter_map(|fault| fault["count"].as_u64()).sum())
    }

    /// Taken out once, given back once, and over.
    async fn once(&self, node: &str) -> anyhow::Result<()> {
        let path = format!("/api/v1/incidents?node={node}");
        let closed = wait_for("the incident to close", SOON, || async {
            let incidents = self.controller.json(&path).await?;
            let all = incidents.as_array().context("incidents are a list")?;
            Ok(all
                .iter()
                .all(|i| i["state"] == "Closed")
                .then(|| all.clone()))
        })
        .await?;
        ensure!(
            closed.len() == 1,
            "{} incidents instead of one: {closed:#?}",
            closed.len()
        );
        ensure!(closed[0]["detail"] == "Recovered", "{:#}", closed[0]);
        let steps = self
            .controller
            .json(&format!("/api/v1/nodes/{node}/timeline"))
            .await?;
        let mut states: Vec<&str> = steps
            .as_array()
            .context("a timeline is a list")?
            .iter()
            .filter_map(|step| step["to"].as_str())
            .collect();
        states.dedup();
        let wanted = ["Applying", "Quarantined", "Releasing", "Closed"];
        ensure!(states == wanted, "the incident went {states:?}");
        Ok(())
    }
}

/// Counts of the core/v1 Events of one check about a node.
pub(super) async fn counts(client: &Client, node: &str, check: &str) -> anyhow::Result<Vec<u64>> {
    let api: Api<Event> = Api::namespaced(client.clone(), "default");
    let of_check = format!("involvedObject.name={node},type={check}");
    let list = api.list(&ListParams::default().fields(&of_check)).await?;
    let counts = list
        .iter()
        .map(|e| u64::try_from(e.count.unwrap_or_default()));
    Ok(counts.collect::<Result<_, _>>()?)
}

fn seq(event: &Value) -> u64 {
    event["seq"].as_u64().unwrap_or_default()
}
