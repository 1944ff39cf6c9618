//! What a fault is: `(subject, agent, componentClass, checkName, device, code)`, in the space of
//! its strategy.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::checks::{self, Alias};
use crate::device::{Device, DeviceKey};
use crate::event::{HealthEvent, Space};
use crate::node::NodeName;

/// Whose fault it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// A node.
    Node(NodeName),
    /// A pool of nodes.
    Pool(String),
    /// The cluster.
    Cluster,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(name) => write!(f, "node/{name}"),
            Self::Pool(name) => write!(f, "pool/{name}"),
            Self::Cluster => f.write_str("cluster"),
        }
    }
}

/// All that statements can close each other in: one check of one agent about one subject.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope {
    /// Whose faults.
    pub subject: Subject,
    /// Agent, by its present name.
    pub agent: String,
    /// Class.
    pub component_class: String,
    /// Check, by its present name.
    pub check_name: String,
}

impl Scope {
    /// The scope of an event about a node. Older names of agents and checks read as the present
    /// ones, so that a newer version closes what an older one opened.
    pub fn of(event: &HealthEvent, node: NodeName) -> Self {
        Self::about(event, Subject::Node(node), &checks::ALIASES)
    }

    /// The scope of an event about anything, with these older names.
    pub fn about(event: &HealthEvent, subject: Subject, aliases: &[Alias]) -> Self {
        let (agent, check) = checks::present_name(&event.agent, &event.check_name, aliases);
        Self {
            subject,
            agent: agent.to_owned(),
            component_class: event.component_class.clone(),
            check_name: check.to_owned(),
        }
    }
}

/// Identity of a fault within its scope.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FaultKey {
    /// Space of the strategy.
    pub space: Space,
    /// The device's key; empty for the whole check.
    pub device: DeviceKey,
    /// The code; empty if none was named.
    pub code: String,
}

/// Identity of a fault.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FaultId {
    /// Whose, which check.
    pub scope: Scope,
    /// Which device and code.
    pub key: FaultKey,
}

impl fmt::Display for FaultId {
    /// `node/gpu-17 SysLogsXIDError 79 PCI=0000:17:00`, for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.scope.subject, self.scope.check_name)?;
        for part in [self.key.code.as_str(), self.key.device.as_str()] {
            if !part.is_empty() {
                write!(f, " {part}")?;
            }
        }
        Ok(())
    }
}

/// Sixteen bytes that name a fault *as its sender named it*: the report's hash is made of these,
/// so that aliases and a newer controller's normal forms don't enter. SHA-256 over the
/// length-prefixed texts, cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SentIdentity(pub [u8; 16]);

impl SentIdentity {
    /// Version of the rule; it rises when the rule changes.
    pub const VERSION: u32 = 1;

    /// Of one device and code of an event.
    pub fn of(event: &HealthEvent, device: &Device, code: &str) -> Self {
        let mut hash = Sha256::new();
        let mut text = |text: &str| {
            hash.update((text.len() as u64).to_be_bytes());
            hash.update(text.as_bytes());
        };
        text(&event.agent);
        text(&event.component_class);
        text(&event.check_name);
        text(event.strategy.name());
        text(device.key().as_str());
        text(code);
        let digest = hash.finalize();
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        Self(bytes)
    }

    /// The hash over a set: SHA-256 over the sorted identities.
    pub fn hash_of_set(set: impl IntoIterator<Item = Self>) -> [u8; 32] {
        let sorted: std::collections::BTreeSet<Self> = set.into_iter().collect();
        let mut hash = Sha256::new();
        for identity in sorted {
            hash.update(identity.0);
        }
        hash.finalize().into()
    }
}

/// The codes of an event; none named is the one empty code.
pub fn codes_of(event: &HealthEvent) -> Vec<&str> {
    if event.error_codes.is_empty() {
        return vec![""];
    }
    let mut codes: Vec<&str> = event.error_codes.iter().map(String::as_str).collect();
    codes.sort_unstable();
    codes.dedup();
    codes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Entity;

    #[test]
    fn sent_identity_tells_every_part_apart() {
        let event = HealthEvent {
            agent: "a".into(),
            check_name: "c".into(),
            ..Default::default()
        };
        let device = Device::new([Entity::new("GPU", "0")]);
        let base = SentIdentity::of(&event, &device, "79");
        let other_agent = HealthEvent {
            agent: "ac".into(),
            check_name: String::new(),
            ..event.clone()
        };
        assert_ne!(base, SentIdentity::of(&other_agent, &device, "79"));
        assert_ne!(base, SentIdentity::of(&event, &Device::default(), "79"));
        assert_ne!(base, SentIdentity::of(&event, &device, ""));
        let observed = HealthEvent {
            strategy: Space::StoreOnly,
            ..event.clone()
        };
        assert_ne!(base, SentIdentity::of(&observed, &device, "79"));
        assert_eq!(base, SentIdentity::of(&event, &device, "79"));
    }

    #[test]
    fn the_hash_of_a_set_ignores_order_and_repeats() {
        let (a, b) = (SentIdentity([1; 16]), SentIdentity([2; 16]));
        assert_eq!(
            SentIdentity::hash_of_set([a, b]),
            SentIdentity::hash_of_set([b, a, b])
        );
        assert_ne!(
            SentIdentity::hash_of_set([a]),
            SentIdentity::hash_of_set([a, b])
        );
    }

    #[test]
    fn codes_are_a_set_and_never_empty() {
        let mut event = HealthEvent::default();
        assert_eq!(codes_of(&event), [""]);
        event.error_codes = ["79", "48", "79"].map(String::from).to_vec();
        assert_eq!(codes_of(&event), ["48", "79"]);
    }
}
