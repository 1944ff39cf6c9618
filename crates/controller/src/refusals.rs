//! What the API server last said against the quarantine's write of a node, for who asks meanwhile.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use health_event::NodeName;

/// Longest text kept of a refusal, in bytes.
const TEXT: usize = 600;

/// By node, from a failed write until one is taken: at most one text a node. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Refusals(Arc<Mutex<HashMap<NodeName, String>>>);

impl Refusals {
    /// A write failed: what was tried on which object, and the server's words.
    pub(crate) fn said(&self, node: &NodeName, error: &impl ToString) {
        let mut text = error.to_string().replace(char::is_control, " ");
        text.truncate(text.floor_char_boundary(TEXT));
        self.lock().insert(node.clone(), text);
    }

    /// A write was taken, or the node is gone.
    pub(crate) fn over(&self, node: &NodeName) {
        self.lock().remove(node);
    }

    /// What was said last of the write that is under way.
    pub(crate) fn of(&self, node: &NodeName) -> Option<String> {
        self.lock().get(node).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeName, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
