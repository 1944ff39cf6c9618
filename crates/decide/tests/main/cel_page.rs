//! Every example of `docs/cel.md` compiles, matches, fails or is refused as the page says.

use std::collections::BTreeMap;

use decide::rules::{NodeValue, RuleConfig, RuleSetConfig, RuleSets};
use health_event::{
    BehaviourOverrides, Entity, HealthEvent, ProcessingStrategy, RecommendedAction,
};

const PAGE: &str = include_str!("../../../../docs/cel.md");

/// The lines of all blocks whose opening line is "```cel " and this.
fn examples(tag: &str) -> Vec<&'static str> {
    let mut found = Vec::new();
    let mut lines = PAGE.lines();
    while let Some(line) = lines.next() {
        if line.strip_prefix("```cel ") == Some(tag) {
            found.extend(lines.by_ref().take_while(|l| *l != "```"));
        }
    }
    assert!(!found.is_empty(), "no example of {tag}");
    found
}

fn compile(kind: &str, expression: &str) -> Result<RuleSets, String> {
    let config = RuleSetConfig {
        name: "page".to_owned(),
        enabled: true,
        all: vec![RuleConfig {
            kind: kind.to_owned(),
            expression: expression.to_owned(),
        }],
        ..RuleSetConfig::default()
    };
    RuleSets::compile(&[config]).map_err(|errors| {
        let reasons: Vec<String> = errors.into_iter().map(|e| e.reason).collect();
        reasons.join("; ")
    })
}

/// (matches, number of failures).
fn outcome(kind: &str, expression: &str, event: &HealthEvent) -> (bool, usize) {
    let sets = compile(kind, expression).expect(expression);
    let matches = sets.evaluate(event, node);
    (!matches.matched.is_empty(), matches.errors.len())
}

fn event() -> HealthEvent {
    HealthEvent {
        id: "68bd4fc9".into(),
        version: 1,
        agent: "gpu-health-monitor".into(),
        component_class: "GPU".into(),
        check_name: "GpuXidError".into(),
        is_fatal: true,
        message: "NVRM: Xid (PCI:0000:cb:00): 79, GPU has fallen off the bus".into(),
        recommended_action: RecommendedAction::RestartBm,
        error_codes: vec!["79".into()],
        entities: vec![Entity::new("GPU", "3"), Entity::new("PCI", "0000:cb:00")],
        metadata: BTreeMap::from([("rack".into(), "r7".into())]),
        generated_at: "2026-01-02T03:04:05Z".parse().ok(),
        node_name: "gpu-17".into(),
        quarantine_overrides: Some(BehaviourOverrides {
            force: false,
            skip: false,
        }),
        strategy: ProcessingStrategy::ExecuteRemediation,
        ..HealthEvent::default()
    }
}

fn node() -> NodeValue {
    let map = |entries: &[(&str, NodeValue)]| {
        let owned = entries.iter().map(|(k, v)| ((*k).to_owned(), v.clone()));
        NodeValue::Map(owned.collect())
    };
    let text = |t: &str| NodeValue::Text(t.to_owned());
    let taint = map(&[("key", text("dedicated")), ("effect", text("NoSchedule"))]);
    let ready = map(&[("type", text("Ready")), ("status", text("True"))]);
    map(&[
        (
            "metadata",
            map(&[
                ("name", text("gpu-17")),
                ("labels", map(&[("pool", text("train"))])),
            ]),
        ),
        ("spec", map(&[("taints", NodeValue::List(vec![taint]))])),
        (
            "status",
            map(&[
                ("conditions", NodeValue::List(vec![ready])),
                ("capacity", map(&[("nvidia.com/gpu", text("8"))])),
            ]),
        ),
    ])
}

#[test]
fn the_examples_match() {
    for expression in examples("event match") {
        let got = outcome("HealthEvent", expression, &event());
        assert_eq!(got, (true, 0), "{expression}");
    }
    for expression in examples("node match") {
        let got = outcome("Node", expression, &event());
        assert_eq!(got, (true, 0), "{expression}");
    }
}

#[test]
fn what_fails_at_evaluation_is_no_match_and_is_reported() {
    for expression in examples("node fails") {
        let got = outcome("Node", expression, &event());
        assert_eq!(got, (false, 1), "{expression}");
    }
    for expression in examples("bare fails") {
        let got = outcome("HealthEvent", expression, &HealthEvent::default());
        assert_eq!(got, (false, 1), "{expression}");
    }
}

#[test]
fn what_does_not_work_is_refused_with_the_reason_that_the_page_gives() {
    for (tag, kind) in [("event refused", "HealthEvent"), ("node refused", "Node")] {
        for line in examples(tag) {
            let (expression, reason) = line.rsplit_once('#').expect("a reason after #");
            let Err(said) = compile(kind, expression.trim()) else {
                panic!("{expression} was accepted");
            };
            assert!(said.contains(reason.trim()), "{expression}: {said}");
        }
    }
}

#[test]
fn what_is_odd_is_warned_about_and_what_the_page_recommends_is_not() {
    let warnings = |kind: &str, expression: &str| {
        let sets = compile(kind, expression).expect(expression);
        let warnings = sets.warnings().iter().map(|w| w.reason.clone());
        warnings.collect::<Vec<_>>()
    };
    for (tag, kind) in [("event warned", "HealthEvent"), ("node warned", "Node")] {
        for line in examples(tag) {
            let (expression, reason) = line.rsplit_once('#').expect("a reason after #");
            let said = warnings(kind, expression.trim());
            let told = said.len() == 1 && said[0].contains(reason.trim());
            assert!(told, "{expression}: {said:?}");
        }
    }
    let right = [
        ("event match", "HealthEvent"),
        ("bare fails", "HealthEvent"),
        ("node match", "Node"),
        ("node fails", "Node"),
    ];
    for (tag, kind) in right {
        for expression in examples(tag) {
            assert_eq!(warnings(kind, expression), [""; 0], "{expression}");
        }
    }
}

#[test]
fn the_page_names_every_function_that_is_allowed() {
    let said = compile("HealthEvent", "launch(event)").unwrap_err();
    let (_, list) = said.split_once("the operators and ").unwrap();
    let line = PAGE
        .lines()
        .find(|l| l.starts_with("`bool charAt"))
        .unwrap();
    assert_eq!(line.trim_matches('`').replace(' ', ", "), list);
}
