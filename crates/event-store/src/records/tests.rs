//! Round trips.

use health_event::incident::{
    Attempt, Drain, DrainDeadlines, DrainFailed, DrainFailure, DrainStatus, DrainWait, Effect,
    OperatorReason, Repair, RepairFailure, RepairStatus, Rung, Validation, ValidationStatus,
};
use health_event::{Device, Entity};

use super::*;

fn fault_id(subject: Subject) -> FaultId {
    FaultId {
        scope: Scope {
            subject,
            agent: "syslog-health-monitor".into(),
            component_class: "GPU".into(),
            check_name: "SysLogsXIDError".into(),
        },
        key: FaultKey {
            space: ProcessingStrategy::StoreAndAnalyse,
            device: Device::new([Entity::new("PCI", "0000:17:00")]).key(),
            code: "79".into(),
        },
    }
}

fn node() -> NodeName {
    NodeName::new("gpu-17").unwrap()
}

fn sample(quarantine: QuarantineStatus) -> Incident {
    let taint = |key: &str| Taint {
        key: key.into(),
        value: String::new(),
        effect: "NoSchedule".into(),
    };
    Incident {
        id: IncidentId::new("01ARZ3NDEKTSV4RRFFQ69G5FAV").unwrap(),
        node: node(),
        node_uid: "uid".into(),
        machine: "m".into(),
        version: 3,
        opened_seq: 17,
        opened_at: Timestamp::UNIX_EPOCH,
        opened_boot: BootId::new("boot"),
        closed_at: Some(Timestamp::MAX),
        quarantine,
        since: Timestamp::UNIX_EPOCH,
        faults: vec![IncidentFault {
            id: fault_id(Subject::Node(node())),
            rules: ["r".to_owned()].into(),
            forced_by: Some("x".into()),
            action: RecommendedAction::Unrecognised(77),
            seq: 17,
            joined_at: Timestamp::UNIX_EPOCH,
            closed_at: None,
            through_agent: true,
        }],
        marks: Marks {
            cordon: true,
            cordon_pre_existing: true,
            taints: [taint("a"), taint("b")].into(),
            taints_pre_existing: [taint("a")].into(),
            reasons: ["r".to_owned()].into(),
        },
        pool: "gpu".into(),
        marks_observed: true,
        marks_before: Some(Marks {
            taints: [taint("b")].into(),
            ..Marks::default()
        }),
        drain: None,
        repair: None,
        validation: None,
        needs_operator: Some("agent not settled".into()),
        held_by: Some("ada".into()),
        faults_unknown: true,
        reasserted: Vec::new(),
        put_back: vec![Timestamp::UNIX_EPOCH],
    }
}

#[test]
fn incidents_survive_in_every_state() {
    let states = [
        QuarantineStatus::Withheld(Withheld::Breaker(Bound::Level)),
        QuarantineStatus::Withheld(Withheld::Breaker(Bound::Rate)),
        QuarantineStatus::Withheld(Withheld::FirstAction {
            until: Timestamp::MAX,
        }),
        QuarantineStatus::Withheld(Withheld::Pace),
        QuarantineStatus::Withheld(Withheld::OtherQuarantine),
        QuarantineStatus::Observed,
        QuarantineStatus::Applying,
        QuarantineStatus::Quarantined,
        QuarantineStatus::Releasing(CloseReason::ManualUntaint),
        QuarantineStatus::Closed(CloseReason::Recovered),
    ];
    for state in states {
        let sent = sample(state);
        assert_eq!(decode_incident(&incident(&sent).unwrap()).unwrap(), sent);
    }
}

#[test]
fn drains_survive_in_every_state() {
    let deadlines = DrainDeadlines {
        immediate: Timestamp::UNIX_EPOCH,
        delete: Timestamp::MAX,
        completion: Some(Timestamp::MAX),
    };
    let states = [
        DrainStatus::Waiting(DrainWait::Paused),
        DrainStatus::Waiting(DrainWait::FirstAction {
            until: Timestamp::MAX,
        }),
        DrainStatus::Waiting(DrainWait::DryRun),
        DrainStatus::Waiting(DrainWait::OtherDrainer),
        DrainStatus::Waiting(DrainWait::OwnNode),
        DrainStatus::Draining(deadlines),
        DrainStatus::Draining(DrainDeadlines {
            completion: None,
            ..deadlines
        }),
        DrainStatus::Drained,
        DrainStatus::Cancelled,
    ];
    let failures = [
        DrainFailure::Immediate,
        DrainFailure::Deleted,
        DrainFailure::Completion,
    ];
    let failed = failures.map(|why| DrainStatus::Failed(DrainFailed { why, deadlines }));
    for status in states.into_iter().chain(failed) {
        let mut sent = sample(QuarantineStatus::Quarantined);
        let since = Timestamp::UNIX_EPOCH;
        sent.drain = Some(Drain { status, since });
        assert_eq!(decode_incident(&incident(&sent).unwrap()).unwrap(), sent);
    }
}

#[test]
fn validations_survive_in_every_state() {
    for status in [
        ValidationStatus::Running,
        ValidationStatus::Passed,
        ValidationStatus::Failed("a GPU is slow".into()),
    ] {
        let mut sent = sample(QuarantineStatus::Quarantined);
        let since = Timestamp::UNIX_EPOCH;
        sent.validation = Some(Validation { status, since });
        assert_eq!(decode_incident(&incident(&sent).unwrap()).unwrap(), sent);
    }
}

#[test]
fn repairs_survive_in_every_state() {
    let action = "REPLACE_DISK".to_owned();
    let states = [
        RepairStatus::Planned { rung: Rung::Reset },
        RepairStatus::Requested,
        RepairStatus::Running,
        RepairStatus::Unknown,
        RepairStatus::Succeeded,
        RepairStatus::Failed(RepairFailure::NoRebootObserved),
        RepairStatus::Failed(RepairFailure::Refused("why".into())),
        RepairStatus::Failed(RepairFailure::Object("why".into())),
        RepairStatus::Failed(RepairFailure::Deadline),
        RepairStatus::Failed(RepairFailure::NotBegun("why".into())),
        RepairStatus::Failed(RepairFailure::ProviderRefused("why".into())),
        RepairStatus::NeedsOperator(OperatorReason::Unsupported { action }),
        RepairStatus::NeedsOperator(OperatorReason::Exhausted {
            rung: Rung::HandOver,
            again_at: None,
        }),
        RepairStatus::NeedsOperator(OperatorReason::Exhausted {
            rung: Rung::Reboot,
            again_at: Some(Timestamp::MAX),
        }),
        RepairStatus::NeedsOperator(OperatorReason::StillOpen),
        RepairStatus::NeedsOperator(OperatorReason::NotBegun),
        RepairStatus::NeedsOperator(OperatorReason::ProviderRefuses {
            words: "why".into(),
            again_at: Timestamp::MAX,
        }),
        RepairStatus::NeedsOperator(OperatorReason::CalledOff),
        RepairStatus::Cancelled,
    ];
    let effects = [
        Effect::Pending,
        Effect::Seen { at: Timestamp::MAX },
        Effect::NotSeen,
        Effect::NotBegun,
        Effect::ProviderRefused {
            again_at: Timestamp::MAX,
        },
        Effect::Failed,
    ];
    let attempt = |effect| Attempt {
        number: 2,
        rung: Rung::Terminate,
        action: "REPLACE_VM".into(),
        object: "maintenance-n1-x-2".into(),
        force: true,
        boot_before: BootId::new("boot"),
        requested_at: Timestamp::UNIX_EPOCH,
        deadline: Timestamp::MAX,
        not_begun_before: 3,
        seen_before: Some(Timestamp::UNIX_EPOCH),
        effect,
    };
    let attempts = effects.map(|effect| Some(attempt(effect))).into_iter();
    let attempts = attempts.chain([None]).cycle();
    for (status, attempt) in states.into_iter().zip(attempts) {
        let mut sent = sample(QuarantineStatus::Quarantined);
        sent.repair = Some(Repair {
            status,
            since: Timestamp::UNIX_EPOCH,
            attempt,
        });
        assert_eq!(decode_incident(&incident(&sent).unwrap()).unwrap(), sent);
    }
}

#[test]
fn holds_survive_with_every_subject() {
    let sent = vec![Hold {
        actor: "ada".into(),
        until: Timestamp::MAX,
        faults: [
            Subject::Node(node()),
            Subject::Pool("a/b".into()),
            Subject::Cluster,
        ]
        .map(|subject| HeldFault {
            id: fault_id(subject),
            opened_seq: 7,
        })
        .to_vec(),
    }];
    assert_eq!(decode_holds(&holds(&sent).unwrap()).unwrap(), sent);
}

#[test]
fn a_damaged_record_is_an_error() {
    for json in ["", "{}", "[1]", r#"[{"actor":"a"}]"#] {
        assert!(decode_incident(json).is_err());
        assert!(decode_holds(json).is_err());
    }
}
