//! One leader at a time.

use std::time::Duration;

use controller::kubernetes::{self, Kube};
use controller::lease::{Lease, Settings};
use controller::stop;
use testbed::{Component, wait_for};
use tokio::time::Instant;

use crate::harness::{Cluster, RULES, SOON, fatal, is_cordoned};
use crate::process::{Program, Sender};

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
        dead: None,
        alive: None,
        shown: None,
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
    let (stopper, stop) = stop::channel();
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
    let leads = second.leadership();
    let renewing = tokio::spawn(second.run(stop.clone()));
    // And when it comes back, it finds that it is over.
    let lost = first.run(stop.clone()).await.unwrap_err();
    assert_eq!(lost.code(), "lease_lost");
    assert_eq!(leads.fencing(), leadership.fencing() + 1);
    let bound = wait_for("the second to have renewed", SOON, || async {
        Ok(leads.write_deadline(SOON))
    })
    .await
    .unwrap();
    assert!(
        bound < Instant::now() + Duration::from_secs(3),
        "a write is bounded by the lease"
    );
    stopper.stop();
    renewing.await.unwrap().unwrap();
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

/// A controller that cordons, with a Lease of 15 s, in a folder of its own.
fn cordoning(cluster: &Cluster) -> Program {
    let folder = tempfile::tempdir().unwrap();
    let rules = RULES.replace("profile = \"cordon\"", "");
    let text = crate::process::config(folder.path(), "cordon", &rules);
    std::fs::write(folder.path().join("controller.toml"), text).unwrap();
    Program::start_again(folder, &cluster.testbed.kubeconfig(), &["--insecure-local"])
}

async fn cordons(cluster: &Cluster, program: &Program, node: &str) {
    let sender = Sender::new(program.plain().await, None);
    let event = wire::datamodels::HealthEvent::from(fatal(node, "Test", "0"));
    sender.send(vec![event]).await.unwrap();
    cluster.until(node, "cordoned", is_cordoned).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_kill_the_next_controller_of_the_same_store_cordons_at_once() {
    let cluster = Cluster::with_nodes(&["l-before", "l-after"]).await;
    cluster.testbed.ensure_namespace("warden").await.unwrap();
    let program = cordoning(&cluster);
    program.up().await;
    cordons(&cluster, &program, "l-before").await;
    let folder = program.kill();

    let started = Instant::now();
    let kubeconfig = cluster.testbed.kubeconfig();
    let program = Program::start_again(folder, &kubeconfig, &["--insecure-local"]);
    program.up().await;
    cordons(&cluster, &program, "l-after").await;
    let took = started.elapsed();
    println!("from the start after a kill to the first cordon: {took:?}");
    assert!(
        took < Duration::from_secs(13),
        "{took:?} with a lease of 15 s"
    );
    program.said_code("lease_inherited").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_must_wait_says_for_whom_until_when_and_why() {
    let cluster = Cluster::with_nodes(&["l-wait"]).await;
    cluster.testbed.ensure_namespace("warden").await.unwrap();
    let program = cordoning(&cluster);
    program.up().await;
    // While the first one lives its store is locked: a second one on the same folder waits.
    let kubeconfig = cluster.testbed.kubeconfig();
    let second = program.second(&kubeconfig, &["--insecure-local"]);
    let line = second.said_code("lease_held").await;
    assert_eq!(line["level"], "WARN", "{line}");
    let why = |line: &serde_json::Value| line["why"].as_str().unwrap().to_owned();
    assert!(why(&line).contains("its process lives"), "{line}");
    assert!(!why(&line).contains("stopping in order"), "{line}");
    let holder = line["holder"].as_str().unwrap();
    assert!(
        line["until"]
            .as_str()
            .is_some_and(|until| until.ends_with('Z')),
        "{line}"
    );
    let (status, page) = second.get("/readyz", None).await;
    assert_eq!(status, 503, "{page}");
    let part = page
        .lines()
        .find(|line| line.starts_with("lease: "))
        .unwrap();
    assert!(part.contains(holder) && part.contains("until"), "{part}");
    assert_eq!(second.get("/healthz", None).await.0, 200);
    drop(second);
    drop(program);
    // A store that came from elsewhere proves nothing of the process there.
    let stranger = cordoning(&cluster);
    let line = stranger.said_code("lease_held").await;
    assert_eq!(line["holder"], holder, "{line}");
    assert!(why(&line).contains("can't be told apart"), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_api_server_it_ends_and_says_who_starts_it_again_and_then_it_waits() {
    let cluster = Cluster::with_nodes(&[]).await;
    cluster.testbed.ensure_namespace("warden").await.unwrap();
    let kubeconfig = cluster.testbed.kubeconfig();
    let folder = tempfile::tempdir().unwrap();
    let text = crate::process::config(folder.path(), "silent", "");
    // What is waited for is that it runs out.
    let text = text.replace("duration = \"15s\"", "duration = \"3s\"");
    std::fs::write(folder.path().join("controller.toml"), text).unwrap();
    let mut program = Program::start_again(folder, &kubeconfig, &["--insecure-local"]);
    program.up().await;
    cluster.testbed.stop(Component::ApiServer).await;
    let ended = program.ended().await;
    assert!(!ended.success());
    let log = program.log();
    let last = log.lines().find(|line| line.contains("lease ended: "));
    let last = last.unwrap_or_else(|| panic!("{log}"));
    for part in [
        "was not renewed within 2.7 s",
        "this process ends now",
        "The kubelet",
        "agents keep their events",
    ] {
        assert!(last.contains(part), "{part}: {last}");
    }
    assert!(!last.contains("tried again"), "{last}");
    let folder = program.kill();
    let again = Program::start_again(folder, &kubeconfig, &["--insecure-local"]);
    again.said_code("lease_unreadable").await;
    assert_eq!(again.get("/healthz", None).await.0, 200);
    cluster.start_api_server().await;
    again.up().await;
}
