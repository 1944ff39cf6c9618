use decide::quarantine::{Preconditions, WriteKind};
use health_event::NodeName;
use health_event::incident::Taint;

use super::*;

fn write() -> NodeWrite {
    NodeWrite {
        node: NodeName::new("n").unwrap(),
        kind: WriteKind::Apply,
        test: Preconditions {
            uid: "u".into(),
            incident: None,
            unschedulable: None,
            taints: None,
            annotations_absent: false,
            labels_absent: false,
        },
        unschedulable: None,
        taints: None,
        annotations: BTreeMap::new(),
        labels: BTreeMap::new(),
        health_events: None,
    }
}

fn taint(key: &str, value: &str, time_added: Option<&str>) -> TaintRead {
    TaintRead {
        taint: Taint {
            key: key.into(),
            value: value.into(),
            effect: "NoSchedule".into(),
        },
        time_added: time_added.map(str::to_owned),
    }
}

#[test]
fn a_cordon_tests_what_it_changes() {
    let mut write = write();
    write.test.unschedulable = Some(None);
    write.unschedulable = Some(true);
    write.annotations = [
        (Annotation::Incident, Some("{}".to_owned())),
        (Annotation::UncordonedManually, None),
    ]
    .into();
    write.labels = [
        (Label::CordonBy, Some("Warden".to_owned())),
        (Label::State, Some("quarantined".to_owned())),
    ]
    .into();
    let want = json!([
        { "op": "test", "path": "/metadata/uid", "value": "u" },
        { "op": "test", "path": "/metadata/annotations/warden.dev~1incident", "value": null },
        { "op": "test", "path": "/spec/unschedulable", "value": null },
        { "op": "add", "path": "/spec/unschedulable", "value": true },
        { "op": "remove", "path": "/metadata/annotations/quarantinedNodeUncordonedManually" },
        { "op": "add", "path": "/metadata/annotations/warden.dev~1incident", "value": "{}" },
        { "op": "add", "path": "/metadata/labels/dgxc.nvidia.com~1nvsentinel-state",
          "value": "quarantined" },
        { "op": "add", "path": "/metadata/labels/p~1cordon-by", "value": "Warden" },
    ]);
    assert_eq!(node_patch(&write, "p/"), want);
}

#[test]
fn maps_that_are_absent_are_tested_and_added_whole() {
    let mut write = write();
    write.test.annotations_absent = true;
    write.test.labels_absent = true;
    write.annotations = [(Annotation::IsCordoned, Some("True".to_owned()))].into();
    write.labels = [(Label::CordonBy, Some("Warden".to_owned()))].into();
    let want = json!([
        { "op": "test", "path": "/metadata/uid", "value": "u" },
        { "op": "test", "path": "/metadata/annotations", "value": null },
        { "op": "test", "path": "/metadata/labels", "value": null },
        { "op": "add", "path": "/metadata/annotations",
          "value": { "quarantineHealthEventIsCordoned": "True" } },
        { "op": "add", "path": "/metadata/labels", "value": { "cordon-by": "Warden" } },
    ]);
    assert_eq!(node_patch(&write, ""), want);
}

#[test]
fn taints_are_tested_and_written_as_a_whole_list_and_keep_their_time() {
    let foreign = taint("foreign", "", Some("2026-01-02T03:04:05Z"));
    let mut write = write();
    write.test.taints = Some(Some(vec![foreign.clone()]));
    write.taints = Some(vec![foreign.clone(), taint("ours", "true", None)]);
    let foreign_json = json!({ "key": "foreign", "effect": "NoSchedule",
                               "timeAdded": "2026-01-02T03:04:05Z" });
    let patch = node_patch(&write, "");
    assert_eq!(
        patch[2],
        json!({ "op": "test", "path": "/spec/taints", "value": [foreign_json] })
    );
    assert_eq!(
        patch[3],
        json!({ "op": "add", "path": "/spec/taints", "value": [
            foreign_json, { "key": "ours", "value": "true", "effect": "NoSchedule" }] })
    );
    write.test.taints = Some(None);
    assert_eq!(node_patch(&write, "")[2]["value"], Value::Null);
}

#[test]
fn a_release_removes_the_fields() {
    let mut write = write();
    write.test.incident = Some("{}".to_owned());
    write.test.unschedulable = Some(Some(true));
    write.test.taints = Some(Some(vec![taint("ours", "true", None)]));
    write.unschedulable = Some(false);
    write.taints = Some(Vec::new());
    let patch = node_patch(&write, "");
    assert_eq!(patch[1]["value"], "{}");
    assert_eq!(patch[2]["value"], true);
    assert_eq!(
        patch[4],
        json!({ "op": "remove", "path": "/spec/unschedulable" })
    );
    assert_eq!(patch[5], json!({ "op": "remove", "path": "/spec/taints" }));
}
