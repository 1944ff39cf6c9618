//! Records of the stages that follow the quarantine.

use health_event::BootId;
use health_event::incident::{
    Attempt, Drain, DrainDeadlines, DrainFailed, DrainFailure, DrainStatus, DrainWait, Effect,
    OperatorReason, Repair, RepairFailure, RepairStatus, Rung, Validation, ValidationStatus,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{BadRecord, bad};

#[derive(Serialize, Deserialize)]
pub(super) struct DrainRecord {
    status: DrainStatusRecord,
    since: Timestamp,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "status", content = "detail")]
enum DrainStatusRecord {
    WaitingPaused,
    WaitingFirstAction(Timestamp),
    WaitingDryRun,
    WaitingOtherDrainer,
    WaitingOwnNode,
    Draining {
        immediate: Timestamp,
        delete: Timestamp,
        completion: Option<Timestamp>,
    },
    Drained,
    Failed {
        why: String,
        immediate: Timestamp,
        delete: Timestamp,
        completion: Option<Timestamp>,
    },
    Cancelled,
}

#[derive(Serialize, Deserialize)]
pub(super) struct RepairRecord {
    status: RepairStatusRecord,
    since: Timestamp,
    attempt: Option<AttemptRecord>,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "status", content = "detail")]
enum RepairStatusRecord {
    Planned(String),
    Requested,
    Running,
    Unknown,
    Succeeded,
    FailedNoRebootObserved,
    FailedRefused(String),
    FailedObject(String),
    FailedDeadline,
    FailedNotBegun(String),
    FailedProviderRefused(String),
    NeedsOperatorUnsupported(String),
    NeedsOperatorExhausted(String),
    NeedsOperatorExhaustedUntil { rung: String, again_at: Timestamp },
    NeedsOperatorStillOpen,
    NeedsOperatorNotBegun,
    NeedsOperatorProviderRefuses { words: String, again_at: Timestamp },
    NeedsOperatorCalledOff,
    Cancelled,
}

#[derive(Serialize, Deserialize)]
struct AttemptRecord {
    number: u32,
    rung: String,
    action: String,
    object: String,
    force: bool,
    boot_before: String,
    requested_at: Timestamp,
    deadline: Timestamp,
    #[serde(default)]
    not_begun_before: u32,
    #[serde(default)]
    seen_before: Option<Timestamp>,
    effect: EffectRecord,
}

#[derive(Serialize, Deserialize)]
enum EffectRecord {
    Pending,
    Seen(Timestamp),
    NotSeen,
    NotBegun,
    ProviderRefused(Timestamp),
    Failed,
}

impl From<&Drain> for DrainRecord {
    fn from(drain: &Drain) -> Self {
        let status = match &drain.status {
            DrainStatus::Waiting(DrainWait::Paused) => DrainStatusRecord::WaitingPaused,
            DrainStatus::Waiting(DrainWait::FirstAction { until }) => {
                DrainStatusRecord::WaitingFirstAction(*until)
            }
            DrainStatus::Waiting(DrainWait::DryRun) => DrainStatusRecord::WaitingDryRun,
            DrainStatus::Waiting(DrainWait::OtherDrainer) => DrainStatusRecord::WaitingOtherDrainer,
            DrainStatus::Waiting(DrainWait::OwnNode) => DrainStatusRecord::WaitingOwnNode,
            DrainStatus::Draining(deadlines) => DrainStatusRecord::Draining {
                immediate: deadlines.immediate,
                delete: deadlines.delete,
                completion: deadlines.completion,
            },
            DrainStatus::Drained => DrainStatusRecord::Drained,
            DrainStatus::Failed(failed) => DrainStatusRecord::Failed {
                why: failed.why.as_str().to_owned(),
                immediate: failed.deadlines.immediate,
                delete: failed.deadlines.delete,
                completion: failed.deadlines.completion,
            },
            DrainStatus::Cancelled => DrainStatusRecord::Cancelled,
        };
        let since = drain.since;
        Self { status, since }
    }
}

impl TryFrom<DrainRecord> for Drain {
    type Error = BadRecord;

    fn try_from(record: DrainRecord) -> Result<Self, BadRecord> {
        let status = match record.status {
            DrainStatusRecord::WaitingPaused => DrainStatus::Waiting(DrainWait::Paused),
            DrainStatusRecord::WaitingFirstAction(until) => {
                DrainStatus::Waiting(DrainWait::FirstAction { until })
            }
            DrainStatusRecord::WaitingDryRun => DrainStatus::Waiting(DrainWait::DryRun),
            DrainStatusRecord::WaitingOtherDrainer => DrainStatus::Waiting(DrainWait::OtherDrainer),
            DrainStatusRecord::WaitingOwnNode => DrainStatus::Waiting(DrainWait::OwnNode),
            DrainStatusRecord::Draining {
                immediate,
                delete,
                completion,
            } => DrainStatus::Draining(DrainDeadlines {
                immediate,
                delete,
                completion,
            }),
            DrainStatusRecord::Drained => DrainStatus::Drained,
            DrainStatusRecord::Failed {
                why,
                immediate,
                delete,
                completion,
            } => DrainStatus::Failed(DrainFailed {
                why: DrainFailure::from_stored(&why).ok_or_else(|| bad("failure of a drain"))?,
                deadlines: DrainDeadlines {
                    immediate,
                    delete,
                    completion,
                },
            }),
            DrainStatusRecord::Cancelled => DrainStatus::Cancelled,
        };
        let since = record.since;
        Ok(Self { status, since })
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct ValidationRecord {
    status: ValidationStatusRecord,
    since: Timestamp,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "status", content = "detail")]
enum ValidationStatusRecord {
    Running,
    Passed,
    Failed(String),
}

impl From<&Validation> for ValidationRecord {
    fn from(validation: &Validation) -> Self {
        use ValidationStatusRecord as Record;
        let status = match &validation.status {
            ValidationStatus::Running => Record::Running,
            ValidationStatus::Passed => Record::Passed,
            ValidationStatus::Failed(found) => Record::Failed(found.clone()),
        };
        let since = validation.since;
        Self { status, since }
    }
}

impl From<ValidationRecord> for Validation {
    fn from(record: ValidationRecord) -> Self {
        use ValidationStatusRecord as Record;
        let status = match record.status {
            Record::Running => ValidationStatus::Running,
            Record::Passed => ValidationStatus::Passed,
            Record::Failed(found) => ValidationStatus::Failed(found),
        };
        let since = record.since;
        Self { status, since }
    }
}

impl From<&Repair> for RepairRecord {
    fn from(repair: &Repair) -> Self {
        use RepairStatusRecord as Record;
        let status = match &repair.status {
            RepairStatus::Planned { rung } => Record::Planned(rung.as_str().to_owned()),
            RepairStatus::Requested => Record::Requested,
            RepairStatus::Running => Record::Running,
            RepairStatus::Unknown => Record::Unknown,
            RepairStatus::Succeeded => Record::Succeeded,
            RepairStatus::Failed(RepairFailure::NoRebootObserved) => Record::FailedNoRebootObserved,
            RepairStatus::Failed(RepairFailure::Refused(why)) => Record::FailedRefused(why.clone()),
            RepairStatus::Failed(RepairFailure::Object(why)) => Record::FailedObject(why.clone()),
            RepairStatus::Failed(RepairFailure::Deadline) => Record::FailedDeadline,
            RepairStatus::Failed(RepairFailure::NotBegun(why)) => {
                Record::FailedNotBegun(why.clone())
            }
            RepairStatus::Failed(RepairFailure::ProviderRefused(why)) => {
                Record::FailedProviderRefused(why.clone())
            }
            RepairStatus::NeedsOperator(OperatorReason::Unsupported { action }) => {
                Record::NeedsOperatorUnsupported(action.clone())
            }
            RepairStatus::NeedsOperator(OperatorReason::Exhausted { rung, again_at }) => {
                let rung = rung.as_str().to_owned();
                match *again_at {
                    None => Record::NeedsOperatorExhausted(rung),
                    Some(again_at) => Record::NeedsOperatorExhaustedUntil { rung, again_at },
                }
            }
            RepairStatus::NeedsOperator(OperatorReason::StillOpen) => {
                Record::NeedsOperatorStillOpen
            }
            RepairStatus::NeedsOperator(OperatorReason::NotBegun) => Record::NeedsOperatorNotBegun,
            RepairStatus::NeedsOperator(OperatorReason::ProviderRefuses { words, again_at }) => {
                Record::NeedsOperatorProviderRefuses {
                    words: words.clone(),
                    again_at: *again_at,
                }
            }
            RepairStatus::NeedsOperator(OperatorReason::CalledOff) => {
                Record::NeedsOperatorCalledOff
            }
            RepairStatus::Cancelled => Record::Cancelled,
        };
        Self {
            status,
            since: repair.since,
            attempt: repair.attempt.as_ref().map(|attempt| AttemptRecord {
                number: attempt.number,
                rung: attempt.rung.as_str().to_owned(),
                action: attempt.action.clone(),
                object: attempt.object.clone(),
                force: attempt.force,
                boot_before: attempt.boot_before.as_str().to_owned(),
                requested_at: attempt.requested_at,
                deadline: attempt.deadline,
                not_begun_before: attempt.not_begun_before,
                seen_before: attempt.seen_before,
                effect: match attempt.effect {
                    Effect::Pending => EffectRecord::Pending,
                    Effect::Seen { at } => EffectRecord::Seen(at),
                    Effect::NotSeen => EffectRecord::NotSeen,
                    Effect::NotBegun => EffectRecord::NotBegun,
                    Effect::ProviderRefused { again_at } => EffectRecord::ProviderRefused(again_at),
                    Effect::Failed => EffectRecord::Failed,
                },
            }),
        }
    }
}

impl TryFrom<RepairRecord> for Repair {
    type Error = BadRecord;

    fn try_from(record: RepairRecord) -> Result<Self, BadRecord> {
        use RepairStatusRecord as Record;
        let rung = |name: &str| Rung::from_name(name).ok_or_else(|| bad("rung of a repair"));
        let status = match record.status {
            Record::Planned(name) => RepairStatus::Planned { rung: rung(&name)? },
            Record::Requested => RepairStatus::Requested,
            Record::Running => RepairStatus::Running,
            Record::Unknown => RepairStatus::Unknown,
            Record::Succeeded => RepairStatus::Succeeded,
            Record::FailedNoRebootObserved => RepairStatus::Failed(RepairFailure::NoRebootObserved),
            Record::FailedRefused(why) => RepairStatus::Failed(RepairFailure::Refused(why)),
            Record::FailedObject(why) => RepairStatus::Failed(RepairFailure::Object(why)),
            Record::FailedDeadline => RepairStatus::Failed(RepairFailure::Deadline),
            Record::FailedNotBegun(why) => RepairStatus::Failed(RepairFailure::NotBegun(why)),
            Record::FailedProviderRefused(why) => {
                RepairStatus::Failed(RepairFailure::ProviderRefused(why))
            }
            Record::NeedsOperatorUnsupported(action) => {
                RepairStatus::NeedsOperator(OperatorReason::Unsupported { action })
            }
            Record::NeedsOperatorExhausted(name) => exhausted(rung(&name)?, None),
            Record::NeedsOperatorExhaustedUntil {
                rung: name,
                again_at,
            } => exhausted(rung(&name)?, Some(again_at)),
            Record::NeedsOperatorStillOpen => {
                RepairStatus::NeedsOperator(OperatorReason::StillOpen)
            }
            Record::NeedsOperatorNotBegun => RepairStatus::NeedsOperator(OperatorReason::NotBegun),
            Record::NeedsOperatorProviderRefuses { words, again_at } => {
                RepairStatus::NeedsOperator(OperatorReason::ProviderRefuses { words, again_at })
            }
            Record::NeedsOperatorCalledOff => {
                RepairStatus::NeedsOperator(OperatorReason::CalledOff)
            }
            Record::Cancelled => RepairStatus::Cancelled,
        };
        let attempt = record.attempt.map(|attempt| {
            Ok::<_, BadRecord>(Attempt {
                number: attempt.number,
                rung: rung(&attempt.rung)?,
                action: attempt.action,
                object: attempt.object,
                force: attempt.force,
                boot_before: BootId::new(&attempt.boot_before),
                requested_at: attempt.requested_at,
                deadline: attempt.deadline,
                not_begun_before: attempt.not_begun_before,
                seen_before: attempt.seen_before,
                effect: match attempt.effect {
                    EffectRecord::Pending => Effect::Pending,
                    EffectRecord::Seen(at) => Effect::Seen { at },
                    EffectRecord::NotSeen => Effect::NotSeen,
                    EffectRecord::NotBegun => Effect::NotBegun,
                    EffectRecord::ProviderRefused(again_at) => Effect::ProviderRefused { again_at },
                    EffectRecord::Failed => Effect::Failed,
                },
            })
        });
        Ok(Self {
            status,
            since: record.since,
            attempt: attempt.transpose()?,
        })
    }
}

fn exhausted(rung: Rung, again_at: Option<Timestamp>) -> RepairStatus {
    RepairStatus::NeedsOperator(OperatorReason::Exhausted { rung, again_at })
}
