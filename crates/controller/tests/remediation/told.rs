//! What a node says of its repair, and when.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use health_event::RecommendedAction;

use super::STATE;
use super::kit::{Case, fault};
use crate::harness::{Cluster, label};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_says_that_it_is_repaired_once_no_order_is_on_its_way() {
    let cluster = Cluster::with_nodes(&["f-told"]).await;
    let case = Case::start(&cluster, "f-told", "").await;
    let orders = case.controller.context.orders.clone();
    let another = orders.begin();
    // An order is on its way before it is stored.
    let most = Arc::new(AtomicUsize::new(0));
    let (counted, of_commit) = (Arc::clone(&most), orders.clone());
    let store = &case.controller.context.store;
    store.on_commit(Box::new(move |_| {
        counted.fetch_max(of_commit.on_their_way(), Ordering::Relaxed);
    }));
    let event = fault("f-told", "0", RecommendedAction::RestartBm);
    case.controller.append(event).await;
    case.until("Running").await;
    assert_eq!(most.load(Ordering::Relaxed), 2);
    assert_eq!(orders.on_their_way(), 1, "it is answered");
    let says = |node: &_| label(node, STATE) == Some("remediating");
    let node = cluster.get("f-told").await;
    assert!(!says(&node), "another is on its way: {node:?}");
    assert_eq!(case.objects().await.len(), 1);
    drop(another);
    cluster
        .until("f-told", "it to say that it is repaired", says)
        .await;
}
