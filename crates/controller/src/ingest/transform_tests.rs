//! The reference's table of its augmentor (ingest-and-store 2.3), the fixed order, and the bounds.

use health_event::RecommendedAction;
use serde_json::json;

use super::*;
use crate::config::Config;
use crate::nodes::Wanted;

const ZONE: &str = "topology.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";
const TYPE: &str = "node.kubernetes.io/instance-type";

/// A node with zone, region and type, a provider's id and two annotations.
fn node(provider: Option<&str>) -> NodeFacts {
    let line = json!({ "type": "ADDED", "object": {
        "metadata": { "name": "n", "uid": "u", "resourceVersion": "1",
            "labels": { ZONE: "a", REGION: "eu", TYPE: "big" },
            "annotations": { "rack": "7", "long": "ü".repeat(4_000) } },
        "spec": { "providerID": provider.unwrap_or_default() } } });
    let mut wanted = Wanted::ours("");
    wanted
        .labels
        .extend([ZONE, REGION, TYPE].map(str::to_owned));
    wanted
        .annotations
        .extend(["rack", "long"].map(str::to_owned));
    crate::nodes::decoded(&line.to_string(), wanted)
}

fn config(text: &str) -> IngestConfig {
    Config::parse(text).unwrap().ingest
}

fn event() -> HealthEvent {
    HealthEvent {
        check_name: "Check".into(),
        node_name: "n".into(),
        is_fatal: true,
        recommended_action: RecommendedAction::RestartBm,
        ..HealthEvent::default()
    }
}

fn transformers(text: &str) -> Transformers {
    let nodes = NodeCache::new(Vec::new(), Wanted::ours(""));
    Transformers::new(&config(text), nodes, Arc::default()).unwrap()
}

#[test]
fn an_event_gets_the_allowed_labels_and_the_provider_s_id() {
    let config = config(&format!(
        "[ingest.metadata]\nenabled = true\nallowedLabels = ['{ZONE}', '{REGION}', 'absent']\n\
         allowed_annotations = ['rack', 'long']"
    ));
    let mut said = event();
    said.metadata = [("free", "kept"), (ZONE, "said")]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into();
    augment(&config.metadata, &node(Some("aws:///i-1")), &mut said);
    let of = |key: &str| said.metadata.get(key).map(String::as_str);
    assert_eq!(of(ZONE), Some("a"), "what the node says counts");
    assert_eq!(of(REGION), Some("eu"));
    assert_eq!(of(TYPE), None, "it is not allowed");
    assert_eq!(of("providerID"), Some("aws:///i-1"));
    assert_eq!((of("free"), of("rack")), (Some("kept"), Some("7")));
    let long = of("long").unwrap();
    assert!(long.len() <= LONGEST_VALUE && long.chars().all(|c| c == 'ü'));
    let mut said = event();
    augment(&config.metadata, &node(None), &mut said);
    assert!(!said.metadata.contains_key("providerID"), "{said:?}");
}

#[test]
fn what_one_event_gets_is_bounded() {
    let keys: Vec<String> = (0..60).map(|n| format!("a{n}")).collect();
    let annotations = keys.iter().map(|key| (key.clone(), json!("x".repeat(900))));
    let annotations: serde_json::Map<_, _> = annotations.collect();
    let line = json!({ "type": "ADDED", "object": { "metadata": {
        "name": "n", "uid": "u", "resourceVersion": "1", "annotations": annotations } } });
    let mut wanted = Wanted::ours("");
    wanted.annotations.extend(keys.iter().cloned());
    let node = crate::nodes::decoded(&line.to_string(), wanted);
    let list = toml::Value::from(keys);
    let config = config(&format!(
        "[ingest.metadata]\nenabled = true\nallowed_annotations = {list}"
    ));
    let mut said = event();
    augment(&config.metadata, &node, &mut said);
    let bytes: usize = said.metadata.iter().map(|(k, v)| k.len() + v.len()).sum();
    assert!(
        (MOST_BYTES - 1_000..=MOST_BYTES).contains(&bytes),
        "{bytes}"
    );
}

#[test]
fn without_configuration_and_of_a_node_that_is_not_known_nothing_changes() {
    let name = NodeName::new("n").unwrap();
    let (off, on) = (
        transformers(""),
        transformers("[ingest.metadata]\nenabled = true"),
    );
    for transformers in [&off, &on] {
        let mut said = event();
        transformers.apply(&name, &mut said);
        assert_eq!(said, event());
    }
    assert_eq!(off.metrics.transformers.nodes_unknown.get(), 0);
    assert_eq!(on.metrics.transformers.nodes_unknown.get(), 1);
}

const DOWNGRADE: &str = r#"
    [ingest.overrides]
    enabled = true
    [[ingest.overrides.rules]]
    name = "broken"
    when = "event.metadata.absent == '1'"
    override.isFatal = false
    [[ingest.overrides.rules]]
    name = "quiet"
    when = "event.checkName == 'Check'"
    override = { isFatal = false, recommendedAction = "NONE" }
    [[ingest.overrides.rules]]
    name = "well"
    when = "event.checkName == 'Other'"
    override = { isHealthy = true }
"#;

#[test]
fn an_overridden_event_says_so_and_is_counted_by_rule_and_field() {
    let name = NodeName::new("n").unwrap();
    let transformers = transformers(DOWNGRADE);
    let mut said = event();
    said.metadata.insert(
        keys::OVERRIDDEN.to_owned(),
        "a sender's own claim".to_owned(),
    );
    transformers.apply(&name, &mut said);
    let want = "quiet: isFatal was true, recommendedAction was RESTART_BM";
    assert_eq!(said.metadata[keys::OVERRIDDEN], want);
    assert!(!said.is_fatal && said.recommended_action == RecommendedAction::None);
    let applied = |field: &str| {
        let (rule_name, field) = ("quiet".to_owned(), field.to_owned());
        let label = OverrideLabel { rule_name, field };
        let metrics = &transformers.metrics.transformers;
        metrics.overrides_applied.get_or_create(&label).get()
    };
    assert_eq!(
        ["isFatal", "recommendedAction", "isHealthy"].map(applied),
        [1, 1, 0]
    );
    let label = OverrideNameLabel {
        rule_name: "broken".to_owned(),
    };
    let errors = &transformers.metrics.transformers.override_errors;
    assert_eq!(errors.get_or_create(&label).get(), 1);
    // What is not overridden carries no mark, whoever claims it.
    let mut said = HealthEvent {
        check_name: "Third".into(),
        ..event()
    };
    said.metadata.insert(
        keys::OVERRIDDEN.to_owned(),
        "a sender's own claim".to_owned(),
    );
    transformers.apply(&name, &mut said);
    assert!(!said.metadata.contains_key(keys::OVERRIDDEN));
}

#[test]
fn what_an_override_makes_healthy_its_detector_no_longer_asserts() {
    let name = NodeName::new("n").unwrap();
    let mut said = HealthEvent {
        check_name: "Other".into(),
        ..event()
    };
    said.metadata
        .insert(keys::DETECTOR.to_owned(), "kernel-log".to_owned());
    transformers(DOWNGRADE).apply(&name, &mut said);
    assert!(said.is_healthy && !said.metadata.contains_key(keys::DETECTOR));
}

#[test]
fn everything_that_is_wrong_with_a_configuration_is_told_with_its_key() {
    let problems = |text: &str| -> Vec<String> {
        let checked = crate::checked::checked(text).unwrap();
        checked.problems.iter().map(ToString::to_string).collect()
    };
    let text = r#"
        [ingest.metadata]
        allowedLabels = ["warden.dev/order"]
        cacheSize = 50
        [ingest.overrides]
        enabled = true
        [[ingest.overrides.rules]]
        name = "a"
        when = "event.isFatal &&"
        override.recommendedAction = "CUSTOM"
        [[ingest.overrides.rules]]
        when = "event.isFatal"
        override.isFatal = "no"
    "#;
    let problems = problems(text);
    let wants = [
        "ingest.metadata.allowedLabels",
        "ingest.metadata.cacheSize",
        "ingest.overrides.rules[0].override.recommendedAction = \"CUSTOM\"",
        "ingest.overrides.rules[0].when = \"event.isFatal &&\"",
        "ingest.overrides.rules[1].name",
        "ingest.overrides.rules[1].override.isFatal = \"no\"",
    ];
    for want in wants {
        let told = problems.iter().any(|problem| problem.starts_with(want));
        assert!(told, "{want} is not in {problems:#?}");
    }
    let none = crate::checked::checked("[ingest.overrides]\nenabled = true").unwrap();
    assert_eq!(none.problems[0].key, "ingest.overrides.rules");
    assert!(
        crate::checked::checked(DOWNGRADE)
            .unwrap()
            .problems
            .is_empty()
    );
}
