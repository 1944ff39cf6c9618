//! Repairs that were switched on over nodes that are out.

use health_event::RecommendedAction;
use jiff::SignedDuration;

use super::kit::{Case, config, fault, install};
use crate::harness::{Cluster, Controller};

/// Length of a window.
const WINDOW: SignedDuration = SignedDuration::from_secs(6);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repairs_switched_on_over_nodes_that_are_out_go_one_by_one_the_oldest_first() {
    // By name the youngest would be the first.
    let waiting = ["f-turn-c", "f-turn-b", "f-turn-a"];
    let nodes = [waiting[0], waiting[1], waiting[2], "f-turn-new"];
    let cluster = Cluster::with_nodes(&nodes).await;
    install(&cluster).await;
    let breaker = "enabled = false\n    duration = \"6s\"";
    let dry = config("dry_run = true")
        .replace("enabled = false\n    [[q", &format!("{breaker}\n    [[q"));
    assert!(dry.contains("duration"), "{dry}");
    let case = Case::start_as(&cluster, waiting[0], &dry).await;
    for node in waiting {
        let event = fault(node, "0", RecommendedAction::RestartBm);
        case.controller.append(event).await;
        case.of(node).until("Planned").await;
    }
    let (folder, node) = (case.folder, case.node);
    case.controller.kill().await;
    let text = dry.replace("dry_run = true", "").replace(
        "without_drain = true\nfirst_action_delay = \"0s\"",
        "without_drain = true\nfirst_action_delay = \"3s\"",
    );
    let controller = Controller::start_with(&cluster, folder.path(), &text).await;
    let case = Case {
        cluster: &cluster,
        controller,
        node,
        folder,
    };
    case.of(waiting[0]).until("Running").await;
    assert_eq!(
        case.of(waiting[2]).incident().repair.map(|r| r.attempt),
        Some(None)
    );
    // What comes after the delay does not queue behind them.
    let event = fault(nodes[3], "0", RecommendedAction::RestartBm);
    case.controller.append(event).await;
    let mut ordered = Vec::new();
    for node in nodes {
        let attempt = case.of(node).until("Running").await.attempt.unwrap();
        ordered.push(attempt.requested_at);
    }
    let [first, second, third, new] = ordered[..] else {
        panic!("{ordered:?}");
    };
    assert!(second.duration_since(first) >= WINDOW, "{ordered:?}");
    assert!(third.duration_since(second) >= WINDOW, "{ordered:?}");
    assert!(new < third, "{ordered:?}");
}
