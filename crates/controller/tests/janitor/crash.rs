//! `kill -9` of the program around every step of a reboot: the provider's record shows one signal at
//! most, and the object ends by what happened to the node.

use testbed::{ProviderOptions, SimProvider};

use super::{condition, end, failed, install, leases, order, section, status, succeeded};
use crate::harness::{Cluster, SOON};
use crate::process::Program;

/// Kills the program at a point, starts it again, and answers the end and the signals.
async fn killed_at(node: &'static str, point: &str) -> ((String, String), usize) {
    let cluster = Cluster::with_nodes(&[node]).await;
    install(&cluster).await;
    let namespace = format!("warden-{node}");
    cluster.testbed.ensure_namespace(&namespace).await.unwrap();
    let provider = SimProvider::start(ProviderOptions::new(cluster.testbed.admin()));
    let provider = provider.await.unwrap();
    let keys = "lock_namespace = \"default\"\ntimeout = \"5s\"\nqueue_timeout = \"30s\"";
    let janitor = section(&provider.address().to_string(), keys);
    let config = format!("[kubernetes]\nnamespace = \"{namespace}\"\n{janitor}");
    let kubeconfig = cluster.testbed.kubeconfig();
    let flags = ["--insecure-local", "--crash-at", point];
    let folder = tempfile::tempdir().unwrap();
    let mut program = Program::start_as("remediate", folder, &kubeconfig, &config, &flags);
    program.up().await;
    order(&cluster, node, node).await;
    program.ended().await;
    let folder = program.kill();
    let program = Program::start_again(folder, &kubeconfig, &["--insecure-local"]);
    let ended = end(&cluster, node).await;
    testbed::wait_for(format!("{point}: no lock is left"), SOON, || async {
        Ok(leases(&cluster)
            .get_opt(node)
            .await?
            .is_none()
            .then_some(()))
    })
    .await
    .unwrap();
    if ended == succeeded() {
        let (sent, _, _) = condition(&status(&cluster, node).await, "SignalSent").unwrap();
        assert_eq!(sent, "True", "{point}");
    }
    drop(program);
    (ended, provider.signals(node))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_before_the_lock_or_the_intent_it_begins_anew() {
    for (node, point) in [
        ("k-lock", "write.node-lock.after"),
        ("k-intent", "janitor.before-intent"),
    ] {
        assert_eq!(killed_at(node, point).await, (succeeded(), 1), "{point}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_between_the_intent_and_the_call_nobody_knows_and_nothing_is_sent() {
    let ended = killed_at("k-before", "janitor.before-send").await;
    assert_eq!(ended, (failed("Timeout"), 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_after_the_call_the_node_tells_and_nothing_is_sent_again() {
    for (node, point) in [
        ("k-after", "janitor.after-send"),
        ("k-status", "write.repair-status.before"),
    ] {
        assert_eq!(killed_at(node, point).await, (succeeded(), 1), "{point}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_after_a_status_or_before_the_unlock_it_goes_on() {
    for (node, point) in [
        ("k-written", "write.repair-status.after"),
        ("k-unlock", "write.node-unlock.before"),
    ] {
        assert_eq!(killed_at(node, point).await, (succeeded(), 1), "{point}");
    }
}
