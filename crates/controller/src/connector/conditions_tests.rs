use super::*;
use crate::nodes::Wanted;

fn node() -> NodeFacts {
    crate::nodes::decoded(
        r#"{"type":"ADDED","object":{"metadata":{"name":"n","uid":"u","resourceVersion":"1"}}}"#,
        Wanted::ours(""),
    )
}

#[test]
fn one_patch_carries_conditions_removals_and_the_list() {
    let at: Timestamp = "2026-01-02T03:04:05.678Z".parse().unwrap();
    let write = StatusWrite {
        set: vec![
            Condition {
                kind: "A".into(),
                is_true: true,
                reason: "AIsNotHealthy".into(),
                message: "m;".into(),
                heartbeat_at: at,
                transition_at: Some(at),
            },
            Condition {
                kind: "B".into(),
                is_true: false,
                reason: "BIsHealthy".into(),
                message: "No Health Failures".into(),
                heartbeat_at: at,
                transition_at: None,
            },
        ],
        remove: ["C".to_owned()].into(),
        listed: Some(["A", "B"].map(String::from).into()),
    };
    let want = json!({
        "metadata": { "uid": "u", "annotations": { "warden.dev/conditions": "[\"A\",\"B\"]" } },
        "status": { "conditions": [
            { "type": "A", "status": "True", "reason": "AIsNotHealthy", "message": "m;",
              "lastHeartbeatTime": "2026-01-02T03:04:05Z",
              "lastTransitionTime": "2026-01-02T03:04:05Z" },
            { "type": "B", "status": "False", "reason": "BIsHealthy",
              "message": "No Health Failures", "lastHeartbeatTime": "2026-01-02T03:04:05Z" },
            { "$patch": "delete", "type": "C" },
        ] },
    });
    assert_eq!(status_patch(&node(), &write), want);
}
