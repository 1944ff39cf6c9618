//! fault-quarantine's `config.toml`.

use decide::rules::{RuleConfig, RuleSetConfig, shipped};
use toml::{Table, Value};

use super::{Reading, inner, joined};

pub(super) fn read(reading: &mut Reading, table: &mut Table) {
    reading.put(&["profile"], "cordon");
    reading.take_or(
        table,
        ("", "label-prefix"),
        &["quarantine", "label-prefix"],
        (
            "".into(),
            "absent, labels have no prefix there; here it is k8saas.nvidia.com/ unless said so",
        ),
    );
    if let Some(mut breaker) = inner(table, "circuitBreaker") {
        let of = "circuitBreaker";
        for key in ["percentage", "duration"] {
            reading.take(&mut breaker, (of, key), &["quarantine", of, key]);
        }
        reading.put(&["quarantine", of, "level_percentage"], 100);
        reading.changed(
            joined(of, "level_percentage"),
            &Value::from(100),
            "there only the rate is bounded; leave it out to have at most half of a pool out at one time \
             too",
        );
        reading.unknown(of, &breaker);
    }
    let sets = match table.remove("rule-sets") {
        Some(Value::Array(sets)) => sets,
        Some(other) => {
            reading.put(&["quarantine", "rule-sets"], other);
            Vec::new()
        }
        None => Vec::new(),
    };
    rule_sets(reading, sets);
}

/// Those that Warden ships are named, the others written out; what ships and is not in the file is off.
fn rule_sets(reading: &mut Reading, sets: Vec<Value>) {
    let shipped: Vec<RuleSetConfig> = shipped().into_iter().filter(|set| set.enabled).collect();
    let (mut ours, mut on) = (Vec::new(), Vec::new());
    for (index, set) in sets.into_iter().enumerate() {
        let key = format!("rule-sets[{index}]");
        let Value::Table(mut set) = set else {
            ours.push(set);
            continue;
        };
        let name = set.get("name").and_then(Value::as_str).unwrap_or_default();
        let name = name.to_owned();
        let value = Value::from(name.as_str());
        if !has_rules(&set) {
            let why = "without a rule in match.all or match.any it never matches; Warden refuses such a set";
            reading.left(key, &value, why);
            continue;
        }
        if !set.contains_key("enabled") {
            set.insert("enabled".to_owned(), false.into());
            let why = "absent, a set is off there; here it is on unless said so";
            reading.changed(joined(&key, "enabled"), &value, why);
        }
        match shipped.iter().find(|shipped| shipped.name == name) {
            Some(same) if is_same(&set, same) => {
                if set.get("enabled").and_then(Value::as_bool) == Some(true) {
                    on.push(name);
                }
                reading
                    .taken
                    .push(format!("{key} ({value}, which Warden ships)"));
            }
            Some(_) => {
                let own = format!("{name} (own)");
                set.insert("name".to_owned(), own.as_str().into());
                ours.push(Value::Table(set));
                let why = format!(
                    "it differs from the set of this name that Warden ships, which is off; here it is {own:?}"
                );
                reading.changed(key, &value, &why);
            }
            None => {
                ours.push(Value::Table(set));
                reading.taken.push(format!("{key} ({value})"));
            }
        }
    }
    let off = shipped.iter().map(|set| set.name.as_str());
    let off: Vec<Value> = off
        .filter(|name| !on.iter().any(|on| on == name))
        .map(Value::from)
        .collect();
    if !off.is_empty() {
        let off = Value::Array(off);
        let why = "Warden ships these sets and has them on; in the file they are not, or are off";
        reading.changed("rule-sets", &off, why);
        reading.put(&["quarantine", "shipped_off"], off);
    }
    if !ours.is_empty() {
        reading.put(&["quarantine", "rule-sets"], Value::Array(ours));
    }
}

fn has_rules(set: &Table) -> bool {
    let matching = set.get("match").and_then(Value::as_table);
    let has = |list: &str| {
        let list = matching.and_then(|matching| matching.get(list)?.as_array());
        list.is_some_and(|list| !list.is_empty())
    };
    has("all") || has("any")
}

/// Whether a set does what the one does that ships.
fn is_same(set: &Table, shipped: &RuleSetConfig) -> bool {
    let matching = set.get("match").and_then(Value::as_table);
    let rules = |list: &str| -> Vec<(String, String)> {
        let list = matching.and_then(|matching| matching.get(list)?.as_array());
        let text = |rule: &Value, key: &str| {
            let text = rule.get(key).and_then(Value::as_str);
            text.unwrap_or_default().trim().to_owned()
        };
        let rule = |rule: &Value| (text(rule, "kind"), text(rule, "expression"));
        list.into_iter().flatten().map(rule).collect()
    };
    let theirs = |rules: &[RuleConfig]| -> Vec<(String, String)> {
        let rule = |rule: &RuleConfig| (rule.kind.clone(), rule.expression.clone());
        rules.iter().map(rule).collect()
    };
    let in_table = |table: &str, key: &str| set.get(table).and_then(|table| table.get(key));
    let taint = in_table("taint", "key").and_then(Value::as_str);
    let cordon = in_table("cordon", "shouldCordon").and_then(Value::as_bool);
    let priority = set.get("priority").and_then(Value::as_integer);
    rules("all") == theirs(&shipped.all)
        && rules("any") == theirs(&shipped.any)
        && taint.unwrap_or_default().is_empty()
        && cordon.unwrap_or_default() == shipped.cordon
        && priority.unwrap_or_default() == 0
}
