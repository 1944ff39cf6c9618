//! The story of a breaker: in a pool of two nodes one may be out. The second is withheld, until the
//! first is back and a person resets the breaker; then a person holds the first and releases it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use testbed::{Testbed, wait_for};
use tokio::sync::Mutex;

use super::act::{Cue, Person};
use super::sent::SEND;
use super::{Crash, FATAL, Lane, Moment, Outcome};
use crate::machine::SOON;
use crate::monitor::{Monitor, fatal, healthy};
use crate::{KernelLog, nodes};

/// Label of the pool's nodes.
const PAIR: &str = "warden.test/pair";

/// Of the rate. A node that went out in the last story's would keep this one's first from it.
pub(super) const WINDOW: Duration = Duration::from_secs(1);

/// Configuration: the pool of the story, and that of all others.
pub(super) const POOLS: &str = r#"
[[quarantine.circuitBreaker.pools]]
name = "pair"
label = "warden.test/pair"
value = "true"
[[quarantine.circuitBreaker.pools]]
name = "gpu"
label = "nvidia.com/gpu.present"
value = "true"
"#;

impl Lane<'_> {
    /// One run of the story. It proves that a bound holds, that a withheld node is not forgotten,
    /// and that each node goes out and comes back as often as it should, whatever died.
    ///
    /// # Errors
    /// As [`Lane::run`].
    pub async fn run_breaker(&mut self, crash: Crash, moment: Moment) -> anyhow::Result<Outcome> {
        let pair = [
            Mutex::new(self.machine(KernelLog::Off).await?),
            Mutex::new(self.machine(KernelLog::Off).await?),
        ];
        let mut both = Vec::new();
        for machine in &pair {
            let machine = machine.lock().await;
            both.push((machine.name.clone(), machine.monitor.clone()));
        }
        let (cue, person, testbed) = (Cue::default(), Person::of(&self.controller), self.testbed);
        let client = testbed.admin();
        for (name, _) in &both {
            nodes::set_label(&client, name, PAIR, "true").await?;
        }
        let in_pool = || async { Ok((pool(&person).await?["nodes"] == 2).then_some(())) };
        wait_for("a pool of two nodes", SOON, in_pool).await?;
        tokio::time::sleep_until(self.window_over).await;
        let started = Instant::now();
        let run = async {
            let story = Box::pin(tell(testbed, &both, &cue, &person));
            let (retries, amid) = self.side_by_side(crash, moment, &pair, &cue, story).await?;
            self.as_told(&both[0].0, &both[1].0).await?;
            anyhow::Ok(Outcome {
                acknowledged: 4,
                retries,
                amid,
                took: started.elapsed(),
            })
        };
        let outcome = run.await.with_context(|| format!("crash of the {crash}"));
        let outcome = outcome.with_context(|| self.controller.log_tail());
        self.window_over = tokio::time::Instant::now() + WINDOW;
        for machine in &pair {
            machine.lock().await.agent.kill();
        }
        for (name, _) in &both {
            nodes::set_label(&client, name, PAIR, "false").await?;
        }
        if outcome.is_err() {
            self.controller.restart().await?;
        }
        outcome.with_context(|| format!("nodes {} and {}", both[0].0, both[1].0))
    }

    /// What the controller remembers of it.
    async fn as_told(&self, first: &str, second: &str) -> anyhow::Result<()> {
        let out_and_back = ["Applying", "Quarantined", "Releasing", "Closed"];
        let withheld = ["Withheld", "Applying", "Quarantined", "Releasing", "Closed"];
        self.went(
            first,
            &[("Recovered", &out_and_back), ("Recovered", &out_and_back)],
        )
        .await?;
        self.went(second, &[("Recovered", &withheld)]).await?;
        let pool = pool(&Person::of(&self.controller)).await?;
        ensure!(
            pool["out"] == 0 && pool["withheld"] == json!([]) && pool["tripped"] == false,
            "the breaker is left {pool:#}"
        );
        Ok(())
    }

    /// The incidents of a node, oldest first: how each ended and through which states it went.
    async fn went(&self, node: &str, wanted: &[(&str, &[&str])]) -> anyhow::Result<()> {
        let client = self.testbed.admin();
        let node_now = nodes::read(&client, node).await?;
        ensure!(
            !nodes::is_cordoned(&node_now) && nodes::marks(&node_now).is_empty(),
            "something is left on {node}"
        );
        let path = format!("/api/v1/incidents?node={node}");
        let incidents = self.controller.json(&path).await?;
        let mut incidents = incidents
            .as_array()
            .context("incidents are a list")?
            .clone();
        incidents.sort_by_key(|incident| incident["id"].as_str().map(str::to_owned));
        let path = format!("/api/v1/nodes/{node}/timeline");
        let steps = self.controller.json(&path).await?;
        let steps = steps.as_array().context("a timeline is a list")?;
        let mut seen: Vec<(&str, Vec<&str>)> = Vec::new();
        for incident in &incidents {
            let of_it = steps
                .iter()
                .filter(|step| step["incident"] == incident["id"]);
            let mut states: Vec<&str> = of_it.filter_map(|step| step["to"].as_str()).collect();
            states.dedup();
            seen.push((incident["detail"].as_str().unwrap_or_default(), states));
        }
        let wanted: Vec<(&str, Vec<&str>)> = wanted
            .iter()
            .map(|(how, states)| (*how, states.to_vec()))
            .collect();
        ensure!(seen == wanted, "{node} went {seen:?}: {steps:#?}");
        Ok(())
    }
}

/// What the breaker says of the pool.
async fn pool(person: &Person) -> anyhow::Result<Value> {
    let pools = person.json("/api/v1/breaker").await?;
    let pools = pools.as_array().context("pools are a list")?;
    let pair = pools.iter().find(|pool| pool["pool"] == "pair");
    Ok(pair.cloned().unwrap_or_default())
}

/// Answers how many tries beyond the first the sends took.
async fn tell(
    testbed: &Testbed,
    both: &[(String, Monitor)],
    cue: &Cue,
    person: &Person,
) -> anyhow::Result<u32> {
    let client = testbed.admin();
    let [(first, first_says), (second, second_says)] = both else {
        anyhow::bail!("it takes two nodes");
    };
    let (bad, worse) = (fatal(FATAL, "48", "0"), fatal(FATAL, "63", "1"));
    let is_out = nodes::is_cordoned;
    let is_back = |node: &_| !nodes::is_cordoned(node) && nodes::marks(node).is_empty();
    let mut tries = first_says.send(vec![bad.clone()], SEND).await?;
    nodes::wait(&client, first, "out", SOON, is_out).await?;
    tries += second_says.send(vec![worse.clone()], SEND).await?;
    person.sees(second, "Withheld").await?;
    cue.turn().await;
    tries += first_says.send(vec![healthy(&bad)], SEND).await?;
    let node = nodes::wait(&client, first, "back", SOON, is_back).await;
    node?;
    let withheld = nodes::read(&client, second).await?;
    ensure!(is_back(&withheld), "a tripped breaker let {second} go out");
    person.sees(second, "Withheld").await?;
    person
        .asks("/api/v1/breaker/reset", second, "Withheld", "Quarantined")
        .await?;
    nodes::wait(&client, second, "out", SOON, is_out).await?;
    tries += second_says.send(vec![healthy(&worse)], SEND).await?;
    nodes::wait(&client, second, "back", SOON, is_back).await?;
    person.sees(first, "Closed").await?;
    let path = format!("/api/v1/nodes/{first}/hold");
    person.asks(&path, first, "Closed", "Quarantined").await?;
    nodes::wait(&client, first, "held", SOON, is_out).await?;
    let path = format!("/api/v1/nodes/{first}/release");
    person.asks(&path, first, "Quarantined", "Closed").await?;
    nodes::wait(&client, first, "released", SOON, is_back).await?;
    person.sees(second, "Closed").await?;
    Ok(tries - 4)
}
