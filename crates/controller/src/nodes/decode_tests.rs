use proptest::prelude::*;
use serde_json::json;

use super::*;

fn decoder() -> Decoder {
    Decoder::new(Wanted::ours("p/"))
}

fn node(line: &str) -> NodeFacts {
    match decoder().line(line.as_bytes()).unwrap() {
        (Line::Node(node), _) => node,
        other => panic!("{other:?}"),
    }
}

const FULL: &str = r#"{"type":"MODIFIED","object":{"kind":"Node","apiVersion":"v1","metadata":{
    "name":"gpu-1","uid":"u-1","resourceVersion":"42","creationTimestamp":"2026-01-02T03:04:05Z",
    "labels":{"nvidia.com/gpu.present":"true","p/cordon-by":"x","other":"y"},
    "annotations":{"warden.dev/conditions":"[\"Custom\"]","kubectl":"\"\\n\"","quarantineHealthEvent":"[]"},
    "managedFields":[{"manager":"m","fieldsV1":{"f:metadata":{}}}]},
    "spec":{"podCIDR":"10.0.0.0/24","providerID":"kwok://x","unschedulable":true,
      "taints":[{"key":"a","effect":"NoSchedule","timeAdded":"2026-01-02T03:04:05Z"},
                {"key":"b","value":"v","effect":"NoExecute"}]},
    "status":{"capacity":{"cpu":"1"},"conditions":[
      {"type":"Ready","status":"Unknown","reason":"r","message":"m","lastTransitionTime":"2026-01-02T03:04:05Z"},
      {"type":"Custom","status":"True","reason":"CustomIsNotHealthy","message":"line\n"},
      {"type":"Foreign","status":"True"},
      {"type":"SysLogsXIDError","status":"False"}],
      "nodeInfo":{"bootID":"b-1","systemUUID":"s-1","machineID":"m-1"},
      "images":[{"names":["a"],"sizeBytes":1}]}}}"#;

#[test]
fn a_node_keeps_what_is_wanted_and_skips_the_rest() {
    let node = node(FULL);
    assert_eq!(
        (node.name.as_str(), &*node.uid, node.resource_version),
        ("gpu-1", "u-1", 42)
    );
    assert_eq!(node.created_at.to_string(), "2026-01-02T03:04:05Z");
    assert_eq!(node.label("nvidia.com/gpu.present"), Some("true"));
    assert_eq!(node.label("p/cordon-by"), Some("x"));
    assert_eq!(node.label("other"), None);
    assert_eq!(node.annotation("quarantineHealthEvent"), Some("[]"));
    assert_eq!(node.annotation("kubectl"), None);
    assert_eq!((node.has_labels, node.has_annotations), (true, true));
    assert_eq!(node.unschedulable, Some(true));
    let taints = node.taints.as_deref().unwrap();
    assert_eq!((&*taints[0].key, &*taints[0].value), ("a", ""));
    assert_eq!(
        taints[0].time_added.as_deref(),
        Some("2026-01-02T03:04:05Z")
    );
    assert_eq!((&*taints[1].value, &*taints[1].effect), ("v", "NoExecute"));
    assert_eq!(node.ready, Some(ConditionStatus::Unknown));
    assert_eq!(node.ready_since, "2026-01-02T03:04:05Z".parse().ok());
    let conditions: Vec<&str> = node.conditions.iter().map(|c| &*c.kind).collect();
    assert_eq!(conditions, ["Custom", "SysLogsXIDError"]);
    assert_eq!(&*node.conditions[0].message, "line\n");
    let foreign: Vec<&str> = node.foreign_conditions.iter().map(|c| &**c).collect();
    assert_eq!(foreign, ["Foreign", "Ready"]);
    assert_eq!(
        (&*node.boot_id, &*node.system_uuid, &*node.provider_id),
        ("b-1", "s-1", "kwok://x")
    );
    assert_eq!(node.machine(), "s-1");
}

#[test]
fn absent_is_not_empty() {
    let node = node(
        r#"{"type":"ADDED","object":{"metadata":{"name":"a","uid":"u","resourceVersion":"1"}}}"#,
    );
    assert_eq!((node.has_labels, node.has_annotations), (false, false));
    assert_eq!(
        (node.unschedulable, node.taints.is_some(), node.ready),
        (None, false, None)
    );
    assert_eq!(node.machine(), "u");
}

#[test]
fn the_other_lines_of_a_watch_are_told_apart() {
    let line = |text: &str| decoder().line(text.as_bytes()).unwrap().0;
    let bookmark = line(
        r#"{"type":"BOOKMARK","object":{"kind":"Node","metadata":{"resourceVersion":"7",
            "annotations":{"k8s.io/initial-events-end":"true"}},"spec":{},"status":{
            "daemonEndpoints":{"kubeletEndpoint":{"Port":0}},"nodeInfo":{"bootID":""}}}}"#,
    );
    let Line::Bookmark {
        resource_version,
        initial_end,
    } = bookmark
    else {
        panic!()
    };
    assert_eq!((resource_version.as_str(), initial_end), ("7", true));
    let error = line(
        r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},
            "status":"Failure","message":"too old resource version","reason":"Expired","code":410}}"#,
    );
    assert!(matches!(error, Line::Error { code: 410, .. }));
    let gone = line(r#"{"type":"DELETED","object":{"metadata":{"name":"a","uid":"u"}}}"#);
    assert!(matches!(gone, Line::Gone(name) if name.as_str() == "a"));
}

#[test]
fn what_is_no_node_is_an_error() {
    for bad in [
        "",
        "{}",
        "[]",
        r#"{"type":"ADDED","object":{"metadata":{"name":"A b"}}}"#,
    ] {
        assert!(decoder().line(bad.as_bytes()).is_err(), "{bad}");
    }
}

/// Any JSON, a few levels deep.
fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        "[a-z/.\\PC]{0,12}".prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        let key = prop_oneof![
            Just("name".to_owned()),
            Just("key".to_owned()),
            Just("type".to_owned()),
            Just("status".to_owned()),
            Just("effect".to_owned()),
            ".{0,8}"
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::btree_map(key, inner, 0..4)
                .prop_map(|map| map.into_iter().collect::<serde_json::Value>()),
        ]
    })
}

/// Where a node has what we read.
const PLACES: [&str; 16] = [
    "/type",
    "/object",
    "/object/metadata",
    "/object/metadata/name",
    "/object/metadata/uid",
    "/object/metadata/resourceVersion",
    "/object/metadata/creationTimestamp",
    "/object/metadata/labels",
    "/object/metadata/annotations",
    "/object/metadata/managedFields",
    "/object/spec",
    "/object/spec/unschedulable",
    "/object/spec/taints",
    "/object/status",
    "/object/status/conditions",
    "/object/status/nodeInfo",
];

proptest! {
    #[test]
    fn any_value_in_any_place_is_read_or_refused(
        place in prop::sample::select(&PLACES[..]),
        value in any_json(),
    ) {
        let mut line: serde_json::Value = serde_json::from_str(FULL).unwrap();
        *line.pointer_mut(place).unwrap() = value;
        let mut decoder = decoder();
        drop(decoder.line(line.to_string().as_bytes()));
        let list = json!({ "kind": "NodeList", "metadata": { "resourceVersion": "1" },
                           "items": [line["object"]] });
        drop(decoder.page(list.to_string().as_bytes()));
        drop(decoder.node(line["object"].to_string().as_bytes()));
        // What came before does not change what comes after.
        let (Line::Node(after), _) = decoder.line(FULL.as_bytes()).unwrap() else { panic!() };
        prop_assert_eq!(format!("{after:?}"), format!("{:?}", node(FULL)));
    }

    #[test]
    fn damaged_bytes_are_read_or_refused(
        start in any::<prop::sample::Index>(),
        length in 0..60_usize,
        with in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let full = FULL.as_bytes();
        let from = start.index(full.len());
        let to = (from + length).min(full.len());
        for end in [&full[to..], &[]] {
            let bytes = [&full[..from], &with, end].concat();
            drop((decoder().line(&bytes), decoder().page(&bytes), decoder().node(&bytes)));
        }
    }

    #[test]
    fn what_we_do_not_read_changes_nothing(value in any_json()) {
        let mut line: serde_json::Value = serde_json::from_str(FULL).unwrap();
        let without = node(&line.to_string());
        line["object"]["spec"]["unknown"] = value.clone();
        line["object"]["status"]["images"] = value.clone();
        line["object"]["unknown"] = value;
        let with = node(&line.to_string());
        prop_assert_eq!(format!("{with:?}"), format!("{without:?}"));
    }
}
