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
}

/// What goes with a kind.
struct Form {
    method: Method,
    content_type: &'static str,
    before: &'static str,
    after: &'static str,
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
        const JSON: &str = "application/json";
        let form = |method, content_type, before, after| Form {
            method,
            content_type,
            before,
            after,
        };
        match self {
            Self::Node => form(
                Method::PATCH,
                "application/json-patch+json",
                "write.node.before",
                "write.node.after",
            ),
            Self::Conditions => form(
                Method::PATCH,
                "application/strategic-merge-patch+json",
                "write.conditions.before",
                "write.conditions.after",
            ),
            Self::Event => form(
                Method::POST,
                JSON,
                "write.event.before",
                "write.event.after",
            ),
            Self::EventCount => form(
                Method::PATCH,
                "application/merge-patch+json",
                "write.event-count.before",
                "write.event-count.after",
            ),
            Self::Lease => form(
                Method::POST,
                JSON,
                "write.lease.before",
                "write.lease.after",
            ),
            Self::LeaseRenewal => form(
                Method::PUT,
                JSON,
                "write.lease-renewal.before",
                "write.lease-renewal.after",
            ),
            Self::Authority => form(
                Method::POST,
                JSON,
                "write.authority.before",
                "write.authority.after",
            ),
            Self::AuthorityChange => form(
                Method::PUT,
                JSON,
                "write.authority-change.before",
                "write.authority-change.after",
            ),
            Self::Bundle => form(
                Method::POST,
                JSON,
                "write.bundle.before",
                "write.bundle.after",
            ),
            Self::BundleChange => form(
                Method::PUT,
                JSON,
                "write.bundle-change.before",
                "write.bundle-change.after",
            ),
        }
    }
}
