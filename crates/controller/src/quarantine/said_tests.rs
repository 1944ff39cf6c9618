use health_event::incident::{IncidentFault, IncidentId, Marks};
use health_event::{BootId, Device, FaultId, FaultKey, HealthEvent, Scope, Space};

use super::*;

fn fault(seq: u64, code: &str, action: RecommendedAction) -> IncidentFault {
    let event = HealthEvent {
        agent: "a".into(),
        check_name: "c".into(),
        ..HealthEvent::default()
    };
    IncidentFault {
        id: FaultId {
            scope: Scope::of(&event, NodeName::new("n").unwrap()),
            key: FaultKey {
                space: Space::ExecuteRemediation,
                device: Device::new(Vec::new()).key(),
                code: code.into(),
            },
        },
        rules: BTreeSet::from(["r".to_owned()]),
        forced_by: None,
        action,
        seq,
        joined_at: Timestamp::UNIX_EPOCH,
        closed_at: None,
        through_agent: false,
    }
}

fn incident(faults: Vec<IncidentFault>) -> Incident {
    let taint = Taint {
        key: "t".into(),
        value: String::new(),
        effect: "NoSchedule".into(),
    };
    Incident {
        id: IncidentId::new("01ARZ3NDEKTSV4RRFFQ69G5FAV").unwrap(),
        node: NodeName::new("n").unwrap(),
        node_uid: "uid".into(),
        machine: "m".into(),
        version: 2,
        opened_seq: 7,
        opened_at: Timestamp::UNIX_EPOCH,
        opened_boot: BootId::new("b"),
        closed_at: None,
        quarantine: QuarantineStatus::Quarantined,
        since: Timestamp::UNIX_EPOCH,
        faults,
        marks: Marks {
            cordon: true,
            taints: BTreeSet::from([taint]),
            ..Marks::default()
        },
        pool: "other".into(),
        marks_observed: true,
        marks_before: None,
        needs_operator: None,
        held_by: None,
        faults_unknown: false,
        reasserted: Vec::new(),
        put_back: Vec::new(),
        drain: None,
        repair: None,
        validation: None,
    }
}

/// The page of metrics after the node was given back for this reason, a minute after its event.
fn page_after(reason: CloseReason) -> String {
    let metrics = ControllerMetrics::new();
    let now = Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_mins(1);
    let generated_at = |seq| (seq == 7).then_some(Timestamp::UNIX_EPOCH);
    let before = incident(vec![fault(7, "79", RecommendedAction::RestartBm)]);
    released(&metrics, &before, reason, &generated_at, now);
    metrics.encode()
}

#[test]
fn what_was_taken_off_depends_on_whose_write_it_was() {
    // (reason, cordons removed, taints removed)
    let table = [
        (CloseReason::Recovered, 1, 1),
        (CloseReason::ManualUntaint, 1, 1),
        (CloseReason::CancelledByPerson, 1, 1),
        (CloseReason::ManualUncordon, 0, 1),
        (CloseReason::NodeDeleted, 0, 0),
    ];
    for (reason, cordons, taints) in table {
        let page = page_after(reason);
        let removed = format!("fault_quarantine_cordons_removed_total {cordons}");
        assert!(page.contains(&removed), "{reason:?}\n{page}");
        let series = "fault_quarantine_taints_removed_total{";
        assert_eq!(page.matches(series).count(), taints, "{reason:?}\n{page}");
        let series = "node_remediation_duration_seconds_count{";
        assert_eq!(page.contains(series), taints == 1, "{reason:?}\n{page}");
        let gauge = r#"fault_quarantine_current_quarantined_nodes{node="n"} 0"#;
        assert!(page.contains(gauge), "{reason:?}\n{page}");
    }
}

#[test]
fn row_174_each_event_that_held_a_node_counts_once() {
    use RecommendedAction::{ContactSupport, RestartBm};
    // None, one, two, one that named two codes, and one adopted from a node: its event is unknown.
    let table = [
        (vec![], 0),
        (vec![fault(1, "79", RestartBm)], 1),
        (
            vec![fault(1, "79", RestartBm), fault(2, "48", ContactSupport)],
            2,
        ),
        (
            vec![fault(1, "79", RestartBm), fault(1, "48", RestartBm)],
            1,
        ),
        (vec![fault(0, "79", RestartBm)], 0),
    ];
    for (faults, count) in table {
        assert_eq!(events_of(&incident(faults)).len(), count);
    }
}
