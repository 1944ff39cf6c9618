//! Carrying repairs out: `RebootNode` objects, whoever made them, from their creation to their end and
//! their deletion.
//!
//! # How
//! One worker a node at a time looks at the objects of the node, oldest first, decides about each
//! (`decide::janitor`), and does the one step: lock the node, store the intent, send the signal, ask the
//! provider, write the status, unlock. Every step is followed by another look.
//!
//! # Guarantees
//! - One signal an object: the intent is stored before it is sent (P3), and whatever may have been sent
//!   is only watched from then on, by another process too. What proves that nothing was sent comes before
//!   the intent: the token is read, and the connection stands.
//! - A node's lock is taken by an object that has its place: who waits for one holds none, nor does who
//!   waits for a provider that is out of reach.
//! - No signal without the node's lock, by a process that does not lead, or within one lease length after
//!   another led; at most `max_parallel` reboots are under way, orphans included.
//! - Whether an object is recalled is read from the store between the stored intent and the call. So of a
//!   quarantine that closes the incident and this module one sees the other: either the intent is found
//!   by whoever recalls, or the recall by us.
//! - An object that is deleted while its signal may have been sent leaves its intent: no other reboot of
//!   the node is begun before its deadline, or before the node is seen in another boot.
//! - Switched off, what was sent is followed to its end and its node unlocked; nothing else is touched.
//! - While the reference's janitor runs, or that can't be said, nothing is done; after it nothing is sent
//!   for what it may have begun.
//!
//! # Bounds
//! An intent for each reboot under way, at most `max_parallel` and what another configuration began. In
//! memory (`memory`) a few words for each object that is not over: they go with it.

mod adopt;
mod apply;
mod facts;
mod intents;
mod locks;
mod memory;
mod other;
mod places;
mod provider;
mod run;
mod status;
mod ttl;
mod work;

use jiff::Timestamp;
use k8s_api::reboot_node::RebootNode;

use crate::config::JanitorConfig;
use crate::context::Context;

pub use adopt::knows_no_signal;
pub use intents::{IntentsError, StoredIntent, intent, intents};
pub use run::{JanitorError, is_needed, run};

/// Until when an object that is not at its end may have an effect, where nobody ends it: the janitor that took it
/// up may be gone.
pub fn left_until(object: &RebootNode, config: &JanitorConfig) -> Timestamp {
    let created_at = object.metadata.creation_timestamp.unwrap_or(Timestamp::MIN);
    let policy = facts::policy(config);
    decide::janitor::left_until(created_at, object.status.start_time, &policy)
}

/// Namespace of the node locks: that of whatever else repairs nodes here, else our own.
pub fn lock_namespace(context: &Context) -> &str {
    let configured = context.config.janitor.lock_namespace.as_ref();
    configured.unwrap_or(&context.namespace)
}
