use std::collections::BTreeMap;

use health_event::{ProcessingStrategy, RecommendedAction};
use proptest::prelude::*;

use super::*;
use crate::{decode_body, encode_body, received_bytes};

fn now() -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap()
}

fn good() -> wire::HealthEvent {
    wire::HealthEvent {
        agent: "syslog-health-monitor".into(),
        component_class: "GPU".into(),
        check_name: "SysLogsXIDError".into(),
        node_name: "gpu-17".into(),
        generated_timestamp: Some(prost_types::Timestamp {
            seconds: 1_699_999_990,
            nanos: 5,
        }),
        ..Default::default()
    }
}

fn one(event: wire::HealthEvent) -> Result<Accepted, Refusal> {
    let batch = wire::HealthEvents {
        version: 1,
        events: vec![event],
    };
    accept(batch, None, now()).map(|mut accepted| accepted.remove(0))
}

fn with(change: impl FnOnce(&mut wire::HealthEvent)) -> Result<Accepted, Refusal> {
    let mut event = good();
    change(&mut event);
    one(event)
}

fn entities(kind: &str, count: usize) -> Vec<wire::Entity> {
    let entity = |n: usize| wire::Entity {
        entity_type: kind.into(),
        entity_value: n.to_string(),
    };
    (0..count).map(entity).collect()
}

fn entries(count: usize) -> BTreeMap<String, String> {
    (0..count).map(|n| (n.to_string(), "v".into())).collect()
}

#[test]
fn every_bound_refuses_with_its_field() {
    type Change = Box<dyn FnOnce(&mut wire::HealthEvent)>;
    let table: Vec<(&str, Change)> = vec![
        ("checkName", Box::new(|e| e.check_name.clear())),
        ("checkName", Box::new(|e| e.check_name = "c".repeat(257))),
        ("nodeName", Box::new(|e| e.node_name.clear())),
        ("nodeName", Box::new(|e| e.node_name = "Gpu_17".into())),
        (
            "customRecommendedAction",
            Box::new(|e| e.recommended_action = 27),
        ),
        (
            "customRecommendedAction",
            Box::new(|e| e.custom_recommended_action = "c".repeat(257)),
        ),
        (
            "errorCode",
            Box::new(|e| e.error_code = vec!["1".into(); 65]),
        ),
        (
            "errorCode",
            Box::new(|e| e.error_code = vec!["1".repeat(257)]),
        ),
        (
            "entitiesImpacted",
            Box::new(|e| e.entities_impacted = entities("GPU", 65)),
        ),
        (
            "entitiesImpacted",
            Box::new(|e| e.entities_impacted = entities("NVLINK", 257)),
        ),
        (
            "entityType",
            Box::new(|e| e.entities_impacted = entities(&"k".repeat(257), 1)),
        ),
        (
            "entityValue",
            Box::new(|e| {
                e.entities_impacted = entities("GPU", 1);
                e.entities_impacted[0].entity_value = "v".repeat(4097);
            }),
        ),
        ("metadata", Box::new(|e| e.metadata = entries(129))),
        (
            "metadata",
            Box::new(|e| {
                e.metadata.insert("k".repeat(257), String::new());
            }),
        ),
        (
            "metadata",
            Box::new(|e| {
                e.metadata.insert("k".into(), "v".repeat(4097));
            }),
        ),
        ("agent", Box::new(|e| e.agent = "a".repeat(257))),
        (
            "componentClass",
            Box::new(|e| e.component_class = "a".repeat(257)),
        ),
        ("id", Box::new(|e| e.id = "a".repeat(257))),
        ("checkName", Box::new(|e| e.check_name.push('\u{1b}'))),
        ("checkName", Box::new(|e| e.check_name.push('\n'))),
        ("agent", Box::new(|e| e.agent.push('\u{0}'))),
        ("agent", Box::new(|e| e.agent.push('\u{202e}'))),
        (
            "componentClass",
            Box::new(|e| e.component_class.push('\u{200b}')),
        ),
    ];
    for (field, change) in table {
        let refusal = with(change).expect_err(field);
        assert_eq!((refusal.index, refusal.field), (Some(0), field));
        let status = refusal.status();
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        assert!(status.message().starts_with("event 0: "), "{status}");
        assert!(status.message().contains("allowed: "), "{status}");
    }
}

#[test]
fn every_bound_lets_its_last_value_pass() {
    let accepted = with(|e| {
        e.check_name = "c".repeat(256);
        e.agent = "Prüfer 7".into();
        e.error_code = vec!["1".into(); 64];
        e.entities_impacted = entities("GPU", 64);
        e.metadata = entries(128);
        e.metadata.insert("warden.dev/order".into(), "b/s/1".into());
        e.message = "m".repeat(MAX_MESSAGE_BYTES);
    })
    .unwrap();
    assert_eq!(accepted.event.message.len(), MAX_MESSAGE_BYTES);
    assert!(!accepted.clock_skew);
}

/// What a sender may put on the wire that is no batch at all, and what only looks strange.
#[test]
fn bytes_that_are_no_batch_do_not_decode_and_strange_ones_have_an_answer() {
    let bad: [(&str, &[u8]); 7] = [
        ("a field cut short", &[0x12, 0x05, 0x22]),
        ("field number 0", &[0x02, 0x01, 0x00]),
        ("a group that never ends", &[0x0b]),
        ("a wire type that does not exist", &[0x0f]),
        (
            "a length beyond any message",
            &[0x12, 0xff, 0xff, 0xff, 0xff, 0x7f],
        ),
        ("a name that is no UTF-8", &[0x12, 0x03, 0x22, 0x01, 0xff]),
        ("a text where the number stands", &[0x0a, 0x01, 0x61]),
    ];
    for (what, bytes) in bad {
        assert!(wire::HealthEvents::decode(bytes).is_err(), "{what}");
    }
    // Groups in groups: prost stops at 100.
    assert!(wire::HealthEvents::decode([0x1b].repeat(10_000).as_slice()).is_err());
    let event = good().encode_to_vec();
    let strange: [(&str, Vec<u8>); 4] = [
        ("a field of a later version", vec![0xf8, 0x07, 0x01]),
        ("a boolean above 1", vec![0x28, 0x07]),
        (
            "an enum number of 64 bits",
            vec![0x40, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
        ),
        ("a code with a zero byte", vec![0x4a, 0x02, 0x61, 0x00]),
    ];
    for (what, tail) in strange {
        let bytes = [event.as_slice(), &tail].concat();
        let event = wire::HealthEvent::decode(bytes.as_slice()).expect(what);
        assert!(one(event).is_ok(), "{what}");
    }
}

#[test]
fn the_node_name_is_a_dns_subdomain_or_refused() {
    let long = [
        "a".repeat(63),
        "b".repeat(63),
        "c".repeat(63),
        "d".repeat(61),
    ]
    .join(".");
    let table = [
        ("gpu-17", true),
        ("gpu-17.rack-3.example.org", true),
        ("0", true),
        (&long, true),
        (&format!("{long}e"), false),
        ("-gpu", false),
        ("gpu-", false),
        ("gpu..17", false),
        (".gpu", false),
        ("gpu.", false),
        ("GPU", false),
        ("gpu 17", false),
        ("gpu/17", false),
        ("../gpu", false),
        ("gpu\n17", false),
        ("gpü", false),
        (" ", false),
    ];
    for (name, good) in table {
        assert_eq!(
            with(|e| e.node_name = name.into()).is_ok(),
            good,
            "{name:?}"
        );
    }
}

#[test]
fn the_second_event_of_a_batch_is_named() {
    let mut bad = good();
    bad.check_name.clear();
    let batch = wire::HealthEvents {
        version: 1,
        events: vec![good(), bad],
    };
    let refusal = accept(batch, None, now()).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "event 1: checkName is empty; allowed: the name of the check"
    );
}

#[test]
fn a_batch_is_bounded_in_number_and_in_bytes() {
    let batch = |events| wire::HealthEvents { version: 1, events };
    assert_eq!(
        accept(batch(vec![good(); 1_000]), None, now())
            .unwrap()
            .len(),
        1_000
    );
    let many = accept(batch(vec![good(); 1_001]), None, now()).unwrap_err();
    assert_eq!(
        many.to_string(),
        "batch: events has 1001 entries; allowed: at most 1000 events a batch"
    );
    let mut long = good();
    long.message = "m".repeat(MAX_BATCH_BYTES);
    let big = accept(batch(vec![long]), None, now()).unwrap_err();
    assert!(big.to_string().contains("4 MiB"), "{big}");
    assert!(accept(batch(Vec::new()), None, now()).unwrap().is_empty());
}

#[test]
fn an_empty_node_name_means_the_own_node_where_there_is_one() {
    let own = NodeName::new("gpu-3").unwrap();
    let mut event = good();
    event.node_name.clear();
    let batch = wire::HealthEvents {
        version: 1,
        events: vec![event, good()],
    };
    let accepted = accept(batch, Some(&own), now()).unwrap();
    assert_eq!(accepted[0].event.node_name, "gpu-3");
    assert_eq!(accepted[1].event.node_name, "gpu-17");
}

#[test]
fn unknown_numbers_have_answers() {
    let strategy = |number| {
        with(|e| e.processing_strategy = number)
            .unwrap()
            .event
            .strategy
    };
    assert_eq!(strategy(0), ProcessingStrategy::ExecuteRemediation);
    assert_eq!(strategy(1), ProcessingStrategy::ExecuteRemediation);
    assert_eq!(strategy(2), ProcessingStrategy::StoreOnly);
    assert_eq!(strategy(3), ProcessingStrategy::StoreAndAnalyse);
    assert_eq!(strategy(44), ProcessingStrategy::StoreOnly);
    let action = with(|e| e.recommended_action = 77)
        .unwrap()
        .event
        .recommended_action;
    assert_eq!(action, RecommendedAction::Unrecognised(77));
}

#[test]
fn a_long_message_is_cut_between_two_characters() {
    let accepted = with(|e| e.message = "ä".repeat(MAX_MESSAGE_BYTES)).unwrap();
    let message = accepted.event.message;
    assert!(message.len() <= MAX_MESSAGE_BYTES && message.len() > MAX_MESSAGE_BYTES - 8);
    assert!(message.ends_with("ä [cut]"));
}

#[test]
fn a_time_that_can_not_be_believed_is_replaced_and_kept() {
    let time = |seconds, nanos| Some(prost_types::Timestamp { seconds, nanos });
    let second = now().as_second();
    let table = [
        (None, now(), false, None),
        (
            time(second - 86_400, 0),
            Timestamp::from_second(second - 86_400).unwrap(),
            false,
            None,
        ),
        (
            time(second + 600, 0),
            Timestamp::from_second(second + 600).unwrap(),
            false,
            None,
        ),
        (
            time(second + 601, 0),
            now(),
            true,
            Some("2023-11-14T22:23:21Z"),
        ),
        (
            time(i64::MAX, 0),
            now(),
            false,
            Some("9223372036854775807 s 0 ns"),
        ),
        (time(0, -1), now(), false, Some("0 s -1 ns")),
    ];
    for (claimed, want, skew, kept) in table {
        let accepted = with(|e| e.generated_timestamp = claimed).unwrap();
        assert_eq!(accepted.event.generated_at, Some(want), "{claimed:?}");
        assert_eq!(accepted.clock_skew, skew, "{claimed:?}");
        let metadata = accepted.event.metadata.get(keys::CLAIMED_TIME);
        assert_eq!(metadata.map(String::as_str), kept, "{claimed:?}");
    }
}

#[test]
fn what_an_event_says_leaves_out_id_and_order_only() {
    let event = one(good()).unwrap().event;
    let said = |event: &HealthEvent| received_bytes(event.clone().into());
    let mut resent = event.clone();
    resent.id = "other".into();
    resent.metadata.insert(keys::ORDER.into(), "b/s/9".into());
    assert_eq!(said(&event), said(&resent));
    resent.is_fatal = true;
    assert_ne!(said(&event), said(&resent));
}

#[test]
fn what_an_agent_finds_again_says_the_same_whatever_time_was_worked_out() {
    let said = |event: &HealthEvent| received_bytes(event.clone().into());
    let mut event = one(good()).unwrap().event;
    let mut again = event.clone();
    again.generated_at = event
        .generated_at
        .map(|at| at + jiff::SignedDuration::from_micros(13));
    assert_ne!(said(&event), said(&again));
    for prefix in [keys::KERNEL_RECORD_ID, keys::REBOOT_RECOVERY_ID] {
        for found in [&mut event, &mut again] {
            found.id = format!("{prefix}boot:7");
        }
        assert_eq!(said(&event), said(&again));
    }
    again.message.push('x');
    assert_ne!(said(&event), said(&again));
}

fn text(most: usize) -> impl Strategy<Value = String> {
    proptest::collection::vec(any::<char>(), 0..most).prop_map(|chars| chars.into_iter().collect())
}

prop_compose! {
    fn any_event()(
        texts in proptest::collection::vec(text(20), 7),
        bools in any::<[bool; 6]>(),
        numbers in any::<(u32, i32, i32)>(),
        action in prop_oneof![any::<i32>(), Just(27), Just(0)],
        codes in proptest::collection::vec(text(4), 0..70),
        entities in proptest::collection::vec((text(4), text(6)), 0..70),
        metadata in proptest::collection::btree_map(text(10), text(20), 0..6),
        time in proptest::option::of((any::<i64>(), any::<i32>())),
        node in prop_oneof![text(8), Just("gpu-1".to_owned())],
        long in prop_oneof![Just(0_usize), Just(20_000)],
    ) -> wire::HealthEvent {
        let overrides = |force, skip| wire::BehaviourOverrides { force, skip };
        wire::HealthEvent {
            version: numbers.0,
            agent: texts[0].clone(),
            component_class: texts[1].clone(),
            check_name: texts[2].clone(),
            is_fatal: bools[0],
            is_healthy: bools[1],
            message: texts[3].repeat(long.max(1)),
            recommended_action: action,
            error_code: codes,
            entities_impacted: entities
                .into_iter()
                .map(|(entity_type, entity_value)| wire::Entity { entity_type, entity_value })
                .collect(),
            metadata,
            generated_timestamp: time
                .map(|(seconds, nanos)| prost_types::Timestamp { seconds, nanos }),
            node_name: node,
            quarantine_overrides: bools[2].then(|| overrides(bools[3], bools[4])),
            drain_overrides: bools[5].then(|| overrides(bools[4], bools[3])),
            processing_strategy: numbers.2,
            id: texts[4].clone(),
            custom_recommended_action: texts[5].clone(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn whatever_decodes_is_refused_or_within_the_bounds(event in any_event()) {
        let Ok(accepted) = one(event) else { return Ok(()) };
        let event = accepted.event;
        prop_assert!(event.message.len() <= MAX_MESSAGE_BYTES);
        prop_assert!(devices_of(&event.entities).len() <= MAX_DEVICES);
        prop_assert!(event.generated_at.is_some());
        let again = one(event.clone().into()).unwrap();
        prop_assert_eq!(again.event, event);
    }

    #[test]
    fn an_accepted_event_survives_its_stored_form(event in any_event()) {
        let mut event = event;
        event.check_name = "Check".into();
        event.node_name = "gpu-1".into();
        event.agent = health_event::text::harmless(&event.agent).into_owned();
        event.component_class = health_event::text::harmless(&event.component_class).into_owned();
        event.custom_recommended_action = "reboot".into();
        event.error_code.truncate(MAX_CODES);
        event.entities_impacted.truncate(MAX_DEVICES);
        event.message.truncate(0);
        let event = one(event).unwrap().event;
        let body = encode_body(&event);
        prop_assert_eq!(&decode_body(&body).unwrap(), &event);
        prop_assert_eq!(encode_body(&decode_body(&body).unwrap()), body);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode_body(&bytes);
        if let Ok(batch) = wire::HealthEvents::decode(bytes.as_slice()) {
            let _ = accept(batch, None, now());
        }
    }
}
