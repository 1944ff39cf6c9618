//! What the fence refuses, by name, and what it lets pass.

use super::*;

#[test]
fn row_049_an_unknown_root_is_refused() {
    let found = reasons("HealthEvent", "invalid.expression");
    assert_eq!(found.len(), 1);
    assert!(
        found[0].contains("\"invalid\"") && found[0].contains("\"event\""),
        "{found:?}"
    );
}

#[test]
fn the_fence_refuses_by_name() {
    let deep = format!("{}true{}", "!(".repeat(80), ")".repeat(80));
    let long = format!("event.isFatal || event.message == '{}'", "x".repeat(5000));
    let wide = format!("event.isFatal{}", "||1==1".repeat(600));
    let nested = "['a'].all(a, ['b'].all(b, ['c'].all(c, true)))";
    let table: [(&str, &str, &str); 19] = [
        ("HealthEvent", "", "empty"),
        ("HealthEvent", "event.", "not valid CEL"),
        ("HealthEvent", &deep, "deeper"),
        ("HealthEvent", &long, "bytes"),
        ("HealthEvent", &wide, "nodes"),
        ("HealthEvent", nested, "macros"),
        ("HealthEvent", "node.metadata.name == 'a'", "\"node\""),
        ("Node", "event.isFatal", "\"event\""),
        ("HealthEvent", "other == 1", "\"other\""),
        (
            "HealthEvent",
            "duration('1s') == duration('1s')",
            "not available",
        ),
        (
            "HealthEvent",
            "timestamp(event.message) == timestamp(event.message)",
            "not available",
        ),
        ("HealthEvent", "launch(event)", "launch"),
        ("HealthEvent", "event.agent", "must be a boolean"),
        (
            "HealthEvent",
            "event.errorCode.contains('48')",
            "\"48\" in event.errorCode",
        ),
        ("HealthEvent", "event.nothing == 'a'", "no field nothing"),
        ("HealthEvent", "Message{a: 1} == event", "builds"),
        (
            "Node",
            "node.status.capacity['nvidia.com/gpu'] > 8",
            "quantities are texts",
        ),
        (
            "HealthEvent",
            "event.metadata[event.agent] == 'a'",
            "full event",
        ),
        (
            "HealthEvent",
            "event.metadata == null ? 1 : true",
            "boolean",
        ),
    ];
    for (kind, expression, part) in table {
        let found = reasons(kind, expression);
        let head: String = expression.chars().take(60).collect();
        assert!(found.iter().any(|r| r.contains(part)), "{head}: {found:?}");
    }
}

#[test]
fn deep_sources_are_refused_not_crashed_on() {
    for source in [
        "(".repeat(4000),
        format!("{}1{}", "(".repeat(1500), ")".repeat(1500)),
        format!("{}1{}", "[".repeat(1500), "]".repeat(1500)),
        format!("event{}", ".a".repeat(2000)),
        format!("{}true{}", "!(".repeat(1300), ")".repeat(1300)),
        format!("true{}", " ? true : true".repeat(250)),
    ] {
        assert!(!reasons("HealthEvent", &source).is_empty());
        assert!(!reasons("Node", &source).is_empty());
    }
}

#[test]
fn the_expressions_of_the_reference_s_documents_pass() {
    let table = [
        (
            "HealthEvent",
            "event.errorCode == null || !event.errorCode.exists(e, e == '45')",
        ),
        (
            "HealthEvent",
            "event.agent.startsWith('preflight-') && event.isFatal == true",
        ),
        (
            "HealthEvent",
            "event.message.matches('^Xid.*79') || event.agent.lowerAscii() == 'a'",
        ),
        (
            "Node",
            "has(node.metadata.labels) && 'a' in node.metadata.labels",
        ),
        (
            "Node",
            "node.metadata.labels['k8saas.nvidia.com/ManagedByNVSentinel'] == 'true'",
        ),
        (
            "Node",
            "node.spec.taints.exists(t, t.key == 'a') || node.spec.unschedulable",
        ),
        (
            "Node",
            "node.status.conditions.exists(c, c.type == 'Ready' && c.status == 'True')",
        ),
    ];
    for (kind, expression) in table {
        assert_eq!(
            reasons(kind, expression),
            Vec::<String>::new(),
            "{expression}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_text_crashes_the_compiler(text in "[a-z.()!'\\[\\]{}?:&|=<> 0-9]{0,120}") {
        let _ = reasons("HealthEvent", &text);
    }
}
