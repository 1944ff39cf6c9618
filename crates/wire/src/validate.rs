//! Which events are taken in, and as what. The agent applies this before it acknowledges, the
//! controller again: the table stands at [`accept`].
//!
//! # Invariants
//! - A refused batch is refused whole; the answer names event, field and allowed form.
//! - An accepted event is within every bound below and passes again unchanged (test), so that the
//!   controller never refuses for its content what an agent of the same version took.

use health_event::{HealthEvent, NodeName, devices_of, keys, node, text};
use jiff::{SignedDuration, Timestamp};
use prost::Message;

use crate::datamodels as wire;
use crate::timestamp_from_wire;

/// Events in one batch at most.
pub const MAX_EVENTS: usize = 1_000;
/// Bytes of one encoded batch at most: the default receive limit of gRPC libraries.
pub const MAX_BATCH_BYTES: usize = 4 * 1024 * 1024;
/// What a server should set as its receive limit: room to answer a batch that is somewhat too
/// large with the reason.
pub const RECEIVE_LIMIT: usize = MAX_BATCH_BYTES + 1024 * 1024;
/// Bytes of a message that are kept.
pub const MAX_MESSAGE_BYTES: usize = 16 * 1024;
/// Devices of one event at most: the largest GPU node has 16 of a kind, NIC ports included.
pub const MAX_DEVICES: usize = 64;
/// Codes of one event at most.
pub const MAX_CODES: usize = 64;
/// Entities of one event at most: 64 devices with four names each.
pub const MAX_ENTITIES: usize = 256;
/// Metadata entries of the sender at most, and of ours (`warden.dev/`) on top.
pub const MAX_METADATA: usize = 128;
/// Bytes of a name (agent, class, check, action, code, id, entity type, metadata key) at most. A
/// check name becomes the type of a node condition, which the API server limits to 316.
pub const MAX_NAME_BYTES: usize = 256;
/// Bytes of an entity's or a metadata value at most.
pub const MAX_VALUE_BYTES: usize = 4 * 1024;
/// How far ahead of our clock a claimed time may lie.
pub const MAX_AHEAD: SignedDuration = SignedDuration::from_mins(10);

/// What stands at the end of a message that was cut.
const CUT_MARK: &str = " [cut]";
const NAME_FORM: &str = "at most 256 bytes";
const CUSTOM: i32 = wire::RecommendedAction::Custom as i32;

/// An event that was taken in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// The event; its time is always set.
    pub event: HealthEvent,
    /// The claimed time lay more than [`MAX_AHEAD`] ahead: the time of receipt was taken.
    pub clock_skew: bool,
}

/// Why a batch was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Index of the event in the batch; none if it is about the batch itself.
    pub index: Option<usize>,
    /// The field, as the .proto file spells it.
    pub field: &'static str,
    /// What was wrong with it.
    pub fault: String,
    /// What would be accepted.
    pub allowed: &'static str,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.index {
            Some(index) => write!(f, "event {index}: ")?,
            None => f.write_str("batch: ")?,
        }
        let Self {
            field,
            fault,
            allowed,
            ..
        } = self;
        write!(f, "{field} {fault}; allowed: {allowed}")
    }
}

impl std::error::Error for Refusal {}

impl Refusal {
    /// Static name for metrics.
    pub fn code(&self) -> &'static str {
        "invalid_argument"
    }

    /// The gRPC answer.
    pub fn status(&self) -> tonic::Status {
        tonic::Status::invalid_argument(self.to_string())
    }

    pub(crate) fn batch(fault: String, allowed: &'static str) -> Self {
        Self {
            index: None,
            field: "events",
            fault,
            allowed,
        }
    }

    fn field(field: &'static str, fault: impl Into<String>, allowed: &'static str) -> Self {
        Self {
            index: None,
            field,
            fault: fault.into(),
            allowed,
        }
    }
}

/// Takes a batch in or refuses it whole.
///
/// | input | answer |
/// |---|---|
/// | no checkName; checkName, agent, componentClass with control or format characters; nodeName not a DNS subdomain; CUSTOM without customRecommendedAction; more than 64 devices or codes; more than 1,000 events or 4 MiB; names, values, entities, metadata beyond the bounds of this module | refused |
/// | empty nodeName | `own_node` if given, else refused |
/// | healthy and fatal | kept; it is healthy, as for the reference, and the fatal counts for nothing |
/// | unknown action | kept raw |
/// | unknown strategy / unspecified | STORE_ONLY / EXECUTE_REMEDIATION |
/// | message longer than 16 KiB | cut with a mark |
/// | time missing, out of range, or more than 10 min ahead | `now`; a claimed time is kept in the metadata |
///
/// # Errors
/// The first [`Refusal`] found.
pub fn accept(
    batch: wire::HealthEvents,
    own_node: Option<&NodeName>,
    now: Timestamp,
) -> Result<Vec<Accepted>, Refusal> {
    let count = batch.events.len();
    if count > MAX_EVENTS {
        return Err(Refusal::batch(
            format!("has {count} entries"),
            "at most 1000 events a batch",
        ));
    }
    let bytes = batch.encoded_len();
    if bytes > MAX_BATCH_BYTES {
        return Err(Refusal::batch(
            format!("takes {bytes} bytes"),
            "at most 4 MiB (4194304 bytes) a batch",
        ));
    }
    batch
        .events
        .into_iter()
        .enumerate()
        .map(|(index, event)| {
            accept_event(event, own_node, now).map_err(|refusal| Refusal {
                index: Some(index),
                ..refusal
            })
        })
        .collect()
}

fn accept_event(
    mut event: wire::HealthEvent,
    own_node: Option<&NodeName>,
    now: Timestamp,
) -> Result<Accepted, Refusal> {
    if let (true, Some(own)) = (event.node_name.is_empty(), own_node) {
        own.as_str().clone_into(&mut event.node_name);
    }
    check_names(&event)?;
    check_lists(&event)?;
    let clock_skew = settle_time(&mut event, now);
    cut(&mut event.message);
    let event = HealthEvent::try_from(event)
        .map_err(|error| Refusal::field("generatedTimestamp", error.to_string(), "a time"))?;
    let devices = devices_of(&event.entities).len();
    if devices > MAX_DEVICES {
        return Err(Refusal::field(
            "entitiesImpacted",
            format!("names {devices} devices"),
            "at most 64 devices",
        ));
    }
    Ok(Accepted { event, clock_skew })
}

fn check_names(event: &wire::HealthEvent) -> Result<(), Refusal> {
    if event.check_name.is_empty() {
        return Err(Refusal::field(
            "checkName",
            "is empty",
            "the name of the check",
        ));
    }
    if !node::is_dns_subdomain(&event.node_name) {
        let shown: String = event.node_name.chars().take(64).collect();
        return Err(Refusal::field(
            "nodeName",
            format!("is {shown:?}"),
            "a DNS subdomain (lower-case letters, digits, '-', '.'; at most 253 bytes)",
        ));
    }
    if event.recommended_action == CUSTOM && event.custom_recommended_action.is_empty() {
        return Err(Refusal::field(
            "customRecommendedAction",
            "is empty while recommendedAction is CUSTOM",
            "the name of the action",
        ));
    }
    let names = [
        ("agent", &event.agent),
        ("componentClass", &event.component_class),
        ("checkName", &event.check_name),
        ("id", &event.id),
        ("customRecommendedAction", &event.custom_recommended_action),
    ];
    names
        .iter()
        .try_for_each(|(field, text)| check_length(field, text, MAX_NAME_BYTES, NAME_FORM))?;
    names[..3]
        .iter()
        .try_for_each(|(field, text)| check_shown(field, text))
}

/// Refuses what would not be seen, or would change what is seen beside it, where a name becomes
/// the type of a condition, a key, or a part of a line.
fn check_shown(field: &'static str, name: &str) -> Result<(), Refusal> {
    match name.chars().find(|c| text::steers(*c)) {
        Some(found) => Err(Refusal::field(
            field,
            format!("has the character U+{:04X}", u32::from(found)),
            "characters that can be seen, and spaces: no control or format characters",
        )),
        None => Ok(()),
    }
}

fn check_lists(event: &wire::HealthEvent) -> Result<(), Refusal> {
    let value_form = "at most 4096 bytes a value";
    let ours = |key: &String| key.starts_with(keys::PREFIX);
    let own = event.metadata.keys().filter(|key| ours(key)).count();
    let counts = [
        (
            "errorCode",
            event.error_code.len(),
            MAX_CODES,
            "at most 64 codes",
        ),
        (
            "entitiesImpacted",
            event.entities_impacted.len(),
            MAX_ENTITIES,
            "at most 256 entities",
        ),
        (
            "metadata",
            (event.metadata.len() - own).max(own),
            MAX_METADATA,
            "at most 128 entries",
        ),
    ];
    for (field, count, most, allowed) in counts {
        if count > most {
            return Err(Refusal::field(
                field,
                format!("has {count} entries"),
                allowed,
            ));
        }
    }
    for code in &event.error_code {
        check_length("errorCode", code, MAX_NAME_BYTES, NAME_FORM)?;
    }
    for entity in &event.entities_impacted {
        check_length("entityType", &entity.entity_type, MAX_NAME_BYTES, NAME_FORM)?;
        check_length(
            "entityValue",
            &entity.entity_value,
            MAX_VALUE_BYTES,
            value_form,
        )?;
    }
    for (key, value) in &event.metadata {
        check_length("metadata", key, MAX_NAME_BYTES, "at most 256 bytes a key")?;
        check_length("metadata", value, MAX_VALUE_BYTES, value_form)?;
    }
    Ok(())
}

fn check_length(
    field: &'static str,
    text: &str,
    most: usize,
    allowed: &'static str,
) -> Result<(), Refusal> {
    if text.len() <= most {
        return Ok(());
    }
    Err(Refusal::field(
        field,
        format!("has {} bytes", text.len()),
        allowed,
    ))
}

/// Puts the time of receipt where no believable time was claimed. Answers whether the claimed one
/// lay too far ahead.
fn settle_time(event: &mut wire::HealthEvent, now: Timestamp) -> bool {
    let Some(claimed) = event.generated_timestamp else {
        event.generated_timestamp = Some(crate::timestamp_to_wire(now));
        return false;
    };
    let limit = now.saturating_add(MAX_AHEAD).unwrap_or(Timestamp::MAX);
    let (skew, text) = match timestamp_from_wire(claimed) {
        Ok(time) if time <= limit => return false,
        Ok(time) => (true, time.to_string()),
        Err(_) => (false, format!("{} s {} ns", claimed.seconds, claimed.nanos)),
    };
    event.metadata.insert(keys::CLAIMED_TIME.to_owned(), text);
    event.generated_timestamp = Some(crate::timestamp_to_wire(now));
    skew
}

fn cut(message: &mut String) {
    if message.len() <= MAX_MESSAGE_BYTES {
        return;
    }
    let end = message.floor_char_boundary(MAX_MESSAGE_BYTES - CUT_MARK.len());
    message.truncate(end);
    message.push_str(CUT_MARK);
}

#[cfg(test)]
mod tests;
