//! Events as stored bytes, and the hash by which two events are known to be equal.

use health_event::{HealthEvent, keys};
use prost::Message;
use sha2::{Digest, Sha256};

use crate::datamodels as wire;

/// The event as the bytes that are stored; equal events give equal bytes.
pub fn encode_body(event: &HealthEvent) -> Vec<u8> {
    wire::HealthEvent::from(event.clone()).encode_to_vec()
}

/// The event of stored bytes.
///
/// # Errors
/// If the bytes are not an event, which means a damaged database.
pub fn decode_body(body: &[u8]) -> Result<HealthEvent, prost::DecodeError> {
    let mut event = wire::HealthEvent::decode(body)?;
    // Bodies are written by `encode_body`; a time that it can't have written reads as none.
    let time = event.generated_timestamp.take();
    event.generated_timestamp = time.filter(|t| crate::timestamp_from_wire(*t).is_ok());
    Ok(HealthEvent::try_from(event).unwrap_or_default())
}

/// What a received event says, as bytes: everything but its id and its place in the order. An
/// agent that lost an answer with its process sends the event again under another number. Nor does
/// the time count of a kernel record, which each reading works out anew, to the microsecond, or of
/// the word that a reboot ended a fault, which each look finds anew: their ids say which they are.
pub fn received_bytes(mut event: wire::HealthEvent) -> Vec<u8> {
    let found = [keys::KERNEL_RECORD_ID, keys::REBOOT_RECOVERY_ID];
    if found.iter().any(|prefix| event.id.starts_with(prefix)) {
        event.generated_timestamp = None;
    }
    event.id.clear();
    event.metadata.remove(keys::ORDER);
    event.encode_to_vec()
}

/// SHA-256 of an event exactly as a sender gave it, field by field.
pub fn sent_hash(event: &wire::HealthEvent) -> [u8; 32] {
    Sha256::digest(event.encode_to_vec()).into()
}
