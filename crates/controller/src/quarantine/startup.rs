//! What a new process does before its first decision.

use std::collections::BTreeMap;

use decide::quarantine::{CordonOwner, Mode};
use event_store::{EventStore, ReadError, WriteError};
use health_event::{NodeName, Subject};
use jiff::{SignedDuration, Timestamp};
use k8s_api::{IncidentMark, names};
use serde::{Deserialize, Serialize};

use super::settings;
use crate::config::Profile;
use crate::context::Context;
use crate::nodes::{NodeCache, NodeFacts};
use crate::reports::STATE_PREFIX;

/// Where the first action is kept.
const FIRST_ACTION: &str = "quarantine/first-action";

/// Where it is kept that others led with another store, until the nodes that a person gave back are known.
const OLDER: &str = "quarantine/older-store";
/// Where it is kept that a node waits for its agent's word.
const GIVEN_BACK: &str = "quarantine/given-back/";

/// A node with a record of a person's uncordon that an empty store found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GivenBackNode {
    /// UID of the node object.
    pub(super) uid: String,
    /// When it was found.
    pub(super) since: Timestamp,
}

/// All of them: at most the nodes that were there when the store was empty.
pub(super) type GivenBackNodes = BTreeMap<NodeName, GivenBackNode>;

pub(super) fn given_back_key(node: &NodeName) -> String {
    format!("{GIVEN_BACK}{node}")
}

/// Whether nothing is opened on this node before its agent's first settled report: a person had
/// given it back, and the store that knew of what was lost.
///
/// # Errors
/// The store can't be read.
pub fn waits_for_word(store: &EventStore, node: &NodeName) -> Result<bool, ReadError> {
    Ok(store.state_get(&given_back_key(node))?.is_some())
}

/// Notes that the store does not know of every hold, and forgets what agents said before: those have to speak
/// again. For before the reports are loaded.
///
/// # Errors
/// The store can't be read or written.
pub async fn knows_no_hold(store: &EventStore, fencing: u64) -> Result<(), FirstActionError> {
    store.state_put(OLDER, b"1".to_vec(), fencing).await?;
    for key in store.state_keys(STATE_PREFIX)? {
        store.state_delete(&key, fencing).await?;
    }
    Ok(())
}

/// The nodes that were given back by a person before the store was lost, and whose agents have not
/// spoken since. They are found at the first start with an empty store, known by the first action
/// of quarantine, which is kept after them; a process that is killed in between begins anew. A store that is
/// older than what others did is looked at in the same way.
pub(super) async fn given_back(
    context: &Context,
    now: Timestamp,
) -> Result<GivenBackNodes, FirstActionError> {
    let mut waiting = GivenBackNodes::new();
    for key in context.store.state_keys(GIVEN_BACK)? {
        let node = key.strip_prefix(GIVEN_BACK).map(NodeName::new);
        let bytes = context.store.state_get(&key)?.unwrap_or_default();
        let record = serde_json::from_slice::<GivenBackNode>(&bytes);
        match (node, record) {
            (Some(Ok(node)), Ok(record)) if context.nodes.get(&node).is_some() => {
                drop(waiting.insert(node, record));
            }
            (_, Ok(_) | Err(_)) => context.store.state_delete(&key, context.fencing).await?,
        }
    }
    let is_older = context.store.state_get(OLDER)?.is_some();
    if known(context)?.is_some() && !is_older {
        return Ok(waiting);
    }
    for node in context.nodes.all() {
        let records = [
            names::UNCORDONED_MANUALLY.text,
            names::UNTAINTED_MANUALLY.text,
        ];
        let recorded = records.iter().any(|key| node.annotation(key).is_some());
        // Where the store is older than quarantine the agent may have spoken long ago.
        let spoken = || -> Result<bool, ReadError> {
            let agent = context.reports.agent(&node.name)?;
            Ok(!context.store.is_new() && !is_older && agent.settled_boot.is_some())
        };
        if !recorded || waiting.contains_key(&node.name) || spoken()? {
            continue;
        }
        let record = GivenBackNode {
            uid: node.uid.to_string(),
            since: now,
        };
        let bytes = serde_json::to_vec(&record).expect("a name and a time always render");
        let key = given_back_key(&node.name);
        context
            .store
            .state_put(&key, bytes, context.fencing)
            .await?;
        waiting.insert(node.name.clone(), record);
    }
    if is_older {
        context.store.state_delete(OLDER, context.fencing).await?;
    }
    Ok(waiting)
}

/// When quarantine was switched on, and how far it might act then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FirstAction {
    profile: String,
    since: Timestamp,
}

/// How far the module may act: the profile, unless a key weakens it.
fn reach(context: &Context) -> Profile {
    let config = &context.config;
    match settings::mode(&config.quarantine) {
        Mode::Off => Profile::Silent,
        Mode::DryRun => Profile::Observe.min(config.profile),
        Mode::Enforce | Mode::Refused => config.profile,
    }
}

fn known(context: &Context) -> Result<Option<FirstAction>, ReadError> {
    let known = context.store.state_get(FIRST_ACTION)?;
    Ok(known.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
}

async fn keep(context: &Context, profile: Profile, since: Timestamp) -> Result<(), WriteError> {
    let record = FirstAction {
        profile: profile.as_str().to_owned(),
        since,
    };
    let bytes = serde_json::to_vec(&record).expect("a name and a time always render");
    let put = context
        .store
        .state_put(FIRST_ACTION, bytes, context.fencing);
    put.await
}

/// Until when each match is withheld: for the delay after the first start with quarantine on, and
/// after each step up from where it stood. None if the delay is off or over.
pub(super) async fn first_action_until(
    context: &Context,
    now: Timestamp,
) -> Result<Option<Timestamp>, FirstActionError> {
    let (delay, reach) = (context.config.quarantine.first_action_delay, reach(context));
    let known = known(context)?;
    let stood = known.as_ref().map(|k| Profile::from_name(&k.profile));
    let since = match (&known, stood) {
        (Some(known), Some(stood)) if stood >= Some(reach) => known.since,
        // Our marks on a node of this cluster prove that quarantine has acted before.
        (None, _) if any_mark_of_ours(&context.nodes) => Timestamp::UNIX_EPOCH,
        // The first start, or a step up.
        (Some(_) | None, _) => now,
    };
    keep(context, reach, since).await?;
    let delay = SignedDuration::try_from(delay).unwrap_or(SignedDuration::MAX);
    let until = since.checked_add(delay).unwrap_or(Timestamp::MAX);
    Ok((until > now).then_some(until))
}

/// The module is off: switched on again is a step up.
pub(super) async fn note_off(context: &Context) -> Result<(), FirstActionError> {
    let off = Profile::Silent;
    match known(context)? {
        Some(known) if Profile::from_name(&known.profile) != Some(off) => {
            Ok(keep(context, off, known.since).await?)
        }
        Some(_) | None => Ok(()),
    }
}

/// Why the first action is not known.
#[derive(Debug, thiserror::Error)]
#[error("the time of the first action can't be kept: {0}")]
pub struct FirstActionError(String);

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

/// Whether the store was lost, and nodes still carry our marks: it is not the first start, whatever the store
/// does not know.
pub fn is_lost_store(context: &Context) -> bool {
    context.store.is_new() && any_mark_of_ours(&context.nodes)
}

fn any_mark_of_ours(nodes: &NodeCache) -> bool {
    nodes.all().iter().any(|node| {
        let text = node.annotation(names::INCIDENT.text);
        let mark = text.and_then(|text| IncidentMark::parse(text).ok());
        mark.is_some_and(|mark| mark.node_uid == *node.uid)
    })
}

/// The nodes that have something to decide about: open faults, those with the oldest first; then
/// open incidents and marks of ours.
pub(super) fn nodes_to_look_at(context: &Context) -> Result<Vec<NodeName>, ReadError> {
    let mut oldest: BTreeMap<NodeName, Timestamp> = BTreeMap::new();
    for fault in context.store.open_faults_all()? {
        let Subject::Node(node) = fault.id.scope.subject else {
            continue;
        };
        let opened = fault.opened_at.unwrap_or(fault.first_at);
        let known = oldest.entry(node).or_insert(opened);
        *known = opened.min(*known);
    }
    let incidents = context.store.open_incidents()?.into_iter();
    let ours = [
        names::INCIDENT.text,
        names::HEALTH_EVENT.text,
        names::UNCORDONED_MANUALLY.text,
        names::UNTAINTED_MANUALLY.text,
    ];
    let is_ours = |node: &NodeFacts| {
        // A cordon of ours without annotations is looked at too.
        let bare = node.is_cordoned() && node.cordon_owner == CordonOwner::Us;
        bare || ours.iter().any(|key| node.annotation(key).is_some())
    };
    let nodes = context.nodes.all();
    let marked = nodes.iter().filter(|node| is_ours(node));
    let more = incidents
        .map(|incident| incident.node)
        .chain(marked.map(|node| node.name.clone()));
    for node in more {
        oldest.entry(node).or_insert(Timestamp::MAX);
    }
    let mut nodes: Vec<(Timestamp, NodeName)> =
        oldest.into_iter().map(|(node, at)| (at, node)).collect();
    nodes.sort();
    Ok(nodes.into_iter().map(|(_, node)| node).collect())
}
