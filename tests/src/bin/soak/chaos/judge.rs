//! What must be so when nothing happens any more, whatever happened before.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use e2e::machine::events;
use e2e::monitor::GPU_MONITOR;
use e2e::nodes;
use health_event::checks;
use k8s_api::IncidentMark;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use serde_json::Value;
use testbed::wait_for;

use super::spot::{DISTINCT, Spot};
use super::{CONTROLLER_USER, Chaos, OUR_TAINT};

/// How long the cluster may take to come to rest: a hold runs out, and a Lease.
const REST: Duration = Duration::from_secs(150);

impl Chaos {
    /// Waits until every node is as its owner, its monitor and Warden's promises want it.
    pub(crate) async fn rest(&self) -> anyhow::Result<()> {
        for spot in &self.spots {
            let what = format_args!("{} to come to rest", spot.name).to_string();
            wait_for(what, REST, || async {
                self.node_at_rest(spot).await?;
                self.accounted(spot).await?;
                Ok(Some(()))
            })
            .await
            .with_context(|| self.told_about(spot))?;
        }
        Ok(())
    }

    async fn node_at_rest(&self, spot: &Spot) -> anyhow::Result<()> {
        let shown = self
            .controller
            .json(&format!("/api/v1/nodes/{}", spot.name))
            .await?;
        let node = nodes::read(&self.testbed.admin(), &spot.name).await?;
        let boot = spot.machine.lock().await.boot_id();
        let agent = &shown["agent"];
        ensure!(
            agent["state"] == "settled" && agent["boot_id"] == boot.as_str(),
            "its agent is not settled in boot {boot}: {agent}"
        );
        let incident = &shown["incidents"][0];
        let state = incident["state"].as_str().unwrap_or("Closed");
        let faults = shown["faults"].as_array().context("faults are a list")?;
        let quarantining: Vec<&Value> = faults.iter().filter(|f| is_quarantining(f)).collect();
        let truth = spot.truth();
        let said: BTreeSet<&str> = quarantining
            .iter()
            .filter(|fault| fault["agent"] == GPU_MONITOR)
            .filter_map(|fault| fault["check"].as_str())
            .collect();
        let asserted: BTreeSet<&str> = truth.open.keys().copied().collect();
        ensure!(
            said == asserted,
            "its monitor asserts {asserted:?}, and open are {said:?}"
        );
        let out = state == "Quarantined";
        ensure!(
            out || matches!(state, "Closed" | "Withheld"),
            "its incident is still {state}"
        );
        if quarantining.is_empty() {
            ensure!(state == "Closed", "nothing is wrong and it is {state}");
        } else {
            // Holds have run out when it rests, and nobody pauses it: only the breaker may keep it.
            ensure!(
                state != "Closed",
                "{} faults want it out and it is not; holds: {}",
                quarantining.len(),
                shown["holds"]
            );
        }
        marks(&node, out)?;
        let cordoned = out && incident["cordon"] == true || truth.cordoned;
        ensure!(
            nodes::is_cordoned(&node) == cordoned,
            "cordoned is {}, and it should be {cordoned}",
            nodes::is_cordoned(&node)
        );
        let foreign: BTreeSet<String> = taints(&node)
            .filter(|key| key.starts_with("foreign.test/"))
            .map(str::to_owned)
            .collect();
        ensure!(
            foreign == truth.taints,
            "it has the taints {foreign:?} of others, and they left {:?}",
            truth.taints
        );
        let ours = taints(&node).any(|key| key == OUR_TAINT);
        ensure!(out || !ours, "our taint is on it without an incident");
        Ok(())
    }

    /// Every acknowledged event is stored once, and in order.
    async fn accounted(&self, spot: &Spot) -> anyhow::Result<()> {
        let stored: Vec<String> = events(&self.controller, &spot.name)
            .await?
            .iter()
            .filter(|event| event["check"] == DISTINCT)
            .map(|event| event["message"].as_str().unwrap_or_default().to_owned())
            .collect();
        let truth = spot.truth();
        if stored == truth.sent {
            return Ok(());
        }
        let mut times: BTreeMap<&str, usize> = BTreeMap::new();
        for message in &stored {
            *times.entry(message).or_default() += 1;
        }
        let missing: Vec<&String> = truth
            .sent
            .iter()
            .filter(|message| !times.contains_key(message.as_str()))
            .collect();
        let twice: Vec<_> = times.iter().filter(|(_, times)| **times > 1).collect();
        anyhow::bail!(
            "{}: {} events were acknowledged and {} are stored; missing {missing:?}, more than \
             once {twice:?}, else in another order",
            spot.name,
            truth.sent.len(),
            stored.len()
        )
    }

    /// No incident was released twice, neither in the record nor at the API server; answers how
    /// many there were.
    pub(crate) async fn one_release_each(&self) -> anyhow::Result<usize> {
        let mut count = 0;
        let mut before = String::new();
        loop {
            let path = format!("/api/v1/incidents?limit=500{before}");
            let page = self.controller.json(&path).await?;
            let page = page.as_array().context("incidents are a list")?;
            for incident in page {
                self.closed_once(incident).await?;
            }
            count += page.len();
            let Some(last) = page.last().filter(|_| page.len() == 500) else {
                break;
            };
            before = format!("&before={}", last["id"].as_str().unwrap_or_default());
        }
        let mut releases: BTreeMap<String, u32> = BTreeMap::new();
        for event in self.testbed.audit_events()? {
            let lifts = |op: &Value| op["op"] == "remove" && op["path"] == "/spec/unschedulable";
            let Some(patch) = event.object.as_ref().and_then(Value::as_array) else {
                continue;
            };
            if event.user == CONTROLLER_USER && event.code == 200 && patch.iter().any(lifts) {
                *releases.entry(incident_of(patch)?).or_default() += 1;
            }
        }
        let twice: Vec<_> = releases.iter().filter(|(_, times)| **times > 1).collect();
        ensure!(
            twice.is_empty(),
            "the cordon was lifted more than once for {twice:?}"
        );
        Ok(count)
    }

    async fn closed_once(&self, incident: &Value) -> anyhow::Result<()> {
        let id = incident["id"].as_str().context("an incident has an id")?;
        ensure!(incident["state"] == "Closed", "still open: {incident:#}");
        let detail = self
            .controller
            .json(&format!("/api/v1/incidents/{id}"))
            .await?;
        let steps = detail["timeline"].as_array().context("a list of steps")?;
        let states: Vec<&str> = steps
            .iter()
            .filter_map(|step| step["to"].as_str())
            .collect();
        let closings = states.iter().filter(|state| **state == "Closed").count();
        ensure!(
            closings == 1 && states.last() == Some(&"Closed"),
            "incident {id} went {states:?}"
        );
        Ok(())
    }

    /// What helps to find out why.
    fn told_about(&self, spot: &Spot) -> String {
        format!(
            "{}: {:?}\nlast acts:\n{}\n{}",
            spot.name,
            spot.truth(),
            self.history(),
            self.controller.log_tail()
        )
    }
}

/// Whether the fault should take its node out.
fn is_quarantining(fault: &Value) -> bool {
    fault["fatal"] == true && (fault["agent"] == GPU_MONITOR || fault["check"] == checks::XID)
}

/// Our marks are there exactly while the node is out by us.
fn marks(node: &Node, out: bool) -> anyhow::Result<()> {
    let marks: Vec<String> = nodes::marks(node)
        .into_iter()
        // A person's, which allows nothing new.
        .filter(|key| key != k8s_api::names::PAUSE.text)
        .collect();
    ensure!(
        out != marks.is_empty(),
        "out is {out}, and its marks are {marks:?}"
    );
    let mark = node.annotations().get(k8s_api::names::INCIDENT.text);
    ensure!(
        out == mark.is_some(),
        "out is {out}, and its incident is {mark:?}"
    );
    Ok(())
}

fn taints(node: &Node) -> impl Iterator<Item = &str> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.into_iter().flatten().map(|taint| taint.key.as_str())
}

/// The incident that a patch is conditional on.
fn incident_of(patch: &[Value]) -> anyhow::Result<String> {
    let place = k8s_api::names::INCIDENT.text.replace('/', "~1");
    let condition = patch.iter().find(|op| {
        op["op"] == "test"
            && op["path"]
                .as_str()
                .is_some_and(|path| path.ends_with(&place))
    });
    let mark = condition.and_then(|op| op["value"].as_str());
    let mark = mark.with_context(|| format!("a release without an incident: {patch:?}"))?;
    // By incident and not by its version: two versions must not both release.
    Ok(IncidentMark::parse(mark)?.incident.to_string())
}
