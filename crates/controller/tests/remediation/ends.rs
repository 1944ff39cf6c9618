//! Incidents and objects that end before the repair does.

use health_event::RecommendedAction;
use health_event::incident::{Effect, OperatorReason, RepairStatus};
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};
use testbed::wait_for;

use super::kit::{Case, config, fault, install, name_of, objects, operator, until_event};
use crate::harness::{Cluster, SOON, healthy};

async fn uncordon(case: &Case<'_>) {
    let node = case.node.as_str();
    let uncordon = json!({ "spec": { "unschedulable": null } });
    case.cluster.merge(node, uncordon).await;
    let closed = case.controller.until_closed(node).await;
    assert_eq!(closed, "Closed(ManualUncordon)");
}

async fn until_gone(case: &Case<'_>, object: &Value) {
    let api = objects(case.cluster);
    wait_for("the object to go", SOON, || async {
        Ok(api.get_opt(name_of(object)).await?.is_none().then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repair_row_162_an_uncordon_before_the_signal_takes_the_object_back() {
    let cluster = Cluster::with_nodes(&["f-recall"]).await;
    let case = Case::start(&cluster, "f-recall", "").await;
    let event = fault("f-recall", "0", RecommendedAction::RestartBm);
    case.controller.append(event).await;
    case.until("Running").await;
    let object = case.only().await;
    // A person's copy is theirs, with whatever it was copied.
    let mut copy = object.clone();
    copy["metadata"] = json!({
        "name": "copied-by-hand", "annotations": object["metadata"]["annotations"],
        "labels": object["metadata"]["labels"],
    });
    let copy = serde_json::from_value(copy).unwrap();
    let api = objects(&cluster);
    api.create(&PostParams::default(), &copy).await.unwrap();
    uncordon(&case).await;
    until_gone(&case, &object).await;
    case.controller
        .until_metric(r#"warden_repairs_total{outcome="recalled"} 1"#)
        .await;
    assert!(api.get_opt("copied-by-hand").await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_signal_the_object_is_left_and_the_next_incident_waits_for_it() {
    let cluster = Cluster::with_nodes(&["f-left"]).await;
    let case = Case::start(&cluster, "f-left", "").await;
    let event = fault("f-left", "0", RecommendedAction::RestartBm);
    case.controller.append(event).await;
    case.until("Running").await;
    let first = case.only().await;
    let before = case.incident();
    case.sent(name_of(&first)).await;
    wait_for("the signal to be seen", SOON, || async {
        let seen = case.controller.context.reboots.get(name_of(&first));
        Ok(seen.filter(|o| !o.status.conditions.is_empty()).map(drop))
    })
    .await
    .unwrap();
    uncordon(&case).await;
    let ended = case.controller.context.store.incident(&before.id).unwrap();
    let repair = ended.unwrap().repair.unwrap();
    assert_eq!(repair.status, RepairStatus::Cancelled);
    let next = fault("f-left", "1", RecommendedAction::RestartBm);
    case.controller.append(next).await;
    case.until_blocked("other_repair").await;
    assert_ne!(case.incident().id, before.id);
    assert_eq!(case.objects().await.len(), 1, "it is left");
    // It ends, and the node did not reboot: the plan goes on, as the machine's second attempt.
    case.done(name_of(&first)).await;
    let second = case.another(&first).await;
    assert_eq!(second["metadata"]["annotations"]["warden.dev/attempt"], "1");
    case.failed(name_of(&second)).await;
    case.until("NeedsOperator").await;
    assert_eq!(
        case.objects().await.len(),
        2,
        "attempts count for the machine"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repair_row_134_177_178_a_node_that_is_deleted_ends_its_repair_in_every_stage() {
    let cluster = Cluster::with_nodes(&["f-gone"]).await;
    let case = Case::start(&cluster, "f-gone", "").await;
    for stage in ["Running", "Succeeded", "NeedsOperator"] {
        let action = match stage {
            "NeedsOperator" => RecommendedAction::ContactSupport,
            _ => RecommendedAction::RestartBm,
        };
        let event = fault("f-gone", "0", action);
        case.controller.append(event.clone()).await;
        if stage == "Succeeded" {
            case.until("Running").await;
            let object = case.only().await;
            case.rebooted(&object, "b2").await;
        }
        case.until(stage).await;
        let objects = case.objects().await;
        cluster.delete("f-gone").await;
        let closed = case.controller.until_closed("f-gone").await;
        assert_eq!(closed, "Closed(NodeDeleted)", "{stage}");
        // Nothing was sent for it: it is taken back. One that is at its end goes with its owner.
        for object in objects.iter().filter(|_| stage == "Running") {
            until_gone(&case, object).await;
        }
        // What a machine that comes back had is open still, and would be repaired: it has healed.
        case.controller.append(healthy(&event)).await;
        cluster.add(&["f-gone"]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_a_person_deletes_while_it_runs_is_unknown_until_the_node_tells() {
    let cluster = Cluster::with_nodes(&["f-deleted"]).await;
    let case = Case::start(&cluster, "f-deleted", "").await;
    let event = fault("f-deleted", "0", RecommendedAction::RestartBm);
    case.controller.append(event).await;
    case.until("Running").await;
    let object = case.only().await;
    case.sent(name_of(&object)).await;
    objects(&cluster)
        .delete(name_of(&object), &DeleteParams::default())
        .await
        .unwrap();
    case.until("Unknown").await;
    assert_eq!(case.objects().await.len(), 0, "it is not made again");
    cluster.testbed.reboot("f-deleted", "b2").await.unwrap();
    case.until("Succeeded").await;
    assert_eq!(case.objects().await.len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_begun_and_not_seen_ends_by_its_deadline() {
    let cluster = Cluster::with_nodes(&["f-late"]).await;
    let short = "[remediation.remediationActions.RESTART_BM]\ndeadline = '3s'";
    let case = Case::start(&cluster, "f-late", short).await;
    let event = fault("f-late", "0", RecommendedAction::RestartBm);
    case.controller.append(event).await;
    for number in 1..=2 {
        case.until("Running").await;
        let objects = case.objects().await;
        let last = objects.iter().find(|o| o["status"].is_null()).unwrap();
        case.begun(name_of(last)).await;
        wait_for("the failure", SOON, || async {
            Ok((case.causes("Failed").len() == number).then_some(()))
        })
        .await
        .unwrap();
        let failed = case.causes("Failed");
        assert!(
            failed[number - 1].contains("not seen in time"),
            "{failed:?}"
        );
        // It may come still: the next one waits until it is at its end.
        case.failed(name_of(last)).await;
    }
    let repair = case.until("NeedsOperator").await;
    assert_eq!(repair.attempt.unwrap().number, 2);
    assert!(matches!(
        operator(&case.incident()),
        OperatorReason::Exhausted { .. }
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_that_nobody_begins_are_no_attempts_and_call_a_person() {
    let cluster = Cluster::with_nodes(&["f-queued"]).await;
    let short = "[remediation.remediationActions.RESTART_BM]\ndeadline = '2s'";
    let case = Case::start(&cluster, "f-queued", short).await;
    let event = fault("f-queued", "0", RecommendedAction::RestartBm);
    case.controller.append(event).await;
    // Nobody begins the first; the second is given up by whoever carries repairs out.
    case.until("Running").await;
    case.until_blocked("queued").await;
    let first = case.only().await;
    let second = case.another(&first).await;
    let failed = case.causes("Failed");
    assert!(failed[0].contains("nothing was sent"), "{failed:?}");
    until_gone(&case, &first).await;
    case.given_up(name_of(&second)).await;
    let repair = case.until("NeedsOperator").await;
    assert_eq!(repair.attempt.unwrap().number, 2);
    assert_eq!(operator(&case.incident()), OperatorReason::NotBegun);
    let key = format!("remediation/attempts/{}", case.incident().machine);
    let counted = case
        .controller
        .context
        .store
        .state_get(&key)
        .unwrap()
        .unwrap();
    assert_eq!(String::from_utf8(counted).unwrap(), "[]", "of the machine");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repair_row_150_an_object_that_failed_is_followed_by_the_next_and_says_why() {
    let cluster = Cluster::with_nodes(&["f-failed"]).await;
    let case = Case::start(&cluster, "f-failed", "").await;
    let event = fault("f-failed", "0", RecommendedAction::RestartBm);
    case.controller.append(event).await;
    case.until("Running").await;
    let first = case.only().await;
    case.failed(name_of(&first)).await;
    let second = case.another(&first).await;
    assert_eq!(
        second["spec"]["force"], false,
        "it was refused, not ignored"
    );
    let failed = case.causes("Failed");
    assert!(
        failed[0].contains("Failed: the provider said no"),
        "{failed:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_that_refuses_is_asked_again_after_a_pause_with_its_words_told() {
    let cluster = Cluster::with_nodes(&["f-refused"]).await;
    let case = Case::start(&cluster, "f-refused", "").await;
    let event = fault("f-refused", "0", RecommendedAction::RestartBm);
    case.controller.append(event).await;
    case.until("Running").await;
    let first = case.only().await;
    case.refused(name_of(&first)).await;
    let failed = case.until("Failed").await;
    let Some(Effect::ProviderRefused { again_at }) = failed.attempt.map(|last| last.effect) else {
        panic!("it was refused");
    };
    assert_eq!(again_at.duration_since(failed.since).as_secs(), 15);
    let words = "PermissionDenied: no way";
    let told = case.causes("Failed");
    assert!(told[0].contains(words), "{told:?}");
    until_event(&cluster, "f-refused", "Warning", "RepairFailed", words).await;
    let second = case.another(&first).await;
    let made: jiff::Timestamp = second["metadata"]["creationTimestamp"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    // The API server tells whole seconds.
    assert!(
        made + jiff::SignedDuration::from_secs(1) > again_at,
        "{made}"
    );
    // Refused again, a person is told, and it goes on by itself.
    case.refused(name_of(&second)).await;
    let repair = case.until("NeedsOperator").await;
    let last = repair.attempt.unwrap();
    assert_eq!((last.number, last.force), (2, false));
    let OperatorReason::ProviderRefuses {
        words: told,
        again_at,
    } = operator(&case.incident())
    else {
        panic!("the provider refused");
    };
    assert!(told.contains(words), "{told}");
    assert_eq!(last.effect, Effect::ProviderRefused { again_at });
    let pause = again_at.duration_since(repair.since).as_secs();
    assert!((45..=60).contains(&pause), "{pause} s");
    let key = format!("remediation/attempts/{}", case.incident().machine);
    let counted = case.controller.context.store.state_get(&key).unwrap();
    assert_eq!(counted.as_deref(), Some(&b"[]"[..]), "of the machine");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_of_somebody_else_under_the_name_is_not_taken_for_ours() {
    let cluster = Cluster::with_nodes(&["f-taken"]).await;
    install(&cluster).await;
    // Nothing is ordered while it is a dry run, so that the name is known before.
    let case = Case::start_as(&cluster, "f-taken", &config("dry_run = true")).await;
    let event = fault("f-taken", "0", RecommendedAction::RestartBm);
    case.controller.append(event).await;
    case.until("Planned").await;
    let incident = case.incident();
    let name = decide::remediation::object_name(&incident, 1);
    let (folder, node) = (case.folder, case.node);
    case.controller.kill().await;
    let theirs = json!({
        "apiVersion": "janitor.dgxc.nvidia.com/v1alpha1", "kind": "RebootNode",
        "metadata": { "name": name }, "spec": { "nodeName": "another", "force": false },
    });
    let theirs = serde_json::from_value(theirs).unwrap();
    let api = objects(&cluster);
    api.create(&PostParams::default(), &theirs).await.unwrap();
    let text = config("max_attempts = 1");
    let controller = crate::harness::Controller::start_with(&cluster, folder.path(), &text).await;
    let case = Case {
        cluster: &cluster,
        controller,
        node,
        folder,
    };
    case.until("NeedsOperator").await;
    let failed = case.causes("Failed");
    assert!(
        failed[0].contains("is of somebody else; delete it"),
        "{failed:?}"
    );
    assert!(failed[0].contains(&name), "{failed:?}");
    let kept = api.get(&name).await.unwrap();
    assert_eq!(kept.data["spec"]["nodeName"], "another");
}
