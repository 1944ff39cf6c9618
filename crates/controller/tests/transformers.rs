//! What is changed about events on their way into the store, by the program as it ships.

use event_store::{EventStore, Options};
use serde_json::json;
use wire::datamodels::HealthEvent;
use wire::warden::v1::DetectorState;

use crate::harness::Cluster;
use crate::process::numbered;
use crate::voice::{Voice, nothing_to_send};

const NODE: &str = "changed";
const ZONE: &str = "topology.kubernetes.io/zone";

/// Overrides that read a label of the node, so that the order of the two is seen too.
const CONFIG: &str = r#"
    [ingest.metadata]
    enabled = true
    allowed_annotations = ["rack"]
    [ingest.overrides]
    enabled = true
    [[ingest.overrides.rules]]
    name = "broken"
    when = "event.metadata.absent == '1'"
    override.isFatal = false
    [[ingest.overrides.rules]]
    name = "in zone a"
    when = """event.metadata['topology.kubernetes.io/zone'] == 'a' && event.metadata.rack == '7'
              && '79' in event.errorCode && !event.message.contains('never')"""
    override = { isFatal = false, recommendedAction = "NONE" }
    [[ingest.overrides.rules]]
    name = "never"
    when = "event.message.contains('never') && !event.isHealthy"
    override.isHealthy = true
"#;

async fn agent() -> (Cluster, Voice) {
    let cluster = Cluster::with_nodes(&[NODE]).await;
    let marks = json!({ "metadata": {
        "labels": { ZONE: "a", "secret": "x" }, "annotations": { "rack": "7" } } });
    cluster.merge(NODE, marks).await;
    let agent = Voice::observing(&cluster, NODE, CONFIG).await;
    (cluster, agent)
}

/// Rows "node with zone and region labels", "matches", "first applied only", "other fields untouched".
#[tokio::test(flavor = "multi_thread")]
async fn labels_and_overrides_change_what_is_stored_and_a_recovery_closes_it() {
    let (_cluster, agent) = agent().await;
    let event = numbered(NODE, 1);
    agent.sender.send(vec![event.clone()]).await.unwrap();
    let node = agent.shown().await;
    let fault = &node["faults"][0];
    assert_eq!(
        (&fault["fatal"], &fault["action"]),
        (&json!(false), &json!("NONE"))
    );
    let said = "in zone a: isFatal was true, recommendedAction was RESTART_BM";
    assert_eq!(fault["overridden"], said);
    // Said again by a retry it is the same event, whatever became of it.
    agent.sender.send(vec![event.clone()]).await.unwrap();
    assert_eq!(agent.shown().await["faults"][0]["count"], 1);
    agent
        .until_counted(&[
            "warden_override_evaluation_errors_total{rule_name=\"broken\"} 2",
            "nvsentinel_overrides_applied_total{rule_name=\"in zone a\",field=\"isFatal\"} 2",
        ])
        .await;
    let over = HealthEvent {
        is_healthy: true,
        is_fatal: false,
        recommended_action: 0,
        ..numbered(NODE, 2)
    };
    let over = HealthEvent {
        entities_impacted: event.entities_impacted,
        ..over
    };
    agent.sender.send(vec![over]).await.unwrap();
    assert_eq!(agent.open().await, [""; 0], "what it opened it closes");

    let folder = agent.program.kill();
    let store = EventStore::open(&folder.path().join("store"), Options::default()).unwrap();
    let stored = store.events(None, 0, 10).unwrap();
    let body = wire::decode_body(&stored[0].body).unwrap();
    let of = |key: &str| body.metadata.get(key).map(String::as_str);
    assert_eq!((of(ZONE), of("rack")), (Some("a"), Some("7")));
    assert_eq!(
        (of("secret"), of("warden.dev/overridden")),
        (None, Some(said))
    );
}

/// The agent goes on asserting what an override does not take for a fault: that is no quarrel, and it
/// settles all the same.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_settles_although_an_override_makes_what_it_asserts_healthy() {
    let (_cluster, agent) = agent().await;
    let never = HealthEvent {
        message: "never mind".into(),
        ..numbered(NODE, 1)
    };
    let events = [never, numbered(NODE, 2)];
    agent.sender.send(events.to_vec()).await.unwrap();
    assert_eq!(agent.open().await, ["PCI=0000:02:00"]);
    let report = agent.report(DetectorState::DetectorSettled, 2, &events);
    let report = nothing_to_send(report);
    agent.say(report.clone(), &events).await;
    assert_eq!(agent.open().await, ["PCI=0000:02:00"]);
    // Its next process says the same, and is asked for nothing.
    let mut next = report.clone();
    next.process_id = "01NEXTPROCESS".into();
    let reply = agent.sender.report(next).await.unwrap();
    assert!(
        !reply.want_list,
        "the sets differ by what was overridden alone"
    );
    assert_eq!(agent.shown().await["agent"]["state"], "settled");
    // Another fault that was lost on its way is asked for as ever.
    let lost = [events.as_slice(), &[numbered(NODE, 3)]].concat();
    let report = nothing_to_send(agent.report(DetectorState::DetectorSettled, 2, &lost));
    agent.say(report, &lost).await;
    assert_eq!(agent.open().await, ["PCI=0000:02:00", "PCI=0000:03:00"]);
}
