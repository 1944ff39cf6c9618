//! What a new process does before its first decision.

use decide::drain::Mode;
use event_store::{ReadError, WriteError};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::settings;
use crate::context::Context;
use crate::quarantine::is_lost_store;

/// Where it is kept when drains were switched on.
const FIRST_ACTION: &str = "drain/first-action";

/// How far the module might act, and since when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FirstAction {
    reach: String,
    since: Timestamp,
}

/// Why the first action is not known.
#[derive(Debug, thiserror::Error)]
#[error("the time at which drains were switched on can't be kept: {0}")]
pub(super) struct FirstActionError(String);

impl From<ReadError> for FirstActionError {
    fn from(error: ReadError) -> Self {
        Self(error.to_string())
    }
}

impl From<WriteError> for FirstActionError {
    fn from(error: WriteError) -> Self {
        Self(error.to_string())
    }
}

/// Notes how far the module acts; answers until when no drain begins, or began: for the delay after it was
/// switched on to act, whatever it did before. None if the delay is off.
pub(super) async fn first_action_until(
    context: &Context,
    now: Timestamp,
) -> Result<Option<Timestamp>, FirstActionError> {
    let config = &context.config.drain;
    let mode = settings::mode(config);
    let reach = match mode {
        Mode::Enforce => "enforce",
        Mode::DryRun => "dry_run",
        Mode::Refused | Mode::Off => "off",
    };
    let bytes = context.store.state_get(FIRST_ACTION)?;
    let known = bytes.and_then(|bytes| serde_json::from_slice::<FirstAction>(&bytes).ok());
    let since = match &known {
        Some(known) if known.reach == reach => known.since,
        // Nothing is kept of a module that was never on.
        None if mode == Mode::Off => return Ok(None),
        Some(_) | None => {
            // What the nodes of a lost store are out for was decided about long ago.
            let is_lost = known.is_none() && is_lost_store(context);
            let since = if is_lost { Timestamp::UNIX_EPOCH } else { now };
            let record = FirstAction {
                reach: reach.to_owned(),
                since,
            };
            let bytes = serde_json::to_vec(&record).expect("a name and a time always render");
            let put = context
                .store
                .state_put(FIRST_ACTION, bytes, context.fencing);
            put.await?;
            since
        }
    };
    let delay = SignedDuration::try_from(config.first_action_delay).unwrap_or(SignedDuration::MAX);
    let until = since.checked_add(delay).unwrap_or(Timestamp::MAX);
    Ok((mode == Mode::Enforce && !delay.is_zero()).then_some(until))
}
