//! The rights that the API server says we lack, told where people look.
//!
//! # Guarantees
//! - A right is missing from a refusal that names it until a call that needs it is answered otherwise.
//! - What a webhook or a policy refuses is no missing right.
//! - Bounded by the kinds of calls that there are: neither names nor namespaces are kept.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::Method;
use jiff::Timestamp;
use telemetry::Subsystem;

/// Name of the part on the page of health.
pub(crate) const PART: &str = "rights";

/// What is allowed or not: a verb on a kind of objects.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// `get`, `list`, `watch`, `create`, `update`, `patch` or `delete`.
    pub verb: &'static str,
    /// As in a role, with its group: `pods/eviction`, `leases.coordination.k8s.io`.
    pub resource: String,
}

impl Right {
    /// What a call needs; none for a path that is no object's, as `/version`.
    pub(super) fn of(method: Option<&Method>, path: &str) -> Option<Self> {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let (group, rest) = match *parts.as_slice() {
            ["api", _, ref rest @ ..] => ("", rest),
            ["apis", group, _, ref rest @ ..] => (group, rest),
            _ => return None,
        };
        let of_namespace = rest.first() == Some(&"namespaces") && rest.len() > 2;
        let rest = if of_namespace { &rest[2..] } else { rest };
        let kind = *rest.first()?;
        let below = rest.get(2).map_or(String::new(), |sub| format!("/{sub}"));
        let group = if group.is_empty() {
            String::new()
        } else {
            format!(".{group}")
        };
        let verb = match method {
            None if query.contains("watch=true") => "watch",
            None if rest.len() > 1 => "get",
            None => "list",
            Some(method) if *method == Method::POST => "create",
            Some(method) if *method == Method::PUT => "update",
            Some(method) if *method == Method::PATCH => "patch",
            Some(_) => "delete",
        };
        Some(Self {
            verb,
            resource: format!("{kind}{below}{group}"),
        })
    }

    /// What does not happen without it.
    pub fn missed(&self) -> &'static str {
        match (self.verb, self.resource.as_str()) {
            ("list" | "watch", "pods") => {
                "pods of nodes can't be read, so that no node is drained, and none is repaired that has to be \
                 empty first"
            }
            ("create", "pods/eviction") => "no pod is evicted, and drains fail at their deadline",
            ("delete", "pods") => "no pod is deleted past its deadline",
            ("patch", "nodes") => "no node is taken out of service or given back",
            ("patch", "nodes/status") => "conditions of nodes are not written",
            ("get" | "list" | "watch", "nodes") => "nodes can't be read",
            ("create" | "patch", "events") => "Events are not written",
            ("delete", "leases.coordination.k8s.io") => {
                "a node's lock is not given back after its repair, and the node neither"
            }
            (_, "leases.coordination.k8s.io") => "no node is locked for a reboot, and none begun",
            ("create", "rebootnodes.janitor.dgxc.nvidia.com") => "no repair is ordered",
            ("delete", "rebootnodes.janitor.dgxc.nvidia.com") => {
                "repairs that nobody waits for are not recalled, and old objects not deleted"
            }
            (_, kind) if kind.starts_with("rebootnodes") => "no repair is carried out or followed",
            ("create", "tokenreviews.authentication.k8s.io") => "no sender is let in",
            _ => "what it is for does not happen",
        }
    }
}

/// Which are missing, and since when. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Rights(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    missing: Mutex<BTreeMap<Right, Timestamp>>,
    part: Option<Subsystem>,
}

impl Rights {
    /// With their part of the page of health.
    pub(crate) fn shown(part: Subsystem) -> Self {
        part.ready();
        Self(Arc::new(Shared {
            missing: Mutex::default(),
            part: Some(part),
        }))
    }

    /// Those that are missing, and since when.
    pub fn missing(&self) -> Vec<(Right, Timestamp)> {
        let missing = self.lock();
        missing
            .iter()
            .map(|(right, since)| (right.clone(), *since))
            .collect()
    }

    /// The API server refused for want of it.
    pub(super) fn refused(&self, right: Right, now: Timestamp) {
        let mut missing = self.lock();
        if let Entry::Vacant(new) = missing.entry(right) {
            let right = new.key();
            tracing::warn!(
                code = "right_missing",
                verb = right.verb,
                resource = right.resource,
                missed = right.missed(),
                "the API server does not let us"
            );
            new.insert(now);
            self.show(&missing);
        }
    }

    /// The API server answered a call that needs it.
    pub(super) fn granted(&self, right: Option<Right>) {
        let mut missing = self.lock();
        if missing.is_empty() {
            return;
        }
        if let Some(right) = right.filter(|right| missing.remove(right).is_some()) {
            let Right { verb, resource } = &right;
            tracing::info!(verb, resource, "the API server lets us again");
            self.show(&missing);
        }
    }

    fn show(&self, missing: &BTreeMap<Right, Timestamp>) {
        let Some(part) = &self.0.part else {
            return;
        };
        if missing.is_empty() {
            part.ready();
            return;
        }
        let one = |right: &Right| {
            let Right { verb, resource } = right;
            format!(
                "the API server does not let us {verb} {resource}: {}",
                right.missed()
            )
        };
        let all: Vec<String> = missing.keys().map(one).collect();
        part.limited(format!(
            "{}; give the controller's service account what is missing",
            all.join("; ")
        ));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Right, Timestamp>> {
        self.0
            .missing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a refusal is for want of a right, and not of a webhook or a policy.
pub(super) fn is_want_of_right(status: u16, message: &str) -> bool {
    status == 403 && message.contains(" cannot ") && message.contains("resource \"")
}

#[cfg(test)]
mod tests {
    use telemetry::Readiness;

    use super::*;

    #[test]
    fn each_call_needs_the_right_of_its_verb_and_kind() {
        let post = Some(Method::POST);
        let delete = Some(Method::DELETE);
        let patch = Some(Method::PATCH);
        for (method, path, want) in [
            (None, "/api/v1/pods?limit=500", "list pods"),
            (None, "/api/v1/pods?watch=true&x=y", "watch pods"),
            (None, "/api/v1/nodes/n1", "get nodes"),
            (None, "/api/v1/namespaces/warden", "get namespaces"),
            (
                patch.clone(),
                "/api/v1/nodes/n1/status?fieldManager=w",
                "patch nodes/status",
            ),
            (post.clone(), "/api/v1/namespaces/d/events", "create events"),
            (
                post,
                "/api/v1/namespaces/a/pods/p/eviction",
                "create pods/eviction",
            ),
            (
                delete,
                "/apis/coordination.k8s.io/v1/namespaces/warden/leases/n1",
                "delete leases.coordination.k8s.io",
            ),
            (
                patch,
                "/apis/janitor.dgxc.nvidia.com/v1alpha1/rebootnodes/r/status",
                "patch rebootnodes/status.janitor.dgxc.nvidia.com",
            ),
        ] {
            let right = Right::of(method.as_ref(), path).unwrap();
            assert_eq!(format!("{} {}", right.verb, right.resource), want);
        }
        assert_eq!(Right::of(None, "/version"), None);
    }

    #[test]
    fn what_is_missing_is_told_until_it_is_granted() {
        let readiness = Readiness::default();
        let rights = Rights::shown(readiness.subsystem(PART));
        assert_eq!(readiness.report(), (true, "rights: ready\n".to_owned()));
        let pods = || Right::of(None, "/api/v1/pods").unwrap();
        let leases = Right::of(
            Some(&Method::DELETE),
            "/apis/coordination.k8s.io/v1/namespaces/w/leases/n",
        );
        rights.refused(pods(), Timestamp::UNIX_EPOCH);
        rights.refused(pods(), Timestamp::MAX);
        rights.refused(leases.clone().unwrap(), Timestamp::UNIX_EPOCH);
        let (ready, said) = readiness.report();
        assert!(ready, "the process works");
        assert!(said.contains("does not let us list pods: "), "{said}");
        assert!(
            said.contains("delete leases.coordination.k8s.io: "),
            "{said}"
        );
        assert_eq!(rights.missing().len(), 2);
        assert_eq!(
            rights.missing()[1].1,
            Timestamp::UNIX_EPOCH,
            "since the first time"
        );
        rights.granted(leases);
        rights.granted(None);
        assert_eq!(rights.missing().len(), 1);
        rights.granted(Some(pods()));
        assert_eq!(readiness.report().1, "rights: ready\n");
    }

    #[test]
    fn a_webhook_that_refuses_is_no_missing_right() {
        let rbac = "403 pods is forbidden: User \"system:serviceaccount:w:w\" cannot list resource \"pods\" in \
                    API group \"\" at the cluster scope";
        assert!(is_want_of_right(403, rbac));
        assert!(!is_want_of_right(401, rbac));
        let webhook = "403 admission webhook \"x\" denied the request: it cannot be";
        assert!(!is_want_of_right(403, webhook));
    }
}
