//! A node that is deleted, in each stage of the loop.

use e2e::machine::SOON;
use testbed::wait_for;

use super::stages::in_each_stage;

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_deleted_in_each_stage_ends_its_incident_and_takes_its_order_along() {
    in_each_stage("w-gone", async |at, stage, held| {
        at.machine.agent.kill();
        at.turn.delete(at.name()).await;
        let incidents = format!("/api/v1/incidents?node={}", at.name());
        wait_for("the end of its incident", SOON, || async {
            let all = at.controller.json(&incidents).await?;
            let over = all[0]["state"] == "Closed" && all[0]["detail"] == "NodeDeleted";
            anyhow::ensure!(
                over && all.as_array().is_some_and(|a| a.len() == 1),
                "{all:#}"
            );
            Ok(Some(()))
        })
        .await
        .unwrap();
        if let Some(held) = held {
            held.go();
            at.made().await;
        }
        at.without_orders().await;
        assert_eq!(at.signals(), stage.signals(), "{stage:?}");
    })
    .await;
}
