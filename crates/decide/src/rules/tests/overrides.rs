//! Overrides: the reference's table (ingest-and-store 2.3), and what is ours.

use health_event::{NodeName, Scope, SentIdentity};

use super::*;

fn named(name: &str, when: &str) -> OverrideConfig {
    OverrideConfig {
        name: name.to_owned(),
        when: when.to_owned(),
        is_fatal: Some(false),
        ..OverrideConfig::default()
    }
}

fn reasons(configs: &[OverrideConfig]) -> Vec<(&'static str, String)> {
    let errors = Overrides::compile(configs).expect_err("it was taken");
    errors
        .into_iter()
        .map(|error| (error.key, error.reason))
        .collect()
}

/// A fatal XID with two codes, as the reference's tests have it.
fn xid() -> HealthEvent {
    HealthEvent {
        agent: "syslog-health-monitor".into(),
        component_class: "GPU".into(),
        check_name: "SysLogsXIDError".into(),
        is_fatal: true,
        recommended_action: RecommendedAction::RestartBm,
        error_codes: vec!["79".into(), "80".into()],
        entities: vec![Entity::new("GPU", "0")],
        node_name: "gpu-1".into(),
        message: "SHM: lost".into(),
        ..HealthEvent::default()
    }
}

fn matches(when: &str, event: &HealthEvent) -> Result<bool, String> {
    let overrides = Overrides::compile(&[named("r", when)]).map_err(|e| format!("{e:?}"))?;
    let changed = overrides.apply(&mut event.clone());
    match changed.errors.first() {
        Some(error) => Err(error.message.clone()),
        None => Ok(changed.rule.is_some()),
    }
}

#[test]
fn a_rule_without_name_condition_or_change_or_with_bad_cel_is_refused_at_the_start() {
    let nothing = OverrideConfig {
        is_fatal: None,
        ..named("n", "true")
    };
    let custom = OverrideConfig {
        recommended_action: Some(RecommendedAction::Custom),
        ..named("c", "true")
    };
    let table = [
        (vec![named("", "event.isFatal")], "name", "empty"),
        (
            vec![named("a", "event.isFatal"), named("a", "event.isHealthy")],
            "name",
            "another override",
        ),
        (vec![named("w", "")], "when", "empty"),
        (vec![nothing], "override", "changes nothing"),
        (vec![custom], "override.recommendedAction", "CUSTOM"),
        (
            vec![named("b", "event.isFatal &&")],
            "when",
            "not valid CEL",
        ),
        (vec![named("t", "event.message")], "when", "boolean"),
        (
            vec![named("f", "event.nonsense == 'x'")],
            "when",
            "nonsense",
        ),
        (
            vec![named("x", "node.spec == null")],
            "when",
            "only \"event\"",
        ),
        (vec![named("g", "getDate() == 1")], "when", "calls"),
        // The action is a text here, as in the reference's overrides, and no number as in rule sets.
        (
            vec![named("n", "event.recommendedAction == 24")],
            "when",
            "never",
        ),
        (
            vec![named("s", "event.processingStrategy == 1.0")],
            "when",
            "processingStrategy",
        ),
    ];
    for (configs, key, want) in table {
        let reasons = reasons(&configs);
        assert_eq!(reasons.len(), 1, "{reasons:?}");
        assert_eq!(reasons[0].0, key, "{reasons:?}");
        assert!(
            reasons[0].1.contains(want),
            "{want:?} is not in {reasons:?}"
        );
    }
    let all = reasons(&[named("", "event.isFatal &&"), named("b", "")]);
    assert_eq!(all.len(), 3, "everything that is wrong is told: {all:?}");
}

#[test]
fn the_reference_s_expressions_match_as_there() {
    let event = xid();
    let bare = HealthEvent {
        is_fatal: true,
        ..HealthEvent::default()
    };
    let table = [
        (r#""79" in event.errorCode"#, true),
        (r#""81" in event.errorCode"#, false),
        ("event.errorCode.exists(c, c == '80')", true),
        ("event.checkName.startsWith('SysLogs')", true),
        ("event.message.contains('SHM') && !event.isHealthy", true),
        ("event.message.contains('x') || event.isFatal", true),
        ("event.recommendedAction == 'RESTART_BM'", true),
        (
            "event.agent == 'syslog-health-monitor' && event.nodeName == 'gpu-1'",
            true,
        ),
        (
            "event.entitiesImpacted.exists(e, e.entityType == 'GPU')",
            true,
        ),
        ("event.componentClass == 'NIC'", false),
    ];
    for (when, want) in table {
        assert_eq!(matches(when, &event), Ok(want), "{when}");
        assert!(matches(when, &bare).is_ok(), "{when} fails on a bare event");
    }
    let with_key = r#"has(event.metadata.gpu_id) && event.metadata.gpu_id == "0""#;
    assert_eq!(
        matches(with_key, &event),
        Ok(false),
        "no metadata, no error"
    );
    let metadata = BTreeMap::from([("gpu_id".to_owned(), "0".to_owned())]);
    let with = HealthEvent { metadata, ..event };
    assert_eq!(matches(with_key, &with), Ok(true));
    assert_eq!(matches("event.errorCode.size() == 0", &bare), Ok(true));
}

#[test]
fn the_first_rule_that_matches_decides_and_only_what_it_names_changes() {
    let second = OverrideConfig {
        recommended_action: Some(RecommendedAction::None),
        ..named("second", "event.isFatal")
    };
    let broken = named("broken", "event.metadata.absent == 'x'");
    let first = named("first", "event.isFatal");
    let overrides = Overrides::compile(&[broken, first, second]).unwrap();
    let mut event = xid();
    let changed = overrides.apply(&mut event);
    assert_eq!(changed.rule.as_deref(), Some("first"));
    assert_eq!(changed.fields, [("isFatal", "true".to_owned())]);
    assert_eq!(
        changed.errors[0].rule_set, "broken",
        "and the next is asked"
    );
    assert_eq!(changed.text().unwrap(), "first: isFatal was true");
    let unchanged = HealthEvent {
        is_fatal: false,
        ..xid()
    };
    assert_eq!(event, unchanged, "the action is as it was");
    // A match that says what is so already is none that is told.
    let changed = overrides.apply(&mut event);
    assert_eq!((changed.rule.as_deref(), changed.text()), (None, None));
}

#[test]
fn all_three_fields_change_and_the_stored_text_says_what_was_said() {
    let whole = OverrideConfig {
        is_healthy: Some(true),
        recommended_action: Some(RecommendedAction::ContactSupport),
        ..named("all", "true")
    };
    let overrides = Overrides::compile(&[whole]).unwrap();
    let mut event = HealthEvent {
        recommended_action: RecommendedAction::Custom,
        custom_recommended_action: "RESEAT".into(),
        ..xid()
    };
    let changed = overrides.apply(&mut event);
    let want = "all: isFatal was true, isHealthy was false, recommendedAction was CUSTOM";
    assert_eq!(changed.text().as_deref(), Some(want));
    assert!(!event.is_fatal && event.is_healthy && changed.has("isHealthy"));
    assert_eq!(event.recommended_action, RecommendedAction::ContactSupport);
    assert_eq!(
        event.custom_recommended_action, "",
        "no name without CUSTOM"
    );
}

/// What an overridden event opened, its recovery has to close: the identity is another's business.
#[test]
fn an_override_never_changes_an_identity() {
    let any = OverrideConfig {
        is_healthy: Some(true),
        recommended_action: Some(RecommendedAction::None),
        ..named("any", "true")
    };
    let overrides = Overrides::compile(&[any]).unwrap();
    let ids = |event: &HealthEvent| {
        let node = NodeName::new("gpu-1").unwrap();
        let mut ids = Vec::new();
        for device in health_event::devices_of(&event.entities) {
            let of = |code: &String| SentIdentity::of(event, &device, code);
            ids.extend(event.error_codes.iter().map(of));
        }
        (Scope::of(event, node), ids)
    };
    let before = xid();
    let mut after = before.clone();
    overrides.apply(&mut after);
    assert_ne!(before, after);
    assert_eq!(ids(&before), ids(&after));
}
