//! What persons do to nodes.

use controller::requests::Request;
use health_event::{HealthEvent, NodeName};
use serde_json::{Value, json};
use testbed::wait_for;

use super::quarantined;
use crate::harness::{
    Cluster, Controller, RULES, SOON, annotation, fatal, healthy, is_cordoned, is_marked,
    taint_keys,
};
use crate::process::{Program, Sender, numbered};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_persons_uncordon_ends_the_incident_and_holds_what_was_open() {
    let cluster = Cluster::with_nodes(&["q-person"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(&cluster, folder.path()).await;
    let fault = quarantined(&cluster, &controller, "q-person", "Both").await;
    cluster
        .merge("q-person", json!({ "spec": { "unschedulable": null } }))
        .await;
    let node = cluster
        .until("q-person", "unmarked, with the record", |node| {
            !is_marked(node) && annotation(node, "quarantinedNodeUncordonedManually").is_some()
        })
        .await;
    assert!(!is_cordoned(&node) && taint_keys(&node).is_empty());
    assert_eq!(
        controller.until_closed("q-person").await,
        "Closed(ManualUncordon)"
    );
    // The same fault again is held; another one is new, and removes the record.
    let again = HealthEvent {
        message: "again".into(),
        ..fault.clone()
    };
    controller.append(again).await;
    controller.append(fatal("q-person", "Both", "1")).await;
    let node = cluster.until("q-person", "marked again", is_marked).await;
    let events = annotation(&node, "quarantineHealthEvent").unwrap();
    assert!(
        events.contains("GPU 1") && !events.contains("again"),
        "{events}"
    );
    assert_eq!(annotation(&node, "quarantinedNodeUncordonedManually"), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_person_held_is_new_once_it_has_closed() {
    let cluster = Cluster::with_nodes(&["q-held-once"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(&cluster, folder.path()).await;
    let fault = quarantined(&cluster, &controller, "q-held-once", "Test").await;
    let uncordon = json!({ "spec": { "unschedulable": null } });
    cluster.merge("q-held-once", uncordon).await;
    let closed = controller.until_closed("q-held-once").await;
    assert_eq!(closed, "Closed(ManualUncordon)");
    cluster
        .until("q-held-once", "unmarked", |node| !is_marked(node))
        .await;
    let machine = |controller: &Controller| {
        let name = NodeName::new("q-held-once").unwrap();
        let node = controller.context.nodes.get(&name).unwrap();
        let machine = controller.context.store.machine(node.machine()).unwrap();
        machine.unwrap().holds.len()
    };
    assert_eq!(machine(&controller), 1);
    controller.append(healthy(&fault)).await;
    wait_for("the end of the hold", SOON, || async {
        Ok((machine(&controller) == 0).then_some(()))
    })
    .await
    .unwrap();
    let again = HealthEvent {
        generated_at: Some(jiff::Timestamp::now()),
        ..fault
    };
    controller.append(again).await;
    cluster.until("q-held-once", "out again", is_cordoned).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_persons_untaint_lifts_our_cordon_too() {
    let cluster = Cluster::with_nodes(&["q-untaint"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(&cluster, folder.path()).await;
    quarantined(&cluster, &controller, "q-untaint", "Both").await;
    cluster
        .merge("q-untaint", json!({ "spec": { "taints": null } }))
        .await;
    let node = cluster
        .until("q-untaint", "unmarked, with the record", |node| {
            !is_marked(node) && annotation(node, "quarantinedNodeUntaintedManually").is_some()
        })
        .await;
    assert!(!is_cordoned(&node));
    assert_eq!(
        controller.until_closed("q-untaint").await,
        "Closed(ManualUntaint)"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_node_is_not_taken_out_but_is_released() {
    let cluster = Cluster::with_nodes(&["q-pause-a", "q-pause-b"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(&cluster, folder.path()).await;
    let fault = quarantined(&cluster, &controller, "q-pause-a", "Test").await;
    for name in ["q-pause-a", "q-pause-b"] {
        cluster
            .merge(
                name,
                json!({ "metadata": { "annotations": { "warden.dev/pause": "" } } }),
            )
            .await;
    }
    cluster_sees(&controller, "q-pause-b", "warden.dev/pause").await;
    controller.append(fatal("q-pause-b", "Test", "0")).await;
    controller.append(healthy(&fault)).await;
    cluster
        .until("q-pause-a", "released", |node| {
            !is_cordoned(node) && !is_marked(node)
        })
        .await;
    assert!(!is_cordoned(&cluster.get("q-pause-b").await));
    let unpause = json!({ "metadata": { "annotations": { "warden.dev/pause": null } } });
    cluster.merge("q-pause-b", unpause).await;
    cluster.until("q-pause-b", "taken out", is_cordoned).await;
}

/// Waits until the controller's cache shows an annotation.
pub(super) async fn cluster_sees(controller: &Controller, node: &str, key: &str) {
    let name = NodeName::new(node).unwrap();
    wait_for(format!("{key} in the cache"), SOON, || async {
        let node = controller.context.nodes.get(&name);
        Ok(node.and_then(|node| node.annotation(key).map(|_| ())))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_holds_a_node_and_gives_it_back() {
    let cluster = Cluster::with_nodes(&["q-hold"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(&cluster, folder.path()).await;
    let node = NodeName::new("q-hold").unwrap();
    let hold = Request::Hold {
        node: node.clone(),
        // Characters that the API server keeps in another form.
        reason: "a <swap> & \"more\" \\ \u{2028} \u{2029} ü 🔥 \t > 3h".into(),
    };
    controller
        .requests
        .ask(hold, "ann".into())
        .await
        .unwrap()
        .unwrap();
    cluster.until("q-hold", "cordoned", is_cordoned).await;
    controller.until_state("q-hold", "Quarantined").await;
    controller
        .requests
        .ask(
            Request::Release {
                node,
                reason: "the fan is new".into(),
            },
            "ann".into(),
        )
        .await
        .unwrap()
        .unwrap();
    cluster
        .until("q-hold", "released", |node| {
            !is_cordoned(node) && !is_marked(node)
        })
        .await;
    let unknown = NodeName::new("nobody").unwrap();
    let hold = Request::Hold {
        node: unknown,
        reason: String::new(),
    };
    assert!(
        controller
            .requests
            .ask(hold, "ann".into())
            .await
            .unwrap()
            .is_err()
    );
}

/// What each step of the node tells of who and why, by the code of its reason.
fn told(controller: &Controller, node: &NodeName, reason: &str) -> Value {
    let of = event_store::TransitionsOf::Node(node);
    let steps = controller.context.store.transitions(of, 0, 100).unwrap();
    let causes: Vec<Value> = steps
        .iter()
        .map(|step| serde_json::from_str(&step.cause).unwrap())
        .collect();
    let found = causes.iter().find(|cause| cause["reason"] == reason);
    found.unwrap_or_else(|| panic!("{causes:#?}"))["text"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_hold_and_a_release_tell_who_and_why_in_the_timeline() {
    let cluster = Cluster::with_nodes(&["q-why", "q-out-why"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(&cluster, folder.path()).await;
    let node = |name: &str| NodeName::new(name).unwrap();
    let ask = async |request: Request, who: &str| {
        let done = controller.requests.ask(request, who.into()).await;
        done.unwrap().unwrap()
    };
    let reason = "the fan is loud".to_owned();
    let hold = Request::Hold {
        node: node("q-why"),
        reason,
    };
    ask(hold, "ann").await;
    cluster.until("q-why", "cordoned", is_cordoned).await;
    controller.until_state("q-why", "Quarantined").await;
    let said = told(&controller, &node("q-why"), "person_hold");
    assert_eq!(said, "ann holds the node out: the fan is loud");
    // The end of a hold, and what ends an incident whose fault is open.
    quarantined(&cluster, &controller, "q-out-why", "Test").await;
    for (name, code) in [("q-why", "hold_released"), ("q-out-why", "person_cancel")] {
        let release = Request::Release {
            node: node(name),
            reason: format!("{name} was checked by hand"),
        };
        ask(release, "bob").await;
        cluster
            .until(name, "given back", |node| {
                !is_cordoned(node) && !is_marked(node)
            })
            .await;
        controller.until_closed(name).await;
        let text = told(&controller, &node(name), code);
        let text = text.as_str().unwrap();
        let says = format!("bob ({name} was checked by hand)");
        assert!(text.contains(&says), "{text}");
    }
    // Without a reason the name alone is told.
    quarantined(&cluster, &controller, "q-why", "Test").await;
    let release = Request::Release {
        node: node("q-why"),
        reason: String::new(),
    };
    ask(release, "carl").await;
    controller.until_closed("q-why").await;
    let text = told(&controller, &node("q-why"), "person_cancel");
    assert!(text.as_str().unwrap().starts_with("carl "), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_ends_a_held_incident_holds_what_is_open_and_tells_who_and_why() {
    let cluster = Cluster::with_nodes(&["q-cancel"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(&cluster, folder.path()).await;
    let fault = quarantined(&cluster, &controller, "q-cancel", "Test").await;
    let node = NodeName::new("q-cancel").unwrap();
    let hold = Request::Hold {
        node: node.clone(),
        reason: "heat".into(),
    };
    let cancel = Request::Cancel {
        node: node.clone(),
        reason: "known, and harmless".into(),
    };
    for (request, who) in [(hold, "ann"), (cancel, "bob")] {
        let done = controller.requests.ask(request, who.into()).await;
        let done = done.unwrap().unwrap();
        assert!(!done.only_recorded, "{done:?}");
    }
    cluster
        .until("q-cancel", "given back", |node| {
            !is_cordoned(node) && !is_marked(node)
        })
        .await;
    let closed = controller.until_closed("q-cancel").await;
    assert_eq!(closed, "Closed(CancelledByPerson)");
    let who = "bob (known, and harmless)";
    let of = event_store::TransitionsOf::Node(&node);
    let steps = controller.context.store.transitions(of, 0, 100).unwrap();
    let cause = |cause: &str| serde_json::from_str::<Value>(cause).unwrap();
    let mut causes = steps.iter().map(|step| cause(&step.cause));
    let told = causes.find(|cause| cause["reason"] == "person_cancel");
    let told = told.expect("a step that tells of the cancel");
    assert_eq!(told["text"], json!(format!("{who} ended the incident")));
    let machine = controller.context.nodes.get(&node).unwrap();
    let machine = controller.context.store.machine(machine.machine()).unwrap();
    let holds = machine.unwrap().holds.clone();
    assert_eq!(holds.len(), 1, "{holds:?}");
    assert_eq!((holds[0].actor.as_str(), holds[0].faults.len()), (who, 1));
    // What was open is held; another device is new.
    let again = HealthEvent {
        message: "again".into(),
        ..fault
    };
    controller.append(again).await;
    controller.append(fatal("q-cancel", "Test", "1")).await;
    let node = cluster.until("q-cancel", "out again", is_marked).await;
    let events = annotation(&node, "quarantineHealthEvent").unwrap();
    assert!(!events.contains("again"), "{events}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_hold_is_told_as_one_with_whose_place_it_took() {
    let cluster = Cluster::with_nodes(&["q-hold-2"]).await;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(&cluster, folder.path()).await;
    let hold = async |who: &str, why: &str| {
        let (node, reason) = (NodeName::new("q-hold-2").unwrap(), why.to_owned());
        let hold = Request::Hold { node, reason };
        controller
            .requests
            .ask(hold, who.into())
            .await
            .unwrap()
            .unwrap()
    };
    let first = hold("ann", "heat").await;
    assert!(
        !first.only_recorded && !first.text.contains("already"),
        "{first:?}"
    );
    cluster.until("q-hold-2", "cordoned", is_cordoned).await;
    controller.until_state("q-hold-2", "Quarantined").await;
    let second = hold("bob", "the fan is loud").await;
    let want = "It was held already, by ann: heat: that is replaced";
    assert!(
        !second.only_recorded && second.text.contains(want),
        "{second:?}"
    );
    cluster
        .until("q-hold-2", "marked anew", |node| {
            annotation(node, "warden.dev/incident").is_some_and(|mark| mark.contains("fan is loud"))
        })
        .await;
    controller.until_state("q-hold-2", "Quarantined").await;
    let node = NodeName::new("q-hold-2").unwrap();
    let of = event_store::TransitionsOf::Node(&node);
    let steps = controller.context.store.transitions(of, 0, 100).unwrap();
    let causes: Vec<Value> = steps
        .iter()
        .map(|step| serde_json::from_str(&step.cause).unwrap())
        .collect();
    let texts: Vec<&str> = causes
        .iter()
        .filter_map(|cause| cause["text"].as_str())
        .collect();
    let anew = "bob holds the node out: the fan is loud";
    let told = causes.iter().find(|cause| cause["text"] == anew);
    assert_eq!(
        told.map(|cause| &cause["held_before"]),
        Some(&json!("ann: heat")),
        "{texts:?}"
    );
    assert!(
        !texts.iter().any(|text| text.contains("fault")),
        "{texts:?}"
    );
}

/// The profile was switched down while the node was out: nothing is written, nobody is told that it
/// is, and what a person takes off by hand counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_dry_run_what_is_asked_is_only_recorded_and_a_node_given_back_by_hand_is_not_out() {
    let cluster = Cluster::with_nodes(&["q-down"]).await;
    cluster.testbed.ensure_namespace("warden").await.unwrap();
    let kubeconfig = cluster.testbed.kubeconfig();
    let flags = ["--insecure-local"];
    let mut program = Program::start_cordoning(&kubeconfig, "", &flags);
    program.up().await;
    let sender = Sender::new(program.plain().await, None);
    let mut event = numbered("q-down", 1);
    event.check_name = "Both".into();
    event.recommended_action = 27;
    event.custom_recommended_action = "RESEAT_RISER".into();
    sender.send(vec![event]).await.unwrap();
    cluster.until("q-down", "out", is_cordoned).await;
    let ask = async |program: &Program, method: &str, path: &str| -> Value {
        let token = std::fs::read_to_string(program.store().join("api-token")).unwrap();
        let body = if path.ends_with("hold") {
            r#"{"reason":"fan"}"#
        } else {
            ""
        };
        let (_, said) = program.send(method, path, Some(token.trim()), body).await;
        serde_json::from_str(&said).unwrap()
    };
    wait_for("an incident that is out", SOON, || async {
        let node = ask(&program, "GET", "/api/v1/nodes/q-down").await;
        let state = &node["incidents"][0]["state"];
        anyhow::ensure!(*state == "Quarantined", "{node:#}");
        // The action of a site is told by its name, of fault and incident.
        let custom = json!("RESEAT_RISER");
        assert_eq!(node["faults"][0]["custom_action"], custom, "{node:#}");
        assert_eq!(
            node["incidents"][0]["faults"][0]["custom_action"], custom,
            "{node:#}"
        );
        Ok(Some(()))
    })
    .await
    .unwrap();
    program.terminate();
    program.ended().await;
    let folder = program.kill();
    let rules = RULES.replace("profile = \"cordon\"", "");
    let program = Program::start_as("observe", folder, &kubeconfig, &rules, &flags);
    program.up().await;
    let out = async |want: i32, given_back: bool| {
        wait_for("the count of nodes that are out", SOON, || async {
            let status = ask(&program, "GET", "/api/v1/status").await;
            let pools = ask(&program, "GET", "/api/v1/breaker").await;
            let pools = pools.as_array().unwrap().iter();
            let of_pools: i64 = pools.filter_map(|pool| pool["out"].as_i64()).sum();
            let nodes = ask(&program, "GET", "/api/v1/nodes").await;
            let told = (&status["out"], of_pools, &nodes[0]["given_back"]);
            anyhow::ensure!(
                told == (&json!(want), i64::from(want), &json!(given_back)),
                "{told:?}"
            );
            Ok(Some(()))
        })
        .await
        .unwrap();
    };
    out(1, false).await;
    let held = ask(&program, "POST", "/api/v1/nodes/q-down/hold").await;
    assert_eq!(held["only_recorded"], true, "{held}");
    let uncordon = json!({ "spec": { "unschedulable": null } });
    cluster.merge("q-down", uncordon).await;
    // The taint still keeps it out.
    cluster
        .until("q-down", "uncordoned", |node| !is_cordoned(node))
        .await;
    out(1, false).await;
    cluster
        .merge("q-down", json!({ "spec": { "taints": null } }))
        .await;
    out(0, true).await;
    let released = ask(&program, "POST", "/api/v1/nodes/q-down/release").await;
    assert_eq!(released["only_recorded"], true, "{released}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_opted_out_node_is_left_alone() {
    let cluster = Cluster::with_nodes(&["q-out", "q-in"]).await;
    let folder = tempfile::tempdir().unwrap();
    let optout =
        json!({ "metadata": { "labels": { "k8saas.nvidia.com/ManagedByNVSentinel": "false" } } });
    cluster.merge("q-out", optout).await;
    let controller = Controller::start(&cluster, folder.path()).await;
    controller.append(fatal("q-out", "Test", "0")).await;
    quarantined(&cluster, &controller, "q-in", "Test").await;
    assert!(!is_marked(&cluster.get("q-out").await));
}
