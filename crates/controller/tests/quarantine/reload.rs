//! Rule sets that change in the file of a running process, and over a restart.

use serde_json::{Value, json};
use testbed::wait_for;

use crate::harness::{Cluster, SOON, is_cordoned};
use crate::process::{Program, Sender, numbered};

/// The breaker lets half of the nodes go.
const HEAD: &str = "[quarantine]\nfirst_action_delay = \"0s\"\n";

fn rule_set(name: &str, expression: &str) -> String {
    format!(
        "[[quarantine.rule-sets]]\nname = {name:?}\n[[quarantine.rule-sets.match.all]]\nkind = \
         \"HealthEvent\"\nexpression = '''event.checkName == {expression:?}'''\n"
    )
}

fn cordons(name: &str, check: &str) -> String {
    rule_set(name, check) + "[quarantine.rule-sets.cordon]\nshouldCordon = true\n"
}

fn start(cluster: &Cluster, rules: &str) -> Program {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = cluster.testbed.kubeconfig();
    Program::start_as("cordon", folder, &kubeconfig, rules, &["--insecure-local"])
}

async fn say(program: &Program, node: &str, number: u64, check: &str) {
    let mut event = numbered(node, number);
    event.check_name = check.into();
    // No shipped rule set is about it.
    event.component_class = "Test".into();
    let sender = Sender::new(program.plain().await, None);
    sender.send(vec![event]).await.unwrap();
}

async fn status(program: &Program) -> Value {
    let token = std::fs::read_to_string(program.store().join("api-token")).unwrap();
    let (_, body) = program.get("/api/v1/status", Some(token.trim())).await;
    serde_json::from_str(&body).unwrap()
}

async fn until_config(program: &Program, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    wait_for(what.to_owned(), SOON * 2, || async {
        let config = status(program).await["config"].clone();
        anyhow::ensure!(is(&config), "{config:#}");
        Ok(Some(config))
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_rule_sets_decide_without_a_restart_and_a_bad_file_changes_nothing() {
    let cluster = Cluster::with_nodes(&["r-first", "r-second", "r-third"]).await;
    cluster.testbed.ensure_namespace("warden").await.unwrap();
    let zone = json!({ "metadata": { "labels": { "zone": "b" } } });
    cluster.merge("r-second", zone).await;
    let before = format!("{HEAD}{}", cordons("first", "First"));
    let program = start(&cluster, &before);
    program.up().await;
    say(&program, "r-first", 1, "First").await;
    say(&program, "r-second", 2, "Second").await;
    cluster.until("r-first", "out", is_cordoned).await;
    assert!(!is_cordoned(&cluster.get("r-second").await));

    let bad = format!(
        "{before}{}",
        cordons("second", "Second").replace("==", "=!")
    );
    program.rewrite("cordon", &bad);
    let told = until_config(&program, "the bad file told", |config| {
        config["problem"]["code"] == "config_bad"
    })
    .await;
    let why = told["problem"]["why"].as_str().unwrap();
    assert!(why.contains("quarantine.rule-sets[1]"), "{why}");
    let (_, metrics) = program.get("/metrics", None).await;
    assert!(metrics.contains("warden_config_refused 1"));
    assert!(is_cordoned(&cluster.get("r-first").await));

    // What is no file is not waited for, by the module or by the end of the process.
    program.replace_by_a_pipe();
    let told = until_config(&program, "the pipe told", |config| {
        config["problem"]["code"] == "config_unreadable"
    })
    .await;
    let why = told["problem"]["why"].as_str().unwrap();
    assert!(why.contains("no regular file"), "{why}");

    // It looks at a label that was not kept so far; another key waits for the next start.
    let node_rule = "[[quarantine.rule-sets.match.all]]\nkind = \"Node\"\nexpression = \
                     '''node.metadata.labels['zone'] == 'b' '''\n";
    let second = rule_set("second", "Second")
        + node_rule
        + "[quarantine.rule-sets.cordon]\nshouldCordon = true\n";
    let good = format!("{HEAD}workers = 7\n{}{second}", cordons("first", "First"));
    program.rewrite("cordon", &good);
    cluster.until("r-second", "out", is_cordoned).await;
    let told = until_config(&program, "the good file taken", |config| {
        config["problem"].is_null()
    })
    .await;
    assert_eq!(told["needs_restart"], json!(["quarantine.workers"]));
    program.said_code("node_list_wider").await;

    // A set that is gone gives nothing back, and takes nothing out any more.
    program.rewrite("cordon", &format!("{HEAD}{second}"));
    until_config(&program, "the shorter file taken", |config| {
        config["needs_restart"] == json!([])
    })
    .await;
    program.said_code("rules_changed").await;
    say(&program, "r-third", 3, "First").await;
    cluster
        .until("r-third", "with its condition", |node| {
            crate::harness::condition(node, "First").is_some()
        })
        .await;
    assert!(is_cordoned(&cluster.get("r-first").await));
    assert!(!is_cordoned(&cluster.get("r-third").await));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rule_sets_that_match_more_than_the_breaker_lets_go_are_refused_over_a_restart_too() {
    let nodes = ["r-1", "r-2", "r-3", "r-4"];
    let cluster = Cluster::with_nodes(&nodes).await;
    cluster.testbed.ensure_namespace("warden").await.unwrap();
    let before = format!("{HEAD}{}", cordons("first", "First"));
    let broad = format!("{before}{}", cordons("broad", "Broad"));
    let mut program = start(&cluster, &before);
    program.up().await;
    for (number, node) in (1..).zip(&nodes[..3]) {
        say(&program, node, number, "Broad").await;
    }
    program.rewrite("cordon", &broad);
    let refused = |config: &Value| config["problem"]["code"] == "rules_beyond_breaker";
    let told = until_config(&program, "the broad rules refused", refused).await;
    let why = told["problem"]["why"].as_str().unwrap();
    assert!(
        why.contains("3 nodes of pool gpu")
            && why.contains("\"broad\"")
            && why.contains("lets 2 go"),
        "{why}"
    );
    program.terminate();
    program.ended().await;
    let folder = program.kill();
    let program =
        Program::start_again(folder, &cluster.testbed.kubeconfig(), &["--insecure-local"]);
    program.up().await;
    until_config(&program, "refused after the restart", refused).await;
    // The rules that ran before still do.
    say(&program, "r-4", 4, "First").await;
    cluster.until("r-4", "out", is_cordoned).await;
    for node in &nodes[..3] {
        assert!(!is_cordoned(&cluster.get(node).await), "{node}");
    }

    // One is out by other rules, so one may go: two faults end.
    let sender = Sender::new(program.plain().await, None);
    for (number, node) in (1..).zip(&nodes[..2]) {
        let mut well = numbered(node, number);
        well.check_name = "Broad".into();
        well.component_class = "Test".into();
        (well.is_healthy, well.is_fatal, well.recommended_action) = (true, false, 0);
        well.id = format!("{node}-well");
        let order = format!("boot/01SPOOL/{}", number + 100);
        well.metadata.insert("warden.dev/order".into(), order);
        sender.send(vec![well]).await.unwrap();
    }
    cluster.until("r-3", "out", is_cordoned).await;
    until_config(&program, "the rules taken", |config| {
        config["problem"].is_null()
    })
    .await;
    assert!(!is_cordoned(&cluster.get("r-1").await));
}
