//! Nodes whose faults have healed while a reboot may still come: they are given back when it has come to
//! its end, as the watch over the objects tells, whatever else wakes nobody.

use health_event::RecommendedAction;
use testbed::wait_for;

use super::kit::{Case, fault, name_of};
use crate::harness::{Cluster, SOON, healthy, is_cordoned};

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
