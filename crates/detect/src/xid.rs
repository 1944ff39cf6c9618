//! XIDs: the error numbers that the NVIDIA GPU driver writes to the kernel log.
//!
//! # What decides
//! - The number's row in the catalogue (`data/xid.csv`) gives the action; the event is fatal if
//!   the row says so (every action but NONE; a row without a bucket is as good as none).
//! - A number without a row, or whose row has no bucket: CONTACT_SUPPORT, not fatal.
//! - What the line states is never weakened: `Fatal` in an NVLink 5 line is fatal, with
//!   CONTACT_SUPPORT if the row asks for nothing. The catalogue's rows of 144 to 150 only say
//!   "decode the line", so there the line's word alone decides; the sub-code tables are not read.
//! - 154 states the recovery that the GPU needs now: its number counts, the words only if there
//!   is no number. 0 is a healthy statement about that GPU's 154. How it is tied to its cause is
//!   for whoever knows what is open: [`attach`].
//! - 45 and lines "caused by previous Xid" are judged as the catalogue has them; they are not tied
//!   to their cause here.
//!
//! # Invariants
//! The state is the UUIDs of at most [`MAX_GPUS`] GPUs; events do not otherwise depend on what was
//! seen before, so reading the same ring again says the same.

mod catalog;
mod consequence;
mod decide;
mod grammar;

pub use catalog::{Entry, entries, find};
pub use consequence::{Cause, Gpu, RECOVERY_ACTION, attach, is_tied};
pub use decide::{XidState, explain};
pub use grammar::{Nvlink5, Place, Recovery, Registers, Xid, parse, parse_uuid};

/// What every XID line contains.
pub const LITERAL: &str = "NVRM: Xid";
/// What every line that maps a GPU's address to its UUID contains.
pub const UUID_LITERAL: &str = "NVRM: GPU at ";
/// GPUs whose UUID is remembered; the largest machines have 16. The one not seen for longest goes.
pub const MAX_GPUS: usize = 64;
/// XIDs read from one record. The driver writes one a record; a record that claims more than this
/// is no driver's, and each event carries the whole record.
pub const MAX_STATEMENTS: usize = 16;

#[cfg(test)]
mod tests;
