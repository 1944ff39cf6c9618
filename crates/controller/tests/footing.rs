//! A store that loses what it stands on while the controller runs.

use crate::harness::Cluster;
use crate::process::{Program, Sender, config, numbered};

const LOCAL: &[&str] = &["--insecure-local"];

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_store_acknowledges_nothing_more_ends_the_process_and_is_made_anew() {
    let cluster = Cluster::with_nodes(&["f-gone"]).await;
    cluster.testbed.ensure_namespace("warden").await.unwrap();
    let kubeconfig = cluster.testbed.kubeconfig();
    let mut program = Program::start(&kubeconfig, "", LOCAL);
    program.up().await;
    let sender = Sender::new(program.plain().await, None);
    sender.send(vec![numbered("f-gone", 1)]).await.unwrap();
    std::fs::remove_dir_all(program.store()).unwrap();
    let refused = sender.send(vec![numbered("f-gone", 2)]).await.unwrap_err();
    // Also where the process has ended already.
    assert_eq!(refused.code(), tonic::Code::Unavailable, "{refused}");
    let ended = program.ended().await;
    assert!(!ended.success());
    let log = program.log();
    let last = log.lines().find(|line| line.contains("store ended: "));
    let last = last.unwrap_or_else(|| panic!("{log}"));
    for part in ["store.db was removed or replaced", "makes a new store"] {
        assert!(last.contains(part), "{last}");
    }
    let program = Program::start_again(program.kill(), &kubeconfig, LOCAL);
    program.said_code("store_new").await;
    program.up().await;
    let sender = Sender::new(program.plain().await, None);
    sender.send(vec![numbered("f-gone", 2)]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn below_the_reserve_page_log_metric_and_status_say_so_and_the_rest_goes_on() {
    let cluster = Cluster::with_nodes(&["f-short"]).await;
    cluster.testbed.ensure_namespace("warden").await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let text = config(folder.path(), "silent", "");
    // No disk has that much free.
    let text = text.replace("[store]\n", "[store]\nreserve = 1_000_000_000_000_000\n");
    std::fs::write(folder.path().join("controller.toml"), text).unwrap();
    let program = Program::start_again(folder, &cluster.testbed.kubeconfig(), LOCAL);
    let line = program.said_code("store_disk_full").await;
    assert_eq!(line["level"], "WARN", "{line}");
    program.up().await;
    let sender = Sender::new(program.plain().await, None);
    for number in 1..4 {
        let refused = sender.send(vec![numbered("f-short", number)]).await;
        assert_eq!(refused.unwrap_err().code(), tonic::Code::Unavailable);
    }
    let says = |text: &str| {
        text.contains("bytes free, 1000000000000000 are kept in reserve")
            && text.contains("enlarge the volume")
    };
    let (status, page) = program.get("/readyz", None).await;
    assert_eq!(status, 200, "the address must stay: reports go on: {page}");
    let part = page.lines().find(|line| line.starts_with("store: "));
    assert!(part.is_some_and(says), "{page}");
    let (_, metrics) = program.get("/metrics", None).await;
    assert!(
        metrics.contains("\nwarden_store_refuses_events 1\n"),
        "{metrics}"
    );
    let token = std::fs::read_to_string(program.store().join("api-token")).unwrap();
    let (status, body) = program.get("/api/v1/status", Some(token.trim())).await;
    assert_eq!(status, 200, "{body}");
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    let parts = body["parts"].as_array().unwrap();
    assert!(
        parts.iter().any(|part| says(part.as_str().unwrap())),
        "{body}"
    );
    let told = program.log().matches("store_disk_full").count();
    assert_eq!(told, 1, "once a change: {}", program.log());
}
