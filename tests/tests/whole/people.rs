//! A person who uncordons the node, in each stage of the loop.

use e2e::machine::{SOON, until};
use e2e::nodes;
use k8s_api::names;
use k8s_api::reboot_node::RECALLED;
use serde_json::Value;
use testbed::wait_for;

use super::kit::Loop;
use super::stages::{Stage, in_each_stage};

impl Loop {
    /// Takes the cordon off, or puts one on, as a person does.
    pub(super) async fn cordon(&self, cordoned: bool) {
        let client = self.turn.testbed.admin();
        nodes::set_cordon(&client, self.name(), cordoned)
            .await
            .unwrap();
    }

    pub(super) async fn closed_by_hand(&self) {
        let closed = self.until("closed", |i| i["state"] == "Closed").await;
        assert_eq!(closed["detail"], "ManualUncordon", "{closed:#}");
        self.turn
            .node(self.name(), "without marks, and in service", |node| {
                let is_not_ours =
                    |mark: &String| mark.contains("Manually") || mark == names::PAUSE.text;
                !nodes::is_cordoned(node) && nodes::marks(node).iter().all(is_not_ours)
            })
            .await;
    }

    /// The order is deleted, or ends without a signal: whoever sees first that nobody waits for it.
    async fn taken_back(&self) {
        wait_for("the order to be taken back", SOON, || async {
            let orders = self.orders().await;
            let is_recalled = |order: &Value| {
                let conditions = order["status"]["conditions"].as_array();
                let mut conditions = conditions.into_iter().flatten();
                order["status"]["completionTime"].is_string()
                    && conditions.any(|condition| condition["reason"] == RECALLED)
            };
            anyhow::ensure!(orders.iter().all(is_recalled), "{orders:#?}");
            Ok(Some(()))
        })
        .await
        .unwrap();
    }

    /// What a person's uncordon leaves behind in a stage.
    async fn left_by_hand(&mut self, stage: Stage) {
        match stage {
            Stage::Withheld | Stage::Cordoned | Stage::Draining => {
                assert_eq!(self.pods("may-finish").await.len(), 1, "{stage:?}");
                assert!(self.orders().await.is_empty(), "{stage:?}");
            }
            Stage::Failed => {
                assert_eq!(self.pods(&self.kept()).await.len(), 1, "{stage:?}");
                assert!(self.orders().await.is_empty(), "{stage:?}");
            }
            Stage::NeedsOperator | Stage::Planned => {
                assert!(self.orders().await.is_empty(), "{stage:?}");
            }
            Stage::Unknown => {
                self.warned("RepairNotRecalled", &[]).await;
                // What was sent may be done late: the node is in service, and stays.
                self.machine.restart(self.turn.testbed).await.unwrap();
                self.machine.settled(&self.controller).await.unwrap();
                self.turn
                    .node(self.name(), "in service", |node| !nodes::is_cordoned(node))
                    .await;
                assert!(self.orders().await.is_empty(), "{stage:?}");
            }
            Stage::Requested => {
                self.made().await;
                self.taken_back().await;
            }
            Stage::Sent => {
                self.warned("RepairNotRecalled", &[]).await;
                self.rebooted().await;
                self.machine.settled(&self.controller).await.unwrap();
                self.ordered_to_the_end().await;
            }
            Stage::Repaired => {
                self.machine.agent.spawn().unwrap();
                self.machine.settled(&self.controller).await.unwrap();
                self.ordered_to_the_end().await;
            }
        }
    }

    /// The order is carried out, and nothing came after it.
    async fn ordered_to_the_end(&self) {
        wait_for("the end of the order", SOON, || async {
            let orders = self.orders().await;
            let over = |order: &Value| order["status"]["completionTime"].is_string();
            anyhow::ensure!(orders.len() == 1 && over(&orders[0]), "{orders:#?}");
            Ok(Some(()))
        })
        .await
        .unwrap();
        let node = nodes::read(&self.turn.testbed.admin(), self.name()).await;
        assert!(!nodes::is_cordoned(&node.unwrap()), "it stays in service");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_persons_uncordon_ends_each_stage_and_recalls_what_is_not_sent() {
    in_each_stage("w-hand", async |at, stage, held| {
        if stage == Stage::Withheld {
            // Nobody took it out, so there is nothing to take back: it goes on waiting.
            for cordoned in [true, false] {
                at.cordon(cordoned).await;
                let seen = until(&at.controller, at.name(), "seen", |node| {
                    node["object"]["cordoned"] == cordoned
                });
                seen.await.unwrap();
            }
            at.until("withheld", |i| i["state"] == "Withheld").await;
            let node = nodes::read(&at.turn.testbed.admin(), at.name()).await;
            assert!(nodes::marks(&node.unwrap()).is_empty());
        } else {
            at.cordon(false).await;
            at.closed_by_hand().await;
        }
        if let Some(held) = held {
            held.go();
        }
        at.left_by_hand(stage).await;
    })
    .await;
}
