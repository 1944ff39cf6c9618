//! Value of [`names::REMEDIATION_STATE`]: which object repairs a node, for the reference's tools.
//!
//! It is rendered from the incident and read only where the store was lost. The reference reads a text
//! that it can't parse as empty and writes over it; here it is an error, and the repair objects
//! themselves tell what is under way.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::marks::{ValueError, to_json};
use crate::names;

/// One group of repairs that exclude each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupState {
    /// Name of the object.
    #[serde(rename = "maintenanceCR")]
    pub maintenance_cr: String,
    /// When it was ordered.
    pub created_at: Timestamp,
    /// The action that it was ordered for, by its name in the configuration.
    #[serde(default)]
    pub action_name: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    #[serde(default)]
    equivalence_groups: BTreeMap<String, GroupState>,
}

/// The annotation of a node whose last repair is `cr`, ordered in `group` for `action`.
pub fn render(group: &str, cr: &str, created_at: Timestamp, action: &str) -> String {
    let state = GroupState {
        maintenance_cr: cr.to_owned(),
        created_at,
        action_name: action.to_owned(),
    };
    to_json(&Record {
        equivalence_groups: BTreeMap::from([(group.to_owned(), state)]),
    })
}

/// The groups that an annotation names.
///
/// # Errors
/// It is no JSON of that form.
pub fn parse(text: &str) -> Result<BTreeMap<String, GroupState>, ValueError> {
    const WANTED: &str = "{equivalenceGroups: {GROUP: {maintenanceCR, createdAt, actionName}}}";
    let record: Record = serde_json::from_str(text)
        .map_err(|error| ValueError::new(names::REMEDIATION_STATE, WANTED, &error))?;
    Ok(record.equivalence_groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    /// The reference's own example.
    #[test]
    fn repair_row_124_what_the_reference_wrote_is_read_and_bad_json_is_an_error() {
        let text = r#"{"equivalenceGroups":{"restart":{"maintenanceCR":"maintenance-n1-x",
            "createdAt":"2025-11-13T17:18:32.163469826Z","actionName":"RESTART_VM"},
            "reset-GPU-123":{"maintenanceCR":"maintenance-n1-y",
            "createdAt":"2025-11-13T17:18:32Z"}}}"#;
        let groups = parse(text).unwrap();
        assert_eq!(groups["restart"].maintenance_cr, "maintenance-n1-x");
        assert_eq!(
            groups["restart"].created_at,
            at("2025-11-13T17:18:32.163469826Z")
        );
        assert_eq!(groups["reset-GPU-123"].action_name, "");
        assert_eq!(parse("{}").unwrap(), BTreeMap::new());
        for bad in ["", "7", "{", r#"{"equivalenceGroups":{"a":1}}"#] {
            let error = parse(bad).unwrap_err();
            assert_eq!(error.code(), "bad_annotation");
            assert!(error.to_string().contains("latestFaultRemediationState"));
        }
    }

    #[test]
    fn repair_row_125_group_object_and_action_are_read_back() {
        let ordered = at("2026-01-02T03:04:05.6Z");
        let text = render("restart", "maintenance-n1-z", ordered, "RESTART_BM");
        assert_eq!(
            text,
            r#"{"equivalenceGroups":{"restart":{"maintenanceCR":"maintenance-n1-z","createdAt":"2026-01-02T03:04:05.6Z","actionName":"RESTART_BM"}}}"#
        );
        let groups = parse(&text).unwrap();
        assert_eq!(groups.len(), 1);
        assert_eq!(groups["restart"].action_name, "RESTART_BM");
        assert_eq!(groups["restart"].created_at, ordered);
    }
}
