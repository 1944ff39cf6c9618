//! What `/metrics` says after things that happened, exactly.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use testbed::wait_for;
use wire::datamodels::HealthEvent;

use crate::harness::{
    Cluster, SOON, condition, fatal, healthy, is_cordoned, is_marked, taint_keys,
};
use crate::process::{Program, Sender};

/// As a sender puts it on the wire.
fn sent(event: health_event::HealthEvent) -> Vec<HealthEvent> {
    vec![HealthEvent::from(event)]
}

/// The page's series of counters, and of histograms their counts, without those of `ignored`.
fn counted(page: &str, ignored: &[&str]) -> Vec<String> {
    let is_counted = |line: &&str| {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        (name.ends_with("_total") || name.ends_with("_count"))
            && !line.starts_with('#')
            && !line.ends_with(" 0")
            && !ignored.contains(&name)
    };
    let mut lines: Vec<String> = page.lines().filter(is_counted).map(str::to_owned).collect();
    lines.sort();
    lines
}

#[tokio::test(flavor = "multi_thread")]
async fn an_incident_of_two_faults_moves_each_counter_by_what_happened() {
    let cluster = Cluster::with_nodes(&["m-two"]).await;
    cluster.testbed.ensure_namespace("warden").await.unwrap();
    let kubeconfig = cluster.testbed.kubeconfig();
    let program = Program::start_cordoning(&kubeconfig, "", &["--insecure-local"]);
    program.up().await;
    let sender = Sender::new(program.plain().await, None);
    let of_cordon = fatal("m-two", "Test", "0");
    let of_taint = fatal("m-two", "Taint", "1");
    let is = |kind: &'static str, status: &'static str| {
        move |node: &Node| condition(node, kind).is_some_and(|c| c.0 == status)
    };
    let tainted = |node: &Node| taint_keys(node).contains(&"warden.test/taint");

    sender.send(sent(of_cordon.clone())).await.unwrap();
    let out = |node: &Node| is_cordoned(node) && is("Test", "True")(node);
    cluster.until("m-two", "cordoned", out).await;
    sender.send(sent(of_taint.clone())).await.unwrap();
    let both = |node: &Node| tainted(node) && is("Taint", "True")(node);
    cluster.until("m-two", "tainted too", both).await;
    // One of the two heals: the node stays out.
    sender.send(sent(healthy(&of_taint))).await.unwrap();
    let one = |node: &Node| !tainted(node) && is("Taint", "False")(node);
    let node = cluster.until("m-two", "without the taint", one).await;
    assert!(is_cordoned(&node) && is_marked(&node));
    sender.send(sent(healthy(&of_cordon))).await.unwrap();
    let back = |node: &Node| !is_cordoned(node) && !is_marked(node) && is("Test", "False")(node);
    cluster.until("m-two", "given back", back).await;

    let want = [
        "fault_quarantine_cordons_applied_total 1",
        "fault_quarantine_cordons_removed_total 1",
        "fault_quarantine_events_received_total 4",
        "fault_quarantine_events_successfully_processed_total 4",
        "fault_quarantine_node_quarantine_duration_seconds_count 1",
        r#"fault_quarantine_node_remediation_duration_seconds_count{recommended_action="NONE"} 2"#,
        r#"fault_quarantine_nodes_quarantined_total{node="m-two"} 1"#,
        r#"fault_quarantine_nodes_unquarantined_total{node="m-two"} 1"#,
        r#"fault_quarantine_taints_applied_total{taint_key="warden.test/taint",taint_effect="NoSchedule"} 1"#,
        r#"fault_quarantine_taints_removed_total{taint_key="warden.test/taint",taint_effect="NoSchedule"} 1"#,
        "k8s_platform_connector_node_condition_update_duration_milliseconds_count 4",
        r#"k8s_platform_connector_node_condition_update_total{status="success"} 4"#,
        "platform_connector_health_events_received_total 4",
        "warden_ingest_acknowledge_seconds_count 4",
        "warden_ingest_stored_total 4",
    ];
    // How often a node is looked at depends on what wakes its worker.
    let by_looks = [
        // A level, in spite of its name.
        "fault_quarantine_event_backlog_count",
        "fault_quarantine_event_handling_duration_seconds_count",
        "fault_quarantine_ruleset_evaluations_total",
    ];
    wait_for("the counters", SOON, || async {
        let (_, page) = program.get("/metrics", None).await;
        let counted = counted(&page, &by_looks);
        anyhow::ensure!(counted == want, "{counted:#?}");
        Ok(Some(()))
    })
    .await
    .unwrap();
    let (_, page) = program.get("/metrics", None).await;
    for level in [
        r#"fault_quarantine_current_quarantined_nodes{node="m-two"} 0"#,
        r#"fault_quarantine_breaker_state{state="CLOSED"} 1"#,
        r#"warden_nodes_withheld{pool="gpu"} 0"#,
        "warden_leader 1",
    ] {
        assert!(page.lines().any(|line| line == level), "{level}\n{page}");
    }
    for (text, times) in [("node taken out of service", 1), ("node given back", 1)] {
        assert_eq!(program.log().matches(text).count(), times, "{text}");
    }
}

/// Two looks at what is gone are a quarter of a minute apart (`controller::run::series`).
const TWO_LOOKS: Duration = Duration::from_mins(3);

#[tokio::test(flavor = "multi_thread")]
async fn the_series_of_a_node_go_with_it_and_its_incident() {
    let cluster = Cluster::with_nodes(&["m-goes", "m-stays"]).await;
    cluster.testbed.ensure_namespace("warden").await.unwrap();
    let kubeconfig = cluster.testbed.kubeconfig();
    let program = Program::start_cordoning(&kubeconfig, "", &["--insecure-local"]);
    program.up().await;
    let sender = Sender::new(program.plain().await, None);
    let mut warning = fatal("m-goes", "Warned", "0");
    warning.is_fatal = false;
    sender.send(sent(warning)).await.unwrap();
    for node in ["m-goes", "m-stays"] {
        sender.send(sent(fatal(node, "Test", "0"))).await.unwrap();
        cluster.until(node, "cordoned", is_cordoned).await;
    }
    let of = |page: &str, node: &str| {
        let lines = page.lines().filter(|line| line.contains(node));
        lines.map(str::to_owned).collect::<Vec<String>>()
    };
    let count = r#"fault_quarantine_nodes_quarantined_total{node="m-goes"} 1"#;
    let event = r#"k8s_platform_connector_node_event_operations_total{node_name="m-goes""#;
    wait_for("series of the node", SOON, || async {
        let (_, page) = program.get("/metrics", None).await;
        let of_node = of(&page, "m-goes");
        let has = |text: &str| of_node.iter().any(|line| line.starts_with(text));
        anyhow::ensure!(has(count) && has(event), "{of_node:#?}");
        Ok(Some(()))
    })
    .await
    .unwrap();

    cluster.delete("m-goes").await;
    wait_for("the series to go", TWO_LOOKS, || async {
        let (_, page) = program.get("/metrics", None).await;
        let of_node = of(&page, "m-goes");
        anyhow::ensure!(of_node.is_empty(), "{of_node:#?}");
        Ok(Some(()))
    })
    .await
    .unwrap();
    let (_, page) = program.get("/metrics", None).await;
    let other = r#"fault_quarantine_nodes_quarantined_total{node="m-stays"} 1"#;
    assert!(page.lines().any(|line| line == other), "{page}");
}
