//! Repairs of nodes that are out: ordered, followed, recalled. The test plays janitor, by the status of
//! the objects, and the machine, by its boots.

mod ends;
mod given_back;
mod kept;
pub(crate) mod kit;
mod lost;
mod noted;
mod rows;
mod told;
mod turns;

use std::collections::BTreeMap;

use health_event::RecommendedAction;
use health_event::incident::{OperatorReason, Rung};
use k8s_openapi::api::core::v1::Node;

use testbed::NodeSpec;

use crate::harness::{Cluster, SOON, annotation, healthy, is_cordoned, label};
use kit::{Case, fault, operator, until_event};

const STATE: &str = "dgxc.nvidia.com/nvsentinel-state";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repair_row_146_160_161_169_a_fault_orders_one_reboot_and_its_repeats_none() {
    let cluster = Cluster::with_nodes(&["f-one"]).await;
    let case = Case::start(&cluster, "f-one", "").await;
    let first = fault("f-one", "0", RecommendedAction::RestartBm);
    case.controller.append(first.clone()).await;
    case.until("Running").await;
    let object = case.only().await;
    let incident = case.incident();
    let name = format!(
        "maintenance-f-one-{}-1",
        incident.id.as_str().to_lowercase()
    );
    assert_eq!(object["metadata"]["name"], name.as_str());
    assert_eq!(object["spec"]["nodeName"], "f-one");
    assert_eq!(object["spec"]["force"], false);
    let labels = &object["metadata"]["labels"];
    assert_eq!(labels["app.kubernetes.io/managed-by"], "warden");
    let annotations = &object["metadata"]["annotations"];
    assert_eq!(annotations["warden.dev/incident"], incident.id.as_str());
    assert_eq!(annotations["warden.dev/attempt"], "1");
    assert_eq!(annotations["warden.dev/action"], "RESTART_BM");
    assert_eq!(annotations["warden.dev/boot-before"], "boot-f-one-0");
    assert_eq!(annotations["nvsentinel.nvidia.com/ttl"], "336h");
    let owner = &object["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["name"]),
        (&"Node".into(), &"f-one".into())
    );
    assert_eq!(owner["uid"], incident.node_uid.as_str());
    let repairs = "latestFaultRemediationState";
    let is_named = |node: &Node| annotation(node, repairs).is_some_and(|is| is.contains(&name));
    let node = cluster.until("f-one", "its repair named", is_named).await;
    let repairs = annotation(&node, repairs).unwrap();
    assert!(repairs.contains(r#"{"restart":{"#), "{repairs}");
    // Repeats, and others of the same action, join and order nothing.
    for gpu in ["0", "1"] {
        let again = fault("f-one", gpu, RecommendedAction::RestartBm);
        case.controller.decided(again).await;
    }
    assert_eq!(case.incident().open_faults().count(), 2);
    assert_eq!(case.objects().await.len(), 1);
    case.sent(&name).await;
    case.rebooted(&object, "b2").await;
    case.until("Succeeded").await;
    assert_eq!(case.objects().await.len(), 1);
    for line in [
        r#"fault_remediation_events_processed_total{cr_status="created",node_name="f-one"} 1"#,
        r#"warden_repairs_total{outcome="ordered"} 1"#,
        r#"warden_repairs_total{outcome="succeeded"} 1"#,
        "fault_remediation_cr_generate_duration_seconds_count 1",
    ] {
        case.controller.until_metric(line).await;
    }
    assert_eq!(
        case.steps(),
        ["Planned", "Requested", "Running", "Succeeded"]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_is_done_in_the_same_boot_is_followed_by_one_with_force_and_then_by_a_person()
 {
    let cluster = Cluster::with_nodes(&["f-same"]).await;
    // Until its time is over the node may only be seen late.
    let time = ["COMPONENT_RESET", "RESTART_BM"]
        .map(|action| format!("[remediation.remediationActions.{action}]\ndeadline = \"10s\"\n"));
    let case = Case::start(&cluster, "f-same", &time.concat()).await;
    let event = fault("f-same", "0", RecommendedAction::ComponentReset);
    case.controller.append(event).await;
    case.until("Running").await;
    let first = case.only().await;
    case.done(first["metadata"]["name"].as_str().unwrap()).await;
    let second = case.another(&first).await;
    assert_eq!(second["spec"]["force"], true);
    assert_eq!(second["metadata"]["annotations"]["warden.dev/attempt"], "2");
    case.done(second["metadata"]["name"].as_str().unwrap())
        .await;
    case.until("NeedsOperator").await;
    let exhausted = OperatorReason::Exhausted {
        rung: Rung::Reboot,
        again_at: None,
    };
    assert_eq!(operator(&case.incident()), exhausted);
    assert_eq!(case.objects().await.len(), 2);
    let failed = case.causes("Failed");
    assert_eq!(failed.len(), 2);
    assert!(
        failed[0].contains("in the boot that it had before"),
        "{failed:?}"
    );
    assert!(is_cordoned(&cluster.get("f-same").await));
    for (reason, says) in [
        ("RepairFailed", "in the boot that it had before"),
        ("RepairNeedsOperator", "a person is needed"),
    ] {
        until_event(&cluster, "f-same", "Warning", reason, says).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repair_row_153_a_fault_that_comes_back_after_the_reboot_orders_the_next_attempt() {
    let cluster = Cluster::with_nodes(&["f-again"]).await;
    let case = Case::start(&cluster, "f-again", "").await;
    let event = fault("f-again", "0", RecommendedAction::RestartVm);
    case.controller.append(event.clone()).await;
    case.until("Running").await;
    let first = case.only().await;
    let incident = case.incident().id;
    case.rebooted(&first, "b2").await;
    case.until("Succeeded").await;
    let again = fault("f-again", "0", RecommendedAction::RestartBm);
    case.controller.append(again).await;
    let second = case.another(&first).await;
    assert_eq!(
        second["spec"]["force"], false,
        "the first was seen to happen"
    );
    case.rebooted(&second, "b3").await;
    case.until("Succeeded").await;
    assert_eq!(case.incident().id, incident);
    let third = fault("f-again", "1", RecommendedAction::RestartBm);
    case.controller.append(third).await;
    case.until("NeedsOperator").await;
    assert_eq!(case.objects().await.len(), 2, "two attempts a day");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repair_row_148_152_faults_of_the_time_before_the_reboot_are_covered_by_it() {
    let cluster = Cluster::with_nodes(&["f-join"]).await;
    let case = Case::start(&cluster, "f-join", "").await;
    let first = fault("f-join", "0", RecommendedAction::RestartBm);
    case.controller.append(first.clone()).await;
    case.until("Running").await;
    let object = case.only().await;
    let joined = fault("f-join", "1", RecommendedAction::ComponentReset);
    case.controller.decided(joined.clone()).await;
    assert_eq!(case.incident().open_faults().count(), 2);
    case.rebooted(&object, "b2").await;
    case.until("Succeeded").await;
    assert_eq!(case.objects().await.len(), 1);
    // Both have healed: nothing is left to do, and the node goes back once nothing was said against it.
    for event in [&first, &joined] {
        case.controller.decided(healthy(event)).await;
    }
    assert_eq!(case.objects().await.len(), 1);
    assert_eq!(
        case.steps(),
        ["Planned", "Requested", "Running", "Succeeded"]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repair_under_way_is_followed_to_its_end_although_its_fault_has_healed() {
    let cluster = Cluster::with_nodes(&["f-healed"]).await;
    let case = Case::start(&cluster, "f-healed", "").await;
    let event = fault("f-healed", "0", RecommendedAction::RestartBm);
    case.controller.append(event.clone()).await;
    case.until("Running").await;
    let object = case.only().await;
    case.sent(object["metadata"]["name"].as_str().unwrap())
        .await;
    case.controller.decided(healthy(&event)).await;
    assert_eq!(case.status().as_str(), "Running");
    assert!(is_cordoned(&cluster.get("f-healed").await));
    case.rebooted(&object, "b2").await;
    case.until("Succeeded").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repair_row_137_140_141_189_what_has_no_repair_calls_a_person() {
    let nodes = ["f-support", "f-none", "f-unknown", "f-custom"];
    let cluster = Cluster::with_nodes(&nodes).await;
    let case = Case::start(&cluster, "f-support", "").await;
    let actions = [
        (RecommendedAction::ContactSupport, "CONTACT_SUPPORT"),
        (RecommendedAction::None, "NONE"),
        (RecommendedAction::Unknown, "UNKNOWN"),
        (RecommendedAction::Custom, "REPLACE_DISK"),
    ];
    for (node, (action, name)) in nodes.into_iter().zip(actions) {
        let mut event = fault(node, "0", action);
        if action == RecommendedAction::Custom {
            event.custom_recommended_action = name.to_owned();
        }
        case.controller.append(event).await;
        let of = case.of(node);
        of.until("NeedsOperator").await;
        let action = name.to_owned();
        let reason = operator(&of.incident());
        assert_eq!(reason, OperatorReason::Unsupported { action }, "{node}");
        let line = format!(
            r#"fault_remediation_unsupported_actions_total{{action="{name}",node_name="{node}"}} 1"#
        );
        case.controller.until_metric(&line).await;
    }
    assert_eq!(case.objects().await.len(), 0);
    let failed = |node: &Node| label(node, STATE) == Some("remediation-failed");
    cluster
        .until("f-support", "labelled as failed", failed)
        .await;
    let well = healthy(&fault("f-support", "0", RecommendedAction::ContactSupport));
    case.controller.append(well).await;
    let closed = case.controller.until_closed("f-support").await;
    assert_eq!(closed, "Closed(Recovered)");
    let node = cluster.get("f-support").await;
    assert!(!is_cordoned(&node) && label(&node, STATE).is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repair_row_138_185_a_custom_action_is_ordered_by_its_own_name() {
    let cluster = Cluster::with_nodes(&["f-custom"]).await;
    let action = "[remediation.remediationActions.POWER_CYCLE]\nequivalenceGroup = 'power'";
    let case = Case::start(&cluster, "f-custom", action).await;
    let mut event = fault("f-custom", "0", RecommendedAction::Custom);
    event.custom_recommended_action = "POWER_CYCLE".to_owned();
    case.controller.append(event).await;
    case.until("Running").await;
    let object = case.only().await;
    let annotations = &object["metadata"]["annotations"];
    assert_eq!(annotations["warden.dev/action"], "POWER_CYCLE");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_the_longest_name_is_repaired_under_a_name_that_the_api_server_takes() {
    let label = "a".repeat(63);
    let name = [&*label, &label, &label, &"b".repeat(61)].join(".");
    let name: &'static str = Box::leak(name.into_boxed_str());
    let cluster = Cluster::with_nodes(&[]).await;
    // Its own name is too long for the label that nodes have.
    let labels = BTreeMap::from([("kubernetes.io/hostname".to_owned(), "long".to_owned())]);
    let spec = NodeSpec {
        labels,
        ..NodeSpec::new(name)
    };
    let testbed = cluster.testbed;
    testbed.add_nodes(&[spec]).await.unwrap();
    testbed.wait_nodes_ready(&[name], SOON).await.unwrap();
    let case = Case::start(&cluster, name, "").await;
    let event = fault(name, "0", RecommendedAction::RestartBm);
    case.controller.append(event).await;
    case.until("Running").await;
    let first = case.only().await;
    assert!(first["metadata"]["name"].as_str().unwrap().len() <= 253);
    case.failed(first["metadata"]["name"].as_str().unwrap())
        .await;
    let second = case.another(&first).await;
    assert_eq!(second["spec"]["nodeName"], name);
}
