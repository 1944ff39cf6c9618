//! What a new process does before its first decision.

use std::collections::BTreeSet;

use decide::quarantine::CordonOwner;
use event_store::{ReadError, WriteError};
use health_event::NodeName;
use jiff::{SignedDuration, Timestamp};
use k8s_api::{IncidentMark, names};
use serde::{Deserialize, Serialize};

use crate::config::Profile;
use crate::context::Context;
use crate::nodes::NodeCache;

/// Where the first action is kept.
const FIRST_ACTION: &str = "quarantine/first-action";

/// When quarantine was switched on, and how far it might act then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FirstAction {
    profile: String,
    since: Timestamp,
}

/// Until when each match is withheld: for the delay after the first start with quarantine on, and
/// after each step up of the profile. None if the delay is off or over.
pub(super) async fn first_action_until(
    context: &Context,
    now: Timestamp,
) -> Result<Option<Timestamp>, FirstActionError> {
    let config = &context.config;
    let delay = config.quarantine.first_action_delay;
    let known = context.store.state_get(FIRST_ACTION)?;
    let known: Option<FirstAction> = known.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let known_profile = known
        .as_ref()
        .and_then(|known| Profile::from_name(&known.profile));
    let before = known.filter(|_| known_profile >= Some(config.profile));
    let since = match before {
        Some(known) => known.since,
        // Our marks on a node of this cluster prove that quarantine has acted before.
        None if any_mark_of_ours(&context.nodes) => Timestamp::UNIX_EPOCH,
        None => now,
    };
    let record = FirstAction {
        profile: config.profile.as_str().to_owned(),
        since,
    };
    let bytes = serde_json::to_vec(&record).expect("a name and a time always render");
    context
        .store
        .state_put(FIRST_ACTION, bytes, context.fencing)
        .await?;
    let delay = SignedDuration::try_from(delay).unwrap_or(SignedDuration::MAX);
    let until = since.checked_add(delay).unwrap_or(Timestamp::MAX);
    Ok((until > now).then_some(until))
}

/// Why the first action is not known.
#[derive(Debug, thiserror::Error)]
#[error("the time of the first action can't be kept: {0}")]
pub(super) struct FirstActionError(String);

impl From<ReadError> for FirstActionError {
    fn from(error: ReadError) -> Self {
        Self(error.to_string())
    }
}

impl From<WriteError> for FirstActionError {
    fn from(error: WriteError) -> Self {
        Self(error.to_string())
    }
}

fn any_mark_of_ours(nodes: &NodeCache) -> bool {
    nodes.all().iter().any(|node| {
        let text = node.annotation(names::INCIDENT.text);
        let mark = text.and_then(|text| IncidentMark::parse(text).ok());
        mark.is_some_and(|mark| mark.node_uid == *node.uid)
    })
}

/// The nodes that have something to decide about: open faults, open incidents, marks of ours.
pub(super) fn nodes_to_look_at(context: &Context) -> Result<BTreeSet<NodeName>, ReadError> {
    let mut names: BTreeSet<NodeName> = context
        .store
        .nodes_with_open_faults()?
        .into_iter()
        .collect();
    names.extend(
        context
            .store
            .open_incidents()?
            .into_iter()
            .map(|incident| incident.node),
    );
    let ours = [
        names::INCIDENT.text,
        names::HEALTH_EVENT.text,
        names::UNCORDONED_MANUALLY.text,
        names::UNTAINTED_MANUALLY.text,
    ];
    for node in context.nodes.all() {
        // A cordon of ours without annotations is looked at too.
        let bare = node.is_cordoned() && node.cordon_owner == CordonOwner::Us;
        if bare || ours.iter().any(|key| node.annotation(key).is_some()) {
            names.insert(node.name.clone());
        }
    }
    Ok(names)
}
