//! What `event` and `node` hold: the fields and their kinds.

use std::collections::BTreeMap;

use super::super::{NodeValue, Root};

/// The kind of a value, as far as it is known before anything is evaluated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kind {
    /// Not known; never a mistake.
    Any,
    Null,
    Bool,
    Number,
    Text,
    /// With the kind of its elements; none of a list without any.
    List(Option<&'static Kind>),
    /// Texts as keys, with the kind of its values; none of a map without any.
    Map(Option<&'static Kind>),
    Object(&'static Object),
}

/// A map whose keys are known.
#[derive(Debug, PartialEq)]
pub(super) struct Object {
    pub(super) fields: &'static [(&'static str, Kind)],
    /// A later version of the API may have more of them.
    pub(super) grows: bool,
}

const ANY: Kind = Kind::Any;
const BOOL: Kind = Kind::Bool;
const NUMBER: Kind = Kind::Number;
const TEXT: Kind = Kind::Text;
const TEXTS: Kind = Kind::List(Some(&TEXT));
const TEXT_MAP: Kind = Kind::Map(Some(&TEXT));

const fn closed(fields: &'static [(&'static str, Kind)]) -> Object {
    Object {
        fields,
        grows: false,
    }
}

const fn open(fields: &'static [(&'static str, Kind)]) -> Object {
    Object {
        fields,
        grows: true,
    }
}

static OVERRIDES: Object = closed(&[("force", BOOL), ("skip", BOOL)]);
static ENTITY: Object = closed(&[("entityType", TEXT), ("entityValue", TEXT)]);
static TIME: Object = closed(&[("seconds", NUMBER), ("nanos", NUMBER)]);

/// The fields of `values::EVENT_FIELDS`.
static EVENT: Object = closed(&[
    ("version", NUMBER),
    ("agent", TEXT),
    ("componentClass", TEXT),
    ("checkName", TEXT),
    ("isFatal", BOOL),
    ("isHealthy", BOOL),
    ("message", TEXT),
    ("recommendedAction", NUMBER),
    ("errorCode", TEXTS),
    ("entitiesImpacted", Kind::List(Some(&Kind::Object(&ENTITY)))),
    ("metadata", TEXT_MAP),
    ("generatedTimestamp", Kind::Object(&TIME)),
    ("nodeName", TEXT),
    ("quarantineOverrides", Kind::Object(&OVERRIDES)),
    ("drainOverrides", Kind::Object(&OVERRIDES)),
    ("processingStrategy", NUMBER),
    ("id", TEXT),
    ("customRecommendedAction", TEXT),
]);

/// The fields of `values::INCOMING_FIELDS`.
static INCOMING: Object = closed(&[
    ("agent", TEXT),
    ("componentClass", TEXT),
    ("checkName", TEXT),
    ("isFatal", BOOL),
    ("isHealthy", BOOL),
    ("message", TEXT),
    ("recommendedAction", TEXT),
    ("errorCode", TEXTS),
    ("entitiesImpacted", Kind::List(Some(&Kind::Object(&ENTITY)))),
    ("metadata", TEXT_MAP),
    ("nodeName", TEXT),
]);

static METADATA: Object = closed(&[
    ("name", TEXT),
    ("generateName", TEXT),
    ("namespace", TEXT),
    ("selfLink", TEXT),
    ("uid", TEXT),
    ("resourceVersion", TEXT),
    ("generation", NUMBER),
    ("creationTimestamp", TEXT),
    ("deletionTimestamp", TEXT),
    ("deletionGracePeriodSeconds", NUMBER),
    ("labels", TEXT_MAP),
    ("annotations", TEXT_MAP),
    ("ownerReferences", Kind::List(Some(&ANY))),
    ("finalizers", TEXTS),
    ("managedFields", Kind::List(Some(&ANY))),
]);
static TAINT: Object = open(&[
    ("key", TEXT),
    ("value", TEXT),
    ("effect", TEXT),
    ("timeAdded", TEXT),
]);
static SPEC: Object = open(&[
    ("podCIDR", TEXT),
    ("podCIDRs", TEXTS),
    ("providerID", TEXT),
    ("unschedulable", BOOL),
    ("taints", Kind::List(Some(&Kind::Object(&TAINT)))),
    ("configSource", ANY),
    ("externalID", TEXT),
]);
static CONDITION: Object = open(&[
    ("type", TEXT),
    ("status", TEXT),
    ("reason", TEXT),
    ("message", TEXT),
    ("lastHeartbeatTime", TEXT),
    ("lastTransitionTime", TEXT),
]);
static ADDRESS: Object = open(&[("type", TEXT), ("address", TEXT)]);
static NODE_INFO: Object = open(&[
    ("machineID", TEXT),
    ("systemUUID", TEXT),
    ("bootID", TEXT),
    ("kernelVersion", TEXT),
    ("osImage", TEXT),
    ("containerRuntimeVersion", TEXT),
    ("kubeletVersion", TEXT),
    ("kubeProxyVersion", TEXT),
    ("operatingSystem", TEXT),
    ("architecture", TEXT),
    ("swap", ANY),
]);
static IMAGE: Object = open(&[("names", TEXTS), ("sizeBytes", NUMBER)]);
static STATUS: Object = open(&[
    ("capacity", TEXT_MAP),
    ("allocatable", TEXT_MAP),
    ("phase", TEXT),
    ("conditions", Kind::List(Some(&Kind::Object(&CONDITION)))),
    ("addresses", Kind::List(Some(&Kind::Object(&ADDRESS)))),
    ("daemonEndpoints", ANY),
    ("nodeInfo", Kind::Object(&NODE_INFO)),
    ("images", Kind::List(Some(&Kind::Object(&IMAGE)))),
    ("volumesInUse", TEXTS),
    ("volumesAttached", Kind::List(Some(&ANY))),
    ("config", ANY),
    ("runtimeHandlers", Kind::List(Some(&ANY))),
    ("features", ANY),
    ("declaredFeatures", TEXTS),
]);
/// `core/v1` Node, as Kubernetes 1.36 has it.
static NODE: Object = closed(&[
    ("apiVersion", TEXT),
    ("kind", TEXT),
    ("metadata", Kind::Object(&METADATA)),
    ("spec", Kind::Object(&SPEC)),
    ("status", Kind::Object(&STATUS)),
]);

pub(super) fn of(root: Root) -> Kind {
    Kind::Object(match root {
        Root::Event => &EVENT,
        Root::Incoming => &INCOMING,
        Root::Node => &NODE,
    })
}

/// A node with every known field; all its texts are `text`.
pub(in super::super) fn full_node(text: &str) -> NodeValue {
    of(Root::Node).full(text)
}

impl Object {
    pub(super) fn field(&self, name: &str) -> Option<Kind> {
        let found = self.fields.iter().find(|(field, _)| *field == name);
        found.map(|(_, kind)| *kind)
    }

    /// The field that was probably meant: the same but for case and `_`, one a beginning of the
    /// other, or one that stands a level deeper.
    pub(super) fn meant(&self, name: &str) -> Option<String> {
        let plain = |text: &str| text.replace(['_', '-'], "").to_ascii_lowercase();
        let wanted = plain(name);
        let names = || self.fields.iter().map(|(field, _)| *field);
        let same = names().find(|field| plain(field) == wanted);
        let begins = || {
            names().find(|field| {
                let field = plain(field);
                let shorter = field.len().min(wanted.len());
                shorter >= 4 && (field.starts_with(&wanted) || wanted.starts_with(&field))
            })
        };
        let deeper = || {
            self.fields.iter().find_map(|(outer, kind)| match kind {
                Kind::Object(inner) => inner.field(name).map(|_| format!("{outer}.{name}")),
                Kind::Any
                | Kind::Null
                | Kind::Bool
                | Kind::Number
                | Kind::Text
                | Kind::List(_)
                | Kind::Map(_) => None,
            })
        };
        same.or_else(begins).map(str::to_owned).or_else(deeper)
    }
}

impl Kind {
    fn full(self, text: &str) -> NodeValue {
        match self {
            Self::Any | Self::Null | Self::Text => NodeValue::Text(text.to_owned()),
            Self::Bool => NodeValue::Bool(true),
            Self::Number => NodeValue::Int(1),
            Self::List(element) => {
                NodeValue::List(element.iter().map(|element| element.full(text)).collect())
            }
            // What the expression reads is put into it.
            Self::Map(_) => NodeValue::Map(BTreeMap::new()),
            Self::Object(object) => {
                let fields = object.fields.iter();
                let full = fields.map(|(name, kind)| ((*name).to_owned(), kind.full(text)));
                NodeValue::Map(full.collect())
            }
        }
    }

    /// A list of values of this kind.
    pub(super) fn listed(self) -> Self {
        Self::List(Some(match self {
            Self::Bool => &BOOL,
            Self::Number => &NUMBER,
            Self::Text => &TEXT,
            Self::Any | Self::Null | Self::List(_) | Self::Map(_) | Self::Object(_) => &ANY,
        }))
    }

    /// What holds for a value that has the one or the other kind.
    pub(super) fn or(self, other: Self) -> Self {
        match (self, other) {
            (same, other) if same == other => same,
            (Self::List(_), Self::List(_)) => Self::List(Some(&ANY)),
            _ => Self::Any,
        }
    }

    /// In words.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Any => "a value",
            Self::Null => "null",
            Self::Bool => "a boolean",
            Self::Number => "a number",
            Self::Text => "a text",
            Self::List(Some(Self::Text)) => "a list of texts",
            Self::List(Some(Self::Object(_))) => "a list of objects",
            Self::List(_) => "a list",
            Self::Map(_) => "a map",
            Self::Object(_) => "an object",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::values::EVENT_FIELDS;
    use super::*;

    #[test]
    fn the_shape_of_an_event_is_that_of_its_values() {
        let known: Vec<&str> = EVENT.fields.iter().map(|(name, _)| *name).collect();
        assert_eq!(known, EVENT_FIELDS);
    }
}
