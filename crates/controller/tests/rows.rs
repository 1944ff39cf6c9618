//! Rows of the reference's acceptance list that need a real node, a restart or the metrics.

use controller::requests::Request;
use health_event::{HealthEvent, NodeName, ProcessingStrategy, RecommendedAction};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use testbed::wait_for;

use crate::harness::{
    Cluster, Controller, RULES, SOON, annotation, condition, fatal, healthy, is_cordoned,
    is_marked, label, metadata, taint_keys,
};
use crate::quarantine::quarantined;

/// The reference's tests' own rule.
const XID_RULE: &str = r#"
    profile = "cordon"
    [quarantine]
    label-prefix = "k8s.nvidia.com/"
    first_action_delay = "0s"
    [quarantine.circuitBreaker]
    enabled = false
    [[quarantine.rule-sets]]
    name = "XID rule"
    [[quarantine.rule-sets.match.any]]
    kind = "HealthEvent"
    expression = "event.checkName == 'GpuXidError' && event.isFatal == true"
    [quarantine.rule-sets.cordon]
    shouldCordon = true
    [quarantine.rule-sets.taint]
    key = "nvidia.com/gpu-xid-error"
    value = "true"
    effect = "NoSchedule"
"#;

const EVENTS: &str = "quarantineHealthEvent";

/// The reference's tests' own event.
fn xid(node: &str, gpu: &str) -> HealthEvent {
    HealthEvent {
        agent: "gpu-health-monitor".to_owned(),
        ..fatal(node, "GpuXidError", gpu)
    }
}

/// The elements of the node's annotation.
fn elements(node: &Node) -> Vec<Value> {
    let text = annotation(node, EVENTS).unwrap_or("[]");
    serde_json::from_str(text).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_114_116_a_fatal_xid_marks_a_clean_node_and_its_recovery_takes_all_off() {
    let cluster = Cluster::with_nodes(&["r-cycle"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start_with(&cluster, folder.path(), XID_RULE).await;
    let fault = xid("r-cycle", "0");
    controller.append(fault.clone()).await;
    let node = cluster.until("r-cycle", "marked", is_marked).await;
    assert!(is_cordoned(&node));
    let event = &elements(&node)[0];
    assert_eq!(event["checkName"], "GpuXidError");
    assert_eq!(event["agent"], "gpu-health-monitor");
    assert_eq!(event["componentClass"], "GPU");
    assert_eq!(
        event["entitiesImpacted"],
        json!([{ "entityType": "GPU", "entityValue": "0" }])
    );
    let applied = annotation(&node, "quarantineHealthEventAppliedTaints").unwrap();
    let applied: Value = serde_json::from_str(applied).unwrap();
    let taint = json!({ "key": "nvidia.com/gpu-xid-error", "value": "true",
                        "effect": "NoSchedule" });
    for (key, value) in taint.as_object().unwrap() {
        assert_eq!(&applied[0][key], value, "{applied}");
    }
    let on_node = node.spec.as_ref().unwrap().taints.iter().flatten();
    let on_node: Vec<Value> = on_node.map(|t| serde_json::to_value(t).unwrap()).collect();
    assert!(on_node.contains(&taint), "{on_node:?}");
    assert_eq!(
        annotation(&node, "quarantineHealthEventIsCordoned"),
        Some("True")
    );
    assert_eq!(
        annotation(&node, "quarantineHealthEventCordonPreExisting"),
        None
    );
    assert_eq!(label(&node, "k8s.nvidia.com/cordon-by"), Some("Warden"));
    // The shipped rule for this agent matches too.
    let reason = label(&node, "k8s.nvidia.com/cordon-reason").unwrap();
    assert!(reason.contains("XID-rule"), "{reason}");
    assert!(label(&node, "k8s.nvidia.com/cordon-timestamp").is_some());
    assert_eq!(
        label(&node, "dgxc.nvidia.com/nvsentinel-state"),
        Some("quarantined")
    );
    controller.until_state("r-cycle", "Quarantined").await;

    controller.append(healthy(&fault)).await;
    assert_eq!(
        controller.until_closed("r-cycle").await,
        "Closed(Recovered)"
    );
    let node = cluster
        .until("r-cycle", "unmarked", |node| !is_marked(node))
        .await;
    assert!(!is_cordoned(&node) && taint_keys(&node).is_empty());
    let (labels, annotations) = metadata(&node);
    let ours = annotations
        .keys()
        .filter(|key| key.starts_with("quarantine"));
    assert_eq!(ours.count(), 0, "{annotations:?}");
    assert_eq!(label(&node, "k8s.nvidia.com/uncordon-by"), Some("Warden"));
    assert!(label(&node, "k8s.nvidia.com/uncordon-timestamp").is_some());
    let left = labels
        .keys()
        .filter(|key| key.starts_with("k8s.nvidia.com/cordon-"));
    assert_eq!(left.count(), 0, "{labels:?}");
    assert_eq!(label(&node, "dgxc.nvidia.com/nvsentinel-state"), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_117_168_169_170_172_173_a_full_cycle_moves_each_metric_once() {
    let cluster = Cluster::with_nodes(&["r-numbers"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start_with(&cluster, folder.path(), XID_RULE).await;
    let fault = HealthEvent {
        generated_at: Some(Timestamp::now() - SignedDuration::from_secs(10)),
        recommended_action: RecommendedAction::RestartBm,
        ..xid("r-numbers", "0")
    };
    controller.append(fault.clone()).await;
    controller.until_state("r-numbers", "Quarantined").await;
    let gauge = r#"fault_quarantine_current_quarantined_nodes{node="r-numbers"}"#;
    controller.until_metric(&format!("{gauge} 1")).await;
    let received = || {
        let page = controller.metrics();
        let name = "fault_quarantine_events_received_total ";
        let line = page.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|count| count.parse::<u64>().ok()).unwrap()
    };
    let before = received();
    controller.append(healthy(&fault)).await;
    assert_eq!(received(), before + 1);
    assert_eq!(
        controller.until_closed("r-numbers").await,
        "Closed(Recovered)"
    );
    controller.until_metric(&format!("{gauge} 0")).await;
    let page = controller.metrics();
    for line in [
        "fault_quarantine_events_successfully_processed_total 2",
        r#"fault_quarantine_nodes_quarantined_total{node="r-numbers"} 1"#,
        r#"fault_quarantine_nodes_unquarantined_total{node="r-numbers"} 1"#,
        "fault_quarantine_cordons_applied_total 1",
        "fault_quarantine_cordons_removed_total 1",
        r#"fault_quarantine_taints_applied_total{taint_key="nvidia.com/gpu-xid-error",taint_effect="NoSchedule"} 1"#,
        r#"fault_quarantine_taints_removed_total{taint_key="nvidia.com/gpu-xid-error",taint_effect="NoSchedule"} 1"#,
        "fault_quarantine_node_quarantine_duration_seconds_count 1",
        r#"fault_quarantine_node_remediation_duration_seconds_count{recommended_action="RESTART_BM"} 1"#,
    ] {
        assert!(page.lines().any(|l| l == line), "{line}\n{page}");
    }
    for sum in [
        "fault_quarantine_node_quarantine_duration_seconds_sum ",
        r#"fault_quarantine_node_remediation_duration_seconds_sum{recommended_action="RESTART_BM"} "#,
    ] {
        let seconds = page
            .lines()
            .find_map(|line| line.strip_prefix(sum))
            .unwrap();
        let seconds: f64 = seconds.parse().unwrap();
        assert!((10.0..60.0).contains(&seconds), "{sum}{seconds}");
    }
    let passed =
        r#"fault_quarantine_ruleset_evaluations_total{ruleset="XID rule",status="passed"}"#;
    assert!(page.contains(passed), "{page}");
    for nothing in [
        r#"recommended_action="NONE""#,
        "remediation_duration_excluding_drain_seconds_count",
        "nodes_manually_uncordoned_total{",
        "nodes_manually_untainted_total{",
        "processing_errors_total{",
    ] {
        assert!(!page.contains(nothing), "{nothing}\n{page}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_008_010_what_is_only_stored_or_analysed_leaves_no_trace() {
    let cluster = Cluster::with_nodes(&["r-stored"]).await;
    let folder = tempfile::tempdir().unwrap();
    let shipped = "profile = \"cordon\"\n[quarantine]\nfirst_action_delay = \"0s\"";
    let controller = Controller::start_with(&cluster, folder.path(), shipped).await;
    let syslog = |gpu: &str, strategy| HealthEvent {
        agent: "syslog-health-monitor".to_owned(),
        strategy,
        ..fatal("r-stored", "SysLogsXIDError", gpu)
    };
    let untouched = |node: &Node| {
        condition(node, "SysLogsXIDError").is_none() && !is_cordoned(node) && !is_marked(node)
    };
    for strategy in [
        ProcessingStrategy::StoreOnly,
        ProcessingStrategy::StoreAndAnalyse,
    ] {
        controller.decided(syslog("0", strategy)).await;
        assert!(untouched(&cluster.get("r-stored").await), "{strategy:?}");
    }
    // The same with effects shows that the rules and the connector were at work.
    controller
        .append(syslog("1", ProcessingStrategy::ExecuteRemediation))
        .await;
    let node = cluster
        .until("r-stored", "out, with a condition", |node| {
            is_cordoned(node) && condition(node, "SysLogsXIDError").is_some()
        })
        .await;
    assert_eq!(elements(&node).len(), 1);
    assert_eq!(
        elements(&node)[0]["entitiesImpacted"][0]["entityValue"],
        "1"
    );
    let (_, message) = condition(&node, "SysLogsXIDError").unwrap();
    assert!(!message.contains("GPU:0"), "{message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_093_124_a_clean_node_stays_as_it_is_when_it_is_released_or_healthy() {
    let cluster = Cluster::with_nodes(&["r-clean"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start_with(&cluster, folder.path(), XID_RULE).await;
    let before = metadata(&cluster.get("r-clean").await);
    controller.decided(healthy(&xid("r-clean", "0"))).await;
    let node = NodeName::new("r-clean").unwrap();
    let release = Request::Release {
        node: node.clone(),
        reason: String::new(),
    };
    let answer = controller
        .requests
        .ask(release, "tester".into())
        .await
        .unwrap();
    assert!(answer.unwrap_err().contains("no open incident"));
    let after = cluster.get("r-clean").await;
    assert!(!is_cordoned(&after) && taint_keys(&after).is_empty());
    // What the connector says of the check's health is no mark.
    let (labels, mut annotations) = metadata(&after);
    annotations.remove("warden.dev/conditions");
    assert_eq!((labels, annotations), before);
    let filter = event_store::IncidentFilter {
        node: Some(node),
        ..event_store::IncidentFilter::default()
    };
    let incidents = controller.context.store.incidents(&filter, 1).unwrap();
    assert!(incidents.is_empty(), "no status: {incidents:?}");
    // The same node is taken out for a real fault.
    quarantined_by_xid(&cluster, &controller, "r-clean", "1").await;
}

/// Takes a node out for an XID of this GPU.
async fn quarantined_by_xid(
    cluster: &Cluster,
    controller: &Controller,
    node: &str,
    gpu: &str,
) -> HealthEvent {
    let fault = xid(node, gpu);
    controller.append(fault.clone()).await;
    cluster.until(node, "marked", is_marked).await;
    controller.until_state(node, "Quarantined").await;
    fault
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_098_a_new_value_takes_the_place_of_the_annotation() {
    let cluster = Cluster::with_nodes(&["r-value"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start_with(&cluster, folder.path(), XID_RULE).await;
    let fault = quarantined_by_xid(&cluster, &controller, "r-value", "0").await;
    let before = annotation(&cluster.get("r-value").await, EVENTS).map(str::to_owned);
    let grown = HealthEvent {
        message: "a later word about the same GPU".to_owned(),
        recommended_action: RecommendedAction::RestartBm,
        ..fault
    };
    controller.append(grown).await;
    let node = cluster
        .until("r-value", "another value", |node| {
            annotation(node, EVENTS).map(str::to_owned) != before
        })
        .await;
    assert_eq!(elements(&node).len(), 1, "the old value is gone");
    assert_eq!(
        elements(&node)[0]["message"],
        "a later word about the same GPU"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_100_a_release_keeps_the_annotations_of_others() {
    let cluster = Cluster::with_nodes(&["r-others"]).await;
    let folder = tempfile::tempdir().unwrap();
    let theirs = json!({ "metadata": { "annotations": { "theirs": "kept" },
                                       "labels": { "theirs": "kept" } } });
    cluster.merge("r-others", theirs).await;
    let controller = Controller::start(&cluster, folder.path()).await;
    // Only a cordon: there is no annotation of applied taints to take off.
    let fault = quarantined(&cluster, &controller, "r-others", "Test").await;
    let applied = "quarantineHealthEventAppliedTaints";
    assert_eq!(annotation(&cluster.get("r-others").await, applied), None);
    controller.append(healthy(&fault)).await;
    let node = cluster
        .until("r-others", "unmarked", |node| !is_marked(node))
        .await;
    assert_eq!(annotation(&node, "theirs"), Some("kept"));
    assert_eq!(label(&node, "theirs"), Some("kept"));
}

/// A node that an older version marked: one object in place of a list.
pub(crate) async fn with_an_older_annotation(cluster: &Cluster, node: &str) {
    let uid = cluster.get(node).await.metadata.uid.unwrap();
    let mark = json!({ "id": "01ARZ3NDEKTSV4RRFFQ69G5FAV", "version": 2, "nodeUID": uid });
    let event = json!({
        "version": 1, "agent": "test-monitor", "componentClass": "GPU", "checkName": "Test",
        "isFatal": true, "message": "an older one", "errorCode": ["79"],
        "entitiesImpacted": [{ "entityType": "GPU", "entityValue": "0" }],
        "generatedTimestamp": { "seconds": 1_765_000_000 }, "nodeName": node,
        "processingStrategy": 1, "id": "68bd4fc9ffa9f5eca91c340c" });
    let marks = json!({
        "warden.dev/incident": mark.to_string(), EVENTS: event.to_string(),
        "quarantineHealthEventIsCordoned": "True" });
    let patch = json!({ "metadata": { "annotations": marks }, "spec": { "unschedulable": true } });
    // That version wrote under our name too: the API server tells whose the cordon is.
    let ours = PatchParams {
        field_manager: Some("warden-controller".to_owned()),
        ..PatchParams::default()
    };
    let patched = cluster.nodes.patch(node, &ours, &Patch::Merge(patch)).await;
    patched.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_128_129_one_object_of_an_older_version_becomes_a_list_and_recovers_part_by_part() {
    let cluster = Cluster::with_nodes(&["r-legacy"]).await;
    let folder = tempfile::tempdir().unwrap();
    with_an_older_annotation(&cluster, "r-legacy").await;
    let controller = Controller::start(&cluster, folder.path()).await;
    controller.until_state("r-legacy", "Quarantined").await;
    let checks = |node: &Node| -> Vec<String> {
        let text = annotation(node, EVENTS).unwrap_or("[]");
        let events = k8s_api::health_events::parse(text).unwrap();
        let mut checks: Vec<String> = events.into_iter().map(|e| e.check_name).collect();
        checks.sort();
        checks
    };
    let added = fatal("r-legacy", "Both", "1");
    controller.append(added.clone()).await;
    let node = cluster
        .until("r-legacy", "both checks", |node| {
            checks(node) == ["Both", "Test"]
        })
        .await;
    assert_eq!(elements(&node).len(), 2, "converted to a list");

    controller
        .append(healthy(&fatal("r-legacy", "Test", "0")))
        .await;
    let node = cluster
        .until("r-legacy", "the new check", |node| checks(node) == ["Both"])
        .await;
    assert!(is_cordoned(&node));
    controller.append(healthy(&added)).await;
    let node = cluster
        .until("r-legacy", "released", |node| !is_marked(node))
        .await;
    assert!(!is_cordoned(&node) && taint_keys(&node).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_154_the_number_of_nodes_that_are_out_is_known_from_the_start() {
    let cluster = Cluster::with_nodes(&["r-gauge", "r-in"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start_with(&cluster, folder.path(), XID_RULE).await;
    quarantined_by_xid(&cluster, &controller, "r-gauge", "0").await;
    controller.kill().await;
    let gauge = |node: &str, value: u8| {
        format!("fault_quarantine_current_quarantined_nodes{{node=\"{node}\"}} {value}")
    };
    let controller = Controller::start_with(&cluster, folder.path(), XID_RULE).await;
    controller.until_metric(&gauge("r-gauge", 1)).await;
    assert!(!controller.metrics().contains(&gauge("r-in", 1)));
    controller.kill().await;
    // With a store that was lost it is the node that tells.
    let empty = tempfile::tempdir().unwrap();
    let controller = Controller::start_with(&cluster, empty.path(), XID_RULE).await;
    controller.until_metric(&gauge("r-gauge", 1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_162_164_what_a_person_undid_while_nobody_looked_is_cleaned_up_at_start() {
    let cluster = Cluster::with_nodes(&["r-undone"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start_with(&cluster, folder.path(), XID_RULE).await;
    quarantined_by_xid(&cluster, &controller, "r-undone", "0").await;
    controller.kill().await;
    let undo = json!({ "spec": { "unschedulable": null, "taints": null } });
    cluster.merge("r-undone", undo).await;
    let controller = Controller::start_with(&cluster, folder.path(), XID_RULE).await;
    let gauge = r#"fault_quarantine_current_quarantined_nodes{node="r-undone"} 0"#;
    controller.until_metric(gauge).await;
    let node = cluster
        .until("r-undone", "unmarked", |node| !is_marked(node))
        .await;
    assert!(!is_cordoned(&node) && taint_keys(&node).is_empty());
    let left = metadata(&node).1;
    let ours = left
        .keys()
        .filter(|key| key.starts_with("quarantineHealthEvent"));
    assert_eq!(ours.count(), 0, "{left:?}");
    assert_eq!(label(&node, "dgxc.nvidia.com/nvsentinel-state"), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_150_156_a_fault_that_matches_nothing_changes_nothing_on_a_node_that_is_out() {
    let cluster = Cluster::with_nodes(&["r-same"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start_with(&cluster, folder.path(), XID_RULE).await;
    quarantined_by_xid(&cluster, &controller, "r-same", "0").await;
    let before = annotation(&cluster.get("r-same").await, EVENTS).map(str::to_owned);
    controller
        .decided(fatal("r-same", "GpuMemWatch", "0"))
        .await;
    let node = cluster.get("r-same").await;
    assert_eq!(annotation(&node, EVENTS).map(str::to_owned), before);
    assert!(is_cordoned(&node) && elements(&node).len() == 1);
    let open = NodeName::new("r-same").unwrap();
    let open = controller.context.store.open_incidents_of(&open).unwrap();
    assert_eq!(open[0].faults.len(), 1, "it did not join");
}

/// The sum of a counter's series with this label.
fn counted(controller: &Controller, name: &str, label: &str) -> u64 {
    let page = controller.metrics();
    let series = page
        .lines()
        .filter(|line| line.starts_with(name) && line.contains(label));
    let values = series.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    values.sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_104_five_of_ten_nodes_reach_the_bound_and_the_next_one_trips() {
    let names: Vec<String> = (0..10).map(|number| format!("r-trip-{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let cluster = Cluster::with_nodes(&names).await;
    let folder = tempfile::tempdir().unwrap();
    let breaker = "percentage = 50\nlevel_percentage = 100\n";
    let config = XID_RULE.replace("enabled = false\n", breaker);
    let controller = Controller::start_with(&cluster, folder.path(), &config).await;
    for (number, name) in (1..).zip(&names[..5]) {
        controller.append(xid(name, "0")).await;
        cluster.until(name, "cordoned", is_cordoned).await;
        // The share of the pool that was taken out: its nodes were counted, ten of them.
        let used = f64::from(number) / 10.0;
        let used = format!("fault_quarantine_breaker_utilization {used:?}");
        controller.until_metric(&used).await;
        let closed = r#"fault_quarantine_breaker_state{state="CLOSED"} 1"#;
        controller.until_metric(closed).await;
    }
    controller.append(xid(names[5], "0")).await;
    controller.until_state(names[5], "Withheld").await;
    let tripped = r#"fault_quarantine_breaker_state{state="TRIPPED"} 1"#;
    controller.until_metric(tripped).await;
    let node = cluster.get(names[5]).await;
    assert!(!is_cordoned(&node) && !is_marked(&node));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_141_the_wrong_check_and_one_that_is_not_fatal_never_cordon() {
    let names = ["r-wrong-check", "r-not-fatal"];
    let cluster = Cluster::with_nodes(&names).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start_with(&cluster, folder.path(), XID_RULE).await;
    let name = "fault_quarantine_ruleset_evaluations_total{";
    let mild = HealthEvent {
        is_fatal: false,
        ..xid("r-not-fatal", "0")
    };
    for (node, event) in names
        .into_iter()
        .zip([fatal("r-wrong-check", "UnknownCheck", "0"), mild])
    {
        let failed = || counted(&controller, name, r#"ruleset="XID rule",status="failed""#);
        let before = failed();
        controller.append(event).await;
        // A turn for something else may come first.
        wait_for(
            format!("the rules to be asked for {node}"),
            SOON,
            || async { Ok((failed() > before).then_some(())) },
        )
        .await
        .unwrap();
    }
    assert_eq!(counted(&controller, name, r#"status="passed""#), 0);
    for name in names {
        let node = cluster.get(name).await;
        assert!(!is_cordoned(&node) && !is_marked(&node), "{name}");
        let open = NodeName::new(name).unwrap();
        let open = controller.context.store.open_incidents_of(&open).unwrap();
        assert!(open.is_empty(), "{open:?}");
    }
}

#[test]
fn rules_of_these_tests_are_valid() {
    for text in [XID_RULE, RULES] {
        let config = controller::config::Config::parse(text).unwrap();
        assert!(controller::quarantine::rule_sets(&config.quarantine).is_ok());
    }
}
