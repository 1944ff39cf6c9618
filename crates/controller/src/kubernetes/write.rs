//! The writes that there are. A call that changes something carries one of these, which gives its
//! method and its two crash points: a write without a place to die at can't be sent.

use http::Method;

/// One kind of write to the API server.
///
/// Not among them are TokenReview and SubjectAccessReview: they are questions, and leave nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// Marks and cordon of a node, taken on or off.
    Node,
    /// Conditions of a node.
    Conditions,
    /// A core/v1 Event.
    Event,
    /// A higher count on an Event.
    EventCount,
    /// The Lease, where there was none.
    Lease,
    /// The Lease taken over, renewed, or given back.
    LeaseRenewal,
    /// The Secret with the certificate authority.
    Authority,
    /// A next authority in that Secret, or the next one in place of the last.
    AuthorityChange,
    /// The ConfigMap that agents trust, where there was none.
    Bundle,
    /// The same with other authorities.
    BundleChange,
    /// An eviction of a pod.
    Eviction,
    /// A pod deleted past its disruption budget.
    PodDeletion,
    /// A repair object ordered.
    Repair,
    /// A repair object deleted: recalled before its signal, or past its time to live.
    RepairDeletion,
    /// The status of a repair object.
    RepairStatus,
    /// The time at which a repair object goes.
    RepairExpiry,
    /// The Lease that keeps other repairs off a node.
    NodeLock,
    /// That Lease given back.
    NodeUnlock,
}

/// What goes with a kind.
struct Form {
    method: Method,
    content_type: &'static str,
    before: &'static str,
    after: &'static str,
}

const JSON: &str = "application/json";
const JSON_PATCH: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

macro_rules! form {
    ($method:ident, $content_type:expr, $name:literal) => {
        Form {
            method: Method::$method,
            content_type: $content_type,
            before: concat!("write.", $name, ".before"),
            after: concat!("write.", $name, ".after"),
        }
    };
}

impl Write {
    pub(super) fn method(self) -> Method {
        self.form().method
    }

    pub(super) fn content_type(self) -> &'static str {
        self.form().content_type
    }

    /// Crash point before it is sent.
    pub(super) fn before(self) -> &'static str {
        self.form().before
    }

    /// Crash point after the API server said that it is done.
    pub(super) fn after(self) -> &'static str {
        self.form().after
    }

    fn form(self) -> Form {
        match self {
            Self::Node => form!(PATCH, JSON_PATCH, "node"),
            Self::Conditions => form!(PATCH, STRATEGIC, "conditions"),
            Self::Event => form!(POST, JSON, "event"),
            Self::EventCount => form!(PATCH, MERGE, "event-count"),
            Self::Lease => form!(POST, JSON, "lease"),
            Self::LeaseRenewal => form!(PUT, JSON, "lease-renewal"),
            Self::Authority => form!(POST, JSON, "authority"),
            Self::AuthorityChange => form!(PUT, JSON, "authority-change"),
            Self::Bundle => form!(POST, JSON, "bundle"),
            Self::BundleChange => form!(PUT, JSON, "bundle-change"),
            Self::Eviction => form!(POST, JSON, "eviction"),
            Self::PodDeletion => form!(DELETE, JSON, "pod-deletion"),
            Self::Repair => form!(POST, JSON, "repair"),
            Self::RepairDeletion => form!(DELETE, JSON, "repair-deletion"),
            Self::RepairStatus => form!(PATCH, MERGE, "repair-status"),
            Self::RepairExpiry => form!(PATCH, MERGE, "repair-expiry"),
            Self::NodeLock => form!(POST, JSON, "node-lock"),
            Self::NodeUnlock => form!(DELETE, JSON, "node-unlock"),
        }
    }
}
