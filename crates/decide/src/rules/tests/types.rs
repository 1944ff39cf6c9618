//! Rules that can never match, or not as they read.

use std::sync::LazyLock;

use super::super::types::check;
use super::*;

fn warnings(kind: &str, expression: &str) -> Vec<String> {
    let config = set("s", vec![rule(kind, expression)], Vec::new());
    let sets = RuleSets::compile(&[config]).unwrap_or_else(|e| panic!("{expression}: {e:?}"));
    let warnings = sets.warnings().iter();
    warnings.map(|warning| warning.reason.clone()).collect()
}

#[test]
fn an_event_rule_that_can_never_match_is_refused_with_the_part_and_what_to_write() {
    for (expression, want) in NEVER_AN_EVENT {
        let found = reasons("HealthEvent", expression);
        let told = found.iter().any(|reason| reason.contains(want));
        assert!(told, "{expression}: {found:#?}");
    }
}

const NEVER_AN_EVENT: [(&str, &str); 33] = [
    (
        "event.isFatal == \"true\"",
        "can never match: event.isFatal == \"true\" compares a boolean with a text, which is \
             never true: write true",
    ),
    (
        "event.agent == 'a' && event.isFatal == 1",
        "write true or false",
    ),
    (
        "event.errorCode[0] == 79",
        "event.errorCode[0] == 79 compares a text with a number, which is never true: write '79'",
    ),
    (
        "79 in event.errorCode",
        "each element is a text, so it is never true: write '79'",
    ),
    ("event.errorCode == '79'", "write \"79\" in event.errorCode"),
    ("event.errorCode == 79", "write '79' in event.errorCode"),
    ("event.errorCode == [79]", "never true"),
    ("event.errorCode == []", "an empty one is null or absent"),
    (
        "event.errorCode.exists(c, c == 79)",
        "c == 79 compares a text with a number",
    ),
    (
        "event.agent == 'a' && event.isfatal == true",
        "event has no field isfatal: write event.isFatal",
    ),
    (
        "event.agent == 'a' && event.errorCodes != null",
        "write event.errorCode",
    ),
    (
        "event.agent == 'a' && event.error_code != null",
        "write event.errorCode",
    ),
    (
        "event.agent == 'a' && event.rack == 'r7'",
        "its fields are version, agent,",
    ),
    (
        "event.agent == 'a' && event['isfatal']",
        "write event.isFatal",
    ),
    ("has(event.isfatal)", "write event.isFatal"),
    ("'isfatal' in event", "write event.isFatal"),
    (
        "event.entitiesImpacted.exists(e, e.type == 'GPU')",
        "e has no field type: its fields are entityType, entityValue",
    ),
    (
        "event.agent == 'a' && event.entitiesImpacted.entityType == 'GPU'",
        "write event.entitiesImpacted.exists(e, e.entityType …)",
    ),
    (
        "'GPU' in event.entitiesImpacted",
        "write event.entitiesImpacted.exists(e, e.entityType == …)",
    ),
    ("event.recommendedAction == 'RESTART_BM'", "write 24"),
    (
        "event.recommendedAction in ['RESTART_BM', 'RESTART_VM']",
        "write a number",
    ),
    ("event.processingStrategy == 'STORE_ONLY'", "write 2"),
    ("event.metadata['rack'] == 7", "write '7'"),
    (
        "event.agent == 'a' && event.metadata[7] == 'r'",
        "its keys are texts",
    ),
    ("event.agent == null", "an empty text is ''"),
    (
        "event.agent == 'a' && 'bus' in event.message",
        "write event.message.contains(\"bus\")",
    ),
    (
        "event.agent == 'a' && event.errorCode.contains('48')",
        "write \"48\" in event.errorCode",
    ),
    (
        "event.agent == 'a' && event.version.startsWith('1')",
        "startsWith is for texts",
    ),
    (
        "event.agent == 'a' && event.message.contains(79)",
        "contains is for texts, and 79 is a number",
    ),
    (
        "event.agent == 'a' && event.version > '1'",
        "puts a number and a text in order",
    ),
    (
        "event.agent == 'a' && event.message.all(c, c == 'x')",
        "has no elements",
    ),
    (
        "event.agent == 'a' && event.quarantineOverrides",
        "must be a boolean",
    ),
    (
        "event.isFatal ? event.agent == 1 : event.agent == 2",
        "event.agent == 2",
    ),
];

#[test]
fn a_node_rule_that_can_never_match_is_refused_with_the_part_and_what_to_write() {
    let table = [
        (
            "node.labels['pool'] == 'train'",
            "node has no field labels: write node.metadata.labels",
        ),
        ("has(node.labels)", "write node.metadata.labels"),
        (
            "node.metadata.label['pool'] == 'train'",
            "write node.metadata.labels",
        ),
        ("node.metadata.labels['pool'] == true", "write 'true'"),
        (
            "node.metadata.labels.exists(l, l.key == 'pool')",
            "l is a text and has no field key",
        ),
        ("node.spec.unschedulable == 'true'", "write true"),
        ("node.spec.taints == null", "write !has(node.spec.taints)"),
        (
            "'dedicated' in node.spec.taints",
            "write node.spec.taints.exists(e, e.key == …)",
        ),
        (
            "node.status.capacity['nvidia.com/gpu'] > 8",
            "or int(node.status.capacity[",
        ),
        (
            "node.status.conditions['Ready'] == 'True'",
            "its index must be a number",
        ),
    ];
    for (expression, want) in table {
        let found = reasons("Node", expression);
        let told = found.iter().any(|reason| reason.contains(want));
        assert!(told, "{expression}: {found:#?}");
    }
}

#[test]
fn the_error_names_rule_set_list_and_place() {
    let config = set(
        "mine",
        Vec::new(),
        event_rules(&["event.isFatal", "event.isFatal == 'true'"]),
    );
    let said = RuleSets::compile(&[config]).unwrap_err()[0].to_string();
    assert!(
        said.starts_with("rule set \"mine\", any[1]: can never match: event.isFatal == \"true\""),
        "{said}"
    );
}

#[test]
fn a_part_that_says_nothing_is_a_warning_where_the_rule_may_match() {
    let table = [
        (
            "HealthEvent",
            "event.agent == 'a' || event.isFatal == 'true'",
            "never true: write true",
        ),
        (
            "HealthEvent",
            "event.isFatal != 'true'",
            "always true: write true",
        ),
        ("HealthEvent", "!(79 in event.errorCode)", "write '79'"),
        (
            "HealthEvent",
            "event.errorCode == null || !event.errorCode.exists(e, e == 45)",
            "write '45'",
        ),
        (
            "HealthEvent",
            "!has(event.isfatal) && event.isFatal",
            "write event.isFatal",
        ),
        (
            "Node",
            "!('pool' in node.labels) || node.metadata.name == 'a'",
            "write node.metadata.labels",
        ),
        (
            "Node",
            "!has(node.spec.unschedulabel)",
            "node.spec has no field unschedulabel",
        ),
    ];
    for (kind, expression, want) in table {
        let found = warnings(kind, expression);
        assert!(
            found.len() == 1 && found[0].contains(want),
            "{expression}: {found:?}"
        );
    }
}

#[test]
fn what_is_right_or_not_known_raises_no_alarm() {
    let table = [
        (
            "HealthEvent",
            "event.recommendedAction == 15 || event.recommendedAction in [15, 24]",
        ),
        (
            "HealthEvent",
            "event.message != null && event.message != ''",
        ),
        (
            "HealthEvent",
            "event.metadata.rack == 'r7' || 'x' in event.metadata",
        ),
        (
            "HealthEvent",
            "event.metadata['count'] == '7' && int(event.metadata['count']) > 3",
        ),
        (
            "HealthEvent",
            "event.errorCode.map(c, int(c)).exists(n, n > 40 && n < 80)",
        ),
        ("HealthEvent", "event.errorCode.filter(c, c == '79') != []"),
        (
            "HealthEvent",
            "size(event.errorCode.filter(c, c == '79')) == 1",
        ),
        ("HealthEvent", "event.errorCode.exists_one(c, c == '79')"),
        (
            "HealthEvent",
            "event.errorCode.join(',') == '79' && event.version + 1 == 2",
        ),
        ("HealthEvent", "(event.isFatal ? 'a' : 'b') == event.agent"),
        ("HealthEvent", "event.errorCode == event.entitiesImpacted"),
        (
            "HealthEvent",
            "event.agent in ['a', 'b'] && event.agent < 'c'",
        ),
        (
            "HealthEvent",
            "event.generatedTimestamp.seconds > 0 && event.drainOverrides != null",
        ),
        ("HealthEvent", "[1, 'a'].exists(x, x == event.agent)"),
        ("HealthEvent", "true"),
        (
            "Node",
            "node.metadata.labels != null && node.metadata.labels == {}",
        ),
        (
            "Node",
            "node.metadata.labels['nvidia.com/gpu.count'] == '8'",
        ),
        (
            "Node",
            "int(node.metadata.labels['nvidia.com/gpu.count']) > 4",
        ),
        (
            "Node",
            "has(node.spec.taints) && node.spec.taints.exists(t, t.key == 'a' && has(t.value))",
        ),
        (
            "Node",
            "node.status.nodeInfo.kubeletVersion.startsWith('v1.3')",
        ),
        ("Node", "node.status.images.exists(i, i.sizeBytes > 5)"),
        (
            "Node",
            "node.metadata.generation > 3 && 'Ready' in node.status.conditions.map(c, c.type)",
        ),
    ];
    for (kind, expression) in table {
        assert_eq!(
            warnings(kind, expression),
            Vec::<String>::new(),
            "{expression}"
        );
    }
    let all_false = RuleSets::compile(&[set("off", event_rules(&["false"]), Vec::new())]);
    assert!(
        all_false.unwrap().warnings().is_empty(),
        "never to match was asked for"
    );
}

/// The sets of the reference's chart, demo, end-to-end tests and documents (quarantine 4).
#[test]
fn the_references_rule_sets_and_ours_raise_no_alarm() {
    assert!(RuleSets::compile(&shipped()).unwrap().warnings().is_empty());
    let events = [
        "event.agent == 'memory-pressure-monitor' && event.componentClass == 'Memory' && event.isFatal == true",
        "event.agent == 'gpu-health-monitor' && event.checkName == 'GpuXidError'",
        "event.agent == 'syslog-health-monitor' && event.componentClass == 'GPU' && event.isFatal == true",
        "event.agent == 'a' && (event.errorCode == null || !event.errorCode.exists(e, e == '45'))",
        "'31' in event.errorCode || '42' in event.errorCode",
        "event.checkName in ['Test', 'Both'] && event.isFatal == true",
        "event.recommendedAction == 15",
    ];
    let nodes = [
        "!('k8saas.nvidia.com/ManagedByNVSentinel' in node.metadata.labels && \
         node.metadata.labels['k8saas.nvidia.com/ManagedByNVSentinel'] == \"false\")",
        "has(node.metadata.labels) && 'a' in node.metadata.labels",
        "node.metadata.labels['k8saas.nvidia.com/ManagedByNVSentinel'] == 'true'",
    ];
    for expression in events {
        assert_eq!(
            warnings("HealthEvent", expression),
            Vec::<String>::new(),
            "{expression}"
        );
    }
    for expression in nodes {
        assert_eq!(
            warnings("Node", expression),
            Vec::<String>::new(),
            "{expression}"
        );
    }
}

fn value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("event.isFatal"),
        Just("event.version"),
        Just("event.agent"),
        Just("event.errorCode"),
        Just("event.metadata"),
        Just("event.entitiesImpacted"),
        Just("event.quarantineOverrides"),
        Just("event.isfatal"),
        Just("event"),
        Just("null"),
        Just("true"),
        Just("'true'"),
        Just("'79'"),
        Just("79"),
        Just("1.0"),
        Just("[]"),
        Just("{}"),
        Just("['79', 'a']"),
        Just("[79, 'a']"),
    ];
    leaf.prop_map(str::to_owned)
        .prop_recursive(4, 24, 3, |part| {
            let pair = (part.clone(), part.clone());
            let operators = ["==", "!=", "<", ">=", "in", "&&", "||", "+"];
            prop_oneof![
                4 => (pair.clone(), proptest::sample::select(operators.to_vec()))
                    .prop_map(|((a, b), o)| format!("({a} {o} {b})")),
                2 => part.clone().prop_map(|a| format!("!({a})")),
                1 => pair.clone().prop_map(|(a, b)| format!("({a})[{b}]")),
                1 => part.clone().prop_map(|a| format!("({a}).entityType")),
                1 => part.clone().prop_map(|a| format!("has(({a}).isfatal)")),
                1 => part.clone().prop_map(|a| format!("has(({a}).force)")),
                1 => part.clone().prop_map(|a| format!("size({a})")),
                1 => pair.clone().prop_map(|(a, b)| format!("({a}).contains({b})")),
                2 => (pair.clone(), proptest::sample::select(vec!["exists", "all", "exists_one"]))
                    .prop_map(|((a, b), m)| format!("({a}).{m}(x, x == {b})")),
                1 => pair.clone().prop_map(|(a, b)| format!("({a}).filter(x, x != {b})")),
                1 => pair.clone().prop_map(|(a, b)| format!("({a}).exists(x, {b} in x)")),
                1 => pair.clone().prop_map(|(a, b)| format!("({a}).map(x, {b})")),
                1 => (pair, part).prop_map(|((a, b), c)| format!("(({a}) ? {b} : {c})")),
            ]
        })
}

static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(environment()));

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn what_matches_any_event_may_match(
        expression in value(),
        full: bool,
        fatal: bool,
        agent in prop_oneof![Just("true"), Just("79"), Just("")],
    ) {
        let Ok(program) = ENVIRONMENT.compile(&expression) else { return Ok(()) };
        let mut event = event(agent, "c", fatal, if full { &["79"] } else { &[] });
        if full {
            event.version = 79;
            event.entities = vec![Entity::new("GPU", "79")];
            event.metadata.insert("79".into(), "true".into());
            event.quarantine_overrides = Some(BehaviourOverrides { force: fatal, skip: !fatal });
        }
        let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
        context.add_variable_as_val("event", Box::new(EventValue(&event, Seen::ByRules)));
        if verdict(&program, &context) == Ok(true) {
            let found = check(Root::Event, program.expression());
            prop_assert!(found.may_match, "{expression}: {:?}", found.mistakes);
        }
    }
}
