//! Texts of our annotations that decisions read, in the forms that are fixed for all programs.

use health_event::incident::{IncidentId, Taint};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

/// Content of annotation `warden.dev/incident`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncidentMark {
    /// Incident.
    pub id: IncidentId,
    /// Its version when the write was planned.
    pub version: u64,
    /// UID of the node that it was written to.
    pub uid: String,
}

impl IncidentMark {
    /// From the annotation's text.
    pub fn parse(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        Some(Self {
            id: IncidentId::new(value.get("id")?.as_str()?)?,
            version: value.get("version")?.as_u64()?,
            uid: value.get("nodeUID")?.as_str()?.to_owned(),
        })
    }

    /// The annotation's text.
    pub fn render(&self) -> String {
        json!({"id": self.id.as_str(), "version": self.version, "nodeUID": self.uid}).to_string()
    }
}

/// One element of annotation `quarantineHealthEventAppliedTaints`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedTaint {
    /// Taint.
    pub taint: Taint,
    /// It stood there before us.
    pub pre_existing: bool,
}

/// Reads annotation `quarantineHealthEventAppliedTaints`, in any casing of its keys; what can't
/// be read is left out.
pub fn parse_applied_taints(text: &str) -> Vec<AppliedTaint> {
    let Ok(Value::Array(items)) = serde_json::from_str(text) else {
        return Vec::new();
    };
    let read = |item: &Value| {
        let item = item.as_object()?;
        let text = |name| {
            field(item, name)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        Some(AppliedTaint {
            taint: Taint {
                key: Some(text("key")).filter(|k| !k.is_empty())?.to_owned(),
                value: text("value").to_owned(),
                effect: text("effect").to_owned(),
            },
            pre_existing: field(item, "preExisting")
                .and_then(Value::as_bool)
                .unwrap_or(false),
        })
    };
    items.iter().filter_map(read).collect()
}

fn field<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    object
        .iter()
        .find(|(key, _)| key.eq_ignore_ascii_case(name))
        .map(|(_, value)| value)
}

/// The text of annotation `quarantineHealthEventAppliedTaints`.
pub fn render_applied_taints(taints: &[AppliedTaint]) -> String {
    let items: Vec<Value> = taints
        .iter()
        .map(|applied| {
            json!({
                "key": applied.taint.key,
                "value": applied.taint.value,
                "effect": applied.taint.effect,
                "preExisting": applied.pre_existing,
            })
        })
        .collect();
    Value::Array(items).to_string()
}

/// `YYYY-MM-DDTHH-MM-SSZ`, the form of a time in a label (UTC).
pub fn label_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H-%M-%SZ").to_string()
}
