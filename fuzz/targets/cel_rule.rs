//! Any text as an expression of a rule: it is refused, or evaluates within bounds on every event.
//! The first byte chooses the kind of rule.
#![no_main]

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use decide::rules::{NodeValue, RuleConfig, RuleSetConfig, RuleSets};
use health_event::{Entity, HealthEvent};
use libfuzzer_sys::fuzz_target;
use rustix::time::{ClockId, clock_gettime};

/// Processor time of this process, so that a busy machine is no finding. The most that was seen
/// here is a tenth; sanitizers cost a factor of three.
const COMPILE_MOST: Duration = Duration::from_secs(2);
const EVALUATE_MOST: Duration = Duration::from_secs(2);

/// The largest event that is taken in.
static LARGEST: LazyLock<HealthEvent> = LazyLock::new(|| HealthEvent {
    agent: "a".repeat(256),
    check_name: "c".repeat(256),
    node_name: "n".repeat(253),
    message: "m ".repeat(8 * 1024),
    error_codes: (0..64).map(|n| format!("{n:0256}")).collect(),
    entities: (0..256)
        .map(|n| Entity::new(&format!("{n:0256}"), &"v".repeat(4 * 1024)))
        .collect(),
    metadata: (0..256)
        .map(|n| (format!("{n:0256}"), "v".repeat(4 * 1024)))
        .collect(),
    ..HealthEvent::default()
});

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else {
        return;
    };
    let Ok(expression) = std::str::from_utf8(rest) else {
        return;
    };
    let kind = if first % 2 == 0 {
        "HealthEvent"
    } else {
        "Node"
    };
    let config = RuleSetConfig {
        name: "fuzzed".to_owned(),
        enabled: true,
        all: vec![RuleConfig {
            kind: kind.to_owned(),
            expression: expression.to_owned(),
        }],
        ..RuleSetConfig::default()
    };
    let start = processor_time();
    let compiled = RuleSets::compile(&[config]);
    let took = processor_time() - start;
    assert!(took < COMPILE_MOST, "compiling took {took:?}");
    let sets = match compiled {
        Ok(sets) => sets,
        Err(errors) => {
            for error in errors {
                assert!(!error.reason.is_empty() && error.to_string().len() < 8 * 1024);
            }
            return;
        }
    };
    let bare = NodeValue::Map(BTreeMap::new());
    for (event, node) in [(&*LARGEST, &*NODE), (&HealthEvent::default(), &bare)] {
        let start = processor_time();
        let matches = sets.evaluate(event, || node.clone());
        let took = processor_time() - start;
        assert!(took < EVALUATE_MOST, "evaluating took {took:?}");
        assert!(matches.matched.len() + matches.errors.len() <= 1);
    }
});

fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or_default(),
        u32::try_from(now.tv_nsec).unwrap_or_default(),
    )
}

static NODE: LazyLock<NodeValue> = LazyLock::new(|| {
    let text = |t: &str| NodeValue::Text(t.to_owned());
    let map = |entries: &[(&str, NodeValue)]| {
        let owned = entries.iter().map(|(k, v)| ((*k).to_owned(), v.clone()));
        NodeValue::Map(owned.collect())
    };
    let taint = map(&[
        ("key", text("k")),
        ("value", text("v")),
        ("effect", text("NoSchedule")),
    ]);
    let labels: BTreeMap<_, _> = (0..100)
        .map(|n| (format!("label-{n}"), text("v")))
        .collect();
    map(&[
        (
            "metadata",
            map(&[("name", text("n")), ("labels", NodeValue::Map(labels))]),
        ),
        (
            "spec",
            map(&[
                ("unschedulable", NodeValue::Bool(true)),
                ("taints", NodeValue::List(vec![taint; 16])),
            ]),
        ),
        (
            "status",
            map(&[("capacity", map(&[("nvidia.com/gpu", text("8"))]))]),
        ),
    ])
});
