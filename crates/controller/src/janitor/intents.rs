//! That a signal is sent: stored before it is, kept until its object is over and its node unlocked.

use event_store::{EventStore, ReadError};
use health_event::BootId;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Where they are kept, by the UID of their object.
const PREFIX: &str = "janitor/intent/";

/// One, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredIntent {
    /// UID of the object.
    pub uid: String,
    /// Name of the object.
    pub object: String,
    /// Node, as the object names it.
    pub node: String,
    /// Its machine; empty if unknown.
    #[serde(default)]
    pub machine: String,
    /// Whether a person is to send the signal.
    #[serde(default)]
    pub manual: bool,
    /// Boot of the node before; empty if unknown.
    pub boot_before: String,
    /// When.
    pub at: Timestamp,
    /// Its effect may come until then.
    pub deadline: Timestamp,
}

/// Why they can't be said.
#[derive(Debug, thiserror::Error)]
pub enum IntentsError {
    /// The store can't be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// One is not what we write.
    #[error(
        "the stored intent {key} is not readable: {why}. This is a bug of Warden; please report it"
    )]
    Unreadable {
        /// Key in the store.
        key: String,
        /// Why.
        why: String,
    },
}

impl IntentsError {
    /// Static name of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Read(_) => "store_unreadable",
            Self::Unreadable { .. } => "bad_intent",
        }
    }
}

/// All signals that may have been sent and whose reboot is not known to be over, also those whose
/// object is gone: a reboot of these nodes may still come.
///
/// # Errors
/// [`IntentsError`].
pub fn intents(store: &EventStore) -> Result<Vec<StoredIntent>, IntentsError> {
    let mut found = Vec::new();
    for key in store.state_keys(PREFIX)? {
        // One that went in between was forgotten.
        found.extend(read(store, key)?);
    }
    Ok(found)
}

/// The signal of the object with this UID, where one may have been sent.
///
/// # Errors
/// [`IntentsError`].
pub fn intent(store: &EventStore, uid: &str) -> Result<Option<StoredIntent>, IntentsError> {
    read(store, key_of(uid))
}

fn key_of(uid: &str) -> String {
    format!("{PREFIX}{uid}")
}

fn read(store: &EventStore, key: String) -> Result<Option<StoredIntent>, IntentsError> {
    let Some(bytes) = store.state_get(&key)? else {
        return Ok(None);
    };
    let intent = serde_json::from_slice(&bytes).map_err(|error| IntentsError::Unreadable {
        why: error.to_string(),
        key,
    })?;
    Ok(Some(intent))
}

impl StoredIntent {
    /// Whether it is of this node, or of its machine under another name.
    pub fn is_of(&self, node: &str, machine: &str) -> bool {
        self.node == node || (!machine.is_empty() && self.machine == machine)
    }

    /// Its place in the store.
    pub(super) fn key(&self) -> String {
        key_of(&self.uid)
    }

    /// As it is stored.
    pub(super) fn render(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Boot of the node before.
    pub(super) fn boot(&self) -> BootId {
        BootId::new(&self.boot_before)
    }
}
