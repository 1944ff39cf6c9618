//! Whose a node's cordon is: the API server notes in `metadata.managedFields` who last changed
//! which field.
//!
//! Only entries that set `spec.unschedulable` count; all else is skipped while parsing. Since
//! the API server keeps ten managers that update an object and folds older ones into
//! `ancient-changes`, an entry of that name tells nothing.

use std::borrow::Cow;
use std::fmt;

use decide::quarantine::CordonOwner;
use k8s_api::names;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};

/// What the API server calls managers that it no longer tells apart.
const ANCIENT: &str = "ancient-changes";

/// How the reference's writer calls itself (client-go: by its program). Where we took its marks
/// over, our annotations say whose the cordon is; elsewhere nothing of its own is ours anyhow.
const REFERENCE: &str = "fault-quarantine";

/// The owner of `spec.unschedulable`, read from `metadata.managedFields`.
#[derive(Debug, Default)]
pub(super) struct ManagedCordon(pub(super) CordonOwner);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry<'a> {
    #[serde(borrow, default)]
    manager: Cow<'a, str>,
    #[serde(default)]
    fields_v1: Fields,
}

#[derive(Deserialize, Default)]
struct Fields {
    #[serde(rename = "f:spec", default)]
    spec: SpecFields,
}

#[derive(Deserialize, Default)]
struct SpecFields {
    #[serde(rename = "f:unschedulable", default, deserialize_with = "is_there")]
    unschedulable: bool,
}

fn is_there<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(from).map(|_| true)
}

impl<'de> Deserialize<'de> for ManagedCordon {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = ManagedCordon;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of managed fields")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut owner = CordonOwner::Unknown;
        while let Some(entry) = entries.next_element::<Entry<'de>>()? {
            let untold = entry.manager == ANCIENT || entry.manager.starts_with(REFERENCE);
            if !entry.fields_v1.spec.unschedulable || untold {
                continue;
            }
            owner = if entry.manager != names::FIELD_MANAGER.text {
                CordonOwner::Others
            } else if owner == CordonOwner::Unknown {
                CordonOwner::Us
            } else {
                owner
            };
        }
        Ok(ManagedCordon(owner))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(ManagedCordon::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(json: &str) -> CordonOwner {
        serde_json::from_str::<ManagedCordon>(json).unwrap().0
    }

    #[test]
    fn whoever_set_the_field_owns_the_cordon() {
        let entry = |manager: &str| {
            format!(
                r#"{{"manager":"{manager}","operation":"Update","apiVersion":"v1",
                "time":"2026-01-02T03:04:05Z","fieldsType":"FieldsV1","fieldsV1":
                {{"f:metadata":{{"f:labels":{{".":{{}},"f:a":{{}}}}}},"f:spec":{{"f:unschedulable":{{}}}}}}}}"#
            )
        };
        let (us, other) = (entry("warden-controller"), entry("kubectl-cordon"));
        let ancient = entry("ancient-changes");
        let reference = entry("fault-quarantine");
        let status = r#"{"manager":"kubelet","subresource":"status","fieldsV1":{"f:status":{}}}"#;
        let spec = r#"{"manager":"kcm","fieldsV1":{"f:spec":{"f:taints":{},"f:podCIDR":{}}}}"#;
        let table = [
            (String::from("[]"), CordonOwner::Unknown),
            (String::from("null"), CordonOwner::Unknown),
            (format!("[{status},{spec}]"), CordonOwner::Unknown),
            (format!("[{status},{us},{spec}]"), CordonOwner::Us),
            (format!("[{spec},{other}]"), CordonOwner::Others),
            // Two own a field when one of them applies it: another wants the cordon too.
            (format!("[{us},{other}]"), CordonOwner::Others),
            (format!("[{other},{us}]"), CordonOwner::Others),
            (format!("[{ancient}]"), CordonOwner::Unknown),
            (format!("[{reference}]"), CordonOwner::Unknown),
            (format!("[{ancient},{us}]"), CordonOwner::Us),
            (String::from(r#"[{"manager":"m"}]"#), CordonOwner::Unknown),
        ];
        for (json, want) in table {
            assert_eq!(owner(&json), want, "{json}");
        }
    }
}
