//! Value of [`crate::names::REMEDIATION_STATE`]: which object repairs a node, for the reference's tools.
//!
//! It is rendered from the incident. It is read where the store that knew the incident was lost, for a repair whose
//! object is gone.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::marks::to_json;

/// One group of repairs that exclude each other.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct GroupState {
    /// Name of the object.
    #[serde(rename = "maintenanceCR")]
    maintenance_cr: String,
    /// When it was ordered.
    created_at: Timestamp,
    /// The action that it was ordered for, by its name in the configuration.
    #[serde(default)]
    action_name: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
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

/// A repair that the annotation tells of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Noted {
    /// Name of its object.
    pub object: String,
    /// When it was ordered.
    pub ordered_at: Timestamp,
    /// The action that it was ordered for; empty if it does not say.
    pub action: String,
}

/// The repairs that the annotation tells of; none if it is not one of ours or the reference's.
pub fn noted(text: &str) -> Vec<Noted> {
    let record: Option<Record> = serde_json::from_str(text).ok();
    let groups = record
        .into_iter()
        .flat_map(|record| record.equivalence_groups);
    let noted = groups.map(|(_, group)| Noted {
        object: group.maintenance_cr,
        ordered_at: group.created_at,
        action: group.action_name,
    });
    noted.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn repair_row_125_group_object_time_and_action_are_rendered() {
        let ordered = at("2026-01-02T03:04:05.6Z");
        let text = render("restart", "maintenance-n1-z", ordered, "RESTART_BM");
        assert_eq!(
            text,
            r#"{"equivalenceGroups":{"restart":{"maintenanceCR":"maintenance-n1-z","createdAt":"2026-01-02T03:04:05.6Z","actionName":"RESTART_BM"}}}"#
        );
        let read = Noted {
            object: "maintenance-n1-z".to_owned(),
            ordered_at: ordered,
            action: "RESTART_BM".to_owned(),
        };
        assert_eq!(noted(&text), [read]);
        assert_eq!(noted("{}"), []);
        assert_eq!(noted("?"), []);
    }
}
