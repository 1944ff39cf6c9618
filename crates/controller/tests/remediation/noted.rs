//! A lost store, and a repair whose object is gone: the node alone names it.

use health_event::RecommendedAction;
use k8s_openapi::api::core::v1::Node;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt as _};
use testbed::wait_for;

use super::kit::{Case, config, fault, name_of, objects};
use crate::harness::{Cluster, Controller, SOON};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_lost_store_a_repair_that_the_node_names_is_not_ordered_again_without_its_object() {
    let cluster = Cluster::with_nodes(&["f-noted"]).await;
    let case = Case::start(&cluster, "f-noted", "").await;
    let event = fault("f-noted", "0", RecommendedAction::RestartBm);
    case.controller.append(event).await;
    case.until("Running").await;
    let first = case.only().await;
    let nodes: Api<Node> = Api::all(cluster.testbed.admin());
    wait_for("the node to name the repair", SOON, || async {
        let node = nodes.get("f-noted").await?;
        let text = node.annotations().get("latestFaultRemediationState");
        Ok(text.filter(|text| text.contains(name_of(&first))).map(drop))
    })
    .await
    .unwrap();
    case.controller.kill().await;
    objects(&cluster)
        .delete(name_of(&first), &DeleteParams::default())
        .await
        .unwrap();
    let empty = tempfile::tempdir().unwrap();
    let controller = Controller::start_with(&cluster, empty.path(), &config("")).await;
    let case = Case {
        cluster: &cluster,
        controller,
        node: case.node,
        folder: empty,
    };
    let attempt = case.until("Unknown").await.attempt.unwrap();
    assert_eq!(attempt.object, name_of(&first));
    // Its signal may have been out: the reboot that comes is its.
    cluster.testbed.reboot("f-noted", "b2").await.unwrap();
    case.until("Succeeded").await;
    assert_eq!(case.objects().await.len(), 0, "nothing was ordered again");
}
