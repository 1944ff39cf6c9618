//! Quarantine's first question, whether an event takes a node out at all, for events that don't.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::ensure;
use decide::rules::{NodeValue, RuleSets, shipped};
use health_event::{Entity, HealthEvent, RecommendedAction, checks};
use jiff::Timestamp;

use crate::report::Row;
use crate::stats::{number, rate};

/// Decisions between two looks at the clock.
const CHUNK: usize = 1_000;
const GOAL: f64 = 50_000.0;

/// Evaluates the shipped rule sets on events that match none of them.
///
/// # Errors
/// A rule set does not compile, or one of the events matches.
pub(crate) fn run(time: Duration) -> anyhow::Result<Row> {
    let sets = RuleSets::compile(&shipped());
    let sets = sets.map_err(|errors| anyhow::anyhow!("{errors:?}"))?;
    let enabled = sets.sets().iter().filter(|set| set.config.enabled).count();
    let events = events();
    for event in &events {
        let matches = sets.evaluate(event, node);
        ensure!(
            matches.matched.is_empty() && matches.errors.is_empty(),
            "{} was to match nothing: {:?}, {:?}",
            event.check_name,
            matches.names(),
            matches.errors
        );
    }
    let mut decided = 0;
    let begin = Instant::now();
    while begin.elapsed() < time {
        for event in events.iter().cycle().take(CHUNK) {
            black_box(sets.evaluate(black_box(event), node));
        }
        decided += CHUNK;
    }
    let a_second = rate(decided, begin.elapsed());
    Ok(Row {
        what: "quarantine decisions, non-matching".to_owned(),
        raw: String::new(),
        measured: format!("{} a second", number(a_second)),
        goal: format!("≥ {} a second", number(GOAL)),
        met: Some(a_second >= GOAL),
        note: format!(
            "one thread, the {enabled} rule sets that ship switched on, {} kinds of events",
            events.len()
        ),
    })
}

/// A node with the labels that rules look at.
fn node() -> NodeValue {
    let labels = [
        ("kubernetes.io/arch", "amd64"),
        ("kubernetes.io/hostname", "gpu-00001"),
        ("nvidia.com/gpu.present", "true"),
        ("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"),
        ("topology.kubernetes.io/zone", "zone-1"),
    ];
    let labels = labels
        .map(|(key, value)| (key.to_owned(), NodeValue::Text(value.to_owned())))
        .into();
    let map = |key: &str, value| NodeValue::Map(BTreeMap::from([(key.to_owned(), value)]));
    map("metadata", map("labels", NodeValue::Map(labels)))
}

/// One that fails at the first word of every rule, one at the last, one that is healthy, one with
/// much in it.
fn events() -> [HealthEvent; 4] {
    let base = HealthEvent {
        id: "01ARZ3NDEKTSV4RRFFQ69G5FAV".to_owned(),
        version: 1,
        agent: "rack-monitor".to_owned(),
        component_class: "Rack".to_owned(),
        check_name: "RackTemperature".to_owned(),
        is_fatal: true,
        message: "inlet temperature 41 C is above 40 C".to_owned(),
        recommended_action: RecommendedAction::ContactSupport,
        generated_at: Some(Timestamp::UNIX_EPOCH),
        node_name: "gpu-00001".to_owned(),
        ..HealthEvent::default()
    };
    let xid = HealthEvent {
        agent: checks::SYSLOG_AGENT.to_owned(),
        component_class: "GPU".to_owned(),
        check_name: checks::XID.to_owned(),
        is_fatal: false,
        error_codes: vec!["31".to_owned()],
        entities: vec![Entity::new("PCI", "0000:17:00")],
        ..base.clone()
    };
    let healthy = HealthEvent {
        agent: "gpu-health-monitor".to_owned(),
        check_name: "GpuMemWatch".to_owned(),
        is_healthy: true,
        ..xid.clone()
    };
    let large = HealthEvent {
        message: "x".repeat(4096),
        entities: (0..8)
            .flat_map(|gpu| {
                let pci = format!("0000:{gpu:02x}:00");
                [
                    Entity::new("GPU", &gpu.to_string()),
                    Entity::new("PCI", &pci),
                ]
            })
            .collect(),
        metadata: (0..16)
            .map(|key| (format!("key-{key}"), "value".to_owned()))
            .collect(),
        ..xid.clone()
    };
    [base, xid, healthy, large]
}

/// The shortest time that gives a steady figure.
pub(crate) fn time(quick: bool) -> Duration {
    if quick {
        Duration::from_millis(200)
    } else {
        Duration::from_secs(3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_events_match_nothing() {
        let row = run(Duration::from_millis(1)).unwrap();
        assert!(row.measured.ends_with("a second"));
    }
}
