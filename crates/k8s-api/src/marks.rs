//! The values of the annotations and labels that say that and why a node is out.

use std::collections::BTreeSet;

use health_event::incident::{IncidentId, Taint};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::names;

/// Why the text of an annotation is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("annotation {annotation} does not hold {wanted}: {why}")]
pub struct ValueError {
    annotation: &'static str,
    wanted: &'static str,
    why: String,
}

impl ValueError {
    pub(crate) fn new(name: names::Name, wanted: &'static str, why: &dyn ToString) -> Self {
        let why: String = why.to_string().chars().take(200).collect();
        Self {
            annotation: name.text,
            wanted,
            why,
        }
    }

    /// Static name of the error.
    pub fn code(&self) -> &'static str {
        "bad_annotation"
    }
}

/// Value of [`names::INCIDENT`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncidentMark {
    /// The incident.
    pub incident: IncidentId,
    /// Its version at the write.
    pub version: u64,
    /// The node object that it belongs to; one on another object (a copied manifest) is not ours.
    pub node_uid: String,
    /// Who holds the node (`warden hold`), as [`hold_text`] cuts it. Versions before it was added
    /// pass it over.
    pub held_by: Option<String>,
}

/// Most bytes of [`IncidentMark::held_by`]: a name and a sentence.
const LONGEST_HOLD: usize = 256;

/// Who holds a node, and why, as the mark carries it: cut to 256 bytes.
pub fn hold_text(held_by: &str) -> String {
    held_by[..held_by.floor_char_boundary(LONGEST_HOLD)].to_owned()
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct IncidentRecord {
    id: String,
    version: u64,
    #[serde(rename = "nodeUID")]
    node_uid: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    held_by: Option<String>,
}

impl IncidentMark {
    /// As the annotation holds it.
    pub fn render(&self) -> String {
        to_json(&IncidentRecord {
            id: self.incident.as_str().to_owned(),
            version: self.version,
            node_uid: self.node_uid.clone(),
            held_by: self.held_by.clone(),
        })
    }

    /// From the annotation.
    ///
    /// # Errors
    /// It is no JSON of that form, the id is no ULID, or the version is above 2^53.
    pub fn parse(text: &str) -> Result<Self, ValueError> {
        const WANTED: &str = "{id: ULID, version, nodeUID}";
        // More than any incident comes to, and room for all that follow.
        const VERSION_MAX: u64 = 1 << 53;
        let record: IncidentRecord =
            serde_json::from_str(text).map_err(|e| ValueError::new(names::INCIDENT, WANTED, &e))?;
        let incident = IncidentId::new(&record.id)
            .ok_or_else(|| ValueError::new(names::INCIDENT, WANTED, &"the id is no ULID"))?;
        if record.version > VERSION_MAX {
            let why = "the version is above 2^53";
            return Err(ValueError::new(names::INCIDENT, WANTED, &why));
        }
        Ok(Self {
            incident,
            version: record.version,
            node_uid: record.node_uid,
            held_by: record.held_by.map(|text| hold_text(&text)),
        })
    }
}

/// Value of [`names::CONDITIONS`]: types of the conditions that we wrote and did not take back.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConditionList(pub BTreeSet<String>);

impl ConditionList {
    /// As the annotation holds it.
    pub fn render(&self) -> String {
        to_json(&self.0)
    }

    /// From the annotation.
    ///
    /// # Errors
    /// It is no JSON list of texts.
    pub fn parse(text: &str) -> Result<Self, ValueError> {
        serde_json::from_str(text)
            .map(Self)
            .map_err(|e| ValueError::new(names::CONDITIONS, "a JSON list of types", &e))
    }
}

/// One element of [`names::APPLIED_TAINTS`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AppliedTaint {
    /// The taint.
    pub taint: Taint,
    /// Whether it stood there before us: then release leaves it.
    pub pre_existing: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AppliedTaintRecord<'a> {
    key: &'a str,
    value: &'a str,
    effect: &'a str,
    pre_existing: bool,
}

impl AppliedTaint {
    /// A list as the annotation holds it.
    pub fn render_list(taints: &[Self]) -> String {
        let records: Vec<AppliedTaintRecord<'_>> = taints
            .iter()
            .map(|t| AppliedTaintRecord {
                key: &t.taint.key,
                value: &t.taint.value,
                effect: &t.taint.effect,
                pre_existing: t.pre_existing,
            })
            .collect();
        to_json(&records)
    }

    /// From the annotation; keys in any case, since older versions of the reference wrote
    /// `Key`, `Value`, `Effect`. An element without key or effect is passed over: it names no
    /// taint that a node can have, and the others are ours all the same.
    ///
    /// # Errors
    /// It is no JSON list.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, ValueError> {
        const WANTED: &str = "a JSON list of {key, value, effect, preExisting}";
        let list: Vec<Value> = serde_json::from_str(text)
            .map_err(|e| ValueError::new(names::APPLIED_TAINTS, WANTED, &e))?;
        let read = |value: &Value| {
            let text = |key: &str| {
                field(value, key)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned()
            };
            let taint = Taint {
                key: text("key"),
                value: text("value"),
                effect: text("effect"),
            };
            let pre_existing = field(value, "preExisting")
                .and_then(Value::as_bool)
                .unwrap_or_default();
            let named = !taint.key.is_empty() && !taint.effect.is_empty();
            named.then_some(Self {
                taint,
                pre_existing,
            })
        };
        Ok(list.iter().filter_map(read).collect())
    }
}

/// The field of an object whose name is this one in any case; exact spelling first.
pub(crate) fn field<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    let object = value.as_object()?;
    object.get(name).or_else(|| {
        object
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    })
}

pub(crate) fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("texts, numbers and lists of them always render")
}

/// Value of `cordon-reason`: the reasons in the given order, joined by `-`, as a label value.
pub fn cordon_reason<'a>(reasons: impl IntoIterator<Item = &'a str>) -> String {
    let some = reasons.into_iter().filter(|reason| !reason.is_empty());
    names::label_value(&some.collect::<Vec<_>>().join("-"))
}

/// Value of `uncordon-reason` for a `cordon-reason`: cut, so that `-removed` fits behind it. None
/// for an empty one.
pub fn uncordon_reason(cordon_reason: &str) -> Option<String> {
    const SUFFIX: &str = "-removed";
    let end = cordon_reason.floor_char_boundary(names::LABEL_LIMIT - SUFFIX.len());
    let cut = names::label_value(&cordon_reason[..end]);
    (!cut.is_empty()).then(|| cut + SUFFIX)
}

/// A time as the value of a label, which can't hold colons: `2026-01-02T03-04-05Z`.
pub fn label_timestamp(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H-%M-%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(key: &str) -> Taint {
        Taint {
            key: key.into(),
            value: "true".into(),
            effect: "NoSchedule".into(),
        }
    }

    #[test]
    fn an_incident_mark_round_trips() {
        let mark = IncidentMark {
            incident: IncidentId::new("01ARZ3NDEKTSV4RRFFQ69G5FAV").unwrap(),
            version: 3,
            node_uid: "u-1".into(),
            held_by: None,
        };
        let text = mark.render();
        // Byte for byte what earlier versions write, and read.
        let plain = r#"{"id":"01ARZ3NDEKTSV4RRFFQ69G5FAV","version":3,"nodeUID":"u-1"}"#;
        assert_eq!(text, plain);
        assert_eq!(IncidentMark::parse(&text), Ok(mark.clone()));
        let held = IncidentMark {
            held_by: Some("ann: maintenance".into()),
            ..mark
        };
        let text = held.render();
        let tail = r#","heldBy":"ann: maintenance"}"#;
        assert_eq!(text, plain.replace('}', tail));
        assert_eq!(IncidentMark::parse(&text), Ok(held));
        // What a later version may add is passed over, as earlier ones do with `heldBy`.
        assert!(IncidentMark::parse(&plain.replace('}', r#","later":[1]}"#)).is_ok());
        assert_eq!(hold_text(&"é".repeat(200)).len(), 256);
        let most = plain.replace(":3,", ":9007199254740992,");
        assert!(IncidentMark::parse(&most).is_ok());
        let more = plain.replace(":3,", ":18446744073709551615,");
        assert!(IncidentMark::parse(&more).is_err());
        for bad in ["", "{}", "[]", r#"{"id":"x","version":1,"nodeUID":""}"#] {
            assert_eq!(
                IncidentMark::parse(bad).unwrap_err().code(),
                "bad_annotation"
            );
        }
    }

    #[test]
    fn marks_that_others_wrote_are_an_error_and_never_a_guess() {
        let mark = |id: &str, version: &str, uid: &str| {
            format!(r#"{{"id":{id},"version":{version},"nodeUID":{uid}}}"#)
        };
        let ulid = r#""01ARZ3NDEKTSV4RRFFQ69G5FAV""#;
        assert!(IncidentMark::parse(&mark(ulid, "0", "\"\"")).is_ok());
        let table = [
            mark(ulid, "-1", "\"u\""),
            mark(ulid, "18446744073709551616", "\"u\""),
            mark(ulid, "1.5", "\"u\""),
            mark(ulid, "\"1\"", "\"u\""),
            mark(ulid, "1", "null"),
            mark("7", "1", "\"u\""),
            mark("\"01ARZ3NDEKTSV4RRFFQ69G5FA\"", "1", "\"u\""),
            format!("{}x", mark(ulid, "1", "\"u\"")),
            "[".repeat(5_000),
        ];
        for bad in table {
            assert!(IncidentMark::parse(&bad).is_err(), "{bad}");
        }
        for bad in ["[1]", r#"["a",null]"#, "\"a\"", "", "[\"a\""] {
            assert!(ConditionList::parse(bad).is_err(), "{bad}");
        }
        for bad in ["", "null", "{}", "nonsense"] {
            assert!(AppliedTaint::parse_list(bad).is_err(), "{bad}");
        }
        // What is no taint says nothing about those beside it.
        let mixed = r#"[{"key":1,"effect":"NoSchedule"},{"value":"v"},3,{"key":"a","effect":""},
            {"key":"a","value":"true","effect":"NoSchedule"}]"#;
        let read = AppliedTaint::parse_list(mixed).unwrap();
        assert_eq!(read.len(), 1);
        assert_eq!(read[0].taint, taint("a"));
    }

    #[test]
    fn a_condition_list_round_trips_sorted() {
        let list = ConditionList(["B", "A"].map(String::from).into());
        assert_eq!(list.render(), r#"["A","B"]"#);
        assert_eq!(ConditionList::parse(&list.render()), Ok(list));
        assert!(ConditionList::parse("{}").is_err());
    }

    #[test]
    fn row_140_applied_taints_round_trip_and_are_read_in_either_casing() {
        let list = vec![
            AppliedTaint {
                taint: taint("a"),
                pre_existing: false,
            },
            AppliedTaint {
                taint: taint("b"),
                pre_existing: true,
            },
        ];
        let text = AppliedTaint::render_list(&list);
        assert!(text.starts_with(
            r#"[{"key":"a","value":"true","effect":"NoSchedule","preExisting":false}"#
        ));
        assert_eq!(AppliedTaint::parse_list(&text), Ok(list.clone()));
        let older = r#"[{"Key":"a","Value":"true","Effect":"NoSchedule"}]"#;
        assert_eq!(AppliedTaint::parse_list(older).unwrap(), list[..1]);
    }

    #[test]
    fn reasons_fit_a_label() {
        assert_eq!(cordon_reason(["GPU fatal", "", "XID"]), "GPU-fatal-XID");
        let long = "r".repeat(80);
        assert_eq!(cordon_reason([long.as_str()]).len(), 63);
        assert_eq!(uncordon_reason("gpu-error").unwrap(), "gpu-error-removed");
        assert_eq!(uncordon_reason(&long).unwrap().len(), 63);
        let cut_at_a_dash = format!("{}-x", "r".repeat(54));
        let removed = format!("{}-removed", "r".repeat(54));
        assert_eq!(uncordon_reason(&cut_at_a_dash).unwrap(), removed);
        assert_eq!(uncordon_reason(""), None);
        assert_eq!(uncordon_reason("-"), None);
    }

    #[test]
    fn a_label_timestamp_has_no_colons() {
        let at = Timestamp::from_second(1_765_000_000).unwrap();
        assert_eq!(label_timestamp(at), "2025-12-06T05-46-40Z");
    }
}
