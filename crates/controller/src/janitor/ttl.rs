//! Objects that are over go once their time to live is.

use decide::janitor::ttl::{self, Object, Step};
use jiff::Timestamp;
use k8s_api::names::{EXPIRY, PRESERVE, TTL};
use k8s_api::reboot_node::{KIND, PATH, RebootNode};
use serde_json::json;
use telemetry::metrics::KindLabel;
use tracing::info;

use super::facts::signed;
use super::work::{Module, TurnError};
use crate::kubernetes::{Call, CallError, Write};

/// Does what the object's time to live asks for; answers when it is to be looked at again.
pub(super) async fn keep(
    module: &Module,
    object: &RebootNode,
    now: Timestamp,
) -> Result<Option<Timestamp>, TurnError> {
    let config = &module.context.config.janitor;
    if !config.enable_ttl || !config.enabled {
        return Ok(None);
    }
    let annotation = |key: &str| object.metadata.annotations.get(key).map(String::as_str);
    let facts = Object {
        ttl: annotation(TTL.text),
        expiry: annotation(EXPIRY.text),
        preserve: annotation(PRESERVE.text),
        deleting: object.metadata.deletion_timestamp.is_some(),
        over: object.is_over(),
    };
    match ttl::decide(&facts, signed(config.default_ttl), now) {
        Step::Keep => Ok(None),
        Step::Wait(at) => Ok(Some(at).filter(|at| *at > now)),
        Step::Annotate { ttl, expiry } => annotate(module, object, &ttl, expiry).await,
        Step::Delete => delete(module, object).await,
    }
}

async fn annotate(
    module: &Module,
    object: &RebootNode,
    ttl: &str,
    expiry: Timestamp,
) -> Result<Option<Timestamp>, TurnError> {
    let whole = Timestamp::from_second(expiry.as_second()).unwrap_or(expiry);
    let patch = json!({ "metadata": {
        "uid": object.metadata.uid,
        "resourceVersion": object.metadata.resource_version,
        "annotations": { TTL.text: ttl, EXPIRY.text: whole.to_string() },
    }});
    let name = &object.metadata.name;
    let call = Call {
        act: format!("write of the expiry of RebootNode {name}"),
        path: format!("{PATH}/{name}"),
        write: Some((Write::RepairExpiry, &patch)),
        accept: "application/json",
    };
    let answer = module.context.kube.call(&call, module.deadline()?).await;
    match answer {
        Ok(body) => {
            module.saw(&body);
            Ok(Some(whole))
        }
        // Gone, or its watch brings what changed.
        Err(CallError::NotFound { .. } | CallError::Changed { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn delete(module: &Module, object: &RebootNode) -> Result<Option<Timestamp>, TurnError> {
    let body = json!({ "preconditions": {
        "uid": object.metadata.uid,
        "resourceVersion": object.metadata.resource_version,
    }});
    let name = &object.metadata.name;
    let call = Call {
        act: format!("deletion of RebootNode {name}, whose time to live is over"),
        path: format!("{PATH}/{name}"),
        write: Some((Write::RepairDeletion, &body)),
        accept: "application/json",
    };
    let answer = module.context.kube.call(&call, module.deadline()?).await;
    match answer {
        Ok(_) => {
            info!(object = name, "a RebootNode went: its time to live is over");
            let kind = KIND.to_owned();
            let deletions = &module.context.metrics.janitor.ttl_deletions;
            deletions.get_or_create(&KindLabel { kind }).inc();
            Ok(None)
        }
        Err(CallError::NotFound { .. } | CallError::Changed { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
