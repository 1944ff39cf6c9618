//! Nodes whose faults have healed while a reboot may still come: they are given back when it has come to
//! its end, as the watch over the objects tells, whatever else wakes nobody.

use health_event::RecommendedAction;
use kube::api::PostParams;
use serde_json::json;
use testbed::wait_for;

use super::kit::{Case, config, fault, install, name_of, objects, uninstall};
use crate::harness::{Cluster, SOON, healthy, is_cordoned};

/// A person's order for the node of the case, which is begun.
async fn begun_by_hand(case: &Case<'_>) {
    let theirs = json!({
        "apiVersion": "janitor.dgxc.nvidia.com/v1alpha1", "kind": "RebootNode",
        "metadata": { "name": "by-hand" },
        "spec": { "nodeName": case.node.as_str(), "force": false },
    });
    let theirs = serde_json::from_value(theirs).unwrap();
    let api = objects(case.cluster);
    api.create(&PostParams::default(), &theirs).await.unwrap();
    case.begun("by-hand").await;
    until_begun(case, "by-hand").await;
}

/// Waits until the watch has shown that the object is begun.
async fn until_begun(case: &Case<'_>, name: &str) {
    wait_for(format!("{name} to be seen begun"), SOON, || async {
        let seen = case.controller.context.reboots.get(name);
        Ok(seen.filter(|o| o.status.start_time.is_some()).map(drop))
    })
    .await
    .unwrap();
}

async fn is_kept(case: &Case<'_>) {
    let node = case.node.as_str();
    assert_eq!(case.incident().quarantine.as_str(), "Quarantined");
    assert!(is_cordoned(&case.cluster.get(node).await));
}

async fn until_given_back(case: &Case<'_>) {
    let node = case.node.as_str();
    let closed = case.controller.until_closed(node).await;
    assert_eq!(closed, "Closed(Recovered)");
    assert!(!is_cordoned(&case.cluster.get(node).await));
}

/// The incident waits for its attempt no more, and yet the machine may go down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_given_back_when_the_reboot_ends_whose_attempt_was_given_up() {
    let cluster = Cluster::with_nodes(&["f-given-up"]).await;
    let short = "[remediation.remediationActions.RESTART_BM]\ndeadline = '5s'";
    let case = Case::start(&cluster, "f-given-up", short).await;
    let event = fault("f-given-up", "0", RecommendedAction::RestartBm);
    case.controller.append(event.clone()).await;
    case.until("Running").await;
    let object = case.only().await;
    case.begun(name_of(&object)).await;
    until_begun(&case, name_of(&object)).await;
    case.controller.append(healthy(&event)).await;
    wait_for("the attempt to be given up", SOON, || async {
        Ok((case.causes("Failed").len() == 1).then_some(()))
    })
    .await
    .unwrap();
    // Another look at it, now that the incident has no repair under way.
    let well = healthy(&fault("f-given-up", "1", RecommendedAction::RestartBm));
    case.controller.decided(well).await;
    is_kept(&case).await;
    case.failed(name_of(&object)).await;
    until_given_back(&case).await;
    assert_eq!(case.objects().await.len(), 1, "nothing more was ordered");
}

/// Nothing was ever ordered for it: the objects came to be known after the plan, with a person's among them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_given_back_when_a_persons_reboot_ends_whose_definition_came_after_the_plan() {
    let cluster = Cluster::with_nodes(&["f-came"]).await;
    install(&cluster).await;
    uninstall(&cluster).await;
    let case = Case::start_as(&cluster, "f-came", &config("")).await;
    let event = fault("f-came", "0", RecommendedAction::RestartBm);
    case.controller.append(event.clone()).await;
    case.until_blocked("no_definition").await;
    // Paused, so that nothing is ordered in the moment in which it could be.
    let pause = json!({ "metadata": { "annotations": { "warden.dev/pause": "by a person" } } });
    cluster.merge("f-came", pause).await;
    case.until_blocked("paused").await;
    assert!(!case.controller.context.reboots.are_defined());
    install(&cluster).await;
    begun_by_hand(&case).await;
    case.controller.decided(healthy(&event)).await;
    is_kept(&case).await;
    case.done("by-hand").await;
    until_given_back(&case).await;
    assert_eq!(case.objects().await.len(), 1, "nothing was ordered");
}
