//! What tests of the stages after the quarantine share.

use health_event::device::DeviceKey;
use health_event::fault::FaultKey;
use health_event::incident::{Drain, DrainStatus, Incident, IncidentId, Marks, QuarantineStatus};
use health_event::{BootId, FaultId, NodeName, ProcessingStrategy, Scope, Subject};
use jiff::{SignedDuration, Timestamp};

use crate::later;

pub(crate) const MINUTE: SignedDuration = SignedDuration::from_mins(1);

pub(crate) fn at(minutes: i64) -> Timestamp {
    let span = MINUTE * i32::try_from(minutes).unwrap();
    later(Timestamp::UNIX_EPOCH, span)
}

/// A fault of the node's kernel log.
pub(crate) fn fault_id(code: &str) -> FaultId {
    FaultId {
        scope: Scope {
            subject: Subject::Node(NodeName::new("n1").unwrap()),
            agent: "syslog-health-monitor".to_owned(),
            component_class: "GPU".to_owned(),
            check_name: "SysLogsXIDError".to_owned(),
        },
        key: FaultKey {
            space: ProcessingStrategy::ExecuteRemediation,
            device: DeviceKey::from_stored("PCI", "0000:cb:00"),
            code: code.to_owned(),
        },
    }
}

/// Of a node that is out since its first boot, without a fault.
pub(crate) fn incident(drain: Option<DrainStatus>) -> Incident {
    Incident {
        id: IncidentId::new("01ARZ3NDEKTSV4RRFFQ69G5FAV").unwrap(),
        node: NodeName::new("n1").unwrap(),
        node_uid: "uid".to_owned(),
        machine: "machine".to_owned(),
        version: 3,
        opened_seq: 1,
        opened_at: at(0),
        opened_boot: BootId::new("b1"),
        closed_at: None,
        quarantine: QuarantineStatus::Quarantined,
        since: at(0),
        faults: Vec::new(),
        marks: Marks::default(),
        pool: "gpu".to_owned(),
        marks_observed: true,
        marks_before: None,
        drain: drain.map(|status| Drain {
            status,
            since: at(0),
        }),
        repair: None,
        validation: None,
        needs_operator: None,
        held_by: None,
        faults_unknown: false,
        reasserted: Vec::new(),
        put_back: Vec::new(),
    }
}
