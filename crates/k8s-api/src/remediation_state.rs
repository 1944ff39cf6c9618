//! Value of [`crate::names::REMEDIATION_STATE`]: which object repairs a node, for the reference's tools.
//!
//! It is rendered from the incident, and not read: the repair objects themselves tell what is under way.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use crate::marks::to_json;

/// One group of repairs that exclude each other.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct GroupState {
    /// Name of the object.
    #[serde(rename = "maintenanceCR")]
    maintenance_cr: String,
    /// When it was ordered.
    created_at: Timestamp,
    /// The action that it was ordered for, by its name in the configuration.
    action_name: String,
}

#[derive(Serialize)]
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
    }
}
