//! Health events and nodes as CEL values, without building a tree per event.

use std::collections::{BTreeMap, HashMap};

use cel::ExecutionError;
use cel::common::traits::{Container, Indexer};
use cel::common::types::{
    CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString, MAP_TYPE, Type,
};
use cel::common::value::{CowVal, Val};
use health_event::{BehaviourOverrides, HealthEvent};

use super::NodeValue;

type Boxed<'v> = Box<dyn Val + 'v>;

/// All fields of `event`, with the reference's names.
pub(super) const EVENT_FIELDS: [&str; 18] = [
    "version",
    "agent",
    "componentClass",
    "checkName",
    "isFatal",
    "isHealthy",
    "message",
    "recommendedAction",
    "errorCode",
    "entitiesImpacted",
    "metadata",
    "generatedTimestamp",
    "nodeName",
    "quarantineOverrides",
    "drainOverrides",
    "processingStrategy",
    "id",
    "customRecommendedAction",
];

/// The fields of `event` that overrides see: the reference's, and the entities that its documents
/// promise too.
pub(super) const INCOMING_FIELDS: [&str; 11] = [
    "agent",
    "componentClass",
    "checkName",
    "isFatal",
    "isHealthy",
    "message",
    "recommendedAction",
    "errorCode",
    "entitiesImpacted",
    "metadata",
    "nodeName",
];

/// By whom an event is seen, since the reference shows it to its parts in two ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// By rule sets: all fields, numbers as doubles, empty containers as null.
    ByRules,
    /// By overrides: [`INCOMING_FIELDS`], the action by its name, empty containers empty.
    ByOverrides,
}

impl Seen {
    fn fields(self) -> &'static [&'static str] {
        match self {
            Self::ByRules => &EVENT_FIELDS,
            Self::ByOverrides => &INCOMING_FIELDS,
        }
    }
}

/// `event`, each field of which is built when an expression reads it.
#[derive(Debug, Clone, Copy)]
pub(super) struct EventValue<'v>(pub(super) &'v HealthEvent, pub(super) Seen);

impl<'v> EventValue<'v> {
    fn field(&self, name: &str) -> Option<Boxed<'v>> {
        let Self(event, seen) = *self;
        if !seen.fields().contains(&name) {
            return None;
        }
        Some(match (seen, name) {
            (Seen::ByOverrides, "recommendedAction") => text(event.recommended_action.name()),
            (Seen::ByOverrides, "errorCode") if event.error_codes.is_empty() => no_list(),
            (Seen::ByOverrides, "entitiesImpacted") if event.entities.is_empty() => no_list(),
            (Seen::ByOverrides, "metadata") if event.metadata.is_empty() => map([]),
            (Seen::ByRules | Seen::ByOverrides, _) => field(event, name)?,
        })
    }
}

impl Val for EventValue<'_> {
    fn get_type(&self) -> &Type {
        &MAP_TYPE
    }

    fn cel_type() -> &'static Type {
        &MAP_TYPE
    }

    fn as_container(&self) -> Option<&dyn Container> {
        Some(self)
    }

    fn as_indexer<'b, 'w>(&'b self) -> Option<&'b (dyn Indexer + 'w)>
    where
        Self: 'w,
    {
        Some(self)
    }

    fn clone_as_boxed<'w>(&self) -> Box<dyn Val + 'w>
    where
        Self: 'w,
    {
        Box::new(*self)
    }
}

impl Container for EventValue<'_> {
    fn contains(&self, value: &dyn Val) -> Result<bool, ExecutionError> {
        let key = text_of(value)?;
        Ok(self.1.fields().contains(&key))
    }
}

impl Indexer for EventValue<'_> {
    fn get<'b, 'w>(&'b self, index: &dyn Val) -> Result<CowVal<'b, 'w>, ExecutionError>
    where
        Self: 'w,
    {
        let key = text_of(index)?;
        let value = self
            .field(key)
            .ok_or_else(|| ExecutionError::no_such_key(key))?;
        Ok(CowVal::Owned(value))
    }

    fn steal<'w>(self: Box<Self>, index: &dyn Val) -> Result<Box<dyn Val + 'w>, ExecutionError>
    where
        Self: 'w,
    {
        let key = text_of(index)?;
        self.field(key)
            .ok_or_else(|| ExecutionError::no_such_key(key))
    }
}

fn text_of(value: &dyn Val) -> Result<&str, ExecutionError> {
    value
        .downcast_ref::<CelString>()
        .map(CelString::inner)
        .ok_or_else(|| ExecutionError::UnexpectedType {
            got: value.get_type().name().to_owned(),
            want: "string".to_owned(),
        })
}

fn field<'v>(event: &'v HealthEvent, name: &str) -> Option<Boxed<'v>> {
    Some(match name {
        "version" => number(f64::from(event.version)),
        "agent" => text(&event.agent),
        "componentClass" => text(&event.component_class),
        "checkName" => text(&event.check_name),
        "isFatal" => Box::new(CelBool::from(event.is_fatal)),
        "isHealthy" => Box::new(CelBool::from(event.is_healthy)),
        "message" => text(&event.message),
        "recommendedAction" => number(f64::from(event.recommended_action.number())),
        "errorCode" => list(event.error_codes.iter().map(|code| text(code)).collect()),
        "entitiesImpacted" => list(
            event
                .entities
                .iter()
                .map(|e| {
                    map([
                        ("entityType", text(&e.kind)),
                        ("entityValue", text(&e.value)),
                    ])
                })
                .collect(),
        ),
        "metadata" if event.metadata.is_empty() => null(),
        "metadata" => map(event.metadata.iter().map(|(k, v)| (k.as_str(), text(v)))),
        "generatedTimestamp" => event.generated_at.map_or_else(null, |at| {
            let parts = (at.as_second(), at.subsec_nanosecond());
            map([
                ("seconds", number(seconds_as_double(parts.0))),
                ("nanos", number(f64::from(parts.1))),
            ])
        }),
        "nodeName" => text(&event.node_name),
        "quarantineOverrides" => overrides(event.quarantine_overrides),
        "drainOverrides" => overrides(event.drain_overrides),
        "processingStrategy" => number(f64::from(event.strategy.number())),
        "id" => text(&event.id),
        "customRecommendedAction" => text(&event.custom_recommended_action),
        _ => return None,
    })
}

#[expect(
    clippy::cast_precision_loss,
    reason = "jiff's seconds stay below 2^53, which a double holds exactly"
)]
fn seconds_as_double(seconds: i64) -> f64 {
    seconds as f64
}

fn text(text: &str) -> Boxed<'_> {
    Box::new(CelString::from(text))
}

fn number<'v>(number: f64) -> Boxed<'v> {
    Box::new(CelDouble::from(number))
}

fn null<'v>() -> Boxed<'v> {
    Box::new(CelNull)
}

fn list(items: Vec<Boxed<'_>>) -> Boxed<'_> {
    if items.is_empty() {
        return null();
    }
    Box::new(CelList::from(items))
}

fn no_list<'v>() -> Boxed<'v> {
    Box::new(CelList::from(Vec::new()))
}

fn map<'v>(entries: impl IntoIterator<Item = (&'v str, Boxed<'v>)>) -> Boxed<'v> {
    let entries: HashMap<CelMapKey<'v>, Boxed<'v>> = entries
        .into_iter()
        .map(|(key, value)| (CelMapKey::from(key), value))
        .collect();
    Box::new(CelMap::from(entries))
}

fn overrides<'v>(overrides: Option<BehaviourOverrides>) -> Boxed<'v> {
    overrides.map_or_else(null, |o| {
        map([
            ("force", Box::new(CelBool::from(o.force)) as Boxed<'v>),
            ("skip", Box::new(CelBool::from(o.skip))),
        ])
    })
}

/// `node`. A node without labels has an empty map of them, so that a rule about one label reads
/// "absent" there rather than failing.
pub(super) fn node(value: &NodeValue) -> Boxed<'_> {
    let NodeValue::Map(fields) = value else {
        return node_part(value);
    };
    let empty: Boxed<'_> = map([("labels", map([]))]);
    let mut entries: BTreeMap<&str, Boxed<'_>> = BTreeMap::from([("metadata", empty)]);
    for (name, part) in fields {
        let built = match part {
            NodeValue::Map(metadata) if name == "metadata" => with_labels(metadata),
            NodeValue::Map(_)
            | NodeValue::Bool(_)
            | NodeValue::Int(_)
            | NodeValue::Text(_)
            | NodeValue::List(_) => node_part(part),
        };
        entries.insert(name, built);
    }
    map(entries)
}

fn with_labels(metadata: &BTreeMap<String, NodeValue>) -> Boxed<'_> {
    let mut entries: BTreeMap<&str, Boxed<'_>> = BTreeMap::from([("labels", map([]))]);
    entries.extend(metadata.iter().map(|(k, v)| (k.as_str(), node_part(v))));
    map(entries)
}

fn node_part(value: &NodeValue) -> Boxed<'_> {
    match value {
        NodeValue::Bool(b) => Box::new(CelBool::from(*b)),
        NodeValue::Int(i) => Box::new(CelInt::from(*i)),
        NodeValue::Text(t) => text(t),
        NodeValue::List(items) => Box::new(CelList::from(
            items.iter().map(node_part).collect::<Vec<_>>(),
        )),
        NodeValue::Map(fields) => map(fields.iter().map(|(k, v)| (k.as_str(), node_part(v)))),
    }
}
