//! The value of annotation `quarantineHealthEvent`: the events that hold a node, in the JSON that
//! the reference's programs read (Go's rendering of the protobuf struct: camelCase, zero values
//! left out, enums as numbers).

use std::collections::BTreeMap;

use health_event::event::{BehaviourOverrides, ProcessingStrategy};
use health_event::{Entity, HealthEvent, RecommendedAction};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::marks::{ValueError, field, to_json};
use crate::names;

/// Most bytes that the annotation takes. All annotations of a node share 256 KiB, and every watch
/// of the node carries them.
pub const MAX_BYTES: usize = 32 * 1024;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Record<'a> {
    #[serde(skip_serializing_if = "is_zero")]
    version: u32,
    #[serde(skip_serializing_if = "str::is_empty")]
    agent: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    component_class: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    check_name: &'a str,
    #[serde(skip_serializing_if = "is_false")]
    is_fatal: bool,
    #[serde(skip_serializing_if = "is_false")]
    is_healthy: bool,
    #[serde(skip_serializing_if = "str::is_empty")]
    message: &'a str,
    #[serde(skip_serializing_if = "is_zero")]
    recommended_action: i32,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    error_code: &'a [String],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    entities_impacted: Vec<EntityRecord<'a>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<&'a str, &'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    generated_timestamp: Option<TimeRecord>,
    #[serde(skip_serializing_if = "str::is_empty")]
    node_name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    quarantine_overrides: Option<OverridesRecord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    drain_overrides: Option<OverridesRecord>,
    processing_strategy: i32,
    #[serde(skip_serializing_if = "str::is_empty")]
    id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    custom_recommended_action: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EntityRecord<'a> {
    entity_type: &'a str,
    entity_value: &'a str,
}

#[derive(Serialize)]
struct TimeRecord {
    #[serde(skip_serializing_if = "is_zero")]
    seconds: i64,
    #[serde(skip_serializing_if = "is_zero")]
    nanos: i32,
}

#[derive(Serialize)]
struct OverridesRecord {
    #[serde(skip_serializing_if = "is_false")]
    force: bool,
    #[serde(skip_serializing_if = "is_false")]
    skip: bool,
}

fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it with a reference"
)]
fn is_false(value: &bool) -> bool {
    !*value
}

/// How much of each event is written.
#[derive(Clone, Copy)]
enum Detail {
    All,
    NoMetadata,
    NoMessage,
}

/// The events as the annotation holds them, at most [`MAX_BYTES`]: first the metadata goes, then
/// the messages, then the events at the front of the list (the oldest), whose number the first
/// one left then carries in its metadata ([`names::LEFT_OUT`]).
pub fn render(events: &[HealthEvent]) -> String {
    for detail in [Detail::All, Detail::NoMetadata, Detail::NoMessage] {
        let text = render_from(events, 0, detail);
        if text.len() <= MAX_BYTES {
            return text;
        }
    }
    // Halving the range that is left out keeps this at a dozen renderings for any input.
    let (mut too_few, mut enough) = (0, events.len());
    while enough - too_few > 1 {
        let middle = too_few + (enough - too_few) / 2;
        if render_from(events, middle, Detail::NoMessage).len() <= MAX_BYTES {
            enough = middle;
        } else {
            too_few = middle;
        }
    }
    render_from(events, enough, Detail::NoMessage)
}

fn render_from(events: &[HealthEvent], left_out: usize, detail: Detail) -> String {
    let count = left_out.to_string();
    let mut records: Vec<Record<'_>> = events[left_out..]
        .iter()
        .map(|e| record(e, detail))
        .collect();
    if left_out > 0
        && let Some(first) = records.first_mut()
    {
        first.metadata.insert(names::LEFT_OUT.text, &count);
    }
    to_json(&records)
}

fn record(event: &HealthEvent, detail: Detail) -> Record<'_> {
    let metadata = match detail {
        Detail::All => event
            .metadata
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_str()))
            .collect(),
        Detail::NoMetadata | Detail::NoMessage => BTreeMap::new(),
    };
    let message = match detail {
        Detail::All | Detail::NoMetadata => event.message.as_str(),
        Detail::NoMessage => "",
    };
    let overrides = |o: Option<BehaviourOverrides>| {
        o.map(|o| OverridesRecord {
            force: o.force,
            skip: o.skip,
        })
    };
    Record {
        version: event.version,
        agent: &event.agent,
        component_class: &event.component_class,
        check_name: &event.check_name,
        is_fatal: event.is_fatal,
        is_healthy: event.is_healthy,
        message,
        recommended_action: event.recommended_action.number(),
        error_code: &event.error_codes,
        entities_impacted: event
            .entities
            .iter()
            .map(|e| EntityRecord {
                entity_type: &e.kind,
                entity_value: &e.value,
            })
            .collect(),
        metadata,
        generated_timestamp: event.generated_at.map(|t| TimeRecord {
            seconds: t.as_second(),
            nanos: t.subsec_nanosecond(),
        }),
        node_name: &event.node_name,
        quarantine_overrides: overrides(event.quarantine_overrides),
        drain_overrides: overrides(event.drain_overrides),
        processing_strategy: event.strategy.number(),
        id: &event.id,
        custom_recommended_action: &event.custom_recommended_action,
    }
}

/// The events of an annotation, by whoever wrote it: a list, or one object as older versions of
/// the reference wrote it; keys in any case; unknown fields are passed over; an empty text is an
/// empty list.
///
/// # Errors
/// It is no JSON, or an element is no object with a check name.
pub fn parse(text: &str) -> Result<Vec<HealthEvent>, ValueError> {
    let error =
        |why: &dyn ToString| ValueError::new(names::HEALTH_EVENT, "a JSON list of events", why);
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let value: Value = serde_json::from_str(text).map_err(|e| error(&e))?;
    let one = |value: &Value| {
        let event = read(value);
        if event.check_name.is_empty() {
            return Err(error(&"an element names no check"));
        }
        Ok(event)
    };
    match &value {
        Value::Array(list) => list.iter().map(one).collect(),
        Value::Object(_) => Ok(vec![one(&value)?]),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            Err(error(&"it is neither a list nor an object"))
        }
    }
}

fn read(value: &Value) -> HealthEvent {
    let text = |name: &str| text_of(value, name);
    let number = |name: &str| {
        field(value, name)
            .and_then(Value::as_i64)
            .unwrap_or_default()
    };
    let flag = |name: &str| {
        field(value, name)
            .and_then(Value::as_bool)
            .unwrap_or_default()
    };
    let small = |name: &str| i32::try_from(number(name)).unwrap_or(-1);
    HealthEvent {
        id: text("id"),
        version: u32::try_from(number("version")).unwrap_or_default(),
        agent: text("agent"),
        component_class: text("componentClass"),
        check_name: text("checkName"),
        is_fatal: flag("isFatal"),
        is_healthy: flag("isHealthy"),
        message: text("message"),
        recommended_action: RecommendedAction::from_number(small("recommendedAction")),
        custom_recommended_action: text("customRecommendedAction"),
        error_codes: list(value, "errorCode")
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
        entities: list(value, "entitiesImpacted")
            .map(|e| Entity::new(&text_of(e, "entityType"), &text_of(e, "entityValue")))
            .collect(),
        metadata: field(value, "metadata")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned())))
            .collect(),
        generated_at: field(value, "generatedTimestamp")
            .filter(|t| t.is_object())
            .and_then(|t| {
                let part = |name: &str| field(t, name).and_then(Value::as_i64).unwrap_or_default();
                Timestamp::new(part("seconds"), i32::try_from(part("nanos")).ok()?).ok()
            }),
        node_name: text("nodeName"),
        quarantine_overrides: overrides(value, "quarantineOverrides"),
        drain_overrides: overrides(value, "drainOverrides"),
        strategy: ProcessingStrategy::from_number(small("processingStrategy")),
    }
}

fn text_of(value: &Value, name: &str) -> String {
    field(value, name)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

fn list<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    field(value, name)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

fn overrides(value: &Value, name: &str) -> Option<BehaviourOverrides> {
    let value = field(value, name).filter(|v| v.is_object())?;
    let flag = |name: &str| {
        field(value, name)
            .and_then(Value::as_bool)
            .unwrap_or_default()
    };
    Some(BehaviourOverrides {
        force: flag("force"),
        skip: flag("skip"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the reference's users, byte for byte.
    const EXAMPLE: &str = concat!(
        r#"[{"version":1,"agent":"gpu-health-monitor","componentClass":"GPU","#,
        r#""checkName":"GpuXidError","isFatal":true,"message":"XID error occurred","#,
        r#""recommendedAction":15,"errorCode":["79"],"#,
        r#""entitiesImpacted":[{"entityType":"GPU","entityValue":"0"}],"#,
        r#""generatedTimestamp":{"seconds":1765000000,"nanos":123000000},"nodeName":"n1","#,
        r#""processingStrategy":1,"id":"68bd4fc9ffa9f5eca91c340c"}]"#,
    );

    fn event(id: usize) -> HealthEvent {
        HealthEvent {
            id: format!("{id}"),
            check_name: "C".into(),
            message: "m".repeat(2_000),
            metadata: [("k".to_owned(), "v".repeat(2_000))].into(),
            entities: vec![Entity::new("GPU", &id.to_string())],
            ..HealthEvent::default()
        }
    }

    #[test]
    fn the_references_example_round_trips_byte_for_byte() {
        let events = parse(EXAMPLE).unwrap();
        assert_eq!(events[0].recommended_action, RecommendedAction::RestartVm);
        assert_eq!(render(&events), EXAMPLE);
    }

    #[test]
    fn every_field_round_trips() {
        let full = HealthEvent {
            version: 2,
            is_healthy: true,
            custom_recommended_action: "X".into(),
            recommended_action: RecommendedAction::Custom,
            quarantine_overrides: Some(BehaviourOverrides {
                force: true,
                skip: false,
            }),
            drain_overrides: Some(BehaviourOverrides {
                force: false,
                skip: true,
            }),
            strategy: ProcessingStrategy::StoreAndAnalyse,
            generated_at: Some(Timestamp::new(5, 0).unwrap()),
            ..event(1)
        };
        assert_eq!(parse(&render(std::slice::from_ref(&full))).unwrap(), [full]);
    }

    #[test]
    fn older_forms_are_read() {
        let single = r#"{"CheckName":"GpuXidError","IsFatal":true,"ERRORCODE":["79"]}"#;
        let events = parse(single).unwrap();
        assert_eq!((events.len(), events[0].is_fatal), (1, true));
        assert_eq!(events[0].error_codes, ["79"]);
        assert_eq!(parse(" ").unwrap(), []);
        assert_eq!(parse("[]").unwrap(), []);
        for bad in ["{", "7", "[{}]", "[1]"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_anyone_may_have_written_has_an_answer() {
        let event = |field: &str| format!(r#"[{{"checkName":"C",{field}}}]"#);
        // A field of another type, or a number out of range, reads as if it were absent.
        let taken = [
            r#""isFatal":"true""#,
            r#""errorCode":"79""#,
            r#""errorCode":[79,null,{}]"#,
            r#""entitiesImpacted":{"entityType":"GPU"}"#,
            r#""metadata":["a"]"#,
            r#""metadata":{"k":1}"#,
            r#""version":-1"#,
            r#""version":99999999999"#,
            r#""generatedTimestamp":{"seconds":9223372036854775807}"#,
            r#""generatedTimestamp":"2026-01-02T03:04:05Z""#,
            r#""quarantineOverrides":true"#,
            r#""processingStrategy":1"#,
            r#""unknown":{"a":[1]}"#,
        ];
        let plain = parse(r#"[{"checkName":"C","processingStrategy":1}]"#).unwrap();
        for field in taken {
            let mut events = parse(&event(field)).unwrap();
            events[0].strategy = plain[0].strategy;
            assert_eq!(events, plain, "{field}");
        }
        let deep = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
        let refused = [
            "null",
            "\"text\"",
            "[null]",
            r#"[{"checkName":7}]"#,
            r#"[{"checkName":"C"}"#,
            r#"[{"checkName":"C"}] x"#,
            "\u{feff}[]",
            deep.as_str(),
        ];
        for text in refused {
            let error = parse(text).unwrap_err();
            assert_eq!(error.code(), "bad_annotation");
            assert!(error.to_string().len() < 500);
        }
    }

    #[test]
    fn metadata_goes_first_then_messages_then_the_oldest() {
        let ids = |text: &str| -> Vec<String> {
            parse(text).unwrap().into_iter().map(|e| e.id).collect()
        };
        let some: Vec<HealthEvent> = (0..10).map(event).collect();
        let text = render(&some);
        assert_eq!(ids(&text).len(), 10);
        assert!(text.contains("mmm") && !text.contains("metadata"));

        let more: Vec<HealthEvent> = (0..100).map(event).collect();
        let text = render(&more);
        assert_eq!(ids(&text).len(), 100);
        assert!(!text.contains("mmm"));

        let many: Vec<HealthEvent> = (0..2_000).map(event).collect();
        let text = render(&many);
        let kept = ids(&text);
        assert!(text.len() <= MAX_BYTES && text.len() > MAX_BYTES - 400);
        assert_eq!(kept.last().map(String::as_str), Some("1999"));
        let left_out = &parse(&text).unwrap()[0].metadata[names::LEFT_OUT.text];
        assert_eq!(left_out.parse::<usize>().unwrap() + kept.len(), 2_000);
    }
}
