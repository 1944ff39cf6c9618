//! How incidents and holds are kept: JSON records that mirror the core's types, so that these stay
//! free of serde and may change without breaking what is stored.

mod stages;

use std::collections::BTreeSet;

use health_event::device::DeviceKey;
use health_event::fault::FaultKey;
use health_event::incident::{
    Bound, CloseReason, HeldFault, Hold, Incident, IncidentFault, IncidentId, Marks,
    QuarantineStatus, Taint, Withheld,
};
use health_event::{
    BootId, FaultId, NodeName, ProcessingStrategy, RecommendedAction, Scope, Subject,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use stages::{DrainRecord, RepairRecord, ValidationRecord};

/// Why a stored record could not be read.
#[derive(Debug, thiserror::Error)]
#[error("stored record is damaged: {0}")]
pub(crate) struct BadRecord(String);

impl From<BadRecord> for rusqlite::Error {
    fn from(bad: BadRecord) -> Self {
        Self::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(bad))
    }
}

impl From<serde_json::Error> for BadRecord {
    fn from(error: serde_json::Error) -> Self {
        Self(error.to_string())
    }
}

fn bad(what: &str) -> BadRecord {
    BadRecord(what.to_owned())
}

#[derive(Serialize, Deserialize)]
struct FaultIdRecord {
    subject: String,
    agent: String,
    class: String,
    check: String,
    space: i32,
    device_kind: String,
    device: String,
    code: String,
}

#[derive(Serialize, Deserialize)]
struct TaintRecord {
    key: String,
    value: String,
    effect: String,
}

#[derive(Serialize, Deserialize)]
struct MarksRecord {
    cordon: bool,
    cordon_pre_existing: bool,
    taints: Vec<TaintRecord>,
    taints_pre_existing: Vec<TaintRecord>,
    reasons: BTreeSet<String>,
}

#[derive(Serialize, Deserialize)]
struct IncidentFaultRecord {
    id: FaultIdRecord,
    rules: BTreeSet<String>,
    forced_by: Option<String>,
    action: i32,
    seq: u64,
    joined_at: Timestamp,
    closed_at: Option<Timestamp>,
    through_agent: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "status", content = "detail")]
enum QuarantineRecord {
    WithheldBreaker(String),
    WithheldFirstAction(Timestamp),
    WithheldPace,
    WithheldOtherQuarantine,
    Observed,
    Applying,
    Quarantined,
    Releasing(String),
    Closed(String),
}

#[derive(Serialize, Deserialize)]
struct IncidentRecord {
    id: String,
    node: String,
    node_uid: String,
    machine: String,
    version: u64,
    opened_seq: u64,
    opened_at: Timestamp,
    opened_boot: String,
    closed_at: Option<Timestamp>,
    quarantine: QuarantineRecord,
    since: Timestamp,
    faults: Vec<IncidentFaultRecord>,
    marks: MarksRecord,
    pool: String,
    marks_observed: bool,
    marks_before: Option<MarksRecord>,
    #[serde(default)]
    drain: Option<DrainRecord>,
    #[serde(default)]
    repair: Option<RepairRecord>,
    #[serde(default)]
    validation: Option<ValidationRecord>,
    needs_operator: Option<String>,
    held_by: Option<String>,
    #[serde(default)]
    faults_unknown: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    reasserted: Vec<Timestamp>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    put_back: Vec<Timestamp>,
}

#[derive(Serialize, Deserialize)]
struct HoldRecord {
    actor: String,
    until: Timestamp,
    faults: Vec<HeldFaultRecord>,
}

#[derive(Serialize, Deserialize)]
struct HeldFaultRecord {
    #[serde(flatten)]
    id: FaultIdRecord,
    #[serde(default)]
    opened_seq: u64,
}

impl From<&Marks> for MarksRecord {
    fn from(marks: &Marks) -> Self {
        Self {
            cordon: marks.cordon,
            cordon_pre_existing: marks.cordon_pre_existing,
            taints: taints_to(&marks.taints),
            taints_pre_existing: taints_to(&marks.taints_pre_existing),
            reasons: marks.reasons.clone(),
        }
    }
}

impl From<MarksRecord> for Marks {
    fn from(record: MarksRecord) -> Self {
        Self {
            cordon: record.cordon,
            cordon_pre_existing: record.cordon_pre_existing,
            taints: taints_from(record.taints),
            taints_pre_existing: taints_from(record.taints_pre_existing),
            reasons: record.reasons,
        }
    }
}

/// The text of a subject in its column.
pub(crate) fn subject_from(text: &str) -> Option<Subject> {
    match text.split_once('/') {
        Some(("node", name)) => NodeName::new(name).ok().map(Subject::Node),
        Some(("pool", name)) => Some(Subject::Pool(name.to_owned())),
        Some(_) => None,
        None => (text == "cluster").then_some(Subject::Cluster),
    }
}

impl From<&FaultId> for FaultIdRecord {
    fn from(id: &FaultId) -> Self {
        Self {
            subject: id.scope.subject.to_string(),
            agent: id.scope.agent.clone(),
            class: id.scope.component_class.clone(),
            check: id.scope.check_name.clone(),
            space: id.key.space.number(),
            device_kind: id.key.device.kind().to_owned(),
            device: id.key.device.as_str().to_owned(),
            code: id.key.code.clone(),
        }
    }
}

impl TryFrom<FaultIdRecord> for FaultId {
    type Error = BadRecord;

    fn try_from(record: FaultIdRecord) -> Result<Self, BadRecord> {
        Ok(Self {
            scope: Scope {
                subject: subject_from(&record.subject).ok_or_else(|| bad("subject"))?,
                agent: record.agent,
                component_class: record.class,
                check_name: record.check,
            },
            key: FaultKey {
                space: ProcessingStrategy::from_number(record.space),
                device: DeviceKey::from_stored(&record.device_kind, &record.device),
                code: record.code,
            },
        })
    }
}

fn taints_to(taints: &BTreeSet<Taint>) -> Vec<TaintRecord> {
    taints
        .iter()
        .map(|t| TaintRecord {
            key: t.key.clone(),
            value: t.value.clone(),
            effect: t.effect.clone(),
        })
        .collect()
}

fn taints_from(taints: Vec<TaintRecord>) -> BTreeSet<Taint> {
    taints
        .into_iter()
        .map(|t| Taint {
            key: t.key,
            value: t.value,
            effect: t.effect,
        })
        .collect()
}

impl From<&QuarantineStatus> for QuarantineRecord {
    fn from(status: &QuarantineStatus) -> Self {
        match status {
            QuarantineStatus::Withheld(Withheld::Breaker(bound)) => {
                Self::WithheldBreaker(bound.as_str().to_owned())
            }
            QuarantineStatus::Withheld(Withheld::FirstAction { until }) => {
                Self::WithheldFirstAction(*until)
            }
            QuarantineStatus::Withheld(Withheld::Pace) => Self::WithheldPace,
            QuarantineStatus::Withheld(Withheld::OtherQuarantine) => Self::WithheldOtherQuarantine,
            QuarantineStatus::Observed => Self::Observed,
            QuarantineStatus::Applying => Self::Applying,
            QuarantineStatus::Quarantined => Self::Quarantined,
            QuarantineStatus::Releasing(why) => Self::Releasing(why.as_str().to_owned()),
            QuarantineStatus::Closed(why) => Self::Closed(why.as_str().to_owned()),
        }
    }
}

impl TryFrom<QuarantineRecord> for QuarantineStatus {
    type Error = BadRecord;

    fn try_from(record: QuarantineRecord) -> Result<Self, BadRecord> {
        let reason = |text: &str| CloseReason::from_stored(text).ok_or_else(|| bad("close reason"));
        Ok(match record {
            QuarantineRecord::WithheldBreaker(name) => {
                let bound = [Bound::Level, Bound::Rate]
                    .into_iter()
                    .find(|b| b.as_str() == name);
                Self::Withheld(Withheld::Breaker(bound.ok_or_else(|| bad("bound"))?))
            }
            QuarantineRecord::WithheldFirstAction(until) => {
                Self::Withheld(Withheld::FirstAction { until })
            }
            QuarantineRecord::WithheldPace => Self::Withheld(Withheld::Pace),
            QuarantineRecord::WithheldOtherQuarantine => Self::Withheld(Withheld::OtherQuarantine),
            QuarantineRecord::Observed => Self::Observed,
            QuarantineRecord::Applying => Self::Applying,
            QuarantineRecord::Quarantined => Self::Quarantined,
            QuarantineRecord::Releasing(why) => Self::Releasing(reason(&why)?),
            QuarantineRecord::Closed(why) => Self::Closed(reason(&why)?),
        })
    }
}

impl From<&IncidentFault> for IncidentFaultRecord {
    fn from(fault: &IncidentFault) -> Self {
        Self {
            id: (&fault.id).into(),
            rules: fault.rules.clone(),
            forced_by: fault.forced_by.clone(),
            action: fault.action.number(),
            seq: fault.seq,
            joined_at: fault.joined_at,
            closed_at: fault.closed_at,
            through_agent: fault.through_agent,
        }
    }
}

impl TryFrom<IncidentFaultRecord> for IncidentFault {
    type Error = BadRecord;

    fn try_from(record: IncidentFaultRecord) -> Result<Self, BadRecord> {
        Ok(Self {
            id: record.id.try_into()?,
            rules: record.rules,
            forced_by: record.forced_by,
            action: RecommendedAction::from_number(record.action),
            seq: record.seq,
            joined_at: record.joined_at,
            closed_at: record.closed_at,
            through_agent: record.through_agent,
        })
    }
}

/// An incident as JSON.
pub(crate) fn incident(incident: &Incident) -> Result<String, BadRecord> {
    let record = IncidentRecord {
        id: incident.id.as_str().to_owned(),
        node: incident.node.as_str().to_owned(),
        node_uid: incident.node_uid.clone(),
        machine: incident.machine.clone(),
        version: incident.version,
        opened_seq: incident.opened_seq,
        opened_at: incident.opened_at,
        opened_boot: incident.opened_boot.as_str().to_owned(),
        closed_at: incident.closed_at,
        quarantine: (&incident.quarantine).into(),
        since: incident.since,
        faults: incident.faults.iter().map(Into::into).collect(),
        marks: (&incident.marks).into(),
        pool: incident.pool.clone(),
        marks_observed: incident.marks_observed,
        marks_before: incident.marks_before.as_ref().map(Into::into),
        drain: incident.drain.as_ref().map(Into::into),
        repair: incident.repair.as_ref().map(Into::into),
        validation: incident.validation.as_ref().map(Into::into),
        needs_operator: incident.needs_operator.clone(),
        held_by: incident.held_by.clone(),
        faults_unknown: incident.faults_unknown,
        reasserted: incident.reasserted.clone(),
        put_back: incident.put_back.clone(),
    };
    Ok(serde_json::to_string(&record)?)
}

/// The incident of a JSON record.
pub(crate) fn decode_incident(json: &str) -> Result<Incident, BadRecord> {
    let record: IncidentRecord = serde_json::from_str(json)?;
    Ok(Incident {
        id: IncidentId::new(&record.id).ok_or_else(|| bad("incident id"))?,
        node: NodeName::new(&record.node).map_err(|_| bad("node name"))?,
        node_uid: record.node_uid,
        machine: record.machine,
        version: record.version,
        opened_seq: record.opened_seq,
        opened_at: record.opened_at,
        opened_boot: BootId::new(&record.opened_boot),
        closed_at: record.closed_at,
        quarantine: record.quarantine.try_into()?,
        since: record.since,
        faults: record
            .faults
            .into_iter()
            .map(TryInto::try_into)
            .collect::<Result<_, _>>()?,
        marks: record.marks.into(),
        pool: record.pool,
        marks_observed: record.marks_observed,
        marks_before: record.marks_before.map(Into::into),
        drain: record.drain.map(TryInto::try_into).transpose()?,
        repair: record.repair.map(TryInto::try_into).transpose()?,
        validation: record.validation.map(Into::into),
        needs_operator: record.needs_operator,
        held_by: record.held_by,
        faults_unknown: record.faults_unknown,
        reasserted: record.reasserted,
        put_back: record.put_back,
    })
}

/// Holds as JSON.
pub(crate) fn holds(holds: &[Hold]) -> Result<String, BadRecord> {
    let records: Vec<HoldRecord> = holds
        .iter()
        .map(|hold| HoldRecord {
            actor: hold.actor.clone(),
            until: hold.until,
            faults: hold
                .faults
                .iter()
                .map(|held| HeldFaultRecord {
                    id: (&held.id).into(),
                    opened_seq: held.opened_seq,
                })
                .collect(),
        })
        .collect();
    Ok(serde_json::to_string(&records)?)
}

/// The holds of a JSON record.
pub(crate) fn decode_holds(json: &str) -> Result<Vec<Hold>, BadRecord> {
    let records: Vec<HoldRecord> = serde_json::from_str(json)?;
    records
        .into_iter()
        .map(|record| {
            let faults = record.faults.into_iter().map(|held| {
                Ok(HeldFault {
                    id: held.id.try_into()?,
                    opened_seq: held.opened_seq,
                })
            });
            Ok(Hold {
                actor: record.actor,
                until: record.until,
                faults: faults.collect::<Result<_, BadRecord>>()?,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests;
