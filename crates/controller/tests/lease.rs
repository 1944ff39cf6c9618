//! One leader at a time.

use std::time::Duration;

use controller::kubernetes::{self, Kube};
use controller::lease::{Lease, Settings};
use controller::stop;
use tokio::time::Instant;

use crate::harness::{Cluster, SOON};

async fn kube(cluster: &Cluster) -> Kube {
    let settings = kubernetes::config(Some(&cluster.testbed.kubeconfig()))
        .await
        .unwrap();
    Kube::new(kubernetes::client(&settings).unwrap())
}

fn settings(name: &str, identity: &str) -> Settings {
    Settings {
        namespace: "default".to_owned(),
        name: name.to_owned(),
        identity: identity.to_owned(),
        duration: Duration::from_secs(3),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_controller_waits_until_the_first_gives_the_lease_back() {
    let cluster = Cluster::with_nodes(&[]).await;
    let (stopper, stop) = stop::channel();
    let first = Lease::acquire(kube(&cluster).await, settings("l-back", "a"), &stop)
        .await
        .unwrap();
    let leadership = first.leadership();
    assert!(
        !leadership.may_do_irreversible(),
        "the one before may still be writing"
    );
    let running = tokio::spawn(first.run(stop.clone()));
    let (_other, other_stop) = stop::channel();
    let second = Lease::acquire(kube(&cluster).await, settings("l-back", "b"), &other_stop);
    tokio::pin!(second);
    // Longer than the lease: it is renewed meanwhile.
    let early = tokio::time::timeout(Duration::from_secs(5), &mut second).await;
    assert!(early.is_err(), "two lead");
    assert!(leadership.write_deadline(SOON).is_some() && leadership.may_do_irreversible());
    stopper.stop();
    running.await.unwrap().unwrap();
    assert!(leadership.write_deadline(SOON).is_none());
    let second = tokio::time::timeout(SOON, second).await.unwrap().unwrap();
    assert!(second.leadership().fencing() > leadership.fencing());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_cannot_renew_stops_writing_before_its_successor_starts() {
    let cluster = Cluster::with_nodes(&[]).await;
    let (_stopper, stop) = stop::channel();
    let first = Lease::acquire(kube(&cluster).await, settings("l-lost", "a"), &stop)
        .await
        .unwrap();
    let leadership = first.leadership();
    let taken = Instant::now();
    // It never renews, as one that hangs would.
    let second = Lease::acquire(kube(&cluster).await, settings("l-lost", "b"), &stop)
        .await
        .unwrap();
    assert!(taken.elapsed() >= Duration::from_secs(3));
    assert!(leadership.write_deadline(SOON).is_none());
    // And when it comes back, it finds that it is over.
    let lost = first.run(stop.clone()).await.unwrap_err();
    assert_eq!(lost.code(), "lease_lost");
    assert_eq!(second.leadership().fencing(), leadership.fencing() + 1);
    let bound = second.leadership().write_deadline(SOON).unwrap();
    assert!(
        bound < Instant::now() + Duration::from_secs(3),
        "a write is bounded by the lease"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_namespace_is_named_with_what_to_do() {
    let cluster = Cluster::with_nodes(&[]).await;
    let (_stopper, stop) = stop::channel();
    let nowhere = Settings {
        namespace: "nowhere".to_owned(),
        ..settings("l-nowhere", "a")
    };
    let refused = Lease::acquire(kube(&cluster).await, nowhere, &stop)
        .await
        .unwrap_err();
    assert_eq!(refused.code(), "no_namespace");
    let text = refused.to_string();
    assert!(text.contains("kubectl create namespace nowhere"), "{text}");
}
