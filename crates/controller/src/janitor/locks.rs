//! The Lease that keeps other repairs off a node: named exactly as the node, owned by the object, so
//! that it goes with the object and the reference's programs respect it (janitor: node lock).
//!
//! Who holds what is read once at the start. From then on our own locks are known by our own writes;
//! another's is looked at again every [`LOOK`] while an object waits for it: a watch would carry the
//! renewals of every Lease of the namespace.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use decide::janitor::Lock;
use jiff::{SignedDuration, Timestamp};
use k8s_api::reboot_node::{API_VERSION, KIND, RebootNode};
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use crate::kubernetes::{Call, CallError, Kube, Write};

/// Between looks at a lock that another one holds.
pub(super) const LOOK: SignedDuration = SignedDuration::from_secs(10);
/// Longest time for the list at the start.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);

/// The locks of one namespace.
#[derive(Debug)]
pub(super) struct Locks {
    /// Path of the Leases.
    path: String,
    held: Mutex<HashMap<String, Held>>,
}

/// Who holds one.
#[derive(Debug, Clone)]
struct Held {
    /// UID of the one object that owns it; empty if there is none, or more.
    owner: String,
    /// Whether that is a `RebootNode`.
    is_reboot: bool,
    /// UID of the Lease.
    uid: String,
    seen: Timestamp,
}

#[derive(Deserialize)]
struct List {
    items: Vec<Lease>,
}

#[derive(Deserialize)]
struct Lease {
    metadata: Metadata,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: String,
    uid: String,
    owner_references: Vec<Owner>,
}

#[derive(Deserialize)]
struct Owner {
    #[serde(default)]
    kind: String,
    uid: String,
}

impl Lease {
    fn held(self, now: Timestamp) -> (String, Held) {
        let (owner, is_reboot) = match <[Owner; 1]>::try_from(self.metadata.owner_references) {
            Ok([owner]) => (owner.uid, owner.kind == KIND),
            Err(_) => (String::new(), false),
        };
        let held = Held {
            owner,
            is_reboot,
            uid: self.metadata.uid,
            seen: now,
        };
        (self.metadata.name, held)
    }
}

impl Locks {
    pub(super) fn new(namespace: &str) -> Self {
        Self {
            path: format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"),
            held: Mutex::default(),
        }
    }

    /// Reads who holds what.
    pub(super) async fn load(&self, kube: &Kube) -> Result<(), CallError> {
        let act = "listing of the node locks".to_owned();
        let body = self.read(kube, act.clone(), &self.path).await?;
        let list: List = decoded(act, &body)?;
        let now = Timestamp::now();
        *self.held() = list
            .items
            .into_iter()
            .map(|lease| lease.held(now))
            .collect();
        Ok(())
    }

    /// Whether the object holds its node's lock; another's is not known any more once it should be
    /// looked at again.
    pub(super) fn of(&self, object: &RebootNode, now: Timestamp) -> Lock {
        match self.held().get(&object.spec.node_name) {
            Some(held) if held.owner == object.metadata.uid => Lock::Ours,
            Some(held) if now < look_again(held) => Lock::Others,
            Some(_) | None => Lock::NotKnown,
        }
    }

    /// Whether one with this UID holds any lock.
    pub(super) fn is_held_by(&self, uid: &str) -> bool {
        self.held().values().any(|held| held.owner == uid)
    }

    /// The UID of the object that holds the node's lock and is none of these: it is gone. The API
    /// server's garbage collector takes its lock after it, in its own time.
    pub(super) fn left_by(&self, node: &str, is_there: impl Fn(&str) -> bool) -> Option<String> {
        let held = self.held();
        let held = held.get(node).filter(|held| held.is_reboot);
        let owner = held.map(|held| held.owner.clone());
        owner.filter(|owner| !is_there(owner))
    }

    /// When another's lock on the node is looked at again.
    pub(super) fn look_at(&self, node: &str) -> Option<Timestamp> {
        self.held().get(node).map(look_again)
    }

    /// Takes the node's lock for the object, if it is free; who holds it is known then. Answers whether this
    /// call made it.
    pub(super) async fn take(
        &self,
        kube: &Kube,
        object: &RebootNode,
        deadline: Instant,
    ) -> Result<bool, CallError> {
        let node = object.spec.node_name.as_str();
        let body = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": node,
                "ownerReferences": [{
                    "apiVersion": API_VERSION,
                    "kind": KIND,
                    "name": object.metadata.name,
                    "uid": object.metadata.uid,
                    "blockOwnerDeletion": true,
                }],
            },
            "spec": {},
        });
        let act = format!(
            "lock of node {node} for RebootNode {}",
            object.metadata.name
        );
        let call = Call {
            act: act.clone(),
            path: self.path.clone(),
            write: Some((Write::NodeLock, &body)),
            accept: "application/json",
        };
        let (body, made) = match kube.call(&call, deadline).await {
            Ok(body) => (body, true),
            // It is there: another's, or ours by a call whose answer was lost. Where it is not, the
            // server refuses it for another reason.
            Err(error @ CallError::Changed { .. }) => {
                let path = format!("{}/{node}", self.path);
                match self.read(kube, act.clone(), &path).await {
                    Err(CallError::NotFound { .. }) => return Err(error),
                    answer => (answer?, false),
                }
            }
            Err(error) => return Err(error),
        };
        let (name, held) = decoded::<Lease>(act, &body)?.held(Timestamp::now());
        self.held().insert(name, held);
        Ok(made)
    }

    /// Gives the lock back that the object of this UID holds: that Lease and no other of the name.
    pub(super) async fn give_back(
        &self,
        kube: &Kube,
        node: &str,
        uid: &str,
        deadline: Instant,
    ) -> Result<(), CallError> {
        let held = self.held().get(node).cloned();
        let Some(held) = held.filter(|held| held.owner == uid) else {
            return Ok(());
        };
        let body = json!({ "preconditions": { "uid": held.uid } });
        let call = Call {
            act: format!("unlock of node {node}"),
            path: format!("{}/{node}", self.path),
            write: Some((Write::NodeUnlock, &body)),
            accept: "application/json",
        };
        match kube.call(&call, deadline).await {
            Ok(_) | Err(CallError::NotFound { .. }) => {}
            // Another's by now, unless the server refuses for another reason.
            Err(CallError::Changed { message, .. }) if message.starts_with("409") => {}
            Err(error) => return Err(error),
        }
        self.held().remove(node);
        Ok(())
    }

    async fn read(&self, kube: &Kube, act: String, path: &str) -> Result<Vec<u8>, CallError> {
        let call = Call {
            act,
            path: path.to_owned(),
            write: None,
            accept: "application/json",
        };
        kube.call(&call, Instant::now() + LIST_TIMEOUT).await
    }

    fn held(&self) -> MutexGuard<'_, HashMap<String, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn look_again(held: &Held) -> Timestamp {
    held.seen.checked_add(LOOK).unwrap_or(Timestamp::MAX)
}

fn decoded<T: serde::de::DeserializeOwned>(act: String, body: &[u8]) -> Result<T, CallError> {
    serde_json::from_slice(body).map_err(|error| CallError::Unavailable {
        act,
        message: format!("the answer is no Lease: {error}"),
    })
}
