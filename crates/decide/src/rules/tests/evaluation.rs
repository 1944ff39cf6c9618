//! Which rule sets match an event on a node.

use super::*;

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
    context.add_variable_as_val("event", Box::new(EventValue(event, Seen::ByRules)));
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
fn the_wrong_check_or_a_fault_that_is_not_fatal_never_matches() {
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
