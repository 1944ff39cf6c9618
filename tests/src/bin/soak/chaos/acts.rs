//! What happens to the programs: each act is over, and its outcome known, when the next begins.

use std::fmt;
use std::time::Duration;

use e2e::machine::SOON;
use e2e::random::Random;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::ListParams;
use serde_json::json;
use testbed::{Component, wait_for};

use super::Chaos;

/// Longest time for which something is away.
const AWAY: Duration = Duration::from_secs(6);

/// One act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// An agent dies and is started again at once.
    AgentKilled,
    /// Five do.
    AgentsKilled,
    /// An agent dies and is away for a while.
    AgentAway,
    /// The controller dies.
    ControllerKilled,
    /// It dies, and things happen to nodes before it is started again.
    ControllerAway,
    /// It is stopped in order.
    ControllerStopped,
    /// The API server dies and is away for a while.
    ApiServerKilled,
    /// etcd does.
    EtcdKilled,
    /// API server and controller die together.
    BothKilled,
    /// A person resets the breaker.
    BreakerReset,
    /// Something happens to some nodes.
    Nodes,
}

/// How often each comes, of 100; the rest happens to nodes.
const WEIGHTS: [(Act, usize); 10] = [
    (Act::AgentKilled, 11),
    (Act::AgentsKilled, 3),
    (Act::AgentAway, 3),
    (Act::ControllerKilled, 6),
    (Act::ControllerAway, 5),
    (Act::ControllerStopped, 2),
    (Act::ApiServerKilled, 3),
    (Act::EtcdKilled, 2),
    (Act::BothKilled, 2),
    (Act::BreakerReset, 6),
];

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl Act {
    pub(crate) fn draw(random: &mut Random) -> Self {
        let mut at = random.below(100);
        for (act, weight) in WEIGHTS {
            if at < weight {
                return act;
            }
            at -= weight;
        }
        Self::Nodes
    }
}

impl Chaos {
    /// Does it to what is drawn; answers what was done.
    pub(crate) async fn act(&mut self, act: Act) -> anyhow::Result<String> {
        match act {
            Act::AgentKilled => self.kill_agents(1, false).await,
            Act::AgentsKilled => self.kill_agents(5, false).await,
            Act::AgentAway => self.kill_agents(1, true).await,
            Act::ControllerKilled => {
                self.controller.kill();
                self.controller.restart().await?;
                Ok(String::new())
            }
            Act::ControllerAway => self.controller_away().await,
            Act::ControllerStopped => {
                self.controller.stop()?;
                self.controller.restart().await?;
                Ok(String::new())
            }
            Act::ApiServerKilled => self.api_server().await,
            Act::EtcdKilled => self.etcd().await,
            Act::BothKilled => {
                self.controller.kill();
                let away = self.api_server().await?;
                self.controller.restart().await?;
                Ok(away)
            }
            Act::BreakerReset => Ok(self.reset_breaker().await),
            Act::Nodes => self.act_on_nodes(6).await,
        }
    }

    async fn kill_agents(&mut self, count: usize, away: bool) -> anyhow::Result<String> {
        let mut names = Vec::new();
        for _ in 0..count {
            let spot = self.draw();
            let mut machine = spot.machine.lock().await;
            machine.agent.kill();
            if away {
                tokio::time::sleep(self.random.pause(AWAY)).await;
            }
            machine.agent.spawn()?;
            names.push(spot.name.clone());
        }
        Ok(names.join(" "))
    }

    /// People and machines go on while it is away.
    async fn controller_away(&mut self) -> anyhow::Result<String> {
        self.controller.kill();
        let done = self.act_on_nodes(5).await?;
        tokio::time::sleep(self.random.pause(AWAY)).await;
        self.controller.restart().await?;
        Ok(done)
    }

    async fn api_server(&mut self) -> anyhow::Result<String> {
        self.testbed.kill(Component::ApiServer);
        let away = self.random.pause(AWAY);
        tokio::time::sleep(away).await;
        self.testbed.start_component(Component::ApiServer).await?;
        self.followers().await?;
        Ok(format!("away for {:.1} s", away.as_secs_f64()))
    }

    async fn etcd(&mut self) -> anyhow::Result<String> {
        self.testbed.kill(Component::Etcd);
        let away = self.random.pause(AWAY / 2);
        tokio::time::sleep(away).await;
        self.testbed.start_component(Component::Etcd).await?;
        let nodes: Api<Node> = Api::all(self.testbed.admin());
        wait_for("the API server to find etcd again", SOON, || async {
            nodes.list_metadata(&ListParams::default()).await?;
            Ok(Some(()))
        })
        .await?;
        self.followers().await?;
        Ok(format!("away for {:.1} s", away.as_secs_f64()))
    }

    /// They would notice the outage in half a minute; they are not what is tested.
    async fn followers(&self) -> anyhow::Result<()> {
        self.testbed.restart(Component::ControllerManager).await?;
        self.testbed.restart(Component::Kwok).await
    }

    /// Resets it for all pools; answers what became of it.
    pub(crate) async fn reset_breaker(&mut self) -> String {
        if !self.controller.is_running() {
            return "the controller is away".to_owned();
        }
        let path = "/api/v1/breaker/reset";
        match self.controller.post(path, &json!({})).await {
            Ok((status, _)) => status.to_string(),
            Err(error) => format!("{error:#}"),
        }
    }
}
