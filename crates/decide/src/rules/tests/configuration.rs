//! What is checked when rule sets are loaded, and what is kept of them.

use super::*;

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

#[test]
fn altered_are_the_sets_that_may_match_what_nothing_matched_before() {
    let one = |name: &str, check: &str| {
        let expression = format!("event.checkName == '{check}'");
        set(name, event_rules(&[&expression]), Vec::new())
    };
    let disabled = RuleSetConfig {
        enabled: false,
        ..one("off", "X")
    };
    let compiled = |sets: &[RuleSetConfig]| RuleSets::compile(sets).unwrap();
    let before = compiled(&[one("same", "A"), one("wider", "B"), disabled.clone()]);
    let on = RuleSetConfig {
        enabled: true,
        ..disabled.clone()
    };
    let after = compiled(&[one("new", "D"), one("wider", "C"), one("same", "A"), on]);
    let altered: Vec<&str> = after.altered(&before).into_iter().collect();
    assert_eq!(altered, ["new", "off", "wider"]);
    assert!(before.altered(&before).is_empty());
    // One that goes, or goes off, matches nothing new.
    assert!(compiled(&[disabled]).altered(&after).is_empty());
}
