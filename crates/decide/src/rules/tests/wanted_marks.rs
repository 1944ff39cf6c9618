//! Which cordon and taints the matched rule sets ask for together.

use super::*;

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
