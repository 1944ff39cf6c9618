//! What of an incident's marks is on its node: a person may take them off while Warden does not write,
//! and then the incident's state is not the node's.

use wire::api::{Incident, NodeObject};

use super::Facts;

/// How many of the marks that an incident asks for the node carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Marks {
    /// All of them, whoever set them.
    All,
    /// Some.
    Part,
    /// Not one.
    None,
}

/// What the node object shows; [`Marks::None`] where there is none.
pub(super) fn on_node(facts: &Facts, incident: &Incident) -> Marks {
    let Some(object) = &facts.node.object else {
        return Marks::None;
    };
    let taints = incident.taints.iter();
    let cordon = incident.cordon.then_some(object.cordoned);
    let shown: Vec<bool> = taints
        .map(|taint| has(object, taint))
        .chain(cordon)
        .collect();
    match shown.iter().filter(|shown| **shown).count() {
        count if count == shown.len() => Marks::All,
        0 => Marks::None,
        _ => Marks::Part,
    }
}

fn has(object: &NodeObject, taint: &str) -> bool {
    object.taints.iter().any(|on_node| on_node == taint)
}
