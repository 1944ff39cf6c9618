//! The node cache on a real watch.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use controller::kubernetes::{self, Kube};
use controller::nodes::{self, NodeCache, Pool, Wanted};
use health_event::NodeName;
use serde_json::json;
use testbed::{Component, wait_for};

use crate::harness::{Cluster, SOON};

struct Watched {
    cache: NodeCache,
    woken: Arc<Mutex<Vec<NodeName>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn watched(cluster: &Cluster) -> Watched {
    let settings = kubernetes::config(Some(&cluster.testbed.kubeconfig()))
        .await
        .unwrap();
    let kube = Kube::new(kubernetes::client(&settings).unwrap());
    let gpu = Pool {
        name: "gpu".into(),
        label: "nvidia.com/gpu.present".into(),
        value: "true".into(),
    };
    let cache = NodeCache::new(vec![gpu], Wanted::ours("p/"));
    let woken: Arc<Mutex<Vec<NodeName>>> = Arc::default();
    let (filled, told) = (cache.clone(), Arc::clone(&woken));
    let task = tokio::spawn(async move {
        nodes::watch::run(&kube, &filled, |node| {
            told.lock().unwrap().push(node.clone());
        })
        .await;
    });
    tokio::time::timeout(SOON, cache.synced()).await.unwrap();
    Watched { cache, woken, task }
}

async fn until(watched: &Watched, what: &str, is: impl Fn(&NodeCache) -> bool) {
    wait_for(what, SOON, || async {
        Ok(is(&watched.cache).then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cache_follows_nodes_pools_and_deletions_and_wakes_once_a_change() {
    let cluster = Cluster::with_nodes(&["n-0", "n-1"]).await;
    let watched = watched(&cluster).await;
    let name = NodeName::new("n-0").unwrap();
    assert_eq!(
        (
            watched.cache.pool_size("gpu"),
            watched.cache.pool_size("other")
        ),
        (2, 0)
    );
    let node = watched.cache.get(&name).unwrap();
    assert_eq!((node.unschedulable, node.taints.is_some()), (None, false));
    assert_eq!(&*node.boot_id, "boot-n-0-0");
    watched.woken.lock().unwrap().clear();
    let change = json!({ "metadata": { "labels": { "nvidia.com/gpu.present": null } },
                         "spec": { "unschedulable": true } });
    cluster.merge("n-0", change).await;
    until(&watched, "the pool to change", |cache| {
        cache.pool_size("other") == 1
    })
    .await;
    assert_eq!(watched.cache.get(&name).unwrap().unschedulable, Some(true));
    assert!(watched.woken.lock().unwrap().contains(&name));
    // What nobody looks at wakes nobody: the wake-ups end although the object changes on.
    until(&watched, "the node controller's taint", |cache| {
        cache.get(&name).unwrap().taints.is_some()
    })
    .await;
    watched.woken.lock().unwrap().clear();
    let before = watched.cache.get(&name).unwrap().resource_version;
    cluster
        .merge(
            "n-0",
            json!({ "metadata": { "labels": { "unwanted": "1" } } }),
        )
        .await;
    until(&watched, "the new version", |cache| {
        cache.get(&name).unwrap().resource_version > before
    })
    .await;
    assert!(!watched.woken.lock().unwrap().contains(&name));
    cluster.delete("n-0").await;
    until(&watched, "the deletion", |cache| cache.get(&name).is_none()).await;
    assert_eq!(
        (watched.cache.len(), watched.cache.pool_size("other")),
        (1, 0)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cache_finds_what_happened_while_the_api_server_was_away() {
    let cluster = Cluster::with_nodes(&["n-away", "n-gone"]).await;
    let watched = watched(&cluster).await;
    cluster.testbed.stop(Component::ApiServer).await;
    cluster.start_api_server().await;
    cluster.delete("n-gone").await;
    cluster
        .merge("n-away", json!({ "spec": { "unschedulable": true } }))
        .await;
    let (away, gone) = (
        NodeName::new("n-away").unwrap(),
        NodeName::new("n-gone").unwrap(),
    );
    until(&watched, "the cordon", |cache| {
        cache.get(&away).unwrap().unschedulable == Some(true)
    })
    .await;
    until(&watched, "the deletion", |cache| cache.get(&gone).is_none()).await;
    tokio::time::timeout(Duration::from_secs(1), watched.cache.synced())
        .await
        .unwrap();
}
