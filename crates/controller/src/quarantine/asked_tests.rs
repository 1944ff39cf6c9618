use health_event::BootId;
use health_event::incident::{CloseReason, Marks};
use jiff::Timestamp;

use super::*;
use crate::quarantine::work::new_incident_id;

fn incident(state: QuarantineStatus, held_by: Option<&str>) -> Incident {
    let at = Timestamp::UNIX_EPOCH;
    Incident {
        id: new_incident_id(),
        node: NodeName::new("gpu-17").unwrap(),
        node_uid: "u".into(),
        machine: "m".into(),
        version: 1,
        opened_seq: 0,
        opened_at: at,
        opened_boot: BootId::default(),
        closed_at: None,
        quarantine: state,
        since: at,
        faults: Vec::new(),
        marks: Marks::default(),
        pool: "gpu".into(),
        marks_observed: false,
        marks_before: None,
        needs_operator: None,
        held_by: held_by.map(str::to_owned),
        faults_unknown: false,
        reasserted: Vec::new(),
        put_back: Vec::new(),
        drain: None,
        repair: None,
        validation: None,
    }
}

/// Nobody may read "done" of a node to which nothing is written.
#[test]
fn what_is_only_recorded_says_so_and_how_it_is_done_by_hand() {
    use QuarantineStatus::{Applying, Closed, Observed, Quarantined};
    use RequestKind::{Cancel, Hold, Release};
    let node = NodeName::new("gpu-17").unwrap();
    let now = |state: QuarantineStatus| Some(incident(state, Some("ann: fan")));
    let cancelled = || Some(incident(Closed(CloseReason::CancelledByPerson), None));
    let table = vec![
        (
            Hold,
            None,
            now(Applying),
            Mode::Enforce,
            "done for node gpu-17: it is taken out",
        ),
        (Hold, None, now(Observed), Mode::DryRun, "dry run"),
        (Hold, None, now(Observed), Mode::Enforce, "protected"),
        (
            Hold,
            now(Quarantined),
            now(Quarantined),
            Mode::DryRun,
            "`kubectl cordon gpu-17`",
        ),
        (
            Hold,
            now(Quarantined),
            now(Quarantined),
            Mode::Enforce,
            "it is out already, and stays out until `warden release`. It was held already, by ann: fan: \
             that is replaced",
        ),
        (
            Release,
            now(Quarantined),
            now(Quarantined),
            Mode::Enforce,
            "done for node gpu-17: the hold",
        ),
        (
            Release,
            now(Quarantined),
            now(Quarantined),
            Mode::DryRun,
            "`warden explain gpu-17`",
        ),
        (
            Release,
            now(Observed),
            now(Observed),
            Mode::DryRun,
            "`kubectl uncordon gpu-17`",
        ),
        (
            Cancel,
            now(Quarantined),
            cancelled(),
            Mode::Enforce,
            "it is given back",
        ),
        (
            Cancel,
            now(Observed),
            cancelled(),
            Mode::DryRun,
            "recorded for node gpu-17",
        ),
        (
            Cancel,
            now(Observed),
            cancelled(),
            Mode::Enforce,
            "left in service",
        ),
    ];
    for (kind, before, after, mode, want) in table {
        let done = said(&node, kind, before.as_ref(), after.as_ref(), mode);
        assert!(done.text.contains(want), "{want:?} in {done:?}");
        let recorded = done.text.starts_with("recorded for node gpu-17: ");
        assert_eq!(recorded, done.only_recorded, "{done:?}");
        assert_ne!(
            recorded,
            done.text.starts_with("done for node gpu-17: "),
            "{done:?}"
        );
    }
}

#[test]
fn who_ends_an_incident_is_told_which_signal_can_not_be_recalled_and_until_when_it_is_watched() {
    let at: Timestamp = "2026-01-02T03:04:05.6Z".parse().unwrap();
    let intent = StoredIntent {
        uid: "u".into(),
        object: "maintenance-gpu-17-x-1".into(),
        node: "gpu-17".into(),
        machine: "m".into(),
        manual: false,
        boot_before: "b1".into(),
        at,
        deadline: "2026-01-02T03:29:05Z".parse().unwrap(),
    };
    let told = signals_out(std::slice::from_ref(&intent), at);
    for part in [
        "RebootNode maintenance-gpu-17-x-1 ",
        "can't be recalled",
        "until 2026-01-02T03:29:05Z",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert_eq!(signals_out(&[], at), "");
    assert_eq!(
        signals_out(std::slice::from_ref(&intent), intent.deadline),
        "",
        "over"
    );
}
