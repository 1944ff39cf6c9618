use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use health_event::incident::Taint;
use health_event::{
    BehaviourOverrides, Entity, HealthEvent, ProcessingStrategy, RecommendedAction,
};
use proptest::prelude::*;

use super::*;

mod cost;

const OPT_OUT: &str = "k8saas.nvidia.com/ManagedByNVSentinel";

fn rule(kind: &str, expression: &str) -> RuleConfig {
    RuleConfig {
        kind: kind.to_owned(),
        expression: expression.to_owned(),
    }
}

fn event_rules(expressions: &[&str]) -> Vec<RuleConfig> {
    expressions.iter().map(|e| rule("HealthEvent", e)).collect()
}

fn set(name: &str, all: Vec<RuleConfig>, any: Vec<RuleConfig>) -> RuleSetConfig {
    RuleSetConfig {
        name: name.to_owned(),
        enabled: true,
        all,
        any,
        cordon: true,
        ..RuleSetConfig::default()
    }
}

fn event(agent: &str, check: &str, fatal: bool, codes: &[&str]) -> HealthEvent {
    HealthEvent {
        agent: agent.to_owned(),
        component_class: "GPU".to_owned(),
        check_name: check.to_owned(),
        is_fatal: fatal,
        error_codes: codes.iter().map(|c| (*c).to_owned()).collect(),
        ..HealthEvent::default()
    }
}

fn labels(pairs: &[(&str, &str)]) -> NodeValue {
    let text = |t: &&str| NodeValue::Text((*t).to_owned());
    let labels = pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), text(v)))
        .collect();
    let mut metadata = BTreeMap::from([("name".to_owned(), NodeValue::Text("n".to_owned()))]);
    if !pairs.is_empty() {
        metadata.insert("labels".to_owned(), NodeValue::Map(labels));
    }
    NodeValue::Map(BTreeMap::from([(
        "metadata".to_owned(),
        NodeValue::Map(metadata),
    )]))
}

/// (matches, number of errors) of one set on one event and node.
fn outcome(config: RuleSetConfig, event: &HealthEvent, node: &NodeValue) -> (bool, usize) {
    let sets = RuleSets::compile(&[config]).unwrap();
    let matches = sets.evaluate(event, || node.clone());
    (!matches.matched.is_empty(), matches.errors.len())
}

fn evaluate_all(expressions: &[&str], event: &HealthEvent) -> (bool, usize) {
    outcome(
        set("s", event_rules(expressions), Vec::new()),
        event,
        &labels(&[]),
    )
}

fn evaluate_any(expressions: &[&str], event: &HealthEvent) -> (bool, usize) {
    outcome(
        set("s", Vec::new(), event_rules(expressions)),
        event,
        &labels(&[]),
    )
}

fn reasons(kind: &str, expression: &str) -> Vec<String> {
    let config = set("s", vec![rule(kind, expression)], Vec::new());
    match RuleSets::compile(&[config]) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.into_iter().map(|e| e.reason).collect(),
    }
}

// An error at evaluation: null has no members.
const FAILS: &str = "event.errorCode.exists(e, e == '79')";

#[test]
fn row_044_a_code_of_the_list_matches() {
    let either =
        ["event.errorCode != null && ('31' in event.errorCode || '42' in event.errorCode)"];
    let plain = ["'31' in event.errorCode || '42' in event.errorCode"];
    for rules in [either, plain] {
        assert_eq!(
            evaluate_all(&rules, &event("a", "c", true, &["31"])),
            (true, 0)
        );
    }
}

#[test]
fn row_045_another_code_fails_without_error() {
    let rules = ["'31' in event.errorCode || '42' in event.errorCode"];
    assert_eq!(
        evaluate_all(&rules, &event("a", "c", true, &["50"])),
        (false, 0)
    );
}

fn not_opted_out(node: &NodeValue) -> (bool, usize) {
    let n0 = shipped()[0].all[1].clone();
    outcome(
        set("s", vec![n0], Vec::new()),
        &event("a", "c", true, &[]),
        node,
    )
}

#[test]
fn row_046_a_node_that_opts_in_matches() {
    assert_eq!(not_opted_out(&labels(&[(OPT_OUT, "true")])), (true, 0));
}

#[test]
fn row_048_a_node_that_opts_out_fails_without_error() {
    assert_eq!(not_opted_out(&labels(&[(OPT_OUT, "false")])), (false, 0));
}

#[test]
fn a_node_without_labels_or_with_others_has_not_opted_out() {
    assert_eq!(not_opted_out(&labels(&[])), (true, 0));
    assert_eq!(not_opted_out(&labels(&[("zone", "a")])), (true, 0));
    assert_eq!(not_opted_out(&NodeValue::Map(BTreeMap::new())), (true, 0));
}

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
fn row_050_the_event_has_every_field_in_the_reference_s_form() {
    let event = HealthEvent {
        id: "i".into(),
        version: 1,
        agent: "gpu-health-monitor".into(),
        component_class: "GPU".into(),
        check_name: "GpuXidError".into(),
        is_fatal: true,
        message: "m".into(),
        recommended_action: RecommendedAction::RestartVm,
        error_codes: vec!["79".into()],
        entities: vec![Entity::new("GPU", "0")],
        metadata: BTreeMap::from([("k".into(), "v".into())]),
        generated_at: Some("2026-01-02T03:04:05.000000006Z".parse().unwrap()),
        node_name: "n".into(),
        drain_overrides: Some(BehaviourOverrides {
            force: true,
            skip: false,
        }),
        strategy: ProcessingStrategy::StoreOnly,
        ..HealthEvent::default()
    };
    let holds = [
        "event.id == 'i' && event.version == 1.0 && event.agent == 'gpu-health-monitor'",
        "event.componentClass == 'GPU' && event.checkName == 'GpuXidError'",
        "event.isFatal == true && event.isHealthy == false && event.message == 'm'",
        "event.recommendedAction == 15 && event.recommendedAction == 15.0",
        "event.errorCode == ['79'] && event.errorCode[0] == '79' && size(event.errorCode) == 1",
        "event.entitiesImpacted[0].entityType == 'GPU' && event.entitiesImpacted[0].entityValue == '0'",
        "event.entitiesImpacted.exists(e, e.entityType == 'GPU' && e.entityValue == '0')",
        "event.metadata['k'] == 'v' && 'k' in event.metadata && !('x' in event.metadata)",
        "event.generatedTimestamp.seconds == 1767323045.0 && event.generatedTimestamp.nanos == 6.0",
        "event.nodeName == 'n' && event.customRecommendedAction == ''",
        "event.quarantineOverrides == null && event.drainOverrides.force == true",
        "event.processingStrategy == 2",
        "has(event.errorCode) && 'agent' in event && !('nothing' in event)",
    ];
    for expression in holds {
        let sets = compile_unfenced(expression);
        assert_eq!(verdict(&sets, &context(&event)), Ok(true), "{expression}");
    }
    let empty = HealthEvent::default();
    for field in [
        "errorCode",
        "entitiesImpacted",
        "metadata",
        "generatedTimestamp",
        "quarantineOverrides",
        "drainOverrides",
    ] {
        let expression = format!("event.{field} == null");
        assert_eq!(
            verdict(&compile_unfenced(&expression), &context(&empty)),
            Ok(true),
            "{field}"
        );
    }
}

fn compile_unfenced(expression: &str) -> cel::Program {
    environment().compile(expression).unwrap()
}

fn context(event: &HealthEvent) -> Context<'_, '_> {
    let mut context = Context::with_env(Arc::new(environment()));
    context.add_variable_as_val("event", Box::new(EventValue(event)));
    context
}

#[test]
fn any_and_all_follow_the_reference_s_table() {
    row_052_any_of_failures_fails_without_error();
    row_053_any_of_an_error_fails_with_it();
    row_054_any_success_hides_the_errors_before_it();
    row_056_all_successes_match();
    row_057_all_with_a_failure_fails_without_error();
    row_058_all_with_an_error_fails_with_it();
}

#[test]
fn row_052_any_of_failures_fails_without_error() {
    assert_eq!(
        evaluate_any(
            &["event.isHealthy", "event.isHealthy"],
            &event("a", "c", true, &[])
        ),
        (false, 0)
    );
}

#[test]
fn row_053_any_of_an_error_fails_with_it() {
    assert_eq!(
        evaluate_any(&[FAILS], &event("a", "c", true, &[])),
        (false, 1)
    );
}

#[test]
fn row_054_any_success_hides_the_errors_before_it() {
    assert_eq!(
        evaluate_any(&[FAILS, "event.isFatal"], &event("a", "c", true, &[])),
        (true, 0)
    );
}

#[test]
fn row_056_all_successes_match() {
    assert_eq!(
        evaluate_all(
            &["event.isFatal", "event.isFatal"],
            &event("a", "c", true, &[])
        ),
        (true, 0)
    );
}

#[test]
fn row_057_all_with_a_failure_fails_without_error() {
    assert_eq!(
        evaluate_all(
            &["event.isFatal", "event.isHealthy"],
            &event("a", "c", true, &[])
        ),
        (false, 0)
    );
    assert_eq!(
        evaluate_all(&["event.isHealthy", FAILS], &event("a", "c", true, &[])),
        (false, 0)
    );
}

#[test]
fn row_058_all_with_an_error_fails_with_it() {
    let config = set("named", event_rules(&["event.isFatal", FAILS]), Vec::new());
    let sets = RuleSets::compile(&[config]).unwrap();
    let event = event("a", "c", true, &[]);
    let matches = sets.evaluate(&event, || labels(&[]));
    assert!(matches.matched.is_empty());
    assert_eq!(matches.errors[0].rule_set, "named");
}

#[test]
fn row_061_two_rule_sets_compile() {
    let sets = [
        set("any", Vec::new(), event_rules(&["event.isFatal"])),
        set("all", event_rules(&["event.isFatal"]), Vec::new()),
    ];
    assert_eq!(RuleSets::compile(&sets).unwrap().sets().len(), 2);
}

#[test]
fn row_062_an_unknown_kind_is_refused() {
    let found = reasons("Pod", "true");
    assert_eq!(found, ["kind \"Pod\"; allowed are HealthEvent and Node"]);
}

#[test]
fn row_064_no_rule_sets_are_fine() {
    let sets = RuleSets::compile(&[]).unwrap();
    assert!(
        sets.evaluate(&event("a", "c", true, &[]), || labels(&[]))
            .matched
            .is_empty()
    );
}

#[test]
fn row_065_every_bad_rule_is_reported_with_name_and_place() {
    let bad = set(
        "bad",
        vec![
            rule("HealthEvent", "event.isFatal"),
            rule("Pod", "true"),
            rule("HealthEvent", "event.("),
        ],
        vec![rule("HealthEvent", "event.agent")],
    );
    let errors = RuleSets::compile(&[bad]).unwrap_err();
    let places: Vec<_> = errors
        .iter()
        .map(|e| (e.rule_set.as_str(), e.list, e.index))
        .collect();
    assert_eq!(
        places,
        [("bad", "all", 1), ("bad", "all", 2), ("bad", "any", 0)]
    );
    assert!(errors[2].to_string().contains("bad") && errors[2].to_string().contains("event.agent"));
    assert_eq!(errors[0].code(), "rule_invalid");
}

#[test]
fn row_066_a_compiled_rule_set_keeps_its_configuration() {
    let config = RuleSetConfig {
        version: "7".to_owned(),
        priority: 3,
        ..set("kept", event_rules(&["event.isFatal"]), Vec::new())
    };
    let sets = RuleSets::compile(std::slice::from_ref(&config)).unwrap();
    assert_eq!(sets.find("kept").unwrap().config, config);
}

#[test]
fn a_set_with_both_lists_matches_by_either_and_one_with_none_never() {
    let both = || {
        set(
            "s",
            event_rules(&["event.isHealthy"]),
            event_rules(&["event.isFatal"]),
        )
    };
    assert_eq!(
        outcome(both(), &event("a", "c", true, &[]), &labels(&[])),
        (true, 0)
    );
    assert_eq!(
        outcome(both(), &event("a", "c", false, &[]), &labels(&[])),
        (false, 0)
    );
    assert_eq!(
        outcome(
            set("s", Vec::new(), Vec::new()),
            &event("a", "c", true, &[]),
            &labels(&[])
        ),
        (false, 0)
    );
}

#[test]
fn the_fence_refuses_by_name() {
    let deep = format!("{}true{}", "!(".repeat(80), ")".repeat(80));
    let long = format!("event.isFatal || event.message == '{}'", "x".repeat(5000));
    let wide = format!("event.isFatal{}", "||1==1".repeat(600));
    let nested = "['a'].all(a, ['b'].all(b, ['c'].all(c, true)))";
    let table: [(&str, &str, &str); 18] = [
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
            "full event",
        ),
        ("HealthEvent", "event.nothing == 'a'", "full event"),
        ("HealthEvent", "Message{a: 1} == event", "builds"),
        (
            "Node",
            "node.status.capacity['nvidia.com/gpu'] > 8",
            "full node",
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

#[test]
fn node_paths_are_those_that_the_expressions_read() {
    let path = |text: &str| text.split('/').map(str::to_owned).collect::<Vec<_>>();
    let table = [
        (
            "node.metadata.labels['a'] == 'b'",
            vec!["metadata/labels/a"],
        ),
        ("'a' in node.metadata.labels", vec!["metadata/labels/a"]),
        (
            "node.metadata.name in node.metadata.labels",
            vec!["metadata/labels", "metadata/name"],
        ),
        (
            "node.spec.taints.exists(t, t.key == 'a')",
            vec!["spec/taints"],
        ),
        ("has(node.spec.unschedulable)", vec!["spec/unschedulable"]),
        ("['x'].all(node, node == 'x')", vec![]),
    ];
    for (expression, want) in table {
        let config = set("s", vec![rule("Node", expression)], Vec::new());
        let sets = RuleSets::compile(&[config]).unwrap();
        let want: BTreeSet<_> = want.into_iter().map(path).collect();
        assert_eq!(*sets.node_paths(), want, "{expression}");
    }
    let shipped = RuleSets::compile(&shipped()).unwrap();
    let opt_out = ["metadata", "labels", OPT_OUT].map(str::to_owned).to_vec();
    assert_eq!(*shipped.node_paths(), BTreeSet::from([opt_out]));
}

#[test]
fn the_shipped_sets_match_what_the_reference_s_match() {
    let sets = RuleSets::compile(&shipped()).unwrap();
    let table = [
        (
            "gpu-health-monitor",
            "GPU",
            "GpuXidError",
            true,
            Some("GPU fatal error ruleset"),
        ),
        ("gpu-health-monitor", "GPU", "GpuXidError", false, None),
        ("gpu-health-monitor", "NVSwitch", "GpuXidError", true, None),
        (
            "csp-health-monitor",
            "GPU",
            "CSPMaintenance",
            true,
            Some("CSP health monitor fatal error ruleset"),
        ),
        (
            "syslog-health-monitor",
            "GPU",
            "SysLogsXIDError",
            true,
            Some("Syslog fatal error ruleset"),
        ),
        (
            "syslog-health-monitor",
            "NIC",
            "X",
            true,
            Some("Syslog fatal error ruleset"),
        ),
        (
            "nic-health-monitor",
            "NIC",
            "X",
            true,
            Some("NIC health monitor fatal error ruleset"),
        ),
        (
            "kubernetes-object-monitor",
            "Node",
            "X",
            true,
            Some("Kubernetes object monitor fatal error ruleset"),
        ),
        (
            "preflight-dcgm",
            "GPU",
            "X",
            true,
            Some("Preflight check fatal error ruleset"),
        ),
        ("health-events-analyzer", "GPU", "X", true, None),
        ("warden-host", "Host", "X", true, None),
    ];
    for (agent, class, check, fatal, want) in table {
        let event = HealthEvent {
            component_class: class.to_owned(),
            ..event(agent, check, fatal, &[])
        };
        let names = sets.evaluate(&event, || labels(&[])).names();
        assert_eq!(
            names.iter().next().map(String::as_str),
            want,
            "{agent} {check}"
        );
        let opted_out = sets.evaluate(&event, || labels(&[(OPT_OUT, "false")]));
        assert!(opted_out.matched.is_empty() && opted_out.errors.is_empty());
    }
}

#[test]
fn row_141_wrong_check_or_not_fatal_never_matches() {
    let rules = ["event.checkName == 'GpuXidError' && event.isFatal == true"];
    assert_eq!(
        evaluate_all(&rules, &event("a", "Other", true, &[])),
        (false, 0)
    );
    assert_eq!(
        evaluate_all(&rules, &event("a", "GpuXidError", false, &[])),
        (false, 0)
    );
}

#[test]
fn row_144_event_and_node_rule_both_match() {
    let rules = vec![
        rule("HealthEvent", "event.isFatal"),
        rule("Node", "node.metadata.labels['m'] == 'true'"),
    ];
    let event = event("a", "c", true, &[]);
    assert_eq!(
        outcome(
            set("s", rules, Vec::new()),
            &event,
            &labels(&[("m", "true")])
        ),
        (true, 0)
    );
}

#[test]
fn row_145_a_missing_label_in_an_index_is_an_error_and_no_match() {
    let rules = vec![
        rule("HealthEvent", "event.isFatal"),
        rule("Node", "node.metadata.labels['m'] == 'true'"),
    ];
    let event = event("a", "c", true, &[]);
    assert_eq!(
        outcome(set("s", rules, Vec::new()), &event, &labels(&[("o", "x")])),
        (false, 1)
    );
}

#[test]
fn the_node_is_asked_for_once_and_only_if_a_rule_needs_it() {
    let sets = RuleSets::compile(&shipped()).unwrap();
    let asked = Cell::new(0);
    let node = || {
        asked.set(asked.get() + 1);
        labels(&[])
    };
    assert!(
        sets.evaluate(&event("other", "c", true, &[]), node)
            .matched
            .is_empty()
    );
    assert_eq!(asked.get(), 0);
    let node = || {
        asked.set(asked.get() + 1);
        labels(&[])
    };
    assert_eq!(
        sets.evaluate(&event("gpu-health-monitor", "c", true, &[]), node)
            .matched
            .len(),
        1
    );
    assert_eq!(asked.get(), 1);
}

#[test]
fn disabled_sets_never_match_but_are_checked() {
    let off = RuleSetConfig {
        enabled: false,
        ..set("off", event_rules(&["event.isFatal"]), Vec::new())
    };
    assert_eq!(
        outcome(off.clone(), &event("a", "c", true, &[]), &labels(&[])),
        (false, 0)
    );
    let bad = RuleSetConfig {
        all: event_rules(&["nonsense"]),
        ..off
    };
    assert!(RuleSets::compile(&[bad]).is_err());
}

#[test]
fn names_and_taint_effects_are_checked() {
    let taint = |effect: &str| Taint {
        key: "k".into(),
        value: String::new(),
        effect: effect.into(),
    };
    let a = set("a", event_rules(&["event.isFatal"]), Vec::new());
    let bad_effect = RuleSetConfig {
        taint: Some(taint("SomeInvalidEffect")),
        ..a.clone()
    };
    let unnamed = RuleSetConfig {
        name: " ".into(),
        ..a.clone()
    };
    let errors = RuleSets::compile(&[a.clone(), a, unnamed]).unwrap_err();
    assert_eq!(errors.len(), 2);
    let errors = RuleSets::compile(&[bad_effect]).unwrap_err();
    assert!(errors[0].reason.contains("SomeInvalidEffect"));
}

fn tainting(name: &str, priority: i64, value: &str, effect: &str) -> RuleSetConfig {
    let taint = Taint {
        key: "gpu-error".into(),
        value: value.into(),
        effect: effect.into(),
    };
    RuleSetConfig {
        priority,
        taint: Some(taint),
        cordon: false,
        ..set(name, event_rules(&["event.isFatal"]), Vec::new())
    }
}

fn wanted_of(configs: &[RuleSetConfig]) -> Vec<String> {
    let sets = RuleSets::compile(configs).unwrap();
    let (_, taints) = wanted(sets.sets());
    taints
        .iter()
        .map(|t| format!("{}:{}", t.value, t.effect))
        .collect()
}

#[test]
fn row_133_different_values_of_one_key_are_both_wanted() {
    let sets = [
        tainting("low", 5, "low", "NoSchedule"),
        tainting("high", 10, "high", "NoExecute"),
    ];
    assert_eq!(wanted_of(&sets), ["high:NoExecute", "low:NoSchedule"]);
}

#[test]
fn the_higher_priority_then_the_earlier_set_decides_the_effect() {
    let low = tainting("low", 5, "x", "NoSchedule");
    let high = tainting("high", 10, "x", "NoExecute");
    let same = tainting("same", 5, "x", "PreferNoSchedule");
    assert_eq!(wanted_of(&[low.clone(), high.clone()]), ["x:NoExecute"]);
    assert_eq!(wanted_of(&[high, low.clone()]), ["x:NoExecute"]);
    assert_eq!(wanted_of(&[low.clone(), same.clone()]), ["x:NoSchedule"]);
    assert_eq!(wanted_of(&[same, low]), ["x:PreferNoSchedule"]);
}

#[test]
fn two_values_of_one_key_and_effect_can_not_both_stand_on_a_node() {
    let low = tainting("low", 5, "low", "NoSchedule");
    let high = tainting("high", 10, "high", "NoSchedule");
    assert_eq!(wanted_of(&[low, high]), ["high:NoSchedule"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_text_crashes_the_compiler(text in "[a-z.()!'\\[\\]{}?:&|=<> 0-9]{0,120}") {
        let _ = reasons("HealthEvent", &text);
    }
}
