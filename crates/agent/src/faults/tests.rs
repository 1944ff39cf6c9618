use health_event::{BootId, Entity, NodeName, ProcessingStrategy};

use super::*;

const SPOOL: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAV";

fn identity(boot: &str) -> Identity {
    Identity {
        node: NodeName::new("gpu-1").unwrap(),
        boot: BootId::new(boot),
        machine: "m".into(),
        process: "p".into(),
    }
}

fn faults(boots: &[&str], stored: Vec<Assertion>) -> Faults {
    let ids = boots.iter().map(|boot| BootId::new(boot)).collect();
    Faults::new(identity(boots[boots.len() - 1]), Boots::new(ids), stored)
}

fn event(place: (&str, u64), code: &str, entities: &[(&str, &str)], healthy: bool) -> HealthEvent {
    let (boot, number) = place;
    let order = format!("{boot}/{SPOOL}/{number}");
    let second = i64::try_from(number).unwrap();
    HealthEvent {
        id: number.to_string(),
        agent: checks::SYSLOG_AGENT.into(),
        component_class: "GPU".into(),
        check_name: checks::XID.into(),
        error_codes: vec![code.into()],
        entities: entities.iter().map(|(k, v)| Entity::new(k, v)).collect(),
        is_healthy: healthy,
        node_name: "gpu-1".into(),
        generated_at: Timestamp::from_second(second).ok(),
        metadata: [(keys::ORDER.to_owned(), order)].into(),
        ..HealthEvent::default()
    }
}

const A: &[(&str, &str)] = &[("PCI", "0000:17:00.0")];

#[test]
fn what_is_asserted_is_what_was_said_last() {
    let mut faults = faults(&["b"], Vec::new());
    faults.apply(&event(("b", 1), "79", A, false));
    faults.apply(&event(("b", 2), "48", A, false));
    let rows = faults.apply(&event(("b", 3), "79", A, false));
    assert_eq!(rows.len(), 1);
    assert_eq!(faults.hash().0, 2);
    let ids: Vec<String> = faults.list().into_iter().map(|e| e.id).collect();
    assert_eq!(ids, ["2", "3"], "the last event of each");
    let rows = faults.apply(&event(("b", 4), "79", A, true));
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].assertion, None);
    assert_eq!(faults.hash().0, 1);
}

#[test]
fn flapping_is_told_as_it_is() {
    let mut faults = faults(&["b"], Vec::new());
    for number in (1..40).step_by(2) {
        faults.apply(&event(("b", number), "31", A, false));
        assert_eq!(faults.len(), 1, "{number}");
        faults.apply(&event(("b", number + 1), "31", A, true));
        assert!(faults.is_empty(), "{number}");
    }
}

#[test]
fn the_set_survives_a_restart_with_the_same_hash() {
    let mut before = faults(&["b"], Vec::new());
    before.apply(&event(("b", 1), "31", &[("GPU", "0")], false));
    before.apply(&event(
        ("b", 2),
        "31",
        &[("GPU", "0"), ("PCI", "17:00")],
        false,
    ));
    before.apply(&event(("b", 3), "79", A, false));
    let stored = before.rows().into_iter().filter_map(|r| r.assertion);
    let after = faults(&["b"], stored.collect());
    assert_eq!(before.hash(), after.hash());
    assert_eq!(before.list(), after.list());
    let mut after = after;
    after.apply(&event(("b", 9), "31", &[("PCI", "17:00")], true));
    assert_eq!(
        after.len(),
        1,
        "a recovery by the better known name closes it"
    );
}

#[test]
fn after_a_reboot_only_what_was_not_found_again_is_closed() {
    let mut before = faults(&["b1"], Vec::new());
    before.apply(&event(("b1", 1), "79", A, false));
    before.apply(&event(("b1", 2), "48", A, false));
    let mut own = event(("b1", 3), "", &[], false);
    own.agent = checks::WARDEN_AGENT.into();
    own.check_name = "KernelLogUnreadable".into();
    before.apply(&own);
    let stored: Vec<Assertion> = before
        .rows()
        .into_iter()
        .filter_map(|r| r.assertion)
        .collect();

    let mut after = faults(&["b1", "b2"], stored);
    after.apply(&event(("b2", 4), "79", A, false));
    let gone = after.not_found_again();
    assert_eq!(
        gone.len(),
        1,
        "found again, or ended by its own reading: {gone:?}"
    );
    assert_eq!(gone[0].error_codes, ["48"]);
    assert_eq!(gone[0].entities, [Entity::new("PCI", "0000:17:00.0")]);
    assert_eq!(gone[0].metadata[keys::CAUSE], "reboot");
    assert!(gone[0].is_healthy && gone[0].check_name == checks::XID);
    assert_eq!(
        after.not_found_again(),
        gone,
        "the same word whenever it is made"
    );
}

#[test]
fn the_word_that_a_reboot_ended_a_fault_has_one_id_a_boot_and_fault() {
    let mut before = faults(&["b1"], Vec::new());
    before.apply(&event(("b1", 1), "79", A, false));
    before.apply(&event(("b1", 2), "48", A, false));
    let stored = || before.rows().into_iter().filter_map(|r| r.assertion);
    let ids = |boots: &[&str]| -> Vec<String> {
        let gone = faults(boots, stored().collect()).not_found_again();
        gone.into_iter().map(|event| event.id).collect()
    };
    let (second, third) = (ids(&["b1", "b2"]), ids(&["b1", "b2", "b3"]));
    let all: std::collections::BTreeSet<&String> = second.iter().chain(&third).collect();
    assert_eq!((second.len(), all.len()), (2, 4), "{all:?}");
    assert!(second[0].starts_with("reboot:b2:"), "{second:?}");
    assert_eq!(ids(&["b1", "b2"]), second);
}

#[test]
fn a_historical_fault_is_closed_in_its_own_space() {
    let mut fault = event(("b1", 1), "79", A, false);
    fault.strategy = ProcessingStrategy::StoreOnly;
    let mut before = faults(&["b1"], Vec::new());
    before.apply(&fault);
    let stored = before
        .rows()
        .into_iter()
        .filter_map(|r| r.assertion)
        .collect();
    let gone = faults(&["b1", "b2"], stored).not_found_again();
    assert_eq!(gone[0].strategy, ProcessingStrategy::StoreOnly);
}

#[test]
fn adopted_faults_of_another_boot_are_earlier_than_this_one() {
    let mut faults = faults(&["b2"], Vec::new());
    faults.apply(&event(("b2", 1), "79", A, false));
    faults.adopt(&event(("b1", 900), "79", A, false));
    faults.adopt(&event(("b1", 901), "48", A, false));
    faults.adopt(&event(("b2", 902), "31", A, false));
    let codes: Vec<Vec<String>> = faults
        .not_found_again()
        .into_iter()
        .map(|e| e.error_codes)
        .collect();
    assert_eq!(codes, [["48"]], "found again, gone, of this boot");
    assert_eq!(faults.len(), 3);
}

#[test]
fn too_many_faults_are_said_to_be_so() {
    let mut faults = faults(&["b"], Vec::new());
    for number in 1..=MAX_ASSERTED as u64 {
        assert!(!faults.is_overflowing());
        let mut event = event(("b", number), "79", A, false);
        event.check_name = format!("Check{}", number % 64);
        event.error_codes = vec![number.to_string()];
        faults.apply(&event);
    }
    assert!(faults.is_overflowing());
    let row = faults.apply(&event(("b", 9_999), "x", A, false));
    assert!(row.is_empty());
    assert_eq!(faults.len(), MAX_ASSERTED);
    // Made-up codes do not grow what is kept of a check either.
    let kept = |faults: &Faults| {
        faults
            .scopes
            .values()
            .map(|s| s.faults.len())
            .sum::<usize>()
    };
    let before = kept(&faults);
    for number in 10_000..11_000_u64 {
        faults.apply(&event(("b", number), &number.to_string(), A, false));
    }
    assert_eq!(kept(&faults), before);
    // A known one is repeated and closed as ever, and then there is room again.
    let mut known = event(("b", 20_000), "64", A, false);
    known.check_name = "Check0".into();
    assert_eq!(faults.apply(&known).len(), 1);
    known.is_healthy = true;
    known
        .metadata
        .insert(keys::ORDER.into(), format!("b/{SPOOL}/20001"));
    assert_eq!(faults.apply(&known).len(), 1);
    assert!(!faults.is_overflowing());
    faults.apply(&event(("b", 20_002), "x", A, false));
    assert_eq!(faults.len(), MAX_ASSERTED);
}

mod recovery_action;
