//! Module remediation: orders the repair of nodes that are out, and follows it to its end.
//!
//! # Guarantees
//! - Before an object is made its order is stored as of unknown outcome (P3); its name follows from
//!   incident and attempt, so that a crash in between makes it once.
//! - No order without the watch over repair objects, without the first look for the reference's own
//!   remediation, or before the previous leader's writes are over.
//! - An object that nobody waits for is deleted only as it was read (UID and version), only while
//!   nothing was sent for it, and after the stored intents of janitor were looked at.
//! - Attempts of a machine are stored with the order that makes them, in one transaction. Where the
//!   store was lost, the objects tell of them.
//! - That something is not there is believed of a direct read that said 404, nothing else.
//!
//! # Reading order
//! `settings` from the configuration, `facts` what is seen, `attempts` what is remembered of a
//! machine, `observe` what one decision looks at, `work` one node's turn, `order` the gate and the calls, `other` another
//! fault-remediation, `run` puts it together.

mod attempts;
mod facts;
mod left;
mod observe;
mod order;
mod other;
mod run;
mod said;
mod settings;
mod work;

pub use run::{RemediationError, run};

/// Name of the module in the store.
pub(crate) const MODULE: &str = "remediation";
