//! From a decided change to a write of the object's status, and what the write made of it.

use decide::janitor::StatusChange;
use jiff::Timestamp;
use k8s_api::reboot_node::{Condition, MANUAL_MODE, NODE_READY, RebootNode, SIGNAL_SENT};
use serde_json::{Value, json};

/// The reference's words.
const MANUAL: &str = "Janitor is in manual mode, outside actor required to send reboot signal";
/// Longest message of a condition (Kubernetes).
const LONGEST_MESSAGE: usize = 32_768;

/// A merge patch of the status that holds for this version of the object only. Conditions of others
/// stay; times that stand stay.
pub(super) fn patch(object: &RebootNode, change: &StatusChange, now: Timestamp) -> Value {
    let mut status = serde_json::Map::new();
    let times = [
        ("startTime", object.status.start_time, change.started_at),
        (
            "completionTime",
            object.status.completion_time,
            change.completed_at,
        ),
    ];
    for (key, stands, wanted) in times {
        if let (None, Some(at)) = (stands, wanted) {
            status.insert(key.to_owned(), json!(in_seconds(at)));
        }
    }
    let mut conditions = object.status.conditions.clone();
    let wanted = [
        (SIGNAL_SENT, &change.signal),
        (NODE_READY, &change.node_ready),
    ];
    for (kind, wanted) in wanted {
        let Some(wanted) = wanted else { continue };
        let status = match wanted.status {
            Some(true) => "True",
            Some(false) => "False",
            None => "Unknown",
        };
        set(
            &mut conditions,
            (kind, status, wanted.reason, &wanted.message),
            now,
        );
    }
    if change.manual {
        let manual = (MANUAL_MODE, "True", "OutsideActorRequired", MANUAL);
        set(&mut conditions, manual, now);
    }
    if conditions != object.status.conditions {
        status.insert("conditions".to_owned(), json!(conditions));
    }
    json!({
        "metadata": {
            "uid": object.metadata.uid,
            "resourceVersion": object.metadata.resource_version,
        },
        "status": status,
    })
}

/// Sets a condition; one that says the same already stays as it is.
fn set(
    conditions: &mut Vec<Condition>,
    (kind, status, reason, message): (&str, &str, &str, &str),
    now: Timestamp,
) {
    let message: String = message.chars().take(LONGEST_MESSAGE).collect();
    let known = conditions.iter_mut().find(|c| c.kind == kind);
    let before = known.as_deref();
    if before.is_some_and(|c| (&*c.status, &*c.reason, &c.message) == (status, reason, &message)) {
        return;
    }
    let since = before.filter(|c| c.status == status);
    let since = since.and_then(|c| c.last_transition_time);
    let new = Condition {
        kind: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        last_transition_time: Some(since.unwrap_or_else(|| in_seconds(now))),
        observed_generation: before.and_then(|c| c.observed_generation),
    };
    match known {
        Some(known) => *known = new,
        None => conditions.push(new),
    }
}

/// As Kubernetes keeps times: whole seconds.
fn in_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(status: &Value) -> RebootNode {
        serde_json::from_value(json!({
            "metadata": { "name": "r", "uid": "u", "resourceVersion": "7" },
            "spec": { "nodeName": "n" },
            "status": status,
        }))
        .unwrap()
    }

    fn condition(
        status: Option<bool>,
        reason: &'static str,
        message: &str,
    ) -> decide::janitor::Condition {
        decide::janitor::Condition {
            status,
            reason,
            message: message.to_owned(),
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn r15_r16_r18_r19_conditions_are_appended_replaced_in_place_and_kept() {
        let change = StatusChange {
            started_at: Some(at(5)),
            signal: Some(condition(Some(true), "Succeeded", "ref")),
            ..StatusChange::default()
        };
        let made = patch(&object(&json!({})), &change, at(9));
        assert_eq!(
            made["metadata"],
            json!({ "uid": "u", "resourceVersion": "7" })
        );
        assert_eq!(made["status"]["startTime"], "1970-01-01T00:00:05Z");
        assert!(made["status"].get("completionTime").is_none());
        let sent = &made["status"]["conditions"][0];
        assert_eq!(sent["message"], "ref");
        assert_eq!(sent["lastTransitionTime"], "1970-01-01T00:00:09Z");

        let before = json!({ "startTime": "1970-01-01T00:00:05Z", "conditions": [
            { "type": "Others", "status": "True", "reason": "R", "message": "m",
              "lastTransitionTime": "1970-01-01T00:00:01Z" },
            { "type": "SignalSent", "status": "Unknown", "reason": "Initializing", "message": "",
              "lastTransitionTime": "1970-01-01T00:00:01Z", "observedGeneration": 3 },
        ]});
        let change = StatusChange {
            completed_at: Some(at(8)),
            ..change
        };
        let made = patch(&object(&before), &change, at(9));
        assert!(made["status"].get("startTime").is_none(), "it stands");
        assert_eq!(made["status"]["completionTime"], "1970-01-01T00:00:08Z");
        let conditions = made["status"]["conditions"].as_array().unwrap();
        assert_eq!(conditions[0], before["conditions"][0]);
        assert_eq!(conditions[1]["status"], "True");
        assert_eq!(conditions[1]["observedGeneration"], 3);
        assert_eq!(conditions.len(), 2);
    }

    #[test]
    fn the_same_again_changes_nothing_and_another_reason_not_the_time() {
        let before = json!({ "conditions": [
            { "type": "NodeReady", "status": "Unknown", "reason": "Initializing", "message": "m",
              "lastTransitionTime": "1970-01-01T00:00:01Z" },
        ]});
        let change = |reason| StatusChange {
            node_ready: Some(condition(None, reason, "m")),
            ..StatusChange::default()
        };
        let same = patch(&object(&before), &change("Initializing"), at(9));
        assert!(same["status"].get("conditions").is_none());
        let other = patch(&object(&before), &change("Other"), at(9));
        let written = &other["status"]["conditions"][0];
        assert_eq!(written["lastTransitionTime"], "1970-01-01T00:00:01Z");
        assert_eq!(written["reason"], "Other");
    }
}
